// SPDX-License-Identifier: GPL-2.0-only
//! lock_holder: threads of one process that take a spin lock again and again.
//!
//! Models: a process whose system calls need the same locks of their kernel, and unmap memory now
//! and then. In a guest, a virtual CPU that is preempted while its thread holds the lock makes the
//! others spin. A unit is one round of one thread.
//! Leaves out: the rest of the system calls.

use super::{Generator, Params, param};
use crate::error::WorkloadError;
use crate::program::{Op, Program, ThreadTemplate};

pub(super) const GENERATOR: Generator = Generator {
    name: "lock_holder",
    doc: "Threads of one process that compute, and then compute under a spin lock.",
    unit: "round",
    params: &[
        param("threads", "8", "number of threads"),
        param("work", "20us", "work of a round without the lock"),
        param("hold", "2us", "work of a round under the lock"),
        param("locks", "1", "number of locks; thread i takes lock i modulo this number"),
        param("unmap", "0", "a thread unmaps memory after this many rounds; 0: never"),
        param("duration", "10s", "length of the run, or none"),
    ],
    build,
};

fn build(params: &Params) -> Result<Program, WorkloadError> {
    let locks = params.number("locks", 1, 100_000)?;
    let lock = format!("lock{{i%{locks}}}");
    let round = vec![
        Op::Compute(params.time("work")?.into()),
        Op::SpinLock(lock.clone()),
        Op::Compute(params.time("hold")?.into()),
        Op::SpinUnlock(lock),
        Op::Count(1),
    ];
    let body = match params.number("unmap", 0, 1_000_000)? {
        0 => round,
        rounds => vec![Op::Loop { times: Some(rounds.into()), ops: round }, Op::Unmap],
    };
    let mut thread = ThreadTemplate::new("locker", vec![Op::Loop { times: None, ops: body }]);
    thread.instances = params.number("threads", 1, 100_000)?;
    thread.process = Some("locker".to_owned());
    let duration = params.maybe_time("duration")?;
    Ok(Program { duration, threads: vec![thread], ..Program::default() })
}
