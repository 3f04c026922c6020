// SPDX-License-Identifier: GPL-2.0-only
//! Interpreter and machine code give the same events, counts and reports for every scheduler.
//!
//! Every function is compiled when it is first entered, so that machine code covers all functions.
//! If an object is not built, the test fails with the object's name, as in `scx_family.rs` and
//! `kernel_objects.rs`.

use std::sync::Arc;

use scxlab_bpf::jit::generate;
use scxlab_bpf::vm::Engine;
use scxlab_kernel::Kernel;
use scxlab_loader::link::Loaded;
use scxlab_machine::Machine;
use scxlab_testkit::kernel_objects::{EXAMPLES, SELFTESTS};
use scxlab_testkit::scx_family::FAMILY;
use scxlab_testkit::shipped::attach_with_recipe;
use scxlab_testkit::sim::{choose_engine, kernel, link};

const MS: u64 = 1_000_000;

/// Observable results of a run.
#[derive(Debug, PartialEq, Eq)]
struct EngineResult {
    hash: u64,
    events: u64,
    executed: u64,
    calls: (u64, u64),
    exits: String,
}

fn seen(k: &Kernel) -> EngineResult {
    EngineResult {
        hash: k.tracer.hash(),
        events: k.tracer.count(),
        executed: k.vm.executed,
        calls: (k.vm.helper_calls(), k.vm.kfunc_calls()),
        exits: format!("{:?}", k.ext.exits),
    }
}

/// Makes a run on both engines and compares the results; returns the number of functions compiled.
fn agree(
    place: &str,
    machine: &str,
    workload: &str,
    ms: u64,
    put: impl Fn(&mut Kernel) -> Loaded,
) -> usize {
    let run = |engine| {
        let mut k = kernel(machine, workload, 1);
        choose_engine(&mut k, engine);
        let loaded = put(&mut k);
        k.run(Some(ms * MS));
        let compiled = k.vm.instance(loaded.instance).map_or(0, |instance| instance.compiled());
        (seen(&k), compiled)
    };
    let (interp, none) = run(Engine::Interp);
    let (jit, compiled) = run(Engine::Jit);
    assert_eq!(interp, jit, "{place} on {machine} with {workload}");
    assert!(interp.executed > 0 && none == 0, "{place}: {interp:?}");
    compiled
}

#[test]
fn shipped_schedulers_agree() {
    for shipped in scxlab_sched::shipped() {
        for (machine, workload) in
            [("2n2l2c2t", "sleepers,tasks=40"), ("1n4c2t", "hackbench,groups=1,loops=10")]
        {
            let resolved = Arc::new(Machine::resolve(machine).expect(machine));
            let put = |k: &mut Kernel| attach_with_recipe(k, shipped.name, &resolved);
            let compiled = agree(shipped.name, machine, workload, 150, put);
            assert!(compiled >= 4, "{}: {compiled} functions compiled", shipped.name);
        }
    }
}

#[test]
fn published_schedulers_agree() {
    for scheduler in &FAMILY {
        let machine = "2n2l2c1t";
        let put = |k: &mut Kernel| scheduler.attach(k, machine);
        let compiled = agree(scheduler.name, machine, "sleepers,tasks=24", 60, put);
        assert!(compiled >= 4, "{}: {compiled} functions compiled", scheduler.name);
    }
}

/// Each test of a kernel object has the same events on both engines. The tests include ejections of
/// each kind.
#[test]
fn kernel_objects_agree() {
    for case in EXAMPLES.iter().chain(&SELFTESTS) {
        assert_eq!(case.check_on(Engine::Interp), case.check_on(Engine::Jit), "{}", case.name);
    }
}

/// The code generator accepts every function of every shipped scheduler for aarch64, too.
/// `bpf/tests/aarch64` tests the behaviour of the code.
#[test]
fn shipped_schedulers_compile_for_aarch64() {
    for shipped in scxlab_sched::shipped() {
        let mut k = kernel("1n4c2t", "sleepers,tasks=4", 1);
        let loaded = link(&mut k, shipped.name, shipped.object, &[]);
        let image = k.vm.instance(loaded.instance).expect("linked").image();
        let code = generate(image, "aarch64", 1 << 24).expect("a known machine");
        let code = code.unwrap_or_else(|why| panic!("{}: {why}", shipped.name));
        assert_eq!(code.funcs.len(), image.funcs.len(), "{}", shipped.name);
    }
}
