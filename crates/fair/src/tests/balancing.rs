// SPDX-License-Identifier: GPL-2.0-only
//! Balancing: tasks spread over the machine, and stay where they must.

use super::super::domain::Domains;
use super::*;
use scxlab_machine::cpumask;

/// Starts `hogs` hogs (tasks that never sleep) on CPU 0 of a machine, lets them run on all CPUs,
/// and returns the number of tasks on each CPU after `time`.
fn spread(topo: FairTopo, hogs: u32, time: Nanos) -> (Sim, Vec<u32>) {
    let mut sim = Sim::new(topo);
    for _ in 0..hogs {
        let id = sim.pinned(Life::Hog, nice(0), 0);
        sim.world.allowed[id.idx()] = CpuMask::all(sim.nr_cpus);
    }
    sim.run(time);
    let per_cpu = sim.cpus().map(|cpu| sim.fair.nr_running(cpu)).collect();
    (sim, per_cpu)
}

#[test]
fn hogs_spread_over_an_llc() {
    let (_, per_cpu) = spread(topo(1, 1, 4, 1), 8, SEC);
    assert_eq!(per_cpu, [2, 2, 2, 2]);
}

#[test]
fn hogs_spread_over_nodes() {
    let (_, per_cpu) = spread(topo(2, 1, 4, 1), 16, 2 * SEC);
    assert_eq!(per_cpu.iter().sum::<u32>(), 16);
    let node = |n: usize| per_cpu[n * 4..n * 4 + 4].iter().sum::<u32>();
    assert!(node(0).abs_diff(node(1)) <= 2, "{per_cpu:?}");
    assert!(per_cpu.iter().all(|&n| (1..=3).contains(&n)), "{per_cpu:?}");
}

#[test]
fn one_hog_per_core_before_siblings() {
    let (_, per_cpu) = spread(topo(1, 1, 4, 2), 4, SEC);
    for core in per_cpu.chunks(2) {
        assert_eq!(core.iter().sum::<u32>(), 1, "{per_cpu:?}");
    }
}

#[test]
fn an_odd_one_out_leaves_no_cpu_idle() {
    let (sim, per_cpu) = spread(topo(1, 2, 4, 2), 19, 3 * SEC);
    assert!(per_cpu.iter().all(|&n| n >= 1), "{per_cpu:?}");
    let ran: Nanos = sim.ran().iter().sum();
    assert!(ran > 3 * SEC * 16 * 8 / 10, "{ran}");
}

#[test]
fn affinity_is_respected() {
    let mut sim = Sim::new(topo(1, 1, 4, 1));
    let pair = CpuMask::of(4, [CpuId(1), CpuId(2)]);
    let ids: Vec<_> = (0..6)
        .map(|i| {
            let life = if i % 2 == 0 { Life::Hog } else { Life::Periodic { run: MS, sleep: MS } };
            sim.spawn_on(life, nice(0), pair.clone(), CpuId(1))
        })
        .collect();
    sim.hogs(2, nice(0));
    for _ in 0..20_000 {
        sim.advance();
        for id in &ids {
            assert!(cpumask::test(&pair, sim.actors[id.idx()].cpu));
        }
    }
    // Six tasks may run on CPUs 1 and 2 only. The two hogs that may run anywhere must therefore
    // have gone to CPUs 0 and 3.
    assert!(sim.fair.nr_running(CpuId(0)) >= 1 && sim.fair.nr_running(CpuId(3)) >= 1);
    sim.check();
}

#[test]
fn an_idle_cpu_pulls_when_it_runs_dry() {
    let mut sim = Sim::new(topo(1, 1, 2, 1));
    // Two hogs share CPU 0, and CPU 1 often runs out of work. CPU 1 must then pull a hog, so that
    // both CPUs are busy for over 95 % of the time.
    for _ in 0..2 {
        let id = sim.pinned(Life::Hog, nice(0), 0);
        sim.world.allowed[id.idx()] = CpuMask::all(2);
    }
    sim.pinned(Life::Periodic { run: 900_000, sleep: 900_000 }, nice(0), 1);
    sim.run(SEC);
    let moves: u32 = sim.actors.iter().map(|a| a.migrations).sum();
    assert!(moves > 0);
    let ran = sim.ran();
    assert!(ran[0] + ran[1] + ran[2] > 19 * SEC / 10, "{ran:?}");
}

/// Two hogs run on the two siblings of one core while the other core is idle. No task waits that
/// another CPU could pull, so only a push can separate the hogs.
#[test]
fn a_running_task_is_pushed_to_an_idle_core() {
    let mut sim = Sim::new(topo(1, 1, 2, 2));
    for cpu in [0, 1] {
        let id = sim.pinned(Life::Hog, nice(0), cpu);
        sim.world.allowed[id.idx()] = CpuMask::all(4);
    }
    sim.run(2 * SEC);
    let cores: Vec<u32> = sim.actors.iter().map(|a| a.cpu.0 / 2).collect();
    assert_ne!(cores[0], cores[1]);
}

#[test]
fn a_hot_task_is_left_alone() {
    let mut sim = Sim::new(topo(1, 1, 2, 1));
    let a = sim.pinned(Life::Hog, nice(0), 0);
    let b = sim.pinned(Life::Hog, nice(0), 0);
    sim.world.allowed[a.idx()] = CpuMask::all(2);
    sim.world.allowed[b.idx()] = CpuMask::all(2);
    // The waiting task has just run, so it is cache hot, and the idle CPU must not pull it.
    sim.now = 100 * MS;
    sim.fair.put_prev(CpuId(0), sim.now);
    sim.fair.set_next(CpuId(0), a, sim.now);
    sim.world.curr[0] = Some(a);
    sim.fair.put_prev(CpuId(0), sim.now);
    sim.fair.set_next(CpuId(0), b, sim.now);
    sim.world.curr[0] = Some(b);
    let hot = sim.fair.newidle_balance(&sim.world, CpuId(1), sim.now + 100_000);
    assert!(hot.balanced.moves.is_empty(), "{hot:?}");
}

/// Runs the simulation with ticks on CPU 0 only. Another CPU balances only if CPU 0 kicks it while
/// it is idle.
fn run_with_one_tick(sim: &mut Sim, time: Nanos) {
    let end = sim.now + time;
    while sim.now < end {
        sim.now += sim.step;
        sim.fair.charge_curr(CpuId(0), sim.now);
        if !sim.now.is_multiple_of(sim.fair.params().tick_ns) {
            continue;
        }
        if sim.fair.tick(CpuId(0), sim.now) != Resched::No {
            sim.schedule(CpuId(0));
        }
        if let Some(ilb) = sim.fair.nohz_kick(&sim.world, CpuId(0), sim.now) {
            assert_ne!(ilb, CpuId(0));
            if let Some(balanced) = sim.fair.nohz_balance(&sim.world, ilb, sim.now) {
                sim.apply(&balanced);
                sim.resched_all();
            }
        }
    }
    sim.check();
}

/// Starts `hogs` hogs on CPU 0.
fn hogs_on_cpu_0(sim: &mut Sim, hogs: u32) {
    for _ in 0..hogs {
        let id = sim.pinned(Life::Hog, nice(0), 0);
        sim.world.allowed[id.idx()] = CpuMask::all(sim.nr_cpus);
    }
}

/// The kicked CPU also balances for CPUs that have never run a task, so each of four hogs gets a
/// CPU of its own. The test includes machines whose nodes are so far apart that forks do not cross
/// them.
#[test]
fn a_kick_serves_cpus_that_never_ran() {
    for distance in [20, 30, 31, 254] {
        let mut shape = topo(2, 1, 2, 1);
        shape.distance = vec![vec![10, distance], vec![distance, 10]];
        let mut sim = Sim::new(shape);
        hogs_on_cpu_0(&mut sim, 4);
        run_with_one_tick(&mut sim, 400 * MS);
        for cpu in sim.cpus() {
            assert_eq!(sim.fair.nr_running(cpu), 1, "distance {distance}, CPU {cpu}");
        }
    }
}

#[test]
fn a_kick_serves_cpus_that_come_on_line() {
    let shape = topo(1, 1, 4, 1);
    let mut sim = Sim::new(shape.clone());
    let others = [1, 2, 3].map(CpuId);
    others.iter().for_each(|&cpu| sim.fair.cpu_offline(&shape, cpu, sim.now));
    let others_idle = |sim: &Sim| others.iter().all(|&cpu| sim.fair.nr_running(cpu) == 0);
    hogs_on_cpu_0(&mut sim, 4);
    run_with_one_tick(&mut sim, SEC);
    assert!(others_idle(&sim));
    // No balance is due on the last CPU on line, because there is no other CPU to balance with.
    assert!(!sim.fair.balance_due(CpuId(0), sim.now));
    others.iter().for_each(|&cpu| sim.fair.cpu_online(&shape, cpu, sim.now));
    assert!(sim.fair.balance_due(CpuId(0), sim.now));
    run_with_one_tick(&mut sim, 200 * MS);
    for cpu in sim.cpus() {
        assert_eq!(sim.fair.nr_running(cpu), 1, "CPU {cpu}");
    }
}

/// The kicked CPU goes off line before the kick arrives, and comes back on line. CPU 0 must then be
/// able to kick it again.
#[test]
fn a_kick_that_finds_no_cpu_is_not_the_last() {
    let shape = topo(1, 1, 2, 1);
    let mut sim = Sim::new(shape.clone());
    hogs_on_cpu_0(&mut sim, 2);
    sim.now = 100 * MS;
    assert_eq!(sim.fair.nohz_kick(&sim.world, CpuId(0), sim.now), Some(CpuId(1)));
    sim.fair.cpu_offline(&shape, CpuId(1), sim.now);
    sim.fair.cpu_online(&shape, CpuId(1), sim.now);
    run_with_one_tick(&mut sim, 200 * MS);
    assert_eq!(sim.fair.nr_running(CpuId(1)), 1);
}

#[test]
fn an_offline_cpu_gives_up_its_tasks() {
    let shape = topo(1, 1, 4, 1);
    let (mut sim, _) = spread(shape.clone(), 8, SEC);
    let gone = CpuId(2);
    sim.fair.put_prev(gone, sim.now);
    sim.world.curr[gone.idx()] = None;
    sim.fair.cpu_offline(&shape, gone, sim.now);
    let tasks = sim.fair.tasks_on(gone);
    assert_eq!(tasks.len(), 2);
    for task in tasks {
        sim.fair.dequeue(gone, task, sim.now, DequeueFlags::MIGRATE);
        let flags = EnqueueFlags { migrated: true, ..EnqueueFlags::RESTORE };
        sim.fair.enqueue(CpuId(0), task, sim.now, flags);
        sim.actors[task.idx()].cpu = CpuId(0);
        sim.world.allowed[task.idx()] = CpuMask::of(4, [0, 1, 3].map(CpuId));
    }
    for at in 0..8 {
        sim.world.allowed[at] = CpuMask::of(4, [0, 1, 3].map(CpuId));
    }
    sim.run(SEC);
    assert_eq!(sim.fair.nr_running(gone), 0);
    for cpu in [0, 1, 3].map(CpuId) {
        assert!((2..=3).contains(&sim.fair.nr_running(cpu)));
    }
    sim.fair.cpu_online(&shape, gone, sim.now);
    for at in 0..8 {
        sim.world.allowed[at] = CpuMask::all(4);
    }
    sim.run(SEC);
    assert!(sim.fair.nr_running(gone) >= 1);
}

#[test]
fn domains_are_those_of_the_kernel() {
    let spans = |topo: &FairTopo| {
        let online = vec![true; topo.nr_cpus()];
        let domains = Domains::build(topo, &online, &Params::default());
        let of = |level| domains.shape(CpuId(0), level);
        (0..domains.of_cpu[0].len())
            .map(|level| (of(level).span_weight, of(level).groups.len()))
            .collect::<Vec<_>>()
    };
    // On two nodes with one LLC each, the levels must be SMT, MC and NUMA. The node level (PKG)
    // would equal MC, so it is not built.
    assert_eq!(spans(&topo(2, 1, 4, 2)), [(2, 2), (8, 4), (16, 2)]);
    // On one node with two LLCs and without SMT, the levels must be MC and PKG.
    assert_eq!(spans(&topo(1, 2, 4, 1)), [(4, 4), (8, 2)]);
    assert_eq!(spans(&topo(4, 2, 2, 2)), [(2, 2), (4, 2), (8, 2), (32, 4)]);
    assert_eq!(spans(&topo(1, 1, 1, 1)), []);
    assert_eq!(spans(&topo(1, 1, 1, 2)), [(2, 2)]);
}

#[test]
fn overlapping_numa_domains_cover_their_span() {
    // Four nodes in a row, one CPU each: 0 - 1 - 2 - 3. The NUMA domains of neighbouring CPUs
    // overlap, and each domain's groups must cover it.
    let mut line = topo(4, 1, 1, 1);
    for (a, row) in line.distance.iter_mut().enumerate() {
        for (b, distance) in row.iter_mut().enumerate() {
            *distance = 10 + 10 * a.abs_diff(b) as u32;
        }
    }
    let domains = Domains::build(&line, &[true; 4], &Params::default());
    for cpu in (0..4).map(CpuId) {
        for level in 0..domains.of_cpu[cpu.idx()].len() {
            let shape = domains.shape(cpu, level);
            let mut covered = CpuMask::new(4);
            for &group in &shape.groups {
                let span = &domains.groups[group as usize].span;
                assert!(cpumask::is_subset(span, &shape.span));
                covered.iter_mut().zip(span.iter()).for_each(|(c, s)| *c |= s);
            }
            assert_eq!(covered, *shape.span);
            let own = domains.of_cpu[cpu.idx()][level].own as usize;
            let own = &domains.groups[shape.groups[own] as usize];
            assert!(cpumask::test(&own.span, cpu));
        }
    }
    let weights: Vec<_> =
        (0..domains.of_cpu[0].len()).map(|l| domains.shape(CpuId(0), l).span_weight).collect();
    assert_eq!(weights, [2, 3, 4]);
}

#[test]
fn a_big_machine_builds() {
    let mut sim = Sim::new(topo(8, 4, 16, 2));
    for _ in 0..2048 {
        sim.spawn(Life::Periodic { run: 4 * MS, sleep: 4 * MS }, nice(0));
    }
    sim.step = MS;
    sim.run(50 * MS);
    let busy = sim.cpus().filter(|&cpu| sim.fair.nr_running(cpu) != 0).count();
    assert!(busy > 900, "{busy}");
}
