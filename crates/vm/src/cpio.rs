// SPDX-License-Identifier: GPL-2.0-only
//! Archives in "newc" format, which the kernel unpacks as its first root file system.
//!
//! Owns: the encoding. Every entry belongs to root and has no time, so that equal input gives equal
//! bytes.
//! Does not: read the host's files, follow links, compress (unpacking is slow under emulation).
//! Models: `init/initramfs.c`. Differs: no hard links; a file is smaller than 4 GiB, the format's
//! limit.

use std::collections::BTreeSet;

const S_IFCHR: u32 = 0o020_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const TRAILER: &str = "TRAILER!!!";

/// An archive that is being written.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    inode: u32,
    dirs: BTreeSet<String>,
}

/// Reason why an entry cannot be written to the archive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EntryError {
    #[error("the path is not absolute and plain")]
    Path,
    #[error("4 GiB or more")]
    Size,
}

struct CpioEntry<'a> {
    name: &'a str,
    mode: u32,
    device: (u32, u32),
    data: &'a [u8],
}

impl Archive {
    /// Adds a directory and the directories above it, unless they exist.
    pub fn dir(&mut self, path: &str) -> Result<(), EntryError> {
        let path = inner(path)?;
        self.parents(path);
        self.own_dir(path);
        Ok(())
    }

    /// Adds a file with the permissions `mode`, and the directories above it.
    pub fn file(&mut self, path: &str, mode: u32, data: &[u8]) -> Result<(), EntryError> {
        let name = inner(path)?;
        if u32::try_from(data.len()).is_err() {
            return Err(EntryError::Size);
        }
        self.parents(name);
        self.entry(CpioEntry { name, mode: S_IFREG | (mode & 0o7777), device: (0, 0), data });
        Ok(())
    }

    /// Adds a character device.
    pub fn char_device(&mut self, path: &str, device: (u32, u32)) -> Result<(), EntryError> {
        let name = inner(path)?;
        self.parents(name);
        self.entry(CpioEntry { name, mode: S_IFCHR | 0o600, device, data: &[] });
        Ok(())
    }

    /// Adds the trailer and returns the archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(CpioEntry { name: TRAILER, mode: 0, device: (0, 0), data: &[] });
        self.bytes
    }

    fn parents(&mut self, name: &str) {
        for (at, _) in name.match_indices('/') {
            self.own_dir(&name[..at]);
        }
    }

    fn own_dir(&mut self, name: &str) {
        if self.dirs.insert(name.to_owned()) {
            self.entry(CpioEntry { name, mode: S_IFDIR | 0o755, device: (0, 0), data: &[] });
        }
    }

    /// Writes an entry: a header of thirteen hexadecimal numbers, the name, the data. Name and data
    /// are each padded to a multiple of four bytes.
    fn entry(&mut self, entry: CpioEntry<'_>) {
        self.inode += 1;
        let is_dir = entry.mode & S_IFDIR != 0;
        let fields = [
            self.inode,
            entry.mode,
            0, // id of the owner
            0, // id of the owning group
            if is_dir { 2 } else { 1 },
            0, // time of the last change
            entry.data.len() as u32,
            0, // major number of the device that holds the file; the minor number follows
            0,
            entry.device.0,
            entry.device.1,
            entry.name.len() as u32 + 1,
            0, // checksum, not used in this format
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(entry.name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(entry.data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Returns the path as the archive names it, without the leading slash.
fn inner(path: &str) -> Result<&str, EntryError> {
    let name = path.strip_prefix('/').ok_or(EntryError::Path)?;
    let plain =
        |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
    if name.split('/').all(plain) { Ok(name) } else { Err(EntryError::Path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists names, modes and data of an archive, from its headers alone.
    fn list(bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        let mut at = 0;
        loop {
            assert_eq!(&bytes[at..at + 6], b"070701", "a header at {at}");
            let field = |index: usize| {
                let start = at + 6 + 8 * index;
                let text = std::str::from_utf8(&bytes[start..start + 8]).unwrap();
                u32::from_str_radix(text, 16).unwrap()
            };
            let (mode, size, name_len) = (field(1), field(6) as usize, field(11) as usize);
            let name = String::from_utf8(bytes[at + 110..at + 109 + name_len].to_vec()).unwrap();
            assert_eq!(bytes[at + 109 + name_len], 0);
            let data = (at + 110 + name_len).next_multiple_of(4);
            if name == TRAILER {
                assert_eq!(data, bytes.len());
                return entries;
            }
            entries.push((name, mode, bytes[data..data + size].to_vec()));
            at = (data + size).next_multiple_of(4);
        }
    }

    #[test]
    fn reads_back() {
        let mut archive = Archive::default();
        archive.char_device("/dev/console", (5, 1)).unwrap();
        archive.file("/init", 0o755, b"12345").unwrap();
        archive.file("/a/b/c", 0o640, b"").unwrap();
        archive.file("/a/b/d", 0o640, b"x").unwrap();
        archive.dir("/a").unwrap();
        let entries = list(&archive.finish());
        let short: Vec<_> = entries.iter().map(|(n, m, d)| (n.as_str(), *m, d.len())).collect();
        assert_eq!(
            short,
            [
                ("dev", 0o040_755, 0),
                ("dev/console", 0o020_600, 0),
                ("init", 0o100_755, 5),
                ("a", 0o040_755, 0),
                ("a/b", 0o040_755, 0),
                ("a/b/c", 0o100_640, 0),
                ("a/b/d", 0o100_640, 1),
            ]
        );
        assert_eq!(entries[2].2, b"12345");
    }

    #[test]
    fn equal_input_equal_bytes() {
        let make = || {
            let mut archive = Archive::default();
            archive.file("/x/y", 0o644, b"data").unwrap();
            archive.finish()
        };
        assert_eq!(make(), make());
    }

    #[test]
    fn refuses_paths_that_leave_the_root() {
        for path in ["init", "", "/", "/a//b", "/a/../b", "/./a", "/a/", "/a\0b"] {
            assert_eq!(
                Archive::default().file(path, 0o644, b""),
                Err(EntryError::Path),
                "{path:?}"
            );
        }
    }
}
