// SPDX-License-Identifier: GPL-2.0-only
//! Many cases of one test, on all of the host's CPUs.
//!
//! Owns: the threads. Does not: change what a case gives; results have the order of the cases.
//! A test with many cases would otherwise keep one CPU busy for a minute after all others of its
//! file have ended.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Returns the result of each case, in order. A panic of a case is a panic of the caller.
pub fn map<T: Sync, R: Send>(cases: &[T], run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let at = next.fetch_add(1, Ordering::Relaxed)
            && let Some(case) = cases.get(at)
        {
            done.push((at, run(case)));
        }
        done
    };
    let nr_threads = thread::available_parallelism().map_or(1, usize::from);
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..nr_threads).map(|_| scope.spawn(work)).collect();
        let ends = threads.into_iter().map(|t| t.join());
        ends.flat_map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
