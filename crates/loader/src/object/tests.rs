// SPDX-License-Identifier: GPL-2.0-only
//! Tests of real objects, compiled from `testdata/*.bpf.c`, whole and damaged.

use super::*;
use crate::btf::special::BtfSpecialKind;

/// Reads a file of `testdata/`. In this crate only tests read files.
pub(crate) fn testdata(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub(crate) fn kernel_btf() -> Btf {
    btf_of_elf(&testdata("kernel.o"), "kernel.o").unwrap()
}

pub(crate) fn core_object() -> Object {
    Object::parse(&testdata("core.bpf.o"), "core.bpf.o").unwrap()
}

pub(crate) fn full_object() -> Object {
    Object::parse(&testdata("full.bpf.o"), "full.bpf.o").unwrap()
}

fn function<'a>(object: &'a Object, name: &str) -> &'a Function {
    &object.functions[object.function(name).unwrap()]
}

#[test]
fn programs_are_known_by_their_sections() {
    let object = full_object();
    let kind = |name: &str| function(&object, name).program.clone();
    assert_eq!(kind("my_select"), Some(ProgramKind::StructOps { sleepable: false }));
    assert_eq!(kind("my_init"), Some(ProgramKind::StructOps { sleepable: true }));
    assert_eq!(kind("calls"), Some(ProgramKind::Syscall));
    assert_eq!(kind("thrice"), None);
    let trace = |kind, target: &str, sleepable| {
        Some(ProgramKind::Trace { kind, target: target.to_owned(), sleepable })
    };
    assert_eq!(kind("on_switch"), trace(TraceKind::TpBtf, "sched_switch", false));
    assert_eq!(kind("on_thing"), trace(TraceKind::Fentry, "do_thing", true));
    assert!(function(&object, "on_thing").optional && !function(&object, "on_switch").optional);
    assert_eq!(object.license, "GPL");
}

#[test]
fn calls_and_callbacks_name_their_functions() {
    let object = full_object();
    let callees = |name: &str| -> Vec<&str> {
        let targets = function(&object, name).relocs.iter().filter_map(|r| match r.target {
            RelocTarget::Function(f) => Some(object.functions[f].name.as_str()),
            _ => None,
        });
        targets.collect()
    };
    assert_eq!(callees("calls"), ["twice", "thrice"]);
    // `thrice` calls a static function of its own section. The file has no relocation for the call.
    assert_eq!(callees("thrice"), ["twice"]);
    assert_eq!(callees("with_callback"), ["callback"]);
}

#[test]
fn data_references_carry_their_offset() {
    let object = full_object();
    let target = |name: &str| {
        let (section, index) = object.variable(name).unwrap();
        let offset = object.sections[section].variables[index].offset;
        RelocTarget::Data { section, offset }
    };
    let data = function(&object, "data");
    for name in ["counter", "hidden", "zeroed"] {
        let found = data.relocs.iter().any(|r| r.target == target(name));
        assert!(found, "{name}: {:?}", data.relocs);
    }
    let (section, _) = object.variable("huge").unwrap();
    assert!(object.sections[section].bytes.is_empty(), "zeroed data takes no memory");
}

#[test]
fn maps_are_read_with_their_attributes() {
    let object = full_object();
    let map = |name: &str| &object.maps[object.map(name).unwrap()];
    let hash = map("hash");
    assert_eq!((hash.map_type, hash.key_size, hash.value_size, hash.max_entries), (1, 4, 96, 128));
    assert_eq!(hash.special.len(), 9);
    let roots = hash.special.iter().filter(|f| matches!(f.kind, BtfSpecialKind::ListHead(_)));
    assert_eq!(roots.count(), 1);
    let outer = map("outer");
    assert_eq!(outer.inner.as_ref().map(|i| (i.map_type, i.max_entries)), Some((2, 4)));
    assert_eq!(outer.init_slots, [(2, object.map("inner_a").unwrap())]);
    assert_eq!(map("arena").map_extra, 0x1000_0000_0000);
}

#[test]
fn tables_are_read_by_member_name() {
    let object = full_object();
    let names: Vec<_> = object.struct_ops.iter().map(|t| (t.name.as_str(), t.link)).collect();
    assert_eq!(names, [("plain", false), ("first", true), ("second", true)]);
    let callback = |table: usize, member: &str| {
        let table: &StructOps = &object.struct_ops[table];
        let found = table.members.iter().find(|m| m.name == member).unwrap();
        match found.kind {
            MemberKind::Callback(f) => f.map(|f| object.functions[f].name.as_str()),
            _ => panic!("{member} is no callback"),
        }
    };
    assert_eq!(callback(1, "select"), Some("my_select"));
    assert_eq!(callback(1, "newer"), Some("for_missing_member"));
    assert_eq!(callback(2, "select"), Some("my_select"));
    assert_eq!(callback(2, "init"), None);
}

#[test]
fn externs_are_classified() {
    let object = full_object();
    let ext = |name: &str| object.externs.iter().find(|e| e.name == name).unwrap();
    assert!(matches!(ext("kfunc_add").kind, ExternKind::Func { .. }));
    assert!(!ext("kfunc_add").weak && ext("kfunc_absent").weak);
    assert!(matches!(ext("per_cpu_counter").kind, ExternKind::Var { .. }));
    assert!(matches!(ext("CONFIG_TEXT").kind, ExternKind::Kconfig { size: 6, align: 1, .. }));
}

#[test]
fn instructions_know_their_source_lines() {
    let object = full_object();
    let f = function(&object, "knobs");
    assert!(f.lines.first().is_some_and(|l| l.insn == 0));
    assert!(object.btf.string(f.lines[0].text).contains("slice_ns"));
    assert!(object.btf.string(f.lines[0].file).ends_with("full.bpf.c"));
}

fn refused(bytes: &[u8]) -> String {
    Object::parse(bytes, "x.bpf.o").unwrap_err().to_string()
}

#[test]
fn other_files_are_refused_by_name() {
    assert!(refused(b"").starts_with("object \"x.bpf.o\": not a readable ELF file"));
    assert!(refused(b"#!/bin/sh\n").contains("not a readable ELF file"));
    let mut other = testdata("torn.bpf.o");
    // This sets `e_machine` to x86-64, which the parser must refuse.
    other[18] = 62;
    assert!(refused(&other).contains("machine 62"));
}

/// Relocations fill in the offsets of variables, and change nothing else of the type table.
#[test]
fn a_relocation_cannot_change_a_type() {
    use object::{Object as _, ObjectSection as _};
    let bytes = testdata("full.bpf.o");
    let file = object::File::parse(&*bytes).unwrap();
    let (relocs, len) = file.section_by_name(".rel.BTF").unwrap().file_range().unwrap();
    for at in (relocs..relocs + len).step_by(16).map(|at| at as usize) {
        let offset = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        // The variable's type, its size, the variable before, and no variable at all.
        for wrong in [offset - 4, offset + 4, offset - 11, 0, u64::MAX] {
            let mut bad = bytes.clone();
            bad[at..at + 8].copy_from_slice(&wrong.to_le_bytes());
            assert!(refused(&bad).contains("section variable's offset"), "{offset} to {wrong}");
        }
    }
}

/// A symbol table in the place of the first header would hide the real one.
#[test]
fn the_first_section_is_none() {
    let mut bytes = testdata("full.bpf.o");
    let headers = u64::from_le_bytes(bytes[0x28..0x30].try_into().unwrap()) as usize;
    bytes[headers + 4] = 2;
    let why = refused(&bytes);
    assert!(why.contains("section 0 has type 2"), "{why}");
}

/// Parses a damaged file. Parsing must end without a panic, whatever the file holds.
fn survive(bytes: &[u8]) {
    if let Ok(object) = Object::parse(bytes, "damaged") {
        let open = crate::link::OpenObject::new(std::sync::Arc::new(object));
        let _ = open.globals.knobs();
    }
}

#[test]
fn truncated_objects_are_survived() {
    for name in ["core.bpf.o", "full.bpf.o"] {
        let bytes = testdata(name);
        for len in (0..bytes.len()).step_by(61) {
            survive(&bytes[..len]);
        }
    }
}

#[test]
fn damaged_objects_are_survived() {
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for name in ["core.bpf.o", "full.bpf.o", "torn.bpf.o"] {
        let bytes = testdata(name);
        for _ in 0..1500 {
            let mut bad = bytes.clone();
            for _ in 0..1 + random(4) {
                let at = random(bad.len());
                bad[at] = match random(3) {
                    0 => 0xff,
                    1 => 0,
                    _ => random(256) as u8,
                };
            }
            survive(&bad);
        }
    }
}
