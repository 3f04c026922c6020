// SPDX-License-Identifier: GPL-2.0-only
// The data of a page, as `crates/page/src/data.rs` writes it. Times are in ns.

export interface Page {
  title: string;
  version: string;
  verdict: Verdict;
  /** What is wrong with the results that the page was made from. */
  problems: string[];
  sessions: Session[];
  published: PublishedTable[];
  advice: Advice | null;
}

/** The answer of the page, in a sentence, and what speaks for and against it. */
export interface Verdict {
  sentence: string;
  sure: string;
  reasons: string[];
}

/** Runs of several schedulers with one workload on one machine. */
export interface Session {
  workload: string;
  machine: string;
  facts: [string, string][];
  schedulers: Scheduler[];
  metrics: Metric[];
  cgroups: Cgroup[];
  waits: Distribution[];
  timelines: TimelineHead[];
  remarks: string[];
}

export interface Scheduler {
  name: string;
  failures: Failure[];
}

/** A run that was ejected or ended irregularly. */
export interface Failure {
  seed: number;
  kind: string;
  at: number | null;
  message: string;
  story: string[];
  moments: Moments | null;
  again: string;
}

/** What CPUs ran in the last moments before an ejection. */
export interface Moments {
  start: number;
  end: number;
  lanes: Lane[];
}

export interface Lane {
  cpu: number;
  runs: { task: string; start: number; end: number }[];
}

export interface Metric {
  name: string;
  label: string;
  unit: string;
  better: "less" | "more" | "open";
  main: boolean;
  cells: Cell[];
}

/** A metric of one scheduler. */
export interface Cell {
  n: number;
  mean: number | null;
  low: number | null;
  high: number | null;
  change: Change | null;
}

/** Change against the first scheduler. */
export interface Change {
  relative: number | null;
  low: number | null;
  high: number | null;
  verdict: "equal" | "different" | "noise" | "unknown" | "no_runs";
}

export interface Cgroup {
  path: string;
  weight: number;
  due: number;
  /** Share of each scheduler in thousandths. */
  shares: (number | null)[];
}

/** Numbers of waits by length: `counts[i]` waits took at most `limits[i]`. */
export interface Distribution {
  scheduler: string;
  limits: number[];
  counts: number[];
}

export interface TimelineHead {
  scheduler: string;
  seed: number;
  start: number;
  end: number;
  /** Number of intervals of each CPU. */
  counts: number[];
  tasks: Task[];
  queues: string[];
  /** Numbers of migrations in equal parts of the time: within an LLC, within a node, between. */
  migrations: number[][];
  /** CPU time of each node in equal parts of the time, in ns. */
  residency: number[][];
  bytes: string;
  cut: string | null;
}

export interface Task {
  name: string;
  group: string;
}

export interface PublishedTable {
  name: string;
  score: string;
  cells: { label: string; published: number; predicted: number; agrees: boolean | null }[];
}

export interface Advice {
  sentence: string;
  command: string | null;
  goals: string[];
  ranks: {
    scheduler: string;
    change: number | null;
    low: number | null;
    high: number | null;
    worlds: string;
    state: string;
  }[];
}

export function read(): Page {
  const text = document.getElementById("page-data")?.textContent;
  if (!text) throw new Error("the page has no data");
  return JSON.parse(text) as Page;
}

/** Returns the bytes of a block of the page, which holds base64 of zlib's format. */
export async function bytes(id: string): Promise<Uint8Array> {
  const text = atob(document.getElementById(id)?.textContent ?? "");
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
