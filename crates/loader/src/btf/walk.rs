// SPDX-License-Identifier: GPL-2.0-only
//! Walks from type to type: through wrappers (typedefs, qualifiers and type tags), to the size of a
//! type, and along field paths.
//!
//! Owns: the bound on every walk. A chain longer than `MAX_DEPTH` is an error, so a walk ends even
//! in a cycle of typedefs, or in an array whose element type is the array itself.
//! Models: libbpf `skip_mods_and_typedefs()`, `btf__resolve_size()`, `btf__align_of()`, v7.3.

use super::{Btf, BtfError, BtfKind, TypeId};

/// Longest chain of typedefs, qualifiers, type tags or array dimensions that a walk follows, as in
/// libbpf.
pub const MAX_DEPTH: usize = 32;

/// A field or array element inside a type, with its bit offset from the start of that type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldRef {
    /// Type as declared, with its typedefs and qualifiers.
    pub ty: TypeId,
    pub bit_off: u64,
    pub bitfield_bits: u32,
}

impl FieldRef {
    pub fn byte_off(&self) -> u64 {
        self.bit_off / 8
    }
}

/// One step of a path such as `a.b[3]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathStep<'a> {
    Field(&'a str),
    Index(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("`{path}` is not a path of the form a.b[3].c")]
    Syntax { path: String },
    #[error("`{ty}` has no field `{field}`{}", near(.candidates))]
    NoField { ty: String, field: String, candidates: Vec<String> },
    #[error("index {index} is past the end of `{ty}`")]
    Index { ty: String, index: u64 },
    #[error("`{ty}` is neither a struct nor an array, so `{step}` cannot follow it")]
    NotNested { ty: String, step: String },
    #[error(transparent)]
    Btf(#[from] BtfError),
}

fn near(candidates: &[String]) -> String {
    if candidates.is_empty() {
        return String::new();
    }
    format!("; did you mean {}?", candidates.join(", "))
}

impl Btf {
    /// The type below typedefs, qualifiers and type tags.
    pub fn resolve(&self, id: TypeId) -> Result<TypeId, BtfError> {
        let mut at = id;
        for _ in 0..MAX_DEPTH {
            let ty = self.ty(at)?;
            if !ty.kind.is_wrapper() {
                return Ok(at);
            }
            at = TypeId(ty.size_or_type);
        }
        Err(BtfError::Cycle { id: id.0 })
    }

    /// Size in bytes of a value of that type.
    pub fn size_of(&self, id: TypeId) -> Result<u64, BtfError> {
        let mut at = id;
        let mut count: u64 = 1;
        for _ in 0..MAX_DEPTH {
            let ty = self.ty(at)?;
            let unit = match ty.kind {
                BtfKind::Ptr => 8,
                BtfKind::Array => {
                    count = count
                        .checked_mul(u64::from(self.word(ty, 2)))
                        .ok_or(BtfError::SizeOverflow { id: id.0 })?;
                    at = TypeId(self.word(ty, 0));
                    continue;
                }
                BtfKind::Var => {
                    at = TypeId(ty.size_or_type);
                    continue;
                }
                kind if kind.is_wrapper() => {
                    at = TypeId(ty.size_or_type);
                    continue;
                }
                kind => match ty.recorded_size() {
                    Some(size) => u64::from(size),
                    None => return Err(BtfError::NoSize { id: id.0, kind }),
                },
            };
            let size = count.checked_mul(unit).filter(|s| *s <= u64::from(u32::MAX));
            return size.ok_or(BtfError::SizeOverflow { id: id.0 });
        }
        Err(BtfError::Cycle { id: id.0 })
    }

    /// Natural alignment of a scalar, or of an array of scalars.
    pub fn scalar_align(&self, id: TypeId) -> Result<u64, BtfError> {
        let mut at = self.resolve(id)?;
        for _ in 0..MAX_DEPTH {
            match self.array(at) {
                Some(array) => at = self.resolve(array.elem)?,
                None => return Ok(self.size_of(at)?.clamp(1, 8)),
            }
        }
        Err(BtfError::Cycle { id: id.0 })
    }

    /// Finds a field of a struct by name. The search includes the fields of anonymous members.
    pub fn field(&self, id: TypeId, name: &str) -> Result<Option<FieldRef>, BtfError> {
        let mut budget = 100_000;
        self.field_within(self.resolve(id)?, name, 0, MAX_DEPTH, &mut budget)
    }

    fn field_within(
        &self,
        id: TypeId,
        name: &str,
        base: u64,
        depth: usize,
        budget: &mut u32,
    ) -> Result<Option<FieldRef>, BtfError> {
        if depth == 0 {
            return Err(BtfError::Cycle { id: id.0 });
        }
        for m in self.members(id) {
            *budget = budget.checked_sub(1).ok_or(BtfError::TooComplex { id: id.0 })?;
            let bit_off = base + u64::from(m.bit_off);
            if m.name == name {
                return Ok(Some(FieldRef { ty: m.ty, bit_off, bitfield_bits: m.bitfield_bits }));
            }
            if m.name.is_empty() {
                let inner = self.resolve(m.ty)?;
                let found = self.field_within(inner, name, bit_off, depth - 1, budget)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    /// Follows a path such as `scx.slice` or `[3].a` from a type.
    pub fn path(&self, root: TypeId, path: &str) -> Result<FieldRef, PathError> {
        let mut at = FieldRef { ty: root, bit_off: 0, bitfield_bits: 0 };
        for step in parse_path(path)? {
            at = self.step(at, step)?;
        }
        Ok(at)
    }

    fn step(&self, at: FieldRef, step: PathStep<'_>) -> Result<FieldRef, PathError> {
        let ty = self.resolve(at.ty)?;
        match (step, self.kind(ty)) {
            (PathStep::Field(name), kind) if kind.is_composite() => {
                let found = self.field(ty, name)?.ok_or_else(|| PathError::NoField {
                    ty: self.type_name(at.ty),
                    field: name.to_owned(),
                    candidates: crate::link::knob::closest(name, self.members(ty).map(|m| m.name)),
                })?;
                Ok(FieldRef { bit_off: at.bit_off + found.bit_off, ..found })
            }
            (PathStep::Index(index), BtfKind::Array) => {
                let array =
                    self.array(ty).ok_or(BtfError::NoSize { id: ty.0, kind: BtfKind::Array })?;
                if index >= u64::from(array.len) {
                    return Err(PathError::Index { ty: self.type_name(at.ty), index });
                }
                let elem_bits = self.size_of(array.elem)? * 8;
                Ok(FieldRef {
                    ty: array.elem,
                    bit_off: at.bit_off + index * elem_bits,
                    bitfield_bits: 0,
                })
            }
            (step, _) => Err(PathError::NotNested {
                ty: self.type_name(at.ty),
                step: match step {
                    PathStep::Field(name) => format!(".{name}"),
                    PathStep::Index(i) => format!("[{i}]"),
                },
            }),
        }
    }
}

/// Splits `a.b[3]` into its steps.
pub fn parse_path(path: &str) -> Result<Vec<PathStep<'_>>, PathError> {
    let syntax = || PathError::Syntax { path: path.to_owned() };
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(tail) = rest.strip_prefix('[') {
            let (index, after) = tail.split_once(']').ok_or_else(syntax)?;
            steps.push(PathStep::Index(index.trim().parse().map_err(|_| syntax())?));
            rest = after;
        } else {
            let tail = match rest.strip_prefix('.') {
                Some(tail) => tail,
                None if steps.is_empty() => rest,
                None => return Err(syntax()),
            };
            let end = tail.find(['.', '[']).unwrap_or(tail.len());
            if end == 0 {
                return Err(syntax());
            }
            steps.push(PathStep::Field(&tail[..end]));
            rest = &tail[end..];
        }
    }
    Ok(steps)
}
