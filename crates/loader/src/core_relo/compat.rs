// SPDX-License-Identifier: GPL-2.0-only
//! Compatibility of two types: of fields for an access, and of functions' prototypes.
//!
//! Models: libbpf `bpf_core_fields_are_compat()` and `__bpf_core_types_are_compat()`, v7.3.

use super::{Budget, CoreError, kinds_agree};
use crate::btf::{Btf, BtfKind, TypeId, essential_name};

/// Deepest nesting of prototypes, and of pointers and arrays, that a comparison follows, as in
/// libbpf.
const MAX_DEPTH: u32 = 32;

/// Whether two types are compatible, ignoring names of structs and sizes of integers. A kernel
/// function's prototype must pass this test.
pub fn types_are_compat(
    local: &Btf,
    local_id: TypeId,
    target: &Btf,
    target_id: TypeId,
) -> Result<bool, CoreError> {
    compat(local, local_id, target, target_id, &mut Budget::default())
}

pub(super) fn compat(
    local: &Btf,
    local_id: TypeId,
    target: &Btf,
    target_id: TypeId,
    budget: &mut Budget,
) -> Result<bool, CoreError> {
    if !kinds_agree(local.kind(local_id), target.kind(target_id)) {
        return Ok(false);
    }
    compat_below(local, local_id, target, target_id, budget, MAX_DEPTH)
}

fn compat_below(
    local: &Btf,
    mut local_id: TypeId,
    target: &Btf,
    mut target_id: TypeId,
    budget: &mut Budget,
    level: u32,
) -> Result<bool, CoreError> {
    for _ in 0..MAX_DEPTH {
        budget.spend()?;
        local_id = local.resolve(local_id)?;
        target_id = target.resolve(target_id)?;
        let kind = local.kind(local_id);
        if !kinds_agree(kind, target.kind(target_id)) {
            return Ok(false);
        }
        match kind {
            BtfKind::Void
            | BtfKind::Struct
            | BtfKind::Union
            | BtfKind::Enum
            | BtfKind::Enum64
            | BtfKind::Fwd => {
                return Ok(true);
            }
            BtfKind::Int => return Ok(whole_ints(local, local_id, target, target_id)),
            BtfKind::Ptr => {
                local_id = local.ty(local_id)?.target().unwrap_or_default();
                target_id = target.ty(target_id)?.target().unwrap_or_default();
            }
            BtfKind::Array => match (local.array(local_id), target.array(target_id)) {
                (Some(a), Some(b)) => (local_id, target_id) = (a.elem, b.elem),
                _ => return Ok(false),
            },
            BtfKind::FuncProto => {
                if local.params(local_id).len() != target.params(target_id).len() {
                    return Ok(false);
                }
                for (a, b) in local.params(local_id).zip(target.params(target_id)) {
                    let level = level.checked_sub(1).ok_or(CoreError::TooDeep)?;
                    let (a, b) = (local.resolve(a.ty)?, target.resolve(b.ty)?);
                    if !kinds_agree(local.kind(a), target.kind(b))
                        || !compat_below(local, a, target, b, budget, level)?
                    {
                        return Ok(false);
                    }
                }
                local_id = local.ty(local_id)?.target().unwrap_or_default();
                target_id = target.ty(target_id)?.target().unwrap_or_default();
            }
            _ => return Ok(false),
        }
    }
    Err(CoreError::TooDeep)
}

/// Whether code that was compiled for a field of type `local_id` can access a field that has the
/// type `target_id` in the target.
pub(super) fn fields_are_compat(
    local: &Btf,
    mut local_id: TypeId,
    target: &Btf,
    mut target_id: TypeId,
) -> Result<bool, CoreError> {
    for _ in 0..MAX_DEPTH {
        local_id = local.resolve(local_id)?;
        target_id = target.resolve(target_id)?;
        let (a, b) = (local.kind(local_id), target.kind(target_id));
        if a.is_composite() && b.is_composite() {
            return Ok(true);
        }
        if !kinds_agree(a, b) {
            return Ok(false);
        }
        match a {
            BtfKind::Ptr | BtfKind::Float => return Ok(true),
            BtfKind::Fwd | BtfKind::Enum | BtfKind::Enum64 => {
                let a = essential_name(local.name(local_id));
                let b = essential_name(target.name(target_id));
                return Ok(a.is_empty() || b.is_empty() || a == b);
            }
            BtfKind::Int => return Ok(whole_ints(local, local_id, target, target_id)),
            BtfKind::Array => match (local.array(local_id), target.array(target_id)) {
                (Some(a), Some(b)) => (local_id, target_id) = (a.elem, b.elem),
                _ => return Ok(false),
            },
            _ => return Ok(false),
        }
    }
    Err(CoreError::TooDeep)
}

/// Whether a load may take the target's size when the size of a field differs between object and
/// target. Only loads of pointers and unsigned integers may, because zero extension keeps their
/// value.
pub(super) fn load_size_may_change(
    local: &Btf,
    local_id: TypeId,
    target: &Btf,
    target_id: TypeId,
) -> Result<bool, CoreError> {
    if local.kind(local_id) == BtfKind::Ptr && target.kind(target_id) == BtfKind::Ptr {
        return Ok(true);
    }
    let unsigned = |btf: &Btf, id| btf.int(id).is_some_and(|i| !i.signed);
    Ok(unsigned(local, local_id) && unsigned(target, target_id))
}

/// Whether both integers start at bit 0. Bitfields of the old format may start at another bit; such
/// bitfields are never compatible.
fn whole_ints(local: &Btf, local_id: TypeId, target: &Btf, target_id: TypeId) -> bool {
    let whole = |btf: &Btf, id| btf.int(id).is_some_and(|i| i.bit_off == 0);
    whole(local, local_id) && whole(target, target_id)
}
