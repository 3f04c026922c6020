// SPDX-License-Identifier: GPL-2.0-only
//! Functions: their instructions, program kinds, source lines and CO-RE records.
//!
//! Owns: finding the functions by FUNC symbol and size, and assigning the records of a section to
//! its functions.
//! Does not: resolve relocations (see `reloc.rs`).

use super::code;
use super::elf::{Elf, SectionId, Symbol};
use super::error::ObjectErrorKind;
use super::reloc::Reloc;
use crate::btf::ext::{BtfExt, SectionRecs};
use crate::btf::{Btf, BtfKind, TypeId};
use crate::core_relo::{CoreRelo, RelocKind};
use scxlab_bpf::insn::RawInsn;

/// A function of the object: a program, or a function that programs call.
#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    pub section: String,
    pub insns: Vec<RawInsn>,
    /// None for a function in `.text`, which only other functions call.
    pub program: Option<ProgramKind>,
    /// The section's name begins with `?`: the program is not loaded unless the user asks for it
    /// or a struct_ops table uses it.
    pub optional: bool,
    /// The function's FUNC type, whose target is its prototype.
    pub btf_func: Option<TypeId>,
    /// Relocations, sorted by instruction, with at most one per instruction.
    pub relocs: Vec<Reloc>,
    /// CO-RE records, sorted by instruction.
    pub core_relos: Vec<CoreRelo>,
    /// Source positions, sorted by instruction.
    pub lines: Vec<LineInfo>,
    /// First slot of the function, counted from the start of its section.
    pub section_start: u32,
    pub(super) elf_section: SectionId,
}

/// Source position of the instructions from `insn` (a slot of the function) up to the next record.
#[derive(Clone, Copy, Debug)]
pub struct LineInfo {
    pub insn: u32,
    /// Offsets of the file name (`file`) and of the source line (`text`) in the BTF strings.
    pub file: u32,
    pub text: u32,
    pub line: u32,
    pub column: u32,
}

/// Kind of a program, which determines how it is started. It follows from the section's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramKind {
    StructOps {
        sleepable: bool,
    },
    /// Runs on request, with a context struct.
    Syscall,
    /// Runs at an event in the kernel, such as a tracepoint.
    Trace {
        kind: TraceKind,
        target: String,
        sleepable: bool,
    },
    /// A program type that does not concern a scheduler. Such a program is linked, but never run.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceKind {
    /// `tp_btf`: typed tracepoint arguments.
    TpBtf,
    RawTracepoint,
    Tracepoint,
    Fentry,
    Fexit,
    FmodRet,
    Kprobe,
    Kretprobe,
    Iter,
}

impl ProgramKind {
    /// Kind of the programs in a section of that name, given without its leading `?`.
    pub fn of_section(name: &str) -> ProgramKind {
        let (head, target) = name.split_once('/').unwrap_or((name, ""));
        let (base, sleepable) = match head.strip_suffix(".s") {
            Some(base) => (base, true),
            None => (head, false),
        };
        let kind = match base {
            "struct_ops" => return ProgramKind::StructOps { sleepable },
            "syscall" if target.is_empty() && !sleepable => return ProgramKind::Syscall,
            "tp_btf" => TraceKind::TpBtf,
            "raw_tp" | "raw_tracepoint" => TraceKind::RawTracepoint,
            "tp" | "tracepoint" => TraceKind::Tracepoint,
            "fentry" => TraceKind::Fentry,
            "fexit" => TraceKind::Fexit,
            "fmod_ret" => TraceKind::FmodRet,
            "kprobe" => TraceKind::Kprobe,
            "kretprobe" => TraceKind::Kretprobe,
            "iter" => TraceKind::Iter,
            _ => return ProgramKind::Other,
        };
        ProgramKind::Trace { kind, target: target.to_owned(), sleepable }
    }
}

const TEXT: &str = ".text";
/// Largest number of instructions in an object. The largest known object has 28 thousand.
const MAX_INSNS: usize = 1 << 22;

pub fn collect(elf: &Elf<'_>, btf: &Btf, ext: &BtfExt) -> Result<Vec<Function>, ObjectErrorKind> {
    let mut functions = Vec::new();
    let mut insns = 0;
    for symbol in elf.symbols.iter().filter(|s| s.is_func) {
        let Some(section) = symbol.section.filter(|id| elf.sections[*id].is_code()) else {
            continue;
        };
        let function = read_function(elf, section, symbol)?;
        insns += function.insns.len();
        if insns > MAX_INSNS {
            return Err(ObjectErrorKind::TooMany {
                section: function.section,
                things: "instructions",
                max: MAX_INSNS,
            });
        }
        functions.push(function);
    }
    functions.sort_by_key(|f| (f.elf_section, f.section_start));
    check_overlap(&functions)?;
    attach_records(elf, btf, ext, &mut functions)?;
    Ok(functions)
}

fn read_function(
    elf: &Elf<'_>,
    section: SectionId,
    symbol: &Symbol<'_>,
) -> Result<Function, ObjectErrorKind> {
    let section_name = elf.sections[section].name;
    let data = elf.data(section);
    let (at, size) = (symbol.value, symbol.size);
    let whole = at % code::SLOT == 0 && size % code::SLOT == 0 && size != 0;
    let bytes = usize::try_from(at)
        .ok()
        .zip(usize::try_from(size).ok())
        .and_then(|(at, size)| data.get(at..at.checked_add(size)?).filter(|_| whole));
    let Some(bytes) = bytes else {
        return Err(ObjectErrorKind::FunctionRange {
            section: section_name.to_owned(),
            function: symbol.name.to_owned(),
            offset: at,
            size,
            len: data.len() as u64,
        });
    };
    if section_name != TEXT && symbol.local {
        return Err(ObjectErrorKind::StaticProgram {
            section: section_name.to_owned(),
            function: symbol.name.to_owned(),
        });
    }
    let plain_name = section_name.strip_prefix('?').unwrap_or(section_name);
    Ok(Function {
        name: symbol.name.to_owned(),
        section: section_name.to_owned(),
        insns: bytes.as_chunks::<8>().0.iter().map(code::from_bytes).collect(),
        program: (section_name != TEXT).then(|| ProgramKind::of_section(plain_name)),
        optional: section_name.starts_with('?'),
        btf_func: None,
        relocs: Vec::new(),
        core_relos: Vec::new(),
        lines: Vec::new(),
        section_start: (at / code::SLOT) as u32,
        elf_section: section,
    })
}

fn check_overlap(functions: &[Function]) -> Result<(), ObjectErrorKind> {
    for pair in functions.windows(2) {
        let [a, b] = pair else { continue };
        if a.elf_section == b.elf_section && a.section_end() > b.section_start {
            return Err(ObjectErrorKind::FunctionOverlap {
                section: a.section.clone(),
                first: a.name.clone(),
                second: b.name.clone(),
            });
        }
    }
    Ok(())
}

impl Function {
    /// One past the function's last slot, counted from the start of its section.
    pub fn section_end(&self) -> u32 {
        self.section_start + self.insns.len() as u32
    }
}

/// Index of the function that covers a slot of a section.
pub fn find(functions: &[Function], section: SectionId, slot: u64) -> Option<usize> {
    let after = functions
        .partition_point(|f| (f.elf_section, u64::from(f.section_start)) <= (section, slot));
    let index = after.checked_sub(1)?;
    let f = &functions[index];
    (f.elf_section == section && slot < u64::from(f.section_end())).then_some(index)
}

fn attach_records(
    elf: &Elf<'_>,
    btf: &Btf,
    ext: &BtfExt,
    functions: &mut [Function],
) -> Result<(), ObjectErrorKind> {
    for_each(
        elf,
        btf,
        functions,
        &ext.funcs,
        |r| r.insn_off,
        |f, insn, r| {
            let func = TypeId(r.type_id);
            if insn == 0 && btf.kind(func) == BtfKind::Func {
                f.btf_func = Some(func);
            }
            Ok(())
        },
    )?;
    for_each(
        elf,
        btf,
        functions,
        &ext.lines,
        |r| r.insn_off,
        |f, insn, r| {
            f.lines.push(LineInfo {
                insn,
                file: r.file_off,
                text: r.text_off,
                line: r.line,
                column: r.column,
            });
            Ok(())
        },
    )?;
    for_each(
        elf,
        btf,
        functions,
        &ext.core,
        |r| r.insn_off,
        |f, insn, r| {
            let bad = |what: String| ObjectErrorKind::Reloc {
                section: f.section.clone(),
                insn: u64::from(f.section_start + insn),
                what,
            };
            let kind = RelocKind::from_raw(r.kind)
                .ok_or_else(|| bad(format!("unknown CO-RE relocation kind {}", r.kind)))?;
            if r.type_id as usize >= btf.len() {
                return Err(bad(format!("CO-RE relocation of unknown type [{}]", r.type_id)));
            }
            let access = btf
                .checked_string(r.access_off)
                .ok_or_else(|| bad("CO-RE relocation without an access string".to_owned()))?;
            let relo = CoreRelo { insn, ty: TypeId(r.type_id), access: access.into(), kind };
            f.core_relos.push(relo);
            Ok(())
        },
    )?;
    for f in functions {
        f.lines.sort_by_key(|l| l.insn);
        f.core_relos.sort_by_key(|r| r.insn);
    }
    Ok(())
}

/// Passes each record to its function. Records of instructions outside every function are dropped:
/// they describe dead copies of weak functions.
fn for_each<T>(
    elf: &Elf<'_>,
    btf: &Btf,
    functions: &mut [Function],
    lists: &[SectionRecs<T>],
    insn_off: impl Fn(&T) -> u32,
    mut give: impl FnMut(&mut Function, u32, &T) -> Result<(), ObjectErrorKind>,
) -> Result<(), ObjectErrorKind> {
    for list in lists {
        let name = btf.string(list.section_name_off);
        let Some(section) = elf.section_by_name(name) else {
            continue;
        };
        for record in &list.records {
            let off = insn_off(record);
            if u64::from(off) % code::SLOT != 0 {
                return Err(ObjectErrorKind::Reloc {
                    section: name.to_owned(),
                    insn: u64::from(off) / code::SLOT,
                    what: "a BTF.ext record points into the middle of an instruction".to_owned(),
                });
            }
            let slot = u64::from(off) / code::SLOT;
            if let Some(index) = find(functions, section, slot) {
                let insn = slot as u32 - functions[index].section_start;
                give(&mut functions[index], insn, record)?;
            }
        }
    }
    Ok(())
}
