// SPDX-License-Identifier: GPL-2.0-only
//! Cache-aware scheduling: the threads of a process gather on one LLC while there is room.

use super::*;
use proptest::prelude::*;

const LIGHT: Life = Life::Periodic { run: 2 * MS, sleep: 4 * MS };

fn without() -> Params {
    let features = Features { sched_cache: false, ..Features::default() };
    Params { features, ..Params::default() }
}

/// Starts processes with this many threads each, and returns for each process, and each LLC, the
/// part of the second half of `time` that its threads were there, in permille of their sum.
fn gather(topo: &FairTopo, params: Params, sizes: &[u32], life: Life) -> Vec<Vec<u64>> {
    let mut sim = Sim::with(topo.clone(), params);
    let mut members: Vec<Vec<TaskId>> = Vec::new();
    for &size in sizes {
        let leader = sim.actors.len() as u32;
        members.push((0..size).map(|_| sim.spawn(life, in_process(leader))).collect());
    }
    sim.run(SEC);
    let mut there = vec![vec![0; topo.llc_bytes.len()]; sizes.len()];
    for _ in 0..SEC / sim.step {
        sim.advance();
        for (row, tasks) in there.iter_mut().zip(&members) {
            for task in tasks {
                row[topo.llc[sim.actors[task.idx()].cpu.idx()] as usize] += 1;
            }
        }
    }
    sim.check();
    for row in &mut there {
        let all: u64 = row.iter().sum();
        row.iter_mut().for_each(|part| *part = *part * 1000 / all);
    }
    there
}

fn most(row: &[u64]) -> u64 {
    row.iter().copied().max().unwrap_or(0)
}

#[test]
fn threads_gather_on_an_llc() {
    let topo = topo(1, 2, 4, 1);
    let gathered = gather(&topo, Params::default(), &[3, 3], LIGHT);
    let spread = gather(&topo, without(), &[3, 3], LIGHT);
    assert!(gathered.iter().all(|row| most(row) >= 950), "{gathered:?}");
    assert!(spread.iter().any(|row| most(row) < 950), "{spread:?}");
}

/// Processes with a single thread, with more threads than the LLC has room for, or with more memory
/// than the LLC are placed as without preferences.
#[test]
fn processes_that_do_not_fit_are_left_alone() {
    let small = topo(1, 2, 4, 1);
    for sizes in [&[1, 1, 1, 1, 1, 1][..], &[7]] {
        let life = if sizes.len() > 1 { LIGHT } else { Life::Hog };
        let with = gather(&small, Params::default(), sizes, life);
        assert_eq!(with, gather(&small, without(), sizes, life));
    }
    let mut sim = Sim::new(small);
    let tasks: Vec<TaskId> = (0..3).map(|_| sim.spawn(LIGHT, in_process(0))).collect();
    sim.run(SEC);
    assert!(tasks.iter().all(|task| sim.fair.prefers_llc(*task).is_some()));
    sim.fair.change_footprint(tasks[0], (33 << 20) / 4096);
    sim.run(SEC);
    assert!(tasks.iter().all(|task| sim.fair.prefers_llc(*task).is_none()));
}

#[test]
fn a_machine_with_one_llc_has_no_preferences() {
    let sim = Sim::new(topo(1, 1, 4, 2));
    assert!(sim.fair.caches.is_none());
    assert!(Sim::new(topo(2, 1, 4, 1)).fair.caches.is_some());
    assert!(Sim::new(topo(1, 4, 1, 1)).fair.caches.is_none(), "LLCs of one CPU");
}

/// Gathering does not leave CPUs idle while others have several hogs.
#[test]
fn hogs_use_all_cpus() {
    let mut sim = Sim::new(topo(1, 2, 4, 1));
    for _ in 0..8 {
        sim.spawn(Life::Hog, in_process(0));
    }
    sim.run(SEC);
    assert!(sim.cpus().all(|cpu| sim.fair.nr_running(cpu) == 1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    /// The counts hold with processes of any size, threads that come and go, and CPUs that go off
    /// line and come back.
    #[test]
    fn counts_hold(
        llcs in 2u32..5,
        cores in 1u32..4,
        threads in 1u32..3,
        nodes in 1u32..3,
        sizes in prop::collection::vec((1u32..8, 1u64..6, 1u64..6), 1..6),
    ) {
        let topo = topo(nodes, llcs, cores, threads);
        let mut sim = Sim::new(topo.clone());
        for &(size, run, sleep) in &sizes {
            let leader = sim.actors.len() as u32;
            for _ in 0..size {
                let life = Life::Periodic { run: run * MS, sleep: sleep * MS };
                sim.spawn(life, in_process(leader));
            }
        }
        for _ in 0..20 {
            sim.run(20 * MS);
        }
        let prefer = (0..sim.actors.len() as u32).filter_map(|t| sim.fair.prefers_llc(TaskId(t)));
        prop_assert!(prefer.into_iter().all(|llc| llc < nodes * llcs));
    }
}
