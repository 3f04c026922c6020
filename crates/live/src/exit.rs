// SPDX-License-Identifier: GPL-2.0-only
//! A scheduler's exit from a real kernel, in the form and with the names of a simulated exit.
//!
//! Owns: the mapping of exit kinds, and reading of the kernel's log for schedulers that do not
//! record their exit in `struct user_exit_info`.
//! Models: `scx_exit_reason()` and the messages of `scx_disable_workfn()`, 7.3.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use scxlab_kernel::ext::exit::ExitKind;
use scxlab_lab::run::Exit;

const KINDS: [ExitKind; 9] = [
    ExitKind::Done,
    ExitKind::Unreg,
    ExitKind::UnregBpf,
    ExitKind::UnregKern,
    ExitKind::Sysrq,
    ExitKind::Error,
    ExitKind::ErrorBpf,
    ExitKind::ErrorStall,
    ExitKind::ErrorReenq,
];

/// Returns the name of an exit kind by its number in the kernel, or `kind_N` if the number is
/// unknown.
pub fn kind_name(kind: u64) -> String {
    let found = KINDS.iter().find(|k| **k as u64 == kind);
    found.map_or_else(|| format!("kind_{kind}"), |k| k.name().to_owned())
}

/// Returns the number of the exit kind with that name; 0 if the name is unknown.
pub fn kind_number(name: &str) -> u32 {
    KINDS.iter().find(|k| k.name() == name).map_or(0, |k| *k as u32)
}

/// One message of the kernel's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Time on the log's own clock, which may differ from CLOCK_MONOTONIC by some milliseconds.
    pub at_ns: u64,
    pub text: String,
}

impl Message {
    /// Parses a record of /dev/kmsg: `level,number,microseconds,flags;message`.
    fn of_record(record: &str) -> Option<Message> {
        let (head, text) = record.split_once(';')?;
        let micros: u64 = head.split(',').nth(2)?.parse().ok()?;
        let at_ns = micros.saturating_mul(1000);
        Some(Message { at_ns, text: text.lines().next().unwrap_or_default().to_owned() })
    }
}

/// The kernel's log from a given moment on.
pub struct KernelLog(Option<File>);

impl KernelLog {
    /// Opens the log at its end. If the log is not accessible, it appears empty.
    pub fn from_here() -> KernelLog {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg");
        let at_end = |mut f: File| f.seek(SeekFrom::End(0)).map(|_| f);
        KernelLog(file.and_then(at_end).ok())
    }

    /// Returns the messages since the last call.
    pub fn messages(&mut self) -> Vec<Message> {
        let mut all = Vec::new();
        let Some(file) = &mut self.0 else { return all };
        let mut record = [0; 8192];
        loop {
            match file.read(&mut record) {
                Ok(0) => return all,
                Ok(len) => {
                    all.extend(Message::of_record(&String::from_utf8_lossy(&record[..len])));
                }
                // Records were overwritten before they were read; continue with the remaining ones.
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => return all,
            }
        }
    }
}

/// Returns the exit of scheduler `name` from the log, which has
/// `sched_ext: BPF scheduler "x" disabled (reason)`, and then `sched_ext: x: message`.
pub fn from_log(log: &[Message], name: &str) -> Option<Exit> {
    let head = disabled(name);
    let at = log.iter().position(|m| m.text.starts_with(&head))?;
    let reason = log[at].text[head.len()..].trim_end_matches(')');
    let kind = KINDS.iter().find(|k| k.reason() == reason);
    let prefix = format!("sched_ext: {name}: ");
    let message = log[at + 1..].iter().find_map(|m| m.text.strip_prefix(&prefix));
    Some(Exit {
        kind: kind.map_or_else(|| reason.to_owned(), |k| k.name().to_owned()),
        code: 0,
        message: message.unwrap_or_default().to_owned(),
        at_ns: None,
        origin: Vec::new(),
        story: None,
        dump: String::new(),
    })
}

/// Returns the time in ns between the log messages that scheduler `name` is enabled and disabled.
/// For a scheduler that is ejected while it is being enabled, the log has only the second message,
/// and the time is 0.
pub fn time_in_charge(log: &[Message], name: &str) -> Option<u64> {
    let enabled = format!("sched_ext: BPF scheduler \"{name}\" enabled");
    let head = disabled(name);
    let until = log.iter().find(|m| m.text.starts_with(&head))?;
    let from = log.iter().find(|m| m.text.starts_with(&enabled)).unwrap_or(until);
    Some(until.at_ns.saturating_sub(from.at_ns))
}

fn disabled(name: &str) -> String {
    format!("sched_ext: BPF scheduler \"{name}\" disabled (")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_kind_and_message() {
        let log: Vec<Message> = [
            "6,800,1000000,-;sched_ext: BPF scheduler \"other\" enabled",
            "6,801,2000000,-;sched_ext: BPF scheduler \"lazy\" enabled",
            "6,802,7004000,-;sched_ext: BPF scheduler \"lazy\" disabled (runnable task stall)\n KEY=x",
            "6,803,7005000,-;sched_ext: lazy: hog[123] failed to run for 5.004s",
        ]
        .iter()
        .filter_map(|record| Message::of_record(record))
        .collect();
        let exit = from_log(&log, "lazy").expect("it left");
        assert_eq!(exit.kind, "error_stall");
        assert_eq!(exit.message, "hog[123] failed to run for 5.004s");
        assert_eq!(time_in_charge(&log, "lazy"), Some(5_004_000_000));
        assert_eq!(time_in_charge(&log[2..], "lazy"), Some(0), "never enabled");
        assert_eq!((from_log(&log, "other"), time_in_charge(&log, "other")), (None, None));
        assert_eq!(Message::of_record("no record"), None);
    }

    #[test]
    fn a_number_has_the_simulators_name() {
        assert_eq!(kind_name(1026), "error_stall");
        assert_eq!(kind_name(64), "unreg");
        assert_eq!(kind_name(7), "kind_7");
        assert_eq!((kind_number("error_stall"), kind_number("kind_7")), (1026, 0));
    }
}
