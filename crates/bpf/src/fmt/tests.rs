// SPDX-License-Identifier: GPL-2.0-only
use super::*;
use crate::mem::{ARENA_WINDOW, Memory};

fn mem() -> Memory {
    Memory::with_size(ARENA_WINDOW).expect("address space")
}

fn show(fmt: &str, args: &[u64]) -> Result<String, i64> {
    format(&mem(), fmt.as_bytes(), args, MAX_TEXT)
        .map(|text| String::from_utf8(text.kept).expect("ASCII"))
}

#[test]
fn numbers_print_as_in_c() {
    for (fmt, arg, text) in [
        ("%d", -5i64 as u64, "-5"),
        ("%d", 0xffff_ffff, "-1"),
        ("%i|", 7, "7|"),
        ("%u", u64::MAX, "4294967295"),
        ("%x", 0xdead_beef_0000_00ff, "ff"),
        ("%X", 0xabc, "ABC"),
        ("%ld", u64::MAX, "-1"),
        ("%lld", u64::MAX, "-1"),
        ("%llu", u64::MAX, "18446744073709551615"),
        ("%lx", u64::MAX, "ffffffffffffffff"),
        ("%llX", 0xff, "FF"),
        ("%5d|", 42, "   42|"),
        ("%-5d|", 42, "42   |"),
        ("%05d", -42i64 as u64, "-0042"),
        ("%+d", 42, "+42"),
        ("% d", 42, " 42"),
        ("%08llx", 0xbeef, "0000beef"),
        ("%c%%", u64::from(b'A'), "A%"),
        ("%3c", u64::from(b'A'), "  A"),
        ("%px", 0xffff_8800_0000_1000, "ffff880000001000"),
        ("%px", 1, "0000000000000001"),
        ("%p", 0, "0000000000000000"),
        ("%pS", 0x1234, "0x1234"),
        ("%pB,", 0x1234, "0x1234,"),
    ] {
        assert_eq!(show(fmt, &[arg]).as_deref(), Ok(text), "{fmt}");
    }
}

#[test]
fn pointers_are_hashed_alike() {
    let (a, b) = (show("%p", &[0xffff_8800_0000_1000]), show("%pK", &[0xffff_8800_0000_1000]));
    assert_eq!(a, b);
    let text = a.expect("prints");
    assert_eq!((text.len(), &text[..8]), (16, "00000000"));
    assert_ne!(text, "ffff880000001000");
}

#[test]
fn strings_come_from_guest_memory() {
    let mut mem = mem();
    let at = mem.alloc(64, 8).expect("alloc");
    mem.bytes_mut(at, 6).expect("writable").copy_from_slice(b"hello\0");
    let show = |fmt: &str, arg| {
        format(&mem, fmt.as_bytes(), &[arg], MAX_TEXT)
            .map(|text| String::from_utf8(text.kept).expect("ASCII"))
    };
    assert_eq!(show("<%s>", at).as_deref(), Ok("<hello>"));
    assert_eq!(show("<%8s>", at).as_deref(), Ok("<   hello>"));
    assert_eq!(show("<%-8s>", at).as_deref(), Ok("<hello   >"));
    assert_eq!(show("%pks.", at).as_deref(), Ok("hello."));
    assert_eq!(show("<%s>", 0).as_deref(), Ok("<>"), "a bad pointer is an empty string");
    assert_eq!(show("%pI4", at).as_deref(), Ok("104.101.108.108"));
    assert_eq!(show("%pi4", at).as_deref(), Ok("104.101.108.108"));
    assert_eq!(show("%pI6", at).as_deref(), Ok("6865:6c6c:6f00:0000:0000:0000:0000:0000"));
}

#[test]
fn malformed_formats_are_refused() {
    for (fmt, args) in [
        ("%d %d", &[1][..]),
        ("%", &[1]),
        ("%y", &[1]),
        ("%lls", &[1]),
        ("%sx", &[1]),
        ("%pQ", &[1]),
        ("%pI5", &[1]),
        ("%#x", &[1]),
        ("%hd", &[1]),
        ("bell \u{7}", &[]),
        ("%\u{e9}", &[1]),
    ] {
        assert_eq!(show(fmt, args), Err(EINVAL), "{fmt}");
    }
    assert_eq!(show("a\tb\n", &[]).as_deref(), Ok("a\tb\n"));
    assert_eq!(show("cut\0%d", &[]).as_deref(), Ok("cut"));
    assert_eq!(show("none", &[1, 2]).as_deref(), Ok("none"), "too many arguments are fine");
}

#[test]
fn long_strings_fill_the_argument_buffer() {
    let mut mem = mem();
    let at = mem.alloc(1000, 8).expect("alloc");
    mem.bytes_mut(at, 999).expect("writable").fill(b'x');
    let text = format(&mem, b"%s", &[at], MAX_TEXT).expect("cut");
    assert_eq!((text.len, text.kept.len()), (511, 511));
    assert_eq!(format(&mem, b"%s %s", &[at, at], MAX_TEXT), Err(ENOSPC));
    assert_eq!(format(&mem, b"%s %d", &[at, 1], MAX_TEXT), Err(ENOSPC));
}

#[test]
fn arguments_come_as_words_in_memory() {
    let mut mem = mem();
    let data = mem.alloc(96, 8).expect("alloc");
    mem.write(data, [3u64, 4]).expect("writable");
    assert_eq!(format_bstr(&mem, b"%d+%d", (data, 16), MAX_TEXT).expect("prints").kept, b"3+4");
    assert_eq!(format_bstr(&mem, b"%d", (data, 15), MAX_TEXT), Err(EINVAL));
    assert_eq!(format_bstr(&mem, b"%d", (data, 8 * 13), MAX_TEXT), Err(EINVAL));
    assert_eq!(format_bstr(&mem, b"%d", (0, 8), MAX_TEXT), Err(EINVAL));
    assert_eq!(format_bstr(&mem, b"plain", (0, 0), MAX_TEXT).expect("prints").kept, b"plain");
}

/// The length of a result must count the complete text, although the result keeps only the bytes
/// that fit. As in the kernel, a width above 2^23 - 1 must count as 2^23 - 1, and a width whose
/// digits overflow to a negative int must add no padding.
#[test]
fn wide_fields_count_in_full_and_keep_what_fits() {
    for (fmt, len) in [
        ("%70000d", 70_000),
        ("%-70000d", 70_000),
        ("%070000d", 70_000),
        ("%9000000d", (1 << 23) - 1),
        ("%4294967295d", 1),
        ("%px%9000000d", 16 + (1 << 23) - 1),
    ] {
        let args = vec![7; fmt.matches('%').count()];
        let text = format(&mem(), fmt.as_bytes(), &args, 20).expect("valid");
        assert_eq!((text.len, text.kept.len()), (len, 20.min(len as usize)), "{fmt}");
    }
    let text = format(&mem(), b"%-3d|%05d", &[1, 2], 6).expect("valid");
    assert_eq!((&text.kept[..], text.len), (&b"1  |00"[..], 9));
}
