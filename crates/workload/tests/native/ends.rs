// SPDX-License-Identifier: GPL-2.0-only
//! Tests of how runs end: by duration, by a deadlock, by a signal, by a process that dies. Also
//! runs of rt-app files and benchmarks.

use std::path::Path;

use scxlab_workload::native::{self, NativeConfig, NativeStop, StartSignal, TaskEnd};
use scxlab_workload::{Program, WorkloadArg, parse_workload_arg};

use crate::{
    PATIENCE, Test, is_root, kill, now, parent_of, program, run_until, run_with, task, workers,
};

pub const TESTS: &[Test] = &[
    ("the_duration_ends_endless_loops", the_duration_ends_endless_loops),
    ("a_deadlock_is_reported", a_deadlock_is_reported),
    ("an_unprepared_program_is_refused", an_unprepared_program_is_refused),
    ("rtapp_examples_run", rtapp_examples_run),
    ("benchmarks_run", benchmarks_run),
    ("many_threads", many_threads),
    ("runs_side_by_side", runs_side_by_side),
    ("an_interrupted_director_ends_its_run", an_interrupted_director_ends_its_run),
    ("a_killed_process_is_reported", a_killed_process_is_reported),
];

fn the_duration_ends_endless_loops() {
    // The threads cover every op that can block and several that never do. At the end of the
    // duration, the run must stop every one of them.
    let text = "[[thread]]\nname = 'burn'\nops = [{ loop = { ops = [{ compute = '10s' }] } }]\n\
         [[thread]]\nname = 'wall'\nops = [{ compute_wall = '100s' }]\n\
         [[thread]]\nname = 'sleep'\nops = [{ sleep = '100s' }]\n\
         [[thread]]\nname = 'read'\nops = [{ read = { pipe = 'p', bytes = 1 } }]\n\
         [[thread]]\nname = 'write'\nops = [{ loop = { ops = [{ write = { pipe = 'q', bytes = 5000 } }] } }]\n\
         [[thread]]\nname = 'sem'\nops = [{ sem_wait = 's' }]\n\
         [[thread]]\nname = 'hold'\nops = [{ lock = 'm' }, { spin_lock = 'l' }, { sem_post = 'held' }, \
         { sem_post = 'held' }, { sleep = '100s' }]\n\
         [[thread]]\nname = 'lock'\nops = [{ sem_wait = 'held' }, { lock = 'm' }]\n\
         [[thread]]\nname = 'spin'\nops = [{ sem_wait = 'held' }, { spin_lock = 'l' }]\n\
         [[thread]]\nname = 'cond'\nops = [{ lock = 'n' }, { wait = { cond = 'c', mutex = 'n' } }]\n\
         [[thread]]\nname = 'touch'\nops = [{ loop = { ops = [{ touch = { size = 100000 } }] } }]\n\
         [[thread]]\nname = 'join'\nops = [{ fork = 'child' }, 'join']\n\
         [[thread]]\nname = 'child'\ninstances = 0\nops = [{ loop = { ops = ['yield'] } }]\n\
         [[thread]]\nname = 'count'\nops = [{ loop = { ops = [{ count = 1 }] } }]";
    let report = run_until(&program(text), |r| r.work_units() > 0);
    assert_eq!(report.stop, NativeStop::Duration);
    assert!(report.length_ns() >= 300_000_000);
    assert_eq!(report.tasks.len(), 14);
    for task in &report.tasks {
        assert_eq!(task.end, TaskEnd::Stopped, "{task:?}");
    }
    assert!(task(&report, "count").work_units > 0);
    assert_eq!(report.notes, [] as [String; 0]);
}

fn a_deadlock_is_reported() {
    let text = "[[thread]]\nname = 'a'\nops = [{ lock = 'm' }, { sem_post = 'x' }, { sem_wait = 'y' }, { lock = 'n' }]\n\
                [[thread]]\nname = 'b'\nops = [{ lock = 'n' }, { sem_post = 'y' }, { sem_wait = 'x' }, { lock = 'm' }]\n\
                [[thread]]\nname = 'c'\nops = [{ read = { pipe = 'p', bytes = 1 } }]";
    let report = native::run(&program(text), &NativeConfig::default()).unwrap();
    let NativeStop::Deadlock(waits) = &report.stop else { panic!("{:?}", report.stop) };
    assert_eq!(
        waits[..],
        [
            "a waits for mutex \"n\", held by b",
            "b waits for mutex \"m\", held by a",
            "c waits for bytes in pipe \"p\""
        ]
    );
}

fn an_unprepared_program_is_refused() {
    let empty = Program::default();
    let error = native::run(&empty, &NativeConfig::default()).unwrap_err();
    assert!(error.to_string().contains("has no thread to run"), "{error}");
}

/// Directory of the example files of the Debian package `rt-app`.
const RT_APP: &str = "/usr/share/doc/rt-app/examples";

fn rtapp_examples_run() {
    if !is_root("negative nice values in the examples") {
        return;
    }
    let names = ["browser-short", "mp3-short", "video-short", "spreading-tasks", "template"];
    for name in names {
        let path = Path::new(RT_APP).join(format!("{name}.json"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| {
            panic!("{}: {e}: install the Debian package rt-app", path.display())
        });
        let program = scxlab_workload::load(name, &text).unwrap();
        let config = NativeConfig { duration: Some(400_000_000), ..NativeConfig::default() };
        let report = native::run(&program, &config).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(report.errors, [], "{name}");
        let started: u32 = program.threads.iter().map(|t| t.instances).sum();
        assert!(report.tasks.len() >= started as usize, "{name}");
        assert!(report.tasks.iter().all(|t| !matches!(t.end, TaskEnd::Killed(_))), "{name}");
        let loops: u64 = report.loop_totals().iter().map(|(_, t)| t.loops).sum();
        println!("    {name}: {} threads, {loops} loops, {:?}", report.tasks.len(), report.stop);
    }
}

fn benchmarks_run() {
    for arg in [
        "hackbench,groups=1",
        "pingpong",
        "pingpong,mode=thread",
        "reflex",
        "schbench",
        "hogs",
        "sleepers,tasks=8",
        "spin_barrier",
        "sysbench_cpu",
        "sysbench_memory",
        "sysbench_threads",
    ] {
        let WorkloadArg::Program(program) = parse_workload_arg(arg).unwrap() else { panic!() };
        let report = run_until(&program, |r| r.tasks.iter().any(|t| t.run_ns > 0));
        assert_eq!(report.errors, [], "{arg}");
        println!("    {arg}: {} {}s", report.work_units(), report.unit);
        assert!(report.tasks.iter().any(|t| t.run_ns > 0), "{arg}");
        assert!(report.tasks.iter().all(|t| !matches!(t.end, TaskEnd::Killed(_))), "{arg}");
    }
}

fn many_threads() {
    let report = run_with(
        "[[thread]]\nname = 'a'\ninstances = 300\nprocess = 'p{i%3}'\nops = [{ barrier = 'all' }, { count = 1 }]\n\
         [[thread]]\nname = 'b'\ninstances = 100\nops = [{ barrier = 'all' }, { count = 1 }]",
        NativeConfig::default(),
    );
    assert_eq!(report.stop, NativeStop::AllExited);
    assert_eq!(report.work_units(), 400);
}

fn runs_side_by_side() {
    let text = "[[thread]]\nname = 'a'\ninstances = 3\nops = [{ barrier = 'b' }, { compute = '5ms' }, { count = 1 }]";
    let go = || run_with(text, NativeConfig::default()).work_units();
    let all: Vec<_> = (0..4).map(|_| std::thread::spawn(go)).collect();
    assert!(all.into_iter().all(|t| t.join().unwrap() == 3));
}

/// Finds a process of this test's runs by its name.
fn worker_named(comm: &str) -> Option<i32> {
    workers().into_iter().find(|pid| is_named(*pid, comm))
}

fn is_named(pid: i32, comm: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.trim_end() == comm)
}

/// Runs two sleepers, one of them with this name, and calls `act` with its pid once it runs.
fn meanwhile(
    comm: &'static str,
    act: impl Fn(i32),
) -> Result<native::NativeReport, native::NativeError> {
    let text = format!(
        "[[thread]]\nname = '{comm}'\nops = [{{ sleep = '900s' }}]\n\
         [[thread]]\nname = 'beside'\nops = [{{ sleep = '900s' }}]"
    );
    let start = StartSignal::new().unwrap();
    let config = NativeConfig {
        duration: Some(PATIENCE),
        on_start: Some(start.clone()),
        ..NativeConfig::default()
    };
    let program = program(&text);
    let runner = std::thread::spawn(move || native::run(&program, &config));
    let worker = loop {
        if let Some(pid) = worker_named(comm) {
            break pid;
        }
        assert!(!runner.is_finished(), "the run is over already");
    };
    // The process gets its name during the set-up, so the name does not show that the run has
    // started. An end during the set-up gives another error, so wait until the run starts.
    start.wait().unwrap();
    act(worker);
    let got = runner.join().unwrap();
    // If `act` killed the director, the kernel ends the workers, but possibly only after the run
    // has returned. The worker must be gone within the time limit.
    let deadline = now() + std::time::Duration::from_nanos(PATIENCE);
    while is_named(worker, comm) {
        assert!(now() < deadline, "{comm} is still there");
    }
    got
}

fn an_interrupted_director_ends_its_run() {
    let report = meanwhile("native-term", |pid| kill(parent_of(pid), libc::SIGTERM));
    assert_eq!(report.unwrap().stop, NativeStop::Interrupted(libc::SIGTERM));
    let killed = meanwhile("native-kill", |pid| kill(parent_of(pid), libc::SIGKILL));
    let error = killed.unwrap_err().to_string();
    assert!(error.contains("signal: 9"), "{error}");
}

fn a_killed_process_is_reported() {
    let report = meanwhile("native-victim", |pid| {
        kill(pid, libc::SIGKILL);
        worker_named("beside").into_iter().for_each(|p| kill(p, libc::SIGKILL));
    })
    .unwrap();
    assert_eq!(report.stop, NativeStop::AllExited);
    assert_eq!(task(&report, "native-victim").end, TaskEnd::Killed(9));
    assert!(report.notes.iter().any(|n| n.contains("ended by signal 9")), "{:?}", report.notes);
}
