// SPDX-License-Identifier: GPL-2.0-only
//! Scheduling events in the kernel's ftrace form, from which the UI draws CPU and thread tracks.
//!
//! Owns: the bundle of events of each CPU, which is written when it is full; the description of
//! each task, which is written before the task's first event.
//! Models: the tracepoints sched_switch, sched_waking, sched_migrate_task, task_newtask,
//! sched_process_exit, sched_process_free and sched_cpu_hotplug. The idle task has pid 0, as in the
//! kernel. scxlab's own events are in `own.rs`.

use std::collections::BTreeMap;
use std::io::Write;

use scxlab_machine::{CpuId, Machine, Nanos, TaskId};

use super::own;
use super::packets::Packets;
use super::schema::{self, FtraceEvent, FtraceEventBundle, Process, ProcessTree, Thread};
use crate::event::{Event, EventKind, PrevState};
use crate::names::{CgroupAttributes, Names};

/// Number of events in a full bundle of one CPU.
const BUNDLE: usize = 64;
/// Number of buffered events of all CPUs at which all bundles are written. This limit bounds the
/// memory on a large machine.
const PENDING_MAX: usize = 16_384;
/// Values of `FtraceStats.phase`.
const START_OF_TRACE: i32 = 1;
const END_OF_TRACE: i32 = 2;
/// `TRACE_FLAG_HARDIRQ`: the event happened in an interrupt.
const IN_INTERRUPT: u32 = 8;
/// `CLONE_THREAD`: the new task is a thread of its parent's process.
const CLONE_THREAD: u64 = 1 << 16;
/// The kernel's priority of nice 0.
const DEFAULT_PRIO: i32 = 120;

pub(super) struct Ftrace {
    /// Text of the machine, until it is written with the first event. Its time must be one of the
    /// run, because the UI shows everything from the first event on.
    machine: Option<String>,
    /// The scheduler, which is written with the machine.
    pub scheduler: Option<String>,
    bundles: Vec<Vec<FtraceEvent>>,
    pending: usize,
    /// `Names::task_version` of the name with which the file last described a task; 0 if the file
    /// has not described it. Indexed by task id.
    described: Vec<u64>,
    /// Number of missing events, indexed by CPU; empty if none are missing.
    lost: Vec<u64>,
    /// Limits of each cgroup as the file last described them.
    cgroups: BTreeMap<String, CgroupAttributes>,
    /// Task that runs on each CPU, for events of interrupts.
    current: Vec<i32>,
    /// Time and CPU of the last event.
    last: (Nanos, CpuId),
}

/// A task as tracepoints identify it.
struct TaskRef {
    pid: i32,
    comm: String,
    prio: i32,
}

impl Ftrace {
    pub fn new(machine: &Machine) -> Self {
        let nr_cpus = machine.topology.nr_cpus();
        let bundles = (0..nr_cpus).map(|_| Vec::new()).collect();
        Ftrace {
            machine: Some(machine.to_toml()),
            scheduler: None,
            bundles,
            pending: 0,
            described: Vec::new(),
            lost: Vec::new(),
            cgroups: BTreeMap::new(),
            current: vec![0; nr_cpus],
            last: (0, CpuId(0)),
        }
    }

    pub fn event<W: Write>(&mut self, packets: &mut Packets<W>, event: &Event, names: &Names) {
        let Event { time, cpu, kind } = *event;
        self.write_machine(packets, time);
        match kind {
            EventKind::Switch { prev, next, prev_state } => {
                self.switch(packets, event, names, (prev, next), prev_state);
            }
            EventKind::Wakeup { task, target, waker } => {
                let flags = if waker.is_none() { IN_INTERRUPT } else { 0 };
                let running = self.current.get(cpu.idx()).copied().unwrap_or(0);
                let waker = waker.map(|waker| self.who(packets, time, names, cpu, Some(waker)));
                let waker = waker.map_or(running, |waker| waker.pid);
                let woken = self.who(packets, time, names, cpu, Some(task));
                let waking = schema::SchedWaking {
                    comm: Some(woken.comm),
                    pid: Some(woken.pid),
                    prio: Some(woken.prio),
                    success: Some(1),
                    target_cpu: Some(target.0 as i32),
                };
                self.push_with(
                    packets,
                    time,
                    cpu,
                    (waker, flags),
                    schema::Ftrace::SchedWaking(waking),
                );
            }
            EventKind::Migrate { task, from, to } => {
                let who = self.who(packets, time, names, cpu, Some(task));
                let migrate = schema::SchedMigrateTask {
                    comm: Some(who.comm),
                    pid: Some(who.pid),
                    prio: Some(who.prio),
                    orig_cpu: Some(from.0 as i32),
                    dest_cpu: Some(to.0 as i32),
                };
                self.push(packets, time, cpu, 0, schema::Ftrace::SchedMigrateTask(migrate));
            }
            EventKind::CpuOnline { online } => {
                let hotplug = schema::SchedCpuHotplug {
                    affected_cpu: Some(cpu.0 as i32),
                    error: Some(0),
                    status: Some(i32::from(online)),
                };
                self.push(packets, time, cpu, 0, schema::Ftrace::SchedCpuHotplug(hotplug));
            }
            EventKind::Fork { parent, child } => {
                let tgid = |task| names.task(task).map(|name| name.tgid);
                let thread = parent.is_some_and(|parent| tgid(parent) == tgid(child));
                let parent = parent.map(|parent| self.who(packets, time, names, cpu, Some(parent)));
                let child = self.who(packets, time, names, cpu, Some(child));
                let Some(parent) = parent else {
                    let start = own::start(child.pid.cast_unsigned());
                    return self.push(packets, time, cpu, 0, schema::Ftrace::Generic(start));
                };
                let task = schema::TaskNewtask {
                    pid: Some(child.pid),
                    comm: Some(child.comm),
                    clone_flags: Some(if thread { CLONE_THREAD } else { 0 }),
                };
                self.push(packets, time, cpu, parent.pid, schema::Ftrace::TaskNewtask(task));
            }
            EventKind::Exit { task } => {
                let who = self.who(packets, time, names, cpu, Some(task));
                let exit = schema::SchedProcessExit {
                    comm: Some(who.comm),
                    pid: Some(who.pid),
                    tgid: names.task(task).map(|name| name.tgid.cast_signed()),
                    prio: Some(who.prio),
                };
                self.push(packets, time, cpu, who.pid, schema::Ftrace::SchedProcessExit(exit));
            }
            EventKind::Lost { events } => {
                self.lose(cpu, events);
                let lost = schema::Ftrace::Generic(own::lost(events));
                self.push(packets, time, cpu, 0, lost);
            }
            EventKind::Call { task, call } => {
                let who = self.who(packets, time, names, cpu, Some(task));
                self.push(packets, time, cpu, who.pid, schema::Ftrace::Generic(own::call(call)));
            }
            EventKind::Attributes { task } => self.attributes(packets, event, names, task),
            _ => {}
        }
    }

    fn write_machine<W: Write>(&mut self, packets: &mut Packets<W>, time: Nanos) {
        if let Some(machine) = self.machine.take() {
            let event = schema::Ftrace::Generic(own::machine(&machine, self.scheduler.as_deref()));
            self.push(packets, time, CpuId(0), 0, event);
        }
    }

    /// Writes the attributes of a task, after those of its cgroup and the cgroup's ancestors if the
    /// file does not have them.
    fn attributes<W: Write>(
        &mut self,
        packets: &mut Packets<W>,
        event: &Event,
        names: &Names,
        task: TaskId,
    ) {
        let Event { time, cpu, .. } = *event;
        let Some(attributes) = names.attributes(task) else { return };
        let who = self.who(packets, time, names, cpu, Some(task));
        let path = attributes.cgroup.as_str();
        let parents = path.match_indices('/').map(|(at, _)| &path[..at.max(1)]);
        for group in parents.chain([path]) {
            let Some(limits) = names.cgroup(group) else { continue };
            if self.cgroups.get(group) != Some(limits) {
                self.cgroups.insert(group.to_owned(), limits.clone());
                let event = schema::Ftrace::Generic(own::cgroup(group, limits));
                self.push(packets, time, cpu, 0, event);
            }
        }
        let event = own::task(who.pid.cast_unsigned(), attributes);
        self.push(packets, time, cpu, 0, schema::Ftrace::Generic(event));
    }

    /// Writes all bundles that have events, in order of CPUs.
    fn flush<W: Write>(&mut self, packets: &mut Packets<W>) {
        (0..self.bundles.len()).for_each(|cpu| self.flush_cpu(packets, cpu));
    }

    /// Adds to the number of missing events of a CPU.
    fn lose(&mut self, cpu: CpuId, events: u64) {
        if self.lost.is_empty() {
            self.lost = vec![0; self.bundles.len()];
        }
        if let Some(lost) = self.lost.get_mut(cpu.idx()) {
            *lost = lost.saturating_add(events);
        }
    }

    /// Writes the buffered events. If events are missing, also writes the kernel's counters for the
    /// start and for the end of the trace. Readers take the growth of a CPU's counter as the number
    /// of its missing events.
    pub fn finish<W: Write>(&mut self, packets: &mut Packets<W>) {
        self.write_machine(packets, 0);
        self.flush(packets);
        if self.lost.is_empty() {
            return;
        }
        for (phase, part) in [(START_OF_TRACE, 0), (END_OF_TRACE, 1)] {
            let cpu = |(cpu, lost): (usize, &u64)| schema::FtraceCpuStats {
                cpu: Some(cpu as u64),
                overrun: None,
                dropped_events: Some(lost * part),
            };
            let cpu_stats = self.lost.iter().enumerate().map(cpu).collect();
            packets.ftrace_stats(schema::FtraceStats { phase: Some(phase), cpu_stats });
        }
    }

    fn switch<W: Write>(
        &mut self,
        packets: &mut Packets<W>,
        event: &Event,
        names: &Names,
        (prev, next): (Option<TaskId>, Option<TaskId>),
        prev_state: PrevState,
    ) {
        let Event { time, cpu, .. } = *event;
        let from = self.who(packets, time, names, cpu, prev);
        let to = self.who(packets, time, names, cpu, next);
        let (pid, comm, prio) = (from.pid, from.comm.clone(), from.prio);
        let switch = schema::SchedSwitch {
            prev_comm: Some(from.comm),
            prev_pid: Some(from.pid),
            prev_prio: Some(from.prio),
            prev_state: Some(match prev_state {
                PrevState::Runnable => 0,
                PrevState::Sleeping => 1,
                PrevState::Uninterruptible => 2,
                PrevState::Exited => 16,
            }),
            next_comm: Some(to.comm),
            next_pid: Some(to.pid),
            next_prio: Some(to.prio),
        };
        if let Some(current) = self.current.get_mut(cpu.idx()) {
            *current = to.pid;
        }
        self.push(packets, time, cpu, pid, schema::Ftrace::SchedSwitch(switch));
        if prev_state == PrevState::Exited && pid != 0 {
            let free =
                schema::SchedProcessFree { comm: Some(comm), pid: Some(pid), prio: Some(prio) };
            self.push(packets, time, cpu, 0, schema::Ftrace::SchedProcessFree(free));
        }
    }

    /// Returns the pid, name and priority of a task, after describing the task in the file. The
    /// task None is the CPU's idle task.
    fn who<W: Write>(
        &mut self,
        packets: &mut Packets<W>,
        time: Nanos,
        names: &Names,
        cpu: CpuId,
        task: Option<TaskId>,
    ) -> TaskRef {
        let Some(task) = task else {
            return TaskRef { pid: 0, comm: format!("swapper/{cpu}"), prio: DEFAULT_PRIO };
        };
        self.describe(packets, time, names, task);
        match names.task(task) {
            Some(name) => {
                TaskRef { pid: name.pid as i32, comm: name.comm.clone(), prio: name.prio }
            }
            // A task without a name gets a pid of its own, so that the UI shows a track for it.
            None => {
                TaskRef { pid: unnamed_pid(task), comm: format!("task {task}"), prio: DEFAULT_PRIO }
            }
        }
    }

    fn describe<W: Write>(
        &mut self,
        packets: &mut Packets<W>,
        time: Nanos,
        names: &Names,
        task: TaskId,
    ) {
        let Some(name) = names.task(task) else { return };
        if self.described.len() <= task.idx() {
            self.described.resize(task.idx() + 1, 0);
        }
        let version = names.task_version(task);
        if std::mem::replace(&mut self.described[task.idx()], version) == version {
            return;
        }
        let (pid, tgid) = (name.pid as i32, name.tgid as i32);
        let thread = Thread { tid: Some(pid), name: Some(name.comm.clone()), tgid: Some(tgid) };
        let leader = Process { pid: Some(tgid), ppid: Some(1), cmdline: vec![name.comm.clone()] };
        let processes = if pid == tgid { vec![leader] } else { Vec::new() };
        packets.process_tree(time, ProcessTree { processes, threads: vec![thread] });
    }

    fn push<W: Write>(
        &mut self,
        packets: &mut Packets<W>,
        time: Nanos,
        cpu: CpuId,
        pid: i32,
        event: schema::Ftrace,
    ) {
        self.push_with(packets, time, cpu, (pid, 0), event);
    }

    /// Adds an event with the pid of the running task and the kernel's flags.
    fn push_with<W: Write>(
        &mut self,
        packets: &mut Packets<W>,
        time: Nanos,
        cpu: CpuId,
        (pid, flags): (i32, u32),
        event: schema::Ftrace,
    ) {
        // Events of a CPU that the machine does not have are dropped, because they cannot be drawn.
        if cpu.idx() >= self.bundles.len() {
            return;
        }
        // A reader takes events of one time in the order of the file.
        let (last, last_cpu) = std::mem::replace(&mut self.last, (time, cpu));
        if last == time && last_cpu != cpu {
            self.flush_cpu(packets, last_cpu.idx());
        }
        let bundle = &mut self.bundles[cpu.idx()];
        bundle.push(FtraceEvent {
            timestamp: Some(time),
            pid: Some(pid as u32),
            common_flags: (flags != 0).then_some(flags),
            event,
        });
        self.pending += 1;
        if self.pending >= PENDING_MAX {
            self.flush(packets);
        } else if self.bundles[cpu.idx()].len() >= BUNDLE {
            self.flush_cpu(packets, cpu.idx());
        }
    }

    fn flush_cpu<W: Write>(&mut self, packets: &mut Packets<W>, cpu: usize) {
        let event = std::mem::take(&mut self.bundles[cpu]);
        self.pending -= event.len();
        if !event.is_empty() {
            packets.ftrace(FtraceEventBundle {
                cpu: Some(cpu as u32),
                event,
                ..FtraceEventBundle::default()
            });
        }
    }
}

/// Returns a pid for a task without a name. The pid is above all that the kernel assigns
/// (PID_MAX_LIMIT is 2^22).
fn unnamed_pid(task: TaskId) -> i32 {
    (task.0 & 0x00ff_ffff | 0x4000_0000) as i32
}
