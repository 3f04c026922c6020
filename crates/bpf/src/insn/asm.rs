// SPDX-License-Identifier: GPL-2.0-only
//! A small assembler for tests, examples and benchmarks: the syntax of llvm-objdump, with labels.
//!
//! Owns: translation of text to slots.
//! Does not: relocate. The only symbols are labels and functions.
//!
//! Each line is one instruction; `;` or `#` begins a comment. `name:` is a label, `func name:`
//! begins a function. A jump goes to a label or a distance in slots (`+2`). `call 5` calls a
//! helper, `call name` a function, `call $3` a kfunc. `r1 = name ll` loads the address of a
//! function. `probe` before a load makes it a load through a kernel pointer.

use std::collections::BTreeMap;

use super::{DecodeError, RawInsn, call, decode, func_addr};
use crate::vm::{Func, FuncId, Image};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}: {text:?}")]
pub struct AsmError {
    pub line: usize,
    pub text: String,
    pub why: &'static str,
}

/// Assembled code: its slots, and the functions that the slots form.
#[derive(Clone, Debug, Default)]
pub struct Assembled {
    pub raw: Vec<RawInsn>,
    pub funcs: Vec<Func>,
    pub probe: Vec<bool>,
}

impl Assembled {
    pub fn image(&self, name: &str) -> Result<Image, DecodeError> {
        let code = decode(&self.raw, &self.funcs, &self.probe)?;
        Ok(Image { name: name.to_owned(), code, funcs: self.funcs.clone(), ..Image::default() })
    }
}

/// Assembles a text. Without a `func` line, the whole text is one function, `main`.
pub fn assemble(text: &str) -> Result<Assembled, AsmError> {
    let mut asm = Assembler::default();
    for (at, line) in text.lines().enumerate() {
        let code = line.split([';', '#']).next().unwrap_or("").trim();
        if !code.is_empty() {
            let wrap = |why| AsmError { line: at + 1, text: code.to_owned(), why };
            asm.line(code, at + 1).map_err(wrap)?;
        }
    }
    asm.finish()
}

#[derive(Default)]
struct Assembler {
    out: Assembled,
    labels: BTreeMap<String, usize>,
    /// References to labels that are not resolved yet: slot, field to fill in, label, line of the
    /// text.
    fixups: Vec<(usize, Fixup, String, usize)>,
}

#[derive(Clone, Copy)]
enum Fixup {
    Off,
    Imm,
    FuncAddr,
}

type Parsed<T> = Result<T, &'static str>;

impl Assembler {
    fn line(&mut self, code: &str, line: usize) -> Parsed<()> {
        if let Some(name) = code.strip_prefix("func ").and_then(|rest| rest.strip_suffix(':')) {
            self.begin_func(name.trim());
            return self.label(name.trim());
        }
        if let Some(label) = code.strip_suffix(':') {
            return self.label(label);
        }
        if self.out.funcs.is_empty() {
            self.begin_func("main");
        }
        let probe = code.strip_prefix("probe ");
        self.insn(probe.unwrap_or(code), line)?;
        self.out.probe.resize(self.out.raw.len(), false);
        if probe.is_some() {
            *self.out.probe.last_mut().ok_or("nothing to probe")? = true;
        }
        Ok(())
    }

    fn label(&mut self, name: &str) -> Parsed<()> {
        match self.labels.insert(name.to_owned(), self.out.raw.len()) {
            None => Ok(()),
            Some(_) => Err("label is defined twice"),
        }
    }

    fn begin_func(&mut self, name: &str) {
        self.end_func();
        let start = self.out.raw.len() as u32;
        self.out.funcs.push(Func {
            name: name.to_owned(),
            section: ".text".to_owned(),
            start,
            len: 0,
            program: None,
        });
    }

    fn end_func(&mut self) {
        let end = self.out.raw.len() as u32;
        if let Some(func) = self.out.funcs.last_mut() {
            func.len = end - func.start;
        }
    }

    fn finish(mut self) -> Result<Assembled, AsmError> {
        self.end_func();
        for (slot, fixup, label, line) in std::mem::take(&mut self.fixups) {
            self.fix(slot, fixup, &label).map_err(|why| AsmError { line, text: label, why })?;
        }
        Ok(self.out)
    }

    fn fix(&mut self, slot: usize, fixup: Fixup, label: &str) -> Parsed<()> {
        let at = *self.labels.get(label).ok_or("no such label")?;
        let distance = at as i64 - slot as i64 - 1;
        match fixup {
            Fixup::Off => {
                self.out.raw[slot].off = distance.try_into().map_err(|_| "label too far")?
            }
            Fixup::Imm => {
                self.out.raw[slot].imm = distance.try_into().map_err(|_| "label too far")?
            }
            Fixup::FuncAddr => {
                let func = self.out.funcs.iter().position(|func| func.name == label);
                let addr = func_addr(FuncId(func.ok_or("no such function")? as u32));
                self.out.raw[slot].imm = addr as i32;
                self.out.raw[slot + 1].imm = (addr >> 32) as i32;
            }
        }
        Ok(())
    }

    fn emit(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Parsed<()> {
        self.out.raw.push(RawInsn::new(code, dst, src, off, imm));
        Ok(())
    }

    fn insn(&mut self, code: &str, line: usize) -> Parsed<()> {
        let (word, rest) = code.split_once(' ').unwrap_or((code, ""));
        match word {
            "exit" => self.emit(0x95, 0, 0, 0, 0),
            "goto" => self.jump(0x05, Fixup::Off, 0, 0, 0, rest, line),
            "gotol" => self.jump(0x06, Fixup::Imm, 0, 0, 0, rest, line),
            "may_goto" => self.jump(0xe5, Fixup::Off, 0, 0, 0, rest, line),
            "call" => self.call(rest, line),
            "callx" => self.emit(0x8d, reg(rest)?.0, 0, 0, 0),
            "if" => self.branch(rest, line),
            "lock" => self.lock(rest),
            _ if code.starts_with("store_release(") => self.store_release(code),
            _ if code.starts_with('*') => self.store(code),
            _ => self.assign(code, line),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of an instruction")]
    fn jump(
        &mut self,
        code: u8,
        fixup: Fixup,
        dst: u8,
        src: u8,
        imm: i32,
        target: &str,
        line: usize,
    ) -> Parsed<()> {
        self.emit(code, dst, src, 0, imm)?;
        let slot = self.out.raw.len() - 1;
        match number(target) {
            Some(distance) => match fixup {
                Fixup::Off => {
                    self.out.raw[slot].off = distance.try_into().map_err(|_| "jump too far")?
                }
                _ => self.out.raw[slot].imm = distance.try_into().map_err(|_| "jump too far")?,
            },
            None => self.fixups.push((slot, fixup, target.to_owned(), line)),
        }
        Ok(())
    }

    fn call(&mut self, what: &str, line: usize) -> Parsed<()> {
        if let Some(kfunc) = what.strip_prefix('$') {
            let id = number(kfunc).ok_or("kfunc id")?;
            return self.emit(0x85, 0, call::KFUNC, 0, id as i32);
        }
        match number(what) {
            Some(id) => self.emit(0x85, 0, call::HELPER, 0, id as i32),
            None => self.jump(0x85, Fixup::Imm, 0, call::FUNC, 0, what, line),
        }
    }

    /// Assembles a conditional jump, such as `if r1 s> r2 goto label`.
    fn branch(&mut self, rest: &str, line: usize) -> Parsed<()> {
        let (condition, target) = rest.split_once(" goto ").ok_or("goto expected")?;
        let mut words = condition.split_whitespace();
        let (left, op, right) = (words.next(), words.next(), words.next());
        let (dst, wide) = reg(left.ok_or("left side")?)?;
        let kind = match op.ok_or("comparison")? {
            "==" => 0x10,
            ">" => 0x20,
            ">=" => 0x30,
            "&" => 0x40,
            "!=" => 0x50,
            "s>" => 0x60,
            "s>=" => 0x70,
            "<" => 0xa0,
            "<=" => 0xb0,
            "s<" => 0xc0,
            "s<=" => 0xd0,
            _ => return Err("comparison"),
        };
        let class = if wide { 5 } else { 6 };
        match operand(right.ok_or("right side")?)? {
            Operand::Reg(src) => self.jump(kind | class | 8, Fixup::Off, dst, src, 0, target, line),
            Operand::Imm(imm) => self.jump(kind | class, Fixup::Off, dst, 0, imm, target, line),
        }
    }

    /// Assembles a store, such as `*(u64 *)(r10 - 8) = r1`.
    fn store(&mut self, code: &str) -> Parsed<()> {
        let (place, value) = code.split_once(" = ").ok_or("= expected")?;
        let (size, _, dst, off) = location(place)?;
        match operand(value)? {
            Operand::Reg(src) => self.emit(0x63 | size, dst, src, off, 0),
            Operand::Imm(imm) => self.emit(0x62 | size, dst, 0, off, imm),
        }
    }

    fn store_release(&mut self, code: &str) -> Parsed<()> {
        let inner = code.strip_prefix("store_release(").and_then(|rest| rest.strip_suffix(')'));
        let (place, value) =
            inner.and_then(|inner| inner.rsplit_once(", ")).ok_or("two arguments")?;
        let (size, _, dst, off) = location(place)?;
        self.emit(0xc3 | size, dst, reg(value)?.0, off, 0x110)
    }

    /// Assembles an atomic operation without a result, such as `lock *(u64 *)(r1 + 0) += r2`.
    fn lock(&mut self, rest: &str) -> Parsed<()> {
        let (place, value) = rest.split_once("= ").ok_or("= expected")?;
        let (place, op) = place.split_at(place.len().checked_sub(1).ok_or("operator")?);
        let (size, _, dst, off) = location(place.trim())?;
        let imm = match op {
            "+" => 0x00,
            "|" => 0x40,
            "&" => 0x50,
            "^" => 0xa0,
            _ => return Err("atomic operator"),
        };
        self.emit(0xc3 | size, dst, reg(value)?.0, off, imm)
    }

    fn assign(&mut self, code: &str, line: usize) -> Parsed<()> {
        let (left, right) = code.split_once("= ").ok_or("= expected")?;
        let (name, op) = left.trim().split_once(' ').unwrap_or((left.trim(), ""));
        let (dst, wide) = reg(name)?;
        let right = right.trim();
        match op.trim() {
            "" => self.move_to(dst, wide, right, line),
            op => self.arithmetic(dst, wide, op, right),
        }
    }

    fn arithmetic(&mut self, dst: u8, wide: bool, op: &str, right: &str) -> Parsed<()> {
        let (kind, off) = match op {
            "+" => (0x00, 0),
            "-" => (0x10, 0),
            "*" => (0x20, 0),
            "/" => (0x30, 0),
            "|" => (0x40, 0),
            "&" => (0x50, 0),
            "<<" => (0x60, 0),
            ">>" => (0x70, 0),
            "%" => (0x90, 0),
            "^" => (0xa0, 0),
            "s>>" => (0xc0, 0),
            "s/" => (0x30, 1),
            "s%" => (0x90, 1),
            _ => return Err("operator"),
        };
        let class = if wide { 7 } else { 4 };
        match operand(right)? {
            Operand::Reg(src) => self.emit(kind | class | 8, dst, src, off, 0),
            Operand::Imm(imm) => self.emit(kind | class, dst, 0, off, imm),
        }
    }

    fn move_to(&mut self, dst: u8, wide: bool, right: &str, line: usize) -> Parsed<()> {
        let class = if wide { 7 } else { 4 };
        if let Some(constant) = right.strip_suffix(" ll") {
            return self.constant(dst, constant, line);
        }
        if right.starts_with("*(") {
            let (size, signed, src, off) = location(right)?;
            return self.emit(if signed { 0x81 } else { 0x61 } | size, dst, src, off, 0);
        }
        if right.starts_with('-') && number(right).is_none() {
            return self.emit(0x80 | class, dst, 0, 0, 0);
        }
        if let Some((bits, src)) = right.strip_prefix("(s").and_then(|rest| rest.split_once(')')) {
            let off = number(bits).ok_or("width")? as i16;
            return self.emit(0xb8 | class, dst, reg(src)?.0, off, 0);
        }
        if let Some((function, arguments)) = right.split_once('(') {
            return self.function(dst, function, arguments.trim_end_matches(')'));
        }
        if let Some((swap, _)) = right.split_once(' ') {
            let split = swap.find(|c: char| c.is_ascii_digit()).ok_or("byte order")?;
            let imm = number(&swap[split..]).ok_or("width")? as i32;
            let code = match &swap[..split] {
                "le" => 0xd4,
                "be" => 0xdc,
                "bswap" => 0xd7,
                _ => return Err("byte order"),
            };
            return self.emit(code, dst, 0, 0, imm);
        }
        match operand(right)? {
            Operand::Reg(src) => self.emit(0xb8 | class, dst, src, 0, 0),
            Operand::Imm(imm) => self.emit(0xb0 | class, dst, 0, 0, imm),
        }
    }

    fn constant(&mut self, dst: u8, text: &str, line: usize) -> Parsed<()> {
        let value = number(text);
        let bits = value.unwrap_or(0);
        self.emit(0x18, dst, 0, 0, bits as i32)?;
        self.emit(0, 0, 0, 0, (bits >> 32) as i32)?;
        if value.is_none() {
            let slot = self.out.raw.len() - 2;
            self.fixups.push((slot, Fixup::FuncAddr, text.to_owned(), line));
        }
        Ok(())
    }

    /// Emits fetching atomics, casts and acquiring loads: `r1 = name(place, ...)`.
    fn function(&mut self, dst: u8, name: &str, arguments: &str) -> Parsed<()> {
        let last = arguments.rsplit(", ").next().unwrap_or("");
        let place = || location_in(arguments.split(',').next().unwrap_or(""));
        match name {
            "addr_space_cast" => {
                let src = reg(arguments.split(',').next().unwrap_or(""))?.0;
                let imm = if last == "0x1" { 1 } else { 0x1_0000 };
                self.emit(0xbf, dst, src, 1, imm)
            }
            "load_acquire" => {
                let (size, src, off) = place()?;
                self.emit(0xc3 | size, dst, src, off, 0x100)
            }
            "xchg_64" | "xchg32_32" | "cmpxchg_64" | "cmpxchg32_32" => {
                let (_, base, off) = place()?;
                let code = if name.ends_with("64") { 0xdb } else { 0xc3 };
                let imm = if name.starts_with('c') { 0xf1 } else { 0xe1 };
                self.emit(code, base, reg(last)?.0, off, imm)
            }
            _ => {
                let (size, base, off) = place()?;
                let imm = match name {
                    "atomic_fetch_add" => 0x01,
                    "atomic_fetch_or" => 0x41,
                    "atomic_fetch_and" => 0x51,
                    "atomic_fetch_xor" => 0xa1,
                    _ => return Err("no such function"),
                };
                self.emit(0xc3 | size, base, reg(last)?.0, off, imm)
            }
        }
    }
}

enum Operand {
    Reg(u8),
    Imm(i32),
}

fn operand(text: &str) -> Parsed<Operand> {
    match number(text) {
        Some(value) if i32::try_from(value).is_ok() => Ok(Operand::Imm(value as i32)),
        // The field is signed, so a constant above `i32::MAX` becomes the negative number with the
        // same 32 bits. A 32-bit operation uses these bits.
        Some(value) if u32::try_from(value).is_ok() => Ok(Operand::Imm(value as u32 as i32)),
        Some(_) => Err("constant over 32 bits"),
        None => Ok(Operand::Reg(reg(text)?.0)),
    }
}

/// Parses a register name. Returns the register's number, and whether the name is the 64-bit one.
fn reg(text: &str) -> Parsed<(u8, bool)> {
    let text = text.trim();
    let wide = text.starts_with('r');
    let digits = text.strip_prefix(['r', 'w']).ok_or("register")?;
    Ok((digits.parse().map_err(|_| "register")?, wide))
}

fn number(text: &str) -> Option<i64> {
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let magnitude = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(if negative { (magnitude as i64).wrapping_neg() } else { magnitude as i64 })
}

/// Parses `*(u32 *)(r1 + 4)`, with or without the first star. Returns size bits, signedness, base
/// register and offset.
fn location(text: &str) -> Parsed<(u8, bool, u8, i16)> {
    let text = text.trim().trim_start_matches('*');
    let (ty, rest) =
        text.strip_prefix('(').and_then(|text| text.split_once(" *)")).ok_or("memory type")?;
    let size = match &ty[1..] {
        "8" => 0x10,
        "16" => 0x08,
        "32" => 0x00,
        "64" => 0x18,
        _ => return Err("memory size"),
    };
    let (base, off) = address(rest.trim_matches(['(', ')']))?;
    Ok((size, ty.starts_with('s'), base, off))
}

/// Parses the memory operand of an instruction in the syntax of a function call, such as
/// `atomic_fetch_add`. Returns size bits (0 if the operand names no type), base register and
/// offset.
fn location_in(text: &str) -> Parsed<(u8, u8, i16)> {
    if text.starts_with('(') {
        let (size, _, base, off) = location(text)?;
        return Ok((size, base, off));
    }
    let (base, off) = address(text)?;
    Ok((0, base, off))
}

/// Parses an address, such as `r1 + 4`.
fn address(text: &str) -> Parsed<(u8, i16)> {
    let mut words = text.split_whitespace();
    let base = reg(words.next().ok_or("base register")?)?.0;
    let Some(sign) = words.next() else {
        return Ok((base, 0));
    };
    let off = number(words.next().ok_or("offset")?).ok_or("offset")?;
    let off = if sign == "-" { -off } else { off };
    Ok((base, off.try_into().map_err(|_| "offset")?))
}
