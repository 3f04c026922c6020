// SPDX-License-Identifier: GPL-2.0-only
//! o1: the rules of both modes (`cases/sched/o1`), the cost of a pick, waiting times, balancing,
//! and external changes.

use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::Sys;
use scxlab_kernel::ext::op::Op;
use scxlab_loader::link::Loaded;
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::{Machine, TaskId};
use scxlab_testkit::cases::check_folder;
use scxlab_testkit::checks::{Contract, run_checked};
use scxlab_testkit::churn::churn;
use scxlab_testkit::sim::{attach_shipped, kernel, kernel_on, kernel_with_calls};
use scxlab_testkit::state::{global, insns_per_call, stat};

const MS: u64 = 1_000_000;
const MODES: [&str; 2] = ["d1", "mqo1"];

fn attached(machine: &str, workload: &str, knobs: &[(&str, &str)], seed: u64) -> (Kernel, Loaded) {
    let mut k = kernel(machine, workload, seed);
    let loaded = attach_shipped(&mut k, "o1", knobs);
    (k, loaded)
}

#[test]
fn rules() {
    check_folder("o1");
}

/// Returns the mean number of BPF instructions of a dispatch, with `tasks` tasks that never sleep,
/// once all have started.
fn dispatch_insns(mode: &str, tasks: u32) -> u64 {
    let text = format!("hogs,tasks={tasks}");
    let knobs = [("mode", mode), ("min_slice_ns", "1000000"), ("max_slice_ns", "2000000")];
    let (mut k, _) = attached("1c", &text, &knobs, 1);
    k.start();
    k.advance(300 * MS);
    insns_per_call(&mut k, Op::Dispatch, 700 * MS, 50)
}

#[test]
fn a_pick_costs_the_same_for_ten_and_ten_thousand_tasks() {
    for mode in MODES {
        let (few, many) = (dispatch_insns(mode, 10), dispatch_insns(mode, 10_000));
        let off = few.abs_diff(many) * 100 / few;
        assert!(off <= 5, "{mode}: {few} instructions for 10 tasks, {many} for 10000");
    }
}

/// Returns a workload of hogs, sleepers and yielders with nice values from -13 to 19, and its
/// number of tasks.
fn random_workload(seed: u64) -> (String, u64) {
    let mut state = seed;
    let mut draw = |n: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let (mut text, mut tasks) = (String::new(), 0);
    for kind in 0..2 + draw(4) {
        let (run, sleep) = (1 + draw(60), draw(3) * (1 + draw(80)));
        // In d1, tasks of nice -14 and below may starve other tasks, as the README says.
        let nice = draw(33) as i64 - 13;
        let instances = 1 + draw(4);
        tasks += instances;
        let end = match draw(3) {
            0 => "\"yield\"".to_owned(),
            _ => format!("{{ sleep = \"{sleep}ms\" }}"),
        };
        text += &format!(
            "[[thread]]\nname = \"t{kind}\"\ninstances = {instances}\nnice = {nice}\n\
             ops = [{{ loop = {{ ops = [{{ compute = \"{run}ms\" }}, {end}] }} }}]\n"
        );
    }
    (text, tasks)
}

/// Returns twice the sum of the longest slices of the `tasks` other tasks. A tick is added to each
/// slice, because the slice may end this much late (README, "No starvation").
fn longest_wait_allowed(k: &Kernel, tasks: u64) -> u64 {
    let tick = k.machine.costs.tick_period_ns();
    2 * tasks * (150 * MS + tick)
}

#[test]
fn nobody_starves() {
    for mode in MODES {
        for seed in 1..=12 {
            let (text, tasks) = random_workload(seed);
            let machine = ["1c", "2c", "4c"][seed as usize % 3];
            let (mut k, _) = attached(machine, &text, &[("mode", mode)], seed);
            run_checked(&mut k, 10_000 * MS, 50 * MS, Contract::default()).unwrap();
            assert!(k.ext.exits.is_empty(), "{mode}, seed {seed}: {:?}", k.ext.exits);
            let allowed = longest_wait_allowed(&k, tasks - 1);
            let longest = k.metrics.run_queue_wait.max();
            assert!(longest <= allowed, "{mode}, seed {seed}: {longest} of {allowed} ns\n{text}");
        }
    }
}

#[test]
fn an_idle_cpu_takes_half_of_what_waits() {
    // All begin on CPU 0.
    let text = "[[thread]]\nname = \"hog\"\ninstances = 16\ncpus = \"0\"\nops = [{ loop = { ops = [{ compute = \"1ms\" }] } }]";
    let (mut k, loaded) = attached("4c", text, &[], 1);
    k.start();
    k.advance(10 * MS);
    let hogs: Vec<TaskId> =
        k.tasks.iter().filter(|t| t.name.starts_with("hog")).map(|t| t.id).collect();
    for hog in hogs {
        k.user(|k| k.set_affinity(hog, &CpuMask::all(4))).unwrap();
    }
    k.advance(110 * MS);
    let lengths: Vec<i64> =
        (0..4).map(|cpu| 1 + global(&k, &loaded, &format!("rqs[{cpu}].nr_queued"))).collect();
    assert_eq!(lengths.iter().sum::<i64>(), 16, "{lengths:?}");
    // Balancing leaves a queue alone if it is longer than the shorter queue by at most a quarter,
    // or by one or two tasks. With 16 tasks on four CPUs, each CPU must therefore have 2 to 6
    // tasks.
    assert!(lengths.iter().all(|n| (2..=6).contains(n)), "{lengths:?}");
    assert!(stat(&k, &loaded, "balanced_idle") > 0);
}

#[test]
fn without_an_idle_tick_only_ends_of_slices_balance() {
    let knobs = [("idle_tick_ns", "0")];
    let (mut k, loaded) = attached("2c", "hogs,tasks=4", &knobs, 1);
    k.start();
    k.advance(50 * MS);
    assert_eq!(stat(&k, &loaded, "idle_kicks"), 0);
}

#[test]
fn a_better_task_that_wakes_preempts() {
    let text = r#"
        [[thread]]
        name = "hog"
        nice = 5
        ops = [{ loop = { ops = [{ compute = "1ms" }] } }]
        [[thread]]
        name = "guest"
        nice = -5
        ops = [{ loop = { ops = [{ compute = "1ms" }, { sleep = "20ms" }] } }]
    "#;
    let (mut k, loaded) = attached("1c", text, &[("mode", "mqo1")], 1);
    k.run(Some(1000 * MS));
    assert!(stat(&k, &loaded, "preempted") >= 40);
    let latency = k.metrics.wakeup_latency.permille(990);
    assert!(latency < 100_000, "{latency} ns");
}

#[test]
fn changes_from_outside_lose_nobody() {
    for mode in MODES {
        let (mut k, loaded) = attached("4c", "hogs,tasks=12", &[("mode", mode)], 3);
        churn(&mut k, mode);
        assert!(stat(&k, &loaded, "rescued") > 0, "{mode}: no CPU had a queue when it went");
    }
}

/// Takes no queue for abandoned whose CPU runs a task again and again, even if at each tick the
/// task happens to be waiting. On these machines, tasks that pass a token wait for most of the
/// time, because taking a lock that another CPU held costs some us.
#[test]
fn a_busy_queue_is_not_taken_for_abandoned() {
    let base = include_str!("../../../machines/p3-8way.toml");
    for (seed, hand_over) in (1..).zip([4000, 5000, 6000, 7000]) {
        let replacements = [
            ("num = 6, den = 1", "num = 5, den = 4".to_owned()),
            ("[cost.lock.waiter]\nvalue = 300", "[cost.lock.waiter]\nvalue = 1000".to_owned()),
            (
                "[cost.lock.hand_over]\nvalue = { smt = 300, core = 300, llc = 300, node = 300 }",
                format!(
                    "[cost.lock.hand_over]\nvalue = {{ smt = {hand_over}, core = {hand_over}, \
                     llc = {hand_over}, node = {hand_over} }}"
                ),
            ),
        ];
        let text = replacements.iter().fold(base.to_owned(), |text, (from, to)| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        });
        let text =
            text + "\n[cost.bpf.insn]\nvalue = 60\nunit = \"ps\"\nsource = \"of this test\"\n";
        for (cpus, tasks) in [(2, 2), (3, 4), (4, 2), (8, 6)] {
            let text = text.replace("1n8l1c1t", &format!("1n{cpus}l1c1t"));
            let mode = MODES[seed as usize % 2];
            let machine = Machine::from_toml("slow.toml", &text).expect("a machine");
            let reflex = format!("reflex,tasks={tasks},delay=0us");
            let mut k = kernel_with_calls(machine, &reflex, seed);
            let loaded = attach_shipped(&mut k, "o1", &[("mode", mode)]);
            k.run(Some(500 * MS));
            let about = format!("{mode}, {hand_over} ns, {cpus} CPUs, {tasks} tasks");
            assert!(k.metrics.work_units > 8_000, "{about}: {}", k.metrics.work_units);
            assert_eq!(stat(&k, &loaded, "rescued"), 0, "{about}");
        }
    }
}

#[test]
fn runs_are_reproducible() {
    let hash = |seed| {
        let (mut k, _) = attached("2n4c2t", "hogs,tasks=12", &[], seed);
        k.run(Some(200 * MS));
        (k.tracer.hash(), k.tracer.count())
    };
    assert_eq!(hash(5), hash(5));
    assert_ne!(hash(5), hash(6));
}

/// `ops.init` refuses bad knobs and names the valid values; nothing is attached then.
#[test]
fn knobs_out_of_range_are_refused() {
    for (knobs, said) in [
        ([("mode", "7"), ("idle_tick_ns", "10000000")], "0 (d1) or 1 (mqo1)"),
        ([("min_slice_ns", "2000"), ("max_slice_ns", "1000")], "in this order"),
        ([("max_slice_ns", "2000000000"), ("mode", "0")], "up to 1 s"),
        ([("idle_tick_ns", "5"), ("mode", "1")], "at least 1000000"),
    ] {
        let (mut k, _) = attached("2c", "hogs,tasks=4", &knobs, 1);
        k.run(Some(20 * MS));
        let exit = k.ext.exits.first().expect("refused");
        assert!(exit.message.contains(said), "{:?}", exit.message);
        assert!(k.ext.root.is_none());
    }
}

#[test]
fn a_machine_that_is_too_large_is_refused() {
    let mut k = kernel_on(Machine::resolve("16n4l18c1t").unwrap(), "hogs,tasks=1", 1);
    attach_shipped(&mut k, "o1", &[]);
    k.run(Some(MS));
    let exit = k.ext.exits.first().expect("refused");
    assert!(exit.message.contains("1152 CPUs: o1 is built for 1024"), "{:?}", exit.message);
}
