// SPDX-License-Identifier: GPL-2.0-only
//! chat: rooms in which every user's message goes to all others of the room (the Linux Scalability
//! Effort's model of VolanoMark).
//!
//! Models: four threads per user. The client's sender writes its messages to a socket. The server's
//! receiver reads each message and posts a semaphore; the server's sender waits for the semaphore
//! and writes the message to every other user of the room. The client's receiver reads the messages
//! that arrive. With `turns`, the users of a room take turns, as those of VolanoMark do: a sender
//! waits until its user has received a message from each of the others since its last one. Client
//! and server are one address space each. A unit is a message that a client
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
        param("turns", "no", "yes: the users of a room send in turn; no: each as fast as it can"),
        param("duration", "none", "length of the run; none: until all messages have arrived"),
    ],
    build,
};

/// Parameters of the program.
struct Chat {
    rooms: u32,
    users: u32,
    messages: u64,
    bytes: u64,
    footprint: u64,
}

fn build(params: &Params) -> Result<Program, WorkloadError> {
    let chat = Chat {
        rooms: params.number("rooms", 1, 1_000)?,
        users: params.number("users", 2, 200)?,
        messages: params.number("messages", 1, 1_000_000)?.into(),
        bytes: params.number("size", 1, 4096)?.into(),
        footprint: u64::from(params.number("footprint", 0, 1 << 20)?) * 1024,
    };
    let parties = chat.rooms * chat.users * 2;
    let (pipes, threads) = match params.word("turns", &["no", "yes"])? {
        0 => chat.freely(),
        _ => chat.in_turn(),
    };
    Ok(Program {
        duration: params.maybe_time("duration")?,
        barriers: vec![BarrierDef { name: "start".into(), parties }],
        pipes,
        threads,
        ..Program::default()
    })
}

fn start() -> Op {
    Op::Barrier("start".into())
}

fn repeat(times: u64, ops: Vec<Op>) -> Op {
    Op::Loop { times: Some(times), ops }
}

fn socket(name: &str) -> PipeDef {
    PipeDef { capacity: Some(RECEIVE_BUFFER), ..PipeDef::new(name, PipeKind::Socket) }
}

impl Chat {
    fn template(&self, name: &str, instances: u32, process: &str, ops: Vec<Op>) -> ThreadTemplate {
        ThreadTemplate {
            instances,
            process: Some(process.to_owned()),
            footprint: self.footprint,
            ..ThreadTemplate::new(name, ops)
        }
    }

    /// Each user sends as fast as it can. User i is number i % users of room i / users.
    fn freely(&self) -> (Vec<PipeDef>, Vec<ThreadTemplate>) {
        let Chat { rooms, users, messages, bytes, .. } = *self;
        let template =
            |name: &str, process: &str, ops| self.template(name, rooms * users, process, ops);
        let post = "message{i}".to_owned();
        let up = "up{i}".to_owned();
        let down = |k: u32| format!("down{{i/{users}}}.{{i+{k}%{users}}}");

        let send = vec![Op::Write { pipe: up.clone(), bytes }, Op::Count(1)];
        let receive = vec![Op::Read { pipe: down(0), bytes }, Op::Count(1)];
        let take = vec![Op::Read { pipe: up.clone(), bytes }, Op::SemPost(post.clone())];
        let others = (1..users).map(|k| Op::Write { pipe: down(k), bytes });
        let pass_on = std::iter::once(Op::SemWait(post)).chain(others).collect();
        let received = messages * u64::from(users - 1);
        let threads = vec![
            template("client-send", "client", vec![start(), repeat(messages, send)]),
            template("client-receive", "client", vec![start(), repeat(received, receive)]),
            template("server-receive", "server", vec![repeat(messages, take)]),
            template("server-send", "server", vec![repeat(messages, pass_on)]),
        ];
        (vec![socket("up{i}"), socket("down{i}.{i}")], threads)
    }

    /// The users of a room send in turn. A template has the threads of user k of all rooms; its
    /// instance i is in room i.
    fn in_turn(&self) -> (Vec<PipeDef>, Vec<ThreadTemplate>) {
        let Chat { rooms, users, messages, bytes, .. } = *self;
        let template = |name: &str, process: &str, ops| self.template(name, rooms, process, ops);
        let mut threads = Vec::new();
        for k in 0..users {
            let named = |what: &str| format!("{what}{k}.{{i}}");
            let (turn, post, up) = (named("turn"), named("message"), named("up"));
            let read = || [Op::Read { pipe: named("down"), bytes }, Op::Count(1)];
            let reads = |times: u32| (times > 0).then(|| repeat(times.into(), read().to_vec()));

            let send = vec![
                Op::SemWait(turn.clone()),
                Op::Write { pipe: up.clone(), bytes },
                Op::Count(1),
            ];
            // The user's first turn comes after those of users 0 to k - 1, and each further one
            // when all others have had theirs.
            let mut receive: Vec<Op> = std::iter::once(start()).chain(reads(k)).collect();
            receive.push(Op::SemPost(turn.clone()));
            let round = reads(users - 1).into_iter().chain([Op::SemPost(turn)]).collect();
            if messages > 1 {
                receive.push(repeat(messages - 1, round));
            }
            receive.extend(reads(users - 1 - k));
            let take = vec![Op::Read { pipe: up, bytes }, Op::SemPost(post.clone())];
            let others = (1..users).map(|d| (k + d) % users);
            let writes = others.map(|to| Op::Write { pipe: format!("down{to}.{{i}}"), bytes });
            let pass_on = std::iter::once(Op::SemWait(post)).chain(writes).collect();
            let name = |thread: &str| format!("{thread}-{k}");
            threads.extend([
                template(&name("client-send"), "client", vec![start(), repeat(messages, send)]),
                template(&name("client-receive"), "client", receive),
                template(&name("server-receive"), "server", vec![repeat(messages, take)]),
                template(&name("server-send"), "server", vec![repeat(messages, pass_on)]),
            ]);
        }
        let ways = |k| ["up", "down"].map(|way| socket(&format!("{way}{k}.{{i}}")));
        ((0..users).flat_map(ways).collect(), threads)
    }
}
