// SPDX-License-Identifier: GPL-2.0-only
//! The state of tasks and run queues that BPF programs see: `struct task_struct` and `struct rq` of
//! `abi/kernel.h`. The kernel writes this copy when its own state changes, and never reads it back.
//!
//! Owns: every write to this copy, except to `p->scx` (`ext/enqueue.rs`) and to the fields that
//! programs may write themselves (`scx.slice`, `scx.dsq_vtime`, `scx.disallow`), which live in
//! guest memory alone.
//! Does not: decide or charge anything.
//!
//! A task's slot in guest memory holds its `task_struct` and its `struct pid`. The slot of a thread
//! group's leader also holds the data that the group shares, and is kept until the group's last
//! thread is gone.

use crate::bpf::abi;
use crate::bpf::flags::pf;
use crate::kernel::boot::{PERCPU_STRIDE, percpu};
use crate::kernel::{BOOT_NS, Kernel};
use crate::task::behavior::Policy;
use crate::task::{Class, SLOT_BYTES, Task, TaskAccount, TaskState};
use scxlab_bpf::mem::{Memory, OutOfMemory, Perm};
use scxlab_machine::id::{CpuId, Nanos, TaskId};
use std::mem::{offset_of, size_of};
use std::sync::atomic::Ordering;

// Offsets of the parts of a task's slot in guest memory, bytes.
const PID: u64 = size_of::<abi::task_struct>().next_multiple_of(8) as u64;
const MM: u64 = PID + size_of::<abi::pid>() as u64;
const SIGNAL: u64 = MM + size_of::<abi::mm_struct>() as u64;
const _: () = assert!(SIGNAL + size_of::<abi::signal_struct>() as u64 <= SLOT_BYTES);

/// Offsets of the `struct list_head`s (two addresses each) that link a thread group's threads,
/// bytes.
const THREAD_NODE: u64 = offset_of!(abi::task_struct, thread_node) as u64;
const THREAD_HEAD: u64 = offset_of!(abi::signal_struct, thread_head) as u64;

/// `PROC_PID_INIT_INO`: inode number of the only pid namespace.
const PID_NS_INUM: u32 = 0xeffffffc;
/// `NUMA_NO_NODE`: no NUMA node.
const NO_NODE: i32 = -1;
/// Bytes reserved for a `struct sched_class`. Only the address of the struct has a meaning.
const CLASS_BYTES: u64 = 64;

/// Guest addresses of the data that all tasks share.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SharedGuestStructs {
    /// `init_cred`: every task belongs to root.
    cred: u64,
    pid_ns: u64,
    /// Address of an array with one `struct sched_class` for each of `CLASSES`, in that order.
    classes: u64,
}

/// The kernel's names of the scheduling classes, indexed by `Class`.
const CLASSES: [(Class, &str); 5] = [
    (Class::Idle, "idle_sched_class"),
    (Class::Ext, "ext_sched_class"),
    (Class::Fair, "fair_sched_class"),
    (Class::Rt, "rt_sched_class"),
    (Class::Deadline, "dl_sched_class"),
];

impl SharedGuestStructs {
    pub(crate) fn new(mem: &mut Memory) -> Result<SharedGuestStructs, OutOfMemory> {
        let cred = mem.alloc_region(size_of::<abi::cred>() as u64, Perm::Kernel)?;
        let pid_ns = mem.alloc_region(size_of::<abi::pid_namespace>() as u64, Perm::Kernel)?;
        mem.host_mut::<abi::pid_namespace>(pid_ns).ns.inum = PID_NS_INUM;
        let classes = mem.alloc_region(CLASS_BYTES * CLASSES.len() as u64, Perm::Kernel)?;
        Ok(SharedGuestStructs { cred, pid_ns, classes })
    }

    /// Returns the address of a kernel variable that is not per CPU, by its name in kallsyms.
    pub(crate) fn symbol(&self, name: &str) -> Option<u64> {
        let class = CLASSES.iter().find(|(_, n)| *n == name)?.0;
        Some(self.class(class))
    }

    fn class(&self, class: Class) -> u64 {
        self.classes + CLASS_BYTES * class as u64
    }
}

/// Returns the kernel's name of a scheduling class.
pub(crate) fn class_name(class: Class) -> &'static str {
    CLASSES[class as usize].1
}

/// Writes a task's pids, name, flags, policy, priorities and affinity to its `task_struct`.
pub(crate) fn identity(mem: &mut Memory, task: &Task) {
    let ts: &mut abi::task_struct = mem.host_mut(task.addr);
    ts.pid = task.pid as i32;
    ts.tgid = task.tgid as i32;
    ts.flags = if task.is_idle_task() { pf::IDLE } else { 0 }
        | if task.kthread { pf::KTHREAD } else { 0 }
        | if task.exiting { pf::EXITING } else { 0 }
        | if task.execed { 0 } else { pf::FORKNOEXEC };
    let bytes = task.name.as_bytes();
    let len = bytes.len().min(15);
    ts.comm = [0; 16];
    for (to, from) in ts.comm.iter_mut().zip(&bytes[..len]) {
        *to = *from as _;
    }
    ts.static_prio = task.static_prio();
    ts.prio = task.prio();
    (ts.policy, ts.rt_priority) = match task.policy {
        Policy::Normal => (0, 0),
        Policy::Fifo { prio } => (1, u32::from(prio)),
        Policy::RoundRobin { prio } => (2, u32::from(prio)),
        Policy::Batch => (3, 0),
        Policy::Idle => (5, 0),
        Policy::Deadline { .. } => (6, 0),
        Policy::Ext => (7, 0),
    };
    ts.normal_prio = ts.prio;
    ts.nr_cpus_allowed = task.nr_allowed as i32;
    for (to, from) in ts.cpus_mask.bits.iter_mut().zip(task.cpus.iter()) {
        *to = *from;
    }
}

/// Writes `p->__state`. Every sleep is interruptible (TASK_INTERRUPTIBLE).
#[inline(always)]
pub(crate) fn state(guest: &mut abi::task_struct, state: TaskState) {
    guest.__state = match state {
        TaskState::New => 0x800,
        TaskState::Runnable => 0,
        TaskState::Sleeping => 1,
        TaskState::Dead => 0x80,
    };
}

/// `sched_info_enqueue()`, `sched_info_depart()`: the task waits for a CPU from `at` on.
#[inline]
pub(crate) fn wait(guest: &mut abi::task_struct, at: Nanos) {
    guest.sched_info.last_queued = BOOT_NS + at;
}

/// `sched_info_arrive()`: a CPU switches to the task at `at`, after a wait of `waited`.
#[inline]
pub(crate) fn arrival(guest: &mut abi::task_struct, at: Nanos, waited: Nanos) {
    let info = &mut guest.sched_info;
    info.pcount += 1;
    info.run_delay += waited;
    info.last_arrival = BOOT_NS + at;
    info.last_queued = 0;
}

/// Records that the CPU switched away from the task.
#[inline]
pub(crate) fn off_cpu(guest: &mut abi::task_struct, account: &TaskAccount) {
    guest.on_cpu = 0;
    guest.nvcsw = account.switches_voluntary;
    guest.nivcsw = account.switches_involuntary;
}

impl Kernel {
    #[inline]
    fn task_struct(&mut self, task: TaskId) -> &mut abi::task_struct {
        let addr = self.tasks[task].addr;
        self.vm.mem.own_mut(addr)
    }

    /// Returns a task and its `task_struct`, which programs see.
    #[inline(always)]
    pub(crate) fn task_and_guest(&mut self, task: TaskId) -> (&mut Task, &mut abi::task_struct) {
        let Kernel { tasks, vm, .. } = self;
        let t = &mut tasks[task];
        let ts = vm.mem.own_mut(t.addr);
        (t, ts)
    }

    #[inline]
    fn rq(&mut self, cpu: CpuId) -> &mut abi::rq {
        let addr = self.rq_addr(cpu);
        self.vm.mem.own_mut(addr)
    }

    /// Guest address of a CPU's `struct rq`.
    pub(crate) fn rq_addr(&self, cpu: CpuId) -> u64 {
        self.bpf.vars.percpu + u64::from(cpu.0) * PERCPU_STRIDE + percpu::RUNQUEUE
    }

    /// Guest address of a task's `cpus_mask`.
    pub(crate) fn cpus_ptr(&self, task: TaskId) -> u64 {
        self.tasks[task].addr + offset_of!(abi::task_struct, cpus_mask) as u64
    }

    /// Writes the pointers that programs follow from a new task. The task becomes the leader of its
    /// own thread group.
    pub(crate) fn mirror_new(&mut self, id: TaskId) {
        let start = self.ktime();
        let shared = self.bpf.vars.shared;
        let (addr, cgroup, pid) = (self.tasks[id].addr, self.tasks[id].cgroup, self.tasks[id].pid);
        let cpus_ptr = self.cpus_ptr(id);
        let css_set = self.cgroups.css_set_addr(cgroup);
        let group = self.cgroups.task_group_addr(cgroup);
        let init = self.tasks.get(self.tasks.init).map_or(addr, |t| t.addr);
        let ts: &mut abi::task_struct = self.vm.mem.host_mut(addr);
        ts.cpus_ptr = cpus_ptr;
        ts.cgroups = css_set;
        ts.sched_task_group = group;
        ts.thread_pid = addr + PID;
        (ts.cred, ts.real_cred) = (shared.cred, shared.cred);
        ts.numa_preferred_nid = NO_NODE;
        (ts.start_time, ts.start_boottime) = (start, start);
        ts.scx.ddsp_dsq_id = crate::bpf::flags::dsq_id::INVALID;
        let guest_pid: &mut abi::pid = self.vm.mem.host_mut(addr + PID);
        guest_pid.numbers[0].nr = pid as i32;
        guest_pid.numbers[0].ns = shared.pid_ns;
        self.mirror_cpu(id);
        self.mirror_class(id);
        self.set_state(id, TaskState::New);
        self.join_group(id, addr, init);
    }

    /// Writes the pointers to the task's parent and thread group in its `task_struct`.
    pub(crate) fn mirror_family(&mut self, id: TaskId, parent: TaskId, leader: TaskId) {
        let (parent, leader_addr) = (self.tasks[parent].addr, self.tasks[leader].addr);
        if leader != id {
            self.leave_group(id);
            self.tasks[leader].nr_other_threads += 1;
        }
        self.tasks[id].leader = leader;
        self.join_group(id, leader_addr, parent);
    }

    /// Appends the task to its thread group's list of threads. A task that leads the group starts a
    /// new list.
    fn join_group(&mut self, id: TaskId, leader: u64, parent: u64) {
        let addr = self.tasks[id].addr;
        let user = !self.tasks[id].kthread && !self.tasks[id].is_idle_task();
        let (signal, node) = (leader + SIGNAL, addr + THREAD_NODE);
        let init_pid = self.tasks.get(self.tasks.init).map_or(addr, |t| t.addr) + PID;
        let head = signal + THREAD_HEAD;
        if leader == addr {
            self.vm.mem.host_mut::<abi::mm_struct>(addr + MM).owner = addr;
            let shared: &mut abi::signal_struct = self.vm.mem.host_mut(signal);
            shared.nr_threads = 0;
            (shared.thread_head.next, shared.thread_head.prev) = (head, head);
            // Every process belongs to init's session and process group.
            shared.pids = [0, addr + PID, init_pid, init_pid];
        }
        self.vm.mem.host_mut::<abi::signal_struct>(signal).nr_threads += 1;
        let last = self.vm.mem.host_ref::<abi::list_head>(head).prev;
        self.vm.mem.host_mut::<abi::list_head>(head).prev = node;
        self.vm.mem.host_mut::<abi::list_head>(last).next = node;
        let ts: &mut abi::task_struct = self.vm.mem.host_mut(addr);
        (ts.thread_node.prev, ts.thread_node.next) = (last, head);
        (ts.group_leader, ts.signal) = (leader, signal);
        (ts.parent, ts.real_parent) = (parent, parent);
        ts.mm = if user { leader + MM } else { 0 };
    }

    /// Removes the task from its thread group's list of threads (`__exit_signal()`). The links in
    /// the task's own `task_struct` do not change.
    pub(crate) fn leave_group(&mut self, id: TaskId) {
        let ts: &abi::task_struct = self.vm.mem.host_ref(self.tasks[id].addr);
        let (prev, next, signal) = (ts.thread_node.prev, ts.thread_node.next, ts.signal);
        self.vm.mem.host_mut::<abi::list_head>(prev).next = next;
        self.vm.mem.host_mut::<abi::list_head>(next).prev = prev;
        self.vm.mem.host_mut::<abi::signal_struct>(signal).nr_threads -= 1;
    }

    pub(crate) fn mirror_cgroup(&mut self, task: TaskId) {
        let cgroup = self.tasks[task].cgroup;
        let (set, group) =
            (self.cgroups.css_set_addr(cgroup), self.cgroups.task_group_addr(cgroup));
        let ts = self.task_struct(task);
        (ts.cgroups, ts.sched_task_group) = (set, group);
    }

    /// Writes the task's CPU to the field that `task_cpu()` reads.
    pub(crate) fn mirror_cpu(&mut self, task: TaskId) {
        let cpu = self.tasks[task].cpu;
        self.task_struct(task).thread_info.cpu = cpu.0;
    }

    /// Writes the fields of NUMA balancing.
    pub(crate) fn mirror_numa(&mut self, task: TaskId) {
        let preferred = self.fair.numa_preferred(task).map_or(NO_NODE, |node| node as i32);
        let (faults, migrated) = self.fair.numa_counts(task);
        let ts = self.task_struct(task);
        ts.numa_preferred_nid = preferred;
        (ts.total_numa_faults, ts.numa_pages_migrated) = (faults, migrated);
    }

    /// Writes `p->sched_class`.
    pub(crate) fn mirror_class(&mut self, task: TaskId) {
        let class = self.bpf.vars.shared.class(self.tasks[task].class);
        self.task_struct(task).sched_class = class;
    }

    /// Adds 1 to `rq->nr_running`, or subtracts 1. The number counts the tasks of all classes.
    #[inline]
    pub(crate) fn mirror_nr_running(&mut self, cpu: CpuId, more: bool) {
        let rq = self.rq(cpu);
        rq.nr_running = if more { rq.nr_running + 1 } else { rq.nr_running.saturating_sub(1) };
    }

    /// `rq->nr_running`: the number of queued and running tasks of all classes.
    pub(crate) fn nr_running(&mut self, cpu: CpuId) -> u32 {
        self.rq(cpu).nr_running
    }

    pub(crate) fn mirror_online(&mut self, cpu: CpuId, online: bool) {
        self.rq(cpu).online = i32::from(online);
    }

    /// Records that the CPU switched to the task at `addr`. A switch to the idle task lets the PELT
    /// clock catch up.
    #[inline(always)]
    pub(crate) fn mirror_curr(&mut self, cpu: CpuId, addr: u64, idle: bool) {
        let rq = self.rq(cpu);
        rq.curr = addr;
        rq.nr_switches += 1;
        if idle {
            rq.clock_pelt = rq.clock_task;
        }
    }

    /// Charges a tick to the task that it found running (`account_process_tick()`): the whole
    /// period counts as user time or as system time.
    pub(crate) fn mirror_tick(&mut self, task: TaskId, in_kernel: bool) {
        let period = self.ticks.period_ns;
        let ts = self.task_struct(task);
        *(if in_kernel { &mut ts.stime } else { &mut ts.utime }) += period;
    }

    /// Writes the task's utilisation, which the default class has just updated. Without a loaded
    /// scheduler it does nothing, because no program could read the value.
    #[inline]
    pub(crate) fn mirror_util(&mut self, task: TaskId) {
        if self.ext.root.is_some() {
            self.task_struct(task).se.avg.util_avg = self.fair.task_util(task);
        }
    }

    /// `update_rq_clock()`: sets the run queue's clock to the clock of the executing code. The PELT
    /// clock (`update_rq_clock_pelt()`) runs slower on a slow CPU and catches up when the CPU
    /// idles. The kernel writes both clocks to guest memory only if programs can find a run queue.
    #[inline(always)]
    pub(crate) fn take_rq_clock(&mut self, cpu: CpuId) -> Nanos {
        let at = self.clock();
        let last = std::mem::replace(&mut self.cpus[cpu].rq_clock, at);
        if self.ext.root.is_some() && self.bpf.rq_address_known.load(Ordering::Relaxed) {
            self.mirror_clock(cpu, at, at.saturating_sub(last));
        }
        at
    }

    #[inline(never)]
    fn mirror_clock(&mut self, cpu: CpuId, at: Nanos, delta: Nanos) {
        let c = &self.cpus[cpu];
        let idle = c.curr == c.idle_task;
        let lost = self.fair.lost_idle_time(cpu);
        let rq = self.rq(cpu);
        rq.clock = BOOT_NS + at;
        rq.clock_task = rq.clock;
        rq.lost_idle_time = lost;
        let known = rq.clock_pelt != 0;
        rq.clock_pelt = match idle || !known {
            true => rq.clock_task,
            false => rq.clock_pelt + ((delta * rq.cpu_capacity) >> 10),
        };
    }
}
