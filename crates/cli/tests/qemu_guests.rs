// SPDX-License-Identifier: GPL-2.0-only
//! Guests of a workload as real virtual machines: the code behind `run --on host`, with QEMU's
//! translator instead of KVM, and without a scheduler and the probe. `vm/guests.rs` tests the whole
//! command under KVM.
//!
//! The test has its own main, because it is also init of the guests, and because the director of a
//! workload is this executable again. It is skipped, with a message, without QEMU or a kernel. On a
//! host whose cgroup v2 lacks the cpu controller, the workloads have no cgroups; `vm/guests.rs`
//! tests them anyhow.

#[path = "../src/guests.rs"]
#[allow(dead_code, reason = "the command also sizes virtual machines in which guests run")]
mod guests;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use guests::Hypervisor;
use scxlab_live::LiveError;
use scxlab_live::guest::{
    self, Attempt, GuestError, GuestHost, GuestMachines, GuestReport, GuestSpec,
};
use scxlab_vm::Engine;
use scxlab_workload::native::{
    self, Gate, GuestProcess, NativeConfig, NativeReport, NativeStop, StartSignal,
};
use scxlab_workload::{Program, load};

/// Argument with which this test runs a workload that it kills.
const VICTIM: &str = "victim";
/// Variable with this test's pid in the environment of all processes that it starts.
const MARK: &str = "SCXLAB_TEST";
/// Time limit that only a hang reaches.
const PATIENCE: Duration = Duration::from_secs(30 * 60);
const POLL: Duration = Duration::from_millis(20);
static NEVER: AtomicBool = AtomicBool::new(false);

fn main() {
    if scxlab_vm::guest::is_init() {
        guests::serve(scxlab_vm::guest::enter()).fail("no guest of a workload");
    }
    native::child_main();
    if std::env::var_os(MARK).is_none() {
        // SAFETY: there is no other thread yet.
        unsafe { std::env::set_var(MARK, std::process::id().to_string()) };
    }
    let Some(kernel) = kernel() else { return };
    if std::env::args().nth(1).as_deref() == Some(VICTIM) {
        victim(&kernel);
    }
    impossible_guests_are_named(&kernel);
    if !is_root() {
        eprintln!("guests: skipped: the other tests need root, for the nice value -5");
        return;
    }
    guests_run_where_the_workload_wants_them(&kernel);
    guests_that_end_are_ended(&kernel);
    guests_that_never_come_up_are_started_again(&kernel);
    a_guest_that_dies_is_named(&kernel);
    guests_die_with_scxlab();
    eprintln!("guests: all passed");
}

fn kernel() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build/kernel/vmlinux");
    let named = std::env::var_os("SCXLAB_KERNEL").map(PathBuf::from);
    let kernel = named.or_else(|| built.exists().then_some(built));
    if kernel.is_none() || scxlab_vm::find_qemu().is_err() {
        eprintln!("guests: skipped: there is no QEMU, or no kernel in build/kernel");
        return None;
    }
    kernel
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Returns the program of a workload file, without its cgroups on a host that lacks them.
fn program(text: &str) -> Program {
    let is_kept = |line: &&str| cgroup_root("").is_some() || !line.contains("cgroup");
    let text: Vec<&str> = text.lines().filter(is_kept).collect();
    load("test.toml", &text.join("\n")).unwrap_or_else(|why| panic!("{why}"))
}

/// Returns the directory of that name for the cgroups of a run; None if the host lacks them.
fn cgroup_root(name: &str) -> Option<PathBuf> {
    let mount = native::cgroup_mount()?;
    let has = fs::read_to_string(mount.join("cgroup.controllers")).ok()?;
    has.split_whitespace().any(|controller| controller == "cpu").then(|| mount.join(name))
}

/// Returns the cgroup of a path in results, on a host that may lack cgroups.
fn expected(cgroup: &str) -> &str {
    if cgroup_root("").is_some() { cgroup } else { "/" }
}

fn run(
    kernel: &Path,
    program: &Program,
    config: NativeConfig,
) -> Result<(NativeReport, Vec<GuestReport>), LiveError> {
    guest::run(program, config, &hypervisor(kernel))
}

fn hypervisor(kernel: &Path) -> Hypervisor {
    Hypervisor { kernel: Ok(kernel.to_owned()), engine: Engine::TcgMulti, cancel: &NEVER }
}

/// Two pinned guests of a declaration, one guest that finishes its work, and a thread of the host.
const MIXED: &str = r#"
duration = "4s"

[[guest]]
name = "vm{i}"
instances = 2
cgroup = "/vm{i}"
vcpu_cgroups = true
cpus = "0-1"
pin = true
nice = -5
memory = { size = "1GiB", policy = { bind = "0" } }
pv_spinlock = false
pv_tlb_flush = false

[[guest.program.thread]]
name = "busy"
ops = [{ loop = { ops = [{ compute = "100us" }, { count = 1 }] } }]

[[guest]]
name = "short"
vcpus = 2
cgroup = "/others"
halt_poll = "50us"

[[guest.program.thread]]
name = "few"
instances = 2
ops = [{ loop = { times = 5, ops = [{ sleep = "1ms" }, { count = 1 }] } }]

[[thread]]
name = "beside"
cgroup = "/others"
ops = [{ loop = { ops = [{ sleep = "10ms" }, { count = 1 }] } }]
"#;

/// A thread of QEMU, as /proc shows it.
#[derive(Debug)]
struct QemuThread {
    pid: u32,
    comm: String,
    cgroup: String,
    cpus: String,
    nice: i64,
}

fn guests_run_where_the_workload_wants_them(kernel: &Path) {
    let program = program(MIXED);
    let root = cgroup_root(&format!("scxlab-guests-{}", std::process::id()));
    let signal = StartSignal::new().unwrap();
    let watched = signal.clone();
    // Look at QEMU's threads when the run has begun: all must be in their places then.
    let watcher = std::thread::spawn(move || watched.wait().map(|_| qemu_threads()));
    let config = NativeConfig {
        cgroup_root: root.clone(),
        on_start: Some(signal.clone()),
        ..NativeConfig::default()
    };
    let got = run(kernel, &program, config);
    signal.cancel();
    let threads = watcher.join().unwrap();
    let (report, guests) = got.unwrap_or_else(|why| panic!("{why}"));

    assert_eq!(report.stop, NativeStop::Duration, "{:?}", report.notes);
    let names: Vec<&str> = guests.iter().map(|guest| guest.name.as_str()).collect();
    assert_eq!(names, ["vm0", "vm1", "short"]);
    for busy in &guests[..2] {
        assert_eq!(busy.report.stop, NativeStop::Duration, "{}", busy.name);
        assert!(busy.report.work_units() > 0, "{}: {:?}", busy.name, busy.report);
    }
    let short = &guests[2].report;
    assert_eq!((short.work_units(), &short.stop), (10, &NativeStop::AllExited), "{short:?}");
    assert_eq!(short.tasks.len(), 2);
    let task = |name: &str| report.tasks.iter().find(|task| task.name == name).expect(name);
    assert!(task("beside").work_units > 0);
    let vcpus: Vec<&str> = report.tasks.iter().map(|task| task.name.as_str()).collect();
    for (name, cgroup, nice) in [
        ("vm0-vcpu0", "/vm0/vcpu0", -5),
        ("vm1-vcpu0", "/vm1/vcpu0", -5),
        ("short-vcpu0", "/others", 0),
        ("short-vcpu1", "/others", 0),
    ] {
        let task = task(name);
        assert_eq!((task.cgroup.as_str(), task.nice), (expected(cgroup), nice), "{vcpus:?}");
        assert!(task.run_ns > 0, "{task:?}");
        // The boot takes longer than the run, and none of it counts.
        assert!(task.run_ns <= task.ended_ns + 1_000_000_000, "{task:?}");
    }

    let regions = report.regions.iter().map(|r| (r.owner.as_str(), r.region.as_str(), &r.pages));
    let regions: Vec<_> = regions.collect();
    let [("vm0", "memory", first), ("vm1", "memory", second)] = regions[..] else {
        panic!("{regions:?}, {:?}", report.notes);
    };
    for pages in [first, second] {
        assert!(pages.len() == 1 && (1..=1 << 18).contains(&pages[0]), "all on node 0: {pages:?}");
    }
    let threads = threads.expect("the run began");
    let pids: BTreeSet<u32> = threads.iter().map(|thread| thread.pid).collect();
    assert_eq!(pids.len(), 3, "{threads:?}");
    let is_vcpu = |thread: &&QemuThread| thread.comm.starts_with("CPU ");
    let place = |thread: &QemuThread| (thread.cpus.clone(), thread.nice);
    let mut places: Vec<(String, i64)> = threads.iter().filter(is_vcpu).map(place).collect();
    places.sort();
    let all = threads.iter().find(|thread| !is_vcpu(thread)).expect("QEMU's own").cpus.clone();
    let mut wanted = vec![(all.clone(), 0), (all, 0), ("0".to_owned(), -5), ("1".to_owned(), -5)];
    wanted.sort();
    assert_eq!(places, wanted, "{threads:?}");
    assert!(threads.iter().filter(|thread| !is_vcpu(thread)).all(|thread| thread.nice == 0));
    if let Some(root) = root {
        let inside = |end: &str| threads.iter().filter(|t| t.cgroup.ends_with(end)).count();
        let counts = ["/vm0/vcpu0", "/vm1/vcpu0"].map(inside);
        assert_eq!(counts, [1, 1], "{threads:?}");
        let of_guests = inside("/vm0") + inside("/vm1") + inside("/others");
        assert_eq!(of_guests + 2, threads.len(), "{threads:?}");
        assert!(!root.exists());
    }
    assert!(qemu_threads().is_empty());
    eprintln!("guests: they run where the workload wants them");
}

/// A guest and a thread of the host that end.
const SHORT: &str = r#"
[[guest]]
name = "once"
[[guest.program.thread]]
name = "one"
ops = [{ sleep = "1ms" }, { count = 1 }]
[[thread]]
name = "beside"
ops = [{ count = 1 }]
"#;

/// Without a duration, the run ends when all threads and all guests have ended.
fn guests_that_end_are_ended(kernel: &Path) {
    let program = program(SHORT);
    let got = run(kernel, &program, NativeConfig::default());
    let (report, guests) = got.unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(report.stop, NativeStop::AllExited, "{:?}", report.notes);
    assert_eq!(report.work_units() + guests[0].report.work_units(), 2);
    assert_eq!(report.notes, [] as [&str; 0]);
    assert!(qemu_threads().is_empty());
    eprintln!("guests: they end");
}

/// Guests whose boot hangs in the first attempts.
struct Hanging {
    host: Hypervisor,
    attempts: &'static [Attempt],
}

struct HangingMachines(Box<dyn GuestMachines>);

impl GuestHost for Hanging {
    fn check(&self) -> Result<(), String> {
        self.host.check()
    }

    fn prepare(
        &self,
        guests: &[GuestSpec<'_>],
        attempt: Attempt,
    ) -> Result<Box<dyn GuestMachines>, GuestError> {
        let machines = self.host.prepare(guests, attempt)?;
        let hangs = self.attempts.contains(&attempt);
        Ok(if hangs { Box::new(HangingMachines(machines)) } else { machines })
    }
}

impl GuestMachines for HangingMachines {
    fn processes(&self) -> Vec<GuestProcess> {
        self.0.processes()
    }

    fn attend(self: Box<Self>, mut gate: Gate) -> Result<Vec<Vec<u8>>, GuestError> {
        assert!(gate.wait_prepared().unwrap());
        assert_ne!(qemu_threads().len(), 0);
        let error = GuestError::new("once", "its time was over");
        Err(GuestError { never_came_up: Some("hung"), ..error })
    }
}

fn guests_that_never_come_up_are_started_again(kernel: &Path) {
    let program = program(SHORT);
    let run = |attempts| {
        let hanging = Hanging { host: hypervisor(kernel), attempts };
        guest::run(&program, NativeConfig::default(), &hanging)
    };
    let (report, guests) = run(&[Attempt::First]).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(report.work_units() + guests[0].report.work_units(), 2);
    let again =
        "all guests were started a second time, because guest \"once\" hung while it booted";
    assert_eq!(report.notes, [again]);
    assert!(qemu_threads().is_empty());
    let why = run(&[Attempt::First, Attempt::Last]).unwrap_err();
    assert_eq!(why.to_string(), "guest \"once\": its time was over");
    assert!(qemu_threads().is_empty());
    eprintln!("guests: they are started again");
}

/// A guest whose QEMU dies ends the run, also one without a duration, and the message names it.
fn a_guest_that_dies_is_named(kernel: &Path) {
    let signal = StartSignal::new().unwrap();
    let watched = signal.clone();
    let killer = std::thread::spawn(move || {
        let pids = watched.wait().map(|_| qemu_threads()).into_iter().flatten();
        for pid in pids.map(|thread| thread.pid).collect::<BTreeSet<u32>>() {
            Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
        }
    });
    let config = NativeConfig { on_start: Some(signal.clone()), ..NativeConfig::default() };
    let got = run(kernel, &program(ENDLESS), config);
    signal.cancel();
    killer.join().unwrap();
    let why = got.map(|(report, _)| report).unwrap_err().to_string();
    assert!(why.starts_with("guest \"endless\": ") && why.contains("ended while"), "{why}");
    assert!(qemu_threads().is_empty());
    eprintln!("guests: one that dies is named");
}

const ENDLESS: &str = r#"
[[guest]]
name = "endless"
cgroup = "/endless"
[[guest.program.thread]]
name = "a"
ops = [{ loop = { ops = [{ compute = "1ms" }] } }]
"#;

fn guests_die_with_scxlab() {
    let own = std::env::current_exe().unwrap();
    let mut child = Command::new(own).arg(VICTIM).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    let root = victims_root(child.id());
    let is_left = || root.as_ref().is_some_and(|root| root.exists());
    assert!(!qemu_threads().is_empty() && is_left() == root.is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = Instant::now();
    while !qemu_threads().is_empty() || is_left() {
        assert!(killed.elapsed() < PATIENCE, "they live on: {:?}", qemu_threads());
        std::thread::sleep(POLL);
    }
    eprintln!("guests: they die with scxlab");
}

fn victims_root(pid: u32) -> Option<PathBuf> {
    cgroup_root(&format!("scxlab-victim-{pid}"))
}

/// Runs a guest that never ends, and tells when it has begun.
fn victim(kernel: &Path) -> ! {
    let endless = program(ENDLESS);
    let signal = StartSignal::new().unwrap();
    let watched = signal.clone();
    std::thread::spawn(move || {
        watched.wait();
        println!("started");
    });
    let config = NativeConfig {
        cgroup_root: victims_root(std::process::id()),
        on_start: Some(signal),
        ..NativeConfig::default()
    };
    panic!("it ended: {:?}", run(kernel, &endless, config).map(|(report, _)| report));
}

/// Bad guests are refused by name, with the reason.
fn impossible_guests_are_named(kernel: &Path) {
    let text = |keys: &str| {
        format!(
            "duration = '1s'\n[[guest]]\nname = 'bad'\n{keys}\n\
             [[guest.program.thread]]\nname = 'a'\nops = ['yield']\n"
        )
    };
    for (keys, says) in [
        ("spinlock = 'ticket'", "no paravirtual ticket locks; set pv_spinlock = false"),
        (
            "memory = { size = '1GiB', merge = 50, huge = false }",
            "KSM decides which pages are merged",
        ),
        ("memory = { size = '1GiB', populate = '0' }", "its memory is placed by its policy"),
        ("memory = 1048577", "a whole number of MiB"),
    ] {
        let why = guest::check(&program(&text(keys))).unwrap_err().to_string();
        let wanted = "test.toml:2:1: guest \"bad\" cannot run on a real kernel: ";
        assert!(why.starts_with(wanted) && why.contains(says), "{why}");
    }
    let fine = "spinlock = 'ticket'\npv_spinlock = false\nmemory = '1GiB'\nhalt_poll = '1ms'";
    guest::check(&program(&text(fine))).unwrap();
    for (kernel, keys, says) in [
        (kernel, "memory = '16MiB'", "16 MiB are too little for this guest"),
        (kernel, "vcpus = 288", "288 CPUs take 288 APIC ids"),
        (kernel, "memory = '1024GiB'", "MiB are available"),
        (kernel, "memory = { size = '1GiB', policy = { bind = '99' } }", "names node 99"),
        (kernel, "cpus = '4000'", "CPU 4000"),
        (Path::new("/bin/sh"), "", "no kernel image"),
    ] {
        let got = run(kernel, &program(&text(keys)), NativeConfig::default());
        let why = got.map(|(report, _)| report).unwrap_err().to_string();
        assert!(why.contains("bad") && why.contains(says), "{keys}: {why}");
    }
    assert!(qemu_threads().is_empty());
    eprintln!("guests: bad ones are refused");
}

/// Returns the threads of all QEMUs that this test has started.
fn qemu_threads() -> Vec<QemuThread> {
    let mark = format!("{MARK}={}\0", std::env::var(MARK).unwrap_or_default());
    let mut all = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let environ = fs::read(process.path().join("environ")).unwrap_or_default();
        let is_ours = environ.windows(mark.len()).any(|part| part == mark.as_bytes());
        if !is_ours || !String::from_utf8_lossy(&words).contains("qemu-system") {
            continue;
        }
        for task in fs::read_dir(process.path().join("task")).into_iter().flatten().flatten() {
            all.extend(qemu_thread(pid, &task.path()));
        }
    }
    all
}

/// Reads what /proc shows of a thread; None if it has ended.
fn qemu_thread(pid: u32, task: &Path) -> Option<QemuThread> {
    let read = |file: &str| fs::read_to_string(task.join(file)).ok();
    let status = read("status")?;
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let cgroup = read("cgroup")?;
    let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    let stat = read("stat")?;
    // The fields after the name begin with the third; nice is the nineteenth.
    let nice = stat.rsplit_once(')')?.1.split_whitespace().nth(16)?.parse().ok()?;
    Some(QemuThread {
        pid,
        comm: read("comm")?.trim_end().to_owned(),
        cgroup: cgroup.to_owned(),
        cpus: cpus.trim().to_owned(),
        nice,
    })
}
