// SPDX-License-Identifier: GPL-2.0-only
//! The bytes of a file, decompressed, and the recognition of its format by the first of them.

use std::cell::Cell;
use std::io::{self, BufReader, Cursor, Read};
use std::rc::Rc;

use flate2::read::MultiGzDecoder;

use super::imported::Format;
use super::text;

/// Number of bytes by which the format is recognised.
const HEAD: u64 = 1 << 16;
/// Size of the buffer of reads.
const BUFFER: usize = 1 << 16;

/// The bytes of a file, decompressed.
pub struct Input<'a> {
    head: Vec<u8>,
    pub bytes: BufReader<Box<dyn Read + 'a>>,
    broken: Rc<Cell<bool>>,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Empty,
    Trace(Format),
    /// Another program must convert the file.
    Convert {
        what: &'static str,
        advice: &'static str,
    },
    Unknown,
}

/// The format has slices and no wake-ups.
const CHROME: &str = "it has no wake-ups: record with scxlab record, perf sched or Perfetto";

/// Files that are recognised to be refused: first bytes, what it is, what to do.
const OTHERS: &[(&[u8], &str, &str)] = &[
    (b"PERFILE2", "the binary file of perf record", "give the text: perf script --ns -i FILE"),
    (
        b"\x17\x08\x44tracing",
        "the binary file of trace-cmd",
        "give the text: trace-cmd report -t -i FILE",
    ),
    (b"\x28\xb5\x2f\xfd", "compressed", "decompress it: unzstd FILE"),
    (b"\xfd7zXZ\x00", "compressed", "decompress it: unxz FILE"),
    (b"PK\x03\x04", "a zip archive", "unpack it: unzip FILE"),
    (b"{\"traceEvents\"", "a trace in Chrome's JSON format", CHROME),
];

impl<'a> Input<'a> {
    pub fn open(input: impl Read + 'a) -> io::Result<Input<'a>> {
        let broken = Rc::new(Cell::new(false));
        let (head, whole) = peek(input)?;
        let (head, whole): (_, Box<dyn Read + 'a>) = if head.starts_with(GZIP) {
            let bytes = MultiGzDecoder::new(whole);
            let (head, whole) = peek(UntilBroken { bytes, broken: broken.clone() })?;
            (head, Box::new(whole))
        } else {
            (head, Box::new(whole))
        };
        Ok(Input { head, broken, bytes: BufReader::with_capacity(BUFFER, whole) })
    }

    /// Whether the compressed data have ended before their end.
    pub fn is_broken(&self) -> bool {
        self.broken.get()
    }

    pub fn kind(&self) -> Kind {
        let head = self.head.as_slice();
        let other = OTHERS.iter().find(|(magic, ..)| head.starts_with(magic));
        match other {
            _ if head.is_empty() => Kind::Empty,
            Some(&(_, what, advice)) => Kind::Convert { what, advice },
            None if is_text(head) => text::recognise(head).map_or(Kind::Unknown, Kind::Trace),
            None if head[0] == PACKET => Kind::Trace(Format::Perfetto),
            None => Kind::Unknown,
        }
    }
}

/// First bytes of a file that gzip compressed.
const GZIP: &[u8] = b"\x1f\x8b";

/// Decompressed bytes, which end where the compressed data are broken or cut off.
struct UntilBroken<R> {
    bytes: R,
    broken: Rc<Cell<bool>>,
}

impl<R: Read> Read for UntilBroken<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        match self.bytes.read(to) {
            Err(error) if matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof) => {
                self.broken.set(true);
                Ok(0)
            }
            other => other,
        }
    }
}

/// Returns the first bytes, and all bytes.
fn peek(mut input: impl Read) -> io::Result<(Vec<u8>, impl Read)> {
    let mut head = Vec::new();
    input.by_ref().take(HEAD).read_to_end(&mut head)?;
    let whole = Cursor::new(head.clone()).chain(input);
    Ok((head, whole))
}

/// First byte of a Perfetto trace: the tag of a packet.
const PACKET: u8 = 0x0a;

/// Whether the bytes are text. A packet has bytes soon that are no text, such as small numbers.
fn is_text(bytes: &[u8]) -> bool {
    !bytes.iter().take(4096).any(|byte| matches!(byte, 0..=8 | 14..=26 | 28..=31))
}
