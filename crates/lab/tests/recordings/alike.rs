// SPDX-License-Identifier: GPL-2.0-only
//! Whether a replay is like its recording, and what is done about mutexes if it is not.

use std::sync::Arc;

use scxlab_lab::recorded::{Likeness, Recorded};
use scxlab_machine::Machine;
use scxlab_trace::{PerfettoSink, Tracer};
use scxlab_workload::{Program, WorkloadArg, load, parse_workload_arg};

use super::{Buffer, CASES, LENGTH, MS, Terms, percent, read, record_on, run_on, run_with};

/// Longer than any program runs that ends by itself.
const LONG: u64 = 100_000 * MS;

fn generated(text: &str) -> Program {
    let Ok(WorkloadArg::Program(program)) = parse_workload_arg(text) else { panic!("{text}") };
    *program
}

fn recorded(machine: &Arc<Machine>, program: &Program, terms: Terms) -> Recorded {
    read(&record_on(machine, program, terms).1, "").unwrap()
}

fn off(likeness: &Likeness) -> Vec<&'static str> {
    likeness.pairs().into_iter().filter(|pair| pair.differs).map(|pair| pair.name).collect()
}

/// Threads that yield while they hold one of several mutexes mostly find the others free, so that
/// hardly any use shows. With inferred uses, these replays took 0.2 to 0.5 times as long as the
/// originals.
#[test]
fn threads_that_yield_with_a_mutex_keep_their_speed() {
    let cases = [
        ("1n4c1t", 6, 8),
        ("1n2c1t", 4, 3),
        ("2n2c1t", 8, 8),
        ("1n4c1t", 12, 8),
        ("1n1c1t", 12, 8),
    ];
    let (mut wrong, mut noted) = (Vec::new(), 0);
    for (machine, threads, locks) in cases {
        let machine = Arc::new(Machine::resolve(machine).unwrap());
        let text = format!(
            "sysbench_threads,threads={threads},thread_locks={locks},yields=100,requests=600"
        );
        let program = generated(&text);
        let (original, bytes) = record_on(&machine, &program, Terms::noisy(1, LONG));
        let recorded = read(&bytes, "").unwrap();
        let replay = &recorded.replay.program;
        noted += u32::from(replay.notes.iter().any(|note| note.contains("mutexes are free")));
        let again = run_on(&machine, "eevdf", replay, Terms::noisy(2, LONG));
        let apart = percent(again.virtual_ns as f64, original.virtual_ns as f64);
        let likeness = recorded.likeness().unwrap();
        println!("{} {threads} {locks}: {apart:+.1} %, off: {:?}", machine.name, off(&likeness));
        // What is far off is told.
        if apart.abs() > 30.0 || (apart.abs() > 20.0 && off(&likeness).is_empty()) {
            wrong.push(format!("{} {threads} {locks}: {apart:+.1} %", machine.name));
        }
    }
    assert!(wrong.is_empty() && noted > 0, "{noted}: {wrong:#?}");
}

/// What the recording says of itself is what the recorded run measured.
#[test]
fn the_figures_of_a_recording_are_those_of_its_run() {
    for case in CASES.iter().filter(|case| case.name != "guests") {
        let machine = Arc::new(Machine::resolve(case.machine).unwrap());
        let program = load("original.toml", case.text).unwrap();
        let (run, bytes) = record_on(&machine, &program, Terms::noisy(1, LENGTH));
        let recorded = read(&bytes, "").unwrap().likeness().unwrap().recorded;
        let time = |of: fn(&scxlab_lab::run::TaskResult) -> u64| run.tasks.iter().map(of).sum();
        let count = |name| super::metric(&run, name) as u64;
        let figures = [
            ("length", recorded.length, run.virtual_ns),
            ("CPU time", recorded.run_ns, time(|task| task.run_ns)),
            ("in run queues", recorded.queue_ns, time(|task| task.wait_ns.unwrap())),
            ("voluntary", recorded.voluntary, count("switches_voluntary")),
            ("involuntary", recorded.involuntary, count("switches_involuntary")),
            ("wake-ups", recorded.wakeups, count("wakeups")),
        ];
        for (name, figure, measured) in figures {
            // Tasks that run or wait at the end count in the run only; a start is no wake-up there.
            let near = figure.abs_diff(measured) <= 20 + measured / 50;
            assert!(near, "{}: {name}: {figure}, measured {measured}", case.name);
        }
    }
}

/// A recording of a simulated workload is like its replay, whatever its scale; with half the work
/// it is not.
#[test]
fn a_replay_that_does_other_work_is_not_alike() {
    let case = CASES.iter().find(|case| case.name == "request-response").unwrap();
    let machine = Arc::new(Machine::resolve(case.machine).unwrap());
    let program = load("original.toml", case.text).unwrap();
    let (_, bytes) = record_on(&machine, &program, Terms::noisy(1, LENGTH));
    for parameters in ["", "scale=2", "repeat=2"] {
        let likeness = read(&bytes, parameters).unwrap().likeness().unwrap();
        assert_eq!(off(&likeness), [""; 0], "{parameters}: {likeness:?}");
        let mut other = likeness.clone();
        other.replayed.units /= 2;
        other.replayed.wakeups *= 2;
        assert_eq!(off(&other), ["units of work", "wake-ups"]);
    }
}

/// A recording that was made under another scheduler cannot be compared with a run under eevdf.
#[test]
fn the_recordings_scheduler_is_known() {
    let machine = Arc::new(Machine::resolve("2c").unwrap());
    let program = generated("sleepers,tasks=3,duration=50ms");
    for (scheduler, comparable) in [("eevdf", true), ("vtime", false)] {
        let bytes = Buffer::default();
        let sink = PerfettoSink::new(bytes.clone(), &machine).under(scheduler);
        let terms = Terms::exact(1, 50 * MS);
        let (_, mut tracer) =
            run_with(&machine, scheduler, &program, terms, Tracer::with_sink(sink));
        tracer.finish().unwrap();
        let bytes = std::mem::take(&mut *bytes.0.lock().unwrap());
        let recorded = read(&bytes, "").unwrap();
        assert_eq!(recorded.imported.scheduler.as_deref(), Some(scheduler));
        match recorded.likeness() {
            Ok(_) => assert!(comparable),
            Err(why) => assert!(!comparable && why.contains("vtime"), "{why}"),
        }
    }
    assert!(recorded(&machine, &program, Terms::exact(1, 50 * MS)).likeness().is_ok());
}

/// The timeout of a poll is pending while a server waits, so that its CPU does not sleep deeply,
/// and the server polls again after it.
#[test]
fn the_timeouts_of_polls_are_replayed() {
    for (machine, sleep) in [("laptop-4c8t", 3), ("1n2c1t", 25), ("2n4c2t", 55)] {
        let text = format!(
            "[[thread]]\nname = 'client'\nops = [{{ loop = {{ ops = [{{ sleep = '{sleep}ms' }}, \
             {{ compute = '100us' }}, {{ write = {{ pipe = 'ask', bytes = 100 }} }}, \
             {{ read = {{ pipe = 'answer', bytes = 10 }} }}, {{ count = 1 }}] }} }}]\n\
             [[thread]]\nname = 'server'\nops = [{{ loop = {{ ops = [{{ poll = {{ pipes = ['ask'], \
             bytes = 100, timeout = '10ms', again = true }} }}, {{ compute = '200us' }}, \
             {{ write = {{ pipe = 'answer', bytes = 10 }} }}] }} }}]"
        );
        let machine = Arc::new(Machine::resolve(machine).unwrap());
        let program = load("w.toml", &text).unwrap();
        let terms = |seed| Terms::noisy(seed, 1000 * MS);
        let (original, bytes) = record_on(&machine, &program, terms(1));
        let recorded = read(&bytes, "").unwrap();
        let replayed = run_on(&machine, "eevdf", &recorded.replay.program, terms(1));
        let about = format!("{}, {sleep} ms", machine.name);
        for name in ["wakeup_latency_p50", "wakeups", "cpu_busy", "throughput"] {
            let apart = percent(super::metric(&replayed, name), super::metric(&original, name));
            assert!(apart.abs() <= 5.0, "{about}: {name} {apart:+.1} %");
        }
        assert_eq!(off(&recorded.likeness().unwrap()), [""; 0], "{about}");
    }
}

/// A task that waits at the end of the recording has waited until then, if no event is missing.
#[test]
fn waits_last_until_the_end() {
    let text = "[[thread]]\nname = 'hog'\npolicy = { fifo = 2 }\ncpus = '0'\ndelay = '100ms'\n\
                ops = [{ loop = { ops = [{ compute = '1ms' }, { count = 1 }] } }]\n\
                [[thread]]\nname = 'starved'\npolicy = { fifo = 1 }\ncpus = '0'\n\
                ops = [{ loop = { ops = [{ compute = '1ms' }] } }]";
    let machine = Arc::new(Machine::resolve("1n2c1t").unwrap());
    let terms = Terms::exact(1, 1000 * MS);
    let recorded = recorded(&machine, &load("w.toml", text).unwrap(), terms);
    let likeness = recorded.likeness().unwrap();
    assert!(likeness.recorded.queue_ns > 890 * MS, "{likeness:?}");
    assert_eq!(off(&likeness), [""; 0], "{likeness:?}");
}

#[test]
fn a_parameter_is_given_once() {
    let machine = Arc::new(Machine::resolve("1c").unwrap());
    let (_, bytes) = record_on(&machine, &generated("hogs,tasks=1"), Terms::exact(1, 10 * MS));
    assert!(read(&bytes, "tasks=h*,tasks=x").is_ok());
    let error = read(&bytes, "scale=2,scale=3").err().unwrap().to_string();
    assert!(error.contains("scale is given twice"), "{error}");
}

/// A file whose clock jumps far ahead is not simulated for that long.
#[test]
fn a_recording_of_years_is_not_compared() {
    let switch = |s: u64, prev: &str, next: &str| {
        format!(
            "{prev} (1) [000] d..2. {s}.000000: sched_switch: prev_comm=a prev_pid=10 \
             prev_prio=120 prev_state=S ==> next_comm={next} next_pid=11 next_prio=120\n"
        )
    };
    let text =
        format!("# tracer: nop\n{}{}", switch(1, "a-10", "b"), switch(9_000_000_000, "a-10", "b"));
    let why = read(text.as_bytes(), "").unwrap().likeness().unwrap_err();
    assert!(why.contains("longer than the 86400 s"), "{why}");
}
