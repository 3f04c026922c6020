// SPDX-License-Identifier: GPL-2.0-only
//! Event keys: their prefixes, and the ops that each event becomes.
//!
//! Owns: the twenty prefixes and their order. A key may continue after the prefix (`run0`,
//! `timerA`).

use std::collections::BTreeSet;

use super::Context;
use super::json::{Member, Node, Pos, Value};
use super::read::{Source, get};
use crate::error::WorkloadError;
use crate::program::{Op, Pattern, TimeSpan, TimerMode, Touch, TouchKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RtappEvent {
    Runtime,
    Run,
    Sleep,
    Memrun,
    Mem,
    Iorun,
    Lock,
    Unlock,
    Signal,
    Broad,
    Wait,
    Sync,
    Barrier,
    Timer,
    Resume,
    Suspend,
    Yield,
    Fork,
    SemPost,
    SemWait,
}

/// The prefixes in the order in which `of_key` tries them: `runtime` before `run`, `memrun` before
/// `mem`.
pub const PREFIXES: [(&str, RtappEvent); 20] = [
    ("runtime", RtappEvent::Runtime),
    ("run", RtappEvent::Run),
    ("sleep", RtappEvent::Sleep),
    ("memrun", RtappEvent::Memrun),
    ("mem", RtappEvent::Mem),
    ("iorun", RtappEvent::Iorun),
    ("lock", RtappEvent::Lock),
    ("unlock", RtappEvent::Unlock),
    ("signal", RtappEvent::Signal),
    ("broad", RtappEvent::Broad),
    ("wait", RtappEvent::Wait),
    ("sync", RtappEvent::Sync),
    ("barrier", RtappEvent::Barrier),
    ("timer", RtappEvent::Timer),
    ("resume", RtappEvent::Resume),
    ("suspend", RtappEvent::Suspend),
    ("yield", RtappEvent::Yield),
    ("fork", RtappEvent::Fork),
    ("sem_post", RtappEvent::SemPost),
    ("sem_wait", RtappEvent::SemWait),
];

/// Returns the event that a key stands for.
pub fn of_key(key: &str) -> Option<RtappEvent> {
    PREFIXES.iter().find(|(prefix, _)| key.starts_with(prefix)).map(|(_, event)| *event)
}

/// The state while the events of one task are parsed.
pub struct TaskReader<'c> {
    pub context: &'c mut Context,
    pub task: &'c str,
    pub instances: u32,
    /// Mutexes that the task holds after the events parsed so far, if every loop ran once.
    pub held: BTreeSet<String>,
    /// Largest number of bytes that one of the task's memory events touches.
    pub footprint: u64,
}

impl TaskReader<'_> {
    /// Appends the ops of one event.
    pub fn event(
        &mut self,
        src: &mut Source<'_>,
        event: RtappEvent,
        member: &Member,
        ops: &mut Vec<Op>,
    ) -> Result<(), WorkloadError> {
        let Member { key, pos, node } = member;
        let op = match event {
            RtappEvent::Run => Op::Compute(TimeSpan(src.micros(key, node)?).into()),
            RtappEvent::Runtime => Op::ComputeWall(TimeSpan(src.micros(key, node)?)),
            RtappEvent::Sleep => Op::Sleep(TimeSpan(src.micros(key, node)?)),
            RtappEvent::Mem => self.mem(src, key, node)?,
            RtappEvent::Memrun => self.memrun(src, key, node)?,
            RtappEvent::Iorun => self.iorun(src, member)?,
            RtappEvent::Lock => {
                let name = named(src, key, node)?;
                self.held.insert(name.clone());
                Op::Lock(name)
            }
            RtappEvent::Unlock => self.unlock(src, member)?,
            RtappEvent::Signal => Op::Signal(named(src, key, node)?),
            RtappEvent::Broad => Op::Broadcast(named(src, key, node)?),
            RtappEvent::Wait => self.wait(src, member)?,
            RtappEvent::Sync => {
                let wait = self.wait(src, member)?;
                if let Op::Wait { cond, .. } = &wait {
                    ops.push(Op::Signal(cond.clone()));
                }
                wait
            }
            RtappEvent::Barrier => {
                let name = named(src, key, node)?;
                self.context.count_barrier(&name, self.instances, *pos);
                Op::Barrier(name)
            }
            RtappEvent::Timer => timer(src, member)?,
            RtappEvent::Resume => Op::Resume(named(src, key, node)?),
            RtappEvent::Suspend => Op::Suspend(self.own_name(src, key, node)?),
            RtappEvent::Yield => {
                self.own_name(src, key, node)?;
                Op::Yield
            }
            RtappEvent::Fork => {
                let name = named(src, key, node)?;
                self.context.forks.push((self.task.to_owned(), name.clone(), node.pos));
                Op::Fork(name)
            }
            RtappEvent::SemPost => Op::SemPost(named(src, key, node)?),
            RtappEvent::SemWait => Op::SemWait(named(src, key, node)?),
        };
        ops.push(op);
        Ok(())
    }

    /// Returns the name in the event's value, or the task's own name if the value is absent or
    /// empty. rt-app's helper `workgen` fills in the same name.
    fn own_name(&self, src: &Source<'_>, key: &str, node: &Node) -> Result<String, WorkloadError> {
        match &node.value {
            Value::Absent => Ok(self.task.to_owned()),
            Value::String(text) if text.is_empty() => Ok(self.task.to_owned()),
            _ => named(src, key, node),
        }
    }

    fn unlock(&mut self, src: &Source<'_>, member: &Member) -> Result<Op, WorkloadError> {
        let name = named(src, &member.key, &member.node)?;
        if !self.held.remove(&name) {
            let problem = format!("mutex \"{name}\" is not locked here by task \"{}\"", self.task);
            return Err(src.invalid(member.node.pos, problem));
        }
        Ok(Op::Unlock(name))
    }

    fn wait(&mut self, src: &mut Source<'_>, member: &Member) -> Result<Op, WorkloadError> {
        let members = src.object(&member.key, &member.node)?;
        known_keys(src, &member.key, members, &["ref", "mutex"])?;
        let cond = required(src, member, members, "ref")?;
        let mutex = required(src, member, members, "mutex")?;
        let (cond, mutex) = (named(src, "ref", cond)?, named(src, "mutex", mutex)?);
        if self.held.insert(mutex.clone()) {
            let text = format!(
                "{} without mutex \"{mutex}\": it returns with the mutex locked",
                member.key
            );
            src.note(member.pos, text);
        }
        Ok(Op::Wait { cond, mutex })
    }

    fn mem(&mut self, src: &Source<'_>, key: &str, node: &Node) -> Result<Op, WorkloadError> {
        let size = src.int(key, node, 0, 1 << 40)?.unsigned_abs();
        self.footprint = self.footprint.max(size.min(self.context.global.mem_buffer_size));
        let (kind, pattern) = (TouchKind::Write, Pattern::Sequential);
        Ok(Op::Touch(Touch { kind, size, count: 0, stride: 64, pattern }.into()))
    }

    fn memrun(&mut self, src: &Source<'_>, key: &str, node: &Node) -> Result<Op, WorkloadError> {
        let members = src.object(key, node)?;
        known_keys(src, key, members, &["type", "size", "count", "stride", "pattern", "ref"])?;
        let number = |key: &str, min: i64, default: u64| match get(members, key) {
            None => Ok(default),
            Some(m) => Ok(src.int(key, &m.node, min, 1 << 40)?.unsigned_abs()),
        };
        let kinds =
            [("write", TouchKind::Write), ("read", TouchKind::Read), ("chase", TouchKind::Chase)];
        let patterns = [("sequential", Pattern::Sequential), ("random", Pattern::Random)];
        if let Some(buffer) = get(members, "ref") {
            named(src, "ref", &buffer.node)?;
        }
        let touch = Touch {
            kind: choice(src, members, "type", &kinds)?,
            size: number("size", 1, self.context.global.mem_buffer_size)?,
            count: number("count", 0, 0)?,
            stride: number("stride", 1, 64)?,
            pattern: choice(src, members, "pattern", &patterns)?,
        };
        self.footprint = self.footprint.max(touch.size);
        Ok(Op::Touch(touch.into()))
    }

    /// Parses `iorun`. A write to a device takes device time; a write to /dev/null takes none.
    fn iorun(&mut self, src: &Source<'_>, member: &Member) -> Result<Op, WorkloadError> {
        let bytes = src.int(&member.key, &member.node, 0, 1 << 40)?.unsigned_abs();
        Ok(Op::Io { bytes, null: self.context.global.io_device == "/dev/null" })
    }
}

/// Returns a name that is not empty. `{i` becomes `(i`, because in a program it would begin an
/// instance expression, while in rt-app it has no meaning.
pub fn named(src: &Source<'_>, key: &str, node: &Node) -> Result<String, WorkloadError> {
    match src.string(key, node)? {
        "" => Err(src.out_of_range(key, node, "a name that is not empty")),
        name => Ok(name.replace("{i", "(i")),
    }
}

fn timer(src: &Source<'_>, member: &Member) -> Result<Op, WorkloadError> {
    let members = src.object(&member.key, &member.node)?;
    known_keys(src, &member.key, members, &["ref", "period", "mode"])?;
    let name = named(src, "ref", required(src, member, members, "ref")?)?;
    let period = src.micros("period", required(src, member, members, "period")?)?;
    let modes = [("relative", TimerMode::Relative), ("absolute", TimerMode::Absolute)];
    let mode = choice(src, members, "mode", &modes)?;
    let unique = name.starts_with("unique");
    Ok(Op::Timer { name, period: TimeSpan(period), mode, unique })
}

/// Parses the value of `key`, which is one of `words`; the first word is the default.
fn choice<T: Copy>(
    src: &Source<'_>,
    members: &[Member],
    key: &str,
    words: &[(&str, T)],
) -> Result<T, WorkloadError> {
    let Some(member) = get(members, key) else {
        return Ok(words[0].1);
    };
    let text = src.string(key, &member.node)?;
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let all: Vec<_> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        src.out_of_range(key, &member.node, all.join(" or "))
    })
}

fn required<'n>(
    src: &Source<'_>,
    owner: &Member,
    members: &'n [Member],
    key: &'static str,
) -> Result<&'n Node, WorkloadError> {
    get(members, key).map(|m| &m.node).ok_or_else(|| missing(src, owner.pos, &owner.key, key))
}

fn missing(src: &Source<'_>, pos: Pos, within: &str, key: &str) -> WorkloadError {
    src.invalid(pos, format!("\"{within}\" has no \"{key}\""))
}

/// Refuses members whose key is not in `known`.
pub fn known_keys(
    src: &Source<'_>,
    within: &str,
    members: &[Member],
    known: &[&str],
) -> Result<(), WorkloadError> {
    match members.iter().find(|m| !known.contains(&m.key.as_str())) {
        None => Ok(()),
        Some(member) => Err(WorkloadError::UnknownKey {
            at: src.place(member.pos),
            key: member.key.clone(),
            within: format!("\"{within}\""),
            candidates: known.iter().map(|k| (*k).to_owned()).collect(),
        }),
    }
}
