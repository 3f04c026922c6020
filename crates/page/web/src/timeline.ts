// SPDX-License-Identifier: GPL-2.0-only
// Who ran where: a lane for each CPU. The wheel and + and - zoom, dragging and the arrow keys pan,
// and the pointer shows the interval below it.

import uPlot from "uplot";
import type { TimelineHead } from "./data";
import { choice, element, table } from "./dom";
import { time } from "./format";
import { Intervals, LEFT } from "./intervals";
import { add, colour, css, remove, solid } from "./plot";

const WAITS_SHOWN = 15;

/** Time before an exit that is shown as its last moments, in ns. */
const LAST_MOMENTS = 20e6;

export class Timeline {
  readonly whole: HTMLElement;
  private readonly runs: HTMLElement;
  private readonly box = element("div", { class: "chart", tabindex: "0" });
  private readonly tip = element("div", { class: "tip", hidden: "" });
  private readonly below = element("div");
  private readonly filters = element("div", { class: "bar" });
  private readonly note = element("p", { class: "note", role: "status" });
  private plot: uPlot | null = null;
  private head!: TimelineHead;
  private all!: Intervals;
  private colours: string[] = [];
  /** Whether each task is highlighted; null: all are alike. */
  private chosen: boolean[] | null = null;
  private turn = 0;

  constructor(private readonly heads: TimelineHead[]) {
    const names = heads.map((head) => `${head.scheduler}, seed ${head.seed}`);
    this.box.setAttribute("role", "application");
    const reset = element("button", { type: "button" }, "Whole run");
    reset.addEventListener("click", () => this.show(this.head.start, this.head.end));
    this.runs = choice("Run", names, (at) => void this.load(heads[at]));
    const bar = element("div", { class: "bar" }, this.runs, this.filters, reset);
    this.whole = element("div", { class: "timeline" }, bar, this.box, this.note, this.tip, this.below);
    void this.load(heads[0]);
  }

  /** Tells whether a run has a timeline. */
  has(scheduler: string, seed: number): boolean {
    return this.heads.some((head) => head.scheduler === scheduler && head.seed === seed);
  }

  /** Shows what happened before a time of a run. */
  async lastMoments(scheduler: string, seed: number, until: number): Promise<void> {
    const at = this.heads.findIndex((head) => head.scheduler === scheduler && head.seed === seed);
    this.runs.querySelector("select")!.value = `${at}`;
    await this.load(this.heads[at]);
    this.show(until - LAST_MOMENTS, until + LAST_MOMENTS / 20);
    this.box.scrollIntoView({ block: "center" });
    this.box.focus({ preventScroll: true });
  }

  private async load(head: TimelineHead): Promise<void> {
    const turn = ++this.turn;
    this.note.textContent = "Reading the events of the run.";
    const all = await Intervals.load(head);
    if (turn !== this.turn) return;
    [this.head, this.all, this.chosen] = [head, all, null];
    this.note.textContent = head.cut ?? "";
    const groups = [...new Set(head.tasks.map((task) => task.group))];
    this.colours = head.tasks.map((task, at) => colour(groups.length > 1 ? groups.indexOf(task.group) : at, 99));
    this.filters.replaceChildren(
      choice("Highlight", ["all tasks", ...groups], (at) => this.highlight(at ? (task) => task.group === groups[at - 1] : null)),
      this.search(),
    );
    if (this.plot) remove(this.plot);
    this.draw();
    this.below.replaceChildren(this.waits());
    this.box.dataset.ready = head.scheduler;
  }

  private search(): HTMLElement {
    const input = element("input", { type: "search", placeholder: "part of a name" });
    input.addEventListener("input", () => {
      const text = input.value.toLowerCase();
      this.highlight(text ? (task) => task.name.toLowerCase().includes(text) : null);
    });
    return element("label", { class: "choice" }, "Task ", input);
  }

  private highlight(choose: ((task: { name: string; group: string }) => boolean) | null): void {
    this.chosen = choose && this.head.tasks.map(choose);
    this.plot?.redraw(false);
  }

  private draw(): void {
    const cpus = this.head.counts.length;
    const lane = Math.min(22, Math.max(2, Math.floor(560 / cpus)));
    const name = `Tasks on ${cpus} CPUs under ${this.head.scheduler} over time`;
    this.box.setAttribute("aria-label", `${name}. Arrow keys pan, plus and minus zoom.`);
    const step = Math.ceil(16 / lane);
    const lanes = Array.from({ length: Math.ceil(cpus / step) }, (_, i) => i * step);
    const options = (): Partial<uPlot.Options> => ({
      height: cpus * lane + 60,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, y: false, points: { show: false } },
      scales: {
        x: { time: false, range: (_, min, max) => [min, max] },
        y: { range: () => [0, cpus], dir: -1 },
      },
      axes: [
        { values: (_, values) => values.map((value) => time(value)), space: 90 },
        { splits: () => lanes.map((cpu) => cpu + 0.5), values: () => lanes.map((cpu) => `${cpu}`), grid: { show: false }, label: "CPU", size: 46 },
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: {
        draw: [(plot) => this.paint(plot)],
        setCursor: [(plot) => this.hover(plot)],
        ready: [(plot) => this.listen(plot)],
      },
    });
    this.plot = add(this.box, options, [[this.head.start, this.head.end], [0, 0]]);
  }

  /** Draws at most one interval for each pixel of each lane, however many there are. */
  private paint(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const { min = 0, max = 1 } = plot.scales.x;
    this.plot = plot;
    const { all, chosen, head } = this;
    const pixels = bbox.width / (max - min);
    const height = bbox.height / head.counts.length;
    const gap = height > 6 ? 1 : 0;
    const dim = css("--grid");
    const solids = this.colours.map(solid);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    head.counts.forEach((_, cpu) => {
      const last = all.first[cpu + 1];
      let i = all.from(cpu, min);
      while (i < last && all.starts[i] < max) {
        const left = Math.max(0, (all.starts[i] - min) * pixels);
        const right = Math.min(bbox.width, (all.ends[i] - min) * pixels);
        const task = all.tasks[i];
        ctx.fillStyle = chosen && !chosen[task] ? dim : solids[task];
        ctx.fillRect(bbox.left + left, bbox.top + cpu * height, Math.max(right - left, 1), height - gap);
        // The next interval that reaches beyond this pixel.
        const edge = min + (Math.floor(Math.max(right, left)) + 1) / pixels;
        i = right - left >= 1 ? i + 1 : Math.max(i + 1, all.from(cpu, edge));
      }
    });
    ctx.restore();
  }

  private listen(plot: uPlot): void {
    const over = plot.over;
    const span = () => [plot.scales.x.min ?? 0, plot.scales.x.max ?? 1];
    over.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(plot.posToVal(event.offsetX, "x"), event.deltaY > 0 ? 1.25 : 0.8);
    });
    over.addEventListener("pointerdown", (event) => {
      const [min, max] = span();
      const [x, width] = [event.clientX, over.clientWidth];
      over.setPointerCapture(event.pointerId);
      const move = (event: PointerEvent) => {
        const by = ((event.clientX - x) * (max - min)) / width;
        this.show(min - by, max - by);
      };
      over.addEventListener("pointermove", move);
      over.addEventListener("pointerup", () => over.removeEventListener("pointermove", move), { once: true });
    });
    over.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.box.onkeydown = (event) => {
      const [min, max] = span();
      const by = (max - min) / 5;
      if (event.key === "ArrowLeft") this.show(min - by, max - by);
      else if (event.key === "ArrowRight") this.show(min + by, max + by);
      else if (event.key === "+" || event.key === "=") this.zoom((min + max) / 2, 0.8);
      else if (event.key === "-") this.zoom((min + max) / 2, 1.25);
      else return;
      event.preventDefault();
    };
  }

  private zoom(about: number, by: number): void {
    const { min = 0, max = 1 } = this.plot?.scales.x ?? {};
    this.show(about - (about - min) * by, about + (max - about) * by);
  }

  /** Shows a part of the run; at least 100 ns, and never more than the run. */
  private show(from: number, to: number): void {
    const { start, end } = this.head;
    const length = Math.min(Math.max(to - from, 100), end - start);
    const min = Math.min(Math.max(from, start), end - length);
    this.plot?.setScale("x", { min, max: min + length });
  }

  private hover(plot: uPlot): void {
    const { left = -1, top = -1 } = plot.cursor;
    const cpu = Math.floor(plot.posToVal(top, "y"));
    const i = left < 0 || top < 0 || cpu >= this.head.counts.length ? -1 : this.all.at(cpu, plot.posToVal(left, "x"));
    this.tip.hidden = i < 0;
    if (i < 0) return;
    this.tip.replaceChildren(...this.describe(i));
    const box = this.whole.getBoundingClientRect();
    const over = plot.over.getBoundingClientRect();
    const x = Math.min(over.left - box.left + left + 14, box.width - this.tip.offsetWidth - 4);
    this.tip.style.transform = `translate(${Math.max(0, x)}px, ${over.top - box.top + top + 14}px)`;
  }

  /** Tells what ran in an interval, how long it had waited, and why it came and went. */
  private describe(i: number): HTMLElement[] {
    const { all, head } = this;
    const task = head.tasks[all.tasks[i]];
    const waker = all.wakers[i] ? head.tasks[all.wakers[i] - 1].name : "an interrupt";
    const before = all.woken[i] ? `woken by ${waker}` : "since it had lost a CPU";
    const queue = all.queues[i] ? `, in ${head.queues[all.queues[i] - 1]}` : "";
    const lines = [
      `CPU ${all.cpuOf(i)}, ${time(all.starts[i])} to ${time(all.ends[i])}`,
      `ran ${time(all.ends[i] - all.starts[i])}, then ${LEFT[all.left[i]]}`,
      `waited ${time(all.waits[i])} before, ${before}${queue}`,
    ];
    return [element("strong", {}, task.name), element("small", {}, ` ${task.group}`), ...lines.map((text) => element("div", {}, text))];
  }

  private waits(): HTMLElement {
    const { all, head } = this;
    const name = (i: number) => head.tasks[all.tasks[i]].name;
    const jump = (i: number) => {
      const button = element("button", { type: "button", class: "link" }, name(i));
      const length = all.waits[i] + all.ends[i] - all.starts[i];
      button.addEventListener("click", () => {
        this.show(all.starts[i] - all.waits[i] - length / 4, all.ends[i] + length / 4);
        this.box.scrollIntoView({ block: "nearest" });
      });
      return button;
    };
    return table(
      "The longest waits for a CPU; a name shows the place",
      [
        { label: "Task", show: jump, by: name },
        { label: "Waited", show: (i) => time(all.waits[i]), by: (i) => all.waits[i], numeric: true },
        { label: "Until", show: (i) => time(all.starts[i]), by: (i) => all.starts[i], numeric: true },
        { label: "CPU", show: (i) => `${all.cpuOf(i)}`, by: (i) => all.cpuOf(i), numeric: true },
        { label: "After", show: (i) => (all.woken[i] ? "a wake-up" : "losing a CPU"), by: (i) => all.woken[i] },
      ],
      all.longestWaits(WAITS_SHOWN),
    );
  }
}
