// SPDX-License-Identifier: GPL-2.0-only
//! Real guests: this executable boots them and is their init process.
//!
//! The kernel is the first that exists of: the file named by SCXLAB_KERNEL, the one that
//! `tools/kernel-objects.sh` left in `build/kernel`, the one in the user's cache, one that is
//! prepared now.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use scxlab_machine::Topology;
use scxlab_machine::topology::spec::{Sizes, Spec};
use scxlab_machine::topology::sysfs;
use scxlab_vm::guest::{self, Guest, Sys};
use scxlab_vm::{
    Accel, BootOutcome, GuestFile, Need, VmError, VmFault, VmSpec, boot, probe_kvm, setup,
};

/// Time limit that only a hanging guest reaches, because a busy machine needs much less.
const DEADLINE: Duration = Duration::from_secs(45 * 60);
const LARGE_BYTES: usize = 3_000_001;

type SmallTest = fn(&Path, Duration);

fn main() {
    if guest::is_init() {
        in_guest(guest::enter());
    }
    let kernel = kernel();
    let started = Instant::now();
    let boot_wall = topologies(&kernel);
    std::thread::scope(|scope| {
        let tests: [(&str, SmallTest); 4] = [
            ("a panic is reported", panic_is_reported),
            ("a program that ends is reported", death_is_reported),
            ("a guest that sleeps is stopped", deadline_stops),
            ("what a kernel lacks is named", lack_is_named),
        ];
        for (name, test) in tests {
            let kernel = &kernel;
            scope.spawn(move || {
                test(kernel, boot_wall);
                eprintln!("boot: {name}");
            });
        }
    });
    cancel_stops(&kernel);
    eprintln!("boot: all passed in {:.1} s", started.elapsed().as_secs_f64());
}

// The part of this executable that runs on the host: the tests, which boot guests.

fn kernel() -> PathBuf {
    if let Some(path) = std::env::var_os("SCXLAB_KERNEL") {
        return path.into();
    }
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build/kernel");
    for name in ["vmlinux", "bzImage"] {
        // The stamp is written last, so a directory without it is incomplete.
        if built.join("stamp").exists() && built.join(name).exists() {
            return built.join(name);
        }
    }
    let cache = setup::cache_dir().unwrap();
    let found = setup::find(&cache).unwrap();
    found
        .unwrap_or_else(|| setup::prepare(&cache, &mut |step| eprintln!("boot: {step}")).unwrap())
        .image
}

fn machine(spec: &str) -> Topology {
    Topology::build(Spec::parse(spec).unwrap().layout(Sizes::default()).unwrap()).unwrap()
}

fn spec<'a>(machine: &'a Topology, kernel: &'a Path, args: &[&str]) -> VmSpec<'a> {
    let mut spec = VmSpec::new(machine, kernel);
    spec.init_args = args.iter().map(|&arg| arg.to_owned()).collect();
    spec.deadline = DEADLINE;
    spec.accel = Accel::Tcg;
    spec.needs = Need::sched_ext();
    spec
}

/// Boots machines and checks that the guests see the requested topology. Returns the boot time of
/// the first machine.
fn topologies(kernel: &Path) -> Duration {
    let first = report(kernel, "2n4c1t", Accel::Tcg, check_report);
    report(kernel, "2n2l2c2t", Accel::Tcg, |_| {});
    report(kernel, "1n3c2tf", Accel::Tcg, |outcome| {
        // The machine's three cores have CPUs 0,3 and 1,4 and 2,5. The guest numbers the CPUs in
        // this order, so its CPU 1 is the machine's CPU 3.
        assert_eq!(outcome.guest_cpus, [0, 2, 4, 1, 3, 5]);
    });
    match probe_kvm() {
        Ok(()) => drop(report(kernel, "2n2l2c2t", Accel::Kvm, |_| {})),
        Err(why) => eprintln!("boot: not tried with KVM: {why}"),
    }
    first
}

fn report(kernel: &Path, name: &str, accel: Accel, check: impl Fn(&BootOutcome)) -> Duration {
    let machine = machine(name);
    let mut spec = spec(&machine, kernel, &["report", "two words", ""]);
    spec.accel = accel;
    spec.files.push(GuestFile { path: "/data/file".into(), data: b"\0data\n".into(), mode: 0o640 });
    spec.programs.push("/bin/sh".into());
    let outcome = boot(&spec).unwrap_or_else(|why| panic!("{name}: {why}"));
    let (sizes, output) = outcome.output.split_at(outcome.output.len() - LARGE_BYTES);
    assert!(
        output.iter().enumerate().all(|(at, &byte)| byte == at as u8),
        "{name}: the large part"
    );
    let said = String::from_utf8(sizes.to_vec()).unwrap();
    let wanted = places(&machine, |cpu| outcome.guest_cpus[cpu as usize]);
    assert_eq!(said, wanted, "{name}");
    check(&outcome);
    eprintln!(
        "boot: {name} ({}): up after {:.1} s, all in {:.1} s, initramfs {:.1} MB",
        outcome.engine,
        outcome.boot_wall.as_secs_f64(),
        outcome.total_wall.as_secs_f64(),
        outcome.initramfs_bytes as f64 / 1e6
    );
    outcome.boot_wall
}

fn check_report(outcome: &BootOutcome) {
    let console = outcome.console.text();
    assert!(outcome.release.starts_with(|c: char| c.is_ascii_digit()), "{}", outcome.release);
    for line in [
        "args [\"report\", \"two words\", \"\"]",
        "file [0, 100, 97, 116, 97, 10] mode 640",
        "the shell says hello",
        "clocksource tsc",
        "cgroups bpf tracing debug shm",
        "loopback hello",
        "zombies 0",
    ] {
        assert!(console.contains(line), "no \"{line}\" in:\n{console}");
    }
}

/// Describes the distance between each pair of CPUs, independently of `shape::describe`, which the
/// library uses to compare topologies.
fn places(machine: &Topology, guest_cpu: impl Fn(u32) -> u32) -> String {
    let mut pairs = Vec::new();
    for a in machine.cpu_ids() {
        for b in machine.cpu_ids() {
            let distance = machine.distance(a, b).name();
            let (node_a, node_b) = (machine.cpu(a).node, machine.cpu(b).node);
            let slit = machine.node_distance(node_a, node_b);
            pairs.push((guest_cpu(a.0), guest_cpu(b.0), format!("{distance} {slit}")));
        }
    }
    pairs.sort();
    pairs.iter().map(|(a, b, place)| format!("{a} {b} {place}\n")).collect()
}

fn small(kernel: &Path, what: &str, change: impl FnOnce(&mut VmSpec<'_>)) -> VmError {
    let machine = machine("1c");
    let mut spec = spec(&machine, kernel, &[what]);
    change(&mut spec);
    match boot(&spec) {
        Ok(outcome) => panic!("{what} returned {} bytes", outcome.output.len()),
        Err(why) => why,
    }
}

fn panic_is_reported(kernel: &Path, _: Duration) {
    let why = small(kernel, "panic", |_| {});
    assert!(matches!(why, VmError::Panicked { .. }), "{why}");
    assert!(why.console().unwrap().text().contains("about to panic"), "{why}");
    assert_eq!(why.fault(), VmFault::Guest);
}

fn death_is_reported(kernel: &Path, _: Duration) {
    // Uses the packed image, if there is one, so that a kernel that unpacks itself is tested too.
    let packed = kernel.with_file_name("bzImage");
    let kernel = if packed.exists() { packed.as_path() } else { kernel };
    let why = small(kernel, "die", |_| {});
    let said = why.to_string();
    assert!(matches!(why, VmError::GuestFailed { .. }), "{said}");
    assert!(said.contains("ended with status 101"), "{said}");
    assert!(said.contains("a reason to die"), "the panic's message is shown: {said}");
}

fn deadline_stops(kernel: &Path, boot_wall: Duration) {
    // The small guest should boot in less than `boot_wall`, the boot time of a larger one, so that
    // the deadline stops its sleeping program. If the host became busier, the deadline may stop the
    // boot instead. The test accepts both phases.
    let deadline = boot_wall + Duration::from_secs(2);
    let why = small(kernel, "sleep", |spec| spec.deadline = deadline);
    let VmError::Deadline { phase, after, console } = &why else { panic!("{why}") };
    assert_eq!(*after, deadline);
    assert_eq!(*phase == "running", console.text().contains("falling asleep"), "{phase}: {why}");
}

fn lack_is_named(kernel: &Path, _: Duration) {
    let need = Need { path: "/sys/kernel/nothing".into(), name: "a feature".into() };
    let why = small(kernel, "report", |spec| spec.needs.push(need));
    match &why {
        VmError::Lacks { lacks, .. } => assert_eq!(*lacks, ["a feature"]),
        _ => panic!("{why}"),
    }
}

fn cancel_stops(kernel: &Path) {
    let cancel = std::sync::atomic::AtomicBool::new(false);
    let machine = machine("1c");
    let mut spec = spec(&machine, kernel, &["sleep"]);
    spec.cancel = &cancel;
    let why = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            cancel.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        boot(&spec).unwrap_err()
    });
    // The deadline is far away, so only the cancel flag can have stopped the guest, and the error
    // must be `Cancelled`.
    assert!(matches!(why, VmError::Cancelled { .. }), "{why}");
    eprintln!("boot: a raised flag stops it");
}

// The part of this executable that runs in the guest as its init process.

fn in_guest(guest: Guest) -> ! {
    match guest.args()[0].as_str() {
        "report" => tell(guest),
        "panic" => {
            println!("about to panic");
            std::fs::write("/proc/sysrq-trigger", "c").unwrap();
            guest.fail("the kernel lives on");
        }
        "die" => panic!("a reason to die"),
        "sleep" => {
            println!("falling asleep");
            loop {
                std::thread::sleep(DEADLINE);
            }
        }
        other => guest.fail(&format!("unknown argument {other}")),
    }
}

fn tell(guest: Guest) -> ! {
    use std::os::unix::fs::PermissionsExt;
    println!("args {:?}", guest.args());
    let mode = std::fs::metadata("/data/file").unwrap().permissions().mode();
    println!("file {:?} mode {:o}", guest.file("/data/file").unwrap(), mode & 0o777);
    // The shell's background child outlives the shell, and is reparented to init.
    let script = "echo the shell says hello; (exit 1 | exit 2) & exit 0";
    assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    print!("clocksource {}", std::fs::read_to_string(source).unwrap());
    println!("{}", mounted().join(" "));
    println!("loopback {}", through_loopback());
    println!("zombies {}", zombies());
    let topology = sysfs::read(&Sys).unwrap();
    let mut output = places(&topology, |cpu| cpu).into_bytes();
    output.extend((0..LARGE_BYTES).map(|at| at as u8));
    guest.finish(&output)
}

fn mounted() -> Vec<&'static str> {
    let places = [
        ("cgroups", "/sys/fs/cgroup/cgroup.controllers"),
        ("bpf", "/sys/fs/bpf"),
        ("tracing", "/sys/kernel/tracing/events/sched"),
        ("debug", "/sys/kernel/debug/sched"),
        ("shm", "/dev/shm"),
    ];
    places.iter().filter(|(_, path)| Path::new(path).exists()).map(|(name, _)| *name).collect()
}

fn through_loopback() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    sender.write_all(b"hello").unwrap();
    drop(sender);
    let mut text = String::new();
    listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
    text
}

/// Returns the number of zombies, once init has had time to reap: one may exist for a moment at any
/// time.
fn zombies() -> usize {
    let count = || {
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = pids.filter_map(|pid| std::fs::read_to_string(pid.path().join("stat")).ok());
        stats.filter(|stat| stat.contains(") Z ")).count()
    };
    for _ in 0..500 {
        if count() == 0 {
            return 0;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    count()
}
