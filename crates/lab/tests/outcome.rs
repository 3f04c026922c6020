// SPDX-License-Identifier: GPL-2.0-only
//! Failures in a run appear in its result: tasks that starve, ejections, parts of the scheduler
//! that do not run. The knobs of `bpf/selftest/lapse` cause these failures.

use std::sync::Arc;

use scxlab_lab::advise;
use scxlab_lab::agreement::{Agrees, agreement};
use scxlab_lab::compare::{Comparison, compare};
use scxlab_lab::input::{NoFiles, SchedulerInput};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::run::{Run, StopKind};
use scxlab_lab::sim::{SimSpec, simulate};
use scxlab_lab::stats::Verdict;
use scxlab_machine::Machine;
use scxlab_workload::{Program, WorkloadArg, load, parse_workload_arg};

const MS: u64 = 1_000_000;
const MACHINES: [&str; 4] = ["1n1c1t", "1n2c1t", "1n2c2t", "2n2c1t"];

/// `lapse` starves tasks whose name begins with "v", the character with code 118.
const STARVING: &str = "lapse,starve=118";

fn scheduler(text: &str, machine: &Arc<Machine>) -> Prepared {
    let input = SchedulerInput::resolve(text, &NoFiles).unwrap();
    Prepared::simulated(&input, machine).unwrap()
}

fn program(text: &str) -> Program {
    if text.contains("[[thread]]") {
        return load("w.toml", text).unwrap();
    }
    match parse_workload_arg(text).unwrap() {
        WorkloadArg::Program(program) => *program,
        _ => panic!("{text} is no generator"),
    }
}

fn run(scheduler: &str, work: &str, machine: &str, ms: u64, seed: u64) -> Run {
    let machine = Arc::new(Machine::resolve(machine).unwrap());
    let workload = program(work);
    let scheduler = self::scheduler(scheduler, &machine);
    let spec =
        SimSpec { duration: Some(ms * MS), ..SimSpec::new(&machine, &workload, &scheduler, seed) };
    simulate(&spec, Default::default(), &|_| None).unwrap().0
}

fn runs(scheduler: &str, work: &str, ms: u64, seeds: u64) -> Vec<Run> {
    (1..=seeds).map(|seed| run(scheduler, work, "1n2c1t", ms, seed)).collect()
}

/// Returns a workload of `count` victims (tasks that `lapse` starves), which sleep once and then
/// compute for ever, and one task that is not starved.
fn victims(count: u32) -> String {
    format!(
        "[[thread]]\nname = 'victim'\ninstances = {count}\n\
         ops = [{{ sleep = '1ms' }}, {{ loop = {{ ops = [{{ compute = '1ms' }}, {{ count = 1 }}] }} }}]\n\
         [[thread]]\nname = 'fed'\n\
         ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}, {{ count = 1 }}] }} }}]"
    )
}

fn metric(run: &Run, name: &str) -> f64 {
    run.metrics.get(name).unwrap_or_else(|| panic!("{name}: {:?}", run.exit)).value
}

/// A user's example: two of three tasks never run in ten seconds. The high quantiles of the wait
/// must show almost ten seconds, and the result must name both tasks.
#[test]
fn starving_two_of_three_tasks_shows_ten_seconds() {
    let work = "[[thread]]\nname = 'victim'\ninstances = 2\nops = [{ compute = '1ms' }]\n\
                [[thread]]\nname = 'fed'\n\
                ops = [{ loop = { ops = [{ sleep = '1ms' }, { compute = '100ms' }] } }]";
    let (starved, honest) =
        (run(STARVING, work, "1n2c1t", 10_000, 1), run("lapse", work, "1n2c1t", 10_000, 1));
    assert_eq!((starved.exit.kind.as_str(), starved.stop.kind), ("none", StopKind::Duration));
    for name in ["run_queue_wait_p99", "run_queue_wait_p99.9", "run_queue_wait_max"] {
        let (bad, good) = (metric(&starved, name), metric(&honest, name));
        assert!(bad > 9.9e9 && good < 1e7, "{name}: {bad} and {good} ns");
    }
    let names: Vec<&str> = starved.never_ran.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["victim-0", "victim-1"]);
    assert!(starved.counts && !starved.succeeded());
    assert!(honest.never_ran.is_empty() && honest.succeeded());
}

/// A wait that has not ended counts up to the end of the run, in the distributions and for the
/// task, and the result names tasks that never ran. With the knob off, no task starves. The test
/// uses several machines, numbers of victims, lengths and seeds.
/// Tunables of the default class move what they are for, at any number of tasks.
#[test]
fn tunables_of_the_default_class_act() {
    let switches = |scheduler: &str, work: &str| {
        metric(&run(scheduler, work, "1n2c1t", 2_000, 1), "context_switches")
    };
    for tasks in [3, 4, 9, 30] {
        let work = format!("hogs,tasks={tasks}");
        let by = [100_000, 2_000_000, 20_000_000]
            .map(|slice| switches(&format!("eevdf,base_slice_ns={slice}"), &work));
        assert!(by[0] > 2.0 * by[1] && by[1] > 2.0 * by[2], "{tasks} tasks: {by:?}");
        assert!(by[0] > switches("eevdf", &work) && switches("eevdf", &work) > by[2]);
    }
    let woken = "schbench,workers=6";
    assert!(switches("eevdf,WAKEUP_PREEMPTION=0", woken) < switches("eevdf", woken));
    assert_ne!(
        run("eevdf,RUN_TO_PARITY=0", woken, "1n2c1t", 500, 1).trace_hash,
        run("eevdf", woken, "1n2c1t", 500, 1).trace_hash
    );
}

#[test]
fn open_waits_count_as_the_time_waited() {
    for (at, machine) in MACHINES.iter().enumerate() {
        for (count, ms) in [(1, 60), (2, 150), (3, 400)] {
            let seed = (at * 7 + count) as u64;
            let about = format!("{machine}, {count} victims, {ms} ms");
            let starved = run(STARVING, &victims(count as u32), machine, ms, seed);
            let since = |ns: f64| ms as f64 * 1e6 - ns;
            assert_eq!(starved.never_ran.len(), count, "{about}");
            for task in &starved.never_ran {
                // Threads exist from the start, so they wait for the whole run.
                assert!(since(task.wait_ns as f64) < 1e6, "{about}: {task:?}");
                let all = starved.tasks.iter().find(|t| t.name == task.name).unwrap();
                assert_eq!((all.wait_ns, all.run_ns), (Some(task.wait_ns), 0), "{about}");
            }
            assert!(since(metric(&starved, "run_queue_wait_max")) < 1e6, "{about}");
            assert_eq!(starved.cgroups[0].weight_permille, 1000.0, "{about}");
            let honest = run("lapse", &victims(count as u32), machine, ms, seed);
            assert!(honest.never_ran.is_empty(), "{about}: {:?}", honest.never_ran);
            assert!(since(metric(&honest, "run_queue_wait_max")) > 20e6, "{about}");
        }
    }
}

/// If a task that ran before is woken up and does not run again, its wait also counts as wake-up
/// latency. The result does not list the task among those that never ran.
#[test]
fn a_wake_up_that_is_never_served_counts() {
    // From 20 ms on, a real-time task keeps the only CPU, so the wait of task `a` lasts until the
    // end of the run.
    let work = "[[thread]]\nname = 'a'\nops = [{ loop = { ops = [{ compute = '300us' }, { sleep = '300us' }] } }]\n\
                [[thread]]\nname = 'hog'\npolicy = { fifo = 10 }\ncpus = '0'\n\
                ops = [{ sleep = '20ms' }, { loop = { ops = [{ compute = '10ms' }] } }]";
    for ms in [40, 100, 300] {
        let run = run("vtime", work, "1n1c1t", ms, 1);
        let latency = metric(&run, "wakeup_latency_max");
        let open = (ms - 20) as f64 * 1e6;
        assert!(latency > open - 1e6 && latency < open + 1e6, "{ms} ms: {latency} ns");
        assert_eq!(run.never_ran, [], "{ms} ms");
    }
}

/// Waits grow with the time for which tasks are held, up to the length of the run.
#[test]
fn waits_grow_with_the_time_that_tasks_are_held() {
    let max = |hold: u64, machine: &str| {
        let scheduler = format!("{STARVING},release_after_ns={}", hold * MS);
        let run = run(&scheduler, &victims(2), machine, 200, 3);
        (metric(&run, "run_queue_wait_max") / 1e6, run.never_ran.len())
    };
    for machine in MACHINES {
        let held: Vec<(f64, usize)> = [20, 60, 120, 500].map(|hold| max(hold, machine)).to_vec();
        assert!(held.is_sorted(), "{machine}: {held:?}");
        for ((wait, never), hold) in held.iter().zip([20.0, 60.0, 120.0, 200.0]) {
            assert!((hold - 1.0..hold + 25.0).contains(wait), "{machine}: {wait} for {hold} ms");
            assert_eq!(*never, if hold < 200.0 { 0 } else { 2 }, "{machine}: {hold} ms");
        }
    }
}

/// A task that is forked shortly before the end is not listed as starved, but its wait counts.
#[test]
fn a_turn_that_could_not_come_yet_is_no_starvation() {
    let late = |at: &str| {
        let work = format!(
            "[[thread]]\nname = 'parent'\nprocess = 'p'\nops = [{{ sleep = '{at}' }}, {{ fork = 'victim' }}, 'join']\n\
             [[thread]]\nname = 'victim'\ninstances = 0\nprocess = 'p'\nops = [{{ compute = '1ms' }}]"
        );
        run(STARVING, &work, "1n2c1t", 1000, 1)
    };
    // The result lists a task that waited for 10 ms or more, a hundredth of the run.
    // `advise` refuses a scheduler only for a wait of 100 ms or more, a tenth of the run.
    for (at, wait_ms, named, refused) in
        [("995ms", 5.0, 0, false), ("980ms", 20.0, 1, false), ("500ms", 500.0, 1, true)]
    {
        let run = late(at);
        assert_eq!(run.never_ran.len(), named, "{at}: {:?}", run.tasks);
        assert_eq!(advise::trials::failure(&run).is_some(), refused, "{at}");
        let max = metric(&run, "run_queue_wait_max") / 1e6;
        assert!((wait_ms - 2.0..=wait_ms).contains(&max), "{at}: {max} ms");
    }
}

/// The times of each CPU add up to the length of the run, however the scheduler leaves: by a rule
/// that it breaks, by an endless loop that lasts beyond the end of the run, by a stall, or because
/// a CPU went off line.
#[test]
fn times_add_up_after_an_exit() {
    let hotplug = format!(
        "{}\n[[thread]]\nname = 'plug'\ncpus = '0'\n\
         ops = [{{ sleep = '30ms' }}, {{ cpu_offline = '1' }}]",
        victims(2)
    );
    for (at, machine) in ["1n1c1t", "1n2c2t", "2n2c1t"].into_iter().enumerate() {
        let plain = victims(9);
        let mut cases = vec![("lapse".to_owned(), &plain, 100, "none")];
        for (wrong, kind) in [
            (0, "error_bpf"),
            (1, "error"),
            (4, "error"),
            (9, "error"),
            (13, "error"),
            (14, "error"),
        ] {
            for ms in [60, 500] {
                let scheduler = format!("lapse,wrong={wrong},eject_after_ns=50000000");
                cases.push((scheduler, &plain, ms, kind));
            }
        }
        cases.push((format!("{STARVING},starve_in=1"), &plain, 50_000, "error_stall"));
        if machine != "1n1c1t" {
            cases.push(("lapse".to_owned(), &hotplug, 100, "unreg_kern"));
        }
        for (scheduler, work, ms, kind) in cases {
            let run = run(&scheduler, work, machine, ms, at as u64);
            let about = format!("{scheduler} for {ms} ms on {machine}");
            assert_eq!(run.exit.kind, kind, "{about}: {}", run.exit.message);
            let times = (0..).map_while(|cpu| {
                let part = |what: &str| Some(run.metrics.get(&format!("cpu{cpu}_{what}"))?.value);
                Some((cpu, part("busy")?, part("idle")?, part("overhead")?))
            });
            let mut all = 0.0;
            for (cpu, busy, idle, overhead) in times {
                let sum = busy + idle + overhead;
                all += sum;
                // CPU 1 goes off line after 30 ms, once `plug` gets a CPU, and has no time then.
                if kind == "unreg_kern" && cpu == 1 {
                    assert!((30e6..60e6).contains(&sum), "{sum}: {about}");
                } else {
                    let about = format!("CPU {cpu}: {busy}, {idle}, {overhead}: {about}");
                    assert_eq!(sum, run.virtual_ns as f64, "{about}");
                }
            }
            let total = ["cpu_busy", "cpu_idle", "cpu_overhead"].map(|name| metric(&run, name));
            assert_eq!(total.iter().sum::<f64>(), all, "{about}");
            assert!(metric(&run, "cpu_lock_wait") <= total[2], "{about}");
        }
    }
}

/// A task that ran once, and waits from its first sleep until the end, starved as one that never
/// ran did. A task that runs rarely because it sleeps, or because it has a small weight beside
/// others, did not.
#[test]
fn a_task_that_hardly_ever_ran_starved() {
    let work = |nice: i32| {
        format!(
            "[[thread]]\nname = 'victim'\nnice = {nice}\n\
             ops = [{{ loop = {{ ops = [{{ compute = '100us' }}, {{ sleep = '20ms' }}] }} }}]\n\
             [[thread]]\nname = 'hog'\ninstances = 6\n\
             ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]"
        )
    };
    for (at, machine) in MACHINES.iter().enumerate() {
        for ms in [400, 3000] {
            let about = format!("{machine}, {ms} ms");
            let starved = run("lapse,starve=118,woken=1", &work(0), machine, ms, at as u64);
            let [victim] = &starved.never_ran[..] else { panic!("{about}: {:?}", starved.tasks) };
            assert_eq!(victim.name, "victim", "{about}");
            let all = starved.tasks.iter().find(|t| t.name == "victim").unwrap();
            assert_eq!((all.wait_ns, all.run_ns), (Some(victim.wait_ns), victim.run_ns), "{about}");
            assert!(victim.run_ns > 0 && starved.counts && !starved.succeeded(), "{about}");
            assert!(advise::trials::failure(&starved).is_some(), "{about}");
            for (scheduler, nice) in [("lapse", 0), ("eevdf", 19), ("vtime", 19), ("fair", 19)] {
                let honest = run(scheduler, &work(nice), machine, ms, at as u64);
                assert_eq!(honest.never_ran, [], "{scheduler}, {about}");
            }
        }
    }
}

/// A metric without samples has no distribution and no mean; it is absent from the result.
#[test]
fn a_metric_without_samples_is_absent() {
    let timer = |work: &str| {
        format!(
            "[[thread]]\nname = 'a'\nops = [{{ phase = {{ name = 'p', times = 1000, ops = [{{ compute = '{work}' }}, \
             {{ timer = {{ name = 't', period = '5ms' }} }}] }} }}]\n\
             [[thread]]\nname = 'b'\nops = [{{ phase = {{ name = 'q', times = 100000, ops = [{{ compute = '100us' }}] }} }}]"
        )
    };
    let has = |run: &Run, name: &str| run.metrics.contains_key(name);
    // The only task never sleeps and so is never woken up: there is no wake-up latency.
    let hog = run("vtime", "hogs,tasks=1", "1n1c1t", 50, 1);
    assert!(!has(&hog, "wakeup_latency_p50") && !has(&hog, "wakeup_latency_max"));
    assert!(!has(&hog, "lock_wait_p99") && metric(&hog, "lock_waits") == 0.0);
    assert!(!has(&hog, "timer_latency_mean") && !has(&hog, "timer_slack_min"));
    // With 1 ms of work in a period of 5 ms, thread `a` meets all its timers. Thread `b` has no
    // timer, and must not affect the means.
    let met = run("vtime", &timer("1ms"), "1n2c1t", 100, 1);
    let slack = metric(&met, "timer_slack_mean");
    assert!((3.5e6..4.5e6).contains(&slack), "{slack}");
    assert!(metric(&met, "timer_latency_mean") > 500.0);
    // A metric that one of the two runs lacks is not compared.
    let all = compare(&[met, hog], 1, 2);
    assert!(!all.iter().any(|c| c.metric.starts_with("timer_")));
}

/// The less a thread does in time, the worse are the figures about its timers, also if it comes to
/// none of them before the run ends. A timer in a loop counts as one in a phase.
#[test]
fn timers_that_are_missed_or_not_reached_count() {
    for (mode, form) in [("absolute", "phase"), ("relative", "phase"), ("absolute", "loop")] {
        let of = |work: &str| {
            let open = match form {
                "phase" => "phase = { name = 'p', times = 1000, ops = [",
                _ => "loop = { times = 1000, ops = [",
            };
            let text = format!(
                "[[thread]]\nname = 'a'\nops = [{{ {open}{{ compute = '{work}' }}, \
                 {{ timer = {{ name = 't', period = '5ms', mode = '{mode}' }} }}] }} }}]"
            );
            run("vtime", &text, "1n2c1t", 100, 1)
        };
        let runs = ["1ms", "4ms", "9ms", "24ms", "200ms"].map(of);
        let missed = runs.each_ref().map(|run| metric(run, "timers_missed"));
        assert_eq!(missed[..2], [0.0, 0.0], "{mode} {form}");
        // 20 periods end in the run.
        assert!(missed[2] >= 9.0 && missed[4] >= 19.0, "{mode} {form}: {missed:?}");
        for name in ["timer_latency_mean", "timer_latency_max", "timers_missed"] {
            let values = runs[1..].iter().map(|run| metric(run, name)).collect::<Vec<_>>();
            assert!(values.is_sorted(), "{mode} {form}: {name} {values:?}");
        }
        for name in ["timer_slack_mean", "timer_slack_min"] {
            let values = runs.iter().map(|run| -metric(run, name)).collect::<Vec<_>>();
            assert!(values.is_sorted(), "{mode} {form}: {name} {values:?}");
        }
    }
}

/// If only some runs called an operation, each other run counts as 0 calls, and its mean time is
/// left out. An operation that no run called has no metric.
#[test]
fn only_a_count_is_zero_by_being_absent() {
    let work = "hogs,tasks=1";
    let alone = run("vtime", work, "1n1c1t", 30, 1);
    let busy = run("vtime", "sleepers,tasks=9", "1n1c1t", 30, 2);
    assert!(!alone.metrics.contains_key("op_quiescent_calls"), "vtime has no such operation");
    let mut two = [alone.clone(), busy.clone(), alone, busy];
    two[0].metrics.shift_remove("op_enqueue_calls");
    two[0].metrics.shift_remove("op_enqueue_mean");
    let all = compare(&two, 2, 2);
    let of = |name: &str| all.iter().find(|c| c.metric == name).unwrap();
    assert_eq!(
        (of("op_enqueue_calls").baseline.summary.n, of("op_enqueue_mean").baseline.summary.n),
        (2, 1)
    );
    let calls = metric(&two[1], "op_enqueue_calls");
    assert_eq!(of("op_enqueue_calls").baseline.summary.mean, Some(calls / 2.0));
    let mean = metric(&two[1], "op_enqueue_mean");
    assert_eq!(of("op_enqueue_mean").baseline.summary.mean, Some(mean));
}

/// Returns the `-s` argument of a scheduler that is ejected after `after_ms` milliseconds, in
/// `permille` of 1000 runs.
fn leaving(after_ms: u64, permille: u32) -> String {
    format!("lapse,eject_after_ns={},eject_permille={permille}", after_ms * MS)
}

const LOAD: &str = "sleepers,tasks=9";

/// The time of an ejection is the time at which the scheduler asked for it.
#[test]
fn an_ejection_has_its_time() {
    for (at, machine) in MACHINES.iter().enumerate() {
        for after in [0, 5, 17, 40, 90] {
            let run = run(&leaving(after.max(1), 1000), LOAD, machine, 100, at as u64);
            let at = run.exit.at_ns.unwrap_or_else(|| panic!("{machine}, {after} ms: stayed"));
            let late = at.saturating_sub(after.max(1) * MS);
            assert!(at >= after * MS && late < 10 * MS, "{machine}: {at} ns for {after} ms");
            assert!(run.was_ejected() && !run.counts && !run.metrics.is_empty(), "{machine}");
        }
        let stayed = run(&leaving(101, 1000), LOAD, machine, 100, at as u64);
        assert!(stayed.exit.at_ns.is_none() && stayed.counts, "{machine}");
    }
}

/// A wait continues when its task moves from a scheduler that starves it to the default class, and
/// ends when the default class runs the task.
#[test]
fn an_ejection_loses_no_wait() {
    for machine in MACHINES {
        for after in [30, 80] {
            let scheduler = format!("{STARVING},eject_after_ns={}", after * MS);
            let run = run(&scheduler, &victims(2), machine, 150, 1);
            let (max, about) =
                (metric(&run, "run_queue_wait_max") / 1e6, format!("{machine}, {after} ms"));
            // The ejection comes with the first operation after that time, at the latest when a
            // slice of 20 ms ends.
            assert!((after as f64 - 1.0..after as f64 + 40.0).contains(&max), "{about}: {max} ms");
            let victims = run.tasks.iter().filter(|t| t.name.starts_with("victim"));
            let waited = |ns: Option<u64>| ns >= Some((after - 1) * MS);
            assert!(victims.clone().all(|t| waited(t.wait_ns) && t.run_ns > 0), "{about}");
            assert_eq!(run.never_ran, [], "{about}");
        }
    }
}

/// A comparison leaves out each run that does not count and, in the change, each pair with such a
/// run. The test computes every mean by itself.
#[test]
fn ejected_runs_are_not_averaged() {
    let seeds = 12;
    let (base, treated) =
        (runs(&leaving(20, 300), LOAD, 60, seeds), runs(&leaving(10, 500), LOAD, 60, seeds));
    let left = |runs: &[Run]| runs.iter().filter(|r| r.was_ejected()).count();
    let pairs: Vec<usize> =
        (0..base.len()).filter(|at| base[*at].counts && treated[*at].counts).collect();
    assert!(left(&base) > 0 && left(&treated) > left(&base) && pairs.len() >= 2);
    let all: Vec<Run> = base.iter().chain(&treated).cloned().collect();
    let found = compare(&all, seeds as usize, 2);
    assert!(found.len() > 30);
    let only = |runs: &[Run]| runs.iter().filter(|r| r.counts).cloned().collect::<Vec<_>>();
    let paired = |runs: &[Run]| pairs.iter().map(|at| runs[*at].clone()).collect::<Vec<_>>();
    let clean: Vec<Run> = paired(&base).into_iter().chain(paired(&treated)).collect();
    let clean = compare(&clean, pairs.len(), 2);
    for Comparison { metric, baseline, treated: side, change, .. } in &found {
        assert_eq!((baseline.runs, side.runs), (seeds as usize, seeds as usize), "{metric}");
        for (summary, runs) in [(baseline.summary, only(&base)), (side.summary, only(&treated))] {
            let values: Vec<f64> =
                runs.iter().filter_map(|r| r.metrics.get(metric)).map(|m| m.value).collect();
            assert_eq!(summary.n, values.len(), "{metric}");
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            assert!((summary.mean.unwrap() - mean).abs() <= mean.abs() * 1e-9, "{metric}");
        }
        let same = clean.iter().find(|c| c.metric == *metric).unwrap();
        assert_eq!(same.change, *change, "{metric}");
    }
}

/// If no run of a scheduler counts, there is no figure and no change, and the verdict is `NoRuns`.
#[test]
fn nothing_is_said_of_runs_that_all_ended_badly() {
    let (stayed, left) = (runs("vtime", LOAD, 40, 3), runs(&leaving(10, 1000), LOAD, 40, 3));
    for (base, treated) in [(&stayed, &left), (&left, &stayed), (&left, &left)] {
        let all: Vec<Run> = base.iter().chain(treated).cloned().collect();
        let mut found = compare(&all, 3, 2);
        // Not every run waits for a lock.
        found.retain(|c| !c.metric.starts_with("lock_wait_"));
        assert!(found.len() > 30);
        for c in &found {
            assert_eq!(
                (c.change.verdict, c.change.relative),
                (Verdict::NoRuns, None),
                "{}",
                c.metric
            );
            let n = |ejected: bool| if ejected { 0 } else { 3 };
            assert_eq!(c.baseline.summary.n, n(base[0].was_ejected()), "{}", c.metric);
            assert_eq!(c.treated.summary.mean.is_some(), !treated[0].was_ejected(), "{}", c.metric);
        }
    }
    let mut vm = left.clone();
    vm.iter_mut().for_each(|run| run.target = "vm".into());
    let held = agreement(&stayed, &vm, 15);
    assert!(!held.is_empty() && held.iter().all(|a| a.verdict == Agrees::NoRuns && a.other.n == 0));
    // If only some of a target's runs do not count, the target's other runs are compared as usual.
    let mut some = stayed.clone();
    some.iter_mut().for_each(|run| run.target = "vm".into());
    some[0] = vm[0].clone();
    let held = agreement(&stayed, &some, 15);
    assert!(!held.is_empty() && held.iter().all(|a| (a.first.n, a.other.n) == (3, 2)));
}

/// A run that ended irregularly does not count, under any scheduler.
#[test]
fn a_deadlock_does_not_count() {
    let work = "[[thread]]\nname = 'a'\nops = [{ lock = 'm' }, { sleep = '3ms' }, { lock = 'n' }]\n\
                [[thread]]\nname = 'b'\nops = [{ lock = 'n' }, { sleep = '3ms' }, { lock = 'm' }]";
    for scheduler in ["eevdf", "vtime", "lapse"] {
        for ms in [20, 60] {
            let run = run(scheduler, work, "1n2c1t", ms, 1);
            assert_eq!(run.stop.kind, StopKind::Deadlock, "{scheduler}");
            assert!(!run.counts && !run.was_ejected() && !run.succeeded(), "{scheduler}");
            assert_eq!(run.never_ran, [], "{scheduler}");
        }
    }
}

/// The result reports the first exit. Faults in operations that the kernel calls after it, such as
/// `ops.exit()`, appear as notes.
#[test]
fn faults_of_a_leaving_scheduler_are_said() {
    for (lingers, op) in [(1, "exit"), (2, "dump")] {
        let leaves = format!("lapse,eject_after_ns=5000000,lingers={lingers}");
        let run = run(&leaves, &victims(1), "1n2c1t", 20, 1);
        assert_eq!(run.exit.kind, "error_bpf");
        assert!(run.exit.message.contains("its time is over"), "{:?}", run.exit);
        let said = format!("while it exited: BPF fault in ops.{op}(): instruction limit");
        assert!(run.notes.iter().any(|note| note.starts_with(&said)), "{:?}", run.notes);
        assert!(run.notes.iter().any(|note| note.contains("lapse.bpf.c")), "{:?}", run.notes);
    }
    let clean = run("lapse,eject_after_ns=5000000", &victims(1), "1n2c1t", 20, 1);
    assert!(!clean.notes.iter().any(|note| note.contains("fault")), "{:?}", clean.notes);
}

/// The less `cpu.max` allows, the further a scheduler that does not know it exceeds it; the default
/// class keeps it.
#[test]
fn cpu_time_beyond_a_limit_is_told() {
    for machine in ["1n2c1t", "1n2c2t", "2n2c1t"] {
        let excess = |scheduler: &str, quota: &str| {
            let work = format!(
                "[[cgroup]]\npath = '/capped'\nquota = '{quota}'\nperiod = '100ms'\n\
                 [[thread]]\nname = 'hog'\ninstances = 2\ncgroup = '/capped'\n\
                 ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}, {{ count = 1 }}] }} }}]"
            );
            let run = run(scheduler, &work, machine, 1000, 1);
            let noted = run.notes.iter().any(|note| note.contains("does not keep cpu.max"));
            assert_eq!(noted, !run.keeps_quotas(), "{machine} {scheduler} {quota}");
            metric(&run, "quota_excess")
        };
        let ignored = ["150ms", "50ms", "20ms"].map(|quota| excess("vtime", quota));
        assert!(ignored[0] > 5.0 && ignored.is_sorted(), "{machine}: {ignored:?}");
        let kept = ["150ms", "50ms", "20ms"].map(|quota| excess("eevdf", quota));
        assert_eq!(kept, [0.0; 3], "{machine}");
    }
    let without = run("vtime", "hogs,tasks=2", "1n2c1t", 50, 1);
    assert!(!without.metrics.contains_key("quota_excess") && without.keeps_quotas());
}

/// A run without a thread that the scheduler refused at the start does less work, and does not
/// count.
#[test]
fn a_run_without_all_threads_does_not_count() {
    let refused = run("lapse,refuse_permille=500", &victims(8), "1n2c1t", 50, 1);
    assert_eq!(refused.stop.kind, StopKind::ThreadsMissing, "{:?}", refused.stop);
    assert!(!refused.counts && refused.tasks.len() < 9, "{refused:?}");
    let whole = run("lapse", &victims(8), "1n2c1t", 50, 1);
    assert!(whole.counts && whole.tasks.len() == 9);
}
