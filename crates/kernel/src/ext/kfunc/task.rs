// SPDX-License-Identifier: GPL-2.0-only
//! kfuncs on tasks.
//!
//! Models: kernel `scx_bpf_task_*()`, `bpf_task_from_pid()`, `bpf_task_acquire()`, 7.3.

use super::{Handler, KfResult};
use crate::bpf::flags::ops;
use crate::kernel::Kernel;
use crate::task::TaskState;
use scxlab_bpf::fault::Fault;

pub(super) const TABLE: &[(&str, Handler)] = &[
    ("scx_bpf_task_set_slice", set_slice),
    ("scx_bpf_task_set_dsq_vtime", set_dsq_vtime),
    ("scx_bpf_task_running", running),
    ("scx_bpf_task_cpu", cpu),
    ("scx_bpf_tid_to_task", tid_to_task),
    ("bpf_task_from_pid", from_pid),
    ("bpf_task_from_vpid", from_pid),
    ("bpf_task_acquire", acquire),
    ("bpf_task_release", release),
];

fn set_slice(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let task = k.kf_task(a[0])?;
    if !k.on_sched(task) {
        return Ok(0);
    }
    let t = &k.tasks[task];
    let held = k.ext.locked_rq() == Some(t.cpu) && (t.on_cpu || t.ext.runnable_seq.is_some());
    if held {
        k.set_slice(task, a[1]);
    } else {
        k.tasks[task].ext.slice_oob = Some(a[1]);
    }
    Ok(1)
}

fn set_dsq_vtime(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let task = k.kf_task(a[0])?;
    if !k.on_sched(task) {
        return Ok(0);
    }
    k.scx(task).dsq_vtime = a[1];
    Ok(1)
}

fn running(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let task = k.kf_task(a[0])?;
    Ok(u64::from(k.tasks[task].on_cpu))
}

fn cpu(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let task = k.kf_task(a[0])?;
    k.vm.note_task(a[0]);
    Ok(u64::from(k.tasks[task].cpu.0))
}

fn tid_to_task(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    if k.ext.root.is_none() {
        return Ok(0);
    }
    if k.ext.flags() & ops::TID_TO_TASK == 0 {
        k.scx_error("scx_bpf_tid_to_task() requires SCX_OPS_TID_TO_TASK");
        return Ok(0);
    }
    let found = k.tasks.iter().find(|t| t.ext.tid == a[0] && t.state != TaskState::Dead);
    Ok(found.map_or(0, |t| t.addr))
}

/// Returns the task with the given pid and takes a reference to the task. Returns NULL if no hashed
/// task has that pid.
fn from_pid(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let Some(id) = k.tasks.by_pid(a[0] as u32) else { return Ok(0) };
    k.get_task_ref(id);
    Ok(k.tasks[id].addr)
}

fn acquire(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let id = k.kf_task(a[0])?;
    k.get_task_ref(id);
    Ok(a[0])
}

fn release(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    release_task(k, a[0])?;
    Ok(0)
}

/// Drops a reference to a task, for a program or for a map element that is freed.
pub(crate) fn release_task(k: &mut Kernel, addr: u64) -> Result<(), Fault> {
    let id = k.kf_task(addr)?;
    if k.put_task_ref(id) {
        return Ok(());
    }
    let text = format!("no program holds a reference to the task at {addr:#x}");
    Err(Fault::bad_argument("bpf_task_release", text))
}
