// SPDX-License-Identifier: GPL-2.0-only
//! Why a scheduler left a real kernel, in the words of simulated exits.
//!
//! Owns: reading `struct user_exit_info`, in which nearly every scheduler records its exit, and the kernel's log for
//! the others.
//! Models: `scx_exit_reason()` and what `scx_disable_workfn()` prints, 7.3.

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

/// The name of a kernel's number for it; the number itself if it is not known here.
pub fn kind_name(kind: u64) -> String {
    let found = KINDS.iter().find(|k| **k as u64 == kind);
    found.map_or_else(|| format!("kind_{kind}"), |k| k.name().to_owned())
}

/// The kernel's log from now on.
pub struct KernelLog(Option<File>);

impl KernelLog {
    /// Without access to the log there is none, and nothing is found in it.
    pub fn from_here() -> KernelLog {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg");
        let at_end = |mut f: File| f.seek(SeekFrom::End(0)).map(|_| f);
        KernelLog(file.and_then(at_end).ok())
    }

    /// Messages since the last call, one a line, without their headers.
    pub fn lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let Some(file) = &mut self.0 else { return lines };
        let mut record = [0; 8192];
        loop {
            match file.read(&mut record) {
                Ok(0) => return lines,
                Ok(len) => {
                    let text = String::from_utf8_lossy(&record[..len]);
                    let message = text.split_once(';').map_or("", |(_, m)| m);
                    lines.extend(message.lines().next().map(str::to_owned));
                }
                // Overwritten before it was read: go on with what is there.
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => return lines,
            }
        }
    }
}

/// The exit of scheduler `name` as the log tells it: `sched_ext: BPF scheduler "x" disabled (reason)`, and after it
/// `sched_ext: x: message`.
pub fn from_log(lines: &[String], name: &str) -> Option<Exit> {
    let head = format!("sched_ext: BPF scheduler \"{name}\" disabled (");
    let at = lines.iter().position(|l| l.starts_with(&head))?;
    let reason = lines[at][head.len()..].trim_end_matches(')');
    let kind = KINDS.iter().find(|k| k.reason() == reason);
    let prefix = format!("sched_ext: {name}: ");
    let message = lines[at + 1..].iter().find_map(|l| l.strip_prefix(&prefix));
    Some(Exit {
        kind: kind.map_or_else(|| reason.to_owned(), |k| k.name().to_owned()),
        code: 0,
        message: message.unwrap_or_default().to_owned(),
        dump: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_kind_and_message() {
        let lines: Vec<String> = [
            "sched_ext: BPF scheduler \"other\" enabled",
            "sched_ext: BPF scheduler \"lazy\" disabled (runnable task stall)",
            "sched_ext: lazy: hog[123] failed to run for 5.004s",
        ]
        .map(str::to_owned)
        .to_vec();
        let exit = from_log(&lines, "lazy").expect("it left");
        assert_eq!(exit.kind, "error_stall");
        assert_eq!(exit.message, "hog[123] failed to run for 5.004s");
        assert_eq!(from_log(&lines, "other"), None);
    }

    #[test]
    fn a_number_has_the_simulators_name() {
        assert_eq!(kind_name(1026), "error_stall");
        assert_eq!(kind_name(64), "unreg");
        assert_eq!(kind_name(7), "kind_7");
    }
}
