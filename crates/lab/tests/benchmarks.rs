// SPDX-License-Identifier: GPL-2.0-only
//! Generators of `-w` on simulated machines and in guests: no unit is lost, and parameters change
//! results in the right direction.

use std::sync::Arc;

use scxlab_lab::input::{NoFiles, SchedulerInput};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::run::Run;
use scxlab_lab::sim::{SimSpec, simulate};
use scxlab_machine::Machine;
use scxlab_trace::Tracer;
use scxlab_workload::{Perturb, WorkloadArg, parse_workload_arg};

fn run(work: &str, machine: &str) -> Run {
    run_on(work, Machine::resolve(machine).unwrap(), Perturb::default())
}

fn run_on(work: &str, machine: Machine, perturb: Perturb) -> Run {
    let machine = Arc::new(machine);
    let eevdf = SchedulerInput::resolve("eevdf", &NoFiles).unwrap();
    let Ok(WorkloadArg::Program(workload)) = parse_workload_arg(work) else { panic!("{work}") };
    let scheduler = Prepared::simulated(&eevdf, &machine).unwrap();
    let spec = SimSpec { perturb, ..SimSpec::new(&machine, &workload, &scheduler, 1) };
    let run = simulate(&spec, Tracer::default(), &|_| None).unwrap().0;
    assert!(run.counts, "{work}: {:?}", run.stop);
    run
}

fn metric(run: &Run, name: &str) -> f64 {
    run.metrics.get(name).unwrap_or_else(|| panic!("{name}")).value
}

/// Benchmarks that end by themselves, and the number of their units.
const ENDING: [(&str, f64); 9] = [
    ("sysbench_cpu,threads=3,requests=50,max_prime=1000", 50.0),
    ("sysbench_memory,threads=3,total=1MiB", 1024.0),
    ("sysbench_memory,threads=3,total=256KiB,hold=1us", 256.0),
    ("sysbench_threads,threads=5,thread_locks=3,yields=20,requests=30", 30.0),
    ("reflex,tasks=6,ring=3,rounds=40,duration=none", 240.0),
    ("numa01,threads=2,size=32MiB,passes=3", 12.0),
    ("numa01_THREAD_ALLOC,threads=2,size=32MiB,passes=3", 12.0),
    ("numa02,threads=3,size=32MiB,passes=3", 9.0),
    ("numa02_SMT,threads=2,size=32MiB,passes=3", 6.0),
];

#[test]
fn units_are_counted_on_machines_and_in_guests() {
    for (work, units) in ENDING {
        assert_eq!(metric(&run(work, "2n2c1t"), "work_units"), units, "{work}");
        for (guests, vms) in
            [("vms=1,vcpus=1,vm.memory=1GiB", 1.0), ("vms=2,vcpus=3,vm.memory=1GiB", 2.0)]
        {
            let work = format!("{work},{guests}");
            assert_eq!(metric(&run(&work, "2n2c1t"), "work_units"), vms * units, "{work}");
        }
    }
}

/// A thread that finds a mutex taken sleeps only if it is still taken when the kernel looks. So
/// threads that hold it for a tenth of a microsecond hardly ever sleep, and those that hold it for
/// long do; and the later the kernel looks, the fewer sleep. Without noise, threads with equal
/// rounds fall into step, and never meet at the mutex.
#[test]
fn only_a_mutex_that_is_held_for_long_is_slept_for() {
    let noise = Perturb { compute_noise_permille: 200, ..Perturb::default() };
    for name in ["1n2c1t", "1n4c1t", "laptop-4c8t", "2n2c1t"] {
        for threads in [2, 3] {
            let sleeps = |hold: &str, check: Option<u64>| {
                let mut machine = Machine::resolve(name).unwrap();
                let costs = &mut machine.costs.workload;
                costs.futex_check_ns = check.unwrap_or(costs.futex_check_ns);
                let work = format!(
                    "sysbench_memory,threads={threads},total=8MiB,overhead=3us,hold={hold}"
                );
                let run = run_on(&work, machine, noise);
                metric(&run, "switches_voluntary") / metric(&run, "work_units")
            };
            let (short, long) = (sleeps("100ns", None), sleeps("4us", None));
            assert!(short < 0.01, "{name}, {threads}: {short}");
            assert!(long > 0.1, "{name}, {threads}: {long}");
            let at_once = sleeps("100ns", Some(0));
            assert!(at_once > 2.0 * short, "{name}, {threads}: {at_once} {short}");
            let later = [0, 190, 450].map(|check| sleeps("300ns", Some(check)));
            assert!(later[0] > later[1] && later[1] > later[2], "{name}, {threads}: {later:?}");
        }
    }
}

#[test]
fn more_cpus_serve_events_faster() {
    for work in ["sysbench_cpu,threads=8,requests=200", "sysbench_memory,threads=8,total=8MiB"] {
        let rate = |machine: &str| metric(&run(work, machine), "throughput");
        let (one, four) = (rate("1n1c1t"), rate("1n4c1t"));
        assert!(four > 3.5 * one && four < 4.5 * one, "{work}: {one} and {four}");
    }
}

#[test]
fn tokens_move_in_parallel() {
    let rate = |work: &str| metric(&run(&format!("{work},duration=20ms"), "1n4c1t"), "throughput");
    let (one, four) = (rate("reflex,tasks=2"), rate("reflex,tasks=8"));
    assert!(four > 2.0 * one, "one token: {one}, four tokens: {four} rounds a second");
    assert!(rate("reflex,tasks=8,ring=8") < four / 2.0, "one token among eight tasks");
    assert!(rate("reflex,tasks=8,delay=50us") < four / 2.0);
}

/// In numa02 all memory lies on the node of the first thread, so threads on the other node access
/// remote memory. In numa01 each of two processes has memory of its own.
#[test]
fn memory_lies_where_threads_touched_it() {
    let remote = |work: &str| {
        let run = run(work, "2n2c1t");
        metric(&run, "memory_remote_accesses") / metric(&run, "memory_accesses")
    };
    let shared = remote("numa02,threads=4,size=64MiB,passes=10");
    assert!((0.3..0.7).contains(&shared), "numa02: {shared}");
    // Where the processes of numa01 run is up to the scheduler.
    let own = remote("numa01,threads=2,size=64MiB,passes=10");
    assert!(own < shared, "numa01: {own}, numa02: {shared}");
}

#[test]
fn larger_memory_takes_longer() {
    for name in ["numa01", "numa01_THREAD_ALLOC", "numa02", "numa02_SMT"] {
        let rate = |size: &str| {
            metric(&run(&format!("{name},threads=2,passes=5,size={size}"), "2n2c1t"), "throughput")
        };
        let (small, large) = (rate("32MiB"), rate("128MiB"));
        assert!(large < small / 3.0, "{name}: {small} and {large} passes a second");
    }
}
