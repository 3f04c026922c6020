// SPDX-License-Identifier: GPL-2.0-only
//! ebizzy: threads of one process that allocate a chunk of memory, copy a table into it, search it,
//! and free it.
//!
//! Models: with malloc, each thread has a heap of its own (an arena of glibc 2.12). A free gives
//! the heap's top back to the kernel with `madvise(MADV_DONTNEED)`, except for 128 KiB, so the next
//! chunk faults on these pages again. Pages enter and leave the lists of pages in use (LRU lists)
//! in batches, under their zone's spin lock. Giving pages back flushes the TLB of all CPUs that run
//! the process. Faults and `madvise` share the address space's lock, so they run in parallel. With
//! `mmap=yes` (-m) each chunk is a mapping of its own. Mapping and unmapping have the address
//! space's lock alone, during the flush as well, and faults wait for it. A unit is a record.
//! Leaves out: with `mmap=yes`, a change of the address space does not wait for faults that are
//! under way; the faults of one batch check the lock together; the table that is copied (it stays
//! in the cache); the lock of the zone's free pages, because each CPU keeps as many as a chunk has;
//! the zone's lock outside guests (`Params::under_lock`).

use super::{Generator, Params, param};
use crate::error::WorkloadError;
use crate::program::region::ByteSize;
use crate::program::work::BufferArg;
use crate::program::{Op, Pattern, Program, ThreadTemplate, TimeSpan, TouchKind};

/// KiB of a small page.
const PAGE_KIB: u32 = 4;

/// KiB at the heap's top that a free keeps (glibc's `M_TOP_PAD`, its default).
const TOP_PAD_KIB: u32 = 128;

/// Pages that enter or leave the zone's lists of pages in use (LRU lists) at a time. Linux has 14
/// (`PAGEVEC_SIZE`); longer batches under a lock that is held for longer keep the simulation fast.
const BATCH: u32 = 32;

pub(super) const GENERATOR: Generator = Generator {
    name: "ebizzy",
    doc: "Threads that allocate a chunk of memory, copy into it, search it, and free it.",
    unit: "record",
    params: &[
        param("threads", "16", "number of threads (-t)"),
        param("chunk", "256", "KiB of a chunk (-s)"),
        param("mmap", "no", "yes: each chunk is a mapping of its own (-m)"),
        param("map", "2us", "work of mapping a chunk, with mmap=yes"),
        param("fault", "700ns", "work of one page fault, without the zone's lock"),
        param(
            "hold",
            "1us",
            "work under the zone's lock (in guests), for each 32 pages; 0us: no lock",
        ),
        param("search", "2us", "work of searching the copy"),
        param("duration", "2s", "length of the run (-S), or none"),
    ],
    build,
};

fn build(params: &Params) -> Result<Program, WorkloadError> {
    let chunk = params.number("chunk", 4, 1 << 20)?;
    let mapped = params.word("mmap", &["no", "yes"])? == 1;
    let (map, fault) = (params.time("map")?, params.time("fault")?);
    let hold = params.time("hold")?;
    let search = Op::Compute(params.time("search")?.into());
    let fresh = if mapped { chunk } else { chunk.saturating_sub(TOP_PAD_KIB) };
    let pages = fresh.div_ceil(PAGE_KIB);
    let zone = || params.under_lock("zone", hold);
    // Ops between which the thread has the address space's lock alone, if it takes it at all.
    let alone = |ops: Vec<Op>| match mapped {
        true => {
            [vec![Op::Lock("mmap_sem".into())], ops, vec![Op::Unlock("mmap_sem".into())]].concat()
        }
        false => ops,
    };
    let faults = |pages: u32| {
        let work = TimeSpan(fault.0.saturating_mul(pages.into()));
        [alone(Vec::new()), zone(), vec![Op::Compute(work.into())]].concat()
    };
    let copy = |kib: u32| {
        (kib > 0).then(|| {
            Op::Touch(BufferArg {
                region: None,
                offset: 0,
                size: Some(ByteSize(u64::from(kib) * 1024)),
                kind: TouchKind::Write,
                count: 0,
                stride: 64,
                pattern: Pattern::Sequential,
            })
        })
    };

    let mut record = match mapped {
        true => alone(vec![Op::Compute(map.into())]),
        false => Vec::new(),
    };
    record.extend(copy(chunk - fresh));
    let mut left = fresh;
    while left > 0 {
        let kib = left.min(BATCH * PAGE_KIB);
        record.extend(faults(kib.div_ceil(PAGE_KIB)));
        record.extend(copy(kib));
        left -= kib;
    }
    record.push(search);
    if pages > 0 {
        let frees = (0..pages.div_ceil(BATCH)).flat_map(|_| zone());
        record.extend(alone([Op::Unmap].into_iter().chain(frees).collect()));
    }
    record.push(Op::Count(1));
    let mut thread = ThreadTemplate::new("ebizzy", vec![Op::Loop { times: None, ops: record }]);
    thread.instances = params.number("threads", 1, 10_000)?;
    thread.process = Some("ebizzy".to_owned());
    let duration = params.maybe_time("duration")?;
    Ok(Program { duration, threads: vec![thread], ..Program::default() })
}
