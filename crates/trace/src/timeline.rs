// SPDX-License-Identifier: GPL-2.0-only
//! Timelines as text: a line for each CPU, a column for each interval of time, a letter for each
//! task.
//!
//! Owns: the layout. A column shows the task that ran longest in it, or `.` if the CPU was idle
//! longest; after the run's end it is blank. Tasks get letters in the order in which they first
//! appear. A timeline is meant for documents and a quick look; a Perfetto trace shows everything.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use scxlab_machine::{Nanos, TaskId};

use crate::event::{Event, EventKind};
use crate::names::Names;
use crate::sink::Sink;

/// Number of columns.
pub const WIDTH: usize = 80;
/// Letters for tasks; further tasks are shown as `#`.
const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const OTHERS: char = '#';
const IDLE: char = '.';
const ENDED: char = ' ';

/// Draws the span `from..to` of a run, and writes the drawing to `W` at the end.
pub struct TimelineSink<W> {
    out: W,
    from: Nanos,
    to: Nanos,
    /// Time of the last event; at last that of the run's end.
    end: Nanos,
    cpus: Vec<Cpu>,
    names: Vec<String>,
    /// Index into `names`, by pid. A task's id cannot be the key, because a later task may reuse
    /// it.
    letters: BTreeMap<u32, usize>,
}

#[derive(Default)]
struct Cpu {
    /// Pid of the task that has been running since `since`; None if the CPU has been idle.
    now: Option<u32>,
    since: Nanos,
    /// Time in ns for which each task ran, by pid, one map per column. The pid 0 means idle.
    columns: Vec<BTreeMap<u32, Nanos>>,
}

impl<W: Write + Send + 'static> TimelineSink<W> {
    pub fn new(out: W, nr_cpus: usize, from: Nanos, to: Nanos) -> Self {
        let cpu = || Cpu { columns: vec![BTreeMap::new(); WIDTH], ..Cpu::default() };
        let cpus = (0..nr_cpus).map(|_| cpu()).collect();
        let to = to.max(from.saturating_add(WIDTH as Nanos));
        TimelineSink { out, from, to, end: 0, cpus, names: Vec::new(), letters: BTreeMap::new() }
    }

    /// Returns the start time of a column.
    fn edge(&self, column: usize) -> Nanos {
        let span = u128::from(self.to - self.from);
        self.from + (span * column as u128 / WIDTH as u128) as Nanos
    }

    /// Adds the time from `since` to `until` to the task that ran on the CPU.
    fn settle(&mut self, cpu: usize, until: Nanos) {
        let (since, pid) = (self.cpus[cpu].since, self.cpus[cpu].now.unwrap_or(0));
        self.cpus[cpu].since = until;
        let (start, end) = (since.max(self.from), until.min(self.to));
        if start >= end {
            return;
        }
        let span = u128::from(self.to - self.from);
        let first = (u128::from(start - self.from) * WIDTH as u128 / span) as usize;
        for column in first..WIDTH {
            let (left, right) = (self.edge(column).max(start), self.edge(column + 1).min(end));
            if left >= end {
                break;
            }
            let time = right.saturating_sub(left);
            *self.cpus[cpu].columns[column].entry(pid).or_default() += time;
        }
    }

    fn know(&mut self, task: TaskId, names: &Names) -> u32 {
        let Some(name) = names.task(task) else { return u32::MAX };
        if !self.letters.contains_key(&name.pid) {
            self.letters.insert(name.pid, self.names.len());
            self.names.push(name.comm.clone());
        }
        name.pid
    }

    fn draw(&self) -> String {
        let mut text = String::new();
        let width = self.cpus.len().saturating_sub(1).to_string().len();
        let _ = writeln!(text, "{:>1$}  {2}", "", width + 4, self.ruler());
        let mut shown: Vec<u32> = Vec::new();
        for column in 0..WIDTH {
            for cpu in &self.cpus {
                let pid = longest(&cpu.columns[column]);
                if pid != 0 && !shown.contains(&pid) {
                    shown.push(pid);
                }
            }
        }
        let letter = |pid: u32| match shown.iter().position(|p| *p == pid) {
            None => IDLE,
            Some(at) => LETTERS.get(at).map_or(OTHERS, |l| char::from(*l)),
        };
        let shown_in = |column: &BTreeMap<u32, Nanos>| match column.is_empty() {
            true => ENDED,
            false => letter(longest(column)),
        };
        for (at, cpu) in self.cpus.iter().enumerate() {
            let line: String = cpu.columns.iter().map(shown_in).collect();
            let line = format!("CPU {at:>width$}  {line}");
            let _ = writeln!(text, "{}", line.trim_end_matches(ENDED));
        }
        let named = shown.iter().take(LETTERS.len()).map(|pid| {
            let name = self.letters.get(pid).map_or("?", |at| self.names[*at].as_str());
            format!("{} {name}", letter(*pid))
        });
        let named: Vec<String> = named.collect();
        for line in named.chunks(8) {
            let _ = writeln!(text, "{}", line.join("  "));
        }
        if shown.len() > LETTERS.len() {
            let _ = writeln!(text, "{OTHERS} {} more", shown.len() - LETTERS.len());
        }
        if self.end < self.to {
            let _ = writeln!(text, "The run ended at {}.", millis(self.end));
        }
        text
    }

    /// Returns the ruler line, with times at four columns.
    fn ruler(&self) -> String {
        let mut line = String::new();
        for part in 0..4 {
            let at = self.edge(WIDTH / 4 * part);
            let _ = write!(line, "{:<1$}", format!("|{}", millis(at)), WIDTH / 4);
        }
        line.trim_end().to_owned()
    }
}

fn millis(at: Nanos) -> String {
    format!("{}.{:02} ms", at / 1_000_000, at / 10_000 % 100)
}

/// Returns the pid of the task that ran longest; of two with equal times, the smaller pid.
fn longest(column: &BTreeMap<u32, Nanos>) -> u32 {
    let best = column.iter().max_by(|a, b| a.1.cmp(b.1).then(b.0.cmp(a.0)));
    best.map_or(0, |(pid, _)| *pid)
}

impl<W: Write + Send + 'static> Sink for TimelineSink<W> {
    fn event(&mut self, event: &Event, names: &Names) {
        self.end = self.end.max(event.time);
        let EventKind::Switch { next, .. } = event.kind else { return };
        let cpu = event.cpu.idx();
        if cpu >= self.cpus.len() {
            return;
        }
        self.settle(cpu, event.time);
        let next = next.map(|task| self.know(task, names));
        self.cpus[cpu].now = next;
    }

    fn run_ended(&mut self, at: Nanos) {
        self.end = self.end.max(at);
    }

    fn finish(&mut self) -> io::Result<()> {
        for cpu in 0..self.cpus.len() {
            self.settle(cpu, self.end);
        }
        let text = self.draw();
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::PrevState;
    use crate::names::TaskName;
    use scxlab_machine::CpuId;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_longest_of_a_column_is_shown() {
        let out = Shared::default();
        let mut sink = TimelineSink::new(out.clone(), 2, 1_000_000, 9_000_000);
        let mut names = Names::default();
        for (task, comm) in [(1, "late"), (2, "early")] {
            let name = TaskName { pid: task, tgid: task, comm: comm.into(), prio: 120 };
            names.set_task(TaskId(task), name);
        }
        let mut switch = |us: u64, cpu: u32, next: Option<u32>| {
            let kind = EventKind::Switch {
                prev: None,
                next: next.map(TaskId),
                prev_state: PrevState::Runnable,
            };
            sink.event(&Event { time: us * 1000, cpu: CpuId(cpu), kind }, &names);
        };
        // A column is 100 us. Task 2 runs from before the span until 60 us into the third column,
        // and task 1 in the last 30 us of this column, so the column must show task 2.
        switch(500, 0, Some(2));
        switch(1260, 0, None);
        switch(1270, 0, Some(1));
        switch(1400, 0, None);
        switch(8900, 1, Some(1));
        sink.run_ended(9_000_000);
        sink.finish().unwrap();
        let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].trim_start().starts_with("|1.00 ms"), "{text}");
        assert!(lines[0].contains("|3.00 ms"), "{text}");
        assert_eq!(lines[1], format!("CPU 0  AAAB{}", ".".repeat(76)));
        assert_eq!(lines[2], format!("CPU 1  {}B", ".".repeat(79)));
        assert_eq!(lines[3], "A early  B late");
    }

    /// A task that runs when the run ends is not drawn after that.
    #[test]
    fn nothing_runs_after_the_end() {
        let drawn = |from: Nanos| {
            let out = Shared::default();
            let mut sink = TimelineSink::new(out.clone(), 1, from, from + 8_000_000);
            let mut names = Names::default();
            let name = TaskName { pid: 1, tgid: 1, comm: "hog".into(), prio: 120 };
            names.set_task(TaskId(1), name);
            let kind = EventKind::Switch {
                prev: None,
                next: Some(TaskId(1)),
                prev_state: PrevState::Runnable,
            };
            sink.event(&Event { time: 0, cpu: CpuId(0), kind }, &names);
            sink.run_ended(2_000_000);
            sink.finish().unwrap();
            let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
            text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
        };
        let half = format!("CPU 0  {}", "A".repeat(10));
        assert_eq!(drawn(1_000_000), [&half, "A hog", "The run ended at 2.00 ms."]);
        assert_eq!(drawn(3_000_000), ["CPU 0", "The run ended at 2.00 ms."]);
    }
}
