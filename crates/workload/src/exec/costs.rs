// SPDX-License-Identifier: GPL-2.0-only
//! The costs of the library and kernel work behind an op, beyond the operations that the kernel
//! model charges itself.
//!
//! Owns: the names of these costs. Does not: own their values, which come from the machine's cost
//! table. All values are 0 by default, which makes tests exact.

use scxlab_kernel::behavior::{Access, Order, RegionId};
use scxlab_kernel::memory::PAGE_BYTES;
use scxlab_machine::cost::CostTable;
use scxlab_machine::id::Nanos;

use crate::compile::insn::{LongCall, RegionAccess};
use crate::program::{Pattern, PipeKind, Touch, TouchKind};

macro_rules! costs {
    ($($(#[$doc:meta])* $name:ident = $part:ident.$cost:ident,)*) => {
        /// Costs in nanoseconds, charged to the calling task's CPU unless the field says otherwise.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct SyscallCosts {
            $($(#[$doc])* pub $name: Nanos,)*
        }

        impl SyscallCosts {
            /// Returns the costs of a machine's table.
            pub fn of(table: &CostTable) -> Self {
                SyscallCosts { $($name: table.$part.$cost,)* }
            }
        }
    };
}

costs! {
    /// Going to sleep on a futex. An uncontended lock or semaphore costs nothing.
    futex_wait = workload.futex_wait_ns,
    /// The part of `futex_wait` until the kernel has compared the word; all of it, if the word is
    /// another by then.
    futex_check = workload.futex_check_ns,
    /// Waking on a futex, once per call, however many threads wake.
    futex_wake = workload.futex_wake_ns,
    /// `clock_nanosleep`: setting the timer.
    timer = workload.timer_ns,
    /// A pipe's read or write, per call.
    pipe_rw = workload.pipe_rw_ns,
    /// Cache lines (not ns) of a pipe's state, which go over to the CPU that uses the pipe.
    pipe_lines = workload.pipe_lines,
    /// Cache lines of a message in a pipe, which its reader gets from the writer's CPU.
    pipe_message_lines = workload.pipe_message_lines,
    /// A pipe's copy, per KiB.
    pipe_kib = workload.pipe_ns_per_kib,
    /// A socket's send or receive, per call.
    sock_rw = workload.sock_rw_ns,
    /// Cache lines of a socket's state.
    sock_lines = workload.sock_lines,
    /// Cache lines of a message in a socket.
    sock_message_lines = workload.sock_message_lines,
    /// A socket's copy, per KiB.
    sock_kib = workload.sock_ns_per_kib,
    /// `clone` or `fork`, in the parent before the child exists.
    fork = syscall.fork_ns,
    /// `execve`, on the CPU that it chose for the task.
    exec = syscall.exec_ns,
    /// `exit`, before the task is dead.
    exit = syscall.exit_ns,
    /// `sched_setaffinity`, `setpriority`, `sched_setattr`.
    sched_set = workload.sched_set_ns,
    /// A write to `cgroup.procs`.
    cgroup_move = workload.cgroup_move_ns,
    /// `setxattr` on a cgroup's directory.
    set_xattr = workload.set_xattr_ns,
    /// Submitting an I/O and taking its completion.
    io_submit = workload.io_submit_ns,
    /// Time until the device answers. The task sleeps.
    io_latency = workload.io_latency_ns,
    /// The device's transfer, per KiB. The task sleeps.
    io_kib = workload.io_ns_per_kib,
    /// Reading memory in sequence, per KiB. Charged as work.
    mem_read_kib = workload.mem_read_ns_per_kib,
    /// Writing memory in sequence, per KiB. Charged as work.
    mem_write_kib = workload.mem_write_ns_per_kib,
    /// One access that misses the cache: random order, or a chase. Charged as work.
    mem_access = workload.mem_access_ns,
    /// CPU time of a pass of a loop in which no time has passed; at least 1. It is a guard, not a
    /// model: it bounds the number of events of a program that does nothing.
    empty_loop = workload.empty_loop_ns,
}

/// Size of a cache line in bytes. An access closer than this to the access before it is in the same
/// line.
const LINE: u64 = 64;

impl SyscallCosts {
    /// Returns the cost of one read or write.
    pub(super) fn pipe(&self, kind: PipeKind, bytes: u64) -> Nanos {
        match kind {
            PipeKind::Pipe => self.pipe_rw.saturating_add(per_kib(self.pipe_kib, bytes)),
            PipeKind::Socket => self.sock_rw.saturating_add(per_kib(self.sock_kib, bytes)),
        }
    }

    /// Returns the number of cache lines of a pipe's state, and of a message in it.
    pub(super) fn pipe_lines(&self, kind: PipeKind) -> (u64, u64) {
        match kind {
            PipeKind::Pipe => (self.pipe_lines, self.pipe_message_lines),
            PipeKind::Socket => (self.sock_lines, self.sock_message_lines),
        }
    }

    /// Returns the time that the device takes.
    pub(super) fn io_time(&self, bytes: u64) -> Nanos {
        self.io_latency.saturating_add(per_kib(self.io_kib, bytes))
    }

    /// Returns the work of touching memory: a cost per KiB for sequential accesses, a cost per
    /// access for random accesses and chases.
    pub(super) fn touch(&self, touch: &Touch) -> Nanos {
        let per_pass = touch.size.div_ceil(touch.stride.max(1));
        let count = if touch.count == 0 { per_pass } else { touch.count };
        if touch.kind == TouchKind::Chase || touch.pattern == Pattern::Random {
            return self.mem_access.saturating_mul(count);
        }
        // A stride longer than a line still costs one line per access.
        let bytes = count.saturating_mul(touch.stride.min(LINE));
        let rate =
            if touch.kind == TouchKind::Read { self.mem_read_kib } else { self.mem_write_kib };
        per_kib(rate, bytes)
    }
}

impl SyscallCosts {
    /// Returns the time of a call that is a step of its own.
    pub(crate) fn long_call(&self, call: LongCall) -> Nanos {
        match call {
            LongCall::Fork => self.fork,
            LongCall::Exec => self.exec,
            LongCall::Exit => self.exit,
        }
    }

    /// Returns the accesses to a region in the kernel's form.
    pub(super) fn access(&self, access: &RegionAccess, region: RegionId) -> Access {
        let RegionAccess { offset, touch, work, .. } = access;
        let first_page = offset / PAGE_BYTES;
        let pages = (offset + touch.size).div_ceil(PAGE_BYTES) - first_page;
        let permille = work.map_or(1000, |(_, percent)| percent * 10);
        let write = touch.kind == TouchKind::Write;
        let random = touch.kind == TouchKind::Chase || touch.pattern == Pattern::Random;
        let rate = if write { self.mem_write_kib } else { self.mem_read_kib };
        // Memory time in 1/1024 ns from one access (random) or page (sequential) to the next. The
        // bytes of an access are at most a line, also if the stride is longer.
        let (time, bytes_per_us) = if random {
            (self.mem_access.saturating_mul(1024), LINE * 1000 / self.mem_access.max(1))
        } else {
            let per_page = u128::from(rate * touch.stride.min(LINE) * PAGE_BYTES);
            let time = per_page / u128::from(touch.stride.max(1));
            (u64::try_from(time).unwrap_or(u64::MAX), 1024 * 1000 / rate.max(1))
        };
        Access {
            region,
            first_page,
            pages,
            order: match random {
                true => Order::Random,
                false => Order::Sequential { resume: work.is_some() },
            },
            write,
            memory_permille: permille,
            period: (time.saturating_mul(1000) / permille).max(1),
            traffic: bytes_per_us * if write { 2 } else { 1 },
        }
    }
}

fn per_kib(cost: Nanos, bytes: u64) -> Nanos {
    let total = u128::from(cost) * u128::from(bytes) / 1024;
    u64::try_from(total).unwrap_or(Nanos::MAX)
}
