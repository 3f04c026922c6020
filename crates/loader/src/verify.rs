// SPDX-License-Identifier: GPL-2.0-only
//! The one check of the kernel's verifier that the linker makes at load: a callback must test an
//! argument that may be NULL before it dereferences the argument.
//!
//! Owns: that check.
//! Does not: prove anything else. Other errors that the verifier would refuse are faults when they
//! happen.
//! Models: kernel `PTR_MAYBE_NULL` of struct_ops arguments named `..__nullable`, 7.3. Differs: the
//! check covers only the program's own function, and it accepts the program where paths disagree or
//! a value is not tracked.
//!
//! The check is a forward pass over the program's slots. A register or stack slot holds the
//! context, an argument that may be NULL, or another value. A comparison of any copy of the
//! argument counts as a test of all copies, on both branches.

#[cfg(test)]
mod tests;

use crate::link::Target;
use crate::link::error::LinkErrorKind;
use crate::link::struct_ops::MatchedTable;
use crate::object::Object;
use scxlab_bpf::insn::RawInsn;

/// Refuses the object if a program dereferences an argument that may be NULL and that the program
/// has not tested. The error names the first such use.
pub(crate) fn nullable_args(
    object: &Object,
    tables: &[MatchedTable],
    target: &impl Target,
) -> Result<(), LinkErrorKind> {
    for table in tables {
        for (member, program) in table.callbacks() {
            let nullable = target.nullable_args(table.type_name(), member);
            let function = &object.functions[program];
            let Some(found) = first_null_deref(&function.insns, nullable) else { continue };
            let (insn, arg) = (found.insn, found.arg + 1);
            return Err(LinkErrorKind::StructOps {
                name: table.name().to_owned(),
                what: format!(
                    "program `{}`, insn {insn}: uses argument {arg} of `{member}`, which may be NULL, without testing it for NULL first",
                    function.name
                ),
            });
        }
    }
    Ok(())
}

/// Use of an argument that may be NULL and that the program has not tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NullDeref {
    /// Slot, counted from the start of the program.
    pub insn: usize,
    /// Argument, counted from 0.
    pub arg: u32,
}

/// Finds the first slot that dereferences, or calculates with, an untested argument that may be
/// NULL. `nullable` lists such arguments of the callback, counted from 0. The callback's context is
/// an array of 8-byte arguments.
pub fn first_null_deref(insns: &[RawInsn], nullable: &[u32]) -> Option<NullDeref> {
    if nullable.is_empty() || insns.len() > INSNS_MAX {
        return None;
    }
    let mut states: Vec<Option<RegStackState>> = vec![None; insns.len()];
    let mut queue = vec![(0, RegStackState::entry())];
    while let Some((at, state)) = queue.pop() {
        let Some(slot) = states.get_mut(at) else { continue };
        let merged = match slot {
            Some(old) => old.merge(&state),
            None => state,
        };
        // Merging two states of a slot only turns values into `Other`, so a slot's state changes,
        // and the slot is visited again, a bounded number of times.
        if *slot == Some(merged) {
            continue;
        }
        *slot = Some(merged);
        queue.extend(merged.step(insns, at, nullable).next.into_iter().flatten());
    }
    // Only a use that is untested after all paths have been merged counts.
    let arg_at = |(insn, state): (usize, &Option<RegStackState>)| {
        let arg = state.as_ref()?.step(insns, insn, nullable).deref?;
        Some(NullDeref { insn, arg })
    };
    states.iter().enumerate().find_map(arg_at)
}

/// Longest program that is checked, in slots. Longer programs are accepted unchecked, so that
/// hostile programs take neither time nor memory. The longest known program has 6,562 slots.
const INSNS_MAX: usize = 1 << 16;

/// Content of a register or stack slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrackedValue {
    Other,
    Context,
    /// The untested argument of this number, counted from 0.
    MaybeNull(u8),
}

/// Number of 8-byte slots of a program's frame, which is the 512 bytes below r10.
const STACK_SLOTS: usize = 64;
const R10: u8 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RegStackState {
    regs: [TrackedValue; 11],
    /// Indexed by the distance below r10 in units of 8 bytes: slot 0 is at r10 - 8.
    stack: [TrackedValue; STACK_SLOTS],
}

/// Effect of an instruction: the argument that it uses untested, and the slots at which execution
/// may continue, with the state at each of them.
#[derive(Default)]
struct StepResult {
    deref: Option<u32>,
    next: [Option<(usize, RegStackState)>; 2],
}

mod op {
    pub const LD: u8 = 0;
    pub const LDX: u8 = 1;
    pub const ST: u8 = 2;
    pub const STX: u8 = 3;
    pub const JMP: u8 = 5;
    pub const JMP32: u8 = 6;
    pub const ALU64: u8 = 7;
    pub const DW: u8 = 0x18;
    pub const MODE_MEM: u8 = 0x60;
    pub const MODE_ATOMIC: u8 = 0xc0;
    pub const ADD: u8 = 0x00;
    pub const SUB: u8 = 0x10;
    pub const MOV: u8 = 0xb0;
    pub const X: u8 = 0x08;
    pub const JA: u8 = 0x00;
    pub const CALL: u8 = 0x80;
    pub const EXIT: u8 = 0x90;
}

impl RegStackState {
    fn entry() -> RegStackState {
        let mut regs = [TrackedValue::Other; 11];
        regs[1] = TrackedValue::Context;
        RegStackState { regs, stack: [TrackedValue::Other; STACK_SLOTS] }
    }

    fn merge(&self, other: &RegStackState) -> RegStackState {
        let join = |a: TrackedValue, b: TrackedValue| if a == b { a } else { TrackedValue::Other };
        let mut merged = *self;
        for (to, from) in merged.regs.iter_mut().zip(&other.regs) {
            *to = join(*to, *from);
        }
        for (to, from) in merged.stack.iter_mut().zip(&other.stack) {
            *to = join(*to, *from);
        }
        merged
    }

    fn reg(&self, reg: u8) -> TrackedValue {
        self.regs.get(usize::from(reg)).copied().unwrap_or(TrackedValue::Other)
    }

    fn set(&mut self, reg: u8, value: TrackedValue) {
        if let Some(slot) = self.regs.get_mut(usize::from(reg)) {
            *slot = value;
        }
    }

    /// Number of the untested argument that the register holds, if it holds one.
    fn untested(&self, reg: u8) -> Option<u32> {
        match self.reg(reg) {
            TrackedValue::MaybeNull(arg) => Some(u32::from(arg)),
            _ => None,
        }
    }

    /// Returns the state in which every copy of the argument counts as tested.
    fn tested(mut self, arg: u32) -> RegStackState {
        for value in self.regs.iter_mut().chain(&mut self.stack) {
            if matches!(*value, TrackedValue::MaybeNull(held) if u32::from(held) == arg) {
                *value = TrackedValue::Other;
            }
        }
        self
    }

    fn step(mut self, insns: &[RawInsn], at: usize, nullable: &[u32]) -> StepResult {
        let insn = insns[at];
        let mut effect = StepResult::default();
        let mut next = at + 1;
        match insn.code & 7 {
            op::LD => {
                self.set(insn.dst(), TrackedValue::Other);
                next += usize::from(insn.code == op::LD | op::DW);
            }
            op::LDX => {
                effect.deref = self.untested(insn.src());
                let value = self.load(insn, nullable);
                self.set(insn.dst(), value);
            }
            op::ST | op::STX => {
                effect.deref = self.untested(insn.dst());
                self.store(insn);
            }
            op::JMP | op::JMP32 => {
                effect.next = self.jump(insn, at);
                return effect;
            }
            _ => effect.deref = self.alu(insn),
        }
        effect.next[0] = Some((next, self));
        effect
    }

    fn load(&self, insn: RawInsn, nullable: &[u32]) -> TrackedValue {
        if insn.code != op::LDX | op::MODE_MEM | op::DW {
            return TrackedValue::Other;
        }
        if insn.src() == R10 {
            return slot(insn.off).map_or(TrackedValue::Other, |slot| self.stack[slot]);
        }
        let arg = u8::try_from(insn.off / 8).ok().filter(|_| insn.off % 8 == 0);
        match (self.reg(insn.src()), arg) {
            (TrackedValue::Context, Some(arg)) if nullable.contains(&u32::from(arg)) => {
                TrackedValue::MaybeNull(arg)
            }
            _ => TrackedValue::Other,
        }
    }

    fn store(&mut self, insn: RawInsn) {
        let atomic = insn.code & 0xe0 == op::MODE_ATOMIC;
        if atomic {
            // An atomic operation with fetch writes the old value to the source register or r0.
            self.set(insn.src(), TrackedValue::Other);
            self.set(0, TrackedValue::Other);
        }
        if insn.dst() != R10 {
            return;
        }
        let whole = insn.code == op::STX | op::MODE_MEM | op::DW;
        let value = if whole { self.reg(insn.src()) } else { TrackedValue::Other };
        match slot(insn.off) {
            Some(slot) => self.stack[slot] = value,
            // The store goes outside the frame, so forget all slots.
            None => self.stack = [TrackedValue::Other; STACK_SLOTS],
        }
    }

    /// Applies arithmetic. Returns the untested argument that a 64-bit addition or subtraction
    /// changes, because the verifier refuses such a change.
    fn alu(&mut self, insn: RawInsn) -> Option<u32> {
        let (kind, by_reg) = (insn.code & 0xf0, insn.code & op::X != 0);
        let wide = insn.code & 7 == op::ALU64;
        if kind == op::MOV {
            let whole = wide && by_reg && insn.off == 0;
            let value = if whole { self.reg(insn.src()) } else { TrackedValue::Other };
            self.set(insn.dst(), value);
            return None;
        }
        let used =
            self.untested(insn.dst()).filter(|_| wide && (kind == op::ADD || kind == op::SUB));
        self.set(insn.dst(), TrackedValue::Other);
        used
    }

    fn jump(mut self, insn: RawInsn, at: usize) -> [Option<(usize, RegStackState)>; 2] {
        let wide = insn.code & 7 == op::JMP;
        let over = |by: i64| usize::try_from(at as i64 + 1 + by).ok();
        match insn.code & 0xf0 {
            op::EXIT => return [None, None],
            op::CALL => {
                for reg in 0..=5 {
                    self.set(reg, TrackedValue::Other);
                }
                // The callee may have got an address in the frame, and changed any slot, so forget
                // all slots.
                self.stack = [TrackedValue::Other; STACK_SLOTS];
                return [Some((at + 1, self)), None];
            }
            op::JA => {
                let by = if wide { i64::from(insn.off) } else { i64::from(insn.imm) };
                return [over(by).map(|to| (to, self)), None];
            }
            _ => {}
        }
        let by_reg = insn.code & op::X != 0;
        // Any comparison of the argument counts as a test. A comparison with 0 is a test, and other
        // comparisons might be.
        for reg in [Some(insn.dst()), by_reg.then_some(insn.src())].into_iter().flatten() {
            if let Some(arg) = self.untested(reg) {
                self = self.tested(arg);
            }
        }
        [Some((at + 1, self)), over(i64::from(insn.off)).map(|to| (to, self))]
    }
}

/// Index of the stack slot that holds the byte at r10 + `off`; None outside the frame.
fn slot(off: i16) -> Option<usize> {
    let below = usize::try_from(-i32::from(off)).ok()?;
    let slot = below.div_ceil(8);
    (1..=STACK_SLOTS).contains(&slot).then(|| slot - 1)
}
