// SPDX-License-Identifier: GPL-2.0-only
//! Tests of synchronisation objects, within a process and between processes.

use scxlab_workload::native::{self, NativeConfig, NativeReport, NativeStop, RefusedCallKind};

use crate::{Test, program, run, run_clean, task};

pub const TESTS: &[Test] = &[
    ("locks_exclude", locks_exclude),
    ("spin_locks_exclude", spin_locks_exclude),
    ("counters_need_no_lock", counters_need_no_lock),
    ("barriers_keep_rounds_apart", barriers_keep_rounds_apart),
    ("a_declared_barrier_lets_some_through", a_declared_barrier_lets_some_through),
    ("conditions_wake_one_or_all", conditions_wake_one_or_all),
    ("semaphores_count", semaphores_count),
    ("threads_share_passes_until_none_is_left", threads_share_passes_until_none_is_left),
    ("polls_wait_for_any_pipe", polls_wait_for_any_pipe),
    ("suspend_and_resume", suspend_and_resume),
    ("forks_are_joined", forks_are_joined),
    ("forks_within_a_process", forks_within_a_process),
    ("forked_instances_have_their_objects", forked_instances_have_their_objects),
    ("more_forks_than_rows", more_forks_than_rows),
    ("forks_have_limits", forks_have_limits),
    ("exec_keeps_the_place", exec_keeps_the_place),
];

/// Runs two kinds of threads that take two semaphores in opposite order, with a yield in between.
/// Without the lock around the semaphores, the threads soon deadlock, and the run does not reach
/// its end.
fn exclusion(declared: &str, lock: &str, unlock: &str, process: &str) -> NativeReport {
    let body = |first: &str, second: &str| {
        format!(
            "ops = [{{ loop = {{ times = 300, ops = [{lock} {{ sem_wait = '{first}' }}, 'yield', \
             {{ compute = '5us' }}, {{ sem_wait = '{second}' }}, {{ count = 1 }}, {{ sem_post = 'a' }}, \
             {{ sem_post = 'b' }}, {unlock}] }} }}]\n"
        )
    };
    let text = format!(
        "{declared}[[semaphore]]\nname = 'a'\nvalue = 1\n[[semaphore]]\nname = 'b'\nvalue = 1\n\
         [[thread]]\nname = 'x'\ninstances = 2\n{process}{}\
         [[thread]]\nname = 'y'\ninstances = 2\n{process}{}",
        body("a", "b"),
        body("b", "a"),
    );
    native::run(&program(&text), &NativeConfig::default()).unwrap()
}

fn excludes(declared: &str, lock: &str, unlock: &str) {
    for process in ["", "process = 'p'\n"] {
        let report = exclusion(declared, lock, unlock, process);
        assert_eq!((report.stop, report.nr_errors), (NativeStop::AllExited, 0));
        assert_eq!(report.tasks.iter().map(|t| t.work_units).sum::<u64>(), 1200);
    }
}

fn locks_exclude() {
    excludes("", "{ lock = 'l' },", "{ unlock = 'l' }");
    let barging = "[[mutex]]\nname = 'l'\nbarging = true\n";
    excludes(barging, "{ lock = 'l' },", "{ unlock = 'l' }");
    // The same program without the lock deadlocks.
    assert!(matches!(exclusion("", "", "", "").stop, NativeStop::Deadlock(_)));
}

fn spin_locks_exclude() {
    excludes("", "{ spin_lock = 'l' },", "{ spin_unlock = 'l' }");
}

fn counters_need_no_lock() {
    let report = run_clean(
        "[[thread]]\nname = 'a'\ninstances = 3\nprocess = 'p{i/2}'\n\
         ops = [{ loop = { times = 1000, ops = [{ atomic = { lines = 'l', count = 64 } }, \
         { atomic = { lines = 'own{i}' } }, { count = 1 }] } }]",
    );
    assert_eq!(report.work_units(), 3000);
}

fn barriers_keep_rounds_apart() {
    // Between two barriers each of three threads posts once, and a fourth thread waits three times.
    // The fourth thread would wait for ever if a barrier let a thread through early or twice.
    for kind in ["barrier", "spin_barrier"] {
        let report = run_clean(&format!(
            "[[thread]]\nname = 'a'\ninstances = 3\nprocess = 'p{{i/2}}'\nops = [{{ loop = {{ times = 100, ops = [\
             {{ {kind} = 'start' }}, {{ sem_post = 's' }}, {{ {kind} = 'end' }}, {{ count = 1 }}] }} }}]\n\
             [[thread]]\nname = 'b'\nops = [{{ loop = {{ times = 100, ops = [{{ {kind} = 'start' }}, \
             {{ loop = {{ times = 3, ops = [{{ sem_wait = 's' }}] }} }}, {{ {kind} = 'end' }}] }} }}]"
        ));
        assert_eq!(report.work_units(), 300);
    }
}

fn a_declared_barrier_lets_some_through() {
    let report = run_clean(
        "[[barrier]]\nname = 'b'\nparties = 2\n\
         [[thread]]\nname = 'a'\ninstances = 4\nops = [{ barrier = 'b' }, { count = 1 }]",
    );
    assert_eq!(report.work_units(), 4);
}

fn conditions_wake_one_or_all() {
    // The signaller holds the mutex, so that every waiter is in the condition's queue before the
    // signal. Each waiter posts `ready` before it waits.
    let program = "[[thread]]\nname = 'w'\ninstances = 3\nops = [{ lock = 'm' }, { sem_post = 'ready' }, \
         { wait = { cond = 'c', mutex = 'm' } }, { count = 1 }, { unlock = 'm' }, { sem_post = 'done' }]\n\
         [[thread]]\nname = 's'\nops = [{ loop = { times = 3, ops = [{ sem_wait = 'ready' }] } }, \
         { lock = 'm' }, { signal = 'c' }, { unlock = 'm' }, { sem_wait = 'done' }, { count = 10 }, \
         { lock = 'm' }, { broadcast = 'c' }, { unlock = 'm' }]";
    for declared in ["", "[[mutex]]\nname = 'm'\nbarging = true\n"] {
        let report = run_clean(&format!("{declared}{program}"));
        assert_eq!(report.work_units(), 13);
        assert_eq!(task(&report, "s").work_units, 10);
    }
}

fn semaphores_count() {
    let report = run_clean(
        "[[semaphore]]\nname = 's'\nvalue = 5\n\
         [[thread]]\nname = 'a'\ninstances = 3\nops = [{ loop = { times = 5, ops = [{ sem_wait = 's' }, { count = 1 }] } }]\n\
         [[thread]]\nname = 'b'\nops = [{ loop = { times = 10, ops = [{ sem_post = 's' }] } }]",
    );
    assert_eq!(report.work_units(), 15);
}

fn threads_share_passes_until_none_is_left() {
    let report = run_clean(
        "[[semaphore]]\nname = 's'\nvalue = 1000\n\
         [[thread]]\nname = 'a'\ninstances = 3\nprocess = 'p{i/2}'\nops = [{ loop = { ops = [\
         { take_or_exit = 's' }, { compute = '5us' }, { count = 1 }] } }]",
    );
    assert_eq!(report.work_units(), 1000);
}

fn polls_wait_for_any_pipe() {
    for kind in ["pipe", "socket"] {
        // The reader gets each message of either writer once. Its last poll finds nothing and ends
        // by the timeout.
        let report = run_clean(&format!(
            "[[pipe]]\nname = 'p{{i}}'\nkind = '{kind}'\n\
             [[thread]]\nname = 'w'\ninstances = 2\nops = [{{ loop = {{ times = 100, ops = [\
             {{ write = {{ pipe = 'p{{i}}', bytes = 10 }} }}, 'yield'] }} }}]\n\
             [[thread]]\nname = 'r'\nops = [{{ loop = {{ times = 200, ops = [\
             {{ poll = {{ pipes = ['p0', 'p1'], bytes = 10 }} }}, {{ count = 1 }}] }} }}, \
             {{ poll = {{ pipes = ['p0', 'p1'], bytes = 10, timeout = '20ms' }} }}]"
        ));
        assert_eq!(report.work_units(), 200);
        let reader = task(&report, "r");
        assert!(reader.ended_ns - reader.began_ns >= 20_000_000, "{kind}");
    }
    // A poll that polls again outlasts its timeout.
    let report = run_clean(
        "[[thread]]\nname = 'w'\nops = [{ sleep = '30ms' }, { write = { pipe = 'p', bytes = 10 } }]\n\
         [[thread]]\nname = 'r'\nops = [{ poll = { pipes = ['p'], bytes = 10, timeout = '5ms', \
         again = true } }, { count = 1 }]",
    );
    assert_eq!(report.work_units(), 1);
    let reader = task(&report, "r");
    assert!(reader.ended_ns - reader.began_ns >= 20_000_000);
    // A poll that nothing can end is a deadlock, and is reported with a pipe's name.
    let program =
        program("[[thread]]\nname = 'r'\nops = [{ poll = { pipes = ['p', 'q'], bytes = 1 } }]");
    let report = native::run(&program, &NativeConfig::default()).unwrap();
    let waits = "r waits for bytes in pipe \"p\" or another that it polls".to_owned();
    assert_eq!(report.stop, NativeStop::Deadlock(vec![waits]));
}

fn suspend_and_resume() {
    // A resume that comes too early is lost, so thread `b` repeats it until `a` has surely
    // continued.
    let report = run_clean(
        "[[thread]]\nname = 'a'\nops = [{ suspend = 'x' }, { count = 1 }, { sem_post = 'awake' }]\n\
         [[thread]]\nname = 'b'\nops = [{ sleep = '20ms' }, { loop = { times = 50, ops = [\
         { resume = 'x' }, { sleep = '2ms' }] } }, { sem_wait = 'awake' }]",
    );
    assert_eq!(report.work_units(), 1);
}

fn forks_are_joined() {
    let report = run_clean(
        "[[thread]]\nname = 'p'\nops = [{ loop = { times = 5, ops = [{ fork = 'c' }, { fork = 'c' }, 'join', \
         { loop = { times = 2, ops = [{ sem_wait = 'done' }] } }] } }, { count = 100 }]\n\
         [[thread]]\nname = 'c'\ninstances = 0\nops = [{ compute = '100us' }, { sem_post = 'done' }, { count = 1 }]",
    );
    assert_eq!(report.work_units(), 110);
    assert_eq!(report.tasks.len(), 11);
    let (first, last) = (task(&report, "c-0"), task(&report, "c-9"));
    assert!(first.forked && first.ended_ns <= last.began_ns, "a join waits");
    assert_eq!(first.tid, first.tgid);
    assert!(first.run_ns > 0);
}

fn forks_within_a_process() {
    let report = run_clean(
        "[[thread]]\nname = 'p'\nprocess = 'x'\nops = [{ loop = { times = 20, ops = [{ fork = 'c' }] } }, 'join']\n\
         [[thread]]\nname = 'c'\ninstances = 0\nprocess = 'x'\nops = [{ fork = 'g' }, 'join', { count = 1 }]\n\
         [[thread]]\nname = 'g'\ninstances = 0\nops = [{ count = 1000 }]",
    );
    assert_eq!(report.work_units(), 20_020);
    let parent = task(&report, "p").tgid;
    assert!((0..20).all(|i| task(&report, &format!("c-{i}")).tgid == parent));
    assert!((0..20).all(|i| task(&report, &format!("g-{i}")).tgid != parent));
}

fn forked_instances_have_their_objects() {
    let report = run_clean(
        "[[thread]]\nname = 'p'\nops = [{ fork = 'c' }, { fork = 'c' }, { sem_wait = 'd0' }, { sem_wait = 'd1' }]\n\
         [[thread]]\nname = 'c'\ninstances = 0\nops = [{ sem_post = 'd{i}' }, { count = 1 }]",
    );
    assert_eq!(report.work_units(), 2);
}

fn exec_keeps_the_place() {
    let report = run_clean(
        "[[thread]]\nname = 'a'\nops = [{ loop = { times = 3, ops = [{ count = 1 }, 'exec', { count = 10 }, \
         { sem_post = 's' }, { touch = { size = 10000 } }] } }, { count = 1000 }]\n\
         [[thread]]\nname = 'b'\nops = [{ loop = { times = 3, ops = [{ sem_wait = 's' }] } }]",
    );
    assert_eq!(report.work_units(), 1033);
    let a = task(&report, "a");
    assert_eq!(a.tid, a.tgid);
}

fn more_forks_than_rows() {
    // The program makes 17,000 forks one after another, in threads of one process, so that the run
    // reuses the first slots.
    let report = run_clean(
        "[[thread]]\nname = 'p'\nprocess = 'x'\nops = [{ loop = { times = 17000, ops = [{ fork = 'c' }, 'join'] } }]\n\
         [[thread]]\nname = 'c'\ninstances = 0\nprocess = 'x'\nops = [{ count = 1 }]",
    );
    assert_eq!(report.work_units(), 17_000);
    assert_eq!(report.tasks.len() as u64 + report.unlisted.tasks, 17_001);
    assert!(report.unlisted.tasks > 0 && report.unlisted.run_ns > 0);
    assert_eq!(report.tasks.last().map(|t| t.name.as_str()), Some("c-16999"));
}

fn forks_have_limits() {
    // Three forks are refused: the two beyond the 1024 forks for which names with {i} are prepared,
    // and one into another process that lives. Only the threads of a living process may add a
    // thread to it.
    let report = run(
        "[[thread]]\nname = 'p'\nprocess = 'x'\nops = [{ loop = { times = 1026, ops = [{ fork = 'c' }, 'join'] } }, \
         { fork = 'd' }, { sem_post = 'end' }]\n\
         [[thread]]\nname = 'c'\ninstances = 0\nprocess = 'x'\nops = [{ sem_post = 's{i}' }, { count = 1 }]\n\
         [[thread]]\nname = 'd'\nprocess = 'y'\nops = [{ sem_wait = 'end' }]",
    );
    assert_eq!((report.work_units(), report.nr_errors), (1024, 3));
    let kinds: Vec<_> = report.errors.iter().map(|e| e.what).collect();
    assert_eq!(
        kinds,
        [RefusedCallKind::ForkLimit, RefusedCallKind::ForkLimit, RefusedCallKind::ForeignFork]
    );
    assert!(report.errors[2].to_string().contains("thread \"p\": fork d"), "{}", report.errors[2]);
}
