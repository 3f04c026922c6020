// SPDX-License-Identifier: GPL-2.0-only
//! Traces of simulated runs beyond scheduling: who woke a task, the system calls of threads, and
//! attributes. A recording of a workload rests on them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use scxlab_lab::input::{NoFiles, SchedulerInput};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::run::Run;
use scxlab_lab::sim::{SimSpec, simulate};
use scxlab_machine::Machine;
use scxlab_trace::event::{Event, EventKind, PrevState};
use scxlab_trace::{Call, Names, Sink, TaskPolicy, Tracer};
use scxlab_workload::load;

const MS: u64 = 1_000_000;

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<(Vec<Event>, Names)>>);

impl Sink for Seen {
    fn event(&mut self, event: &Event, names: &Names) {
        let mut seen = self.0.lock().unwrap();
        seen.0.push(*event);
        if let EventKind::Attributes { .. } = event.kind {
            seen.1 = names.clone();
        }
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn run(text: &str, scheduler: &str, machine: &str, tracer: Tracer) -> Run {
    let machine = Arc::new(Machine::resolve(machine).unwrap());
    let scheduler = SchedulerInput::resolve(scheduler, &NoFiles).unwrap();
    let workload = load("w.toml", text).unwrap();
    let scheduler = Prepared::simulated(&scheduler, &machine).unwrap();
    let spec =
        SimSpec { duration: Some(50 * MS), ..SimSpec::new(&machine, &workload, &scheduler, 1) };
    simulate(&spec, tracer, &|_| None).unwrap().0
}

fn traced(text: &str, scheduler: &str, machine: &str) -> (Vec<Event>, Names) {
    let seen = Seen::default();
    run(text, scheduler, machine, Tracer::with_sink(seen.clone()));
    let seen = seen.0.lock().unwrap();
    seen.clone()
}

/// A hog on the only CPU: every timer interrupt finds it running.
const HOG_AND_SLEEPER: &str = r#"
[[thread]]
name = "hog"
ops = [{ loop = { ops = [{ compute = "1ms" }] } }]
[[thread]]
name = "sleeper"
ops = [{ loop = { ops = [{ sleep = "2ms" }, { compute = "100us" }] } }]
"#;

const PIPE: &str = r#"
[[thread]]
name = "writer"
ops = [{ loop = { ops = [{ compute = "200us" }, { write = { pipe = "p", bytes = 100 } }] } }]
[[thread]]
name = "reader"
ops = [{ loop = { ops = [{ read = { pipe = "p", bytes = 100 } }, { compute = "50us" }, { count = 1 }] } }]
"#;

fn wakeups(events: &[Event]) -> Vec<(u32, Option<u32>)> {
    let of = |event: &Event| match event.kind {
        EventKind::Wakeup { task, waker, .. } => Some((task.0, waker.map(|waker| waker.0))),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

fn calls(events: &[Event], names: &Names, thread: &str) -> Vec<Call> {
    let of = |event: &Event| match event.kind {
        EventKind::Call { task, call } if names.task(task)?.comm == thread => Some(call),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

#[test]
fn a_timer_that_interrupts_a_task_is_no_waker() {
    for scheduler in ["eevdf", "vtime"] {
        let (events, _) = traced(HOG_AND_SLEEPER, scheduler, "1c");
        let wakeups = wakeups(&events);
        assert!(wakeups.len() >= 5, "{scheduler}: {wakeups:?}");
        assert!(wakeups.iter().all(|(_, waker)| waker.is_none()), "{scheduler}: {wakeups:?}");
    }
}

#[test]
fn who_writes_to_a_pipe_wakes_its_reader() {
    for machine in ["1c", "2c"] {
        let (events, names) = traced(PIPE, "eevdf", machine);
        let wakeups = wakeups(&events);
        let comm = |task: u32| names.task(scxlab_machine::TaskId(task)).unwrap().comm.clone();
        let pairs = wakeups.iter().map(|(task, waker)| (comm(*task), waker.map(comm)));
        assert!(wakeups.len() > 20, "{machine}: {wakeups:?}");
        let expected = ("reader".to_owned(), Some("writer".to_owned()));
        assert!(pairs.into_iter().all(|pair| pair == expected), "{machine}");
    }
}

/// A wake-up of a task that EEVDF has kept on its queue is one, too. Every sleep that ends is ended
/// by an event.
#[test]
fn every_sleep_ends_with_a_wake_up() {
    for text in [HOG_AND_SLEEPER, PIPE] {
        for machine in ["1c", "2c"] {
            let (events, _) = traced(text, "eevdf", machine);
            let mut asleep: BTreeMap<u32, bool> = BTreeMap::new();
            for event in &events {
                match event.kind {
                    EventKind::Switch { prev, next, prev_state } => {
                        if let Some(next) = next {
                            assert!(!asleep.contains_key(&next.0), "{machine}, {event:?}");
                        }
                        if let (Some(prev), PrevState::Sleeping) = (prev, prev_state) {
                            asleep.insert(prev.0, true);
                        }
                    }
                    EventKind::Wakeup { task, .. } => {
                        asleep.remove(&task.0);
                    }
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn calls_are_those_of_the_program() {
    let (events, names) = traced(PIPE, "eevdf", "2c");
    let writes = calls(&events, &names, "writer");
    let reads = calls(&events, &names, "reader");
    assert!(writes.iter().all(|call| matches!(call, Call::Write { bytes: 100, .. })), "{writes:?}");
    let expected = |call: &Call| matches!(call, Call::Read { bytes: 100, .. });
    let odd: Vec<&Call> = reads.iter().step_by(2).collect();
    assert!(odd.iter().all(|call| expected(call)), "{reads:?}");
    assert!(reads.iter().skip(1).step_by(2).all(|call| *call == Call::Count { units: 1 }));
    // The reader may have its last message still before it.
    assert!(writes.len() - odd.len() <= 1, "{} writes, {} reads", writes.len(), odd.len());
    let (events, names) = traced(HOG_AND_SLEEPER, "eevdf", "1c");
    let sleeps = calls(&events, &names, "sleeper");
    assert!(sleeps.len() > 15);
    assert!(sleeps.iter().all(|call| *call == Call::SleepFor { length: 2 * MS }), "{sleeps:?}");
    assert_eq!(calls(&events, &names, "hog"), []);
}

#[test]
fn a_free_mutex_is_taken_without_a_call() {
    let alone = r#"
[[thread]]
name = "t"
ops = [{ loop = { ops = [{ lock = "m" }, { compute = "100us" }, { unlock = "m" }, { sleep = "1ms" }] } }]
"#;
    let (events, names) = traced(alone, "eevdf", "1c");
    assert!(calls(&events, &names, "t").iter().all(|call| matches!(call, Call::SleepFor { .. })));
    let two = alone.replace("name = \"t\"", "name = \"t\"\ninstances = 2");
    let (events, names) = traced(&two, "eevdf", "2c");
    let all = ["t-0", "t-1"].map(|thread| calls(&events, &names, thread)).concat();
    let waits = all.iter().filter(|call| matches!(call, Call::FutexWait { .. })).count();
    let wakes = all.iter().filter(|call| matches!(call, Call::FutexWake { most: 1, .. })).count();
    assert!(waits > 0, "{all:?}");
    assert!(waits - wakes <= 1, "{waits} waits, {wakes} wakes");
}

#[test]
fn attributes_are_those_of_the_workload() {
    let text = r#"
[[cgroup]]
path = "/a/b"
weight = 300
quota = "20ms"
[[thread]]
name = "t"
nice = 5
cpus = "0"
cgroup = "/a/b"
ops = [{ set_nice = 7 }, { set_policy = "batch" }, { compute = "1ms" }]
"#;
    let (events, names) = traced(text, "eevdf", "2c");
    let set: Vec<_> =
        events.iter().filter(|e| matches!(e.kind, EventKind::Attributes { .. })).collect();
    assert_eq!(set.len(), 3, "one at the start, and one for each change");
    let EventKind::Attributes { task } = set[2].kind else { unreachable!() };
    let attributes = names.attributes(task).unwrap();
    assert_eq!((attributes.nice, attributes.policy), (7, TaskPolicy::Batch));
    assert_eq!((attributes.cpus.as_deref(), &*attributes.cgroup), (Some("0"), "/a/b"));
    let limits = names.cgroup("/a/b").unwrap();
    assert_eq!((limits.weight, limits.quota, limits.period), (300, Some(20 * MS), 100 * MS));
    assert_eq!(names.cgroup("/a").unwrap().weight, 100);
}

#[test]
fn a_recorded_run_has_the_hash_of_the_others() {
    for text in [HOG_AND_SLEEPER, PIPE] {
        let plain = run(text, "vtime", "2c", Tracer::default());
        let recorded = run(text, "vtime", "2c", Tracer::with_sink(Seen::default()));
        assert_eq!(plain.trace_hash, recorded.trace_hash);
    }
}
