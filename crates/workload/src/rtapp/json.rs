// SPDX-License-Identifier: GPL-2.0-only
//! A JSON parser for rt-app's files, which keeps repeated keys, their order, and the position of
//! everything.
//!
//! Owns: the syntax. It accepts what json-c accepts (comments, trailing commas, single quotes,
//! literals in any case), and a key without a value (`"suspend",`), which rt-app's own helper
//! repairs.
//! Does not: know rt-app's keys.

use crate::error::{SourcePlace, WorkloadError};

/// Maximum nesting depth, the same as json-c's. It also bounds the recursion of this parser.
pub const MAX_DEPTH: u32 = 32;

/// A position in one of the files of an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pos {
    pub file: u16,
    pub offset: u32,
}

/// A value and the position at which it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub pos: Pos,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A key without a value.
    Absent,
    Null,
    Bool(bool),
    /// An unquoted word that is not a literal: a number, or a range such as `2-3` in a list of
    /// CPUs.
    Number(String),
    String(String),
    Array(Vec<Node>),
    Object(Vec<Member>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    pub key: String,
    pub pos: Pos,
    pub node: Node,
}

impl Value {
    /// Returns the kind of value, for a message.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Absent => "without a value",
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        }
    }
}

/// Parses one file. `file` is the number of the file, which the positions contain.
pub fn parse(file: u16, name: &str, text: &str) -> Result<Node, WorkloadError> {
    if text.len() >= u32::MAX as usize {
        let (at, max) = (SourcePlace::file(name), u64::from(u32::MAX));
        return Err(WorkloadError::Limit { at, what: "size", value: text.len() as u64, max });
    }
    let mut reader = JsonReader { file, name, text, at: 0 };
    // Skip a byte order mark.
    reader.at = text.len() - text.trim_start_matches('\u{feff}').len();
    let node = reader.value(0)?;
    reader.space()?;
    match reader.peek() {
        None => Ok(node),
        Some(_) => Err(reader.error("the end of the file")),
    }
}

struct JsonReader<'a> {
    file: u16,
    name: &'a str,
    text: &'a str,
    at: usize,
}

impl JsonReader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn pos(&self) -> Pos {
        Pos { file: self.file, offset: self.at as u32 }
    }

    /// Returns an error at the current position, with the character found there and `expected`.
    fn error(&self, expected: &'static str) -> WorkloadError {
        let at = SourcePlace::in_text(self.name, self.text, self.at);
        let found = match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            None => "the end of the file".to_owned(),
            Some(c) => format!("{c:?}"),
        };
        WorkloadError::Syntax { at, found, expected }
    }

    /// Skips white space and comments.
    fn space(&mut self) -> Result<(), WorkloadError> {
        loop {
            let rest = &self.text[self.at..];
            let trimmed = rest.trim_start_matches([' ', '\t', '\r', '\n', '\x0b', '\x0c']);
            self.at += rest.len() - trimmed.len();
            if trimmed.starts_with("//") {
                self.at += trimmed.find('\n').unwrap_or(trimmed.len());
            } else if let Some(body) = trimmed.strip_prefix("/*") {
                let Some(end) = body.find("*/") else {
                    return Err(self.error("a comment with an end (*/)"));
                };
                self.at += end + 4;
            } else {
                return Ok(());
            }
        }
    }

    fn value(&mut self, depth: u32) -> Result<Node, WorkloadError> {
        self.space()?;
        let pos = self.pos();
        if depth >= MAX_DEPTH {
            return Err(self.error("something nested less than 32 levels deep"));
        }
        let value = match self.peek() {
            Some(b'{') => self.object(depth)?,
            Some(b'[') => self.array(depth)?,
            Some(b'"' | b'\'') => Value::String(self.string()?),
            _ => self.word()?,
        };
        Ok(Node { pos, value })
    }

    fn object(&mut self, depth: u32) -> Result<Value, WorkloadError> {
        self.at += 1;
        let mut members = Vec::new();
        loop {
            self.space()?;
            match self.peek() {
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::Object(members));
                }
                Some(b'"' | b'\'') => members.push(self.member(depth)?),
                _ => return Err(self.error("a key in quotes or }")),
            }
            self.separator(b'}', ", or }")?;
        }
    }

    fn member(&mut self, depth: u32) -> Result<Member, WorkloadError> {
        let pos = self.pos();
        let key = self.string()?;
        self.space()?;
        let node = match self.peek() {
            Some(b':') => {
                self.at += 1;
                self.value(depth + 1)?
            }
            Some(b',' | b'}') => Node { pos, value: Value::Absent },
            _ => return Err(self.error("a colon after the key")),
        };
        Ok(Member { key, pos, node })
    }

    fn array(&mut self, depth: u32) -> Result<Value, WorkloadError> {
        self.at += 1;
        let mut items = Vec::new();
        loop {
            self.space()?;
            if self.peek() == Some(b']') {
                self.at += 1;
                return Ok(Value::Array(items));
            }
            items.push(self.value(depth + 1)?);
            self.separator(b']', ", or ]")?;
        }
    }

    /// Skips a comma, or stops before the closing bracket.
    fn separator(&mut self, close: u8, expected: &'static str) -> Result<(), WorkloadError> {
        self.space()?;
        match self.peek() {
            Some(b',') => self.at += 1,
            Some(c) if c == close => {}
            _ => return Err(self.error(expected)),
        }
        Ok(())
    }

    fn string(&mut self) -> Result<String, WorkloadError> {
        let quote = self.peek();
        let open = self.at;
        self.at += 1;
        let mut out = String::new();
        while let Some(c) = self.text[self.at..].chars().next() {
            match c {
                c if Some(c as u32) == quote.map(u32::from) => {
                    self.at += 1;
                    return Ok(out);
                }
                '\n' => break,
                '\\' => self.escape(&mut out)?,
                c => {
                    out.push(c);
                    self.at += c.len_utf8();
                }
            }
        }
        self.at = open;
        Err(self.error("a string that ends on its line"))
    }

    fn escape(&mut self, out: &mut String) -> Result<(), WorkloadError> {
        let kind = self.text.as_bytes().get(self.at + 1).copied();
        let plain = match kind {
            Some(c @ (b'"' | b'\'' | b'\\' | b'/')) => c as char,
            Some(b'n') => '\n',
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'u') => {
                let digits = self.text.get(self.at + 2..self.at + 6);
                let code = digits.and_then(|d| u32::from_str_radix(d, 16).ok());
                let Some(code) = code else {
                    return Err(self.error("\\u and four hexadecimal digits"));
                };
                // Half of a surrogate pair is not a character. Names need no such pairs, so each
                // half becomes U+FFFD.
                out.push(char::from_u32(code).unwrap_or('\u{fffd}'));
                self.at += 6;
                return Ok(());
            }
            _ => return Err(self.error("one of the escapes of JSON")),
        };
        out.push(plain);
        self.at += 2;
        Ok(())
    }

    /// Parses a literal or a number. The caller checks the number.
    fn word(&mut self) -> Result<Value, WorkloadError> {
        let rest = &self.text.as_bytes()[self.at..];
        let in_word = |b: &&u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'+' | b'.' | b'_');
        let length = rest.iter().take_while(in_word).count();
        let word = &self.text[self.at..self.at + length];
        let value = match word.to_ascii_lowercase().as_str() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            _ if word.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+') => {
                Value::Number(word.to_owned())
            }
            _ => return Err(self.error("a value")),
        };
        self.at += length;
        Ok(value)
    }
}

#[cfg(test)]
mod tests;
