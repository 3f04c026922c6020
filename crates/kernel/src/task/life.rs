// SPDX-License-Identifier: GPL-2.0-only
//! Birth and death of tasks, and the tasks that exist before any workload.
//!
//! Owns: fork, exit, the release of slots.
//! Models: kernel `sched_fork()`, `sched_cgroup_fork()`, `wake_up_new_task()`, `do_exit()`,
//! `finish_task_switch()`, 7.3.

use crate::bpf::flags::{queue, wake};
use crate::bpf::mirror;
use crate::cpu::lock::LockId;
use crate::ext::entity::ExtEntity;
use crate::kernel::event::Event;
use crate::kernel::{AfterEvent, Kernel, Stop};
use crate::task::behavior::{Policy, SysError, TaskSpec};
use crate::task::{CacheMarks, Class, Task, TaskAccount, TaskState};
use scxlab_machine::cpumask::{self, CpuMask};
use scxlab_machine::id::{CpuId, TaskId};
use scxlab_trace::event::EventKind;

impl Kernel {
    /// Creates the idle task of a CPU. The idle task has pid 0 and is never enqueued.
    pub(crate) fn new_idle_task(&mut self, cpu: CpuId) -> TaskId {
        let spec = TaskSpec::normal(&format!("swapper/{cpu}"));
        let cpus = CpuMask::of(self.machine.topology.nr_cpus(), [cpu]);
        let id = self.new_task(&spec, cpus, cpu, 0, Class::Idle).expect("room for idle tasks");
        self.set_state(id, TaskState::Runnable);
        self.tasks[id].on_cpu = true;
        id
    }

    /// Creates init. It sleeps for ever, is the parent of tasks that have no other parent, and is
    /// `current` for callers in user space.
    pub(crate) fn new_init_task(&mut self) -> TaskId {
        let cpus = CpuMask::all(self.machine.topology.nr_cpus());
        let pid = self.tasks.next_pid();
        let id = self
            .new_task(&TaskSpec::normal("init"), cpus, CpuId(0), pid, Class::Fair)
            .expect("room for init");
        self.set_state(id, TaskState::Sleeping);
        self.fair_task_new(id);
        id
    }

    fn new_task(
        &mut self,
        spec: &TaskSpec,
        cpus: CpuMask,
        cpu: CpuId,
        pid: u32,
        class: Class,
    ) -> Option<TaskId> {
        let (id, addr) = self.tasks.reserve(&mut self.vm.mem)?;
        self.vm.mem.host_slice_mut::<u8>(addr, crate::task::SLOT_BYTES as usize).fill(0);
        let task = Task {
            id,
            addr,
            pid,
            tgid: pid,
            leader: id,
            name: spec.name.clone(),
            state: TaskState::New,
            class,
            on_rq: false,
            on_cpu: false,
            cpu,
            policy: spec.policy,
            nice: spec.nice.clamp(-20, 19),
            slice_request: spec.slice_request,
            nr_allowed: cpumask::weight(&cpus),
            all_cpus_allowed: self.has_all_cpus(&cpus),
            user_cpus: cpus.clone(),
            cpus,
            cgroup: spec.cgroup,
            kthread: spec.kthread,
            exiting: false,
            // All tasks but init and the idle tasks are forked, and have executed no program yet.
            execed: pid <= 1,
            step: None,
            step_left: 0,
            refill_left: 0,
            wake_pending: false,
            spin_ended: false,
            sleep_gen: 0,
            footprint_bytes: spec.footprint_bytes,
            cache_marks: CacheMarks::default(),
            exec_start: 0,
            wake_queued: None,
            mem_speed: 0,
            cut: Default::default(),
            ext: ExtEntity::default(),
            account: TaskAccount {
                watched: self.metrics.watched.admit(&spec.name),
                ..TaskAccount::default()
            },
            refs: 0,
            nr_other_threads: 0,
        };
        mirror::identity(&mut self.vm.mem, &task);
        self.tasks.insert(task);
        self.mirror_new(id);
        Some(id)
    }

    /// The end of `fork(2)` or `clone(2)`: the child is runnable when this returns. The parent has
    /// spent the time of the call in a step before. Tasks without a parent are there at the start,
    /// and become runnable by `start_task`.
    pub(crate) fn fork_task(
        &mut self,
        parent: Option<TaskId>,
        spec: TaskSpec,
    ) -> Result<TaskId, SysError> {
        let nr_cpus = self.cpus.len();
        let wanted = match (&spec.affinity, parent) {
            (Some(mask), _) => mask.clone(),
            (None, Some(parent)) => self.tasks[parent].user_cpus.clone(),
            (None, None) => CpuMask::all(nr_cpus),
        };
        if !self.cgroups.exists(spec.cgroup) {
            return Err(SysError::NoEntry);
        }
        let cpus = self.affinity_in(spec.cgroup, &wanted);
        let usable = self.cpus.iter().any(|c| c.online && cpumask::test(&wanted, c.id));
        if !usable || !valid_policy(spec.policy) {
            return Err(SysError::Invalid);
        }
        let pid = self.tasks.next_pid();
        let home = self.home(parent, &cpus);
        let class = self.class_of(spec.policy);
        let Some(id) = self.new_task(&spec, cpus, home, pid, class) else {
            let why =
                self.over_memory().unwrap_or_else(|| "no free task slot (too many tasks)".into());
            self.end.stop_with(Stop::OutOfMemory(why));
            return Err(SysError::NoMemory);
        };
        // `thread_group_of` may name any thread of the group, so look up the leader.
        let leader = spec.thread_group_of.map_or(id, |member| self.tasks[member].leader);
        self.tasks[id].tgid = self.tasks[leader].pid;
        self.tasks[id].user_cpus = wanted;
        mirror::identity(&mut self.vm.mem, &self.tasks[id]);
        self.mirror_family(id, parent.unwrap_or(self.tasks.init), leader);
        self.cgroups.attach(spec.cgroup, id);
        self.fair_task_new(id);
        if self.memory.is_some() {
            self.numa_forked(id, parent);
        }
        self.ext_init_entity(id);
        self.tasks.nr_workload += 1;
        if let Err(error) = self.ext_fork(id) {
            self.cancel_fork(id);
            return Err(error);
        }
        self.metrics.forks += 1;
        self.name_in_trace(id);
        match &mut self.tasks.starting {
            Some(starting) if parent.is_none() => starting.push_back(id),
            _ => self.begin_task(parent, id),
        }
        Ok(id)
    }

    /// Returns the CPU that a forked task belongs to before it is placed: its parent's. Tasks that
    /// exist from the start are as if they had run before, one on each of their CPUs in turn.
    fn home(&self, parent: Option<TaskId>, cpus: &CpuMask) -> CpuId {
        if let Some(parent) = parent {
            return self.tasks[parent].cpu;
        }
        let Some(starting) = &self.tasks.starting else { return self.exec.cpu };
        let usable = || cpumask::iter(cpus).filter(|cpu| self.cpus.is_online(*cpu));
        let nr = usable().count().max(1);
        usable().nth(starting.len() % nr).unwrap_or(self.exec.cpu)
    }

    /// Makes a forked task runnable.
    fn begin_task(&mut self, parent: Option<TaskId>, child: TaskId) {
        self.trace(EventKind::Fork { parent, child });
        self.wake_up_new(child);
    }

    /// Makes the next task of those that exist from the start runnable. Each has an event of its
    /// own, so that the other CPUs take notice of one task before the next comes.
    #[inline(never)]
    pub(crate) fn start_task(&mut self) -> AfterEvent {
        self.end.pending_wakeups -= 1;
        let Some(starting) = &mut self.tasks.starting else { return AfterEvent::Nothing };
        let (task, is_last) = (starting.pop_front(), starting.is_empty());
        if is_last {
            self.tasks.starting = None;
        }
        let Some(task) = task else { return AfterEvent::Nothing };
        let cpu = self.cpus.online_or_any(CpuId(0));
        self.on_cpu_last(cpu, |k| {
            k.begin_task(None, task);
            if !is_last {
                k.push_wakeup(k.clock(), Event::StartTask);
            }
        })
    }

    /// Undoes a fork that the scheduler refused, as `copy_process()` does. The child has never run.
    fn cancel_fork(&mut self, child: TaskId) {
        self.set_state(child, TaskState::Dead);
        self.tasks.nr_workload -= 1;
        self.fair_task_dead(child);
        self.free_task(child);
    }

    /// `wake_up_new_task()`: chooses a CPU for a forked task, and enqueues the task there.
    fn wake_up_new(&mut self, task: TaskId) {
        self.set_state(task, TaskState::Runnable);
        self.tasks.nr_runnable += 1;
        self.note_attributes(task);
        self.ext_post_fork(task);
        let prev = self.tasks[task].cpu;
        let (cpu, _) = self.select_cpu(task, prev, wake::FORK);
        let at = self.clock();
        let Kernel { cpus, tasks, vm, cgroups, metrics, .. } = self;
        let t = &mut tasks[task];
        t.cpu = cpu;
        let guest: &mut crate::bpf::abi::task_struct = vm.mem.own_mut(t.addr);
        guest.thread_info.cpu = cpu.0;
        t.start_wait(guest, at, cgroups, cpus.len() as u32);
        metrics.idle_while_waiting.begin(t, at);
        self.lock(LockId::Rq(cpu));
        self.take_rq_clock(cpu);
        self.charge(self.machine.costs.sched.enqueue_ns);
        self.enqueue_task(cpu, task, queue::NOCLOCK | queue::INITIAL);
        self.wakeup_preempt(cpu, task, wake::FORK);
        self.unlock(LockId::Rq(cpu));
        if self.tasks[task].class == Class::Ext {
            self.ext_run_deferred(cpu);
        }
    }

    /// Gives the trace the task's name.
    pub(crate) fn name_in_trace(&mut self, task: TaskId) {
        let t = &self.tasks[task];
        let name = scxlab_trace::TaskName {
            pid: t.pid,
            tgid: t.tgid,
            comm: t.name.clone(),
            prio: t.static_prio(),
        };
        self.tracer.names.set_task(task, name);
    }

    /// Carries out the exit of the CPU's running task.
    pub(crate) fn exit_curr(&mut self, cpu: CpuId, task: TaskId) {
        self.tasks[task].exiting = true;
        mirror::identity(&mut self.vm.mem, &self.tasks[task]);
        // The task leaves its autogroup. This change of group dequeues and enqueues the task.
        let change = self.change_begin(task, queue::SAVE | queue::MOVE);
        self.change_end(change);
        self.set_state(task, TaskState::Dead);
        self.tasks[task].step = None;
        self.tasks.nr_runnable -= 1;
        self.tasks.nr_workload -= 1;
        self.cpus[cpu].voluntary = true;
        self.trace(EventKind::Exit { task });
        self.dequeue_task(cpu, task, queue::SLEEP | queue::NOCLOCK | queue::SPECIAL);
        self.cpus[cpu].need_resched = true;
    }

    /// `finish_task_switch()`: releases the previous task if it is dead.
    #[inline]
    pub(crate) fn after_switch(&mut self, prev: TaskId) {
        if self.tasks[prev].state == TaskState::Dead {
            self.release_dead_task(prev);
        }
    }

    #[cold]
    fn release_dead_task(&mut self, prev: TaskId) {
        self.ext_dead(prev);
        self.fair_task_dead(prev);
        self.metrics
            .tasks
            .push(crate::metrics::TaskReport::of(&self.tasks[prev], &self.machine.topology));
        self.free_task(prev);
    }

    /// Unhashes the task, and frees its slot once no BPF program and no thread of its group refers
    /// to it.
    fn free_task(&mut self, id: TaskId) {
        let (pid, cgroup, addr, leader) = {
            let t = &self.tasks[id];
            (t.pid, t.cgroup, t.addr, t.leader)
        };
        // Free the task's BPF storage first, because it may hold a reference to the task itself.
        scxlab_bpf::vm::storage_owner_gone(self, scxlab_bpf::vm::Storage::Task, addr);
        self.tasks.unhash(pid);
        self.leave_group(id);
        self.cgroups.detach(cgroup, id);
        if self.tasks[id].refs == 0 && self.tasks[id].nr_other_threads == 0 {
            self.vm.forget_task(self.tasks[id].addr);
            self.tasks.remove(id);
        }
        if leader != id {
            self.tasks[leader].nr_other_threads -= 1;
            self.free_if_gone(leader);
        }
    }

    #[inline(always)]
    pub(crate) fn set_state(&mut self, task: TaskId, state: TaskState) {
        let (t, guest) = self.task_and_guest(task);
        t.set_state(guest, state);
    }

    pub(crate) fn set_class(&mut self, task: TaskId, class: Class) {
        self.tasks[task].class = class;
        self.mirror_class(task);
    }

    /// Frees the slot of an unhashed task to which nothing refers any more.
    fn free_if_gone(&mut self, id: TaskId) {
        let t = &self.tasks[id];
        let gone =
            t.refs == 0 && t.nr_other_threads == 0 && t.state == TaskState::Dead && !t.on_cpu;
        if gone && self.tasks.by_pid(t.pid).is_none() {
            self.vm.forget_task(self.tasks[id].addr);
            self.tasks.remove(id);
        }
    }

    /// Takes a reference to the task for a BPF program.
    pub(crate) fn get_task_ref(&mut self, id: TaskId) {
        let t = &mut self.tasks[id];
        t.refs = t.refs.saturating_add(1);
    }

    /// Drops a reference to the task that a BPF program held. Returns false if there was none.
    pub(crate) fn put_task_ref(&mut self, id: TaskId) -> bool {
        let t = &mut self.tasks[id];
        let held = t.refs > 0;
        t.refs = t.refs.saturating_sub(1);
        self.free_if_gone(id);
        held
    }

    /// `__setscheduler_class()`: returns the scheduling class for a policy, which depends on the
    /// loaded scheduler.
    pub(crate) fn class_of(&self, policy: Policy) -> Class {
        match policy {
            Policy::Deadline { .. } => Class::Deadline,
            Policy::Fifo { .. } | Policy::RoundRobin { .. } => Class::Rt,
            _ if self.ext_takes(policy) => Class::Ext,
            _ => Class::Fair,
        }
    }
}

/// Checks a policy's parameters: `__checkparam_dl()`, and the priority ranges of
/// `sched_setscheduler(2)`.
pub(crate) fn valid_policy(policy: Policy) -> bool {
    match policy {
        Policy::Fifo { prio } | Policy::RoundRobin { prio } => (1..=99).contains(&prio),
        Policy::Deadline { runtime, deadline, period } => {
            runtime >= 1024 && runtime <= deadline && deadline <= period
        }
        _ => true,
    }
}
