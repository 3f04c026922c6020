// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's counts for a thread: CPU time, waiting time, switches, migrations.
//!
//! Owns: reading `/proc/PID/task/TID/{schedstat,status,sched}`. Nothing here allocates.

use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;

use super::shared::Counts;
use super::sys;

/// Reads the counts of the calling thread.
pub fn own(into: &Counts) {
    let mut text = [0; 4096];
    schedstat(into, b"/proc/thread-self/schedstat\0", &mut text);
    if into.run.load(Relaxed) == 0 {
        into.run.store(sys::thread_cpu(), Relaxed);
    }
    // SAFETY: all zeroes is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid to write to.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    into.voluntary.store(usage.ru_nvcsw.unsigned_abs(), Relaxed);
    into.involuntary.store(usage.ru_nivcsw.unsigned_abs(), Relaxed);
    migrations(into, b"/proc/thread-self/sched\0", &mut text);
}

/// Reads the counts of any thread of the run. Returns false if the thread no longer exists.
pub fn other(tgid: i32, tid: i32, into: &Counts) -> bool {
    let mut text = [0; 4096];
    if !schedstat(into, &path(tgid, tid, "schedstat"), &mut text) {
        return false;
    }
    let size = sys::read_file(&path(tgid, tid, "status"), &mut text).unwrap_or(0);
    let switches = |key| field(&text[..size], key).unwrap_or(0);
    into.voluntary.store(switches("voluntary_ctxt_switches:"), Relaxed);
    into.involuntary.store(switches("nonvoluntary_ctxt_switches:"), Relaxed);
    migrations(into, &path(tgid, tid, "sched"), &mut text);
    true
}

/// Whether a thread sleeps (state S in `/proc/PID/task/TID/stat`).
pub fn sleeps(tgid: i32, tid: i32) -> bool {
    let mut text = [0; 512];
    let size = sys::read_file(&path(tgid, tid, "stat"), &mut text).unwrap_or(0);
    // The name may contain any byte; the state follows the last parenthesis.
    let text = &text[..size];
    let close = text.iter().rposition(|b| *b == b')');
    close.and_then(|at| text.get(at + 2)) == Some(&b'S')
}

fn path(tgid: i32, tid: i32, file: &str) -> [u8; 64] {
    let mut path = [0; 64];
    // The path is at most 63 bytes long, so a terminating zero remains after it.
    let _ = write!(&mut path[..63], "/proc/{tgid}/task/{tid}/{file}");
    path
}

fn schedstat(into: &Counts, path: &[u8], text: &mut [u8]) -> bool {
    let Ok(size) = sys::read_file(path, text) else { return false };
    let mut numbers = text[..size].split(|b| b.is_ascii_whitespace()).map(number);
    if let (Some(Some(run)), Some(Some(wait))) = (numbers.next(), numbers.next()) {
        into.run.store(run, Relaxed);
        into.wait.store(wait.saturating_add(1), Relaxed);
    }
    true
}

fn migrations(into: &Counts, path: &[u8], text: &mut [u8]) {
    let size = sys::read_file(path, text).unwrap_or(0);
    if let Some(count) = field(&text[..size], "se.nr_migrations") {
        into.migrations.store(count.saturating_add(1), Relaxed);
    }
}

/// Returns the number at the end of the line that begins with `key`.
fn field(text: &[u8], key: &str) -> Option<u64> {
    let line = text.split(|b| *b == b'\n').find(|line| line.starts_with(key.as_bytes()))?;
    number(line.rsplit(|b| b.is_ascii_whitespace()).next()?)
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_the_start_of_their_line() {
        let text =
            b"nr_x : 5\nse.nr_migrations                 :    17\nvoluntary_ctxt_switches:\t9\n";
        assert_eq!(field(text, "se.nr_migrations"), Some(17));
        assert_eq!(field(text, "voluntary_ctxt_switches:"), Some(9));
        assert_eq!(field(text, "nonvoluntary"), None);
    }

    #[test]
    fn paths_end_with_a_zero() {
        let path = path(i32::MAX, i32::MAX, "schedstat");
        let end = path.iter().position(|b| *b == 0).unwrap();
        assert_eq!(&path[..end], b"/proc/2147483647/task/2147483647/schedstat");
    }
}
