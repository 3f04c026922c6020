// SPDX-License-Identifier: GPL-2.0-only
//! The strict comparison of `bpf_core_type_matches`: each member of the local type must exist in
//! the target's type with the same name and a matching type.
//!
//! Models: libbpf `__bpf_core_types_match()`, v7.3.

use super::{Budget, CoreError};
use crate::btf::{Btf, BtfKind, TypeId, essential_name};

const MAX_DEPTH: u32 = 32;

struct TypeMatcher<'a, 'b> {
    local: &'a Btf,
    target: &'b Btf,
    budget: &'b mut Budget,
}

/// Whether the target's type has everything that the local type declares, in the same form.
pub fn types_match(
    local: &Btf,
    local_id: TypeId,
    target: &Btf,
    target_id: TypeId,
    budget: &mut Budget,
) -> Result<bool, CoreError> {
    TypeMatcher { local, target, budget }.types(local_id, target_id, false, MAX_DEPTH)
}

impl TypeMatcher<'_, '_> {
    fn types(
        &mut self,
        mut a: TypeId,
        mut b: TypeId,
        mut behind_ptr: bool,
        level: u32,
    ) -> Result<bool, CoreError> {
        if level == 0 {
            return Err(CoreError::TooDeep);
        }
        for _ in 0..MAX_DEPTH {
            self.budget.spend()?;
            a = self.local.resolve(a)?;
            b = self.target.resolve(b)?;
            if !names_match(self.local.name(a), self.target.name(b)) {
                return Ok(false);
            }
            let (ka, kb) = (self.local.kind(a), self.target.kind(b));
            match ka {
                BtfKind::Void => return Ok(ka == kb),
                BtfKind::Fwd => return Ok(self.forward(a, b, behind_ptr)),
                BtfKind::Enum | BtfKind::Enum64 => return self.enums(a, b),
                BtfKind::Struct | BtfKind::Union if behind_ptr => {
                    let union_fwd = kb == BtfKind::Fwd && self.kflag_b(b) == (ka == BtfKind::Union);
                    return Ok(ka == kb || union_fwd);
                }
                BtfKind::Struct | BtfKind::Union => {
                    return if ka == kb { self.composites(a, b, level) } else { Ok(false) };
                }
                BtfKind::Int => {
                    let same = match (self.local.int(a), self.target.int(b)) {
                        (Some(x), Some(y)) => x.size == y.size && x.signed == y.signed,
                        _ => false,
                    };
                    return Ok(same);
                }
                _ if ka != kb => return Ok(false),
                BtfKind::Ptr => {
                    behind_ptr = true;
                    (a, b) = self.targets(a, b)?;
                }
                BtfKind::Array => match (self.local.array(a), self.target.array(b)) {
                    (Some(x), Some(y)) if x.len == y.len => (a, b) = (x.elem, y.elem),
                    _ => return Ok(false),
                },
                BtfKind::FuncProto => {
                    if !self.params(a, b, behind_ptr, level)? {
                        return Ok(false);
                    }
                    (a, b) = self.targets(a, b)?;
                }
                _ => return Ok(false),
            }
        }
        Err(CoreError::TooDeep)
    }

    fn targets(&self, a: TypeId, b: TypeId) -> Result<(TypeId, TypeId), CoreError> {
        let a = self.local.ty(a)?.target().unwrap_or_default();
        let b = self.target.ty(b)?.target().unwrap_or_default();
        Ok((a, b))
    }

    fn kflag_a(&self, id: TypeId) -> bool {
        self.local.ty(id).is_ok_and(|t| t.kflag)
    }

    fn kflag_b(&self, id: TypeId) -> bool {
        self.target.ty(id).is_ok_and(|t| t.kflag)
    }

    /// Matches a local forward declaration, whose flag says whether it declares a union. Behind a
    /// pointer, the target may have the full definition instead of a forward declaration.
    fn forward(&self, a: TypeId, b: TypeId, behind_ptr: bool) -> bool {
        let union = self.kflag_a(a);
        match self.target.kind(b) {
            BtfKind::Fwd => union == self.kflag_b(b),
            BtfKind::Struct => behind_ptr && !union,
            BtfKind::Union => behind_ptr && union,
            _ => false,
        }
    }

    fn enums(&mut self, a: TypeId, b: TypeId) -> Result<bool, CoreError> {
        let size = |btf: &Btf, id| btf.ty(id).ok().and_then(|t| t.recorded_size());
        if !self.target.kind(b).is_enum() || size(self.local, a) != size(self.target, b) {
            return Ok(false);
        }
        for wanted in self.local.enumerators(a) {
            let mut found = false;
            for e in self.target.enumerators(b) {
                self.budget.spend()?;
                if names_match(wanted.name, e.name) {
                    found = true;
                    break;
                }
            }
            if !found {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn composites(&mut self, a: TypeId, b: TypeId, level: u32) -> Result<bool, CoreError> {
        let (local, target) = (self.local, self.target);
        if local.members(a).len() > target.members(b).len() {
            return Ok(false);
        }
        for wanted in local.members(a) {
            let mut matched = false;
            for m in target.members(b) {
                self.budget.spend()?;
                if names_match(wanted.name, m.name)
                    && self.types(wanted.ty, m.ty, false, level - 1)?
                {
                    matched = true;
                    break;
                }
            }
            if !matched {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn params(
        &mut self,
        a: TypeId,
        b: TypeId,
        behind_ptr: bool,
        level: u32,
    ) -> Result<bool, CoreError> {
        let (local, target) = (self.local, self.target);
        if local.params(a).len() != target.params(b).len() {
            return Ok(false);
        }
        for (x, y) in local.params(a).zip(target.params(b)) {
            if !self.types(x.ty, y.ty, behind_ptr, level - 1)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn names_match(local: &str, target: &str) -> bool {
    essential_name(local) == essential_name(target)
}
