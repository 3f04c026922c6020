// SPDX-License-Identifier: GPL-2.0-only
//! The record, made on request, of every call of an operation and a value passed to it.
//!
//! Owns: the choice of the value that is recorded for each operation, the same as in
//! `bpf/live/witness.bpf.c`, which records the calls on a real kernel. Does not: compare the
//! records.

use super::op::Op;
use crate::kernel::Kernel;
use bytemuck::AnyBitPattern;
use scxlab_machine::id::Nanos;

/// One recorded call of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpCall {
    pub op: Op,
    /// Time of the call on the kernel's monotonic clock, in ns.
    pub at: Nanos,
    /// Pid and name of the task that the call is about.
    pub task: Option<(u32, String)>,
    /// Value passed to the operation, such as flags, a weight or a CPU (see
    /// `Kernel::recorded_value`). 0 if the operation gets nothing that can be compared.
    pub value: u64,
}

impl Kernel {
    /// Records a call of `op`. `args` are the arguments that the program gets.
    #[cold]
    #[inline(never)]
    pub(super) fn record_op(&mut self, op: Op, args: &[u64]) {
        let first = args.first().copied().unwrap_or(0);
        let task = self.tasks.at(first).map(|id| &self.tasks[id]);
        let call = OpCall {
            op,
            task: task.map(|t| (t.pid, t.name.clone())),
            value: self.recorded_value(op, args),
            at: self.ktime(),
        };
        if let Some(calls) = &mut self.ext.op_record {
            calls.push(call);
        }
    }

    /// Returns the value to record for a call of `op`.
    fn recorded_value(&self, op: Op, args: &[u64]) -> u64 {
        let arg = |n: usize| args.get(n).copied().unwrap_or(0);
        match op {
            Op::SelectCpu => arg(2),
            Op::Enqueue | Op::Dequeue | Op::Runnable | Op::Quiescent => arg(1),
            Op::Stopping | Op::SetWeight | Op::CgroupSetWeight => arg(1),
            Op::CpuOnline | Op::CpuOffline => arg(0),
            Op::Yield => u64::from(arg(1) != 0),
            // The recorded value is `scx_init_task_args.fork` for `ops.init_task`, and
            // `scx_exit_task_args.cancelled` for `ops.exit_task`.
            Op::InitTask | Op::ExitTask => self.first_member::<u8>(arg(1)).into(),
            // The value recorded for `ops.cgroup_init` is `scx_cgroup_init_args.weight`.
            Op::CgroupInit => self.first_member::<u32>(arg(1)).into(),
            // The value recorded for `ops.exit` is `scx_exit_info.kind`.
            Op::Exit => self.first_member::<u32>(arg(0)).into(),
            // The value recorded for `ops.set_cpumask` is the number of allowed CPUs among the
            // first 64.
            Op::SetCpumask => self.first_member::<u64>(arg(1)).count_ones().into(),
            _ => 0,
        }
    }

    /// Reads the first member of the struct at guest address `addr`; 0 if it cannot be read.
    fn first_member<T: AnyBitPattern + Default>(&self, addr: u64) -> T {
        self.vm.mem.read(addr).unwrap_or_default()
    }
}
