// SPDX-License-Identifier: GPL-2.0-only
//! Kernel functions (kfuncs) that BPF programs call: their table by name, and the code that they
//! share.
//!
//! Owns: the map from names to handlers, the lookup of task arguments, the encoding of errnos.
//! Does not: implement the functions (one file per family below), or charge a call (see `host.rs`).

mod cgroup;
pub(crate) mod context;
mod cpu;
mod cpumask;
mod dsq;
mod exit;
mod idle;
mod task;

pub(crate) use cpumask::release_cpumask;
pub(crate) use task::release_task;

use crate::bpf::abi;
use crate::ext::OpFrame;
use crate::kernel::Kernel;
use crate::kernel::boot::PERCPU_STRIDE;
use scxlab_bpf::fault::Fault;
use scxlab_bpf::kfunc::KfuncId;
use scxlab_bpf::vm::InPlaceFuncs;
use scxlab_machine::id::TaskId;
use std::mem::offset_of;

/// Return value of a kfunc, or a fault of its caller.
pub type KfResult = Result<u64, Fault>;
/// Function that implements a kfunc.
pub type Handler = fn(&mut Kernel, &[u64; 5]) -> KfResult;

/// Tables of all families of kfuncs. The position of a kfunc in these tables is its id.
const FAMILIES: [&[(&str, Handler)]; 7] =
    [dsq::TABLE, task::TABLE, cpu::TABLE, idle::TABLE, cpumask::TABLE, cgroup::TABLE, exit::TABLE];

/// Iterates over all kfuncs with their names. The index of a kfunc is its id.
pub fn table() -> impl Iterator<Item = &'static (&'static str, Handler)> {
    FAMILIES.into_iter().flatten()
}

/// Returns the id of a kfunc; None if this kernel does not have it.
pub fn by_name(name: &str) -> Option<KfuncId> {
    table().position(|(n, _)| *n == name).map(|i| KfuncId(i as u32))
}

/// Returns the kfuncs and helpers whose work machine code may do without a call of their handlers.
pub fn in_place(nr_cpus: u32) -> InPlaceFuncs {
    let cpu = offset_of!(abi::task_struct, thread_info) + offset_of!(abi::thread_info, cpu);
    InPlaceFuncs {
        nr_cpus,
        mask_bytes: nr_cpus.div_ceil(64) * 8,
        percpu_stride: PERCPU_STRIDE,
        per_cpu_ptr: true,
        test_cpu: by_name("bpf_cpumask_test_cpu"),
        task_cpu: by_name("scx_bpf_task_cpu").map(|id| (id, cpu as u32)),
        now: by_name("scx_bpf_now"),
        dsq_first: by_name("scx_bpf_dsq_peek"),
        dsq_len: by_name("scx_bpf_dsq_nr_queued"),
    }
}

/// Returns the handlers indexed by id, each with the groups of its kfunc (`context`), for the hot
/// path.
pub fn handlers() -> Box<[(Handler, u8)]> {
    table().map(|(name, handler)| (*handler, context::groups(name))).collect()
}

impl Kernel {
    /// Returns a fault if the present operation may not call a kfunc of these groups.
    pub(super) fn check_context(&self, id: KfuncId, groups: u8) -> Result<(), Fault> {
        match self.ext.frame {
            Some(frame) if groups != 0 && groups & frame.rights() == 0 => {
                Err(bad_context(id, &frame))
            }
            _ => Ok(()),
        }
    }

    /// Returns the task at a guest address that a program passed. Returns a fault for NULL and for
    /// an address at which no task lies.
    pub(super) fn kf_task(&self, addr: u64) -> Result<TaskId, Fault> {
        self.tasks.at(addr).ok_or_else(|| {
            Fault::bad_argument("kfunc", format!("{addr:#x} is not the address of a task"))
        })
    }

    /// Returns whether a task belongs to the loaded scheduler (`scx_task_on_sched()`).
    pub(super) fn on_sched(&self, task: TaskId) -> bool {
        use super::entity::TaskPhase;
        self.ext.root.is_some()
            && self.tasks.get(task).is_some_and(|t| {
                matches!(t.ext.phase, TaskPhase::Init | TaskPhase::Ready | TaskPhase::Enabled)
            })
    }
}

/// Encodes the errno -`n` as kfuncs return it in 32 bits.
pub(super) const fn errno(n: i32) -> u64 {
    (-n) as u32 as u64
}

#[cold]
fn bad_context(id: KfuncId, frame: &OpFrame) -> Fault {
    let name = table().nth(id.0 as usize).map_or("kfunc", |(name, _)| *name);
    let from = match frame.op {
        Some(op) => format!("ops.{}()", op.name()),
        None => frame.outside.name().to_owned(),
    };
    let why = "a kernel's verifier refuses the program";
    Fault::bad_argument(name, format!("may not be called from {from}; {why}"))
}
