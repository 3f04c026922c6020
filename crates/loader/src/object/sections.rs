// SPDX-License-Identifier: GPL-2.0-only
//! Data sections: the global variables in them and their initial contents.
//!
//! Owns: `.data`, `.rodata`, `.bss`, the private sections named after them (such as `.data.X`), and
//! `.addr_space.1`.
//! Does not: place the sections in memory or change them (see `link/globals.rs`).

use super::datasec;
use super::elf::{Elf, SectionId};
use super::error::ObjectErrorKind;
use crate::btf::{Btf, BtfKind, TypeId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionKind {
    Data,
    Bss,
    /// Read-only for programs once the object is loaded.
    Rodata,
    /// Variables that live in the object's arena.
    Arena,
}

/// A global variable.
#[derive(Clone, Debug)]
pub struct Variable {
    pub name: String,
    /// Declared type, with its qualifiers.
    pub ty: TypeId,
    pub offset: u64,
    pub size: u64,
    /// The variable is visible outside its source file (static variables are not).
    pub global: bool,
}

#[derive(Clone, Debug)]
pub struct DataSection {
    pub name: String,
    pub kind: SectionKind,
    pub size: u64,
    pub align: u64,
    /// Initial contents; empty for a zeroed section of any size.
    pub bytes: Vec<u8>,
    /// The section's entry in the type table, if it has one.
    pub datasec: Option<TypeId>,
    pub variables: Vec<Variable>,
    pub(super) elf_id: SectionId,
}

/// Largest number of data sections of an object, and largest size of a data section in bytes. The
/// kernel holds a data section as a map's value, which is below 4 GiB.
const MAX_SECTIONS: usize = 1024;
const MAX_SIZE: u64 = u32::MAX as u64;

pub fn collect(elf: &Elf<'_>, btf: &Btf) -> Result<Vec<DataSection>, ObjectErrorKind> {
    let mut found = Vec::new();
    for (id, section) in elf.sections.iter().enumerate() {
        if section.name == "maps" {
            return Err(ObjectErrorKind::LegacyMaps { section: section.name.to_owned() });
        }
        let Some(kind) = kind_of(section.name) else {
            continue;
        };
        let is_present =
            if kind == SectionKind::Bss { section.is_zeroed() } else { section.is_data() };
        if !is_present {
            continue;
        }
        if found.len() == MAX_SECTIONS {
            return Err(ObjectErrorKind::TooMany {
                section: section.name.to_owned(),
                things: "data sections before it",
                max: MAX_SECTIONS,
            });
        }
        if section.size > MAX_SIZE {
            return Err(ObjectErrorKind::TooMany {
                section: section.name.to_owned(),
                things: "bytes",
                max: MAX_SIZE as usize,
            });
        }
        let datasec = datasec(btf, section.name);
        found.push(DataSection {
            name: section.name.to_owned(),
            kind,
            size: section.size,
            align: section.align.min(4096),
            bytes: elf.data(id).to_vec(),
            datasec,
            variables: variables(btf, datasec, section.name, section.size)?,
            elf_id: id,
        });
    }
    Ok(found)
}

fn kind_of(name: &str) -> Option<SectionKind> {
    let is = |base: &str| {
        name.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    if is(".data") {
        Some(SectionKind::Data)
    } else if is(".rodata") {
        Some(SectionKind::Rodata)
    } else if is(".bss") {
        Some(SectionKind::Bss)
    } else if name == ".addr_space.1" {
        Some(SectionKind::Arena)
    } else {
        None
    }
}

fn variables(
    btf: &Btf,
    datasec: Option<TypeId>,
    section: &str,
    len: u64,
) -> Result<Vec<Variable>, ObjectErrorKind> {
    let Some(datasec) = datasec else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for var in btf.section_vars(datasec) {
        let Some(ty) = btf.ty(var.ty)?.target() else {
            continue;
        };
        if btf.kind(var.ty) != BtfKind::Var {
            continue;
        }
        let (offset, size) = (u64::from(var.offset), u64::from(var.size));
        if offset + size > len {
            return Err(ObjectErrorKind::Variable {
                section: section.to_owned(),
                variable: btf.name(var.ty).to_owned(),
                offset,
                size,
                len,
            });
        }
        let global = btf.linkage(var.ty) != Some(0);
        found.push(Variable { name: btf.name(var.ty).to_owned(), ty, offset, size, global });
    }
    found.sort_by_key(|v| v.offset);
    Ok(found)
}
