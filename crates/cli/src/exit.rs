// SPDX-License-Identifier: GPL-2.0-only
//! Exit codes: maps each failure to the code of its cause. No other module decides on exit codes.
//!
//! Owns: the code of each failure, the catching of panics, the silent end on a closed pipe.
//! `exit/code.rs` declares the codes.

mod code;

use std::ffi::OsString;
use std::io;
use std::panic::{self, UnwindSafe};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use crate::output;
pub use code::{Code, list};
use scxlab_kernel::ext::object::ObjectAttachError;
use scxlab_lab::advise::AdviseError;
use scxlab_lab::advise::candidate::CandidateError;
use scxlab_lab::advise::goal::GoalError;
use scxlab_lab::conform::{CaseError, SimCaseError};
use scxlab_lab::input::InputError;
use scxlab_lab::prepare::PrepareError;
use scxlab_lab::recipe::{RecipeError, RecipeErrorKind};
use scxlab_lab::recorded::RecordedError;
use scxlab_lab::reproduce::ReproduceError;
use scxlab_lab::session::{LengthOf, SessionError};
use scxlab_lab::shrink::ShrinkError;
use scxlab_lab::sim::SimError;
use scxlab_live::LiveError;
use scxlab_live::gang::GangError;
use scxlab_loader::link::LinkError;
use scxlab_loader::link::error::LinkErrorKind;
use scxlab_loader::object::ObjectError;
use scxlab_machine::{MachineError, plural};
use scxlab_results::check::Refusal;
use scxlab_results::folder::FolderError;
use scxlab_results::gate::GateError;
use scxlab_sweep::SweepError;
use scxlab_vm::setup::SetupError;
use scxlab_vm::{VmError, VmFault};
use scxlab_workload::native::{NativeError, SetupError as NativeSetupError};
use scxlab_workload::{SourcePlace, WorkloadError};

/// Failures of the command itself.
#[derive(Debug)]
pub enum CliError {
    Write {
        what: String,
        error: io::Error,
    },
    /// A word of the command line that is not UTF-8.
    NotText {
        word: OsString,
    },
    /// A failure inside a virtual machine, with the exit code that its cause has there.
    InGuest {
        code: Code,
        message: String,
    },
    /// `--on host` with another machine than `host`.
    HostMachine {
        machine: String,
    },
    /// `--numa-balancing ext` on a real kernel.
    NumaExt,
    /// A workload with guests for a real kernel on which KVM does not work.
    Guests {
        at: SourcePlace,
        guest: String,
        on: &'static str,
        why: String,
    },
    /// A workload that takes CPUs off line, for a real kernel.
    Hotplug {
        at: SourcePlace,
        thread: String,
        on: &'static str,
    },
    /// An option about recordings, with a command as the workload.
    NoRecording {
        option: &'static str,
    },
    /// A command where a program is needed.
    CommandIsNoProgram {
        command: String,
    },
    /// A machine for conformance cases whose CPUs QEMU would number differently. Cases name CPUs by
    /// number.
    Numbering {
        machine: String,
    },
    /// The program of a workload command is not on this host.
    NoProgram {
        name: String,
    },
    NothingToAttach {
        name: String,
    },
    /// `--install` or `--uninstall` on a machine that systemd does not manage.
    NoSystemd,
    /// A step of an installation that failed.
    Service {
        what: String,
        why: String,
    },
    /// The scheduler that `scxlab attach` attached exited by itself.
    Left {
        name: String,
        kind: String,
        message: String,
        dump: String,
    },
    /// An object that lacks something that it requires of the simulated kernel.
    DoesNotLoad {
        object: String,
    },
    /// Conformance cases in which the kernels differ.
    Differs {
        cases: usize,
        of: usize,
    },
    /// Runs with a failure, under `--fail-on-exit`.
    WentBadly(FailedRuns),
    /// Interruption by Ctrl-C, SIGTERM or `--deadline`, with the numbers of runs in each state.
    Interrupted {
        why: String,
        whole: usize,
        cut: usize,
        not_begun: usize,
    },
    /// Another process is writing its results to the folder.
    Busy {
        folder: PathBuf,
    },
    /// A scheduler's source that cannot be built.
    Source {
        path: PathBuf,
        why: String,
    },
    /// A folder without a stored command to run again.
    NothingKept {
        folder: PathBuf,
        why: String,
    },
    /// Simulated runs that differ from the stored ones.
    NotTheSame {
        runs: usize,
        of: usize,
        first: String,
    },
    /// A file or folder without results that a page can be made from.
    NoResults {
        path: PathBuf,
        why: String,
    },
    /// A page on which some runs do not count.
    NotAllCount {
        runs: usize,
        of: usize,
    },
    /// A page whose results do not belong together, or have no runs.
    Incomparable {
        why: String,
    },
    /// `scxlab check` with another number of schedulers than two.
    TwoSchedulers {
        given: usize,
    },
    /// A check found something worse.
    Regressed {
        summary: String,
    },
    /// A check had too few runs for a verdict.
    Undecided {
        summary: String,
    },
    /// Cells of a sweep that the simulator refused.
    NotRun {
        cells: usize,
        of: usize,
    },
    /// Python, or its module scxlab, cannot do what `sweep --dask` needs.
    NoPython {
        python: OsString,
        why: String,
    },
    /// No usable BPF compiler.
    NoCompiler {
        why: String,
        oldest: u32,
        variable: &'static str,
    },
}

/// Numbers of runs with a failure.
#[derive(Clone, Copy, Debug)]
pub struct FailedRuns {
    pub runs: usize,
    pub of: usize,
    /// Number of ejected runs. A run may be counted in several of the three fields.
    pub ejected: usize,
    pub stopped_early: usize,
    pub starved: usize,
}

impl std::fmt::Display for FailedRuns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds = [
            (self.ejected, "ejected"),
            (self.stopped_early, "stopped early"),
            (self.starved, "with tasks that never or hardly ever ran"),
        ];
        let some = kinds.iter().filter(|(count, _)| *count > 0);
        let text: Vec<String> = some.map(|(count, kind)| format!("{count} {kind}")).collect();
        write!(f, "{} of {} failed: {}", self.runs, plural(self.of, "run"), text.join(", "))
    }
}

impl std::fmt::Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CliError::NotText { word } => write!(f, "{}: not UTF-8", word.display()),
            CliError::Write { what, error } => write!(f, "{what} cannot be written: {error}"),
            CliError::InGuest { message, .. } => write!(f, "{message}"),
            CliError::HostMachine { machine } => {
                write!(f, "a run on this host needs -m host, not {machine}")
            }
            CliError::NumaExt => write!(
                f,
                "--numa-balancing ext, ext-3.9 and ext-v5 are for --on sim: Linux scans only tasks of \
                 the default class"
            ),
            CliError::Guests { at, guest, on, why } => write!(
                f,
                "{at}: guest \"{guest}\" cannot run on {on}, where each guest is a virtual machine under KVM: {why}; \
                 --on sim simulates guests"
            ),
            CliError::Hotplug { at, thread, on } => write!(
                f,
                "{at}: thread \"{thread}\" takes CPUs off line, which scxlab does not do on {on}: this workload is simulated only (--on sim)"
            ),
            CliError::NoRecording { option } => {
                write!(f, "--{option} is about recordings: the workload is a command")
            }
            CliError::CommandIsNoProgram { command } => write!(
                f,
                "\"{command}\" is a command: only running it shows what it does (scxlab record)"
            ),
            CliError::Numbering { machine } => write!(
                f,
                "QEMU numbers the CPUs of {machine} differently, and cases name CPUs by number; use another machine"
            ),
            CliError::NoProgram { name } => write!(f, "no program {name} in PATH"),
            CliError::NothingToAttach { name } => {
                write!(
                    f,
                    "\"{name}\" is the kernel's default class: there is nothing to attach; `scxlab attach eevdf,base_slice_ns=3000000` sets tunables of it"
                )
            }
            CliError::NoSystemd => write!(
                f,
                "systemd does not run on this machine (no /run/systemd/system), so nothing can be installed"
            ),
            CliError::Service { what, why } => write!(f, "{what}: {why}"),
            CliError::Left { name, kind, message, dump } => {
                let dump = if dump.is_empty() { String::new() } else { format!("\n{dump}") };
                write!(f, "{name} exited by itself: {kind}: {message}{dump}")
            }
            CliError::DoesNotLoad { object } => {
                write!(f, "object \"{object}\" does not load: what it requires is missing")
            }
            CliError::Differs { cases, of } => {
                write!(f, "the kernels differ in {cases} of {}", plural(of, "case"))
            }
            CliError::WentBadly(bad) => write!(f, "{bad}"),
            CliError::Interrupted { why, whole, cut, not_begun } => write!(
                f,
                "interrupted: {why}; {whole} runs are complete, {cut} were cut short and do not count, {not_begun} were not begun"
            ),
            CliError::Busy { folder } => {
                write!(f, "{}: another scxlab is writing its results there", folder.display())
            }
            CliError::Source { path, why } => write!(f, "{}: {why}", path.display()),
            CliError::NothingKept { folder, why } => write!(
                f,
                "{}: the folder holds no run to repeat: {why}; give a folder that `scxlab run -o` wrote",
                folder.display()
            ),
            CliError::NotTheSame { runs, of, first } => {
                write!(
                    f,
                    "{runs} of {of} simulated runs differ from the stored results; the first: {first}"
                )
            }
            CliError::NoResults { path, why } => write!(f, "{}: {why}", path.display()),
            CliError::NotAllCount { runs, of } => write!(
                f,
                "{runs} of {of} runs do not count, because they were ejected or ended early, as the page tells"
            ),
            CliError::Incomparable { why } => write!(f, "{why}"),
            CliError::TwoSchedulers { given } => {
                write!(
                    f,
                    "check compares two schedulers, the old and the new one: -s is given {given} time(s)"
                )
            }
            CliError::Regressed { summary } => write!(f, "check: {summary}"),
            CliError::Undecided { summary } => write!(f, "check: {summary}"),
            CliError::NotRun { cells, of } => {
                write!(
                    f,
                    "{cells} of {of} cells could not be run, for reasons such as the one above"
                )
            }
            CliError::NoPython { python, why } => write!(
                f,
                "{}: {why}; --dask needs Python's module scxlab of this version (docs/guide/python.md); SCXLAB_PYTHON names another Python",
                python.display()
            ),
            CliError::NoCompiler { why, oldest, variable } => write!(
                f,
                "no BPF compiler: {why}. clang {oldest} or later is needed (Debian: apt install clang-{oldest}); {variable} can name it"
            ),
        }
    }
}

impl std::error::Error for CliError {}

/// Exit status of a process that receives a second signal to stop.
pub const CANCELLED: i32 = Code::Ejected as i32;

/// Prints clap's message and returns the exit code: success for help and version, or else a usage
/// error.
pub fn from_clap(error: &clap::Error) -> ExitCode {
    // A write error means that the reader has gone, and is ignored.
    let _ = error.print();
    if error.use_stderr() { Code::Usage.into() } else { Code::Success.into() }
}

/// Text of the first panic in any thread.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// Executes a command and turns a failure, or a panic, into a message and an exit code.
pub fn guarded(command: impl FnOnce() -> anyhow::Result<()> + UnwindSafe) -> ExitCode {
    panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let place =
            info.location().map_or(String::new(), |l| format!(" ({}:{})", l.file(), l.line()));
        if let Ok(mut first) = PANIC.lock() {
            first.get_or_insert(format!("{}{place}", text.unwrap_or("panic")));
        }
    }));
    match panic::catch_unwind(command) {
        Ok(Ok(())) => Code::Success.into(),
        Ok(Err(error)) => failed(&error),
        Err(_) => {
            let said = PANIC.lock().ok().and_then(|mut p| p.take()).unwrap_or_default();
            output::say(&format!(
                "error: internal: {said}\nThis is a fault of scxlab. Please report it with the command line."
            ));
            Code::Internal.into()
        }
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    output::say(&format!("error: {error}"));
    code_of(error).into()
}

pub fn code_of(error: &anyhow::Error) -> Code {
    error.chain().find_map(code_of_cause).unwrap_or(Code::Internal)
}

fn code_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Code> {
    if let Some(e) = cause.downcast_ref::<CliError>() {
        return Some(match e {
            CliError::Source { .. }
            | CliError::Incomparable { .. }
            | CliError::NoResults { .. }
            | CliError::NothingKept { .. }
            | CliError::CommandIsNoProgram { .. } => Code::Input,
            CliError::NoCompiler { .. }
            | CliError::NoPython { .. }
            | CliError::Guests { .. }
            | CliError::Hotplug { .. }
            | CliError::NoSystemd
            | CliError::Service { .. } => Code::Target,
            CliError::Write { .. } | CliError::Busy { .. } => Code::Output,
            CliError::WentBadly(_)
            | CliError::NotRun { .. }
            | CliError::NotAllCount { .. }
            | CliError::Left { .. }
            | CliError::Differs { .. }
            | CliError::NotTheSame { .. }
            | CliError::Regressed { .. }
            | CliError::Interrupted { .. } => Code::Ejected,
            CliError::InGuest { code, .. } => *code,
            CliError::Undecided { .. } => Code::Undecided,
            CliError::NumaExt
            | CliError::TwoSchedulers { .. }
            | CliError::HostMachine { .. }
            | CliError::NoRecording { .. }
            | CliError::NotText { .. }
            | CliError::Numbering { .. }
            | CliError::NothingToAttach { .. } => Code::Usage,
            CliError::NoProgram { .. } => Code::Input,
            CliError::DoesNotLoad { .. } => Code::Unmodelled,
        });
    }
    if let Some(e) = cause.downcast_ref::<VmError>() {
        return Some(of_vm(e));
    }
    if let Some(e) = cause.downcast_ref::<ShrinkError>() {
        return Some(match e {
            ShrinkError::NotEjected(_) => Code::Input,
            ShrinkError::Interrupted => Code::Ejected,
            ShrinkError::Prepare(e) => of_prepare(e),
            ShrinkError::Sim(e) => of_sim(e),
        });
    }
    if let Some(e) = cause.downcast_ref::<SetupError>() {
        return Some(match e {
            SetupError::Image(e) => of_vm(e),
            _ => Code::Target,
        });
    }
    if let Some(e) = cause.downcast_ref::<GangError>() {
        return Some(of_gang(e));
    }
    if let Some(e) = cause.downcast_ref::<LiveError>() {
        return Some(of_live(e));
    }
    if let Some(SimCaseError::Sim(e)) = cause.downcast_ref::<SimCaseError>() {
        return Some(of_sim(e));
    }
    if cause.is::<CaseError>() || cause.is::<SimCaseError>() {
        return Some(Code::Input);
    }
    if let Some(e) = cause.downcast_ref::<InputError>() {
        return Some(of_input(e));
    }
    if let Some(e) = cause.downcast_ref::<PrepareError>() {
        return Some(of_prepare(e));
    }
    if let Some(e) = cause.downcast_ref::<SessionError>() {
        return Some(of_session(e));
    }
    if let Some(e) = cause.downcast_ref::<SimError>() {
        return Some(of_sim(e));
    }
    if let Some(e) = cause.downcast_ref::<AdviseError>() {
        return Some(of_advise(e));
    }
    if let Some(e) = cause.downcast_ref::<CandidateError>() {
        return Some(of_candidate(e));
    }
    if cause.is::<FolderError>() || cause.is::<GateError>() || cause.is::<Refusal>() {
        return Some(Code::Input);
    }
    if cause.is::<GoalError>() {
        return Some(Code::Usage);
    }
    if let Some(e) = cause.downcast_ref::<ReproduceError>() {
        return Some(match e {
            ReproduceError::File { .. } | ReproduceError::Input(_) => Code::Input,
            ReproduceError::Unknown { .. } => Code::Usage,
        });
    }
    if let Some(e) = cause.downcast_ref::<SweepError>() {
        return Some(of_sweep(e));
    }
    if let Some(e) = cause.downcast_ref::<MachineError>() {
        return Some(of_machine(e));
    }
    if let Some(e) = cause.downcast_ref::<WorkloadError>() {
        return Some(of_workload(e));
    }
    if let Some(e) = cause.downcast_ref::<LinkError>() {
        return Some(of_link(e));
    }
    cause.is::<ObjectError>().then_some(Code::Input)
}

fn of_vm(error: &VmError) -> Code {
    match error.fault() {
        VmFault::Input => Code::Input,
        VmFault::Host => Code::Target,
        VmFault::Guest => Code::Guest,
        VmFault::Cancelled => Code::Ejected,
    }
}

fn of_input(error: &InputError) -> Code {
    match error {
        InputError::Read { .. } | InputError::NotText { .. } | InputError::NoMachine { .. } => {
            Code::Input
        }
        InputError::Unknown { .. } | InputError::Scheduler(_) => Code::Usage,
        InputError::Machine(e) => of_machine(e),
        InputError::Workload(e) => of_workload(e),
        InputError::Recorded(
            RecordedError::Parameter { .. }
            | RecordedError::Twice { .. }
            | RecordedError::Value { .. }
            | RecordedError::NoRecording { .. },
        ) => Code::Usage,
        InputError::Recorded(_) => Code::Input,
    }
}

fn of_advise(error: &AdviseError) -> Code {
    match error {
        // The command line chose a goal that does not suit the workload.
        AdviseError::Goal { .. } | AdviseError::NoGoal { .. } => Code::Usage,
        AdviseError::Baseline { .. } => Code::Input,
        AdviseError::Candidate(e) => of_candidate(e),
        AdviseError::Session(e) => of_session(e),
    }
}

fn of_candidate(error: &CandidateError) -> Code {
    match error {
        CandidateError::Knobs { .. } => Code::Input,
        CandidateError::Input(e) => of_input(e),
        CandidateError::Prepare(e) => of_prepare(e),
    }
}

fn of_sweep(error: &SweepError) -> Code {
    match error {
        SweepError::File { .. }
        | SweepError::Input { .. }
        | SweepError::Prepare { .. }
        | SweepError::Session { .. }
        | SweepError::Read { .. }
        | SweepError::NoStore { .. }
        | SweepError::Damaged { .. }
        | SweepError::OtherVersion { .. } => Code::Input,
        SweepError::Write { .. } | SweepError::Busy { .. } => Code::Output,
        SweepError::Host { .. } => Code::Target,
        SweepError::Threads { .. } => Code::Internal,
        SweepError::Interrupted { .. } => Code::Ejected,
    }
}

fn of_gang(error: &GangError) -> Code {
    match error {
        GangError::NoSuchCgroup { .. } => Code::Usage,
        _ => Code::Target,
    }
}

fn of_live(error: &LiveError) -> Code {
    match error {
        LiveError::NotRoot
        | LiveError::NoSchedExt { .. }
        | LiveError::NoBtf { .. }
        | LiveError::Busy { .. }
        | LiveError::NumaBalancing { .. }
        | LiveError::Tunable { .. }
        | LiveError::NoNumaBalancing { .. }
        | LiveError::Probe(_)
        | LiveError::NotRootToRecord
        | LiveError::TooOld { .. }
        | LiveError::NoCgroups
        | LiveError::NoSymbol { .. }
        | LiveError::Recorder(_)
        | LiveError::NoKvm { .. }
        | LiveError::Workload(NativeError::Setup(NativeSetupError::Lacks { .. }))
        | LiveError::Machine(_) => Code::Target,
        LiveError::NoSuchProcess { .. } => Code::Usage,
        LiveError::Cgroup(e) => of_gang(e),
        LiveError::Prepare(e) => of_prepare(e),
        LiveError::Recipe(e) => of_recipe(e),
        LiveError::Guest(e) => e.error.downcast_ref().map_or(Code::Guest, of_vm),
        LiveError::NotAttached
        | LiveError::GuestProperty { .. }
        | LiveError::Command { .. }
        | LiveError::Witness(_)
        | LiveError::Load { .. }
        | LiveError::Verifier { .. }
        | LiveError::Attach { .. }
        | LiveError::Workload(_)
        | LiveError::CaseText(_)
        | LiveError::Case { .. } => Code::Input,
    }
}

fn of_prepare(error: &PrepareError) -> Code {
    match error {
        // An absent ops table or a wrong knob is a usage error, because the command line names
        // both.
        PrepareError::NoTable { .. } | PrepareError::Knob { .. } => Code::Usage,
        PrepareError::Object(_) | PrepareError::NoScheduler { .. } => Code::Input,
        PrepareError::Recipe(e) => of_recipe(e),
    }
}

fn of_recipe(error: &RecipeError) -> Code {
    match *error.what {
        // These are usage errors, because the command line chose a machine that does not suit the
        // scheduler's recipe, or lists a CPU that the machine lacks.
        RecipeErrorKind::Required(_) | RecipeErrorKind::Cpus { .. } => Code::Usage,
        _ if error.unmodelled().is_some() => Code::Unmodelled,
        _ => Code::Input,
    }
}

fn of_session(error: &SessionError) -> Code {
    match error {
        SessionError::Sim(e) => of_sim(e),
        SessionError::Trace { .. } => Code::Output,
        SessionError::Threads { .. } => Code::Internal,
        SessionError::Interrupted { .. } => Code::Ejected,
        SessionError::Length { what: LengthOf::Workload, .. } => Code::Input,
        SessionError::Seeds { .. } | SessionError::Length { .. } | SessionError::Command { .. } => {
            Code::Usage
        }
    }
}

fn of_sim(error: &SimError) -> Code {
    match error {
        SimError::Link(e) => of_link(e),
        SimError::Recipe(e) => of_recipe(e),
        SimError::Attach { error: ObjectAttachError::CidForm { .. }, .. } => Code::Unmodelled,
        SimError::Attach { .. } | SimError::NotAttached { .. } => Code::Input,
        SimError::Workload(e) => of_workload(e),
        SimError::Unmodelled { .. } => Code::Unmodelled,
        SimError::Memory(_) => Code::Target,
    }
}

fn of_link(error: &LinkError) -> Code {
    match error.what {
        // A missing extern is no error in the object: a real kernel may have the symbol that
        // the simulator lacks.
        LinkErrorKind::MissingExterns(_) => Code::Unmodelled,
        LinkErrorKind::Map(ref e) if e.unmodelled => Code::Unmodelled,
        _ => Code::Input,
    }
}

fn of_machine(error: &MachineError) -> Code {
    match error {
        MachineError::Unknown { .. } | MachineError::Spec(_) => Code::Usage,
        MachineError::File { .. } | MachineError::Lstopo { .. } | MachineError::Sysfs(_) => {
            Code::Input
        }
    }
}

fn of_workload(error: &WorkloadError) -> Code {
    match error {
        WorkloadError::UnknownGenerator { .. }
        | WorkloadError::UnknownParam { .. }
        | WorkloadError::BadParam { .. } => Code::Usage,
        _ => Code::Input,
    }
}
