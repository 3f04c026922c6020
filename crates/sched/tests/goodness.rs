// SPDX-License-Identifier: GPL-2.0-only
//! goodness: its rules (`cases/sched/goodness`), the cost of a scan, lock contention, and external
//! changes.

#[path = "goodness/chat.rs"]
mod chat;
#[path = "goodness/conserve.rs"]
mod conserve;
#[path = "goodness/modes.rs"]
mod modes;

use scxlab_kernel::Kernel;
use scxlab_kernel::ext::op::Op;
use scxlab_loader::link::Loaded;
use scxlab_machine::Machine;
use scxlab_testkit::cases::check_folder;
use scxlab_testkit::churn::churn;
use scxlab_testkit::sim::{attach_shipped, kernel, kernel_on, run_ns};
use scxlab_testkit::state::{global, insns_per_call, stat, task_field};

const MS: u64 = 1_000_000;
const VANILLA: &str = "vanilla";
const HAMQ: &str = "hamq";
const IN_2_4: &str = "2.4";
const MODES: [&str; 3] = [VANILLA, HAMQ, IN_2_4];

fn attached(machine: &str, workload: &str, mode: &str, seed: u64) -> (Kernel, Loaded) {
    let mut k = kernel(machine, workload, seed);
    let loaded = attach_shipped(&mut k, "goodness", &[("mode", mode)]);
    (k, loaded)
}

#[test]
fn rules() {
    check_folder("goodness");
}

/// Returns the mean number of BPF instructions of a dispatch, with `tasks` tasks that never sleep.
fn dispatch_insns(mode: &str, tasks: u64) -> u64 {
    let (mut k, loaded) = attached("1c", &format!("hogs,tasks={tasks}"), mode, 1);
    k.start();
    k.advance(300 * MS);
    assert_eq!(global(&k, &loaded, "nr_waiting") as u64, tasks - 1);
    insns_per_call(&mut k, Op::Dispatch, 1500 * MS, 5)
}

#[test]
fn a_pick_costs_in_proportion_to_the_tasks() {
    for mode in MODES {
        let [ten, hundred, thousand, most] =
            [10, 100, 1_000, 10_000].map(|tasks| dispatch_insns(mode, tasks));
        // The cost of each further task is the same at any queue length.
        let each = [(hundred - ten) / 90, (thousand - hundred) / 900, (most - thousand) / 9_000];
        let spread = each.iter().max().unwrap() - each.iter().min().unwrap();
        let all = format!("{mode}: {each:?} instructions each: {ten} {hundred} {thousand} {most}");
        assert!(spread * 10 <= each[0], "{all}");
        assert!((15..200).contains(&each[2]), "{all}");
    }
}

/// Returns the share of all CPUs' time spent waiting for locks, in millionths, with `each` tasks
/// per CPU.
fn lock_wait(scheduler: &str, mode: &str, machine: &str, each: usize) -> u64 {
    let cpus = Machine::resolve(machine).unwrap().topology.nr_cpus();
    let text = format!("sleepers,tasks={},run=20us,sleep=20us", each * cpus);
    let mut k = kernel(machine, &text, 1);
    attach_shipped(&mut k, scheduler, &[("mode", mode)]);
    k.run(Some(60 * MS));
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
    let waited: u64 = k.cpus.iter().map(|c| c.time.lock_wait).sum();
    waited * 1_000_000 / (60 * MS * cpus as u64)
}

#[test]
fn the_one_lock_is_waited_for_the_more_the_more_cpus_and_tasks() {
    let machines = ["2c", "8c", "16c"];
    let vanilla = machines.map(|m| lock_wait("goodness", VANILLA, m, 6));
    let hamq = machines.map(|m| lock_wait("goodness", HAMQ, m, 6));
    let o1 = machines.map(|m| lock_wait("o1", "d1", m, 6));
    let all = format!("vanilla {vanilla:?}, hamq {hamq:?}, o1 {o1:?}");
    assert!(vanilla[0] * 2 < vanilla[1] && vanilla[1] * 2 < vanilla[2], "{all}");
    assert!(vanilla[2] > 100 * hamq[2].max(1) && vanilla[2] > 100 * o1[2].max(1), "{all}");
    let loaded = lock_wait("goodness", VANILLA, "8c", 24);
    assert!(loaded > 4 * vanilla[1], "{loaded} with four times the tasks; {all}");
}

#[test]
fn hamq_steals() {
    let sleepers = "[[thread]]\nname = \"s\"\ninstances = 24\nops = [{ set_affinity = \"0\" }, { compute = \"1ms\" }, \"clear_affinity\", { loop = { ops = [{ compute = \"1ms\" }, { sleep = \"4ms\" }] } }]";
    let (mut k, loaded) = attached("4c", sleepers, HAMQ, 1);
    k.run(Some(300 * MS));
    assert!(stat(&k, &loaded, "steals") > 10);
    let (mut k, loaded) = attached("4c", sleepers, VANILLA, 1);
    k.run(Some(300 * MS));
    assert_eq!(stat(&k, &loaded, "steals"), 0);
}

/// A CPU whose only task uses up its slice again and again must not renew the slices of all tasks
/// before a task that is bound to another CPU has run.
#[test]
fn a_bound_nice_task_has_its_turn() {
    let hog = |name: &str, nice: i8, cpu: u32| {
        let ops = "[{ loop = { ops = [{ compute = \"1ms\" }] } }]";
        format!("[[thread]]\nname = \"{name}\"\nnice = {nice}\ncpus = \"{cpu}\"\nops = {ops}\n")
    };
    let text = hog("alone", 19, 0) + &hog("strong", -20, 1) + &hog("weak", 19, 1);
    for mode in MODES {
        let (mut k, _) = attached("2c", &text, mode, 1);
        k.run(Some(5_000 * MS));
        assert!(k.ext.exits.is_empty(), "{mode}: {:?}", k.ext.exits);
        let (strong, weak) = (run_ns(&k, "strong"), run_ns(&k, "weak"));
        // The slices of `strong` and `weak` are 8 ticks and 1 tick; in mode 2.4, 11 ticks and 1
        // tick. So `weak` must get between a twentieth and a fifth of the time of `strong`.
        assert!(weak * 20 > strong && weak * 5 < strong, "{mode}: {weak} and {strong} ns");
    }
}

/// A sleeper gains on a hog until it preempts the hog at each wake-up. In mode 2.4, the sleeper's
/// slice (`counter`) grows to 9 ticks or more. In the other two modes, the sleeper gains one level
/// of priority (`dyn_prio`) for each slice that the hog used up.
#[test]
fn a_task_that_slept_preempts_a_hog_on_its_cpu() {
    let text = r#"
        [[thread]]
        name = "hog"
        ops = [{ loop = { ops = [{ compute = "1ms" }] } }]
        [[thread]]
        name = "guest"
        ops = [{ loop = { ops = [{ compute = "1ms" }, { sleep = "59ms" }] } }]
    "#;
    for (mode, field) in [(VANILLA, "dyn_prio"), (HAMQ, "dyn_prio"), (IN_2_4, "counter")] {
        let (mut k, loaded) = attached("1c", text, mode, 1);
        k.run(Some(2_000 * MS));
        assert!(stat(&k, &loaded, "preempted") > 20, "{mode}");
        assert!(task_field(&k, &loaded, "guest", field) >= 9, "{mode}");
    }
}

#[test]
fn changes_from_outside_lose_nobody() {
    for mode in MODES {
        let (mut k, _) = attached("4c", "hogs,tasks=12", mode, 3);
        churn(&mut k, mode);
    }
}

#[test]
fn runs_are_reproducible() {
    let hash = |seed| {
        let (mut k, _) = attached("2n4c2t", "sleepers,tasks=30", HAMQ, seed);
        k.run(Some(200 * MS));
        (k.tracer.hash(), k.tracer.count())
    };
    assert_eq!(hash(5), hash(5));
    assert_ne!(hash(5), hash(6));
}

#[test]
fn knobs_out_of_range_are_refused() {
    for (knob, said) in
        [(("mode", "7"), "1 (hamq) or 2 (2.4)"), (("affinity_bonus", "101"), "up to 100")]
    {
        let mut k = kernel("2c", "hogs,tasks=4", 1);
        attach_shipped(&mut k, "goodness", &[knob]);
        k.run(Some(20 * MS));
        let exit = k.ext.exits.first().expect("refused");
        assert!(exit.message.contains(said), "{:?}", exit.message);
    }
}

#[test]
fn a_machine_that_is_too_large_is_refused() {
    let mut k = kernel_on(Machine::resolve("8n4l18c1t").unwrap(), "hogs,tasks=1", 1);
    attach_shipped(&mut k, "goodness", &[]);
    k.run(Some(MS));
    let exit = k.ext.exits.first().expect("refused");
    assert!(exit.message.contains("576 CPUs: goodness is built for 512"), "{:?}", exit.message);
}
