// SPDX-License-Identifier: GPL-2.0-only
//! An error that occurs outside of any operation names the program that caused it: in this test, a
//! syscall program that user space runs.

use scxlab_bpf::vm::Engine;
use scxlab_testkit::shipped::{run_program, selftest_object};
use scxlab_testkit::sim;

const RELAY: &str = include_str!("../../../bpf/selftest/relay/relay.bpf.c");

#[test]
fn an_error_of_a_syscall_program_names_it() {
    let mut lines = (1..).zip(RELAY.lines());
    let (line, text) = lines.find(|(_, text)| text.contains("scx_bpf_kick_cpu(")).unwrap();
    for (engine, machine) in [(Engine::Interp, "1n1c1t"), (Engine::Jit, "1n2c2t")] {
        let mut k = sim::kernel(machine, "hogs,tasks=2", 1);
        sim::choose_engine(&mut k, engine);
        let loaded = sim::link(&mut k, "relay", selftest_object("relay"), &[]);
        k.attach_object(&loaded, None).unwrap();
        k.run(Some(1_000_000));
        // Kick CPU 0, which is no error, and then CPU 77, which does not exist, so that the
        // scheduler exits.
        for (cpu, exits) in [(0i32, 0), (77, 1)] {
            run_program(&mut k, &loaded, "which_cpu", &mut cpu.to_le_bytes());
            k.run(Some(200_000_000));
            assert_eq!(k.ext.exits.len(), exits, "{cpu}");
        }
        let exit = &k.ext.exits[0];
        assert_eq!(exit.message, "invalid CPU 77");
        let [place] = &exit.origin.lines[..] else { panic!("{:?}", exit.origin.lines) };
        assert!(place.starts_with("in a syscall program: which_cpu at instruction "), "{place}");
        assert!(place.ends_with(&format!("relay.bpf.c:{line}: {})", text.trim())), "{place}");
        assert!(exit.dump.contains("\n  #0 which_cpu [relay syscall] "), "{}", exit.dump);
    }
}
