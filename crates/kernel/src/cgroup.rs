// SPDX-License-Identifier: GPL-2.0-only
//! cgroups v2 with the cpu controller: the tree, its limits, and the structs that BPF programs see.
//!
//! Owns: the cgroups (called directories here, as in cgroupfs), their structs in guest memory, and
//! the number of tasks in each.
//! Does not: divide CPU time among cgroups (the scheduling classes do), or call a scheduler's
//! operations on cgroups (see `ext/cgroup.rs`).
//! Models: kernel `struct cgroup`, `css_set`, `task_group`, 7.3.
//! Differs: every directory has the cpu controller.

pub mod co_scheduling;
mod cpuset;

use crate::bpf::abi;
use crate::cgroup::co_scheduling::CoschedTime;
use crate::kernel::Kernel;
use crate::task::behavior::{CgroupSpec, SysError};
use scxlab_bpf::mem::{Memory, OutOfMemory, Perm};
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CgroupId, Nanos, NodeId, TaskId};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;

/// Size of a directory's slot in guest memory, bytes. The slot contains the directory's cgroup,
/// css_set, kernfs_node, task_group and name.
const SLOT_BYTES: u64 = 4096;
/// Upper bound on the number of directories created in one run, the root included.
pub const MAX_CGROUPS: u32 = 1 << 16;
/// Offsets of the parts of a directory's slot in guest memory, bytes.
const CSS_SET: u64 = 1024;
const KERNFS: u64 = 2048;
const TASK_GROUP: u64 = 2304;
const NAME: u64 = 3584;
/// `NAME_MAX` of Linux: longest name of a directory, bytes.
pub const NAME_MAX: usize = 255;
/// Upper bounds on the extended attributes of a directory: their number (`KERNFS_MAX_USER_XATTRS`),
/// and the size of their values together (`KERNFS_USER_XATTR_SIZE_LIMIT`).
const MAX_XATTRS: usize = 128;
const MAX_XATTR_BYTES: usize = 128 << 10;
/// Inode number of the root directory. The directory `id` has the inode number `ROOT_INO + id`.
const ROOT_INO: u64 = 1;
/// `__PERCPU_REF_DEAD`: bit of the cgroup's reference counter that marks a removed cgroup.
const REF_DEAD: u64 = 2;
/// Level of the deepest possible directory, from `CGROUP_LEVELS` of the ABI.
pub const MAX_DEPTH: usize = abi::CGROUP_LEVELS as usize - 1;

/// One cgroup, which is a directory of cgroupfs.
#[derive(Clone, Debug)]
pub struct Cgroup {
    pub id: CgroupId,
    pub parent: Option<CgroupId>,
    pub name: String,
    pub path: String,
    pub level: u32,
    pub spec: CgroupSpec,
    /// `cpuset.cpus`; None: the directory uses its parent's CPUs.
    pub cpuset: Option<CpuMask>,
    /// `cpuset.mems`; None: the directory uses its parent's nodes.
    pub mems: Option<Vec<NodeId>>,
    /// Guest address of the directory's `struct cgroup`.
    pub addr: u64,
    /// Child directories. The order of their ids is the order of their creation.
    pub children: BTreeSet<CgroupId>,
    /// Names of the children, for the check whether a name is taken.
    child_names: BTreeSet<String>,
    pub nr_tasks: u32,
    /// Extended attributes of the directory: `user.NAME`.
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// Co-scheduling account of the tasks in this directory, without its descendants.
    pub cosched: CoschedTime,
    /// `SCX_TG_INITED`: the loaded scheduler has initialised this cgroup.
    pub ext_inited: bool,
    /// CPU time of the tasks in this directory, without its descendants.
    pub run_ns: Nanos,
}

/// All directories, indexed by id. The id and the guest slot of a removed directory are not reused
/// within a run.
pub struct CgroupTable {
    all: Vec<Option<Cgroup>>,
    base: u64,
}

impl CgroupTable {
    pub fn new(mem: &mut Memory) -> Result<Self, OutOfMemory> {
        let base = mem.reserve_region(u64::from(MAX_CGROUPS) * SLOT_BYTES, Perm::Kernel)?;
        let mut table = CgroupTable { all: Vec::new(), base };
        let root = Cgroup {
            id: CgroupId(0),
            parent: None,
            name: "/".into(),
            path: "/".into(),
            level: 0,
            spec: CgroupSpec::default(),
            cpuset: None,
            mems: None,
            addr: base,
            children: BTreeSet::new(),
            child_names: BTreeSet::new(),
            nr_tasks: 0,
            xattrs: BTreeMap::new(),
            cosched: CoschedTime::default(),
            ext_inited: false,
            run_ns: 0,
        };
        table.write(mem, &root);
        table.all.push(Some(root));
        Ok(table)
    }

    pub fn exists(&self, id: CgroupId) -> bool {
        self.get(id).is_some()
    }

    pub fn get(&self, id: CgroupId) -> Option<&Cgroup> {
        self.all.get(id.idx())?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, id: CgroupId) -> Option<&mut Cgroup> {
        self.all.get_mut(id.idx())?.as_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Cgroup> {
        self.all.iter().flatten()
    }

    /// Returns the directory whose `struct cgroup` (or its first member, the css) is at `addr`.
    pub fn at(&self, addr: u64) -> Option<CgroupId> {
        let off = addr.wrapping_sub(self.base);
        let id = CgroupId(u32::try_from(off / SLOT_BYTES).ok()?);
        (off.is_multiple_of(SLOT_BYTES) && self.exists(id)).then_some(id)
    }

    /// Returns the directory whose `struct task_group` (or its css) is at `addr`.
    pub fn at_task_group(&self, addr: u64) -> Option<CgroupId> {
        self.at(addr.wrapping_sub(TASK_GROUP))
    }

    /// Returns the directory and its ancestors, nearest first.
    pub fn ascend(&self, from: CgroupId) -> Vec<CgroupId> {
        std::iter::successors(Some(from), |&id| self.get(id)?.parent).collect()
    }

    /// Returns the directory with the inode number `ino` (`cgroup_id()`).
    pub fn by_ino(&self, ino: u64) -> Option<CgroupId> {
        let id = CgroupId(u32::try_from(ino.checked_sub(ROOT_INO)?).ok()?);
        self.exists(id).then_some(id)
    }

    pub fn css_set_addr(&self, id: CgroupId) -> u64 {
        self.slot(id) + CSS_SET
    }

    pub fn task_group_addr(&self, id: CgroupId) -> u64 {
        self.slot(id) + TASK_GROUP
    }

    fn slot(&self, id: CgroupId) -> u64 {
        self.base + u64::from(id.0) * SLOT_BYTES
    }

    pub fn attach(&mut self, id: CgroupId, _task: TaskId) {
        if let Some(group) = self.get_mut(id) {
            group.nr_tasks += 1;
        }
    }

    pub fn detach(&mut self, id: CgroupId, _task: TaskId) {
        if let Some(group) = self.get_mut(id) {
            group.nr_tasks -= 1;
        }
    }

    /// Returns the directory and its descendants, parents first, siblings in order of creation.
    pub fn descend_pre(&self, top: CgroupId) -> Vec<CgroupId> {
        let mut order = Vec::new();
        let mut stack = vec![top];
        while let Some(id) = stack.pop() {
            order.push(id);
            if let Some(group) = self.get(id) {
                stack.extend(group.children.iter().rev());
            }
        }
        order
    }

    /// Returns the directory and its descendants, children first, siblings in order of creation.
    pub fn descend_post(&self, top: CgroupId) -> Vec<CgroupId> {
        let mut order = Vec::new();
        let mut stack = vec![(top, false)];
        while let Some((id, expanded)) = stack.pop() {
            if expanded {
                order.push(id);
                continue;
            }
            stack.push((id, true));
            if let Some(group) = self.get(id) {
                stack.extend(group.children.iter().rev().map(|&c| (c, false)));
            }
        }
        order
    }

    /// Adds a directory to the tree. The caller notifies the scheduling classes. `class_bytes` is
    /// the memory that they need for a directory; it counts against the run's memory limit, as the
    /// memory of the directory itself does.
    fn create(
        &mut self,
        mem: &mut Memory,
        parent: CgroupId,
        name: &str,
        spec: CgroupSpec,
        class_bytes: u64,
    ) -> Result<CgroupId, SysError> {
        let id = CgroupId(self.all.len() as u32);
        let above = self.get(parent).ok_or(SysError::NoEntry)?;
        let bad_name = name.is_empty() || name.contains('/') || name.len() > NAME_MAX;
        let taken = above.child_names.contains(name);
        if bad_name || taken || above.level as usize >= MAX_DEPTH {
            return Err(SysError::Invalid);
        }
        let bytes = SLOT_BYTES + size_of::<Cgroup>() as u64 + class_bytes;
        if id.0 >= MAX_CGROUPS || mem.charge(bytes).is_err() {
            return Err(SysError::NoMemory);
        }
        let group = Cgroup {
            id,
            parent: Some(parent),
            name: name.into(),
            path: format!("{}/{name}", above.path.trim_end_matches('/')),
            level: above.level + 1,
            spec,
            cpuset: None,
            mems: None,
            addr: self.slot(id),
            children: BTreeSet::new(),
            child_names: BTreeSet::new(),
            nr_tasks: 0,
            xattrs: BTreeMap::new(),
            cosched: CoschedTime::default(),
            ext_inited: false,
            run_ns: 0,
        };
        self.write(mem, &group);
        self.all.push(Some(group));
        let above = self.get_mut(parent).expect("looked up above");
        above.children.insert(id);
        above.child_names.insert(name.into());
        Ok(id)
    }

    /// Sets an extended attribute of the `user.` namespace; other namespaces are not modelled.
    /// Models: `kernfs_vfs_user_xattr_set()`, 7.3.
    pub fn set_xattr(&mut self, id: CgroupId, name: &str, value: &[u8]) -> Result<(), SysError> {
        let group = self.get_mut(id).ok_or(SysError::NoEntry)?;
        if !name.starts_with("user.") || name.len() > NAME_MAX || name.contains('\0') {
            return Err(SysError::Invalid);
        }
        let others = group.xattrs.iter().filter(|(n, _)| *n != name);
        let (count, bytes) = others.fold((0, 0), |(n, len), (_, v)| (n + 1, len + v.len()));
        if count >= MAX_XATTRS || bytes + value.len() > MAX_XATTR_BYTES {
            return Err(SysError::NoSpace);
        }
        group.xattrs.insert(name.to_owned(), value.to_vec());
        Ok(())
    }

    /// Fills the guest structs of a directory.
    fn write(&self, mem: &mut Memory, group: &Cgroup) {
        let at = |id: CgroupId| self.slot(id);
        let slot = at(group.id);
        let mut name = group.name.as_bytes().to_vec();
        name.push(0);
        mem.host_slice_mut::<u8>(slot + NAME, name.len()).copy_from_slice(&name);
        let kn: &mut abi::kernfs_node = mem.host_mut(slot + KERNFS);
        kn.id = ROOT_INO + u64::from(group.id.0);
        kn.name = slot + NAME;
        let css = slot + TASK_GROUP + offset_of!(abi::task_group, css) as u64;
        self.write_cgroup(mem, group, css);
        let set: &mut abi::css_set = mem.host_mut(slot + CSS_SET);
        set.dfl_cgrp = slot;
        set.subsys[abi::cpu_cgrp_id as usize] = css;
        let parent = group.parent.map_or(0, |p| at(p) + TASK_GROUP);
        let tg: &mut abi::task_group = mem.host_mut(slot + TASK_GROUP);
        tg.css.cgroup = slot;
        tg.css.refcnt.percpu_count_ptr = slot;
        tg.css.parent = parent;
        tg.parent = parent;
        self.write_limits(mem, group.id, &group.spec);
    }

    fn write_cgroup(&self, mem: &mut Memory, group: &Cgroup, css: u64) {
        let slot = self.slot(group.id);
        let mut ancestors = Vec::new();
        let mut at = Some(group.id);
        while let Some(id) = at {
            ancestors.push(self.slot(id));
            at = if id == group.id { group.parent } else { self.get(id).and_then(|g| g.parent) };
        }
        ancestors.reverse();
        let cgrp: &mut abi::cgroup = mem.host_mut(slot);
        cgrp.self_.cgroup = slot;
        cgrp.self_.refcnt.percpu_count_ptr = slot;
        cgrp.self_.parent = group.parent.map_or(0, |p| self.slot(p));
        cgrp.level = group.level as i32;
        cgrp.kn = slot + KERNFS;
        cgrp.dom_cgrp = slot;
        cgrp.subsys[abi::cpu_cgrp_id as usize] = css;
        for (to, from) in cgrp.ancestors.iter_mut().zip(ancestors) {
            *to = from;
        }
    }

    fn write_limits(&self, mem: &mut Memory, id: CgroupId, spec: &CgroupSpec) {
        let tg: &mut abi::task_group = mem.host_mut(self.slot(id) + TASK_GROUP);
        tg.idle = i32::from(spec.idle);
        tg.scx.weight = spec.weight;
        tg.scx.bw_period_us = spec.period / 1000;
        tg.scx.bw_quota_us = quota_us(spec);
        tg.scx.bw_burst_us = spec.burst / 1000;
        tg.scx.idle = u8::from(spec.idle);
    }
}

/// Quota of `cpu.max`, µs, as schedulers get it. Without a limit the value is all ones
/// (RUNTIME_INF).
pub fn quota_us(spec: &CgroupSpec) -> u64 {
    spec.quota.map_or(u64::MAX, |q| q / 1000)
}

/// Checks the ranges that cgroupfs accepts: weight 1..=10000, period 1 ms..=1 s, quota at least 1
/// ms, burst at most the quota.
fn valid_spec(spec: &CgroupSpec) -> bool {
    const MS: Nanos = 1_000_000;
    (1..=10_000).contains(&spec.weight)
        && (MS..=1000 * MS).contains(&spec.period)
        && spec.quota.is_none_or(|q| q >= MS)
        && spec.quota.is_none_or(|q| spec.burst <= q)
}

impl Kernel {
    pub(crate) fn cgroup_create(
        &mut self,
        parent: CgroupId,
        name: &str,
        spec: CgroupSpec,
    ) -> Result<CgroupId, SysError> {
        if !valid_spec(&spec) {
            return Err(SysError::Invalid);
        }
        let class_bytes = self.fair.bytes_per_group();
        let id = self.cgroups.create(&mut self.vm.mem, parent, name, spec, class_bytes)?;
        self.fair_group_new(id, parent, &spec);
        if let Err(refusal) = self.ext_cgroup_online(id) {
            self.cgroup_remove(id).expect("a new cgroup is empty");
            return Err(refusal);
        }
        Ok(id)
    }

    pub(crate) fn cgroup_remove(&mut self, id: CgroupId) -> Result<(), SysError> {
        let group = self.cgroups.get(id).ok_or(SysError::NoEntry)?;
        let Some(parent) = group.parent else { return Err(SysError::Invalid) };
        if group.nr_tasks > 0 || !group.children.is_empty() {
            return Err(SysError::Busy);
        }
        self.ext_cgroup_offline(id);
        self.fair_group_gone(id);
        let addr = self.cgroups.get(id).expect("checked").addr;
        scxlab_bpf::vm::storage_owner_gone(self, scxlab_bpf::vm::Storage::Cgroup, addr);
        for css in [addr, addr + TASK_GROUP + offset_of!(abi::task_group, css) as u64] {
            let css: &mut abi::cgroup_subsys_state = self.vm.mem.host_mut(css);
            css.refcnt.percpu_count_ptr |= REF_DEAD;
        }
        self.vm.mem.give_back(self.fair.bytes_per_group());
        let gone = self.cgroups.all[id.idx()].take().expect("checked");
        if let Some(parent) = self.cgroups.get_mut(parent) {
            parent.children.remove(&id);
            parent.child_names.remove(&gone.name);
        }
        Ok(())
    }

    /// Changes a cgroup's limits, as writing to `cpu.weight`, `cpu.max`, `cpu.max.burst` and
    /// `cpu.idle` does.
    pub(crate) fn cgroup_configure(
        &mut self,
        id: CgroupId,
        spec: CgroupSpec,
    ) -> Result<(), SysError> {
        let old = self.cgroups.get(id).ok_or(SysError::NoEntry)?.spec;
        if !valid_spec(&spec) || id.0 == 0 {
            return Err(SysError::Invalid);
        }
        self.fair_group_configure(id, &old, &spec);
        self.ext_cgroup_configure(id, &old, &spec);
        self.cgroups.get_mut(id).expect("checked").spec = spec;
        self.cgroups.write_limits(&mut self.vm.mem, id, &spec);
        Ok(())
    }

    /// Moves a task to a cgroup, as writing its pid to `cgroup.threads` does.
    pub(crate) fn cgroup_move_task(&mut self, task: TaskId, to: CgroupId) -> Result<(), SysError> {
        if !self.cgroups.exists(to) {
            return Err(SysError::NoEntry);
        }
        let from = self.tasks[task].cgroup;
        if from == to {
            return Ok(());
        }
        self.ext_cgroup_can_attach(task, from, to)?;
        let change = self
            .change_begin(task, crate::bpf::flags::queue::SAVE | crate::bpf::flags::queue::MOVE);
        self.fair_set_group(task, to);
        self.tasks[task].cgroup = to;
        self.cgroups.detach(from, task);
        self.cgroups.attach(to, task);
        self.move_cosched_state(task, from, to);
        self.mirror_cgroup(task);
        self.ext_cgroup_move(task, from, to);
        self.change_end(change);
        self.apply_affinity(task);
        Ok(())
    }
}
