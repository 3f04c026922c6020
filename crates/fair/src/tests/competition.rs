// SPDX-License-Identifier: GPL-2.0-only
//! Lag, slices, protection, delayed dequeue, and changes of parameters at run time.

use super::super::weight::NICE_0_LOAD;
use super::*;

/// While no task comes or goes, no task's lag exceeds the longest slice plus a tick.
#[test]
fn lag_is_bounded() {
    let fine = Params { tick_ns: 100_000, base_slice_ns: 3 * MS, ..Params::default() };
    let mut sim = Sim::with(topo(1, 1, 1, 1), fine);
    for level in [-5, 0, 0, 3, 10] {
        sim.spawn(Life::Hog, nice(level));
    }
    assert_lag_below(&mut sim, 1);
}

/// Tasks that come and go with lag move V for all, and ticks that are longer than slices let
/// requests overrun. So the lag of a queued task may reach twice the bound. The lag with which a
/// task leaves is clamped to the bound.
#[test]
fn lag_stays_bounded_while_others_come_and_go() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    for level in [-5, 0, 0, 3, 10] {
        sim.spawn(Life::Hog, nice(level));
    }
    sim.spawn(Life::Periodic { run: 3 * MS, sleep: 5 * MS }, nice(0));
    sim.spawn(Life::Periodic { run: MS, sleep: 2 * MS }, nice(-3));
    assert_lag_below(&mut sim, 2);
}

fn assert_lag_below(sim: &mut Sim, factor: i64) {
    let bound = (sim.fair.base_slice() + sim.fair.params().tick_ns + sim.step) as i64;
    for _ in 0..30_000 {
        sim.advance();
        for at in 0..sim.actors.len() {
            let dump = sim.fair.dump_task(TaskId(at as u32));
            let bound = if dump.queued { factor * bound } else { bound };
            assert!(dump.lag_ns.abs() <= bound, "at {}: {dump:?}", sim.now);
        }
    }
}

#[test]
fn lags_sum_to_zero() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    for level in [0, 5, -5, 1] {
        sim.spawn(Life::Hog, nice(level));
    }
    for _ in 0..5000 {
        sim.advance();
        let curr = sim.world.curr[0].expect("hogs never sleep");
        sim.fair.charge_curr(CpuId(0), sim.now);
        assert!(sim.fair.dump_task(curr).queued);
        let dumps: Vec<_> = (0..4).map(|t| sim.fair.dump_task(TaskId(t))).collect();
        let weighted: i128 =
            dumps.iter().map(|d| i128::from(d.vlag) * i128::from(d.cpu_weight)).sum();
        let weight: i128 = dumps.iter().map(|d| i128::from(d.cpu_weight)).sum();
        // The sum of lags times weights would be zero if V were exact. V is rounded down to a whole
        // unit, so the sum may lie below zero by up to the total weight.
        assert!((-weight..=0).contains(&weighted), "{weighted} {weight}");
    }
}

#[test]
fn slice_scales_with_the_machine() {
    for (cpus, factor) in [(1, 1), (2, 2), (4, 3), (8, 4), (64, 4)] {
        let fair = Fair::new(&topo(1, 1, cpus, 1), Params::default());
        assert_eq!(fair.base_slice(), 700_000 * factor);
    }
}

#[test]
fn a_slice_request_is_clamped_and_kept() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    for (request, slice) in [(0, 700_000), (1, 100_000), (3 * MS, 3 * MS), (SEC, 100 * MS)] {
        let params = TaskParams { slice_request: request, ..TaskParams::default() };
        let id = sim.spawn(Life::Hog, params);
        assert_eq!(sim.fair.dump_task(id).slice_ns, slice);
    }
    sim.fair.set_slice_request(TaskId(0), 2 * MS, sim.now);
    assert_eq!(sim.fair.dump_task(TaskId(0)).slice_ns, 2 * MS);
    sim.run(SEC);
}

/// A periodic task waits less for the same work if it requests a short slice.
#[test]
fn a_shorter_slice_means_a_shorter_wait() {
    let mut waits = Vec::new();
    for request in [0, 200_000] {
        let mut sim =
            Sim::with(topo(1, 1, 1, 1), Params { base_slice_ns: 4 * MS, ..Params::default() });
        sim.hogs(4, nice(0));
        let params = TaskParams { slice_request: request, ..TaskParams::default() };
        let quick = sim.spawn(Life::Periodic { run: 200_000, sleep: 10 * MS }, params);
        sim.run(SEC);
        let before = sim.actors[quick.idx()].ran;
        let (mut wait, mut steps) = (0, 0);
        while steps < 50_000 {
            sim.advance();
            steps += 1;
            let waiting = sim.actors[quick.idx()].wake_at.is_none();
            wait += u64::from(waiting && sim.world.curr[0] != Some(quick));
        }
        let rounds = (sim.actors[quick.idx()].ran - before) / 200_000;
        waits.push(wait * sim.step / rounds.max(1));
    }
    assert!(waits[1] * 2 < waits[0], "{waits:?}");
}

#[test]
fn run_to_parity_keeps_switches_down() {
    let switches = |run_to_parity| {
        let features = Features { run_to_parity, ..Features::default() };
        let params = Params { features, base_slice_ns: 6 * MS, ..Params::default() };
        let mut sim = Sim::with(topo(1, 1, 1, 1), params);
        sim.hogs(3, nice(0));
        sim.spawn(Life::Periodic { run: 100_000, sleep: MS }, nice(0));
        sim.run(5 * SEC);
        sim.log.len()
    };
    let (with, without) = (switches(true), switches(false));
    assert!(with <= without, "{with} with, {without} without");
}

/// A task that sleeps with negative lag stays queued until it has paid back the lag, and leaves
/// without positive lag.
#[test]
fn a_sleeper_in_debt_is_delayed() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    sim.spawn(Life::Hog, nice(0));
    let sleeper = sim.spawn(Life::Periodic { run: 2 * MS, sleep: 100 * MS }, nice(0));
    let (mut delayed, mut left) = (false, false);
    for _ in 0..3000 {
        sim.advance();
        sim.check();
        let dump = sim.fair.dump_task(sleeper);
        if dump.delayed {
            delayed = true;
            assert!(sim.fair.nr_running(CpuId(0)) == 2 && sim.fair.nr_runnable(CpuId(0)) == 1);
        } else if delayed && !dump.queued {
            left = true;
            assert!(dump.vlag <= 0, "{dump:?}");
        }
    }
    assert!(delayed && left);
}

#[test]
fn a_delayed_sleeper_is_woken_in_place() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    sim.spawn(Life::Hog, nice(0));
    let sleeper = sim.spawn(Life::Hog, nice(0));
    while sim.world.curr[0] != Some(sleeper) {
        sim.advance();
    }
    sim.now += 8 * MS;
    let out = sim.fair.dequeue(CpuId(0), sleeper, sim.now, DequeueFlags::SLEEP);
    assert_eq!(out, Dequeued::Delayed);
    assert_eq!(sim.fair.delayed_on(sleeper), Some(CpuId(0)));
    sim.schedule(CpuId(0));
    sim.fair.enqueue(CpuId(0), sleeper, sim.now, EnqueueFlags::WAKEUP);
    assert_eq!(sim.fair.delayed_on(sleeper), None);
    assert_eq!(sim.fair.nr_runnable(CpuId(0)), 2);
    sim.check();
}

#[test]
fn an_exit_is_never_delayed() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    sim.spawn(Life::Hog, nice(0));
    let gone = sim.spawn(Life::Hog, nice(0));
    while sim.world.curr[0] != Some(gone) {
        sim.advance();
    }
    sim.now += 8 * MS;
    let out = sim.fair.dequeue(CpuId(0), gone, sim.now, DequeueFlags::EXIT);
    assert_eq!(out, Dequeued::Done);
    sim.schedule(CpuId(0));
    sim.fair.task_dead(gone, sim.now);
    sim.check();
    sim.fair.task_new(gone, nice(0));
}

#[test]
fn a_new_weight_keeps_lag_in_time() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    let ids: Vec<_> = (0..3).map(|_| sim.spawn(Life::Hog, nice(0))).collect();
    sim.run(SEC + 3 * MS);
    sim.fair.charge_curr(CpuId(0), sim.now);
    for id in ids {
        let before = sim.fair.dump_task(id);
        sim.fair.reweight(id, 5, FairPolicy::Normal, sim.now);
        let after = sim.fair.dump_task(id);
        assert_eq!(after.weight, nice_weight(5) << 10);
        // The new weight of the task moves V, so the task's own lag may shrink. The lag must not
        // change sign or grow.
        assert!(after.lag_ns.abs() <= before.lag_ns.abs() + 1000, "{before:?} {after:?}");
        let keeps_sign = after.lag_ns.abs() <= 1000 || (after.lag_ns < 0) == (before.lag_ns < 0);
        assert!(keeps_sign, "{before:?} {after:?}");
        sim.check();
    }
}

/// A task keeps its lag when it is moved to a CPU on which other tasks run.
#[test]
fn migration_preserves_lag() {
    let mut sim = Sim::new(topo(1, 1, 2, 1));
    for cpu in [0, 0, 0, 1, 1, 1] {
        sim.pinned(Life::Hog, nice(0), cpu);
    }
    for _ in 0..200 {
        sim.run(7 * MS);
        let cpu = CpuId(0);
        sim.fair.charge_curr(cpu, sim.now);
        sim.fair.charge_curr(CpuId(1), sim.now);
        let task = TaskId(
            sim.actors
                .iter()
                .position(|a| a.cpu == cpu && sim.world.curr[0] != Some(TaskId(0)))
                .map_or(0, |i| i as u32),
        );
        if sim.world.curr[0] == Some(task) {
            continue;
        }
        let before = sim.fair.dump_task(task);
        sim.fair.dequeue(cpu, task, sim.now, DequeueFlags::MIGRATE);
        let flags = EnqueueFlags { migrated: true, ..EnqueueFlags::RESTORE };
        sim.fair.enqueue(CpuId(1), task, sim.now, flags);
        let after = sim.fair.dump_task(task);
        assert!((after.vlag - before.vlag).abs() <= 4, "{before:?} {after:?}");
        let left = |d: &TaskDump| d.deadline.wrapping_sub(d.vruntime);
        assert_eq!(left(&after), left(&before));
        sim.check();
        sim.fair.dequeue(CpuId(1), task, sim.now, DequeueFlags::MIGRATE);
        sim.fair.enqueue(cpu, task, sim.now, flags);
        sim.check();
    }
}

#[test]
fn a_yield_gives_up_the_request() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    sim.hogs(3, nice(0));
    sim.run(SEC);
    let mut seen = Vec::new();
    for _ in 0..30 {
        let cpu = CpuId(0);
        seen.push(sim.world.curr[0].expect("hogs run"));
        sim.fair.yield_task(cpu, sim.now);
        sim.schedule(cpu);
        sim.now += 1000;
    }
    for id in (0..3).map(TaskId) {
        assert!(seen.contains(&id), "{seen:?}");
    }
    sim.check();
}

/// The running task gives its turn to the one that it names, although a third is next in order.
#[test]
fn a_directed_yield_chooses_who_runs() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    sim.hogs(4, nice(0));
    sim.run(SEC);
    let cpu = CpuId(0);
    let mut done = 0;
    for round in 0..40 {
        let curr = sim.world.curr[0].expect("hogs run");
        let target = TaskId((curr.0 + 1 + round % 3) % 4);
        let eligible = sim.fair.dump_task(target).lag_ns >= 0;
        assert!(sim.fair.yield_to_task(cpu, target, sim.now));
        sim.schedule(cpu);
        // A buddy that has had more than its share is passed over, as in `pick_eevdf()`.
        if eligible {
            assert_eq!(sim.world.curr[0], Some(target), "round {round}");
            done += 1;
        }
        sim.now += 1000;
    }
    assert!(done > 5, "{done} of 40");
    sim.check();
}

#[test]
fn a_task_of_idle_policy_is_preempted_at_once() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    let idle = TaskParams { policy: FairPolicy::Idle, ..TaskParams::default() };
    let low = sim.spawn(Life::Hog, idle);
    sim.run(10 * MS);
    assert_eq!(sim.world.curr[0], Some(low));
    let high = sim.spawn(Life::Hog, nice(0));
    assert_eq!(sim.world.curr[0], Some(high));
}

#[test]
fn changing_groups_keeps_the_books() {
    let mut sim = Sim::new(topo(1, 1, 2, 1));
    for group in 1..4 {
        sim.fair.add_group(CgroupId(group), CgroupId(group - 1));
    }
    for task in 0..8 {
        let life = match task % 2 {
            0 => Life::Hog,
            _ => Life::Periodic { run: 2 * MS, sleep: 3 * MS },
        };
        sim.spawn(life, in_group(task % 4));
    }
    for round in 0..200u32 {
        sim.run(3 * MS);
        let task = TaskId(round % 8);
        sim.fair.set_group(task, CgroupId(round * 7 % 4), sim.now);
        sim.resched_all();
        sim.check();
    }
    let total: Nanos = sim.ran().iter().sum();
    assert!(total * 10 > sim.now * 2 * 9, "CPUs idle while hogs wait: {total} of {}", 2 * sim.now);
    for task in 0..8 {
        sim.fair.set_group(TaskId(task), ROOT, sim.now);
    }
    (1..4).rev().for_each(|group| sim.fair.remove_group(CgroupId(group), sim.now));
    sim.run(50 * MS);
}

#[test]
fn other_classes_take_and_give_back() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    let a = sim.spawn(Life::Hog, nice(0));
    let b = sim.spawn(Life::Hog, nice(0));
    sim.run(SEC);
    let away = if sim.world.curr[0] == Some(a) { b } else { a };
    sim.fair.dequeue(CpuId(0), away, sim.now, DequeueFlags::SAVE);
    sim.fair.switched_from(away, sim.now);
    let load = sim.fair.load(CpuId(0));
    assert!((900..=1100).contains(&load), "{load}");
    sim.run(SEC);
    sim.fair.switched_to(away, CpuId(0), sim.now);
    sim.fair.enqueue(CpuId(0), away, sim.now, EnqueueFlags::RESTORE);
    let before = sim.ran();
    sim.run(SEC);
    let got = sim.actors[away.idx()].ran - before[away.idx()];
    assert_share(got, SEC / 2, SEC, 10, "back from another class");
}

#[test]
fn a_delayed_sleeper_may_change_class() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    sim.spawn(Life::Hog, nice(0));
    let sleeper = sim.spawn(Life::Hog, nice(0));
    for before in [false, true] {
        while sim.world.curr[0] != Some(sleeper) {
            sim.advance();
        }
        sim.now += 8 * MS;
        let out = sim.fair.dequeue(CpuId(0), sleeper, sim.now, DequeueFlags::SLEEP);
        assert_eq!(out, Dequeued::Delayed);
        sim.schedule(CpuId(0));
        if before {
            sim.fair.dequeue(CpuId(0), sleeper, sim.now, DequeueFlags::SAVE);
        }
        sim.fair.switched_from(sleeper, sim.now);
        assert_eq!(sim.fair.delayed_on(sleeper), None);
        sim.check();
        sim.fair.reweight(sleeper, 3, FairPolicy::Normal, sim.now);
        sim.run(100 * MS);
        sim.fair.switched_to(sleeper, CpuId(0), sim.now);
        sim.fair.reweight(sleeper, 0, FairPolicy::Normal, sim.now);
        sim.fair.enqueue(CpuId(0), sleeper, sim.now, EnqueueFlags::WAKEUP);
        sim.run(100 * MS);
    }
    assert_eq!(sim.fair.nr_runnable(CpuId(0)), 2);
}

#[test]
fn a_long_queue_works() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    sim.step = MS;
    for _ in 0..10_000 {
        let id = TaskId(sim.actors.len() as u32);
        sim.fair.task_new(id, nice(0));
        sim.world.allowed.push(CpuMask::all(1));
        let life = Life::Hog;
        let cpu = CpuId(0);
        sim.actors.push(Actor {
            life,
            left: Nanos::MAX,
            wake_at: None,
            cpu,
            ran: 0,
            migrations: 0,
        });
        sim.fair.enqueue(cpu, id, 0, EnqueueFlags::INITIAL);
    }
    sim.schedule(CpuId(0));
    sim.run(45 * SEC);
    let ran = sim.actors.iter().filter(|a| a.ran > 0).count();
    assert_eq!(ran, 10_000);
    let most = sim.actors.iter().map(|a| a.ran).max().unwrap_or(0);
    assert!(most <= 2 * 4 * MS, "{most}");
}

#[test]
fn two_runs_agree() {
    let run = || {
        let mut sim = Sim::new(topo(2, 1, 2, 2));
        sim.fair.add_group(CgroupId(1), ROOT);
        for task in 0..24u64 {
            let life = match task % 3 {
                0 => Life::Hog,
                _ => Life::Periodic { run: (1 + task % 4) * MS, sleep: (task % 5) * MS + 300_000 },
            };
            sim.spawn(
                life,
                TaskParams { nice: (task % 7) as i8 - 3, ..in_group((task % 2) as u32) },
            );
        }
        sim.run(3 * SEC);
        sim.log
    };
    let (a, b) = (run(), run());
    assert!(a.len() > 1000, "{}", a.len());
    assert_eq!(a, b);
}

#[test]
fn the_reference_point_survives_the_wrap() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    let a = sim.spawn(Life::Hog, nice(0));
    sim.spawn(Life::Hog, nice(19));
    let start = sim.fair.dump_task(a).vruntime;
    assert!(start > u64::MAX / 2, "virtual time starts just below its wrap");
    sim.run(SEC);
    assert!(sim.fair.dump_task(a).vruntime < u64::MAX / 2);
    assert_eq!(sim.fair.dump_task(a).cpu_weight, NICE_0_LOAD);
}

/// The kernel reads the clock once for the enqueue and for the preemption check. At that time the
/// running task has received exactly its due, so it is eligible, and its request is older than the
/// newcomer's request. So the newcomer must wait until the running task's request ends.
#[test]
fn a_newcomer_waits_for_the_end_of_the_running_request() {
    let cpu = CpuId(0);
    let hog_since_tick = |wait: Nanos| {
        let mut fair = Fair::new(&topo(1, 1, 1, 1), Params::default());
        let (hog, newcomer) = (TaskId(0), TaskId(1));
        fair.task_new(hog, nice(0));
        fair.task_new(newcomer, nice(0));
        fair.enqueue(cpu, hog, 0, EnqueueFlags::INITIAL);
        assert_eq!(fair.pick_next(cpu, 0), Some(hog));
        fair.set_next(cpu, hog, 0);
        fair.tick(cpu, 4 * MS);
        let at = 4 * MS + wait;
        fair.enqueue(cpu, newcomer, at, EnqueueFlags::WAKEUP);
        let asked = fair.wakeup_preempt(cpu, newcomer, WakeFlags::TTWU);
        (fair, asked)
    };
    let slice = hog_since_tick(0).0.base_slice();
    let (mut fair, asked) = hog_since_tick(slice / 2);
    assert_eq!(asked, Resched::No);
    assert_eq!(fair.slice_end(cpu), Some(4 * MS + slice));
    // The newcomer runs when the running task's request ends.
    fair.tick(cpu, 4 * MS + slice);
    assert_eq!(fair.pick_next(cpu, 4 * MS + slice), Some(TaskId(1)));
    // If the running task's request is over when the newcomer comes, the running task has a new
    // request, which is not older than the newcomer's request. So the newcomer preempts.
    let (mut fair, asked) = hog_since_tick(slice + slice / 2);
    assert_eq!(asked, Resched::Lazy);
    assert_eq!(fair.pick_next(cpu, 4 * MS + slice + slice / 2), Some(TaskId(1)));
}
