// SPDX-License-Identifier: GPL-2.0-only
//! reflex: rings of tasks that pass tokens over pipes (the Linux Scalability Effort's enlarged form
//! of LMbench's lat_ctx).
//!
//! Models: each ring has one token, so one task of a ring is runnable and the others sleep in
//! `read`. The number of rings is the number of runnable tasks. A unit is one passing, for which a
//! task reads the token, works for `delay`, and writes it to the next task's pipe.
//! Leaves out: nothing known. The original's arrangement of rings is not published with the
//! results; docs/benchmarks/reflex.md says why this one was chosen.

use super::{Generator, Params, param};
use crate::error::WorkloadError;
use crate::program::{Op, PipeDef, PipeKind, Program, ThreadTemplate, TimeSpan};

pub(super) const GENERATOR: Generator = Generator {
    name: "reflex",
    doc: "Rings of tasks that pass tokens over pipes.",
    unit: "round",
    params: &[
        param("tasks", "8", "number of tasks, a multiple of `ring`"),
        param("ring", "2", "tasks of a ring; each ring has one token"),
        param("delay", "0us", "work of a task before it passes the token"),
        param("bytes", "4", "bytes of a token"),
        param("footprint", "0", "KiB that a task touches while it runs"),
        param("rounds", "none", "how often each task passes the token; none: until the run ends"),
        param("duration", "1s", "length of the run, or none"),
    ],
    build,
};

fn build(params: &Params) -> Result<Program, WorkloadError> {
    let tasks = params.number("tasks", 2, 100_000)?;
    let ring = params.number("ring", 2, tasks)?;
    if !tasks.is_multiple_of(ring) {
        return Err(params.bad("tasks", format!("a multiple of {ring}, the tasks of a ring")));
    }
    let bytes = u64::from(params.number("bytes", 1, 4096)?);
    let delay = params.time("delay")?;
    let footprint = u64::from(params.number("footprint", 0, 1 << 20)?) * 1024;
    let times = match params.text("rounds") {
        "none" => None,
        _ => Some(u64::from(params.number("rounds", 1, u32::MAX)?)),
    };

    let pass = |from: String, to: String| {
        let mut ops = vec![Op::Read { pipe: from, bytes }];
        if delay > TimeSpan(0) {
            ops.push(Op::Compute(delay.into()));
        }
        ops.extend([Op::Count(1), Op::Write { pipe: to, bytes }]);
        Op::Loop { times, ops }
    };
    let template = |name: &str, instances, ops| ThreadTemplate {
        instances,
        footprint,
        ..ThreadTemplate::new(name, ops)
    };
    // Task 0 of a ring starts with the token. Its number is the ring's; the ring's other tasks have
    // numbers from ring * others on.
    let (rings, others) = (tasks / ring, ring - 1);
    let start = Op::Write { pipe: "pipe{i}.1".into(), bytes };
    let first = vec![start, pass("pipe{i}.0".into(), "pipe{i}.1".into())];
    let next = |k: u32| format!("pipe{{i/{others}}}.{{i%{others}+{k}%{ring}}}");
    let other = vec![pass(next(1), next(2))];
    Ok(Program {
        duration: params.maybe_time("duration")?,
        pipes: vec![PipeDef::new("pipe{i}.{i}", PipeKind::Pipe)],
        threads: vec![template("first", rings, first), template("other", rings * others, other)],
        ..Program::default()
    })
}
