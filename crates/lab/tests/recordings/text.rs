// SPDX-License-Identifier: GPL-2.0-only
//! Recordings as other tools write them: switches and wake-ups, without system calls, attributes
//! and the machine, and with events that are missing.

use std::sync::Arc;

use scxlab_machine::Machine;
use scxlab_workload::Program;
use scxlab_workload::program::{PolicyDef, ThreadTemplate};

use super::{MS, read, run_for};
use scxlab_lab::run::Run;

const US: u64 = 1_000;

/// Text of `perf script`. Times are in ns.
#[derive(Default)]
struct Perf {
    /// Lines with their times.
    lines: Vec<(u64, String)>,
}

/// A task: name, id and the kernel's priority.
type Task<'a> = (&'a str, u32, i32);

const IDLE: Task<'_> = ("swapper", 0, 120);

impl Perf {
    fn line(&mut self, at: u64, cpu: u32, (comm, pid, _): Task<'_>, event: &str) {
        let (s, ns) = (10 + at / 1_000_000_000, at % 1_000_000_000);
        self.lines
            .push((at, format!("{comm} {pid}/{pid} [{cpu:03}] {s}.{ns:09}: sched:{event}\n")));
    }

    fn switch(&mut self, at: u64, cpu: u32, prev: Task<'_>, state: &str, next: Task<'_>) {
        let event = format!(
            "sched_switch: prev_comm={} prev_pid={} prev_prio={} prev_state={state} ==> next_comm={} \
             next_pid={} next_prio={}",
            prev.0, prev.1, prev.2, next.0, next.1, next.2
        );
        self.line(at, cpu, prev, &event);
    }

    fn wake(&mut self, at: u64, cpu: u32, by: Task<'_>, woken: Task<'_>) {
        let (comm, pid, prio) = woken;
        let event = format!("sched_waking: comm={comm} pid={pid} prio={prio} target_cpu={cpu:03}");
        self.line(at, cpu, by, &event);
    }

    /// A task on an otherwise idle CPU: it works, and a timer or a disk ends its waits.
    fn sleeper(&mut self, cpu: u32, task: Task<'_>, work: u64, wait: u64, state: &str, times: u64) {
        for i in 0..times {
            let at = i * (work + wait);
            self.wake(at, cpu, IDLE, task);
            self.switch(at + 2 * US, cpu, IDLE, "R", task);
            self.switch(at + work, cpu, task, state, IDLE);
        }
    }

    /// Ends the recording on this CPU.
    fn end(&mut self, at: u64, cpu: u32) {
        self.wake(at, cpu, IDLE, ("end", 9_999, 120));
    }

    fn program(&self) -> Program {
        let mut lines = self.lines.clone();
        lines.sort_by_key(|(at, _)| *at);
        let text: String = lines.into_iter().map(|(_, line)| line).collect();
        read(text.as_bytes(), "").unwrap().replay.program
    }
}

fn simulate(program: &Program, length: u64) -> Run {
    run_for(&Arc::new(Machine::resolve("1n2c1t").unwrap()), "eevdf", program, 1, length)
}

fn steps(run: &Run) -> f64 {
    run.metrics["work_units"].value
}

fn run_ns(run: &Run, name: &str) -> u64 {
    run.tasks.iter().filter(|task| task.name == name).map(|task| task.run_ns).sum()
}

fn thread<'a>(program: &'a Program, name: &str) -> &'a ThreadTemplate {
    let found = program.threads.iter().find(|thread| thread.name == name);
    found.unwrap_or_else(|| panic!("no thread {name}"))
}

/// A wait that a timer or a disk ended takes as long in the replay as it was recorded to, although
/// the machine's idle CPUs take a time to wake up.
#[test]
fn waits_for_interrupts_keep_their_length() {
    for (work, wait, state) in [
        (300 * US, 1_300 * US, "S"),
        (100 * US, 150 * US, "S"),
        (200 * US, 500 * US, "D"),
        (50 * US, 60 * US, "D"),
        (500 * US, 9_000 * US, "D"),
    ] {
        let mut perf = Perf::default();
        let length = (work + wait) * 60;
        perf.sleeper(0, ("task", 100, 120), work, wait, state, 60);
        perf.end(length, 1);
        let run = simulate(&perf.program(), length);
        let steps = steps(&run);
        assert!((97.0..=103.0).contains(&steps), "{work} {wait} {state}: {steps} of 100 steps");
    }
}

/// A task that came at the end, or of which events are missing, does what was recorded of it, and
/// does not work all the time. What counts stays what was recorded, too.
#[test]
fn a_task_that_ran_for_a_moment_is_no_hog() {
    let (worker, late) = (("worker", 100, 120), ("late", 200, 120));
    let length = 100 * MS;
    for wakes in [true, false] {
        let mut perf = Perf::default();
        perf.sleeper(0, worker, 300 * US, 700 * US, "S", 100);
        if wakes {
            perf.wake(length - 40 * US, 1, IDLE, late);
        }
        perf.switch(length - 38 * US, 1, IDLE, "R", late);
        perf.end(length, 0);
        let run = simulate(&perf.program(), length);
        assert!(run_ns(&run, "late") < 100 * US, "{wakes}: {} ns", run_ns(&run, "late"));
        assert!(steps(&run) < 215.0, "{wakes}: {}", steps(&run));
    }
    // Whether it worked or waited for its CPU, a task that wanted one all the time goes on.
    let mut perf = Perf::default();
    perf.switch(0, 0, IDLE, "R", worker);
    perf.switch(10 * US, 0, worker, "R", late);
    perf.switch(length, 0, late, "R", worker);
    perf.switch(length, 1, IDLE, "R", ("other", 300, 120));
    let run = simulate(&perf.program(), length);
    assert!(run_ns(&run, "worker") > length / 4, "{} ns", run_ns(&run, "worker"));
    assert!(steps(&run) < 2_100.0, "{}", steps(&run));
}

/// Acts of a task show that it runs, if the switch to it is missing.
#[test]
fn missing_switches_are_made_up_for() {
    let (parent, child) = (("parent", 100, 120), ("child", 101, 120));
    let mut perf = Perf::default();
    perf.wake(0, 0, IDLE, parent);
    perf.switch(US, 0, IDLE, "R", parent);
    perf.switch(MS, 0, parent, "S", IDLE);
    // The parent is woken and runs, without a word.
    let fork = "sched_process_fork: comm=parent pid=100 child_comm=parent child_pid=101";
    perf.line(3 * MS, 0, parent, fork);
    perf.line(
        3 * MS + US,
        0,
        parent,
        "sched_wakeup_new: comm=parent pid=101 prio=120 target_cpu=001",
    );
    perf.switch(3 * MS + 5 * US, 1, IDLE, "R", child);
    perf.switch(4 * MS, 0, parent, "S", IDLE);
    perf.line(8 * MS, 1, child, "sched_process_exit: comm=child pid=101 prio=120");
    perf.switch(8 * MS + US, 1, child, "Z", IDLE);
    // It is woken, and no event tells that it ran and slept again.
    perf.wake(8 * MS + 2 * US, 0, IDLE, parent);
    perf.switch(9 * MS, 0, IDLE, "R", ("other", 300, 120));
    perf.switch(10 * MS, 0, ("other", 300, 120), "S", IDLE);
    let length = 20 * MS;
    perf.end(length, 1);
    let program = perf.program();
    assert_eq!(thread(&program, "child").instances, 0, "the parent forks it");
    let run = simulate(&program, length);
    assert!(run.counts, "{:?}", run.stop);
    assert!(run_ns(&run, "parent") < 3 * MS, "{} ns", run_ns(&run, "parent"));
    let child = run.tasks.iter().find(|task| task.name.starts_with("child")).expect("forked");
    assert!((4 * MS..6 * MS).contains(&child.run_ns), "{} ns", child.run_ns);
}

/// A priority tells real-time tasks, and a name the kernel's own threads.
#[test]
fn priorities_and_names_tell_what_attributes_would() {
    let mut perf = Perf::default();
    let all = [("nice", 1, 130), ("fifo", 2, 49), ("stop", 3, 0), ("deadline", 4, -1)];
    let kernel = [("kworker/0:1", 5, 120), ("migration/0", 6, 0), ("rcu_preempt", 7, 120)];
    for (i, task) in all.into_iter().chain(kernel).enumerate() {
        let at = i as u64 * MS;
        perf.wake(at, 0, IDLE, task);
        perf.switch(at + US, 0, IDLE, "R", task);
        perf.switch(at + 500 * US, 0, task, "S", IDLE);
    }
    let program = perf.program();
    let names: Vec<&str> = program.threads.iter().map(|thread| &thread.name[..]).collect();
    assert_eq!(names, ["nice", "fifo", "stop", "deadline"]);
    let policy = |name| (thread(&program, name).policy, thread(&program, name).nice);
    assert_eq!(policy("nice"), (PolicyDef::Normal, 10));
    assert_eq!(policy("fifo"), (PolicyDef::Fifo(50), 0));
    assert_eq!(policy("stop"), (PolicyDef::Fifo(99), 0));
    assert_eq!(policy("deadline"), (PolicyDef::Fifo(99), 0));
}

/// With a clock of microseconds, tasks wake each other several times at the same time. The critical
/// path goes through each wait once, and is as long as the recording.
#[test]
fn the_critical_path_ends_though_tasks_wake_each_other_at_the_same_time() {
    let (ping, pong): (Task<'_>, Task<'_>) = (("ping", 1, 120), ("pong", 2, 120));
    let mut perf = Perf::default();
    for i in 0..20 {
        let at = i / 4 * 10 * US;
        perf.wake(at, 0, ping, pong);
        perf.switch(at, 0, ping, "S", pong);
        perf.wake(at, 0, pong, ping);
        perf.switch(at, 0, pong, "S", ping);
    }
    perf.end(60 * US, 0);
    let text: String = perf.lines.iter().map(|(_, line)| line.as_str()).collect();
    let recorded = read(text.as_bytes(), "").unwrap();
    let understood = scxlab_recording::understand(&recorded.history, &recorded.replay);
    let (length, pieces) = understood
        .path
        .iter()
        .fold((0, 0), |(length, pieces), part| (length + part.length, pieces + part.pieces));
    let waits: usize = recorded.history.tasks.iter().map(|task| task.sleeps.len()).sum();
    assert!(length <= 60 * US, "{length}");
    assert!(pieces > 20 && pieces <= 2 * waits as u64 + 2, "{pieces} pieces of {waits} waits");
}

/// `perf` waits for what it records, and would keep the workload from ending.
#[test]
fn the_recorder_is_no_part_of_the_workload() {
    let mut perf = Perf::default();
    perf.sleeper(0, ("app", 1, 120), 300 * US, 700 * US, "S", 30);
    perf.sleeper(1, ("perf", 2, 120), 100 * US, 900 * US, "S", 30);
    perf.end(31 * MS, 0);
    let program = perf.program();
    let names = |program: &Program| -> Vec<String> {
        program.threads.iter().map(|thread| thread.name.clone()).collect()
    };
    assert_eq!(names(&program), ["app"]);
    let note = "perf made the recording, and is no part of the workload";
    assert!(program.notes.iter().any(|n| n.contains(note)), "{:?}", program.notes);
    let text: String = perf.lines.iter().map(|(_, line)| line.as_str()).collect();
    let chosen = |parameters: &str| read(text.as_bytes(), parameters).unwrap().replay.program;
    assert_eq!(names(&chosen("tasks=perf")), ["perf"]);
    assert!(!chosen("tasks=app").notes.iter().any(|n| n.contains(note)));
}
