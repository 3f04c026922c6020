// SPDX-License-Identifier: GPL-2.0-only
//! A compiled BPF object: the contents of its ELF file, checked and cross-referenced.
//!
//! Owns: reading the file; its functions, maps, data sections, externs and struct_ops tables, and
//! the references of instructions to them.
//! Does not: know a kernel. `link.rs` binds an object to a kernel without a change to the object.
//! Models: libbpf `bpf_object__open()`, v7.3, including the files that it refuses.

mod elf;
pub mod error;
mod externs;
mod maps;
mod program;
mod reloc;
mod sections;
mod struct_ops;

#[cfg(test)]
pub(crate) mod tests;

pub use error::ObjectError;
pub use externs::{Extern, ExternKind};
pub use maps::{MapSpec, map_type_name};
pub use program::{Function, LineInfo, ProgramKind, TraceKind};
pub use reloc::{Reloc, RelocTarget};
pub use sections::{DataSection, SectionKind, Variable};
pub use struct_ops::{MemberKind, StructOps, StructOpsMember};

use crate::btf::ext::BtfExt;
use crate::btf::{Btf, BtfKind};

/// A parsed object. It is immutable, so any number of links and threads can use it.
#[derive(Debug)]
pub struct Object {
    /// Name in messages, usually the name of the file.
    pub name: String,
    pub license: String,
    pub btf: Btf,
    /// The functions, sorted by section and then by offset. Instructions that no FUNC symbol covers
    /// are left out: objects linked from several sources carry dead copies of weak functions.
    pub functions: Vec<Function>,
    pub maps: Vec<MapSpec>,
    pub sections: Vec<DataSection>,
    pub externs: Vec<Extern>,
    pub struct_ops: Vec<StructOps>,
}

/// Opcodes and markers in the `src` field that loading and linking use.
pub mod code {
    use scxlab_bpf::insn::RawInsn;

    /// Bytes per instruction slot.
    pub const SLOT: u64 = 8;
    /// Opcode of the only instruction of two slots.
    pub const LD_IMM64: u8 = 0x18;
    pub const CALL: u8 = 0x85;
    /// `src` of a call of a function, in the file and after linking.
    pub const PSEUDO_CALL: u8 = 1;
    /// `src` of an `ld_imm64` of a function's address, in the file.
    pub const PSEUDO_FUNC: u8 = 4;

    pub const CLASS_LD: u8 = 0;
    pub const CLASS_LDX: u8 = 1;
    pub const CLASS_ST: u8 = 2;
    pub const CLASS_STX: u8 = 3;
    pub const CLASS_ALU: u8 = 4;
    pub const CLASS_ALU64: u8 = 7;

    pub fn class(insn: &RawInsn) -> u8 {
        insn.code & 7
    }

    pub fn from_bytes(raw: &[u8; 8]) -> RawInsn {
        RawInsn {
            code: raw[0],
            regs: raw[1],
            off: i16::from_le_bytes([raw[2], raw[3]]),
            imm: i32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
        }
    }
}

/// Licences that the kernel takes as compatible with the GPL (`license_is_gpl_compatible()`).
const GPL_COMPATIBLE: [&str; 6] =
    ["GPL", "GPL v2", "GPL and additional rights", "Dual BSD/GPL", "Dual MIT/GPL", "Dual MPL/GPL"];

impl Object {
    /// Whether the licence lets the object call kernel functions, and be a scheduler.
    pub fn is_gpl_compatible(&self) -> bool {
        GPL_COMPATIBLE.contains(&self.license.as_str())
    }

    /// Reads an ELF file. `name` is only for messages.
    pub fn parse(bytes: &[u8], name: &str) -> Result<Object, ObjectError> {
        Self::parse_inner(bytes, name).map_err(|what| ObjectError { object: name.to_owned(), what })
    }

    fn parse_inner(bytes: &[u8], name: &str) -> Result<Object, error::ObjectErrorKind> {
        elf::Elf::check_machine(bytes)?;
        let elf = elf::Elf::parse(bytes)?;
        let btf = match elf.section_by_name(".BTF") {
            Some(section) => elf.relocated_btf(section)?,
            None => return Err(error::ObjectErrorKind::NoBtf),
        };
        let ext = match elf.section_by_name(".BTF.ext") {
            Some(section) => BtfExt::parse(elf.data(section))?,
            None => BtfExt::default(),
        };
        let sections = sections::collect(&elf, &btf)?;
        let maps = maps::collect(&elf, &btf)?;
        let externs = externs::collect(&elf, &btf)?;
        let mut functions = program::collect(&elf, &btf, &ext)?;
        let index =
            reloc::SymbolTargets { elf: &elf, sections: &sections, maps: &maps, externs: &externs };
        reloc::resolve(&index, &mut functions)?;
        maps::check_arena(&maps, &sections)?;
        let struct_ops = struct_ops::collect(&elf, &btf, &functions)?;
        Ok(Object {
            name: name.to_owned(),
            license: elf.license(),
            btf,
            functions,
            maps,
            sections,
            externs,
            struct_ops,
        })
    }

    pub fn function(&self, name: &str) -> Option<usize> {
        self.functions.iter().position(|f| f.name == name)
    }

    pub fn map(&self, name: &str) -> Option<usize> {
        self.maps.iter().position(|m| m.name == name)
    }

    pub fn section(&self, name: &str) -> Option<usize> {
        self.sections.iter().position(|s| s.name == name)
    }

    /// Section of the global variable with that name, and index of the variable in the section.
    pub fn variable(&self, name: &str) -> Option<(usize, usize)> {
        self.sections.iter().enumerate().find_map(|(s, section)| {
            section.variables.iter().position(|v| v.name == name).map(|v| (s, v))
        })
    }

    /// Programs (entry points), as opposed to the functions they call.
    pub fn programs(&self) -> impl Iterator<Item = (usize, &Function, &ProgramKind)> {
        self.functions
            .iter()
            .enumerate()
            .filter_map(|(i, f)| f.program.as_ref().map(|kind| (i, f, kind)))
    }
}

/// Reads the type table of an ELF file, such as a kernel image or a file that was compiled only for
/// its types.
pub fn btf_of_elf(bytes: &[u8], name: &str) -> Result<Btf, ObjectError> {
    let parse = || -> Result<Btf, error::ObjectErrorKind> {
        let elf = elf::Elf::parse(bytes)?;
        let section = elf.section_by_name(".BTF").ok_or(error::ObjectErrorKind::NoBtf)?;
        elf.relocated_btf(section)
    };
    parse().map_err(|what| ObjectError { object: name.to_owned(), what })
}

/// The type table's DATASEC record with that name.
fn datasec(btf: &Btf, name: &str) -> Option<crate::btf::TypeId> {
    btf.find(name, BtfKind::Datasec)
}
