// SPDX-License-Identifier: GPL-2.0-only
//! What a file holds, and what it lacks.
//!
//! Owns: the sentences about what cannot be told from a file. Does not: print them.

use std::collections::{BTreeMap, BTreeSet};

use scxlab_machine::{CpuId, Nanos};

use super::{merge, tasks};
use crate::event::{Event, EventKind};

/// The formats that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A Perfetto trace.
    Perfetto,
    /// The text of `perf script`.
    PerfScript,
    /// The text of `trace-cmd report`.
    TraceCmd,
    /// The text of ftrace's file `trace`.
    Ftrace,
}

impl Format {
    /// Returns the name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Format::Perfetto => "a Perfetto trace",
            Format::PerfScript => "text of perf script",
            Format::TraceCmd => "text of trace-cmd report",
            Format::Ftrace => "text of ftrace",
        }
    }

    /// Returns the unit of places in the file.
    fn unit(self) -> &'static str {
        match self {
            Format::Perfetto => "byte",
            _ => "line",
        }
    }
}

/// The clock of a file's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The file does not tell.
    #[default]
    Unknown,
    /// CLOCK_BOOTTIME
    Boot,
    /// ftrace's clock `global`
    Global,
    /// ftrace's clock `local`: the CPUs' clocks may differ.
    Local,
    /// CLOCK_MONOTONIC_RAW
    MonotonicRaw,
}

/// The end of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// The file ends after a whole event.
    #[default]
    Whole,
    /// The file ends within the packet or line at this place.
    Cut(u64),
    /// The compressed data end too soon or are damaged.
    Compressed,
    /// The file is not readable from this byte on.
    Damaged(u64),
}

/// The parts of a file that have no meaning here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unknown {
    /// Number of parts.
    pub count: u64,
    /// Place of the first part, a line from 1 or an offset in bytes, and what it is.
    pub first: Option<(u64, String)>,
}

/// Number of events by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    pub switches: u64,
    pub wakeups: u64,
    /// Wake-ups whose waker is a task.
    pub wakeups_by_tasks: u64,
    pub migrations: u64,
    pub forks: u64,
    pub exits: u64,
    pub hotplugs: u64,
    pub calls: u64,
    pub attributes: u64,
    pub lost: u64,
}

impl EventCounts {
    /// Returns the number of all events.
    pub fn all(&self) -> u64 {
        let scheduling = self.switches + self.wakeups + self.migrations + self.forks + self.exits;
        scheduling + self.hotplugs + self.calls + self.attributes + self.lost
    }
}

/// What an imported file holds.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The format.
    pub format: Format,
    /// Number of events by kind.
    pub events: EventCounts,
    /// Time of the first event on the file's clock. It is time 0 of the imported events.
    pub start: Nanos,
    /// Time from the first event to the last.
    pub length: Nanos,
    /// The CPUs with events.
    pub cpus: BTreeSet<CpuId>,
    /// Number of tasks.
    pub tasks: usize,
    /// Number of tasks whose process is not known. Each counts as a process of its own.
    pub without_process: usize,
    /// The clock.
    pub clock: Clock,
    /// Number of events that the recorder lost, by CPU; 0 if it lost some and their number is not
    /// known.
    pub lost: BTreeMap<CpuId, u64>,
    /// Number of wake-ups of which the file does not tell whether an interrupt caused them. The
    /// running task counts as their waker.
    pub blind_wakeups: u64,
    /// Violations of the order of time.
    pub order: merge::Faults,
    /// The longest time without an event.
    pub gap: merge::Gap,
    /// Events that do not fit together.
    pub tasks_faults: tasks::Faults,
    /// Parts without a meaning here.
    pub unknown: Unknown,
    /// The end of the file.
    pub end: End,
    /// The machine in the file, as text of a machine file; None if the file has none.
    pub machine: Option<String>,
    /// The scheduler under which the events happened, if the file tells.
    pub scheduler: Option<String>,
    /// Number of CPUs of the machine, if the file tells.
    pub nr_cpus: Option<u32>,
}

/// Time in ns without an event from which it is told, if it is also nine times as long as all
/// before it.
const LONG_GAP: u64 = 60_000_000_000;

impl Imported {
    pub(super) fn new(format: Format) -> Imported {
        Imported {
            format,
            events: EventCounts::default(),
            start: 0,
            length: 0,
            cpus: BTreeSet::new(),
            tasks: 0,
            without_process: 0,
            clock: Clock::default(),
            lost: BTreeMap::new(),
            blind_wakeups: 0,
            order: merge::Faults::default(),
            gap: merge::Gap::default(),
            tasks_faults: tasks::Faults::default(),
            unknown: Unknown::default(),
            end: End::default(),
            machine: None,
            scheduler: None,
            nr_cpus: None,
        }
    }

    /// Counts an event.
    pub(super) fn note(&mut self, event: &Event) {
        self.length = self.length.max(event.time);
        self.cpus.insert(event.cpu);
        let counts = &mut self.events;
        let count = match event.kind {
            EventKind::Switch { .. } => &mut counts.switches,
            EventKind::Wakeup { waker, .. } => {
                counts.wakeups_by_tasks += u64::from(waker.is_some());
                &mut counts.wakeups
            }
            EventKind::Migrate { .. } => &mut counts.migrations,
            EventKind::Fork { .. } => &mut counts.forks,
            EventKind::Exit { .. } => &mut counts.exits,
            EventKind::CpuOnline { .. } => &mut counts.hotplugs,
            EventKind::Call { .. } => &mut counts.calls,
            EventKind::Attributes { .. } => &mut counts.attributes,
            EventKind::Lost { .. } => &mut counts.lost,
            _ => return,
        };
        *count += 1;
    }

    /// Returns a sentence for each kind of events that the file lacks: what cannot be told without
    /// it.
    pub fn missing(&self) -> Vec<String> {
        let EventCounts { switches, wakeups, wakeups_by_tasks, forks, exits, calls, .. } =
            self.events;
        // A file with its machine is a recording of scxlab, which has all forks and ends.
        let complete = self.machine.is_some();
        let lacks = [
            (
                switches == 0,
                "no context switches (sched_switch): which task ran when and where is unknown, so that no workload can be made of the file",
            ),
            (
                wakeups == 0,
                "no wake-ups (sched_waking): who woke a task, and when it was ready to run, is unknown, so that waiting for another task, for a timer and for a CPU look alike",
            ),
            (
                wakeups != 0 && wakeups_by_tasks == 0,
                "no wake-up by a task: every wake-up came from an interrupt, so that no task depends on another",
            ),
            (
                self.blind_wakeups != 0,
                "no flags of interrupts: the running task counts as the waker where an interrupt (a timer, a packet) woke a task",
            ),
            (
                forks == 0 && !complete,
                "no forks (task_newtask): a task begins with its first event, and its parent is unknown",
            ),
            (
                exits == 0 && !complete,
                "no ends of tasks (sched_process_exit): a task that ended looks like one that sleeps until the end",
            ),
            (
                calls == 0,
                "no system calls (scxlab_call): what a task waited for (a lock, a pipe, a timer, a disk) is unknown, only who woke it",
            ),
            (
                self.events.attributes == 0,
                "no attributes of tasks (scxlab_task): affinities and cgroups are unknown; a priority tells the nice value, or a real-time task, which counts as SCHED_FIFO; names tell kernel threads",
            ),
            (
                self.machine.is_none(),
                "no machine (scxlab_machine): which CPUs share a core, a cache or a node is unknown; simulations take the machine from -m",
            ),
        ];
        lacks.into_iter().filter(|(lacks, _)| *lacks).map(|(_, what)| what.to_owned()).collect()
    }

    /// Returns a sentence about the parts of the file that have no meaning, if there are any.
    pub fn unread(&self) -> Option<String> {
        let Unknown { count, first } = &self.unknown;
        let (place, what) = first.as_ref()?;
        let unit = self.format.unit();
        Some(format!("{count} parts have no meaning here, first at {unit} {place}: {what}"))
    }

    /// Returns a sentence for each kind of damage: lost events, times out of order, parts that
    /// could not be read.
    pub fn damage(&self) -> Vec<String> {
        let unit = self.format.unit();
        let mut all = Vec::new();
        let mut say = |count: u64, what: String| {
            if count > 0 {
                all.push(what);
            }
        };
        for (cpu, events) in &self.lost {
            let events = if *events == 0 { "some".to_owned() } else { events.to_string() };
            say(1, format!("the recorder lost {events} events of CPU {cpu}"));
        }
        let merge::Faults { late, late_max, jumps, jump_max } = self.order;
        let merge::Gap { begin, length } = self.gap;
        say(
            u64::from(length >= LONG_GAP && length / 9 > begin),
            format!(
                "there is no event for {} s, from {} ms after the first on: the clock may have jumped",
                length / 1_000_000_000,
                begin / 1_000_000
            ),
        );
        say(
            jumps,
            format!(
                "{jumps} events are earlier than the one before on their CPU, by up to {jump_max} ns; each got that one's time"
            ),
        );
        say(
            late,
            format!(
                "{late} events came too late in the file to be put in order, by up to {late_max} ns; each got the time of the event before"
            ),
        );
        let tasks::Faults { gaps, without_prev, replaced, unplaced } = self.tasks_faults;
        say(
            gaps,
            format!(
                "{gaps} switches are away from a task that did not run there, so that events are missing before them"
            ),
        );
        say(
            without_prev,
            format!(
                "{without_prev} switches do not tell the task before; it counts as the idle task"
            ),
        );
        say(
            replaced,
            format!("{replaced} thread ids were reused without an end of the task before"),
        );
        say(unplaced, format!("{unplaced} system calls have no known task and are left out"));
        self.unread().into_iter().for_each(|what| say(1, what));
        match self.end {
            End::Whole => {}
            End::Cut(place) => say(1, format!("the file is cut off at {unit} {place}")),
            End::Compressed => {
                say(1, "the compressed data are damaged or cut off, and end the file".to_owned());
            }
            End::Damaged(place) => {
                say(1, format!("the file cannot be read from {unit} {place} on"))
            }
        }
        all
    }
}
