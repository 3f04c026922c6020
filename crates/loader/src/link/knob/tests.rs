// SPDX-License-Identifier: GPL-2.0-only
//! Tests of values as text, for the types of `testdata/full.bpf.c`.

use super::*;
use crate::btf::tests::Builder;
use crate::object::Object;
use crate::object::tests::full_object;

fn ty_of(object: &Object, name: &str) -> TypeId {
    let (section, index) = object.variable(name).unwrap();
    object.sections[section].variables[index].ty
}

/// Parses `text` for the variable's type and prints it back.
fn check(variable: &str, text: &str, bytes: &[u8], printed: &str) {
    let object = full_object();
    let ty = ty_of(&object, variable);
    let parsed = parse_value(&object.btf, ty, text);
    assert_eq!(parsed.as_deref(), Ok(bytes), "{variable}={text}");
    assert_eq!(format_value(&object.btf, ty, bytes), printed, "{variable}={text}");
}

fn refused(variable: &str, text: &str, expected: &str) {
    let object = full_object();
    let error = parse_value(&object.btf, ty_of(&object, variable), text).unwrap_err().to_string();
    assert!(error.contains(expected), "{variable}={text}: {error}");
}

#[test]
fn values_of_every_type() {
    check("slice_ns", "20_000_000", &20_000_000u64.to_le_bytes(), "20000000");
    check("slice_ns", "0xFF", &255u64.to_le_bytes(), "255");
    check("slice_ns", "18446744073709551615", &u64::MAX.to_le_bytes(), "18446744073709551615");
    check("smt", "true", &[1], "true");
    check("smt", "off", &[0], "false");
    check("nice", "-128", &[0x80], "-128");
    check("port", "65535", &[0xff, 0xff], "65535");
    check("offset", " -2147483648 ", &[0, 0, 0, 0x80], "-2147483648");
    check("mode", "fast", &[5, 0, 0, 0], "fast");
    check("mode", "MODE_FAST", &[5, 0, 0, 0], "fast");
    check("mode", "3", &[3, 0, 0, 0], "3");
    check("wide_mode", "WIDE", &0x12_3456_7890u64.to_le_bytes(), "WIDE");
    check("tag", "\"hi\"", b"hi\0\0\0\0\0\0", "\"hi\"");
    check("tag", "plain", b"plain\0\0\0", "\"plain\"");
}

#[test]
fn what_does_not_fit_is_refused() {
    refused("nice", "128", "-128..=127");
    refused("port", "-1", "0..=65535");
    refused("slice_ns", "18446744073709551616", "does not fit");
    refused("slice_ns", "20ms", "no u64");
    refused("slice_ns", "", "no u64");
    refused("slice_ns", "0x", "no u64");
    refused("slice_ns", "--5", "no u64");
    refused("smt", "2", "true or false");
    refused("mode", "MODE_FASTER", "one of slow, fast");
    refused("tag", "12345678", "at most 7 bytes");
    refused("table", "1", "set its parts");
    refused("cfg", "1", "set its parts");
}

#[test]
fn enumerators_lose_what_they_have_in_common() {
    let mut types = Builder::new();
    let ty = types.enumeration("numa", &[("NUMA_OFF", 0), ("NUMA_ON", 1), ("NUMA_ON__LOAD", 2)]);
    let btf = types.build();
    assert_eq!(enumerator_names(&btf, ty).collect::<Vec<_>>(), ["off", "on", "on+load"]);
    assert_eq!(parse_value(&btf, ty, "on+load"), Ok(vec![2, 0, 0, 0]));
    assert_eq!(parse_value(&btf, ty, "NUMA_ON__LOAD"), Ok(vec![2, 0, 0, 0]));
    assert!(parse_value(&btf, ty, "N").is_err());
}

/// `MODE_2_4` is the mode that a user calls 2.4. An underscore beside a letter stays.
#[test]
fn an_underscore_between_digits_is_a_point() {
    let mut types = Builder::new();
    let names = [("MODE_NEW", 0), ("MODE_2_4", 1), ("MODE_2_4_PRE9_1", 2), ("MODE_V2_X", 3)];
    let ty = types.enumeration("mode", &names);
    let btf = types.build();
    let short: Vec<_> = enumerator_names(&btf, ty).collect();
    assert_eq!(short, ["new", "2.4", "2.4_pre9.1", "v2_x"]);
    assert_eq!(parse_value(&btf, ty, "2.4"), Ok(vec![1, 0, 0, 0]));
    assert_eq!(parse_value(&btf, ty, "MODE_2_4"), Ok(vec![1, 0, 0, 0]));
}

#[test]
fn typos_get_suggestions() {
    let names = ["slice_ns", "slice_us", "smt_enabled", "primary_all", "debug"];
    let near = |wanted: &str| closest(wanted, names.iter().copied());
    assert_eq!(near("slicens"), ["slice_ns", "slice_us"]);
    assert_eq!(near("smt"), ["smt_enabled"]);
    assert_eq!(near("SLICE_NS")[0], "slice_ns");
    assert!(near("nothing_like_it").is_empty());
    assert!(near(&"x".repeat(10_000)).is_empty());
}

#[test]
fn integers_sign_extend() {
    assert_eq!(int_of(&[0xff], true), -1);
    assert_eq!(int_of(&[0xff], false), 255);
    assert_eq!(int_of(&[], true), 0);
    assert_eq!(int_of(&[0xff; 32], false), -1);
}

/// No compiler emits integers of 0 or 17 bytes, or bitfields of 255 bits, but a file can hold them.
/// Their use must not cause a panic.
#[test]
fn integers_of_no_size_and_wide_bitfields_are_survived() {
    const SIGNED: u32 = 1 << 24;
    let mut types = Builder::new();
    let sizes = [0, 17].map(|size| types.add("odd", BtfKind::Int, 0, size, &[SIGNED]));
    let btf = types.build();
    for ty in sizes {
        assert!(matches!(parse_value(&btf, ty, "1"), Err(ValueError::NotA { .. })));
    }
    let mut unit = [0xff; 32];
    let field = FieldRef { ty: sizes[0], bit_off: 0, bitfield_bits: 255 };
    set_bitfield(&mut unit, field, 5);
    assert_eq!((unit[0], unit[31]), (5, 0x80), "255 bits of the value, the last of the memory");
}

#[test]
fn enums_of_no_size_are_survived() {
    let mut types = Builder::new();
    let items = [types.name("ODD"), 0];
    let ty = types.add("odd", BtfKind::Enum, 1, 0, &items);
    let btf = types.build();
    for text in ["ODD", "1", ""] {
        assert!(matches!(parse_value(&btf, ty, text), Err(ValueError::NotScalar { .. })));
    }
}

/// A struct's text contains its bitfields, because manifests tell runs apart by it.
#[test]
fn bitfields_are_part_of_a_structs_text() {
    const SIGNED: u32 = 1 << 24;
    /// Flag of a struct whose members have widths.
    const KFLAG: u32 = 1 << 31;
    let mut types = Builder::new();
    let unsigned = types.add("u32", BtfKind::Int, 0, 4, &[32]);
    let signed = types.add("int", BtfKind::Int, 0, 4, &[SIGNED | 32]);
    let mut member =
        |name: &str, ty: TypeId, width: u32, at: u32| [types.name(name), ty.0, width << 24 | at];
    let members = [
        member("low", unsigned, 3, 0),
        member("level", signed, 6, 3),
        member("plain", unsigned, 0, 32),
    ];
    let ty = types.add("cfg", BtfKind::Struct, KFLAG | 3, 8, &members.concat());
    let btf = types.build();
    let bytes = [0b1110_1101, 0b1, 0, 0, 7, 0, 0, 0];
    assert_eq!(format_value(&btf, ty, &bytes), "{low: 5, level: -3, plain: 7}");
}

/// A struct that a damaged type table puts into itself is not entered again.
#[test]
fn a_struct_in_itself_is_not_entered() {
    let mut types = Builder::new();
    let name = types.name("inner");
    let ty = types.add("outer", BtfKind::Struct, 1, 8, &[name, 1, 0]);
    assert_eq!(ty.0, 1, "the member's type");
    assert_eq!(format_value(&types.build(), ty, &[0; 8]), "{inner: ?}");
}
