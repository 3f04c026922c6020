// SPDX-License-Identifier: GPL-2.0-only
//! Calls of a scheduler's operations on cgroups.
//!
//! Models: kernel `scx_tg_online()`, `scx_cgroup_init()`, `scx_cgroup_can_attach()`,
//! `scx_cgroup_move_task()`, `scx_group_set_*()`, 7.3.

use super::op::Op;
use crate::cgroup::quota_us;
use crate::kernel::Kernel;
use crate::task::behavior::{CgroupSpec, SysError};
use scxlab_machine::id::{CgroupId, TaskId};

impl Kernel {
    fn cgroup_addr(&self, id: CgroupId) -> u64 {
        self.cgroups.get(id).map_or(0, |g| g.addr)
    }

    /// Calls `ops.cgroup_init` for one cgroup; returns 0 or a negative errno.
    fn op_cgroup_init(&mut self, id: CgroupId) -> i32 {
        if self.ext.has_op(Op::CgroupInit) {
            let Some(spec) = self.cgroups.get(id).map(|g| g.spec) else { return 0 };
            let args = self.scratch_cgroup_init_args(&spec);
            let addr = self.cgroup_addr(id);
            let ret = self.op(Op::CgroupInit, None, &[addr, args]);
            if ret as i32 != 0 {
                return self.sanitize_err(Op::CgroupInit, ret);
            }
        }
        if let Some(group) = self.cgroups.get_mut(id) {
            group.ext_inited = true;
        }
        0
    }

    /// Initialises all cgroups while enabling, parents first.
    pub(crate) fn ext_cgroup_init(&mut self) -> Result<(), ()> {
        for id in self.cgroups.descend_pre(CgroupId(0)) {
            let ret = self.op_cgroup_init(id);
            if ret != 0 {
                self.returned_error(Op::CgroupInit, &format!("ops.cgroup_init() failed ({ret})"));
                return Err(());
            }
        }
        self.ext.cgroup_enabled = true;
        Ok(())
    }

    /// Calls `ops.cgroup_exit` for all cgroups while disabling, children first.
    pub(crate) fn ext_cgroup_exit(&mut self) {
        self.ext.cgroup_enabled = false;
        for id in self.cgroups.descend_post(CgroupId(0)) {
            self.op_cgroup_exit(id);
        }
    }

    fn op_cgroup_exit(&mut self, id: CgroupId) {
        let inited = self.cgroups.get_mut(id).is_some_and(|g| std::mem::take(&mut g.ext_inited));
        if inited && self.ext.has_op(Op::CgroupExit) {
            let addr = self.cgroup_addr(id);
            self.op(Op::CgroupExit, None, &[addr]);
        }
    }

    pub(crate) fn ext_cgroup_online(&mut self, id: CgroupId) -> Result<(), SysError> {
        if self.ext.cgroup_enabled && self.op_cgroup_init(id) != 0 {
            return Err(SysError::Invalid);
        }
        Ok(())
    }

    pub(crate) fn ext_cgroup_offline(&mut self, id: CgroupId) {
        if self.ext.cgroup_enabled {
            self.op_cgroup_exit(id);
        }
    }

    /// Calls `ops.cgroup_prep_move`, which may refuse a task's move to another cgroup.
    pub(crate) fn ext_cgroup_can_attach(
        &mut self,
        task: TaskId,
        from: CgroupId,
        to: CgroupId,
    ) -> Result<(), SysError> {
        if !self.ext.cgroup_enabled || !self.ext.has_op(Op::CgroupPrepMove) {
            return Ok(());
        }
        let (from, to) = (self.cgroup_addr(from), self.cgroup_addr(to));
        let ret = self.op_task(Op::CgroupPrepMove, None, task, &[from, to]);
        if ret as i32 == 0 {
            return Ok(());
        }
        self.sanitize_err(Op::CgroupPrepMove, ret);
        Err(SysError::Invalid)
    }

    /// Calls `ops.cgroup_move` after the task has moved to another cgroup.
    pub(crate) fn ext_cgroup_move(&mut self, task: TaskId, from: CgroupId, to: CgroupId) {
        if self.ext.cgroup_enabled && self.ext.has_op(Op::CgroupMove) {
            let cpu = self.tasks[task].cpu;
            let (from, to) = (self.cgroup_addr(from), self.cgroup_addr(to));
            self.op_task(Op::CgroupMove, Some(cpu), task, &[from, to]);
        }
    }

    /// Calls the scheduler's operation for each cgroup setting that changed.
    pub(crate) fn ext_cgroup_configure(
        &mut self,
        id: CgroupId,
        old: &CgroupSpec,
        new: &CgroupSpec,
    ) {
        if !self.ext.cgroup_enabled {
            return;
        }
        let addr = self.cgroup_addr(id);
        if old.weight != new.weight && self.ext.has_op(Op::CgroupSetWeight) {
            self.op(Op::CgroupSetWeight, None, &[addr, u64::from(new.weight)]);
        }
        let bandwidth = |s: &CgroupSpec| [s.period / 1000, quota_us(s), s.burst / 1000];
        if bandwidth(old) != bandwidth(new) && self.ext.has_op(Op::CgroupSetBandwidth) {
            let [period, quota, burst] = bandwidth(new);
            self.op(Op::CgroupSetBandwidth, None, &[addr, period, quota, burst]);
        }
        if old.idle != new.idle && self.ext.has_op(Op::CgroupSetIdle) {
            self.op(Op::CgroupSetIdle, None, &[addr, u64::from(new.idle)]);
        }
    }
}
