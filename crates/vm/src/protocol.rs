// SPDX-License-Identifier: GPL-2.0-only
//! The messages between guest and host: frames on a serial port that carries nothing else.
//!
//! Owns: the encoding. Does not: know a result's meaning.
//!
//! ```text
//! frame = magic (4) kind (1) length (8, little-endian) hash (8, little-endian) payload (length)
//! ```
//!
//! A guest sends `Ready` once, then at most one of `Result` and `Failed`. A guest that begins its
//! work together with others sends `Waiting` in between, and gets `Go` from the host. A frame that
//! is cut short, or whose hash is wrong, is an error and never a shorter result.

use std::io::{self, Read, Write};

use scxlab_machine::hash::StableHash;
use thiserror::Error;

/// First bytes of a frame. They change when the format changes incompatibly; both sides are
/// normally the same executable.
const MAGIC: [u8; 4] = *b"sxv1";
const HEADER_BYTES: usize = 4 + 1 + 8 + 8;
/// Bound on the length of a payload, in bytes; a larger length means a damaged header.
const PAYLOAD_BYTES_MAX: u64 = 1 << 32;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// The guest is up; the payload is a [`Ready`].
    Ready = 0,
    /// The payload is the output of the guest's program.
    Result = 1,
    /// No result will come; the payload is the reason, as a sentence.
    Failed = 2,
    /// The guest's program waits for `Go`; no payload.
    Waiting = 3,
    /// From the host: the guest's program must begin; no payload.
    Go = 4,
}

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub kind: FrameKind,
    pub payload: Vec<u8>,
}

/// Reason why no frame was received.
#[derive(Debug, Error)]
pub(crate) enum FrameError {
    #[error("the guest closed the result port without sending a frame")]
    End,
    #[error("the result was cut off: {got} of {want} bytes came")]
    Truncated { got: u64, want: u64 },
    #[error("the result is damaged: {why}")]
    Damaged { why: &'static str },
    #[error("the result port: {0}")]
    Io(#[from] io::Error),
}

/// Writes one frame.
pub(crate) fn send(to: &mut impl Write, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(&MAGIC);
    header.push(kind as u8);
    header.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    header.extend_from_slice(&hash(kind, payload).to_le_bytes());
    to.write_all(&header)?;
    to.write_all(payload)?;
    to.flush()
}

/// A stream whose end by a reset is an end like any other. A Unix socket is reset if its peer dies
/// before it has read all that was sent to it.
struct ToTheEnd<'a, R>(&'a mut R);

impl<R: Read> Read for ToTheEnd<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buffer) {
            Err(why) if why.kind() == io::ErrorKind::ConnectionReset => Ok(0),
            got => got,
        }
    }
}

/// Reads one frame.
pub(crate) fn receive(from: &mut impl Read) -> Result<Frame, FrameError> {
    let mut from = ToTheEnd(from);
    let mut header = [0; HEADER_BYTES];
    match fill(&mut from, &mut header)? {
        0 => return Err(FrameError::End),
        HEADER_BYTES => {}
        got => {
            return Err(FrameError::Truncated { got: got as u64, want: HEADER_BYTES as u64 });
        }
    }
    if header[..4] != MAGIC {
        return Err(FrameError::Damaged { why: "it does not start with the expected magic" });
    }
    let kind = match header[4] {
        0 => FrameKind::Ready,
        1 => FrameKind::Result,
        2 => FrameKind::Failed,
        3 => FrameKind::Waiting,
        4 => FrameKind::Go,
        _ => return Err(FrameError::Damaged { why: "an unknown kind" }),
    };
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
    let (want, hash) = (number(5), number(13));
    if want > PAYLOAD_BYTES_MAX {
        return Err(FrameError::Damaged { why: "an impossible length" });
    }
    // The buffer grows as bytes arrive: a damaged length must not reserve gigabytes.
    let mut payload = Vec::new();
    from.take(want).read_to_end(&mut payload)?;
    if (payload.len() as u64) < want {
        return Err(FrameError::Truncated { got: payload.len() as u64, want });
    }
    if self::hash(kind, &payload) != hash {
        return Err(FrameError::Damaged { why: "its checksum is wrong" });
    }
    Ok(Frame { kind, payload })
}

fn hash(kind: FrameKind, payload: &[u8]) -> u64 {
    let mut hash = StableHash::new(kind as u64);
    hash.add_bytes(payload);
    hash.finish()
}

fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match from.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
    Ok(got)
}

/// State of the guest when it came up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    /// The kernel's release.
    pub release: String,
    /// Names of the features that the caller needs and the guest's kernel lacks.
    pub lacks: Vec<String>,
    /// First difference between the guest's topology and the requested one; None if they are equal.
    pub topology: Option<String>,
}

impl Ready {
    /// Encodes the state as lines of a key and its value; line breaks in values become spaces.
    pub fn to_bytes(&self) -> Vec<u8> {
        let one_line = |text: &str| text.replace('\n', " ");
        let mut text = format!("release {}\n", one_line(&self.release));
        for lack in &self.lacks {
            text += &format!("lacks {}\n", one_line(lack));
        }
        if let Some(topology) = &self.topology {
            text += &format!("topology {}\n", one_line(topology));
        }
        text.into_bytes()
    }

    /// Decodes what `to_bytes` encoded. Lines with an unknown key come from a newer guest and are
    /// skipped.
    pub fn from_bytes(bytes: &[u8]) -> Ready {
        let mut ready = Ready::default();
        for line in String::from_utf8_lossy(bytes).lines() {
            match line.split_once(' ') {
                Some(("release", value)) => ready.release = value.to_owned(),
                Some(("lacks", value)) => ready.lacks.push(value.to_owned()),
                Some(("topology", value)) => ready.topology = Some(value.to_owned()),
                _ => {}
            }
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn frame(kind: FrameKind, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        send(&mut bytes, kind, payload).unwrap();
        bytes
    }

    #[test]
    fn frames_follow_each_other() {
        let mut bytes = frame(FrameKind::Ready, b"");
        bytes.extend(frame(FrameKind::Result, &[7; 100_000]));
        bytes.extend(frame(FrameKind::Failed, b"why"));
        let mut from = bytes.as_slice();
        assert_eq!(receive(&mut from).unwrap(), Frame { kind: FrameKind::Ready, payload: vec![] });
        assert_eq!(receive(&mut from).unwrap().payload.len(), 100_000);
        assert_eq!(
            receive(&mut from).unwrap(),
            Frame { kind: FrameKind::Failed, payload: b"why".to_vec() }
        );
        assert!(matches!(receive(&mut from), Err(FrameError::End)));
    }

    /// QEMU may be killed before it has read what the host sent.
    #[test]
    fn a_reset_is_an_end() {
        for sent in [Vec::new(), frame(FrameKind::Result, b"some result")[..9].to_vec()] {
            let (mut host, mut qemu) = UnixStream::pair().unwrap();
            send(&mut host, FrameKind::Go, &[]).unwrap();
            qemu.write_all(&sent).unwrap();
            drop(qemu);
            match receive(&mut host) {
                Err(FrameError::End) if sent.is_empty() => {}
                Err(FrameError::Truncated { got: 9, .. }) if sent.len() == 9 => {}
                got => panic!("after {} bytes: {got:?}", sent.len()),
            }
        }
    }

    #[test]
    fn every_cut_is_noticed() {
        let bytes = frame(FrameKind::Result, b"some result");
        for len in 1..bytes.len() {
            let got = receive(&mut &bytes[..len]);
            assert!(matches!(got, Err(FrameError::Truncated { .. })), "{len}: {got:?}");
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = frame(FrameKind::Result, b"some result");
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                assert!(receive(&mut bytes.as_slice()).is_err(), "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn ready_reads_back() {
        let ready = Ready {
            release: "7.3.4".into(),
            lacks: vec!["BTF (CONFIG_DEBUG_INFO_BTF)".into(), "other".into()],
            topology: Some("CPU 1\nis elsewhere".into()),
        };
        let back = Ready::from_bytes(&ready.to_bytes());
        assert_eq!(back.topology.as_deref(), Some("CPU 1 is elsewhere"));
        assert_eq!((back.release, back.lacks), (ready.release, ready.lacks));
        assert_eq!(Ready::from_bytes(&Ready::default().to_bytes()), Ready::default());
    }
}
