// SPDX-License-Identifier: GPL-2.0-only
//! The system calls of tasks, as far as a recording of a workload needs them.
//!
//! Owns: the calls and their meaning. Does not: know how a call is observed.
//!
//! A call is what a tracer at the boundary of system calls sees. A free mutex is taken without a
//! call, and a semaphore that nobody waits for is raised without one, as with glibc on Linux. A
//! simulated program emits calls by the same rules, so that a recording of a simulation tells as
//! much as one of a real kernel.

use scxlab_machine::Nanos;

/// The kind of a channel of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChannelKind {
    /// A pipe or a FIFO.
    Pipe,
    /// One direction of a stream socket between two tasks of this machine.
    Socket,
    /// The counter of an eventfd. `bytes` is its value.
    EventFd,
    /// A channel to another machine, a terminal or a device. Its other end is not recorded.
    Outside,
}

/// A system call. An object is a number that stands for one object for the whole recording, such as
/// the address of the kernel's structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Waits on a futex. The event is at the begin of the call. If the task then leaves its CPU, it
    /// sleeps until another task wakes it.
    FutexWait {
        /// The futex.
        object: u64,
        /// Length in ns after which the wait ends by itself; None: never.
        timeout: Option<Nanos>,
    },
    /// Wakes tasks that wait on a futex. The event is at the begin of the call, and the wake-ups
    /// follow it.
    FutexWake {
        /// The futex.
        object: u64,
        /// Maximum number of tasks to wake.
        most: u32,
    },
    /// Writes to a channel. The event is at the begin of the call. If the task then leaves its CPU
    /// asleep, the channel was full.
    Write {
        /// The channel.
        object: u64,
        /// Kind of the channel.
        kind: ChannelKind,
        /// Number of bytes to be written.
        bytes: u64,
    },
    /// Read from a channel. The event is at the end of the call, after the wait for the bytes.
    Read {
        /// The channel.
        object: u64,
        /// Kind of the channel.
        kind: ChannelKind,
        /// Number of bytes that were read.
        bytes: u64,
    },
    /// Waits until one of several channels has bytes (`poll`, `select`, `epoll_wait`). The event is
    /// at the begin of the call. The reads follow after the wait.
    Poll {
        /// Length in ns after which the wait ends by itself; None: never.
        timeout: Option<Nanos>,
    },
    /// Sleeps for a length of time. The event is at the begin of the call.
    SleepFor {
        /// Length in ns.
        length: Nanos,
    },
    /// Sleeps until a time, as a periodic timer does. The event is at the begin of the call; a time
    /// that has passed already does not end in a sleep.
    SleepUntil {
        /// The time, on the clock of the trace's events.
        at: Nanos,
    },
    /// Waits for a device. The event is at the begin of the call. If the length of the wait depends
    /// on the device, only the wake-up tells it.
    Io {
        /// Number of bytes; 0 if unknown.
        bytes: u64,
    },
    /// `execve`.
    Exec,
    /// `sched_yield`.
    Yield,
    /// Waits for a child to end (`wait4`, `pthread_join`).
    Join,
    /// The program reports finished units of work: a simulated program's count, or a line that a
    /// program writes into the kernel's `trace_marker`.
    Count {
        /// Number of units.
        units: u64,
    },
}
