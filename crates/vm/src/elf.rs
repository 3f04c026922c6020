// SPDX-License-Identifier: GPL-2.0-only
//! The parts of an executable that a loader needs: its interpreter, its libraries, its loaded
//! segments.
//!
//! Owns: reading program headers and the dynamic table. Does not: find a library's file (see
//! `closure.rs`).
//! Section headers are ignored, because a stripped file need not have them.

use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use thiserror::Error;

type Header = FileHeader64<Endianness>;

/// Why a file cannot be copied into the guest.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ElfError {
    /// The file is not an executable, or is damaged.
    #[error("it is no ELF file: {0}")]
    Form(String),
    /// The executable is for another machine.
    #[error("it is built for another architecture (ELF machine {0})")]
    Machine(u16),
}

/// Interpreter and libraries that an executable or a library requires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dependencies {
    /// Path of the dynamic loader.
    pub interpreter: Option<String>,
    /// Names of the required libraries, in the order of the dynamic table.
    pub needed: Vec<String>,
    /// Directories in which the loader searches libraries first; `$ORIGIN` is the directory of the
    /// file that requires them.
    pub run_path: Vec<String>,
}

fn form(why: impl std::fmt::Display) -> ElfError {
    ElfError::Form(why.to_string())
}

fn parse(data: &[u8]) -> Result<(&Header, Endianness), ElfError> {
    let header = Header::parse(data).map_err(form)?;
    let endian = header.endian().map_err(form)?;
    let machine = header.e_machine(endian);
    let ours = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };
    if machine != ours {
        return Err(ElfError::Machine(machine.0));
    }
    Ok((header, endian))
}

/// Reads the interpreter and the libraries that an executable or a library requires.
pub(crate) fn wants(data: &[u8]) -> Result<Dependencies, ElfError> {
    let (header, endian) = parse(data)?;
    let segments = header.program_headers(endian, data).map_err(form)?;
    let mut wants = Dependencies::default();
    for segment in segments {
        if let Some(path) = segment.interpreter(endian, data).map_err(form)? {
            wants.interpreter = Some(text(path)?);
        }
        let Some(table) = segment.dynamic(endian, data).map_err(form)? else { continue };
        let strings = strings(table, |address, size| {
            let part = |segment: &_| loaded(segment, endian, data, address, size);
            segments.iter().find_map(part)
        })?;
        for entry in table.iter().take_while(|entry| entry.tag(endian) != elf::DT_NULL) {
            let string = || -> Result<String, ElfError> {
                let start = usize::try_from(entry.val(endian)).ok();
                let rest = start.and_then(|start| strings.get(start..));
                text(rest.ok_or_else(|| form("a string is outside of the table"))?)
            };
            match entry.tag(endian) {
                elf::DT_NEEDED => wants.needed.push(string()?),
                elf::DT_RPATH | elf::DT_RUNPATH => {
                    wants.run_path.extend(string()?.split(':').map(str::to_owned));
                }
                _ => {}
            }
        }
    }
    Ok(wants)
}

/// Returns the file without the parts that are never loaded: symbols, debug information, section
/// headers.
pub(crate) fn loaded_part(data: &[u8]) -> Result<Vec<u8>, ElfError> {
    let (header, endian) = parse(data)?;
    let segments = header.program_headers(endian, data).map_err(form)?;
    let headers_end = header
        .e_phoff(endian)
        .saturating_add(u64::from(header.e_phnum(endian)) * u64::from(header.e_phentsize(endian)));
    let end = segments
        .iter()
        .map(|segment| segment.p_offset(endian).saturating_add(segment.p_filesz(endian)))
        .fold(headers_end, u64::max);
    let end = usize::try_from(end).ok().filter(|&end| end <= data.len());
    let mut part = data[..end.ok_or_else(|| form("a segment ends past the file"))?].to_vec();
    // Clears e_shoff, then e_shnum and e_shstrndx: the result has no section headers.
    for range in [40..48, 60..64] {
        part.get_mut(range).ok_or_else(|| form("too short"))?.fill(0);
    }
    Ok(part)
}

/// Returns the string table that the dynamic table points to.
fn strings<'data>(
    table: &[elf::Dyn64<Endianness>],
    at: impl Fn(u64, u64) -> Option<&'data [u8]>,
) -> Result<&'data [u8], ElfError> {
    let endian = Endianness::Little;
    let value = |tag| table.iter().find(|e| e.tag(endian) == tag).map(|e| e.val(endian));
    match (value(elf::DT_STRTAB), value(elf::DT_STRSZ)) {
        (Some(address), Some(size)) => {
            at(address, size).ok_or_else(|| form("the dynamic strings are outside of the file"))
        }
        _ => Ok(&[]),
    }
}

fn loaded<'data>(
    segment: &elf::ProgramHeader64<Endianness>,
    endian: Endianness,
    data: &'data [u8],
    address: u64,
    size: u64,
) -> Option<&'data [u8]> {
    if segment.p_type(endian) != elf::PT_LOAD {
        return None;
    }
    segment.data_range(endian, data, address, size).ok().flatten()
}

/// Returns the string up to the first NUL byte.
fn text(bytes: &[u8]) -> Result<String, ElfError> {
    let bytes = bytes.split(|&b| b == 0).next().unwrap_or(&[]);
    Ok(std::str::from_utf8(bytes).map_err(form)?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").unwrap()
    }

    #[test]
    fn this_test_wants_its_c_library() {
        let wants = wants(&own()).unwrap();
        assert!(wants.interpreter.unwrap().contains("/ld-linux"));
        assert!(wants.needed.iter().any(|name| name == "libc.so.6"), "{:?}", wants.needed);
    }

    #[test]
    fn the_loaded_part_wants_the_same_and_is_smaller() {
        let data = own();
        let part = loaded_part(&data).unwrap();
        assert!(part.len() < data.len() / 2, "{} of {}", part.len(), data.len());
        assert_eq!(wants(&part).unwrap(), wants(&data).unwrap());
    }

    #[test]
    fn other_files_are_refused() {
        assert!(matches!(wants(b"#!/bin/sh\n"), Err(ElfError::Form(_))));
        assert!(matches!(wants(&own()[..80]), Err(ElfError::Form(_))));
        assert!(matches!(loaded_part(&own()[..5000]), Err(ElfError::Form(_))));
        let mut other = own();
        other[18..20].copy_from_slice(&243u16.to_le_bytes());
        assert_eq!(wants(&other), Err(ElfError::Machine(243)));
    }
}
