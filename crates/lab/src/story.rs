// SPDX-License-Identifier: GPL-2.0-only
//! The story of an ejection: the task that it is about, and what each CPU did in the last moments.
//!
//! Owns: the form of a story, its sentences, and the second simulation that observes the moments.
//! Does not: name the place in the scheduler (`Exit::origin` does).
//!
//! A run keeps no record of what its CPUs did, because nearly every run needs none. After an
//! ejection the same run is made again up to the exit, with a sink that watches. A simulation is a
//! function of its inputs, so the second run is the same.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::io;

use indexmap::IndexMap;
use scxlab_kernel::bpf::flags::dsq_id::FLAG_BUILTIN;
use scxlab_kernel::ext::exit::{ExitInfo, ExitKind};
use scxlab_machine::id::{CpuId, Nanos, TaskId};
use scxlab_trace::names::dsq;
use scxlab_trace::{Event, EventKind, Names, Sink, Tracer};
use serde::{Deserialize, Serialize};

use crate::report::format::Scale;
use crate::run::Run;
use crate::sim::{SimError, SimSpec, Watch, simulate};

/// What happened before an ejection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Story {
    /// CPU on which the exit was raised; after a stall, the CPU of the watchdog.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// The stalled task, or the task that the failing operation was called for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<StoryTask>,
    /// Registers at a fault, such as `r1=0x0`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub registers: Vec<String>,
    /// The period that `cpus` and `task.looks` are about: the wait of a stalled task, or else the
    /// last 20 ms.
    pub from_ns: u64,
    pub to_ns: u64,
    /// After a stall, the on-line CPUs that the task may use; else all on-line CPUs, beginning with
    /// that of the exit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<StoryCpu>,
}

/// The task that an ejection is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoryTask {
    pub name: String,
    pub pid: u32,
    /// Start of its wait; None if it did not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_since_ns: Option<u64>,
    /// On-line CPUs that it may use.
    pub cpus: Vec<u32>,
    /// Those of `cpus` that were idle at the exit.
    pub idle_cpus: Vec<u32>,
    /// Id of the DSQ in which it waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dsq: Option<u64>,
    /// Attempts of all CPUs to move a task from that DSQ, if the scheduler created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looks: Option<Looks>,
}

/// What one CPU did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoryCpu {
    pub cpu: u32,
    /// Time in which neither a task nor a program of the scheduler ran.
    pub idle_ns: u64,
    /// Time in which programs of the scheduler ran: operations, callbacks of timers, and others.
    #[serde(default)]
    pub programs_ns: u64,
    /// Tasks that ran, with the longest time first. A program that interrupted a task has the time
    /// for itself.
    pub ran: Vec<StoryRan>,
    /// Number of kicks that it was sent.
    pub kicks: u64,
    /// DSQs from which it tried to move a task, the most frequent first.
    pub looks: Vec<StoryLooks>,
    /// The tasks that were on the CPU in the last 20 ms, in order.
    pub last: Vec<Moment>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoryRan {
    pub task: String,
    pub run_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoryLooks {
    pub dsq: String,
    #[serde(flatten)]
    pub looks: Looks,
}

/// Numbers of attempts to move a task from a DSQ to a CPU, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looks {
    /// A task was moved.
    pub moved: u64,
    /// The DSQ was empty.
    pub empty: u64,
    /// No task in it may run on the CPU.
    pub unfit: u64,
}

/// A time for which a task was on a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    pub task: String,
    pub start_ns: u64,
    pub end_ns: u64,
}

/// Length of the last moments, in ns.
const LAST_NS: Nanos = 20_000_000;
/// Maximum number of moments that are kept of one CPU.
const MOMENTS: usize = 200;
/// Maximum numbers in the text of a story: of CPUs, and of tasks and DSQs of each.
const CPUS: usize = 8;
const NAMES: usize = 3;
/// The text of a story has the time of the scheduler's programs on a CPU if it is at least this
/// part of the period, because short programs run on every CPU, however idle.
const PROGRAMS_PART: u64 = 100;

impl Story {
    /// Returns what the kernel knows at the exit; `observe` adds the moments before it.
    pub fn of(info: &ExitInfo) -> Story {
        let origin = &info.origin;
        let is_stall = info.kind == ExitKind::ErrorStall;
        let waited = origin.task.as_ref().filter(|_| is_stall).and_then(|task| task.waiting_since);
        let task = origin.task.as_ref().map(|task| StoryTask {
            name: task.name.clone(),
            pid: task.pid,
            waiting_since_ns: task.waiting_since,
            cpus: task.cpus.iter().map(|cpu| cpu.0).collect(),
            idle_cpus: task.idle_cpus.iter().map(|cpu| cpu.0).collect(),
            dsq: task.dsq,
            looks: None,
        });
        let known = origin.regs.iter().enumerate();
        let known = known.filter_map(|(reg, value)| Some(format!("r{reg}={:#x}", (*value)?)));
        Story {
            cpu: info.cpu.map(|cpu| cpu.0),
            task,
            registers: known.collect(),
            from_ns: waited.unwrap_or(info.at.saturating_sub(LAST_NS)),
            to_ns: info.at,
            cpus: Vec::new(),
        }
    }

    /// Returns the story in sentences, beside `Exit::origin`, which names the place.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let is_stall = self.is_stall();
        match (&self.task, self.cpu) {
            (Some(task), Some(cpu)) if !is_stall => {
                lines.push(format!("on CPU {cpu}, for {}[{}]", task.name, task.pid));
            }
            (None, Some(cpu)) => lines.push(format!("on CPU {cpu}")),
            _ => {}
        }
        if !self.registers.is_empty() {
            lines.push(format!("registers: {}", self.registers.join(" ")));
        }
        if self.cpus.is_empty() {
            return lines;
        }
        let length = time(self.to_ns.saturating_sub(self.from_ns));
        let period = if is_stall { "of its wait" } else { "before the exit" };
        lines.push(format!("in the {length} {period}:"));
        let notable_ns = self.to_ns.saturating_sub(self.from_ns) / PROGRAMS_PART;
        let shown = self.cpus.iter().take(CPUS);
        lines.extend(shown.map(|cpu| format!("  {}", cpu.line(notable_ns))));
        if self.cpus.len() > CPUS {
            lines.push(format!("  and {} more CPUs", self.cpus.len() - CPUS));
        }
        if let Some((id, looks)) = self.task.as_ref().and_then(|t| t.own_dsq().zip(t.looks))
            && is_stall
        {
            lines.push(match looks.all() {
                0 => format!("  no CPU tried to move a task from {}", dsq(id)),
                _ => format!("  over all CPUs, {} {}", dsq(id), looks.text()),
            });
        }
        lines
    }

    /// Tells whether the story is about a stalled task. The period is then the task's wait.
    pub fn is_stall(&self) -> bool {
        self.task.as_ref().is_some_and(|task| task.waiting_since_ns == Some(self.from_ns))
    }
}

impl StoryTask {
    /// Returns the DSQ in which the task waited, if the scheduler created it.
    pub fn own_dsq(&self) -> Option<u64> {
        self.dsq.filter(|id| id & FLAG_BUILTIN == 0)
    }
}

impl StoryCpu {
    /// Returns what the CPU did. Programs of the scheduler that ran for less than `notable_ns` are
    /// left out.
    fn line(&self, notable_ns: u64) -> String {
        let mut parts = Vec::new();
        let has_programs = self.programs_ns > 0 && self.programs_ns >= notable_ns;
        let programs = has_programs
            .then(|| format!("the scheduler's programs for {}", time(self.programs_ns)));
        if self.ran.is_empty() && programs.is_none() {
            let kicks = match self.kicks {
                0 => "never kicked".to_owned(),
                n => format!("kicked {}", times(n)),
            };
            parts.push(format!("idle all the time, {kicks}"));
        } else {
            let shown = self.ran.iter().take(NAMES);
            let mut ran: Vec<String> =
                shown.map(|ran| format!("{} for {}", ran.task, time(ran.run_ns))).collect();
            let rest = self.ran.get(NAMES..).unwrap_or_default();
            if !rest.is_empty() {
                let sum = time(rest.iter().map(|ran| ran.run_ns).sum());
                let tasks = if rest.len() == 1 { "task" } else { "tasks" };
                ran.push(format!("{} other {tasks} for {sum}", rest.len()));
            }
            ran.extend(programs);
            parts.push(format!("ran {}", ran.join(", ")));
            if self.idle_ns > 0 {
                parts.push(format!("idle for {}", time(self.idle_ns)));
            }
        }
        let looks = self.looks.iter().take(NAMES);
        parts.extend(looks.map(|StoryLooks { dsq, looks }| format!("{dsq} {}", looks.text())));
        format!("CPU {}: {}", self.cpu, parts.join("; "))
    }
}

impl Looks {
    fn all(self) -> u64 {
        self.moved + self.empty + self.unfit
    }

    fn text(self) -> String {
        let parts = [
            (self.moved, "gave a task"),
            (self.empty, "was empty"),
            (self.unfit, "had no task that may run there"),
        ];
        let parts = parts.into_iter().filter(|(n, _)| *n > 0);
        let parts: Vec<String> = parts.map(|(n, what)| format!("{what} {}", times(n))).collect();
        parts.join(" and ")
    }
}

fn times(n: u64) -> String {
    if n == 1 { "once".to_owned() } else { format!("{n} times") }
}

fn time(ns: u64) -> String {
    Scale::time(ns as f64).with_unit(ns as f64)
}

/// Adds the moments before the ejection to a run's story, by making the run of `spec` again up to
/// the exit. A run that `watch` ends has none.
pub fn observe(spec: &SimSpec<'_>, run: &mut Run, watch: &Watch<'_>) -> Result<(), SimError> {
    let Some(story) = &mut run.exit.story else { return Ok(()) };
    let nr_cpus = spec.machine.topology.nr_cpus();
    let sink = Observer::new(story, nr_cpus);
    let again = SimSpec { duration: Some(story.to_ns + 1), ..*spec };
    let (again, mut tracer) = simulate(&again, Tracer::with_sink(sink), watch)?;
    if let Some(seen) = tracer.take_sink::<Observer>()
        && !again.stop.was_interrupted()
    {
        seen.complete(story);
    }
    Ok(())
}

/// What one CPU has done so far in the period.
#[derive(Clone, Debug, Default)]
struct Observed {
    now: Doing,
    /// Start of what it does now.
    since: Nanos,
    /// Start and end of each program of the scheduler since then, in order. A program that ran
    /// within another has no entry of its own.
    programs: Vec<(Nanos, Nanos)>,
    idle_ns: Nanos,
    programs_ns: Nanos,
    /// Time of each task, by thread id.
    ran: IndexMap<u32, Nanos>,
    kicks: u64,
    looks: BTreeMap<u64, Looks>,
    /// Thread id, start and end of the last times that a task ran.
    last: VecDeque<(u32, Nanos, Nanos)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Doing {
    #[default]
    Idle,
    Offline,
    /// Runs the task with this thread id.
    Runs(u32),
}

/// The sink that watches the second run.
struct Observer {
    from: Nanos,
    until: Nanos,
    cpus: Vec<Observed>,
    /// Name and thread id of each task that ran, by thread id.
    names: BTreeMap<u32, String>,
}

impl Sink for Observer {
    fn event(&mut self, event: &Event, names: &Names) {
        let is_within = (self.from..=self.until).contains(&event.time);
        match event.kind {
            EventKind::Switch { next, .. } => {
                let doing = next.map_or(Doing::Idle, |next| Doing::Runs(self.pid(next, names)));
                self.change(event, doing);
            }
            EventKind::CpuOnline { online } => {
                self.change(event, if online { Doing::Idle } else { Doing::Offline });
            }
            EventKind::Op { cost_ns, .. } | EventKind::Program { cost_ns } => {
                self.program(event, cost_ns);
            }
            EventKind::Kick { target, .. } if is_within => {
                self.cpus[target.idx()].kicks += 1;
            }
            EventKind::DsqMove { from, .. } if is_within => self.looks(event, from).moved += 1,
            EventKind::DsqMiss { dsq, queued } if is_within => {
                let looks = self.looks(event, dsq);
                *(if queued == 0 { &mut looks.empty } else { &mut looks.unfit }) += 1;
            }
            _ => {}
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Observer {
    fn new(story: &Story, nr_cpus: usize) -> Observer {
        Observer {
            from: story.from_ns,
            until: story.to_ns,
            cpus: vec![Observed::default(); nr_cpus],
            names: BTreeMap::new(),
        }
    }

    /// Returns the thread id of a task, and keeps its name.
    fn pid(&mut self, task: TaskId, names: &Names) -> u32 {
        let Some(name) = names.task(task) else { return 0 };
        self.names.entry(name.pid).or_insert_with(|| format!("{}[{}]", name.comm, name.pid));
        name.pid
    }

    fn looks(&mut self, event: &Event, dsq: u64) -> &mut Looks {
        self.cpus[event.cpu.idx()].looks.entry(dsq).or_default()
    }

    /// Keeps the time of a program that ended with an event.
    fn program(&mut self, event: &Event, cost_ns: Nanos) {
        let programs = &mut self.cpus[event.cpu.idx()].programs;
        let start = event.time.saturating_sub(cost_ns);
        while programs.pop_if(|(inner, _)| *inner >= start).is_some() {}
        programs.push((start, event.time));
    }

    /// Counts what a CPU did until an event, after which it does something else.
    fn change(&mut self, event: &Event, next: Doing) {
        let (from, until) = (self.from, self.until);
        let cpu = &mut self.cpus[event.cpu.idx()];
        let (start, end) = (cpu.since.max(from), event.time.min(until));
        let length = end.saturating_sub(start);
        let within = |(from, until): (Nanos, Nanos)| until.min(end).saturating_sub(from.max(start));
        let programs_ns: Nanos = cpu.programs.drain(..).map(within).sum();
        cpu.programs_ns += programs_ns;
        match cpu.now {
            Doing::Offline => {}
            Doing::Idle => cpu.idle_ns += length - programs_ns,
            Doing::Runs(pid) if length > 0 => {
                *cpu.ran.entry(pid).or_default() += length - programs_ns;
                let start = start.max(until.saturating_sub(LAST_NS));
                if start < end {
                    if cpu.last.len() == MOMENTS {
                        cpu.last.pop_front();
                    }
                    cpu.last.push_back((pid, start, end));
                }
            }
            Doing::Runs(_) => {}
        }
        (cpu.now, cpu.since) = (next, event.time);
    }

    /// Completes the story.
    fn complete(mut self, story: &mut Story) {
        for cpu in (0..self.cpus.len() as u32).map(CpuId) {
            let end = Event { time: self.until, cpu, kind: EventKind::CpuOnline { online: true } };
            self.change(&end, self.cpus[cpu.idx()].now);
        }
        let wanted: Vec<u32> = match &story.task {
            Some(task) if story.is_stall() => task.cpus.clone(),
            _ => {
                let online = |cpu: &u32| self.cpus[*cpu as usize].now != Doing::Offline;
                let others = (0..self.cpus.len() as u32).filter(online);
                let others = others.filter(|cpu| Some(*cpu) != story.cpu);
                story.cpu.into_iter().chain(others).collect()
            }
        };
        story.cpus = wanted.into_iter().map(|cpu| self.story_of(cpu)).collect();
        if let Some(task) = &mut story.task {
            task.looks = task.own_dsq().map(|id| self.looks_at(id));
        }
    }

    /// Returns the attempts of all CPUs to move a task from a DSQ.
    fn looks_at(&self, dsq: u64) -> Looks {
        let all = self.cpus.iter().filter_map(|cpu| cpu.looks.get(&dsq));
        all.fold(Looks::default(), |sum, looks| Looks {
            moved: sum.moved + looks.moved,
            empty: sum.empty + looks.empty,
            unfit: sum.unfit + looks.unfit,
        })
    }

    fn story_of(&self, cpu: u32) -> StoryCpu {
        let Observed { idle_ns, programs_ns, ran, kicks, looks, last, .. } =
            &self.cpus[cpu as usize];
        let name = |pid: &u32| self.names.get(pid).cloned().unwrap_or_default();
        let mut ran: Vec<StoryRan> =
            ran.iter().map(|(pid, ns)| StoryRan { task: name(pid), run_ns: *ns }).collect();
        ran.sort_by_key(|ran| Reverse(ran.run_ns));
        let mut looks: Vec<StoryLooks> =
            looks.iter().map(|(id, looks)| StoryLooks { dsq: dsq(*id), looks: *looks }).collect();
        looks.sort_by_key(|looks| Reverse(looks.looks.all()));
        let moment = |(pid, start, end): &(u32, Nanos, Nanos)| Moment {
            task: name(pid),
            start_ns: *start,
            end_ns: *end,
        };
        let last = last.iter().map(moment).collect();
        let (idle_ns, programs_ns) = (*idle_ns, *programs_ns);
        StoryCpu { cpu, idle_ns, programs_ns, ran, kicks: *kicks, looks, last }
    }
}
