// SPDX-License-Identifier: GPL-2.0-only
//! The report on an object: its needs, its knobs, and the needs that a kernel does not meet.
//!
//! Owns: the data of `scxlab inspect`; the command prints it.
//! Does not: load or run anything. Needs are static: code that is never reached counts too.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::core_relo::{self, CoreRelo, RelocKind};
use crate::link::error::LinkErrorKind;
use crate::link::{ExternBinding, Knob, LinkError, OpenObject, Target, resolve_externs};
use crate::object::{
    ExternKind, MapSpec, MemberKind, Object, ProgramKind, RelocTarget, code, map_type_name,
};

/// Report on one object for one kernel.
#[derive(Clone, Debug)]
pub struct ObjectReport {
    pub name: String,
    pub license: String,
    pub programs: Vec<ProgramInfo>,
    pub tables: Vec<TableInfo>,
    pub maps: Vec<MapInfo>,
    pub helpers: Vec<HelperInfo>,
    pub externs: Vec<ExternInfo>,
    pub fields: Vec<FieldInfo>,
    pub knobs: Vec<Knob>,
    pub sections: Vec<SectionInfo>,
    /// Missing symbols and members that prevent loading, one line each.
    pub missing: Vec<String>,
    /// Missing fields, enumerators and functions whose use is a fault if a run reaches it, one line
    /// each.
    pub poisoned: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct ProgramInfo {
    pub name: String,
    pub section: String,
    pub kind: ProgramKind,
    pub optional: bool,
    pub insns: usize,
    /// Instruction slots of the program and of all functions that it can reach.
    pub insns_reachable: usize,
}

#[derive(Clone, Debug)]
pub struct TableInfo {
    pub name: String,
    pub type_name: String,
    pub link: bool,
    /// Callbacks that are set, with their programs.
    pub callbacks: Vec<(String, String)>,
    /// Settings (members that are not callbacks) that are not zero.
    pub settings: Vec<(String, String)>,
    /// Members that are set and that the kernel's struct lacks.
    pub unknown: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct MapInfo {
    pub name: String,
    pub type_name: &'static str,
    pub map_type: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    /// Special fields of the value: (description, byte offset).
    pub special: Vec<(String, u32)>,
    pub inner: Option<Box<MapInfo>>,
}

#[derive(Clone, Debug)]
pub struct HelperInfo {
    pub id: u32,
    pub sites: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExternClass {
    Kfunc,
    Variable,
    Kconfig,
}

#[derive(Clone, Debug)]
pub struct ExternInfo {
    pub name: String,
    pub class: ExternClass,
    pub weak: bool,
    pub state: ExternBinding,
    /// Number of instructions that refer to the extern.
    pub sites: usize,
}

/// A kernel type, field or enumerator that relocations ask for.
#[derive(Clone, Debug)]
pub struct FieldInfo {
    pub what: String,
    pub kind: RelocKind,
    pub found: bool,
    pub sites: usize,
}

#[derive(Clone, Debug)]
pub struct SectionInfo {
    pub name: String,
    pub size: u64,
    pub variables: usize,
}

/// Reports on an object with the changes that a frontend has made to it.
pub fn inspect(open: &OpenObject, target: &impl Target) -> Result<ObjectReport, LinkError> {
    let object = open.object();
    let fail = |what: LinkErrorKind| LinkError { object: object.name.clone(), what };
    let externs = externs(object, target).map_err(fail)?;
    let fields = fields(object, target).map_err(fail)?;
    let tables = tables(open, target);
    Ok(ObjectReport {
        name: object.name.clone(),
        license: object.license.clone(),
        programs: programs(object),
        missing: missing(object, &externs, &tables, target),
        poisoned: poisoned(&externs, &fields, &helpers(object), target),
        maps: object.maps.iter().map(map_info).collect(),
        helpers: helpers(object),
        knobs: open.globals.knobs(),
        sections: sections(object),
        tables,
        externs,
        fields,
    })
}

fn programs(object: &Object) -> Vec<ProgramInfo> {
    object
        .programs()
        .map(|(index, f, kind)| ProgramInfo {
            name: f.name.clone(),
            section: f.section.clone(),
            kind: kind.clone(),
            optional: f.optional,
            insns: f.insns.len(),
            insns_reachable: reachable_insns(object, index),
        })
        .collect()
}

fn reachable_insns(object: &Object, program: usize) -> usize {
    let mut seen = vec![false; object.functions.len()];
    let mut queue = vec![program];
    let mut total = 0;
    while let Some(f) = queue.pop() {
        if std::mem::replace(&mut seen[f], true) {
            continue;
        }
        total += object.functions[f].insns.len();
        queue.extend(object.functions[f].relocs.iter().filter_map(|r| match r.target {
            RelocTarget::Function(callee) => Some(callee),
            _ => None,
        }));
    }
    total
}

fn tables(open: &OpenObject, target: &impl Target) -> Vec<TableInfo> {
    let object = open.object();
    let kernel = target.btf();
    let describe = |edit: &crate::link::TableEdit| {
        let table = edit.table();
        let kernel_ty = kernel.find(&table.type_name, crate::btf::BtfKind::Struct);
        let known =
            |name: &str| kernel_ty.is_some_and(|ty| kernel.members(ty).any(|m| m.name == name));
        let mut info = TableInfo {
            name: table.name.clone(),
            type_name: table.type_name.clone(),
            link: table.link,
            callbacks: Vec::new(),
            settings: Vec::new(),
            unknown: Vec::new(),
        };
        for m in &table.members {
            let end = (m.offset + m.size) as usize;
            let is_set = match m.kind {
                MemberKind::Callback(program) => program.is_some(),
                _ => table.data[m.offset as usize..end].iter().any(|b| *b != 0),
            };
            if is_set && !known(&m.name) {
                info.unknown.push(m.name.clone());
            }
            match m.kind {
                MemberKind::Callback(Some(f)) => {
                    info.callbacks.push((m.name.clone(), object.functions[f].name.clone()));
                }
                MemberKind::Data if is_set => {
                    let value = edit.get(&object.btf, &m.name).unwrap_or_default();
                    info.settings.push((m.name.clone(), value));
                }
                _ => {}
            }
        }
        info
    };
    open.tables.iter().map(describe).collect()
}

fn map_info(map: &MapSpec) -> MapInfo {
    let special = map.special.iter().map(|f| (special_name(&f.kind), f.offset));
    MapInfo {
        name: map.name.clone(),
        type_name: map_type_name(map.map_type),
        map_type: map.map_type,
        key_size: map.key_size,
        value_size: map.value_size,
        max_entries: map.max_entries,
        special: special.collect(),
        inner: map.inner.as_deref().map(|inner| Box::new(map_info(inner))),
    }
}

fn special_name(kind: &crate::btf::special::BtfSpecialKind) -> String {
    use crate::btf::special::{BtfSpecialKind::*, KptrTag};
    match kind {
        Timer => "bpf_timer".to_owned(),
        SpinLock => "bpf_spin_lock".to_owned(),
        ResSpinLock => "bpf_res_spin_lock".to_owned(),
        WorkQueue => "bpf_wq".to_owned(),
        TaskWork => "bpf_task_work".to_owned(),
        Refcount => "bpf_refcount".to_owned(),
        RbNode => "bpf_rb_node".to_owned(),
        ListNode => "bpf_list_node".to_owned(),
        RbRoot(c) => format!("bpf_rb_root of {}", c.ty),
        ListHead(c) => format!("bpf_list_head of {}", c.ty),
        Kptr { tag, pointee, .. } => match tag {
            KptrTag::Owned => format!("kptr {pointee}"),
            KptrTag::Untrusted => format!("untrusted kptr {pointee}"),
            KptrTag::PerCpu => format!("per-CPU kptr {pointee}"),
            KptrTag::User => format!("user pointer {pointee}"),
        },
    }
}

fn helpers(object: &Object) -> Vec<HelperInfo> {
    let mut found: BTreeMap<u32, usize> = BTreeMap::new();
    for f in &object.functions {
        for (at, insn) in f.insns.iter().enumerate() {
            let has_reloc = f.relocs.binary_search_by_key(&(at as u32), |r| r.insn).is_ok();
            if insn.code == code::CALL && insn.src() == 0 && !has_reloc {
                *found.entry(insn.imm as u32).or_default() += 1;
            }
        }
    }
    found.into_iter().map(|(id, sites)| HelperInfo { id, sites }).collect()
}

fn externs(object: &Object, target: &impl Target) -> Result<Vec<ExternInfo>, LinkErrorKind> {
    let states = resolve_externs(object, target)?;
    let mut sites = vec![0; object.externs.len()];
    for reloc in object.functions.iter().flat_map(|f| &f.relocs) {
        if let RelocTarget::Extern(index) = reloc.target {
            sites[index] += 1;
        }
    }
    let all = object.externs.iter().zip(states).zip(sites);
    Ok(all
        .map(|((ext, state), sites)| ExternInfo {
            name: ext.name.clone(),
            class: match ext.kind {
                ExternKind::Func { .. } => ExternClass::Kfunc,
                ExternKind::Var { .. } => ExternClass::Variable,
                ExternKind::Kconfig { .. } => ExternClass::Kconfig,
            },
            weak: ext.weak,
            state,
            sites,
        })
        .collect())
}

fn fields(object: &Object, target: &impl Target) -> Result<Vec<FieldInfo>, LinkErrorKind> {
    let mut found: BTreeMap<(String, RelocKind), (bool, usize)> = BTreeMap::new();
    let mut budget = core_relo::Budget::default();
    for f in &object.functions {
        for relo in &f.core_relos {
            let key = (core_relo::describe(&object.btf, relo), relo.kind);
            if let Some((_, sites)) = found.get_mut(&key) {
                *sites += 1;
                continue;
            }
            let answer = resolve(object, target, relo, &mut budget).map_err(|source| {
                LinkErrorKind::Core {
                    section: f.section.clone(),
                    insn: f.section_start + relo.insn,
                    source,
                }
            })?;
            found.insert(key, (answer, 1));
        }
    }
    Ok(found
        .into_iter()
        .map(|((what, kind), (found, sites))| FieldInfo { what, kind, found, sites })
        .collect())
}

fn resolve(
    object: &Object,
    target: &impl Target,
    relo: &CoreRelo,
    budget: &mut core_relo::Budget,
) -> Result<bool, core_relo::CoreError> {
    core_relo::resolve_within(&object.btf, target.btf(), relo, budget)
        .map(|r| r.found && !r.bad_size_change)
}

fn sections(object: &Object) -> Vec<SectionInfo> {
    let info = |s: &crate::object::DataSection| SectionInfo {
        name: s.name.clone(),
        size: s.size,
        variables: s.variables.len(),
    };
    object.sections.iter().map(info).collect()
}

fn missing(
    object: &Object,
    externs: &[ExternInfo],
    tables: &[TableInfo],
    target: &impl Target,
) -> Vec<String> {
    let mut lines = Vec::new();
    if !tables.is_empty() && !object.is_gpl_compatible() {
        lines.push(format!("a licence compatible with the GPL; it has \"{}\"", object.license));
    }
    let maps = object.maps.iter().map(map_info);
    for map in maps.filter(|map| !scxlab_bpf::map::is_modelled(map.map_type)) {
        lines.push(format!(
            "maps of the type {}, which are not modelled ({})",
            map.type_name, map.name
        ));
    }
    for ext in externs.iter().filter(|e| !e.weak) {
        if let ExternBinding::Absent(why) = ext.state {
            lines.push(format!("{} ({why})", ext.name));
        }
    }
    for table in tables {
        if target.btf().find(&table.type_name, crate::btf::BtfKind::Struct).is_none() {
            lines.push(format!("struct_ops type {}", table.type_name));
        } else {
            let settings = table
                .unknown
                .iter()
                .filter(|m| !table.callbacks.iter().any(|(name, _)| name == *m));
            lines.extend(settings.map(|m| format!("member {} of {}", m, table.type_name)));
        }
    }
    lines
}

fn poisoned(
    externs: &[ExternInfo],
    fields: &[FieldInfo],
    helpers: &[HelperInfo],
    target: &impl Target,
) -> Vec<String> {
    let absent_field = |f: &&FieldInfo| {
        let must_exist = f.kind.is_field() || f.kind == RelocKind::EnumvalValue;
        !f.found && must_exist && !f.kind.is_existence_check()
    };
    let mut lines: Vec<_> = fields.iter().filter(absent_field).map(|f| f.what.clone()).collect();
    for ext in externs.iter().filter(|e| e.weak && e.class == ExternClass::Kfunc && e.sites > 0) {
        if let ExternBinding::Absent(why) = ext.state {
            lines.push(format!("{} ({why})", ext.name));
        }
    }
    for helper in helpers.iter().filter(|helper| !target.helper(helper.id)) {
        let name = scxlab_bpf::helper::name(helper.id);
        let name = name.map_or_else(|| format!("helper {}", helper.id), |n| format!("helper {n}"));
        lines.push(format!("{name} (not modelled)"));
    }
    lines
}
