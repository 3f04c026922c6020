// SPDX-License-Identifier: GPL-2.0-only
//! Why a scheduler left: kinds, codes, messages, and the request to leave.
//!
//! Owns: the first claim counts. Models: kernel `scx_claim_exit()`, `scx_vexit()`, `scx_exit_reason()`, 7.3.

use super::op::Op;
use super::origin::Origin;
use crate::event::Event;
use crate::flags::limit;
use crate::kernel::{Kernel, Then};
use scxlab_machine::id::{CpuId, Nanos};
use scxlab_trace::event::{Event as Traced, Kind};

/// `enum scx_exit_kind`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ExitKind {
    Done = 1,
    /// Detached by user space.
    Unreg = 64,
    /// The scheduler asked to leave.
    UnregBpf = 65,
    /// The kernel asked it to leave (CPU hotplug).
    UnregKern = 66,
    Sysrq = 67,
    /// It did what is not allowed.
    Error = 1024,
    /// It reported an error of its own.
    ErrorBpf = 1025,
    /// A runnable task waited too long.
    ErrorStall = 1026,
    /// A task was re-enqueued again and again without running.
    ErrorReenq = 1027,
}

impl ExitKind {
    /// The kernel's word, lower case, as in JSON output.
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

    /// What `scx_exit_info.reason` says.
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

/// What is known of an exit.
#[derive(Clone, Debug)]
pub struct ExitInfo {
    pub kind: ExitKind,
    pub code: i64,
    pub cpu: Option<CpuId>,
    pub message: String,
    pub at: Nanos,
    /// Where in the scheduler it comes from.
    pub origin: Origin,
    /// The debug dump, for errors.
    pub dump: String,
}

impl Kernel {
    /// Asks for the loaded scheduler's exit; the first request counts. It is carried out a moment later,
    /// as by the kernel's irq_work and helper thread.
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

    /// As `ext_exit`, of what does not come from the call that is being carried out.
    pub(crate) fn claim_exit(&mut self, kind: ExitKind, code: i64, message: &str, origin: Origin) {
        let at = self.clock();
        let cpu = self.exec.cpu;
        let Some(sched) = self.ext.root.as_mut().filter(|sched| sched.exit.is_none()) else {
            return;
        };
        let mut message = message.to_owned();
        truncate(&mut message, limit::EXIT_MSG_LEN - 1);
        let dump = String::new();
        let event = Traced { time: at, cpu, kind: Kind::SchedExit { kind: kind as u32, code } };
        self.tracer.emit_with_text(event, &message);
        sched.exit = Some(ExitInfo { kind, code, cpu: Some(cpu), message, at, origin, dump });
        let delay = self.machine.costs.irq.ipi_send_ns + self.machine.costs.sched.wakeup_ns;
        self.push_wakeup(at + delay, Event::ExtDisable);
    }

    /// `scx_error()` of what an operation has returned.
    #[cold]
    #[inline(never)]
    pub(crate) fn returned_error(&mut self, op: Op, message: &str) {
        let origin = self.origin_of_return(op);
        self.claim_exit(ExitKind::Error, 0, message, origin);
    }

    /// `scx_error()`
    pub(crate) fn scx_error(&mut self, message: impl AsRef<str>) {
        self.ext_exit(ExitKind::Error, 0, message.as_ref());
    }

    #[inline(never)]
    pub(crate) fn ext_disable_event(&mut self) -> Then {
        self.pending_wakeups -= 1;
        let cpu = self.online_or_any(CpuId(0));
        if self.ext.root.as_ref().is_some_and(|s| s.leaving || s.exit.is_none()) {
            return self.on_cpu_last(cpu, |k| k.ext_disable());
        }
        self.on_cpu(cpu, |k| k.ext_begin_disable());
        let at = self.now + self.machine.costs.sched.rcu_sync_ns;
        self.push_wakeup(at, Event::ExtDisable);
        Then::Nothing
    }

    /// Whether an exit has been claimed but not carried out (`sch->aborting`).
    pub(crate) fn ext_aborting(&self) -> bool {
        self.ext.root.as_ref().is_some_and(|s| s.exit.is_some())
    }
}

/// Cuts at `max` bytes, on a character border.
fn truncate(text: &mut String, max: usize) {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}
