// SPDX-License-Identifier: GPL-2.0-only
//! The interface between the kernel and the behaviour of its tasks: a `Behavior` returns each
//! task's next step, and acts on the system through `Sys`, the system calls of the simulation.
//!
//! Owns: the types of this interface.
//! Does not: know programs, locks or files (see the workload crate), or schedule.

use std::any::Any;

use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CgroupId, CpuId, Nanos, NodeId, TaskId};

pub use crate::memory::access::{Access, AccessId, Order};
pub use crate::memory::region::{MemPolicy, RegionId, RegionSpec};
pub use crate::task::CacheMarks;
pub use scxlab_trace::{Call, ChannelKind};

/// Next step of a task. A computation or a spin makes progress only while the task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskStep {
    /// Work that takes `work` ns on a full-speed CPU with a warm cache and an idle sibling. With 0,
    /// the task only returns to user mode, where the kernel may preempt it, and where other events
    /// come that are due (`Sys::others_due`).
    Compute { work: Nanos },
    /// User code that takes this much wall time on a CPU, whatever the CPU's speed (rt-app
    /// `runtime`).
    ComputeWall { wall: Nanos },
    /// Work that takes `work` ns as `Compute` does, if all memory of its accesses is local and no
    /// other task uses the node's bandwidth. The accesses are those of the last `Sys::set_access`.
    // No variant has more than one field, which keeps a step in two registers.
    Memory { work: Nanos },
    /// Burn the CPU until `Sys::stop_spin`. A task that spins for a lock does not notice that the
    /// lock's holder is preempted.
    Spin,
    /// As `Spin`, but for at most `max` ns of the task's time on a CPU.
    SpinFor { max: Nanos },
    /// Sleep until `Sys::wake`. If a wake-up came while the task was awake, the sleep ends at once.
    Block,
    /// Sleep until this time, or until an earlier `Sys::wake`.
    SleepUntil(Nanos),
    /// `sched_yield(2)`.
    Yield,
    /// `execve(2)`: the task may be moved to another CPU, because it has no cache content to lose.
    /// The time that it then takes is for the behavior to ask for.
    Exec,
    /// Flush the TLB of every CPU that runs a thread of the task's process, and wait for them.
    FlushTlb,
    /// The end of the task. The time of `exit(2)` comes before, and is for the behavior to ask for.
    Exit,
}

/// What a virtual CPU of a guest runs, for the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRun {
    /// Number of the guest.
    pub guest: u32,
    /// Number of the virtual CPU in its guest.
    pub vcpu: u32,
    /// Number of the thread in its guest. None: the virtual CPU is idle.
    pub thread: Option<u32>,
    /// Whether the thread spins.
    pub spins: bool,
}

/// The policies of `sched_setscheduler(2)`, with their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Normal,
    Batch,
    Idle,
    /// SCHED_EXT, which acts as `Normal` while no sched_ext scheduler is loaded.
    Ext,
    Fifo {
        prio: u8,
    },
    RoundRobin {
        prio: u8,
    },
    Deadline {
        runtime: Nanos,
        deadline: Nanos,
        period: Nanos,
    },
}

/// Properties of a new task. The task inherits all other properties from its parent, if it has one.
#[derive(Clone, Debug)]
pub struct TaskSpec {
    /// `comm`, cut at 15 bytes.
    pub name: String,
    pub policy: Policy,
    /// Nice value, -20..=19
    pub nice: i8,
    /// EEVDF slice request (`sched_attr.sched_runtime` of a normal task), ns; 0: the default.
    pub slice_request: Nanos,
    /// CPUs that the task may use. None means those of the parent, or every CPU if there is no
    /// parent.
    pub affinity: Option<CpuMask>,
    pub cgroup: CgroupId,
    /// Any thread of the group to join; None starts a new process.
    pub thread_group_of: Option<TaskId>,
    /// Whether the task is a kernel thread, which has no address space (`mm` is NULL).
    pub kthread: bool,
    /// Bytes that the task touches again and again, and that must be refilled after a migration.
    pub footprint_bytes: u64,
}

impl TaskSpec {
    /// Returns the spec of a normal task of the root cgroup that may run on every CPU.
    pub fn normal(name: &str) -> TaskSpec {
        TaskSpec {
            name: name.into(),
            policy: Policy::Normal,
            nice: 0,
            slice_request: 0,
            affinity: None,
            cgroup: CgroupId(0),
            thread_group_of: None,
            kthread: false,
            footprint_bytes: 0,
        }
    }
}

/// Limits of a cgroup's cpu controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupSpec {
    /// `cpu.weight`, 1..=10000
    pub weight: u32,
    /// `cpu.max` quota per period, ns; None: no limit
    pub quota: Option<Nanos>,
    pub period: Nanos,
    /// `cpu.max.burst`, ns
    pub burst: Nanos,
    /// `cpu.idle`: whether the cgroup as a whole counts as SCHED_IDLE.
    pub idle: bool,
}

impl Default for CgroupSpec {
    fn default() -> Self {
        CgroupSpec { weight: 100, quota: None, period: 100_000_000, burst: 0, idle: false }
    }
}

/// Reason why a system call was refused. The text contains the kernel's errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SysError {
    #[error("invalid argument (EINVAL)")]
    Invalid,
    #[error("no such object (ENOENT)")]
    NoEntry,
    #[error("no such task (ESRCH)")]
    NoTask,
    #[error("busy (EBUSY)")]
    Busy,
    #[error("out of memory (ENOMEM)")]
    NoMemory,
    #[error("no space left (ENOSPC)")]
    NoSpace,
    /// Only a fork returns this error.
    #[error("ops.init_task() refused the new task with errno {0}")]
    Refused(i32),
}

/// System calls that a behaviour may make. They take effect at the caller's present instant, and
/// their cost delays the running task.
pub trait Sys {
    /// Virtual time of the caller, with the costs of its earlier calls.
    fn now(&self) -> Nanos;
    /// The CPU on which the present step runs.
    fn this_cpu(&self) -> CpuId;
    /// The CPU on which `task` runs, or ran last.
    fn cpu_of(&self, task: TaskId) -> CpuId;
    fn nr_cpus(&self) -> u32;
    /// Whether the kernel preempts the caller on its next return to user mode.
    fn must_schedule(&self) -> bool;
    /// Whether events are due that come before what the caller does next, because its earlier calls
    /// took time. They come first if the caller returns a step without work, and goes on after it.
    fn others_due(&self) -> bool {
        false
    }
    /// Wakes a blocked or sleeping task. Returns false if the task was awake; its next block or
    /// sleep then returns at once. `sync`: the waker is about to sleep (WF_SYNC).
    fn wake(&mut self, task: TaskId, sync: bool) -> bool;
    /// Ends the present `Spin` of a task, or its next `Spin` if the task does not spin yet.
    fn stop_spin(&mut self, task: TaskId);
    /// Starts a task. `parent` is None for tasks that exist when the run starts. A parent spends
    /// the time of the system call in a step before this call.
    fn fork(&mut self, parent: Option<TaskId>, spec: TaskSpec) -> Result<TaskId, SysError>;
    /// Charges the caller for kernel or library work that is not part of its steps.
    fn charge(&mut self, cost: Nanos);
    /// Requests a call of `Behavior::on_timer(token)` at the time `at`, in interrupt context of
    /// `cpu`.
    fn post(&mut self, at: Nanos, cpu: CpuId, token: u64);
    fn set_affinity(&mut self, task: TaskId, cpus: &CpuMask) -> Result<(), SysError>;
    fn set_nice(&mut self, task: TaskId, nice: i8) -> Result<(), SysError>;
    fn set_policy(&mut self, task: TaskId, policy: Policy) -> Result<(), SysError>;
    fn set_footprint(&mut self, task: TaskId, bytes: u64);
    fn mkdir(
        &mut self,
        parent: CgroupId,
        name: &str,
        spec: CgroupSpec,
    ) -> Result<CgroupId, SysError>;
    fn rmdir(&mut self, cgroup: CgroupId) -> Result<(), SysError>;
    fn set_cgroup(&mut self, cgroup: CgroupId, spec: CgroupSpec) -> Result<(), SysError>;
    /// Sets `cpuset.cpus`. None means that the cgroup uses its parent's CPUs.
    fn set_cpuset(&mut self, cgroup: CgroupId, cpus: Option<&CpuMask>) -> Result<(), SysError>;
    /// `setxattr()` on a cgroup's directory.
    fn set_xattr(&mut self, cgroup: CgroupId, name: &str, value: &[u8]) -> Result<(), SysError>;
    /// Sets `cpuset.mems`. None means that the cgroup uses its parent's nodes.
    fn set_mems(&mut self, _cgroup: CgroupId, _mems: Option<&[NodeId]>) -> Result<(), SysError> {
        Err(SysError::Invalid)
    }
    fn move_to_cgroup(&mut self, task: TaskId, cgroup: CgroupId) -> Result<(), SysError>;
    /// Takes a CPU off line or brings it back.
    fn set_cpu_online(&mut self, cpu: CpuId, online: bool) -> Result<(), SysError>;
    /// Draws a number from the named random stream of this run. A draw from one stream does not
    /// shift another.
    fn random(&mut self, stream: &'static str, task: TaskId) -> u64;
    /// Adds to a task's count of finished units of work (the workload's throughput).
    fn count_work(&mut self, task: TaskId, units: u64);
    /// Makes a region of memory, which belongs to no task until tasks access it. `NoMemory`: the
    /// nodes that it is populated on have too little room.
    fn region_new(&mut self, _spec: RegionSpec) -> Result<RegionId, SysError> {
        Err(SysError::Invalid)
    }
    /// Adds a region to the address space of a task's process.
    fn region_map(&mut self, _task: TaskId, _region: RegionId) {}
    /// Declares how steps access a region.
    fn access_new(&mut self, _access: Access) -> Result<AccessId, SysError> {
        Err(SysError::Invalid)
    }
    /// Says how the following memory steps of a task access memory.
    fn set_access(&mut self, _task: TaskId, _access: AccessId) {}
    /// Returns the number of present pages of a region by node, merged pages included.
    fn region_pages(&self, _region: RegionId) -> Vec<u64> {
        Vec::new()
    }
    /// Frees a region, which no task may access any more.
    fn region_free(&mut self, _region: RegionId) {}
    /// Ends the present step of a task that computes or spins. If another CPU runs the task, an
    /// interrupt to that CPU ends the step. If the task does not run, the step ends at once.
    fn kick(&mut self, _task: TaskId) {}
    /// Ends the step that the task is in at the time `at`. This replaces the task's earlier
    /// request; None removes it.
    fn cut_at(&mut self, _task: TaskId, _at: Option<Nanos>) {}
    /// Returns the work that `kick` or `cut_at` has left of the task's last step, in the unit of
    /// that step, and forgets it. 0: the step ended by itself.
    fn cut_rest(&mut self, _task: TaskId) -> Nanos {
        0
    }
    /// Returns the time for which the task has waited for a CPU so far (`sched_info.run_delay`).
    fn run_delay(&self, _task: TaskId) -> Nanos {
        0
    }
    /// Tells the kernel that the task goes on with another working set of this many bytes, which
    /// was last in the caches that `marks` names. Returns the marks of the working set so far. The
    /// task owes the time to refill the caches.
    fn switch_footprint(&mut self, _task: TaskId, _bytes: u64, marks: CacheMarks) -> CacheMarks {
        marks
    }
    /// Returns the time of the event that is handled. `now` is never earlier.
    fn event_time(&self) -> Nanos {
        self.now()
    }
    /// Whether the task is the current task of a CPU.
    fn is_on_cpu(&self, _task: TaskId) -> bool {
        true
    }
    /// Whether the task is awake and waits for a CPU.
    fn waits_for_cpu(&self, task: TaskId) -> bool {
        !self.is_on_cpu(task)
    }
    /// `yield_to()`: the caller gives its turn to a task that waits for a CPU. Returns false if the
    /// class of the two tasks refuses.
    fn yield_to(&mut self, _task: TaskId) -> bool {
        false
    }
    /// Returns which of the tasks that spin for a lock gets the lock at its release, as an index.
    /// None: the lock stays free, and the first of them that runs takes it.
    fn next_spinner(&self, _spinners: &mut dyn Iterator<Item = TaskId>) -> Option<usize> {
        Some(0)
    }
    /// Tells a task that spins for a lock that the lock is free, and whether it is the first of
    /// those that spin for it.
    fn lock_freed(&mut self, task: TaskId, _first: bool) {
        self.stop_spin(task);
    }
    /// Tells the kernel that the task begins (`held`) or ends to wait for and hold a spin lock. A
    /// kernel whose spin lock it is does not preempt the task meanwhile. Returns whether the kernel
    /// wants to preempt the task now.
    fn hold_lock(&mut self, _task: TaskId, _held: bool) -> bool {
        false
    }
    /// Returns the CPU of the machine on which the caller runs, and the time of an atomic
    /// instruction there on a cache line that the CPU `last` of the machine wrote last.
    fn atomic_time(&self, last: Option<CpuId>) -> (CpuId, Nanos);
    /// Returns the CPU of the machine on which the caller runs, and the time in which the caller
    /// gets what the CPU `last` of the machine wrote last: cache lines of shared state, and bytes
    /// of a message (`CostTable::message_ns`).
    fn message_time(&self, last: Option<CpuId>, lines: u64, bytes: u64) -> (CpuId, Nanos);
    /// Records what runs on a virtual CPU, for the trace.
    fn guest_run(&mut self, _run: GuestRun) {}
    /// Names a guest, or a thread of it, for the trace.
    fn guest_name(&mut self, _guest: u32, _thread: Option<u32>, _name: &str) {}
    /// Records a system call of the running task, for the trace.
    fn note_call(&mut self, _call: Call) {}
    /// Ends the run now, as if its duration had passed.
    fn finish(&mut self);
    /// Returns the virtual machine with the maps of BPF programs, for a task that is a scheduler's
    /// user-space half; None if the implementation has no BPF programs.
    fn bpf(&mut self) -> Option<&mut scxlab_bpf::vm::Vm> {
        None
    }
}

/// Behaviour of the tasks of a run. One object serves all tasks, so that they can share locks and
/// queues. The trait extends `Any`, so that the object's owner can get it back from a kernel with
/// its concrete type (`Kernel::behavior`).
pub trait Behavior: Any {
    /// Called once, at time 0, before any task exists.
    fn start(&mut self, sys: &mut dyn Sys);
    /// Returns the next step of a task that has finished its step and runs. This function may call
    /// `sys` any number of times first.
    fn step(&mut self, sys: &mut dyn Sys, task: TaskId) -> TaskStep;
    /// Handles a time that was requested with `Sys::post`.
    fn on_timer(&mut self, sys: &mut dyn Sys, token: u64);
    /// Hints that `step` will soon be called for this task, so that its data can be prefetched.
    fn prefetch_task(&self, _task: TaskId) {}
    /// The unit of `Sys::count_work`, singular: "loop", "message".
    fn unit(&self) -> &str;
    /// Returns what a task waits for, for the report of a deadlock (tasks still sleep, but no event
    /// is left). None: nothing worth reporting.
    fn waits_for(&self, task: TaskId) -> Option<String>;
}
