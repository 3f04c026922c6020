// SPDX-License-Identifier: GPL-2.0-only
//! sysbench_memory: threads that write a block of memory again and again
//! (`sysbench --test=memory`, version 0.4).
//!
//! Models: the threads of one process take blocks until the total size is written. A unit is a
//! block, sysbench's operation. With `hold`, a thread holds a barging mutex for that long when it
//! takes a block, and the others sleep meanwhile.
//! Leaves out: the bandwidth of memory, because a block fits into a cache: `touch` writes a buffer
//! of the thread's own. By default also the mutex around the count of blocks, which sysbench 1.0
//! does not have. `overhead` is an estimate of the rest of an operation: the count, a random number
//! and two readings of the clock.

use super::{Generator, Params, param};
use crate::error::WorkloadError;
use crate::program::work::BufferArg;
use crate::program::{
    MutexDef, Op, Pattern, Program, SemaphoreDef, ThreadTemplate, TimeSpan, Touch, TouchKind,
};

pub(super) const GENERATOR: Generator = Generator {
    name: "sysbench_memory",
    doc: "Threads that write a block of memory again and again.",
    unit: "block",
    params: &[
        param("threads", "2", "number of threads"),
        param("block", "1KiB", "size of a block; sysbench's default is 1KiB"),
        param(
            "total",
            "256MiB",
            "bytes that all threads write together; sysbench's default is 100GiB",
        ),
        param("hold", "0ns", "work under the mutex of the count, for each block; 0ns: no mutex"),
        param("overhead", "500ns", "work of a block besides the write"),
        param("duration", "none", "length of the run; none: until the total is written"),
    ],
    build,
};

fn build(params: &Params) -> Result<Program, WorkloadError> {
    let block = params.size("block", 64, 1 << 30)?;
    let total = params.size("total", 64, 1 << 50)?;
    let blocks = total.div_ceil(block);
    let Ok(value) = u32::try_from(blocks) else {
        return Err(params.bad("total", format!("at most {} blocks", u32::MAX)));
    };
    let write = Touch {
        kind: TouchKind::Write,
        size: block,
        count: 0,
        stride: 64,
        pattern: Pattern::Sequential,
    };
    let count = match params.time("hold")? {
        TimeSpan(0) => Vec::new(),
        hold => {
            vec![Op::Lock("count".into()), Op::Compute(hold.into()), Op::Unlock("count".into())]
        }
    };
    let rest = [
        Op::TakeOrExit("blocks".into()),
        Op::Compute(params.time("overhead")?.into()),
        Op::Touch(BufferArg::from(write)),
        Op::Count(1),
    ];
    let holds = !count.is_empty();
    let operation = count.into_iter().chain(rest).collect();
    let name = "sysbench-memory";
    let mut thread = ThreadTemplate::new(name, vec![Op::Loop { times: None, ops: operation }]);
    thread.instances = params.number("threads", 1, 10_000)?;
    thread.process = Some(name.to_owned());
    thread.footprint = block;
    let count = MutexDef { name: "count".into(), barging: true };
    Ok(Program {
        duration: params.maybe_time("duration")?,
        mutexes: if holds { vec![count] } else { Vec::new() },
        semaphores: vec![SemaphoreDef { name: "blocks".into(), value }],
        threads: vec![thread],
        ..Program::default()
    })
}
