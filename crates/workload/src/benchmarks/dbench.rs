// SPDX-License-Identifier: GPL-2.0-only
//! dbench: clients of a file server, without the network: each replays the system calls that a file
//! server makes for one client.
//!
//! Models: one process per client, in a loop over the operations of dbench's load file, in their
//! proportions. An operation is a short burst of CPU time. Operations on paths take the directory
//! cache's spin lock; operations that change the file system take the journal's. Reads and writes
//! copy between the client and the page cache. A flush asks the journal's thread for a commit and
//! sleeps until the disk has it; one commit serves all clients that wait. A unit is an operation.
//! With `commit=0`, files are in memory, as on tmpfs. With `cache`, the page cache is a region of
//! memory that all clients share, and `memory` percent of the work of each operation is access to
//! it. With `lines`, each operation changes so many cache lines that all clients share.
//! Leaves out: the writing back of the page cache; the queue of the disk; locks of
//! directories (each client has its own); a flush that begins during a commit waits for the end of
//! that commit, not for the next one.

use super::{Generator, Params, param};
use crate::error::WorkloadError;
use crate::program::arg::MAX_LINES;
use crate::program::region::ByteSize;
use crate::program::work::{BufferArg, ComputeArg, MemoryUse};
use crate::program::{
    Op, Pattern, Program, RegionDef, RegionPolicy, Sharing, ThreadTemplate, TouchKind,
};

pub(super) const GENERATOR: Generator = Generator {
    name: "dbench",
    doc: "Clients of a file server: short operations, shared locks, waits for the disk.",
    unit: "operation",
    params: &[
        param("clients", "8", "number of clients"),
        param("work", "15us", "work of an operation, without locks and copying"),
        param(
            "hold",
            "1us",
            "work under a spin lock (in guests), each time an operation takes one",
        ),
        param(
            "commit",
            "128",
            "KiB that a commit of the journal writes; 0: the files are in memory, a flush does nothing",
        ),
        param("cache", "0", "MiB of the page cache that reads and writes copy; 0: no region"),
        param("memory", "0", "percentage of the work that is access to the page cache of `cache`"),
        param(
            "lines",
            "0",
            "cache lines of the kernel, such as reference counts and statistics, that each operation changes and all clients share",
        ),
        param("duration", "2s", "length of the run (-t), or none"),
    ],
    build,
};

/// Bytes of a read or a write, mean. In the published output that `MIX` comes from, throughput
/// times length over the number of reads and writes is 15.2 kB.
const TRANSFER_BYTES: u64 = 15_200;

/// Name of the page cache's region.
const CACHE: &str = "cache";

/// An operation of the load file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    /// Looks up a path.
    Path,
    /// Looks up a path, and changes the file system.
    Change,
    /// Works on an open file, without a lock that clients share.
    File,
    Read,
    Write,
    Flush,
}

use Operation::*;

/// Operations for each flush. Source: the counts that dbench 4 prints with its default load file,
/// over the count of `Flush`, rounded: NTCreateX 14.3, Close 10.5, Rename 0.6, Unlink 2.9,
/// Qpathinfo 12.9, Qfileinfo 2.3, Qfsinfo 2.4, Sfileinfo 1.2, Find 5.0, WriteX 7.1, ReadX 22.4.
/// Locks of files and directories that are made or removed are below a tenth. Most of `NTCreateX`
/// opens files that exist; as many of them make a file as `Unlink` removes.
const MIX: [(Operation, i64); 6] = [
    // Qpathinfo, Find, and NTCreateX of files that exist
    (Path, 13 + 5 + 11),
    // NTCreateX of new files, Unlink, Rename, Sfileinfo
    (Change, 3 + 3 + 1 + 1),
    // Close, Qfileinfo, Qfsinfo
    (File, 10 + 2 + 2),
    (Read, 22),
    (Write, 7),
    (Flush, 1),
];

fn build(params: &Params) -> Result<Program, WorkloadError> {
    let work = params.time("work")?;
    let hold = params.time("hold")?;
    let locked = |lock: &str| params.under_lock(lock, hold);
    let commit = u64::from(params.number("commit", 0, 1 << 20)?) * 1024;
    let cache = u64::from(params.number("cache", 0, 1 << 24)?) << 20;
    let cache = (cache > 0).then(|| RegionDef {
        name: CACHE.into(),
        size: ByteSize(cache),
        of: Sharing::All,
        policy: RegionPolicy::FirstTouch,
        populate: None,
        huge: None,
        merge: 0,
    });
    let memory = u64::from(params.number("memory", 0, 100)?);
    if memory > 0 && cache.is_none() {
        return Err(params.bad("memory", "0, or a percentage beside cache=MIB"));
    }
    let memory = (memory > 0).then(|| MemoryUse {
        region: CACHE.into(),
        percent: memory,
        kind: TouchKind::Read,
        pattern: Pattern::Random,
        offset: 0,
        size: None,
    });
    let lines = params.number("lines", 0, MAX_LINES)?;
    let shared = (lines > 0).then(|| Op::Atomic { lines: "kernel".into(), count: lines });
    let work = ComputeArg { work, memory };
    let round = order().into_iter();
    let round = round.flat_map(|operation| {
        let own = ops(operation, &work, &locked, cache.is_some(), commit > 0);
        shared.iter().cloned().chain(own)
    });
    let round = round.collect();
    let client = ThreadTemplate {
        instances: params.number("clients", 1, 10_000)?,
        ..ThreadTemplate::new("client", vec![Op::Loop { times: None, ops: round }])
    };
    let threads = match commit {
        0 => vec![client],
        _ => vec![journal(commit), client],
    };
    Ok(Program {
        duration: params.maybe_time("duration")?,
        threads,
        regions: cache.into_iter().collect(),
        ..Program::default()
    })
}

/// Returns the journal's thread, which writes `commit` bytes when a client asks for it.
fn journal(commit: u64) -> ThreadTemplate {
    let (lock, unlock) = (|| Op::Lock("commit".into()), || Op::Unlock("commit".into()));
    let write = vec![
        Op::Wait { cond: "wanted".into(), mutex: "commit".into() },
        unlock(),
        Op::Io { bytes: commit, null: false },
        lock(),
        Op::Broadcast("done".into()),
    ];
    ThreadTemplate::new("journal", vec![lock(), Op::Loop { times: None, ops: write }])
}

/// Returns the operations of one round, each kind spread evenly over it: the next operation is the
/// one that is furthest behind its share.
fn order() -> Vec<Operation> {
    let total: i64 = MIX.iter().map(|(_, count)| count).sum();
    let mut behind = [0; MIX.len()];
    let mut next = || {
        for (behind, (_, count)) in behind.iter_mut().zip(MIX) {
            *behind += count;
        }
        let first = (0..MIX.len()).rev().max_by_key(|&i| behind[i]).unwrap_or(0);
        behind[first] -= total;
        MIX[first].0
    };
    (0..total).map(|_| next()).collect()
}

fn ops(
    operation: Operation,
    work: &ComputeArg,
    locked: &dyn Fn(&str) -> Vec<Op>,
    cached: bool,
    journaled: bool,
) -> Vec<Op> {
    let copy = |kind| {
        let own = BufferArg {
            region: None,
            offset: 0,
            size: Some(ByteSize(TRANSFER_BYTES)),
            kind,
            count: 0,
            stride: 64,
            pattern: Pattern::Sequential,
        };
        let shared = BufferArg {
            region: Some(CACHE.into()),
            size: None,
            count: TRANSFER_BYTES / 64,
            ..own.clone()
        };
        vec![Op::Touch(if cached { shared } else { own })]
    };
    let own = match operation {
        Path => locked("dcache"),
        Change => [locked("dcache"), locked("journal")].concat(),
        File => Vec::new(),
        Read => copy(TouchKind::Read),
        Write => [copy(TouchKind::Write), locked("journal")].concat(),
        Flush if !journaled => Vec::new(),
        Flush => vec![
            Op::Lock("commit".into()),
            Op::Signal("wanted".into()),
            Op::Wait { cond: "done".into(), mutex: "commit".into() },
            Op::Unlock("commit".into()),
        ],
    };
    [vec![Op::Compute(work.clone())], own, vec![Op::Count(1)]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Load file of Debian's package.
    const LOAD_FILE: &str = "/usr/share/dbench/client.txt";

    /// Returns the kind of a load file's operation; None for those that are below a tenth for each
    /// flush.
    fn kind(word: &str) -> Option<Operation> {
        Some(match word {
            "QUERY_PATH_INFORMATION" | "FIND_FIRST" => Path,
            "Unlink" | "Rename" | "SET_FILE_INFORMATION" => Change,
            "Close" | "QUERY_FILE_INFORMATION" | "QUERY_FS_INFORMATION" => File,
            "ReadX" => Read,
            "WriteX" => Write,
            "Flush" => Flush,
            _ => return None,
        })
    }

    /// The real program replays the load file. Skipped, with a message, without the package dbench.
    #[test]
    fn the_mix_is_that_of_the_load_file() {
        let Ok(text) = std::fs::read_to_string(LOAD_FILE) else {
            eprintln!("skipped: no {LOAD_FILE}");
            return;
        };
        let (mut counts, mut opens, mut unlinks, mut bytes) = ([0u64; 6], 0, 0, 0);
        let at = |wanted: Operation| MIX.iter().position(|(kind, _)| *kind == wanted).unwrap();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let word = words.first().copied().unwrap_or_default();
            opens += u64::from(word == "NTCreateX");
            unlinks += u64::from(word == "Unlink");
            let Some(kind) = kind(word) else { continue };
            counts[at(kind)] += 1;
            if matches!(kind, Read | Write) {
                bytes += words[4].parse::<u64>().unwrap();
            }
        }
        // As many opens make a file as unlinks remove.
        counts[at(Change)] += unlinks;
        counts[at(Path)] += opens - unlinks;
        for (i, (_, modelled)) in MIX.iter().enumerate() {
            let real = counts[i] as f64 / counts[at(Flush)] as f64;
            let difference = *modelled as f64 / real - 1.0;
            assert!(difference.abs() < 0.15, "{i}: {modelled}, not {real}");
        }
        let mean = bytes / (counts[at(Read)] + counts[at(Write)]);
        assert!(mean.abs_diff(TRANSFER_BYTES) * 100 < TRANSFER_BYTES, "{mean}");
    }
}
