// SPDX-License-Identifier: GPL-2.0-only
//! Reading a Perfetto trace's framing: a sequence of packets (field 1), each a well-formed protobuf message.

/// The packets of a trace; None if a length or a tag does not fit.
pub fn packets(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut packets = Vec::new();
    for (field, value) in fields(bytes)? {
        let packet = value.filter(|_| field == 1)?;
        fields(packet)?;
        packets.push(packet);
    }
    Some(packets)
}

/// A field's number and, if it has a length, its bytes.
type Field<'a> = (u64, Option<&'a [u8]>);

/// Field numbers, with the bytes of those that have a length.
fn fields(mut rest: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut all = Vec::new();
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        let value = match tag & 7 {
            0 => {
                varint(&mut rest)?;
                None
            }
            1 => take(&mut rest, 8).map(|_| None)?,
            2 => {
                let len = usize::try_from(varint(&mut rest)?).ok()?;
                Some(take(&mut rest, len)?)
            }
            5 => take(&mut rest, 4).map(|_| None)?,
            _ => return None,
        };
        all.push((tag >> 3, value));
    }
    Some(all)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    Some(head)
}
