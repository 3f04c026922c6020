// SPDX-License-Identifier: GPL-2.0-only
//! BPF Type Format: the table of C types that comes with an object and with a kernel.
//!
//! Owns: parsing and validating the `.BTF` blob, and lookup of a type by name.
//! Does not: follow references from type to type (see `walk.rs`), apply relocations, or know which
//! types matter.
//! Models: the format of Linux 7.3 (24-bit member counts, kinds up to ENUM64), little endian only.
//!
//! After `parse` every type id and string offset in the table is in range, so no accessor reads
//! past the blob. Chains of types may still be cyclic; `walk.rs` bounds every walk.

pub mod error;
pub mod ext;
mod fmt;
mod items;
pub mod special;
mod walk;

#[cfg(test)]
pub(crate) mod tests;

pub use error::BtfError;
pub use items::{ArrayInfo, Enumerator, IntInfo, Member, Param, SecVar};
pub use walk::{FieldRef, PathError, PathStep};

use std::hash::Hasher;

use rustc_hash::FxHasher;

/// Index into the type table. 0 is `void`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TypeId(pub u32);

impl TypeId {
    pub const VOID: TypeId = TypeId(0);

    fn idx(self) -> usize {
        self.0 as usize
    }
}

/// Kind of a type, numbered as in the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum BtfKind {
    Void = 0,
    Int = 1,
    Ptr = 2,
    Array = 3,
    Struct = 4,
    Union = 5,
    Enum = 6,
    Fwd = 7,
    Typedef = 8,
    Volatile = 9,
    Const = 10,
    Restrict = 11,
    Func = 12,
    FuncProto = 13,
    Var = 14,
    Datasec = 15,
    Float = 16,
    DeclTag = 17,
    TypeTag = 18,
    Enum64 = 19,
}

impl BtfKind {
    pub fn is_composite(self) -> bool {
        matches!(self, BtfKind::Struct | BtfKind::Union)
    }

    pub fn is_enum(self) -> bool {
        matches!(self, BtfKind::Enum | BtfKind::Enum64)
    }

    /// Whether the type only wraps another type and has that type's layout.
    pub fn is_wrapper(self) -> bool {
        matches!(
            self,
            BtfKind::Typedef
                | BtfKind::Volatile
                | BtfKind::Const
                | BtfKind::Restrict
                | BtfKind::TypeTag
        )
    }

    fn from_raw(raw: u32) -> Option<BtfKind> {
        use BtfKind::*;
        const KINDS: [BtfKind; 20] = [
            Void, Int, Ptr, Array, Struct, Union, Enum, Fwd, Typedef, Volatile, Const, Restrict,
            Func, FuncProto, Var, Datasec, Float, DeclTag, TypeTag, Enum64,
        ];
        KINDS.get(raw as usize).copied().filter(|k| *k != Void)
    }

    /// Length in bytes of the data after the fixed record of a type with `vlen` items.
    fn trailing_len(self, vlen: u32) -> u64 {
        let vlen = u64::from(vlen);
        match self {
            BtfKind::Int | BtfKind::Var | BtfKind::DeclTag => 4,
            BtfKind::Array => 12,
            BtfKind::Struct | BtfKind::Union | BtfKind::Datasec | BtfKind::Enum64 => vlen * 12,
            BtfKind::Enum | BtfKind::FuncProto => vlen * 8,
            _ => 0,
        }
    }

    /// Whether the last word of the fixed record is a type id; otherwise it is a size.
    fn refers_to_type(self) -> bool {
        self.is_wrapper()
            || matches!(
                self,
                BtfKind::Ptr | BtfKind::Func | BtfKind::FuncProto | BtfKind::Var | BtfKind::DeclTag
            )
    }
}

/// The fixed part of a type record.
#[derive(Clone, Copy, Debug)]
pub struct Type {
    name_off: u32,
    pub kind: BtfKind,
    /// Flag of the format. It marks a struct or union with bitfields, a forward declaration of a
    /// union, or a signed enum.
    pub kflag: bool,
    /// Number of trailing items; for a FUNC, its linkage.
    pub vlen: u32,
    size_or_type: u32,
    /// Byte offset of the trailing items in the blob.
    items_at: u32,
}

impl Type {
    /// Size in bytes that the record holds; None for a kind that records no size.
    pub fn recorded_size(&self) -> Option<u32> {
        use BtfKind::*;
        matches!(self.kind, Int | Struct | Union | Enum | Enum64 | Float | Datasec)
            .then_some(self.size_or_type)
    }

    /// The type that this type points to, wraps, declares or returns.
    pub fn target(&self) -> Option<TypeId> {
        self.kind.refers_to_type().then_some(TypeId(self.size_or_type))
    }
}

/// A parsed type table. It is immutable, so threads can share it.
pub struct Btf {
    blob: Box<[u8]>,
    types: Vec<Type>,
    str_off: u32,
    str_len: u32,
    names: NameIndex,
}

const MAGIC: u16 = 0xeb9f;
const HEADER_LEN: usize = 24;
/// Largest number of types in a table. It is the kernel's own bound (BTF_MAX_TYPE), and keeps
/// hostile tables small.
const MAX_TYPES: usize = 0x000f_ffff;

impl Btf {
    /// Parses a raw `.BTF` blob and checks that every id and name in it is in range.
    pub fn parse(blob: &[u8]) -> Result<Btf, BtfError> {
        let header = BtfHeader::parse(blob)?;
        let mut types = vec![VOID_TYPE];
        let (mut at, end) = (header.type_off, header.type_end);
        while at < end {
            let (ty, next) = parse_type(blob, at, end, types.len())?;
            if types.len() > MAX_TYPES {
                return Err(BtfError::TooManyTypes { max: MAX_TYPES });
            }
            types.push(ty);
            at = next;
        }
        let mut btf = Btf {
            blob: blob.into(),
            types,
            str_off: header.str_off as u32,
            str_len: header.str_len as u32,
            names: NameIndex::default(),
        };
        btf.validate()?;
        btf.names = NameIndex::build(&btf);
        Ok(btf)
    }

    /// An empty table, which has only `void`. For tests.
    pub fn empty() -> Btf {
        Btf {
            blob: Box::new([0]),
            types: vec![VOID_TYPE],
            str_off: 0,
            str_len: 1,
            names: NameIndex::default(),
        }
    }

    /// Number of types including `void`.
    pub fn len(&self) -> usize {
        self.types.len()
    }

    pub fn is_empty(&self) -> bool {
        self.types.len() <= 1
    }

    /// All ids except `void`, ascending.
    pub fn ids(&self) -> impl Iterator<Item = TypeId> + use<> {
        (1..self.types.len() as u32).map(TypeId)
    }

    pub fn ty(&self, id: TypeId) -> Result<&Type, BtfError> {
        self.types.get(id.idx()).ok_or(BtfError::NoSuchType { id: id.0, len: self.types.len() })
    }

    /// Kind of a type; an id that is out of range counts as `void`.
    pub fn kind(&self, id: TypeId) -> BtfKind {
        self.types.get(id.idx()).map_or(BtfKind::Void, |t| t.kind)
    }

    /// Name of a type, empty when it has none.
    pub fn name(&self, id: TypeId) -> &str {
        self.types.get(id.idx()).map_or("", |t| self.string(t.name_off))
    }

    /// String at an offset of the string section; empty if the offset is out of range or the string
    /// is not UTF-8.
    pub fn string(&self, off: u32) -> &str {
        self.checked_string(off).unwrap_or("")
    }

    /// As `string`, but returns None for an offset out of range and for bad UTF-8.
    pub fn checked_string(&self, off: u32) -> Option<&str> {
        let strings = self.strings();
        let tail = strings.get(off as usize..)?;
        let len = tail.iter().position(|b| *b == 0)?;
        std::str::from_utf8(&tail[..len]).ok()
    }

    /// First type of that kind with exactly that name, flavour included.
    pub fn find(&self, name: &str, kind: BtfKind) -> Option<TypeId> {
        self.with_essential_name(name).find(|id| self.kind(*id) == kind && self.name(*id) == name)
    }

    /// Ids, in ascending order, of all types whose name without flavour equals `name` without
    /// flavour.
    pub fn with_essential_name<'a>(&'a self, name: &'a str) -> impl Iterator<Item = TypeId> + 'a {
        let wanted = essential_name(name);
        self.names.bucket(wanted).filter(move |id| essential_name(self.name(*id)) == wanted)
    }

    fn strings(&self) -> &[u8] {
        &self.blob[self.str_off as usize..(self.str_off + self.str_len) as usize]
    }

    /// Word `index` of the trailing items of a type. The word lies in the blob, because
    /// `parse_type` checked the length of the items.
    fn word(&self, ty: &Type, index: usize) -> u32 {
        read_u32(&self.blob, ty.items_at as usize + index * 4).unwrap_or(0)
    }

    fn validate(&self) -> Result<(), BtfError> {
        let strings = self.strings();
        if strings.first() != Some(&0) || strings.last() != Some(&0) {
            return Err(BtfError::StringSection);
        }
        for id in self.ids() {
            let ty = &self.types[id.idx()];
            self.check_string(id, ty.name_off)?;
            if let Some(target) = ty.target() {
                self.check_id(id, target)?;
            }
            self.validate_items(id, ty)?;
        }
        Ok(())
    }

    fn validate_items(&self, id: TypeId, ty: &Type) -> Result<(), BtfError> {
        let stride = match ty.kind {
            BtfKind::Struct | BtfKind::Union | BtfKind::Enum64 | BtfKind::Datasec => 3,
            BtfKind::Enum | BtfKind::FuncProto => 2,
            BtfKind::Array => {
                self.check_id(id, TypeId(self.word(ty, 0)))?;
                return self.check_id(id, TypeId(self.word(ty, 1)));
            }
            _ => return Ok(()),
        };
        for item in 0..ty.vlen as usize {
            let first = self.word(ty, item * stride);
            match ty.kind {
                BtfKind::Datasec => self.check_id(id, TypeId(first))?,
                _ => self.check_string(id, first)?,
            }
            if matches!(ty.kind, BtfKind::Struct | BtfKind::Union | BtfKind::FuncProto) {
                self.check_id(id, TypeId(self.word(ty, item * stride + 1)))?;
            }
        }
        Ok(())
    }

    fn check_id(&self, at: TypeId, id: TypeId) -> Result<(), BtfError> {
        if id.idx() < self.types.len() {
            return Ok(());
        }
        Err(BtfError::DanglingType { at: at.0, id: id.0, len: self.types.len() })
    }

    fn check_string(&self, at: TypeId, off: u32) -> Result<(), BtfError> {
        if off < self.str_len {
            return Ok(());
        }
        Err(BtfError::DanglingString { at: at.0, off })
    }
}

/// Prints only the number of types, because a table has thousands of them.
impl std::fmt::Debug for Btf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Btf({} types)", self.types.len())
    }
}

/// Returns a name without its flavour: `task_struct___old` and `task_struct` describe the same
/// kernel type. The flavour starts at the last `___` that has another character than `_` on both
/// sides.
pub fn essential_name(name: &str) -> &str {
    let bytes = name.as_bytes();
    let mut at = bytes.len().saturating_sub(5);
    loop {
        if let Some([before, b'_', b'_', b'_', after]) = bytes.get(at..at + 5)
            && *before != b'_'
            && *after != b'_'
        {
            return &name[..at + 1];
        }
        if at == 0 {
            return name;
        }
        at -= 1;
    }
}

const VOID_TYPE: Type =
    Type { name_off: 0, kind: BtfKind::Void, kflag: false, vlen: 0, size_or_type: 0, items_at: 0 };

struct BtfHeader {
    type_off: usize,
    type_end: usize,
    str_off: usize,
    str_len: usize,
}

impl BtfHeader {
    fn parse(blob: &[u8]) -> Result<BtfHeader, BtfError> {
        if blob.len() < HEADER_LEN {
            return Err(BtfError::Truncated { what: "header", at: 0, len: blob.len() });
        }
        let word = |at| read_u32(blob, at).unwrap_or(0) as usize;
        let magic = u16::from_le_bytes([blob[0], blob[1]]);
        if magic != MAGIC {
            return Err(BtfError::Magic { found: magic });
        }
        if blob[2] != 1 {
            return Err(BtfError::Version { found: blob[2] });
        }
        let header_len = word(4);
        let range = |what, off: usize, len: usize| {
            let start = header_len.checked_add(off);
            let end = start.and_then(|s| s.checked_add(len)).filter(|e| *e <= blob.len());
            match (start, end) {
                (Some(s), Some(e)) => Ok((s, e)),
                _ => Err(BtfError::Truncated { what, at: off, len: blob.len() }),
            }
        };
        let (type_off, type_end) = range("types", word(8), word(12))?;
        let (str_off, str_end) = range("strings", word(16), word(20))?;
        if str_end == str_off {
            return Err(BtfError::StringSection);
        }
        Ok(BtfHeader { type_off, type_end, str_off, str_len: str_end - str_off })
    }
}

/// Parses the type record at offset `at`. Returns the type and the offset of the next record.
fn parse_type(blob: &[u8], at: usize, end: usize, id: usize) -> Result<(Type, usize), BtfError> {
    let short = BtfError::Truncated { what: "type record", at, len: end };
    if end - at < 12 {
        return Err(short);
    }
    let word = |o| read_u32(blob, at + o).unwrap_or(0);
    let info = word(4);
    let raw_kind = (info >> 24) & 0x7f;
    let kind = BtfKind::from_raw(raw_kind)
        .ok_or(BtfError::UnknownKind { id: id as u32, kind: raw_kind as u8 })?;
    let vlen = info & 0x00ff_ffff;
    let items_at = at + 12;
    let trailing = kind.trailing_len(vlen);
    if trailing > (end - items_at) as u64 {
        return Err(short);
    }
    let ty = Type {
        name_off: word(0),
        kind,
        kflag: info >> 31 == 1,
        vlen,
        size_or_type: word(8),
        items_at: items_at as u32,
    };
    Ok((ty, items_at + trailing as usize))
}

pub(crate) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let raw = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(raw.try_into().ok()?))
}

/// Chained hash table of types by name without flavour. `heads` is indexed by hash, `next` by type
/// id; 0 ends a chain. Ids ascend along a chain.
#[derive(Default)]
struct NameIndex {
    heads: Vec<u32>,
    next: Vec<u32>,
}

impl NameIndex {
    fn build(btf: &Btf) -> NameIndex {
        let size = btf.len().next_power_of_two().max(16);
        let mut index = NameIndex { heads: vec![0; size], next: vec![0; btf.len()] };
        for id in (1..btf.len() as u32).rev() {
            let name = btf.name(TypeId(id));
            if !name.is_empty() {
                let slot = index.slot(essential_name(name));
                index.next[id as usize] = index.heads[slot];
                index.heads[slot] = id;
            }
        }
        index
    }

    fn slot(&self, essence: &str) -> usize {
        let mut hasher = FxHasher::default();
        hasher.write(essence.as_bytes());
        // FxHash mixes only its high bits well, so the index into `heads` comes from them.
        (hasher.finish() >> 32) as usize & (self.heads.len() - 1)
    }

    fn bucket(&self, essence: &str) -> impl Iterator<Item = TypeId> + '_ {
        let first = if self.heads.is_empty() || essence.is_empty() {
            0
        } else {
            self.heads[self.slot(essence)]
        };
        let follow = |id: &u32| self.next.get(*id as usize).copied().filter(|n| *n != 0);
        std::iter::successors((first != 0).then_some(first), follow).map(TypeId)
    }
}
