// SPDX-License-Identifier: GPL-2.0-only
//! Reading and writing numbers in typed bytes: contexts of programs, elements of maps, memory.
//!
//! Owns: finding a field by its path, and the width of its value. Does not: hold the bytes.

use scxlab_loader::btf::{Btf, BtfKind, FieldRef, TypeId};
use scxlab_loader::link::knob;
use scxlab_loader::object::Object;

use super::expr::{PathStep, path_text};

/// Finds the field of a type that `name` and `steps` refer to.
pub fn field(btf: &Btf, ty: TypeId, name: &str, steps: &[PathStep]) -> Result<FieldRef, String> {
    btf.path(ty, &path_text(&format!(".{name}"), steps)).map_err(|e| e.to_string())
}

/// Writes a number to a field. `bytes` hold a value of the type in which the field was found.
pub fn put(btf: &Btf, bytes: &mut [u8], place: FieldRef, value: i128) -> Result<(), String> {
    let from = usize::try_from(place.byte_off()).unwrap_or(usize::MAX);
    let outside = || "it lies outside the struct".to_owned();
    if place.bitfield_bits == 0 {
        let encoded = encode(btf, place.ty, value)?;
        let to = from.checked_add(encoded.len()).ok_or_else(outside)?;
        bytes.get_mut(from..to).ok_or_else(outside)?.copy_from_slice(&encoded);
        return Ok(());
    }
    if value < 0 || place.bitfield_bits < 64 && value >> place.bitfield_bits != 0 {
        return Err(format!("{value} does not fit {} bits", place.bitfield_bits));
    }
    knob::set_bitfield(bytes.get_mut(from..).ok_or_else(outside)?, place, value);
    Ok(())
}

/// Encodes a number as a value of a type. A pointer is encoded as an address.
pub fn encode(btf: &Btf, ty: TypeId, value: i128) -> Result<Vec<u8>, String> {
    if btf.resolve(ty).is_ok_and(|ty| btf.kind(ty) == BtfKind::Ptr) {
        let address = u64::try_from(value).map_err(|_| format!("{value} is no address"))?;
        return Ok(address.to_le_bytes().to_vec());
    }
    knob::parse_value(btf, ty, &value.to_string()).map_err(|e| e.to_string())
}

/// Reads the number in a field. The field may be a pointer, because some programs store a pointer
/// in their context as their result.
pub fn get(btf: &Btf, bytes: &[u8], place: FieldRef) -> Result<i128, String> {
    let size = btf.size_of(place.ty).map_err(|e| e.to_string())?;
    let ty = btf.resolve(place.ty).map_err(|e| e.to_string())?;
    let kind = btf.kind(ty);
    if place.bitfield_bits != 0 || !(kind == BtfKind::Int || kind == BtfKind::Ptr || kind.is_enum())
    {
        return Err("it is no number".to_owned());
    }
    let from = usize::try_from(place.byte_off()).unwrap_or(usize::MAX);
    let to = from.saturating_add(size as usize);
    let bytes = bytes.get(from..to).ok_or("it lies outside the struct")?;
    let signed = btf.int(ty).is_some_and(|int| int.signed);
    Ok(knob::int_of(bytes, signed))
}

/// Returns the struct type that a program's only argument points to.
pub fn context_type(object: &Object, program: &str) -> Option<TypeId> {
    let btf = &object.btf;
    let function = &object.functions[object.function(program)?];
    let proto = btf.ty(function.btf_func?).ok()?.target()?;
    let pointer = btf.resolve(btf.params(proto).next()?.ty).ok()?;
    if btf.kind(pointer) != BtfKind::Ptr {
        return None;
    }
    let target = btf.resolve(btf.ty(pointer).ok()?.target()?).ok()?;
    (btf.kind(target) == BtfKind::Struct).then_some(target)
}
