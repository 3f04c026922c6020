// SPDX-License-Identifier: GPL-2.0-only
//! Tests of autonuma-benchmark's tests: passes, and who owns the memory.

use super::{error, program, run};
use crate::exec::mock::MockEnd;
use crate::program::Op;

#[test]
fn every_thread_makes_its_passes() {
    for (arg, units, tasks) in [
        ("numa01,threads=3,passes=5,size=2MiB", 2 * 3 * 5, 2 * (1 + 3)),
        ("numa01,processes=3,threads=1,passes=2,size=2MiB", 3 * 2, 3 * 2),
        ("numa01_THREAD_ALLOC,threads=3,passes=5,size=8MiB", 2 * 3 * 5, 2 * (1 + 3)),
        ("numa02,threads=6,passes=5,size=8MiB", 6 * 5, 1 + 6),
        ("numa02_SMT,threads=3,passes=5,size=8MiB", 3 * 5, 1 + 3),
    ] {
        let (mock, end) = run(arg, 4);
        assert_eq!((end, mock.total_work()), (MockEnd::Finished, units), "{arg}");
        assert_eq!(mock.tasks.len(), tasks, "{arg}");
    }
}

#[test]
fn memory_is_shared_or_in_parts() {
    let region = |arg: &str| {
        let program = program(arg);
        let [region] = &program.regions[..] else { panic!("{arg}") };
        (region.size.0 >> 20, region.is_huge())
    };
    assert_eq!(region("numa01,threads=4,size=64MiB"), (64, true));
    assert_eq!(region("numa01_THREAD_ALLOC,threads=4,size=64MiB,huge=no"), (16, false));
    assert_eq!(region("numa02,threads=32,size=64MiB"), (2, true));
    assert_eq!(region("numa02_SMT,threads=16,size=64MiB"), (4, true));
    assert!(error("numa02,threads=1024,size=3MiB").contains("at least a page of 4 KiB"));
    assert!(error("numa02,processes=2").contains("unknown parameter \"processes\""));
}

/// Each thread of the numa01 tests clears all parts before its passes; in numa01 it first touches
/// an equal part of the memory. In numa02 the first thread clears all before it starts the others.
#[test]
fn everything_is_cleared_first() {
    for (arg, cleared, by_first) in [
        ("numa01,threads=3", 2, 0),
        ("numa01_THREAD_ALLOC,threads=3", 3, 0),
        ("numa02,threads=3", 0, 3),
    ] {
        let program = program(arg);
        let worker = program.threads.iter().find(|t| t.instances == 0).unwrap();
        let (last, first) = worker.ops.split_last().unwrap();
        assert!(first.iter().all(|op| matches!(op, Op::Touch(_))), "{arg}");
        assert!(matches!(last, Op::Loop { times: Some(_), .. }), "{arg}");
        assert_eq!(first.len(), cleared, "{arg}");
        let starter = program.threads.iter().find(|t| t.instances == 1).unwrap();
        let touches = starter.ops.iter().take_while(|op| matches!(op, Op::Touch(_)));
        let starts = starter.ops.iter().filter(|op| matches!(op, Op::Loop { .. })).count();
        assert_eq!(touches.count(), by_first, "{arg}");
        assert_eq!(starter.ops.len(), by_first + starts + 1, "{arg}");
    }
}

#[test]
fn the_threads_of_numa01_touch_equal_parts_first() {
    let program = program("numa01,threads=4,size=64MiB");
    let workers = program.threads.iter().filter(|t| t.instances == 0);
    let first = workers.filter(|t| t.process.as_deref() == Some("numa01-0")).map(|t| &t.ops[0]);
    let parts: Vec<_> = first
        .map(|op| match op {
            Op::Touch(touch) => (touch.offset >> 20, touch.size.map(|size| size.0 >> 20)),
            _ => panic!("{op:?}"),
        })
        .collect();
    assert_eq!(parts, [(0, Some(16)), (16, Some(16)), (32, Some(16)), (48, Some(16))]);
}
