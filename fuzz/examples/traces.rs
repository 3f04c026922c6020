// SPDX-License-Identifier: GPL-2.0-only
//! Writes the Perfetto seed of the target `traces` into a folder: two tasks with calls, attributes,
//! a fork, ends and lost events, on a machine of two CPUs.

use scxlab_machine::{CpuId, Machine, TaskId};
use scxlab_trace::{
    Call, CgroupAttributes, Event, EventKind, PerfettoSink, PrevState, TaskAttributes, TaskName,
    Tracer,
};

fn main() {
    let folder = std::env::args().nth(1).expect("a folder");
    let machine = Machine::from_spec("2c").expect("a spec");
    let mut tracer = Tracer::with_sink(PerfettoSink::new(Vec::new(), &machine));
    let (a, b) = (TaskId(0), TaskId(1));
    for (task, pid) in [(a, 10), (b, 11)] {
        let name = TaskName { pid, tgid: 10, comm: format!("task{pid}"), prio: 120 };
        tracer.names.set_task(task, name);
    }
    let limits =
        CgroupAttributes { weight: 100, quota: Some(5), period: 10, idle: false, cpus: None };
    tracer.names.set_cgroup("/a", limits);
    let attributes = TaskAttributes { cgroup: "/a".to_owned(), ..TaskAttributes::default() };
    tracer.names.set_attributes(a, attributes);
    let switch = |prev, next, prev_state| EventKind::Switch { prev, next, prev_state };
    let events = [
        (0, EventKind::Fork { parent: None, child: a }),
        (0, EventKind::Attributes { task: a }),
        (0, EventKind::Wakeup { task: a, target: CpuId(0), waker: None }),
        (0, switch(None, Some(a), PrevState::Runnable)),
        (0, EventKind::Fork { parent: Some(a), child: b }),
        (0, EventKind::Call { task: a, call: Call::FutexWait { object: 1, timeout: None } }),
        (0, switch(Some(a), Some(b), PrevState::Sleeping)),
        (0, EventKind::Call { task: b, call: Call::FutexWake { object: 1, most: 1 } }),
        (0, EventKind::Wakeup { task: a, target: CpuId(1), waker: Some(b) }),
        (1, EventKind::Migrate { task: a, from: CpuId(0), to: CpuId(1) }),
        (1, switch(None, Some(a), PrevState::Runnable)),
        (0, EventKind::Exit { task: b }),
        (0, switch(Some(b), None, PrevState::Exited)),
        (1, EventKind::Lost { events: 3 }),
        (0, EventKind::CpuOnline { online: false }),
    ];
    for (time, (cpu, kind)) in (100..).zip(events) {
        tracer.note(Event { time, cpu: CpuId(cpu), kind });
    }
    tracer.finish().expect("a Vec takes all");
    let file = tracer.take_sink::<PerfettoSink<Vec<u8>>>().expect("the sink").into_inner();
    std::fs::write(format!("{folder}/run.pftrace"), file).expect("the folder can be written");
}
