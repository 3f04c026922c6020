// SPDX-License-Identifier: GPL-2.0-only
//! Calls of a scheduler's operations: arguments, cost, and handling of faults.
//!
//! Owns: the frame that tells kfuncs which operation called them.
//! Models: kernel `SCX_CALL_OP*()`, `scx_ops_sanitize_err()`, 7.3.

use super::exit::ExitKind;
use super::op::Op;
use super::origin::Origin;
use super::program::ExtProgram;
use super::{DirectSlot, OpFrame, Outside};
use crate::kernel::{Kernel, Stop};
use scxlab_bpf::fault::{Fault, FaultKind};
use scxlab_machine::id::{CpuId, TaskId};
use scxlab_trace::event::EventKind;

/// Returns an argument, or 0 if it is not given.
#[inline(always)]
fn nth(args: &[u64], n: usize) -> u64 {
    args.get(n).copied().unwrap_or(0)
}

impl Kernel {
    /// Calls an operation that is about no task.
    #[inline(always)]
    pub(crate) fn op<const N: usize>(
        &mut self,
        op: Op,
        locked: Option<CpuId>,
        args: &[u64; N],
    ) -> u64 {
        const { assert!(N <= 4) };
        let (a, b) = (nth(args, 0), nth(args, 1));
        self.op_about(op, locked, None, a, b, nth(args, 2), nth(args, 3))
    }

    /// Calls an operation about a task, which is its first argument.
    #[inline(always)]
    pub(crate) fn op_task<const N: usize>(
        &mut self,
        op: Op,
        locked: Option<CpuId>,
        task: TaskId,
        rest: &[u64; N],
    ) -> u64 {
        const { assert!(N <= 3) };
        let addr = self.tasks[task].addr;
        let (b, c, d) = (nth(rest, 0), nth(rest, 1), nth(rest, 2));
        self.op_about(op, locked, Some(task), addr, b, c, d)
    }

    /// Calls an operation about two tasks, given by guest address. The second may be NULL (0).
    pub(crate) fn op_two(&mut self, op: Op, locked: Option<CpuId>, a: u64, b: u64) -> u64 {
        self.op_about(op, locked, None, a, b, 0, 0)
    }

    /// Calls `ops.dispatch(cpu, prev)`. `prev` is a guest address and may be NULL (0).
    pub(crate) fn op_dispatch(&mut self, cpu: CpuId, prev: u64) {
        self.op_about(Op::Dispatch, Some(cpu), None, u64::from(cpu.0), prev, 0, 0);
    }

    /// Calls `op` with up to four arguments. `task` is given if the call is about one task, which
    /// is the first argument. `inline(never)` keeps profile-guided optimisation from inlining the
    /// function at its five call sites, because the code of a context switch must fit the host's
    /// instruction cache.
    #[allow(
        clippy::too_many_arguments,
        reason = "separate words: an array that is written word by word and then read as a whole stalls the host's store forwarding"
    )]
    #[inline(never)]
    fn op_about(
        &mut self,
        op: Op,
        locked: Option<CpuId>,
        task: Option<TaskId>,
        a: u64,
        b: u64,
        c: u64,
        d: u64,
    ) -> u64 {
        if self.ext.frame.is_some() {
            return self.op_within(op, locked, task, a, b, c, d);
        }
        let Some(sched) = &self.ext.root else { return 0 };
        let bpf = match &sched.program {
            ExtProgram::Bpf { instance, funcs } => match funcs[op as usize] {
                Some(func) => Some((*instance, func)),
                None => return 0,
            },
            ExtProgram::Native(ops) if ops.has(op) => None,
            ExtProgram::Native(_) => return 0,
        };
        let start = self.clock();
        let insns = self.vm.executed;
        if self.ext.op_record.is_some() {
            self.record_op(op, &[a, b, c, d]);
        }
        self.ext.frame = Some(OpFrame { op: Some(op), locked, args: [a, b], ..OpFrame::default() });
        self.charge(self.machine.costs.bpf.ops_callback_ns);
        let result = match bpf {
            Some((instance, func)) => scxlab_bpf::vm::call(self, instance, func, &[a, b, c, d]),
            None => Ok(self.op_native(op, &[a, b, c, d])),
        };
        self.charge_insns();
        self.ext.frame = None;
        let cost = self.clock() - start;
        let stats = &mut self.ext.op_stats.0[op as usize];
        stats.calls += 1;
        stats.ns += cost;
        stats.insns += self.vm.executed - insns;
        self.ext.recent_ops.count(self.exec.cpu, op);
        self.trace(EventKind::Op { op: op as u8, cost_ns: cost, task });
        match result {
            Ok(value) => value,
            Err(fault) => {
                self.op_faulted(op, [a, b], fault);
                0
            }
        }
    }

    /// As `op_about`, for a call while another program of the scheduler runs. Afterwards restores
    /// the context (`OpFrame`) of that outer program.
    #[allow(clippy::too_many_arguments, reason = "as `op_about`")]
    #[cold]
    #[inline(never)]
    fn op_within(
        &mut self,
        op: Op,
        locked: Option<CpuId>,
        task: Option<TaskId>,
        a: u64,
        b: u64,
        c: u64,
        d: u64,
    ) -> u64 {
        let outer = self.ext.frame.take();
        let value = self.op_about(op, locked, task, a, b, c, d);
        self.ext.frame = outer;
        value
    }

    #[cold]
    #[inline(never)]
    fn op_native(&mut self, op: Op, args: &[u64]) -> u64 {
        match self.ext.root.as_ref().map(|sched| sched.program.clone()) {
            Some(ExtProgram::Native(ops)) => ops.call(self, op, args),
            _ => 0,
        }
    }

    /// Handles a fault of an operation: an action that the verifier would have excluded, or a limit
    /// that the program reached. Ejects the scheduler and reports the place.
    #[cold]
    #[inline(never)]
    pub(crate) fn op_faulted(&mut self, op: Op, args: [u64; 2], fault: Fault) {
        let task = self.task_of(&OpFrame { op: Some(op), args, ..OpFrame::default() });
        self.program_faulted(&format!("ops.{}()", op.name()), task, fault);
    }

    /// As `op_faulted`, for any program or callback of the scheduler. `what` names it; `task` is
    /// the task that it was called for.
    pub(crate) fn program_faulted(&mut self, what: &str, task: Option<TaskId>, fault: Fault) {
        if let FaultKind::Unmodelled { what: name } = fault.kind() {
            let text = format!("{name} (needed by {what}): {fault}");
            self.end.stop_with(Stop::Unmodelled(text));
            return;
        }
        let text = format!("BPF fault in {what}: {fault}");
        if self.ext.root.is_none() || self.ext_aborting() {
            // Only the first exit counts, so a fault while the scheduler leaves is only recorded.
            if self.ext.late_faults.len() < MAX_LATE_FAULTS {
                self.ext.late_faults.push(text);
            }
            return;
        }
        let task = task.map(|task| self.exit_task_of_program(task));
        self.claim_exit(ExitKind::Error, 0, &text, Origin { task, ..Origin::of_fault(&fault) });
    }

    /// Runs a syscall program of an object (`bpf_prog_test_run`). Copies `ctx` to guest memory and
    /// back.
    pub fn run_syscall(
        &mut self,
        instance: scxlab_bpf::vm::InstanceId,
        func: scxlab_bpf::vm::FuncId,
        ctx: &mut [u8],
    ) -> Result<u64, Fault> {
        let room = ctx.len().max(8) as u64;
        let at = self.vm.mem.alloc(room, 8).map_err(|_| out_of_memory("a program's context"))?;
        self.vm.mem.host_slice_mut::<u8>(at, ctx.len()).copy_from_slice(ctx);
        let outer = self.ext.frame.replace(OpFrame::outside(Outside::Syscall));
        let start = self.clock();
        let result = scxlab_bpf::vm::call_raw(self, instance, func, [at, 0, 0, 0, 0]);
        self.charge_insns();
        self.note_program(start);
        self.ext.frame = outer;
        ctx.copy_from_slice(self.vm.mem.host_slice::<u8>(at, ctx.len()));
        self.vm.mem.free(at, room);
        result
    }

    /// Calls `ops.select_cpu` or `ops.enqueue`. During the call `scx_bpf_dsq_insert()` may dispatch
    /// `task` directly.
    #[inline(always)]
    pub(crate) fn op_direct<const N: usize>(
        &mut self,
        op: Op,
        locked: Option<CpuId>,
        task: TaskId,
        rest: &[u64; N],
    ) -> u64 {
        let outer = std::mem::replace(&mut self.ext.direct, DirectSlot::Open(task));
        let value = self.op_task(op, locked, task, rest);
        self.ext.direct = outer;
        value
    }

    /// `scx_ops_sanitize_err()`: returns the value if it is a valid negative errno, else reports an
    /// error and returns -EPROTO (-71).
    pub(crate) fn sanitize_err(&mut self, op: Op, value: u64) -> i32 {
        let ret = value as i32;
        if (-4095..0).contains(&ret) {
            return ret;
        }
        let text = format!("ops.{}() returned an invalid errno {ret}", op.name());
        self.returned_error(op, &text);
        -71
    }
}

/// Maximum number of faults recorded for a scheduler that is leaving.
const MAX_LATE_FAULTS: usize = 8;

fn out_of_memory(what: &'static str) -> Fault {
    Fault::new(FaultKind::OutOfMemory { what })
}
