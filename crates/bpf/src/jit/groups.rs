// SPDX-License-Identifier: GPL-2.0-only
//! Groups of nearby accesses through one pointer, which share one check of the pages' permissions.
//!
//! Owns: the grouping.
//! Does not: check (see `memory.rs`).
//!
//! A group begins in one block and extends to blocks that are reached only from blocks of the
//! group, by jumps forward. It ends at a call that may take a permission away (see
//! `keeps_memory.rs`). The first access of a group checks the whole range. If the pages do not
//! allow the access to the whole range, each access of the group leaves the code, and
//! `Calls::access` checks it separately.

use super::Data;
use super::facts::{FunctionAnalysis, step};
use super::memory::AccessLocation;
use crate::insn::uses::{is_load, writes};
use crate::insn::{Insn, Op, access_size};
use crate::vm::Func;

/// Largest range of a group in bytes. It must not exceed a page. It is small, so that the check of
/// a group seldom fails because of bytes that no access touches.
const SPAN: i64 = 256;
/// Largest number of groups open for further accesses at a time, so that hostile programs cannot
/// exhaust memory.
const OPEN_MAX: usize = 16;

/// Nearby accesses through one pointer, which share a check.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Range in bytes, relative to the address of the group's first access.
    pub from: i64,
    pub to: i64,
    count: u32,
    /// Offset that the first access adds to the pointer.
    first: i64,
}

#[derive(Default)]
pub struct Groups {
    all: Vec<Group>,
    /// Indexed by slot of the function: number of the group that the slot's access belongs to.
    of: Vec<Option<u32>>,
    /// Indexed by slot: whether the slot's access goes through r1 as the function received it.
    through_r1: Vec<bool>,
}

/// Contents of a register: an unknown value, which has the number `.0`, plus the constant `.1`.
type Value = (u32, i64);

#[derive(Clone)]
struct GroupState {
    regs: [Value; 11],
    /// Pairs of the number of an unknown value and an open group of accesses through that value.
    open: Vec<(u32, u32)>,
    known: super::facts::Regs,
}

impl Groups {
    /// Groups the accesses of a function. `keeps` tells whether a call takes no permission away.
    pub fn of(
        code: &[Insn],
        func: &Func,
        facts: &FunctionAnalysis,
        data: &[Data],
        keeps: &dyn Fn(&Insn) -> bool,
    ) -> Groups {
        let len = func.len as usize;
        let (of, through_r1) = (vec![None; len], vec![false; len]);
        let mut groups = Groups { all: Vec::new(), of, through_r1 };
        // Indexed by slot: the states with which the function comes from earlier slots.
        let mut after: Vec<Vec<GroupState>> = vec![Vec::new(); len];
        let mut numbers = 0;
        let mut state = None;
        let mut r1 = None;
        for slot in (0..len).filter(|slot| facts.reached[*slot]) {
            let pc = func.start + slot as u32;
            if let Some(known) = facts.blocks[slot] {
                let before = std::mem::take(&mut after[slot]);
                let all = slot > 0 && before.len() == facts.preds[slot] as usize;
                let inherited = before.into_iter().filter(|_| all);
                let inherited = inherited.reduce(|one, other| one.merged(&other, &mut numbers));
                let mut begun = inherited.unwrap_or_else(|| fresh(&mut numbers, known));
                begun.known = known;
                state = Some(begun);
            }
            let Some(current) = &mut state else { continue };
            let insn = &code[pc as usize];
            let base = usize::from(if is_load(insn.op) { insn.src } else { insn.dst });
            groups.through_r1[slot] = *r1.get_or_insert(current.regs[1]) == current.regs[base];
            groups.access(insn, slot, current, data);
            step(insn, pc, &mut current.known, data);
            advance(insn, current, &mut numbers, keeps);
            for next in facts.next[slot].into_iter().flatten() {
                let next = (next - func.start) as usize;
                if next > slot && facts.blocks[next].is_some() {
                    after[next].push(current.clone());
                }
            }
        }
        groups
    }

    /// Returns number and group of the access in a slot, if the group has more than one access.
    pub fn at(&self, slot: usize) -> Option<(usize, Group)> {
        let at = self.of[slot]? as usize;
        Some((at, self.all[at])).filter(|(_, group)| group.count > 1)
    }

    /// Returns whether the access in a slot goes through r1 as the function received it.
    pub fn through_r1(&self, slot: usize) -> bool {
        self.through_r1[slot]
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    fn access(&mut self, insn: &Insn, slot: usize, state: &mut GroupState, data: &[Data]) {
        let Some(size) = access_size(insn.op) else { return };
        let base = usize::from(if is_load(insn.op) { insn.src } else { insn.dst });
        if AccessLocation::of(insn, &state.known, data) != AccessLocation::Anywhere {
            return;
        }
        let (value, more) = state.regs[base];
        let at = more.wrapping_add(i64::from(insn.off));
        let open = state.open.iter().filter(|(of, _)| *of == value).map(|(_, group)| *group);
        let joined = open.into_iter().find(|group| self.all[*group as usize].takes(at, size));
        let group = joined.unwrap_or_else(|| {
            let group = self.all.len() as u32;
            self.all.push(Group { from: 0, to: i64::from(size), count: 1, first: at });
            if state.open.len() == OPEN_MAX {
                state.open.remove(0);
            }
            state.open.push((value, group));
            group
        });
        self.of[slot] = Some(group);
    }
}

impl Group {
    /// Adds an access to the group if it fits. Returns whether it did.
    fn takes(&mut self, at: i64, size: i32) -> bool {
        let from = at.wrapping_sub(self.first);
        // An access does not fit if it is too far from the group's first access, or if the end of
        // the address space lies between the two.
        if !(-SPAN..=SPAN).contains(&from) {
            return false;
        }
        let (from, to) = (self.from.min(from), self.to.max(from + i64::from(size)));
        let fits = to - from <= SPAN;
        if fits {
            (self.from, self.to, self.count) = (from, to, self.count + 1);
        }
        fits
    }
}

impl GroupState {
    /// Returns what holds after either of two states. A group that both have open began in a slot
    /// that comes before both.
    fn merged(mut self, other: &GroupState, numbers: &mut u32) -> GroupState {
        for (value, other) in self.regs.iter_mut().zip(other.regs) {
            if *value != other {
                *value = number(numbers);
            }
        }
        self.open.retain(|group| other.open.contains(group));
        self
    }
}

fn fresh(numbers: &mut u32, known: super::facts::Regs) -> GroupState {
    let mut state = GroupState { regs: [(0, 0); 11], open: Vec::new(), known };
    for value in &mut state.regs {
        *value = number(numbers);
    }
    state
}

fn number(numbers: &mut u32) -> Value {
    *numbers += 1;
    (*numbers, 0)
}

fn advance(insn: &Insn, state: &mut GroupState, numbers: &mut u32, keeps: &dyn Fn(&Insn) -> bool) {
    let (dst, src) = (usize::from(insn.dst), usize::from(insn.src));
    match insn.op {
        Op::Mov64X => state.regs[dst] = state.regs[src],
        Op::Add64K => state.regs[dst].1 = state.regs[dst].1.wrapping_add(insn.imm),
        Op::Sub64K => state.regs[dst].1 = state.regs[dst].1.wrapping_sub(insn.imm),
        op => {
            let calls = matches!(op, Op::CallFunc | Op::CallReg | Op::CallHelper | Op::CallKfunc);
            if calls && !keeps(insn) {
                state.open.clear();
            }
            let written = writes(insn);
            for reg in (0..10).filter(|reg| written.has(*reg)) {
                state.regs[usize::from(reg)] = number(numbers);
            }
        }
    }
}
