// SPDX-License-Identifier: GPL-2.0-only
//! Relocations of instructions: the target of each `ld_imm64` and call.
//!
//! Owns: turning ELF symbols and addends into maps, data, functions and externs of the object.
//! Does not: turn these targets into addresses (see `link/code.rs`).
//! Models: libbpf `bpf_program__record_reloc()` and `bpf_object__reloc_code()`, v7.3.
//!
//! ```text
//!   instruction          symbol is            meaning
//!   call                 undefined            kernel function
//!   call                 in .text             function at symbol + (imm + 1) instructions
//!   call, no relocation  -                    function at this call + (imm + 1) instructions
//!   ld_imm64             undefined            kernel function, variable, or configuration value
//!   ld_imm64             in .maps             map at symbol
//!   ld_imm64             in a data section    variable at symbol + imm bytes
//!   ld_imm64             in .text             function at symbol + imm bytes (a callback)
//! ```

use super::code;
use super::elf::{Elf, RawReloc, SectionId, Symbol};
use super::error::ObjectErrorKind;
use super::externs::Extern;
use super::maps::MapSpec;
use super::program::{self, Function};
use super::sections::DataSection;

/// Target of an instruction's reference. Indices are into the object's lists; `offset` is in bytes
/// from the start of the section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelocTarget {
    Map(usize),
    Data { section: usize, offset: u64 },
    Function(usize),
    Extern(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reloc {
    pub insn: u32,
    pub target: RelocTarget,
}

/// The parts of an object that a symbol can refer to.
pub struct SymbolTargets<'a> {
    pub elf: &'a Elf<'a>,
    pub sections: &'a [DataSection],
    pub maps: &'a [MapSpec],
    pub externs: &'a [Extern],
}

pub fn resolve(
    index: &SymbolTargets<'_>,
    functions: &mut [Function],
) -> Result<(), ObjectErrorKind> {
    let mut found: Vec<Vec<Reloc>> = vec![Vec::new(); functions.len()];
    let mut sections: Vec<SectionId> = functions.iter().map(|f| f.elf_section).collect();
    sections.dedup();
    for section in sections {
        for reloc in index.elf.relocs(section) {
            let slot = reloc.offset / code::SLOT;
            let Some(owner) = program::find(functions, section, slot) else {
                continue;
            };
            let f = &functions[owner];
            let insn = slot as u32 - f.section_start;
            let target = RelocSite { index, functions, f, insn }.resolve(&reloc)?;
            found[owner].push(Reloc { insn, target });
        }
    }
    for (owner, mut relocs) in found.into_iter().enumerate() {
        relocs.sort_by_key(|r| r.insn);
        add_local_calls(index, functions, owner, &mut relocs)?;
        functions[owner].relocs = relocs;
    }
    Ok(())
}

/// Adds relocations for calls between functions of `.text`, which need none in the file, so that
/// linking handles all calls in one way.
fn add_local_calls(
    index: &SymbolTargets<'_>,
    functions: &[Function],
    owner: usize,
    relocs: &mut Vec<Reloc>,
) -> Result<(), ObjectErrorKind> {
    let f = &functions[owner];
    if let Some(pair) = relocs.windows(2).find(|w| w[0].insn == w[1].insn) {
        return Err(bad(f, pair[0].insn, "two relocations of one instruction"));
    }
    let mut local = Vec::new();
    for (insn, raw) in f.insns.iter().enumerate() {
        let insn = insn as u32;
        let is_call = raw.code == code::CALL && raw.src() == code::PSEUDO_CALL;
        let is_addr = raw.code == code::LD_IMM64 && raw.src() == code::PSEUDO_FUNC;
        if !(is_call || is_addr) || relocs.binary_search_by_key(&insn, |r| r.insn).is_ok() {
            continue;
        }
        if is_addr {
            return Err(bad(f, insn, "a function's address without a relocation"));
        }
        let slot = i64::from(f.section_start) + i64::from(insn) + i64::from(raw.imm) + 1;
        let place = RelocSite { index, functions, f, insn };
        let target = place.function_at(f.elf_section, slot)?;
        local.push(Reloc { insn, target });
    }
    relocs.extend(local);
    relocs.sort_by_key(|r| r.insn);
    Ok(())
}

/// An instruction under relocation.
struct RelocSite<'a> {
    index: &'a SymbolTargets<'a>,
    functions: &'a [Function],
    f: &'a Function,
    insn: u32,
}

impl RelocSite<'_> {
    fn resolve(&self, reloc: &RawReloc) -> Result<RelocTarget, ObjectErrorKind> {
        let symbol = self
            .index
            .elf
            .symbol(reloc.symbol)
            .ok_or_else(|| self.bad(format!("symbol {} does not exist", reloc.symbol)))?;
        if !reloc.offset.is_multiple_of(code::SLOT) {
            return Err(self.bad("the relocation points into the middle of an instruction"));
        }
        let raw = self.f.insns[self.insn as usize];
        let is_call = raw.code == code::CALL;
        if !is_call && raw.code != code::LD_IMM64 {
            let what =
                format!("code {:#04x} cannot be relocated (against `{}`)", raw.code, symbol.name);
            return Err(self.bad(what));
        }
        if !is_call && self.insn as usize + 1 >= self.f.insns.len() {
            return Err(self.bad("ld_imm64 without its second slot"));
        }
        if symbol.undefined {
            return self.external(reloc.symbol, symbol);
        }
        let section = symbol
            .section
            .ok_or_else(|| self.bad(format!("`{}` is in no section", symbol.name)))?;
        if is_call {
            return self.call(section, symbol, raw.src(), raw.imm);
        }
        self.address(section, symbol, raw.imm)
    }

    fn external(
        &self,
        symbol_index: usize,
        symbol: &Symbol<'_>,
    ) -> Result<RelocTarget, ObjectErrorKind> {
        // Externs are in the order of their symbols, so a binary search finds them.
        let found = self.index.externs.binary_search_by_key(&symbol_index, |e| e.symbol);
        let external =
            found.map_err(|_| self.bad(format!("`{}` is not a usable extern", symbol.name)))?;
        Ok(RelocTarget::Extern(external))
    }

    fn call(
        &self,
        section: SectionId,
        symbol: &Symbol<'_>,
        src: u8,
        imm: i32,
    ) -> Result<RelocTarget, ObjectErrorKind> {
        if src != code::PSEUDO_CALL {
            return Err(self.bad("relocated call of something other than a function"));
        }
        if !symbol.value.is_multiple_of(code::SLOT) {
            return Err(self.bad("call into the middle of an instruction"));
        }
        let slot = (symbol.value / code::SLOT) as i64 + i64::from(imm) + 1;
        self.function_at(section, slot)
    }

    fn address(
        &self,
        section: SectionId,
        symbol: &Symbol<'_>,
        imm: i32,
    ) -> Result<RelocTarget, ObjectErrorKind> {
        let name = self.index.elf.sections[section].name;
        let addend = i64::from(imm);
        let offset = i64::try_from(symbol.value).ok().and_then(|v| v.checked_add(addend));
        let offset = offset.filter(|o| *o >= 0).ok_or_else(|| {
            self.bad(format!("`{}` plus {imm} is outside section {name}", symbol.name))
        })?;
        if self.index.elf.sections[section].is_code() {
            if offset % code::SLOT as i64 != 0 {
                return Err(self.bad("address in the middle of an instruction"));
            }
            return self.function_at(section, offset / code::SLOT as i64);
        }
        if name == ".maps" {
            let map = self.index.maps.iter().position(|m| m.starts_at(symbol.value));
            return map.map(RelocTarget::Map).ok_or_else(|| {
                self.bad(format!("no map is defined at offset {} of .maps", symbol.value))
            });
        }
        if name == ".jumptables" {
            return Err(self.bad("indirect jumps (jump tables) are not supported"));
        }
        let data =
            self.index.sections.iter().position(|s| s.elf_id == section).ok_or_else(|| {
                self.bad(format!(
                    "reference to `{}` in section {name}, which is not a data section",
                    symbol.name
                ))
            })?;
        Ok(RelocTarget::Data { section: data, offset: offset as u64 })
    }

    /// Finds the function that starts at exactly that slot. Only functions of `.text` can be
    /// called.
    fn function_at(&self, section: SectionId, slot: i64) -> Result<RelocTarget, ObjectErrorKind> {
        let name = self.index.elf.sections[section].name;
        let found = u64::try_from(slot)
            .ok()
            .and_then(|slot| program::find(self.functions, section, slot))
            .filter(|i| i64::from(self.functions[*i].section_start) == slot)
            .filter(|i| self.functions[*i].program.is_none());
        found.map(RelocTarget::Function).ok_or_else(|| {
            self.bad(format!("no function that can be called starts at insn {slot} of {name}"))
        })
    }

    fn bad(&self, what: impl Into<String>) -> ObjectErrorKind {
        bad(self.f, self.insn, what)
    }
}

fn bad(f: &Function, insn: u32, what: impl Into<String>) -> ObjectErrorKind {
    let insn = u64::from(f.section_start) + u64::from(insn);
    ObjectErrorKind::Reloc { section: f.section.clone(), insn, what: what.into() }
}
