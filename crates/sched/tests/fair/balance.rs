// SPDX-License-Identifier: GPL-2.0-only
//! Tests of balancing. With PELT, balancing gives a task that wants 80 % of a CPU a CPU of its own
//! beside two tasks that want 40 % each, as in the example of the PELT patch series. With either
//! kind of load tracking, balancing makes no useless moves and fills every core, and tasks that may
//! not move do not stop it.

use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::Sys;
use scxlab_machine::Machine;
use scxlab_machine::cpumask::{self, CpuMask};
use scxlab_machine::id::CpuId;
use scxlab_testkit::shipped::scheduled;
use scxlab_testkit::sim::{self, run_ns};
use scxlab_testkit::state::stat;

use crate::{MS, SECOND, run_on, stayed};

/// Both kinds of load tracking: the guarantees of balancing must not depend on the kind.
const MODES: [&str; 2] = ["fair", "fair,load=FAIR_LOAD_PELT"];

/// Task `a` wants 80 % of a CPU, `b` and `c` want 40 % each. Their periods drift against each
/// other.
const TASKS: &str = r#"
    duration = "12s"
    [[thread]]
    name = "a"
    ops = [{ loop = { ops = [{ compute = "12ms" }, { sleep = "3ms" }] } }]
    [[thread]]
    name = "b"
    ops = [{ loop = { ops = [{ compute = "16ms" }, { sleep = "24ms" }] } }]
    [[thread]]
    name = "c"
    ops = [{ loop = { ops = [{ compute = "20ms" }, { sleep = "30ms" }] } }]
"#;

/// Two CPUs that share no cache, so that the scheduler does not try the other CPU for a task that
/// wakes up.
const MACHINE: &str = "1n2l1c1t";

/// Tells whether task `a` has a CPU for itself, while `b` and `c` share the other CPU.
fn is_split(k: &Kernel) -> bool {
    let cpu = |name: &str| k.tasks.iter().find(|t| t.name == name).expect("a task").cpu;
    cpu("b") == cpu("c") && cpu("a") != cpu("b")
}

/// Returns the percentage of the time after the first two seconds in which task `a` has a CPU for
/// itself.
fn split_percent(tasks: &str, machine: &str, scheduler: &str, seed: u64) -> u64 {
    let (mut k, _) = scheduled(scheduler, machine, tasks, seed);
    k.start();
    k.advance(2 * SECOND);
    let (mut split, mut looks) = (0, 0);
    while k.now < 12 * SECOND {
        let at = k.now + MS;
        k.advance(at);
        split += u64::from(is_split(&k));
        looks += 1;
    }
    stayed(&k);
    split * 100 / looks
}

#[test]
fn pelt_keeps_80_from_40_and_40_and_window_does_not() {
    for seed in 1..=3 {
        let pelt = split_percent(TASKS, MACHINE, "fair,load=FAIR_LOAD_PELT", seed);
        assert!(pelt > 95, "pelt, seed {seed}: {pelt} %");
        let window = split_percent(TASKS, MACHINE, "fair", seed);
        assert!(window < 70, "window, seed {seed}: {window} %");
    }
}

fn nr_cpus(machine: &str) -> usize {
    Machine::resolve(machine).unwrap_or_else(|e| panic!("{e}")).topology.nr_cpus()
}

/// Runs hogs. Returns the CPU time of each hog from `settled` to the end, and the number of all
/// migrations in that time.
fn hogs(scheduler: &str, machine: &str, tasks: usize, settled: u64, end: u64) -> (Vec<u64>, u64) {
    let workload = format!("hogs,tasks={tasks},duration=none");
    let (mut k, _) = scheduled(scheduler, machine, &workload, 1);
    let ran =
        |k: &Kernel| -> Vec<u64> { (0..tasks).map(|i| run_ns(k, &format!("hog-{i}"))).collect() };
    k.start();
    run_on(&mut k, settled);
    let (before, moves) = (ran(&k), moves(&k));
    run_on(&mut k, end);
    let used = ran(&k).iter().zip(&before).map(|(now, then)| now - then).collect();
    (used, self::moves(&k) - moves)
}

fn moves(k: &Kernel) -> u64 {
    k.tasks.iter().filter(|t| k.is_workload(t)).map(|t| t.account.migrations).sum()
}

/// With equally many hogs per CPU, no task moves, and shares are within 1 %. The test runs long
/// enough that 1 % of a share is one round of all tasks, 24 ms.
#[test]
fn ties_move_nobody() {
    let machines =
        ["1c", "2c", "3c", "8c", "2n2c1t", "2n2c2t", "2n2l2c1t", "1n3l5c1t", "4n4c1t", "2n4l4c2t"];
    for scheduler in MODES {
        for machine in machines {
            let cpus = nr_cpus(machine);
            for each in 1..=3 {
                let fair = 2400 * MS;
                let end = SECOND / 2 + fair * each as u64;
                let (used, moves) = hogs(scheduler, machine, each * cpus, SECOND / 2, end);
                let what = format!("{scheduler}, {} hogs on {machine}", each * cpus);
                assert_eq!(moves, 0, "{what}");
                let off = used.iter().map(|ns| ns.abs_diff(fair)).max().expect("a hog");
                assert!(off <= fair / 100, "{what}: {off} ns off");
            }
        }
    }
}

/// Binds each hog to a CPU, or removes its binding.
fn bind(k: &mut Kernel, to: impl Fn(usize) -> Option<usize>) {
    let cpus = k.cpus.len();
    let hogs: Vec<_> = k.tasks.iter().filter(|t| t.name.starts_with("hog")).map(|t| t.id).collect();
    for (i, &hog) in hogs.iter().enumerate() {
        let mask = match to(i) {
            Some(cpu) => CpuMask::of(cpus, [CpuId(cpu as u32)]),
            None => CpuMask::all(cpus),
        };
        k.user(|k| k.set_affinity(hog, &mask)).expect("an online CPU");
    }
}

/// Tasks that cannot be divided evenly among the CPUs take turns, since busy CPUs balance on each
/// level, at most every 64 ms. In 4 s, each task gets 60 % to 150 % of the mean CPU time: no task
/// stays for all of this time on a CPU with more tasks than others.
#[test]
fn odd_tasks_take_turns() {
    for scheduler in MODES {
        for (machine, levels) in [
            ("2c", 1),
            ("4c", 1),
            ("2n2c1t", 2),
            ("8c", 1),
            ("2n4c1t", 2),
            ("2n2c2t", 3),
            ("2n2l2c1t", 3),
        ] {
            let cpus = nr_cpus(machine);
            for tasks in [cpus + 1, cpus + cpus / 2, 2 * cpus - 1, 2 * cpus + 1, 4 * cpus - 1] {
                let (used, moves) = hogs(scheduler, machine, tasks, SECOND, 5 * SECOND);
                let what = format!("{scheduler}, {tasks} hogs on {machine}");
                let most = (4 * 1000 / 64 + 1) * cpus as u64 * levels;
                assert!((1..=most).contains(&moves), "{what}: {moves} moves, {most} at most");
                let mean = used.iter().sum::<u64>() / tasks as u64;
                let parts = used.iter().map(|ns| ns * 100 / mean);
                assert!(
                    parts.clone().all(|p| (60..=150).contains(&p)),
                    "{what}: {:?} %",
                    parts.collect::<Vec<_>>()
                );
                assert!(
                    mean * tasks as u64 > 4 * SECOND * cpus as u64 / 1000 * 995,
                    "{what}: CPUs idle"
                );
            }
        }
    }
}

/// One task has nearly all of the weight, so that balancing by load would give it a CPU of its own.
/// While this task sleeps, other tasks must use its CPU.
#[test]
fn a_heavy_sleeper_leaves_no_cpu_idle() {
    for scheduler in MODES {
        for (machine, nice, run, sleep) in [
            ("2c", -20, 5, 5),
            ("2c", -20, 20, 20),
            ("2c", -10, 1, 1),
            ("3c", -20, 8, 2),
            ("2n2c1t", -20, 5, 5),
            ("1n2c2t", -20, 3, 9),
        ] {
            let cpus = nr_cpus(machine);
            let text = format!(
                "[[thread]]\nname = \"heavy\"\nnice = {nice}\n\
                 ops = [{{ loop = {{ ops = [{{ compute = \"{run}ms\" }}, {{ sleep = \"{sleep}ms\" }}] }} }}]\n\
                 [[thread]]\nname = \"hog\"\ninstances = {}\nops = [{{ loop = {{ ops = [{{ compute = \"1ms\" }}] }} }}]\n",
                4 * cpus
            );
            let (mut k, _) = scheduled(scheduler, machine, &text, 1);
            let busy = |k: &Kernel| k.tasks.iter().map(|t| t.account.run_ns).sum::<u64>();
            k.start();
            run_on(&mut k, SECOND);
            let before = busy(&k);
            run_on(&mut k, 3 * SECOND);
            let idle = (2 * SECOND * cpus as u64).saturating_sub(busy(&k) - before);
            let percent = idle as f64 / (2 * SECOND * cpus as u64) as f64 * 100.0;
            assert!(
                percent < 1.0,
                "{scheduler} {machine} {nice} {run}/{sleep}: {percent:.2} % idle"
            );
        }
    }
}

/// Returns the number of running tasks on each core.
fn on_cores(k: &Kernel, machine: &str) -> Vec<usize> {
    let m = Machine::resolve(machine).expect("a machine");
    let core = |cpu: CpuId| m.topology.cpu(cpu).core.0 as usize;
    let mut running = vec![0; m.topology.cores().len()];
    for t in k.tasks.iter().filter(|t| k.is_workload(t) && t.on_cpu) {
        running[core(t.cpu)] += 1;
    }
    running
}

/// With at most as many tasks as cores, each task has a core to itself from the start. The test
/// then binds all tasks to the first core; 200 ms after the end of this binding, each task has a
/// core to itself again.
#[test]
fn tasks_have_cores_to_themselves() {
    for scheduler in MODES {
        for machine in ["1n2c2t", "2n4c2t", "2n2l2c2t", "1n3l3c2t", "numa-2n", "hybrid-8p8e"] {
            let m = Machine::resolve(machine).expect("a machine");
            let cores = m.topology.cores().len();
            for tasks in [1, cores / 2, cores] {
                let workload = format!("hogs,tasks={tasks},duration=none");
                let (mut k, _) = scheduled(scheduler, machine, &workload, 1);
                k.start();
                run_on(&mut k, 50 * MS);
                let what = format!("{scheduler}: {tasks} hogs on {machine}");
                let most = |k: &Kernel| on_cores(k, machine).into_iter().max();
                assert_eq!(most(&k), Some(1), "{what}");
                let first: Vec<_> = cpumask::iter(m.topology.core_mask(CpuId(0))).collect();
                bind(&mut k, |i| Some(first[i % 2].0 as usize));
                run_on(&mut k, 100 * MS);
                bind(&mut k, |_| None);
                run_on(&mut k, 300 * MS);
                assert_eq!(most(&k), Some(1), "{what}, squeezed");
                assert_eq!(on_cores(&k, machine).iter().sum::<usize>(), tasks, "{what}, squeezed");
            }
        }
    }
}

/// Five hogs bound to CPU 0 must not keep the balancer from spreading the three unbound hogs of
/// CPU 1, which is less busy.
#[test]
fn bound_tasks_do_not_hide_free_ones() {
    for scheduler in MODES {
        for (machine, cpus) in [("4c", 4), ("2n2c1t", 4), ("2n2l2c1t", 8)] {
            let (mut k, _) =
                scheduled(scheduler, machine, &format!("hogs,tasks={},duration=none", cpus + 6), 1);
            k.start();
            // The test first binds one hog to each CPU, four more to CPU 0 and two more to CPU 1.
            // It then frees the three hogs of CPU 1.
            let home = |i: usize| if i < cpus { i } else { usize::from(i >= cpus + 4) };
            let free: Vec<usize> = (0..cpus + 6).filter(|&i| home(i) == 1).collect();
            bind(&mut k, |i| Some(home(i)));
            run_on(&mut k, 100 * MS);
            bind(&mut k, |i| Some(home(i)).filter(|&cpu| cpu != 1));
            run_on(&mut k, SECOND);
            let ran = |k: &Kernel| -> Vec<u64> {
                free.iter().map(|&i| run_ns(k, &format!("hog-{i}"))).collect()
            };
            let before = ran(&k);
            run_on(&mut k, 3 * SECOND);
            let used: Vec<u64> =
                ran(&k).iter().zip(before).map(|(now, then)| (now - then) / (20 * MS)).collect();
            // Three hogs on CPU 1 get a third of it each. Once spread, each hog shares its CPU with
            // at most one other task and gets at least a half of this CPU.
            assert!(used.iter().all(|&percent| percent > 45), "{scheduler} {machine}: {used:?} %");
        }
    }
}

/// A CPU that becomes idle does not search for tasks to pull as long as no CPU has two tasks.
#[test]
fn an_idle_machine_is_not_searched() {
    for scheduler in MODES {
        for machine in ["2c", "2n4c2t", "4n16c1t"] {
            // Each task is bound, so that no two tasks are on one CPU even for a moment.
            let text: String = (0..nr_cpus(machine) / 2)
                .map(|cpu| {
                    format!(
                        "[[thread]]\nname = \"t{cpu}\"\ncpus = \"{}\"\nops = [{{ loop = {{ ops = [{{ compute = \"700us\" }}, \
                         {{ sleep = \"900us\" }}] }} }}]\n",
                        2 * cpu
                    )
                })
                .collect();
            let (mut k, loaded) = scheduled(scheduler, machine, &text, 1);
            k.start();
            run_on(&mut k, 100 * MS);
            let (early, picks) = (stat(&k, &loaded, "balance_newidle"), stat(&k, &loaded, "picks"));
            run_on(&mut k, 300 * MS);
            assert_eq!(stat(&k, &loaded, "balance_newidle"), early, "{scheduler} {machine}");
            assert!(stat(&k, &loaded, "picks") > picks + 50);
        }
    }
}

/// Returns the number of units of work that the tasks of a run complete.
fn work(scheduler: &str, machine: &str, workload: &str, ns: u64) -> u64 {
    let mut k = match scheduler {
        "eevdf" => sim::kernel(machine, workload, 1),
        _ => scheduled(scheduler, machine, workload, 1).0,
    };
    k.start();
    run_on(&mut k, ns);
    k.tasks.iter().map(|t| t.account.work_units).sum()
}

/// On the machines of the mailing-list threads, hogs and schbench do at least 95 % of the work that
/// they do under the kernel's default class.
#[test]
fn throughput_is_that_of_the_default_class() {
    for (machine, cpus) in [
        ("p3-8way", 8),
        ("x3650m2", 8),
        ("x3850x5", 8),
        ("xen-16", 16),
        ("numa-2n", 32),
        ("x3750m4", 64),
        ("x3950", 64),
        ("dbench-host", 80),
    ] {
        let workloads = [
            format!("hogs,tasks={},duration=none", cpus / 2),
            format!("hogs,tasks={cpus},duration=none"),
            format!("hogs,tasks={},duration=none", cpus + cpus / 4),
            "schbench,duration=none".to_string(),
            format!("schbench,message_threads=2,workers={},duration=none", cpus / 2),
        ];
        for workload in workloads {
            let wanted = work("eevdf", machine, &workload, 300 * MS);
            for scheduler in MODES {
                let got = work(scheduler, machine, &workload, 300 * MS);
                assert!(
                    got * 100 >= wanted * 95,
                    "{scheduler} {machine} {workload}: {got}, eevdf {wanted}"
                );
            }
        }
    }
}

/// A messenger sleeps most of the time, and each worker has a core of its own. A worker that the
/// messenger wakes up stays on its core, instead of moving to the messenger's LLC, which has fewer
/// cores than there are workers.
#[test]
fn a_waker_that_seldom_runs_draws_nobody() {
    for (machine, workers) in
        [("2n1l4c2t", 5), ("1n4l2c2t", 6), ("4n1l4c2t", 12), ("dbench-host", 16)]
    {
        let workload = format!("schbench,workers={workers},duration=none");
        for (seed, scheduler) in (1..=3).flat_map(|seed| MODES.map(|s| (seed, s))) {
            let (mut k, loaded) = scheduled(scheduler, machine, &workload, seed);
            k.start();
            run_on(&mut k, 300 * MS);
            let wakeups = stat(&k, &loaded, "wakeups");
            assert!(wakeups > 50 * workers);
            // Until the workers have spread, some are drawn.
            let drawn = stat(&k, &loaded, "wake_affine");
            assert!(10 * drawn < wakeups, "{scheduler} {machine} {workload} seed {seed}: {drawn}");
        }
    }
}
