// SPDX-License-Identifier: GPL-2.0-only
//! Events in the layouts of `perf sched latency` and `perf sched timehist`, for people and scripts
//! that know these.
//!
//! Owns: the two layouts. Models: `output_lat_thread()`, `timehist_print_sample()` and
//! `timehist_update_runtime_stats()` of tools/perf/builtin-sched.c, Linux 7.3. Differs: tasks of
//! one name are not merged, as with `-p`; a wait that is open at the end has a line of its own.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, Write};

use scxlab_machine::{Nanos, TaskId, plural};

use crate::event::{Event, EventKind, PrevState};
use crate::names::Names;
use crate::sink::Sink;

/// One of the two layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfLayout {
    /// A line for each task: time on a CPU, waits for a CPU and the longest of them.
    Latency,
    /// A line for each time that a task was on a CPU.
    Timehist,
}

/// Writes the events of a run in one of perf's layouts.
pub struct PerfSchedSink<W> {
    out: W,
    layout: PerfLayout,
    tasks: BTreeMap<Key, Task>,
    /// Task that each CPU runs, by the CPU's number, and since when.
    running: BTreeMap<u32, (Key, Nanos)>,
    error: Option<io::Error>,
}

/// Pid of a task, or number of a CPU whose idle task is meant. A task's id cannot be the key,
/// because a later task may reuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Idle(u32),
    Pid(u32),
}

#[derive(Clone, Debug, Default)]
struct Task {
    comm: String,
    tgid: u32,
    /// Time since which the task has been runnable without a CPU.
    ready: Option<Nanos>,
    /// Time at which it last left a CPU.
    left: Option<Nanos>,
    /// Its last wait for a CPU, and the time off CPUs before it, both until it last got a CPU.
    delay: Nanos,
    off: Nanos,
    run: Nanos,
    waits: u64,
    wait: Nanos,
    /// Begin and end of the longest wait.
    longest: (Nanos, Nanos),
}

impl<W: Write + Send + 'static> PerfSchedSink<W> {
    pub fn new(out: W, layout: PerfLayout) -> Self {
        let mut sink = PerfSchedSink {
            out,
            layout,
            tasks: BTreeMap::new(),
            running: BTreeMap::new(),
            error: None,
        };
        if layout == PerfLayout::Timehist {
            sink.write(format_args!(
                "{:>15} {:>6}  {:<30}  {:>9}  {:>9}  {:>9}\n{:>15} {:<6}  {:<30}  {:>9}  {:>9}  {:>9}\n\
                 {:->15} {:->6}  {:->30}  {:->9}  {:->9}  {:->9}\n",
                "time", "cpu", "task name", "wait time", "sch delay", "run time", "", "",
                "[tid/pid]", "(msec)", "(msec)", "(msec)", "", "", "", "", "", "",
            ));
        }
        sink
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        if self.error.is_none() {
            self.error = self.out.write_fmt(text).err();
        }
    }

    fn task(&mut self, task: TaskId, names: &Names) -> (Key, &mut Task) {
        let name = names.task(task);
        let key = Key::Pid(name.map_or(u32::MAX, |name| name.pid));
        let known = self.tasks.entry(key).or_default();
        if let Some(name) = name.filter(|name| name.comm != known.comm) {
            known.comm.clone_from(&name.comm);
        }
        known.tgid = name.map_or(0, |name| name.tgid);
        (key, known)
    }

    fn on(&mut self, next: Option<TaskId>, event: &Event, names: &Names) {
        let (key, task) = match next {
            Some(next) => self.task(next, names),
            None => {
                let key = Key::Idle(event.cpu.0);
                (key, self.tasks.entry(key).or_default())
            }
        };
        task.delay = task.ready.map_or(0, |ready| event.time.saturating_sub(ready));
        task.off = task.left.map_or(0, |left| event.time.saturating_sub(left));
        if let Some(ready) = task.ready.take() {
            task.waits += 1;
            task.wait += task.delay;
            if task.delay > task.longest.1 - task.longest.0 {
                task.longest = (ready, event.time.max(ready));
            }
        }
        self.running.insert(event.cpu.0, (key, event.time));
    }

    /// Ends the time of the task that a CPU runs.
    fn off(&mut self, now: Nanos, cpu: u32, state: PrevState) {
        let Some((key, since)) = self.running.remove(&cpu) else { return };
        let run = now.saturating_sub(since);
        let task = self.tasks.entry(key).or_default();
        task.run += run;
        task.left = Some(now);
        let runnable = state == PrevState::Runnable && matches!(key, Key::Pid(_));
        task.ready = runnable.then_some(now);
        if self.layout == PerfLayout::Timehist {
            let (name, off, delay) = (name(key, task, true), task.off, task.delay);
            self.write(format_args!(
                "{:>15} [{cpu:04}]  {name:<30} {} {} {}\n",
                seconds(now),
                millis(off),
                millis(delay),
                millis(run),
            ));
        }
    }

    fn latencies(&mut self) {
        let line = "-".repeat(138);
        self.write(format_args!(
            "\n {line}\n  {:<23} |{:^16}|{:^10}|{:^17}|{:^17}|{:^23}|{:^23}|\n {line}\n",
            "Task",
            "Runtime",
            "Count",
            "Avg delay",
            "Max delay",
            "Max delay start",
            "Max delay end",
        ));
        let mut all: Vec<(Key, Task)> = std::mem::take(&mut self.tasks).into_iter().collect();
        all.retain(|(key, task)| matches!(key, Key::Pid(_)) && task.waits > 0);
        let mean = |task: &Task| task.wait / task.waits;
        let size =
            |task: &Task| (mean(task), task.longest.1 - task.longest.0, task.waits, task.run);
        all.sort_by(|(a, x), (b, y)| size(y).cmp(&size(x)).then(a.cmp(b)));
        for (key, task) in &all {
            let longest = task.longest.1 - task.longest.0;
            self.write(format_args!(
                "  {:<24}|{:>15} |{:>9} |{:>16} |{:>16} |{:>20} s |{:>20} s |\n",
                name(*key, task, false),
                short(task.run),
                task.waits,
                short(mean(task)),
                short(longest),
                seconds(task.longest.0),
                seconds(task.longest.1),
            ));
        }
        let (run, waits) = all.iter().fold((0, 0), |sum, (_, t)| (sum.0 + t.run, sum.1 + t.waits));
        self.write(format_args!(
            " {line}\n  TOTAL:                  |{:>15} |{waits:>9} |\n {}\n",
            short(run),
            "-".repeat(54),
        ));
    }
}

/// Name and number of a task: `comm:tid`, or in a timehist `comm[tid/pid]`.
fn name(key: Key, task: &Task, of_timehist: bool) -> String {
    match key {
        Key::Idle(_) => "<idle>".to_owned(),
        Key::Pid(pid) if !of_timehist => format!("{}:{pid}", task.comm),
        Key::Pid(pid) if pid == task.tgid => format!("{}[{pid}]", task.comm),
        Key::Pid(pid) => format!("{}[{pid}/{}]", task.comm, task.tgid),
    }
}

/// Seconds with six decimals.
fn seconds(ns: Nanos) -> String {
    format!("{}.{:06}", ns / 1_000_000_000, ns / 1000 % 1_000_000)
}

/// Milliseconds with three decimals.
fn millis(ns: Nanos) -> String {
    format!("{:>6}.{:03}", ns / 1_000_000, ns / 1000 % 1000)
}

/// A time in the unit that suits it, with three decimals.
fn short(ns: Nanos) -> String {
    let (unit, size) = match ns {
        0..1_000 => return format!("{ns:>6} ns"),
        1_000..1_000_000 => ("us", 1_000),
        1_000_000..1_000_000_000 => ("ms", 1_000_000),
        _ => ("s ", 1_000_000_000),
    };
    format!("{:>2}.{:03} {unit}", ns / size, ns % size * 1000 / size)
}

impl<W: Write + Send + 'static> Sink for PerfSchedSink<W> {
    fn event(&mut self, event: &Event, names: &Names) {
        match event.kind {
            EventKind::Wakeup { task, .. } => {
                let (_, task) = self.task(task, names);
                task.ready.get_or_insert(event.time);
            }
            EventKind::Switch { next, prev_state, .. } => {
                self.off(event.time, event.cpu.0, prev_state);
                self.on(next, event, names);
            }
            _ => {}
        }
    }

    /// Ends the times of the tasks that are on a CPU.
    fn run_ended(&mut self, at: Nanos) {
        let cpus: Vec<u32> = self.running.keys().copied().collect();
        cpus.into_iter().for_each(|cpu| self.off(at, cpu, PrevState::Sleeping));
    }

    fn finish(&mut self) -> io::Result<()> {
        let waiting = self.tasks.values().filter(|task| task.ready.is_some()).count();
        if self.layout == PerfLayout::Latency {
            self.latencies();
            if waiting > 0 {
                let tasks = plural(waiting, "task");
                self.write(format_args!(
                    "  {tasks} still waited for a CPU at the end, which is not counted\n"
                ));
            }
        }
        match self.error.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }
}
