// SPDX-License-Identifier: GPL-2.0-only
//! Tests of reflex: one token in each ring, which visits every task.

use super::{error, run};
use crate::exec::mock::MockEnd;

#[test]
fn every_task_passes_the_token_as_often_as_it_should() {
    for (tasks, ring) in [(2, 2), (8, 2), (9, 3), (12, 12), (20, 4)] {
        let arg = format!("reflex,tasks={tasks},ring={ring},rounds=7,duration=none");
        let (mock, end) = run(&arg, 3);
        assert_eq!(end, MockEnd::Finished, "{arg}");
        assert_eq!(mock.tasks.len(), tasks, "{arg}");
        assert!(mock.tasks.iter().all(|task| task.work == 7), "{arg}");
    }
}

/// One task of a ring is runnable at any time, so the time of a round is that of its delays
/// divided by the number of rings that have a CPU.
#[test]
fn each_ring_has_one_token() {
    for (tasks, ring, cpus, parallel) in [(2, 2, 4, 1), (8, 2, 4, 4), (8, 4, 4, 2), (8, 2, 2, 2)] {
        let arg = format!("reflex,tasks={tasks},ring={ring},delay=1ms,rounds=10,duration=none");
        let (mock, _) = run(&arg, cpus);
        assert_eq!(mock.time(), tasks * 10 * 1_000_000 / parallel, "{arg} on {cpus} CPUs");
    }
}

#[test]
fn rings_are_complete() {
    assert!(error("reflex,tasks=5").contains("must be a multiple of 2"));
    assert!(error("reflex,tasks=4,ring=5").contains("must be a whole number from 2 to 4"));
}
