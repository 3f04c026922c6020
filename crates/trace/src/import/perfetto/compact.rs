// SPDX-License-Identifier: GPL-2.0-only
//! Perfetto's compact form of switches and wake-ups: one list per field.
//!
//! A switch does not tell the task before, which is the next task of the switch before. A wake-up
//! does not tell the waker, which is the task that runs on the CPU.

use std::sync::Arc;

use super::Reader;
use super::event::{cpu_of, tid_of};
use crate::import::raw::{IN_INTERRUPT, Raw, RawKind, Who, state_of_bits};
use crate::perfetto::schema::{CompactSched, Value};
use crate::perfetto::wire::{Broken, Wire};

/// Lanes of the merge: each list is in order of time, and the lists are not in order with each
/// other or with the bundle's other events.
const WAKINGS: u8 = 1;
const SWITCHES: u8 = 2;

/// Reads the lists of a bundle. Lists of different lengths end with the shortest.
pub fn read(
    reader: &mut Reader<'_, '_>,
    cpu: u32,
    lost: &mut bool,
    bytes: &[u8],
) -> Result<(), Broken> {
    let mut sched = CompactSched::read(Wire::Bytes(bytes)).ok_or(Broken)?;
    let names = std::mem::take(&mut sched.intern_table);
    let names: Vec<_> = names.iter().map(|name| reader.comms.get(name)).collect();
    let whole =
        wakings(reader, cpu, lost, &sched, &names) & switches(reader, cpu, lost, &sched, &names);
    if whole { Ok(()) } else { Err(Broken) }
}

fn wakings(
    reader: &mut Reader<'_, '_>,
    cpu: u32,
    lost: &mut bool,
    sched: &CompactSched,
    names: &[Arc<str>],
) -> bool {
    let mut time = 0u64;
    for (at, delta) in sched.waking_timestamp.0.iter().enumerate() {
        time = time.saturating_add(*delta);
        let read = || {
            let prio = sched.waking_prio.0.get(at).copied();
            let task = who(names, &sched.waking_pid.0, &sched.waking_comm_index.0, prio, at)?;
            let target = cpu_of(sched.waking_target_cpu.0.get(at).copied())?;
            Some(RawKind::Waking { task, target })
        };
        let Some(kind) = read() else { return false };
        let flags = sched.waking_common_flags.0.get(at).copied();
        let interrupt = flags.map(|flags| flags & IN_INTERRUPT != 0);
        reader.push(Raw { time, cpu, lane: WAKINGS, running: None, interrupt, kind }, lost);
    }
    true
}

fn switches(
    reader: &mut Reader<'_, '_>,
    cpu: u32,
    lost: &mut bool,
    sched: &CompactSched,
    names: &[Arc<str>],
) -> bool {
    let mut time = 0u64;
    for (at, delta) in sched.switch_timestamp.0.iter().enumerate() {
        time = time.saturating_add(*delta);
        let read = || {
            let prio = sched.switch_next_prio.0.get(at).copied();
            let next =
                who(names, &sched.switch_next_pid.0, &sched.switch_next_comm_index.0, prio, at)?;
            let state = state_of_bits(*sched.switch_prev_state.0.get(at)?);
            Some(RawKind::Switch { prev: None, state, next })
        };
        let Some(kind) = read() else { return false };
        let raw = Raw { time, cpu, lane: SWITCHES, running: None, interrupt: None, kind };
        reader.push(raw, lost);
    }
    true
}

fn who(
    names: &[Arc<str>],
    pids: &[i32],
    comms: &[u32],
    prio: Option<i32>,
    at: usize,
) -> Option<Who> {
    let tid = tid_of(pids.get(at).copied())?;
    let comm = comms.get(at).and_then(|index| names.get(*index as usize)).cloned();
    Some(Who { tid, comm, prio })
}
