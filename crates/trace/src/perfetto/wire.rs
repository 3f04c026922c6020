// SPDX-License-Identifier: GPL-2.0-only
//! The fields of an encoded message (protobuf's wire format), without copies.
//!
//! Owns: the bounds of fields. Does not: know messages (see `schema.rs`).
//! Models: <https://protobuf.dev/programming-guides/encoding/>. Groups, which Perfetto does not
//! use, are refused.

use thiserror::Error;

/// The content of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire<'a> {
    Varint(u64),
    /// A text, a message, or numbers without tags.
    Bytes(&'a [u8]),
    /// A number of four or eight bytes, which no message of `schema.rs` has.
    Fixed,
}

/// The bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a field is cut off or has no valid type")]
pub struct Broken;

/// Iterates over the fields of a message: number and content. The first broken field is the last.
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn of(message: &'a [u8]) -> Fields<'a> {
        Fields { rest: message }
    }

    fn take(&mut self) -> Option<(u32, Wire<'a>)> {
        let tag = varint(&mut self.rest)?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| *number != 0)?;
        let content = match tag & 7 {
            0 => Wire::Varint(varint(&mut self.rest)?),
            1 => self.fixed(8)?,
            2 => {
                let length = usize::try_from(varint(&mut self.rest)?).ok()?;
                let (bytes, rest) = self.rest.split_at_checked(length)?;
                self.rest = rest;
                Wire::Bytes(bytes)
            }
            5 => self.fixed(4)?,
            _ => return None,
        };
        Some((number, content))
    }

    fn fixed(&mut self, length: usize) -> Option<Wire<'a>> {
        self.rest = self.rest.get(length..)?;
        Some(Wire::Fixed)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Wire<'a>), Broken>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.take();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field.ok_or(Broken))
    }
}

/// Reads a number from the front of `bytes`; None if it is cut off or longer than ten bytes. Bits
/// beyond 64 are ignored, as by other readers.
#[inline]
pub fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            *bytes = &bytes[at + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quick_protobuf::Writer;

    use super::*;

    fn fields(message: &[u8]) -> Vec<Result<(u32, Wire<'_>), Broken>> {
        Fields::of(message).collect()
    }

    #[test]
    fn each_type_has_its_bounds() {
        let message = b"\x08\x96\x01\x12\x02ab\x19ABCDEFGH\x25ABCD\x28\x07";
        let expected = [
            Ok((1, Wire::Varint(150))),
            Ok((2, Wire::Bytes(b"ab"))),
            Ok((3, Wire::Fixed)),
            Ok((4, Wire::Fixed)),
            Ok((5, Wire::Varint(7))),
        ];
        assert_eq!(fields(message), expected);
        for end in 0..message.len() {
            let cut = fields(&message[..end]);
            let whole = cut.iter().filter(|field| field.is_ok()).count();
            assert_eq!(cut[..whole], expected[..whole], "cut at {end}");
            assert!(cut.len() <= whole + 1, "one error at most");
        }
    }

    #[test]
    fn groups_field_0_and_huge_lengths_are_broken() {
        assert_eq!(fields(b"\x0b"), [Err(Broken)]);
        assert_eq!(fields(b"\x00\x00"), [Err(Broken)]);
        assert_eq!(fields(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a"), [Err(Broken)]);
    }

    proptest! {
        #[test]
        fn numbers_come_back(value: u64, rest: Vec<u8>) {
            let mut bytes = Vec::new();
            Writer::new(&mut bytes).write_varint(value).unwrap();
            bytes.extend(&rest);
            let mut left = bytes.as_slice();
            prop_assert_eq!(varint(&mut left), Some(value));
            prop_assert_eq!(left, &rest[..]);
        }

        #[test]
        fn any_bytes_end(bytes: Vec<u8>) {
            prop_assert!(fields(&bytes).len() <= bytes.len());
        }
    }
}
