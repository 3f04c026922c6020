// SPDX-License-Identifier: GPL-2.0-only
//! The witness: writes down every call of an operation, with what the operation is told, if somebody asked for it.
//!
//! Owns: what is told in each operation, as `bpf/live/witness.bpf.c` says it of a real kernel. Does not: compare.

use super::op::Op;
use crate::kernel::Kernel;
use bytemuck::AnyBitPattern;
use scxlab_machine::id::Nanos;

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpCall {
    pub op: Op,
    /// Of the kernel's monotonic clock.
    pub at: Nanos,
    /// Pid and name of the task that it is about.
    pub task: Option<(u32, String)>,
    /// Flags, a weight, a CPU: see `told`. 0 where the operation is told nothing that can be compared.
    pub told: u64,
}

impl Kernel {
    /// `args` is what the program gets.
    #[cold]
    #[inline(never)]
    pub(super) fn witness(&mut self, op: Op, args: &[u64]) {
        let first = args.first().copied().unwrap_or(0);
        let task = self.tasks.at(first).map(|id| &self.tasks[id]);
        let call = OpCall {
            op,
            task: task.map(|t| (t.pid, t.name.clone())),
            told: self.told(op, args),
            at: self.ktime(),
        };
        if let Some(calls) = &mut self.ext.witness {
            calls.push(call);
        }
    }

    fn told(&self, op: Op, args: &[u64]) -> u64 {
        let arg = |n: usize| args.get(n).copied().unwrap_or(0);
        match op {
            Op::SelectCpu => arg(2),
            Op::Enqueue | Op::Dequeue | Op::Runnable | Op::Quiescent => arg(1),
            Op::Stopping | Op::SetWeight | Op::CgroupSetWeight => arg(1),
            Op::CpuOnline | Op::CpuOffline => arg(0),
            Op::Yield => u64::from(arg(1) != 0),
            // Whether it is forked, whether its start was cancelled: the first member of each.
            Op::InitTask | Op::ExitTask => self.behind::<u8>(arg(1)).into(),
            // The weight.
            Op::CgroupInit => self.behind::<u32>(arg(1)).into(),
            // The kind.
            Op::Exit => self.behind::<u32>(arg(0)).into(),
            // CPUs among the first 64.
            Op::SetCpumask => self.behind::<u64>(arg(1)).count_ones().into(),
            _ => 0,
        }
    }

    /// The first member of what an operation is given a pointer to.
    fn behind<T: AnyBitPattern + Default>(&self, addr: u64) -> T {
        self.vm.mem.read(addr).unwrap_or_default()
    }
}
