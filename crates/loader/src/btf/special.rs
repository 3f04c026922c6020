// SPDX-License-Identifier: GPL-2.0-only
//! Special fields of a map value: timers, locks, kernel pointers, roots and nodes of graphs.
//!
//! Owns: finding the special fields in a value's type, with their offsets, in arrays and in structs
//! nested up to `MAX_NESTING` deep.
//! Does not: create or release the objects that the fields hold (the maps do).
//! Models: kernel `btf_parse_fields()`, v7.3. Differs: the limit per value is `MAX_FIELDS` instead
//! of 11, because the kernel's limit does not affect what a scheduler does.

use super::{Btf, BtfError, BtfKind, TypeId};

/// Kind of a special field, with the type that it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BtfSpecialKind {
    Timer,
    SpinLock,
    ResSpinLock,
    WorkQueue,
    TaskWork,
    Refcount,
    /// A pointer to a kernel or program-allocated object, exchanged with `bpf_kptr_xchg`.
    Kptr {
        tag: KptrTag,
        pointee: String,
        pointee_id: TypeId,
    },
    /// Root of a tree. The tag `contains:` on its declaration names the struct of its elements and
    /// that struct's node member.
    RbRoot(Contains),
    ListHead(Contains),
    RbNode,
    ListNode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KptrTag {
    Owned,
    Untrusted,
    PerCpu,
    User,
}

/// Type of the elements of a graph root: `struct <ty>`, linked through its member `node` at byte
/// `node_off`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contains {
    pub ty: String,
    pub ty_id: TypeId,
    pub node: String,
    pub node_off: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BtfSpecialField {
    pub offset: u32,
    pub size: u32,
    pub kind: BtfSpecialKind,
}

/// Largest number of special fields in one value.
pub const MAX_FIELDS: usize = 4096;
/// Deepest nesting of structs that the search enters, as in the kernel's `btf_find_nested_struct`.
const MAX_NESTING: usize = 8;
/// Largest number of members that one search visits. A type that needs more is an error.
const MAX_STEPS: u32 = 50_000;

impl Btf {
    /// Special fields of a value of type `value`, by ascending offset.
    pub fn special_fields(&self, value: TypeId) -> Result<Vec<BtfSpecialField>, BtfError> {
        let mut search = SpecialFieldSearch { btf: self, steps: MAX_STEPS, tags: None };
        let mut found = Vec::new();
        search.visit(value, 0, None, MAX_NESTING, &mut found)?;
        found.sort_by_key(|f| f.offset);
        Ok(found)
    }

    /// Special fields of the variables in a data section, with their offsets in the section.
    pub fn special_globals(&self, datasec: TypeId) -> Result<Vec<BtfSpecialField>, BtfError> {
        let mut search = SpecialFieldSearch { btf: self, steps: MAX_STEPS, tags: None };
        let mut found = Vec::new();
        for var in self.section_vars(datasec) {
            let Some(ty) = self.ty(var.ty)?.target() else {
                continue;
            };
            if self.kind(var.ty) == BtfKind::Var {
                let declared = Some((var.ty, -1));
                search.visit(ty, u64::from(var.offset), declared, MAX_NESTING, &mut found)?;
            }
        }
        found.sort_by_key(|f| f.offset);
        Ok(found)
    }
}

struct SpecialFieldSearch<'a> {
    btf: &'a Btf,
    steps: u32,
    /// Declaration tags that start with `contains:`, collected on first need.
    tags: Option<Vec<(TypeId, i32, &'a str)>>,
}

/// Declaration of a graph root: a struct and the index of the member that is the root, or a
/// variable and -1.
type Declared = Option<(TypeId, i32)>;

impl<'a> SpecialFieldSearch<'a> {
    fn visit(
        &mut self,
        id: TypeId,
        at: u64,
        declared: Declared,
        depth: usize,
        found: &mut Vec<BtfSpecialField>,
    ) -> Result<(), BtfError> {
        self.steps = self.steps.checked_sub(1).ok_or(BtfError::TooComplex { id: id.0 })?;
        let (elem, count) = self.element(id)?;
        if count == 0 {
            return Ok(());
        }
        let first = found.len();
        match self.btf.kind(elem) {
            BtfKind::Ptr => self.visit_pointer(elem, at, found)?,
            BtfKind::Struct | BtfKind::Union => {
                self.visit_struct(elem, at, declared, depth, found)?
            }
            _ => {}
        }
        self.repeat(first, count, elem, found)
    }

    /// Strips typedefs, qualifiers, type tags and array dimensions; returns the element type and
    /// the number of elements.
    fn element(&self, id: TypeId) -> Result<(TypeId, u64), BtfError> {
        let mut at = self.btf.resolve(id)?;
        let mut count: u64 = 1;
        for _ in 0..super::walk::MAX_DEPTH {
            let Some(array) = self.btf.array(at) else {
                return Ok((at, count));
            };
            count = count
                .checked_mul(u64::from(array.len))
                .ok_or(BtfError::SizeOverflow { id: id.0 })?;
            at = self.btf.resolve(array.elem)?;
        }
        Err(BtfError::Cycle { id: id.0 })
    }

    fn repeat(
        &self,
        first: usize,
        count: u64,
        elem: TypeId,
        found: &mut Vec<BtfSpecialField>,
    ) -> Result<(), BtfError> {
        let per_elem = found.len() - first;
        if per_elem == 0 || count <= 1 {
            return Ok(());
        }
        if per_elem as u64 * count > MAX_FIELDS as u64 {
            return Err(BtfError::TooComplex { id: elem.0 });
        }
        let size = self.btf.size_of(elem)?;
        for i in 1..count {
            for k in first..first + per_elem {
                let mut field = found[k].clone();
                field.offset = offset(u64::from(field.offset) + i * size, elem)?;
                found.push(field);
            }
        }
        Ok(())
    }

    fn visit_pointer(
        &mut self,
        ptr: TypeId,
        at: u64,
        found: &mut Vec<BtfSpecialField>,
    ) -> Result<(), BtfError> {
        let Some(target) = self.btf.ty(ptr)?.target() else {
            return Ok(());
        };
        if self.btf.kind(target) != BtfKind::TypeTag {
            return Ok(());
        }
        let tag = match self.btf.name(target) {
            "kptr" => KptrTag::Owned,
            "kptr_untrusted" => KptrTag::Untrusted,
            "percpu_kptr" => KptrTag::PerCpu,
            "uptr" => KptrTag::User,
            _ => return Ok(()),
        };
        let pointee_id = self.btf.resolve(target)?;
        let pointee = self.btf.name(pointee_id).to_owned();
        let kind = BtfSpecialKind::Kptr { tag, pointee, pointee_id };
        found.push(BtfSpecialField { offset: offset(at, ptr)?, size: 8, kind });
        Ok(())
    }

    fn visit_struct(
        &mut self,
        id: TypeId,
        at: u64,
        declared: Declared,
        depth: usize,
        found: &mut Vec<BtfSpecialField>,
    ) -> Result<(), BtfError> {
        if let Some(kind) = self.known_struct(id, declared)? {
            let size = self.btf.size_of(id)? as u32;
            found.push(BtfSpecialField { offset: offset(at, id)?, size, kind });
            return Ok(());
        }
        if depth == 0 {
            return Ok(());
        }
        for (index, m) in self.btf.members(id).enumerate() {
            if found.len() > MAX_FIELDS {
                return Err(BtfError::TooComplex { id: id.0 });
            }
            if m.bitfield_bits == 0 {
                let off = at + u64::from(m.bit_off) / 8;
                self.visit(m.ty, off, Some((id, index as i32)), depth - 1, found)?;
            }
        }
        Ok(())
    }

    fn known_struct(
        &mut self,
        id: TypeId,
        declared: Declared,
    ) -> Result<Option<BtfSpecialKind>, BtfError> {
        if self.btf.kind(id) != BtfKind::Struct {
            return Ok(None);
        }
        Ok(Some(match self.btf.name(id) {
            "bpf_timer" => BtfSpecialKind::Timer,
            "bpf_spin_lock" => BtfSpecialKind::SpinLock,
            "bpf_res_spin_lock" => BtfSpecialKind::ResSpinLock,
            "bpf_wq" => BtfSpecialKind::WorkQueue,
            "bpf_task_work" => BtfSpecialKind::TaskWork,
            "bpf_refcount" => BtfSpecialKind::Refcount,
            "bpf_rb_node" => BtfSpecialKind::RbNode,
            "bpf_list_node" => BtfSpecialKind::ListNode,
            "bpf_rb_root" => BtfSpecialKind::RbRoot(self.contains(id, declared)?),
            "bpf_list_head" => BtfSpecialKind::ListHead(self.contains(id, declared)?),
            _ => return Ok(None),
        }))
    }

    /// Reads the tag `contains:<struct>:<member>` on the root's declaration.
    fn contains(&mut self, root: TypeId, declared: Declared) -> Result<Contains, BtfError> {
        let bad = |what| BtfError::BadSpecialField { id: root.0, what };
        let (owner, member) = declared.ok_or(bad("a graph root outside a struct or variable"))?;
        let btf = self.btf;
        let tags = self.tags.get_or_insert_with(|| contains_tags(btf));
        let text = tags
            .iter()
            .find(|(ty, component, _)| *ty == owner && *component == member)
            .map(|(_, _, text)| *text)
            .ok_or(bad("a graph root without a `contains:` tag"))?;
        let (ty, node) = text.split_once(':').ok_or(bad("a malformed `contains:` tag"))?;
        let ty_id =
            btf.find(ty, BtfKind::Struct).ok_or(bad("a `contains:` tag names no known struct"))?;
        let field = btf
            .field(ty_id, node)?
            .ok_or(bad("a `contains:` tag names no member of its struct"))?;
        Ok(Contains {
            ty: ty.to_owned(),
            ty_id,
            node: node.to_owned(),
            node_off: offset(field.byte_off(), root)?,
        })
    }
}

fn contains_tags(btf: &Btf) -> Vec<(TypeId, i32, &str)> {
    btf.ids()
        .filter_map(|id| {
            let (ty, component) = btf.decl_tag(id)?;
            Some((ty, component, btf.name(id).strip_prefix("contains:")?))
        })
        .collect()
}

fn offset(at: u64, id: TypeId) -> Result<u32, BtfError> {
    u32::try_from(at).map_err(|_| BtfError::SizeOverflow { id: id.0 })
}
