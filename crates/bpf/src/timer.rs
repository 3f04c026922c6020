// SPDX-License-Identifier: GPL-2.0-only
//! `struct bpf_timer` in map values.
//!
//! Owns: which timers exist, their callbacks, and whether they are armed. Does not: keep time; the
//! event queue of the `Host` calls `vm::fire_timer` when a timer expires.
//! Models: kernel/bpf/helpers.c, `bpf_timer_*`, v7.3.
//!
//! ```text
//!   (absent) --init--> Idle --start--> Armed --host fires--> Idle (callback runs; it may start the timer again)
//!                       ^---- cancel ----'     element freed in any state: gone, the host is told to disarm
//! ```

use crate::map::MapId;
use crate::vm::{FuncId, InstanceId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(pub u32);

impl TimerId {
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

/// First word of an initialised `struct bpf_timer`: the timer's id plus one, so that zeroed memory
/// is no timer.
pub(crate) fn word_of_id(id: TimerId) -> u64 {
    u64::from(id.0) + 1
}

pub(crate) fn id_of_word(word: u64) -> Option<TimerId> {
    u32::try_from(word.checked_sub(1)?).ok().map(TimerId)
}

/// One initialised timer.
#[derive(Clone, Copy, Debug)]
pub struct Timer {
    /// Address of the `struct bpf_timer`.
    pub addr: u64,
    /// The map that holds the timer, and the address of the map value, which the callback gets.
    pub map: MapId,
    pub value: u64,
    pub instance: InstanceId,
    pub callback: Option<FuncId>,
    /// The rights of the program that set the callback (`Host::rights`).
    pub rights: u8,
    pub armed: bool,
}

/// All timers of a simulation. A new timer may get the id of a timer whose map element was freed.
#[derive(Default)]
pub struct Timers {
    slots: Vec<Option<Timer>>,
    free: Vec<TimerId>,
    /// The timer whose callback runs now, if any. A callback cannot cancel its own timer.
    pub(crate) running: Option<TimerId>,
}

impl Timers {
    pub fn get(&self, id: TimerId) -> Option<&Timer> {
        self.slots.get(id.idx())?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: TimerId) -> Option<&mut Timer> {
        self.slots.get_mut(id.idx())?.as_mut()
    }

    pub(crate) fn insert(&mut self, timer: Timer) -> TimerId {
        if let Some(id) = self.free.pop() {
            self.slots[id.idx()] = Some(timer);
            return id;
        }
        self.slots.push(Some(timer));
        TimerId(self.slots.len() as u32 - 1)
    }

    pub(crate) fn remove(&mut self, id: TimerId) -> Option<Timer> {
        let timer = self.slots.get_mut(id.idx())?.take()?;
        if self.running == Some(id) {
            // The callback runs on after its timer is gone. If a new timer gets the same id
            // meanwhile, the callback may cancel it, because it is not the callback's own timer.
            self.running = None;
        }
        self.free.push(id);
        Some(timer)
    }
}
