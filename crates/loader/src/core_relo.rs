// SPDX-License-Identifier: GPL-2.0-only
//! CO-RE: fitting instructions to the layout of the kernel's types.
//!
//! Owns: interpreting a relocation record (`spec.rs`), resolving it against a target's types, and
//! patching the instruction (`patch.rs`).
//! Does not: parse the records (see `object/program.rs`), or decide what happens when a run reaches
//! an instruction whose field does not exist: `patch` only reports the instruction as poisoned.
//! Models: libbpf `relo_core.c`, v7.3. Differs: no module BTFs, because the target has none; every
//! walk has a budget, so a hostile object ends in an error.

mod compat;
mod matches;
pub mod patch;
mod spec;
#[cfg(test)]
mod tests;

pub use compat::types_are_compat;
pub use patch::{PatchError, Patched};

use crate::btf::{Btf, BtfError, BtfKind, TypeId};
use spec::AccessPath;

/// A relocation record of an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreRelo {
    /// Instruction, counted from the start of its function.
    pub insn: u32,
    /// Root type, in the object's own BTF.
    pub ty: TypeId,
    /// Path from the root type to the field, as indices of members and array elements: `0:3:1`. For
    /// an enum, the index of the enumerator.
    pub access: Box<str>,
    pub kind: RelocKind,
}

/// Property of the target's types that the instruction depends on, numbered as in the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum RelocKind {
    FieldByteOffset = 0,
    FieldByteSize = 1,
    FieldExists = 2,
    FieldSigned = 3,
    FieldLshiftU64 = 4,
    FieldRshiftU64 = 5,
    TypeIdLocal = 6,
    TypeIdTarget = 7,
    TypeExists = 8,
    TypeSize = 9,
    EnumvalExists = 10,
    EnumvalValue = 11,
    TypeMatches = 12,
}

impl RelocKind {
    pub fn from_raw(raw: u32) -> Option<RelocKind> {
        use RelocKind::*;
        const KINDS: [RelocKind; 13] = [
            FieldByteOffset,
            FieldByteSize,
            FieldExists,
            FieldSigned,
            FieldLshiftU64,
            FieldRshiftU64,
            TypeIdLocal,
            TypeIdTarget,
            TypeExists,
            TypeSize,
            EnumvalExists,
            EnumvalValue,
            TypeMatches,
        ];
        KINDS.get(raw as usize).copied()
    }

    pub fn is_field(self) -> bool {
        (self as u8) <= RelocKind::FieldRshiftU64 as u8
    }

    pub fn is_enumval(self) -> bool {
        matches!(self, RelocKind::EnumvalExists | RelocKind::EnumvalValue)
    }

    pub fn is_type(self) -> bool {
        !self.is_field() && !self.is_enumval()
    }

    /// Whether the relocation only asks if something exists, so that 0 ("no") is a valid answer.
    pub fn is_existence_check(self) -> bool {
        use RelocKind::*;
        matches!(self, FieldExists | TypeExists | TypeMatches | EnumvalExists)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoreError {
    #[error("access string `{access}` does not fit type {ty}")]
    BadAccess { access: String, ty: String },
    #[error("{what}: anonymous types cannot be relocated")]
    Anonymous { what: String },
    #[error("{what}: the target has several candidates that disagree ({first} and {second})")]
    Ambiguous { what: String, first: u64, second: u64 },
    #[error("{what}: the field cannot be read with one load")]
    Bitfield { what: String },
    #[error("{what}: this kind of relocation does not apply to an array element")]
    ArrayElement { what: String },
    #[error("comparing types takes too many steps")]
    TooComplex,
    #[error("the types to compare are nested too deep")]
    TooDeep,
    #[error(transparent)]
    Btf(#[from] BtfError),
}

/// Result of a relocation against one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelocResult {
    /// Value that the compiler put into the instruction.
    pub original: u64,
    /// Value that the instruction must get for the target.
    pub value: u64,
    /// The target lacks the field or enumerator whose value the instruction needs, so the
    /// instruction must not be executed.
    pub poison: bool,
    /// Whether the target has the type, field or enumerator. If the target lacks it, the result of
    /// an existence check is still valid: its `value` is 0.
    pub found: bool,
    /// Whether patching must check that the instruction holds `original`.
    pub validate: bool,
    /// Sizes of the field for loads and stores, in bytes: `original_size` in the object, and `size`
    /// in the target. They are 0 unless the relocation asks for the byte offset of a field that is
    /// no bitfield.
    pub original_size: u32,
    pub size: u32,
    /// The field has different sizes in object and target, and a load of the target's size would
    /// give a wrong value.
    pub bad_size_change: bool,
}

/// Largest number of comparison steps for all relocations of one object together. Real objects need
/// a hundredth of this number.
const BUDGET: u32 = 50_000_000;

/// Remaining comparison steps. They bound the time that any pair of type graphs can take.
pub struct Budget(u32);

impl Default for Budget {
    fn default() -> Budget {
        Budget(BUDGET)
    }
}

impl Budget {
    fn spend(&mut self) -> Result<(), CoreError> {
        self.0 = self.0.checked_sub(1).ok_or(CoreError::TooComplex)?;
        Ok(())
    }
}

/// Resolves one relocation against `target`.
pub fn resolve(local: &Btf, target: &Btf, relo: &CoreRelo) -> Result<RelocResult, CoreError> {
    resolve_within(local, target, relo, &mut Budget::default())
}

/// As `resolve`, with a budget that the relocations of one object share.
pub fn resolve_within(
    local: &Btf,
    target: &Btf,
    relo: &CoreRelo,
    budget: &mut Budget,
) -> Result<RelocResult, CoreError> {
    let spec = AccessPath::parse(local, relo)?;
    if relo.kind == RelocKind::TypeIdLocal {
        let id = u64::from(relo.ty.0);
        return Ok(RelocResult { validate: false, ..plain(id, id, true) });
    }
    let name = local.name(relo.ty);
    if name.is_empty() {
        return Err(CoreError::Anonymous { what: describe(local, relo) });
    }
    let mut best: Option<(AccessPath, RelocResult)> = None;
    for candidate in candidates(local, relo.ty, target) {
        let Some(found) = spec.match_in(target, candidate, budget)? else {
            continue;
        };
        let answer = evaluate(&spec, Some(&found), relo)?;
        match &best {
            None => best = Some((found, answer)),
            Some((first_spec, first)) => {
                check_agreement(first_spec, first, &found, &answer, || describe(local, relo))?
            }
        }
    }
    match best {
        Some((_, answer)) => Ok(answer),
        None => evaluate(&spec, None, relo),
    }
}

/// Describes a relocation's subject, for messages: `task_struct.scx.slice`, `enum x::VALUE`,
/// `struct y`.
pub fn describe(local: &Btf, relo: &CoreRelo) -> String {
    match AccessPath::parse(local, relo) {
        Ok(spec) => spec.describe(),
        Err(_) => format!("{} ({})", local.type_name(relo.ty), relo.access),
    }
}

/// Types of the target that may correspond to the object's type `ty`: types of the same kind and
/// the same name, flavours ignored.
fn candidates<'a>(
    local: &'a Btf,
    ty: TypeId,
    target: &'a Btf,
) -> impl Iterator<Item = TypeId> + 'a {
    let kind = local.kind(ty);
    target.with_essential_name(local.name(ty)).filter(move |id| kinds_agree(kind, target.kind(*id)))
}

fn kinds_agree(a: BtfKind, b: BtfKind) -> bool {
    a == b || a.is_enum() && b.is_enum()
}

fn check_agreement(
    first_spec: &AccessPath<'_>,
    first: &RelocResult,
    spec: &AccessPath<'_>,
    other: &RelocResult,
    what: impl Fn() -> String,
) -> Result<(), CoreError> {
    let (a, b) = if first_spec.bit_off != spec.bit_off {
        (first_spec.bit_off, spec.bit_off)
    } else if first.value != other.value || first.poison != other.poison {
        (first.value, other.value)
    } else {
        return Ok(());
    };
    Err(CoreError::Ambiguous { what: what(), first: a, second: b })
}

fn plain(original: u64, value: u64, found: bool) -> RelocResult {
    RelocResult {
        original,
        value,
        poison: false,
        found,
        validate: true,
        original_size: 0,
        size: 0,
        bad_size_change: false,
    }
}

/// Computes the result of a relocation from the path `local` in the object's types and the matching
/// path `found` in the target's types, if there is one.
fn evaluate(
    local: &AccessPath<'_>,
    found: Option<&AccessPath<'_>>,
    relo: &CoreRelo,
) -> Result<RelocResult, CoreError> {
    if relo.kind.is_field() {
        return evaluate_field(local, found, relo.kind);
    }
    let (original, value) = if relo.kind.is_type() {
        (type_value(Some(local), relo.kind)?, type_value(found, relo.kind)?)
    } else if relo.kind == RelocKind::EnumvalExists {
        (1, u64::from(found.is_some()))
    } else {
        (local.enum_value(), found.map_or(0, AccessPath::enum_value))
    };
    let mut answer = plain(original, value, found.is_some());
    answer.poison = relo.kind == RelocKind::EnumvalValue && found.is_none();
    // A static linker may have renumbered the object's types. So the type id in the instruction may
    // differ from `original`, and patching does not compare the two.
    answer.validate = relo.kind != RelocKind::TypeIdTarget;
    Ok(answer)
}

fn type_value(spec: Option<&AccessPath<'_>>, kind: RelocKind) -> Result<u64, CoreError> {
    let Some(spec) = spec else { return Ok(0) };
    Ok(match kind {
        RelocKind::TypeIdTarget => u64::from(spec.root.0),
        RelocKind::TypeSize => spec.btf.size_of(spec.root)?,
        _ => 1,
    })
}

fn evaluate_field(
    local: &AccessPath<'_>,
    found: Option<&AccessPath<'_>>,
    kind: RelocKind,
) -> Result<RelocResult, CoreError> {
    if kind == RelocKind::FieldExists {
        return Ok(plain(1, u64::from(found.is_some()), found.is_some()));
    }
    let original = local.field_value(kind)?;
    let Some(found) = found else {
        let mut answer = plain(original.value, 0, false);
        answer.poison = true;
        answer.validate = original.validate;
        return Ok(answer);
    };
    let new = found.field_value(kind)?;
    let mut answer = plain(original.value, new.value, true);
    answer.validate = original.validate;
    answer.original_size = original.size;
    answer.size = new.size;
    let loads = original.size != 0 && new.size != 0;
    answer.bad_size_change = original.size != new.size
        && !(loads && compat::load_size_may_change(local.btf, original.ty, found.btf, new.ty)?);
    Ok(answer)
}
