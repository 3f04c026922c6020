// SPDX-License-Identifier: GPL-2.0-only
//! Flat tables as Parquet files.
//!
//! Owns: the subset of the format that scxlab needs: columns of texts, integers, floats and truth
//! values, plainly encoded, compressed with gzip, one page per column and group of rows. Every
//! reader of Parquet reads such files; `read` reads only them.
//! The crates `parquet` and `arrow` do the same and much more, but their licence (Apache-2.0 alone)
//! does not allow linking with GPL-2.0-only.
//! Models: apache/parquet-format 2.x (parquet.thrift, Encodings.md).

mod read;
#[cfg(test)]
mod tests;
mod thrift;
mod write;

pub use read::{read, read_columns};
pub use write::write;

/// A table: columns of equal length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    pub columns: Vec<Column>,
    /// Names and values that describe the table.
    pub notes: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    pub name: String,
    pub values: Values,
}

/// The values of a column; None: absent.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    Text(Vec<Option<String>>),
    Int(Vec<Option<i64>>),
    Float(Vec<Option<f64>>),
    Bool(Vec<Option<bool>>),
}

/// Reason why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParquetError {
    #[error("it is no Parquet file, or its end is missing")]
    NoParquet,
    #[error("damaged: {0}")]
    Damaged(&'static str),
    #[error("{0}; scxlab reads only Parquet files of the form that it writes")]
    Foreign(String),
}

impl Values {
    pub fn len(&self) -> usize {
        match self {
            Values::Text(values) => values.len(),
            Values::Int(values) => values.len(),
            Values::Float(values) => values.len(),
            Values::Bool(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `len` nulls of the same type.
    pub fn nulls(&self, len: usize) -> Values {
        match self {
            Values::Text(_) => Values::Text(vec![None; len]),
            Values::Int(_) => Values::Int(vec![None; len]),
            Values::Float(_) => Values::Float(vec![None; len]),
            Values::Bool(_) => Values::Bool(vec![None; len]),
        }
    }

    /// Cuts the column, or appends nulls, so that it has `len` values.
    pub fn resize(&mut self, len: usize) {
        match self {
            Values::Text(values) => values.resize(len, None),
            Values::Int(values) => values.resize(len, None),
            Values::Float(values) => values.resize(len, None),
            Values::Bool(values) => values.resize(len, None),
        }
    }

    /// Returns the values at these places, in their order; null for no place.
    pub fn gather(&self, places: &[Option<usize>]) -> Values {
        fn pick<T: Clone>(all: &[Option<T>], places: &[Option<usize>]) -> Vec<Option<T>> {
            places.iter().map(|place| place.and_then(|place| all[place].clone())).collect()
        }
        match self {
            Values::Text(values) => Values::Text(pick(values, places)),
            Values::Int(values) => Values::Int(pick(values, places)),
            Values::Float(values) => Values::Float(pick(values, places)),
            Values::Bool(values) => Values::Bool(pick(values, places)),
        }
    }

    /// Appends a column; false, and nothing is done, if its type is another one.
    pub fn append(&mut self, more: Values) -> bool {
        match (self, more) {
            (Values::Text(all), Values::Text(more)) => all.extend(more),
            (Values::Int(all), Values::Int(more)) => all.extend(more),
            (Values::Float(all), Values::Float(more)) => all.extend(more),
            (Values::Bool(all), Values::Bool(more)) => all.extend(more),
            _ => return false,
        }
        true
    }
}

impl Table {
    pub fn column(&self, name: &str) -> Option<&Values> {
        self.columns.iter().find(|column| column.name == name).map(|column| &column.values)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, |column| column.values.len())
    }
}

/// Marks the begin and the end of a file.
const MAGIC: &[u8; 4] = b"PAR1";

/// Numbers of physical types, encodings, codecs and kinds of pages in the format.
const BOOLEAN: i64 = 0;
const INT64: i64 = 2;
const DOUBLE: i64 = 5;
const BYTE_ARRAY: i64 = 6;
const PLAIN: i64 = 0;
const RLE: i64 = 3;
const GZIP: i64 = 2;
const DATA_PAGE: i64 = 0;
const OPTIONAL: i64 = 1;
/// Converted type of text.
const UTF8: i64 = 0;

impl Values {
    fn physical_type(&self) -> i64 {
        match self {
            Values::Text(_) => BYTE_ARRAY,
            Values::Int(_) => INT64,
            Values::Float(_) => DOUBLE,
            Values::Bool(_) => BOOLEAN,
        }
    }
}
