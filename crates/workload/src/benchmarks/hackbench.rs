// SPDX-License-Identifier: GPL-2.0-only
//! hackbench: groups of senders and receivers; every sender writes to every receiver of its group.
//!
//! Models: per group `fds` senders and `fds` receivers, one socket (or pipe) into each receiver,
//! messages of `size` bytes, `loops` rounds. All tasks start together after a barrier. Reads block,
//! and writes block on a full buffer. In a guest, each call may take a spin lock of its socket, as
//! the guest's kernel does for the socket's state and queue; all senders of a group meet at it.
//! The lines of a socket and of a message come from the CPU that used and wrote them last.
//! Leaves out: the parent's forks and waits (all tasks exist at the start), and the copying itself,
//! whose cost is the machine's `pipe_rw`/`sock_rw` per call and per KiB; the sockets' locks outside
//! guests (`Params::under_lock`). The measured time is the length of the run.

use super::{Generator, Params, param};
use crate::error::WorkloadError;
use crate::program::{BarrierDef, Op, PipeDef, PipeKind, Program, ThreadTemplate, TimeSpan};

pub(super) const GENERATOR: Generator = Generator {
    name: "hackbench",
    doc: "Groups of senders that write to all receivers of their group.",
    unit: "message",
    params: &[
        param("groups", "10", "number of groups"),
        param("fds", "20", "senders, and receivers, of a group"),
        param("loops", "100", "messages from each sender to each receiver"),
        param("size", "100", "bytes of a message"),
        param("ipc", "socket", "socket or pipe"),
        param("mode", "process", "process, or thread: all in one address space"),
        param("work", "0us", "work of sender and receiver per message"),
        param(
            "hold",
            "0us",
            "work under the lock of a socket (in guests), in each call; 0us: no lock",
        ),
        param("duration", "none", "length of the run; none: until all messages have arrived"),
    ],
    build,
};

fn build(params: &Params) -> Result<Program, WorkloadError> {
    let groups = params.number("groups", 1, 2_000)?;
    let fds = params.number("fds", 1, 200)?;
    let loops = u64::from(params.number("loops", 1, 1_000_000_000)?);
    let bytes = u64::from(params.number("size", 1, 1 << 20)?);
    let kind = [PipeKind::Socket, PipeKind::Pipe][params.word("ipc", &["socket", "pipe"])?];
    let threads = params.word("mode", &["process", "thread"])? == 1;
    let work = params.time("work")?;

    let busy = |op: Op| {
        if work == TimeSpan(0) { vec![op] } else { vec![Op::Compute(work.into()), op] }
    };
    // Receiver r of group g has the instance number n = g * fds + r and reads from pipe `fd<n>`. A
    // sender with instance number i belongs to group i / fds (rounded down), so the pipes of its
    // group begin at number i / fds * fds.
    let to = |r: u32| format!("fd{{i/{fds}*{fds}+{r}}}");
    let hold = params.time("hold")?;
    // A call on a socket, whose queue and state are under a spin lock.
    let call = |socket: &str, op: Op| [params.under_lock(socket, hold), busy(op)].concat();
    let writes = (0..fds).flat_map(|r| call(&to(r), Op::Write { pipe: to(r), bytes })).collect();
    let sender = vec![Op::Barrier("start".into()), Op::Loop { times: Some(loops), ops: writes }];
    let read = call("fd{i}", Op::Read { pipe: "fd{i}".into(), bytes });
    // Counted once per round: real receivers count nothing, and how often they sleep depends on how
    // long a message takes them.
    let round = u64::from(fds);
    let ops = vec![Op::Loop { times: Some(round), ops: read }, Op::Count(round)];
    let receiver = vec![Op::Barrier("start".into()), Op::Loop { times: Some(loops), ops }];
    let template = |name: &str, ops| ThreadTemplate {
        instances: groups * fds,
        process: threads.then(|| "hackbench".to_owned()),
        ..ThreadTemplate::new(name, ops)
    };
    Ok(Program {
        duration: params.maybe_time("duration")?,
        barriers: vec![BarrierDef { name: "start".into(), parties: groups * fds * 2 }],
        pipes: vec![PipeDef::new("fd{i}", kind)],
        threads: vec![template("receiver", receiver), template("sender", sender)],
        ..Program::default()
    })
}
