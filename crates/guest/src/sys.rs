// SPDX-License-Identifier: GPL-2.0-only
//! The system calls of a guest's program.
//!
//! Owns: `impl Sys` for a guest. Numbers of tasks are its threads, numbers of CPUs its vCPUs.
//! Does not: hold state.

use scxlab_kernel::behavior::{
    Access, AccessId, CacheMarks, CgroupSpec, Policy, RegionId, RegionSpec, Sys, SysError, TaskSpec,
};
use scxlab_machine::cpumask::{self, CpuMask};
use scxlab_machine::id::{CgroupId, CpuId, Nanos, TaskId};

use crate::account::ThreadTimes;
use crate::interrupt::Irq;
use crate::{GuestKernel, State, Thread, Timer};

/// Bits of a thread's number. In the keys of random streams, the guest's number is above them, so
/// that no key is that of a task of the host (`MAX_TASKS`).
const THREAD_BITS: u32 = 18;

/// A guest's kernel while a vCPU executes it.
pub(crate) struct GuestSys<'a> {
    pub os: &'a mut GuestKernel,
    pub host: &'a mut dyn Sys,
    /// The vCPU that executes.
    pub v: usize,
}

impl GuestKernel {
    /// Returns the key of a thread's random streams.
    pub(crate) fn random_key(&self, t: u32) -> u32 {
        (self.config.number + 1) << THREAD_BITS | t
    }

    /// Returns the vCPUs of a set.
    fn vcpus_of(&self, cpus: &CpuMask) -> CpuMask {
        let count = self.vcpus.len() as u32;
        let in_set = (0..count).map(CpuId).filter(|vcpu| cpumask::test(cpus, *vcpu));
        CpuMask::of(count as usize, in_set)
    }
}

impl GuestSys<'_> {
    fn lives(&self, task: TaskId) -> Result<u32, SysError> {
        let thread = self.os.threads.get(task.idx());
        let lives = thread.is_some_and(|thread| thread.state != State::Gone);
        if lives { Ok(task.0) } else { Err(SysError::NoTask) }
    }

    fn syscall(&mut self) {
        self.charge(self.os.machine.costs.syscall.entry_ns);
    }
}

impl Sys for GuestSys<'_> {
    fn now(&self) -> Nanos {
        self.host.now()
    }

    // The guest's kernel on the way back to its program, or the host's on the way back to the
    // guest, which a call to the host has left.
    fn must_schedule(&self) -> bool {
        self.os.must_schedule(self.v, true) || self.host.must_schedule()
    }

    fn others_due(&self) -> bool {
        self.host.others_due()
    }

    fn this_cpu(&self) -> CpuId {
        CpuId(self.v as u32)
    }

    fn cpu_of(&self, task: TaskId) -> CpuId {
        let thread = self.os.threads.get(task.idx());
        CpuId(thread.map_or(self.v, |thread| thread.vcpu) as u32)
    }

    fn nr_cpus(&self) -> u32 {
        self.os.vcpus.len() as u32
    }

    fn wake(&mut self, task: TaskId, sync: bool) -> bool {
        self.os.wake_thread(self.host, self.v, task.0, sync)
    }

    fn stop_spin(&mut self, task: TaskId) {
        self.os.stop_thread_spin(self.host, task.0);
    }

    fn fork(&mut self, parent: Option<TaskId>, spec: TaskSpec) -> Result<TaskId, SysError> {
        let parent = parent.map(|parent| self.lives(parent)).transpose()?;
        let group = spec.thread_group_of.map(|member| self.lives(member)).transpose()?;
        let mask = match (&spec.affinity, parent) {
            (Some(mask), _) => self.os.vcpus_of(mask),
            (None, Some(parent)) => self.os.thread(parent).mask.clone(),
            (None, None) => CpuMask::all(self.os.vcpus.len()),
        };
        if cpumask::is_empty(&mask) {
            return Err(SysError::Invalid);
        }
        let t = self.os.free.pop().unwrap_or(self.os.threads.len() as u32);
        if t >> THREAD_BITS > 0 {
            return Err(SysError::NoMemory);
        }
        self.host.guest_name(self.os.config.number, Some(t), &spec.name);
        let thread = Thread {
            name: spec.name,
            state: State::Waiting,
            vcpu: parent.map_or(self.v, |parent| self.os.thread(parent).vcpu),
            policy: spec.policy,
            nice: spec.nice,
            slice_request: spec.slice_request,
            nr_allowed: cpumask::weight(&mask),
            mask,
            wake_queued: None,
            rt_key: None,
            rr_used: 0,
            cache: CacheMarks::default(),
            process: group.map_or(t, |member| self.os.thread(member).process),
            left: None,
            wake_pending: false,
            timer: None,
            lock_depth: 0,
            lock_wait_since: None,
            flush_left: 0,
            flush_since: None,
            woken_at: None,
            footprint: spec.footprint_bytes,
            access: None,
            since: self.host.now(),
            times: ThreadTimes::default(),
            work_units: 0,
        };
        match self.os.threads.get_mut(t as usize) {
            Some(slot) => *slot = thread,
            None => self.os.threads.push(thread),
        }
        self.os.live += 1;
        self.os.start_thread(self.host, self.v, t);
        Ok(TaskId(t))
    }

    fn charge(&mut self, cost: Nanos) {
        self.host.charge(cost);
    }

    fn atomic_time(&self, last: Option<CpuId>) -> (CpuId, Nanos) {
        self.host.atomic_time(last)
    }

    fn message_time(&self, last: Option<CpuId>, lines: u64, bytes: u64) -> (CpuId, Nanos) {
        self.host.message_time(last, lines, bytes)
    }

    fn post(&mut self, at: Nanos, _cpu: CpuId, token: u64) {
        self.os.add_timer(0, at, Timer::Post(token));
        if self.v != 0 {
            self.os.send(self.host, self.v, 0, Irq::Resched);
        }
    }

    fn set_affinity(&mut self, task: TaskId, cpus: &CpuMask) -> Result<(), SysError> {
        let t = self.lives(task)?;
        let mask = self.os.vcpus_of(cpus);
        if cpumask::is_empty(&mask) {
            return Err(SysError::Invalid);
        }
        self.syscall();
        self.os.set_thread_mask(self.host, self.v, t, mask);
        Ok(())
    }

    fn set_nice(&mut self, task: TaskId, nice: i8) -> Result<(), SysError> {
        let t = self.lives(task)?;
        self.syscall();
        self.os.set_thread_nice(self.host, self.v, t, nice);
        Ok(())
    }

    fn set_policy(&mut self, task: TaskId, policy: Policy) -> Result<(), SysError> {
        let t = self.lives(task)?;
        self.syscall();
        self.os.set_thread_policy(self.host, self.v, t, policy);
        Ok(())
    }

    fn set_footprint(&mut self, task: TaskId, bytes: u64) {
        let Ok(t) = self.lives(task) else { return };
        self.os.thread_mut(t).footprint = bytes;
        let thread = self.os.thread(t);
        if thread.state == State::Running {
            let vcpu = self.os.vcpus[thread.vcpu].task;
            self.host.set_footprint(vcpu, bytes);
        }
    }

    fn mkdir(&mut self, _: CgroupId, _: &str, _: CgroupSpec) -> Result<CgroupId, SysError> {
        self.os.stats.cgroups_ignored = true;
        Ok(CgroupId(0))
    }

    fn rmdir(&mut self, _: CgroupId) -> Result<(), SysError> {
        Ok(())
    }

    fn set_cgroup(&mut self, _: CgroupId, _: CgroupSpec) -> Result<(), SysError> {
        Ok(())
    }

    fn set_cpuset(&mut self, _: CgroupId, _: Option<&CpuMask>) -> Result<(), SysError> {
        Ok(())
    }

    fn set_xattr(&mut self, _: CgroupId, _: &str, _: &[u8]) -> Result<(), SysError> {
        self.syscall();
        Ok(())
    }

    fn move_to_cgroup(&mut self, _: TaskId, _: CgroupId) -> Result<(), SysError> {
        self.syscall();
        Ok(())
    }

    fn set_cpu_online(&mut self, _: CpuId, _: bool) -> Result<(), SysError> {
        Err(SysError::Invalid)
    }

    fn random(&mut self, stream: &'static str, task: TaskId) -> u64 {
        let key = TaskId(self.os.random_key(task.0));
        self.host.random(stream, key)
    }

    fn count_work(&mut self, task: TaskId, units: u64) {
        self.os.stats.work_units += units;
        if let Some(thread) = self.os.threads.get_mut(task.idx()) {
            thread.work_units += units;
        }
        let vcpu = self.os.vcpus[self.v].task;
        self.host.count_work(vcpu, units);
    }

    fn region_new(&mut self, spec: RegionSpec) -> Result<RegionId, SysError> {
        self.os.memory.as_mut().ok_or(SysError::NoMemory)?.reserve(spec.pages)
    }

    fn access_new(&mut self, access: Access) -> Result<AccessId, SysError> {
        self.os.memory.as_mut().ok_or(SysError::Invalid)?.access(access)
    }

    fn set_access(&mut self, task: TaskId, access: AccessId) {
        let Some(memory) = &mut self.os.memory else { return };
        let access = memory.at_host(self.host, task.0, access);
        if let Some(thread) = self.os.threads.get_mut(task.idx()) {
            thread.access = access;
        }
    }

    fn region_free(&mut self, region: RegionId) {
        if let Some(memory) = &mut self.os.memory {
            memory.free(region);
        }
    }

    fn next_spinner(&self, spinners: &mut dyn Iterator<Item = TaskId>) -> Option<usize> {
        self.os.next_spinner(&*self.host, &mut spinners.map(|task| task.0))
    }

    fn lock_freed(&mut self, task: TaskId, first: bool) {
        self.os.lock_freed(self.host, task.0, first);
    }

    fn hold_lock(&mut self, task: TaskId, held: bool) -> bool {
        let Some(thread) = self.os.threads.get_mut(task.idx()) else { return false };
        match held {
            true => thread.lock_depth += 1,
            false => thread.lock_depth = thread.lock_depth.saturating_sub(1),
        }
        let free = thread.lock_depth == 0;
        free && self.os.must_schedule(self.v, false)
    }

    fn finish(&mut self) {
        self.os.power_off(self.host, self.v);
    }
}
