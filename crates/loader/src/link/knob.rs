// SPDX-License-Identifier: GPL-2.0-only
//! Values of global variables as text: `slice_ns=20000000`, `mode=SMART`, `name="x"`.
//!
//! Owns: reading a value for a type, printing one, and suggesting names for a typo.
//! Does not: know where variables live (see `globals.rs`).

#[cfg(test)]
mod tests;

use crate::btf::{Btf, BtfKind, FieldRef, TypeId};

/// The reason why a text is not a value of a type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    #[error("`{text}` is no {ty}{}", if .hint.is_empty() { String::new() } else { format!(" ({})", .hint) })]
    NotA { text: String, ty: String, hint: String },
    #[error("{text} does not fit {ty} ({min}..={max})")]
    Range { text: String, ty: String, min: i128, max: i128 },
    #[error("a {ty} cannot be set as a whole; set its parts")]
    NotScalar { ty: String },
}

/// Longest `char` array, in bytes, that can be set from text.
const MAX_STRING: u64 = 1 << 20;

/// Parses `text` as a value of type `ty`; returns its bytes as memory holds them. Bitfields are not
/// handled here.
pub fn parse_value(btf: &Btf, ty: TypeId, text: &str) -> Result<Vec<u8>, ValueError> {
    let text = text.trim();
    let name = btf.plain_type_name(ty);
    let fail = |hint: &str| ValueError::NotA {
        text: text.to_owned(),
        ty: name.clone(),
        hint: hint.to_owned(),
    };
    let resolved = btf.resolve(ty).map_err(|_| fail("its type is malformed"))?;
    match btf.kind(resolved) {
        BtfKind::Int => parse_int_type(btf, resolved, text, &name),
        BtfKind::Enum | BtfKind::Enum64 => parse_enum(btf, resolved, text, &name),
        BtfKind::Array => parse_char_array(btf, resolved, text, &name),
        BtfKind::Ptr => Err(fail("pointers cannot be set")),
        _ => Err(ValueError::NotScalar { ty: name }),
    }
}

fn parse_int_type(btf: &Btf, ty: TypeId, text: &str, name: &str) -> Result<Vec<u8>, ValueError> {
    let not_a = |hint: &str| ValueError::NotA {
        text: text.to_owned(),
        ty: name.to_owned(),
        hint: hint.to_owned(),
    };
    let Some(info) = btf.int(ty) else {
        return Err(not_a(""));
    };
    let value = if info.boolean { parse_bool(text) } else { parse_int(text) };
    let hint = if info.boolean { "use true or false" } else { "" };
    let value = value.ok_or_else(|| not_a(hint))?;
    let bits = info.size.min(16) * 8;
    let (min, max) = if info.boolean {
        (0, 1)
    } else if info.signed {
        (i128::MIN >> (128 - bits), i128::MAX >> (128 - bits))
    } else if bits == 128 {
        (0, i128::MAX)
    } else {
        (0, (1i128 << bits) - 1)
    };
    if value < min || value > max {
        return Err(ValueError::Range { text: text.to_owned(), ty: name.to_owned(), min, max });
    }
    Ok(value.to_le_bytes()[..info.size.min(16) as usize].to_vec())
}

fn parse_enum(btf: &Btf, ty: TypeId, text: &str, name: &str) -> Result<Vec<u8>, ValueError> {
    let size = btf.size_of(ty).unwrap_or(4).min(8) as usize;
    if size == 0 {
        return Err(ValueError::NotScalar { ty: name.to_owned() });
    }
    let prefix = common_prefix(btf, ty);
    let is_named = |name: &str| name == text || short_name(name, prefix) == text;
    let value = match btf.enumerators(ty).find(|e| is_named(e.name)) {
        Some(found) => i128::from(found.value as i64),
        None => parse_int(text).ok_or_else(|| ValueError::NotA {
            text: text.to_owned(),
            ty: name.to_owned(),
            hint: format!("one of {}", list(enumerator_names(btf, ty))),
        })?,
    };
    // A number may use the whole signed and the whole unsigned range of the enum's size. The sign
    // in the enum's type tells only whether one of its named values is negative.
    let bits = 8 * size as u32;
    let (min, max) = (-(1i128 << (bits - 1)), (1i128 << bits) - 1);
    if value < min || value > max {
        return Err(ValueError::Range { text: text.to_owned(), ty: name.to_owned(), min, max });
    }
    Ok(value.to_le_bytes()[..size].to_vec())
}

/// Length in bytes of the prefix that all enumerators' names share, up to and including an
/// underscore.
fn common_prefix(btf: &Btf, ty: TypeId) -> usize {
    let mut names = btf.enumerators(ty).map(|e| e.name);
    let Some(first) = names.next() else { return 0 };
    let mut count = 1;
    let mut len = first.len();
    for name in names {
        let same = first.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
        len = len.min(same);
        count += 1;
    }
    if count < 2 { 0 } else { first[..len].rfind('_').map_or(0, |at| at + 1) }
}

/// An enumerator's name as a value of a knob: `TICKLE_OLD` is `old`, `NUMA_CONSOLIDATE__LOAD` is
/// `consolidate+load`, and `MODE_2_4` is `2.4`. An underscore between digits stands for a point,
/// because no identifier can hold a point.
fn short_name(name: &str, prefix: usize) -> String {
    let short = name.get(prefix..).filter(|s| !s.is_empty()).unwrap_or(name);
    if prefix == 0 {
        return name.to_owned();
    }
    let mut spelled = short.to_ascii_lowercase().replace("__", "+").into_bytes();
    for at in 1..spelled.len().saturating_sub(1) {
        let between_digits = spelled[at - 1].is_ascii_digit() && spelled[at + 1].is_ascii_digit();
        if spelled[at] == b'_' && between_digits {
            spelled[at] = b'.';
        }
    }
    String::from_utf8_lossy(&spelled).into_owned()
}

/// Short names of an enum's values, as knobs take them. `parse_value` takes whole names too.
pub fn enumerator_names(btf: &Btf, ty: TypeId) -> impl Iterator<Item = String> + '_ {
    let prefix = common_prefix(btf, ty);
    btf.enumerators(ty).map(move |e| short_name(e.name, prefix))
}

/// Parses a string for a `char` array. The rest of the array is zeroed; its last byte stays NUL.
fn parse_char_array(btf: &Btf, ty: TypeId, text: &str, name: &str) -> Result<Vec<u8>, ValueError> {
    let whole = ValueError::NotScalar { ty: name.to_owned() };
    let Some(array) = btf.array(ty) else {
        return Err(whole);
    };
    let len = u64::from(array.len);
    if !is_char(btf, array.elem) || len > MAX_STRING || len == 0 {
        return Err(whole);
    }
    let quoted = text.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
    let mut bytes = quoted.unwrap_or(text).as_bytes().to_vec();
    if bytes.len() as u64 >= len {
        return Err(ValueError::NotA {
            text: text.to_owned(),
            ty: name.to_owned(),
            hint: format!("at most {} bytes", len - 1),
        });
    }
    bytes.resize(len as usize, 0);
    Ok(bytes)
}

fn is_char(btf: &Btf, elem: TypeId) -> bool {
    let info = btf.resolve(elem).ok().and_then(|id| btf.int(id));
    info.is_some_and(|i| i.size == 1 && !i.boolean)
}

fn parse_bool(text: &str) -> Option<i128> {
    match text {
        "true" | "1" | "y" | "yes" | "on" => Some(1),
        "false" | "0" | "n" | "no" | "off" => Some(0),
        _ => None,
    }
}

/// Parses an integer, decimal or with the prefix `0x`, `0b` or `0o`; `_` may stand between digits.
pub fn parse_int(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        _ => (10, &lower[..]),
    };
    let clean: String = digits.chars().filter(|c| *c != '_').collect();
    if clean.starts_with(['+', '-']) {
        return None;
    }
    let value = i128::from_str_radix(&clean, radix).ok()?;
    Some(if negative { -value } else { value })
}

/// Longest run of equal values that is written out in an array.
const MAX_RUN_UNCOMPRESSED: usize = 7;

/// Formats the value that `bytes` hold, in full, because manifests record it.
pub fn format_value(btf: &Btf, ty: TypeId, bytes: &[u8]) -> String {
    format_within(btf, ty, bytes, None)
}

/// The structs and unions around a value. In a damaged type table one may contain itself.
struct Around<'a> {
    ty: TypeId,
    next: Option<&'a Around<'a>>,
}

impl Around<'_> {
    fn has(&self, ty: TypeId) -> bool {
        self.ty == ty || self.next.is_some_and(|next| next.has(ty))
    }
}

fn format_within(btf: &Btf, ty: TypeId, bytes: &[u8], around: Option<&Around>) -> String {
    let Ok(resolved) = btf.resolve(ty) else {
        return "?".to_owned();
    };
    match btf.kind(resolved) {
        BtfKind::Int => {
            let info = btf.int(resolved);
            let value = int_of(bytes, info.is_some_and(|i| i.signed));
            match info {
                Some(i) if i.boolean => (value != 0).to_string(),
                _ => value.to_string(),
            }
        }
        BtfKind::Enum | BtfKind::Enum64 => {
            let signed = btf.ty(resolved).is_ok_and(|t| t.kflag);
            let value = int_of(bytes, signed);
            let found = btf.enumerators(resolved).find(|e| {
                let wide = if signed { i128::from(e.value as i64) } else { i128::from(e.value) };
                wide == value
            });
            let prefix = common_prefix(btf, resolved);
            found.map_or_else(|| value.to_string(), |e| short_name(e.name, prefix))
        }
        BtfKind::Array => {
            let Some(array) = btf.array(resolved) else {
                return "?".to_owned();
            };
            if let Some(text) = text_of(bytes).filter(|_| is_char(btf, array.elem)) {
                return format!("\"{}\"", text.escape_debug());
            }
            let size = btf.size_of(array.elem).unwrap_or(0) as usize;
            if size == 0 {
                return "[]".to_owned();
            }
            let format = |part: &[u8]| format_within(btf, array.elem, part, around);
            format!("[{}]", runs(bytes.chunks_exact(size), format).join(", "))
        }
        BtfKind::Ptr => format!("{:#x}", int_of(bytes, false)),
        BtfKind::Struct | BtfKind::Union if around.is_some_and(|a| a.has(resolved)) => {
            "?".to_owned()
        }
        BtfKind::Struct | BtfKind::Union => {
            let around = Around { ty: resolved, next: around };
            let fields = btf.members(resolved).map(|m| {
                let from = (m.bit_off as usize / 8).min(bytes.len());
                let field = FieldRef {
                    ty: m.ty,
                    bit_off: m.bit_off.into(),
                    bitfield_bits: m.bitfield_bits,
                };
                let value = format_field_within(btf, field, &bytes[from..], Some(&around));
                format!("{}: {value}", m.name)
            });
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        _ => "?".to_owned(),
    }
}

/// Formats the value of a field. `unit` begins with the byte that holds the field's first bit.
pub fn format_field(btf: &Btf, field: FieldRef, unit: &[u8]) -> String {
    format_field_within(btf, field, unit, None)
}

fn format_field_within(btf: &Btf, field: FieldRef, unit: &[u8], around: Option<&Around>) -> String {
    let size = btf.size_of(field.ty).unwrap_or(0) as usize;
    if field.bitfield_bits == 0 {
        return format_within(btf, field.ty, unit.get(..size).unwrap_or_default(), around);
    }
    let resolved = btf.resolve(field.ty).ok();
    let signed = resolved.and_then(|ty| btf.int(ty)).is_some_and(|info| info.signed);
    let value = bitfield(unit, field, signed).to_le_bytes();
    format_value(btf, field.ty, &value[..size.min(16)])
}

/// Returns the text of `bytes` if they hold a C string and nothing but NULs after it.
fn text_of(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let is_rest_empty = bytes[end..].iter().all(|b| *b == 0);
    std::str::from_utf8(&bytes[..end]).ok().filter(|_| is_rest_empty)
}

/// Formats values, and replaces each run of more than `MAX_RUN_UNCOMPRESSED` equal ones by one
/// text: `0 x 500`. Equal bytes are formatted once, because the arrays of schedulers are large.
fn runs<'a>(
    values: impl Iterator<Item = &'a [u8]>,
    format: impl Fn(&[u8]) -> String,
) -> Vec<String> {
    let mut runs: Vec<(String, usize)> = Vec::new();
    let mut before = None;
    for bytes in values {
        match runs.last_mut() {
            Some((_, count)) if before == Some(bytes) => *count += 1,
            last => {
                let value = format(bytes);
                match last {
                    Some((same, count)) if *same == value => *count += 1,
                    _ => runs.push((value, 1)),
                }
            }
        }
        before = Some(bytes);
    }
    let text = |(value, count): (String, usize)| match count {
        0..=MAX_RUN_UNCOMPRESSED => vec![value; count],
        _ => vec![format!("{value} x {count}")],
    };
    runs.into_iter().flat_map(text).collect()
}

/// The integer that the little-endian `bytes` hold. Only the first 16 bytes count.
pub fn int_of(bytes: &[u8], signed: bool) -> i128 {
    let n = bytes.len().min(16);
    let fill = if signed && n > 0 && bytes[n - 1] & 0x80 != 0 { 0xff } else { 0 };
    let mut raw = [fill; 16];
    raw[..n].copy_from_slice(&bytes[..n]);
    i128::from_le_bytes(raw)
}

/// Returns the value of a bitfield. `unit` begins with the byte that holds the field's first bit.
pub fn bitfield(unit: &[u8], field: FieldRef, signed: bool) -> i128 {
    let first = (field.bit_off % 8) as usize;
    let bits = (field.bitfield_bits as usize).min(127);
    let is_set = |bit: usize| {
        let at = first + bit;
        unit.get(at / 8).is_some_and(|byte| byte & 1 << (at % 8) != 0)
    };
    let value = (0..bits).filter(|&bit| is_set(bit)).fold(0, |value, bit| value | 1i128 << bit);
    if signed && bits > 0 && is_set(bits - 1) { value - (1 << bits) } else { value }
}

/// Sets a bitfield. `unit` begins with the byte that holds the field's first bit; bits of the field
/// past the end of `unit` are dropped.
pub fn set_bitfield(unit: &mut [u8], field: FieldRef, value: i128) {
    let first = (field.bit_off % 8) as usize;
    for bit in 0..field.bitfield_bits as usize {
        let at = first + bit;
        let Some(byte) = unit.get_mut(at / 8) else {
            return;
        };
        let mask = 1u8 << (at % 8);
        let on = value.checked_shr(bit as u32).is_some_and(|rest| rest & 1 != 0);
        *byte = if on { *byte | mask } else { *byte & !mask };
    }
}

/// Returns up to five names that are close to `wanted`, the closest first.
pub fn closest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    const SHOWN: usize = 5;
    const MAX_NAMES: usize = 20_000;
    let limit = (wanted.chars().count() / 3).max(2);
    let lower = wanted.to_ascii_lowercase();
    let mut scored: Vec<(usize, &str)> = names
        .filter(|name| !name.is_empty() && name.len() <= 128)
        .take(MAX_NAMES)
        .filter_map(|name| {
            let candidate = name.to_ascii_lowercase();
            let distance = edit_distance(&lower, &candidate, limit);
            let contained = lower.len() > 2
                && (candidate.contains(&lower) || lower.contains(&candidate) && name.len() > 2);
            match distance {
                Some(d) => Some((d, name)),
                None if contained => Some((limit + 1, name)),
                None => None,
            }
        })
        .collect();
    scored.sort();
    scored.dedup();
    scored.into_iter().take(SHOWN).map(|(_, name)| name.to_owned()).collect()
}

/// Levenshtein distance if it is at most `limit`.
fn edit_distance(a: &str, b: &str, limit: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > limit || a.len() > 128 {
        return None;
    }
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let change = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().filter(|d| *d <= limit)
}

fn list(names: impl Iterator<Item = String>) -> String {
    const SHOWN: usize = 12;
    let all: Vec<String> = names.take(SHOWN + 1).collect();
    let text = all[..all.len().min(SHOWN)].join(", ");
    if all.len() > SHOWN { format!("{text}, ...") } else { text }
}
