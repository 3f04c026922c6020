// SPDX-License-Identifier: GPL-2.0-only
//! pingpong: pairs of tasks that pass one token back and forth (perf bench sched pipe).
//!
//! Models: synchronous wake-ups; one task of a pair is runnable at any time. A unit is a round
//! trip.
//! Leaves out: nothing known. The time of a trip is the sum of the costs of wake-ups and
//! system calls.

use super::{Generator, Params, param};
use crate::error::WorkloadError;
use crate::program::{Op, PipeDef, PipeKind, Program, ThreadTemplate, TimeSpan};

pub(super) const GENERATOR: Generator = Generator {
    name: "pingpong",
    doc: "Pairs of tasks that pass a token back and forth.",
    unit: "round trip",
    params: &[
        param("pairs", "1", "number of pairs"),
        param("work", "0us", "work of each task before it passes the token"),
        param("bytes", "4", "bytes of the token"),
        param("ipc", "pipe", "pipe, socket or futex"),
        param("mode", "process", "process, or thread: a pair shares an address space"),
        param("loops", "none", "round trips; none: until the run ends"),
        param("duration", "10s", "length of the run, or none"),
    ],
    build,
};

fn build(params: &Params) -> Result<Program, WorkloadError> {
    let pairs = params.number("pairs", 1, 50_000)?;
    let bytes = u64::from(params.number("bytes", 1, 65_536)?);
    let work = params.time("work")?;
    let ipc = params.word("ipc", &["pipe", "socket", "futex"])?;
    let threads = params.word("mode", &["process", "thread"])? == 1;
    let times = match params.text("loops") {
        "none" => None,
        _ => Some(u64::from(params.number("loops", 1, u32::MAX)?)),
    };

    let send = |to: &str| match ipc {
        2 => Op::SemPost(format!("{to}{{i}}")),
        _ => Op::Write { pipe: format!("{to}{{i}}"), bytes },
    };
    let take = |from: &str| match ipc {
        2 => Op::SemWait(format!("{from}{{i}}")),
        _ => Op::Read { pipe: format!("{from}{{i}}"), bytes },
    };
    let busy = |ops: &mut Vec<Op>| {
        if work > TimeSpan(0) {
            ops.insert(ops.len() - 1, Op::Compute(work.into()));
        }
    };
    let mut ping = vec![send("there")];
    busy(&mut ping);
    ping.extend([take("back"), Op::Count(1)]);
    let mut pong = vec![take("there"), send("back")];
    busy(&mut pong);
    let template = |name: &str, ops| ThreadTemplate {
        instances: pairs,
        process: threads.then(|| "pair{i}".to_owned()),
        ..ThreadTemplate::new(name, vec![Op::Loop { times, ops }])
    };
    let kind = if ipc == 1 { PipeKind::Socket } else { PipeKind::Pipe };
    let pipe = |name: &str| PipeDef::new(name, kind);
    Ok(Program {
        duration: params.maybe_time("duration")?,
        pipes: if ipc == 2 { Vec::new() } else { vec![pipe("there{i}"), pipe("back{i}")] },
        threads: vec![template("ping", ping), template("pong", pong)],
        ..Program::default()
    })
}
