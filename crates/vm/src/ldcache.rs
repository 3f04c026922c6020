// SPDX-License-Identifier: GPL-2.0-only
//! The dynamic loader's cache: the file that a library's name stands for on this host.
//!
//! Owns: reading `/etc/ld.so.cache`. Does not: search directories (see `closure.rs`).
//! Models: glibc's form "glibc-ld.so.cache1.1". Differs: files for newer CPUs only are skipped,
//! because the guest's CPU is not the host's.

use std::collections::BTreeMap;

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;
/// Low byte of an entry's flags: an ELF library for libc 6.
const ELF_LIBC6: u32 = 3;
/// Second byte of an entry's flags: the machine that the library is for.
const MACHINE: u32 = if cfg!(target_arch = "aarch64") { 0x0a } else { 0x03 };

/// Returns the paths of the host's libraries by library name. An unreadable cache counts as empty,
/// because the caller searches directories afterwards.
pub(crate) fn parse(data: &[u8]) -> BTreeMap<String, String> {
    // Search for the start of the cache in this form: the file may begin with a cache in an older
    // form, to which this one is appended.
    let Some(start) = data.windows(MAGIC.len()).position(|window| window == MAGIC) else {
        return BTreeMap::new();
    };
    let data = &data[start..];
    let count = word(data, MAGIC.len()).unwrap_or(0);
    let mut paths = BTreeMap::new();
    for index in 0..count as usize {
        let Some((name, path)) = entry(data, HEADER_BYTES + index * ENTRY_BYTES) else { break };
        if let Some(name) = name {
            paths.entry(name).or_insert(path);
        }
    }
    paths
}

/// Returns the name and path of the library in the cache entry at byte `at`. The name is None if
/// the library is for another machine or for newer CPUs only. Returns None past the end of the
/// cache.
fn entry(data: &[u8], at: usize) -> Option<(Option<String>, String)> {
    let flags = word(data, at)?;
    let (name, path) = (string(data, word(data, at + 4)?)?, string(data, word(data, at + 8)?)?);
    let is_plain = word(data, at + 16)? == 0 && word(data, at + 20)? == 0;
    let is_ours = flags & 0xff == ELF_LIBC6 && (flags >> 8) & 0xff == MACHINE;
    Some(((is_plain && is_ours).then_some(name), path))
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn string(data: &[u8], at: u32) -> Option<String> {
    let rest = data.get(at as usize..)?;
    let end = rest.iter().position(|&b| b == 0)?;
    Some(String::from_utf8_lossy(&rest[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a loader cache from entries of flags, name, path and CPU capabilities.
    fn cache(entries: &[(u32, &str, &str, u64)]) -> Vec<u8> {
        let mut data = MAGIC.to_vec();
        data.extend((entries.len() as u32).to_le_bytes());
        data.resize(HEADER_BYTES, 0);
        let mut strings = Vec::new();
        let base = HEADER_BYTES + entries.len() * ENTRY_BYTES;
        for (flags, name, path, capabilities) in entries {
            data.extend(flags.to_le_bytes());
            for text in [name, path] {
                data.extend(((base + strings.len()) as u32).to_le_bytes());
                strings.extend(text.as_bytes());
                strings.push(0);
            }
            data.extend(0u32.to_le_bytes());
            data.extend(capabilities.to_le_bytes());
        }
        data.extend(strings);
        data
    }

    const OURS: u32 = ELF_LIBC6 | MACHINE << 8;

    #[test]
    fn the_plain_file_for_this_machine_is_taken() {
        let data = cache(&[
            (OURS, "liba.so.1", "/usr/lib/newer/liba.so.1", 1 << 62),
            (ELF_LIBC6, "liba.so.1", "/lib32/liba.so.1", 0),
            (OURS, "liba.so.1", "/usr/lib/liba.so.1", 0),
            (OURS, "libb.so", "/opt/libb.so", 0),
        ]);
        let paths = parse(&data);
        assert_eq!(paths["liba.so.1"], "/usr/lib/liba.so.1");
        assert_eq!(paths["libb.so"], "/opt/libb.so");
        assert_eq!(parse(&[b"an older form".as_slice(), &data].concat()), paths);
    }

    #[test]
    fn damage_is_no_entry() {
        let data = cache(&[(OURS, "liba.so.1", "/usr/lib/liba.so.1", 0)]);
        for len in 0..data.len() {
            assert!(parse(&data[..len]).is_empty(), "{len}");
        }
        assert!(parse(b"something else").is_empty());
    }

    #[test]
    fn this_hosts_cache_has_its_c_library() {
        // A host without the cache (with another C library) has nothing to test.
        if let Ok(data) = std::fs::read("/etc/ld.so.cache") {
            assert!(std::path::Path::new(&parse(&data)["libc.so.6"]).exists());
        }
    }
}
