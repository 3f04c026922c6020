// SPDX-License-Identifier: GPL-2.0-only
//! Real-time tasks whose parameters another task changes: their place in the queue of their
//! priority, and the end of a deadline task's throttling. Wake-ups of other tasks beside them.

use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::{Policy, Sys};
use scxlab_machine::TaskId;
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::CpuId;
use scxlab_testkit::checks;
use scxlab_testkit::sim::{attach, kernel, run_ns};

const MS: u64 = 1_000_000;

/// Three SCHED_FIFO tasks that never sleep, on one CPU. `a` has the highest priority and runs.
const THREE: &str = "
    duration = '1s'
    [[thread]]
    name = 'a'
    policy = { fifo = 20 }
    ops = [{ loop = { ops = [{ compute = '1ms' }] } }]
    [[thread]]
    name = 'b'
    policy = { fifo = 10 }
    ops = [{ loop = { ops = [{ compute = '1ms' }] } }]
    [[thread]]
    name = 'c'
    policy = { fifo = 10 }
    ops = [{ loop = { ops = [{ compute = '1ms' }] } }]";

fn started(workload: &str) -> Kernel {
    let mut k = kernel("1c", workload, 1);
    k.start();
    k.advance(10 * MS);
    k
}

fn task(k: &Kernel, name: &str) -> TaskId {
    k.tasks.iter().find(|t| t.name == name).expect("it exists").id
}

/// Runs for 10 ms and returns the only task that got CPU time meanwhile.
fn only_one_that_runs(k: &mut Kernel) -> String {
    let before: Vec<(String, u64)> =
        k.tasks.iter().map(|t| (t.name.clone(), t.account.run_ns)).collect();
    k.advance(k.now + 10 * MS);
    checks::after(k);
    let ran: Vec<String> = before
        .into_iter()
        .filter(|(name, ns)| k.tasks.iter().any(|t| t.name == *name && t.account.run_ns > *ns))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(ran.len(), 1, "{ran:?}");
    ran[0].clone()
}

fn set_fifo(k: &mut Kernel, name: &str, prio: u8) {
    let task = task(k, name);
    k.user(|k| k.set_policy(task, Policy::Fifo { prio })).unwrap();
}

#[test]
fn a_lowered_priority_puts_a_task_before_its_new_equals() {
    let mut k = started(THREE);
    set_fifo(&mut k, "a", 10);
    assert_eq!(only_one_that_runs(&mut k), "a");
    set_fifo(&mut k, "a", 9);
    assert_eq!(only_one_that_runs(&mut k), "b");
}

#[test]
fn a_raised_priority_puts_a_task_behind_its_new_equals() {
    let mut k = started(THREE);
    set_fifo(&mut k, "c", 20);
    assert_eq!(only_one_that_runs(&mut k), "a");
    set_fifo(&mut k, "b", 20);
    set_fifo(&mut k, "a", 1);
    assert_eq!(only_one_that_runs(&mut k), "c");
}

#[test]
fn a_new_affinity_leaves_a_task_in_its_place() {
    let mut k = started(THREE);
    set_fifo(&mut k, "a", 10);
    for name in ["a", "b"] {
        let task = task(&k, name);
        k.user(|k| k.set_affinity(task, &CpuMask::of(1, [CpuId(0)]))).unwrap();
    }
    assert_eq!(only_one_that_runs(&mut k), "a");
    set_fifo(&mut k, "a", 1);
    assert_eq!(only_one_that_runs(&mut k), "b");
}

/// The task has used its budget of 2 ms in the first 10 ms, and would wait for the next period.
/// Under another policy it must run at once. Throttling begins at a tick, so the task may use more
/// than its budget.
#[test]
fn a_throttled_deadline_task_runs_under_another_policy() {
    const ONE: &str = "
        duration = '1s'
        [[thread]]
        name = 'd'
        policy = { deadline = { runtime = '2ms', deadline = '500ms', period = '500ms' } }
        ops = [{ loop = { ops = [{ compute = '1ms' }] } }]";
    for policy in [Policy::Fifo { prio: 10 }, Policy::RoundRobin { prio: 10 }, Policy::Normal] {
        let mut k = started(ONE);
        let used = run_ns(&k, "d");
        assert!((2 * MS..7 * MS).contains(&used), "throttled after {used} ns");
        let d = task(&k, "d");
        k.user(|k| k.set_policy(d, policy)).unwrap();
        k.advance(20 * MS);
        let more = run_ns(&k, "d") - used;
        assert!(more > 5 * MS, "{policy:?}: {more} ns in 10 ms, of which ticks have counted 6");
        // Back under SCHED_DEADLINE, the task has a new budget, which the replenishment that was
        // due for the first budget must not touch.
        let deadline = Policy::Deadline { runtime: 2 * MS, deadline: 900 * MS, period: 900 * MS };
        k.user(|k| k.set_policy(d, deadline)).unwrap();
        k.advance(100 * MS);
        let last = run_ns(&k, "d");
        assert!(last - used - more > 2 * MS, "{policy:?}: {last} ns");
        k.advance(800 * MS);
        assert_eq!(run_ns(&k, "d"), last, "{policy:?}: throttled until 900 ms");
        checks::after(&k);
    }
}

/// A CPU whose tasks of the default class are all SCHED_IDLE counts as idle for a wake-up, but not
/// if a real-time task runs there (`sched_idle_cpu()` compares with `rq->nr_running`, which counts
/// all classes).
#[test]
fn a_wakeup_avoids_a_cpu_with_a_real_time_task() {
    let on_cpu_1 = |policy: &str| {
        let text = format!(
            "duration = '1s'
            [[thread]]
            name = 'idle'
            policy = 'idle'
            cpus = [1]
            ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]
            [[thread]]
            name = 'other'
            policy = {policy}
            cpus = [1]
            ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]
            [[thread]]
            name = 'busy'
            cpus = [0]
            ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]
            [[thread]]
            name = 'sleeper'
            ops = [{{ loop = {{ ops = [{{ sleep = '5ms' }}, {{ compute = '100us' }}] }} }}]"
        );
        let mut k = kernel("2c", &text, 1);
        k.start();
        let mut woken = 0;
        for _ in 0..1000 {
            k.advance(k.now + MS);
            let sleeper = &k.tasks[task(&k, "sleeper")];
            woken += u32::from(sleeper.on_rq && sleeper.cpu == CpuId(1));
        }
        checks::after(&k);
        (woken, run_ns(&k, "sleeper"))
    };
    let ((beside_idle, _), (beside_fifo, ran)) = (on_cpu_1("'idle'"), on_cpu_1("{ fifo = 10 }"));
    assert!(beside_idle > 0, "a CPU with SCHED_IDLE tasks only is never chosen");
    assert_eq!(beside_fifo, 0, "times that it was queued behind the real-time task");
    assert!(ran > 15 * MS, "{ran} of about 20 ms");
}

/// A task that wakes up another one is preempted when its call returns, not when it blocks or
/// computes next: the other one posts before the waker waits, which then need not wait. The other
/// one has a real-time policy, or a shorter slice, for which the default class only asks for a
/// lazy reschedule.
#[test]
fn a_waker_is_preempted_before_its_next_call() {
    for other in ["policy = { fifo = 10 }", "slice = '100us'"] {
        let text = format!(
            "duration = '1s'
            [[semaphore]]
            name = 'asked'
            value = 0
            [[semaphore]]
            name = 'answered'
            value = 0
            [[thread]]
            name = 'waker'
            ops = [{{ loop = {{ ops = [
                {{ compute = '200us' }}, {{ sem_post = 'asked' }}, {{ sem_wait = 'answered' }}] }} }}]
            [[thread]]
            name = 'other'
            {other}
            ops = [{{ loop = {{ ops = [{{ sem_wait = 'asked' }}, {{ sem_post = 'answered' }}] }} }}]"
        );
        let mut k = kernel("1c", &text, 1);
        k.start();
        k.advance(1000 * MS);
        let account = |name: &str| &k.tasks[task(&k, name)].account;
        let (waker, other) = (account("waker"), account("other"));
        assert!(other.switches_voluntary > 4_000, "{other:?}");
        assert!(waker.switches_voluntary < other.switches_voluntary / 100, "{waker:?}");
        assert!(waker.switches_involuntary > other.switches_voluntary * 9 / 10, "{waker:?}");
        checks::after(&k);
    }
}

/// A deadline task that never sleeps gets its bandwidth and no more, although a tick notices the
/// end of a budget up to 4 ms late, and what it leaves goes to a normal task.
#[test]
fn a_deadline_task_gets_its_bandwidth() {
    for (runtime, deadline, period) in
        [(1, 10, 10), (2, 10, 10), (3, 10, 10), (5, 10, 10), (7, 10, 10), (9, 10, 10)]
            .into_iter()
            .chain([(5, 30, 30), (20, 50, 100), (3, 4, 40), (1, 3, 7), (30, 100, 100)])
    {
        let text = format!(
            "duration = '10s'
            [[thread]]
            name = 'd'
            cpus = [0]
            policy = {{ deadline = {{ runtime = '{runtime}ms', deadline = '{deadline}ms', \
                                      period = '{period}ms' }} }}
            ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]
            [[thread]]
            name = 'normal'
            cpus = [0]
            ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]"
        );
        for machine in ["1c", "4c"] {
            let mut k = kernel(machine, &text, 1);
            k.start();
            k.advance(10_000 * MS);
            checks::after(&k);
            let due = 10_000.0 * f64::from(runtime) / f64::from(period);
            let had = run_ns(&k, "d") as f64 / 1e6;
            // At the end, a task may be ahead by a tick, or a period may have only begun.
            let most = f64::from(runtime + 8);
            assert!(
                (had - due).abs() <= most,
                "{runtime}/{period} on {machine}: {had} of {due} ms"
            );
            let rest = run_ns(&k, "normal") as f64 / 1e6;
            assert!((rest - (10_000.0 - due)).abs() <= most + 10.0, "{runtime}/{period}: {rest}");
        }
    }
}

/// A task with more work in a period than its budget falls behind at the rate of its bandwidth.
#[test]
fn work_beyond_the_budget_takes_further_periods() {
    let text = "duration = '3s'
        [[thread]]
        name = 'd'
        policy = { deadline = { runtime = '2ms', deadline = '10ms', period = '10ms' } }
        ops = [{ loop = { ops = [{ timer = { name = 't', period = '10ms', mode = 'absolute' } }, \
                                 { compute = '3ms' }] } }]";
    let mut k = kernel("1c", text, 1);
    k.start();
    k.advance(3_000 * MS);
    let had = run_ns(&k, "d");
    assert!((590 * MS..=612 * MS).contains(&had), "{had} ns, due are 600 ms");
}

/// Three deadline tasks on four CPUs: each has a CPU of its own, and its bandwidth.
#[test]
fn deadline_tasks_spread_over_the_cpus() {
    let text = "duration = '3s'
        [[thread]]
        name = 'd-{i}'
        instances = 3
        policy = { deadline = { runtime = '8ms', deadline = '10ms', period = '10ms' } }
        ops = [{ loop = { ops = [{ compute = '1ms' }] } }]";
    let mut k = kernel("4c", text, 1);
    k.start();
    k.advance(3_000 * MS);
    for name in ["d-0", "d-1", "d-2"] {
        let had = run_ns(&k, name);
        assert!((2_380 * MS..=2_416 * MS).contains(&had), "{name}: {had} ns, due are 2,400 ms");
    }
}

/// A preempted real-time task goes on at once on a CPU that runs nothing, or a lower task; and a
/// CPU whose real-time task leaves takes one that waits elsewhere.
#[test]
fn no_real_time_task_waits_while_a_cpu_runs_a_lower_one() {
    let text = |cpus: u32, low: u32| {
        format!(
            "duration = '1s'
            [[thread]]
            name = 'high'
            cpus = [0]
            policy = {{ fifo = 50 }}
            ops = [{{ loop = {{ ops = [{{ compute = '4ms' }}, {{ sleep = '6ms' }}] }} }}]
            [[thread]]
            name = 'low-{{i}}'
            instances = {low}
            policy = {{ fifo = 10 }}
            ops = [{{ set_affinity = '0' }}, {{ compute = '1ms' }}, 'clear_affinity', \
                   {{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]
            [[thread]]
            name = 'normal-{{i}}'
            instances = {cpus}
            ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]"
        )
    };
    for (machine, cpus) in [("2c", 2), ("3c", 3), ("8c", 8), ("2n2c2t", 8)] {
        // One low task less than CPUs: none may wait for more than the first milliseconds, in which
        // all are bound to CPU 0.
        let low = cpus - 1;
        let mut k = kernel(machine, &text(cpus, low), 1);
        k.start();
        k.advance(1_000 * MS);
        checks::after(&k);
        for i in 0..low {
            let had = run_ns(&k, &format!("low-{i}"));
            assert!(had > 900 * MS, "{machine}: low-{i} had {had} ns");
        }
        assert!(run_ns(&k, "high") > 390 * MS, "{machine}");
    }
}

/// Seconds of run time of the tasks whose name begins with `n`, beside real-time tasks that take
/// all CPUs for ten seconds.
fn starved(machine: &str, scheduler: &str, workload: &str) -> f64 {
    let mut k = kernel(machine, workload, 1);
    if let Some(shipped) = scxlab_sched::find(scheduler) {
        attach(&mut k, scheduler, shipped.object, &[]);
    }
    k.start();
    k.advance(10_000 * MS);
    checks::after(&k);
    assert!(k.ext.exits.is_empty(), "{scheduler} on {machine}: {:?}", k.ext.exits);
    let normal = k.tasks.iter().filter(|t| t.name.starts_with('n'));
    normal.map(|t| t.account.run_ns as f64 / 1e9).sum()
}

/// The servers give the default class and sched_ext 50 ms of each second of the CPU on which their
/// tasks wait, whatever their number, so that no watchdog finds a stalled task.
#[test]
fn real_time_tasks_leave_a_twentieth() {
    for (machine, cpus) in [("1c", 1), ("2c", 2), ("1n2c2t", 4)] {
        let schedulers = ["eevdf", "vtime", "fair", "o1"].into_iter();
        for (scheduler, nr) in schedulers.flat_map(|s| [(s, 1), (s, 5)]) {
            let workload = format!(
                "duration = '10s'\n[[thread]]\nname = 'rt'\ninstances = {cpus}\n\
                 policy = {{ fifo = 10 }}\nops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]\n\
                 [[thread]]\nname = 'n'\ninstances = {nr}\ncpus = '0'\n\
                 ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]"
            );
            let share = starved(machine, scheduler, &workload) / 10.0;
            assert!((0.04..0.06).contains(&share), "{scheduler}, {nr} on {machine}: {share}");
        }
    }
}

/// Where real-time tasks leave enough time, the servers change nothing: the others get that time.
#[test]
fn servers_do_not_add_to_what_real_time_tasks_leave() {
    for scheduler in ["eevdf", "vtime"] {
        for (run, sleep) in [(5, 5), (90, 10), (400, 100)] {
            let workload = format!(
                "duration = '10s'\n[[thread]]\nname = 'rt'\npolicy = {{ fifo = 10 }}\n\
                 ops = [{{ loop = {{ ops = [{{ compute = '{run}ms' }}, {{ sleep = '{sleep}ms' }}] }} }}]\n\
                 [[thread]]\nname = 'n'\nops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]"
            );
            let share = starved("1c", scheduler, &workload) / 10.0;
            let left = f64::from(sleep) / f64::from(run + sleep);
            assert!((share - left).abs() < 0.02, "{scheduler}, {run} of {run}+{sleep}: {share}");
        }
    }
}
