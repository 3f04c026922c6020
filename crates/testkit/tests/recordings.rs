// SPDX-License-Identifier: GPL-2.0-only
//! The Perfetto file of a simulated run gives back the run's events: scheduling, calls and
//! attributes, in order of time, those of one CPU and of one task in the run's order.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use scxlab_kernel::Kernel;
use scxlab_kernel::boot::Setup;
use scxlab_kernel::kernel::Limits;
use scxlab_machine::{Machine, TaskId};
use scxlab_testkit::sim;
use scxlab_trace::event::PrevState;
use scxlab_trace::import::import;
use scxlab_trace::{Call, Event, EventKind, Names, PerfettoSink, Sink, Tee, Tracer};
use scxlab_workload::{ExecConfig, SyscallCosts, behavior};

const MS: u64 = 1_000_000;
const MEM_SIZE: u64 = 1 << 30;

/// Events, in which the thread id stands for the task, and attributes as text.
#[derive(Default)]
struct Lines(Vec<(Event, String)>);

impl Lines {
    /// Groups the events, each into all groups that `key` returns. Within a group the order of the
    /// run must stay. Between groups, events of one time may change places: a run does not emit its
    /// events in order of time, and a file orders them by it.
    fn by(&self, key: impl Fn(&Event) -> Vec<u32>) -> BTreeMap<u32, Vec<&(Event, String)>> {
        let mut groups: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for line in &self.0 {
            for group in key(&line.0) {
                groups.entry(group).or_default().push(line);
            }
        }
        groups
    }

    /// Moves the events to time 0, in order of time.
    fn moved_to_zero(mut self) -> Self {
        self.0.sort_by_key(|(event, _)| event.time);
        let start = self.0.first().map_or(0, |(event, _)| event.time);
        for (event, _) in &mut self.0 {
            event.time -= start;
            if let EventKind::Call { call: Call::SleepUntil { at }, .. } = &mut event.kind {
                *at -= start;
            }
        }
        self
    }
}

impl Sink for Lines {
    fn event(&mut self, event: &Event, names: &Names) {
        let tid = |task: TaskId| TaskId(names.task(task).expect("a task has a name").pid);
        let mut attributes = None;
        let mut kind = event.kind;
        match &mut kind {
            EventKind::Switch { prev, next, .. } => {
                (*prev, *next) = (prev.map(tid), next.map(tid));
            }
            EventKind::Wakeup { task, waker, .. } => {
                (*task, *waker) = (tid(*task), waker.map(tid));
            }
            EventKind::Fork { parent, child } => {
                (*parent, *child) = (parent.map(tid), tid(*child));
            }
            EventKind::Attributes { task } => {
                attributes = names.attributes(*task).map(|a| (a.clone(), names.cgroup(&a.cgroup)));
                *task = tid(*task);
            }
            EventKind::Migrate { task, .. }
            | EventKind::Exit { task }
            | EventKind::Call { task, .. } => *task = tid(*task),
            EventKind::CpuOnline { .. } | EventKind::Lost { .. } => {}
            _ => return,
        }
        self.0.push((Event { kind, ..*event }, format!("{attributes:?}")));
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the tasks of an event.
fn tasks(event: &Event) -> Vec<u32> {
    let all = match event.kind {
        EventKind::Switch { prev, next, .. } => vec![prev, next],
        EventKind::Wakeup { task, waker, .. } => vec![Some(task), waker],
        EventKind::Fork { parent, child } => vec![parent, Some(child)],
        EventKind::Migrate { task, .. }
        | EventKind::Exit { task }
        | EventKind::Call { task, .. }
        | EventKind::Attributes { task } => vec![Some(task)],
        _ => Vec::new(),
    };
    all.into_iter().flatten().map(|task| task.0).collect()
}

/// Simulates a workload under the default class. Returns the file, and the run's events.
fn run(machine: &Machine, workload: &str, seed: u64) -> (Vec<u8>, Lines) {
    let file = PerfettoSink::new(Vec::new(), machine);
    let sinks: Vec<Box<dyn Sink>> = vec![Box::new(file), Box::new(Lines::default())];
    let costs = SyscallCosts::of(&machine.costs);
    let nr_cpus = machine.topology.nr_cpus() as u32;
    let config = ExecConfig { nr_cpus, costs, ..ExecConfig::default() };
    let machine = Arc::new(machine.clone());
    let behavior = behavior(&sim::workload(workload), config, &machine).unwrap();
    let (limits, tracer) = (Limits::default(), Tracer::with_sink(Tee(sinks)));
    let setup = Setup { machine, seed, limits, tracer, mem_size: MEM_SIZE };
    let mut kernel = Kernel::boot(setup, behavior).unwrap();
    kernel.run(Some(100 * MS));
    kernel.tracer.finish().unwrap();
    let Tee(sinks) = kernel.tracer.take_sink::<Tee>().unwrap();
    let mut sinks = sinks.into_iter().map(|sink| sink as Box<dyn Any>);
    let file = sinks.next().unwrap().downcast::<PerfettoSink<Vec<u8>>>().unwrap();
    (file.into_inner(), *sinks.next().unwrap().downcast::<Lines>().unwrap())
}

#[test]
fn a_run_comes_back() {
    let cases = [
        ("2n2c2t", "schbench"),
        ("1n4c1t", "hackbench,groups=1"),
        ("4c", "pingpong,pairs=3"),
        ("2c", "hogs,tasks=5"),
        ("1n2c2t", "kernbench"),
    ];
    for (machine, workload) in cases {
        let machine = Machine::resolve(machine).unwrap();
        let (file, run) = run(&machine, workload, 1);
        let mut lines = Lines::default();
        let imported = import("run", file.as_slice(), &mut lines).unwrap();
        let expected = run.moved_to_zero();
        assert_eq!(lines.0.len(), expected.0.len(), "{workload}");
        assert!(lines.0.is_sorted_by_key(|(event, _)| event.time), "{workload}");
        assert_eq!(lines.by(|event| vec![event.cpu.0]), expected.by(|event| vec![event.cpu.0]));
        assert_eq!(lines.by(tasks), expected.by(tasks), "{workload}");
        assert!(imported.events.switches > 100, "{workload}: {:?}", imported.events);
        assert!(imported.events.forks > 2, "{workload}: {:?}", imported.events);
        assert_eq!(imported.damage(), Vec::<String>::new(), "{workload}");
        assert_eq!(Machine::from_toml("run", &imported.machine.unwrap()).unwrap(), machine);
    }
}

/// A child runs and is woken only once it was forked, although the call takes the parent some 45
/// us. A CPU must not take the child from the queue while the parent is in the call.
#[test]
fn a_child_begins_with_its_fork() {
    for (machine, parents) in [("2c", 3), ("4c", 8), ("2n2c2t", 20), ("2n8c", 48)] {
        let machine = Machine::resolve(machine).unwrap();
        let forkers = format!(
            "[[thread]]\nname = 'parent'\ninstances = {parents}\nops = [{{ loop = {{ ops = [\
             {{ fork = 'child' }}, {{ compute = '200us' }}, {{ sleep = '300us' }}] }} }}]\n\
             [[thread]]\nname = 'child'\ninstances = 0\nops = [{{ compute = '100us' }}]\n"
        );
        for seed in 1..=3 {
            let (_, run) = run(&machine, &forkers, seed);
            let mut forked = BTreeMap::new();
            for (event, _) in &run.0 {
                if let EventKind::Fork { child, .. } = event.kind {
                    forked.insert(child.0, event.time);
                }
            }
            let early = run.0.iter().filter(|(event, _)| {
                let born = |task: &u32| forked.get(task).is_none_or(|at| event.time >= *at);
                !tasks(event).iter().all(born)
            });
            let early: Vec<_> = early.collect();
            assert!(forked.len() > 40, "{}: {} forks", machine.name, forked.len());
            assert_eq!(early, Vec::<&(Event, String)>::new(), "{}, seed {seed}", machine.name);
        }
    }
}

/// A task that slept runs only after its wake-up, although a thread that makes one system call
/// after another, or wakes many threads, is ahead of the events of other CPUs.
#[test]
fn a_task_runs_only_after_its_wake_up() {
    let barrier = "[[thread]]\nname = 't'\ninstances = 40\nops = [{ loop = { ops = [\
         { compute = '30us' }, { barrier = 'b' }] } }]\n";
    let cases = [
        ("2n4c2t", "hackbench,groups=10,loops=20"),
        ("2n8c", "hackbench,groups=20,loops=10"),
        ("4c", "hackbench,groups=2,loops=50"),
        ("2n4c2t", "schbench"),
        ("2c", "pingpong,pairs=5"),
        ("2n2c2t", barrier),
        ("8c", barrier),
    ];
    for (machine, workload) in cases {
        let machine = Machine::resolve(machine).unwrap();
        for seed in 1..=2 {
            let (_, run) = run(&machine, workload, seed);
            let run = run.moved_to_zero();
            // A wake-up may come while the task is still on its way off the CPU.
            let (mut woken, mut slept, mut sleeps) = (BTreeSet::new(), BTreeSet::new(), 0);
            for (event, _) in &run.0 {
                match event.kind {
                    EventKind::Wakeup { task, .. } => {
                        woken.insert(task);
                    }
                    EventKind::Switch { prev, next, prev_state } => {
                        if let Some(next) = next {
                            let early = slept.remove(&next) & !woken.remove(&next);
                            assert!(!early, "{} {workload}, seed {seed}: {event:?}", machine.name);
                        }
                        if let Some(prev) = prev
                            && prev_state == PrevState::Sleeping
                        {
                            slept.insert(prev);
                            sleeps += 1;
                        }
                    }
                    _ => {}
                }
            }
            assert!(sleeps > 100, "{} {workload}: {sleeps} sleeps", machine.name);
        }
    }
}

/// The trace of a program has its calls, so that the test above compares some.
#[test]
fn calls_are_part_of_it() {
    let machine = Machine::resolve("2c").unwrap();
    let (file, _) = run(&machine, "hackbench,groups=1", 1);
    let mut lines = Lines::default();
    let imported = import("run", file.as_slice(), &mut lines).unwrap();
    assert!(imported.events.calls > 100 && imported.events.attributes > 10);
    let writes = |kind| matches!(kind, EventKind::Call { call: Call::Write { .. }, .. });
    assert!(lines.0.iter().any(|(event, _)| writes(event.kind)));
}
