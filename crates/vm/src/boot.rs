// SPDX-License-Identifier: GPL-2.0-only
//! One guest from start to end: its inputs, its supervision, its result.
//!
//! Owns: QEMU's process, which never outlives this one. Does not: know what the guest runs.
//!
//! ```text
//! started --Ready--> running --Result--> done
//!    |                  |
//!    '-- end, panic, deadline, cancel: QEMU is killed, the console kept
//! ```

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scxlab_machine::Topology;

use crate::accel::{self, Accel, Engine};
use crate::error::{Console, VmError};
use crate::image;
use crate::initramfs::{self, Contents, Initramfs};
use crate::member::HostMemory;
use crate::process::{Launch, Message, Qemu};
use crate::protocol::{FrameError, FrameKind, Ready};
use crate::qemu::{self, Command};
use crate::shape::{self, Shape};

/// Memory of a guest in MiB if the caller names none: a base and an addition for each CPU.
const MEMORY_MIB: u64 = 768;
const MEMORY_PER_CPU_MIB: u64 = 48;
/// Memory in MiB that the guest's kernel takes before init runs: a base and an addition for each
/// CPU. Measured with Debian's kernel and rounded up.
const MEMORY_MIN_MIB: u64 = 224;
const MEMORY_MIN_PER_CPU_MIB: u64 = 4;
/// Least memory of each of the guest's nodes, in MiB.
const NODE_MIN_MIB: u64 = 32;
/// Time limit for a boot under KVM, which normally takes a second or two.
const KVM_BOOT_PATIENCE: Duration = Duration::from_secs(30);
/// Interval at which the caller's cancel flag is checked.
const CANCEL_POLL: Duration = Duration::from_millis(50);
/// Time that QEMU has to exit after its guest ended, before this process kills it.
const END_PATIENCE: Duration = Duration::from_secs(3);

/// A file for the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestFile {
    /// Path in the guest: absolute, without `.` and `..`.
    pub path: String,
    /// Contents of the file.
    pub data: Vec<u8>,
    /// Permission bits of the file, such as `0o644`.
    pub mode: u32,
}

/// A path that must exist in the guest before its program starts, because the path shows a kernel
/// feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Path without blanks, for example of a file in sysfs.
    pub path: String,
    /// Name of the feature that the path shows, for the message that the guest's kernel lacks it.
    pub name: String,
}

impl Need {
    /// Returns the paths that must exist for a sched_ext scheduler with CO-RE relocations.
    pub fn sched_ext() -> Vec<Need> {
        let need = |path: &str, name: &str| Need { path: path.to_owned(), name: name.to_owned() };
        vec![
            need("/sys/kernel/sched_ext", "sched_ext (CONFIG_SCHED_CLASS_EXT)"),
            need("/sys/kernel/btf/vmlinux", "BTF (CONFIG_DEBUG_INFO_BTF)"),
        ]
    }
}

/// A guest to boot. [`VmSpec::new`] sets the usual values.
#[derive(Debug)]
pub struct VmSpec<'a> {
    /// The machine's topology; its sizes of caches and memory are ignored.
    pub topology: &'a Topology,
    /// Path of a bzImage, or of an ELF kernel that boots through PVH.
    pub kernel: &'a Path,
    /// The guest's memory in MiB; None for a default that grows with the CPUs and the files.
    pub memory_mib: Option<u64>,
    /// Additional memory in MiB for the caller's program, if `memory_mib` is None.
    pub extra_mib: u64,
    /// Requested engine.
    pub accel: Accel,
    /// Arguments that [`crate::guest::Guest::args`] returns, by which this executable knows its
    /// task in the guest.
    pub init_args: Vec<String>,
    /// Files for the guest.
    pub files: Vec<GuestFile>,
    /// Executables of the host that are copied under their own paths, with their libraries.
    pub programs: Vec<PathBuf>,
    /// The caller's words for the kernel's command line.
    pub kernel_args: &'a str,
    /// Whether the guest runs guests itself: an emulated CPU then has virtualization (AMD's SVM).
    pub nested: bool,
    /// Features of the CPU model in QEMU's form, each with the comma before it, such as
    /// `,-kvm-pv-unhalt`.
    pub cpu_features: &'a str,
    /// Nodes of the host on which the guest's memory lies, for a machine with one node; None: where
    /// the kernel puts it.
    pub host_memory: Option<HostMemory>,
    /// Paths that must exist in the guest.
    pub needs: Vec<Need>,
    /// Time limit from QEMU's start to the result.
    pub deadline: Duration,
    /// Flag of the caller that stops the guest when it is raised.
    pub cancel: &'a AtomicBool,
}

impl<'a> VmSpec<'a> {
    /// Returns a guest with nothing but this executable, and a deadline of two minutes.
    pub fn new(topology: &'a Topology, kernel: &'a Path) -> VmSpec<'a> {
        static NEVER: AtomicBool = AtomicBool::new(false);
        VmSpec {
            topology,
            kernel,
            memory_mib: None,
            extra_mib: 0,
            accel: Accel::Auto,
            init_args: Vec::new(),
            files: Vec::new(),
            programs: Vec::new(),
            kernel_args: "",
            nested: false,
            cpu_features: "",
            host_memory: None,
            needs: Vec::new(),
            deadline: Duration::from_secs(120),
            cancel: &NEVER,
        }
    }
}

/// Result of a guest that returned an output.
#[derive(Clone, Debug)]
pub struct BootOutcome {
    /// Output that the guest gave to [`crate::guest::Guest::finish`].
    pub output: Vec<u8>,
    /// The kernel's log and the programs' output.
    pub console: Console,
    /// The kernel's release.
    pub release: String,
    /// Engine that ran the guest.
    pub engine: Engine,
    /// Notes for the user, such as why KVM was not used.
    pub notes: Vec<String>,
    /// The guest's CPU numbers, indexed by the machine's CPU numbers. Both are equal if the machine
    /// numbers its CPUs as QEMU does.
    pub guest_cpus: Vec<u32>,
    /// Size of the initramfs in bytes.
    pub initramfs_bytes: usize,
    /// Time from QEMU's start until the guest's program could start.
    pub boot_wall: Duration,
    /// Time from the call of `boot()` to its return.
    pub total_wall: Duration,
}

/// Returns the path of the QEMU that boots guests.
pub fn find_qemu() -> Result<PathBuf, VmError> {
    qemu::find().ok_or(VmError::NoQemu { program: qemu::PROGRAM, package: qemu::PACKAGE })
}

/// Boots a guest and waits for its result.
pub fn boot(spec: &VmSpec<'_>) -> Result<BootOutcome, VmError> {
    let called = Instant::now();
    let guest = PreparedGuest::new(spec, initramfs_of(spec)?)?;
    check_host_memory(guest.memory_mib + qemu::OWN_MIB)?;
    let (engine, note) = accel::choose(spec.accel).map_err(|why| VmError::NoKvm { why })?;
    let mut notes: Vec<String> = note.into_iter().collect();
    let (engine, note) = nesting_engine(spec, engine, guest.shape.nr_cpus())?;
    notes.extend(note);
    if engine == Engine::TcgCounted {
        notes.extend(qemu::note_on_turns(&version_of(&guest.program), guest.shape.nr_cpus()));
    }
    let (ran, engine) = match guest.run(engine) {
        // Try again with emulation: the probe runs few instructions and a kernel runs many, so KVM
        // may be the cause of a failure before the guest's first message.
        Err(Failed { why, phase: BOOTING })
            if spec.accel == Accel::Auto && engine == Engine::Kvm && !why.is_cancel() =>
        {
            notes.push(format!("the guest did not come up under KVM ({why}): emulated instead"));
            let (engine, note) = nesting_engine(spec, Engine::Tcg, guest.shape.nr_cpus())?;
            notes.extend(note);
            (guest.run(engine).map_err(|failed| failed.why)?, engine)
        }
        ran => (ran.map_err(|failed| failed.why)?, engine),
    };
    Ok(BootOutcome {
        output: ran.output,
        console: ran.console,
        release: ran.ready.release,
        engine,
        notes,
        initramfs_bytes: guest.initramfs.bytes,
        guest_cpus: guest.shape.guest_cpus,
        boot_wall: ran.boot_wall,
        total_wall: called.elapsed(),
    })
}

/// Returns the engine for a machine that may run guests itself, and a note for the user. With CPUs
/// in turn on one thread, a guest in an emulated machine of several CPUs never boots (QEMU 7.2).
fn nesting_engine(
    spec: &VmSpec<'_>,
    engine: Engine,
    nr_cpus: usize,
) -> Result<(Engine, Option<String>), VmError> {
    match engine {
        Engine::TcgCounted if spec.nested && nr_cpus > 1 => Err(VmError::NestedCounted),
        Engine::Tcg if spec.nested && nr_cpus > 1 => {
            let note = "guests in an emulated machine of several CPUs need a thread of QEMU for each, with which the machine's \
                        kernel may panic or hang; a machine with one CPU needs none";
            Ok((Engine::TcgMulti, Some(note.to_owned())))
        }
        engine => Ok((engine, None)),
    }
}

/// Builds the initramfs of a guest. Checks the machine and the kernel first, because the build
/// takes longer.
pub(crate) fn initramfs_of(spec: &VmSpec<'_>) -> Result<Initramfs, VmError> {
    if !cfg!(target_arch = "x86_64") {
        return Err(VmError::Architecture { arch: std::env::consts::ARCH });
    }
    let shape = Shape::of(spec.topology)?;
    find_qemu()?;
    image::check(spec.kernel)?;
    let archive = initramfs::build(&Contents {
        init_args: &spec.init_args,
        files: &spec.files,
        programs: &spec.programs,
        needs: &spec.needs,
        shape: &shape::describe(spec.topology, |cpu| shape.guest_cpus[cpu as usize]),
        guest_cpus: &shape.guest_cpus,
    })?;
    Initramfs::new(&archive)
}

/// A guest with all its inputs, ready to run under any engine.
pub(crate) struct PreparedGuest<'a> {
    spec: &'a VmSpec<'a>,
    pub program: PathBuf,
    pub shape: Shape,
    initramfs: Initramfs,
    pub memory_mib: u64,
}

impl<'a> PreparedGuest<'a> {
    pub fn new(spec: &'a VmSpec<'a>, initramfs: Initramfs) -> Result<PreparedGuest<'a>, VmError> {
        let (shape, program) = (Shape::of(spec.topology)?, find_qemu()?);
        let memory_mib = memory_mib(spec.memory_mib, spec.extra_mib, &shape, initramfs.bytes)?;
        Ok(PreparedGuest { spec, program, shape, initramfs, memory_mib })
    }
}

impl PreparedGuest<'_> {
    fn run(&self, engine: Engine) -> Result<Ran, Failed> {
        let qemu = self.start(engine).map_err(|why| Failed { why, phase: BOOTING })?;
        let boot_deadline = match engine {
            Engine::Kvm => self.spec.deadline.min(KVM_BOOT_PATIENCE),
            Engine::Tcg | Engine::TcgCounted | Engine::TcgMulti => self.spec.deadline,
        };
        GuestMonitor { qemu, started: Instant::now(), spec: self.spec, engine, boot_deadline }.run()
    }

    fn start(&self, engine: Engine) -> Result<Qemu, VmError> {
        let launch = Launch::new(&self.initramfs)?;
        let args = self.args(engine, &launch);
        launch.start(&self.program, &args)
    }

    /// Returns QEMU's arguments.
    pub fn args(&self, engine: Engine, launch: &Launch) -> Vec<String> {
        Command {
            shape: &self.shape,
            engine,
            memory_mib: self.memory_mib,
            kernel: self.spec.kernel,
            kernel_args: self.spec.kernel_args,
            initramfs_fd: launch.initramfs_fd(),
            console_fd: launch.console_fd(),
            result_fd: launch.result_fd(),
            amd: cpu_is_amd(),
            nested: self.spec.nested,
            cpu_features: self.spec.cpu_features,
            host_memory: self.spec.host_memory.as_ref(),
        }
        .args()
    }
}

struct GuestMonitor<'a> {
    qemu: Qemu,
    started: Instant,
    spec: &'a VmSpec<'a>,
    engine: Engine,
    /// Time limit from QEMU's start until the guest reports that it is up.
    boot_deadline: Duration,
}

/// Reason why a run has no result, and the phase (booting or running) in which the run failed.
struct Failed {
    why: VmError,
    phase: &'static str,
}

struct Ran {
    output: Vec<u8>,
    console: Console,
    ready: Ready,
    boot_wall: Duration,
}

pub(crate) const BOOTING: &str = "booting";
pub(crate) const RUNNING: &str = "running";

impl GuestMonitor<'_> {
    fn run(mut self) -> Result<Ran, Failed> {
        let ready = match self.wait(BOOTING) {
            Stop::Frame(FrameKind::Ready, payload) => Ready::from_bytes(&payload),
            stop => return Err(self.failure(stop, BOOTING)),
        };
        let boot_wall = self.started.elapsed();
        check_ready(&ready).map_err(|why| Failed { why, phase: RUNNING })?;
        match self.wait(RUNNING) {
            // The result is complete, so there is no need to wait until the guest is off.
            Stop::Frame(FrameKind::Result, output) => {
                let console = self.qemu.kill();
                Ok(Ran { output, console, ready, boot_wall })
            }
            stop => Err(self.failure(stop, RUNNING)),
        }
    }

    /// Waits for the guest's next message on the result port, the deadline, or the caller's cancel
    /// flag.
    fn wait(&mut self, phase: &'static str) -> Stop {
        loop {
            if self.spec.cancel.load(Ordering::Relaxed) {
                return Stop::Cancelled;
            }
            let left = self.deadline(phase).saturating_sub(self.started.elapsed());
            if left.is_zero() {
                return Stop::Deadline;
            }
            match self.qemu.next(left.min(CANCEL_POLL)) {
                Message::Nothing => {}
                Message::Frame(frame) => {
                    let expected =
                        if phase == BOOTING { FrameKind::Ready } else { FrameKind::Result };
                    return match frame.kind {
                        FrameKind::Failed => Stop::Frame(frame.kind, frame.payload),
                        kind if kind == expected => Stop::Frame(kind, frame.payload),
                        _ => Stop::Broken("it sent a frame out of order".to_owned()),
                    };
                }
                Message::Broken(FrameError::End) => return Stop::Ended,
                Message::Broken(why) => return Stop::Broken(why.to_string()),
            }
        }
    }

    /// Returns a possible cause of the kernel's panic, in parentheses; empty if none is known.
    fn hint(&self, console: &Console) -> &'static str {
        if self.engine == Engine::TcgMulti && console.has_stray_breakpoint() {
            " (QEMU with a thread for each CPU may run stale code after the kernel has patched it: use one thread)"
        } else {
            ""
        }
    }

    fn deadline(&self, phase: &'static str) -> Duration {
        if phase == BOOTING { self.boot_deadline } else { self.spec.deadline }
    }

    /// Ends QEMU and returns why there is no result.
    fn failure(mut self, stop: Stop, phase: &'static str) -> Failed {
        let patience = match stop {
            // Wait for the rest of the kernel's log, which may show a panic as the cause.
            Stop::Ended | Stop::Broken(_) => END_PATIENCE,
            _ => Duration::ZERO,
        };
        let exit = self.qemu.wait_exit(patience);
        let console = self.qemu.kill();
        let stderr = self.qemu.stderr();
        let why = match stop {
            Stop::Cancelled => VmError::Cancelled { phase, console },
            // Look for a panic at the deadline too: a panicking kernel may hang on its way out.
            _ if console.has_panic() => VmError::Panicked { hint: self.hint(&console), console },
            Stop::Deadline => VmError::Deadline { phase, after: self.deadline(phase), console },
            Stop::Frame(_, payload) => {
                VmError::GuestFailed { why: String::from_utf8_lossy(&payload).into(), console }
            }
            Stop::Broken(why) => VmError::NoResult { why, console },
            Stop::Ended => match exit {
                Some(status) if !status.success() => {
                    VmError::QemuDied { status: status.to_string(), stderr, console }
                }
                _ => VmError::NoResult { why: format!("it ended while it was {phase}"), console },
            },
        };
        Failed { why, phase }
    }
}

/// Refuses a guest that is up, but whose kernel lacks a feature or sees another topology than the
/// requested one.
pub(crate) fn check_ready(ready: &Ready) -> Result<(), VmError> {
    if !ready.lacks.is_empty() {
        let (release, lacks) = (ready.release.clone(), ready.lacks.clone());
        return Err(VmError::Lacks { release, lacks });
    }
    match ready.topology.clone() {
        Some(difference) => Err(VmError::Topology { difference }),
        None => Ok(()),
    }
}

enum Stop {
    Frame(FrameKind, Vec<u8>),
    Broken(String),
    Ended,
    Deadline,
    Cancelled,
}

/// Returns the memory of a guest in MiB if its caller names none, without the memory for its files.
pub fn usual_memory_mib(cpus: u64) -> u64 {
    MEMORY_MIB + MEMORY_PER_CPU_MIB * cpus
}

/// Returns the guest's memory, a multiple of the number of nodes.
fn memory_mib(
    asked: Option<u64>,
    extra_mib: u64,
    shape: &Shape,
    initramfs_bytes: usize,
) -> Result<u64, VmError> {
    let cpus = shape.nr_cpus() as u64;
    let nodes = shape.node_cpus.len() as u64;
    // Count the files twice: the archive and the files unpacked from it exist at the same time.
    let files_mib = 2 * (initramfs_bytes as u64 >> 20) + 2;
    let needed_mib =
        (MEMORY_MIN_MIB + MEMORY_MIN_PER_CPU_MIB * cpus + files_mib).max(NODE_MIN_MIB * nodes);
    let default_mib = needed_mib.max(usual_memory_mib(cpus) + files_mib);
    let asked_mib = asked.unwrap_or(default_mib + extra_mib);
    if asked_mib < needed_mib {
        return Err(VmError::GuestMemory { asked_mib, needed_mib });
    }
    Ok(asked_mib.next_multiple_of(nodes))
}

/// Refuses guests that need more than the host's available memory. If the host does not report
/// this memory, the guest is not refused, and QEMU fails if the memory is too little.
pub fn check_host_memory(needed_mib: u64) -> Result<(), VmError> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match available_mib(&meminfo) {
        Some(available_mib) if available_mib < needed_mib => {
            Err(VmError::HostMemory { needed_mib, available_mib })
        }
        _ => Ok(()),
    }
}

fn available_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib >> 10)
}

/// Returns QEMU's version text; empty if QEMU does not run.
fn version_of(program: &Path) -> String {
    let said = std::process::Command::new(program).arg("--version").output();
    said.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default()
}

fn cpu_is_amd() -> bool {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let vendor = cpuinfo.lines().find(|line| line.starts_with("vendor_id")).unwrap_or_default();
    vendor.contains("AuthenticAMD") || vendor.contains("HygonGenuine")
}

#[cfg(test)]
mod tests;
