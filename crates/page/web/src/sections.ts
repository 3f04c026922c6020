// SPDX-License-Identifier: GPL-2.0-only
// The sections of the page, besides the timeline.

import uPlot from "uplot";
import type { Advice, Cell, Distribution, Failure, Metric, PublishedTable, Session, TimelineHead } from "./data";
import { choice, element, table, type Column } from "./dom";
import { percent, quantity, significant, time } from "./format";
import { lastMoments } from "./moments";
import { add, colour, figure, intervals, remove, solid } from "./plot";
import type { Timeline } from "./timeline";

export function section(title: string, ...content: (Node | null)[]): HTMLElement {
  return element("section", {}, element("h2", {}, title), ...content);
}

/** A cell's mean, its interval, and the change against the baseline. */
function cellText(cell: Cell, unit: string): string {
  if (cell.n === 0) return "–";
  const { mean, low, high } = cell;
  const range = low === null || high === null ? "" : ` (${quantity(low, unit)} to ${quantity(high, unit)})`;
  return quantity(mean, unit) + range;
}

function changeText({ change }: Cell): string | null {
  if (!change || change.verdict === "no_runs") return null;
  if (change.verdict === "equal") return "equal";
  const sure = change.verdict === "different" ? "" : change.verdict === "noise" ? " (noise)" : " (one run)";
  const range = change.low === null ? "" : `, ${percent(change.low)} to ${percent(change.high)}`;
  return percent(change.relative) + range + sure;
}

/** Returns whether a change is for the better, if that can be told. */
function goodness(metric: Metric, cell: Cell): string {
  const change = cell.change;
  if (change?.verdict !== "different" || change.relative === null || metric.better === "open") return "";
  return change.relative > 0 === (metric.better === "more") ? "better" : "worse";
}

function best(metric: Metric): number {
  if (metric.better === "open") return -1;
  const means = metric.cells.map((cell) => cell.mean);
  const known = means.filter((mean) => mean !== null);
  const value = metric.better === "more" ? Math.max(...known) : Math.min(...known);
  return known.length > 1 && known.some((mean) => mean !== value) ? means.indexOf(value) : -1;
}

export function comparison(session: Session): HTMLElement {
  const chart = element("div");
  let shown: uPlot | null = null;
  const show = (metric: Metric) => {
    if (shown) remove(shown);
    const { whole, box } = figure(`${metric.label} by scheduler, means with 95 % intervals`);
    chart.replaceChildren(whole);
    shown = means(session, metric, box);
  };
  const columns: Column<Metric>[] = [
    {
      label: "Metric",
      show: (metric) => {
        const button = element("button", { type: "button", class: "link" }, metric.label);
        button.addEventListener("click", () => show(metric));
        const better = metric.better === "open" ? "" : metric.better === "more" ? "more is better" : "less is better";
        return element("span", { class: "metric" }, button, element("small", {}, better));
      },
      by: (metric) => metric.label,
    },
    ...session.schedulers.map(
      (scheduler, at): Column<Metric> => ({
        label: scheduler.name,
        numeric: true,
        by: (metric) => metric.cells[at].change?.relative ?? metric.cells[at].mean,
        class: (metric) => `${goodness(metric, metric.cells[at])} ${best(metric) === at ? "best" : ""} ${metric.cells[at].change?.verdict === "noise" ? "noise" : ""}`.trim(),
        show: (metric) => {
          const change = changeText(metric.cells[at]);
          return element("span", {}, cellText(metric.cells[at], metric.unit), change ? element("small", {}, change) : null);
        },
      }),
    ),
  ];
  const rows = element("div");
  const fill = (all: boolean) => {
    const metrics = session.metrics.filter((metric) => all || metric.main);
    rows.replaceChildren(table(`Mean of the runs; below it the change against ${session.schedulers[0].name}`, columns, metrics));
  };
  fill(false);
  queueMicrotask(() => session.metrics[0] && show(session.metrics[0]));
  const legend = element("p", { class: "note" }, "Bold: best of the row. Green and red: better and worse beyond noise. Grey: cannot be told from noise. A name draws its chart.");
  return section("Comparison", element("div", { class: "bar" }, choice("Metrics", ["main", "all"], (at) => fill(at === 1))), rows, legend, chart);
}

function means(session: Session, metric: Metric, box: HTMLElement): uPlot {
  const { cells } = metric;
  const x = cells.map((_, at) => at);
  const low = cells.map((cell) => cell.low ?? cell.mean);
  const high = cells.map((cell) => cell.high ?? cell.mean);
  const shown = [...low, ...high].filter((value) => value !== null);
  const name = (at: number) => session.schedulers[at]?.name ?? "";
  const options = (): Partial<uPlot.Options> => ({
    height: 240,
    legend: { show: false },
    scales: { x: { time: false, range: [-0.5, cells.length - 0.5] }, y: { range: [Math.min(0, ...shown), Math.max(...shown, 1e-9) * 1.08] } },
    axes: [
      { splits: () => x, values: (_, values) => values.map(name) },
      { values: (_, values) => values.map((value) => quantity(value, metric.unit)), size: 130 },
    ],
    series: [{}, { label: metric.label, paths: () => null, points: { show: true, size: 9, fill: solid(colour(0)), stroke: solid(colour(0)) } }],
    hooks: { draw: [intervals(low, high, 0)] },
  });
  return add(box, options, [x, cells.map((cell) => cell.mean)]);
}

/** The distribution of waits: which part of the waits took at most how long. */
export function latency(distributions: Distribution[]): HTMLElement | null {
  const some = distributions.filter((one) => one.counts.some((count) => count > 0));
  if (!some.length) return null;
  const { whole, box } = figure("Part of the wake-ups that waited at most so long for a CPU");
  const limits = [...new Set(some.flatMap((one) => one.limits))].sort((a, b) => a - b);
  const curves = some.map((one) => {
    const total = one.counts.reduce((sum, count) => sum + count, 0);
    let [below, at] = [0, 0];
    return limits.map((limit) => {
      while (at < one.limits.length && one.limits[at] <= limit) below += one.counts[at++];
      return (below / total) * 100;
    });
  });
  const options = (): Partial<uPlot.Options> => ({
    scales: { x: { time: false, distr: 3 }, y: { range: [0, 100] } },
    axes: [
      { values: (_, values) => values.map((value) => (value === null ? "" : time(value))), space: 60 },
      { values: (_, values) => values.map((value) => `${value} %`), size: 60 },
    ],
    series: [
      { label: "waited at most", value: (_, value) => (value === null ? "" : time(value)) },
      ...some.map((one, at) => ({
        label: one.scheduler,
        stroke: solid(colour(at, some.length)),
        width: 2,
        paths: uPlot.paths.stepped!({ align: 1 }),
        points: { show: false },
        value: (_: uPlot, value: number | null) => (value === null ? "" : `${value.toFixed(2)} %`),
      })),
    ],
  });
  requestAnimationFrame(() => add(box, options, [limits, ...curves]));
  const parts = [50, 90, 99, 99.9, 100];
  const at = (one: number, part: number) => limits[curves[one].findIndex((value) => value >= part - 1e-9)];
  const columns: Column<Distribution>[] = [
    { label: "Scheduler", show: (one) => one.scheduler, by: (one) => one.scheduler },
    ...parts.map((part) => ({
      label: part === 100 ? "max" : `p${part}`,
      show: (one: Distribution) => time(at(some.indexOf(one), part)),
      by: (one: Distribution) => at(some.indexOf(one), part),
      numeric: true,
    })),
  ];
  return section("Wake-up latency", whole, table("Percentiles of the traced run, at most 7 % too long", columns, some));
}

/** Migrations, and where tasks ran, over time. */
export function movement(heads: TimelineHead[]): HTMLElement | null {
  if (!heads.length) return null;
  const content = element("div");
  let plots: uPlot[] = [];
  const show = (head: TimelineHead) => {
    plots.forEach(remove);
    const parts = head.migrations[0].length;
    const step = (head.end - head.start) / parts;
    const x = Array.from({ length: parts }, (_, i) => head.start + (i + 0.5) * step);
    const moves = figure(`Migrations under ${head.scheduler} for each ${time(step)}`);
    const nodes = figure(`Busy CPUs of each node under ${head.scheduler}`);
    content.replaceChildren(moves.whole, nodes.whole);
    const names = ["within a cache", "within a node", "between nodes"];
    const busy = head.residency.map((node) => node.map((ns) => ns / step));
    plots = [
      add(moves.box, () => over(names, significant), [x, ...head.migrations]),
      add(nodes.box, () => over(busy.map((_, node) => `node ${node}`), significant), [x, ...busy]),
    ];
  };
  requestAnimationFrame(() => show(heads[0]));
  return section("Migrations and nodes", choice("Scheduler", heads.map((head) => head.scheduler), (at) => show(heads[at])), content);
}

function over(names: string[], show: (value: number) => string): Partial<uPlot.Options> {
  return {
    height: 220,
    scales: { x: { time: false }, y: { range: (_, __, max) => [0, Math.max(max, 1) * 1.05] } },
    axes: [{ values: (_, values) => values.map((value) => time(value)), space: 90 }, { size: 60 }],
    series: [
      { label: "time", value: (_, value) => (value === null ? "" : time(value)) },
      ...names.map((label, at) => ({ label, stroke: solid(colour(at, names.length)), width: 2, value: (_: uPlot, value: number | null) => (value === null ? "" : show(value)) })),
    ],
  };
}

export function shares(session: Session): HTMLElement | null {
  if (!session.cgroups.length) return null;
  const share = (value: number | null) => (value === null ? "–" : `${(value / 10).toFixed(1)} %`);
  return section(
    "Shares against weights",
    table(
      "CPU time of each cgroup among its siblings; due is its part of their weights",
      [
        { label: "Cgroup", show: (one) => one.path, by: (one) => one.path },
        { label: "Weight", show: (one) => `${one.weight}`, by: (one) => one.weight, numeric: true },
        { label: "Due", show: (one) => share(one.due), by: (one) => one.due, numeric: true },
        ...session.schedulers.map((scheduler, at) => ({
          label: scheduler.name,
          show: (one: (typeof session.cgroups)[0]) => share(one.shares[at]),
          by: (one: (typeof session.cgroups)[0]) => one.shares[at],
          numeric: true,
        })),
      ],
      session.cgroups,
    ),
  );
}

/** What happened to the runs that do not count. */
export function failures(session: Session, timeline: Timeline | null): HTMLElement | null {
  const all = session.schedulers.flatMap((scheduler) => scheduler.failures.map((failure) => ({ name: scheduler.name, failure })));
  if (!all.length) return null;
  return section("Runs that do not count", ...all.map(({ name, failure }) => story(name, failure, timeline)));
}

function story(name: string, failure: Failure, timeline: Timeline | null): HTMLElement {
  const { at, moments } = failure;
  const jump = at !== null && timeline?.has(name, failure.seed) ? element("button", { type: "button" }, "Show the last moments in the timeline") : null;
  jump?.addEventListener("click", () => void timeline!.lastMoments(name, failure.seed, at!));
  const when = at === null ? "" : ` at ${time(at)}`;
  return element(
    "article",
    { class: "story" },
    element("h3", {}, `${name}, seed ${failure.seed}: ${failure.kind}${when}`),
    element("p", {}, failure.message),
    failure.story.length ? element("pre", { tabindex: "0" }, failure.story.join("\n")) : null,
    moments && lastMoments(moments),
    jump,
    element("p", {}, "Again: ", element("code", {}, failure.again)),
  );
}

/** Published figures beside predicted ones, a point for each. */
export function published(tables: PublishedTable[]): HTMLElement | null {
  if (!tables.length) return null;
  const cells = tables.flatMap((table) => table.cells.map((cell) => ({ table: table.name, ...cell })));
  const drawn = cells.filter((cell) => cell.published > 0 && cell.predicted > 0).sort((a, b) => a.published - b.published);
  const { whole, box } = figure("Published (across) and predicted (up); on the line both are equal");
  const points = (agrees: (cell: (typeof drawn)[0]) => boolean) => drawn.map((cell) => (agrees(cell) ? cell.predicted : null));
  const x = drawn.map((cell) => cell.published);
  const dots = (label: string, at: number) => ({ label, paths: () => null, stroke: solid(colour(at, 3)), points: { show: true, size: 6, fill: solid(colour(at, 3)) } });
  const options = (): Partial<uPlot.Options> => ({
    height: 420,
    scales: { x: { time: false, distr: 3 }, y: { distr: 3 } },
    axes: [{ values: (_, values) => values.map((value) => (value === null ? "" : significant(value))) }, { values: (_, values) => values.map((value) => (value === null ? "" : significant(value))), size: 70 }],
    series: [{ label: "published" }, { label: "equal", stroke: solid(colour(2, 3)), dash: [4, 4], points: { show: false } }, dots("agrees, or no effect", 0), dots("disagrees", 1)],
  });
  requestAnimationFrame(() => add(box, options, [x, x, points((cell) => cell.agrees !== false), points((cell) => cell.agrees === false)]));
  const off = (cell: (typeof cells)[0]) => Math.abs(Math.log(cell.predicted / cell.published));
  const outliers = [...drawn].sort((a, b) => off(b) - off(a)).slice(0, 20);
  return section(
    "Published and predicted",
    table("Scores", [{ label: "Table", show: (one) => one.name, by: (one) => one.name }, { label: "Score", show: (one) => one.score }], tables),
    whole,
    table(
      "The figures that are furthest off",
      [
        { label: "Figure", show: (cell) => cell.label, by: (cell) => cell.label },
        { label: "Table", show: (cell) => cell.table, by: (cell) => cell.table },
        { label: "Published", show: (cell) => significant(cell.published), by: (cell) => cell.published, numeric: true },
        { label: "Predicted", show: (cell) => significant(cell.predicted), by: (cell) => cell.predicted, numeric: true },
        { label: "Factor", show: (cell) => significant(cell.predicted / cell.published), by: off, numeric: true },
      ],
      outliers,
    ),
  );
}

export function advice(advice: Advice | null): HTMLElement | null {
  if (!advice) return null;
  type Rank = Advice["ranks"][0];
  const { whole, box } = figure("Gain of each candidate over eevdf, with 95 % intervals");
  const ranked = advice.ranks.filter((rank) => rank.change !== null);
  const x = ranked.map((_, at) => at);
  const part = (value: number | null) => (value === null ? null : value * 100);
  const options = (): Partial<uPlot.Options> => ({
    legend: { show: false },
    scales: { x: { time: false, range: [-0.5, ranked.length - 0.5] } },
    axes: [{ splits: () => x, values: (_, values) => values.map((at) => ranked[at]?.scheduler ?? ""), rotate: ranked.length > 6 ? -60 : 0, size: ranked.length > 6 ? 120 : 50 }, { values: (_, values) => values.map((value) => `${value} %`), size: 60 }],
    series: [{}, { paths: () => null, points: { show: true, size: 9, fill: solid(colour(0)), stroke: solid(colour(0)) } }],
    hooks: { draw: [intervals(ranked.map((rank) => part(rank.low)), ranked.map((rank) => part(rank.high)), 0)] },
  });
  if (ranked.length) requestAnimationFrame(() => add(box, options, [x, ranked.map((rank) => part(rank.change))]));
  return section(
    "Advice",
    element("p", {}, advice.sentence),
    advice.command ? element("pre", { tabindex: "0" }, advice.command) : null,
    element("ul", {}, ...advice.goals.map((goal) => element("li", {}, goal))),
    ranked.length ? whole : null,
    table(
      "Candidates, best first",
      [
        { label: "Scheduler", show: (rank: Rank) => rank.scheduler, by: (rank: Rank) => rank.scheduler },
        { label: "Gain", show: (rank: Rank) => percent(rank.change), by: (rank: Rank) => rank.change, numeric: true },
        { label: "Interval", show: (rank: Rank) => (rank.low === null ? "–" : `${percent(rank.low)} to ${percent(rank.high)}`), numeric: true },
        { label: "Holds in", show: (rank: Rank) => rank.worlds, numeric: true },
        { label: "State", show: (rank: Rank) => rank.state, by: (rank: Rank) => rank.state },
      ],
      advice.ranks,
    ),
  );
}
