// SPDX-License-Identifier: GPL-2.0-only
//! The buffer of a dump: lines up to a total size, and the scheduler's text split into lines with a
//! prefix.
//!
//! Owns: truncation. Models: kernel `struct seq_buf`, `ops_dump_init()`, `ops_dump_flush()`, 7.3.

use crate::bpf::flags::limit;

/// Text that ends a dump which did not fit the buffer.
const TRUNCATED: &str = "\n\n~~~~ TRUNCATED ~~~~\n";

/// A dump that is being written.
#[derive(Debug, Default)]
pub struct DumpBuf {
    text: Vec<u8>,
    /// Size of the kernel's buffer, its final NUL included.
    size: usize,
    overflowed: bool,
    /// Text of the scheduler's dump operation that runs now; None if none runs.
    op_text: Option<OpText>,
}

/// State of the text from one dump operation.
#[derive(Debug)]
struct OpText {
    prefix: &'static str,
    /// Whether the operation's first line is still to be written. A blank line goes before it.
    first: bool,
    /// Text that is not yet in the dump. `flush` moves the text to the dump when it ends with a
    /// newline or fills the kernel's buffer.
    line: String,
}

/// A position in a dump. `rewind` removes the text that was added after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DumpPos {
    len: usize,
    overflowed: bool,
}

impl DumpBuf {
    pub(super) fn new(size: usize) -> Self {
        DumpBuf { size, ..DumpBuf::default() }
    }

    /// Adds a line. A line that does not fit is cut, and no line is added after it.
    pub(super) fn line(&mut self, text: &str) {
        if self.overflowed {
            return;
        }
        let room = self.size.saturating_sub(1).saturating_sub(self.text.len());
        self.overflowed = text.len() >= room;
        self.text.extend_from_slice(&text.as_bytes()[..text.len().min(room)]);
        if !self.overflowed {
            self.text.push(b'\n');
        }
    }

    pub(super) fn position(&self) -> DumpPos {
        DumpPos { len: self.text.len(), overflowed: self.overflowed }
    }

    pub(super) fn rewind(&mut self, to: DumpPos) {
        self.text.truncate(to.len);
        self.overflowed = to.overflowed;
    }

    /// Starts the text of one of the scheduler's dump operations. Its lines get `prefix`.
    pub(super) fn open(&mut self, prefix: &'static str) {
        self.op_text = Some(OpText { prefix, first: true, line: String::new() });
    }

    /// Ends the text of a dump operation. The last line may lack a newline.
    pub(super) fn close(&mut self) {
        self.flush();
        self.op_text = None;
    }

    /// Adds text from a dump operation; returns false if none runs.
    pub(super) fn append(&mut self, text: &str) -> bool {
        let Some(op_text) = &mut self.op_text else {
            return false;
        };
        let room = limit::EXIT_MSG_LEN - 1 - op_text.line.len();
        let full = text.len() > room;
        op_text.line.push_str(head(text, room));
        if full || op_text.line.ends_with('\n') {
            self.flush();
        }
        true
    }

    fn flush(&mut self) {
        let Some(op_text) = &mut self.op_text else {
            return;
        };
        if op_text.line.is_empty() {
            return;
        }
        let text = std::mem::take(&mut op_text.line);
        let prefix = op_text.prefix;
        if std::mem::take(&mut op_text.first) {
            self.line("");
        }
        for line in text.strip_suffix('\n').unwrap_or(&text).split('\n') {
            self.line(&format!("{prefix}{line}"));
        }
    }

    pub(super) fn finish(mut self) -> String {
        // The truncation marker replaces the end of the dump, if the buffer can hold the marker and
        // its NUL.
        if self.overflowed && self.size > TRUNCATED.len() {
            self.text.truncate(self.size - 1 - TRUNCATED.len());
            self.text.extend_from_slice(TRUNCATED.as_bytes());
        }
        String::from_utf8_lossy(&self.text).into_owned()
    }
}

/// Returns at most the first `max` bytes of `text`, cut at a character boundary.
fn head(text: &str, max: usize) -> &str {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Formats a mask as `%*pb` does: hexadecimal, in groups of 32 bits, the highest group first.
pub(super) fn hex_bitmap(words: &[u64], nr_bits: usize) -> String {
    let mut text = String::new();
    for group in (0..nr_bits.div_ceil(32)).rev() {
        let bits = (nr_bits - group * 32).min(32);
        let word = words.get(group / 2).copied().unwrap_or(0);
        let value = (word >> (group % 2 * 32)) & ((1 << bits) - 1);
        let comma = if text.is_empty() { "" } else { "," };
        let width = bits.div_ceil(4);
        text.push_str(&format!("{comma}{value:0width$x}"));
    }
    text
}
