// SPDX-License-Identifier: GPL-2.0-only
//! The cpuset controller: confines a cgroup's tasks to some CPUs.
//!
//! Owns: the set of CPUs that a task may use, given its requested affinity and its cgroup.
//! Models: kernel/cgroup/cpuset.c, 7.3, cgroup v2: `cpuset.cpus`, `cpuset.cpus.effective`, and
//! `set_cpus_allowed_ptr()` for each task whose effective set changes.
//! Differs: no partitions. For memory nodes see `memory.rs`; pages do not move when they change.

use crate::kernel::Kernel;
use crate::task::TaskState;
use crate::task::behavior::SysError;
use scxlab_machine::cpumask::{self, CpuMask};
use scxlab_machine::id::{CgroupId, CpuId, TaskId};

impl Kernel {
    /// Writes `cpuset.cpus`. None stands for the empty string, with which the cgroup uses its
    /// parent's CPUs.
    pub(crate) fn cpuset_write(
        &mut self,
        cgroup: CgroupId,
        cpus: Option<&CpuMask>,
    ) -> Result<(), SysError> {
        if !self.cgroups.exists(cgroup) {
            return Err(SysError::NoEntry);
        }
        let unknown = |mask: &CpuMask| cpumask::iter(mask).any(|c| c.idx() >= self.cpus.len());
        if cgroup.0 == 0 || cpus.is_some_and(|m| cpumask::is_empty(m) || unknown(m)) {
            return Err(SysError::Invalid);
        }
        self.cgroups.get_mut(cgroup).expect("checked").cpuset = cpus.cloned();
        let below = self.cgroups.descend_pre(cgroup);
        let members: Vec<TaskId> =
            self.tasks.iter().filter(|t| below.contains(&t.cgroup)).map(|t| t.id).collect();
        for task in members {
            self.apply_affinity(task);
        }
        Ok(())
    }

    /// `cpuset.cpus.effective`: the CPUs that the directory requests and its parent has. If the
    /// directory requests no CPU, or only CPUs that its parent lacks, it has all CPUs of its
    /// parent.
    pub(crate) fn cpuset_effective(&self, cgroup: CgroupId) -> CpuMask {
        let mut path = self.cgroups.ascend(cgroup);
        path.reverse();
        let mut effective = CpuMask::all(self.cpus.len());
        for id in path {
            if let Some(own) = self.cgroups.get(id).and_then(|g| g.cpuset.as_ref()) {
                effective = narrowed(&effective, own);
            }
        }
        effective
    }

    /// Sets a task's allowed CPUs from its requested affinity and its cpuset. Moves the task if it
    /// may no longer use its CPU.
    pub(crate) fn apply_affinity(&mut self, task: TaskId) {
        let t = &self.tasks[task];
        if t.is_idle_task() || t.state == TaskState::Dead {
            return;
        }
        let allowed = self.affinity_in(t.cgroup, &t.user_cpus);
        if self.tasks[task].cpus != allowed {
            self.do_set_cpus_allowed(task, &allowed);
            self.leave_forbidden_cpu(task);
        }
    }

    /// Returns the CPUs that a task with the requested affinity `wanted` may use in a cgroup.
    pub(crate) fn affinity_in(&self, cgroup: CgroupId, wanted: &CpuMask) -> CpuMask {
        narrowed(&self.cpuset_effective(cgroup), wanted)
    }

    /// Moves a task that may no longer use its CPU. A waiting task moves at once; the stopper moves
    /// a running task.
    pub(crate) fn leave_forbidden_cpu(&mut self, task: TaskId) {
        let t = &self.tasks[task];
        let cpu = t.cpu;
        if t.allowed_on(cpu) || t.wake_queued.is_some() {
            return;
        }
        let (on_cpu, on_rq) = (t.on_cpu, t.on_rq);
        let mut cpus = self.cpus.iter().map(|c| c.id);
        let usable = |c: &CpuId| self.cpus.is_online(*c) && self.tasks[task].allowed_on(*c);
        let Some(target) = cpus.find(usable) else { return };
        if on_cpu && on_rq {
            self.push_away(cpu, task, target);
        } else if on_rq && self.tasks[task].state == TaskState::Runnable {
            self.move_queued(task, target);
        }
    }
}

/// Returns the intersection of `a` and `b`, or `a` if they have no CPU in common.
fn narrowed(a: &CpuMask, b: &CpuMask) -> CpuMask {
    let mut both = a.clone();
    both.iter_mut().zip(b.iter()).for_each(|(to, from)| *to &= from);
    if cpumask::is_empty(&both) { a.clone() } else { both }
}
