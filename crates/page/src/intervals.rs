// SPDX-License-Identifier: GPL-2.0-only
//! Who ran where, from the events of a run: the intervals of each CPU, and what was before each of
//! them.
//!
//! Owns: the columns of a timeline (`web/src/intervals.ts` reads them), the distribution of
//! wake-up latencies, migrations and the nodes' CPU time over time.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use indexmap::IndexSet;
use scxlab_machine::{CpuId, Distance, Nanos, TaskId, Topology};
use scxlab_trace::names::dsq;
use scxlab_trace::{Event, EventKind, Names, PrevState, Sink};

use crate::data::{Distribution, Task, Timeline};

/// Maximum number of intervals on a page, whose columns take about 5 bytes for each.
const INTERVALS_MAX: usize = 3_000_000;
/// Number of parts of the run in charts over time.
const PARTS: usize = 120;
/// Number of buckets for each power of two, so that a bucket is at most 1/15 wide.
const BUCKET_BITS: u32 = 4;

/// A task's state between its intervals.
#[derive(Clone, Debug, Default)]
struct Pending {
    /// Index into the page's tasks, and the thread id that it stands for.
    index: usize,
    pid: u32,
    /// When the task became runnable; None while it runs or sleeps.
    since: Option<Nanos>,
    woken: bool,
    waker: Option<usize>,
    queue: Option<usize>,
}

/// One interval in which a task ran on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interval {
    start: Nanos,
    end: Nanos,
    task: u32,
    wait: Nanos,
    left: Left,
    woken: bool,
    /// Index of the waker, and of the queue, plus 1; 0 if there is none.
    waker: u32,
    queue: u32,
}

/// Why a task left its CPU; `LEFT` of the page has the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Preempted = 0,
    Slept = 1,
    Exited = 2,
    Ran = 3,
}

/// Collects the intervals of a run. `Collected` gives them back after the run.
pub struct IntervalSink(Arc<Mutex<Collector>>);

/// The other end of an `IntervalSink`.
pub struct Collected(Arc<Mutex<Collector>>);

/// A timeline with its columns, and the distribution of wake-up latencies.
pub struct Packed {
    pub timeline: Timeline,
    pub bytes: Vec<u8>,
    pub waits: Distribution,
}

#[derive(Default)]
struct Collector {
    first: Option<Nanos>,
    last: Nanos,
    /// What each CPU runs, with the interval's start; None while it is idle.
    running: Vec<Option<Interval>>,
    cpus: Vec<Vec<Interval>>,
    kept: usize,
    /// Time from which intervals are left out.
    full: Option<Nanos>,
    pending: Vec<Pending>,
    tasks: Vec<Task>,
    queues: IndexSet<String>,
    /// Time, old CPU and new CPU of each migration.
    migrations: Vec<(Nanos, CpuId, CpuId)>,
    waits: BTreeMap<u64, u64>,
    lost: u64,
}

impl IntervalSink {
    /// Returns a sink, and the end that gives the intervals.
    pub fn new() -> (IntervalSink, Collected) {
        let both = Arc::<Mutex<Collector>>::default();
        (IntervalSink(both.clone()), Collected(both))
    }
}

impl Sink for IntervalSink {
    fn event(&mut self, event: &Event, names: &Names) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).event(event, names);
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Collected {
    /// Returns the timeline of the events so far. `block` is the name of the columns on the page.
    /// Events of CPUs that the machine lacks are left out.
    pub fn pack(self, topology: &Topology, scheduler: &str, seed: u64, block: &str) -> Packed {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.pack(topology, scheduler, seed, block)
    }
}

impl Collector {
    fn event(&mut self, event: &Event, names: &Names) {
        self.first.get_or_insert(event.time);
        self.last = self.last.max(event.time);
        match event.kind {
            EventKind::Switch { prev, next, prev_state } => {
                self.leaves(event, prev, prev_state, names);
                if let Some(next) = next {
                    self.runs(event, next, names);
                }
            }
            EventKind::Wakeup { task, waker, .. } => {
                let waker = waker.map(|waker| self.index(waker, names));
                let task = self.pending(task, names);
                (task.since, task.woken, task.waker) = (Some(event.time), true, waker);
                task.queue = None;
            }
            EventKind::DsqInsert { task, dsq: id, .. } => {
                let queue = self.queues.insert_full(dsq(id)).0;
                self.pending(task, names).queue = Some(queue);
            }
            EventKind::Migrate { from, to, .. } => self.migrations.push((event.time, from, to)),
            EventKind::Lost { events } => self.lost += events.max(1),
            _ => {}
        }
    }

    fn leaves(&mut self, event: &Event, prev: Option<TaskId>, state: PrevState, names: &Names) {
        let left = match state {
            PrevState::Runnable => Left::Preempted,
            PrevState::Sleeping | PrevState::Uninterruptible => Left::Slept,
            PrevState::Exited => Left::Exited,
        };
        if let Some(open) = self.running.get_mut(event.cpu.idx()).and_then(Option::take) {
            self.keep(event.cpu, Interval { end: event.time, left, ..open });
        }
        if let Some(prev) = prev.filter(|_| left == Left::Preempted) {
            let task = self.pending(prev, names);
            (task.since, task.woken, task.waker) = (Some(event.time), false, None);
        }
    }

    fn runs(&mut self, event: &Event, next: TaskId, names: &Names) {
        let task = self.pending(next, names);
        let since = task.since.take();
        let word = |index: Option<usize>| index.map_or(0, |index| index as u32 + 1);
        let interval = Interval {
            start: event.time,
            end: event.time,
            task: task.index as u32,
            wait: since.map_or(0, |since| event.time.saturating_sub(since)),
            left: Left::Ran,
            woken: task.woken,
            waker: word(task.waker),
            queue: word(task.queue.take()),
        };
        if since.is_some() && interval.woken {
            *self.waits.entry(bucket(interval.wait.max(1))).or_default() += 1;
        }
        if self.running.len() <= event.cpu.idx() {
            self.running.resize(event.cpu.idx() + 1, None);
        }
        self.running[event.cpu.idx()] = Some(interval);
    }

    fn keep(&mut self, cpu: CpuId, interval: Interval) {
        if self.kept == INTERVALS_MAX {
            self.full.get_or_insert(interval.start);
            return;
        }
        self.kept += 1;
        if self.cpus.len() <= cpu.idx() {
            self.cpus.resize(cpu.idx() + 1, Vec::new());
        }
        self.cpus[cpu.idx()].push(interval);
    }

    fn index(&mut self, task: TaskId, names: &Names) -> usize {
        self.pending(task, names).index
    }

    /// Returns the state of a task. An id that another thread has taken over gets a new one.
    fn pending(&mut self, task: TaskId, names: &Names) -> &mut Pending {
        if self.pending.len() <= task.idx() {
            self.pending.resize(task.idx() + 1, Pending::default());
        }
        let name = names.task(task);
        let pid = name.map_or(u32::MAX, |name| name.pid);
        let known = &mut self.pending[task.idx()];
        if known.pid != pid {
            *known = Pending { index: self.tasks.len(), pid, ..Pending::default() };
            let comm = name.map_or_else(|| format!("task {}", task.0), |name| name.comm.clone());
            let cgroup = names.attributes(task).map(|a| a.cgroup.as_str()).unwrap_or_default();
            let process = name.map_or(0, |name| name.tgid);
            let group = match cgroup {
                "" | "/" => format!("process {process}"),
                path => path.to_owned(),
            };
            self.tasks.push(Task { name: comm, group });
        }
        known
    }

    fn pack(&mut self, topology: &Topology, scheduler: &str, seed: u64, block: &str) -> Packed {
        let start = self.first.unwrap_or_default();
        let end = self.last.max(start + 1);
        for cpu in 0..self.running.len() {
            if let Some(open) = self.running[cpu].take() {
                self.keep(CpuId(cpu as u32), Interval { end, ..open });
            }
        }
        self.cpus.resize(topology.nr_cpus(), Vec::new());
        let mut cut = Vec::new();
        if let Some(full) = self.full {
            let ms = full.saturating_sub(start) / 1_000_000;
            cut.push(format!("Shown are the first {INTERVALS_MAX} intervals, up to {ms} ms."));
        }
        if self.lost > 0 {
            cut.push(format!("The trace lost {} events; some intervals are wrong.", self.lost));
        }
        let timeline = Timeline {
            scheduler: scheduler.to_owned(),
            seed,
            start,
            end,
            counts: self.cpus.iter().map(Vec::len).collect(),
            tasks: std::mem::take(&mut self.tasks),
            queues: std::mem::take(&mut self.queues).into_iter().collect(),
            migrations: self.steps(topology, start, end),
            residency: self.residency(topology, start, end),
            bytes: block.to_owned(),
            cut: (!cut.is_empty()).then(|| cut.join(" ")),
        };
        let waits = Distribution {
            scheduler: scheduler.to_owned(),
            limits: self.waits.keys().copied().collect(),
            counts: self.waits.values().copied().collect(),
        };
        Packed { timeline, bytes: self.columns(start), waits }
    }

    /// Returns the numbers of migrations within an LLC, within a node and between nodes, in each
    /// part of the time.
    fn steps(&self, topology: &Topology, start: Nanos, end: Nanos) -> [Vec<u64>; 3] {
        let mut steps: [Vec<u64>; 3] = std::array::from_fn(|_| vec![0; PARTS]);
        for &(time, from, to) in &self.migrations {
            if from.idx().max(to.idx()) >= topology.nr_cpus() {
                continue;
            }
            let step = match topology.distance(from, to) {
                Distance::Same | Distance::Smt | Distance::Core => 0,
                Distance::Llc => 1,
                Distance::Node => 2,
            };
            steps[step][part(time, start, end)] += 1;
        }
        steps
    }

    /// Returns the CPU time of each node in each part of the time.
    fn residency(&self, topology: &Topology, start: Nanos, end: Nanos) -> Vec<Vec<u64>> {
        let mut nodes = vec![vec![0; PARTS]; topology.nodes().len()];
        for (cpu, intervals) in topology.cpus().iter().zip(&self.cpus) {
            for interval in intervals {
                let (first, last) =
                    (part(interval.start, start, end), part(interval.end, start, end));
                for (at, busy) in
                    nodes[cpu.node.idx()].iter_mut().enumerate().take(last + 1).skip(first)
                {
                    let from = interval.start.max(edge(at, start, end));
                    let to = interval.end.min(edge(at + 1, start, end));
                    *busy += to.saturating_sub(from);
                }
            }
        }
        nodes
    }

    /// Returns the columns in zlib's format: gaps, lengths, tasks, waits, how each came and went,
    /// wakers, queues.
    fn columns(&self, start: Nanos) -> Vec<u8> {
        let mut raw = Vec::new();
        for intervals in &self.cpus {
            let mut at = start;
            for interval in intervals {
                number(&mut raw, interval.start.saturating_sub(at));
                at = interval.end;
            }
        }
        let fields: [fn(&Interval) -> u64; 6] = [
            |i| i.end - i.start,
            |i| i.task.into(),
            |i| i.wait,
            |i| i.left as u64 | u64::from(i.woken) << 2,
            |i| i.waker.into(),
            |i| i.queue.into(),
        ];
        for field in fields {
            self.cpus.iter().flatten().for_each(|interval| number(&mut raw, field(interval)));
        }
        let mut packed = ZlibEncoder::new(Vec::new(), Compression::new(6));
        packed.write_all(&raw).and_then(|()| packed.finish()).expect("memory takes all bytes")
    }
}

/// Appends a number, 7 bits to a byte, lowest first (LEB128).
fn number(raw: &mut Vec<u8>, mut value: u64) {
    while value > 127 {
        raw.push(value as u8 | 128);
        value >>= 7;
    }
    raw.push(value as u8);
}

/// Returns the part of the time in which `time` lies.
fn part(time: Nanos, start: Nanos, end: Nanos) -> usize {
    let at = u128::from(time.saturating_sub(start)) * PARTS as u128 / u128::from(end - start);
    (at as usize).min(PARTS - 1)
}

/// Returns the first time of a part.
fn edge(part: usize, start: Nanos, end: Nanos) -> Nanos {
    start + (u128::from(end - start) * part as u128).div_ceil(PARTS as u128) as u64
}

/// Returns the largest time of the bucket that a wait falls into.
fn bucket(wait: Nanos) -> u64 {
    let bits = 64 - wait.leading_zeros();
    let shift = bits.saturating_sub(BUCKET_BITS + 1);
    wait >> shift << shift | ((1 << shift) - 1)
}
