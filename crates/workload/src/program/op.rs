// SPDX-License-Identifier: GPL-2.0-only
//! The ops: one declaration each.
//!
//! Owns: each op's name, arguments, meaning in both executors, and refusals. The enum, the parser's
//! form, the checks of single arguments, the text of an op and docs/reference/workload.md follow
//! from the table at the end of this file.
//! Does not: check rules that concern several ops (`compile::check`), or execute (`compile::insn`
//! has the instruction that each op becomes).

use serde::{Deserialize, Serialize};

use super::TimeSpan;
use super::arg::*;
use super::work::{Buffer, Work};

/// Declaration of an op, in the words in which docs/reference/workload.md describes it.
#[derive(Debug)]
pub struct OpDecl {
    /// Key of the op in TOML and JSON.
    pub name: &'static str,
    pub meaning: &'static [&'static str],
    pub args: &'static [ArgDecl],
    /// Whether the op's value is its only argument, instead of a table of arguments.
    pub bare: bool,
    /// Meaning with real threads, where this differs from `meaning` or adds to it.
    pub native: &'static str,
    /// Reasons to refuse the op, besides the ranges of its arguments.
    pub refused: &'static str,
}

/// Declaration of an argument of an op.
#[derive(Debug)]
pub struct ArgDecl {
    pub name: &'static str,
    /// Type, unit and range.
    pub domain: &'static str,
    /// Example of a value, in TOML.
    pub example: &'static str,
    /// Meaning of the argument, and its default if it may be absent.
    pub meaning: &'static [&'static str],
}

macro_rules! ops {
    ($(
        $(#[doc = $meaning:literal])*
        $name:literal = $variant:ident
            $( ( $bare:ident : $bare_role:ident ) )?
            $( { $(
                $(#[doc = $arg_meaning:literal])*
                $(#[serde($($serde:tt)*)])*
                $arg:ident : $role:ident
            ),* $(,)? } )?
            $(, native: $native:literal)?
            $(, refused: $refused:literal)?;
    )*) => {
        /// An operation of a thread. A string argument names a shared object of the op's kind;
        /// naming an object creates it.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub enum Op {
            $(
                $(#[doc = $meaning])*
                #[serde(rename = $name)]
                $variant
                    $( ( <$bare_role as Arg>::Value ) )?
                    $( { $(
                        $(#[doc = $arg_meaning])*
                        $(#[serde($($serde)*)])*
                        $arg: <$role as Arg>::Value,
                    )* } )?,
            )*
        }

        /// Every op, in the order of the declarations.
        pub const OPS: &[OpDecl] = &[$(
            OpDecl {
                name: $name,
                meaning: &[$($meaning),*],
                args: &[
                    $( ArgDecl {
                        name: stringify!($bare),
                        domain: $bare_role::DOMAIN,
                        example: $bare_role::EXAMPLE,
                        meaning: &[],
                    }, )?
                    $($( ArgDecl {
                        name: stringify!($arg),
                        domain: $role::DOMAIN,
                        example: $role::EXAMPLE,
                        meaning: &[$($arg_meaning),*],
                    }, )*)?
                ],
                bare: false $( || !stringify!($bare).is_empty() )?,
                native: concat!($($native)?),
                refused: concat!($($refused)?),
            },
        )*];

        impl Op {
            /// Key of the op in TOML and JSON.
            pub fn name(&self) -> &'static str {
                match self {
                    $( Op::$variant { .. } => $name, )*
                }
            }

            /// Checks each argument by itself.
            pub(crate) fn check_args(&self) -> Result<(), String> {
                match self {
                    $(
                        Op::$variant $( ( $bare ) )? $( { $($arg),* } )? => {
                            $( $bare_role::check($bare)?; )?
                            $($( $role::check($arg)?; )*)?
                        }
                    )*
                }
                Ok(())
            }

            /// Returns the op and its arguments as text. The body of a loop or phase is left out.
            pub(crate) fn text(&self) -> String {
                let mut words = vec![self.name().to_owned()];
                match self {
                    $(
                        Op::$variant $( ( $bare ) )? $( { $($arg),* } )? => {
                            $( words.push($bare_role::text(stringify!($bare), $bare)); )?
                            $($( words.push($role::text(stringify!($arg), $arg)); )*)?
                        }
                    )*
                }
                words.retain(|word| !word.is_empty());
                words.join(" ")
            }
        }
    };
}

fn one_line() -> u32 {
    1
}

kinds! {
    /// Names of the pipes that one op watches.
    Pipes(Vec<String>): "names of 1 to 64 pipes", "[\"p{i}\", \"q\"]",
        |pipes| {
            within((1..=64).contains(&pipes.len()), "a poll needs from 1 to 64 pipes")?;
            pipes.iter().try_for_each(|pipe| object_name(pipe))
        },
        |_, pipes| pipes.join(" ");
    LineCount(u32): "1 to 64", "4",
        |count| within((1..=MAX_LINES).contains(count), "an op changes 1 to 64 counters"),
        |_, count| count.to_string();
    Timeout(Option<TimeSpan>): "time with unit, at most 1000000000s", "\"10ms\"",
        |span| span.as_ref().map_or(Ok(()), Span::check),
        |_, span| span.map_or(String::new(), |span| format!("timeout={span}"));
}

ops! {
    /// Computes for this long. The time is work at reference speed: a slow CPU, a busy SMT sibling
    /// or a cold cache make it last longer. With a region, a part of the work is access to memory,
    /// which takes longer if the memory is remote or its node's bandwidth is in demand.
    "compute" = Compute(work: Work),
        native: "A loop that touches no memory, calibrated once per run. With a region: refused.",
        refused: "if the region does not exist, or is smaller than `offset` and `size` say.";

    /// Uses this much CPU time, independent of the CPU's speed.
    "compute_wall" = ComputeWall(time: Span),
        native: "Computes until the thread's CPU clock has advanced by the time.";

    /// Sleeps for this long.
    "sleep" = Sleep(time: Span),
        native: "CLOCK_MONOTONIC, absolute; timer slack is 1 ns, since the simulation has none.";

    /// Sleeps until the timer's next period ends. The first period begins at the thread's start,
    /// with its `delay`. The call returns at once if the period has ended already.
    "timer" = Timer {
        name: Timer,
        period: Span,
        /// `relative`: a late caller restarts the period from now; `absolute`: the ends of periods
        /// are fixed, and a late caller catches up. A timer is absolute if one of its uses is.
        /// Default: `relative`.
        #[serde(default)]
        mode: Mode,
        /// Each thread has a timer of its own. Default: false.
        #[serde(default)]
        unique: Flag,
    },
        native: "CLOCK_MONOTONIC, absolute; timer slack is 1 ns, since the simulation has none.";

    /// Takes the mutex. Waiters are served first come, first served: an unlock hands the mutex to
    /// the first. If `[[mutex]]` declares it with `barging = true`, an unlock only wakes the first
    /// waiter, and a running thread may take the mutex before it, as with glibc's mutexes. A thread
    /// that finds such a mutex taken sleeps only if it is still taken when the kernel looks.
    "lock" = Lock(mutex: Mutex),
        native: "A queue in shared memory and a futex per thread, in the same order; a barging mutex is one futex, as glibc's.";

    /// Releases the mutex.
    "unlock" = Unlock(mutex: Mutex),
        refused: "without a `lock` of the mutex before it in the thread's text.";

    /// `pthread_cond_wait`: releases the mutex, waits for a signal, and takes the mutex again.
    "wait" = Wait {
        cond: Cond,
        mutex: Mutex,
    },
        refused: "without a `lock` of the mutex before it in the thread's text.";

    /// Wakes the first thread that waits for the condition. Without one, the signal is lost.
    "signal" = Signal(cond: Cond);

    /// Wakes every thread that waits for the condition.
    "broadcast" = Broadcast(cond: Cond);

    /// Waits until all parties are at the barrier: the threads of the start that use it, or the
    /// number that `[[barrier]]` declares.
    "barrier" = Barrier(barrier: Barrier);

    /// Adds one to the semaphore, or wakes its first waiter.
    "sem_post" = SemPost(semaphore: Sem);

    /// Takes one from the semaphore; waits while it is 0. It starts at 0, or at the value that
    /// `[[semaphore]]` declares.
    "sem_wait" = SemWait(semaphore: Sem);

    /// Takes one from the semaphore; if it is 0, ends the thread. Threads that begin each pass of
    /// an endless loop with this op share the passes, as many as the semaphore's value: a fast
    /// thread does more of them.
    "take_or_exit" = TakeOrExit(semaphore: Sem),
        native: "`sem_trywait`, then `exit`.";

    /// Writes to the pipe; returns when all bytes are in it. A write of up to 4,096 bytes enters
    /// whole. Writers are served first come, first served. The pipe's state comes from the CPU that
    /// used the pipe last (`workload.pipe_lines`, `workload.sock_lines` and `cache.line` of the
    /// machine).
    "write" = Write {
        pipe: Pipe,
        bytes: Bytes,
    },
        native: "A real pipe or Unix stream socket, held open by every process. Where all transfers \
                 of a pipe have one size of at most 4,096 bytes, the kernel's order of waiters \
                 decides; otherwise each side takes turns. `overhead` is the kernel's own.";

    /// Reads from the pipe; returns when it has all its bytes. Readers are served first come, first
    /// served. The pipe's state comes as for `write`, and the message from the CPU that wrote to
    /// the pipe last (`workload.pipe_message_lines`, `workload.sock_message_lines` and
    /// `cache.refill`).
    "read" = Read {
        pipe: Pipe,
        bytes: Bytes,
    },
        native: "As `write`.";

    /// Waits until any of the pipes can be read, as `poll(2)` does, and reads from the first of
    /// them in the order of the list. A thread that is woken looks again: if another reader was
    /// faster, it goes on waiting.
    "poll" = Poll {
        pipes: Pipes,
        /// Bytes to read; as for `read`, the op returns when it has them all. 0 reads nothing.
        /// Default: 0.
        #[serde(default)]
        bytes: Bytes,
        /// Time after which the op returns without having read. Default: never.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout: Timeout,
        /// After the timeout, poll again, until a pipe can be read, as servers do. Default: false.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        again: Flag,
    },
        native: "`ppoll` on the read ends of the pipes or sockets, then a read as by `read`. If another \
            reader was faster in between, that read waits.";

    /// Takes the spin lock; spins while another thread holds it. A preempted spinner keeps its
    /// ticket, and those behind it wait for it. In a guest, it is a lock of the guest's kernel: the
    /// guest does not preempt a thread that waits for it or holds it, and decides who gets it next.
    "spin_lock" = SpinLock(lock: SpinLock);

    /// Releases the spin lock.
    "spin_unlock" = SpinUnlock(lock: SpinLock),
        refused: "without a `spin_lock` of it before it in the thread's text.";

    /// Adds to counters that threads share, each in a cache line of its own, by one atomic
    /// instruction each, as for reference counts and statistics. A line that another CPU wrote last
    /// comes from that CPU, in the time that a lock takes for the way (`lock.hand_over` of the
    /// machine); otherwise an access takes as long as a free lock (`lock.uncontended`). Accesses of
    /// two CPUs at the same time do not wait for each other. In a guest, what counts is the
    /// machine's CPU.
    "atomic" = Atomic {
        lines: Lines,
        /// Number of counters. Default: 1.
        #[serde(default = "one_line")]
        count: LineCount,
    };

    /// Spins until all parties are at the barrier, which are counted as for `barrier`.
    "spin_barrier" = SpinBarrier(barrier: SpinBarrier);

    /// Accesses memory, in one or more passes over a buffer of the thread's own. The costs are the
    /// machine's: by bytes in sequence, by accesses in random order or along a linked list. With a
    /// region, the first access to a page places it, and the accesses take longer if the memory is
    /// remote or its node's bandwidth is in demand.
    "touch" = Touch(buffer: Buffer),
        native: "Real accesses to a private mapping of the largest size that the template touches, \
                 with all pages present before the start. With a region: refused.",
        refused: "if the region does not exist, or is smaller than `offset` and `size` say.";

    /// Unmaps memory of the process: flushes the TLB of every CPU that runs a thread of the
    /// process, and waits for them.
    "unmap" = Unmap,
        native: "`mmap` of one page, a write to it, and `munmap`.";

    /// Waits for a device: its latency and the transfer.
    "io" = Io {
        bytes: Bytes,
        /// The device has neither latency nor transfer, so only the call costs time. Default:
        /// false.
        #[serde(default)]
        null: Flag,
    },
        native: "Sleeps for the latency and transfer time that the caller gives, 100 us and 0 by \
                 default. `null` writes to /dev/null.";

    /// Starts one more thread of a template.
    "fork" = Fork(thread: Template),
        native: "In the own process a pthread, in a process that does not live a `clone`. In another \
                 process that lives: refused.",
        refused: "if templates fork one another in a cycle.";

    /// Waits until every thread that this one forked has exited.
    "join" = Join;

    /// `execve`: the thread continues after it, with a new address space.
    "exec" = Exec,
        native: "Executes this program again, which continues the thread; costs its start-up. In a \
                 process with other living threads: refused.";

    /// `sched_yield`.
    "yield" = Yield;

    /// Ends the thread.
    "exit" = Exit;

    /// `sched_setaffinity`: the thread may run on these CPUs only.
    "set_affinity" = SetAffinity(cpus: Cpus),
        refused: "if the machine lacks one of the CPUs.";

    /// Allows every CPU again.
    "clear_affinity" = ClearAffinity;

    /// Takes these CPUs off line: their tasks go to other CPUs. The call fails for the CPU that the
    /// thread runs on, and for the last one on line.
    "cpu_offline" = CpuOffline(cpus: Cpus),
        native: "Refused.",
        refused: "if the machine lacks one of the CPUs.";

    /// Brings these CPUs back on line.
    "cpu_online" = CpuOnline(cpus: Cpus),
        native: "Refused.",
        refused: "if the machine lacks one of the CPUs.";

    /// `setpriority`.
    "set_nice" = SetNice(nice: Nice);

    /// `sched_setattr`.
    "set_policy" = SetPolicy(policy: Policy),
        native: "A normal task's slice request goes with it. SCHED_EXT is 7.";

    /// Moves the thread to a cgroup, which exists from the start of the run.
    "move_cgroup" = MoveCgroup(cgroup: Cgroup),
        native: "The thread alone, through `cgroup.threads`.";

    /// `setxattr` on a cgroup's directory.
    "set_xattr" = SetXattr {
        cgroup: Cgroup,
        name: Xattr,
        value: Text,
    };

    /// rt-app's suspend: waits on the condition variable of that name, under the mutex of that
    /// name.
    "suspend" = Suspend(name: Cond);

    /// rt-app's resume: broadcasts the condition variable of that name. A resume before the suspend
    /// is lost.
    "resume" = Resume(name: Cond);

    /// Counts finished units of work, the throughput of the run.
    "count" = Count(units: Units);

    /// Repeats its ops.
    "loop" = Loop {
        /// Number of passes. Default: for ever.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        times: Times,
        ops: Body,
    },
        refused: "without ops, or more than 32 levels deep.";

    /// A loop whose passes are rows of rt-app's log and units of work.
    "phase" = Phase {
        name: Text,
        /// Number of passes. Default: for ever.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        times: Times,
        ops: Body,
    },
        refused: "without ops, within another phase, or more than 32 levels deep.";
}

#[cfg(test)]
mod tests;
