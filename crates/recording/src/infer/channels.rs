// SPDX-License-Identifier: GPL-2.0-only
//! The channels of bytes between tasks of the workload.
//!
//! Owns: which channels the program has, and the bytes of each transfer in the program.
//!
//! A program repeats, so the bytes that a pass writes into a channel must equal those that it
//! reads. Reads of bytes that were in the channel before the recording, and writes of bytes that
//! nobody read until its end, are left out.

use std::collections::{BTreeMap, BTreeSet};

use scxlab_machine::Nanos;
use scxlab_trace::{Call, ChannelKind};
use scxlab_workload::program::PipeDef;

use crate::history::{History, Sleep, Step, TaskIndex};

/// Size of a page; a pipe's buffers are pages.
const PAGE: u64 = 4096;

/// All channels that have a writer and a reader in the workload.
pub struct Channels {
    channels: BTreeMap<u64, Channel>,
    /// Bytes in the program of the transfers that differ from the recording, by task and step.
    changed: BTreeMap<(TaskIndex, u32), u64>,
    /// Channels that each task reads after a poll, with the bytes if all such reads have the same.
    polled: BTreeMap<TaskIndex, Polled>,
}

#[derive(Default)]
struct Channel {
    kind: Option<ChannelKind>,
    writers: BTreeSet<TaskIndex>,
    readers: BTreeSet<TaskIndex>,
    transfers: Vec<Transfer>,
    /// Writes that waited for room: begin of the wait, and bytes.
    blocked: Vec<(Nanos, u64)>,
    /// Largest number of bytes that the channel can hold, by the writes that waited.
    room: Option<u64>,
    /// Largest number of bytes in the channel after a write that did not wait.
    highest: u64,
}

struct Transfer {
    at: Nanos,
    task: TaskIndex,
    step: u32,
    bytes: u64,
    is_write: bool,
    /// Whether a write waited for room.
    waited: bool,
}

#[derive(Default)]
struct Polled {
    channels: BTreeSet<u64>,
    bytes: BTreeSet<u64>,
}

impl Channels {
    pub fn new(history: &History, kept: &[bool]) -> Channels {
        let mut channels: BTreeMap<u64, Channel> = BTreeMap::new();
        let mut polled: BTreeMap<TaskIndex, Polled> = BTreeMap::new();
        // Writes before a wait that lasted until the end of the recording.
        let mut last_writes = Vec::new();
        for (i, task) in history.tasks.iter().enumerate().filter(|(i, _)| kept[*i]) {
            let mut after_poll = false;
            for (step, s) in task.steps.iter().enumerate() {
                let Step::Call(at, call) = *s else { continue };
                let (object, kind, bytes, is_write) = match call {
                    Call::Write { object, kind, bytes } => (object, kind, bytes, true),
                    Call::Read { object, kind, bytes } => (object, kind, bytes, false),
                    other => {
                        after_poll = matches!(other, Call::Poll { .. });
                        continue;
                    }
                };
                let task = i as TaskIndex;
                if std::mem::take(&mut after_poll) && !is_write {
                    let polled = polled.entry(task).or_default();
                    polled.channels.insert(object);
                    polled.bytes.insert(bytes);
                }
                let channel = channels.entry(object).or_default();
                channel.kind.get_or_insert(kind);
                let side = if is_write { &mut channel.writers } else { &mut channel.readers };
                side.insert(task);
                let wait = if is_write { wait_after(history, task, step) } else { None };
                let transfer =
                    Transfer { at, task, step: step as u32, bytes, is_write, waited: false };
                match wait {
                    None => channel.transfers.push(transfer),
                    Some(Sleep { until: Some(until), from, .. }) => {
                        channel.blocked.push((from, bytes));
                        channel.transfers.push(Transfer { at: until, waited: true, ..transfer });
                    }
                    Some(sleep) => last_writes.push((object, sleep.from, transfer)),
                }
            }
        }
        // The task may wait for room, or in a read that did not end. It waits in a read if no write
        // to the channel ever waited for room.
        for (object, from, write) in last_writes {
            let Some(channel) = channels.get_mut(&object) else { continue };
            match channel.blocked.is_empty() {
                true => channel.transfers.push(write),
                // A part of its bytes may have been read. The others are left out.
                false => {
                    channel.blocked.push((from, write.bytes));
                    channel.transfers.push(Transfer { at: from, waited: true, ..write });
                }
            }
        }
        channels.retain(|_, c| {
            let inside = c.kind != Some(ChannelKind::Outside);
            inside && !c.writers.is_empty() && !c.readers.is_empty()
        });
        let mut changed = BTreeMap::new();
        channels.values_mut().for_each(|c| c.balance(&mut changed));
        Channels { channels, changed, polled }
    }

    /// Whether the program has this channel.
    pub fn has(&self, object: u64) -> bool {
        self.channels.contains_key(&object)
    }

    /// Returns the tasks at both ends of a channel.
    pub fn parties(&self, object: u64) -> impl Iterator<Item = TaskIndex> + '_ {
        let channel = self.channels.get(&object);
        channel.into_iter().flat_map(|c| c.writers.iter().chain(&c.readers)).copied()
    }

    /// Returns the bytes that a transfer has in the program; 0: it is left out.
    pub fn bytes(&self, task: TaskIndex, step: u32, recorded: u64) -> u64 {
        self.changed.get(&(task, step)).copied().unwrap_or(recorded)
    }

    /// Returns the channels that a poll of this task waits for, if a read from `object` follows it.
    pub fn polled_with(&self, task: TaskIndex, object: u64) -> Vec<u64> {
        let Some(polled) = self.polled.get(&task) else { return vec![object] };
        let alike = polled.bytes.len() == 1 && polled.channels.iter().all(|c| self.has(*c));
        let fits = alike && polled.channels.len() <= 64;
        if fits { polled.channels.iter().copied().collect() } else { vec![object] }
    }

    /// Returns the declarations.
    pub fn pipes(&self) -> Vec<PipeDef> {
        self.channels.iter().map(|(object, channel)| channel.pipe(name(*object))).collect()
    }
}

/// Returns the name of a channel.
pub fn name(object: u64) -> String {
    format!("channel {object:#x}")
}

/// Returns the wait for room in which a write had to stay. A wait before a read belongs to the
/// read.
fn wait_after(history: &History, task: TaskIndex, step: usize) -> Option<Sleep> {
    let task = &history.tasks[task as usize];
    let mut rest = task.steps[step + 1..].iter().filter(|s| !matches!(s, Step::Wake(..)));
    let Some(Step::Sleep(sleep)) = rest.next() else { return None };
    let reads = matches!(rest.next(), Some(Step::Call(_, Call::Read { .. })));
    (!reads).then(|| task.sleeps[*sleep as usize])
}

impl Channel {
    /// Returns the declaration. The capacity of a pipe that was full is a power of two of pages, as
    /// in the kernel (`round_pipe_size()`), if there is one between the highest number of bytes for
    /// which no write had to wait and the lowest for which one had to, give or take a write: a
    /// write counts from the beginning of its call, when it is not in the pipe yet. Otherwise the
    /// capacity is the highest number. That of a pipe that was never full is unknown, and the
    /// kernel's default.
    fn pipe(&self, name: String) -> PipeDef {
        let mut pipe = super::pipe(name, self.kind.unwrap_or(ChannelKind::Pipe));
        if let Some(room) = self.room.filter(|_| pipe.overhead() == 0) {
            let write = self.blocked.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
            let least = self.highest.saturating_sub(write).max(PAGE);
            let pages = least.checked_next_power_of_two().unwrap_or(u64::MAX);
            let fits = pages <= room.saturating_add(write).min(self.highest.saturating_add(write));
            pipe.capacity = Some(if fits { pages } else { self.highest.min(room).max(1) });
        }
        pipe
    }

    /// Finds the transfers that have no counterpart in the recording.
    fn balance(&mut self, changed: &mut BTreeMap<(TaskIndex, u32), u64>) {
        self.transfers.sort_by_key(|t| (t.at, !t.is_write));
        self.blocked.sort_unstable();
        let mut blocked = self.blocked.iter().copied().peekable();
        let mut level = 0u64;
        for t in &self.transfers {
            while let Some((_, bytes)) = blocked.next_if(|(at, _)| *at <= t.at) {
                // The read of bytes that are gone may end later, so the level is an upper bound.
                let room = level.saturating_add(bytes).saturating_sub(1);
                self.room = Some(self.room.map_or(room, |least| least.min(room)));
            }
            if t.is_write {
                level = level.saturating_add(t.bytes);
                if !t.waited {
                    self.highest = self.highest.max(level);
                }
            } else {
                let present = t.bytes.min(level);
                if present < t.bytes {
                    changed.insert((t.task, t.step), present);
                }
                level -= present;
            }
        }
        for t in self.transfers.iter().rev().filter(|t| t.is_write) {
            if level == 0 {
                break;
            }
            let unread = t.bytes.min(level);
            changed.insert((t.task, t.step), t.bytes - unread);
            level -= unread;
        }
    }
}
