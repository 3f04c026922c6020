// SPDX-License-Identifier: GPL-2.0-only
//! Bounded byte queues: pipes, and one direction of a stream socket.
//!
//! Owns: bytes and order. A read ends when all its bytes are there, a write when all its bytes are in; a
//! write of at most 4,096 bytes goes in whole or not at all (PIPE_BUF). Both queues are first come first
//! served. A wake-up carries the sync hint, as the kernel's pipe and socket code gives it.
//! Simplified: a reader is not woken for a part of what it wants, nor a writer before its bytes fit.

use std::collections::VecDeque;

use scxlab_kernel::behavior::{Step, Sys};

use super::{Executor, Flow, Wait};
use crate::compile::insn::Res;
use crate::program::PipeKind;

/// Writes up to this size are atomic.
const PIPE_BUF: u64 = 4096;

pub(super) struct Pipe {
    pub kind: PipeKind,
    capacity: u64,
    /// Bytes that a message occupies beyond its own.
    overhead: u64,
    /// Bytes to be read.
    bytes: u64,
    /// Unread bytes of each message; kept only when messages have overhead.
    messages: VecDeque<u64>,
    /// Threads and the bytes that they still want to move.
    readers: VecDeque<(u32, u64)>,
    writers: VecDeque<(u32, u64)>,
}

impl Pipe {
    pub fn new(kind: PipeKind, capacity: u64, overhead: u64) -> Self {
        Pipe {
            kind,
            capacity,
            overhead,
            bytes: 0,
            messages: VecDeque::new(),
            readers: VecDeque::new(),
            writers: VecDeque::new(),
        }
    }

    /// Room for the bytes of a further message.
    fn room(&self) -> u64 {
        let overheads = self.overhead.saturating_mul(self.messages.len() as u64);
        let used = self.bytes.saturating_add(overheads).saturating_add(self.overhead);
        self.capacity.saturating_sub(used)
    }

    /// Puts in what may go in of `wanted` bytes; gives how many went.
    fn fill(&mut self, wanted: u64) -> u64 {
        let room = self.room();
        let whole_only = wanted <= PIPE_BUF && wanted <= self.capacity - self.overhead;
        let moved = if wanted > room && whole_only { 0 } else { wanted.min(room) };
        self.bytes += moved;
        if self.overhead > 0 && moved > 0 {
            self.messages.push_back(moved);
        }
        moved
    }

    /// Takes up to `wanted` bytes out; gives how many came.
    fn drain(&mut self, wanted: u64) -> u64 {
        let moved = wanted.min(self.bytes);
        self.bytes -= moved;
        let mut left = moved;
        while left > 0 {
            let Some(first) = self.messages.front_mut() else {
                break;
            };
            let part = left.min(*first);
            *first -= part;
            left -= part;
            if *first == 0 {
                self.messages.pop_front();
            }
        }
        moved
    }
}

impl Executor {
    pub(super) fn write(&mut self, sys: &mut dyn Sys, t: usize, pipe: Res, bytes: u64) -> Flow {
        let p = pipe.index(&self.threads[t].binding);
        sys.charge(self.costs.pipe(self.pipes[p].kind, bytes));
        let pipe = &mut self.pipes[p];
        // Behind a writer that waits, the queue decides.
        let moved = if pipe.writers.is_empty() { pipe.fill(bytes) } else { 0 };
        let left = bytes - moved;
        if left > 0 {
            pipe.writers.push_back((t as u32, left));
            self.threads[t].wait = Wait::PipeWrite(p as u32);
        }
        self.pump(sys, p);
        self.blocked_or_on(t)
    }

    pub(super) fn read(&mut self, sys: &mut dyn Sys, t: usize, pipe: Res, bytes: u64) -> Flow {
        let p = pipe.index(&self.threads[t].binding);
        sys.charge(self.costs.pipe(self.pipes[p].kind, bytes));
        let pipe = &mut self.pipes[p];
        let moved = if pipe.readers.is_empty() { pipe.drain(bytes) } else { 0 };
        let left = bytes - moved;
        if left > 0 {
            pipe.readers.push_back((t as u32, left));
            self.threads[t].wait = Wait::PipeRead(p as u32);
        }
        self.pump(sys, p);
        self.blocked_or_on(t)
    }

    /// Blocks unless `pump` has completed the thread's own operation already.
    fn blocked_or_on(&self, t: usize) -> Flow {
        match self.threads[t].wait {
            Wait::None => Flow::Next,
            _ => Flow::Yield(Step::Block),
        }
    }

    /// Moves bytes from waiting writers to waiting readers until neither can go on. Each turn completes an
    /// operation or moves bytes through a bounded buffer, so it ends.
    fn pump(&mut self, sys: &mut dyn Sys, p: usize) {
        loop {
            let pipe = &mut self.pipes[p];
            let mut progress = false;
            if let Some((reader, left)) = pipe.readers.front_mut().map(|r| (r.0, r.1)) {
                let moved = pipe.drain(left);
                progress |= moved > 0;
                pipe.readers[0].1 -= moved;
                if moved == left {
                    pipe.readers.pop_front();
                    self.release(sys, reader, true);
                }
            }
            let pipe = &mut self.pipes[p];
            if let Some((writer, left)) = pipe.writers.front().copied() {
                let moved = pipe.fill(left);
                progress |= moved > 0;
                pipe.writers[0].1 -= moved;
                if moved == left {
                    pipe.writers.pop_front();
                    self.release(sys, writer, true);
                }
            }
            if !progress {
                return;
            }
        }
    }
}
