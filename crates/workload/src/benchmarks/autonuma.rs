// SPDX-License-Identifier: GPL-2.0-only
//! numa01, numa01_THREAD_ALLOC, numa02, numa02_SMT: threads that clear memory again and again (the
//! four tests of autonuma-benchmark).
//!
//! Models: `bzero` of a buffer, `passes` times in each thread. In numa01 all threads of a process
//! clear the same memory, which the process's first thread has cleared before it starts the others.
//! In the other tests each thread has a part of its own, of size `size / threads`, and is the first
//! to access it. A unit is one pass of one thread over its memory.
//! Leaves out: numa02's first clearing of all parts by the first thread, and the memory of the
//! program itself.

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
    build: |params| build(params, Memory::OfProcess),
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
    build: |params| build(params, Memory::OfThread),
};

pub(super) const NUMA02: Generator = Generator {
    name: "numa02",
    doc: "A process with as many threads as CPUs, which clear memory of their own.",
    unit: "pass",
    params: &[
        param("threads", "8", "number of threads; in the original the machine's CPUs"),
        param("size", "1GiB", "memory of all threads"),
        param("passes", "100", "passes of each thread; in the original 1000"),
        HUGE,
        DURATION,
    ],
    build: |params| build(params, Memory::OfThread),
};

pub(super) const NUMA02_SMT: Generator = Generator {
    name: "numa02_SMT",
    doc: "A process with half as many threads as CPUs, which clear memory of their own.",
    unit: "pass",
    params: &[
        param("threads", "4", "number of threads; in the original half of the machine's CPUs"),
        param("size", "1GiB", "memory of all threads"),
        param("passes", "50", "passes of each thread; in the original 1000"),
        HUGE,
        DURATION,
    ],
    build: |params| build(params, Memory::OfThread),
};

/// The owner of the memory that a thread clears.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    OfProcess,
    OfThread,
}

fn build(params: &Params, memory: Memory) -> Result<Program, WorkloadError> {
    let processes = match params.text("processes") {
        "" => 1,
        _ => params.number("processes", 1, 64)?,
    };
    let threads = params.number("threads", 1, 4096)?;
    let passes = u64::from(params.number("passes", 1, 1_000_000)?);
    let whole = params.size("size", 2 << 20, 1 << 40)?;
    let size = match memory {
        Memory::OfProcess => whole,
        Memory::OfThread => whole / u64::from(threads),
    };
    if size < 4096 {
        return Err(params.bad("size", "at least a page of 4 KiB for each thread"));
    }
    let region = RegionDef {
        name: "memory".to_owned(),
        size: ByteSize(size),
        of: if memory == Memory::OfProcess { Sharing::Process } else { Sharing::Thread },
        policy: RegionPolicy::FirstTouch,
        populate: None,
        huge: Some(params.word("huge", &["no", "yes"])? == 1),
        merge: 0,
    };
    let of_process = |p| process(&format!("{}-{p}", params.generator), threads, passes, memory);
    Ok(Program {
        duration: params.maybe_time("duration")?,
        regions: vec![region],
        threads: (0..processes).flat_map(of_process).collect(),
        ..Program::default()
    })
}

/// Returns the threads of a process: the first one, which starts the others and waits for them.
fn process(name: &str, threads: u32, passes: u64, memory: Memory) -> [ThreadTemplate; 2] {
    let clear = || {
        Op::Touch(BufferArg {
            region: Some("memory".to_owned()),
            offset: 0,
            kind: TouchKind::Write,
            size: None,
            count: 0,
            stride: 64,
            pattern: Pattern::Sequential,
        })
    };
    let worker = format!("{name}-worker");
    let start = Op::Loop { times: Some(threads.into()), ops: vec![Op::Fork(worker.clone())] };
    let mut main = vec![start, Op::Join];
    if memory == Memory::OfProcess {
        main.insert(0, clear());
    }
    let pass = Op::Loop { times: Some(passes), ops: vec![clear(), Op::Count(1)] };
    let template = |name: &str, instances, ops| ThreadTemplate {
        instances,
        process: Some(name.trim_end_matches("-worker").to_owned()),
        ..ThreadTemplate::new(name, ops)
    };
    [template(name, 1, main), template(&worker, 0, vec![pass])]
}
