// SPDX-License-Identifier: GPL-2.0-only
//! kfuncs on cgroups, and the css iterator.
//!
//! Models: kernel `bpf_cgroup_*()` with `bpf_cgroup_read_xattr()`, `scx_bpf_task_cgroup()`,
//! `bpf_iter_css_*()`, 7.3. Differs: cgroups are not reference-counted; a removed cgroup stays
//! readable.

use super::{Handler, KfResult, errno};
use crate::bpf::abi;
use crate::bpf::errno::{EINVAL, ENODATA, EPERM, ERANGE};
use crate::kernel::Kernel;
use scxlab_bpf::helper::Dynptr;
use scxlab_machine::id::CgroupId;

/// The kernel's `XATTR_NAME_MAX` (255) plus 1 for the NUL.
const XATTR_NAME_MAX: u64 = 256;

pub(super) const TABLE: &[(&str, Handler)] = &[
    ("bpf_cgroup_acquire", acquire),
    ("bpf_cgroup_release", release),
    ("bpf_cgroup_ancestor", ancestor),
    ("bpf_cgroup_from_id", from_id),
    ("bpf_cgroup_read_xattr", read_xattr),
    ("bpf_task_under_cgroup", under),
    ("scx_bpf_task_cgroup", task_cgroup),
    ("bpf_iter_css_new", css_new),
    ("bpf_iter_css_next", css_next),
    ("bpf_iter_css_destroy", css_destroy),
];

fn acquire(_: &mut Kernel, a: &[u64; 5]) -> KfResult {
    Ok(a[0])
}

fn release(_: &mut Kernel, _: &[u64; 5]) -> KfResult {
    Ok(0)
}

fn ancestor(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let mut at = k.cgroups.at(a[0]);
    while let Some(group) = at.and_then(|id| k.cgroups.get(id)) {
        if group.level as i32 == a[1] as i32 {
            return Ok(group.addr);
        }
        at = group.parent;
    }
    Ok(0)
}

fn from_id(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let group = k.cgroups.by_ino(a[0]).and_then(|id| k.cgroups.get(id));
    Ok(group.map_or(0, |g| g.addr))
}

/// Reads an extended attribute. Only attributes of the `user.` namespace may be read.
fn read_xattr(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let name = k.vm.mem.c_str(a[1], XATTR_NAME_MAX)?;
    let name = String::from_utf8_lossy(name).into_owned();
    if !name.starts_with("user.") {
        return Ok(errno(EPERM));
    }
    let Some((to, size)) = Dynptr::load(&k.vm.mem, a[2])?.writable() else {
        return Ok(errno(EINVAL));
    };
    k.charge(k.machine.costs.kfunc.hash_lookup_ns);
    let group = k.cgroups.at(a[0]).and_then(|id| k.cgroups.get(id));
    let Some(value) = group.and_then(|g| g.xattrs.get(&name)) else { return Ok(errno(ENODATA)) };
    let len = value.len() as u64;
    if len > size {
        return Ok(errno(ERANGE));
    }
    k.vm.mem.bytes_mut(to, len)?.copy_from_slice(value);
    Ok(len)
}

fn under(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let task = k.kf_task(a[0])?;
    let mut at = Some(k.tasks[task].cgroup);
    while let Some(group) = at.and_then(|id| k.cgroups.get(id)) {
        if group.addr == a[1] {
            return Ok(1);
        }
        at = group.parent;
    }
    Ok(0)
}

/// Returns the cgroup of a task. If the calling operation is not about this task, reports an error
/// of the scheduler and returns the root cgroup.
fn task_cgroup(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let root = k.cgroups.get(CgroupId(0)).map_or(0, |g| g.addr);
    let task = k.kf_task(a[0])?;
    if !k.ext.frame.is_some_and(|f| f.is_about(a[0])) {
        k.scx_error("called on a task not being operated on");
        return Ok(root);
    }
    Ok(k.cgroups.get(k.tasks[task].cgroup).map_or(root, |g| g.addr))
}

/// Layout of the iterator in the program's `struct bpf_iter_css` (three 64-bit words).
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct CssIterState {
    /// Guest address of the css at which the iteration starts; 0 if there is nothing to iterate
    /// over.
    start: u64,
    /// Number of cgroups returned so far.
    done: u32,
    order: u32,
    pad: u64,
}

fn css_new(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let order = a[2] as u32;
    let known = [
        abi::BPF_CGROUP_ITER_DESCENDANTS_PRE,
        abi::BPF_CGROUP_ITER_DESCENDANTS_POST,
        abi::BPF_CGROUP_ITER_ANCESTORS_UP,
    ];
    let valid = known.contains(&order);
    let iter = CssIterState { start: if valid { a[1] } else { 0 }, done: 0, order, pad: 0 };
    k.vm.mem.write(a[0], iter)?;
    Ok(if valid { 0 } else { errno(EINVAL) })
}

/// Returns the next css. Each call looks up the n-th cgroup in the tree as it is at that time.
fn css_next(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let mut iter: CssIterState = k.vm.mem.read(a[0])?;
    if iter.start == 0 {
        return Ok(0);
    }
    let Some((top, is_self)) = k.cgroup_of_css(iter.start) else { return Ok(0) };
    let order = match iter.order {
        abi::BPF_CGROUP_ITER_DESCENDANTS_PRE => k.cgroups.descend_pre(top),
        abi::BPF_CGROUP_ITER_DESCENDANTS_POST => k.cgroups.descend_post(top),
        _ => k.cgroups.ascend(top),
    };
    let Some(&id) = order.get(iter.done as usize) else { return Ok(0) };
    iter.done += 1;
    k.vm.mem.write(a[0], iter)?;
    Ok(if is_self {
        k.cgroups.get(id).map_or(0, |g| g.addr)
    } else {
        k.cgroups.task_group_addr(id)
    })
}

fn css_destroy(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    k.vm.mem.write(a[0], 0u64)?;
    Ok(0)
}

impl Kernel {
    /// Returns the cgroup of a css. Also returns true if the css is `cgroup.self`, and false if it
    /// is the css of the cpu controller.
    fn cgroup_of_css(&self, css: u64) -> Option<(CgroupId, bool)> {
        if let Some(id) = self.cgroups.at(css) {
            return Some((id, true));
        }
        self.cgroups.at_task_group(css).map(|id| (id, false))
    }
}

const _: () = assert!(size_of::<CssIterState>() == size_of::<abi::bpf_iter_css>());
