// SPDX-License-Identifier: GPL-2.0-only
//! Large published schedulers: CPU time per simulated second relative to `vtime`'s, and the host's
//! instructions that a simulated second consists of.
//!
//! A case is named after its scheduler and its number of CPUs, such as `lavd-64`. The workload is
//! that of `switches`: tasks that run 1 ms and sleep 4 ms, five per CPU (four on 1,024 CPUs). Each
//! run of a case follows a run of `vtime` on the same machine, and the ratio is that of this pair.
//! Two runs before these do not count; what they used is compiled then.
//!
//! `-- CASE...` chooses cases: `lavd-64`, or `lavd` for all machines. For chosen cases the
//! benchmark also prints, by callgrind, what a simulated second consists of; without a choice it
//! does so for the cases with 8 CPUs.

use std::error::Error;

use scxlab_benches::case::{Case, published};
use scxlab_benches::parts::Parts;
use scxlab_benches::{callgrind, median};
use scxlab_machine::Nanos;
use scxlab_trace::Tracer;

struct Size {
    cpus: &'static str,
    machine: &'static str,
    tasks: u32,
    /// Virtual time of the counted part of a run.
    counted_ms: u64,
    /// Virtual time of the part that callgrind counts, and of the runs before it, after which all
    /// that they used is machine code.
    profiled_ms: u64,
    compiling_ms: u64,
}

const SIZES: &[Size] = &[
    Size {
        cpus: "8",
        machine: "8c",
        tasks: 40,
        counted_ms: 4_000,
        profiled_ms: 200,
        compiling_ms: 1_000,
    },
    Size {
        cpus: "64",
        machine: "2n32c",
        tasks: 320,
        counted_ms: 1_000,
        profiled_ms: 30,
        compiling_ms: 400,
    },
    Size {
        cpus: "256",
        machine: "epyc-2s",
        tasks: 1_280,
        counted_ms: 200,
        profiled_ms: 10,
        compiling_ms: 200,
    },
    Size {
        cpus: "1024",
        machine: "8n64c2t",
        tasks: 4_096,
        counted_ms: 100,
        profiled_ms: 10,
        compiling_ms: 200,
    },
];

/// Schedulers with the largest ratio that each size of machine should show; NaN: no case.
const SCHEDULERS: &[(&str, [f64; SIZES.len()])] = &[
    ("eevdf", [1.2, 1.2, 1.2, 1.2]),
    ("lavd", [2.5, 2.5, 3.0, f64::NAN]),
    ("layered", [2.0, 2.0, 2.0, f64::NAN]),
    ("p2dq", [2.0, 2.0, 2.0, f64::NAN]),
    ("rusty", [2.0, 2.0, 2.0, f64::NAN]),
    ("cake", [2.0, 2.0, 2.0, f64::NAN]),
    ("flash", [2.0, 2.0, 2.0, f64::NAN]),
    ("bpfland", [2.0, 2.0, 2.0, f64::NAN]),
    ("cosmos", [2.0, 2.0, 2.0, f64::NAN]),
];

const ROUNDS: usize = 5;

/// Virtual time of a run before the counted part: the start of the tasks, and the first decisions
/// of a scheduler that measures the load.
const BEFORE_MS: u64 = 100;

/// Nanoseconds of a millisecond.
const MS: Nanos = 1_000_000;

/// Word that makes this benchmark run one case for callgrind.
const PROFILED: &str = "profiled";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    if let [first, scheduler, cpus] = &args[..]
        && first == PROFILED
    {
        return run_profiled(scheduler, cpus);
    }
    let all = || (0..SIZES.len()).flat_map(cases_of);
    let unknown = |arg: &&String| !all().any(|case| case.is_called(arg));
    if let Some(arg) = args.iter().find(unknown) {
        return Err(format!("no case {arg}: a case is SCHEDULER or SCHEDULER-CPUS").into());
    }
    let chosen = |case: &BigCase| args.is_empty() || args.iter().any(|arg| case.is_called(arg));
    println!(
        "{:<14} {:>8} {:>17} {:>5} {:>8}",
        "case", "x vtime", "least to most", "aim", "x real"
    );
    all().filter(chosen).try_for_each(|case| case.compare())?;
    if !callgrind::available() {
        println!("instructions: not counted, there is no valgrind");
        return Ok(());
    }
    let few = |case: &BigCase| !args.is_empty() || case.size.cpus == SIZES[0].cpus;
    all().filter(chosen).filter(few).try_for_each(|case| case.profile())
}

/// A scheduler on a machine.
struct BigCase {
    scheduler: &'static str,
    size: &'static Size,
    /// Largest ratio that the case should show.
    aim: f64,
}

/// Returns the cases on one size of machine.
fn cases_of(size: usize) -> impl Iterator<Item = BigCase> {
    let aimed = SCHEDULERS.iter().filter(move |(_, aims)| !aims[size].is_nan());
    aimed.map(move |(scheduler, aims)| BigCase { scheduler, size: &SIZES[size], aim: aims[size] })
}

impl BigCase {
    fn name(&self) -> String {
        format!("{}-{}", self.scheduler, self.size.cpus)
    }

    /// Returns whether an argument names this case or its scheduler.
    fn is_called(&self, arg: &str) -> bool {
        arg == self.scheduler || arg == self.name()
    }

    /// Runs the case and `vtime` in turn, and prints the row of ratios.
    fn compare(&self) -> Result<(), Box<dyn Error>> {
        let Some(case) = self.size.compiled(self.scheduler, self.size.counted_ms)? else {
            println!("{:<14} not measured: no object; `make scx-objects`", self.name());
            return Ok(());
        };
        let vtime = self.size.compiled("vtime", self.size.counted_ms)?.ok_or("no vtime")?;
        let (mut ratios, mut speeds) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let base = vtime.run(Tracer::default())?.took;
            let measured = case.run(Tracer::default())?;
            ratios.push(measured.took.as_secs_f64() / base.as_secs_f64());
            speeds.push(measured.speed());
        }
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        let range = format!("({least:.2} to {most:.2})");
        println!(
            "{:<14} {:>8.2} {range:>17} {:>5.1} {:>8.2}",
            self.name(),
            median(ratios),
            self.aim,
            median(speeds)
        );
        Ok(())
    }

    /// Counts the host's instructions of the case, and prints what they consist of.
    fn profile(&self) -> Result<(), Box<dyn Error>> {
        if self.size.object(self.scheduler).is_none() {
            return Ok(());
        }
        let args = [PROFILED, self.scheduler, self.size.cpus].map(str::to_owned);
        let parts = Parts::of(&callgrind::profile(&self.name(), &args, false)?)?;
        let seconds = self.size.profiled_ms as f64 / 1e3;
        println!("\n{}, a simulated second:", self.name());
        parts.print(seconds);
        Ok(())
    }
}

impl Size {
    /// Returns the `-s` argument of a scheduler; None if there is no object.
    fn object(&self, scheduler: &str) -> Option<String> {
        match scheduler {
            "eevdf" | "vtime" => Some(scheduler.to_owned()),
            _ => published(scheduler)?.to_str().map(str::to_owned),
        }
    }

    /// Returns the case of a scheduler whose counted part has a length, after a run that compiled
    /// the scheduler's programs; None if there is no object.
    fn compiled(&self, scheduler: &str, counted_ms: u64) -> Result<Option<Case>, Box<dyn Error>> {
        let Some(object) = self.object(scheduler) else { return Ok(None) };
        let workload = format!("sleepers,tasks={}", self.tasks);
        let mut case = Case::new(&object, &workload, self.machine, self.compiling_ms * MS)?;
        case.counted_from = Nanos::MAX;
        // Functions that only others called in the first run have runs of their own in the second.
        for _ in 0..2 {
            case.run(Tracer::default())?;
            case.compile_used();
        }
        case.counted_from = BEFORE_MS * MS;
        case.set_duration((BEFORE_MS + counted_ms) * MS);
        Ok(Some(case))
    }
}

/// Runs a case for callgrind, which counts from `Case::counted_from` on.
fn run_profiled(scheduler: &str, cpus: &str) -> Result<(), Box<dyn Error>> {
    let size = SIZES.iter().find(|size| size.cpus == cpus).ok_or("no such machine")?;
    let case = size.compiled(scheduler, size.profiled_ms)?.ok_or("no object")?;
    case.run(Tracer::default())?;
    Ok(())
}
