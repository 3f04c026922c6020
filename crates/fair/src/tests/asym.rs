// SPDX-License-Identifier: GPL-2.0-only
//! CPUs of different capacity: tasks that need a large CPU come to one, and small ones stay where
//! they are.

use super::*;
use proptest::prelude::*;

/// A machine whose CPUs have the given capacities, one LLC for each slice, all on one node.
fn asym(llcs: &[&[u64]]) -> FairTopo {
    let capacity: Vec<u64> = llcs.concat();
    let n = capacity.len() as u32;
    let llc = (0..).zip(llcs).flat_map(|(llc, cpus)| cpus.iter().map(move |_| llc));
    FairTopo {
        core: (0..n).collect(),
        llc: llc.collect(),
        node: vec![0; n as usize],
        llc_bytes: vec![1 << 20; llcs.len()],
        distance: vec![vec![10]],
        capacity,
    }
}

fn on(sim: &Sim, task: TaskId) -> CpuId {
    sim.actors[task.idx()].cpu
}

/// A hog that may run anywhere, begun on a CPU.
fn hog_on(sim: &mut Sim, cpu: u32) -> TaskId {
    let id = sim.pinned(Life::Hog, nice(0), cpu);
    sim.world.allowed[id.idx()] = CpuMask::all(sim.nr_cpus);
    id
}

#[test]
fn hogs_come_to_the_large_cpus() {
    let shapes: [&[&[u64]]; 4] = [
        &[&[462, 462, 462, 462], &[1024, 1024, 1024, 1024]],
        &[&[1024, 600, 600, 1024]],
        &[&[400], &[700, 700], &[1024]],
        &[&[512, 1024]],
    ];
    for shape in shapes {
        let topo = asym(shape);
        let large = topo.capacity.iter().filter(|&&c| c == 1024).count();
        for nr in 1..=large {
            let mut sim = Sim::new(topo.clone());
            let first = topo.capacity.iter().position(|&c| c != 1024).unwrap() as u32;
            let hogs: Vec<_> = (0..nr).map(|_| hog_on(&mut sim, first)).collect();
            sim.run(SEC);
            for hog in hogs {
                let cpu = on(&sim, hog);
                assert_eq!(topo.capacity[cpu.idx()], 1024, "{nr} of {shape:?}: on CPU {cpu}");
            }
        }
    }
}

#[test]
fn a_hog_that_may_not_run_on_large_cpus_is_no_misfit() {
    let mut sim = Sim::new(asym(&[&[462, 462], &[1024, 1024]]));
    let id = sim.pinned(Life::Hog, nice(0), 0);
    sim.world.allowed[id.idx()] = CpuMask::of(4, [CpuId(0), CpuId(1)]);
    sim.run(SEC);
    assert_eq!(sim.fair.cpus[on(&sim, id)].misfit_load, 0);
    sim.world.allowed[id.idx()] = CpuMask::all(4);
    sim.run(SEC);
    assert!(on(&sim, id).0 >= 2);
}

#[test]
fn small_tasks_stay_on_small_cpus() {
    let mut sim = Sim::new(asym(&[&[462, 462], &[1024, 1024]]));
    let life = Life::Periodic { run: 300_000, sleep: 9_700_000 };
    let id = sim.pinned(life, nice(0), 0);
    sim.world.allowed[id.idx()] = CpuMask::all(4);
    sim.run(3 * SEC);
    assert_eq!(sim.actors[id.idx()].migrations, 0);
}

/// A lone task on a large CPU is not taken from it by an idle small one.
#[test]
fn an_idle_small_cpu_takes_no_lone_task_from_a_large_one() {
    let mut sim = Sim::new(asym(&[&[462, 462], &[1024, 1024]]));
    let hogs = [hog_on(&mut sim, 2), hog_on(&mut sim, 3)];
    sim.run(3 * SEC);
    assert!(hogs.iter().all(|hog| sim.actors[hog.idx()].migrations == 0));
}

/// A woken task that needs most of a CPU gets a large one, although its last CPU is idle.
#[test]
fn a_large_task_wakes_on_a_large_cpu() {
    let mut sim = Sim::new(asym(&[&[462, 462], &[1024, 1024]]));
    let life = Life::Periodic { run: 9 * MS, sleep: MS };
    let id = sim.pinned(life, nice(0), 0);
    sim.run(300 * MS);
    sim.world.allowed[id.idx()] = CpuMask::all(4);
    sim.run(20 * MS);
    assert!(on(&sim, id).0 >= 2);
}

/// With cache-aware scheduling, a task does not go to another LLC where it does not fit, if it fits
/// where it waits (`task_misfits_asym_cpu()`). Linux 7.3 asks this of all tasks, also of those that
/// prefer no LLC, so that two hogs share a large CPU while the small ones are idle.
#[test]
fn a_hog_that_fits_stays_in_its_llc() {
    for (sched_cache, most) in [(true, 2), (false, 1)] {
        let features = Features { sched_cache, ..Features::default() };
        let params = Params { features, ..Params::default() };
        let mut sim = Sim::with(asym(&[&[1024, 1024], &[256, 256]]), params);
        (0..4).for_each(|_| {
            hog_on(&mut sim, 0);
        });
        sim.run(SEC);
        let nr = sim.cpus().map(|cpu| sim.fair.nr_running(cpu)).max();
        assert_eq!(nr, Some(most), "sched_cache {sched_cache}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    /// Without cache-aware scheduling, hogs use nearly the capacity of as many of the largest CPUs,
    /// on machines with one LLC or with one for each kind of CPU. The kernel may let two hogs share
    /// a large CPU for a while, because it pulls a misfit task to a CPU whose utilisation is still
    /// low. Where an LLC mixes CPUs and another one has a misfit task, the kernel's first idle CPU
    /// may be too small to help.
    #[test]
    fn hogs_use_the_largest_cpus(
        clusters in prop::collection::vec(
            (prop::sample::select(vec![256u64, 512, 1024]), 1usize..5), 1..4),
        one_llc: bool,
        hogs in 1usize..9,
    ) {
        let clusters: Vec<Vec<u64>> = clusters.iter().map(|&(c, nr)| vec![c; nr]).collect();
        let capacities = clusters.concat();
        let llcs: Vec<&[u64]> = match one_llc {
            true => vec![&capacities],
            false => clusters.iter().map(Vec::as_slice).collect(),
        };
        let features = Features { sched_cache: false, ..Features::default() };
        let mut sim = Sim::with(asym(&llcs), Params { features, ..Params::default() });
        let hogs = hogs.min(capacities.len());
        (0..hogs).for_each(|_| { hog_on(&mut sim, 0); });
        let mut used = 0;
        let steps = 3 * SEC / sim.step;
        for _ in 0..steps {
            sim.advance();
            let busy = sim.cpus().filter(|cpu| sim.world.curr[cpu.idx()].is_some());
            used += busy.map(|cpu| capacities[cpu.idx()]).sum::<u64>();
        }
        let mut largest = capacities.clone();
        largest.sort_unstable_by(|a, b| b.cmp(a));
        let best: u64 = largest[..hogs].iter().sum();
        prop_assert!(used * 100 >= best * steps * 85, "{} of {best}", used / steps);
    }
}
