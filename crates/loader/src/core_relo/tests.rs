// SPDX-License-Identifier: GPL-2.0-only
//! Tests that resolve every relocation kind, as clang compiles it, against the types of
//! `testdata/kernel.c`.

use super::patch::Patched;
use super::*;
use crate::object::Object;
use crate::object::tests::{core_object, kernel_btf, testdata};

/// Resolves a program's only relocation.
fn resolved(object: &Object, target: &Btf, program: &str) -> Result<RelocResult, CoreError> {
    let function = &object.functions[object.function(program).unwrap()];
    resolve(&object.btf, target, &function.core_relos[0])
}

/// Checks the value that a program's relocation puts into its instruction.
fn check(program: &str, expected: u64) {
    let answer = resolved(&core_object(), &kernel_btf(), program).unwrap();
    assert!(!answer.poison, "{program}: poisoned");
    assert_eq!(answer.value, expected, "{program}");
}

fn poisoned(program: &str) {
    let answer = resolved(&core_object(), &kernel_btf(), program).unwrap();
    assert!(answer.poison, "{program}: {answer:?}");
}

#[test]
fn fields() {
    // Offsets follow from kernel.c: see `struct task_struct` there.
    check("byte_offset", 56);
    check("byte_size", 8);
    check("exists_yes", 1);
    check("exists_no", 0);
    check("load_moved", 8);
    check("load_anonymous", 12);
    check("load_nested", 56);
    check("load_element", 37);
    check("load_pointer_element", 88);
    check("load_flexible", 136);
    check("load_flavoured", 0);
    check("store_moved", 8);
    poisoned("load_gone");
}

#[test]
fn bitfields() {
    check("signed_yes", 1);
    check("signed_no", 0);
    // `flag_bits` is bits 3 to 7 of the 32-bit word at offset 48.
    check("lshift", 64 - 8);
    check("rshift", 64 - 5);
}

#[test]
fn types() {
    let (object, target) = (core_object(), kernel_btf());
    let mine = object.btf.find("mine", BtfKind::Struct).unwrap();
    check("id_local", u64::from(mine.0));
    check("id_target", u64::from(target.find("list", BtfKind::Struct).unwrap().0));
    check("type_exists_yes", 1);
    check("type_exists_no", 0);
    check("type_size", 112);
    check("matches_yes", 1);
    check("matches_no", 0);
}

#[test]
fn enumerators() {
    check("enum_exists_yes", 1);
    check("enum_exists_no", 0);
    check("enum_value", 9);
    check("enum_value_64", 0x1_0000_0001);
    check("enum_value_negative", -5i64 as u64);
    poisoned("enum_value_gone");
}

#[test]
fn loads_follow_the_size_where_that_keeps_the_value() {
    let (object, target) = (core_object(), kernel_btf());
    let patched = |program: &str| {
        let function = &object.functions[object.function(program).unwrap()];
        let mut insns = function.insns.clone();
        let relo = &function.core_relos[0];
        let answer = resolve(&object.btf, &target, relo).unwrap();
        let outcome = patch::patch(&mut insns, relo.insn as usize, &answer).unwrap();
        (outcome, insns[relo.insn as usize])
    };
    let (outcome, insn) = patched("load_wider");
    // 0x79 is `ldxdw`, a load of 8 bytes. It reads from the field's new offset.
    assert_eq!((outcome, insn.code, insn.off), (Patched::Done, 0x79, 16));
    assert_eq!(patched("load_wider_signed").0, Patched::WrongSize);
    assert_eq!(patched("load_gone").0, Patched::Poisoned);
}

#[test]
fn a_field_of_another_kind_does_not_count() {
    // The field is a pointer in the object, and an array of bytes in the kernel, so the load counts
    // as a load of a missing field.
    poisoned("load_retyped");
}

#[test]
fn equal_candidates_agree_and_different_ones_are_refused() {
    check("load_twin", 4);
    let torn = Object::parse(&testdata("torn.bpf.o"), "torn.bpf.o").unwrap();
    let refused = resolved(&torn, &kernel_btf(), "ambiguous").unwrap_err();
    assert!(matches!(refused, CoreError::Ambiguous { first: 32, second: 64, .. }), "{refused}");
}

#[test]
fn relocations_say_what_they_are_about() {
    let object = core_object();
    let text = |program: &str| {
        let function = &object.functions[object.function(program).unwrap()];
        describe(&object.btf, &function.core_relos[0])
    };
    assert_eq!(text("byte_offset"), "task_struct.scx.slice");
    assert_eq!(text("load_element"), "task_struct.comm[5]");
    assert_eq!(text("enum_value"), "enum state::ST_BUSY");
    assert_eq!(text("type_exists_no"), "struct absent");
}

#[test]
fn bad_access_strings_are_refused() {
    let (object, target) = (core_object(), kernel_btf());
    let ty = object.btf.find("task_struct", BtfKind::Struct).unwrap();
    let state = object.btf.find("state", BtfKind::Enum).unwrap();
    let try_access = |ty, access: &str, kind| {
        let relo = CoreRelo { insn: 0, ty, access: access.into(), kind };
        resolve(&object.btf, &target, &relo)
    };
    let long = "0:".repeat(100) + "0";
    for access in ["", ":", "0:99", "0:", "x", "-1", "0:0:0", "0:1:1:1", "0:10:16", &long] {
        let answer = try_access(ty, access, RelocKind::FieldByteOffset);
        assert!(answer.is_err(), "{access:?}: {answer:?}");
    }
    assert!(try_access(state, "3", RelocKind::EnumvalValue).is_err());
    assert!(try_access(state, "0:0", RelocKind::EnumvalValue).is_err());
    assert!(try_access(ty, "1", RelocKind::TypeExists).is_err());
    assert!(try_access(TypeId::VOID, "0", RelocKind::TypeExists).is_err());
}

#[test]
fn an_instruction_that_holds_something_else_is_refused() {
    let object = core_object();
    let function = &object.functions[object.function("load_moved").unwrap()];
    let answer = resolve(&object.btf, &kernel_btf(), &function.core_relos[0]).unwrap();
    let mut insns = function.insns.clone();
    insns[0].off = 1;
    assert!(matches!(
        patch::patch(&mut insns, 0, &answer),
        Err(PatchError::Unexpected { found: 1, .. })
    ));
    // An `exit` instruction cannot take the offset of a field, so patching must fail.
    let exit = insns.len() - 1;
    assert!(matches!(patch::patch(&mut insns, exit, &answer), Err(PatchError::Instruction { .. })));
    assert!(patch::patch(&mut insns, 100, &answer).is_err());
}
