// SPDX-License-Identifier: GPL-2.0-only
//! The system calls of the simulation, which a behaviour may make.
//!
//! Owns: `impl Sys`.
//! Does not: hold state.

use crate::bpf::flags::{queue, wake};
use crate::bpf::mirror;
use crate::kernel::event::{Event, SplitU64};
use crate::kernel::{Kernel, Stop};
use crate::task::behavior::{
    Access, AccessId, CacheMarks, Call, CgroupSpec, GuestRun, Policy, RegionId, RegionSpec, Sys,
    SysError, TaskSpec,
};
use crate::task::{Class, TaskState};
use scxlab_machine::cpumask::{self, CpuMask};
use scxlab_machine::id::{CgroupId, CpuId, Nanos, NodeId, TaskId};
use scxlab_trace::event::EventKind;

impl Sys for Kernel {
    fn now(&self) -> Nanos {
        self.exec.clock
    }

    fn must_schedule(&self) -> bool {
        self.cpus[self.exec.cpu].must_schedule()
    }

    fn others_due(&self) -> bool {
        !self.events.nothing_due_by(self.exec.clock)
    }

    fn this_cpu(&self) -> CpuId {
        self.exec.cpu
    }

    fn atomic_time(&self, last: Option<CpuId>) -> (CpuId, Nanos) {
        let cpu = self.exec.cpu;
        (cpu, Self::transfer(&self.machine, last, cpu))
    }

    fn message_time(&self, last: Option<CpuId>, lines: u64, bytes: u64) -> (CpuId, Nanos) {
        let cpu = self.exec.cpu;
        let time = last.map_or(0, |last| {
            let distance = self.machine.topology.distance(last, cpu);
            self.machine.costs.message_ns(distance, lines, bytes)
        });
        (cpu, time)
    }

    fn cpu_of(&self, task: TaskId) -> CpuId {
        self.tasks.get(task).map_or(self.exec.cpu, |t| t.cpu)
    }

    fn nr_cpus(&self) -> u32 {
        self.cpus.len() as u32
    }

    fn wake(&mut self, task: TaskId, sync: bool) -> bool {
        if self.tasks.get(task).is_none() {
            return false;
        }
        self.wake_up(task, if sync { wake::SYNC } else { 0 })
    }

    fn stop_spin(&mut self, task: TaskId) {
        if self.tasks.get(task).is_some() {
            self.end_spin(task);
        }
    }

    fn fork(&mut self, parent: Option<TaskId>, spec: TaskSpec) -> Result<TaskId, SysError> {
        if parent.is_some_and(|p| !self.is_reachable(p)) {
            return Err(SysError::NoTask);
        }
        self.fork_task(parent, spec)
    }

    fn charge(&mut self, cost: Nanos) {
        Kernel::charge(self, cost);
    }

    fn post(&mut self, at: Nanos, cpu: CpuId, token: u64) {
        let at = at.max(self.now);
        self.push_timer(at, Event::Posted { cpu, token: SplitU64::new(token) });
    }

    fn set_affinity(&mut self, task: TaskId, cpus: &CpuMask) -> Result<(), SysError> {
        if !self.is_reachable(task) {
            return Err(SysError::NoTask);
        }
        let usable = self.cpus.iter().any(|c| c.online && cpumask::test(cpus, c.id));
        if !usable {
            return Err(SysError::Invalid);
        }
        Kernel::charge(self, self.machine.costs.syscall.entry_ns);
        self.tasks[task].user_cpus = cpus.clone();
        self.apply_affinity(task);
        self.note_attributes(task);
        Ok(())
    }

    fn set_nice(&mut self, task: TaskId, nice: i8) -> Result<(), SysError> {
        if !self.is_reachable(task) {
            return Err(SysError::NoTask);
        }
        Kernel::charge(self, self.machine.costs.syscall.entry_ns);
        self.tasks[task].nice = nice.clamp(-20, 19);
        self.reweight(task);
        self.note_attributes(task);
        Ok(())
    }

    fn set_policy(&mut self, task: TaskId, policy: Policy) -> Result<(), SysError> {
        if !self.is_reachable(task) {
            return Err(SysError::NoTask);
        }
        let disallowed = policy == Policy::Ext && self.ext.enabled && self.scx(task).disallow != 0;
        if !crate::task::life::valid_policy(policy) || disallowed {
            return Err(SysError::Invalid);
        }
        Kernel::charge(self, self.machine.costs.syscall.entry_ns);
        self.change_policy(task, policy);
        self.note_attributes(task);
        Ok(())
    }

    fn set_footprint(&mut self, task: TaskId, bytes: u64) {
        if self.tasks.get(task).is_some() {
            self.tasks[task].footprint_bytes = bytes;
        }
    }

    fn mkdir(
        &mut self,
        parent: CgroupId,
        name: &str,
        spec: CgroupSpec,
    ) -> Result<CgroupId, SysError> {
        self.cgroup_create(parent, name, spec)
    }

    fn rmdir(&mut self, cgroup: CgroupId) -> Result<(), SysError> {
        self.cgroup_remove(cgroup)
    }

    fn set_cgroup(&mut self, cgroup: CgroupId, spec: CgroupSpec) -> Result<(), SysError> {
        self.cgroup_configure(cgroup, spec)
    }

    fn set_cpuset(&mut self, cgroup: CgroupId, cpus: Option<&CpuMask>) -> Result<(), SysError> {
        self.cpuset_write(cgroup, cpus)
    }

    fn set_mems(&mut self, cgroup: CgroupId, mems: Option<&[NodeId]>) -> Result<(), SysError> {
        self.mems_write(cgroup, mems)
    }

    fn region_new(&mut self, spec: RegionSpec) -> Result<RegionId, SysError> {
        self.region_create(spec)
    }

    fn region_map(&mut self, task: TaskId, region: RegionId) {
        if self.is_reachable(task) {
            self.region_attach(task, region);
        }
    }

    fn access_new(&mut self, access: Access) -> Result<AccessId, SysError> {
        self.access_create(access).ok_or(SysError::Invalid)
    }

    fn set_access(&mut self, task: TaskId, access: AccessId) {
        self.access_choose(task, access);
    }

    fn region_pages(&self, region: RegionId) -> Vec<u64> {
        let found = self.memory.as_ref().and_then(|memory| memory.region(region));
        found.map_or(Vec::new(), |region| region.pages_by_node())
    }

    fn region_free(&mut self, region: RegionId) {
        self.region_remove(region);
    }

    fn set_xattr(&mut self, cgroup: CgroupId, name: &str, value: &[u8]) -> Result<(), SysError> {
        Kernel::charge(self, self.machine.costs.syscall.entry_ns);
        self.cgroups.set_xattr(cgroup, name, value)
    }

    fn move_to_cgroup(&mut self, task: TaskId, cgroup: CgroupId) -> Result<(), SysError> {
        if !self.is_reachable(task) {
            return Err(SysError::NoTask);
        }
        Kernel::charge(self, self.machine.costs.syscall.entry_ns);
        self.cgroup_move_task(task, cgroup)?;
        self.note_attributes(task);
        Ok(())
    }

    fn set_cpu_online(&mut self, cpu: CpuId, online: bool) -> Result<(), SysError> {
        self.hotplug(cpu, online)
    }

    fn random(&mut self, stream: &'static str, task: TaskId) -> u64 {
        self.streams.next(stream, u64::from(task.0))
    }

    fn count_work(&mut self, task: TaskId, units: u64) {
        self.metrics.work_units += units;
        if self.tasks.get(task).is_some() {
            self.tasks[task].account.work_units += units;
        }
    }

    fn kick(&mut self, task: TaskId) {
        self.kick_task(task);
    }

    fn cut_at(&mut self, task: TaskId, at: Option<Nanos>) {
        self.set_cut(task, at);
    }

    fn cut_rest(&mut self, task: TaskId) -> Nanos {
        self.take_cut(task)
    }

    fn run_delay(&self, task: TaskId) -> Nanos {
        let Some(t) = self.tasks.get(task) else { return 0 };
        // Between two events, the clock of the code that ran last may be behind the time.
        let now = self.exec.clock.max(self.now);
        t.account.wait_ns + t.account.waiting_since.map_or(0, |since| now.saturating_sub(since))
    }

    fn switch_footprint(&mut self, task: TaskId, bytes: u64, marks: CacheMarks) -> CacheMarks {
        self.change_footprint(task, bytes, marks)
    }

    fn event_time(&self) -> Nanos {
        self.now
    }

    fn is_on_cpu(&self, task: TaskId) -> bool {
        self.tasks.get(task).is_some_and(|t| t.on_cpu)
    }

    fn waits_for_cpu(&self, task: TaskId) -> bool {
        self.tasks.get(task).is_some_and(|t| t.state == TaskState::Runnable && !t.on_cpu)
    }

    fn yield_to(&mut self, task: TaskId) -> bool {
        self.yield_curr_to(self.exec.cpu, task)
    }

    fn guest_run(&mut self, run: GuestRun) {
        let GuestRun { guest, vcpu, thread, spins } = run;
        let (time, cpu) = (self.exec.clock, self.exec.cpu);
        let kind = EventKind::GuestRun { guest, vcpu, thread, spins };
        self.tracer.emit(scxlab_trace::event::Event { time, cpu, kind });
    }

    fn guest_name(&mut self, guest: u32, thread: Option<u32>, name: &str) {
        self.tracer.names.set_guest(guest, thread, name);
    }

    fn note_call(&mut self, call: Call) {
        if self.tracer.is_recording() {
            let task = self.cpus[self.exec.cpu].curr;
            self.note(EventKind::Call { task, call });
        }
    }

    fn finish(&mut self) {
        self.end.stop_with(Stop::Finished);
    }

    fn bpf(&mut self) -> Option<&mut scxlab_bpf::vm::Vm> {
        Some(&mut self.vm)
    }
}

impl Kernel {
    /// Whether a system call can name the task. It cannot name a task that has been unhashed,
    /// although the slot stays while a BPF program holds a reference to it.
    fn is_reachable(&self, task: TaskId) -> bool {
        self.tasks.get(task).is_some_and(|t| self.tasks.by_pid(t.pid) == Some(task))
    }

    /// Sets a task's allowed CPUs (`set_cpus_allowed_common()`) and tells the task's class.
    pub(crate) fn do_set_cpus_allowed(&mut self, task: TaskId, cpus: &CpuMask) {
        let change = self.change_begin(task, queue::SAVE);
        let (all_cpus_allowed, at) = (self.has_all_cpus(cpus), self.clock());
        let t = &mut self.tasks[task];
        let waits = t.account.waiting_since.is_some();
        if waits {
            self.metrics.idle_while_waiting.end(t, at);
        }
        t.cpus = cpus.clone();
        t.nr_allowed = cpumask::weight(cpus);
        t.all_cpus_allowed = all_cpus_allowed;
        if waits {
            self.metrics.idle_while_waiting.begin(t, at);
        }
        mirror::identity(&mut self.vm.mem, &self.tasks[task]);
        self.ext_set_cpumask(task);
        self.change_end(change);
    }

    /// Whether a set contains every CPU of the machine.
    pub(crate) fn has_all_cpus(&self, cpus: &CpuMask) -> bool {
        let all = 0..self.machine.topology.nr_cpus() as u32;
        all.map(CpuId).all(|cpu| cpumask::test(cpus, cpu))
    }

    /// Applies a changed nice value or policy to the task's weight.
    fn reweight(&mut self, task: TaskId) {
        mirror::identity(&mut self.vm.mem, &self.tasks[task]);
        self.fair_reweight(task);
        if self.tasks[task].class == Class::Ext {
            let change = self.change_begin(task, queue::SAVE);
            self.ext_reweight(task);
            self.change_end(change);
        }
    }

    fn change_policy(&mut self, task: TaskId, policy: Policy) {
        let class = self.class_of(policy);
        let moved = class != self.tasks[task].class;
        let flags = queue::SAVE | queue::MOVE | if moved { queue::CLASS } else { 0 };
        let mut change = self.change_begin(task, flags);
        let before = self.tasks[task].prio();
        if !matches!(policy, Policy::Deadline { .. }) {
            self.rt_leave_deadline(task);
        }
        self.tasks[task].policy = policy;
        if before < self.tasks[task].prio() {
            change.flags |= queue::HEAD;
        }
        self.set_class(task, class);
        mirror::identity(&mut self.vm.mem, &self.tasks[task]);
        self.fair_reweight(task);
        if !moved && class == Class::Ext {
            self.ext_reweight(task);
        }
        self.change_end(change);
    }
}
