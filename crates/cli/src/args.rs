// SPDX-License-Identifier: GPL-2.0-only
//! The command-line flags. Their help texts are the manual; the man pages and
//! `docs/reference/flags.md` are generated from them.

mod examples;
mod load;
mod verdict;

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use scxlab_lab::advise::Rounds;
use scxlab_lab::report::selection::Selection;
use scxlab_lab::sim::NumaBalancing;
use scxlab_results::inputs::Inputs;
use scxlab_trace::PerfLayout;
use scxlab_workload::program::TimeSpan;

use crate::exit::CliError;
use crate::{complete, exit};
pub use load::LoadArgs;
pub use verdict::{CheckArgs, CheckFormat, ReportArgs, ShrinkArgs, SweepArgs};

/// Run and compare CPU schedulers for a workload, a machine and settings of your choice
///
/// Compiled sched_ext BPF schedulers and the kernel's default class run on a simulated machine,
/// without root and reproducibly. They also run on a real kernel, in a virtual machine or on this
/// host.
#[derive(Debug, Parser)]
#[command(name = "scxlab", version, after_help = examples::ALL, after_long_help = exit::list())]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a workload under one scheduler, or compare several
    Run(RunArgs),
    /// Recommend a scheduler, with settings, for a workload on a machine
    Advise(AdviseArgs),
    /// Run every combination of schedulers, knobs, workloads, machines and seeds, and keep the
    /// results
    Sweep(SweepArgs),
    /// Predict the published tables of list threads, and score the predictions
    Reproduce(ReproduceArgs),
    /// Make a page for a browser from results, advice or predictions
    Report(ReportArgs),
    /// Find a smaller workload and machine on which a scheduler is still ejected
    Shrink(ShrinkArgs),
    /// Check whether a change of a scheduler made something worse
    Check(CheckArgs),
    /// Compile a scheduler's source into an object
    Build(BuildArgs),
    /// Attach a scheduler to this machine's kernel, until Ctrl-C or SIGTERM
    Attach(AttachArgs),
    /// Record what runs on this machine into a Perfetto file, as root
    Record(RecordArgs),
    /// Check the simulated kernel: compare its calls of scheduler operations with a real kernel's,
    /// case by case
    Conform(ConformArgs),
    /// Choose the cgroups of this machine that are gangs, for schedulers that run a gang's tasks
    /// together
    Gang(GangArgs),
    /// Prepare and show the kernel and QEMU for virtual machines
    Vm(VmArgs),
    /// List the available schedulers, workloads, machines or experiments
    List(ListArgs),
    /// Show a workload, and what was understood of a recording
    Workload(WorkloadArgs),
    /// Show a machine: its topology and, if asked, its costs
    Topo(TopoArgs),
    /// Show what a BPF object needs from the kernel, what is missing, and its knobs
    Inspect(InspectArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write all pages into a folder
    Man(ManArgs),
}

/// A span of virtual time.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub from: TimeSpan,
    pub to: TimeSpan,
}

impl Span {
    fn parse(text: &str) -> Result<Span, String> {
        let (from, to) = text.split_once("..").ok_or("it has the form FROM..TO: 100ms..140ms")?;
        let time = |text: &str| text.parse::<TimeSpan>().map_err(|e| e.to_string());
        let span = Span { from: time(from)?, to: time(to)? };
        if span.from.0 >= span.to.0 { Err("it ends before it begins".into()) } else { Ok(span) }
    }
}

/// Use of files of earlier commands.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// Compile schedulers anew, and keep no machine code (~/.cache/scxlab/code); results do not
    /// depend on it
    #[arg(long)]
    pub no_cache: bool,
}

impl CacheArgs {
    /// Returns the input files of a command with these options.
    pub fn inputs(&self) -> Inputs {
        Inputs::default().keep_code(!self.no_cache)
    }
}

#[derive(Debug, Args)]
#[command(after_help = examples::RUN)]
pub struct RunArgs {
    /// Scheduler to run; give several to compare the others with the first
    ///
    /// `eevdf` is the kernel's default class. Other names are shipped schedulers (scxlab list
    /// schedulers), and a path is a compiled sched_ext object. Knobs follow, separated by commas;
    /// they set `const volatile` globals and initialised data by name (scxlab inspect shows them).
    /// Those of `eevdf` are the tunables in a running kernel's debugfs, such as base_slice_ns.
    /// `recipe=` selects a recipe by its name or file, or `none`; `ops=` selects one of several ops
    /// of an object.
    #[arg(
        short,
        long = "scheduler",
        value_name = "SCHED[,KNOB=VALUE]...",
        default_value = "eevdf",
        add = ArgValueCompleter::new(complete::schedulers)
    )]
    pub scheduler: Vec<String>,

    /// Workload: a file (rt-app JSON, or scxlab's TOML or JSON), a recording or another trace, or a
    /// generator with its parameters
    ///
    /// scxlab list workloads shows the generators. vms=2,vcpus=8 after a file or a generator, as in
    /// hogs,vms=2,vcpus=8, puts the workload into 2 virtual machines (docs/concepts/guests.md).
    #[arg(short, long, value_name = "WORKLOAD", required_unless_present = "again", add = ArgValueCompleter::new(complete::workloads))]
    pub workload: Option<String>,

    #[command(flatten)]
    pub load: LoadArgs,

    /// Machine: a spec such as 2n4c2t, a preset, a .toml file, lstopo's .xml, a recording, or
    /// `host`; give several to compare on each
    ///
    /// With several machines, each gets a table, and one more table has the main metrics of all of
    /// them. JSON output is then a list of results, and -o makes a folder for each machine.
    #[arg(short, long, value_name = "MACHINE", allow_hyphen_values = true, required_unless_present = "again", add = ArgValueCompleter::new(complete::machines))]
    pub machine: Vec<String>,

    /// Number of runs per scheduler; run i of each scheduler has seed SEED + i
    #[arg(short = 'n', long, value_name = "RUNS", allow_hyphen_values = true, default_value_t = 1, value_parser = whole(1..=10_000))]
    pub runs: u32,

    /// Seed of the first run
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = seed, default_value_t = 1)]
    pub seed: u64,

    /// Virtual time per run, such as 500ms or 5s; replaces the workload's own duration
    ///
    /// If neither is given, a workload runs until all its threads have exited, at most 60s. The
    /// maximum is one day.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = length)]
    pub duration: Option<TimeSpan>,

    /// Write a Perfetto trace of the first run of each scheduler
    ///
    /// With several machines, targets or schedulers, their names are inserted before the file's
    /// ending, in this order: run.vm.vtime.pftrace.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Buffer for the events of a traced run on a real kernel, such as 8M or 1G: 12,000 events per
    /// MiB
    ///
    /// The size is rounded up to a power of two. Events that do not fit are lost, and counted in
    /// the trace and in the results. A simulated run has no such limit.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, default_value = "32M", value_parser = trace_buffer)]
    pub trace_buffer: u32,

    /// Draw which task runs on which CPU in this span of the first run of each scheduler, such as
    /// 100ms..140ms
    ///
    /// The drawing has a line for each CPU and a letter for each task. It follows the table; with
    /// --format json it goes to standard error.
    #[arg(long, value_name = "FROM..TO", value_parser = Span::parse)]
    pub timeline: Option<Span>,

    /// Target to run on; give several to compare them
    ///
    /// `sim` simulates the machine. `vm` boots a real kernel in QEMU with the machine's topology,
    /// without root. `host` is this machine's own kernel; it needs root, and -m must be `host`.
    #[arg(long, value_enum, value_name = "TARGET", default_value = "sim")]
    pub on: Vec<On>,

    /// Percent by which targets may differ from the first and still agree
    ///
    /// With several --on, a second table compares shares, switches, migrations and waits with those
    /// of the first target.
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, default_value_t = scxlab_lab::agreement::TOLERANCE_PERCENT, value_parser = whole(1..=1000))]
    pub tolerance: u32,

    #[command(flatten)]
    pub vm: VmOptions,

    /// Output format
    ///
    /// A table fits the width of the terminal, or COLUMNS. NO_COLOR and CLICOLOR_FORCE rule
    /// colours.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = RunFormat::Table)]
    pub format: RunFormat,

    /// Metrics to show: names of docs/reference/metrics.md, in which * stands for any text,
    /// separated by commas; `all`; or `default`, the dozen that decide
    ///
    /// `default,sched.*` adds a scheduler's own counters. JSON has all metrics in any case, CSV if
    /// this option is absent.
    #[arg(long, value_name = "METRICS", value_parser = selection)]
    pub metrics: Option<Selection>,

    /// Write a page with the results for a browser (see scxlab report)
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Write all results into this folder: Parquet tables, results.json, report.txt, the traces of
    /// the first simulated runs, and all that --again needs
    ///
    /// docs/reference/results-folder.md lists the files and their columns.
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Write the tables of -o as CSV too
    #[arg(long, requires = "output")]
    pub csv: bool,

    /// Maximum random delay of each thread's start
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, default_value = "1ms")]
    pub start_offset: TimeSpan,

    /// Maximum random change of each computation's length, in percent
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, default_value = "1", value_parser = noise)]
    pub compute_noise: u32,

    /// Automatic NUMA balancing of the kernel's default class; by default on, if the machine has
    /// several nodes
    ///
    /// It moves the pages of the workload's regions and the tasks that use them. The modes that
    /// begin with `ext` are for --on sim: they also scan the memory of tasks that a sched_ext
    /// scheduler has, which no kernel does. On a host, the kernel.numa_balancing setting must be as
    /// asked.
    #[arg(long, value_enum, value_name = "MODE")]
    pub numa_balancing: Option<NumaArg>,

    /// Attach the scheduler when the workload has run this long; until then, the default class has
    /// all tasks
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub attach_after: Option<TimeSpan>,

    /// Number of simulations at a time; 0 is one per CPU of this host. Results do not depend on it
    #[arg(short, long, value_name = "N", allow_hyphen_values = true, default_value_t = 0, value_parser = jobs)]
    pub jobs: usize,

    /// Maximum memory of the scheduler and the workload in each simulated run, such as 512M or 4G
    ///
    /// It covers maps, arenas, objects, queues and tasks. A run that needs more ends with the
    /// reason `out_of_memory`. Each run reserves this much address space, and 4 GiB for each arena;
    /// only the used part takes memory of this host.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, default_value = "1G", value_parser = size)]
    pub memory_limit: u64,

    #[command(flatten)]
    pub cache: CacheArgs,

    /// Engine that executes a simulated scheduler's programs; results do not depend on it
    #[arg(long, value_enum, value_name = "ENGINE", default_value_t = EngineArg::Jit)]
    pub engine: EngineArg,

    /// Repeat the command whose results this folder holds (see -o), and compare the results bit for
    /// bit
    ///
    /// The folder holds the command and all files that it read. The exit code is 1 if a simulated
    /// run differs.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scheduler", "workload", "scale", "repeat", "machine", "runs", "seed", "duration", "on",
        "tolerance", "start_offset", "compute_noise", "numa_balancing", "attach_after", "memory_limit", "kernel", "kernel_args", "memory", "accel", "programs"])]
    pub again: Option<PathBuf>,

    /// Exit with 1 if a scheduler was ejected, a run stopped early, or a runnable task never or
    /// hardly ever ran
    #[arg(long)]
    pub fail_on_exit: bool,
}

impl RunArgs {
    pub fn workload(&self) -> Result<String, CliError> {
        self.load.of(self.workload.as_deref().expect("clap requires it"))
    }
}

/// Tries schedulers with many settings in simulation, and says which one the workload should run
/// on, how much better it is, and with how much confidence.
///
/// Each candidate runs in many worlds, the same for all: a world is a seed, with costs of the
/// machine that differ from its table by up to a factor of two. A change is recommended only if it
/// holds in worlds that the search has not seen (docs/guide/advise.md).
#[derive(Debug, Args)]
#[command(after_help = examples::ADVISE)]
pub struct AdviseArgs {
    /// Workload, in the form of -w of run
    #[arg(short, long, value_name = "WORKLOAD", add = ArgValueCompleter::new(complete::workloads))]
    pub workload: String,

    #[command(flatten)]
    pub load: LoadArgs,

    /// Machine, in the form of -m of run
    #[arg(short, long, value_name = "MACHINE", allow_hyphen_values = true, default_value = "host", add = ArgValueCompleter::new(complete::machines))]
    pub machine: String,

    /// What to improve, the most important first: WHAT:QUANTITY[@TASKS][<LIMIT], separated by
    /// commas; by default max:throughput,p99:wakeup_latency
    ///
    /// p50 to p99.99 and max of wakeup_latency, run_queue_wait or lock_wait are to be small;
    /// p99:wakeup_latency@render* is about the tasks with such names. max:throughput, min:finish
    /// (until all threads have exited), min:migrations, fair:weight (CPU time by weight), and min
    /// or max of any metric. A later goal decides between schedulers that the earlier ones cannot
    /// tell apart. A term with a limit, such as p99:wakeup_latency<2ms, must be kept.
    #[arg(short, long, value_name = "GOAL")]
    pub goal: Vec<String>,

    /// Candidate, in the form of -s of run, instead of the shipped schedulers; may be given several
    /// times. eevdf always is one
    #[arg(short, long = "scheduler", value_name = "SCHED[,KNOB=VALUE]...", add = ArgValueCompleter::new(complete::schedulers))]
    pub scheduler: Vec<String>,

    /// Folder whose objects (*.o) are candidates too
    ///
    /// NAME.knobs.toml beside NAME.bpf.o declares the values of its knobs that are worth trying.
    #[arg(long, value_name = "DIR")]
    pub candidates: Option<PathBuf>,

    /// Time of this host after which the best answer so far is given
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, default_value = "60s")]
    pub budget: TimeSpan,

    /// Numbers of worlds for the search and for the decision, such as 24+12, instead of a budget:
    /// equal numbers give equal advice
    #[arg(long, value_name = "SEARCH+DECISION", conflicts_with = "budget")]
    pub rounds: Option<Rounds>,

    /// Seed from which all worlds are drawn
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = seed, default_value_t = 1)]
    pub seed: u64,

    /// Virtual time per run; replaces the workload's own duration
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = length)]
    pub duration: Option<TimeSpan>,

    /// Number of simulations at a time; 0 is one per CPU of this host. Equal numbers of rounds give
    /// equal advice, whatever this number
    #[arg(short, long, value_name = "N", allow_hyphen_values = true, default_value_t = 0, value_parser = jobs)]
    pub jobs: usize,

    /// Maximum memory of the scheduler and the workload in each simulated run, such as 512M or 4G
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, default_value = "1G", value_parser = size)]
    pub memory_limit: u64,

    #[command(flatten)]
    pub cache: CacheArgs,

    /// Output format; json is described in docs/reference/advise.md
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    pub format: Format,

    /// Run the default class and the best two candidates on a real kernel as well, and say whether
    /// their order held
    #[arg(long, value_name = "TARGET", value_parser = PossibleValuesParser::new(["vm", "host"]).map(real))]
    pub verify: Option<On>,

    /// Number of runs of each scheduler for --verify
    #[arg(long, value_name = "RUNS", allow_hyphen_values = true, default_value_t = 3, value_parser = whole(2..=1000), requires = "verify")]
    pub verify_runs: u32,

    #[command(flatten)]
    pub vm: VmOptions,
}

#[derive(Debug, Args)]
#[command(after_help = examples::REPRODUCE)]
pub struct ReproduceArgs {
    /// Thread: o1-2002, gang-2011, pelt-2012, tickle-2012 or numa-2013; or the file of an
    /// experiment of your own; without one, all threads
    #[arg(value_name = "THREAD", add = ArgValueCompleter::new(complete::threads))]
    pub thread: Option<String>,

    /// Table of the thread; give several for several
    #[arg(long, value_name = "TABLE", requires = "thread")]
    pub table: Vec<String>,

    /// Number of runs of each setup; run i has seed SEED + i
    #[arg(short = 'n', long, value_name = "RUNS", allow_hyphen_values = true, default_value_t = 3, value_parser = whole(1..=10_000))]
    pub runs: u32,

    /// Seed of the first run
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = seed, default_value_t = 1)]
    pub seed: u64,

    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReproduceFormat::Table)]
    pub format: ReproduceFormat,

    /// Write reproduce.json and reproduce.md into this folder
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Machine for all tables instead of those of the thread: what the thread's schedulers would do
    /// on it, with the default class as a further column
    #[arg(short, long, value_name = "MACHINE", allow_hyphen_values = true, add = ArgValueCompleter::new(complete::machines))]
    pub machine: Option<String>,

    /// Leave fitted parameters at their defaults
    #[arg(long)]
    pub blind: bool,

    /// Fit the parameters anew to the baselines' figures, from their defaults on, and print the
    /// error at each value
    #[arg(long, conflicts_with_all = ["table", "format", "output", "machine", "blind", "ablation"])]
    pub fit: bool,

    /// Switch a mechanism off, as an experiment's `[ablation]` says
    #[arg(long, value_name = "NAME", requires = "thread")]
    pub ablation: Option<String>,

    /// Make all runs anew, and keep none (~/.cache/scxlab/cells)
    #[arg(long)]
    pub no_cache: bool,

    /// Time of this host after which the work ends; runs that were made are kept
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub deadline: Option<TimeSpan>,

    /// Number of simulations at a time; 0 is one per CPU of this host. Results do not depend on it
    #[arg(short, long, value_name = "N", allow_hyphen_values = true, default_value_t = 0, value_parser = jobs)]
    pub jobs: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReproduceFormat {
    Table,
    Json,
    Markdown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NumaArg {
    Off,
    On,
    /// As `on`, and memory of sched_ext tasks is scanned too
    Ext,
    /// As `ext`, by the rules of Linux 3.9: pages move to the tasks that access them
    #[value(name = "ext-3.9")]
    ExtLinux39,
    /// As `ext-3.9`, with the series "Basic scheduler support for automatic NUMA balancing V5" of
    /// July 2013: a task prefers the node of its private faults
    #[value(name = "ext-v5")]
    ExtSeriesV5,
}

impl NumaArg {
    pub fn mode(self) -> NumaBalancing {
        match self {
            NumaArg::Off => NumaBalancing::Off,
            NumaArg::On => NumaBalancing::On,
            NumaArg::Ext => NumaBalancing::Ext,
            NumaArg::ExtLinux39 => NumaBalancing::ExtLinux39,
            NumaArg::ExtSeriesV5 => NumaBalancing::ExtSeriesV5,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineArg {
    /// The interpreter
    Interp,
    /// Machine code for frequently run programs, on x86-64 and aarch64
    Jit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for people
    Table,
    /// JSON for programs
    Json,
}

/// Output format of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RunFormat {
    /// Text for people
    #[value(alias = "text")]
    Table,
    /// The same tables in Markdown
    Markdown,
    /// A line for each scheduler and metric, with unrounded numbers
    Csv,
    /// JSON for programs, as docs/reference/results.schema.json describes it
    Json,
    /// The layout of `perf sched latency`, for the first run of each scheduler
    PerfSched,
    /// The layout of `perf sched timehist`, for the first run of each scheduler
    PerfTimehist,
    /// Wake-up latencies and throughput of each run, as schbench prints them
    Schbench,
    /// The time of each run, as hackbench prints it
    Hackbench,
}

impl RunFormat {
    /// Returns the layout of perf that the format is.
    pub fn perf(self) -> Option<PerfLayout> {
        match self {
            RunFormat::PerfSched => Some(PerfLayout::Latency),
            RunFormat::PerfTimehist => Some(PerfLayout::Timehist),
            _ => None,
        }
    }
}

/// Number of runs of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunCount {
    /// As many as the verdicts need.
    Auto,
    Fixed(u32),
}

impl RunCount {
    fn parse(text: &str) -> Result<RunCount, String> {
        if text == "auto" {
            return Ok(RunCount::Auto);
        }
        let number = text.parse().ok().filter(|n| (1..=10_000).contains(n));
        number.map(RunCount::Fixed).ok_or_else(|| "auto, or a number from 1 to 10000".to_owned())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum On {
    Sim,
    Vm,
    Host,
}

impl On {
    pub fn name(self) -> &'static str {
        match self {
            On::Sim => "sim",
            On::Vm => "vm",
            On::Host => "host",
        }
    }
}

/// Options for virtual machines.
#[derive(Clone, Debug, Args)]
pub struct VmOptions {
    /// Kernel for --on vm, and for guests of a workload: a bzImage or vmlinux; by default the one
    /// that `scxlab vm setup` prepares, now if it has not been prepared
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,

    /// Additional words for the kernel's command line, such as cgroup_disable=cpu
    #[arg(long, value_name = "WORDS")]
    pub kernel_args: Option<String>,

    /// Memory of the virtual machine in MiB; by default what its CPUs and files need
    #[arg(long, value_name = "MIB")]
    pub memory: Option<u64>,

    /// Accelerator of the virtual machine
    #[arg(long, value_enum, value_name = "ENGINE", default_value_t = AccelArg::Auto)]
    pub accel: AccelArg,

    /// Maximum wall time of a virtual machine, or of all simulated runs together; by default, a
    /// virtual machine's limit follows from its work, and simulations have none
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub deadline: Option<TimeSpan>,

    /// Program of this host to copy into the virtual machine, with its libraries; may be given
    /// several times
    ///
    /// The program of a command given as workload is copied anyway; name further programs that it
    /// starts.
    #[arg(long = "vm-program", value_name = "PROGRAM")]
    pub programs: Vec<String>,

    /// Write the virtual machine's console and kernel log to this file
    #[arg(long, value_name = "FILE")]
    pub console: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AccelArg {
    /// KVM if it really works, else emulation
    Auto,
    Kvm,
    /// Emulation: slow, but available everywhere
    Tcg,
    /// Emulation with a clock that counts instructions, so that other load on the host has no
    /// influence
    Counted,
}

/// Compiles FILE with clang 19 or later, in the way the shipped schedulers are compiled, into an
/// object for `run -s`, `attach` and any kernel.
///
/// All headers are included in scxlab: <scx/common.bpf.h> and the other headers of the scx project,
/// the kernel's types (vmlinux.h), and scxlab's own ("lib/..."). BPF_CLANG names a compiler other
/// than clang-19.
#[derive(Debug, Args)]
#[command(after_help = examples::BUILD)]
pub struct BuildArgs {
    /// Source file, such as my.bpf.c
    #[arg(value_name = "FILE", required_unless_present = "headers")]
    pub source: Option<PathBuf>,

    /// Object file to write; by default beside the source: my.bpf.o
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["new", "headers"])]
    pub output: Option<PathBuf>,

    /// Write an example scheduler to FILE, which must not exist, instead of compiling
    #[arg(long, conflicts_with = "headers")]
    pub new: bool,

    /// Additional folder of headers; may be given several times
    #[arg(short = 'I', long, value_name = "DIR")]
    pub include: Vec<PathBuf>,

    /// Write the headers to this folder, for an editor or another build, instead of compiling
    #[arg(long, value_name = "DIR", conflicts_with = "source")]
    pub headers: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = examples::ATTACH)]
pub struct AttachArgs {
    /// Scheduler, in the form of -s of run; with eevdf, its tunables are set, and restored at the
    /// end
    #[arg(value_name = "SCHED[,KNOB=VALUE]...", required_unless_present = "uninstall", add = ArgValueCompleter::new(complete::schedulers))]
    pub scheduler: Option<String>,

    /// Attach now and at each boot, by a service of systemd, in place of the one installed before
    ///
    /// The service has copies of the object and the recipe. If the kernel ejects the scheduler, the
    /// default class has all tasks again until the next boot.
    #[arg(long, conflicts_with_all = ["interval", "format", "duration"])]
    pub install: bool,

    /// Stop and remove the service that --install made
    #[arg(long, conflicts_with_all = ["scheduler", "install", "interval", "format", "duration"])]
    pub uninstall: bool,

    /// Time between statistics; 0 prints none
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, default_value = "1s")]
    pub interval: TimeSpan,

    /// Statistics as lines for people, or as one JSON object per line
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    pub format: Format,

    /// Detach after this time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = length)]
    pub duration: Option<TimeSpan>,
}

/// Records the scheduling events of all tasks, and the system calls and attributes of the tasks of
/// the workload, until the time is over or Ctrl-C.
///
/// Without --cgroup, --pid and COMMAND, the workload is everything that runs on this machine. The
/// file opens in the Perfetto UI. At the end, the command says how many events were lost, and how
/// much time the recording itself took.
#[derive(Debug, Args)]
#[command(after_help = examples::RECORD)]
pub struct RecordArgs {
    /// File to write
    #[arg(short, long, value_name = "FILE", default_value = "scxlab.pftrace")]
    pub output: PathBuf,

    /// Length of the recording; by default 10s, or until COMMAND ends
    ///
    /// A command that still runs at the end gets SIGTERM, and two seconds later SIGKILL.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = length)]
    pub duration: Option<TimeSpan>,

    /// The workload is this cgroup and those below it: a directory, or the path from the top of the
    /// hierarchy
    #[arg(long, value_name = "PATH", conflicts_with_all = ["pid", "command"])]
    pub cgroup: Option<String>,

    /// The workload is this process and its descendants
    #[arg(long, value_name = "N", allow_hyphen_values = true, conflicts_with = "command")]
    pub pid: Option<u32>,

    /// Buffer for events that are not yet in the file, such as 64K or 32M
    ///
    /// The size is rounded up to a power of two. Events that find no room are lost, and counted.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, default_value = "32M", value_parser = ring)]
    pub buffer: u32,

    /// Command to start; the workload is its processes
    ///
    /// Its standard input is empty. Processes that it leaves behind are killed.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = examples::CONFORM)]
pub struct ConformArgs {
    /// Cases by name or file; by default all shipped cases
    pub cases: Vec<String>,

    /// Scheduler whose operations are compared, in the form of -s of run; may be given several
    /// times. By default the tracer, with the knobs of each case
    #[arg(short, long, value_name = "SCHEDULER", add = ArgValueCompleter::new(complete::schedulers))]
    pub scheduler: Vec<String>,

    /// Target that has the real kernel
    #[arg(long, value_enum, value_name = "TARGET", default_value_t = On::Vm)]
    pub on: On,

    /// Topology of the virtual machine
    #[arg(short, long, value_name = "MACHINE", allow_hyphen_values = true, default_value = "2n2c1t", add = ArgValueCompleter::new(complete::machines))]
    pub machine: String,

    /// Maximum number of tries of a case that does not agree, because other tasks interfere on a
    /// real kernel
    #[arg(long, value_name = "N", allow_hyphen_values = true, default_value_t = 3, value_parser = whole(1..=100))]
    pub tries: u32,

    #[command(flatten)]
    pub vm: VmOptions,

    /// Print the operations of both kernels in every case, not only differences
    #[arg(short, long)]
    pub verbose: bool,
}

#[derive(Debug, Args)]
#[command(after_help = examples::GANG)]
pub struct GangArgs {
    #[command(subcommand)]
    pub command: GangCommand,
}

/// A gang is a cgroup whose directory has the extended attribute `user.cpu.gang` with the value 1;
/// `setfattr` can set it too.
#[derive(Debug, Subcommand)]
pub enum GangCommand {
    /// Make a cgroup a gang
    On {
        /// Directory of the cgroup, or its path from the top of the hierarchy
        cgroup: String,
    },
    /// Make a cgroup ordinary again
    Off {
        /// Directory of the cgroup, or its path from the top of the hierarchy
        cgroup: String,
    },
    /// List the cgroups that have been switched on or off
    List,
}

#[derive(Debug, Args)]
#[command(after_help = examples::VM)]
pub struct VmArgs {
    #[command(subcommand)]
    pub command: VmCommand,
}

#[derive(Debug, Subcommand)]
pub enum VmCommand {
    /// Get Debian's kernel with sched_ext through this machine's apt, without root
    Setup,
    /// Show the kernel, the QEMU and the accelerator that would be used
    Show,
}

#[derive(Debug, Args)]
#[command(after_help = examples::LIST)]
pub struct ListArgs {
    /// Kind of things to list
    #[arg(value_enum)]
    pub what: Listed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Listed {
    Schedulers,
    Workloads,
    Machines,
    /// Threads whose published tables `reproduce` predicts
    Experiments,
}

#[derive(Debug, Args)]
#[command(after_help = examples::WORKLOAD_SHOW)]
pub struct WorkloadArgs {
    #[command(subcommand)]
    pub command: WorkloadCommand,
}

#[derive(Debug, Subcommand)]
pub enum WorkloadCommand {
    /// Show the threads and ops of a workload; of a recording its roles, wake-ups and critical path
    Show(WorkloadShowArgs),
}

#[derive(Debug, Args)]
#[command(after_help = examples::WORKLOAD_SHOW)]
pub struct WorkloadShowArgs {
    /// Workload, in the form of -w of run
    #[arg(add = ArgValueCompleter::new(complete::workloads))]
    pub workload: String,

    #[command(flatten)]
    pub load: LoadArgs,

    /// Print the program as a workload file instead
    #[arg(long)]
    pub toml: bool,
}

#[derive(Debug, Args)]
#[command(after_help = examples::TOPO)]
pub struct TopoArgs {
    /// Machine, in the form of -m of run
    #[arg(add = ArgValueCompleter::new(complete::machines))]
    pub machine: String,

    /// Also show every cost with its unit and source
    #[arg(long)]
    pub costs: bool,

    /// Output format; json is the canonical form, from which the fingerprint is made
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    pub format: Format,
}

#[derive(Debug, Args)]
#[command(after_help = examples::INSPECT)]
pub struct InspectArgs {
    /// Object file, or name of a shipped scheduler
    #[arg(add = ArgValueCompleter::new(complete::schedulers))]
    pub object: String,

    /// Also list every program, map, kernel function, field and helper that the object refers to
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
#[command(after_help = examples::COMPLETIONS)]
pub struct CompletionsArgs {
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
#[command(after_help = examples::MAN)]
pub struct ManArgs {
    /// Write a page for the command and each of its subcommands into this folder
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// Parses a percentage with at most one decimal; returns thousandths.
fn noise(text: &str) -> Result<u32, String> {
    let bad = || format!("\"{text}\" is not a percentage from 0 to 99.9 with at most one decimal");
    let number = text.trim().trim_end_matches('%').trim_end();
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits =
        |s: &str| !s.is_empty() && s.len() <= 3 && s.bytes().all(|b| b.is_ascii_digit());
    if !is_digits(whole) || !is_digits(tenth) || tenth.len() != 1 {
        return Err(bad());
    }
    let whole: u32 = whole.parse().map_err(|_| bad())?;
    let tenth: u32 = tenth.parse().map_err(|_| bad())?;
    Some(whole * 10 + tenth).filter(|n| *n <= 999).ok_or_else(bad)
}

/// Returns a parser of whole numbers in a range.
fn whole(range: RangeInclusive<u32>) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let (from, to) = (range.start(), range.end());
        number.ok_or_else(|| format!("a whole number from {from} to {to} is needed"))
    }
}

/// Parses a seed.
fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("a whole number from 0 to {} is needed", u64::MAX))
}

/// Parses the length of a run.
fn length(text: &str) -> Result<TimeSpan, String> {
    let time: TimeSpan = text.parse().map_err(|e: <TimeSpan as FromStr>::Err| e.to_string())?;
    Some(time).filter(|time| time.0 > 0).ok_or_else(|| "a time above 0 is needed".to_owned())
}

fn selection(text: &str) -> Result<Selection, String> {
    Selection::parse(text.split(','))
}

/// Returns the target of that name with a real kernel.
fn real(name: String) -> On {
    if name == On::Vm.name() { On::Vm } else { On::Host }
}

/// Parses the memory limit of a run in bytes.
fn size(text: &str) -> Result<u64, String> {
    bytes(text)?
        .filter(|n| (1 << 24..=1 << 40).contains(n))
        .ok_or_else(|| "from 16M to 1024G".into())
}

/// Parses the size of a ring buffer in bytes, and rounds it up to a power of two.
fn trace_buffer(text: &str) -> Result<u32, String> {
    let fits = bytes(text)?.filter(|n| (1 << 20..=1 << 30).contains(n));
    let fits = fits.and_then(|n| u32::try_from(n).ok());
    fits.map(u32::next_power_of_two).ok_or_else(|| "from 1M to 1G".into())
}

/// Parses the size of the recorder's ring buffer in bytes, and rounds it up to a power of two.
fn ring(text: &str) -> Result<u32, String> {
    let kib = text.strip_suffix('K').and_then(|number| number.parse::<u64>().ok());
    let size = match kib {
        Some(kib) => kib.checked_mul(1 << 10),
        None => bytes(text).map_err(|_| "a size is a number with K, M or G behind it: 64K, 32M")?,
    };
    let fits = size.filter(|n| (1 << 16..=1 << 30).contains(n));
    let fits = fits.and_then(|n| u32::try_from(n).ok());
    fits.map(u32::next_power_of_two).ok_or_else(|| "from 64K to 1G".into())
}

/// Parses a size with the suffix M or G; None if it overflows 64 bits.
fn bytes(text: &str) -> Result<Option<u64>, String> {
    let form = || "a size is a number with M or G behind it: 512M, 4G".to_owned();
    let (number, shift) = match text.strip_suffix('M') {
        Some(number) => (number, 20),
        None => (text.strip_suffix('G').ok_or_else(form)?, 30),
    };
    let number: u64 = number.parse().map_err(|_| form())?;
    Ok(number.checked_mul(1 << shift))
}

fn jobs(text: &str) -> Result<usize, String> {
    const MAX: usize = 1024;
    let parsed = text.parse().ok().filter(|n| *n <= MAX);
    parsed.ok_or_else(|| format!("\"{text}\" is not a number from 0 to {MAX}"))
}
