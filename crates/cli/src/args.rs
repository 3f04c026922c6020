// SPDX-License-Identifier: GPL-2.0-only
//! The flags. Their help texts are the manual: the man page and `docs/reference/flags.md` are made of them.

mod examples;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use scxlab_workload::program::Dur;

use crate::complete;

/// Which CPU scheduler, with which settings, should this workload run on, on this machine?
///
/// Runs compiled sched_ext BPF schedulers (and the kernel's default class) on a simulated machine, without root,
/// the same way every time.
#[derive(Debug, Parser)]
#[command(name = "scxlab", version, after_help = examples::ALL, after_long_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  the command did what it was asked; a scheduler that is ejected is a result
  1  with --fail-on-exit: a scheduler was ejected, a run stopped early, or a task never ran; of attach: the scheduler left
     by itself; of conform: the kernels differ; and what was cancelled or met its deadline
  2  the command line is wrong: a flag, or a name or knob that does not exist
  3  an input file cannot be read, is malformed, or does not fit the machine
  4  the input needs what is not modelled
  5  a fault of scxlab itself
  6  a result could not be written
  7  the virtual machine or this host cannot do it: no QEMU, no kernel, no sched_ext, no root, a scheduler loaded already
  8  the virtual machine came up and failed: it panicked, hung, or said nothing";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a workload under one scheduler, or compare several
    Run(RunArgs),
    /// Compile a scheduler's source into an object
    Build(BuildArgs),
    /// Put a scheduler to work on this machine, until Ctrl-C or SIGTERM
    Attach(AttachArgs),
    /// Compare what the simulated and a real kernel call, in situation after situation
    Conform(ConformArgs),
    /// Say which cgroups of this machine are gangs, for schedulers that run a gang's tasks together
    Gang(GangArgs),
    /// Prepare and show what virtual machines need
    Vm(VmArgs),
    /// List what there is to choose from
    List(ListArgs),
    /// Show what a machine's description means
    Topo(TopoArgs),
    /// Show what a BPF object needs, what is missing, and its knobs
    Inspect(InspectArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write all pages into a folder
    Man(ManArgs),
}

/// A stretch of virtual time.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub from: Dur,
    pub to: Dur,
}

impl Span {
    fn parse(text: &str) -> Result<Span, String> {
        let (from, to) = text.split_once("..").ok_or("it has the form FROM..TO: 100ms..140ms")?;
        let time = |text: &str| text.parse::<Dur>().map_err(|e| e.to_string());
        let span = Span { from: time(from)?, to: time(to)? };
        if span.from.0 >= span.to.0 { Err("it ends before it begins".into()) } else { Ok(span) }
    }
}

#[derive(Debug, Args)]
#[command(after_help = examples::RUN)]
pub struct RunArgs {
    /// A scheduler; give several to compare them with the first
    ///
    /// `eevdf` is the kernel's default class. Other names are shipped schedulers (scxlab list schedulers), and a
    /// path is a compiled sched_ext object. Knobs follow, separated by commas: they set `const volatile` globals
    /// and initialised data by name (scxlab inspect shows them). `recipe=` names a recipe, a file of one, or
    /// `none`; `ops=` chooses among several ops of an object.
    #[arg(
        short,
        long = "scheduler",
        value_name = "SCHED[,KNOB=VALUE]...",
        default_value = "eevdf",
        add = ArgValueCompleter::new(complete::schedulers)
    )]
    pub scheduler: Vec<String>,

    /// The workload: a file (rt-app JSON, or our TOML or JSON), or a generator with its parameters
    ///
    /// scxlab list workloads shows the generators.
    #[arg(short, long, value_name = "WORKLOAD", required_unless_present = "again", add = ArgValueCompleter::new(complete::workloads))]
    pub workload: Option<String>,

    /// The machine: a spec such as 2n4c2t, a preset, a .toml file, lstopo's .xml, or `host`; give several to compare on each
    ///
    /// With several there is a table for each, and one with the first figures of all. JSON is then a list of results, and -o
    /// has a folder for each.
    #[arg(short, long, value_name = "MACHINE", required_unless_present = "again", add = ArgValueCompleter::new(complete::machines))]
    pub machine: Vec<String>,

    /// Runs per scheduler; run i has seed SEED + i under each
    #[arg(short = 'n', long, value_name = "RUNS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,

    /// Seed of the first run
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Virtual time per run, such as 500ms or 5s; in place of the workload's own
    ///
    /// Without it and without one of its own, a workload runs until all its threads have exited, at most 60s.
    /// A run is of a day at most.
    #[arg(long, value_name = "TIME")]
    pub duration: Option<Dur>,

    /// Write a Perfetto trace of the first run of each scheduler
    ///
    /// With several machines, targets or schedulers, the names of each are put before the file's ending, in this order:
    /// run.vm.vtime.pftrace.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Memory for the events of a traced run on a real kernel, such as 8M or 1G: 12,000 events a MiB
    ///
    /// A power of two; others are rounded up. Events that find it full are lost, and counted in the trace and in the results.
    /// A simulated run has no such limit.
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = trace_buffer)]
    pub trace_buffer: u32,

    /// Draw who ran where in this span of the first run of each scheduler, such as 100ms..140ms
    ///
    /// A line for each CPU, a letter for each task. It is printed after the table; with --format json, on standard error.
    #[arg(long, value_name = "FROM..TO", value_parser = Span::parse)]
    pub timeline: Option<Span>,

    /// Where to run; give several to compare them
    ///
    /// `sim` simulates the machine. `vm` boots a real kernel in QEMU with the machine's topology, without root. `host` is
    /// this machine's own kernel: it needs root, and -m must be `host`.
    #[arg(long, value_enum, value_name = "TARGET", default_value = "sim")]
    pub on: Vec<On>,

    /// Percent by which targets may differ from the first and still agree
    ///
    /// With several --on, a second table holds shares, switches, migrations and waits against it.
    #[arg(long, value_name = "PERCENT", default_value_t = scxlab_lab::agreement::TOLERANCE_PERCENT, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub tolerance: u32,

    #[command(flatten)]
    pub vm: VmOptions,

    /// What to print
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    pub format: Format,

    /// Also write results.json, report.txt and the first simulated runs' traces into this folder, with all that is needed to run it again
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Latest start of a thread: each starts at a random time from 0 to this
    #[arg(long, value_name = "TIME", default_value = "1ms")]
    pub start_offset: Dur,

    /// Percent by which each computation is longer or shorter at most, at random
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = noise)]
    pub compute_noise: u32,

    /// Simulations at a time; 0 is one per CPU of this host. Results do not depend on it
    #[arg(short, long, value_name = "N", default_value_t = 0, value_parser = jobs)]
    pub jobs: usize,

    /// Memory that the scheduler and the workload may take in each simulated run, such as 512M or 4G
    ///
    /// Maps, arenas, objects, queues and tasks count. A run that needs more ends, with `out_of_memory` as the reason. Each run
    /// reserves address space for it, and 4 GiB for each arena; only what is used takes memory of this host.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    pub memory_limit: u64,

    /// What executes a simulated scheduler's programs; results do not depend on it
    #[arg(long, value_enum, value_name = "ENGINE", default_value_t = EngineArg::Jit)]
    pub engine: EngineArg,

    /// Run what this folder, written by -o, holds the results of, and compare them bit for bit
    ///
    /// The command and all files that it read are in the folder. Exit code 1: a simulated run is not what it was.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scheduler", "workload", "machine", "runs", "seed", "duration", "on", "tolerance",
        "start_offset", "compute_noise", "memory_limit", "kernel", "kernel_args", "memory", "accel", "programs"])]
    pub again: Option<PathBuf>,

    /// Exit with 1 if a scheduler was ejected, a run stopped early, or a task that could run never did
    #[arg(long)]
    pub fail_on_exit: bool,
}

impl RunArgs {
    pub fn workload(&self) -> &str {
        self.workload.as_deref().expect("clap requires it")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineArg {
    /// The interpreter
    Interp,
    /// Machine code for what runs often, on x86-64 and aarch64
    Jit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For programs; docs/reference/results.schema.json describes it
    Json,
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

/// How virtual machines are made.
#[derive(Clone, Debug, Args)]
pub struct VmOptions {
    /// The kernel for --on vm: a bzImage or vmlinux; without it, the one that `scxlab vm setup` prepares, which is done if it was not
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,

    /// More words for its command line, such as cgroup_disable=cpu
    #[arg(long, value_name = "WORDS")]
    pub kernel_args: Option<String>,

    /// Memory of the virtual machine, MiB; without it, what its CPUs and files need
    #[arg(long, value_name = "MIB")]
    pub memory: Option<u64>,

    /// What runs the virtual machine's instructions
    #[arg(long, value_enum, value_name = "ENGINE", default_value_t = AccelArg::Auto)]
    pub accel: AccelArg,

    /// Wall time that the virtual machine, or all simulated runs together, may take; without it, a virtual machine has what
    /// its work should need, and simulations have no limit
    #[arg(long, value_name = "TIME")]
    pub deadline: Option<Dur>,

    /// A program of this host that the virtual machine has too, with its libraries; may be given several times
    ///
    /// A command as workload has its own program anyway; others that it starts are named with this.
    #[arg(long = "vm-program", value_name = "PROGRAM")]
    pub programs: Vec<String>,

    /// Keep the virtual machine's console and kernel log in this file
    #[arg(long, value_name = "FILE")]
    pub console: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AccelArg {
    /// KVM where it truly works, else emulation
    Auto,
    Kvm,
    /// Emulation: slow, and everywhere
    Tcg,
    /// Emulation by a clock that counts instructions: what else the host does has no influence
    Counted,
}

/// Compiles FILE as the shipped schedulers are compiled, by clang 19 or later, into an object that `run -s`, `attach` and a kernel take.
///
/// All that it may include is brought along: <scx/common.bpf.h> and the other headers of the scx project, the kernel's types
/// (vmlinux.h), and ours ("lib/..."). BPF_CLANG names another compiler than clang-19.
#[derive(Debug, Args)]
#[command(after_help = examples::BUILD)]
pub struct BuildArgs {
    /// The source, such as my.bpf.c
    #[arg(value_name = "FILE", required_unless_present = "headers")]
    pub source: Option<PathBuf>,

    /// The object; without it, beside the source: my.bpf.o
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["new", "headers"])]
    pub output: Option<PathBuf>,

    /// Write a scheduler to start from into FILE, which must not exist, instead of compiling it
    #[arg(long, conflicts_with = "headers")]
    pub new: bool,

    /// Another folder of headers; may be given several times
    #[arg(short = 'I', long, value_name = "DIR")]
    pub include: Vec<PathBuf>,

    /// Write the headers into this folder, for an editor or another build, instead of compiling
    #[arg(long, value_name = "DIR", conflicts_with = "source")]
    pub headers: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = examples::ATTACH)]
pub struct AttachArgs {
    /// The scheduler, as -s of run
    #[arg(value_name = "SCHED[,KNOB=VALUE]...", add = ArgValueCompleter::new(complete::schedulers))]
    pub scheduler: String,

    /// Print statistics so often; 0: never
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub interval: Dur,

    /// Statistics as lines for people, or as a JSON object a line
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    pub format: Format,

    /// Detach after this time
    #[arg(long, value_name = "TIME")]
    pub duration: Option<Dur>,
}

#[derive(Debug, Args)]
#[command(after_help = examples::CONFORM)]
pub struct ConformArgs {
    /// Cases by name, or files of one; all that are shipped without any
    pub cases: Vec<String>,

    /// The scheduler whose operations are compared, as for `run`; may be repeated. Without any it is the tracer, with the knobs of
    /// each case
    #[arg(short, long, value_name = "SCHEDULER", add = ArgValueCompleter::new(complete::schedulers))]
    pub scheduler: Vec<String>,

    /// Where the real kernel is
    #[arg(long, value_enum, value_name = "TARGET", default_value_t = On::Vm)]
    pub on: On,

    /// The virtual machine's topology
    #[arg(short, long, value_name = "MACHINE", default_value = "2n2c1t", add = ArgValueCompleter::new(complete::machines))]
    pub machine: String,

    /// Try a case that does not agree again, up to so many times: on a real kernel others interfere
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub tries: u32,

    #[command(flatten)]
    pub vm: VmOptions,

    /// Print what both did in every case, not only differences
    #[arg(short, long)]
    pub verbose: bool,
}

#[derive(Debug, Args)]
#[command(after_help = examples::GANG)]
pub struct GangArgs {
    #[command(subcommand)]
    pub command: GangCommand,
}

/// A gang is a cgroup whose directory has the extended attribute `user.cpu.gang` with the value 1, so `setfattr` does as well.
#[derive(Debug, Subcommand)]
pub enum GangCommand {
    /// Make a cgroup a gang
    On {
        /// Its directory, or its path from the top of the hierarchy
        cgroup: String,
    },
    /// Make it an ordinary cgroup again
    Off {
        /// Its directory, or its path from the top of the hierarchy
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
    /// Show which kernel, which QEMU and which engine would be used
    Show,
}

#[derive(Debug, Args)]
#[command(after_help = examples::LIST)]
pub struct ListArgs {
    /// What to list
    #[arg(value_enum)]
    pub what: Listed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Listed {
    Schedulers,
    Workloads,
    Machines,
}

#[derive(Debug, Args)]
#[command(after_help = examples::TOPO)]
pub struct TopoArgs {
    /// As -m of run
    #[arg(add = ArgValueCompleter::new(complete::machines))]
    pub machine: String,

    /// Also show every cost with its unit and source
    #[arg(long)]
    pub costs: bool,

    /// What to print; json is the canonical form that the fingerprint is about
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    pub format: Format,
}

#[derive(Debug, Args)]
#[command(after_help = examples::INSPECT)]
pub struct InspectArgs {
    /// An object file, or a shipped scheduler's name
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

/// Percent with at most one decimal, as thousandths.
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

/// Memory of a run.
fn size(text: &str) -> Result<u64, String> {
    bytes(text)?
        .filter(|n| (1 << 24..=1 << 40).contains(n))
        .ok_or_else(|| "from 16M to 1024G".into())
}

/// Memory of a ring buffer.
fn trace_buffer(text: &str) -> Result<u32, String> {
    let fits = bytes(text)?.filter(|n| (1 << 20..=1 << 30).contains(n));
    let fits = fits.and_then(|n| u32::try_from(n).ok());
    fits.map(u32::next_power_of_two).ok_or_else(|| "from 1M to 1G".into())
}

/// Bytes, in binary multiples; None if there are more than any machine has.
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
