// SPDX-License-Identifier: GPL-2.0-only
//! schbench: message threads that wake workers; each worker serves one request and waits again.
//!
//! Models: `message_threads` threads with `workers` workers each. A worker tells its message thread
//! that it is free, sleeps until the message thread wakes it, sleeps for `think` (a network's
//! delay), and computes for `work`. The message thread wakes one free worker for each report. The
//! benchmark measures wake-up latency.
//! Leaves out: the per-CPU spin lock around the matrix work, the pacing by request rate, the memory
//! of the matrices (set `footprint`).

use super::{Generator, Params, param};
use crate::error::WorkloadError;
use crate::program::{Op, Program, ThreadTemplate};

pub(super) const GENERATOR: Generator = Generator {
    name: "schbench",
    doc: "Message threads that wake workers, which serve one request each time.",
    unit: "request",
    params: &[
        param("message_threads", "1", "number of message threads"),
        param("workers", "16", "workers of each message thread"),
        param("work", "3ms", "work of a request"),
        param("think", "100us", "sleep of a worker before it computes"),
        param("footprint", "0", "KiB that a worker touches for a request"),
        param("duration", "10s", "length of the run, or none"),
    ],
    build,
};

fn build(params: &Params) -> Result<Program, WorkloadError> {
    let messengers = params.number("message_threads", 1, 1_000)?;
    let workers = params.number("workers", 1, 10_000)?;
    let (work, think) = (params.time("work")?, params.time("think")?);
    let kib = u64::from(params.number("footprint", 0, 1 << 20)?);
    let of_mine = |name: &str| format!("{name}{{i/{workers}}}");
    let request = vec![
        Op::SemPost(of_mine("free")),
        Op::SemWait(of_mine("go")),
        Op::Sleep(think),
        Op::Compute(work.into()),
        Op::Count(1),
    ];
    let dispatch = vec![Op::SemWait("free{i}".into()), Op::SemPost("go{i}".into())];
    let template = |name: &str, instances, ops| ThreadTemplate {
        instances,
        process: Some("schbench".to_owned()),
        ..ThreadTemplate::new(name, vec![Op::Loop { times: None, ops }])
    };
    let Some(total) = messengers.checked_mul(workers).filter(|n| *n <= 100_000) else {
        return Err(params.bad("workers", "at most 100000 over all message threads"));
    };
    let mut worker = template("worker", total, request);
    worker.footprint = kib * 1024;
    Ok(Program {
        duration: params.maybe_time("duration")?,
        threads: vec![template("message", messengers, dispatch), worker],
        ..Program::default()
    })
}
