// SPDX-License-Identifier: GPL-2.0-only
//! Bounded byte queues: pipes, and one direction of a stream socket.
//!
//! Owns: bytes and order. A read ends when it has all its bytes, a write when all its bytes are in
//! the queue. A write of at most 4,096 bytes (PIPE_BUF) enters whole or not at all. Readers and
//! writers are served first come, first served. A wake-up carries the sync hint, like those of the
//! kernel's pipe and socket code.
//! A thread that polls waits in all of its pipes until one of them has bytes. The thread then
//! executes the poll again, because another reader may have been faster.
//! A read or write gets the cache lines of the queue's state from the CPU that used the queue last,
//! and a read gets those of its message from the CPU that wrote last.
//! Simplified: a reader is not woken for a part of its bytes, nor a writer before all its bytes
//! fit; a poller is not woken for bytes that a waiting reader takes at once.

use std::collections::VecDeque;

use scxlab_kernel::behavior::{Call, ChannelKind, Sys, TaskStep};
use scxlab_machine::id::{CpuId, Nanos};

use super::stats::Pending;
use super::sync::object_number;
use super::{Executor, Flow, Wait};
use crate::compile::insn::{ObjectRef, WaitObject};
use crate::program::PipeKind;

/// Maximum size in bytes of an atomic write.
const PIPE_BUF: u64 = 4096;

pub(super) struct Pipe {
    pub kind: PipeKind,
    capacity: u64,
    /// Bytes that a message occupies beyond its payload.
    overhead: u64,
    /// Number of unread bytes.
    bytes: u64,
    /// Number of unread bytes of each message; kept only if messages have overhead.
    messages: VecDeque<u64>,
    /// Waiting threads, each with the number of bytes that it still has to transfer.
    readers: VecDeque<(u32, u64)>,
    writers: VecDeque<(u32, u64)>,
    pollers: Vec<Poller>,
    /// CPUs of the machine that used the queue last, and that wrote to it last.
    used_by: Option<CpuId>,
    written_by: Option<CpuId>,
}

/// A thread that waits for bytes in several pipes. Each of these pipes has a `Poller` for the
/// thread until the thread has executed its poll again.
struct Poller {
    thread: u32,
    /// Time at which the thread stops waiting; None: never.
    until: Option<Nanos>,
    woken: bool,
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
            pollers: Vec::new(),
            used_by: None,
            written_by: None,
        }
    }

    /// Returns the room for the bytes of one more message.
    fn room(&self) -> u64 {
        let overheads = self.overhead.saturating_mul(self.messages.len() as u64);
        let used = self.bytes.saturating_add(overheads).saturating_add(self.overhead);
        self.capacity.saturating_sub(used)
    }

    /// Puts up to `wanted` bytes into the queue; returns their number. A write of at most
    /// `PIPE_BUF` bytes enters whole or not at all.
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

    /// Takes up to `wanted` bytes out of the queue; returns their number.
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

fn channel_kind(kind: PipeKind) -> ChannelKind {
    match kind {
        PipeKind::Pipe => ChannelKind::Pipe,
        PipeKind::Socket => ChannelKind::Socket,
    }
}

/// Returns the number by which a trace identifies a pipe.
pub(super) fn channel_number(pipe: usize) -> u64 {
    object_number(WaitObject::PipeRead, pipe)
}

impl Executor {
    pub(super) fn write(
        &mut self,
        sys: &mut dyn Sys,
        t: usize,
        pipe: ObjectRef,
        bytes: u64,
    ) -> Flow {
        let p = pipe.index(&self.threads[t].binding);
        if !std::mem::take(&mut self.threads[t].paid) {
            let kind = self.pipes[p].kind;
            let channel = channel_kind(kind);
            sys.note_call(Call::Write { object: channel_number(p), kind: channel, bytes });
            sys.charge(self.costs.pipe(kind, bytes));
            self.get_state(sys, p);
            if let Some(step) = self.comes_first(sys, t) {
                return step;
            }
        }
        let pipe = &mut self.pipes[p];
        pipe.written_by = pipe.used_by;
        // If a writer waits already, the bytes go through the queue of writers, which decides the
        // order.
        let moved = if pipe.writers.is_empty() { pipe.fill(bytes) } else { 0 };
        let left = bytes - moved;
        if left > 0 {
            pipe.writers.push_back((t as u32, left));
            self.threads[t].wait = Wait::On(WaitObject::PipeWrite, p as u32);
        }
        self.pump(sys, p);
        self.block_unless_done(t)
    }

    pub(super) fn read(
        &mut self,
        sys: &mut dyn Sys,
        t: usize,
        pipe: ObjectRef,
        bytes: u64,
    ) -> Flow {
        let p = pipe.index(&self.threads[t].binding);
        self.read_index(sys, t, p, bytes)
    }

    /// Reads from the first pipe of the list that has bytes, or waits in all of them.
    pub(super) fn poll(&mut self, sys: &mut dyn Sys, t: usize, index: u32) -> Flow {
        let poll = &self.compiled.tables.polls[index as usize];
        let (bytes, timeout, again) = (poll.bytes, poll.timeout, poll.again);
        let count = poll.pipes.len();
        let pipe = |exec: &Executor, i: usize| {
            let poll = &exec.compiled.tables.polls[index as usize];
            poll.pipes[i].index(&exec.threads[t].binding)
        };
        let (mut ready, mut waited) = (None, None);
        for i in 0..count {
            let p = pipe(self, i);
            waited = waited.or(self.end_poll(t, p));
            if ready.is_none() && self.pipes[p].bytes > 0 {
                ready = Some(p);
            }
        }
        let first = pipe(self, 0);
        let is_over = |until: Option<Nanos>, now: Nanos| until.is_some_and(|at| now >= at);
        if ready.is_none() && again && waited.is_some_and(|until| is_over(until, sys.now())) {
            waited = None;
        }
        if waited.is_none() && !self.threads[t].paid {
            sys.note_call(Call::Poll { timeout });
            sys.charge(self.costs.pipe(self.pipes[first].kind, 0));
        }
        match ready {
            Some(p) if bytes > 0 => return self.read_index(sys, t, p, bytes),
            Some(_) => return Flow::Next,
            None => self.threads[t].paid = false,
        }
        let now = sys.now();
        let until = waited.unwrap_or_else(|| timeout.map(|length| now.saturating_add(length)));
        if is_over(until, now) && !again {
            return Flow::Next;
        }
        for i in 0..count {
            let p = pipe(self, i);
            self.pipes[p].pollers.push(Poller { thread: t as u32, until, woken: false });
        }
        let thread = &mut self.threads[t];
        // The next step executes this instruction again.
        thread.pc -= 1;
        if let Some(at) = until {
            thread.wait = Wait::Until(at);
            return Flow::Yield(TaskStep::SleepUntil(at));
        }
        thread.wait = Wait::On(WaitObject::PipePoll, first as u32);
        Flow::Yield(TaskStep::Block)
    }

    /// Removes a thread from the pollers of a pipe. Returns the time at which the thread's wait
    /// ends. If the outer Option is None, the thread did not poll the pipe.
    fn end_poll(&mut self, t: usize, p: usize) -> Option<Option<Nanos>> {
        let pollers = &mut self.pipes[p].pollers;
        let own = pollers.iter().position(|poller| poller.thread == t as u32)?;
        Some(pollers.remove(own).until)
    }

    fn wake_pollers(&mut self, sys: &mut dyn Sys, p: usize) {
        for i in 0..self.pipes[p].pollers.len() {
            let poller = &mut self.pipes[p].pollers[i];
            if !std::mem::replace(&mut poller.woken, true) {
                let thread = poller.thread;
                self.release(sys, thread, true);
            }
        }
    }

    fn read_index(&mut self, sys: &mut dyn Sys, t: usize, p: usize, bytes: u64) -> Flow {
        let kind = self.pipes[p].kind;
        if !std::mem::take(&mut self.threads[t].paid) {
            sys.charge(self.costs.pipe(kind, bytes));
            self.get_state(sys, p);
            let pipe = &self.pipes[p];
            if pipe.readers.is_empty() && pipe.bytes >= bytes {
                self.get_message(sys, p, bytes);
            }
            if let Some(step) = self.comes_first(sys, t) {
                return step;
            }
        }
        let pipe = &mut self.pipes[p];
        let moved = if pipe.readers.is_empty() { pipe.drain(bytes) } else { 0 };
        let left = bytes - moved;
        if left > 0 {
            pipe.readers.push_back((t as u32, left));
            self.threads[t].wait = Wait::On(WaitObject::PipeRead, p as u32);
        }
        self.pump(sys, p);
        let (kind, thread) = (channel_kind(kind), &mut self.threads[t]);
        if thread.wait == Wait::None {
            sys.note_call(Call::Read { object: channel_number(p), kind, bytes });
        } else {
            thread.pending = Pending::Read { kind, pipe: p as u32, bytes };
        }
        self.block_unless_done(t)
    }

    /// Lets come what is due on other CPUs before a call that the thread has paid for has its
    /// effect; the thread's next step executes the call.
    pub(super) fn comes_first(&mut self, sys: &dyn Sys, t: usize) -> Option<Flow> {
        if !sys.others_due() {
            return None;
        }
        let thread = &mut self.threads[t];
        thread.paid = true;
        thread.pc -= 1;
        Some(Flow::Yield(TaskStep::Compute { work: 0 }))
    }

    /// Charges the caller for the queue's state, if another CPU used the queue last.
    fn get_state(&mut self, sys: &mut dyn Sys, p: usize) {
        let pipe = &mut self.pipes[p];
        let (lines, _) = self.costs.pipe_lines(pipe.kind);
        let (cpu, time) = sys.message_time(pipe.used_by, lines, 0);
        pipe.used_by = Some(cpu);
        sys.charge(time);
    }

    /// Charges the caller for a message, if another CPU wrote it.
    fn get_message(&self, sys: &mut dyn Sys, p: usize, bytes: u64) {
        let pipe = &self.pipes[p];
        let (_, lines) = self.costs.pipe_lines(pipe.kind);
        let (_, time) = sys.message_time(pipe.written_by, lines, bytes);
        sys.charge(time);
    }

    /// Charges a thread that has waited for a message.
    pub(super) fn end_wait_for_message(&mut self, sys: &mut dyn Sys, p: usize, bytes: u64) {
        self.get_state(sys, p);
        self.get_message(sys, p, bytes);
    }

    /// Returns the step `Block`, unless `pump` has completed the thread's own read or write
    /// already.
    fn block_unless_done(&self, t: usize) -> Flow {
        match self.threads[t].wait {
            Wait::None => Flow::Next,
            _ => Flow::Yield(TaskStep::Block),
        }
    }

    /// Moves bytes from waiting writers to waiting readers until neither can continue. The loop
    /// terminates, because each turn completes a read or a write, or moves bytes through a bounded
    /// buffer.
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
                break;
            }
        }
        let pipe = &self.pipes[p];
        if !pipe.pollers.is_empty() && pipe.bytes > 0 {
            self.wake_pollers(sys, p);
        }
    }
}
