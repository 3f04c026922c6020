// SPDX-License-Identifier: GPL-2.0-only
//! The cost table: the cost of everything that takes time on a machine, in integers.
//!
//! Owns: the list of constants (names, units, bounds) and the arithmetic that applies them.
//! Does not: decide when something is charged (the kernel crate does), or hold any number itself.
//! The numbers, each with unit and source, are in `machines/costs/*.toml` and in the overrides of
//! machine files.

mod scaled;
mod table;
mod units;

use serde::Serialize;

pub use scaled::CostFactors;
pub use table::{BASES, Constant, IdleState};
pub(crate) use table::{Overrides, default_base, read_source};
pub(crate) use units::ConstantValue;
pub use units::{ByDistance, Ratio};

use crate::id::Nanos;
use crate::topology::LOCAL_DISTANCE;

/// Declares the groups of constants, their typed fields and their names in TOML.
macro_rules! cost_table {
    ($( $(#[$gdoc:meta])* $group:ident: $Group:ident {
        $( $(#[$doc:meta])* $field:ident: $ty:ty = $key:literal in $unit:literal; )*
    } )*) => {
        $(
            $(#[$gdoc])*
            #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
            pub struct $Group { $( $(#[$doc])* pub $field: $ty, )* }
        )*

        /// The costs of one machine. Fields carry their unit in the name.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        pub struct CostTable {
            $( $(#[$gdoc])* pub $group: $Group, )*
            /// Idle states, shallowest first; never empty.
            pub idle: Vec<IdleState>,
            /// All constants with unit and source, for reports; sorted by name.
            #[serde(skip)]
            pub constants: Vec<Constant>,
        }

        /// Group, key and unit of each constant.
        pub(crate) const NAMES: &[(&str, &str, &str)] =
            &[ $( $( (stringify!($group), $key, $unit), )* )* ];

        impl CostTable {
            /// Fills the fields by asking `get` for each constant by group and key.
            fn fill<E>(
                mut get: impl FnMut(&'static str, &'static str) -> Result<ConstantValue, E>,
                mistyped: impl Fn(&'static str, &'static str, &'static str) -> E,
                idle: Vec<IdleState>,
                constants: Vec<Constant>,
            ) -> Result<CostTable, E> {
                Ok(CostTable {
                    $( $group: $Group { $(
                        $field: <$ty as units::FromValue>::from_value(get(stringify!($group), $key)?)
                            .ok_or_else(|| mistyped(
                                stringify!($group), $key, <$ty as units::FromValue>::FORM,
                            ))?,
                    )* }, )*
                    idle,
                    constants,
                })
            }
        }
    };
}

cost_table! {
    /// Execution of BPF programs.
    bpf: BpfCosts {
        /// One instruction of JIT-compiled code, on average.
        insn_ps: u64 = "insn" in "ps";
        /// Entering and leaving a helper, without its work.
        helper_call_ns: u64 = "helper_call" in "ns";
        /// Entering and leaving a kfunc, without its work.
        kfunc_call_ns: u64 = "kfunc_call" in "ns";
        /// The trampoline and bookkeeping around one struct_ops callback.
        ops_callback_ns: u64 = "ops_callback" in "ns";
        /// Bytes that a helper or kfunc handles within the cost of its call. Each further eight
        /// bytes cost one instruction.
        call_bytes: u64 = "call" in "bytes";
        /// Number of bytes whose handling costs as much as allocating or freeing one page of an
        /// arena.
        arena_page_bytes: u64 = "arena_page" in "bytes";
    }
    /// The work of helpers and kfuncs, beyond entering and leaving them.
    kfunc: KfuncCosts {
        /// Putting a task on a DSQ, without the cost of the DSQ's lock.
        dsq_insert_ns: u64 = "dsq_insert" in "ns";
        /// Moving a task between DSQs, without the cost of the DSQs' locks.
        dsq_move_ns: u64 = "dsq_move" in "ns";
        /// Examining one task while walking a DSQ.
        dsq_scan_task_ns: u64 = "dsq_scan_task" in "ns";
        /// Examining one word (64 CPUs) of an idle mask.
        idle_scan_word_ns: u64 = "idle_scan_word" in "ns";
        /// Atomically claiming one CPU in an idle mask.
        idle_claim_ns: u64 = "idle_claim" in "ns";
        /// One operation on one word of a cpumask.
        cpumask_word_ns: u64 = "cpumask_word" in "ns";
        /// Arming or cancelling a bpf_timer.
        timer_arm_ns: u64 = "timer_arm" in "ns";
        /// Finding a task's or cgroup's local storage.
        local_storage_ns: u64 = "local_storage" in "ns";
        /// Finding a key in a hash map.
        hash_lookup_ns: u64 = "hash_lookup" in "ns";
        /// Inserting, replacing or deleting a key of a hash map.
        hash_update_ns: u64 = "hash_update" in "ns";
        /// Asking a CPU to reschedule, without the interrupt.
        kick_ns: u64 = "kick" in "ns";
        /// Formatting and storing one printed line.
        printk_ns: u64 = "printk" in "ns";
    }
    /// The core scheduler and the default class.
    sched: SchedCosts {
        /// schedule() and the switch of registers and stack, without picking the next task.
        context_switch_ns: u64 = "context_switch" in "ns";
        /// Additional cost of a switch that changes the address space.
        switch_mm_ns: u64 = "switch_mm" in "ns";
        /// try_to_wake_up() without the work that the task's scheduling class does in it.
        wakeup_ns: u64 = "wakeup" in "ns";
        /// The default class: choosing a CPU for a waking task, fixed part.
        select_ns: u64 = "select" in "ns";
        /// The default class: examining one CPU while searching for an idle one.
        select_scan_cpu_ns: u64 = "select_scan_cpu" in "ns";
        /// The default class: putting a task on a run queue, per level of the hierarchy.
        enqueue_ns: u64 = "enqueue" in "ns";
        /// The default class: taking a task off a run queue, per level of the hierarchy.
        dequeue_ns: u64 = "dequeue" in "ns";
        /// The default class: picking the next task, per level of the hierarchy.
        pick_ns: u64 = "pick" in "ns";
        /// The default class: one attempt at balancing, fixed part.
        balance_ns: u64 = "balance" in "ns";
        /// The default class: examining one CPU's load while balancing.
        balance_scan_cpu_ns: u64 = "balance_scan_cpu" in "ns";
        /// Waiting until every CPU has passed a quiescent state (synchronize_rcu()).
        rcu_sync_ns: u64 = "rcu_sync" in "ns";
        /// Moving a queued task to another run queue, without the cost of the queues' locks.
        migrate_ns: u64 = "migrate" in "ns";
    }
    /// System calls.
    syscall: SyscallCosts {
        /// Entry and exit of any system call.
        entry_ns: u64 = "entry" in "ns";
        /// fork() or clone() of a thread, in the parent.
        fork_ns: u64 = "fork" in "ns";
        /// execve().
        exec_ns: u64 = "exec" in "ns";
        /// exit() of a task.
        exit_ns: u64 = "exit" in "ns";
    }
    /// Interrupts.
    irq: IrqCosts {
        /// Sending an IPI: the sender's cost.
        ipi_send_ns: u64 = "ipi_send" in "ns";
        /// Time from sending an IPI until its handler starts on an awake CPU.
        ipi_latency_ns: ByDistance = "ipi_latency" in "ns";
        /// A reschedule interrupt: entry, handler, return.
        resched_ns: u64 = "resched" in "ns";
        /// The scheduler tick: entry, handler, return, without the work that the running task's
        /// scheduling class does in it.
        tick_ns: u64 = "tick" in "ns";
        /// A timer interrupt that expires one timer.
        timer_ns: u64 = "timer" in "ns";
        /// Programming the timer hardware for an earlier expiry.
        hrtimer_arm_ns: u64 = "hrtimer_arm" in "ns";
    }
    /// Locks of the kernel.
    lock: LockCosts {
        /// Taking and releasing a free lock whose cache line is in the CPU's own cache.
        uncontended_ns: u64 = "uncontended" in "ns";
        /// Taking a lock that another CPU held last, by the distance to that CPU. The cost includes
        /// moving the lock's cache line and the data that the lock guards.
        hand_over_ns: ByDistance = "hand_over" in "ns";
        /// Further time of a hand-over for each other CPU that waits for the lock.
        waiter_ns: u64 = "waiter" in "ns";
    }
    /// Caches.
    cache: CacheCosts {
        /// Getting a cache line that another CPU wrote last, by the distance to that CPU.
        line_ns: ByDistance = "line" in "ns";
        /// Refilling one KiB of a task's footprint after a migration, by the migration's distance.
        refill_ns_per_kib: ByDistance = "refill" in "ns/KiB";
    }
    /// Simultaneous multithreading.
    smt: SmtCosts {
        /// Speed of each thread of a core when another thread is busy, relative to running alone.
        busy_sibling_speed: Ratio = "busy_sibling_speed" in "ratio";
    }
    /// Memory access.
    memory: MemoryCosts {
        /// Time of an access at node distance 20, relative to distance 10; linear in distance.
        remote_slowdown: Ratio = "remote_slowdown" in "ratio";
        /// Bytes that the memory of one node can deliver.
        bandwidth_mb_s: u64 = "bandwidth" in "MB/s";
        /// Bytes that the CPUs of one node can fetch from another node, per ordered pair of nodes.
        link_mb_s: u64 = "link_bandwidth" in "MB/s";
        /// First access to a small page, without clearing the page.
        page_fault_ns: u64 = "page_fault" in "ns";
        /// First access to a huge page, without clearing the page.
        huge_fault_ns: u64 = "huge_fault" in "ns";
        /// Clearing a new page.
        page_clear_ns_per_kib: u64 = "page_clear" in "ns/KiB";
        /// A fault on a page that automatic NUMA balancing has marked, without migration.
        hint_fault_ns: u64 = "hint_fault" in "ns";
        /// Migrating a page, small or huge, without copying it.
        page_migrate_ns: u64 = "page_migrate" in "ns";
        /// Copying a page within a node.
        page_copy_ns_per_kib: u64 = "page_copy" in "ns/KiB";
        /// Marking one entry of a page table for automatic NUMA balancing.
        pte_scan_ns: u64 = "pte_scan" in "ns";
        /// Flushing the CPU's own TLB.
        tlb_flush_ns: u64 = "tlb_flush" in "ns";
        /// Flushing the TLB on request of another CPU, in an interrupt.
        tlb_ipi_ns: u64 = "tlb_ipi" in "ns";
        /// Time of a random access in huge pages, relative to one in small pages.
        huge_access: Ratio = "huge_access" in "ratio";
    }
    /// Guests: what a virtual CPU costs beyond the work of its guest.
    guest: GuestCosts {
        /// HLT of a virtual CPU: exit, blocking and the later entry, without the host's scheduler.
        halt_ns: u64 = "halt" in "ns";
        /// Exit of a virtual CPU that interrupts another one or wakes a halted one.
        ipi_ns: u64 = "ipi" in "ns";
        /// An interrupt to a running virtual CPU, at the receiver.
        inject_ns: u64 = "inject" in "ns";
        /// Exit that arms the guest's timer.
        timer_ns: u64 = "timer" in "ns";
        /// A pause-loop exit with the search for a virtual CPU to yield to.
        pause_ns: u64 = "pause" in "ns";
        /// Time in a pause loop until the exit, after the virtual CPU was scheduled in.
        ple_window_ns: u64 = "ple_window" in "ns";
        /// Factor on the window after each pause-loop exit, until the virtual CPU is scheduled in.
        ple_grow: Ratio = "ple_grow" in "ratio";
        /// Time that a waiter for a paravirtual spin lock spins before it halts.
        pv_spin_ns: u64 = "pv_spin" in "ns";
    }
    /// The scheduler tick.
    clock: ClockCosts {
        /// Ticks per second (CONFIG_HZ).
        tick_hz: u64 = "tick" in "hz";
    }
    /// Costs of a workload's ops, beyond the costs that the kernel model charges.
    workload: WorkloadCosts {
        /// Going to sleep on a futex.
        futex_wait_ns: u64 = "futex_wait" in "ns";
        /// Calling futex_wait() for a word that has another value by then.
        futex_check_ns: u64 = "futex_check" in "ns";
        /// Waking on a futex, per call.
        futex_wake_ns: u64 = "futex_wake" in "ns";
        /// clock_nanosleep(): setting the timer.
        timer_ns: u64 = "timer" in "ns";
        /// A pipe's read or write, per call.
        pipe_rw_ns: u64 = "pipe_rw" in "ns";
        /// Cache lines of a pipe's state that each read and write changes.
        pipe_lines: u64 = "pipe_lines" in "lines";
        /// Cache lines of a message in a pipe, beside its data, that its reader gets.
        pipe_message_lines: u64 = "pipe_message_lines" in "lines";
        /// Copying the data of a pipe's read or write.
        pipe_ns_per_kib: u64 = "pipe_kib" in "ns/KiB";
        /// A socket's send or receive, per call.
        sock_rw_ns: u64 = "sock_rw" in "ns";
        /// Cache lines of a socket's state that each send and receive changes.
        sock_lines: u64 = "sock_lines" in "lines";
        /// Cache lines of a message in a socket, beside its data, that its receiver gets.
        sock_message_lines: u64 = "sock_message_lines" in "lines";
        /// Copying the data of a socket's send or receive.
        sock_ns_per_kib: u64 = "sock_kib" in "ns/KiB";
        /// sched_setaffinity(), setpriority(), sched_setattr(), beyond the entry and exit of the
        /// system call.
        sched_set_ns: u64 = "sched_set" in "ns";
        /// A write to cgroup.procs, beyond the entry and exit of the system call.
        cgroup_move_ns: u64 = "cgroup_move" in "ns";
        /// setxattr() on a cgroup's directory, beyond the entry and exit of the system call.
        set_xattr_ns: u64 = "set_xattr" in "ns";
        /// Submitting an I/O and taking its completion.
        io_submit_ns: u64 = "io_submit" in "ns";
        /// Time until a device answers.
        io_latency_ns: u64 = "io_latency" in "ns";
        /// Transferring data from or to a device.
        io_ns_per_kib: u64 = "io_kib" in "ns/KiB";
        /// Reading memory in order.
        mem_read_ns_per_kib: u64 = "mem_read_kib" in "ns/KiB";
        /// Writing memory in order.
        mem_write_ns_per_kib: u64 = "mem_write_kib" in "ns/KiB";
        /// One access that misses every cache.
        mem_access_ns: u64 = "mem_access" in "ns";
        /// One pass of a workload's loop, if the loop's ops take no time.
        empty_loop_ns: u64 = "empty_loop" in "ns";
    }
}

/// `msecs_to_jiffies()`: returns the number of ticks of `tick_ns` that last for `ms` milliseconds,
/// rounded up.
pub fn to_jiffies(ms: u64, tick_ns: Nanos) -> u64 {
    (ms * 1_000_000).div_ceil(tick_ns)
}

impl CostTable {
    /// Returns the table `modern-x86`, which applies to machines that name no other table.
    pub fn modern() -> CostTable {
        default_base()
    }

    /// Returns the time between two ticks, rounded as in the kernel.
    pub fn tick_period_ns(&self) -> Nanos {
        // The divisor is not 0, because a table with 0 Hz is refused when it is loaded.
        1_000_000_000 / self.clock.tick_hz
    }

    /// Returns the time of `insns` BPF instructions, rounded to the nearest nanosecond.
    #[inline]
    pub fn insns_ns(&self, insns: u64) -> Nanos {
        insns.saturating_mul(self.bpf.insn_ps).saturating_add(500) / 1000
    }

    /// Returns the time to refill `bytes` of a footprint after a migration over `distance`.
    #[inline]
    pub fn refill_ns(&self, distance: crate::Distance, bytes: u64) -> Nanos {
        bytes.saturating_mul(self.cache.refill_ns_per_kib[distance]) / 1024
    }

    /// Returns the time to get the `lines` and the `bytes` of a message that a CPU at this distance
    /// wrote.
    #[inline]
    pub fn message_ns(&self, distance: crate::Distance, lines: u64, bytes: u64) -> Nanos {
        let lines = lines.saturating_mul(self.cache.line_ns[distance]);
        lines.saturating_add(self.refill_ns(distance, bytes))
    }

    /// Returns the factor (1 or more) by which a memory access over a node distance is slower than
    /// a local one.
    pub fn memory_slowdown(&self, node_distance: u32) -> Ratio {
        let Ratio { num, den } = self.memory.remote_slowdown;
        // No topology has a distance above 254, and num and den are at most 10^6, so the new
        // numerator stays below 2^32.
        let steps = node_distance.saturating_sub(LOCAL_DISTANCE).min(245);
        Ratio { num: den * LOCAL_DISTANCE + (num - den) * steps, den: den * LOCAL_DISTANCE }
    }

    /// Returns the idle state for an expected idle time: the deepest state whose minimum residency
    /// is not longer than this time.
    pub fn idle_state(&self, expected_idle_ns: Nanos) -> &IdleState {
        let deep_enough = |state: &&IdleState| state.min_residency_ns <= expected_idle_ns;
        self.idle.iter().rev().find(deep_enough).unwrap_or(&self.idle[0])
    }
}

#[cfg(test)]
mod tests;
