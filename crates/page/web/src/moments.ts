// SPDX-License-Identifier: GPL-2.0-only
// What CPUs ran in the last moments before an ejection: a lane for each CPU, empty while it is idle.

import uPlot from "uplot";
import type { Lane, Moments } from "./data";
import { element } from "./dom";
import { time } from "./format";
import { add, colour, css, figure, solid } from "./plot";

const LANE_HEIGHT = 22;

export function lastMoments(moments: Moments): HTMLElement {
  const { lanes, start, end } = moments;
  const { whole, box } = figure(`The last ${time(end - start)} before the exit: the task on each CPU`);
  const tasks = [...new Set(lanes.flatMap((lane) => lane.runs.map((run) => run.task)))];
  const options = (): Partial<uPlot.Options> => ({
    height: lanes.length * LANE_HEIGHT + 60,
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: false, range: [start, end] }, y: { range: [0, lanes.length], dir: -1 } },
    axes: [
      { values: (_, values) => values.map((value) => time(value - end)), space: 90 },
      { splits: () => lanes.map((_, at) => at + 0.5), values: () => lanes.map((lane) => `${lane.cpu}`), grid: { show: false }, label: "CPU", size: 46 },
    ],
    series: [{}, { paths: () => null, points: { show: false } }],
    hooks: { draw: [(plot) => lanes.forEach((lane, at) => paint(plot, lane, at, tasks))] },
  });
  requestAnimationFrame(() => add(box, options, [[start, end], [0, 0]]));
  const key = tasks.map((task, at) => element("li", { style: `--swatch: ${colour(at, tasks.length)}` }, task));
  whole.append(element("ul", { class: "key" }, ...key));
  return whole;
}

function paint(plot: uPlot, lane: Lane, at: number, tasks: string[]): void {
  const { ctx } = plot;
  const top = plot.valToPos(at, "y", true);
  const height = plot.valToPos(at + 1, "y", true) - top;
  ctx.save();
  ctx.font = `${12 * devicePixelRatio}px sans-serif`;
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  for (const run of lane.runs) {
    const left = plot.valToPos(run.start, "x", true);
    const width = Math.max(plot.valToPos(run.end, "x", true) - left, 1);
    ctx.fillStyle = solid(colour(tasks.indexOf(run.task), tasks.length));
    ctx.fillRect(left, top + 1, width, height - 2);
    if (ctx.measureText(run.task).width + 8 < width) {
      ctx.fillStyle = css("--back");
      ctx.fillText(run.task, left + 4, top + height / 2);
    }
  }
  ctx.restore();
}
