// SPDX-License-Identifier: GPL-2.0-only
//! A TOML reader whose errors name the file, the line and the key.
//!
//! Owns: the walk over a parsed document: a key is taken once, and a key left over is an error.
//! Does not: know the meaning of any key. Machine files and cost tables share it.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use crate::machine::MachineError;

/// A document's name and text, which turn a byte offset into `file:line`.
#[derive(Clone, Copy)]
pub(crate) struct Document<'a> {
    pub file: &'a str,
    text: &'a str,
}

impl<'a> Document<'a> {
    pub fn parse(file: &'a str, text: &'a str) -> Result<Table<'a>, MachineError> {
        let document = Document { file, text };
        match DeTable::parse(text) {
            Ok(root) => {
                let span = root.span();
                Ok(Table { document, path: String::new(), span, entries: root.into_inner() })
            }
            Err(error) => {
                Err(document.error(&error.span().unwrap_or(0..0), error.message().to_owned()))
            }
        }
    }

    pub fn error(&self, span: &Range<usize>, what: impl Into<String>) -> MachineError {
        MachineError::File { file: self.file.to_owned(), line: self.line(span), what: what.into() }
    }

    pub fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.as_bytes().get(..span.start).unwrap_or(self.text.as_bytes());
        1 + before.iter().filter(|&&b| b == b'\n').count()
    }
}

/// A table from which keys are taken one by one.
pub(crate) struct Table<'a> {
    pub document: Document<'a>,
    /// Dotted name; empty for the document itself.
    pub path: String,
    pub span: Range<usize>,
    entries: DeTable<'a>,
}

/// A value with its dotted name and its place in the document.
pub(crate) struct Item<'a> {
    pub document: Document<'a>,
    pub path: String,
    pub span: Range<usize>,
    value: DeValue<'a>,
}

impl<'a> Table<'a> {
    /// Takes `key` out, if it is present.
    pub fn take(&mut self, key: &str) -> Option<Item<'a>> {
        let (_, value) = self.entries.remove_entry(key)?;
        Some(item(self.document, self.join(key), value))
    }

    /// Takes `key` out. Its absence is an error.
    pub fn require(&mut self, key: &str) -> Result<Item<'a>, MachineError> {
        self.take(key).ok_or_else(|| self.error(format!("missing key \"{}\"", self.join(key))))
    }

    /// Returns an error if a key was not taken. `known` lists the possible keys for the message.
    pub fn finish(self, known: &[&str]) -> Result<(), MachineError> {
        match self.entries.iter().next() {
            None => Ok(()),
            Some((key, _)) => {
                let what = format!(
                    "unknown key \"{}\"; possible here: {}",
                    self.join(key.get_ref()),
                    known.join(", ")
                );
                Err(self.document.error(&key.span(), what))
            }
        }
    }

    pub fn error(&self, what: impl Into<String>) -> MachineError {
        self.document.error(&self.span, what)
    }

    fn join(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

fn item<'a>(document: Document<'a>, path: String, value: Spanned<DeValue<'a>>) -> Item<'a> {
    let span = value.span();
    Item { document, path, span, value: value.into_inner() }
}

impl<'a> Item<'a> {
    pub fn table(self) -> Result<Table<'a>, MachineError> {
        match self.value {
            DeValue::Table(entries) => {
                Ok(Table { document: self.document, path: self.path, span: self.span, entries })
            }
            ref other => Err(self.mismatch("a table", other)),
        }
    }

    pub fn array(self) -> Result<Vec<Item<'a>>, MachineError> {
        match self.value {
            DeValue::Array(values) => {
                let (document, path) = (self.document, self.path);
                let at = |(i, value)| item(document, format!("{path}[{i}]"), value);
                Ok(values.into_iter().enumerate().map(at).collect())
            }
            ref other => Err(self.mismatch("an array", other)),
        }
    }

    pub fn string(self) -> Result<String, MachineError> {
        match self.value {
            DeValue::String(text) => Ok(text.into_owned()),
            ref other => Err(self.mismatch("a string", other)),
        }
    }

    pub fn boolean(&self) -> Result<bool, MachineError> {
        match self.value {
            DeValue::Boolean(value) => Ok(value),
            ref other => Err(self.mismatch("true or false", other)),
        }
    }

    /// Returns a non-negative integer up to `max`.
    pub fn integer(&self, max: u64) -> Result<u64, MachineError> {
        let DeValue::Integer(ref digits) = self.value else {
            return Err(self.mismatch("an integer", &self.value));
        };
        match to_u64(digits) {
            Some(value) if value <= max => Ok(value),
            _ => Err(self.error(format!("{} is {digits}; it must be in 0..={max}", self.path))),
        }
    }

    pub fn is_table(&self) -> bool {
        self.value.is_table()
    }

    pub fn error(&self, what: impl Into<String>) -> MachineError {
        self.document.error(&self.span, what)
    }

    fn mismatch(&self, wanted: &str, got: &DeValue<'_>) -> MachineError {
        self.error(format!("{} must be {wanted}, not {}", self.path, got.type_str()))
    }
}

fn to_u64(digits: &DeInteger<'_>) -> Option<u64> {
    u64::from_str_radix(digits.as_str(), digits.radix()).ok()
}
