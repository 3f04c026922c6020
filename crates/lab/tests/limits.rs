// SPDX-License-Identifier: GPL-2.0-only
//! Tests that the memory that an object takes is counted: a run that needs more than its limit
//! ends, and its result says so.

use std::sync::Arc;

use scxlab_bpf::vm::Engine;
use scxlab_lab::input::{NoFiles, SchedulerInput};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::run::{Run, StopKind};
use scxlab_lab::sim::{SimSpec, simulate};
use scxlab_machine::Machine;
use scxlab_workload::Program;

/// Four tasks that alternate between computing and sleeping, and one that forks.
const WORK: &str = "[[thread]]\nname = 'hog-{i}'\ninstances = 4\n\
     ops = [{ loop = { ops = [{ compute = '100us' }, { sleep = '100us' }, { count = 1 }] } }]\n\
     [[thread]]\nname = 'parent'\n\
     ops = [{ loop = { ops = [{ fork = 'child' }, { compute = '200us' }, { sleep = '300us' }] } }]\n\
     [[thread]]\nname = 'child'\ninstances = 0\nops = [{ compute = '50us' }]\n";

fn run(scheduler: &str, engine: Engine, max_memory: u64) -> Run {
    let machine = Arc::new(Machine::resolve("2n2c1t").unwrap());
    let scheduler = SchedulerInput::resolve(scheduler, &NoFiles).unwrap();
    let scheduler = Prepared::simulated(&scheduler, &machine).unwrap();
    let workload: Program = scxlab_workload::load("w.toml", WORK).unwrap();
    let spec = SimSpec {
        duration: Some(2_000_000_000),
        engine,
        max_memory,
        ..SimSpec::new(&machine, &workload, &scheduler, 1)
    };
    simulate(&spec, Default::default(), &|_| None).unwrap().0
}

#[test]
fn a_run_that_takes_too_much_memory_ends() {
    const MIB: u64 = 1 << 20;
    // The knob `eats` selects the kind of memory that the scheduler takes: hash elements, values of
    // a queue, arena pages, DSQs or objects.
    for eats in 1..=5 {
        let scheduler = format!("glutton,eats={eats},bites=200");
        let limited = run(&scheduler, Engine::Jit, 48 * MIB);
        assert_eq!(limited.stop.kind, StopKind::OutOfMemory, "eats={eats}: {:?}", limited.exit);
        assert!(limited.stop.message.contains("48 MiB"), "{:?}", limited.stop);
        assert!(!limited.counts && limited.virtual_ns < 2_000_000_000);
        // With a higher limit the run must last longer. The interpreter and the machine code must
        // end the limited run at the same moment.
        let more = run(&scheduler, Engine::Jit, 96 * MIB);
        assert!(more.virtual_ns > limited.virtual_ns, "eats={eats}");
        let interpreted = run(&scheduler, Engine::Interp, 48 * MIB);
        assert_eq!(interpreted.trace_hash, limited.trace_hash, "eats={eats}");
    }
    let modest = run("glutton", Engine::Jit, 48 * MIB);
    assert_eq!((modest.stop.kind, modest.counts), (StopKind::Duration, true), "{:?}", modest.stop);
}
