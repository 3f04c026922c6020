// SPDX-License-Identifier: GPL-2.0-only
// The intervals in which tasks ran on CPUs, in columns, as `crates/page/src/intervals.rs` packs
// them: CPU after CPU, in order of time.

import { bytes, type TimelineHead } from "./data";

/** Why a task left its CPU. */
export const LEFT = ["was preempted", "went to sleep", "exited", "still ran at the end"];

export class Intervals {
  readonly starts: Float64Array;
  readonly ends: Float64Array;
  readonly tasks: Uint32Array;
  /** Time in a run queue before the interval. */
  readonly waits: Float64Array;
  readonly left: Uint8Array;
  /** Whether the task was woken, rather than preempted before. */
  readonly woken: Uint8Array;
  /** Task that woke it, plus 1; 0: an interrupt, or unknown. */
  readonly wakers: Uint32Array;
  /** Queue from which it was taken, plus 1; 0: unknown. */
  readonly queues: Uint32Array;
  /** First interval of each CPU, and the number of all. */
  readonly first: number[];

  constructor(head: TimelineHead, packed: Uint8Array) {
    const n = head.counts.reduce((sum, count) => sum + count, 0);
    this.first = [0];
    for (const count of head.counts) this.first.push(this.first[this.first.length - 1] + count);
    const column = columns(packed);
    this.starts = new Float64Array(n);
    this.ends = new Float64Array(n);
    const gaps = column(new Float64Array(n));
    const lengths = column(new Float64Array(n));
    for (let cpu = 0; cpu < head.counts.length; cpu++) {
      let at = head.start;
      for (let i = this.first[cpu]; i < this.first[cpu + 1]; i++) {
        this.starts[i] = at + gaps[i];
        this.ends[i] = at = this.starts[i] + lengths[i];
      }
    }
    this.tasks = column(new Uint32Array(n));
    this.waits = column(new Float64Array(n));
    const how = column(new Uint8Array(n));
    this.left = how.map((word) => word & 3);
    this.woken = how.map((word) => word >> 2);
    this.wakers = column(new Uint32Array(n));
    this.queues = column(new Uint32Array(n));
  }

  static async load(head: TimelineHead): Promise<Intervals> {
    return new Intervals(head, await bytes(head.bytes));
  }

  /** Returns the first interval of a CPU that ends after a time. */
  from(cpu: number, time: number): number {
    let [low, high] = [this.first[cpu], this.first[cpu + 1]];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.ends[middle] > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /** Returns the interval of a CPU at a time, or -1 if the CPU was idle. */
  at(cpu: number, time: number): number {
    const i = this.from(cpu, time);
    return i < this.first[cpu + 1] && this.starts[i] <= time ? i : -1;
  }

  cpuOf(interval: number): number {
    return this.first.findIndex((first) => first > interval) - 1;
  }

  /** Returns the intervals with the longest waits, longest first. */
  longestWaits(count: number): number[] {
    const best: number[] = [];
    for (let i = 0; i < this.waits.length; i++) {
      if (best.length === count && this.waits[i] <= this.waits[best[count - 1]]) continue;
      let at = best.length;
      while (at > 0 && this.waits[best[at - 1]] < this.waits[i]) at--;
      best.splice(at, 0, i);
      if (best.length > count) best.pop();
    }
    return best.filter((i) => this.waits[i] > 0);
  }
}

/** Returns a function that fills arrays with the next numbers, 7 bits to a byte, lowest first. */
function columns(packed: Uint8Array): <T extends { length: number; [i: number]: number }>(to: T) => T {
  let at = 0;
  return (to) => {
    for (let i = 0; i < to.length; i++) {
      let byte = packed[at++];
      let value = byte & 127;
      for (let scale = 128; byte > 127; scale *= 128) {
        byte = packed[at++];
        value += (byte & 127) * scale;
      }
      to[i] = value;
    }
    if (at > packed.length) throw new Error("a timeline's data is cut off");
    return to;
  };
}
