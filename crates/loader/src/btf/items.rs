// SPDX-License-Identifier: GPL-2.0-only
//! The items that follow a type record: members, parameters, enumerators, section variables.
//!
//! Owns: decoding the items. A type without items of the requested sort yields an empty iterator.

use super::{Btf, BtfKind, Type, TypeId};

/// Largest valid size of an INT type, in bytes.
const MAX_INT: u32 = 16;

/// A field of a struct or union.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Name of the field; empty for an anonymous struct or union.
    pub name: &'a str,
    pub ty: TypeId,
    pub bit_off: u32,
    /// Width of a bitfield in bits; 0 for any other member.
    pub bitfield_bits: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct Param<'a> {
    pub name: &'a str,
    /// `void` as the last parameter means variadic.
    pub ty: TypeId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enumerator<'a> {
    pub name: &'a str,
    /// The value's bits, sign-extended when the enum is signed.
    pub value: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct ArrayInfo {
    pub elem: TypeId,
    pub len: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntInfo {
    pub size: u32,
    pub signed: bool,
    pub boolean: bool,
    /// First bit of the integer in its storage. Only a bitfield in the old format has another value
    /// than 0.
    pub bit_off: u32,
}

/// A variable (or extern function) placed in a data section.
#[derive(Clone, Copy, Debug)]
pub struct SecVar {
    pub ty: TypeId,
    pub offset: u32,
    pub size: u32,
}

impl Btf {
    pub fn members(&self, id: TypeId) -> impl ExactSizeIterator<Item = Member<'_>> {
        let (ty, n) = self.items_of(id, BtfKind::is_composite);
        (0..n).map(move |i| self.member_at(ty, i))
    }

    pub fn member(&self, id: TypeId, index: usize) -> Option<Member<'_>> {
        let (ty, n) = self.items_of(id, BtfKind::is_composite);
        (index < n).then(|| self.member_at(ty, index))
    }

    fn member_at(&self, ty: &Type, index: usize) -> Member<'_> {
        let raw = self.word(ty, index * 3 + 2);
        let (bits, bit_off) = if ty.kflag { (raw >> 24, raw & 0x00ff_ffff) } else { (0, raw) };
        Member {
            name: self.string(self.word(ty, index * 3)),
            ty: TypeId(self.word(ty, index * 3 + 1)),
            bit_off,
            bitfield_bits: bits,
        }
    }

    pub fn params(&self, id: TypeId) -> impl ExactSizeIterator<Item = Param<'_>> {
        let (ty, n) = self.items_of(id, |k| k == BtfKind::FuncProto);
        (0..n).map(move |i| Param {
            name: self.string(self.word(ty, i * 2)),
            ty: TypeId(self.word(ty, i * 2 + 1)),
        })
    }

    pub fn enumerators(&self, id: TypeId) -> impl ExactSizeIterator<Item = Enumerator<'_>> {
        let (ty, n) = self.items_of(id, BtfKind::is_enum);
        (0..n).map(move |i| match ty.kind {
            BtfKind::Enum64 => {
                let low = u64::from(self.word(ty, i * 3 + 1));
                let high = u64::from(self.word(ty, i * 3 + 2));
                Enumerator { name: self.string(self.word(ty, i * 3)), value: high << 32 | low }
            }
            _ => {
                let raw = self.word(ty, i * 2 + 1);
                let value = if ty.kflag { i64::from(raw as i32) as u64 } else { u64::from(raw) };
                Enumerator { name: self.string(self.word(ty, i * 2)), value }
            }
        })
    }

    pub fn section_vars(&self, id: TypeId) -> impl ExactSizeIterator<Item = SecVar> + '_ {
        let (ty, n) = self.items_of(id, |k| k == BtfKind::Datasec);
        (0..n).map(move |i| SecVar {
            ty: TypeId(self.word(ty, i * 3)),
            offset: self.word(ty, i * 3 + 1),
            size: self.word(ty, i * 3 + 2),
        })
    }

    /// Adds to the offset of a DATASEC's variable. `at` is the place of this offset in the blob.
    /// Returns false if another thing is there.
    pub fn move_section_var(&mut self, at: u64, by: u32) -> bool {
        let Ok(at) = usize::try_from(at) else { return false };
        // The records lie in the order of their ids.
        let ty = self.types.partition_point(|ty| ty.items_at as usize <= at).checked_sub(1);
        let Some(ty) = ty.map(|id| self.types[id]) else { return false };
        let item = at - ty.items_at as usize;
        let is_offset = ty.kind == BtfKind::Datasec && item / 12 < ty.vlen as usize;
        if !is_offset || item % 12 != 4 {
            return false;
        }
        let word = &mut self.blob[at..at + 4];
        let offset = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        word.copy_from_slice(&offset.wrapping_add(by).to_le_bytes());
        true
    }

    pub fn array(&self, id: TypeId) -> Option<ArrayInfo> {
        let ty = self.ty(id).ok().filter(|t| t.kind == BtfKind::Array)?;
        Some(ArrayInfo { elem: TypeId(self.word(ty, 0)), len: self.word(ty, 2) })
    }

    /// Size and encoding of an INT. None for another kind, and for a size of 0 or over 16 bytes.
    pub fn int(&self, id: TypeId) -> Option<IntInfo> {
        let ty = self.ty(id).ok().filter(|t| t.kind == BtfKind::Int)?;
        if !(1..=MAX_INT).contains(&ty.size_or_type) {
            return None;
        }
        let raw = self.word(ty, 0);
        let encoding = raw >> 24 & 0xf;
        Some(IntInfo {
            size: ty.size_or_type,
            signed: encoding & 1 != 0,
            boolean: encoding & 4 != 0,
            bit_off: raw >> 16 & 0xff,
        })
    }

    /// Linkage of a variable or function: 0 static, 1 global, 2 extern.
    pub fn linkage(&self, id: TypeId) -> Option<u32> {
        let ty = self.ty(id).ok()?;
        match ty.kind {
            BtfKind::Var => Some(self.word(ty, 0)),
            BtfKind::Func => Some(ty.vlen),
            _ => None,
        }
    }

    /// Target of a declaration tag: the tagged type, and the index of its tagged member or
    /// parameter (-1 for the type itself).
    pub fn decl_tag(&self, id: TypeId) -> Option<(TypeId, i32)> {
        let ty = self.ty(id).ok().filter(|t| t.kind == BtfKind::DeclTag)?;
        Some((TypeId(ty.size_or_type), self.word(ty, 0) as i32))
    }

    /// Value of an enumerator of any enum, by name.
    pub fn enumerator_value(&self, name: &str) -> Option<u64> {
        self.ids()
            .filter(|id| self.kind(*id).is_enum())
            .find_map(|id| self.enumerators(id).find(|e| e.name == name))
            .map(|e| e.value)
    }

    fn items_of(&self, id: TypeId, wanted: impl Fn(BtfKind) -> bool) -> (&Type, usize) {
        let ty = self.types.get(id.idx()).unwrap_or(&self.types[0]);
        (ty, if wanted(ty.kind) { ty.vlen as usize } else { 0 })
    }
}
