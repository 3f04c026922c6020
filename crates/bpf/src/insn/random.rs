// SPDX-License-Identifier: GPL-2.0-only
//! Generator of valid programs from random bytes, for tests and fuzzing: every operation, every
//! kind of memory, loops and calls.
//!
//! Owns: programs that always decode and that mostly run for a while.
//! Does not: run them (see `vm::bare::trial`).
//!
//! Each function keeps in r6 to r8 the three pointers that it received in r1 to r3: writable
//! memory, kernel memory, and an arena. Occasionally an instruction overwrites one of these
//! pointers, so that faults happen as well.

use super::{RawInsn, call, func_addr};
use crate::vm::{Func, FuncId};

/// A generated program, with everything that decoding needs.
pub struct Program {
    pub raw: Vec<RawInsn>,
    pub funcs: Vec<Func>,
    /// Indexed by slot: whether the slot is a load that reads 0 where no memory is mapped.
    pub probe: Vec<bool>,
}

/// How the first function receives its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramEntry {
    /// In registers r1 to r5, like a callback.
    Registers,
    /// In an array of 64-bit values whose address is in r1, as struct_ops programs receive theirs.
    Array,
}

/// Helpers that any program may call with any arguments, and `bpf_loop`. The list contains
/// `bpf_map_lookup_elem` (1) twice, because machine code performs this helper itself, and programs
/// should call it often.
const HELPERS: [i32; 14] = [1, 2, 3, 5, 7, 8, 35, 118, 125, 158, 160, 181, 1, 195];
/// Number of kernel functions that the host of a generated program must have. Their ids begin at 0.
pub const KFUNCS: u32 = 4;
const FUNCS_MAX: usize = 4;

/// Generates a program from arbitrary bytes.
pub fn program(bytes: &[u8]) -> Program {
    program_for(bytes, ProgramEntry::Registers)
}

/// Generates a program from arbitrary bytes. Its first function receives its arguments as `entry`
/// says.
pub fn program_for(bytes: &[u8], entry: ProgramEntry) -> Program {
    let mut bytes = Bytes { bytes, at: 0 };
    let count = 1 + bytes.below(FUNCS_MAX);
    let bodies: Vec<Vec<Slot>> = (0..count)
        .map(|nth| {
            let entry = if nth == 0 { entry } else { ProgramEntry::Registers };
            Body::make(&mut bytes, count, entry)
        })
        .collect();
    let starts: Vec<usize> =
        bodies.iter().scan(0, |at, body| Some(std::mem::replace(at, *at + body.len()))).collect();
    let mut made = Program { raw: Vec::new(), funcs: Vec::new(), probe: Vec::new() };
    for (nth, body) in bodies.iter().enumerate() {
        made.funcs.push(Func {
            name: format!("f{nth}"),
            section: ".text".into(),
            start: starts[nth] as u32,
            len: body.len() as u32,
            program: None,
        });
        for slot in body {
            let mut raw = slot.raw;
            if let Some(callee) = slot.callee {
                raw.imm = starts[callee] as i32 - made.raw.len() as i32 - 1;
            }
            made.raw.push(raw);
            made.probe.push(slot.probe);
        }
    }
    made
}

/// A source of choices. After the last byte it yields zeroes, which select the simplest choice.
struct Bytes<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        self.at += 1;
        self.bytes.get(self.at - 1).copied().unwrap_or(0)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.next()) % end
    }

    fn one_in(&mut self, of: usize) -> bool {
        self.below(of) == of - 1
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn dry(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// Returns a small or large number, or one at which arithmetic changes behaviour.
    fn imm(&mut self) -> i32 {
        match self.below(4) {
            0 => self.pick(&[0, 1, -1, 2, 7, 31, 32, 33, 63, 64, i32::MAX, i32::MIN]),
            1 => i32::from(self.next() as i8),
            _ => i32::from_le_bytes([self.next(), self.next(), self.next(), self.next()]),
        }
    }

    /// Returns a register to calculate with; rarely one that holds a pointer.
    fn reg(&mut self) -> u8 {
        if self.one_in(24) { 6 + self.below(3) as u8 } else { self.pick(&[0, 1, 2, 3, 4, 5, 9]) }
    }
}

#[derive(Clone, Copy)]
struct Slot {
    raw: RawInsn,
    probe: bool,
    /// Index of the called function, if the slot calls a function of the program.
    callee: Option<usize>,
}

/// A function under construction.
struct Body<'a, 'b> {
    bytes: &'a mut Bytes<'b>,
    slots: Vec<Slot>,
    count: usize,
}

const R10: u8 = 10;
const SIZES: [(u8, i16); 4] = [(0x10, 1), (0x08, 2), (0x00, 4), (0x18, 8)];
const SLOTS_MAX: usize = 220;

impl Body<'_, '_> {
    fn make(bytes: &mut Bytes<'_>, count: usize, entry: ProgramEntry) -> Vec<Slot> {
        let mut body = Body { bytes, slots: Vec::new(), count };
        for reg in 1..=3 {
            match entry {
                ProgramEntry::Registers => body.push(0xbf, 5 + reg, reg, 0, 0),
                ProgramEntry::Array => body.push(0x79, 5 + reg, 1, 8 * (i16::from(reg) - 1), 0),
            }
        }
        let statements = 4 + body.bytes.below(28);
        body.statements(statements, 0);
        body.push(0x95, 0, 0, 0, 0);
        body.slots
    }

    fn push(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) {
        let raw = RawInsn::new(code, dst, src, off, imm);
        self.slots.push(Slot { raw, probe: false, callee: None });
    }

    fn statements(&mut self, count: usize, nesting: usize) {
        for _ in 0..count {
            if self.slots.len() > SLOTS_MAX || self.bytes.dry() {
                return;
            }
            self.statement(nesting);
        }
    }

    fn statement(&mut self, nesting: usize) {
        match self.bytes.below(16) {
            0..=4 => self.alu(),
            5 | 6 => self.load(),
            7 | 8 => self.store(),
            9 => self.atomic(),
            10 if nesting < 3 => self.skip(nesting),
            11 if nesting < 2 => self.repeat(nesting),
            12 => self.call_out(),
            13 => self.call_func(),
            14 => self.constant(),
            _ => self.unary(),
        }
    }

    /// Emits any operation of two operands, on 64 or 32 bits, with a constant or a register as the
    /// second operand.
    fn alu(&mut self) {
        let kind = self.bytes.pick(&[0u8, 1, 2, 3, 4, 5, 6, 7, 9, 0xa, 0xb, 0xc]);
        let class = self.bytes.pick(&[7u8, 4]);
        let signed = matches!(kind, 3 | 9) && self.bytes.one_in(2);
        let (dst, src) = (self.bytes.reg(), self.bytes.reg());
        let off = i16::from(signed);
        if self.bytes.one_in(2) {
            let imm = self.bytes.imm();
            self.push(kind << 4 | class, dst, 0, off, imm);
        } else {
            self.push(kind << 4 | 8 | class, dst, src, off, 0);
        }
    }

    /// Emits a negation, sign extension, byte swap or cast.
    fn unary(&mut self) {
        let (dst, src) = (self.bytes.reg(), self.bytes.reg());
        match self.bytes.below(6) {
            0 => self.push(0x87, dst, 0, 0, 0),
            1 => self.push(0x84, dst, 0, 0, 0),
            2 => {
                let off = self.bytes.pick(&[8, 16, 32]);
                self.push(0xbf, dst, src, off, 0);
            }
            3 => {
                let off = self.bytes.pick(&[8, 16]);
                self.push(0xbc, dst, src, off, 0);
            }
            4 => {
                let (code, imm) =
                    (self.bytes.pick(&[0xd4, 0xdc, 0xd7]), self.bytes.pick(&[16, 32, 64]));
                self.push(code, dst, 0, 0, imm);
            }
            _ => {
                let imm = self.bytes.pick(&[1, 0x1_0000]);
                self.push(0xbf, dst, src, 1, imm);
            }
        }
    }

    /// Returns base register and offset for an access of `size` bytes. Emits the instructions that
    /// put the address into the base register, if it is not there yet.
    fn place(&mut self, size: i16) -> (u8, i16) {
        let aligned = !self.bytes.one_in(6);
        let step = if aligned { size } else { 1 };
        let within = |bytes: &mut Bytes<'_>, room: i16| {
            let wanted = i16::from(bytes.next()) + 256 * i16::from(bytes.next() & 1);
            (wanted % (room - size + 1)) / step * step
        };
        match self.bytes.below(16) {
            0..=4 => (R10, within(self.bytes, 512) - 512),
            // The access is in the frame, through a register other than r10.
            5 | 6 => {
                let reg = self.bytes.pick(&[3, 4, 5]);
                self.push(0xbf, reg, R10, 0, 0);
                self.push(0x07, reg, 0, 0, -256);
                (reg, within(self.bytes, 256))
            }
            7..=10 => (6, within(self.bytes, 512)),
            // The access is at the end of the first page of the writable memory, and may reach into
            // the second page.
            11 => (6, 4096 - 4 + i16::from(self.bytes.next() & 7)),
            12 => (7, within(self.bytes, 64)),
            // The access is in the values of the first map, an array, through a constant address,
            // sometimes beyond the end of the values.
            13 => {
                let reg = self.bytes.pick(&[1, 4, 5]);
                let off = within(self.bytes, VALUES_BYTES + 8);
                self.address(reg, VALUE_MARK + off as u64);
                (reg, 0)
            }
            14 => (8, within(self.bytes, 512) + 4096 * i16::from(self.bytes.next() & 3)),
            _ => (self.bytes.reg(), i16::from(self.bytes.next() as i8)),
        }
    }

    fn load(&mut self) {
        let (code, size) = self.bytes.pick(&SIZES);
        let mode = if size < 8 && self.bytes.one_in(3) { 0x80 } else { 0x60 };
        let (base, off) = self.place(size);
        let dst = self.bytes.reg();
        self.push(mode | code | 1, dst, base, off, 0);
        let probe = self.bytes.one_in(4);
        self.slots.last_mut().expect("just pushed").probe = probe;
    }

    fn store(&mut self) {
        let (code, size) = self.bytes.pick(&SIZES);
        let (base, off) = self.place(size);
        if self.bytes.one_in(3) {
            let imm = self.bytes.imm();
            self.push(0x60 | code | 2, base, 0, off, imm);
        } else {
            let src = self.bytes.reg();
            self.push(0x60 | code | 3, base, src, off, 0);
        }
    }

    fn atomic(&mut self) {
        if self.bytes.one_in(4) {
            let (code, size) = self.bytes.pick(&SIZES);
            let (base, off) = self.place(size);
            let reg = self.bytes.reg();
            let (dst, src, imm) = self.bytes.pick(&[(reg, base, 0x100), (base, reg, 0x110)]);
            return self.push(0xc0 | code | 3, dst, src, off, imm);
        }
        let (code, size) = self.bytes.pick(&[(0x00, 4), (0x18, 8)]);
        let kinds = [0x00, 0x40, 0x50, 0xa0, 0x01, 0x41, 0x51, 0xa1, 0xe1, 0xf1];
        let kind = self.bytes.pick(&kinds);
        let (base, off) = self.place(size);
        let src = self.bytes.reg();
        self.push(0xc0 | code | 3, base, src, off, kind);
    }

    /// Emits a conditional jump over some statements, sometimes with an else branch.
    fn skip(&mut self, nesting: usize) {
        let at = self.slots.len();
        self.condition(0);
        let count = 1 + self.bytes.below(3);
        self.statements(count, nesting + 1);
        if self.bytes.one_in(3) {
            let over = self.slots.len();
            self.push(0x05, 0, 0, 0, 0);
            self.aim(at);
            self.statements(2, nesting + 1);
            self.aim(over);
        } else {
            self.aim(at);
        }
    }

    fn condition(&mut self, off: i16) {
        let kind = self.bytes.pick(&[1u8, 2, 3, 4, 5, 6, 7, 0xa, 0xb, 0xc, 0xd]);
        let class = self.bytes.pick(&[5u8, 6]);
        let (dst, src) = (self.bytes.reg(), self.bytes.reg());
        if self.bytes.one_in(2) {
            let imm = self.bytes.imm();
            self.push(kind << 4 | class, dst, 0, off, imm);
        } else {
            self.push(kind << 4 | 8 | class, dst, src, off, 0);
        }
    }

    /// Makes the jump at `from` lead to the next slot.
    fn aim(&mut self, from: usize) {
        self.slots[from].raw.off = (self.slots.len() - from - 1) as i16;
    }

    /// Emits a loop with a counter in the frame, or one that `may_goto` ends.
    fn repeat(&mut self, nesting: usize) {
        let place = -8 * (1 + nesting as i16);
        let by_budget = self.bytes.one_in(3);
        if !by_budget {
            let turns = 1 + self.bytes.below(12) as i32;
            self.push(0x7a, R10, 0, place, turns);
        }
        let head = self.slots.len();
        if by_budget {
            self.push(0xe5, 0, 0, 0, 0);
        }
        let count = 1 + self.bytes.below(4);
        self.statements(count, nesting + 1);
        let back = |slots: usize| (head as i64 - slots as i64 - 1) as i16;
        if by_budget {
            let off = back(self.slots.len());
            self.push(0x05, 0, 0, off, 0);
            self.aim(head);
            return;
        }
        self.push(0x79, 9, R10, place, 0);
        self.push(0x17, 9, 0, 0, 1);
        self.push(0x7b, R10, 9, place, 0);
        let off = back(self.slots.len());
        self.push(0x55, 9, 0, off, 0);
    }

    /// Copies the function's three pointers (r6 to r8) to r1 to r3 for a call. r4 and r5 keep their
    /// random values.
    fn arguments(&mut self) {
        for reg in 1..=3 {
            self.push(0xbf, reg, 5 + reg, 0, 0);
        }
    }

    fn call_out(&mut self) {
        if self.bytes.one_in(2) {
            self.arguments();
            let id = self.bytes.below(KFUNCS as usize) as i32;
            return self.push(0x85, 0, call::KFUNC, 0, id);
        }
        let helper = self.bytes.pick(&HELPERS);
        if helper == 181 {
            let turns = self.bytes.below(6) as i32;
            let func = FuncId(self.bytes.below(self.count) as u32);
            self.push(0xb7, 1, 0, 0, turns);
            self.address(2, func_addr(func));
            self.push(0xbf, 3, 6, 0, 0);
            self.push(0xb7, 4, 0, 0, 0);
        } else if helper < 4 || helper == 195 {
            // The helper gets a map, and a key in the frame, which is mostly a valid index.
            if !self.bytes.one_in(4) {
                let index = self.bytes.below(5) as i32;
                self.push(0x62, R10, 0, -64, index);
            }
            let map = self.bytes.below(3) as u64;
            self.address(1, MAP_MARK + map);
            self.push(0xbf, 2, R10, 0, 0);
            self.push(0x07, 2, 0, 0, -64);
            self.push(0xbf, 3, R10, 0, 0);
            self.push(0x07, 3, 0, 0, -128);
            self.push(0xb7, 4, 0, 0, 0);
            if helper == 195 {
                let cpu = self.bytes.below(3) as i32;
                self.push(0xb7, 3, 0, 0, cpu);
            }
        }
        self.push(0x85, 0, call::HELPER, 0, helper);
        if matches!(helper, 1 | 195) {
            self.element();
        }
    }

    /// Emits an access to the element that a lookup returned, mostly after a check for NULL.
    fn element(&mut self) {
        let copy = self.bytes.pick(&[9, 1, 5]);
        self.push(0xbf, copy, 0, 0, 0);
        let checked = self.bytes.pick(&[0, copy]);
        if !self.bytes.one_in(8) {
            self.push(0x15, checked, 0, 2, 0);
        }
        let off = self.bytes.pick(&[0, 8, 4, 16, -8, 56, 120]);
        let base = self.bytes.pick(&[0, copy]);
        self.push(0x79, 2, base, off, 0);
        self.push(0x7b, base, 2, off, 0);
    }

    fn call_func(&mut self) {
        self.arguments();
        let callee = self.bytes.below(self.count);
        if self.bytes.one_in(4) {
            self.address(4, func_addr(FuncId(callee as u32)));
            return self.push(0x8d, 4, 0, 0, 0);
        }
        self.push(0x85, 0, call::FUNC, 0, 0);
        self.slots.last_mut().expect("just pushed").callee = Some(callee);
    }

    fn constant(&mut self) {
        let dst = self.bytes.reg();
        let (low, high) = (self.bytes.imm() as u32, self.bytes.imm() as u32);
        self.address(dst, u64::from(low) | u64::from(high) << 32);
    }

    fn address(&mut self, dst: u8, value: u64) {
        self.push(0x18, dst, 0, 0, value as i32);
        self.push(0, 0, 0, 0, (value >> 32) as i32);
    }
}

/// Constant `MAP_MARK + n` stands for the address of map n.
pub const MAP_MARK: u64 = 0x4d41_505f_0000_0000;
/// Constant `VALUE_MARK + n` stands for the address of byte n of the first map's values, which is
/// an array. n is below `VALUES_BYTES` + 8, so it may lie beyond the values.
pub const VALUE_MARK: u64 = 0x5641_4c55_0000_0000;
/// Size in bytes of all values of the first map.
pub const VALUES_BYTES: i16 = 64;
