// SPDX-License-Identifier: GPL-2.0-only
//! Shares of a saturated CPU, by weight, group and policy.

use super::*;

fn share_by_weight(params: &[(TaskParams, u64)], groups: &dyn Fn(&mut Sim)) {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    groups(&mut sim);
    for (params, _) in params {
        sim.spawn(Life::Hog, *params);
    }
    // Measure shares only after two seconds, because group weights follow load averages, which take
    // time to settle.
    sim.run(2 * SEC);
    let before = sim.ran();
    sim.run(10 * SEC);
    let total: u64 = params.iter().map(|(_, w)| w).sum();
    for (at, (params, weight)) in params.iter().enumerate() {
        let got = sim.actors[at].ran - before[at];
        let wanted = 10 * SEC * weight / total;
        assert_share(got, wanted, 10 * SEC, 10, &format!("{params:?}"));
    }
}

#[test]
fn shares_follow_nice() {
    let levels = [-10, -5, 0, 0, 5, 10];
    let params: Vec<_> = levels.iter().map(|&n| (nice(n), nice_weight(n))).collect();
    share_by_weight(&params, &|_| {});
}

#[test]
fn every_nice_level_against_zero() {
    for level in [-20, -15, -3, 1, 3, 7, 15, 19] {
        let params = [(nice(0), 1024), (nice(level), nice_weight(level))];
        share_by_weight(&params, &|_| {});
    }
}

#[test]
fn idle_policy_weighs_three() {
    let idle = TaskParams { policy: FairPolicy::Idle, ..TaskParams::default() };
    share_by_weight(&[(nice(0), 1024), (idle, 3)], &|_| {});
}

#[test]
fn many_equals_share_equally() {
    let params: Vec<_> = (0..40).map(|_| (nice(0), 1)).collect();
    share_by_weight(&params, &|_| {});
}

#[test]
fn shares_follow_nested_group_weights() {
    // The groups and their weights: the root contains a (200) and f (100, 1 task); a contains b
    // (100) and e (100, 1 task); b contains c (300, 2 tasks) and d (100, 1 task).
    let groups = |sim: &mut Sim| {
        for (id, parent, weight) in
            [(1, 0, 200), (2, 1, 100), (3, 2, 300), (4, 2, 100), (5, 1, 100), (6, 0, 100)]
        {
            sim.fair.add_group(CgroupId(id), CgroupId(parent));
            sim.fair.set_group_weight(CgroupId(id), weight, 0);
        }
    };
    // Group a gets 2/3 of the CPU time; b and e get half of that each; c gets 3/4 of b's part.
    let params = [
        (in_group(3), 9),
        (in_group(3), 9),
        (in_group(4), 6),
        (in_group(5), 24),
        (in_group(6), 24),
    ];
    share_by_weight(&params, &groups);
}

#[test]
fn a_group_competes_as_one_with_a_task_of_its_weight() {
    let groups = |sim: &mut Sim| sim.fair.add_group(CgroupId(1), ROOT);
    let params =
        [(nice(0), 4), (in_group(1), 1), (in_group(1), 1), (in_group(1), 1), (in_group(1), 1)];
    share_by_weight(&params, &groups);
}

#[test]
fn a_weight_changed_later_takes_hold() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    sim.fair.add_group(CgroupId(1), ROOT);
    sim.fair.add_group(CgroupId(2), ROOT);
    let a = sim.spawn(Life::Hog, in_group(1));
    let b = sim.spawn(Life::Hog, in_group(2));
    sim.run(SEC);
    sim.fair.set_group_weight(CgroupId(2), 900, sim.now);
    sim.run(SEC);
    let before = sim.ran();
    sim.run(10 * SEC);
    let got = |t: TaskId| sim.actors[t.idx()].ran - before[t.idx()];
    assert_share(got(a), SEC, 10 * SEC, 10, "weight 100");
    assert_share(got(b), 9 * SEC, 10 * SEC, 10, "weight 900");
}

#[test]
fn an_idle_group_yields_to_anyone() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    sim.fair.add_group(CgroupId(1), ROOT);
    sim.fair.set_group_idle(CgroupId(1), true, 0);
    let a = sim.spawn(Life::Hog, in_group(1));
    sim.spawn(Life::Hog, nice(0));
    sim.run(2 * SEC);
    let before = sim.ran();
    sim.run(10 * SEC);
    assert_share(
        sim.actors[a.idx()].ran - before[a.idx()],
        10 * SEC * 3 / 1027,
        10 * SEC,
        5,
        "idle",
    );
    sim.fair.set_group_idle(CgroupId(1), false, sim.now);
    sim.check();
}

#[test]
fn groups_share_a_machine_by_weight() {
    let mut sim = Sim::new(topo(1, 1, 4, 1));
    for (group, weight) in [(1, 100), (2, 300)] {
        sim.fair.add_group(CgroupId(group), ROOT);
        sim.fair.set_group_weight(CgroupId(group), weight, 0);
        // The hogs are pinned, so that only weights decide.
        for cpu in 0..4 {
            sim.pinned(Life::Hog, in_group(group), cpu);
        }
    }
    sim.run(2 * SEC);
    let before: Nanos = sim.ran()[..4].iter().sum();
    sim.run(10 * SEC);
    let got: Nanos = sim.ran()[..4].iter().sum::<Nanos>() - before;
    assert_share(got, 10 * SEC, 40 * SEC, 10, "weight 100 of 400");
}

#[test]
fn sleepers_gain_nothing() {
    // A sleeper that could use most of the CPU gets no more than a hog of the same weight.
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    let lives = [
        Life::Periodic { run: 5 * MS, sleep: MS },
        Life::Periodic { run: 2 * MS, sleep: 300_000 },
        Life::Hog,
    ];
    let ids = lives.map(|life| sim.spawn(life, nice(0)));
    sim.run(10 * SEC);
    let hog = sim.actors[ids[2].idx()].ran;
    for id in &ids[..2] {
        let ran = sim.actors[id.idx()].ran;
        assert!(ran <= hog + hog / 100, "sleeper {ran}, hog {hog}");
    }
    // A task that sleeps for 9 ms after each 1 ms of work must get about the tenth of the CPU that
    // it can use, beside a hog.
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    let rare = sim.spawn(Life::Periodic { run: MS, sleep: 9 * MS }, nice(0));
    sim.spawn(Life::Hog, nice(0));
    sim.run(10 * SEC);
    let ran = sim.actors[rare.idx()].ran;
    assert!(ran > 900 * MS, "asked for 1 s, ran {ran}");
}
