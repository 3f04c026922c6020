// SPDX-License-Identifier: GPL-2.0-only
//! chat: rooms in which every user's message goes to all others of the room (the Linux Scalability
//! Effort's model of VolanoMark).
//!
//! Models: four threads per user. The client's sender writes its messages to a socket. The server's
//! receiver reads each message and posts a semaphore; the server's sender waits for the semaphore
//! and writes the message to every other user of the room. The client's receiver reads the messages
//! that arrive. Client and server are one address space each. A unit is a message that a client
//! sent or received, as the original counts them: each message sent makes `users` units.
//! Leaves out: connecting, and the additions of TCP to a socket: Nagle's algorithm,
//! acknowledgements, the single backlog of the loopback device. A socket holds the default receive
//! buffer of Linux 2.4. `footprint` is an estimate of the memory that a thread touches each time it
//! runs (parts of its kernel stack, socket, control block, buffer).

use super::{Generator, Params, param};
use crate::error::WorkloadError;
use crate::program::{BarrierDef, Op, PipeDef, PipeKind, Program, ThreadTemplate};

/// Default of `tcp_rmem` in Linux 2.4, in bytes.
const RECEIVE_BUFFER: u64 = 87_380;

pub(super) const GENERATOR: Generator = Generator {
    name: "chat",
    doc: "Chat rooms: a server passes each user's messages on to all others of the room.",
    unit: "message",
    params: &[
        param("rooms", "10", "number of rooms"),
        param("users", "20", "users of a room, four threads each"),
        param("messages", "100", "messages from each user"),
        param("size", "100", "bytes of a message"),
        param("footprint", "4", "KiB that a thread touches while it runs"),
        param("duration", "none", "length of the run; none: until all messages have arrived"),
    ],
    build,
};

fn build(params: &Params) -> Result<Program, WorkloadError> {
    let rooms = params.number("rooms", 1, 1_000)?;
    let users = params.number("users", 2, 200)?;
    let messages = u64::from(params.number("messages", 1, 1_000_000)?);
    let bytes = u64::from(params.number("size", 1, 4096)?);
    let footprint = u64::from(params.number("footprint", 0, 1 << 20)?) * 1024;

    let repeat = |times, ops| Op::Loop { times: Some(times), ops };
    let template = |name: &str, process: &str, ops| ThreadTemplate {
        instances: rooms * users,
        process: Some(process.to_owned()),
        footprint,
        ..ThreadTemplate::new(name, ops)
    };
    // User i is number i % users of room i / users.
    let post = "message{i}".to_owned();
    let up = "up{i}".to_owned();
    let down = |k: u32| format!("down{{i/{users}}}.{{i+{k}%{users}}}");

    let start = || Op::Barrier("start".into());
    let send = vec![Op::Write { pipe: up.clone(), bytes }, Op::Count(1)];
    let receive = vec![Op::Read { pipe: down(0), bytes }, Op::Count(1)];
    let take = vec![Op::Read { pipe: up.clone(), bytes }, Op::SemPost(post.clone())];
    let others = (1..users).map(|k| Op::Write { pipe: down(k), bytes });
    let pass_on = std::iter::once(Op::SemWait(post)).chain(others).collect();
    let received = messages * u64::from(users - 1);
    let socket = |name: &str| PipeDef {
        capacity: Some(RECEIVE_BUFFER),
        ..PipeDef::new(name, PipeKind::Socket)
    };
    Ok(Program {
        duration: params.maybe_time("duration")?,
        barriers: vec![BarrierDef { name: "start".into(), parties: rooms * users * 2 }],
        pipes: vec![socket("up{i}"), socket("down{i}.{i}")],
        threads: vec![
            template("client-send", "client", vec![start(), repeat(messages, send)]),
            template("client-receive", "client", vec![start(), repeat(received, receive)]),
            template("server-receive", "server", vec![repeat(messages, take)]),
            template("server-send", "server", vec![repeat(messages, pass_on)]),
        ],
        ..Program::default()
    })
}
