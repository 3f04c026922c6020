// SPDX-License-Identifier: GPL-2.0-only
//! Messages of libbpf while an object is loaded, kept for the error message if loading fails.
//!
//! Owns: the buffer of libbpf's print callback. The buffer is global, because the callback takes no
//! argument of the caller.

use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_rs::{PrintLevel, set_print};

static TEXT: Mutex<String> = Mutex::new(String::new());
/// Allows one load at a time, because the callback is global to the process.
static TURN: Mutex<()> = Mutex::new(());

/// Size limit of the kept messages in bytes. Beyond the limit, the oldest messages are dropped,
/// because a verifier's log ends with the reason.
const KEEP: usize = 4 << 20;
/// Line in place of messages that were dropped.
const DROPPED: &str = "(earlier lines are dropped)\n";
/// Marks around a verifier's log. The first mark stands in a line with the program's name.
const BEGIN: &str = "-- BEGIN PROG LOAD LOG --";
const END: &str = "-- END PROG LOAD LOG --";

/// Runs `f`, and returns its result with libbpf's messages during the call.
pub fn listen<R>(f: impl FnOnce() -> R) -> (R, String) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    text().clear();
    let before = set_print(Some((PrintLevel::Warn, append_log)));
    let result = f();
    set_print(before);
    (result, std::mem::take(&mut *text()))
}

fn text() -> MutexGuard<'static, String> {
    TEXT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn append_log(_: PrintLevel, line: String) {
    let mut text = text();
    text.push_str(&line);
    if text.len() > KEEP {
        *text = shortened(&text);
    }
}

/// Drops lines from the start until half of the limit is left, so that the next messages have room.
/// The first line of a verifier's log stays if the log reaches beyond the dropped lines.
fn shortened(text: &str) -> String {
    let cut = text.ceil_char_boundary(text.len() - KEEP / 2);
    let cut = text[cut..].find('\n').map_or(cut, |at| cut + at + 1);
    let (dropped, kept) = text.split_at(cut);
    let begin = dropped.rfind(BEGIN).filter(|at| !dropped[*at..].contains(END));
    let first = begin.map_or("", |at| {
        let from = dropped[..at].rfind('\n').map_or(0, |at| at + 1);
        dropped[from..].split_inclusive('\n').next().unwrap_or_default()
    });
    [first, DROPPED, kept].concat()
}

/// The verifier's rejection of a program as libbpf reports it: the program, the last source line
/// named in the log, and the end of the log.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub program: String,
    pub source_line: Option<String>,
    pub end: String,
}

/// Returns the kernel's variable that an object needs, and that the kernel does not show.
pub fn missing_symbol(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("failed to find the address for kernel symbol '")?;
    rest.split('\'').next().map(str::to_owned)
}

/// Number of lines shown from the end of a verifier's log. Recent kernels end the log with a report
/// of about this length.
const SHOWN: usize = 40;

pub fn refusal(text: &str) -> Option<Refusal> {
    let begin = text.find(BEGIN)?;
    let end = text[begin..].find(END).map_or(text.len(), |at| begin + at);
    let program = text[..end].rsplit("prog '").next()?.split('\'').next()?.to_owned();
    let log: Vec<&str> = text[begin..end]
        .lines()
        .skip(1)
        .filter(|l| !l.starts_with("libbpf:") && !l.starts_with("processed "))
        .collect();
    // Source lines look like "; source text @ file.c:12".
    let place = |l: &&str| l.starts_with("; ") && l.contains(" @ ");
    let source_line = log.iter().rev().find(|l| place(l)).map(|l| {
        let (code, at) = l[2..].rsplit_once(" @ ").unwrap_or((&l[2..], ""));
        format!("{at}: {}", code.trim())
    });
    let from = log.len().saturating_sub(SHOWN);
    Some(Refusal { program, source_line, end: log[from..].join("\n") })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "libbpf: prog 'first': BPF program load failed: -22\n\
        libbpf: prog 'bad_enqueue': -- BEGIN PROG LOAD LOG --\n\
        0: R1=ctx() R10=fp0\n\
        ; *(int *)0 = 1; @ bad.bpf.c:7\n\
        1: (b7) r1 = 1\n\
        2: (63) *(u32 *)(r0 +0) = r1\n\
        R0 invalid mem access 'scalar'\n\
        processed 3 insns (limit 1000000)\n\
        -- END PROG LOAD LOG --\n\
        libbpf: prog 'bad_enqueue': failed to load: -13\n";

    #[test]
    fn a_refusal_names_program_line_and_reason() {
        let found = refusal(LOG).expect("there is a log");
        assert_eq!(found.program, "bad_enqueue");
        assert_eq!(found.source_line.as_deref(), Some("bad.bpf.c:7: *(int *)0 = 1;"));
        assert!(found.end.ends_with("R0 invalid mem access 'scalar'"), "{}", found.end);
    }

    /// The verifier's log of one program has up to 16 MiB, and libbpf passes it on as one message.
    /// The end of such a log must be kept.
    #[test]
    fn the_end_of_a_long_log_is_kept() {
        let walk = "5: (07) r2 += 8 ; R2=scalar()\n".repeat(1 << 18);
        let (head, tail) = LOG.split_at(LOG.find("; *(int").expect("a source line"));
        let long = format!("{head}{walk}{tail}");
        assert!(long.len() > KEEP);
        let messages =
            [vec![long.clone()], long.split_inclusive('\n').map(str::to_owned).collect()];
        for messages in messages {
            let ((), log) = listen(|| {
                messages.into_iter().for_each(|message| append_log(PrintLevel::Warn, message));
            });
            assert!(log.len() <= KEEP, "{}", log.len());
            let found = refusal(&log).expect("there is a log");
            assert_eq!(found.program, "bad_enqueue");
            assert_eq!(found.source_line.as_deref(), Some("bad.bpf.c:7: *(int *)0 = 1;"));
            assert!(found.end.ends_with("R0 invalid mem access 'scalar'"), "{}", found.end);
        }
    }

    #[test]
    fn a_missing_symbol_is_named() {
        let log =
            "0: (18)\nldimm64 failed to find the address for kernel symbol '__preempt_count'.\n";
        assert_eq!(missing_symbol(log).as_deref(), Some("__preempt_count"));
        assert_eq!(missing_symbol(LOG), None);
    }

    #[test]
    fn other_messages_are_no_refusal() {
        assert_eq!(refusal("libbpf: failed to find BTF for extern 'x'\n"), None);
    }
}
