// SPDX-License-Identifier: GPL-2.0-only
//! One history of two tasks in both layouts.

use super::*;
use crate::names::TaskName;
use scxlab_machine::CpuId;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A task sleeps, waits 2 ms, runs 5 ms, is preempted by another for 3 ms, and runs again.
fn drawn(layout: PerfLayout) -> String {
    let out = Shared::default();
    let mut sink = PerfSchedSink::new(out.clone(), layout);
    let mut names = Names::default();
    for (task, comm, tgid) in [(1, "worker", 7), (2, "other", 2)] {
        names.set_task(TaskId(task), TaskName { pid: task, tgid, comm: comm.into(), prio: 120 });
    }
    let mut at = |ms: u64, kind: EventKind| {
        sink.event(&Event { time: ms * 1_000_000, cpu: CpuId(3), kind }, &names);
    };
    let wake = |task| EventKind::Wakeup { task: TaskId(task), target: CpuId(3), waker: None };
    let switch = |prev: Option<u32>, next: Option<u32>, prev_state| EventKind::Switch {
        prev: prev.map(TaskId),
        next: next.map(TaskId),
        prev_state,
    };
    at(0, switch(None, None, PrevState::Runnable));
    at(8, wake(1));
    at(10, switch(None, Some(1), PrevState::Runnable));
    at(14, wake(2));
    at(15, switch(Some(1), Some(2), PrevState::Runnable));
    at(18, switch(Some(2), Some(1), PrevState::Sleeping));
    at(19, switch(Some(1), None, PrevState::Exited));
    at(21, switch(None, Some(2), PrevState::Runnable));
    sink.run_ended(25_000_000);
    sink.finish().unwrap();
    String::from_utf8(out.0.lock().unwrap().clone()).unwrap()
}

#[test]
fn timehist_has_a_line_for_each_time_on_a_cpu() {
    let text = drawn(PerfLayout::Timehist);
    let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines[3], ["0.010000", "[0003]", "<idle>", "0.000", "0.000", "10.000"]);
    assert_eq!(lines[4], ["0.015000", "[0003]", "worker[1/7]", "0.000", "2.000", "5.000"]);
    assert_eq!(lines[5], ["0.018000", "[0003]", "other[2]", "0.000", "1.000", "3.000"]);
    assert_eq!(lines[6], ["0.019000", "[0003]", "worker[1/7]", "3.000", "3.000", "1.000"]);
    assert_eq!(lines[7], ["0.021000", "[0003]", "<idle>", "9.000", "0.000", "2.000"]);
    // The run ended while the task was on the CPU.
    assert_eq!(lines[8], ["0.025000", "[0003]", "other[2]", "3.000", "0.000", "4.000"]);
    assert_eq!(lines.len(), 9);
}

#[test]
fn latency_has_a_line_for_each_task() {
    let text = drawn(PerfLayout::Latency);
    let lines: Vec<&str> = text.lines().collect();
    let fields: Vec<&str> = lines[4].split('|').map(str::trim).collect();
    assert_eq!(
        fields,
        ["worker:1", "6.000 ms", "2", "2.500 ms", "3.000 ms", "0.015000 s", "0.018000 s", ""]
    );
    assert!(lines[5].starts_with("  other:2 "), "{text}");
    assert!(lines[7].contains("13.000 ms |        3 |"), "{text}");
    assert!(lines[1..8].iter().all(|line| line.len() <= 140), "{text}");
}
