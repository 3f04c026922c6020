// SPDX-License-Identifier: GPL-2.0-only
//! The cost of `fair` where tasks switch often, compared with the default class and with `vtime`,
//! the smallest shipped scheduler.

use std::sync::Arc;

use scxlab_kernel::Kernel;
use scxlab_kernel::ext::op::Op;
use scxlab_machine::Machine;
use scxlab_testkit::shipped::attach_with_recipe;
use scxlab_testkit::sim;

use crate::stayed;

const LOADS: [&str; 2] = ["fair", "fair,load=FAIR_LOAD_PELT"];

/// The machines of the mailing-list threads on which `fair` and the schedulers built on it are
/// based.
const MACHINES: [&str; 8] =
    ["dbench-host", "numa-2n", "p3-8way", "x3650m2", "x3750m4", "x3850x5", "x3950", "xen-16"];

fn done(scheduler: &str, machine: &str, workload: &str, seed: u64) -> Kernel {
    let machine = Arc::new(Machine::resolve(machine).unwrap_or_else(|e| panic!("{e}")));
    let mut k = sim::kernel_as_run(Machine::clone(&machine), workload, seed);
    if scheduler != "eevdf" {
        attach_with_recipe(&mut k, scheduler, &machine);
    }
    k.run(None);
    stayed(&k);
    k
}

/// Returns hackbench messages per second of virtual time with `groups` groups: the mean of three
/// seeds, because the rates of single seeds differ by five per cent.
fn rate(scheduler: &str, machine: &str, groups: u32) -> u64 {
    const SEEDS: u64 = 3;
    let of = |seed| {
        let k = done(scheduler, machine, &format!("hackbench,groups={groups},loops=300"), seed);
        (u128::from(k.metrics.work_units) * 1_000_000_000 / u128::from(k.now)) as u64
    };
    (1..=SEEDS).map(of).sum::<u64>() / SEEDS
}

/// With PELT, tasks move much in the first tens of milliseconds, in which their averages rise. A
/// run takes little longer.
fn hackbench_is_as_fast_as_under_eevdf_on(machines: &[&str]) {
    for machine in machines {
        let eevdf = rate("eevdf", machine, 10);
        for (fair, percent) in LOADS.into_iter().zip([90, 60]) {
            let got = rate(fair, machine, 10);
            assert!(got * 100 >= eevdf * percent, "{fair} on {machine}: {got} of {eevdf}");
        }
    }
}

#[test]
fn hackbench_is_as_fast_as_under_eevdf() {
    hackbench_is_as_fast_as_under_eevdf_on(&["numa-2n", "x3650m2"]);
}

#[test]
#[ignore = "long"]
fn hackbench_is_as_fast_as_under_eevdf_on_all_machines() {
    hackbench_is_as_fast_as_under_eevdf_on(&MACHINES);
}

/// A synchronous wake-up leaves the CPU to its waker: senders fill the pipes before the readers
/// run, as under `vtime`, which never preempts.
#[test]
fn hackbench_is_not_far_from_vtime() {
    for (machine, groups) in [("8c", 10), ("8c", 20), ("64c", 10)] {
        let vtime = rate("vtime", machine, groups);
        for (fair, percent) in LOADS.into_iter().zip([85, 60]) {
            let got = rate(fair, machine, groups);
            assert!(
                got * 100 >= vtime * percent,
                "{fair} on {machine}, {groups}: {got} of {vtime}"
            );
        }
    }
}

/// Returns the BPF instructions per context switch of the operations called when tasks wake up, run
/// and sleep.
fn insns(fair: &str, machine: &str, workload: &str) -> u64 {
    let k = done(fair, machine, workload, 1);
    let of = |op: Op| k.ext.op_stats.0[op as usize].insns;
    let ops = [
        Op::SelectCpu,
        Op::Enqueue,
        Op::Dispatch,
        Op::Running,
        Op::Stopping,
        Op::Quiescent,
        Op::Tick,
    ];
    ops.into_iter().map(of).sum::<u64>() / k.metrics.switches
}

/// Bounds the BPF instructions per context switch, with all tasks in the root cgroup. The second
/// bound of each row is for PELT, with which a switch takes more instructions, most of all where a
/// PELT period has ended since the last update of the load.
#[test]
fn a_switch_takes_few_instructions() {
    let sleepers = "duration = \"1s\"\n[[thread]]\nname = \"s\"\ninstances = 10\n\
        ops = [{ loop = { ops = [{ compute = \"1ms\" }, { sleep = \"9ms\" }] } }]";
    for (machine, workload, most) in [
        ("1c", sleepers, [1010, 1540]),
        ("2n2c1t", sleepers, [905, 1390]),
        ("laptop-4c8t", sleepers, [750, 1145]),
        ("8c", "hackbench,groups=10,loops=20", [1160, 1580]),
        ("16c", "hackbench,groups=10,ipc=pipe,loops=20", [1135, 1640]),
    ] {
        for (fair, most) in LOADS.into_iter().zip(most) {
            let got = insns(fair, machine, workload);
            assert!(got <= most, "{fair} on {machine}, {workload}: {got}, at most {most}");
        }
    }
}
