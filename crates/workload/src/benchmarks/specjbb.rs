// SPDX-License-Identifier: GPL-2.0-only
//! specjbb: a server in Java, with one thread per warehouse that executes transactions, and a
//! collector that stops them (SPECjbb2005).
//!
//! Models: one process with a heap. A warehouse's thread takes a part of the young generation,
//! fills it with the objects of some transactions, and takes the next part. The thread that finds
//! no part wakes the virtual machine's thread. That thread waits until all warehouses have come to
//! the end of their parts (a safepoint), and wakes the collector's threads. They share the work of
//! the collection. Then the parts are handed out again. A unit is a transaction. With `memory`, a
//! part of all work is access to the heap, a region whose pages lie where they were first touched.
//!
//! Java's virtual machines differ in how the collector's threads share their work (`idle`). With
//! `spin` each has an equal share, in phases that end when the last of them has no work left; those
//! that are done before spin. With `sleep` they take small pieces of the work until none is left,
//! and then sleep.
//! Leaves out: collections of the whole heap (the young generation's have one price, also if more
//! warehouses keep more objects); the collector's sleep after long spinning; locks between
//! warehouses (they share hardly any data); compilation; the ramp-up over numbers of warehouses.

use super::{Generator, Params, param};
use crate::error::WorkloadError;
use crate::program::region::ByteSize;
use crate::program::work::{ComputeArg, MemoryUse};
use crate::program::{
    Op, Pattern, PipeDef, PipeKind, Program, RegionDef, RegionPolicy, Sharing, ThreadTemplate,
    TimeSpan, TouchKind,
};

/// Number of parts of the young generation.
const PARTS: u64 = 1024;

/// Bytes that the pipe "left" holds: one page, so that a write of as many bytes waits until the
/// pipe is empty, in the simulation as on Linux.
const LEFT_BYTES: u64 = 4096;

/// With `idle=spin`: phases of a collection, each of which ends when all threads of the collector
/// are done.
const PHASES: u64 = 4;

/// With `idle=sleep`: pieces of a collection's work, from which the collector's threads take one at
/// a time.
const PIECES: u64 = 256;

pub(super) const GENERATOR: Generator = Generator {
    name: "specjbb",
    doc: "Threads that execute transactions on one heap, and a collector that stops them.",
    unit: "transaction",
    params: &[
        param("warehouses", "8", "number of warehouses, one thread each"),
        param("work", "40us", "work of a transaction"),
        param("heap", "512", "MiB of the heap; a quarter of it is the young generation"),
        param("allocation", "8", "KiB that a transaction allocates"),
        param("collectors", "8", "threads of the collector"),
        param("collect", "40ms", "work of a collection, all threads together"),
        param("idle", "spin", "spin or sleep: the collector's threads that have no work left"),
        param("memory", "20", "percentage of the work that is access to the heap; 0: no region"),
        param("huge", "yes", "no: the heap has small pages"),
        param("merge", "0", "percentage of the heap that is merged between processes (KSM)"),
        param("footprint", "256", "KiB that a warehouse's thread uses repeatedly"),
        param("duration", "2s", "length of the run, or none"),
    ],
    build,
};

fn build(params: &Params) -> Result<Program, WorkloadError> {
    let heap = params.number("heap", 1, 1 << 20)?;
    let allocation = params.number("allocation", 1, 1 << 20)?;
    let work = params.time("work")?;
    let collectors = params.number("collectors", 1, 1_000)?;
    let memory = u64::from(params.number("memory", 0, 100)?);
    let huge = params.word("huge", &["no", "yes"])? == 1;
    let merge = params.number("merge", 0, 100)?;
    if merge > 0 && huge {
        return Err(params.bad("merge", "0, or a percentage beside huge=no"));
    }
    // A quarter of the heap (MiB), in 1024 parts, has heap / 4 KiB a part.
    let transactions = u64::from((heap / 4 / allocation).max(1));
    let compute = |work: u64| {
        let memory = (memory > 0).then(|| MemoryUse {
            region: "heap".into(),
            percent: memory,
            kind: TouchKind::Write,
            pattern: Pattern::Random,
            offset: 0,
            size: None,
        });
        Op::Compute(ComputeArg { work: TimeSpan(work), memory })
    };
    let post = |name: &str| Op::SemPost(name.into());
    let wait = |name: &str| Op::SemWait(name.into());
    let times = |times: u64, op: Op| Op::Loop { times: Some(times), ops: vec![op] };

    let warehouse = vec![
        wait("part"),
        Op::Read { pipe: "left".into(), bytes: LEFT_BYTES / PARTS },
        compute(work.0.saturating_mul(transactions)),
        Op::Count(transactions),
        post("filled"),
    ];
    let sleeps = params.word("idle", &["spin", "sleep"])? == 1;
    let work_of_all = params.time("collect")?.0;
    // The number of times that a thread of the collector is woken for a collection, all together.
    let calls = if sleeps { PIECES } else { collectors.into() };
    let share = match sleeps {
        true => vec![compute(work_of_all / PIECES)],
        false => {
            let part = work_of_all / u64::from(collectors) / PHASES;
            let phase = vec![compute(part), Op::SpinBarrier("phase".into())];
            vec![Op::Loop { times: Some(PHASES), ops: phase }]
        }
    };
    let collect = [vec![wait("collect")], share, vec![post("collected")]].concat();
    let fill =
        || [Op::Write { pipe: "left".into(), bytes: LEFT_BYTES }, times(PARTS, post("part"))];
    let [reset, hand_out] = fill();
    let stop = vec![
        reset,
        times(PARTS, wait("filled")),
        times(calls, post("collect")),
        times(calls, wait("collected")),
        hand_out,
    ];
    let vm = fill().into_iter().chain([Op::Loop { times: None, ops: stop }]).collect();
    let thread = |name: &str, instances, ops| ThreadTemplate {
        instances,
        process: Some("java".into()),
        ..ThreadTemplate::new(name, ops)
    };
    let endless = |ops| vec![Op::Loop { times: None, ops }];
    let warehouses = params.number("warehouses", 1, 10_000)?;
    let footprint = u64::from(params.number("footprint", 0, 1 << 20)?) * 1024;
    let heap = RegionDef {
        name: "heap".into(),
        size: ByteSize(u64::from(heap) << 20),
        of: Sharing::Process,
        policy: RegionPolicy::FirstTouch,
        populate: None,
        huge: Some(huge),
        merge: u8::try_from(merge).unwrap_or(100),
    };
    let left = PipeDef { capacity: Some(LEFT_BYTES), ..PipeDef::new("left", PipeKind::Pipe) };
    Ok(Program {
        duration: params.maybe_time("duration")?,
        pipes: vec![left],
        regions: (memory > 0).then_some(heap).into_iter().collect(),
        threads: vec![
            thread("vm", 1, vm),
            thread("collector", collectors, endless(collect)),
            ThreadTemplate { footprint, ..thread("warehouse", warehouses, endless(warehouse)) },
        ],
        ..Program::default()
    })
}
