// SPDX-License-Identifier: GPL-2.0-only
//! Placement of tasks that wake or start.

use super::*;

/// Sets up a machine with the given CPUs kept busy by pinned hogs, and a sleeping task that ran on
/// `prev` last.
fn scene(topo: FairTopo, busy: &[u32], prev: u32) -> (Sim, TaskId) {
    let mut sim = Sim::new(topo);
    let sleeper = sim.pinned(Life::Hog, nice(0), prev);
    sim.run(20 * MS);
    sim.fair.dequeue(CpuId(prev), sleeper, sim.now, DequeueFlags::EXIT);
    sim.schedule(CpuId(prev));
    sim.world.allowed[sleeper.idx()] = CpuMask::all(sim.nr_cpus);
    for &cpu in busy {
        sim.pinned(Life::Hog, nice(0), cpu);
    }
    (sim, sleeper)
}

fn wake_from(sim: &mut Sim, task: TaskId, prev: u32, waker: u32, sync: bool) -> u32 {
    let flags = WakeFlags { sync, ..WakeFlags::TTWU };
    sim.fair.select_cpu(&sim.world, task, CpuId(prev), CpuId(waker), flags, sim.now).0
}

#[test]
fn an_idle_previous_cpu_is_kept() {
    let (mut sim, task) = scene(topo(1, 1, 4, 1), &[0, 1], 3);
    assert_eq!(wake_from(&mut sim, task, 3, 0, false), 3);
}

#[test]
fn a_busy_previous_cpu_is_left_for_an_idle_one() {
    let (mut sim, task) = scene(topo(1, 1, 4, 1), &[0, 1, 3], 3);
    assert_eq!(wake_from(&mut sim, task, 3, 0, false), 2);
}

#[test]
fn an_idle_core_is_better_than_an_idle_sibling() {
    // Cores (0 1) (2 3) (4 5) (6 7): CPUs 0, 2 and 6 are busy, so (4 5) is the only idle core, and
    // the task must go there.
    let (mut sim, task) = scene(topo(1, 1, 4, 2), &[0, 2, 6], 0);
    let cpu = wake_from(&mut sim, task, 0, 2, false);
    assert!(cpu == 4 || cpu == 5, "{cpu}");
}

#[test]
fn without_an_idle_core_a_sibling_will_do() {
    let (mut sim, task) = scene(topo(1, 1, 4, 2), &[0, 2, 4, 6], 0);
    let cpu = wake_from(&mut sim, task, 0, 2, false);
    assert_eq!(cpu % 2, 1, "{cpu}");
}

#[test]
fn a_full_llc_leaves_the_target() {
    let (mut sim, task) = scene(topo(1, 1, 2, 1), &[0, 1], 1);
    let cpu = wake_from(&mut sim, task, 1, 0, false);
    assert!(cpu == 0 || cpu == 1);
}

#[test]
fn a_sync_waker_that_is_alone_draws_the_wakee() {
    // The waker is on another node than `prev`. A sync waker is about to leave its CPU, so the
    // wakee goes there. Without the hint, the wakee stays on the node of `prev`.
    let (mut sim, task) = scene(topo(2, 1, 2, 1), &[0, 1, 2, 3], 3);
    assert_eq!(wake_from(&mut sim, task, 3, 0, true), 0);
    assert_eq!(wake_from(&mut sim, task, 3, 0, false) / 2, 1);
}

#[test]
fn a_task_with_many_wakees_does_not_draw_them() {
    let (mut sim, task) = scene(topo(2, 1, 2, 1), &[0, 1, 2, 3], 3);
    // The waker on CPU 0 wakes several tasks in turn, as a dispatcher does. Its later wakee must
    // stay on the node where it ran before, despite the sync hint.
    let waker = sim.world.curr[0].expect("a hog is there");
    for _ in 0..20 {
        for other in [2, 3, 4].map(TaskId) {
            wake_from(&mut sim, other, 1, 0, true);
        }
    }
    assert_ne!(waker, task);
    // `wake_wide()` keeps a wakee away from its waker only if the wakee also wakes several tasks in
    // turn. The wakee therefore runs on CPU 3 for a moment and wakes two tasks in turn.
    let hog = sim.world.curr[3].replace(task);
    for other in [1, 2, 1, 2, 1, 2].map(TaskId) {
        wake_from(&mut sim, other, 1, 3, false);
    }
    sim.world.curr[3] = hog;
    assert_eq!(wake_from(&mut sim, task, 3, 0, true) / 2, 1, "a wide wake-up stays at prev");
}

#[test]
fn the_current_cpu_hint_is_taken() {
    let (mut sim, task) = scene(topo(1, 1, 4, 1), &[0], 3);
    let flags = WakeFlags { current_cpu: true, ..WakeFlags::TTWU };
    let cpu = sim.fair.select_cpu(&sim.world, task, CpuId(3), CpuId(0), flags, sim.now);
    assert_eq!(cpu, CpuId(0));
}

#[test]
fn forks_spread_over_cores_and_nodes() {
    let mut sim = Sim::new(topo(2, 1, 4, 2));
    for _ in 0..8 {
        sim.spawn(Life::Hog, nice(0));
        sim.run(MS);
    }
    let cpus: Vec<u32> = sim.actors.iter().map(|a| a.cpu.0).collect();
    let mut cores: Vec<u32> = cpus.iter().map(|cpu| cpu / 2).collect();
    cores.sort_unstable();
    cores.dedup();
    assert_eq!(cores.len(), 8, "one per core: {cpus:?}");
}

#[test]
fn exec_leaves_a_busy_cpu() {
    let mut sim = Sim::new(topo(1, 1, 4, 1));
    let a = sim.pinned(Life::Hog, nice(0), 0);
    sim.pinned(Life::Hog, nice(0), 0);
    sim.run(100 * MS);
    sim.world.allowed[a.idx()] = CpuMask::all(4);
    let flags = WakeFlags::EXEC;
    let cpu = sim.fair.select_cpu(&sim.world, a, CpuId(0), CpuId(0), flags, sim.now);
    assert_ne!(cpu, CpuId(0));
}

#[test]
fn idle_policy_tasks_count_as_idle_for_others() {
    let mut sim = Sim::new(topo(1, 1, 2, 1));
    let idle = TaskParams { policy: FairPolicy::Idle, ..TaskParams::default() };
    sim.pinned(Life::Hog, idle, 1);
    sim.pinned(Life::Hog, nice(0), 0);
    let task = sim.pinned(Life::Hog, nice(0), 0);
    sim.world.allowed[task.idx()] = CpuMask::all(2);
    sim.run(MS);
    assert_eq!(wake_from(&mut sim, task, 0, 0, false), 1);
}

#[test]
fn a_wakeup_scan_shrinks_with_load() {
    let mut sim = Sim::new(topo(1, 1, 8, 1));
    sim.run(50 * MS);
    assert_eq!(sim.fair.idle_scan_limit(CpuId(0)), Some(8));
    for i in 0..16 {
        sim.pinned(Life::Hog, nice(0), i % 8);
    }
    sim.run(2 * SEC);
    assert_eq!(sim.fair.idle_scan_limit(CpuId(0)), Some(0));
}
