// SPDX-License-Identifier: GPL-2.0-only
//! Globals of `testdata/full.bpf.c` before load.

use super::*;
use crate::object::tests::{full_object, kernel_btf};

fn globals() -> Globals {
    Globals::new(Arc::new(full_object()))
}

#[test]
fn parts_of_variables_are_set_and_read_back() {
    let mut g = globals();
    for (path, before, text) in [
        ("slice_ns", "5000000", "7"),
        ("table[1]", "2", "22"),
        ("cfg.a", "9", "90"),
        ("cfg.in.b[2]", "6", "-6"),
        ("zeroed", "0", "5"),
        ("huge[1048575]", "0", "3"),
        ("hidden", "4", "8"),
    ] {
        assert_eq!(g.get(path).as_deref(), Ok(before), "{path}");
        g.set(path, text).unwrap();
        assert_eq!(g.get(path).as_deref(), Ok(text), "{path}");
    }
    assert_eq!(g.get("table").as_deref(), Ok("[1, 22, 3, 0]"));
    // Of the 8 MiB of zeros in this section, only the written pages take memory: those of `zeroed`
    // and of the last element of `huge`.
    let (section, _) = g.object.variable("huge").unwrap();
    assert!(g.content(section).written().count() <= 2);
}

#[test]
fn bitfields_are_set_without_touching_their_neighbours() {
    let mut g = globals();
    let word = |g: &Globals| {
        let place = g.find("cfg").unwrap();
        let bytes = g.bytes(place.section, place.offset + 10, 2);
        u16::from_le_bytes([bytes[0], bytes[1]])
    };
    assert_eq!(word(&g), 3 | 1000 << 4);
    g.set("cfg.low", "15").unwrap();
    assert_eq!(word(&g), 15 | 1000 << 4);
    g.set("cfg.high", "4095").unwrap();
    g.set("cfg.low", "0").unwrap();
    assert_eq!(word(&g), 4095 << 4);
    assert!(g.set("cfg.low", "16").is_err());
    g.set("cfg.low", "5").unwrap();
    let now = |path: &str| g.get(path).unwrap();
    assert_eq!((now("cfg.low").as_str(), now("cfg.high").as_str()), ("5", "4095"));
}

#[test]
fn mistakes_are_explained() {
    let mut g = globals();
    let mut refused = |path: &str, text: &str, expected: &str| {
        let error = g.set(path, text).unwrap_err().to_string();
        assert!(error.contains(expected), "{path}={text}: {error}");
    };
    refused("slicens", "1", "no variable `slicens`; did you mean slice_ns?");
    refused("cfg.in.c", "1", "no field `c`");
    refused("table[4]", "1", "index 4 is past the end");
    refused("table[x]", "1", "not a path");
    refused("slice_ns[0]", "1", "cannot follow it");
    refused("port", "70000", "0..=65535");
    refused("mode", "5000000000", "does not fit");
}

#[test]
fn knobs_are_settings_and_nothing_else() {
    let knobs = globals().knobs();
    let names: Vec<_> = knobs.iter().map(|k| k.name.as_str()).collect();
    for name in ["slice_ns", "smt", "nice", "mode", "table", "cfg", "tag", "counter"] {
        assert!(names.contains(&name), "{name} not in {names:?}");
    }
    for name in ["fixed", "hidden", "zeroed", "__SCX_SLICE_DFL", "lock", "resizable"] {
        assert!(!names.contains(&name), "{name} in {names:?}");
    }
    let mode = knobs.iter().find(|k| k.name == "mode").unwrap();
    assert_eq!((mode.ty.as_str(), mode.default.as_str()), ("enum mode", "fast"));
    assert_eq!(mode.values, ["slow", "fast"]);
    assert!(mode.constant);
}

#[test]
fn arrays_at_the_end_of_a_section_can_grow() {
    let mut g = globals();
    assert!(g.set("resizable[99]", "1").is_err());
    g.resize_array("resizable", 100).unwrap();
    g.set("resizable[99]", "1234").unwrap();
    assert_eq!(g.get("resizable[99]").as_deref(), Ok("1234"));
    assert!(g.set("resizable[100]", "1").is_err());
    assert_eq!(g.find("resizable").unwrap().size, 400);
    g.resize(".rodata.resizable", 8).unwrap();
    g.set("ro_resizable[1]", "5").unwrap();
    for (name, size) in [(".rodata.resizable", 0), (".rodata.resizable", 7), ("slice_ns", 1 << 40)]
    {
        assert!(g.resize(name, size).is_err(), "{name} {size}");
    }
    assert!(g.resize_array("slice_ns", 2).is_err());
    assert!(g.resize_array("resizable", u64::MAX).is_err());
}

#[test]
fn enum_constants_are_filled_from_the_kernel() {
    let mut g = globals();
    assert_eq!(g.fill_enum_globals("__", &kernel_btf()), 1);
    assert_eq!(g.get("__SCX_SLICE_DFL").as_deref(), Ok("20000000"));
    assert_eq!(g.get("__SCX_NO_SUCH").as_deref(), Ok("0"));
    // The name `slice_ns` does not begin with the prefix `__`, so this global must keep its value.
    assert_eq!(g.get("slice_ns").as_deref(), Ok("5000000"));
}

#[test]
fn bytes_are_those_of_the_file_until_they_are_written() {
    let base: Vec<u8> = (0..6000u32).map(|at| at as u8 | 1).collect();
    let mut content = SectionContents { size: 20_000, pages: BTreeMap::new() };
    let mut expected = base.clone();
    expected.resize(25_000, 0);
    for at in [0, 4095, 4096, 5999, 6000, 12_287, 12_288, 19_999] {
        content.set(&base, at, 0xf0);
        expected[at as usize] = 0xf0;
    }
    for offset in [0, 1, 4000, 4095, 4096, 5990, 8191, 8192, 12_280, 20_000] {
        for len in [0, 1, 5, 97, 4096, 4999] {
            let from = offset as usize;
            let got = content.bytes(&base, offset, len);
            assert_eq!(got, expected[from..from + len], "{len} from {offset}");
        }
    }
    assert_eq!(content.bytes(&base, u64::MAX - 4, 4), [0; 4]);
}
