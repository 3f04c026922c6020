// SPDX-License-Identifier: GPL-2.0-only
//! Writes a made-up trace of two tasks that wake each other on two CPUs, as Perfetto, to standard output:
//! `cargo run -p scxlab-trace --example sample_trace >sample.perfetto-trace`, then open it in the UI.

use std::io::{self, Write};

use scxlab_machine::{CpuId, TaskId};
use scxlab_trace::{Event, Kind, PerfettoSink, PrevState, TaskName, Tracer};

fn main() -> io::Result<()> {
    let mut tracer = Tracer::with_sink(PerfettoSink::new(Vec::new(), "2c", 2));
    tracer.names.set_ops(["select_cpu", "enqueue", "dispatch"]);
    tracer.names.set_dsq(0, "shared");
    for (task, comm) in [(0, "ping"), (1, "pong")] {
        let name = TaskName {
            pid: 100 + task,
            tgid: 100,
            comm: comm.to_owned(),
            prio: 120,
        };
        tracer.names.set_task(TaskId(task), name);
        emit(
            &mut tracer,
            0,
            task,
            Kind::Fork {
                parent: None,
                child: TaskId(task),
            },
        );
    }
    let mut runner = 0;
    switch(&mut tracer, 1_000, runner, None, Some(runner));
    for round in 1..=20 {
        let now = round * 1_000_000;
        let woken = 1 - runner;
        wake(&mut tracer, now, runner, woken);
        switch(&mut tracer, now + 3_000, woken, None, Some(woken));
        switch(&mut tracer, now + 5_000, runner, Some(runner), None);
        runner = woken;
    }
    tracer.printk(20_500_000, CpuId(0), "the end is near");
    let exit = Event {
        time: 21_000_000,
        cpu: CpuId(0),
        kind: Kind::SchedExit { kind: 64, code: 0 },
    };
    tracer.emit_with_text(exit, "unregistered from user space");
    tracer.finish()?;
    let sink = tracer.take_sink::<PerfettoSink<Vec<u8>>>();
    io::stdout().write_all(&sink.map(PerfettoSink::into_inner).unwrap_or_default())
}

/// Task and CPU have the same number throughout: `waker` runs on its CPU and wakes the other one.
fn wake(tracer: &mut Tracer, now: u64, waker: u32, woken: u32) {
    let task = TaskId(woken);
    emit(
        tracer,
        now,
        waker,
        Kind::Op {
            op: 0,
            cost_ns: 600,
            task: Some(task),
        },
    );
    emit(
        tracer,
        now + 600,
        waker,
        Kind::Op {
            op: 1,
            cost_ns: 400,
            task: Some(task),
        },
    );
    emit(
        tracer,
        now + 1_000,
        waker,
        Kind::DsqInsert {
            task,
            dsq: 0,
            flags: 0,
        },
    );
    let target = CpuId(woken);
    emit(
        tracer,
        now + 1_000,
        waker,
        Kind::Wakeup {
            task,
            target,
            waker: Some(TaskId(waker)),
        },
    );
    emit(tracer, now + 1_000, waker, Kind::Kick { target, flags: 0 });
    emit(
        tracer,
        now + 2_000,
        woken,
        Kind::LockWait {
            lock: 1,
            wait_ns: 300,
        },
    );
    emit(
        tracer,
        now + 2_300,
        woken,
        Kind::Op {
            op: 2,
            cost_ns: 700,
            task: None,
        },
    );
}

fn switch(tracer: &mut Tracer, time: u64, cpu: u32, prev: Option<u32>, next: Option<u32>) {
    let prev_state = if prev.is_some() {
        PrevState::Sleeping
    } else {
        PrevState::Runnable
    };
    let kind = Kind::Switch {
        prev: prev.map(TaskId),
        next: next.map(TaskId),
        prev_state,
    };
    emit(tracer, time, cpu, kind);
}

fn emit(tracer: &mut Tracer, time: u64, cpu: u32, kind: Kind) {
    tracer.emit(Event {
        time,
        cpu: CpuId(cpu),
        kind,
    });
}
