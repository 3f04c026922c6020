// SPDX-License-Identifier: GPL-2.0-only
//! Externs: the symbols that an object declares and expects the kernel to define.
//!
//! Owns: collecting the declared kernel functions, kernel variables and configuration values.
//! Does not: look them up in a kernel (see `link/externs.rs`).
//! Models: libbpf `bpf_object__collect_externs()`, v7.3.

use rustc_hash::FxHashMap;

use super::elf::Elf;
use super::error::ObjectErrorKind;
use crate::btf::{Btf, BtfKind, TypeId};

#[derive(Clone, Debug)]
pub struct Extern {
    /// Name as declared, with its flavour (`___compat`).
    pub name: String,
    pub weak: bool,
    pub kind: ExternKind,
    pub(super) symbol: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExternKind {
    /// A kernel function and its declared prototype.
    Func { proto: TypeId },
    /// A kernel variable; its type is `void` if the object uses only its address.
    Var { ty: TypeId },
    /// A configuration value, delivered as a variable of that type.
    Kconfig { ty: TypeId, size: u32, align: u32 },
}

const MAX_EXTERNS: usize = 8192;

pub fn collect(elf: &Elf<'_>, btf: &Btf) -> Result<Vec<Extern>, ObjectErrorKind> {
    let mut found = Vec::new();
    let sections = section_of_types(btf);
    let declared = declarations(btf);
    for (index, symbol) in elf.symbols.iter().enumerate() {
        if !symbol.undefined || symbol.local || !symbol.no_type || symbol.name.is_empty() {
            continue;
        }
        if found.len() == MAX_EXTERNS {
            return Err(ObjectErrorKind::TooMany {
                section: ".symtab".to_owned(),
                things: "externs",
                max: MAX_EXTERNS,
            });
        }
        let kind = classify(btf, &declared, &sections, symbol.name)?;
        let name = symbol.name.to_owned();
        found.push(Extern { name, weak: symbol.weak, kind, symbol: index });
    }
    Ok(found)
}

fn classify(
    btf: &Btf,
    declared: &FxHashMap<&str, TypeId>,
    sections: &FxHashMap<TypeId, ExternSection>,
    name: &str,
) -> Result<ExternKind, ObjectErrorKind> {
    let bad = |what: &str| ObjectErrorKind::external(name, what);
    let id = *declared.get(name).ok_or_else(|| bad("it has no type information"))?;
    if btf.linkage(id) != Some(LINKAGE_EXTERN) {
        return Err(bad("it is declared with another linkage"));
    }
    let ty = btf.ty(id)?.target().unwrap_or_default();
    match (btf.kind(id), sections.get(&id)) {
        (_, None) => Err(bad("it is in no section that the kernel fills (.ksyms, .kconfig)")),
        (BtfKind::Func, Some(ExternSection::Ksyms)) => Ok(ExternKind::Func { proto: ty }),
        (BtfKind::Func, Some(ExternSection::Kconfig)) => {
            Err(bad("a function cannot be in .kconfig"))
        }
        (_, Some(ExternSection::Ksyms)) => Ok(ExternKind::Var { ty: btf.resolve(ty)? }),
        (_, Some(ExternSection::Kconfig)) => {
            let size = btf.size_of(ty)?;
            let align = btf.scalar_align(ty)? as u32;
            // Configuration values are only numbers and short strings. The limit keeps an array in
            // a hostile object from taking much memory.
            if size == 0 || size > 4096 || !align.is_power_of_two() {
                return Err(bad("a configuration value of that size is not supported"));
            }
            Ok(ExternKind::Kconfig { ty, size: size as u32, align })
        }
    }
}

const LINKAGE_EXTERN: u32 = 2;

#[derive(Clone, Copy)]
enum ExternSection {
    Ksyms,
    Kconfig,
}

/// Maps the declarations in `.ksyms` and `.kconfig` to their section.
fn section_of_types(btf: &Btf) -> FxHashMap<TypeId, ExternSection> {
    let mut found = FxHashMap::default();
    for (name, section) in [(".ksyms", ExternSection::Ksyms), (".kconfig", ExternSection::Kconfig)]
    {
        if let Some(datasec) = super::datasec(btf, name) {
            found.extend(btf.section_vars(datasec).map(|var| (var.ty, section)));
        }
    }
    found
}

/// Maps each name to the first variable or function that has it.
fn declarations(btf: &Btf) -> FxHashMap<&str, TypeId> {
    let mut found = FxHashMap::default();
    for id in btf.ids().filter(|id| matches!(btf.kind(*id), BtfKind::Var | BtfKind::Func)) {
        found.entry(btf.name(id)).or_insert(id);
    }
    found
}
