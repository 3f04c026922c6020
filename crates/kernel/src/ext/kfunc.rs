// SPDX-License-Identifier: GPL-2.0-only
//! Kernel functions that BPF programs call: the table by name, and what they have in common.
//!
//! Owns: names to handlers, the charge of a call, conversion of memory faults.
//! Does not: implement them (one file per family below).

mod cgroup;
mod cpu;
mod cpumask;
mod dsq;
mod exit;
mod idle;
mod task;

pub(crate) use cpumask::release_cpumask;
pub(crate) use task::release_task;

use crate::kernel::Kernel;
use scxlab_bpf::fault::Fault;
use scxlab_bpf::kfunc::KfuncId;
use scxlab_machine::id::TaskId;

/// A kfunc's value, or the fault of its caller.
pub type KfResult = Result<u64, Fault>;
/// What carries out a kfunc.
pub type Handler = fn(&mut Kernel, &[u64; 5]) -> KfResult;

/// The families, in the order of their ids.
const FAMILIES: [&[(&str, Handler)]; 7] =
    [dsq::TABLE, task::TABLE, cpu::TABLE, idle::TABLE, cpumask::TABLE, cgroup::TABLE, exit::TABLE];

/// Every kfunc with its name; the index is its id.
pub fn table() -> impl Iterator<Item = &'static (&'static str, Handler)> {
    FAMILIES.into_iter().flatten()
}

/// The id of a kfunc of this kernel.
pub fn by_name(name: &str) -> Option<KfuncId> {
    table().position(|(n, _)| *n == name).map(|i| KfuncId(i as u32))
}

/// The handlers by id, for the hot path.
pub fn handlers() -> Box<[Handler]> {
    table().map(|(_, handler)| *handler).collect()
}

impl Kernel {
    /// The task that a program means by an address; NULL or a stranger is a fault.
    pub(super) fn kf_task(&self, addr: u64) -> Result<TaskId, Fault> {
        self.tasks
            .at(addr)
            .ok_or_else(|| Fault::bad_argument("kfunc", format!("{addr:#x} is no task")))
    }

    /// Whether a task belongs to the loaded scheduler (`scx_task_on_sched()`).
    pub(super) fn on_sched(&self, task: TaskId) -> bool {
        use super::entity::TaskPhase;
        self.ext.root.is_some()
            && self.tasks.get(task).is_some_and(|t| {
                matches!(t.ext.phase, TaskPhase::Init | TaskPhase::Ready | TaskPhase::Enabled)
            })
    }
}

/// A small negative errno as kfuncs return it in 32 bits.
pub(super) const fn errno(n: i32) -> u64 {
    (-n) as u32 as u64
}
