// SPDX-License-Identifier: GPL-2.0-only
//! numa01, numa01_THREAD_ALLOC, numa02, numa02_SMT: threads that clear memory again and again (the
//! four tests of autonuma-benchmark).
//!
//! Models: `bzero` of a buffer, `passes` times in each thread. In numa01 all threads of a process
//! clear the same memory; in the other tests each thread clears a part of its own, of size `size /
//! threads`. Before that, each thread of both numa01 tests clears all memory of its process once.
//! In numa01 the threads reach each page together, because a thread that is behind finds in a cache
//! what the first has cleared, and catches up while the first waits for the next page. Any of them
//! may touch a page first, so pages lie on the nodes of all threads: here, each thread first
//! touches an equal part. In numa02 the first
//! thread clears all memory before it starts the others, so pages lie on its node. A unit is one
//! pass of one thread over its memory; the clearing before the passes counts none.
//! Leaves out: the memory of the program itself, and memory traffic between threads that clear the
//! same lines.

use super::{Generator, Param, Params, param};
use crate::error::WorkloadError;
use crate::program::region::ByteSize;
use crate::program::work::BufferArg;
use crate::program::{
    Op, Pattern, Program, RegionDef, RegionPolicy, Sharing, ThreadTemplate, TouchKind,
};

const PROCESSES: Param = param("processes", "2", "number of processes");
const THREADS: Param =
    param("threads", "4", "threads of a process; in the original half of the machine's CPUs");
const HUGE: Param = param("huge", "yes", "yes: memory consists of huge pages where it can");
const DURATION: Param =
    param("duration", "none", "length of the run; none: until all passes are done");

pub(super) const NUMA01: Generator = Generator {
    name: "numa01",
    doc: "Two processes whose threads all clear the memory of their process.",
    unit: "pass",
    params: &[
        PROCESSES,
        THREADS,
        param("size", "3GiB", "memory of a process"),
        param("passes", "4", "passes of each thread; in the original 50"),
        HUGE,
        DURATION,
    ],
    build: |params| build(params, Test::Numa01),
};

pub(super) const NUMA01_THREAD_ALLOC: Generator = Generator {
    name: "numa01_THREAD_ALLOC",
    doc: "Two processes whose threads clear memory of their own.",
    unit: "pass",
    params: &[
        PROCESSES,
        THREADS,
        param("size", "3GiB", "memory of all threads of a process"),
        param("passes", "16", "passes of each thread; in the original 1000"),
        HUGE,
        DURATION,
    ],
    build: |params| build(params, Test::Numa01ThreadAlloc),
};

pub(super) const NUMA02: Generator = Generator {
    name: "numa02",
    doc: "A process with as many threads as CPUs, which clear memory of their own.",
    unit: "pass",
    params: &[
        param("threads", "8", "number of threads; in the original the machine's CPUs"),
        param("size", "1GiB", "memory of all threads"),
        param("passes", "100", "passes of each thread; in the original 800"),
        HUGE,
        DURATION,
    ],
    build: |params| build(params, Test::Numa02),
};

pub(super) const NUMA02_SMT: Generator = Generator {
    name: "numa02_SMT",
    doc: "A process with half as many threads as CPUs, which clear memory of their own.",
    unit: "pass",
    params: &[
        param("threads", "4", "number of threads; in the original half of the machine's CPUs"),
        param("size", "1GiB", "memory of all threads"),
        param("passes", "50", "passes of each thread; in the original 800"),
        HUGE,
        DURATION,
    ],
    build: |params| build(params, Test::Numa02),
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Test {
    Numa01,
    Numa01ThreadAlloc,
    Numa02,
}

fn build(params: &Params, test: Test) -> Result<Program, WorkloadError> {
    let processes = match test {
        Test::Numa02 => 1,
        _ => params.number("processes", 1, 64)?,
    };
    let threads = params.number("threads", 1, 1024)?;
    let passes = u64::from(params.number("passes", 1, 1_000_000)?);
    let size = params.size("size", 2 << 20, 1 << 40)?;
    // The accesses of a region are spread over nodes as its pages are, so that each part which one
    // thread clears must be a region.
    let parts = if test == Test::Numa01 { 1 } else { threads };
    let part = size / u64::from(parts);
    if part < PAGE {
        return Err(params.bad("size", "at least a page of 4 KiB for each thread"));
    }
    let region = RegionDef {
        name: "part{i}".to_owned(),
        size: ByteSize(part),
        of: Sharing::Process,
        policy: RegionPolicy::FirstTouch,
        populate: None,
        huge: Some(params.word("huge", &["no", "yes"])? == 1),
        merge: 0,
    };
    let all: Vec<Op> = (0..parts).map(|i| clear(format!("part{i}"))).collect();
    let own = clear(format!("part{{i%{parts}}}"));
    let passes = Op::Loop { times: Some(passes), ops: vec![own, Op::Count(1)] };
    let (first, worker) = match test {
        Test::Numa02 => (all, vec![passes]),
        _ => (Vec::new(), all.into_iter().chain([passes]).collect()),
    };
    let name = |p: u32| format!("{}-{p}", params.generator);
    // Of each of the shared memory's `threads` parts, one thread touches the pages first.
    let share = (part / u64::from(threads) / PAGE * PAGE).max(PAGE);
    let touched_first = |i: u32| -> Vec<Op> {
        let offset = u64::from(i) * share;
        let some = test == Test::Numa01 && offset + share <= part;
        some.then(|| clear_part("part0", offset, share)).into_iter().collect()
    };
    let workers: Vec<Vec<Op>> =
        (0..threads).map(|i| [touched_first(i), worker.clone()].concat()).collect();
    let of_process = |p| process(&name(p), first.clone(), &workers);
    Ok(Program {
        duration: params.maybe_time("duration")?,
        regions: vec![region],
        threads: (0..processes).flat_map(of_process).collect(),
        ..Program::default()
    })
}

/// Size of a small page, in bytes.
const PAGE: u64 = 4096;

fn clear(region: String) -> Op {
    Op::Touch(buffer(region))
}

/// Clears `size` bytes from `offset` on.
fn clear_part(region: &str, offset: u64, size: u64) -> Op {
    Op::Touch(BufferArg { offset, size: Some(ByteSize(size)), ..buffer(region.to_owned()) })
}

fn buffer(region: String) -> BufferArg {
    BufferArg {
        region: Some(region),
        offset: 0,
        kind: TouchKind::Write,
        size: None,
        count: 0,
        stride: 64,
        pattern: Pattern::Sequential,
    }
}

/// Returns the threads of a process: the first one, which executes `first`, starts the others and
/// waits for them, and the others, which execute `workers`.
fn process(name: &str, mut first: Vec<Op>, workers: &[Vec<Op>]) -> Vec<ThreadTemplate> {
    let template = |thread: &str, instances, ops| ThreadTemplate {
        instances,
        process: Some(name.to_owned()),
        ..ThreadTemplate::new(thread, ops)
    };
    let mut threads = Vec::new();
    // Threads with the same ops are instances of one template.
    for same in workers.chunk_by(|a, b| a == b) {
        let worker = match threads.is_empty() {
            true => format!("{name}-worker"),
            false => format!("{name}-worker-{}", threads.len()),
        };
        let start = vec![Op::Fork(worker.clone())];
        first.push(Op::Loop { times: Some(same.len() as u64), ops: start });
        threads.push(template(&worker, 0, same[0].clone()));
    }
    first.push(Op::Join);
    threads.insert(0, template(name, 1, first));
    threads
}
