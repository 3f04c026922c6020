// SPDX-License-Identifier: GPL-2.0-only
//! Global variables before load: reading, setting, resizing, and the list of knobs.
//!
//! Owns: the contents of the data sections between open and load. A frontend uses them as it would
//! use a libbpf skeleton.
//! Does not: place the sections in memory (see `place.rs`).

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::knob::{self, ValueError};
use crate::btf::{Btf, BtfKind, FieldRef, PathError, TypeId};
use crate::object::{DataSection, Object, SectionKind, Variable};

/// Contents of one data section: the pages that were written, and the file's bytes elsewhere.
#[derive(Clone, Debug)]
pub struct SectionContents {
    pub size: u64,
    /// Written pages by page number. Only these take memory, however large the section is.
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
}

const PAGE: usize = 4096;
/// Largest part of a variable that is formatted as text, in bytes. It exceeds the tables of CPUs
/// that schedulers have; the limit keeps a huge variable from taking much memory.
const FORMATTED_BYTES_MAX: u64 = 1 << 20;
/// Largest size in bytes to which a section may be resized. libbpf allows any size; the bound keeps
/// a typo from taking the simulation's memory.
pub const MAX_SECTION: u64 = 1 << 30;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobalError {
    #[error("object \"{object}\" has no variable `{name}`{}", hint(.candidates))]
    NoVariable { object: String, name: String, candidates: Vec<String> },
    #[error("`{path}`: {source}")]
    Path { path: String, source: PathError },
    #[error("`{path}`: {source}")]
    Value { path: String, source: ValueError },
    #[error("`{path}` is {expected} bytes, not {given}")]
    Length { path: String, expected: u64, given: u64 },
    #[error("`{path}` is past the end of its section")]
    Range { path: String },
    #[error("`{path}` is constant once the object is loaded")]
    Frozen { path: String },
    #[error("`{name}` cannot be resized: {why}")]
    Resize { name: String, why: &'static str },
}

fn hint(candidates: &[String]) -> String {
    if candidates.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", candidates.join(", "))
    }
}

/// Place of a variable, or of the part of a variable that a path such as `cfg.slice[3]` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRef {
    /// Index into the object's sections.
    pub section: usize,
    /// Byte offset in the section.
    pub offset: u64,
    pub size: u64,
    /// Declared type of the place; for a bitfield, also its position and width in bits.
    pub field: FieldRef,
}

/// A variable that a user may set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knob {
    pub name: String,
    pub section: String,
    pub ty: String,
    pub size: u64,
    pub default: String,
    /// True for a `const volatile` variable, which is fixed once the object is loaded. False for an
    /// initialised variable of `.data`.
    pub constant: bool,
    /// Names of the values if the knob is an enum.
    pub values: Vec<String>,
    /// Meaning that the object declares for the knob (`bpf/lib/knob.h`); empty if it declares none.
    pub meaning: String,
}

/// All globals of an object that is about to be loaded.
#[derive(Clone, Debug)]
pub struct Globals {
    object: Arc<Object>,
    contents: Vec<SectionContents>,
}

impl Globals {
    pub fn new(object: Arc<Object>) -> Globals {
        let contents = object
            .sections
            .iter()
            .map(|s| SectionContents { size: s.size, pages: BTreeMap::new() })
            .collect();
        Globals { object, contents }
    }

    pub fn content(&self, section: usize) -> &SectionContents {
        &self.contents[section]
    }

    /// Resolves a path whose first part is a variable's name.
    pub fn find(&self, path: &str) -> Result<GlobalRef, GlobalError> {
        find(&self.object, path, |section| self.contents[section].size)
    }

    /// Sets a variable, or part of one, from text.
    pub fn set(&mut self, path: &str, text: &str) -> Result<(), GlobalError> {
        let place = self.find(path)?;
        let now = self.bytes(place.section, place.offset, place.extent());
        let bytes = place.encode(&self.object.btf, path, text, now)?;
        self.write(place.section, place.offset, &bytes)
            .ok_or_else(|| GlobalError::Range { path: path.to_owned() })
    }

    /// Sets a variable, or part of one, from bytes of exactly its size.
    pub fn set_bytes(&mut self, path: &str, bytes: &[u8]) -> Result<(), GlobalError> {
        let place = self.find(path)?;
        check_len(path, place, bytes)?;
        self.write(place.section, place.offset, bytes)
            .ok_or_else(|| GlobalError::Range { path: path.to_owned() })
    }

    /// Current value of a variable, or of part of one, as text.
    pub fn get(&self, path: &str) -> Result<String, GlobalError> {
        let place = self.find(path)?;
        let bytes =
            self.bytes(place.section, place.offset, place.extent().min(FORMATTED_BYTES_MAX));
        Ok(place.decode(&self.object.btf, &bytes))
    }

    /// Grows (or shrinks) a section to `size` bytes, as `bpf_map__set_value_size()` does. `name` is
    /// the section, such as `.data.cpu_gimme_task`, or a variable in it.
    pub fn resize(&mut self, name: &str, size: u64) -> Result<(), GlobalError> {
        let refuse = |why| GlobalError::Resize { name: name.to_owned(), why };
        let section = match self.object.section(name) {
            Some(section) => section,
            None => self.find(name)?.section,
        };
        if size == 0 || size > MAX_SECTION {
            return Err(refuse("its new size is 0 or over 1 GiB"));
        }
        let source = &self.object.sections[section];
        if source.kind == SectionKind::Arena {
            return Err(refuse("arena variables have a fixed place"));
        }
        let vars = &source.variables;
        if let Some(last) = vars.last() {
            let elem = self.elem_size(last).ok_or(refuse("its last variable is not an array"))?;
            let fits = size > last.offset && (size - last.offset).is_multiple_of(elem);
            if !fits {
                return Err(refuse("the new size is not a whole number of its elements"));
            }
        }
        self.contents[section].size = size;
        Ok(())
    }

    /// Gives an array variable (the last of its section) `len` elements.
    pub fn resize_array(&mut self, name: &str, len: u64) -> Result<(), GlobalError> {
        let place = self.find(name)?;
        let refuse = |why| GlobalError::Resize { name: name.to_owned(), why };
        let array = self.object.btf.resolve(place.field.ty).ok();
        let array = array.and_then(|ty| self.object.btf.array(ty));
        let elem = array.and_then(|a| self.object.btf.size_of(a.elem).ok());
        let elem = elem.filter(|e| *e > 0).ok_or(refuse("it is not an array"))?;
        let size = len.checked_mul(elem).and_then(|bytes| bytes.checked_add(place.offset));
        let size = size.ok_or(refuse("its new size is 0 or over 1 GiB"))?;
        let section = self.object.sections[place.section].name.clone();
        let last = self.object.sections[place.section].variables.last();
        if last.is_some_and(|v| v.name != name) {
            return Err(refuse("it is not the last variable of its section"));
        }
        self.resize(&section, size)
    }

    fn elem_size(&self, var: &Variable) -> Option<u64> {
        let btf = &self.object.btf;
        let array = btf.array(btf.resolve(var.ty).ok()?)?;
        btf.size_of(array.elem).ok().filter(|s| *s > 0)
    }

    /// Fills every global 8-byte constant named `<prefix>NAME` with the value of the enumerator
    /// `NAME` in `target`. A constant without such an enumerator keeps its value. scx objects ship
    /// these constants as zeros (`__SCX_SLICE_DFL`, ...). Returns the number of constants filled.
    pub fn fill_enum_globals(&mut self, prefix: &str, target: &Btf) -> usize {
        let object = Arc::clone(&self.object);
        let mut wanted: BTreeMap<&str, (usize, &Variable)> = BTreeMap::new();
        for (index, section) in object.sections.iter().enumerate() {
            for var in section.variables.iter().filter(|_| section.kind == SectionKind::Rodata) {
                let name = var.name.strip_prefix(prefix).filter(|n| !n.is_empty());
                if let Some(name) = name.filter(|_| var.size == 8 && var.global) {
                    wanted.insert(name, (index, var));
                }
            }
        }
        let mut filled = 0;
        for id in target.ids().filter(|id| target.kind(*id).is_enum()) {
            for e in target.enumerators(id) {
                let Some((section, var)) = wanted.remove(e.name) else {
                    continue;
                };
                let done = self.write(section, var.offset, &e.value.to_le_bytes());
                filled += usize::from(done.is_some());
            }
        }
        filled
    }

    /// Variables that a user may set: global `const volatile` variables, and initialised global
    /// data.
    pub fn knobs(&self) -> Vec<Knob> {
        let btf = &self.object.btf;
        let meanings = meanings(btf);
        let mut knobs = Vec::new();
        for (index, section) in self.object.sections.iter().enumerate() {
            let constant = section.kind == SectionKind::Rodata;
            // Private data sections hold locks, and arrays that the frontend resizes, but no knobs.
            if !constant && section.name != ".data" {
                continue;
            }
            for var in section.variables.iter().filter(|v| is_knob(btf, section, v, constant)) {
                let shown = self.bytes(index, var.offset, var.size.min(FORMATTED_BYTES_MAX));
                let enum_ty = btf.resolve(var.ty).unwrap_or_default();
                knobs.push(Knob {
                    name: var.name.clone(),
                    section: section.name.clone(),
                    ty: btf.plain_type_name(var.ty),
                    size: var.size,
                    default: knob::format_value(btf, var.ty, &shown),
                    constant,
                    values: knob::enumerator_names(btf, enum_ty).collect(),
                    meaning: meanings.get(var.name.as_str()).copied().unwrap_or_default().into(),
                });
            }
        }
        knobs
    }

    /// Bytes of a section in their current state; zeros past the end of its contents.
    pub fn bytes(&self, section: usize, offset: u64, len: u64) -> Vec<u8> {
        let len = len.min(u64::MAX - offset) as usize;
        self.contents[section].bytes(&self.object.sections[section].bytes, offset, len)
    }

    /// Writes into a section. Returns None, and writes nothing, if the bytes would go past its end.
    fn write(&mut self, section: usize, offset: u64, bytes: &[u8]) -> Option<()> {
        let base = &self.object.sections[section].bytes;
        let content = &mut self.contents[section];
        let end = offset.checked_add(bytes.len() as u64)?;
        if end > content.size {
            return None;
        }
        for (at, byte) in (offset..end).zip(bytes) {
            content.set(base, at, *byte);
        }
        Some(())
    }
}

impl GlobalRef {
    /// Number of bytes that hold the variable or part, from `offset` on; for a bitfield, the number
    /// of bytes that hold its bits.
    pub fn extent(&self) -> u64 {
        match u64::from(self.field.bitfield_bits) {
            0 => self.size,
            bits => (self.field.bit_off % 8 + bits).div_ceil(8),
        }
    }

    /// Formats the value that the variable or part has if its `extent()` bytes are `bytes`.
    pub fn decode(&self, btf: &Btf, bytes: &[u8]) -> String {
        knob::format_field(btf, self.field, bytes)
    }

    /// Returns the bytes of the variable or part after it is set from `text`. `now` holds its
    /// `extent()` bytes before that; bits beside a bitfield keep their values.
    pub fn encode(
        &self,
        btf: &Btf,
        path: &str,
        text: &str,
        mut now: Vec<u8>,
    ) -> Result<Vec<u8>, GlobalError> {
        let value = |source| GlobalError::Value { path: path.to_owned(), source };
        let bytes = knob::parse_value(btf, self.field.ty, text).map_err(value)?;
        let bits = self.field.bitfield_bits;
        if bits == 0 {
            check_len(path, *self, &bytes)?;
            return Ok(bytes);
        }
        let number = knob::int_of(&bytes, false);
        if bits < 64 && number >> bits != 0 {
            let (text, ty) = (text.to_owned(), format!("{bits}-bit field"));
            return Err(value(ValueError::Range { text, ty, min: 0, max: (1 << bits) - 1 }));
        }
        knob::set_bitfield(&mut now, self.field, number);
        Ok(now)
    }
}

fn check_len(path: &str, place: GlobalRef, bytes: &[u8]) -> Result<(), GlobalError> {
    if bytes.len() as u64 == place.size {
        return Ok(());
    }
    Err(GlobalError::Length {
        path: path.to_owned(),
        expected: place.size,
        given: bytes.len() as u64,
    })
}

impl SectionContents {
    /// Returns bytes from `offset` on. `base` holds those of the file.
    fn bytes(&self, base: &[u8], offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        copy(base, 0, offset, &mut bytes);
        let end = offset + len as u64;
        for (page, written) in self.pages.range(offset / PAGE as u64..end.div_ceil(PAGE as u64)) {
            copy(&written[..], page * PAGE as u64, offset, &mut bytes);
        }
        bytes
    }

    fn set(&mut self, base: &[u8], at: u64, byte: u8) {
        let (page, off) = (at / PAGE as u64, (at % PAGE as u64) as usize);
        let bytes = self.pages.entry(page).or_insert_with(|| {
            let mut fresh = Box::new([0; PAGE]);
            let start = (page as usize).saturating_mul(PAGE).min(base.len());
            let end = (start + PAGE).min(base.len());
            fresh[..end - start].copy_from_slice(&base[start..end]);
            fresh
        });
        bytes[off] = byte;
    }

    /// The written pages, as (offset, bytes) clipped to the section's size.
    pub fn written(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.iter().filter_map(|(page, bytes)| {
            let offset = page * PAGE as u64;
            let len = self.size.checked_sub(offset)?.min(PAGE as u64) as usize;
            Some((offset, &bytes[..len]))
        })
    }
}

/// Copies the bytes of `from`, which begins at offset `start`, to those places of `to`, which
/// begins at `offset`, that it has.
fn copy(from: &[u8], start: u64, offset: u64, to: &mut [u8]) {
    let (skip, place) = (offset.saturating_sub(start), start.saturating_sub(offset));
    let rest = usize::try_from(skip).ok().and_then(|skip| from.get(skip..)).unwrap_or_default();
    let to = usize::try_from(place).ok().and_then(|place| to.get_mut(place..)).unwrap_or_default();
    let len = rest.len().min(to.len());
    to[..len].copy_from_slice(&rest[..len]);
}

/// Resolves a path against an object; `section_size` returns a section's size after resizing.
pub fn find(
    object: &Object,
    path: &str,
    section_size: impl Fn(usize) -> u64,
) -> Result<GlobalRef, GlobalError> {
    let (name, rest) = split_name(path);
    let Some((section, index)) = object.variable(name) else {
        let names = object.sections.iter().flat_map(|s| s.variables.iter());
        return Err(GlobalError::NoVariable {
            object: object.name.clone(),
            name: name.to_owned(),
            candidates: knob::closest(name, names.filter(|v| is_offered(v)).map(|v| &*v.name)),
        });
    };
    let var = &object.sections[section].variables[index];
    let is_last = index + 1 == object.sections[section].variables.len();
    let size = section_size(section);
    let in_path = |source| GlobalError::Path { path: path.to_owned(), source };
    let btf = &object.btf;
    let field = match resized_index(object, var, rest, is_last.then_some(size)) {
        Some((elem, at, tail)) => {
            let below = btf.path(elem, tail).map_err(in_path)?;
            FieldRef { bit_off: at * 8 + below.bit_off, ..below }
        }
        None => btf.path(var.ty, rest).map_err(in_path)?,
    };
    let offset = var.offset + field.byte_off();
    let mut len = btf.size_of(field.ty).map_err(|e| in_path(e.into()))?;
    if rest.is_empty() && is_last && size != object.sections[section].size {
        len = size.saturating_sub(var.offset);
    }
    let found = GlobalRef { section, offset, size: len, field };
    if offset.checked_add(found.extent()).is_none_or(|end| end > size) {
        return Err(GlobalError::Range { path: path.to_owned() });
    }
    Ok(found)
}

/// Resolves an index past the declared length of an array that ends its section. The section's
/// current size is the limit, because an array that frontends resize is declared with one element.
/// Returns the element's type, its byte offset in the variable, and the rest of the path.
fn resized_index<'p>(
    object: &Object,
    var: &Variable,
    rest: &'p str,
    section_size: Option<u64>,
) -> Option<(TypeId, u64, &'p str)> {
    let size = section_size?;
    let (index, tail) = rest.strip_prefix('[')?.split_once(']')?;
    let index: u64 = index.trim().parse().ok()?;
    let btf = &object.btf;
    let array = btf.array(btf.resolve(var.ty).ok()?)?;
    let elem = btf.size_of(array.elem).ok().filter(|e| *e > 0)?;
    let at = index.checked_mul(elem)?;
    let end = var.offset.checked_add(at)?.checked_add(elem)?;
    (index >= u64::from(array.len) && end <= size).then_some((array.elem, at, tail))
}

/// Splits `a.b[1]` into `a` and `.b[1]`.
fn split_name(path: &str) -> (&str, &str) {
    let end = path.find(['.', '[']).unwrap_or(path.len());
    path.split_at(end)
}

/// Whether users may set the variable. Globals whose names begin with two underscores are for the
/// frontend only.
fn is_offered(var: &Variable) -> bool {
    var.global && !var.name.starts_with("__")
}

/// Returns the meanings of knobs by name: the tags `knob: ...` of variables.
fn meanings(btf: &Btf) -> BTreeMap<&str, &str> {
    let tagged = |id| {
        let text = btf.name(id).strip_prefix("knob: ")?;
        let (variable, member) = btf.decl_tag(id)?;
        (member < 0 && btf.kind(variable) == BtfKind::Var).then(|| (btf.name(variable), text))
    };
    btf.ids().filter_map(tagged).collect()
}

/// Whether the variable is a knob. A constant must be `const volatile`: the compiler folds other
/// constants into the code, and the program's own tables and strings are not volatile. Data must
/// have an initial value other than 0.
fn is_knob(btf: &Btf, section: &DataSection, var: &Variable, constant: bool) -> bool {
    if !is_offered(var) {
        return false;
    }
    if constant {
        return is_volatile(btf, var.ty);
    }
    let bytes = section.bytes.get(var.offset as usize..(var.offset + var.size) as usize);
    bytes.is_some_and(|b| b.iter().any(|byte| *byte != 0))
}

/// Whether `volatile` is among the qualifiers of the variable or of its elements.
fn is_volatile(btf: &Btf, ty: TypeId) -> bool {
    let mut at = ty;
    for _ in 0..32 {
        match btf.kind(at) {
            BtfKind::Volatile => return true,
            BtfKind::Const | BtfKind::Typedef | BtfKind::Restrict | BtfKind::TypeTag => {
                at = btf.ty(at).ok().and_then(|t| t.target()).unwrap_or_default();
            }
            BtfKind::Array => at = btf.array(at).map(|a| a.elem).unwrap_or_default(),
            _ => return false,
        }
    }
    false
}
