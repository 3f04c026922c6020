// SPDX-License-Identifier: GPL-2.0-only
//! sleepers: tasks that compute for a short time and sleep for a short time, for ever. The
//! benchmarks in `benches/` run these tasks as their load.
//!
//! Models: periodic wake-ups at a fixed utilisation. Leaves out: any dependence between tasks.

use super::{Generator, Params, param};
use crate::error::WorkloadError;
use crate::program::{Op, Program, ThreadTemplate};

pub(super) const GENERATOR: Generator = Generator {
    name: "sleepers",
    doc: "Independent tasks that compute and sleep in turn.",
    unit: "loop",
    params: &[
        param("tasks", "40", "number of tasks"),
        param("run", "1ms", "work of a turn"),
        param("sleep", "4ms", "sleep of a turn"),
        param("duration", "10s", "length of the run, or none"),
    ],
    build,
};

fn build(params: &Params) -> Result<Program, WorkloadError> {
    let turn = vec![
        Op::Compute(params.time("run")?.into()),
        Op::Sleep(params.time("sleep")?),
        Op::Count(1),
    ];
    let ops = vec![Op::Loop { times: None, ops: turn }];
    let mut thread = ThreadTemplate::new("sleeper", ops);
    thread.instances = params.number("tasks", 1, 100_000)?;
    let duration = params.maybe_time("duration")?;
    Ok(Program { duration, threads: vec![thread], ..Program::default() })
}
