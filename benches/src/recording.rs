// SPDX-License-Identifier: GPL-2.0-only
//! A recording of any length, generated while it is read, so that it needs no disk.

use std::io::{self, BufWriter, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use scxlab_machine::{CpuId, Machine, Nanos, Stream, TaskId};
use scxlab_trace::event::{Event, EventKind, PrevState};
use scxlab_trace::{Call, Names, PerfettoSink, Sink, TaskName};

/// Number of tasks of each CPU. Half of them sleep between two pieces of work, and each of the
/// others serves one of these.
const TASKS: u32 = 8;
/// Number of events of a round: a client wakes up, wakes its server, and both go to sleep.
const ROUND: u64 = 9;

/// Opens a Perfetto trace of this many events, rounded up to whole rounds of all CPUs. `bytes`
/// counts what is read.
pub fn open(machine: &Machine, events: u64, bytes: &Arc<AtomicU64>) -> io::Result<Box<dyn Read>> {
    let (reader, writer) = io::pipe()?;
    let machine = machine.clone();
    std::thread::spawn(move || {
        let mut sink = PerfettoSink::new(BufWriter::with_capacity(1 << 16, writer), &machine);
        // The reader may leave before the end.
        generate(machine.topology.nr_cpus() as u32, events, &mut sink);
        _ = sink.finish();
    });
    Ok(Box::new(Counted { reader, bytes: bytes.clone() }))
}

struct Counted<R> {
    reader: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(to)?;
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

fn generate(cpus: u32, events: u64, sink: &mut dyn Sink) {
    let mut names = Names::default();
    for task in 0..cpus * TASKS {
        let kind = if task % 2 == 0 { "client" } else { "server" };
        let pid = 1000 + task;
        let name = TaskName { pid, tgid: pid, comm: format!("{kind}-{}", task / 2), prio: 120 };
        names.set_task(TaskId(task), name);
    }
    let mut stream = Stream::new(1, "recording", 0);
    let mut time: Nanos = 0;
    for round in 0..events.div_ceil(ROUND * u64::from(cpus)) {
        for cpu in 0..cpus {
            let client = cpu * TASKS + 2 * (round % u64::from(TASKS / 2)) as u32;
            time += 300 + stream.below(200);
            one_round(CpuId(cpu), time, client, &mut |event| sink.event(&event, &names));
        }
    }
}

fn one_round(cpu: CpuId, start: Nanos, client: u32, emit: &mut dyn FnMut(Event)) {
    let (client, server) = (TaskId(client), TaskId(client + 1));
    let switch = |prev, next| EventKind::Switch {
        prev,
        next,
        prev_state: if prev.is_some() { PrevState::Sleeping } else { PrevState::Runnable },
    };
    let wakeup = |task, waker| EventKind::Wakeup { task, target: cpu, waker };
    let object = u64::from(server.0);
    let call = |task, call| EventKind::Call { task, call };
    let all = [
        (0, wakeup(client, None)),
        (2_000, switch(None, Some(client))),
        (9_000, call(client, Call::FutexWake { object, most: 1 })),
        (9_300, wakeup(server, Some(client))),
        (12_000, call(client, Call::SleepFor { length: 50_000 })),
        (13_000, switch(Some(client), Some(server))),
        (15_000, call(server, Call::Count { units: 1 })),
        (16_000, call(server, Call::FutexWait { object, timeout: None })),
        (17_000, switch(Some(server), None)),
    ];
    for (after, kind) in all {
        emit(Event { time: start + after, cpu, kind });
    }
}
