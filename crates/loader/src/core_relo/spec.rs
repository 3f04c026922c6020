// SPDX-License-Identifier: GPL-2.0-only
//! A field path in one type table: parsed from a record, or matched in a target.
//!
//! Owns: `AccessPath`, finding the same path in another table, and the value of a field relocation.
//!
//! A record lists every member on the path, anonymous ones included. Only named members and array
//! indices must be found in the target.

use super::compat::fields_are_compat;
use super::{Budget, CoreError, CoreRelo, RelocKind};
use crate::btf::{Btf, BtfKind, Member, TypeId};

/// One step that must be found in the target. A step with a name is member `index` of the struct
/// `ty`. A step without a name is an array index, and `ty` is the type of the array's elements.
#[derive(Clone, Copy, Debug)]
pub struct Accessor<'a> {
    pub ty: TypeId,
    pub index: u32,
    pub name: Option<&'a str>,
}

#[derive(Clone, Debug)]
pub struct AccessPath<'a> {
    pub btf: &'a Btf,
    pub root: TypeId,
    pub kind: RelocKind,
    pub steps: Vec<Accessor<'a>>,
    /// Length of the path in members and indices, anonymous members included.
    raw_len: usize,
    pub bit_off: u64,
}

/// Value of a field relocation, with the facts that patching needs.
pub struct FieldValue {
    pub value: u64,
    /// Bytes that a load of the field (or of one element of it) reads; 0 unless the relocation asks
    /// for the byte offset of a field that is no bitfield.
    pub size: u32,
    pub ty: TypeId,
    /// Whether patching must check that the compiler put this value into the instruction. For most
    /// values of bitfields it must not, because the compiler may have chosen a load of another
    /// size.
    pub validate: bool,
}

/// Largest number of indices in a path, as in libbpf.
const MAX_STEPS: usize = 64;

impl<'a> AccessPath<'a> {
    pub fn parse(btf: &'a Btf, relo: &CoreRelo) -> Result<AccessPath<'a>, CoreError> {
        let bad =
            || CoreError::BadAccess { access: relo.access.to_string(), ty: btf.type_name(relo.ty) };
        let mut spec = AccessPath {
            btf,
            root: relo.ty,
            kind: relo.kind,
            steps: Vec::new(),
            raw_len: 0,
            bit_off: 0,
        };
        if relo.kind.is_type() {
            return if &*relo.access == "0" { Ok(spec) } else { Err(bad()) };
        }
        let indices = parse_access(&relo.access).ok_or_else(bad)?;
        let (&first, rest) = indices.split_first().ok_or_else(bad)?;
        let mut id = btf.resolve(relo.ty)?;
        spec.raw_len = indices.len();
        if relo.kind.is_enumval() {
            let named = btf.enumerators(id).nth(first as usize).filter(|_| rest.is_empty());
            let name = Some(named.ok_or_else(bad)?.name);
            spec.steps.push(Accessor { ty: id, index: first, name });
            return Ok(spec);
        }
        spec.steps.push(Accessor { ty: id, index: first, name: None });
        spec.bit_off = u64::from(first) * btf.size_of(id)? * 8;
        for &index in rest {
            id = spec.enter(id, index)?.ok_or_else(bad)?;
        }
        Ok(spec)
    }

    /// Enters member or element `index`. Returns its resolved type, or None if it does not exist.
    fn enter(&mut self, at: TypeId, index: u32) -> Result<Option<TypeId>, CoreError> {
        let btf = self.btf;
        if let Some(member) = btf.member(at, index as usize) {
            self.bit_off += u64::from(member.bit_off);
            if !member.name.is_empty() {
                self.steps.push(Accessor { ty: at, index, name: Some(member.name) });
            }
            return Ok(Some(btf.resolve(member.ty)?));
        }
        let Some(array) = btf.array(at) else {
            return Ok(None);
        };
        if index >= array.len && !self.at_flexible_array(array.len) {
            return Ok(None);
        }
        let elem = btf.resolve(array.elem)?;
        self.steps.push(Accessor { ty: elem, index, name: None });
        self.bit_off += u64::from(index) * btf.size_of(elem)? * 8;
        Ok(Some(elem))
    }

    /// Whether the last step named a flexible array: an array of length 0 that is the last member
    /// of its struct.
    fn at_flexible_array(&self, len: u32) -> bool {
        let Some(last) = self.steps.last().filter(|s| s.name.is_some()) else {
            return false;
        };
        len == 0 && last.index as usize + 1 == self.btf.members(last.ty).len()
    }

    /// Finds this path in `target`, starting at `root`.
    pub fn match_in<'b>(
        &self,
        target: &'b Btf,
        root: TypeId,
        budget: &mut Budget,
    ) -> Result<Option<AccessPath<'b>>, CoreError> {
        let mut found = AccessPath {
            btf: target,
            root,
            kind: self.kind,
            steps: Vec::new(),
            raw_len: 0,
            bit_off: 0,
        };
        if self.kind.is_type() {
            let same = match self.kind {
                RelocKind::TypeMatches => {
                    super::matches::types_match(self.btf, self.root, target, root, budget)?
                }
                _ => super::compat::compat(self.btf, self.root, target, root, budget)?,
            };
            return Ok(same.then_some(found));
        }
        if self.kind.is_enumval() {
            return self.match_enumerator(found);
        }
        let mut id = root;
        for (i, step) in self.steps.iter().enumerate() {
            id = target.resolve(id)?;
            let next = match step.name {
                Some(_) => self.match_member(step, &mut found, id, budget)?,
                None => found.match_index(step.index, id, i == 0)?,
            };
            match next {
                Some(next) => id = next,
                None => return Ok(None),
            }
        }
        Ok(Some(found))
    }

    fn match_enumerator<'b>(
        &self,
        mut found: AccessPath<'b>,
    ) -> Result<Option<AccessPath<'b>>, CoreError> {
        let wanted = crate::btf::essential_name(self.steps[0].name.unwrap_or_default());
        let id = found.btf.resolve(found.root)?;
        let index =
            found.btf.enumerators(id).position(|e| crate::btf::essential_name(e.name) == wanted);
        let Some(index) = index else { return Ok(None) };
        let name = found.btf.enumerators(id).nth(index).map(|e| e.name);
        found.steps.push(Accessor { ty: id, index: index as u32, name });
        Ok(Some(found))
    }

    /// Finds the member that `step` names in the target's struct, looking into anonymous members.
    fn match_member(
        &self,
        step: &Accessor<'a>,
        found: &mut AccessPath<'_>,
        id: TypeId,
        budget: &mut Budget,
    ) -> Result<Option<TypeId>, CoreError> {
        let Some(wanted) = self.btf.member(step.ty, step.index as usize) else {
            return Ok(None);
        };
        Ok(match self.search(&wanted, found, id, budget)? {
            MemberLookup::Found(ty) => Some(ty),
            MemberLookup::Incompatible | MemberLookup::Absent => None,
        })
    }

    fn search(
        &self,
        wanted: &Member<'_>,
        found: &mut AccessPath<'_>,
        id: TypeId,
        budget: &mut Budget,
    ) -> Result<MemberLookup, CoreError> {
        let target = found.btf;
        let id = target.resolve(id)?;
        for (index, m) in target.members(id).enumerate() {
            budget.spend()?;
            if found.raw_len == MAX_STEPS {
                return Err(CoreError::TooDeep);
            }
            found.bit_off += u64::from(m.bit_off);
            found.raw_len += 1;
            if m.name.is_empty() {
                match self.search(wanted, found, m.ty, budget)? {
                    MemberLookup::Absent => {}
                    end => return Ok(end),
                }
            } else if m.name == wanted.name {
                if !fields_are_compat(self.btf, wanted.ty, target, m.ty)? {
                    return Ok(MemberLookup::Incompatible);
                }
                found.steps.push(Accessor { ty: id, index: index as u32, name: Some(m.name) });
                return Ok(MemberLookup::Found(m.ty));
            }
            found.bit_off -= u64::from(m.bit_off);
            found.raw_len -= 1;
        }
        Ok(MemberLookup::Absent)
    }

    fn match_index(
        &mut self,
        index: u32,
        id: TypeId,
        is_root: bool,
    ) -> Result<Option<TypeId>, CoreError> {
        // The first index treats the root as an element of an array of its own type.
        let elem = if is_root {
            id
        } else {
            let Some(array) = self.btf.array(id) else {
                return Ok(None);
            };
            if index >= array.len && !self.at_flexible_array(array.len) {
                return Ok(None);
            }
            self.btf.resolve(array.elem)?
        };
        if self.raw_len == MAX_STEPS {
            return Err(CoreError::TooDeep);
        }
        self.raw_len += 1;
        self.steps.push(Accessor { ty: elem, index, name: None });
        self.bit_off += u64::from(index) * self.btf.size_of(elem)? * 8;
        Ok(Some(elem))
    }

    pub fn enum_value(&self) -> u64 {
        let step = self.steps.first();
        let value = step.and_then(|s| self.btf.enumerators(s.ty).nth(s.index as usize));
        value.map_or(0, |e| e.value)
    }

    /// Computes the value of a field relocation for the last step.
    pub fn field_value(&self, kind: RelocKind) -> Result<FieldValue, CoreError> {
        let Some(last) = self.steps.last() else {
            return Err(CoreError::ArrayElement { what: self.describe() });
        };
        let member = match last.name {
            Some(_) => self.btf.member(last.ty, last.index as usize),
            None => None,
        };
        match member {
            Some(member) => self.member_value(kind, &member),
            None => self.element_value(kind, last.ty),
        }
    }

    fn element_value(&self, kind: RelocKind, ty: TypeId) -> Result<FieldValue, CoreError> {
        match kind {
            RelocKind::FieldByteOffset => Ok(FieldValue {
                value: self.bit_off / 8,
                size: self.load_size(ty)?,
                ty,
                validate: true,
            }),
            RelocKind::FieldByteSize => {
                Ok(FieldValue { value: self.btf.size_of(ty)?, size: 0, ty, validate: true })
            }
            _ => Err(CoreError::ArrayElement { what: self.describe() }),
        }
    }

    fn member_value(&self, kind: RelocKind, m: &Member<'_>) -> Result<FieldValue, CoreError> {
        let ty = self.btf.resolve(m.ty)?;
        let (byte_off, byte_size, bits) = if m.bitfield_bits > 0 {
            self.bitfield_load(m, ty)?
        } else {
            let size = self.btf.size_of(ty)?;
            (self.bit_off / 8, size, size * 8)
        };
        let is_bitfield = m.bitfield_bits > 0;
        let top = (self.bit_off + bits).wrapping_sub(byte_off * 8);
        let mut answer = FieldValue { value: 0, size: 0, ty, validate: !is_bitfield };
        match kind {
            RelocKind::FieldByteOffset => {
                answer.value = byte_off;
                if !is_bitfield {
                    answer.size = self.load_size(ty)?;
                }
            }
            RelocKind::FieldByteSize => answer.value = byte_size,
            RelocKind::FieldSigned => {
                answer.value = u64::from(self.is_signed(ty));
                answer.validate = true;
            }
            RelocKind::FieldLshiftU64 => answer.value = 64u64.wrapping_sub(top),
            RelocKind::FieldRshiftU64 => {
                answer.value = 64u64.wrapping_sub(bits);
                answer.validate = true;
            }
            _ => {
                return Err(CoreError::ArrayElement { what: self.describe() });
            }
        }
        Ok(answer)
    }

    /// Offset and size in bytes of the smallest aligned load that contains a bitfield, and the
    /// bitfield's width in bits.
    fn bitfield_load(&self, m: &Member<'_>, ty: TypeId) -> Result<(u64, u64, u64), CoreError> {
        let bits = u64::from(m.bitfield_bits);
        let unreadable = || CoreError::Bitfield { what: self.describe() };
        let mut size = self.btf.size_of(ty)?;
        if !size.is_power_of_two() || size > 8 {
            return Err(unreadable());
        }
        loop {
            let off = self.bit_off / 8 / size * size;
            if self.bit_off + bits - off * 8 <= size * 8 {
                return Ok((off, size, bits));
            }
            if size >= 8 {
                return Err(unreadable());
            }
            size *= 2;
        }
    }

    fn is_signed(&self, ty: TypeId) -> bool {
        match self.btf.kind(ty) {
            kind if kind.is_enum() => self.btf.ty(ty).is_ok_and(|t| t.kflag),
            BtfKind::Int => self.btf.int(ty).is_some_and(|i| i.signed),
            _ => false,
        }
    }

    /// Size in bytes of a load of that type; for an array, of one element.
    fn load_size(&self, ty: TypeId) -> Result<u32, CoreError> {
        let mut at = self.btf.resolve(ty)?;
        for _ in 0..32 {
            match self.btf.array(at) {
                Some(array) => at = self.btf.resolve(array.elem)?,
                None => return Ok(self.btf.size_of(at)? as u32),
            }
        }
        Err(CoreError::TooDeep)
    }

    /// Describes the path for messages.
    pub fn describe(&self) -> String {
        if self.kind.is_enumval() {
            let name = self.steps.first().and_then(|s| s.name).unwrap_or_default();
            return format!("{}::{name}", self.btf.type_name(self.root));
        }
        if self.kind.is_type() {
            return self.btf.type_name(self.root);
        }
        let mut text = self.btf.name(self.root).to_owned();
        for (i, step) in self.steps.iter().enumerate() {
            match step.name {
                Some(name) => {
                    text.push('.');
                    text.push_str(name);
                }
                None if i > 0 || step.index > 0 => text.push_str(&format!("[{}]", step.index)),
                None => {}
            }
        }
        text
    }
}

enum MemberLookup {
    Found(TypeId),
    /// The candidate type has a member of that name, but the member's type is incompatible. This
    /// rules out the candidate.
    Incompatible,
    Absent,
}

fn parse_access(text: &str) -> Option<Vec<u32>> {
    let indices: Option<Vec<u32>> = text
        .split(':')
        .take(MAX_STEPS + 1)
        .map(|part| part.parse().ok().filter(|v| *v <= i32::MAX as u32))
        .collect();
    indices.filter(|v| v.len() <= MAX_STEPS)
}
