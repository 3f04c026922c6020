// SPDX-License-Identifier: GPL-2.0-only
//! struct_ops tables: structs of callbacks and settings that a scheduler hands to the kernel.
//!
//! Owns: reading the tables by member name. An object may have several tables.
//! Does not: match the tables with the kernel's own struct (see `link/struct_ops.rs`).
//! Models: libbpf `init_struct_ops_maps()` and `bpf_object__collect_st_ops_relos()`, v7.3.

use super::code;
use super::elf::{Elf, SectionId};
use super::error::ObjectErrorKind;
use super::program::{self, Function, ProgramKind};
use crate::btf::{Btf, BtfKind, TypeId};

#[derive(Clone, Debug)]
pub struct StructOps {
    /// The variable's name.
    pub name: String,
    /// Name of the table's struct, such as `sched_ext_ops`.
    pub type_name: String,
    pub ty: TypeId,
    /// The table is in a section `.struct_ops.link`, so it is attached through a link.
    pub link: bool,
    /// The section's name begins with `?`: the table is not created unless the user asks for it.
    pub optional: bool,
    pub members: Vec<StructOpsMember>,
    /// The struct's bytes as compiled. Callbacks are zero here.
    pub data: Vec<u8>,
    offset: u64,
}

#[derive(Clone, Debug)]
pub struct StructOpsMember {
    pub name: String,
    pub ty: TypeId,
    pub offset: u32,
    pub size: u32,
    pub kind: MemberKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberKind {
    /// A callback: index of the program in the object's functions, if set.
    Callback(Option<usize>),
    Data,
    /// A bitfield. The kernel's tables have none, and none can be set.
    Bitfield,
}

const SECTIONS: [(&str, bool); 4] = [
    (".struct_ops", false),
    (".struct_ops.link", true),
    ("?.struct_ops", false),
    ("?.struct_ops.link", true),
];
const MAX_TABLES: usize = 256;
const MAX_MEMBERS: usize = 1024;

pub fn collect(
    elf: &Elf<'_>,
    btf: &Btf,
    functions: &[Function],
) -> Result<Vec<StructOps>, ObjectErrorKind> {
    let mut tables = Vec::new();
    for (name, link) in SECTIONS {
        let is_table = |id: &SectionId| elf.sections[*id].is_data();
        let Some(section) = elf.section_by_name(name).filter(is_table) else {
            continue;
        };
        let Some(datasec) = super::datasec(btf, name) else {
            return Err(ObjectErrorKind::struct_ops(
                name,
                "its section has no entry in the type table",
            ));
        };
        let first = tables.len();
        for var in btf.section_vars(datasec) {
            if tables.len() == MAX_TABLES {
                return Err(ObjectErrorKind::TooMany {
                    section: name.to_owned(),
                    things: "struct_ops tables",
                    max: MAX_TABLES,
                });
            }
            let mut table = read_table(btf, var.ty, u64::from(var.offset), elf.data(section))?;
            table.link = link;
            table.optional = name.starts_with('?');
            tables.push(table);
        }
        fill_callbacks(elf, functions, section, &mut tables[first..])?;
    }
    Ok(tables)
}

fn read_table(
    btf: &Btf,
    var: TypeId,
    offset: u64,
    bytes: &[u8],
) -> Result<StructOps, ObjectErrorKind> {
    let name = btf.name(var);
    let declared = btf.ty(var)?.target().unwrap_or_default();
    let ty = btf.resolve(declared)?;
    if btf.kind(var) != BtfKind::Var || btf.kind(ty) != BtfKind::Struct || btf.name(ty).is_empty() {
        return Err(ObjectErrorKind::struct_ops(
            name,
            "it is not a variable of a named struct type",
        ));
    }
    let size = btf.size_of(ty)?;
    let data = offset
        .checked_add(size)
        .and_then(|end| bytes.get(offset as usize..end as usize))
        .ok_or_else(|| ObjectErrorKind::struct_ops(name, "it lies past the end of its section"))?;
    let mut members = Vec::new();
    if btf.members(ty).len() > MAX_MEMBERS {
        return Err(ObjectErrorKind::struct_ops(name, "its struct has too many members"));
    }
    for m in btf.members(ty) {
        let kind = if m.bitfield_bits != 0 {
            MemberKind::Bitfield
        } else if is_callback(btf, m.ty)? {
            MemberKind::Callback(None)
        } else {
            MemberKind::Data
        };
        let (at, len) = (u64::from(m.bit_off) / 8, btf.size_of(m.ty)?);
        if at + len > size {
            let what = format!("member `{}` lies past the end of the struct", m.name);
            return Err(ObjectErrorKind::struct_ops(name, what));
        }
        members.push(StructOpsMember {
            name: m.name.to_owned(),
            ty: m.ty,
            offset: at as u32,
            size: len as u32,
            kind,
        });
    }
    Ok(StructOps {
        name: name.to_owned(),
        type_name: crate::btf::essential_name(btf.name(ty)).to_owned(),
        ty,
        link: false,
        optional: false,
        members,
        data: data.to_vec(),
        offset,
    })
}

/// Whether the type is a pointer to a function.
fn is_callback(btf: &Btf, ty: TypeId) -> Result<bool, ObjectErrorKind> {
    let ptr = btf.resolve(ty)?;
    match (btf.kind(ptr), btf.ty(ptr)?.target()) {
        (BtfKind::Ptr, Some(target)) => Ok(btf.kind(btf.resolve(target)?) == BtfKind::FuncProto),
        _ => Ok(false),
    }
}

fn fill_callbacks(
    elf: &Elf<'_>,
    functions: &[Function],
    section: SectionId,
    tables: &mut [StructOps],
) -> Result<(), ObjectErrorKind> {
    let section_name = elf.sections[section].name;
    for reloc in elf.relocs(section) {
        let at = reloc.offset;
        let table = tables
            .iter_mut()
            .find(|t| at >= t.offset && at < t.offset + t.data.len() as u64)
            .ok_or_else(|| {
                ObjectErrorKind::struct_ops(
                    section_name,
                    format!("a relocation at offset {at} lies in no table"),
                )
            })?;
        let member_off = (at - table.offset) as u32;
        let name = table.name.clone();
        let member = table
            .members
            .iter_mut()
            .find(|m| m.offset == member_off && m.kind != MemberKind::Bitfield)
            .ok_or_else(|| {
                ObjectErrorKind::struct_ops(&name, format!("no member at {member_off}"))
            })?;
        let bad = |what: &str| {
            ObjectErrorKind::struct_ops(&name, format!("member `{}` {what}", member.name))
        };
        if !matches!(member.kind, MemberKind::Callback(_)) {
            return Err(bad("is set to an address, but is not a callback"));
        }
        let symbol = elf.symbol(reloc.symbol).ok_or_else(|| bad("has no symbol"))?;
        let program = symbol
            .section
            .filter(|_| symbol.value % code::SLOT == 0)
            .and_then(|s| program::find(functions, s, symbol.value / code::SLOT))
            .ok_or_else(|| bad("is set to something that is not a program"))?;
        if !matches!(functions[program].program, Some(ProgramKind::StructOps { .. })) {
            return Err(bad("is set to a program that is not of type struct_ops"));
        }
        member.kind = MemberKind::Callback(Some(program));
        let end = member_off as usize + 8;
        if let Some(slot) = table.data.get_mut(member_off as usize..end) {
            slot.fill(0);
        }
    }
    Ok(())
}
