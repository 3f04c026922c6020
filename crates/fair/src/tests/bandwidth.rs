// SPDX-License-Identifier: GPL-2.0-only
//! Quotas: a group gets its quota and no more, on one CPU and on many, nested, and with burst.

use super::*;

fn limit(quota: Nanos, period: Nanos) -> BandwidthSpec {
    BandwidthSpec { quota: Some(quota), period, burst: 0, phase: 0 }
}

fn limited_run(cpus: u32, tasks: u32, spec: BandwidthSpec, time: Nanos) -> (Sim, Nanos) {
    let mut sim = Sim::new(topo(1, 1, cpus, 1));
    sim.fair.add_group(CgroupId(1), ROOT);
    sim.fair.set_group_bandwidth(CgroupId(1), spec, 0);
    sim.hogs(tasks, in_group(1));
    sim.run(SEC);
    let before: Nanos = sim.ran().iter().sum();
    sim.run(time);
    let got = sim.ran().iter().sum::<Nanos>() - before;
    (sim, got)
}

#[test]
fn a_quota_bounds_one_hog() {
    for (quota, period) in [(20, 100), (50, 100), (5, 10), (90, 100), (30, 250)] {
        let (sim, got) = limited_run(1, 1, limit(quota * MS, period * MS), 10 * SEC);
        assert_share(got, 10 * SEC * quota / period, 10 * SEC, 10, &format!("{quota}/{period}"));
        let stat = sim.fair.bandwidth_stat(CgroupId(1));
        assert!(stat.nr_throttled > 0 && stat.throttled_ns > 0, "{stat:?}");
    }
}

#[test]
fn a_quota_of_several_cpus_is_shared_by_them() {
    for (cpus, tasks, quota) in [(4, 4, 200), (4, 8, 150), (8, 5, 250)] {
        let (_, got) = limited_run(cpus, tasks, limit(quota * MS, 100 * MS), 10 * SEC);
        let wanted = 10 * SEC * quota / 100;
        assert_share(got, wanted, wanted, 10, &format!("{tasks} on {cpus}, {quota} %"));
    }
}

#[test]
fn a_quota_that_is_never_reached_does_nothing() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    sim.fair.add_group(CgroupId(1), ROOT);
    sim.fair.set_group_bandwidth(CgroupId(1), limit(50 * MS, 100 * MS), 0);
    let task = sim.spawn(Life::Periodic { run: 2 * MS, sleep: 8 * MS }, in_group(1));
    sim.run(10 * SEC);
    let ran = sim.actors[task.idx()].ran;
    assert!(ran > 1980 * MS, "{ran}");
    assert_eq!(sim.fair.bandwidth_stat(CgroupId(1)).throttled_ns, 0);
}

#[test]
fn others_run_while_a_group_is_throttled() {
    let mut sim = Sim::new(topo(1, 1, 1, 1));
    sim.fair.add_group(CgroupId(1), ROOT);
    sim.fair.set_group_bandwidth(CgroupId(1), limit(10 * MS, 100 * MS), 0);
    let a = sim.spawn(Life::Hog, in_group(1));
    let b = sim.spawn(Life::Hog, nice(0));
    sim.run(10 * SEC);
    assert_share(sim.actors[a.idx()].ran, SEC, 10 * SEC, 10, "limited");
    assert_share(sim.actors[b.idx()].ran, 9 * SEC, 10 * SEC, 10, "free");
}

#[test]
fn the_tighter_of_nested_quotas_holds() {
    for (outer, inner) in [(20, 60), (60, 20)] {
        let mut sim = Sim::new(topo(1, 1, 1, 1));
        for (id, quota) in [(1, outer), (2, inner)] {
            sim.fair.add_group(CgroupId(id), CgroupId(id - 1));
            sim.fair.set_group_bandwidth(CgroupId(id), limit(quota * MS, 100 * MS), 0);
        }
        sim.hogs(2, in_group(2));
        sim.run(10 * SEC);
        let ran = sim.ran().iter().sum();
        assert_share(ran, 2 * SEC, 10 * SEC, 10, &format!("outer {outer}, inner {inner}"));
    }
}

#[test]
fn burst_lets_a_group_catch_up() {
    let ran_with = |burst| {
        let mut sim = Sim::new(topo(1, 1, 1, 1));
        sim.fair.add_group(CgroupId(1), ROOT);
        let spec = BandwidthSpec { burst, ..limit(20 * MS, 100 * MS) };
        sim.fair.set_group_bandwidth(CgroupId(1), spec, 0);
        // The task wants 30 ms of CPU time now and then: more than the quota of one period (20 ms),
        // less than that of two, and out of step with the periods. Only a burst lets it use quota
        // that it saved while it slept.
        let task = sim.spawn(Life::Periodic { run: 30 * MS, sleep: 237 * MS }, in_group(1));
        sim.run(10 * SEC);
        (sim.actors[task.idx()].ran, sim.fair.bandwidth_stat(CgroupId(1)))
    };
    let (without, stat) = ran_with(0);
    assert!(stat.nr_bursts == 0 && stat.nr_throttled > 0, "{stat:?}");
    let (with, stat) = ran_with(20 * MS);
    assert!(stat.nr_bursts > 0, "{stat:?}");
    assert!(with > without + without / 10, "{with} with, {without} without");
}

#[test]
fn a_lifted_quota_frees_its_tasks() {
    let (mut sim, _) = limited_run(1, 1, limit(MS, 500 * MS), SEC);
    assert!(sim.fair.is_throttled(TaskId(0)));
    let open = BandwidthSpec { quota: None, period: 100 * MS, burst: 0, phase: 0 };
    sim.fair.set_group_bandwidth(CgroupId(1), open, sim.now);
    sim.resched_all();
    let before = sim.actors[0].ran;
    sim.run(SEC);
    assert_eq!(sim.actors[0].ran - before, SEC);
}

#[test]
fn throttled_tasks_may_leave() {
    let (mut sim, _) = limited_run(1, 2, limit(MS, 500 * MS), SEC);
    for (task, group) in [(0, 0), (1, 1)] {
        assert!(sim.fair.is_throttled(TaskId(task)));
        sim.fair.set_group(TaskId(task), CgroupId(group), sim.now);
        assert_eq!(sim.fair.is_throttled(TaskId(task)), group == 1);
    }
    assert_eq!(sim.fair.tasks_on(CpuId(0)), [TaskId(0), TaskId(1)]);
    sim.schedule(CpuId(0));
    sim.fair.dequeue(CpuId(0), TaskId(1), sim.now, DequeueFlags::EXIT);
    sim.fair.task_dead(TaskId(1), sim.now);
    assert_eq!(sim.fair.tasks_on(CpuId(0)), [TaskId(0)]);
    sim.check();
}

#[test]
fn timers_stop_when_nobody_needs_them() {
    let (mut sim, _) = limited_run(1, 1, limit(50 * MS, 100 * MS), SEC);
    let cpu = CpuId(0);
    sim.fair.dequeue(cpu, TaskId(0), sim.now, DequeueFlags::EXIT);
    sim.schedule(cpu);
    let periods = |sim: &Sim| sim.fair.bandwidth_stat(CgroupId(1)).nr_periods;
    sim.run(SEC);
    let after_one = periods(&sim);
    sim.run(SEC);
    assert_eq!(periods(&sim), after_one);
    // A stale or unknown timer has no effect.
    assert!(sim.fair.bandwidth_timer(CgroupId(1), TimerKind::Period, sim.now).is_empty());
    assert!(sim.fair.bandwidth_timer(CgroupId(9), TimerKind::Slack, sim.now).is_empty());
}

/// A CPU whose only group is throttled is idle, and could pull the group's tasks from a CPU on
/// which the group still has runtime. `Sim::apply` checks that no task moves to a CPU where its
/// group is throttled.
#[test]
fn no_task_is_pulled_to_a_cpu_where_its_group_is_throttled() {
    let (mut pulls, mut throttles) = (0, 0);
    for (cpus, tasks, quota) in [(2, 4, 10), (2, 5, 33), (3, 7, 20), (4, 6, 47), (4, 13, 90)] {
        let mut sim = Sim::new(topo(1, 1, cpus, 1));
        sim.fair.add_group(CgroupId(1), ROOT);
        sim.fair.set_group_bandwidth(CgroupId(1), limit(quota * MS, 100 * MS), 0);
        for task in 0u64..tasks {
            let sleep = (task + 1) * 7 * MS / 10;
            let life = Life::Periodic { run: 4 * MS, sleep };
            sim.spawn(if task % 3 == 0 { Life::Hog } else { life }, in_group(1));
        }
        sim.run(8 * SEC);
        pulls += sim.actors.iter().map(|a| a.migrations).sum::<u32>();
        throttles += sim.fair.bandwidth_stat(CgroupId(1)).nr_throttled;
    }
    assert!(pulls > 50 && throttles > 50, "{pulls} migrations, {throttles} periods");
}
