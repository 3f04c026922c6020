// SPDX-License-Identifier: GPL-2.0-only
//! Traces as text: `perf script`, `trace-cmd report` and ftrace's file `trace`.
//!
//! Owns: the lines of a file, and the recognition of the three formats. Does not: read the fields
//! of events (see `events.rs`).
//!
//! ```text
//! perf script        COMM  PID[/TID] [CPU]       TIME:   SYSTEM:EVENT: FIELDS
//! trace-cmd report   COMM-TID        [CPU]       TIME:   EVENT:        FIELDS
//! ftrace             COMM-TID (TGID) [CPU] FLAGS TIME:   EVENT:        FIELDS
//! ```
//! The part in parentheses is there with the option `record-tgid`; newer versions of trace-cmd
//! print the flags, too.

mod calls;
mod events;
mod fields;
mod head;

use std::collections::BTreeSet;
use std::io::{self, BufRead, Read};

use scxlab_machine::CpuId;

use super::driver::Driver;
use super::imported::{End, Format};
use super::input::Input;
use super::raw::{Comms, Raw, RawKind};
use events::Read as Event;
use head::{Form, Head};

/// Greatest length of a line that is read. Longer ones are passed over.
const LINE_MAX: u64 = 1 << 16;

/// Recognises the format by the first bytes of a file; None if no line is of one of the formats.
pub fn recognise(first: &[u8]) -> Option<Format> {
    let text = String::from_utf8_lossy(first);
    if text.starts_with("# tracer:") {
        return Some(Format::Ftrace);
    }
    let of_report = |line: &str| line.starts_with("cpus=") || line.starts_with("version = ");
    let forms = text.lines().map(|line| match Head::read(line) {
        Some((Head { form: Form::Perf, .. }, _)) => Some(Format::PerfScript),
        Some((Head { form: Form::Ftrace, .. }, _)) => Some(Format::TraceCmd),
        None if of_report(line) => Some(Format::TraceCmd),
        None => None,
    });
    forms.flatten().next()
}

pub fn read(input: &mut Input<'_>, driver: &mut Driver<'_>) -> io::Result<()> {
    let mut lines = Lines { driver, number: 0, comms: Comms::default(), told: BTreeSet::new() };
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = input.bytes.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)? as u64;
        if length == 0 {
            return Ok(());
        }
        lines.number += 1;
        if line.last() == Some(&b'\n') {
            lines.line(&line);
        } else if length == LINE_MAX {
            let rest = input.bytes.skip_until(b'\n')? as u64;
            lines.unknown(|| format!("a line of {} bytes", length + rest));
        } else {
            // The file may lack the last line's end, or be cut off within the line.
            if !lines.line(&line) {
                let number = lines.number;
                lines.driver.ends(End::Cut(number));
            }
            return Ok(());
        }
    }
}

struct Lines<'a, 'b> {
    driver: &'a mut Driver<'b>,
    /// Number of the line, from 1.
    number: u64,
    comms: Comms,
    /// Thread ids whose process and name the tasks know from the heads of lines.
    told: BTreeSet<u32>,
}

impl Lines<'_, '_> {
    /// Reads a line. Returns whether it has a meaning.
    fn line(&mut self, line: &[u8]) -> bool {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            return true;
        }
        if let Some((cpu, events)) = head::lost(line) {
            return self.lost(cpu, events);
        }
        let Some((head, rest)) = Head::read(line) else {
            // Headers of trace-cmd have no event.
            let header = head::is_header(line);
            if !header {
                self.unknown(|| format!("the line \"{}\"", shortened(line)));
            }
            return header;
        };
        self.tell(&head);
        match events::read(&rest, &mut self.comms) {
            Event::Kind(kind) => {
                self.event(&head, kind);
                true
            }
            Event::Ignored => true,
            Event::Unknown(what) => {
                self.unknown(|| what);
                false
            }
        }
    }

    fn event(&mut self, head: &Head<'_>, kind: RawKind) {
        if let RawKind::Lost { events } = kind {
            self.count_lost(head.cpu, events);
        }
        let raw = Raw {
            time: head.time,
            cpu: head.cpu,
            lane: 0,
            running: head.tid,
            interrupt: head.interrupt,
            kind,
        };
        self.driver.event(raw, self.number);
    }

    /// Counts lost events. The line has no time, so that no event stands for it.
    fn lost(&mut self, cpu: u32, events: u64) -> bool {
        self.count_lost(cpu, events);
        true
    }

    fn count_lost(&mut self, cpu: u32, events: u64) {
        let known = self.driver.imported().lost.entry(CpuId(cpu)).or_insert(0);
        *known = known.saturating_add(events);
    }

    /// Passes on what the head of a line tells about the running task.
    fn tell(&mut self, head: &Head<'_>) {
        let Some(tid) = head.tid.filter(|tid| *tid != 0) else { return };
        if self.told.insert(tid) {
            let comm = head.comm.map(|comm| self.comms.get(comm));
            self.driver.tasks().describe(tid, head.tgid, comm);
        }
    }

    fn unknown(&mut self, what: impl FnOnce() -> String) {
        self.driver.unknown(self.number, what);
    }
}

/// Returns the start of a line, for a message.
fn shortened(line: &str) -> &str {
    let line = line.trim_start();
    &line[..line.floor_char_boundary(60)]
}

#[cfg(test)]
mod tests;
