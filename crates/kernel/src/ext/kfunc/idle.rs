// SPDX-License-Identifier: GPL-2.0-only
//! kfuncs of built-in idle tracking: the default picker, claims, and pointers to the live masks.
//!
//! Owns: the checks and error texts of these kfuncs. Does not: pick a CPU (see `ext/idle`).
//! Models: kernel `scx_kfunc_ids_idle`, `scx_kfunc_ids_select_cpu`, 7.3.

use super::cpumask::{flag, readable, s32};
use super::{Handler, KfResult};
use crate::bpf::abi;
use crate::bpf::flags::pick_idle;
use crate::kernel::Kernel;
use scxlab_bpf::errno::{EBUSY, EINVAL, ENODEV, ENOENT, EOPNOTSUPP};
use scxlab_bpf::fault::Fault;
use scxlab_machine::cpumask;
use scxlab_machine::id::{CpuId, NodeId, TaskId};

pub(super) const TABLE: &[(&str, Handler)] = &[
    ("scx_bpf_select_cpu_dfl", select_cpu_dfl),
    ("scx_bpf_select_cpu_and", select_cpu_and),
    ("__scx_bpf_select_cpu_and", select_cpu_and_args),
    ("scx_bpf_get_idle_cpumask", get_idle_cpumask),
    ("scx_bpf_get_idle_cpumask_node", get_idle_cpumask_node),
    ("scx_bpf_get_idle_smtmask", get_idle_smtmask),
    ("scx_bpf_get_idle_smtmask_node", get_idle_smtmask_node),
    ("scx_bpf_put_idle_cpumask", put_idle_cpumask),
    ("scx_bpf_test_and_clear_cpu_idle", test_and_clear_cpu_idle),
    ("scx_bpf_pick_idle_cpu", pick_idle_cpu),
    ("scx_bpf_pick_idle_cpu_node", pick_idle_cpu_node),
    ("scx_bpf_pick_any_cpu", pick_any_cpu),
    ("scx_bpf_pick_any_cpu_node", pick_any_cpu_node),
    ("scx_bpf_cpu_node", cpu_node),
];

/// `NUMA_NO_NODE`: no NUMA node.
const NO_NODE: i64 = -1;

/// A query of the default picker, in the form common to the three kfuncs that call it.
struct PickRequest {
    prev: i32,
    wake_flags: u64,
    /// Guest address of the mask that restricts the search; 0 if only the task's affinity does.
    allowed: u64,
    flags: u64,
}

pub(super) fn select_cpu_dfl(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let &[task, prev, wake_flags, is_idle, _] = a;
    if k.ext.root.is_none() {
        return Ok(s32(-ENODEV));
    }
    let prev = prev as i32;
    let cpu =
        select_cpu_from_kfunc(k, task, PickRequest { prev, wake_flags, allowed: 0, flags: 0 })?;
    k.vm.mem.write(is_idle, u8::from(cpu >= 0))?;
    Ok(s32(if cpu >= 0 { cpu } else { i64::from(prev) }))
}

pub(super) fn select_cpu_and(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let &[task, prev, wake_flags, allowed, flags] = a;
    if k.ext.root.is_none() {
        return Ok(s32(-ENODEV));
    }
    Ok(s32(select_cpu_with_mask(
        k,
        task,
        PickRequest { prev: prev as i32, wake_flags, allowed, flags },
    )?))
}

pub(super) fn select_cpu_and_args(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let &[task, allowed, args, ..] = a;
    if k.ext.root.is_none() {
        return Ok(s32(-ENODEV));
    }
    let args: abi::scx_bpf_select_cpu_and_args = k.vm.mem.read(args)?;
    let request = PickRequest {
        prev: args.prev_cpu,
        wake_flags: args.wake_flags,
        allowed,
        flags: args.flags,
    };
    Ok(s32(select_cpu_with_mask(k, task, request)?))
}

/// As `select_cpu_from_kfunc`, not inlined, for the two kfuncs that pass a mask.
#[inline(never)]
fn select_cpu_with_mask(k: &mut Kernel, task: u64, request: PickRequest) -> Result<i64, Fault> {
    select_cpu_from_kfunc(k, task, request)
}

/// `select_cpu_from_kfunc()`: checks the call, and then runs the default picker; returns a CPU or a
/// negative errno.
#[inline(always)]
fn select_cpu_from_kfunc(k: &mut Kernel, task: u64, request: PickRequest) -> Result<i64, Fault> {
    let task = k.tasks.at(task).ok_or_else(not_a_task)?;
    let Some(prev) = k.ext_cpu_valid(request.prev, "") else {
        return Ok(-EINVAL);
    };
    if !check_enabled(k) {
        return Ok(-EBUSY);
    }
    if !check_task(k, task) {
        return Ok(-EINVAL);
    }
    let found = if request.allowed == 0 {
        select(k, task, prev, None, &request)
    } else {
        let allowed = copy_mask(k, request.allowed)?;
        let found = select(k, task, prev, Some(&allowed), &request);
        keep_mask(k, allowed);
        found
    };
    Ok(found.map_or(-EBUSY, |cpu| i64::from(cpu.0)))
}

#[inline(always)]
fn select(
    k: &mut Kernel,
    task: TaskId,
    prev: CpuId,
    allowed: Option<&[u64]>,
    request: &PickRequest,
) -> Option<CpuId> {
    if k.tasks[task].nr_allowed == 1 {
        return select_restricted(k, task, prev, allowed, request.flags);
    }
    k.idle_select_cpu_dfl(task, prev, request.wake_flags, allowed, request.flags)
}

#[cold]
fn not_a_task() -> Fault {
    Fault::bad_argument("scx_bpf_select_cpu", "not a task")
}

/// Checks that the task's affinity is stable. During `ops.select_cpu` the operation must be about
/// the task. Otherwise the task must be on the locked run queue, if one is locked.
#[inline(always)]
fn check_task(k: &mut Kernel, task: TaskId) -> bool {
    let addr = k.tasks[task].addr;
    if k.ext.cpus[k.exec.cpu].in_select_cpu {
        let subject = k.ext.frame.is_some_and(|frame| frame.is_about(addr));
        if !subject {
            k.scx_error("called on a task not being operated on");
        }
        return subject;
    }
    match k.ext.locked_rq() {
        Some(rq) if k.tasks[task].cpu != rq => {
            cross_task(k, task);
            false
        }
        _ => true,
    }
}

#[cold]
fn cross_task(k: &mut Kernel, task: TaskId) {
    let t = &k.tasks[task];
    let text = format!("select_cpu kfunc called cross-task on {}[{}]", t.name, t.pid);
    k.scx_error(text);
}

/// `select_cpu_restricted()`: claims the only CPU of a task that may run on one CPU.
fn select_restricted(
    k: &mut Kernel,
    task: TaskId,
    prev: CpuId,
    allowed: Option<&[u64]>,
    flags: u64,
) -> Option<CpuId> {
    let cpu = cpumask::first(&k.tasks[task].cpus)?;
    let wrong_node = flags & pick_idle::IN_NODE != 0 && k.idle_node_of(cpu) != k.idle_node_of(prev);
    if allowed.is_some_and(|allowed| !cpumask::test(allowed, cpu)) || wrong_node {
        return None;
    }
    k.idle_claim(cpu).then_some(cpu)
}

fn check_enabled(k: &mut Kernel) -> bool {
    let enabled = k.ext.idle.is_enabled();
    if !enabled {
        k.scx_error("built-in idle tracking is disabled");
    }
    enabled
}

/// `validate_node()`: returns the node, or a negative errno if there is no such node, or if idle
/// tracking is not per node.
fn check_node(k: &mut Kernel, node: i32) -> Result<NodeId, i64> {
    if !k.ext.idle.is_per_node() {
        k.scx_error("per-node idle tracking is disabled");
        return Err(-EOPNOTSUPP);
    }
    if i64::from(node) == NO_NODE {
        return Err(-ENOENT);
    }
    if node < 0 || node as usize >= k.ext.idle.nr_nodes() {
        k.scx_error(format!("invalid node {node}"));
        return Err(-EINVAL);
    }
    Ok(NodeId(node as u32))
}

/// Reports an error and returns false in per-node mode, in which only the kfuncs with a node
/// argument may be used.
fn check_global(k: &mut Kernel, text: &str) -> bool {
    let per_node = k.ext.idle.is_per_node();
    if per_node {
        k.scx_error(text);
    }
    !per_node
}

fn get_idle_cpumask(k: &mut Kernel, _: &[u64; 5]) -> KfResult {
    Ok(global_mask(k, |k| k.ext.idle.idle_mask(None)))
}

fn get_idle_smtmask(k: &mut Kernel, _: &[u64; 5]) -> KfResult {
    Ok(global_mask(k, |k| k.ext.idle.smt_mask(None)))
}

fn global_mask(k: &mut Kernel, mask: fn(&Kernel) -> u64) -> u64 {
    let ok = k.ext.root.is_some()
        && check_global(k, "SCX_OPS_BUILTIN_IDLE_PER_NODE enabled")
        && check_enabled(k);
    if ok { mask(k) } else { k.ext.idle.none_mask() }
}

fn get_idle_cpumask_node(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    Ok(node_mask(k, a[0], |k, node| k.ext.idle.idle_mask(Some(node))))
}

fn get_idle_smtmask_node(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    Ok(node_mask(k, a[0], |k, node| k.ext.idle.smt_mask(Some(node))))
}

fn node_mask(k: &mut Kernel, node: u64, mask: fn(&Kernel, NodeId) -> u64) -> u64 {
    if k.ext.root.is_none() {
        return k.ext.idle.none_mask();
    }
    match check_node(k, node as i32) {
        Ok(node) => mask(k, node),
        Err(_) => k.ext.idle.none_mask(),
    }
}

/// Releases nothing, because the masks of idle CPUs are live and never go away.
fn put_idle_cpumask(_: &mut Kernel, _: &[u64; 5]) -> KfResult {
    Ok(0)
}

fn test_and_clear_cpu_idle(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    if k.ext.root.is_none() || !check_enabled(k) {
        return Ok(0);
    }
    let Some(cpu) = k.ext_cpu_valid(a[0] as i32, "") else {
        return Ok(0);
    };
    Ok(flag(k.idle_claim(cpu)))
}

fn pick_idle_cpu(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let &[allowed, flags, ..] = a;
    if k.ext.root.is_none() {
        return Ok(s32(-ENODEV));
    }
    if !check_global(k, "per-node idle tracking is enabled") || !check_enabled(k) {
        return Ok(s32(-EBUSY));
    }
    let allowed = readable(k, allowed)?;
    if k.idle_pick_fails(flags) {
        return Ok(s32(-EBUSY));
    }
    Ok(pick_in(k, allowed, flags))
}

/// Carries out the search of `pick_idle_cpu`, in a mask whose address was checked.
#[inline(never)]
fn pick_in(k: &mut Kernel, allowed: u64, flags: u64) -> u64 {
    let allowed = copy_readable(k, allowed);
    let found = k.idle_pick(&allowed, None, flags);
    keep_mask(k, allowed);
    cpu_or_busy(found)
}

fn pick_idle_cpu_node(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let &[allowed, node, flags, ..] = a;
    if k.ext.root.is_none() {
        return Ok(s32(-ENODEV));
    }
    let node = match check_node(k, node as i32) {
        Ok(node) => node,
        Err(errno) => return Ok(s32(errno)),
    };
    let allowed = copy_mask(k, allowed)?;
    let found = k.idle_pick(&allowed, Some(node), flags);
    keep_mask(k, allowed);
    Ok(cpu_or_busy(found))
}

fn pick_any_cpu(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let &[allowed, flags, ..] = a;
    if k.ext.root.is_none() {
        return Ok(s32(-ENODEV));
    }
    if !check_global(k, "per-node idle tracking is enabled") {
        return Ok(s32(-EBUSY));
    }
    let allowed = copy_mask(k, allowed)?;
    let idle = if k.ext.idle.is_enabled() { k.idle_pick(&allowed, None, flags) } else { None };
    let found = idle.or_else(|| k.cpumask_any_distribute(&allowed, &allowed));
    keep_mask(k, allowed);
    Ok(cpu_or_busy(found))
}

fn pick_any_cpu_node(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let &[allowed, node, flags, ..] = a;
    if k.ext.root.is_none() {
        return Ok(s32(-ENODEV));
    }
    let node = match check_node(k, node as i32) {
        Ok(node) => node,
        Err(errno) => return Ok(s32(errno)),
    };
    let allowed = copy_mask(k, allowed)?;
    let found = k.idle_pick(&allowed, Some(node), flags).or_else(|| {
        if flags & pick_idle::IN_NODE != 0 {
            any_in_node(k, node, &allowed)
        } else {
            k.cpumask_any_distribute(&allowed, &allowed)
        }
    });
    keep_mask(k, allowed);
    Ok(cpu_or_busy(found))
}

/// Returns an on-line CPU of the node that is in `allowed`, busy or not.
fn any_in_node(k: &mut Kernel, node: NodeId, allowed: &[u64]) -> Option<CpuId> {
    let machine = k.machine.clone();
    let online = k.vm.mem.words(k.ext.idle.online_mask(), allowed.len());
    let usable: Vec<u64> = online.iter().zip(allowed).map(|(a, b)| a & b).collect();
    k.cpumask_any_distribute(&machine.topology.node(node).cpus, &usable)
}

fn cpu_node(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    if k.ext.root.is_none() {
        return Ok(s32(NO_NODE));
    }
    let cpu = k.ext_cpu_valid(a[0] as i32, "");
    Ok(s32(cpu.map_or(NO_NODE, |cpu| k.machine.topology.cpu(cpu).node.0.into())))
}

fn cpu_or_busy(found: Option<CpuId>) -> u64 {
    found.map_or(s32(-EBUSY), |cpu| u64::from(cpu.0))
}

/// Copies the mask that a program passed into a buffer. The caller gives the buffer back with
/// `keep_mask`.
fn copy_mask(k: &mut Kernel, addr: u64) -> Result<Vec<u64>, Fault> {
    let addr = readable(k, addr)?;
    Ok(copy_readable(k, addr))
}

/// As `copy_mask`, for a mask whose address was checked.
fn copy_readable(k: &mut Kernel, addr: u64) -> Vec<u64> {
    let mut copy = k.ext.idle.take_buffer();
    copy.extend_from_slice(k.vm.mem.words(addr, k.ext.idle.nr_words()));
    copy
}

fn keep_mask(k: &mut Kernel, buffer: Vec<u64>) {
    k.ext.idle.keep_buffer(buffer);
}

#[cfg(test)]
mod tests;
