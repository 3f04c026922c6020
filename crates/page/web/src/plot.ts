// SPDX-License-Identifier: GPL-2.0-only
// Charts by uPlot, in the colours of the page.

import uPlot from "uplot";
import { element } from "./dom";

/** Returns the colour of one of several series; a prime step keeps neighbours apart. */
export function colour(at: number, of = 10): string {
  const hue = of <= 10 ? (at * 360) / Math.max(of, 1) + 210 : at * 137.508 + 210;
  return `hsl(${hue % 360} 62% var(--lightness))`;
}

export function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Returns a colour that a canvas understands. */
export function solid(colour: string): string {
  return colour.replace("var(--lightness)", css("--lightness"));
}

const drawn: { plot: uPlot; box: HTMLElement; make: () => uPlot }[] = [];

/** Adds a chart to a box, as wide as the box. The chart is made again for other colours. */
export function add(box: HTMLElement, options: () => Partial<uPlot.Options>, data: uPlot.AlignedData): uPlot {
  const make = () => {
    const axis = { stroke: css("--text"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 } };
    const given = options();
    const axes = (given.axes ?? [{}, {}]).map((own) => ({ ...axis, ...own }));
    const all = { width: Math.max(box.clientWidth, 280), height: 300, series: [{}], ...given, axes } as uPlot.Options;
    return new uPlot(all, data, box);
  };
  const entry = { plot: make(), box, make };
  drawn.push(entry);
  return entry.plot;
}

export function remove(plot: uPlot): void {
  const at = drawn.findIndex((entry) => entry.plot === plot);
  if (at >= 0) drawn.splice(at, 1);
  plot.destroy();
}

export function redraw(): void {
  for (const entry of drawn) {
    const x = entry.plot.scales.x;
    const shown = { min: x.min ?? 0, max: x.max ?? 1 };
    entry.plot.destroy();
    entry.plot = entry.make();
    entry.plot.setScale("x", shown);
  }
}

export function fit(): void {
  for (const { plot, box } of drawn) plot.setSize({ width: Math.max(box.clientWidth, 280), height: plot.height });
}

/** Returns a figure with a chart that a screen reader knows by its label. */
export function figure(label: string): { whole: HTMLElement; box: HTMLElement } {
  const box = element("div", { class: "chart", role: "img", "aria-label": label });
  return { whole: element("figure", {}, element("figcaption", {}, label), box), box };
}

/** Draws points with vertical intervals. */
export function intervals(low: (number | null)[], high: (number | null)[], series: number): (plot: uPlot) => void {
  return (plot) => {
    const { ctx } = plot;
    ctx.save();
    ctx.strokeStyle = solid(colour(series));
    ctx.lineWidth = 2 * devicePixelRatio;
    low.forEach((from, at) => {
      const to = high[at];
      if (from === null || to === null) return;
      const x = plot.valToPos(plot.data[0][at], "x", true);
      ctx.beginPath();
      ctx.moveTo(x, plot.valToPos(from, "y", true));
      ctx.lineTo(x, plot.valToPos(to, "y", true));
      ctx.stroke();
    });
    ctx.restore();
  };
}
