// SPDX-License-Identifier: GPL-2.0-only
// Elements, and tables that a click on a heading sorts.

type Child = Node | string | null;

export function element<K extends keyof HTMLElementTagNameMap>(
  name: K,
  attributes: Record<string, string> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

export interface Column<Row> {
  label: string;
  /** Content of the cell. */
  show: (row: Row) => Child;
  /** What the rows are sorted by; absent: the column cannot be sorted by. */
  by?: (row: Row) => number | string | null;
  numeric?: boolean;
  class?: (row: Row) => string;
}

/** Returns a table of rows. The first column is the heading of each row. */
export function table<Row>(caption: string, columns: Column<Row>[], rows: Row[]): HTMLElement {
  const body = element("tbody");
  const head = element("tr");
  const fill = (rows: Row[]) => body.replaceChildren(...rows.map((row) => line(columns, row)));
  let sorted = { column: -1, down: false };
  columns.forEach((column, at) => {
    const cell = element("th", { scope: "col", class: column.numeric ? "numeric" : "" });
    const by = column.by;
    if (!by) {
      cell.append(column.label);
    } else {
      const button = element("button", { type: "button" }, column.label);
      button.addEventListener("click", () => {
        sorted = { column: at, down: sorted.column === at && !sorted.down };
        for (const other of head.children) other.removeAttribute("aria-sort");
        cell.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
        fill([...rows].sort((a, b) => (sorted.down ? order(by(b), by(a)) : order(by(a), by(b)))));
      });
      cell.append(button);
    }
    head.append(cell);
  });
  fill(rows);
  const whole = element("table", {}, element("caption", {}, caption), element("thead", {}, head), body);
  return element("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": caption }, whole);
}

function line<Row>(columns: Column<Row>[], row: Row): HTMLElement {
  return element(
    "tr",
    {},
    ...columns.map((column, at) => {
      const kind = `${column.numeric ? "numeric" : ""} ${column.class?.(row) ?? ""}`.trim();
      const attributes: Record<string, string> = at === 0 ? { scope: "row" } : {};
      if (kind) attributes.class = kind;
      return element(at === 0 ? "th" : "td", attributes, column.show(row));
    }),
  );
}

/** Orders values; absent ones come first. */
function order(a: number | string | null, b: number | string | null): number {
  if (a === null || b === null) return (a === null ? 0 : 1) - (b === null ? 0 : 1);
  return a < b ? -1 : a > b ? 1 : 0;
}

export function choice(label: string, names: string[], chosen: (at: number) => void): HTMLElement {
  const select = element("select", {}, ...names.map((name, at) => element("option", { value: `${at}` }, name)));
  select.addEventListener("change", () => chosen(Number(select.value)));
  return element("label", { class: "choice" }, label, " ", select);
}
