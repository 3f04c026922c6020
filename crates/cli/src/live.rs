// SPDX-License-Identifier: GPL-2.0-only
//! Requests to a real kernel, on this host or in a virtual machine. In a virtual machine, scxlab
//! runs as init and receives the request here.
//!
//! Owns: the transfer of a request into a guest. Does not: execute a request (see the live crate).

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use scxlab_lab::input::{InputError, Workload};
use scxlab_lab::run::Run;
use scxlab_lab::session::Session;
use scxlab_lab::sim::NumaBalancing;
use scxlab_live::LiveError;
use scxlab_live::job::{Job, JobTask, LiveTarget, Reply};
use scxlab_live::trace::Recording;
use scxlab_machine::Machine;
use scxlab_results::inputs;
use scxlab_vm::guest::{self, Guest};
use scxlab_vm::{Accel, Engine, GuestFile, Need, VmSpec};
use scxlab_workload::{NodeInfo, compile};
use serde::{Deserialize, Serialize};

use crate::args::{AccelArg, On, VmOptions};
use crate::exit::{self, CliError, Code};
use crate::guests::{self, Hypervisor};
use crate::{output, vm};

const JOB: &str = "/scxlab/job.json";
/// The guest kernel's configuration, in which libbpf looks up options.
const CONFIG: &str = "/scxlab/config";

/// Kernel for the guests of a workload in the virtual machine.
const GUESTS_KERNEL: &str = "/scxlab/kernel";

fn object_path(index: usize) -> String {
    format!("/scxlab/object-{index}")
}

/// Runs as init of a virtual machine: executes the host's request and powers the machine off.
pub fn guest_main() -> ! {
    let guest = guests::serve(guest::enter());
    place_config();
    let hypervisor = Hypervisor {
        kernel: Ok(GUESTS_KERNEL.into()),
        engine: Engine::Kvm,
        cancel: output::cancelled(),
    };
    match read_job(&guest) {
        Ok(job) => guest.finish(&to_host(job.execute(&hypervisor))),
        Err(why) => guest.fail(&format!("the request cannot be read: {why}")),
    }
}

/// Copies the configuration to the place where libbpf looks for it. Without the file, libbpf
/// refuses objects that ask for options, and names the option.
fn place_config() {
    let Ok(release) = std::fs::read_to_string("/proc/sys/kernel/osrelease") else { return };
    let _ = std::fs::create_dir_all("/boot");
    let _ = std::fs::copy(CONFIG, format!("/boot/config-{}", release.trim()));
}

fn read_job(guest: &Guest) -> std::io::Result<Job> {
    let mut job: Job = serde_json::from_slice(&guest.file(JOB)?)?;
    job.attach_objects(|index| guest.file(object_path(index)))?;
    job.renumber_cpus(guest.cpus());
    Ok(job)
}

/// The runs to make on a real kernel.
pub struct LiveRequest<'a> {
    pub session: &'a Session,
    /// Buffer size in bytes for the events of each scheduler's first run; None if runs are not
    /// traced.
    pub trace_buffer: Option<u32>,
}

/// Makes all runs of the session on a real kernel. Returns them in the session's order, with the
/// recordings of the first runs.
pub fn runs(
    request: &LiveRequest<'_>,
    on: On,
    options: &VmOptions,
) -> Result<(Vec<Run>, Vec<Recording>)> {
    let LiveRequest { session, trace_buffer } = *request;
    let duration = session.duration.or(session.workload.duration()).or(session.cap);
    let mut workload = session.workload.clone();
    if let (Workload::Program(program), On::Vm) = (&workload, on) {
        compile::check_nodes(program, &nodes_of_guest(&session.machine))?;
    }
    if let (Workload::Command(words), On::Vm) = (&mut workload, on)
        && let Some(program) = words.first_mut()
    {
        // Look the program up here, because the guest's PATH differs from this host's.
        *program = find_program(program)?.display().to_string();
    }
    let programs = match &workload {
        Workload::Command(words) => words.iter().take(1).cloned().collect(),
        Workload::Program(_) => Vec::new(),
    };
    let task = JobTask::Runs {
        schedulers: session.schedulers.iter().map(|s| s.input.clone()).collect(),
        workload,
        runs: session.runs,
        seed: session.seed,
        duration,
        start_offset_max: session.perturb.start_offset_max,
        compute_noise_permille: session.perturb.compute_noise_permille,
        numa_balancing: match session.numa_balancing {
            Some(mode) if mode.scans_ext() => return Err(CliError::NumaExt.into()),
            mode => mode.map(|mode| mode == NumaBalancing::On),
        },
        attach_after: session.attach_after,
        trace: trace_buffer,
    };
    let count = u64::from(session.runs) * session.schedulers.len() as u64;
    let length = Duration::from_nanos(duration.unwrap_or(0));
    let guests = match &session.workload {
        Workload::Program(program) => u32::try_from(program.guest_instances().count()).ok(),
        Workload::Command(_) => None,
    };
    let boots = guests.filter(|guests| *guests > 0).map(guests::boot_patience).unwrap_or_default();
    let each = length * 2 + RUN_PATIENCE + boots;
    let patience = PATIENCE + u32::try_from(count).unwrap_or(u32::MAX) * each;
    match carry_out(task, &programs, on, &session.machine, options, patience)? {
        (Reply::Runs { mut runs, recordings, .. }, notes) => {
            runs.iter_mut().for_each(|run| run.notes.extend(notes.iter().cloned()));
            Ok((runs, recordings))
        }
        _ => Err(unexpected()),
    }
}

/// Returns the nodes of a guest, as far as they are known before its boot: their numbers. The guest
/// checks sizes again, against the memory that its nodes have.
fn nodes_of_guest(machine: &Machine) -> Vec<NodeInfo> {
    let any = NodeInfo { memory_bytes: 1 << 50 };
    vec![any; machine.topology.nodes().len()]
}

/// A guest's maximum wall time is `PATIENCE` for its boot and its end and, for each run,
/// `RUN_PATIENCE` plus twice the run's length, plus the time in which the workload's own guests
/// boot. Emulation is slow, and many times slower under other load of the host.
const PATIENCE: Duration = Duration::from_secs(300);
const RUN_PATIENCE: Duration = Duration::from_secs(60);

pub fn unexpected() -> anyhow::Error {
    anyhow::anyhow!("internal: the reply belongs to another request")
}

/// A failure inside a virtual machine.
#[derive(Serialize, Deserialize)]
struct Failure {
    code: Code,
    message: String,
    /// Reason why the workload's guests cannot run in the virtual machine, if that is the failure.
    no_kvm: Option<String>,
}

/// First byte of a guest's output: `REPLY` before a reply, `FAILURE` before a failure.
const REPLY: u8 = b'+';
const FAILURE: u8 = b'-';

fn to_host(result: Result<Reply, LiveError>) -> Vec<u8> {
    let (kind, bytes) = match result.map_err(anyhow::Error::from) {
        Ok(reply) => (REPLY, reply.to_bytes()),
        Err(error) => {
            let no_kvm = match error.downcast_ref() {
                Some(LiveError::NoKvm { why, .. }) => Some(why.clone()),
                _ => None,
            };
            let (code, message) = (exit::code_of(&error), error.to_string());
            let failure = Failure { code, message, no_kvm };
            (FAILURE, serde_json::to_vec(&failure).expect("a failure is plain data"))
        }
    };
    [vec![kind], bytes].concat()
}

/// Reads a guest's output: the reply to `job`, or a failure.
fn from_guest(bytes: &[u8], job: &Job) -> Result<Reply> {
    let malformed = |e| anyhow::anyhow!("internal: the guest's reply: {e}");
    match bytes.split_first() {
        Some((&FAILURE, failure)) => {
            let Failure { code, message, no_kvm } =
                serde_json::from_slice(failure).map_err(malformed)?;
            // The job in the virtual machine lacks the places in the workload's file.
            Err(match (no_kvm, job.first_guest()) {
                (Some(why), Some((at, guest))) => {
                    let guest = guest.name.clone();
                    CliError::Guests { at, guest, on: job.target.name(), why }
                }
                _ => CliError::InGuest { code, message },
            }
            .into())
        }
        Some((_, reply)) => Reply::from_bytes(reply).map_err(malformed),
        None => Reply::from_bytes(&[]).map_err(malformed),
    }
}

/// Executes the task on this host or in a virtual machine, into which `programs` are copied.
/// Returns the reply, and notes on the machine for the reader of the result.
pub fn carry_out(
    task: JobTask,
    programs: &[String],
    on: On,
    machine: &Arc<Machine>,
    options: &VmOptions,
    patience: Duration,
) -> Result<(Reply, Vec<String>)> {
    match on {
        On::Host => {
            let job = Job { target: LiveTarget::Host, task };
            let kernel = match job.first_guest() {
                Some(_) => Ok(vm::kernel(options.kernel.as_deref())?.0),
                None => Err("there is no kernel for them".to_owned()),
            };
            let cancel = output::cancelled();
            let hypervisor = Hypervisor { kernel, engine: Engine::Kvm, cancel };
            Ok((job.execute(&hypervisor)?, Vec::new()))
        }
        _ => in_vm(&Job { target: LiveTarget::Vm, task }, programs, machine, options, patience),
    }
}

fn in_vm(
    job: &Job,
    programs: &[String],
    machine: &Arc<Machine>,
    options: &VmOptions,
    patience: Duration,
) -> Result<(Reply, Vec<String>)> {
    // Check that the file for the guest's console can be written, before the work begins.
    if let Some(path) = &options.console {
        output::write_file(path, b"")?;
    }
    let (kernel, config) = vm::kernel(options.kernel.as_deref())?;
    let mut spec = VmSpec::new(&machine.topology, &kernel);
    spec.memory_mib = options.memory;
    // The guest's nodes have equal parts of its memory, and any of them may get all regions.
    spec.extra_mib = job.trace_mib() + job.region_mib() * machine.topology.nodes().len() as u64;
    spec.kernel_args = options.kernel_args.as_deref().unwrap_or_default();
    spec.accel = accel(options.accel);
    spec.needs = Need::sched_ext();
    spec.deadline = options.deadline.map_or(patience, |d| Duration::from_nanos(d.0));
    spec.cancel = output::cancelled();
    let file = |path: String, data: Vec<u8>| GuestFile { path, data, mode: 0o644 };
    spec.files.push(file(JOB.into(), serde_json::to_vec(job).expect("a job is plain data")));
    if let Some(config) = config {
        spec.files.push(file(CONFIG.into(), inputs::read(&config)?));
    }
    if job.first_guest().is_some() {
        spec.nested = true;
        let guests_mib: u64 = job.guests().iter().map(guests::host_memory_mib).sum();
        // As of regions, any node may get all of their memory, if their policies name nodes.
        let nodes = machine.topology.nodes().len() as u64;
        spec.extra_mib += guests_mib * if guests::name_nodes(job.guests()) { nodes } else { 1 };
        spec.files.push(file(GUESTS_KERNEL.into(), inputs::read(&kernel)?));
        spec.files.extend(scxlab_vm::nested_files(&kernel)?);
        spec.programs.push(scxlab_vm::find_qemu()?);
    }
    for (index, object) in job.objects().iter().enumerate() {
        spec.files.push(file(object_path(index), object.to_vec()));
    }
    for program in programs.iter().chain(&options.programs) {
        spec.programs.push(find_program(program)?);
    }
    let booted = scxlab_vm::boot(&spec);
    let console = match &booted {
        Ok(outcome) => Some(outcome.console.text()),
        Err(error) => error.console().map(|c| c.text()),
    };
    if let (Some(path), Some(text)) = (&options.console, console) {
        output::write_file(path, text.as_bytes())?;
    }
    let outcome = booted?;
    Ok((from_guest(&outcome.output, job)?, outcome.notes))
}

/// Returns a program's absolute path, searching PATH as a shell does.
fn find_program(name: &str) -> Result<PathBuf> {
    if name.contains('/') {
        let failed = |error| InputError::Read { path: name.into(), error };
        return Ok(std::path::absolute(name).map_err(failed)?);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|p| p.is_file());
    found.ok_or_else(|| CliError::NoProgram { name: name.to_owned() }.into())
}

fn accel(arg: AccelArg) -> Accel {
    match arg {
        AccelArg::Auto => Accel::Auto,
        AccelArg::Kvm => Accel::Kvm,
        AccelArg::Tcg => Accel::Tcg,
        AccelArg::Counted => Accel::TcgCounted,
    }
}

/// Refuses `--on host` for any machine but `host`.
pub fn check_host(machine: &str) -> Result<()> {
    if machine == "host" {
        return Ok(());
    }
    Err(CliError::HostMachine { machine: machine.to_owned() }.into())
}
