// SPDX-License-Identifier: GPL-2.0-only
//! Loads, stores and atomics in Cranelift's intermediate code.
//!
//! Owns: the checks before an access.
//! Does not: define what a refused access does; `native.rs` does, with the interpreter's own
//! functions.
//!
//! The code accesses no memory out of bounds, because it makes an access in one of four ways only.
//! - Through a register that is known to point into the frame (`range.rs`), if all bytes of the
//!   access lie in the frame's 512 bytes. All frames of a guest stack (`vm/stack.rs`) are
//!   committed, writable and never freed. Calls never use more frames than the stack has: a check
//!   on entry into the code ensures that, or a check at each call if functions are recursive. If
//!   the register is only likely to point into the frame, a check precedes the access.
//! - Through a register that is known to point into an array of the instance, which keeps its
//!   address and permission as long as the code runs.
//! - Through a register that the code has compared with the end of its frame. The page above the
//!   end of the frame holds other frames or the arguments, and programs may access it like a frame.
//! - After a check of the address itself, for this access alone or for its group. For the access
//!   alone, the code rotates the offset right by the alignment, so that a misaligned offset becomes
//!   huge. The number of the offset's page must then be below the number of pages, and the page's
//!   permission must allow the access. An aligned access of at most eight bytes lies on one page. A
//!   group's range is shorter than a page, so the code checks the pages of its first and last byte.
//!
//! The code leaves all other accesses to `Calls::access`, which checks every page that they touch.
//! Page protection by the hardware would not suffice, because the permissions bind programs but not
//! the simulator, which uses the same mapping.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    AbiParam, Block, BlockArg, InstBuilder, MemFlagsData, Signature, Type, Value,
};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::FunctionBuilder;

use super::Data;
use super::ctx::at;
use super::facts::Regs;
use super::groups::Group;
use super::range::Known;
use super::translate::{I32, I64, Translator, flags};
use crate::insn::uses::is_load;
use crate::insn::{Insn, Op, access_size};
use crate::mem::{GUEST_BASE, LOAD, PAGE, PAGE_SHIFT, STORE};
use crate::vm::ProgramKind;
use crate::vm::stack::FRAME;

/// Flags of a guest memory access, which is always inside the mapping and may be misaligned.
pub fn guest() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

/// Returns the signature of the access thunk, the code through which compiled code calls
/// `Calls::access` if its own check refuses an access.
pub fn access_signature() -> Signature {
    let mut signature = Signature::new(CallConv::PreserveAll);
    signature.params.push(AbiParam::new(I64));
    signature
}

/// Emits the access thunk. The thunk saves the registers that Rust's calling convention lets a
/// callee change.
pub fn access_thunk(mut b: FunctionBuilder<'_>, call_conv: CallConv) -> FunctionBuilder<'_> {
    let block = b.create_block();
    b.append_block_params_for_function_params(block);
    b.switch_to_block(block);
    b.seal_block(block);
    let ctx = b.block_params(block)[0];
    let calls = b.ins().load(I64, flags(), ctx, at::CALLS);
    let callee = b.ins().load(I64, flags(), calls, at::CALLS_ACCESS);
    let mut signature = Signature::new(call_conv);
    signature.params.push(AbiParam::new(I64));
    let signature = b.import_signature(signature);
    b.ins().call_indirect(signature, callee, &[ctx]);
    b.ins().return_(&[]);
    b
}

/// What is known of the location of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLocation {
    /// The memory is in the program's frame, and begins at this offset. The offset is relative to
    /// the end of the frame, so it is negative.
    Frame(i32),
    /// Somewhere in the frame, or in the values of an array map whose permission allows the access.
    /// The access needs no check.
    Inside,
    /// Probably in the frame, but a check must precede the access.
    LikelyFrame,
    Anywhere,
}

impl AccessLocation {
    pub fn of(insn: &Insn, known: &Regs, data: &[Data]) -> AccessLocation {
        let loads = is_load(insn.op);
        let base = known[usize::from(if loads { insn.src } else { insn.dst })];
        AccessLocation::at(
            base,
            insn.off.into(),
            access_size(insn.op).unwrap_or(8) as u32,
            loads,
            data,
        )
    }

    /// Classifies an access of `size` bytes at `base` plus `off`.
    pub fn at(base: Known, off: i64, size: u32, loads: bool, data: &[Data]) -> AccessLocation {
        let (off, size) = (i128::from(off), i128::from(size));
        match base {
            Known::Frame(from, to) => {
                let (from, to) = (i128::from(from) + off, i128::from(to) + off + size);
                let inside = from >= -i128::from(FRAME) && to <= 0;
                match inside {
                    true if to - from == size => AccessLocation::Frame(from as i32),
                    true => AccessLocation::Inside,
                    false => AccessLocation::LikelyFrame,
                }
            }
            Known::LikelyFrame => AccessLocation::LikelyFrame,
            Known::Found(_) => AccessLocation::Anywhere,
            Known::Number(low, high) => {
                let (low, end) = (i128::from(low) + off, i128::from(high) + off + size);
                let may = |data: &Data| {
                    let addr = i128::from(data.addr);
                    (loads || data.writable) && low >= addr && end <= addr + i128::from(data.len)
                };
                if data.iter().any(may) { AccessLocation::Inside } else { AccessLocation::Anywhere }
            }
        }
    }
}

struct Access {
    /// Register with the address, and the offset added to it.
    base: u8,
    off: i64,
    ty: Type,
}

impl Access {
    fn size(&self) -> u32 {
        self.ty.bytes()
    }
}

impl Translator<'_, '_> {
    pub fn memory(&mut self, insn: &Insn, pc: u32) {
        let size = access_size(insn.op).unwrap_or(8);
        let ty = Type::int(8 * size as u16).unwrap_or(I64);
        let loads = is_load(insn.op);
        let base = if loads { insn.src } else { insn.dst };
        let access = Access { base, off: i64::from(insn.off), ty };
        if loads {
            self.load(insn, &access, pc);
        } else if is_atomic(insn.op) {
            self.atomic(insn, &access, pc);
        } else {
            self.store(insn, &access, pc);
        }
    }

    fn load(&mut self, insn: &Insn, access: &Access, pc: u32) {
        let value = match self.unchecked(insn, access) {
            Some((at, off)) => self.loaded(insn.op, access.ty, at, off),
            None => {
                let slow = self.block(true);
                let done = self.block(false);
                let result = self.b.append_block_param(done, I64);
                let addr = self.addr(access);
                let at = self.checked(insn, addr, access, LOAD, pc, slow);
                let value = self.loaded(insn.op, access.ty, at, 0);
                self.b.ins().jump(done, &[BlockArg::Value(value)]);
                self.enter(slow);
                self.outside(addr, None, done, true, pc);
                result
            }
        };
        self.set_reg(insn.dst, value);
    }

    fn loaded(&mut self, op: Op, ty: Type, at: Value, off: i32) -> Value {
        use Op::*;
        let value = self.b.ins().load(ty, guest(), at, off);
        match op {
            LdxBs | LdxHs | LdxWs | LdxProbeBs | LdxProbeHs | LdxProbeWs => {
                self.b.ins().sextend(I64, value)
            }
            _ if ty == I64 => value,
            _ => self.b.ins().uextend(I64, value),
        }
    }

    fn store(&mut self, insn: &Insn, access: &Access, pc: u32) {
        let constant = matches!(insn.op, Op::StB | Op::StH | Op::StW | Op::StDw);
        let value = if constant { self.iconst(insn.imm as u64) } else { self.reg(insn.src) };
        let narrow = if access.ty == I64 { value } else { self.b.ins().ireduce(access.ty, value) };
        if let Some((at, off)) = self.unchecked(insn, access) {
            self.b.ins().store(guest(), narrow, at, off);
            return;
        }
        let (slow, done) = (self.block(true), self.block(false));
        let addr = self.addr(access);
        let at = self.checked(insn, addr, access, STORE, pc, slow);
        self.b.ins().store(guest(), narrow, at, 0);
        self.b.ins().jump(done, &[]);
        self.enter(slow);
        self.outside(addr, Some(value), done, false, pc);
    }

    /// Translates an atomic operation as a plain load, change and store, because one thread runs a
    /// simulation.
    fn atomic(&mut self, insn: &Insn, access: &Access, pc: u32) {
        let ty = access.ty;
        let wide = self.reg(insn.src);
        let operand = self.narrow(insn.src, ty);
        let compares = matches!(insn.op, Op::AtomicCmpxchgW | Op::AtomicCmpxchgDw);
        let expected = if compares { self.narrow(0, ty) } else { operand };
        let change = |t: &mut Self, at: Value, off: i32| {
            let old = t.b.ins().load(ty, guest(), at, off);
            let new = t.changed(insn.op, old, operand, expected);
            t.b.ins().store(guest(), new, at, off);
            if ty == I64 { old } else { t.b.ins().uextend(I64, old) }
        };
        let old = match self.unchecked(insn, access) {
            Some((at, off)) => change(self, at, off),
            None => {
                let (slow, done) = (self.block(true), self.block(false));
                let result = self.b.append_block_param(done, I64);
                let addr = self.addr(access);
                let at = self.checked(insn, addr, access, LOAD | STORE, pc, slow);
                let old = change(self, at, 0);
                self.b.ins().jump(done, &[BlockArg::Value(old)]);
                self.enter(slow);
                if compares {
                    let r0 = self.reg(0);
                    self.b.ins().store(flags(), r0, self.ctx, at::R0);
                }
                self.outside(addr, Some(wide), done, true, pc);
                result
            }
        };
        match insn.op {
            Op::AtomicCmpxchgW | Op::AtomicCmpxchgDw => self.set_reg(0, old),
            op if fetches(op) => self.set_reg(insn.src, old),
            _ => {}
        }
    }

    fn changed(&mut self, op: Op, old: Value, operand: Value, expected: Value) -> Value {
        use Op::*;
        let ins = self.b.ins();
        match op {
            AtomicAddW | AtomicAddDw | AtomicFetchAddW | AtomicFetchAddDw => ins.iadd(old, operand),
            AtomicOrW | AtomicOrDw | AtomicFetchOrW | AtomicFetchOrDw => ins.bor(old, operand),
            AtomicAndW | AtomicAndDw | AtomicFetchAndW | AtomicFetchAndDw => ins.band(old, operand),
            AtomicXorW | AtomicXorDw | AtomicFetchXorW | AtomicFetchXorDw => ins.bxor(old, operand),
            AtomicCmpxchgW | AtomicCmpxchgDw => {
                let equal = ins.icmp(IntCC::Equal, old, expected);
                self.b.ins().select(equal, operand, old)
            }
            _ => operand,
        }
    }

    /// Emits a call of `Calls::access`, which performs the access outside the code. `value` is the
    /// value to store, or the operand of an atomic operation. The emitted code continues at `done`,
    /// with the loaded value if `loads`, or leaves the function.
    fn outside(&mut self, addr: Value, value: Option<Value>, done: Block, loads: bool, pc: u32) {
        self.b.ins().store(flags(), addr, self.ctx, at::ADDR);
        let slot = self.iconst(u64::from(pc));
        self.b.ins().store(flags(), slot, self.ctx, at::SLOT);
        if let Some(value) = value {
            let executed = self.executed();
            self.b.ins().store(flags(), value, self.ctx, at::VALUE);
            self.b.ins().store(flags(), executed, self.ctx, at::COUNT);
        }
        let failed = self.access_outside();
        let result = loads.then(|| self.b.ins().load(I64, flags(), self.ctx, at::RESULT));
        let result: Vec<BlockArg> = result.into_iter().map(BlockArg::Value).collect();
        let out = self.block(true);
        self.b.ins().brif(failed, out, &[], done, &result);
        self.enter(out);
        self.fail(pc);
        self.enter(done);
    }

    /// Returns host address and offset of an access that needs no check; None if the access needs
    /// one.
    fn unchecked(&mut self, insn: &Insn, access: &Access) -> Option<(Value, i32)> {
        let (from, off) = match AccessLocation::of(insn, &self.known, self.input.data) {
            AccessLocation::LikelyFrame | AccessLocation::Anywhere => return None,
            AccessLocation::Frame(off) => (self.fp, off),
            AccessLocation::Inside => match self.offset_in_memory(access) {
                Some(off) => return Some((self.mem, off)),
                None => (self.reg(access.base), access.off as i32),
            },
        };
        Some((self.b.ins().iadd(self.base, from), off))
    }

    /// Returns the distance of an access from the memory's start, if the distance is known and fits
    /// an instruction.
    fn offset_in_memory(&self, access: &Access) -> Option<i32> {
        let Known::Number(low, high) = self.known[usize::from(access.base)] else { return None };
        let addr = low.wrapping_add(access.off as u64);
        let off = i32::try_from(addr.wrapping_sub(GUEST_BASE)).ok()?;
        (low == high).then_some(off)
    }

    fn addr(&mut self, access: &Access) -> Value {
        let base = self.reg(access.base);
        if access.off == 0 { base } else { self.b.ins().iadd_imm_s(base, access.off) }
    }

    /// Emits the check before an access. Returns the host address of an access that the check
    /// allows. For any other access, the generated code branches to `slow`.
    fn checked(
        &mut self,
        insn: &Insn,
        addr: Value,
        access: &Access,
        need: u8,
        pc: u32,
        slow: Block,
    ) -> Value {
        if AccessLocation::of(insn, &self.known, self.input.data) == AccessLocation::LikelyFrame {
            return self.in_frame(addr, access, slow);
        }
        if self.of_arguments(access, pc) {
            return self.in_arguments(addr, access, slow);
        }
        let perm = match self.groups.at((pc - self.input.func.start) as usize) {
            Some((number, group)) => self.group_perm(addr, number, group),
            None => self.page_perm(addr, access, slow),
        };
        let granted = self.b.ins().band_imm_u(perm, i64::from(need));
        let allowed = if need.is_power_of_two() {
            granted
        } else {
            self.b.ins().icmp_imm_s(IntCC::Equal, granted, i64::from(need))
        };
        let go = self.block(false);
        self.b.ins().brif(allowed, go, &[], slow, &[]);
        self.enter(go);
        self.b.ins().iadd(self.base, addr)
    }

    /// Returns the host address of an access inside the frame. For any other access, the generated
    /// code branches to `slow`.
    fn in_frame(&mut self, addr: Value, access: &Access, slow: Block) -> Value {
        let end = self.b.ins().isub(addr, self.fp);
        let first = self.b.ins().iadd_imm_s(end, FRAME as i64);
        let last = FRAME as i64 - i64::from(access.size());
        let inside = self.b.ins().icmp_imm_s(IntCC::UnsignedLessThanOrEqual, first, last);
        let go = self.block(false);
        self.b.ins().brif(inside, go, &[], slow, &[]);
        self.enter(go);
        self.b.ins().iadd(self.base, addr)
    }

    /// Returns whether an access is probably to the arguments of a struct_ops program, which lie
    /// where its first frame ends.
    fn of_arguments(&self, access: &Access, pc: u32) -> bool {
        let slot = (pc - self.input.func.start) as usize;
        let operation = matches!(self.input.func.program, Some(ProgramKind::StructOps { .. }));
        let last = PAGE as i64 - i64::from(access.size());
        operation && self.groups.through_r1(slot) && (0..=last).contains(&access.off)
    }

    /// Returns the host address of an access whose base register holds the end of the frame. For
    /// any other access, the generated code branches to `slow`.
    fn in_arguments(&mut self, addr: Value, access: &Access, slow: Block) -> Value {
        let base = self.reg(access.base);
        let there = self.b.ins().icmp(IntCC::Equal, base, self.fp);
        let go = self.block(false);
        self.b.ins().brif(there, go, &[], slow, &[]);
        self.enter(go);
        self.b.ins().iadd(self.base, addr)
    }

    /// Returns the permissions that the pages of a group's first and last byte have in common; no
    /// permissions if the last byte lies outside the memory. The first byte may lie before the
    /// memory, where `BEFORE` bytes hold permissions of 0.
    fn group_perm(&mut self, addr: Value, number: usize, group: Group) -> Value {
        if let Some(perm) = self.group_perms[number] {
            return perm;
        }
        let none = self.b.ins().iconst(I32, 0);
        let (look, known) = (self.block(false), self.block(false));
        let perm = self.b.append_block_param(known, I32);
        let origin = (GUEST_BASE as i64).wrapping_neg();
        let last = self.b.ins().iadd_imm_s(addr, origin.wrapping_add(group.to - 1));
        let last = self.b.ins().ushr_imm_u(last, i64::from(PAGE_SHIFT));
        let nr_pages = self.input.nr_pages as i64;
        let inside = self.b.ins().icmp_imm_s(IntCC::UnsignedLessThan, last, nr_pages);
        self.b.ins().brif(inside, look, &[], known, &[BlockArg::Value(none)]);
        self.enter(look);
        let first = self.b.ins().iadd_imm_s(addr, origin.wrapping_add(group.from));
        let first = self.b.ins().sshr_imm_u(first, i64::from(PAGE_SHIFT));
        let [first, last] = [first, last].map(|page| {
            let perm_at = self.b.ins().iadd(self.perms, page);
            self.b.ins().uload8(I32, flags(), perm_at, 0)
        });
        let found = self.b.ins().band(first, last);
        self.b.ins().jump(known, &[BlockArg::Value(found)]);
        self.enter(known);
        self.group_perms[number] = Some(perm);
        perm
    }

    /// Returns the host address of `bytes` bytes (a multiple of 8, at most a page) that are
    /// aligned, readable and on one page. For any other place, the generated code branches to
    /// `slow`.
    pub fn readable_on_page(&mut self, addr: Value, bytes: u32, slow: Block) -> Value {
        let first = Access { base: 0, off: 0, ty: I64 };
        let perm = self.page_perm(addr, &first, slow);
        let mut allowed = self.b.ins().band_imm_u(perm, i64::from(LOAD));
        // The first eight bytes are aligned, and so on one page.
        if bytes > first.size() {
            let within = self.b.ins().band_imm_u(addr, PAGE as i64 - 1);
            let last = PAGE as i64 - i64::from(bytes);
            let on_page = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThanOrEqual, within, last);
            let on_page = self.b.ins().uextend(I32, on_page);
            allowed = self.b.ins().band(allowed, on_page);
        }
        let go = self.block(false);
        self.b.ins().brif(allowed, go, &[], slow, &[]);
        self.enter(go);
        self.b.ins().iadd(self.base, addr)
    }

    /// Returns the permission of an aligned access's page. The generated code branches to `slow` if
    /// the access is outside the memory or misaligned.
    fn page_perm(&mut self, addr: Value, access: &Access, slow: Block) -> Value {
        let shift = access.size().trailing_zeros();
        let off = self.b.ins().iadd_imm_s(addr, (GUEST_BASE as i64).wrapping_neg());
        let turned = if shift == 0 { off } else { self.b.ins().rotr_imm_u(off, i64::from(shift)) };
        let page = self.b.ins().ushr_imm_u(turned, i64::from(PAGE_SHIFT - shift));
        let nr_pages = self.input.nr_pages as i64;
        let inside = self.b.ins().icmp_imm_s(IntCC::UnsignedLessThan, page, nr_pages);
        let look = self.block(false);
        self.b.ins().brif(inside, look, &[], slow, &[]);
        self.enter(look);
        let perm_at = self.b.ins().iadd(self.perms, page);
        self.b.ins().uload8(I32, flags(), perm_at, 0)
    }
}

pub fn is_atomic(op: Op) -> bool {
    (Op::AtomicAddW as u8..=Op::AtomicCmpxchgDw as u8).contains(&(op as u8))
}

fn fetches(op: Op) -> bool {
    (Op::AtomicFetchAddW as u8..=Op::AtomicXchgDw as u8).contains(&(op as u8))
}
