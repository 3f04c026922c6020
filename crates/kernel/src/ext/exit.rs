// SPDX-License-Identifier: GPL-2.0-only
//! Exits of a scheduler: kinds, codes, messages, and the claim of an exit.
//!
//! Owns: the rule that only the first claim counts.
//! Models: kernel `scx_claim_exit()`, `scx_vexit()`, `scx_exit_reason()`, 7.3.

use super::op::Op;
use super::origin::Origin;
use crate::bpf::flags::limit;
use crate::kernel::event::Event;
use crate::kernel::{AfterEvent, Kernel};
use scxlab_machine::id::{CpuId, Nanos};
use scxlab_trace::event::{Event as Traced, EventKind};

/// `enum scx_exit_kind`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ExitKind {
    Done = 1,
    /// User space detached the scheduler.
    Unreg = 64,
    /// The scheduler asked to leave.
    UnregBpf = 65,
    /// The kernel asked the scheduler to leave (CPU hotplug).
    UnregKern = 66,
    Sysrq = 67,
    /// The scheduler did something that is not allowed.
    Error = 1024,
    /// The scheduler reported an error of its own (`scx_bpf_error()`).
    ErrorBpf = 1025,
    /// A runnable task waited too long.
    ErrorStall = 1026,
    /// A task was re-enqueued again and again without running.
    ErrorReenq = 1027,
}

impl ExitKind {
    /// Returns the kernel's name of the kind in lower case, as in JSON output.
    pub fn name(self) -> &'static str {
        match self {
            ExitKind::Done => "done",
            ExitKind::Unreg => "unreg",
            ExitKind::UnregBpf => "unreg_bpf",
            ExitKind::UnregKern => "unreg_kern",
            ExitKind::Sysrq => "sysrq",
            ExitKind::Error => "error",
            ExitKind::ErrorBpf => "error_bpf",
            ExitKind::ErrorStall => "error_stall",
            ExitKind::ErrorReenq => "error_reenq",
        }
    }

    /// Returns the kernel's text for the exit kind, which goes into `scx_exit_info.reason`.
    pub fn reason(self) -> &'static str {
        match self {
            ExitKind::Done => "none",
            ExitKind::Unreg => "unregistered from user space",
            ExitKind::UnregBpf => "unregistered from BPF",
            ExitKind::UnregKern => "unregistered from the main kernel",
            ExitKind::Sysrq => "disabled by sysrq-S",
            ExitKind::Error => "runtime error",
            ExitKind::ErrorBpf => "scx_bpf_error",
            ExitKind::ErrorStall => "runnable task stall",
            ExitKind::ErrorReenq => "reenqueue limit",
        }
    }

    pub fn is_error(self) -> bool {
        self as u32 >= ExitKind::Error as u32
    }
}

/// Information about a scheduler's exit.
#[derive(Clone, Debug)]
pub struct ExitInfo {
    pub kind: ExitKind,
    pub code: i64,
    pub cpu: Option<CpuId>,
    pub message: String,
    pub at: Nanos,
    /// Place in the scheduler that caused the exit.
    pub origin: Origin,
    /// The debug dump; empty unless the exit is an error.
    pub dump: String,
}

impl Kernel {
    /// Claims the loaded scheduler's exit; only the first claim counts. The exit begins after the
    /// time of an IPI and a wake-up, because the real kernel uses an irq_work and a helper thread.
    #[cold]
    #[inline(never)]
    pub(crate) fn ext_exit(&mut self, kind: ExitKind, code: i64, message: &str) {
        if self.ext_may_exit() {
            let origin = self.origin();
            self.claim_exit(kind, code, message, origin);
        }
    }

    fn ext_may_exit(&self) -> bool {
        self.ext.root.as_ref().is_some_and(|sched| sched.exit.is_none())
    }

    /// As `ext_exit`, but the caller names the place in the scheduler that caused the exit
    /// (`origin`).
    pub(crate) fn claim_exit(&mut self, kind: ExitKind, code: i64, message: &str, origin: Origin) {
        let at = self.clock();
        let cpu = self.exec.cpu;
        let Some(sched) = self.ext.root.as_mut().filter(|sched| sched.exit.is_none()) else {
            return;
        };
        let mut message = message.to_owned();
        truncate(&mut message, limit::EXIT_MSG_LEN - 1);
        let dump = String::new();
        let event =
            Traced { time: at, cpu, kind: EventKind::SchedExit { kind: kind as u32, code } };
        self.tracer.emit_with_text(event, &message);
        sched.exit = Some(ExitInfo { kind, code, cpu: Some(cpu), message, at, origin, dump });
        let delay = self.machine.costs.irq.ipi_send_ns + self.machine.costs.sched.wakeup_ns;
        self.push_wakeup(at + delay, Event::ExtDisable);
    }

    /// `scx_error()` about a value that an operation has returned.
    #[cold]
    #[inline(never)]
    pub(crate) fn returned_error(&mut self, op: Op, message: &str) {
        let origin = self.origin_of_return(op);
        self.claim_exit(ExitKind::Error, 0, message, origin);
    }

    /// `scx_error()`: claims an exit of the loaded scheduler for an error, with this message.
    pub(crate) fn scx_error(&mut self, message: impl AsRef<str>) {
        self.ext_exit(ExitKind::Error, 0, message.as_ref());
    }

    #[inline(never)]
    pub(crate) fn ext_disable_event(&mut self) -> AfterEvent {
        self.end.pending_wakeups -= 1;
        let cpu = self.cpus.online_or_any(CpuId(0));
        if self.ext.root.as_ref().is_some_and(|s| s.disabling || s.exit.is_none()) {
            return self.on_cpu_last(cpu, |k| k.ext_disable());
        }
        self.on_cpu(cpu, |k| k.ext_begin_disable());
        let at = self.now + self.machine.costs.sched.rcu_sync_ns;
        self.push_wakeup(at, Event::ExtDisable);
        AfterEvent::Nothing
    }

    /// Returns whether an exit of the loaded scheduler has been claimed (`sch->aborting`).
    pub(crate) fn ext_aborting(&self) -> bool {
        self.ext.root.as_ref().is_some_and(|s| s.exit.is_some())
    }
}

/// Cuts `text` to at most `max` bytes, at a character boundary.
fn truncate(text: &mut String, max: usize) {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

#[cfg(test)]
mod tests;
