// SPDX-License-Identifier: GPL-2.0-only
//! The guests of a workload on a real kernel: virtual machines with this executable as init.
//!
//! Owns: the inputs of their virtual machines, and the wait for their start and their results.
//! Does not: start their processes (the workload's director does), or measure them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scxlab_live::guest::{Attempt, GuestError, GuestHost, GuestJob, GuestMachines, GuestSpec};
use scxlab_machine::Topology;
use scxlab_machine::topology::spec::{Sizes, Spec};
use scxlab_vm::guest::Guest;
use scxlab_vm::{
    Engine, GuestFile, HostMemory, Initramfs, Member, MemberMessage, RunningMember, VmError,
    VmSpec, build_initramfs,
};
use scxlab_workload::native::{Gate, GuestProcess};
use scxlab_workload::program::{GuestDef, RegionPolicy, SpinLockKind};

/// The guest's argument by which this executable knows that it is a guest of a workload.
const ROLE: &str = "guest";
/// File with the guest's job.
const JOB: &str = "/scxlab/guest.json";
/// Word on the kernel's command line, and therefore variable of init, with the guest's number.
const NUMBER: &str = "SCXLAB_GUEST";

/// Memory for the files of a guest, in MiB: this executable and its libraries.
const FILES_MIB: u64 = 128;

/// Time limits for the boot of all guests, in the first and in the last attempt: a base, and an
/// addition for each. KVM boots one in two seconds; a host that emulates KVM takes ten to sixty.
const BOOT_PATIENCE: [Duration; 2] = [Duration::from_secs(120), Duration::from_secs(600)];
const BOOT_PATIENCE_EACH: Duration = Duration::from_secs(60);
/// Time that guests may take for their results after the end of the run.
const RESULT_PATIENCE: Duration = Duration::from_secs(120);
/// Time limit of the test whether KVM works, which is slow in an emulated machine.
const PROBE_PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which the messages of all guests and the caller's cancel flag are checked.
const POLL: Duration = Duration::from_millis(20);

/// A hypervisor for guests: QEMU.
pub struct Hypervisor {
    /// Kernel of the guests, or why there is none.
    pub kernel: Result<PathBuf, String>,
    /// Engine that runs the guests. Results are those of a real guest only with KVM.
    pub engine: Engine,
    /// Flag that ends the wait for guests when it is raised.
    pub cancel: &'static AtomicBool,
}

impl GuestHost for Hypervisor {
    fn check(&self) -> Result<(), String> {
        self.kernel.as_ref().map_err(String::clone)?;
        match self.engine {
            Engine::Kvm => scxlab_vm::probe_kvm_within(PROBE_PATIENCE),
            _ => scxlab_vm::find_qemu().map(drop).map_err(|why| why.to_string()),
        }
    }

    fn prepare(
        &self,
        guests: &[GuestSpec<'_>],
        attempt: Attempt,
    ) -> Result<Box<dyn GuestMachines>, GuestError> {
        let mut members = Vec::new();
        let mut shared: Option<Initramfs> = None;
        let mut memory_mib = 0;
        for guest in guests {
            // The instances of a declaration, which follow each other, have the same files.
            let before = shared.filter(|_| guest.instance > 0);
            let (member, initramfs, mib) = self
                .member(guest, before)
                .map_err(|error| GuestError::new(&guest.name(), error))?;
            memory_mib += mib;
            members.push(WaitingGuest { name: guest.name(), member, def: guest.def.clone() });
            shared = Some(initramfs);
        }
        let last = guests.last().map(GuestSpec::name).unwrap_or_default();
        scxlab_vm::check_host_memory(memory_mib).map_err(|error| GuestError::new(&last, error))?;
        let length = guests.iter().filter_map(|guest| guest.job.duration).max();
        Ok(Box::new(Machines {
            guests: members,
            attempt,
            length: length.map(Duration::from_nanos),
            cancel: self.cancel,
        }))
    }
}

impl Hypervisor {
    /// Prepares the machine of a guest. Returns also its initramfs and the memory of the host that
    /// it takes, in MiB.
    fn member(
        &self,
        guest: &GuestSpec<'_>,
        initramfs: Option<Initramfs>,
    ) -> Result<(Member, Initramfs, u64), VmError> {
        let GuestSpec { def, number, job, .. } = *guest;
        let topology = topology(def.vcpus);
        let kernel = self.kernel.clone().unwrap_or_default();
        let kernel_args = format!("{NUMBER}={number}{}", kernel_args(def));
        let features = cpu_features(def);
        let mut spec = VmSpec::new(&topology, &kernel);
        spec.init_args = vec![ROLE.to_owned()];
        spec.kernel_args = &kernel_args;
        spec.cpu_features = &features;
        spec.memory_mib = def.memory.as_ref().map(|memory| memory.size.0 >> 20);
        spec.host_memory = def.memory.as_ref().and_then(|memory| host_memory(&memory.policy));
        let data = serde_json::to_vec(job).expect("a job is plain data");
        spec.files.push(GuestFile { path: JOB.to_owned(), data, mode: 0o644 });
        let initramfs = match initramfs {
            Some(built) => built,
            None => build_initramfs(&spec)?,
        };
        let member = Member::prepare(&spec, &initramfs, self.engine)?;
        let memory_mib = member.memory_mib();
        Ok((member, initramfs, memory_mib))
    }
}

/// Returns the memory that all instances of a guest take on their host, in MiB.
pub fn host_memory_mib(def: &GuestDef) -> u64 {
    let own = def.memory.as_ref().map(|memory| memory.size.0 >> 20);
    let own = own.unwrap_or_else(|| scxlab_vm::usual_memory_mib(def.vcpus.into()) + FILES_MIB);
    u64::from(def.instances) * (own + scxlab_vm::QEMU_MIB + FILES_MIB)
}

/// Whether the memory of a guest has a policy that names nodes.
pub fn name_nodes(guests: &[GuestDef]) -> bool {
    guests.iter().any(|def| def.memory.as_ref().is_some_and(|m| !m.policy.nodes().is_empty()))
}

/// Returns the time limit for the boot of this number of guests, in all attempts.
pub fn boot_patience(guests: u32) -> Duration {
    [Attempt::First, Attempt::Last].map(|attempt| patience(attempt, guests)).iter().sum()
}

fn patience(attempt: Attempt, guests: u32) -> Duration {
    BOOT_PATIENCE[attempt as usize] + BOOT_PATIENCE_EACH.saturating_mul(guests)
}

/// Returns the topology of a guest: its vCPUs are cores of one processor and one node.
fn topology(vcpus: u32) -> Topology {
    let spec = Spec::parse(&format!("1n{vcpus}c1t")).expect("a machine of one node");
    let layout = spec.layout(Sizes::default()).expect("a machine of cores");
    Topology::build(layout).expect("a regular machine")
}

/// Returns the words for the guest's kernel, each with the blank before it.
fn kernel_args(def: &GuestDef) -> String {
    let mut words = String::new();
    if def.spinlock == SpinLockKind::Ticket {
        // Linux's own queued spin locks have a strict order. Without this word, a guest without
        // paravirtual spin locks takes locks that any running waiter may get.
        words += " nopvspin";
    }
    if def.halt_poll.0 > 0 {
        words +=
            &format!(" cpuidle_haltpoll.force=1 haltpoll.guest_halt_poll_ns={}", def.halt_poll.0);
    }
    words
}

/// Returns the features that the CPU of a guest lacks, in QEMU's form.
fn cpu_features(def: &GuestDef) -> String {
    let mut features = String::new();
    if !def.pv_spinlock {
        features += ",-kvm-pv-unhalt";
    }
    if !def.pv_tlb_flush {
        features += ",-kvm-pv-tlb-flush";
    }
    features
}

fn host_memory(policy: &RegionPolicy) -> Option<HostMemory> {
    let (policy, nodes) = match policy {
        RegionPolicy::FirstTouch => return None,
        RegionPolicy::Interleave(nodes) => ("interleave", nodes.0.iter().collect()),
        RegionPolicy::Bind(nodes) => ("bind", nodes.0.iter().collect()),
        RegionPolicy::Preferred(node) => ("preferred", vec![*node]),
    };
    Some(HostMemory { policy, nodes })
}

/// Prepared guests.
struct Machines {
    guests: Vec<WaitingGuest>,
    attempt: Attempt,
    /// Length of the run, if it is known.
    length: Option<Duration>,
    cancel: &'static AtomicBool,
}

struct WaitingGuest {
    name: String,
    member: Member,
    def: GuestDef,
}

impl GuestMachines for Machines {
    fn processes(&self) -> Vec<GuestProcess> {
        let process = |guest: &WaitingGuest| {
            let of = guest.member.process();
            GuestProcess {
                program: of.program.clone(),
                args: of.args.clone(),
                fds: of.fds.clone(),
                stderr: of.stderr,
                go_fd: of.go_fd,
                go: of.go.clone(),
                huge_pages: guest.def.memory.as_ref().is_none_or(|memory| memory.huge),
                vcpu_threads: of.vcpu_threads.clone(),
                memory_bytes: guest.def.memory.as_ref().map(|memory| memory.size.0),
            }
        };
        self.guests.iter().map(process).collect()
    }

    fn attend(self: Box<Self>, mut gate: Gate) -> Result<Vec<Vec<u8>>, GuestError> {
        let Machines { guests, attempt, length, cancel } = *self;
        if !gate.wait_prepared().unwrap_or(false) {
            return Ok(Vec::new());
        }
        let connect = |guest: WaitingGuest| (guest.name, guest.member.connect());
        let mut all = Attendance {
            guests: guests.into_iter().map(connect).collect(),
            outputs: Vec::new(),
            cancel,
        };
        all.outputs.resize(all.guests.len(), None);
        let each = u32::try_from(all.guests.len()).unwrap_or(u32::MAX);
        all.wait_up(patience(attempt, each))?;
        // A director that is gone is noticed by the guests' ends.
        let _ = gate.begin();
        all.wait_outputs(length.map(|length| length * 2 + RESULT_PATIENCE), &mut gate)?;
        Ok(all.outputs.into_iter().flatten().collect())
    }
}

/// Guests whose processes have been started.
struct Attendance {
    guests: Vec<(String, RunningMember)>,
    /// The guests' outputs, if they have come.
    outputs: Vec<Option<Vec<u8>>>,
    cancel: &'static AtomicBool,
}

impl Attendance {
    /// Waits until all guests wait for the start.
    fn wait_up(&mut self, patience: Duration) -> Result<(), GuestError> {
        let got = self.each_until(Some(patience), |_, message| match message {
            MemberMessage::Up => Ok(true),
            MemberMessage::Output(_) => Err("it reported before the start"),
            _ => Ok(false),
        });
        got.map_err(|why| GuestError { never_came_up: hung_or_panicked(&why), ..why })
    }

    /// Waits until all guests have reported, and tells the director of each.
    fn wait_outputs(
        &mut self,
        patience: Option<Duration>,
        gate: &mut Gate,
    ) -> Result<(), GuestError> {
        let mut outputs = std::mem::take(&mut self.outputs);
        let got = self.each_until(patience, |guest, message| match message {
            MemberMessage::Output(output) => {
                outputs[guest] = Some(output);
                // The run's end is noticed by other means if the director is gone.
                let _ = gate.guest_ended(guest);
                Ok(true)
            }
            MemberMessage::Up => Err("it asked for the start twice"),
            _ => Ok(false),
        });
        self.outputs = outputs;
        got
    }

    /// Passes the messages of each guest to `is_done`, until this has returned true for all.
    fn each_until(
        &mut self,
        patience: Option<Duration>,
        mut is_done: impl FnMut(usize, MemberMessage) -> Result<bool, &'static str>,
    ) -> Result<(), GuestError> {
        let started = Instant::now();
        let mut waiting: Vec<usize> = (0..self.guests.len()).collect();
        while let Some(&first) = waiting.first() {
            let mut done = Vec::new();
            for &guest in &waiting {
                let (name, member) = &mut self.guests[guest];
                // Wait for the first guest only, so that a round takes no longer with many guests.
                let message = member.next(if guest == first { POLL } else { Duration::ZERO });
                if let MemberMessage::Failed(why) = message {
                    return Err(GuestError::new(name, why));
                }
                let got = is_done(guest, message);
                let got = got.map_err(|why| GuestError::new(name, why));
                if got? {
                    done.push(guest);
                }
            }
            waiting.retain(|guest| !done.contains(guest));
            let Some(&guest) = waiting.first() else { break };
            let (name, member) = &self.guests[guest];
            if self.cancel.load(Ordering::Relaxed) {
                return Err(GuestError::new(name, "the run was cancelled"));
            }
            if patience.is_some_and(|patience| started.elapsed() > patience) {
                return Err(GuestError::new(name, member.too_late(started.elapsed())));
            }
        }
        Ok(())
    }
}

/// Tells whether a guest failed because its time was over, or because its kernel panicked.
fn hung_or_panicked(why: &GuestError) -> Option<&'static str> {
    match why.error.downcast_ref()? {
        VmError::Deadline { .. } => Some("hung"),
        VmError::Panicked { .. } => Some("panicked"),
        _ => None,
    }
}

/// Runs the guest's program, if this machine is a guest of a workload; otherwise returns the guest.
pub fn serve(guest: Guest) -> Guest {
    if guest.args().first().is_none_or(|role| role != ROLE) {
        return guest;
    }
    let job = guest.file(JOB).map_err(|why| why.to_string());
    let job = job
        .and_then(|text| serde_json::from_slice::<GuestJob>(&text).map_err(|why| why.to_string()));
    let number = std::env::var(NUMBER).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let job = match job {
        Ok(job) => job,
        Err(why) => guest.fail(&format!("its job cannot be read: {why}")),
    };
    match job.execute(number, || guest.wait_for_go()) {
        Ok(report) => guest.finish(&serde_json::to_vec(&report).expect("a report is plain data")),
        Err(why) => guest.fail(&why.to_string()),
    }
}
