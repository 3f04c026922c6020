// SPDX-License-Identifier: GPL-2.0-only
//! The native executor: runs a program with real threads and processes on the running kernel.
//!
//! Owns: the execution of the compiled instructions, with the same meaning as in the simulated
//! executor (`exec`). The differences are listed in `docs/internals/native.md`. This half of the
//! crate reads clocks, makes threads, and uses unsafe code for system calls and shared memory;
//! nothing simulated uses it.
//! Does not: attach schedulers, or record traces.
//!
//! ```text
//!   caller --plan--> director (this program, executed again) --clone--> one process per process name
//!          <-report--   calibrates, makes cgroups, releases,              its threads run the ops and meet
//!                       ends, collects                                    in shared memory
//! ```
//!
//! A program that calls `run` must call `child_main` first in its `main`.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use scxlab_machine::id::Nanos;

use crate::compile;
use crate::error::WorkloadError;
use crate::exec::Perturb;
use crate::program::{CpuList, Op, Program, ThreadTemplate};

mod access;
mod burn;
mod cgroup;
mod collect;
mod command;
mod director;
mod error;
mod gate;
mod guests;
mod memory;
mod nodes;
mod pipe;
mod plan;
mod region;
mod report;
mod sample;
mod shared;
mod spawn;
mod start;
mod sync;
mod sys;
mod wire;
mod worker;

pub use cgroup::find_mount as cgroup_mount;
pub use command::{CommandReport, CommandStatus, Usage, run_command};
pub use error::{NativeError, OpError, RefusedCallKind, SetupError};
pub use gate::{Gate, GateEnd, gate};
pub use guests::GuestProcess;
pub use nodes::check as check_nodes;
pub use report::{Calibration, NativeReport, NativeStop, NativeTask, TaskEnd, Unlisted};
pub use start::StartSignal;

use plan::{CgroupPlace, Plan};

/// First argument of every process that `run` starts.
const CHILD: &CStr = c"--scxlab-native-child";
/// Second argument: `DIRECT` for the director, `AFTER_EXEC` for a thread that continues after
/// `execve`.
const DIRECT: &CStr = c"direct";
const AFTER_EXEC: &CStr = c"again";

/// Settings of a native run besides the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeConfig {
    /// Overrides the program's own duration. If neither is set, the run lasts until every thread
    /// has exited.
    pub duration: Option<Nanos>,
    /// Seed of the random streams. The streams have the same names as in the simulation.
    pub seed: u64,
    pub perturb: Perturb,
    /// The cgroup v2 directory that serves as the program's "/". The run creates it if it does not
    /// exist, and removes it afterwards in that case. None: the run creates a new one at the top of
    /// the hierarchy.
    pub cgroup_root: Option<PathBuf>,
    /// CPUs that the threads may use, by their numbers on this machine. None: the CPUs that the
    /// caller may use.
    pub cpus: Option<CpuList>,
    /// Speed of the loop that executes `compute`. None: the run measures it before it makes the
    /// threads. Runs that are to be compared should share one calibration.
    pub calibration: Option<Calibration>,
    /// Time that an `io` op sleeps: `io_latency`, plus `io_kib` for each KiB.
    pub io_latency: Nanos,
    pub io_kib: Nanos,
    /// Time that the threads have to end by themselves at the end of the run. The director then
    /// kills the threads that still live.
    pub grace: Nanos,
    /// Signal that tells the caller when the run releases the threads.
    pub on_start: Option<StartSignal>,
    /// The gate that holds the threads back once they exist, until the caller opens it.
    pub gate: Option<GateEnd>,
    /// Processes of the program's guests, in the order of `Program::guest_instances`.
    pub guests: Vec<GuestProcess>,
}

impl Default for NativeConfig {
    fn default() -> Self {
        NativeConfig {
            duration: None,
            seed: 0,
            perturb: Perturb::default(),
            cgroup_root: None,
            cpus: None,
            calibration: None,
            io_latency: 100_000,
            io_kib: 0,
            grace: 5_000_000_000,
            on_start: None,
            gate: None,
            guests: Vec::new(),
        }
    }
}

/// Does the work of a process that `run` started, and then exits instead of returning. A program
/// must call this first in `main`, before any thread exists. In any other process it returns at
/// once.
pub fn child_main() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|a| a.as_encoded_bytes() != CHILD.to_bytes()) {
        return;
    }
    let role = args.next().unwrap_or_default();
    if role.as_encoded_bytes() == DIRECT.to_bytes() {
        std::process::exit(director::main());
    }
    let mut number = || args.next()?.to_str()?.parse().ok();
    if let (Some(fd), Some(index)) = (number(), number()) {
        continue_after_exec(fd, index as u32);
    }
    std::process::exit(2);
}

/// Continues a thread after its `execve`.
fn continue_after_exec(fd: i32, index: u32) {
    let tables = wire::read_plan().and_then(|plan| plan::Tables::new(plan).ok());
    let Some(tables) = tables else { return };
    let Ok(shared) = shared::Shared::map(&tables, fd) else { return };
    let env: &'static worker::Env = Box::leak(Box::new(worker::Env { tables, shared }));
    if !spawn::set_env(env) || index as usize >= env.shared.slots.len() {
        return;
    }
    sys::worker_signals();
    worker::run_again(env, index);
    sys::exit_thread();
}

/// Runs a program to its end. The calling process may have other threads; the calling thread
/// blocks.
pub fn run(program: &Program, config: &NativeConfig) -> Result<NativeReport, NativeError> {
    let compiled = compile::compile(program)?;
    if let Some((guest, instance)) = program.guest_instances().nth(config.guests.len()) {
        let problem = "there is no process to run it".to_owned();
        return Err(SetupError::Guest { guest: guest.instance_name(instance), problem }.into());
    }
    if program.threads.iter().all(|t| t.instances == 0) && config.guests.is_empty() {
        return Err(WorkloadError::NoThreads { at: program.whole() }.into());
    }
    let cgroups = match compiled.cgroups.is_empty() {
        true => None,
        false => Some(cgroup_place(config.cgroup_root.as_deref())?),
    };
    nodes::check(program)?;
    if let Some((_, thread)) = program.first_hotplug() {
        return Err(SetupError::Hotplug { thread: thread.to_owned() }.into());
    }
    let plan = make_plan(program, config, cgroups)?;
    // Checks the plan here, where the error has its own type; the director could report it only as
    // text.
    plan::Tables::new(plan.clone())?;
    let got = direct(&plan);
    if let (Some(place), Err(NativeError::Director { .. })) = (&plan.cgroups, &got) {
        let own = config.cgroup_root.is_none();
        cgroup::sweep(Path::new(&place.base), &compiled.cgroups, own);
    }
    let mut report = got?;
    report.notes.splice(0..0, program.notes.iter().cloned());
    Ok(report)
}

/// Measures this machine's calibration, for several runs that are to share it.
pub fn calibrate(cpus: Option<CpuList>) -> Result<Calibration, NativeError> {
    let nothing = ThreadTemplate::new("calibrate", vec![Op::Exit]);
    let program = Program { threads: vec![nothing], ..Program::default() };
    let config = NativeConfig { cpus, ..NativeConfig::default() };
    run(&program, &config).map(|report| report.calibration)
}

fn make_plan(
    program: &Program,
    config: &NativeConfig,
    cgroups: Option<CgroupPlace>,
) -> Result<Plan, NativeError> {
    let cpus = match &config.cpus {
        Some(list) => list.iter().collect(),
        None => sys::affinity().map_err(|errno| system("sched_getaffinity", errno))?,
    };
    Ok(Plan {
        program: program.clone(),
        from_rtapp: program.from_rtapp,
        parent: std::process::id() as i32,
        duration: config.duration.or(program.duration.map(|d| d.0)),
        seed: config.seed,
        start_offset_max: config.perturb.start_offset_max,
        compute_noise_permille: config.perturb.compute_noise_permille,
        restrict: config.cpus.is_some(),
        cpus,
        cgroups,
        calibration: config.calibration,
        io_latency: config.io_latency,
        io_kib: config.io_kib,
        grace: config.grace,
        start_fd: config.on_start.as_ref().map(StartSignal::fd),
        gate_fd: config.gate.as_ref().map(GateEnd::fd),
        guests: config.guests.clone(),
    })
}

fn cgroup_place(root: Option<&Path>) -> Result<CgroupPlace, NativeError> {
    /// Number of runs that this process has started.
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let Some(mount) = cgroup::find_mount() else {
        let what = "cgroup v2".to_owned();
        let advice = " or has not mounted; mount cgroup2 first".to_owned();
        return Err(SetupError::Lacks { what, advice }.into());
    };
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let fresh = mount.join(format!("scxlab-{}-{number}", std::process::id()));
    let base = root.map_or(fresh, Path::to_path_buf);
    Ok(CgroupPlace { mount: mount.display().to_string(), base: base.display().to_string() })
}

/// Starts the director and waits for its report.
fn direct(plan: &Plan) -> Result<NativeReport, NativeError> {
    let io =
        |what: &str, e: std::io::Error| NativeError::Director { problem: format!("{what}: {e}") };
    let memory = || wire::memory_file().map_err(|errno| system("memfd_create", errno));
    let input = wire::plan_file(plan).map_err(|e| io("plan", e))?;
    let (mut output, mut errors) = (memory()?, memory()?);
    let share = |file: &std::fs::File| file.try_clone().map(Stdio::from).map_err(|e| io("dup", e));
    let status = Command::new("/proc/self/exe")
        .args([CHILD, DIRECT].map(|a| a.to_str().unwrap_or_default()))
        .stdin(Stdio::from(input))
        .stdout(share(&output)?)
        .stderr(share(&errors)?)
        .status()
        .map_err(|e| io("/proc/self/exe (is /proc mounted?)", e))?;
    match wire::read_report(&mut output) {
        Some(report) => Ok(report?),
        None => {
            let said = wire::text_of(&mut errors);
            let hint = "no report; does main() call native::child_main()?";
            Err(NativeError::Director { problem: format!("{status}, {hint} {}", said.trim()) })
        }
    }
}

fn system(what: &str, errno: sys::Errno) -> NativeError {
    SetupError::System { what: what.to_owned(), errno, advice: String::new() }.into()
}
