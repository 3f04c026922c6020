// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's time within a task's time on a CPU, by the machine's cost table.
//!
//! Owns: the sums of constants that a replay charges again, so that they are not part of the work.
//! Does not: hold constants. Locks of run queues count as free ones.

use std::collections::BTreeMap;

use scxlab_machine::cost::IdleState;
use scxlab_machine::id::CpuId;
use scxlab_machine::{Machine, Nanos};
use scxlab_trace::{Call, ChannelKind};

/// Costs of the kernel's paths on one machine, in ns.
#[derive(Clone, Debug)]
pub struct Overhead {
    machine: Machine,
    /// From the scheduler's pick until the event of the switch.
    pub switch: Nanos,
    /// From the event of the switch until the task runs.
    pub after_switch: Nanos,
    /// Taking a task off its run queue.
    pub dequeue: Nanos,
    /// An interrupt's part before the event of a wake-up.
    pub before_interrupt_wake: Nanos,
    /// A wake-up before its event.
    pub before_wake: Nanos,
    /// A wake-up after its event.
    pub after_wake: Nanos,
    /// A fork before its event.
    pub fork: Nanos,
    /// An exit before its event.
    pub exit: Nanos,
    /// A change of attributes before its event.
    pub attributes: Nanos,
}

impl Overhead {
    /// Returns the costs of a machine.
    pub fn of(machine: &Machine) -> Overhead {
        let c = &machine.costs;
        let lock = c.lock.uncontended_ns;
        let before_wake = c.sched.wakeup_ns + c.sched.select_ns;
        Overhead {
            switch: c.sched.pick_ns + lock + c.sched.context_switch_ns,
            after_switch: 0,
            dequeue: c.sched.dequeue_ns,
            before_interrupt_wake: c.irq.timer_ns + before_wake,
            before_wake,
            after_wake: lock + c.sched.enqueue_ns,
            fork: c.syscall.fork_ns,
            exit: c.syscall.exit_ns,
            attributes: c.syscall.entry_ns,
            machine: machine.clone(),
        }
    }

    /// Returns the time that a CPU took to wake up, if it was idle for so long with that time. The
    /// machine's idle state depends on the time before.
    pub fn idle_exit(&self, idle: Nanos) -> Nanos {
        let states = &self.machine.costs.idle;
        let fits = |s: &IdleState| s.min_residency_ns.saturating_add(s.exit_latency_ns) <= idle;
        let at = states.iter().rposition(fits).unwrap_or(0);
        let exit = states[at].exit_latency_ns.min(idle);
        let Some(deeper) = states.get(at + 1) else { return exit };
        let least = deeper.min_residency_ns;
        if idle - exit < least {
            return exit;
        }
        // So long a time before leads to the deeper state, from which the CPU wakes up later. No
        // time before gives `idle` with its exit; these two are the nearest.
        let (shorter, longer) = (least - 1 + exit, least + deeper.exit_latency_ns);
        idle - if idle - shorter <= longer - idle { least - 1 } else { least }
    }

    /// Returns the further cost of a switch between processes.
    pub fn switch_mm(&self) -> Nanos {
        self.machine.costs.sched.switch_mm_ns
    }

    /// Returns the costs of a call after its event, without those of `message`. A read's event is
    /// at its end (see `read`).
    pub fn after_call(&self, call: &Call) -> Nanos {
        let c = &self.machine.costs;
        match call {
            Call::FutexWait { .. } => c.workload.futex_check_ns,
            Call::FutexWake { .. } => c.workload.futex_wake_ns,
            Call::Write { kind, bytes, .. } => self.transfer(*kind, *bytes),
            Call::SleepFor { .. } => c.workload.timer_ns,
            Call::Io { .. } => c.workload.io_submit_ns,
            Call::Exec => c.syscall.exec_ns,
            Call::Yield => c.syscall.entry_ns,
            Call::Poll { .. } => c.workload.pipe_rw_ns,
            Call::Read { .. } | Call::SleepUntil { .. } | Call::Join | Call::Count { .. } => 0,
        }
    }

    /// Returns the costs of a call between its event and the sleep that it leads to, without those
    /// of `message`.
    pub fn before_sleep(&self, call: &Call) -> Nanos {
        match call {
            Call::FutexWait { .. } => self.machine.costs.workload.futex_wait_ns,
            _ => self.after_call(call),
        }
    }

    /// Returns the costs of a call before its event, without those of `message`.
    pub fn before_call(&self, call: &Call) -> Nanos {
        match call {
            Call::Read { kind, bytes, .. } => self.transfer(*kind, *bytes),
            Call::SleepUntil { .. } => self.machine.costs.workload.timer_ns,
            _ => 0,
        }
    }

    /// Returns the time in which a call on this CPU gets what other CPUs wrote to its channel, and
    /// notes the call.
    pub fn message(&self, users: &mut LastUsers, cpu: CpuId, call: &Call) -> Nanos {
        let (object, kind, read) = match *call {
            Call::Write { object, kind, .. } => (object, kind, None),
            Call::Read { object, kind, bytes } => (object, kind, Some(bytes)),
            _ => return 0,
        };
        let w = &self.machine.costs.workload;
        let (state, message) = match kind {
            ChannelKind::Pipe | ChannelKind::EventFd => (w.pipe_lines, w.pipe_message_lines),
            ChannelKind::Socket | ChannelKind::Outside => (w.sock_lines, w.sock_message_lines),
        };
        let users = users.0.entry(object).or_default();
        let from = |last: Option<CpuId>, lines, bytes| {
            let distance = last.map(|last| self.machine.topology.distance(last, cpu));
            distance.map_or(0, |by| self.machine.costs.message_ns(by, lines, bytes))
        };
        let state = from(users.used, state, 0);
        users.used = Some(cpu);
        match read {
            None => {
                users.wrote = Some(cpu);
                state
            }
            Some(bytes) => state.saturating_add(from(users.wrote, message, bytes)),
        }
    }

    fn transfer(&self, kind: ChannelKind, bytes: u64) -> Nanos {
        let w = &self.machine.costs.workload;
        let (call, kib) = match kind {
            ChannelKind::Pipe | ChannelKind::EventFd => (w.pipe_rw_ns, w.pipe_ns_per_kib),
            ChannelKind::Socket | ChannelKind::Outside => (w.sock_rw_ns, w.sock_ns_per_kib),
        };
        let copy = u128::from(kib) * u128::from(bytes) / 1024;
        call.saturating_add(u64::try_from(copy).unwrap_or(Nanos::MAX))
    }
}

/// The CPUs that used each pipe or socket last.
#[derive(Debug, Default)]
pub struct LastUsers(BTreeMap<u64, Users>);

#[derive(Debug, Default)]
struct Users {
    used: Option<CpuId>,
    wrote: Option<CpuId>,
}
