// SPDX-License-Identifier: GPL-2.0-only
//! The figures that a list thread prints, as data (`published/*.toml`).
//!
//! Owns: the form of these files. In each table, `keys` name the values that identify a row, and
//! `columns` the figures of a row; a row may lack a figure.

use indexmap::IndexMap;
use serde::Deserialize;

use super::{ReproduceError, line_of};

/// The published figures of one thread.
#[derive(Clone, Debug)]
pub struct Published {
    /// Name of the thread, such as `o1-2002`.
    pub thread: String,
    pub title: String,
    pub date: String,
    pub tables: Vec<Table>,
}

/// One published table.
#[derive(Clone, Debug, Deserialize)]
pub struct Table {
    pub id: String,
    pub title: String,
    pub unit: String,
    pub keys: Vec<String>,
    pub columns: Vec<String>,
    pub rows: Vec<Row>,
}

/// One row: its keys, its figures, and remarks that are neither.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct Row(IndexMap<String, toml::Value>);

impl Row {
    /// Returns the value of a key as text.
    pub fn key(&self, key: &str) -> Option<String> {
        Some(match self.0.get(key)? {
            toml::Value::String(text) => text.clone(),
            other => other.to_string(),
        })
    }

    pub fn figure(&self, column: &str) -> Option<f64> {
        match self.0.get(column)? {
            toml::Value::Integer(n) => Some(*n as f64),
            toml::Value::Float(x) => Some(*x),
            _ => None,
        }
    }
}

#[derive(Deserialize)]
struct File {
    source: Source,
    table: Vec<Table>,
}

#[derive(Deserialize)]
struct Source {
    title: String,
    date: String,
}

impl Published {
    /// Parses the figures of the thread called `thread`. `file` names the file in messages.
    pub fn parse(thread: &str, file: &str, text: &str) -> Result<Published, ReproduceError> {
        let file: File = toml::from_str(text).map_err(|e| ReproduceError::File {
            file: file.to_owned(),
            line: line_of(text, e.span().unwrap_or(0..0).start),
            what: e.message().to_owned(),
        })?;
        let Source { title, date } = file.source;
        Ok(Published { thread: thread.to_owned(), title, date, tables: file.table })
    }

    pub fn table(&self, id: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.id == id)
    }

    /// Returns the number of published figures.
    pub fn figures(&self) -> usize {
        self.tables.iter().map(|table| table.figures().count()).sum()
    }
}

impl Table {
    /// Returns every figure as row number, column and value.
    pub fn figures(&self) -> impl Iterator<Item = (usize, &str, f64)> {
        self.rows.iter().enumerate().flat_map(move |(at, row)| {
            let figures = self.columns.iter();
            figures.filter_map(move |column| Some((at, column.as_str(), row.figure(column)?)))
        })
    }

    /// Returns the keys of a row with their values.
    pub fn keys_of(&self, row: usize) -> IndexMap<String, String> {
        let row = &self.rows[row];
        self.keys.iter().filter_map(|key| Some((key.clone(), row.key(key)?))).collect()
    }

    /// Returns the variables of a figure: the keys of its row, `column` and `table`.
    pub fn vars_of(&self, row: usize, column: &str) -> IndexMap<String, String> {
        let mut vars = self.keys_of(row);
        vars.insert("column".into(), column.into());
        vars.insert("table".into(), self.id.clone());
        vars
    }

    /// Returns the row whose keys have these values.
    pub fn find(&self, keys: &IndexMap<String, String>) -> Option<usize> {
        let fits = |row: &Row| self.keys.iter().all(|key| row.key(key).as_ref() == keys.get(key));
        self.rows.iter().position(fits)
    }
}
