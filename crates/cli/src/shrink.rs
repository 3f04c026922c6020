// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab shrink`: a small workload and machine on which a scheduler is still ejected.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use scxlab_lab::input::{self, SchedulerInput, Workload};
use scxlab_lab::results::quoted;
use scxlab_lab::session::{CAP, PERTURB};
use scxlab_lab::shrink::{Request, shrink as shrink_run};
use scxlab_workload::program::to_toml;

use crate::args::ShrinkArgs;
use crate::exit::CliError;
use crate::output;

pub fn shrink(args: &ShrinkArgs) -> Result<()> {
    let inputs = args.cache.inputs();
    let scheduler = SchedulerInput::resolve(&args.scheduler, &inputs)?;
    let Workload::Program(program) = Workload::resolve(&args.workload, &inputs)? else {
        return Err(CliError::CommandIsNoProgram { command: args.workload.clone() }.into());
    };
    let machine = Arc::new(input::machine(&args.machine, &inputs)?);
    let (cancelled, start) = (output::cancelled(), Instant::now());
    let budget = Duration::from_nanos(args.budget.0);
    // The answer must not change once it was yes.
    let is_over = Cell::new(false);
    let must_stop = || {
        let now = is_over.get() || cancelled.load(Ordering::Relaxed) || start.elapsed() >= budget;
        is_over.set(now);
        now
    };
    let small = shrink_run(&Request {
        scheduler: &scheduler,
        machine,
        machine_name: &args.machine,
        program: &program,
        seed: args.seed,
        duration: args.duration.map(|d| d.0),
        cap: CAP,
        // As `run` without options, which makes the smaller run again.
        perturb: PERTURB,
        max_memory: args.memory_limit,
        must_stop: &must_stop,
    })?;
    let file = &args.output;
    let command = format!(
        "scxlab run -s {} -w {} -m {} --seed {}",
        quoted(&args.scheduler.to_string()),
        quoted(&file.display().to_string()),
        quoted(&small.machine),
        args.seed
    );
    let (before, after) = small.threads;
    let message = output::visible(&small.exit.message).replace('\n', " ");
    let text =
        format!("# {}: {message}\n# {command}\n{}", small.exit.kind, to_toml(&small.program));
    output::write_file(file, text.as_bytes())?;
    output::print(&format!(
        "{}: {message}\nthreads: {before} -> {after}\nmachine: {} -> {}, {} {}\nruns: {}{}\n\
         {} has the workload; this makes the run again:\n{command}\n",
        small.exit.kind,
        args.machine,
        small.machine,
        small.nr_cpus,
        if small.nr_cpus == 1 { "CPU" } else { "CPUs" },
        small.tried,
        if small.is_cut { ", then the time was up; more may be possible (--budget)" } else { "" },
        file.display(),
    ))
}
