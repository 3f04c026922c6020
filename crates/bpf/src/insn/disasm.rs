// SPDX-License-Identifier: GPL-2.0-only
//! Disassembly of instructions in the syntax of llvm-objdump, for fault reports.
//!
//! Owns: the syntax, which `asm.rs` reads as well. Does not: annotate with source lines (see
//! `vm/report.rs`).

use super::decode::access_size;
use super::{Insn, Op};
use crate::kfunc::{self, KfuncId};
use crate::vm::Image;

/// Disassembles one instruction. Jump targets are distances in slots. A call shows the name of the
/// called function, helper or kfunc if the name is known.
pub fn disasm(insn: &Insn, pc: u32, image: &Image) -> String {
    let name = format!("{:?}", insn.op);
    if let Some(text) = special(insn, pc, image) {
        return text;
    }
    if let Some(size) = access_size(insn.op) {
        return memory(insn, &name, size);
    }
    if name.starts_with('J') { branch(insn, &name, pc) } else { arithmetic(insn, &name) }
}

fn special(insn: &Insn, pc: u32, image: &Image) -> Option<String> {
    use Op::*;
    let (d, s) = (insn.dst, insn.src);
    Some(match insn.op {
        Pad => String::from("<second half of a constant>"),
        Exit => String::from("exit"),
        Ja => format!("goto {}", distance(insn, pc)),
        MayGoto => format!("may_goto {}", distance(insn, pc)),
        LdImm64 => format!("r{d} = {:#x} ll", insn.imm),
        CastKern => format!("r{d} = addr_space_cast(r{s}, 0x0, 0x1)"),
        CastUser => format!("r{d} = addr_space_cast(r{s}, 0x1, 0x0)"),
        Neg64 => format!("r{d} = -r{d}"),
        Neg32 => format!("w{d} = -w{d}"),
        CallReg => format!("callx r{d}"),
        CallFunc => {
            let func = image.funcs.iter().find(|func| func.start == insn.off as u32);
            format!("call {}", func.map_or("?", |func| &func.name))
        }
        CallHelper | TailCall => match crate::helper::name(insn.imm as u32) {
            Some(name) => format!("call {name}#{}", insn.imm),
            None => format!("call {:#x}", insn.imm),
        },
        CallKfunc => {
            let id = KfuncId(insn.imm as u32);
            let known = kfunc::name(id).or(image.kfunc_names.get(&id).map(String::as_str));
            format!("call {}", known.unwrap_or("?"))
        }
        _ => return None,
    })
}

fn memory(insn: &Insn, name: &str, size: i32) -> String {
    let (d, s) = (insn.dst, insn.src);
    let bits = size * 8;
    // Accesses of fewer than 8 bytes name w registers, but a sign-extending load fills a whole r
    // register.
    let w = if size == 8 { 'r' } else { 'w' };
    let at = |base: u8| {
        let sign = if insn.off < 0 { '-' } else { '+' };
        format!("r{base} {sign} {:#x}", insn.off.unsigned_abs())
    };
    let (atomic, fetch) = (name.strip_prefix("Atomic"), name.strip_prefix("AtomicFetch"));
    if name.starts_with("Ldx") {
        let (sign, w) = if name.ends_with('s') { ('s', 'r') } else { ('u', w) };
        format!("{w}{d} = *({sign}{bits} *)({})", at(s))
    } else if name.starts_with("LoadAcq") {
        format!("{w}{d} = load_acquire((u{bits} *)({}))", at(s))
    } else if name.starts_with("StoreRel") {
        format!("store_release((u{bits} *)({}), {w}{s})", at(d))
    } else if name.starts_with("Stx") {
        format!("*(u{bits} *)({}) = {w}{s}", at(d))
    } else if let Some(op) = fetch {
        let op = operator(op).1;
        format!("{w}{s} = atomic_fetch_{op}((u{bits} *)({}), {w}{s})", at(d))
    } else if atomic.is_some_and(|op| op.starts_with("Xchg")) {
        let call = if size == 8 { "xchg_64" } else { "xchg32_32" };
        format!("{w}{s} = {call}({}, {w}{s})", at(d))
    } else if atomic.is_some_and(|op| op.starts_with("Cmpxchg")) {
        let call = if size == 8 { "cmpxchg_64" } else { "cmpxchg32_32" };
        format!("{w}0 = {call}({}, {w}0, {w}{s})", at(d))
    } else if let Some(op) = atomic {
        format!("lock *(u{bits} *)({}) {}= {w}{s}", at(d), operator(op).0)
    } else {
        format!("*(u{bits} *)({}) = {}", at(d), hex(insn.imm))
    }
}

fn branch(insn: &Insn, name: &str, pc: u32) -> String {
    let narrow = name.contains("32");
    let w = if narrow { 'w' } else { 'r' };
    let compare = match &name[..name.len() - 3] {
        "Jeq" => "==",
        "Jne" => "!=",
        "Jgt" => ">",
        "Jge" => ">=",
        "Jlt" => "<",
        "Jle" => "<=",
        "Jsgt" => "s>",
        "Jsge" => "s>=",
        "Jslt" => "s<",
        "Jsle" => "s<=",
        _ => "&",
    };
    let right = if name.ends_with('X') { format!("{w}{}", insn.src) } else { hex(insn.imm) };
    format!("if {w}{} {compare} {right} goto {}", insn.dst, distance(insn, pc))
}

fn arithmetic(insn: &Insn, name: &str) -> String {
    let (d, s) = (insn.dst, insn.src);
    if let Some(widths) = name.strip_prefix("MovSx") {
        let (from, to) = widths.split_once("To").unwrap_or((widths, "64"));
        let w = if to == "64" { 'r' } else { 'w' };
        return format!("{w}{d} = (s{from}){w}{s}");
    }
    if ["Le", "Be", "Bswap"].iter().any(|prefix| name.starts_with(prefix)) {
        return format!("r{d} = {} r{d}", name.to_lowercase());
    }
    let w = if name.contains("32") { 'w' } else { 'r' };
    let right = if name.ends_with('X') { format!("{w}{s}") } else { hex(insn.imm) };
    match operator(name).0 {
        "" => format!("{w}{d} = {right}"),
        op => format!("{w}{d} {op}= {right}"),
    }
}

/// Returns an arithmetic operation's operator and its name in lower case, such as `+` and `add`.
/// `name` is an `Op` variant's name without `Atomic` or `AtomicFetch`, such as `Add64K` or `AddW`.
fn operator(name: &str) -> (&'static str, &'static str) {
    const TABLE: [(&str, &str, &str); 14] = [
        ("Add", "+", "add"),
        ("Sub", "-", "sub"),
        ("Mul", "*", "mul"),
        ("Div", "/", "div"),
        ("Or", "|", "or"),
        ("And", "&", "and"),
        ("Lsh", "<<", "lsh"),
        ("Rsh", ">>", "rsh"),
        ("Mod", "%", "mod"),
        ("Xor", "^", "xor"),
        ("Mov", "", "mov"),
        ("Arsh", "s>>", "arsh"),
        ("SDiv", "s/", "sdiv"),
        ("SMod", "s%", "smod"),
    ];
    let row = TABLE.iter().find(|row| name.starts_with(row.0));
    row.map_or(("?", "?"), |row| (row.1, row.2))
}

fn distance(insn: &Insn, pc: u32) -> String {
    let slots = i64::from(insn.off) - i64::from(pc) - 1;
    let sign = if slots < 0 { '-' } else { '+' };
    format!("{sign}{:#x}", slots.unsigned_abs())
}

fn hex(value: i64) -> String {
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{:#x}", value.unsigned_abs())
}
