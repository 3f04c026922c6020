// SPDX-License-Identifier: GPL-2.0-only
//! The store: finished cells as Parquet files in a folder.
//!
//! ```text
//! store.json              format and simulator, written first
//! cells/HASH.parquet      a batch of finished cells; HASH is that of the file's content
//! results.parquet         the table of the sweep that ran last (`table.rs`)
//! ```
//!
//! Owns: the layout (`docs/reference/sweep-store.md`), the refusal of other versions, the merging
//! of small files. A file appears under its name only when it is complete, and files are only ever
//! added or merged, so that the store is valid whenever its writer is killed. A writer that is
//! killed while it merges may leave a cell in two files; both have the same values.

mod place;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use scxlab_lab::sim::SIMULATOR;
use scxlab_machine::hash::hash_bytes;
use scxlab_results::parquet::{self, Column, Table};
use serde::{Deserialize, Serialize};

use crate::SweepError;
use crate::cell::{self, CellResult, SEED, SETUP};
use crate::plan::CellKey;
pub use place::{LocalFolder, Place};

/// Version of the layout of a store. A reader of this version reads no other one.
pub const FORMAT: u32 = 1;

/// Name of the file with the table of results.
pub const RESULTS: &str = "results.parquet";

const ABOUT: &str = "store.json";
const CELLS: &str = "cells";

/// Number of files above which small ones are merged.
const FILES_MAX: usize = 256;

/// Number of rows from which on a file is not merged any more, so that each cell is rewritten a few
/// times at most.
const ROWS_LARGE: usize = 1 << 15;

/// A folder of finished cells.
pub struct Store {
    place: Box<dyn Place>,
}

/// All that decides whether two programs may write into one store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abi {
    pub format: u32,
    pub version: String,
    /// Hash of the sources of everything that decides a simulated run.
    pub simulator: String,
}

impl Abi {
    /// Returns the `Abi` of this program.
    pub fn this() -> Abi {
        Abi {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            simulator: SIMULATOR.to_owned(),
        }
    }
}

impl std::fmt::Display for Abi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Abi { format, version, simulator } = self;
        write!(f, "{version} (simulator {simulator}, format {format})")
    }
}

impl Store {
    /// Opens the store in a folder of this host, or makes one in a new or empty folder.
    pub fn open(folder: &Path) -> Result<Store, SweepError> {
        Store::at(Box::new(LocalFolder::open(folder)?))
    }

    /// Opens the store at a place, or makes one at an empty place.
    pub fn at(place: Box<dyn Place>) -> Result<Store, SweepError> {
        let store = Store { place };
        store.check_or_make()?;
        store.merge()?;
        Ok(store)
    }

    /// Refuses a place that is neither empty nor a store of this version; makes a store in an empty
    /// one.
    fn check_or_make(&self) -> Result<(), SweepError> {
        let this = Abi::this();
        let path = self.place.path("");
        match self.place.read(ABOUT) {
            Ok(text) => {
                let found: Abi = serde_json::from_slice(&text).map_err(|error| {
                    let why = format!("{ABOUT} cannot be read: {error}");
                    SweepError::NoStore { path: path.clone(), why }
                })?;
                if found == this {
                    return Ok(());
                }
                let (found, this) = (found.to_string(), this.to_string());
                Err(SweepError::OtherVersion { path, found, this })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if let Some(other) = self.list("")?.first() {
                    let why = format!(
                        "no store of a sweep, because it has {other} and no {ABOUT}; give an empty or a new folder"
                    );
                    return Err(SweepError::NoStore { path, why });
                }
                let text = serde_json::to_string_pretty(&this).expect("plain data") + "\n";
                self.write(ABOUT, text.as_bytes())
            }
            Err(error) => Err(SweepError::Read { path: self.place.path(ABOUT), error }),
        }
    }

    fn list(&self, folder: &str) -> Result<Vec<String>, SweepError> {
        let mut names = self.place.list(folder);
        if let Ok(names) = &mut names {
            names.sort();
        }
        names.map_err(|error| SweepError::Read { path: self.place.path(folder), error })
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), SweepError> {
        let written = self.place.write(name, bytes);
        written.map_err(|error| SweepError::Write { path: self.place.path(name), error })
    }

    /// Returns the path of the table of results, for messages.
    pub fn results_path(&self) -> PathBuf {
        self.place.path(RESULTS)
    }

    /// Writes the table of results, and returns its bytes.
    pub fn publish(&self, table: &Table) -> Result<(), SweepError> {
        self.write(RESULTS, &parquet::write(table))
    }

    /// Adds finished cells.
    pub fn add(&self, cells: &[CellResult]) -> Result<(), SweepError> {
        match cells.is_empty() {
            true => Ok(()),
            false => self.add_file(&cell::file(cells)).map(drop),
        }
    }

    /// Adds a file, and returns its name.
    fn add_file(&self, bytes: &[u8]) -> Result<String, SweepError> {
        let name = format!("{CELLS}/{:016x}.parquet", hash_bytes(bytes));
        self.write(&name, bytes)?;
        Ok(name)
    }

    /// Adds files of finished cells (`cell::file`), as one file.
    pub fn add_files(&self, files: &[Vec<u8>]) -> Result<(), SweepError> {
        match files {
            [] => Ok(()),
            [one] => self.add_file(one).map(drop),
            many => {
                let failed = |error| SweepError::Damaged { path: self.place.path(CELLS), error };
                let tables = many.iter().map(|file| parquet::read(file).map_err(failed));
                let tables = tables.collect::<Result<_, _>>()?;
                self.add_file(&parquet::write(&self.concat(tables)?)).map(drop)
            }
        }
    }

    /// Returns the keys of all finished cells.
    pub fn keys(&self) -> Result<HashSet<CellKey>, SweepError> {
        let mut all = HashSet::new();
        self.each(&|_| false, &mut |keys, _| all.extend(keys))?;
        Ok(all)
    }

    /// Hands the keys and the wanted columns of each file to `take`.
    pub fn each(
        &self,
        is_wanted: &dyn Fn(&str) -> bool,
        take: &mut dyn FnMut(Vec<CellKey>, Table),
    ) -> Result<(), SweepError> {
        for name in self.files()? {
            let (keys, table) = self.read(&name, is_wanted)?;
            take(keys, table);
        }
        Ok(())
    }

    /// Returns the names of the files of cells, in order.
    fn files(&self) -> Result<Vec<String>, SweepError> {
        let names = self.list(CELLS)?.into_iter().filter(|name| name.ends_with(".parquet"));
        Ok(names.map(|name| format!("{CELLS}/{name}")).collect())
    }

    fn read(
        &self,
        name: &str,
        is_wanted: &dyn Fn(&str) -> bool,
    ) -> Result<(Vec<CellKey>, Table), SweepError> {
        let path = self.place.path(name);
        let bytes = self.place.read(name);
        let bytes = bytes.map_err(|error| SweepError::Read { path: path.clone(), error })?;
        let is_wanted = |name: &str| name == SETUP || name == SEED || is_wanted(name);
        let table = parquet::read_columns(&bytes, &is_wanted);
        let table = table.map_err(|error| SweepError::Damaged { path: path.clone(), error })?;
        let keys = cell::keys(&table).ok_or_else(|| SweepError::NoStore {
            path,
            why: "it has no keys of cells; remove the file, and its cells are run again".to_owned(),
        })?;
        Ok((keys, table))
    }

    /// Merges small files, if there are many. A merged file is complete before its parts are
    /// removed.
    pub fn merge(&self) -> Result<(), SweepError> {
        let all = self.files()?;
        if all.len() <= FILES_MAX {
            return Ok(());
        }
        let (mut parts, mut tables, mut rows) = (Vec::new(), Vec::new(), 0);
        for name in all {
            let (_, table) = self.read(&name, &|_| true)?;
            if table.rows() >= ROWS_LARGE {
                continue;
            }
            rows += table.rows();
            parts.push(name);
            tables.push(table);
            if rows >= ROWS_LARGE {
                self.replace(std::mem::take(&mut parts), std::mem::take(&mut tables))?;
                rows = 0;
            }
        }
        self.replace(parts, tables)
    }

    fn replace(&self, parts: Vec<String>, tables: Vec<Table>) -> Result<(), SweepError> {
        if parts.len() < 2 {
            return Ok(());
        }
        let merged = self.add_file(&parquet::write(&self.concat(tables)?))?;
        for part in parts.into_iter().filter(|part| *part != merged) {
            let removed = self.place.remove(&part);
            removed.map_err(|error| SweepError::Write { path: self.place.path(&part), error })?;
        }
        Ok(())
    }

    /// Returns the rows of tables of this store under the union of their columns.
    pub(crate) fn concat(&self, tables: Vec<Table>) -> Result<Table, SweepError> {
        let mut columns: Vec<Column> = Vec::new();
        let mut rows = 0;
        for table in tables {
            let before = rows;
            rows += table.rows();
            for Column { name, values } in table.columns {
                let at = columns.iter().position(|column| column.name == name);
                let at = at.unwrap_or_else(|| {
                    columns.push(Column { name: name.clone(), values: values.nulls(before) });
                    columns.len() - 1
                });
                if !columns[at].values.append(values) {
                    return Err(SweepError::NoStore {
                        path: self.place.path(CELLS),
                        why: format!("its files have different types of the column {name}"),
                    });
                }
            }
            columns.iter_mut().for_each(|column| column.values.resize(rows));
        }
        Ok(Table { columns, notes: Vec::new() })
    }
}
