// SPDX-License-Identifier: GPL-2.0-only
//! Measures the cost of an event in ns: in a tracer that only hashes events, as in every run, and
//! in a tracer that also writes them as Perfetto.

#![allow(clippy::disallowed_types, reason = "a benchmark is about the clock")]

use std::io;
use std::time::Instant;

use scxlab_machine::{CpuId, Machine, TaskId};
use scxlab_trace::{Event, EventKind, PerfettoSink, PrevState, Tracer};

const EVENTS: u64 = 2_000_000;
const ROUNDS: usize = 7;

fn main() {
    let best = |make: &dyn Fn() -> Tracer| {
        (0..ROUNDS).map(|_| ns_per_event(make())).fold(f64::INFINITY, f64::min)
    };
    println!("hash only  {:6.1} ns per event", best(&Tracer::default));
    let machine = Machine::from_spec("8c").expect("a spec");
    let perfetto = || Tracer::with_sink(PerfettoSink::new(io::sink(), &machine));
    println!("perfetto   {:6.1} ns per event", best(&perfetto));
}

/// Emits a switch, a wake-up and a callback in turn, and returns the mean time per event.
fn ns_per_event(mut tracer: Tracer) -> f64 {
    let start = Instant::now();
    for time in 0..EVENTS {
        let (cpu, task) = (CpuId(time as u32 % 8), TaskId(time as u32 % 40));
        let kind = match time % 3 {
            0 => {
                EventKind::Switch { prev: None, next: Some(task), prev_state: PrevState::Runnable }
            }
            1 => EventKind::Wakeup { task, target: cpu, waker: None },
            _ => EventKind::Op { op: 1, cost_ns: 300, task: Some(task) },
        };
        tracer.emit(Event { time, cpu, kind });
    }
    assert_ne!(tracer.hash(), 0, "the work must not be optimised away");
    start.elapsed().as_secs_f64() * 1e9 / EVENTS as f64
}
