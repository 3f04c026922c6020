// SPDX-License-Identifier: GPL-2.0-only
//! The schedulers that scxlab ships, as compiled objects: the same bytes for the simulator, a
//! virtual machine and this machine's kernel.
//!
//! Owns: their names and bytes, and the headers for users' schedulers. Does not: compile users'
//! schedulers (the command does), load objects, or know their contents.
//! Start at: `bpf/sched/<name>/<name>.bpf.c`; `tests/<name>.rs` tests what the scheduler promises.

/// The headers that the schedulers were compiled with, as a tar archive compressed with Zstandard.
/// `bpf/lib` holds scxlab's own headers, `scx` those of the scx project and the kernel's types.
pub static HEADERS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/headers.tar.zst"));

/// Architecture of the kernel's types, as in `__TARGET_ARCH_*`.
pub static HEADERS_ARCH: &str = include_str!(concat!(env!("OUT_DIR"), "/headers_arch"));

/// Source of `vtime`, as an example to start from.
pub static EXAMPLE: &str = include_str!("../../../bpf/sched/vtime/vtime.bpf.c");

/// One shipped scheduler.
#[derive(Clone, Copy)]
pub struct Shipped {
    /// Name, as in `-s NAME`; also the name of its ops.
    pub name: &'static str,
    /// Contents of the ELF file.
    pub object: &'static [u8],
    /// Header comment of the source: one sentence, then what it shows, suits and lacks.
    pub doc: &'static str,
    /// Contents of `knobs.toml`, which declares the values of knobs that are worth trying; empty if
    /// there is no such file.
    pub knobs: &'static str,
}

impl Shipped {
    /// Returns the description in one sentence.
    pub fn summary(&self) -> &'static str {
        let line = self.doc.lines().next().unwrap_or_default();
        line.split_once(": ").map_or(line, |(_, summary)| summary)
    }
}

/// Returns all shipped schedulers, ordered by name.
pub fn shipped() -> &'static [Shipped] {
    include!(concat!(env!("OUT_DIR"), "/shipped.rs"))
}

/// Returns the schedulers that test kernels, the simulated one and real ones.
pub fn selftests() -> &'static [Shipped] {
    include!(concat!(env!("OUT_DIR"), "/selftests.rs"))
}

/// Returns the scheduler or selftest with that name.
pub fn find(name: &str) -> Option<&'static Shipped> {
    shipped().iter().chain(selftests()).find(|s| s.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_a_bpf_object_with_a_summary() {
        for one in shipped().iter().chain(selftests()) {
            assert_eq!(&one.object[..4], b"\x7fELF", "{}", one.name);
            // The ELF machine is EM_BPF.
            assert_eq!(&one.object[18..20], &[247, 0], "{}", one.name);
            assert!(one.summary().ends_with('.'), "{}: {:?}", one.name, one.summary());
        }
    }

    #[test]
    fn a_scheduler_is_found_by_name() {
        assert_eq!(find("vtime").map(|s| s.name), Some("vtime"));
        assert!(find("vtimes").is_none());
    }

    /// An object must not contain paths of the machine that built it.
    #[test]
    fn objects_carry_no_build_path() {
        for path in [env!("OUT_DIR"), env!("CARGO_MANIFEST_DIR")] {
            for one in shipped() {
                let leaks = one.object.windows(path.len()).any(|w| w == path.as_bytes());
                assert!(!leaks, "{} names {path}", one.name);
            }
        }
    }
}
