// SPDX-License-Identifier: GPL-2.0-only
//! The guest's root file system: this executable as init, the libraries that it needs, and the
//! caller's files.
//!
//! Owns: the paths in the archive. Does not: touch a disk; the archive is built in memory.
//!
//! ```text
//! /init          this executable, its loaded part
//! /lib...        its loader and libraries
//! /dev/console   for messages, from the first one on
//! /scxlab/*      inputs of the code in `guest.rs`, one constant below for each
//! ```

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::boot::{GuestFile, Need};
use crate::closure::{Closure, ClosureError};
use crate::cpio::Archive;
use crate::elf;
use crate::error::VmError;
use crate::process;

/// File with the arguments of the guest's program, each ended by a NUL byte.
pub(crate) const ARGS: &str = "/scxlab/args";
/// File that describes the machine as the guest must see it, in the form of `shape::describe`.
pub(crate) const SHAPE: &str = "/scxlab/shape";
/// File with the guest's number of each CPU of the requested machine, one per line, in the order of
/// the machine's CPU numbers.
pub(crate) const CPUS: &str = "/scxlab/cpus";
/// File with the paths that must exist in the guest, one per line, each followed by a space and the
/// name of the kernel feature that the path shows.
pub(crate) const NEEDS: &str = "/scxlab/needs";

/// Mount points, which the kernel does not create by itself, and the place of temporary files.
pub(crate) const DIRS: [&str; 5] = ["/proc", "/sys", "/dev", "/tmp", "/run"];

/// Inputs for the contents of the initramfs.
pub(crate) struct Contents<'a> {
    pub init_args: &'a [String],
    pub files: &'a [GuestFile],
    pub programs: &'a [std::path::PathBuf],
    pub needs: &'a [Need],
    pub shape: &'a str,
    pub guest_cpus: &'a [u32],
}

/// A built initramfs, as a file in memory that machines may share.
#[derive(Clone, Debug)]
pub struct Initramfs {
    pub(crate) file: Arc<File>,
    pub(crate) bytes: usize,
}

impl Initramfs {
    pub(crate) fn new(archive: &[u8]) -> Result<Initramfs, VmError> {
        let file = process::in_memory(archive);
        let file = file.map_err(process::host("storing the initramfs in memory"))?;
        Ok(Initramfs { file: Arc::new(file), bytes: archive.len() })
    }
}

/// Builds the initramfs.
pub(crate) fn build(contents: &Contents<'_>) -> Result<Vec<u8>, VmError> {
    let own = Path::new("/proc/self/exe");
    let read = |why| ClosureError::Read { path: own.to_owned(), why };
    // Take this executable's real path, because libraries may be found relative to it.
    let own_path = std::fs::read_link(own).map_err(read)?;
    let own_data = std::fs::read(own).map_err(read)?;
    let form = |why| ClosureError::Form { path: own_path.clone(), why };
    let init = elf::loaded_part(&own_data).map_err(form)?;
    let mut closure = Closure::new();
    closure.needs_of(&own_path, &init)?;
    for program in contents.programs {
        closure.program(program)?;
    }

    let mut archive = Archive::default();
    for dir in DIRS {
        archive.dir(dir).map_err(at(dir))?;
    }
    archive.char_device("/dev/console", (5, 1)).map_err(at("/dev/console"))?;
    let mut add = |path: &str, mode, data: &[u8]| archive.file(path, mode, data).map_err(at(path));
    add("/init", 0o755, &init)?;
    for (path, data) in &closure.files {
        add(path, 0o755, data)?;
    }
    let args: Vec<u8> = contents.init_args.iter().flat_map(|arg| zero_ended(arg)).collect();
    add(ARGS, 0o644, &args)?;
    add(SHAPE, 0o644, contents.shape.as_bytes())?;
    add(CPUS, 0o644, lines(contents.guest_cpus.iter()).as_bytes())?;
    let needs = contents.needs.iter().map(|need| format!("{} {}", need.path, need.name));
    add(NEEDS, 0o644, lines(needs).as_bytes())?;
    for file in contents.files {
        add(&file.path, file.mode, &file.data)?;
    }
    Ok(archive.finish())
}

fn at(path: &str) -> impl Fn(crate::cpio::EntryError) -> VmError {
    move |why| VmError::File { path: path.to_owned(), why: why.to_string() }
}

fn zero_ended(arg: &str) -> Vec<u8> {
    let mut bytes = arg.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

fn lines(items: impl Iterator<Item = impl ToString>) -> String {
    items.map(|item| item.to_string() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents<'a>(files: &'a [GuestFile], args: &'a [String]) -> Contents<'a> {
        Contents {
            init_args: args,
            files,
            programs: &[],
            needs: &[],
            shape: "shape",
            guest_cpus: &[0, 1],
        }
    }

    #[test]
    fn holds_init_and_the_callers_files() {
        let file =
            GuestFile { path: "/data/x".into(), data: b"some bytes of a file".into(), mode: 0o600 };
        let archive = build(&contents(&[file], &["a b".into(), String::new()])).unwrap();
        let has = |text: &[u8]| archive.windows(text.len()).any(|window| window == text);
        for text in ["init\0", "scxlab/args\0", "a b\0\0", "some bytes of a file", "libc.so.6\0"] {
            assert!(has(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn a_bad_path_is_the_callers_fault() {
        let file = GuestFile { path: "data".into(), data: vec![], mode: 0o600 };
        let refused = build(&contents(&[file], &[])).unwrap_err();
        assert_eq!(refused.fault(), crate::VmFault::Input);
    }
}
