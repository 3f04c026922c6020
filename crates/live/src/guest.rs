// SPDX-License-Identifier: GPL-2.0-only
//! Guests of a workload on a real kernel: each is a virtual machine under KVM, whose virtual CPUs
//! are threads of the workload.
//!
//! Owns: the request to a guest, the two-phase start of a run with guests, and their results.
//! Does not: know a hypervisor. The caller gives it as a [`GuestHost`].
//!
//! ```text
//! host: prepare the machines -> director starts them -> all wait for the start -> gate opens
//! guest: boot -> make the threads of its program -> wait for the start -> run -> report
//! ```

use std::io;

use scxlab_lab::metric::{self, MetricTable};
use scxlab_lab::run::{GuestResult, GuestThread, TaskResult, VcpuResult};
use scxlab_machine::id::Nanos;
use scxlab_workload::native::{
    self, Calibration, Gate, GuestProcess, NativeConfig, NativeError, NativeReport, NativeStop,
    SetupError,
};
use scxlab_workload::program::{GuestDef, Op, SpinLockKind};
use scxlab_workload::{Perturb, Program};
use serde::{Deserialize, Serialize};

use crate::LiveError;

/// Request to a guest: the program that it runs when the workload starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GuestJob {
    pub program: Program,
    pub duration: Option<Nanos>,
    pub start_offset_max: Nanos,
    pub compute_noise_permille: u32,
    /// Seed of the random streams of guest 0.
    pub seed: u64,
    /// Speed of the `compute` loop, measured on the host. A guest would measure it while the other
    /// guests boot.
    pub calibration: Calibration,
}

impl GuestJob {
    /// Runs the program in guest number `number` of the workload. Calls `wait_for_start` when its
    /// threads exist; they start when the call returns.
    pub fn execute(
        &self,
        number: u32,
        wait_for_start: impl FnOnce() -> io::Result<()> + Send,
    ) -> Result<NativeReport, NativeError> {
        let (mut gate, end) = native::gate().map_err(no_gate)?;
        let config = NativeConfig {
            duration: self.duration,
            // The seeds of the guests differ from one another, and from those of other runs.
            seed: self.seed ^ (u64::from(number) + 1) << 32,
            perturb: Perturb {
                start_offset_max: self.start_offset_max,
                compute_noise_permille: self.compute_noise_permille,
            },
            calibration: Some(self.calibration),
            gate: Some(end),
            ..NativeConfig::default()
        };
        std::thread::scope(|scope| {
            let opener = scope.spawn(move || -> io::Result<()> {
                if gate.wait_prepared()? {
                    wait_for_start()?;
                    gate.begin()?;
                }
                Ok(())
            });
            let report = native::run(&self.program, &config);
            // Without its other side, the gate tells the opener that the run is over.
            drop(config);
            match (report, opener.join().expect("the opener does not panic")) {
                (Err(NativeError::Setup(SetupError::GivenUp)), Err(why)) => Err(no_gate(why)),
                (report, _) => report,
            }
        })
    }
}

fn no_gate(why: io::Error) -> NativeError {
    NativeError::Director { problem: format!("the gate: {why}") }
}

/// A guest to prepare.
#[derive(Clone, Copy, Debug)]
pub struct GuestSpec<'a> {
    pub def: &'a GuestDef,
    /// Number among the instances of the declaration.
    pub instance: u32,
    /// Number among all guests of the workload.
    pub number: u32,
    pub job: &'a GuestJob,
}

impl GuestSpec<'_> {
    pub fn name(&self) -> String {
        self.def.instance_name(self.instance)
    }
}

/// Failure of a guest.
#[derive(Debug, thiserror::Error)]
#[error("guest \"{guest}\": {error}")]
pub struct GuestError {
    pub guest: String,
    pub error: Box<dyn std::error::Error + Send + Sync>,
    /// What became of a guest that did not come up: it "hung", or it "panicked".
    pub never_came_up: Option<&'static str>,
}

impl GuestError {
    /// Returns the error of a guest that came up, or failed before.
    pub fn new(
        guest: &str,
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> GuestError {
        GuestError { guest: guest.to_owned(), error: error.into(), never_came_up: None }
    }
}

/// Attempt to start the guests of a run. In an emulated machine, with KVM or with a thread for each
/// CPU, a guest's boot may hang or panic (seen with QEMU 7.2, once in hundreds of boots), so guests
/// that do not come up are started a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The guests have the time of a usual boot.
    First,
    /// The guests have the time of the slowest hosts.
    Last,
}

/// A hypervisor.
pub trait GuestHost: Sync {
    /// Returns the reason if no guest can run on this kernel.
    fn check(&self) -> Result<(), String>;

    /// Prepares virtual machines for these guests.
    fn prepare(
        &self,
        guests: &[GuestSpec<'_>],
        attempt: Attempt,
    ) -> Result<Box<dyn GuestMachines>, GuestError>;
}

/// Prepared virtual machines, in the order of the guests.
pub trait GuestMachines: Send {
    /// Returns the processes for the director.
    fn processes(&self) -> Vec<GuestProcess>;

    /// Waits until the director has started the processes and all guests wait for the start, opens
    /// the gate, and returns the guests' outputs: `NativeReport`s as JSON. Returns an empty list if
    /// the director has failed before.
    fn attend(self: Box<Self>, gate: Gate) -> Result<Vec<Vec<u8>>, GuestError>;
}

/// Refuses guests with properties that a real guest cannot have.
pub fn check(program: &Program) -> Result<(), LiveError> {
    for (i, def) in program.guests.iter().enumerate() {
        if let Some(what) = impossible(def) {
            let at = program.guest_place(i).to_string();
            return Err(LiveError::GuestProperty { at, guest: def.name.clone(), what });
        }
    }
    Ok(())
}

/// Returns a property of the guest that a real one cannot have, and what is possible.
fn impossible(def: &GuestDef) -> Option<String> {
    if def.spinlock == SpinLockKind::Ticket && def.pv_spinlock {
        return Some(
            "Linux has no paravirtual ticket locks; set pv_spinlock = false, or spinlock = \"queued\""
                .to_owned(),
        );
    }
    if let Some(memory) = &def.memory {
        if memory.merge > 0 {
            return Some(
                "KSM decides which pages are merged; leave `merge` out of its memory".to_owned(),
            );
        }
        if memory.populate.is_some() {
            return Some(
                "its memory is placed by its policy; leave `populate` out of it".to_owned(),
            );
        }
        if memory.size.0 % (1 << 20) != 0 {
            return Some("its memory must be a whole number of MiB".to_owned());
        }
    }
    let program = def.program.as_deref()?;
    let (_, thread) = program.first_hotplug()?;
    Some(format!("its thread \"{thread}\" takes CPUs off line; leave that out"))
}

/// Returns notes on differences between simulated and real guests.
pub fn notes(program: &Program) -> Vec<String> {
    let mut notes = Vec::new();
    for def in &program.guests {
        let inner = def.program.as_deref();
        if inner.is_some_and(|program| program.threads.iter().any(|t| takes_spin_locks(&t.ops))) {
            notes.push(format!(
                "guest {}: spin_lock is a ticket lock of its program, and not one of its kernel",
                def.name
            ));
        }
        let device = format!("{}/io", def.name);
        if program.threads.iter().any(|t| t.process.as_deref() == Some(&device)) {
            notes.push(format!("guest {}: QEMU has threads of its own beside {device}", def.name));
        }
    }
    notes
}

fn takes_spin_locks(ops: &[Op]) -> bool {
    ops.iter().any(|op| match op {
        Op::SpinLock(_) => true,
        Op::Loop { ops, .. } | Op::Phase { ops, .. } => takes_spin_locks(ops),
        _ => false,
    })
}

/// The result of one guest's program.
#[derive(Clone, Debug)]
pub struct GuestReport {
    pub name: String,
    pub report: NativeReport,
}

/// Runs a program with the processes of its guests, if it has any.
pub fn run(
    program: &Program,
    mut config: NativeConfig,
    host: &dyn GuestHost,
) -> Result<(NativeReport, Vec<GuestReport>), LiveError> {
    if program.guests.is_empty() {
        return Ok((native::run(program, &config)?, Vec::new()));
    }
    native::check_nodes(program)?;
    let calibration = match config.calibration {
        Some(known) => known,
        None => native::calibrate(config.cpus.clone())?,
    };
    config.calibration = Some(calibration);
    let jobs: Vec<GuestJob> =
        program.guests.iter().map(|def| job(program, def, &config, calibration)).collect();
    let instances = program.guests.iter().zip(&jobs);
    let instances = instances.flat_map(|(d, job)| (0..d.instances).map(move |i| (d, i, job)));
    let specs: Vec<GuestSpec<'_>> = (0..)
        .zip(instances)
        .map(|(number, (def, instance, job))| GuestSpec { def, instance, number, job })
        .collect();
    let (first, again) = match attempt(program, &config, host, &specs, Attempt::First) {
        Err(LiveError::Guest(GuestError { guest, never_came_up: Some(what), .. })) => {
            let again = format!(
                "all guests were started a second time, because guest \"{guest}\" {what} while it \
                 booted"
            );
            (attempt(program, &config, host, &specs, Attempt::Last), Some(again))
        }
        other => (other, None),
    };
    let (mut report, reports) = first?;
    report.notes.extend(again);
    Ok((report, reports))
}

/// Runs a program once with the processes of its guests.
fn attempt(
    program: &Program,
    config: &NativeConfig,
    host: &dyn GuestHost,
    specs: &[GuestSpec<'_>],
    attempt: Attempt,
) -> Result<(NativeReport, Vec<GuestReport>), LiveError> {
    let machines = host.prepare(specs, attempt)?;
    let (gate, end) = native::gate().map_err(no_gate)?;
    let config = NativeConfig { guests: machines.processes(), gate: Some(end), ..config.clone() };
    let (report, outputs) = std::thread::scope(|scope| {
        let attendant = scope.spawn(move || machines.attend(gate));
        let report = native::run(program, &config);
        // Without its other side, the gate tells the attendant that the run is over.
        drop(config);
        (report, attendant.join().expect("the attendant does not panic"))
    });
    let names = specs.iter().map(GuestSpec::name);
    match (report, outputs) {
        // The attendant knows why the director gave up, or why a guest's process ended.
        (Err(NativeError::Setup(SetupError::GivenUp | SetupError::Died { .. })), Err(why)) => {
            Err(why.into())
        }
        (Err(error), _) => Err(error.into()),
        // The signal, and no failure, ended the guests.
        (Ok(report), _) if matches!(report.stop, NativeStop::Interrupted(1..)) => {
            Ok((report, Vec::new()))
        }
        (Ok(_), Err(why)) => Err(why.into()),
        (Ok(report), Ok(outputs)) => {
            let read = |(name, output): (String, Vec<u8>)| match serde_json::from_slice(&output) {
                Ok(report) => Ok(GuestReport { name, report }),
                Err(why) => Err(GuestError::new(&name, why)),
            };
            let reports = names.zip(outputs).map(read).collect::<Result<_, _>>()?;
            Ok((report, reports))
        }
    }
}

fn job(
    program: &Program,
    def: &GuestDef,
    config: &NativeConfig,
    calibration: Calibration,
) -> GuestJob {
    let inner = def.program.as_deref().cloned().unwrap_or_default();
    GuestJob {
        // The run is as long as the workload says, and not as long as the guest's program does.
        program: Program { duration: None, ..inner },
        duration: config.duration.or(program.duration.map(|duration| duration.0)),
        start_offset_max: config.perturb.start_offset_max,
        compute_noise_permille: config.perturb.compute_noise_permille,
        seed: config.seed,
        calibration,
    }
}

/// Returns the guests' results. `tasks` are the results of the host's tasks, among them those of
/// the virtual CPUs.
pub fn results(guests: &[GuestReport], tasks: &[TaskResult]) -> Vec<GuestResult> {
    guests.iter().map(|guest| result(guest, tasks)).collect()
}

fn result(guest: &GuestReport, tasks: &[TaskResult]) -> GuestResult {
    let prefix = format!("{}-vcpu", guest.name);
    let is_vcpu = |task: &&TaskResult| {
        task.name.strip_prefix(&prefix).is_some_and(|rest| rest.parse::<u32>().is_ok())
    };
    let vcpu = |task: &TaskResult| VcpuResult {
        name: task.name.clone(),
        user_ns: None,
        spin_ns: None,
        kernel_ns: None,
        idle_ns: None,
        // A virtual CPU that waits for a CPU has work, so its thread's waits are its steal time.
        steal_ns: task.wait_ns,
        switches: None,
    };
    let threads = guest.report.tasks.iter().map(|task| GuestThread {
        name: task.name.clone(),
        // The guest's kernel counts stolen time as time of the thread that was running.
        run_ns: None,
        kernel_ns: None,
        wait_ns: None,
        steal_ns: None,
        sleep_ns: None,
        work_units: task.work_units,
    });
    GuestResult {
        name: guest.name.clone(),
        work_units: guest.report.work_units(),
        exits: None,
        yields: None,
        vcpus: tasks.iter().filter(is_vcpu).map(vcpu).collect(),
        threads: threads.collect(),
    }
}

/// Adds the metrics of guests.
pub fn metrics(t: &mut MetricTable, guests: &[GuestReport], tasks: &[TaskResult]) {
    if guests.is_empty() {
        return;
    }
    let results = results(guests, tasks);
    let steal = results.iter().flat_map(|guest| &guest.vcpus).map(|vcpu| vcpu.steal_ns);
    if let Some(steal) = steal.sum::<Option<u64>>() {
        t.count(&metric::GUEST_STEAL, steal);
    }
    for (n, GuestReport { report, .. }) in guests.iter().enumerate() {
        let units = report.work_units();
        t.count_part(&metric::ONE_GUEST_WORK_UNITS, n, units);
        if report.length_ns() > 0 {
            let per_second = units as f64 * 1e9 / report.length_ns() as f64;
            t.put_part(&metric::ONE_GUEST_THROUGHPUT, n, per_second);
        }
    }
}

/// Returns what the guests' programs noted.
pub fn notes_of(guests: &[GuestReport]) -> Vec<String> {
    let mut notes = Vec::new();
    for GuestReport { name, report } in guests {
        notes.extend(report.notes.iter().map(|note| format!("guest {name}: {note}")));
        if let Some(first) = report.errors.first() {
            let total = report.nr_errors;
            notes.push(format!("guest {name}: {total} system calls failed; the first: {first}"));
        }
        if let NativeStop::Deadlock(waits) = &report.stop {
            notes.push(format!("guest {name}: deadlock: {}", waits.join("; ")));
        }
    }
    notes
}
