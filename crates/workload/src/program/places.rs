// SPDX-License-Identifier: GPL-2.0-only
//! Places of a program's parts in its file, for errors that are found after parsing.
//!
//! Owns: a second walk over the file's text, because serde keeps no positions.
//! Does not: check anything. A part whose place is not known has the place of the whole file.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::SourcePlace;
use crate::rtapp::json::{self, Node, Value};

/// A part of a program that an error may concern.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// Entry of the list of this key (such as `thread`), or index 0 for a single value.
    Entry(&'static str, usize),
    /// Op of a thread template. Ops are counted in the order in which they are written; a loop
    /// comes before its body.
    Op { thread: usize, number: usize },
}

/// Byte offsets of a program's parts in its file.
#[derive(Clone, Debug, Default)]
pub struct Places {
    file: String,
    text: Arc<str>,
    /// Offset of each entry of a list, or of a single value, by the key of the document.
    entries: BTreeMap<String, Vec<usize>>,
    /// Offset of each op, by thread template and number (`Part::Op`); empty for an rt-app file.
    ops: Vec<Vec<usize>>,
    /// Places in the program of each entry of `guest`.
    pub(super) guests: Vec<Places>,
}

/// Two programs are equal if they mean the same, wherever they are written.
impl PartialEq for Places {
    fn eq(&self, _: &Places) -> bool {
        true
    }
}

impl Eq for Places {}

impl Places {
    /// Returns the places of a program in TOML. `text` must be correct TOML; otherwise no place is
    /// known.
    pub(super) fn of_toml(file: &str, text: &str) -> Places {
        let root = DeTable::parse(text);
        let members = root.as_ref().map_or(Vec::new(), |root| toml_members(root.get_ref()));
        Places::new(file, text.into(), &members)
    }

    /// Returns the places of a program in JSON. If the text is nested deeper than the
    /// parser of rt-app's files allows, no place is known.
    pub(super) fn of_json(file: &str, text: &str) -> Places {
        let root = json::parse(0, file, text);
        let members = root.as_ref().map_or(Vec::new(), |root| JsonElement(root).members());
        Places::new(file, text.into(), &members)
    }

    /// Returns the places of a program with these keys and values.
    fn new<E: Element>(file: &str, text: Arc<str>, members: &[(String, E)]) -> Places {
        let mut places = Places { file: file.to_owned(), text, ..Places::default() };
        for (key, value) in members {
            let list = value.entries().unwrap_or_else(|| vec![*value]);
            let offsets = list.iter().map(|entry| entry.offset()).collect();
            places.entries.insert(key.clone(), offsets);
            if key == "thread" {
                places.ops = list.iter().map(|thread| ops_of(*thread)).collect();
            }
            if key == "guest" {
                let of_guest = |guest: &E| {
                    let program = guest.get("program").map_or(Vec::new(), E::members);
                    Places::new(file, places.text.clone(), &program)
                };
                places.guests = list.iter().map(of_guest).collect();
            }
        }
        places
    }

    /// Returns the places of a program from an rt-app file, whose tasks begin at these offsets. The
    /// ops of a task are not known one by one.
    pub(crate) fn of_rtapp(file: &str, text: &str, tasks: Vec<usize>) -> Places {
        let entries = BTreeMap::from([("thread".to_owned(), tasks)]);
        Places { file: file.to_owned(), text: text.into(), entries, ..Places::default() }
    }

    /// Returns the name of the file, if the program comes from one.
    pub(super) fn file(&self) -> Option<&str> {
        (!self.file.is_empty()).then_some(&self.file)
    }

    /// Returns the place of a part, if the file has it. An op whose place is not known has that of
    /// its thread.
    pub(super) fn of(&self, part: Part) -> Option<SourcePlace> {
        let entry = |key, index| self.entries.get(key).and_then(|list| list.get(index));
        let offset = match part {
            Part::Entry(key, index) => entry(key, index)?,
            Part::Op { thread, number } => {
                let op = self.ops.get(thread).and_then(|ops| ops.get(number));
                op.or_else(|| entry("thread", thread))?
            }
        };
        Some(SourcePlace::in_text(&self.file, &self.text, *offset))
    }
}

/// A table or list in a parsed document: a thread, an op, or a list of ops.
trait Element: Copy {
    fn offset(self) -> usize;
    /// Returns the value of `key` if this element is a table with that key.
    fn get(self, key: &str) -> Option<Self>;
    /// Returns the keys and values if this element is a table.
    fn members(self) -> Vec<(String, Self)>;
    /// Returns the entries if this element is a list.
    fn entries(self) -> Option<Vec<Self>>;
}

#[derive(Clone, Copy)]
struct TomlElement<'a>(&'a Spanned<DeValue<'a>>);

impl Element for TomlElement<'_> {
    fn offset(self) -> usize {
        self.0.span().start
    }

    fn get(self, key: &str) -> Option<Self> {
        self.0.get_ref().as_table()?.get(key).map(TomlElement)
    }

    fn members(self) -> Vec<(String, Self)> {
        self.0.get_ref().as_table().map_or(Vec::new(), toml_members)
    }

    fn entries(self) -> Option<Vec<Self>> {
        Some(self.0.get_ref().as_array()?.iter().map(TomlElement).collect())
    }
}

fn toml_members<'a>(table: &'a DeTable<'a>) -> Vec<(String, TomlElement<'a>)> {
    table.iter().map(|(key, value)| (key.get_ref().to_string(), TomlElement(value))).collect()
}

#[derive(Clone, Copy)]
struct JsonElement<'a>(&'a Node);

impl Element for JsonElement<'_> {
    fn offset(self) -> usize {
        self.0.pos.offset as usize
    }

    fn get(self, key: &str) -> Option<Self> {
        let Value::Object(members) = &self.0.value else { return None };
        members.iter().find(|m| m.key == key).map(|m| JsonElement(&m.node))
    }

    fn members(self) -> Vec<(String, Self)> {
        let Value::Object(members) = &self.0.value else { return Vec::new() };
        members.iter().map(|m| (m.key.clone(), JsonElement(&m.node))).collect()
    }

    fn entries(self) -> Option<Vec<Self>> {
        let Value::Array(list) = &self.0.value else { return None };
        Some(list.iter().map(JsonElement).collect())
    }
}

/// Returns the offsets of all ops of a thread.
fn ops_of<E: Element>(thread: E) -> Vec<usize> {
    // Returns the ops of a thread, a loop or a phase, the last first.
    let body = |owner: E| {
        let mut ops = owner.get("ops").and_then(E::entries).unwrap_or_default();
        ops.reverse();
        ops
    };
    let (mut offsets, mut todo) = (Vec::new(), body(thread));
    while let Some(op) = todo.pop() {
        offsets.push(op.offset());
        todo.extend(["loop", "phase"].iter().filter_map(|key| op.get(key)).flat_map(body));
    }
    offsets
}
