// SPDX-License-Identifier: GPL-2.0-only
//! struct_ops tables: conversion from the object's struct to the kernel's struct.
//!
//! Owns: editing a table before load, and matching it by member name with the target's struct.
//! Does not: interpret settings; the kernel does so at attach.
//! Models: libbpf `bpf_map__init_kern_struct_ops()`, v7.3.

use super::error::LinkErrorKind;
use super::knob::{self, ValueError};
use crate::btf::{Btf, BtfKind, TypeId};
use crate::object::{MemberKind, Object, StructOps};
use scxlab_bpf::vm::FuncId;

/// A table that a frontend may still change.
#[derive(Clone, Debug)]
pub struct TableEdit {
    table: StructOps,
    /// Whether the table is created at load. By default, a table is not created if its section is
    /// optional (has a name that begins with `?`).
    pub create: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    #[error("struct_ops `{table}` has no member `{member}`{}", if .candidates.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", .candidates.join(", "))
    })]
    NoMember { table: String, member: String, candidates: Vec<String> },
    #[error("struct_ops `{table}`: member `{member}` is a callback")]
    Callback { table: String, member: String },
    #[error("struct_ops `{table}`: member `{member}` is not a callback")]
    NotCallback { table: String, member: String },
    #[error("struct_ops `{table}`, member `{member}`: {source}")]
    Value { table: String, member: String, source: Box<ValueError> },
}

impl TableEdit {
    pub fn new(table: &StructOps) -> TableEdit {
        TableEdit { table: table.clone(), create: !table.optional }
    }

    pub fn name(&self) -> &str {
        &self.table.name
    }

    pub fn type_name(&self) -> &str {
        &self.table.type_name
    }

    /// The table with all changes that the frontend has made so far.
    pub fn table(&self) -> &StructOps {
        &self.table
    }

    /// Sets a setting (a member that is not a callback) from text.
    pub fn set(&mut self, btf: &Btf, member: &str, text: &str) -> Result<(), TableError> {
        let index = self.index(member)?;
        let m = &self.table.members[index];
        if m.kind != MemberKind::Data {
            return Err(TableError::Callback {
                table: self.table.name.clone(),
                member: member.into(),
            });
        }
        let bytes = knob::parse_value(btf, m.ty, text).map_err(|source| TableError::Value {
            table: self.table.name.clone(),
            member: member.to_owned(),
            source: Box::new(source),
        })?;
        let at = m.offset as usize;
        if let Some(slot) = self.table.data.get_mut(at..at + bytes.len()) {
            slot.copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// Current value of a setting as text.
    pub fn get(&self, btf: &Btf, member: &str) -> Result<String, TableError> {
        let m = &self.table.members[self.index(member)?];
        let at = m.offset as usize;
        let bytes = self.table.data.get(at..at + m.size as usize).unwrap_or_default();
        Ok(knob::format_value(btf, m.ty, bytes))
    }

    /// Sets or clears a callback. `program` is an index into the object's functions.
    pub fn set_callback(&mut self, member: &str, program: Option<usize>) -> Result<(), TableError> {
        let index = self.index(member)?;
        let m = &mut self.table.members[index];
        match &mut m.kind {
            MemberKind::Callback(slot) => *slot = program,
            _ => {
                return Err(TableError::NotCallback {
                    table: self.table.name.clone(),
                    member: member.to_owned(),
                });
            }
        }
        Ok(())
    }

    fn index(&self, member: &str) -> Result<usize, TableError> {
        let members = &self.table.members;
        members.iter().position(|m| m.name == member).ok_or_else(|| TableError::NoMember {
            table: self.table.name.clone(),
            member: member.to_owned(),
            candidates: knob::closest(member, members.iter().map(|m| &*m.name)),
        })
    }
}

/// A table with the members that the target's struct has too. Callbacks are indices into the
/// object's functions.
pub struct MatchedTable {
    name: String,
    type_name: String,
    kernel_ty: TypeId,
    link: bool,
    members: Vec<(String, MatchedValue)>,
}

enum MatchedValue {
    Callback(Option<usize>),
    Data(Vec<u8>),
}

/// A table in the form that the kernel gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedStructOps {
    /// Name of the variable.
    pub name: String,
    /// Name of the struct, such as `sched_ext_ops`.
    pub type_name: String,
    /// The id of the struct in the target's BTF.
    pub kernel_ty: TypeId,
    pub link: bool,
    /// Members that the target's struct has too, in the object's order.
    pub members: Vec<LoadedMember>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedMember {
    pub name: String,
    pub value: MemberValue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberValue {
    Callback(Option<FuncId>),
    Data(Vec<u8>),
}

impl LoadedStructOps {
    pub fn member(&self, name: &str) -> Option<&MemberValue> {
        self.members.iter().find(|m| m.name == name).map(|m| &m.value)
    }

    /// The program of a callback; None if the member is not set or is not a callback.
    pub fn callback(&self, name: &str) -> Option<FuncId> {
        match self.member(name) {
            Some(MemberValue::Callback(func)) => *func,
            _ => None,
        }
    }

    /// Bytes of a setting.
    pub fn data(&self, name: &str) -> Option<&[u8]> {
        match self.member(name) {
            Some(MemberValue::Data(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// A setting as an unsigned integer of at most 8 bytes; 0 if the object's struct lacks it.
    pub fn u64(&self, name: &str) -> u64 {
        let bytes = self.data(name).unwrap_or_default();
        let mut wide = [0; 8];
        let n = bytes.len().min(8);
        wide[..n].copy_from_slice(&bytes[..n]);
        u64::from_le_bytes(wide)
    }

    /// A character array up to its NUL.
    pub fn str(&self, name: &str) -> String {
        let bytes = self.data(name).unwrap_or_default();
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

impl MatchedTable {
    pub fn bind(self, funcs: &[Option<FuncId>]) -> LoadedStructOps {
        let value = |v| match v {
            MatchedValue::Callback(p) => {
                MemberValue::Callback(p.and_then(|p: usize| funcs.get(p).copied().flatten()))
            }
            MatchedValue::Data(bytes) => MemberValue::Data(bytes),
        };
        LoadedStructOps {
            name: self.name,
            type_name: self.type_name,
            kernel_ty: self.kernel_ty,
            link: self.link,
            members: self
                .members
                .into_iter()
                .map(|(name, v)| LoadedMember { name, value: value(v) })
                .collect(),
        }
    }
}

/// Matches the tables that are to be created with the target's structs.
pub fn match_kernel(
    object: &Object,
    tables: &[TableEdit],
    target: &Btf,
) -> Result<Vec<MatchedTable>, LinkErrorKind> {
    let mut roles = ProgramRoles { by_function: vec![None; object.functions.len()] };
    let created = tables.iter().filter(|t| t.create);
    created.map(|t| match_table(object, &t.table, target, &mut roles)).collect()
}

impl MatchedTable {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    /// Members that are set to a program, with the program's index among the object's functions.
    pub fn callbacks(&self) -> impl Iterator<Item = (&str, usize)> {
        self.members.iter().filter_map(|(name, value)| match value {
            MatchedValue::Callback(Some(program)) => Some((name.as_str(), *program)),
            _ => None,
        })
    }
}

/// Returns, for each function of the object, whether it is a callback of a table that the kernel
/// gets.
pub fn bound_programs(object: &Object, tables: &[MatchedTable]) -> Vec<bool> {
    let mut bound = vec![false; object.functions.len()];
    for (_, value) in tables.iter().flat_map(|t| &t.members) {
        if let MatchedValue::Callback(Some(program)) = value {
            bound[*program] = true;
        }
    }
    bound
}

/// Returns, for each function of the object, whether it is a callback of any table, as compiled or
/// as edited.
pub fn referenced_programs(object: &Object, edits: &[TableEdit]) -> Vec<bool> {
    let mut mentioned = vec![false; object.functions.len()];
    let tables = object.struct_ops.iter().chain(edits.iter().map(TableEdit::table));
    for member in tables.flat_map(|t| &t.members) {
        if let MemberKind::Callback(Some(program)) = member.kind
            && let Some(slot) = mentioned.get_mut(program)
        {
            *slot = true;
        }
    }
    mentioned
}

/// Struct and member for which each function of the object is a callback; None for a function that
/// is no callback. Several tables may share a program, but only for the same member of the same
/// struct.
struct ProgramRoles {
    by_function: Vec<Option<(TypeId, String)>>,
}

fn match_table(
    object: &Object,
    table: &StructOps,
    target: &Btf,
    roles: &mut ProgramRoles,
) -> Result<MatchedTable, LinkErrorKind> {
    let bad = |what: String| LinkErrorKind::StructOps { name: table.name.clone(), what };
    let kernel_ty = target
        .find(&table.type_name, BtfKind::Struct)
        .ok_or_else(|| bad(format!("the kernel has no struct_ops type {}", table.type_name)))?;
    let mut members = Vec::new();
    for m in &table.members {
        let bytes = &table.data[m.offset as usize..(m.offset + m.size) as usize];
        let Some(kernel) = target.members(kernel_ty).find(|k| k.name == m.name) else {
            // A callback that the kernel lacks is dropped; a setting that the kernel lacks must be
            // 0, or else the load is refused.
            if m.kind == MemberKind::Data && bytes.iter().any(|b| *b != 0) {
                return Err(bad(format!("the kernel has no member `{}`, but it is set", m.name)));
            }
            continue;
        };
        if m.kind == MemberKind::Bitfield || kernel.bitfield_bits != 0 {
            return Err(bad(format!("member `{}` is a bitfield", m.name)));
        }
        let (ours, theirs) = (object.btf.resolve(m.ty)?, target.resolve(kernel.ty)?);
        if object.btf.kind(ours) != target.kind(theirs) {
            return Err(bad(format!(
                "member `{}` has a type of another kind in the kernel",
                m.name
            )));
        }
        if let MemberKind::Callback(program) = m.kind {
            if let Some(program) = program {
                roles.claim(program, kernel_ty, &m.name, object).map_err(bad)?;
            }
            members.push((m.name.clone(), MatchedValue::Callback(program)));
            continue;
        }
        if target.size_of(theirs)? != u64::from(m.size) {
            return Err(bad(format!("member `{}` has another size in the kernel", m.name)));
        }
        members.push((m.name.clone(), MatchedValue::Data(bytes.to_vec())));
    }
    Ok(MatchedTable {
        name: table.name.clone(),
        type_name: table.type_name.clone(),
        kernel_ty,
        link: table.link,
        members,
    })
}

impl ProgramRoles {
    fn claim(
        &mut self,
        program: usize,
        ty: TypeId,
        member: &str,
        object: &Object,
    ) -> Result<(), String> {
        let Some(function) = object.functions.get(program) else {
            return Err(format!("member `{member}` is set to a program that does not exist"));
        };
        match &self.by_function[program] {
            Some((other, name)) if *other != ty || name != member => {
                Err(format!("program `{}` is used as `{name}` and as `{member}`", function.name))
            }
            _ => {
                self.by_function[program] = Some((ty, member.to_owned()));
                Ok(())
            }
        }
    }
}
