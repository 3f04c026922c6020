// SPDX-License-Identifier: GPL-2.0-only
//! Typed access to the members of a JSON object, with error messages that name key and place.
//!
//! Owns: the conversion of JSON values to numbers, texts and times. If a key is repeated that may
//! occur only once, `get` returns its last member, as in json-c.

use super::json::{Member, Node, Pos, Value};
use crate::error::{SourcePlace, WorkloadError};

/// The files of an input, from which `place` finds line and column of a position, and the notes
/// collected so far.
pub struct Source<'a> {
    pub files: &'a [(&'a str, &'a str)],
    pub notes: Vec<String>,
}

/// Maximum number of notes that are kept.
const MAX_NOTES: usize = 1000;

/// The longest time in a file, in microseconds. It equals the limit of a program, `MAX_NANOS`.
pub const MAX_MICROS: i64 = 1_000_000_000_000_000;

impl Source<'_> {
    pub fn place(&self, pos: Pos) -> SourcePlace {
        match self.files.get(usize::from(pos.file)) {
            Some((name, text)) => SourcePlace::in_text(name, text, pos.offset as usize),
            None => SourcePlace::default(),
        }
    }

    /// Adds a note about a key or value of the file that is accepted but not simulated.
    pub fn note(&mut self, pos: Pos, text: impl AsRef<str>) {
        match self.notes.len() {
            // The number of notes is bounded, because finding a place counts lines, which is slow
            // in a file full of notes.
            MAX_NOTES => self.notes.push("further notes are left out".to_owned()),
            n if n > MAX_NOTES => {}
            _ => self.notes.push(format!("{}: {}", self.place(pos), text.as_ref())),
        }
    }

    pub fn invalid(&self, pos: Pos, problem: impl Into<String>) -> WorkloadError {
        WorkloadError::Invalid { at: self.place(pos), problem: problem.into() }
    }

    pub fn wrong_type(&self, key: &str, node: &Node, expected: &'static str) -> WorkloadError {
        let (at, found) = (self.place(node.pos), node.value.kind());
        WorkloadError::WrongType { at, key: key.to_owned(), found, expected }
    }

    pub fn out_of_range(
        &self,
        key: &str,
        node: &Node,
        allowed: impl Into<String>,
    ) -> WorkloadError {
        let value = match &node.value {
            Value::Number(text) => text.clone(),
            Value::String(text) => format!("\"{text}\""),
            other => other.kind().to_owned(),
        };
        let at = self.place(node.pos);
        WorkloadError::OutOfRange { at, key: key.to_owned(), value, allowed: allowed.into() }
    }

    pub fn object<'n>(&self, key: &str, node: &'n Node) -> Result<&'n [Member], WorkloadError> {
        match &node.value {
            Value::Object(members) => Ok(members),
            _ => Err(self.wrong_type(key, node, "an object")),
        }
    }

    pub fn string<'n>(&self, key: &str, node: &'n Node) -> Result<&'n str, WorkloadError> {
        match &node.value {
            Value::String(text) => Ok(text),
            _ => Err(self.wrong_type(key, node, "a string")),
        }
    }

    pub fn bool(&self, key: &str, node: &Node) -> Result<bool, WorkloadError> {
        match &node.value {
            Value::Bool(value) => Ok(*value),
            _ => Err(self.wrong_type(key, node, "true or false")),
        }
    }

    /// Parses a whole number from `min` to `max`.
    pub fn int(&self, key: &str, node: &Node, min: i64, max: i64) -> Result<i64, WorkloadError> {
        let Value::Number(text) = &node.value else {
            return Err(self.wrong_type(key, node, "a whole number"));
        };
        let parsed = text.strip_prefix('+').unwrap_or(text).parse::<i64>().ok();
        match parsed.filter(|n| (min..=max).contains(n)) {
            Some(n) => Ok(n),
            None => {
                let allowed = format!("a whole number from {min} to {max}");
                Err(self.out_of_range(key, node, allowed))
            }
        }
    }

    /// Parses a time in microseconds and returns it in nanoseconds.
    pub fn micros(&self, key: &str, node: &Node) -> Result<u64, WorkloadError> {
        let micros = self.int(key, node, 0, MAX_MICROS)?;
        Ok(micros.unsigned_abs().saturating_mul(1000))
    }
}

/// Returns the last member with that key.
pub fn get<'n>(members: &'n [Member], key: &str) -> Option<&'n Member> {
    members.iter().rev().find(|m| m.key == key)
}
