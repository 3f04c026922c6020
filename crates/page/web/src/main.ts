// SPDX-License-Identifier: GPL-2.0-only
// The page: reads its data and adds its sections.

import uplotStyle from "uplot/dist/uPlot.min.css";
import style from "./style.css";
import { read, type Page, type Session } from "./data";
import { choice, element, table } from "./dom";
import { fit, redraw } from "./plot";
import { advice, comparison, failures, latency, movement, published, section, shares } from "./sections";
import { Timeline } from "./timeline";

document.head.append(element("style", {}, uplotStyle + style));

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
/** The colours that the reader chose; null: those of the system. */
let chosen: "light" | "dark" | null = null;

function setColours(): void {
  document.documentElement.dataset.theme = chosen ?? (systemIsDark.matches ? "dark" : "light");
}

function head(page: Page): HTMLElement {
  const { problems, verdict } = page;
  const list = (texts: string[]) => texts.map((text) => element("li", {}, text));
  const theme = choice("Colours", ["as the system", "light", "dark"], (at) => {
    chosen = ([null, "light", "dark"] as const)[at];
    setColours();
    redraw();
  });
  return element(
    "header",
    {},
    element("h1", {}, page.title),
    element("p", { class: "verdict" }, verdict.sentence),
    element("p", { class: "sure" }, verdict.sure),
    problems.length ? element("ul", { class: "problems" }, ...list(problems)) : null,
    element("ul", {}, ...list(verdict.reasons)),
    element("div", { class: "bar" }, theme),
  );
}

function whole(session: Session): (HTMLElement | null)[] {
  const timeline = session.timelines.length ? new Timeline(session.timelines) : null;
  return [
    comparison(session),
    failures(session, timeline),
    latency(session.waits),
    timeline && section("Who ran where", timeline.whole),
    movement(session.timelines),
    shares(session),
    setup(session),
  ];
}

function setup(session: Session): HTMLElement {
  const facts = table("What ran", [{ label: "Fact", show: (fact) => fact[0] }, { label: "Value", show: (fact) => fact[1] }], session.facts);
  const remarks = session.remarks.map((remark) => element("li", {}, remark));
  return section("Setup", facts, remarks.length ? element("ul", {}, ...remarks) : null);
}

function start(): void {
  setColours();
  const page = read();
  const main = element("main");
  document.body.append(head(page), main, element("footer", {}, page.version));
  const add = (parts: (HTMLElement | null)[]) => main.append(...parts.filter((part) => part !== null));
  add([advice(page.advice), published(page.published)]);
  for (const session of page.sessions) {
    if (page.sessions.length > 1) main.append(element("h2", { class: "session" }, `${session.workload} on ${session.machine}`));
    add(whole(session));
  }
  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(fit);
  });
  systemIsDark.addEventListener("change", () => {
    setColours();
    redraw();
  });
  document.documentElement.dataset.ready = "yes";
}

start();
