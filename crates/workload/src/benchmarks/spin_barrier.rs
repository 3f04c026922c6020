// SPDX-License-Identifier: GPL-2.0-only
//! spin_barrier: parallel jobs whose threads compute and then spin until the last thread of the job
//! arrives.
//!
//! Models: tightly coupled parallel programs (OpenMP with active waiting), the case for gang
//! scheduling: a preempted thread makes the other threads of its job waste CPU time. A unit is one
//! round of one thread.
//! Leaves out: memory traffic, and the fallback to sleeping of some OpenMP runtimes.

use super::{Generator, Params, param};
use crate::error::WorkloadError;
use crate::program::{CgroupDef, CpuList, Op, Program, ThreadTemplate};

pub(super) const GENERATOR: Generator = Generator {
    name: "spin_barrier",
    doc: "Parallel jobs whose threads compute and then spin at a barrier.",
    unit: "round",
    params: &[
        param("jobs", "2", "number of jobs"),
        param("threads", "4", "threads of a job"),
        param("work", "1ms", "work of a thread between barriers"),
        param("rounds", "none", "barriers; none: until the run ends"),
        param("cgroups", "no", "yes: each job in a cgroup of its own"),
        param("gang", "no", "yes: each job's cgroup is a gang (user.cpu.gang)"),
        param("pin", "no", "yes: thread i of each job on CPU i only"),
        param("duration", "10s", "length of the run, or none"),
    ],
    build,
};

fn build(params: &Params) -> Result<Program, WorkloadError> {
    let jobs = params.number("jobs", 1, 1_000)?;
    let threads = params.number("threads", 1, 4_096)?;
    let work = params.time("work")?;
    let gang = params.word("gang", &["no", "yes"])? == 1;
    let grouped = gang || params.word("cgroups", &["no", "yes"])? == 1;
    let times = match params.text("rounds") {
        "none" => None,
        _ => Some(u64::from(params.number("rounds", 1, u32::MAX)?)),
    };
    let template = |job: u32, instances, name: &str, cpus| {
        let round =
            vec![Op::Compute(work.into()), Op::SpinBarrier(format!("job{job}")), Op::Count(1)];
        ThreadTemplate {
            instances,
            cpus,
            process: Some(format!("job{job}")),
            cgroup: grouped.then(|| format!("/job{job}")),
            ..ThreadTemplate::new(name, vec![Op::Loop { times, ops: round }])
        }
    };
    let templates: Vec<_> = if params.word("pin", &["no", "yes"])? == 1 {
        let all = (0..jobs).flat_map(|job| (0..threads).map(move |cpu| (job, cpu)));
        all.map(|(job, cpu)| {
            template(job, 1, &format!("job{job}-{cpu}"), CpuList::from_ranges([(cpu, cpu)]))
        })
        .collect()
    } else {
        (0..jobs).map(|job| template(job, threads, &format!("job{job}"), None)).collect()
    };
    let gangs = (0..jobs).filter(|_| gang).map(|job| {
        let mut cgroup = CgroupDef::new(&format!("/job{job}"));
        cgroup.xattrs.insert("user.cpu.gang".into(), "1".into());
        cgroup
    });
    Ok(Program {
        cgroups: gangs.collect(),
        duration: params.maybe_time("duration")?,
        threads: templates,
        ..Program::default()
    })
}
