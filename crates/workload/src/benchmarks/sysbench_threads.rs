// SPDX-License-Identifier: GPL-2.0-only
//! sysbench_threads: threads that yield while they hold a mutex (`sysbench --test=threads`, version
//! 0.4).
//!
//! Models: the threads of one process take requests until none is left. A request repeats `yields`
//! times: lock its mutex, `sched_yield`, unlock it. Requests use the mutexes in turn. A unit is a
//! request, sysbench's event. The mutexes are barging, as glibc's: the thread that unlocks often
//! locks again before the woken thread runs.
//! Leaves out: the mutex of a request follows from the thread's number and how many requests it has
//! served, as if all threads were equally fast; in sysbench it follows from the number of the
//! request.

use super::{Generator, Params, param, sysbench_cpu};
use crate::error::WorkloadError;
use crate::program::{MutexDef, Op, Program, TimeSpan};

pub(super) const GENERATOR: Generator = Generator {
    name: "sysbench_threads",
    doc: "Threads that yield while they hold a mutex.",
    unit: "event",
    params: &[
        param("threads", "12", "number of threads"),
        param("thread_locks", "8", "number of mutexes"),
        param("yields", "1000", "yields of an event (sysbench's thread-yields)"),
        param("work", "0ns", "work under the mutex, before each yield"),
        param("requests", "1000", "events of all threads together; 0: no limit"),
        param("duration", "none", "length of the run; none: until all events are done"),
    ],
    build,
};

fn build(params: &Params) -> Result<Program, WorkloadError> {
    let threads = params.number("threads", 1, 10_000)?;
    let locks = params.number("thread_locks", 1, 1_000)?;
    let yields = u64::from(params.number("yields", 1, 1_000_000)?);
    let work = params.time("work")?;
    // Request k of thread i is number k * threads + i of all requests, and uses the mutex of that
    // number modulo the number of mutexes. After `period` requests a thread is at its first mutex.
    let period = locks / gcd(threads, locks);
    let event = |k: u32| {
        let first = u64::from(k) * u64::from(threads) % u64::from(locks);
        let mutex = format!("mutex{{i+{first}%{locks}}}");
        let mut turn = vec![Op::Lock(mutex.clone()), Op::Yield, Op::Unlock(mutex)];
        if work > TimeSpan(0) {
            turn.insert(1, Op::Compute(work.into()));
        }
        [Op::Loop { times: Some(yields), ops: turn }, Op::Count(1)]
    };
    let bodies = (0..period).map(|k| event(k).into());
    let mutexes = vec![MutexDef { name: "mutex{i}".into(), barging: true }];
    Ok(Program { mutexes, ..sysbench_cpu::serve(params, "sysbench-threads", bodies)? })
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
