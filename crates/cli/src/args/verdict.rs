// SPDX-License-Identifier: GPL-2.0-only
//! The flags of the commands that look at results or make many: `report`, `check`, `shrink` and
//! `sweep`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use scxlab_workload::program::TimeSpan;

use super::{CacheArgs, RunCount, examples, jobs, length, noise, seed, size};
use crate::complete;

/// Makes one file of HTML that a browser opens from disk, without a network: a verdict, the
/// comparison with intervals, wake-up latencies, who ran where, migrations, shares, and what
/// happened to runs that were ejected.
#[derive(Debug, Args)]
#[command(after_help = examples::REPORT)]
pub struct ReportArgs {
    /// Folder of run -o, or a JSON file of run, advise or reproduce
    #[arg(value_name = "FROM", required = true)]
    pub from: Vec<PathBuf>,

    /// File of the page
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub output: PathBuf,
}

/// Makes a run in which a scheduler is ejected smaller, as long as the ejection stays the same:
/// fewer CPUs, threads and ops.
///
/// Two ejections are the same if their kinds and messages are, apart from names, numbers and times.
/// The result is a workload file to attach to a report; its first lines are the message and the
/// command that makes the run again.
#[derive(Debug, Args)]
#[command(after_help = examples::SHRINK)]
pub struct ShrinkArgs {
    /// Scheduler, in the form of -s of run
    #[arg(short, long = "scheduler", value_name = "SCHED[,KNOB=VALUE]...", add = ArgValueCompleter::new(complete::schedulers))]
    pub scheduler: String,

    /// Workload, in the form of -w of run
    #[arg(short, long, value_name = "WORKLOAD", add = ArgValueCompleter::new(complete::workloads))]
    pub workload: String,

    /// Machine, in the form of -m of run
    #[arg(short, long, value_name = "MACHINE", allow_hyphen_values = true, add = ArgValueCompleter::new(complete::machines))]
    pub machine: String,

    /// Seed of the run
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = seed, default_value_t = 1)]
    pub seed: u64,

    /// Virtual time of the run; replaces the workload's own duration
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = length)]
    pub duration: Option<TimeSpan>,

    /// File of the smaller workload
    #[arg(short, long, value_name = "FILE", default_value = "shrunk.toml")]
    pub output: PathBuf,

    /// Time of this host after which the smallest run so far is the result
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, default_value = "60s")]
    pub budget: TimeSpan,

    /// Maximum memory of the scheduler and the workload in each simulated run, such as 512M or 4G
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, default_value = "1G", value_parser = size)]
    pub memory_limit: u64,

    #[command(flatten)]
    pub cache: CacheArgs,
}

/// Runs every cell of a sweep: each combination of schedulers and knobs, workloads and parameters,
/// machines and seeds that FILE names (docs/guide/sweep.md).
///
/// A cell that the folder has from an earlier command, also one that was killed, is not run again.
/// The same folder takes more seeds, values and axes. A cell whose scheduler is ejected is a
/// result.
#[derive(Debug, Args)]
#[command(after_help = examples::SWEEP)]
pub struct SweepArgs {
    /// File of the sweep, in TOML
    #[arg(value_name = "FILE")]
    pub file: String,

    /// Folder for finished cells and results.parquet, the table of results; by default FILE with
    /// the ending .sweep
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Number of simulations at a time; 0 is one per CPU of this host. Results do not depend on it
    #[arg(short, long, value_name = "N", allow_hyphen_values = true, default_value_t = 0, value_parser = jobs)]
    pub jobs: usize,

    /// Time of this host after which the work ends; finished cells are kept
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub deadline: Option<TimeSpan>,

    #[command(flatten)]
    pub cache: CacheArgs,

    /// Run the cells on the workers of this Dask scheduler, such as tcp://host:8786; -o may be a
    /// URL that fsspec knows
    ///
    /// Python's module scxlab of the same version does this, here and on each worker
    /// (docs/guide/python.md).
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["jobs", "deadline"])]
    pub dask: Option<String>,
}

/// Compares runs of NEW with runs of BASE: two folders that `scxlab run -o` wrote, or two
/// schedulers that this command runs in simulation.
///
/// A metric regressed if it is worse by more than the limits of the gate, beyond noise. A run that
/// is missing, ejected or cut off only in NEW is a regression too. The exit code is 1 if something
/// regressed, and 9 if something is undecided (docs/guide/results.md).
#[derive(Debug, Args)]
#[command(after_help = examples::CHECK)]
pub struct CheckArgs {
    /// Two results folders: BASE and NEW
    #[arg(
        value_name = "FOLDER",
        num_args = 2,
        required_unless_present = "scheduler",
        conflicts_with = "scheduler"
    )]
    pub folders: Vec<PathBuf>,

    /// Scheduler, in the form of -s of run; give two, the old and the new one
    #[arg(short, long = "scheduler", value_name = "SCHED[,KNOB=VALUE]...", add = ArgValueCompleter::new(complete::schedulers))]
    pub scheduler: Vec<String>,

    /// Workload, in the form of -w of run; may be given several times. By default those of the
    /// standing matrix (docs/guide/results.md)
    #[arg(short, long, value_name = "WORKLOAD", requires = "scheduler", add = ArgValueCompleter::new(complete::workloads))]
    pub workload: Vec<String>,

    /// Machine, in the form of -m of run; may be given several times. By default those of the
    /// standing matrix
    #[arg(short, long, value_name = "MACHINE", allow_hyphen_values = true, requires = "scheduler", add = ArgValueCompleter::new(complete::machines))]
    pub machine: Vec<String>,

    /// Limits of each metric, a TOML file (docs/reference/check.md)
    #[arg(long, value_name = "FILE")]
    pub gate: Option<PathBuf>,

    /// Number of runs of each scheduler: `auto` adds runs, up to 64, where a verdict needs them
    #[arg(short = 'n', long, value_name = "RUNS", allow_hyphen_values = true, default_value = "auto", value_parser = RunCount::parse, requires = "scheduler")]
    pub runs: RunCount,

    /// Half width of the 95 % interval of a change, in percent, at which a metric that is no alarm
    /// passes; by default that of the gate
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, value_parser = noise)]
    pub precision: Option<u32>,

    /// Seed of the first run
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = seed, default_value_t = 1)]
    pub seed: u64,

    /// Virtual time per run; replaces the workload's own duration
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = length, requires = "scheduler")]
    pub duration: Option<TimeSpan>,

    /// Show the metrics that passed too
    #[arg(long)]
    pub all: bool,

    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = CheckFormat::Table)]
    pub format: CheckFormat,

    /// Write a report in JUnit's form to this file
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,

    /// Print GitHub's annotations as well
    #[arg(long)]
    pub github: bool,

    /// Write the runs into the folders base and new of this folder
    #[arg(short, long, value_name = "DIR", requires = "scheduler")]
    pub output: Option<PathBuf>,

    /// Maximum wall time of all runs together
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, requires = "scheduler")]
    pub deadline: Option<TimeSpan>,

    /// Number of simulations at a time; 0 is one per CPU of this host. Results do not depend on it
    #[arg(short, long, value_name = "N", allow_hyphen_values = true, default_value_t = 0, value_parser = jobs)]
    pub jobs: usize,

    /// Maximum memory of the scheduler and the workload in each simulated run, such as 512M or 4G
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, default_value = "1G", value_parser = size)]
    pub memory_limit: u64,

    #[command(flatten)]
    pub cache: CacheArgs,
}

/// Output format of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CheckFormat {
    /// Text for people
    #[value(alias = "text")]
    Table,
    /// The same in Markdown
    Markdown,
}
