// SPDX-License-Identifier: GPL-2.0-only
use scxlab_machine::topology::spec::{Sizes, Spec};

use super::*;

fn machine(spec: &str) -> Topology {
    Topology::build(Spec::parse(spec).unwrap().layout(Sizes::default()).unwrap()).unwrap()
}

fn memory(spec: &str, asked: Option<u64>, files_mib: usize) -> Result<u64, VmError> {
    memory_mib(asked, 0, &Shape::of(&machine(spec)).unwrap(), files_mib << 20)
}

#[test]
fn memory_grows_with_cpus_and_files_and_divides_by_nodes() {
    let small = memory("4c", None, 10).unwrap();
    assert!(memory("64c", None, 10).unwrap() > small);
    assert_eq!(memory("4c", None, 110).unwrap(), small + 200);
    assert_eq!(memory("3n4c", Some(1000), 10).unwrap() % 3, 0);
    assert!(memory("100n1c", None, 1).unwrap() >= 3200);
}

#[test]
fn too_little_memory_says_how_much_it_takes() {
    let Err(VmError::GuestMemory { asked_mib: 64, needed_mib }) = memory("4c", Some(64), 10) else {
        panic!("64 MiB are enough for a kernel?");
    };
    assert_eq!(memory("4c", Some(needed_mib), 10).unwrap(), needed_mib);
    assert!(memory("4c", Some(needed_mib - 1), 10).is_err());
}

#[test]
fn the_hosts_memory_is_read() {
    let text = "MemTotal:       24681472 kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\n";
    assert_eq!(available_mib(text), Some(2));
    assert_eq!(available_mib("MemTotal: 1 kB\n"), None);
    let refused = check_host_memory(1 << 40).unwrap_err();
    assert_eq!(refused.fault(), crate::VmFault::Host);
    assert!(refused.to_string().contains("MiB are available"), "{refused}");
}

#[test]
fn bad_input_is_refused_before_anything_starts() {
    let machine = machine("2c");
    let nothing = VmSpec::new(&machine, Path::new("/nonexistent/kernel"));
    // On a host without QEMU, `boot` reports first that QEMU is missing, so the test accepts that
    // error too.
    let refused = boot(&nothing).unwrap_err();
    assert!(matches!(refused, VmError::NoKernel { .. } | VmError::NoQemu { .. }), "{refused}");
    let wide = VmSpec::new(&machine, Path::new("/proc/self/exe"));
    let refused = boot(&wide).unwrap_err();
    assert!(matches!(refused, VmError::Kernel { .. } | VmError::NoQemu { .. }), "{refused}");
}

/// Runs a shell script in QEMU's place. In the script, `$console` and `$result` are the file
/// descriptors of the console and of the result port.
fn run_script(script: &str, engine: Engine, deadline: Duration) -> VmError {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("qemu");
    let prelude = r#"#!/bin/bash
for arg; do case $arg in
    socket,id=console,fd=*) console=${arg##*=} ;;
    socket,id=result,fd=*) result=${arg##*=} ;;
esac; done
"#;
    std::fs::write(&program, format!("{prelude}{script}")).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let machine = machine("2c");
    let mut spec = VmSpec::new(&machine, Path::new("/kernel"));
    spec.deadline = deadline;
    let shape = Shape::of(&machine).unwrap();
    let initramfs = Initramfs::new(b"archive").unwrap();
    let guest = PreparedGuest { spec: &spec, program, shape, initramfs, memory_mib: 64 };
    match guest.run(engine) {
        Ok(_) => panic!("a script returned a result"),
        Err(failed) => failed.why,
    }
}

const LONG: Duration = Duration::from_secs(60);
const STRAY_BREAKPOINT: &str = "echo 'Oops: int3: 0000 [#1] SMP' >&$console
    echo 'Kernel panic - not syncing: Fatal exception' >&$console";

#[test]
fn qemus_own_end_is_quoted() {
    let why = run_script("echo 'no such option' >&2; exit 1", Engine::Tcg, LONG);
    assert!(
        matches!(&why, VmError::QemuDied { stderr, .. } if stderr == "no such option"),
        "{why}"
    );
    let why = run_script("exit 0", Engine::Tcg, LONG);
    assert!(matches!(why, VmError::NoResult { .. }), "{why}");
}

#[test]
fn a_known_fault_is_named_where_it_can_be() {
    let why = run_script(STRAY_BREAKPOINT, Engine::TcgMulti, LONG).to_string();
    assert!(why.contains("panicked (QEMU with a thread"), "{why}");
    let why = run_script(STRAY_BREAKPOINT, Engine::Tcg, LONG).to_string();
    assert!(why.contains("panicked;"), "{why}");
    let other = "echo 'Kernel panic - not syncing: no init' >&$console";
    let why = run_script(other, Engine::TcgMulti, LONG).to_string();
    assert!(why.contains("panicked;"), "{why}");
}

#[test]
fn a_guest_that_never_speaks_meets_the_deadline() {
    let why = run_script("exec sleep 1000", Engine::Tcg, Duration::from_millis(300));
    assert!(matches!(why, VmError::Deadline { phase: BOOTING, .. }), "{why}");
    let hangs_in_panic = format!("{STRAY_BREAKPOINT}\nexec sleep 1000");
    let why = run_script(&hangs_in_panic, Engine::Tcg, Duration::from_secs(2));
    assert!(matches!(why, VmError::Panicked { .. }), "{why}");
}

#[test]
fn a_result_before_its_turn_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("frame");
    let mut frame = Vec::new();
    crate::protocol::send(&mut frame, FrameKind::Result, b"early").unwrap();
    std::fs::write(&file, frame).unwrap();
    let script = format!("cat {} >&$result; exec sleep 1000", file.display());
    let why = run_script(&script, Engine::Tcg, LONG);
    assert!(why.to_string().contains("out of order"), "{why}");
}
