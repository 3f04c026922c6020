// SPDX-License-Identifier: GPL-2.0-only
//! Our loader compared with libbpf's: both must find the same maps, struct_ops tables and programs
//! in the same object.
//!
//! Promises: an object that both open looks the same to both. The refusals may differ: libbpf
//! checks some things only at load, and others that no scheduler has. The check does not give
//! libbpf an object that our loader refuses, because libbpf trusts the compiler and may read
//! outside of a malformed file.

use std::collections::BTreeMap;

use libbpf_rs::libbpf_sys::{BPF_MAP_TYPE_STRUCT_OPS, bpf_map__type};
use libbpf_rs::{AsRawLibbpf, ObjectBuilder};
use scxlab_bpf::map::map_type;
use scxlab_loader::object::{Object, ObjectError};

const PAGE: u32 = 4096;

/// Maps by name: type, sizes of key and value in bytes, and number of elements.
type Maps = BTreeMap<String, [u32; 4]>;

/// What a loader reads from an object, as far as our loader and libbpf can be compared.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct View {
    maps: Maps,
    /// Names of the struct_ops tables.
    struct_ops: Vec<String>,
    /// Programs by name: section and number of instructions.
    programs: BTreeMap<String, (String, usize)>,
}

pub fn check(data: &[u8]) {
    if let Ok(ours) = ours(data)
        && let Some(theirs) = theirs(data)
    {
        assert_eq!(ours, theirs, "ours, and libbpf's");
    }
}

/// Returns what our loader reads from an object.
pub fn ours(data: &[u8]) -> Result<View, ObjectError> {
    let object = Object::parse(data, "fuzz")?;
    let mut view = View::default();
    for map in &object.maps {
        let entries = rounded(map.map_type, map.max_entries);
        let what = [map.map_type, map.key_size, map.value_size, entries];
        view.maps.insert(map.name.clone(), what);
    }
    view.struct_ops = object.struct_ops.iter().map(|table| table.name.clone()).collect();
    for (_, function, _) in object.programs() {
        // libbpf drops the mark `?`, which a section's name has if its programs are loaded only on
        // request. The comparison therefore ignores this mark.
        let section = function.section.strip_prefix('?').unwrap_or(&function.section);
        let what = (section.to_owned(), function.insns.len());
        view.programs.insert(function.name.clone(), what);
    }
    view.struct_ops.sort();
    Ok(view)
}

/// Rounds the size of a ring buffer up to a power of two of pages. libbpf does so when it opens a
/// file, our loader when it creates the map.
fn rounded(kind: u32, entries: u32) -> u32 {
    let ring = matches!(kind, map_type::RINGBUF | map_type::USER_RINGBUF);
    if !ring || entries == 0 {
        return entries;
    }
    entries
        .div_ceil(PAGE)
        .checked_next_power_of_two()
        .and_then(|n| n.checked_mul(PAGE))
        .unwrap_or(entries)
}

/// Returns what libbpf reads from an object; None if libbpf refuses the object.
pub fn theirs(data: &[u8]) -> Option<View> {
    libbpf_rs::set_print(None);
    let object = ObjectBuilder::default().name("fuzz").ok()?.open_memory(data).ok()?;
    let mut view = View::default();
    for map in object.maps() {
        let name = map.name().to_str()?.to_owned();
        // SAFETY: the map lives as long as the object, which is open.
        let kind = unsafe { bpf_map__type(map.as_libbpf_object().as_ptr()) };
        if kind == BPF_MAP_TYPE_STRUCT_OPS {
            view.struct_ops.push(name);
        } else if !name.contains('.') {
            // libbpf also lists data sections as maps, whose names contain a dot. The comparison
            // leaves them out.
            view.maps.insert(name, [kind, map.key_size(), map.value_size(), map.max_entries()]);
        }
    }
    for program in object.progs() {
        let what = (program.section().to_str()?.to_owned(), program.insn_cnt());
        view.programs.insert(program.name().to_str()?.to_owned(), what);
    }
    view.struct_ops.sort();
    Some(view)
}
