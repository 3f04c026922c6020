// SPDX-License-Identifier: GPL-2.0-only
//! Dispatch queues: the ordered sets in which tasks wait between enqueue and run.
//!
//! Owns: order within a queue, the table of queues by id, the tasks that an iterator sees.
//! Does not: change tasks, charge time, call the scheduler (see `enqueue.rs`, `dispatch.rs`).
//! Models: kernel `struct scx_dispatch_q`, `scx_dispatch_enqueue()`, `nldsq_cursor_next_task()`,
//! 7.3.

mod priq;

use crate::bpf::flags::dsq_id;
use crate::cpu::lock::Lock;
use priq::Priq;
use scxlab_machine::id::{CpuId, TaskId};
use std::collections::VecDeque;

/// Index of a queue in the table of DSQs; never reused within a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DsqId(pub u32);

/// Purpose of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DsqKind {
    Local(CpuId),
    Global {
        node: u32,
    },
    Bypass(CpuId),
    User {
        id: u64,
    },
    /// A destroyed queue. Inserting a task into it is an error.
    Gone {
        id: u64,
    },
}

impl DsqKind {
    fn id(self) -> u64 {
        match self {
            DsqKind::Local(_) => dsq_id::LOCAL,
            DsqKind::Global { .. } => dsq_id::GLOBAL,
            DsqKind::Bypass(_) => dsq_id::BYPASS,
            DsqKind::User { id } | DsqKind::Gone { id } => id,
        }
    }
}

/// One dispatch queue. A FIFO is ordered by position, a priority queue by vtime. The key of a task
/// is (position, arrival number) in a FIFO, and (vtime relative to `base`, arrival number) in a
/// priority queue. The fields that a local queue needs at every task switch come first and fill one
/// cache line of the host.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Dsq {
    fifo: VecDeque<(i64, u64, TaskId)>,
    tail_pos: i64,
    /// Number of insertions so far. An iterator sees only tasks that were inserted before it began.
    pub seq: u64,
    /// Id that programs use. A user queue keeps its id after it is destroyed.
    id: u64,
    /// Number of tasks in `fifo` and `priq` together.
    len: u32,
    /// Number of tasks inserted with SCX_ENQ_IMMED (local queues).
    pub nr_immed: u32,
    /// Whether machine code knows something of the queue that its next change makes wrong.
    pub noted: bool,
    head_pos: i64,
    priq: Priq,
    pub kind: DsqKind,
    pub lock: Lock,
    /// vtime whose key is 0. Keys are signed differences from this vtime, so that they keep their
    /// order when vtime wraps around.
    base: u64,
}

/// Size in bytes of the first part of a `Dsq`, which a local queue needs at every task switch.
pub(crate) const HOT_DSQ_BYTES: usize = std::mem::offset_of!(Dsq, head_pos);

/// Position of a DSQ at which a task is inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertAt {
    Tail,
    Head,
    Vtime(u64),
}

impl Dsq {
    fn new(kind: DsqKind) -> Self {
        Dsq {
            kind,
            id: kind.id(),
            lock: Lock::default(),
            fifo: VecDeque::new(),
            priq: Priq::default(),
            base: 0,
            head_pos: 0,
            tail_pos: 0,
            seq: 0,
            len: 0,
            nr_immed: 0,
            noted: false,
        }
    }

    /// Returns the id that programs use.
    pub fn user_visible_id(&self) -> u64 {
        self.id
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn has_fifo(&self) -> bool {
        !self.fifo.is_empty()
    }

    pub fn has_priq(&self) -> bool {
        self.len() > self.fifo.len()
    }

    /// Inserts a task. Returns the task's key, which the caller needs to remove the task.
    #[inline(always)]
    pub fn insert(&mut self, task: TaskId, place: InsertAt) -> (i64, u64) {
        self.seq += 1;
        self.len += 1;
        let seq = self.seq;
        match place {
            InsertAt::Tail => {
                self.tail_pos += 1;
                self.fifo.push_back((self.tail_pos, seq, task));
                (self.tail_pos, seq)
            }
            InsertAt::Head => {
                self.head_pos -= 1;
                self.fifo.push_front((self.head_pos, seq, task));
                (self.head_pos, seq)
            }
            InsertAt::Vtime(vtime) => {
                if self.priq.is_empty() {
                    self.base = vtime;
                }
                let key = (vtime.wrapping_sub(self.base) as i64, seq);
                self.priq.insert(key, task);
                key
            }
        }
    }

    #[inline]
    pub fn remove(&mut self, key: (i64, u64), on_priq: bool) {
        self.len -= 1;
        if on_priq {
            self.priq.remove(key);
        } else if self.fifo.front().is_some_and(|e| e.0 == key.0) {
            self.fifo.pop_front();
        } else if let Ok(at) = self.fifo.binary_search_by_key(&key.0, |e| e.0) {
            self.fifo.remove(at);
        }
        debug_assert_eq!(self.len(), self.fifo.len() + self.priq.len());
    }

    #[inline]
    pub fn first(&self) -> Option<TaskId> {
        self.fifo.front().map(|e| e.2).or_else(|| self.priq.first())
    }

    /// Iterates over the tasks in the queue's order.
    pub fn iter(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.fifo.iter().map(|e| e.2).chain(self.priq.iter())
    }

    /// Returns the next task after `cursor`, or with `rev` the next task before `cursor`. Skips
    /// tasks whose insertion number is greater than `max_seq`.
    pub fn next_after(
        &self,
        cursor: Option<(i64, u64)>,
        max_seq: u64,
        rev: bool,
    ) -> Option<((i64, u64), TaskId)> {
        if self.priq.is_empty() {
            self.next_fifo(cursor, max_seq, rev)
        } else {
            self.next_priq(cursor, max_seq, rev)
        }
    }

    fn next_fifo(
        &self,
        cursor: Option<(i64, u64)>,
        max_seq: u64,
        rev: bool,
    ) -> Option<((i64, u64), TaskId)> {
        let fits = |e: &&(i64, u64, TaskId)| e.1 <= max_seq;
        let found = if rev {
            let end = cursor.map_or(self.fifo.len(), |c| self.fifo.partition_point(|e| e.0 < c.0));
            self.fifo.range(..end).rev().find(fits)
        } else {
            let start = cursor.map_or(0, |c| self.fifo.partition_point(|e| e.0 <= c.0));
            self.fifo.range(start..).find(fits)
        };
        found.map(|&(pos, seq, task)| ((pos, seq), task))
    }

    fn next_priq(
        &self,
        cursor: Option<(i64, u64)>,
        max_seq: u64,
        rev: bool,
    ) -> Option<((i64, u64), TaskId)> {
        let fits = |e: &((i64, u64), TaskId)| e.0.1 <= max_seq;
        if rev { self.priq.before(cursor).find(fits) } else { self.priq.after(cursor).find(fits) }
    }
}

/// All queues of a run. Built-in queues always exist; user queues exist only while their scheduler
/// is loaded.
///
/// Order of the table: the local queues by CPU, the bypass queues by CPU, the global queues by
/// node, and then the user queues in order of creation.
#[derive(Debug)]
pub struct DsqTable {
    all: Vec<Dsq>,
    nr_cpus: u32,
    nr_builtin: u32,
    by_id: rustc_hash::FxHashMap<u64, DsqId>,
    /// The user queues with ids below `SMALL_IDS`, indexed by id, for a faster lookup than in
    /// `by_id`. Most schedulers use only such ids.
    small: [Option<DsqId>; SMALL_IDS],
}

const SMALL_IDS: usize = 64;

impl DsqTable {
    pub fn new(nr_cpus: usize, nr_nodes: usize) -> Self {
        let cpus = || (0..nr_cpus as u32).map(CpuId);
        let locals = cpus().map(DsqKind::Local);
        let bypass = cpus().map(DsqKind::Bypass);
        let globals = (0..nr_nodes as u32).map(|node| DsqKind::Global { node });
        let all: Vec<Dsq> = locals.chain(bypass).chain(globals).map(Dsq::new).collect();
        let (nr_cpus, nr_builtin) = (nr_cpus as u32, all.len() as u32);
        let small = [None; SMALL_IDS];
        DsqTable { all, nr_cpus, nr_builtin, by_id: Default::default(), small }
    }

    fn add(&mut self, kind: DsqKind) -> DsqId {
        self.all.push(Dsq::new(kind));
        DsqId(self.all.len() as u32 - 1)
    }

    #[inline]
    pub fn get(&self, id: DsqId) -> &Dsq {
        &self.all[id.0 as usize]
    }

    #[inline]
    pub fn get_mut(&mut self, id: DsqId) -> &mut Dsq {
        &mut self.all[id.0 as usize]
    }

    pub fn has(&self, id: DsqId) -> bool {
        self.all.len() > id.0 as usize
    }

    #[inline]
    pub fn local(&self, cpu: CpuId) -> DsqId {
        DsqId(cpu.0)
    }

    /// Returns the id that a queue has in a trace. There a local queue has the id
    /// `SCX_DSQ_LOCAL_ON | cpu`.
    #[inline]
    pub fn traced_id(&self, dsq: DsqId) -> u64 {
        match self.local_cpu(dsq) {
            Some(cpu) => dsq_id::LOCAL_ON | u64::from(cpu.0),
            None => self.get(dsq).user_visible_id(),
        }
    }

    /// Returns the CPU of a local queue; None for other queues.
    #[inline]
    pub fn local_cpu(&self, dsq: DsqId) -> Option<CpuId> {
        (dsq.0 < self.nr_cpus).then_some(CpuId(dsq.0))
    }

    #[inline]
    pub fn is_builtin(&self, dsq: DsqId) -> bool {
        dsq.0 < self.nr_builtin
    }

    #[inline]
    pub fn global(&self, node: u32) -> DsqId {
        DsqId(2 * self.nr_cpus + node)
    }

    #[inline]
    pub fn bypass(&self, cpu: CpuId) -> DsqId {
        DsqId(self.nr_cpus + cpu.0)
    }

    #[inline]
    pub fn user(&self, id: u64) -> Option<DsqId> {
        match self.small.get(id as usize) {
            Some(dsq) => *dsq,
            None => self.by_id.get(&id).copied(),
        }
    }

    /// Creates a user queue; returns None if the id is taken.
    pub fn create(&mut self, id: u64) -> Option<DsqId> {
        if self.by_id.contains_key(&id) {
            return None;
        }
        let dsq = self.add(DsqKind::User { id });
        self.by_id.insert(id, dsq);
        self.note_small(id, Some(dsq));
        Some(dsq)
    }

    /// Destroys a user queue. Its entry in the table stays, as `DsqKind::Gone`.
    pub fn destroy(&mut self, dsq: DsqId) {
        if let DsqKind::User { id } = self.get(dsq).kind {
            self.by_id.remove(&id);
            self.note_small(id, None);
            self.get_mut(dsq).kind = DsqKind::Gone { id };
        }
    }

    fn note_small(&mut self, id: u64, dsq: Option<DsqId>) {
        if let Some(small) = self.small.get_mut(id as usize) {
            *small = dsq;
        }
    }

    /// Returns the user queues that are not destroyed, in order of creation.
    pub fn users(&self) -> Vec<DsqId> {
        (0..self.all.len() as u32)
            .map(DsqId)
            .filter(|&d| matches!(self.get(d).kind, DsqKind::User { .. }))
            .collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Dsq> {
        self.all.iter()
    }
}

#[cfg(test)]
mod tests;
