// SPDX-License-Identifier: GPL-2.0-only
//! hogs: tasks that never stop computing, with nice values and in weighted cgroups.
//!
//! Models: a saturated machine, to show the CPU shares by nice value and by group. Leaves out:
//! everything else.

use super::{Generator, Params, param};
use crate::error::WorkloadError;
use crate::program::{CgroupDef, Op, Program, ThreadTemplate};

pub(super) const GENERATOR: Generator = Generator {
    name: "hogs",
    doc: "Tasks that compute for ever, by nice value and cgroup weight.",
    unit: "chunk",
    params: &[
        param("tasks", "4", "number of tasks"),
        param("nice", "0", "nice values, assigned to the tasks in turn: 0:5:10"),
        param("weights", "", "one cgroup per weight, tasks assigned in turn: 100:300"),
        param("chunk", "1ms", "work of a unit"),
        param("duration", "10s", "length of the run, or none"),
    ],
    build,
};

fn build(params: &Params) -> Result<Program, WorkloadError> {
    let tasks = params.number("tasks", 1, 10_000)?;
    let nices = params.numbers("nice", -20, 19)?;
    let weights = params.numbers("weights", 1, 10_000)?;
    let chunk = params.time("chunk")?;
    if chunk.0 == 0 {
        return Err(params.bad("chunk", "a time above 0"));
    }
    let turn = vec![Op::Compute(chunk.into()), Op::Count(1)];
    let in_turn = |list: &[i64], i: u32| match list.len() {
        0 => None,
        n => Some((i as usize % n, list[i as usize % n])),
    };
    let threads = (0..tasks).map(|i| {
        let ops = vec![Op::Loop { times: None, ops: turn.clone() }];
        let mut thread = ThreadTemplate::new(&format!("hog-{i}"), ops);
        let nice = in_turn(&nices, i).map_or(0, |(_, nice)| nice);
        thread.nice = i8::try_from(nice).unwrap_or(0);
        thread.cgroup = in_turn(&weights, i).map(|(group, _)| path(group));
        thread
    });
    let cgroups = weights.iter().enumerate().map(|(group, &weight)| {
        let weight = u32::try_from(weight).unwrap_or(100);
        CgroupDef { weight, ..CgroupDef::new(&path(group)) }
    });
    Ok(Program {
        duration: params.maybe_time("duration")?,
        threads: threads.collect(),
        cgroups: cgroups.collect(),
        ..Program::default()
    })
}

fn path(group: usize) -> String {
    format!("/group-{group}")
}
