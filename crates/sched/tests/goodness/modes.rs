// SPDX-License-Identifier: GPL-2.0-only
//! The differences between the modes of goodness that follow Linux 2.5.2 (`vanilla`, `hamq`) and
//! the mode that follows Linux 2.4: which tasks a recalculation renews, the gain of sleepers,
//! shares by nice, the longest wait.

use scxlab_kernel::Kernel;
use scxlab_kernel::task::TaskState;
use scxlab_loader::link::Loaded;
use scxlab_machine::Stream;
use scxlab_testkit::sim::run_ns;
use scxlab_testkit::state::{global, task, task_field};

use crate::{HAMQ, IN_2_4, MODES, MS, VANILLA, attached};

/// Runs until the task sleeps, or, if `asleep` is false, until the task does not sleep. Returns the
/// number of recalculations so far.
fn until(k: &mut Kernel, loaded: &Loaded, name: &str, asleep: bool) -> i64 {
    let end = k.now + 5_000 * MS;
    while (task(k, name).state == TaskState::Sleeping) != asleep {
        assert!(k.now < end, "{name}: still not at {} ms", k.now / MS);
        k.advance(k.now + MS / 4);
    }
    global(k, loaded, "epochs[0]")
}

/// One to four hogs run beside a sleeper, and the test counts the recalculations during a sleep.
/// Mode `vanilla` leaves the sleeper's slice alone and gives the sleeper one level of priority for
/// each recalculation. Mode 2.4 gives the sleeper ticks, up to twice the ticks of its nice value.
#[test]
fn only_the_runnable_are_recalculated() {
    for seed in 1..=12 {
        let mut rng = Stream::new(seed, "sleeper", 0);
        let (hogs, nice) = (rng.between(1, 4), rng.between(0, 30) as i64 - 15);
        let sleep = [60, 300, 900, 2900][seed as usize % 4] + rng.between(0, 50);
        let text = format!(
            "[[thread]]\nname = \"hog\"\ninstances = {hogs}\nops = [{{ loop = {{ ops = [{{ compute = \"1ms\" }}] }} }}]\n\
             [[thread]]\nname = \"sleeper\"\nnice = {nice}\nops = [{{ compute = \"100us\" }}, {{ sleep = \"{sleep}ms\" }}, {{ compute = \"3ms\" }}, {{ sleep = \"20s\" }}]\n"
        );
        for mode in [VANILLA, IN_2_4] {
            let (mut k, loaded) = attached("1c", &text, mode, seed);
            k.start();
            k.advance(MS / 2);
            let before = until(&mut k, &loaded, "sleeper", true);
            let counter = task_field(&k, &loaded, "sleeper", "counter");
            let slept_through = until(&mut k, &loaded, "sleeper", false) - before;
            until(&mut k, &loaded, "sleeper", true);
            let [now, levels] =
                ["counter", "dyn_prio"].map(|f| task_field(&k, &loaded, "sleeper", f));
            let about = format!(
                "{mode}, seed {seed}, {slept_through} recalculations: {counter} {now} {levels}"
            );
            if mode == VANILLA {
                // The count may be off by one at either end of the sleep, because the test samples
                // four times a millisecond.
                assert!((levels - slept_through.min(40)).abs() <= 1, "{about}");
                assert!(now == counter || slept_through == 0 || levels < slept_through, "{about}");
            } else {
                let ticks = (20 - nice) / 4 + 1;
                assert_eq!(levels, 0, "{about}");
                assert!(now <= 2 * ticks && (slept_through < 8 || now >= 2 * ticks - 1), "{about}");
            }
        }
    }
}

/// Returns the ticks of a new slice of a task with this nice value, by the rule of Linux 2.4 or, in
/// the other modes, by that of Linux 2.5.2.
fn ticks(mode: &str, nice: i64) -> u64 {
    let ticks = match mode {
        IN_2_4 => (20 - nice) / 4 + 1,
        _ => (10_000 + 2_051 * (19 - nice)) / 10_000,
    };
    ticks as u64
}

/// Hogs on one CPU share it in proportion to their slices. Each slice may be up to one tick of the
/// kernel too long.
#[test]
fn hogs_share_by_their_slices() {
    for (seed, nices) in (1..).zip([
        vec![0, 19, -10, 5],
        vec![0, 0, 0],
        vec![-20, 19],
        vec![10, 10, 10, 10, 10, -20],
        vec![15, 7, 3, -1, -5, -9, -13, -17],
    ]) {
        let list: Vec<String> = nices.iter().map(i64::to_string).collect();
        let text = format!("hogs,tasks={},nice={}", nices.len(), list.join(":"));
        for mode in MODES {
            let (mut k, _) = attached("1c", &text, mode, seed);
            k.run(Some(8_000 * MS));
            let tick = k.machine.costs.tick_period_ns();
            let slices: Vec<u64> = nices.iter().map(|&nice| ticks(mode, nice) * 10 * MS).collect();
            let (all, late) = (slices.iter().sum::<u64>(), (slices.len() as u64 - 1) * tick);
            for (i, slice) in slices.iter().enumerate() {
                let ran = run_ns(&k, &format!("hog-{i}"));
                // Allow 2 % for a turn that is unfinished when the run ends.
                let least = 8_000 * MS * slice / (all + late) * 98 / 100;
                let most = 8_000 * MS * (slice + tick) / (all + tick) * 102 / 100;
                let about = format!("{mode}, nice {nices:?}: hog-{i} ran {ran}");
                assert!((least..=most).contains(&ran), "{about}, not {least} to {most}");
            }
        }
    }
}

/// Returns a workload of hogs, sleepers, yielders and a forker with any nice values, and its
/// maximum number of tasks.
fn random_workload(seed: u64) -> (String, u64) {
    let mut rng = Stream::new(seed, "workload", 0);
    let (mut text, mut tasks) = (String::new(), 0);
    for kind in 0..2 + rng.below(4) {
        let (run, sleep, nice) = (1 + rng.below(60), 1 + rng.below(80), rng.below(40) as i64 - 20);
        let instances = 1 + rng.below(4);
        tasks += instances;
        let end = match rng.below(4) {
            0 => "\"yield\"".to_owned(),
            1 => "{ compute = \"1ms\" }".to_owned(),
            _ => format!("{{ sleep = \"{sleep}ms\" }}"),
        };
        text += &format!(
            "[[thread]]\nname = \"t{kind}\"\ninstances = {instances}\nnice = {nice}\n\
             ops = [{{ loop = {{ ops = [{{ compute = \"{run}ms\" }}, {end}] }} }}]\n"
        );
    }
    text += "[[thread]]\nname = \"parent\"\nops = [{ loop = { ops = [{ fork = \"child\" }, { sleep = \"20ms\" }, { join = {} }] } }]\n\
             [[thread]]\nname = \"child\"\ninstances = 0\nops = [{ compute = \"5ms\" }]\n";
    (text, tasks + 2)
}

/// No task may wait for longer than twice the sum of the other tasks' longest slices. A tick is
/// added to each slice, because the end of the slice may be this much late (README, "Limits").
/// Waits that have not ended at the end of the run count.
#[test]
fn nobody_waits_for_longer_than_two_slices_of_each_other() {
    for seed in 1..=10 {
        let (text, tasks) = random_workload(seed);
        let machine = ["1c", "2c", "4c"][seed as usize % 3];
        for mode in MODES {
            let (mut k, _) = attached(machine, &text, mode, seed);
            k.run(Some(6_000 * MS));
            assert!(k.ext.exits.is_empty(), "{mode}, seed {seed}: {:?}", k.ext.exits);
            let most = if mode == IN_2_4 { 22 } else { 16 } * 10 * MS;
            let allowed = 2 * (tasks - 1) * (most + k.machine.costs.tick_period_ns());
            let open = k.tasks.iter().filter_map(|t| t.account.waiting_since);
            let open = open.map(|since| k.now - since).max().unwrap_or_default();
            let longest = k.metrics.run_queue_wait.max().max(open);
            assert!(longest <= allowed, "{mode}, seed {seed}: {longest} of {allowed}\n{text}");
        }
    }
}

/// In mode `hamq`, a recalculation renews the slices of one CPU's queue only. A queue of one task
/// must therefore have more recalculations than a queue of two.
#[test]
fn queues_of_hamq_recalculate_apart() {
    let hog = "ops = [{ loop = { ops = [{ compute = \"1ms\" }] } }]";
    let text = format!(
        "[[thread]]\nname = \"alone\"\ncpus = \"0\"\n{hog}\n[[thread]]\nname = \"pair\"\ninstances = 2\ncpus = \"1\"\n{hog}\n"
    );
    let (mut k, loaded) = attached("2c", &text, HAMQ, 1);
    k.start();
    k.advance(2_000 * MS);
    let [one, two] = [0, 1].map(|q| global(&k, &loaded, &format!("epochs[{q}]")));
    assert!(one > two && two > 15, "{one} and {two}");
}
