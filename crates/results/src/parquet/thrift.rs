// SPDX-License-Identifier: GPL-2.0-only
//! Thrift's compact protocol, in which Parquet has its metadata: values as trees.

use std::collections::BTreeMap;

use super::ParquetError;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Bool(bool),
    /// An integer of 16, 32 or 64 bits. The encoding is the same; `Int` is written as 64 bits,
    /// `Int32` as 32.
    Int(i64),
    Int32(i64),
    Float(f64),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Struct(BTreeMap<i16, Value>),
}

/// Type numbers of the protocol.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const I8: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const F64: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const STRUCT: u8 = 12;

/// Deepest nesting that is read.
const DEPTH_MAX: usize = 16;

impl Value {
    pub fn text(text: &str) -> Value {
        Value::Bytes(text.as_bytes().to_vec())
    }

    pub fn structure(fields: impl IntoIterator<Item = (i16, Value)>) -> Value {
        Value::Struct(fields.into_iter().collect())
    }

    fn kind(&self) -> u8 {
        match self {
            Value::Bool(true) => TRUE,
            Value::Bool(false) => FALSE,
            Value::Int(_) => I64,
            Value::Int32(_) => I32,
            Value::Float(_) => F64,
            Value::Bytes(_) => BINARY,
            Value::List(_) => LIST,
            Value::Struct(_) => STRUCT,
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            // The type of a field holds a truth value.
            Value::Bool(_) => {}
            Value::Int(n) | Value::Int32(n) => varint(out, zigzag(*n)),
            Value::Float(x) => out.extend(x.to_le_bytes()),
            Value::Bytes(bytes) => {
                varint(out, bytes.len() as u64);
                out.extend(bytes);
            }
            Value::List(values) => {
                let kind = values.first().map_or(STRUCT, Value::kind);
                match u8::try_from(values.len()) {
                    Ok(len) if len < 15 => out.push(len << 4 | kind),
                    _ => {
                        out.push(0xf0 | kind);
                        varint(out, values.len() as u64);
                    }
                }
                values.iter().for_each(|value| value.encode(out));
            }
            Value::Struct(fields) => {
                let mut last = 0;
                for (id, value) in fields {
                    // Ids here are small and rise, so that each difference fits four bits.
                    out.push(((id - last) as u8) << 4 | value.kind());
                    value.encode(out);
                    last = *id;
                }
                out.push(0);
            }
        }
    }

    pub fn field(&self, id: i16) -> Option<&Value> {
        match self {
            Value::Struct(fields) => fields.get(&id),
            _ => None,
        }
    }

    pub fn int(&self, id: i16) -> Option<i64> {
        match self.field(id) {
            Some(Value::Int(n) | Value::Int32(n)) => Some(*n),
            _ => None,
        }
    }

    pub fn list(&self, id: i16) -> Option<&[Value]> {
        match self.field(id) {
            Some(Value::List(values)) => Some(values),
            _ => None,
        }
    }

    pub fn string(&self, id: i16) -> Option<String> {
        match self.field(id) {
            Some(Value::Bytes(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }
}

fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

pub fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Bytes that are read from the front.
pub struct Bytes<'a>(pub &'a [u8]);

const SHORT: ParquetError = ParquetError::Damaged("its metadata ends too early");

impl<'a> Bytes<'a> {
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], ParquetError> {
        let (front, rest) = self.0.split_at_checked(len).ok_or(SHORT)?;
        self.0 = rest;
        Ok(front)
    }

    pub fn byte(&mut self) -> Result<u8, ParquetError> {
        Ok(self.take(1)?[0])
    }

    pub fn varint(&mut self) -> Result<u64, ParquetError> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(n);
            }
        }
        Err(ParquetError::Damaged("a number in its metadata is too long"))
    }

    fn int(&mut self) -> Result<i64, ParquetError> {
        let n = self.varint()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    pub fn structure(&mut self) -> Result<Value, ParquetError> {
        self.value(STRUCT, DEPTH_MAX)
    }

    fn value(&mut self, kind: u8, depth: usize) -> Result<Value, ParquetError> {
        let deeper = depth.checked_sub(1).ok_or(ParquetError::Damaged("its metadata is too deep"));
        Ok(match kind {
            TRUE | FALSE => Value::Bool(kind == TRUE),
            I8 => Value::Int(i64::from(self.byte()? as i8)),
            I16 | I32 | I64 => Value::Int(self.int()?),
            F64 => Value::Float(f64::from_le_bytes(self.take(8)?.try_into().expect("8 bytes"))),
            BINARY => {
                let len = self.varint()?;
                Value::Bytes(self.take(usize::try_from(len).map_err(|_| SHORT)?)?.to_vec())
            }
            LIST | SET => {
                let depth = deeper?;
                let head = self.byte()?;
                let len = match head >> 4 {
                    15 => self.varint()?,
                    len => u64::from(len),
                };
                let kind = head & 15;
                // Each value but a truth value takes a byte at least.
                if len > self.0.len() as u64 {
                    return Err(SHORT);
                }
                let mut values = Vec::new();
                for _ in 0..len {
                    values.push(match kind {
                        TRUE | FALSE => Value::Bool(self.byte()? == TRUE),
                        kind => self.value(kind, depth)?,
                    });
                }
                Value::List(values)
            }
            STRUCT => {
                let depth = deeper?;
                let (mut fields, mut last) = (BTreeMap::new(), 0i16);
                loop {
                    let head = self.byte()?;
                    if head == 0 {
                        return Ok(Value::Struct(fields));
                    }
                    let id = match head >> 4 {
                        0 => i16::try_from(self.int()?).map_err(|_| SHORT)?,
                        more => last.checked_add(i16::from(more)).ok_or(SHORT)?,
                    };
                    fields.insert(id, self.value(head & 15, depth)?);
                    last = id;
                }
            }
            _ => return Err(ParquetError::Damaged("its metadata has an unknown type")),
        })
    }
}
