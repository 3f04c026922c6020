// SPDX-License-Identifier: GPL-2.0-only
//! Single ftrace events of a Perfetto trace.

use super::{Reader, whole};
use crate::import::raw::{IN_INTERRUPT, Raw, RawKind, Who, marker, state_of_bits};
use crate::perfetto::own;
use crate::perfetto::own::read as own_read;
use crate::perfetto::schema::{Ftrace, FtraceEvent, Generic};
use crate::perfetto::wire::{Broken, Fields, Wire};

impl Reader<'_, '_> {
    /// Passes an event on, or counts it as unknown.
    pub fn event(&mut self, cpu: u32, lost: &mut bool, bytes: Wire<'_>) -> Result<(), Broken> {
        let FtraceEvent { timestamp, pid, common_flags, event } = whole(bytes)?;
        if let Some((machine, scheduler)) = machine(&event) {
            let imported = self.driver.imported();
            imported.machine = Some(machine.to_owned());
            imported.scheduler = scheduler.map(str::to_owned);
            return Ok(());
        }
        let kind = self.kind(event);
        let (Some(kind), Some(time)) = (kind, timestamp) else {
            self.driver.unknown(self.place, || describe(bytes));
            return Ok(());
        };
        let raw = Raw {
            time,
            cpu,
            lane: 0,
            running: pid.filter(|pid| *pid <= i32::MAX.cast_unsigned()),
            interrupt: Some(common_flags.unwrap_or(0) & IN_INTERRUPT != 0),
            kind,
        };
        self.push(raw, lost);
        Ok(())
    }

    /// Returns the event in the common form; None if it is of no known kind, or lacks a field.
    fn kind(&mut self, event: Ftrace) -> Option<RawKind> {
        Some(match event {
            Ftrace::SchedSwitch(s) => RawKind::Switch {
                prev: Some(self.who(s.prev_pid, s.prev_comm, s.prev_prio)?),
                state: state_of_bits(s.prev_state.unwrap_or(0)),
                next: self.who(s.next_pid, s.next_comm, s.next_prio)?,
            },
            Ftrace::SchedWaking(w) => RawKind::Waking {
                task: self.who(w.pid, w.comm, w.prio)?,
                target: cpu_of(w.target_cpu)?,
            },
            Ftrace::SchedWakeup(w) => RawKind::Wakeup {
                task: self.who(w.pid, w.comm, w.prio)?,
                target: cpu_of(w.target_cpu)?,
            },
            Ftrace::SchedWakeupNew(w) => RawKind::WakeupNew {
                task: self.who(w.pid, w.comm, w.prio)?,
                target: cpu_of(w.target_cpu)?,
            },
            Ftrace::SchedMigrateTask(m) => RawKind::Migrate {
                task: self.who(m.pid, m.comm, m.prio)?,
                from: cpu_of(m.orig_cpu)?,
                to: cpu_of(m.dest_cpu)?,
            },
            Ftrace::TaskNewtask(t) => RawKind::NewTask {
                child: self.who(t.pid, t.comm, None)?,
                thread: t.clone_flags.map(|flags| flags & CLONE_THREAD != 0),
            },
            Ftrace::SchedProcessFork(f) => RawKind::Fork {
                parent: tid_of(f.parent_pid)?,
                child: self.who(f.child_pid, f.child_comm, None)?,
            },
            Ftrace::SchedProcessExit(e) => RawKind::Exit { task: self.who(e.pid, e.comm, e.prio)? },
            Ftrace::SchedProcessFree(f) => RawKind::Free { tid: tid_of(f.pid)? },
            Ftrace::SchedProcessExec(e) => {
                let tid = tid_of(e.pid)?;
                RawKind::Exec { tid, old: e.old_pid.map_or(Some(tid), |old| tid_of(Some(old)))? }
            }
            Ftrace::TaskRename(r) => RawKind::Rename { task: self.who(r.pid, r.newcomm, None)? },
            Ftrace::SchedCpuHotplug(h) => RawKind::CpuOnline {
                cpu: cpu_of(h.affected_cpu)?,
                online: h.status.unwrap_or(0) != 0,
            },
            Ftrace::Print(print) => RawKind::Call(marker(&print.buf?)?),
            Ftrace::Generic(generic) => self.own(&generic)?,
            Ftrace::Unknown => return None,
        })
    }

    fn own(&mut self, event: &Generic) -> Option<RawKind> {
        Some(match event.event_name.as_deref()? {
            own::CALL => RawKind::Call(own_read::read_call(event)?),
            own::TASK => RawKind::Attributes(Box::new(own_read::read_task(event)?)),
            own::CGROUP => RawKind::Cgroup(Box::new(own_read::read_cgroup(event)?)),
            own::START => RawKind::Start { tid: own_read::read_start(event)? },
            own::LOST => RawKind::Lost { events: own_read::read_lost(event)? },
            _ => return None,
        })
    }

    fn who(&mut self, pid: Option<i32>, comm: Option<String>, prio: Option<i32>) -> Option<Who> {
        let comm = comm.map(|comm| self.comms.get(&comm));
        Some(Who { tid: tid_of(pid)?, comm, prio })
    }
}

/// Returns the text of the machine, which counts as no event because it belongs to all of them.
fn machine(event: &Ftrace) -> Option<(&str, Option<&str>)> {
    match event {
        Ftrace::Generic(generic) if generic.event_name.as_deref() == Some(own::MACHINE) => {
            own_read::read_machine(generic)
        }
        _ => None,
    }
}

/// `CLONE_THREAD`
const CLONE_THREAD: u64 = 1 << 16;

/// Returns the thread id of a field; None if it is absent or negative.
pub fn tid_of(pid: Option<i32>) -> Option<u32> {
    u32::try_from(pid?).ok()
}

pub fn cpu_of(cpu: Option<i32>) -> Option<u32> {
    u32::try_from(cpu?).ok()
}

/// Returns what an event without a meaning is, for a message.
fn describe(event: Wire<'_>) -> String {
    let Wire::Bytes(bytes) = event else { return "an ftrace event without content".to_owned() };
    let fields = Fields::of(bytes).filter_map(Result::ok);
    // The fields that an event of any kind has hold numbers.
    let kind = fields.filter(|(_, content)| matches!(content, Wire::Bytes(_))).last();
    let Some((number, content)) = kind else { return "an ftrace event without content".to_owned() };
    let generic = match whole::<FtraceEvent>(event) {
        Ok(FtraceEvent { event: Ftrace::Generic(generic), .. }) => generic.event_name,
        _ => None,
    };
    match (generic, content) {
        (Some(name), _) => format!("the event {name}"),
        _ => format!("an ftrace event with the field number {number}"),
    }
}
