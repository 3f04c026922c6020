// SPDX-License-Identifier: GPL-2.0-only
//! Ejections of `bpf/selftest/lapse` shrink to a few threads on at most two CPUs, and happen there
//! the same way.

use std::cell::Cell;
use std::sync::Arc;

use scxlab_lab::input::{NoFiles, SchedulerInput};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::shrink::{Request, ShrinkError, Shrunk, shrink};
use scxlab_lab::sim::{SimSpec, simulate};
use scxlab_machine::Machine;
use scxlab_workload::{Perturb, Program, load};

/// Workers and their clients, an unrelated pair, a cgroup, and a nice hog.
const WORK: &str = "
duration = '60s'
[[cgroup]]
path = '/jobs'
[[pipe]]
name = 'p{i}'
[[thread]]
name = 'client{i}'
instances = 6
ops = [{ loop = { ops = [{ write = { pipe = 'p{i}', bytes = 100 } }, { compute = '200us' }, { sleep = '50ms' }] } }]
[[thread]]
name = 'worker{i}'
instances = 6
cgroup = '/jobs'
ops = [{ loop = { ops = [{ read = { pipe = 'p{i}', bytes = 100 } }, { compute = '1ms' }] } }]
[[thread]]
name = 'hog{i}'
instances = 10
nice = 5
ops = [{ loop = { ops = [{ compute = '50ms' }, 'yield'] } }]
";

fn request<'a>(
    scheduler: &'a SchedulerInput,
    program: &'a Program,
    must_stop: &'a dyn Fn() -> bool,
) -> Request<'a> {
    Request {
        scheduler,
        machine: Arc::new(Machine::resolve("2n4c2t").unwrap()),
        machine_name: "2n4c2t",
        program,
        seed: 3,
        duration: None,
        cap: 60_000_000_000,
        perturb: Perturb::default(),
        max_memory: 1 << 30,
        must_stop,
    }
}

fn program() -> Program {
    load("work.toml", WORK).unwrap()
}

fn shrunk(scheduler: &str) -> Result<Shrunk, ShrinkError> {
    let scheduler = SchedulerInput::resolve(scheduler, &NoFiles).unwrap();
    shrink(&request(&scheduler, &program(), &|| false))
}

#[test]
fn wrong_calls_shrink_and_happen_again() {
    shrink_again(&[], &[1, 7]);
}

#[test]
#[ignore = "long"]
fn more_ejections_shrink_and_happen_again() {
    let stalls = [
        "starve=119,woken=1",
        "starve=104,starve_in=0",
        "starve=104,starve_in=1",
        "starve=99,starve_in=1",
    ];
    shrink_again(&stalls, &[2, 3, 5, 8]);
}

/// Shrinks an ejection of `lapse` for each line of knobs that makes it starve tasks, and for each
/// number of a wrong call.
fn shrink_again(stalls: &[&str], faults: &[u32]) {
    let stalls = stalls.iter().map(|&knobs| knobs.to_owned());
    let faults = faults.iter().map(|wrong| format!("wrong={wrong},eject_after_ns=20000000"));
    for knobs in stalls.chain(faults) {
        let name = format!("lapse,{knobs}");
        let small = shrunk(&name).unwrap_or_else(|why| panic!("{name}: {why}"));
        let (before, after) = small.threads;
        println!(
            "{name}: {before} -> {after} threads, {} CPUs on {}, {} runs: {}",
            small.nr_cpus, small.machine, small.tried, small.exit.message
        );
        assert!((1..=4).contains(&after) && before == 22, "{name}");
        assert!(small.nr_cpus <= 2 && !small.is_cut, "{name}");
        // The file's text makes the same run again.
        let text = scxlab_workload::program::to_toml(&small.program);
        let again = load("small.toml", &text).unwrap_or_else(|why| panic!("{name}: {why}\n{text}"));
        let machine = Arc::new(Machine::resolve(&small.machine).unwrap());
        let input = SchedulerInput::resolve(&name, &NoFiles).unwrap();
        let prepared = Prepared::simulated(&input, &machine).unwrap();
        let spec = SimSpec::new(&machine, &again, &prepared, 3);
        let (run, _) = simulate(&spec, Default::default(), &|_| None).unwrap();
        assert_eq!(
            (run.exit.kind, run.exit.message),
            (small.exit.kind, small.exit.message),
            "{name}"
        );
    }
}

#[test]
fn a_run_without_an_ejection_is_refused() {
    let Err(error) = shrunk("lapse") else { panic!("nothing was ejected") };
    assert!(error.to_string().contains("stayed until the end"), "{error}");
}

/// A result that was cut short is still an ejection, and says that it was cut.
#[test]
fn work_that_must_stop_gives_what_it_has() {
    let scheduler = SchedulerInput::resolve("lapse,starve=104", &NoFiles).unwrap();
    let left = Cell::new(6000);
    let must_stop = || {
        left.set(left.get() - 1);
        left.get() < 0
    };
    match shrink(&request(&scheduler, &program(), &must_stop)) {
        Ok(small) => assert!(small.is_cut && small.exit.kind != "none"),
        // The first run was already stopped.
        Err(ShrinkError::Interrupted) => {}
        Err(error) => panic!("{error}"),
    }
}
