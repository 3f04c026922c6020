// SPDX-License-Identifier: GPL-2.0-only
//! Spin locks in virtual time: a lock has a time at which it is free; whoever needs it earlier spins.
//!
//! Owns: the wait. Does not: nest or order locks; events are atomic, so nothing can deadlock here.
//! Models: `raw_spinlock_t` (queued): FIFO in order of arrival, hand-over paid by distance.

use crate::kernel::Kernel;
use scxlab_machine::Machine;
use scxlab_machine::id::{CpuId, Nanos};
use scxlab_trace::event::Kind;

/// One lock.
///
/// Events are atomic, so a path may take a lock at a clock well after its event (after a fork's work, say), and
/// a later event may ask for it at an earlier clock: it comes first and does not wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lock {
    /// When the last holder took it and when it let go.
    taken_at: Nanos,
    free_at: Nanos,
    last: Option<CpuId>,
}

impl Lock {
    /// A CPU whose clock is `at` takes the lock: how long it spins first.
    #[inline]
    fn arrive(&mut self, cpu: CpuId, at: Nanos) -> Nanos {
        self.last = Some(cpu);
        if at >= self.free_at {
            self.taken_at = self.taken_at.max(at);
            return 0;
        }
        let wait = if at < self.taken_at { 0 } else { self.free_at - at };
        self.taken_at = self.taken_at.max(at + wait);
        wait
    }

    /// The holder lets go at its clock; one that slipped in before the last holder changes nothing.
    #[inline]
    fn release(&mut self, at: Nanos) {
        self.free_at = self.free_at.max(at);
    }
}

/// Names a lock of the kernel for `Kernel::lock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockId {
    Rq(CpuId),
    Dsq(crate::ext::dsq::DsqId),
}

impl Kernel {
    /// Moving a contended cache line, and what it guards, between two CPUs.
    pub(crate) fn hand_over(&self, from: CpuId, to: CpuId) -> Nanos {
        Self::hand_over_on(&self.machine, from, to)
    }

    fn hand_over_on(machine: &Machine, from: CpuId, to: CpuId) -> Nanos {
        machine.costs.lock.hand_over_ns[machine.topology.distance(from, to)]
    }

    /// What it takes to get a lock's line that was last at another CPU, or nowhere else.
    #[inline]
    fn transfer(machine: &Machine, last: Option<CpuId>, cpu: CpuId) -> Nanos {
        match last {
            Some(last) if last != cpu => Self::hand_over_on(machine, last, cpu),
            _ => machine.costs.lock.uncontended_ns,
        }
    }

    /// From sending an interrupt until its handler starts.
    pub(crate) fn ipi_latency(&self, from: CpuId, to: CpuId) -> Nanos {
        self.machine.costs.irq.ipi_latency_ns[self.machine.topology.distance(from, to)]
    }

    /// Takes the lock on the executing CPU: spins while another CPU holds it.
    // One copy for all callers: see "instructions" in docs/internals/performance.md.
    #[inline(never)]
    pub(crate) fn lock(&mut self, id: LockId) {
        let (cpu, at) = (self.exec.cpu, self.clock());
        let Kernel { cpus, ext, machine, .. } = self;
        let lock = match id {
            LockId::Rq(cpu) => &mut cpus[cpu.idx()].rq_lock,
            LockId::Dsq(dsq) => &mut ext.dsqs.get_mut(dsq).lock,
        };
        let transfer = Self::transfer(machine, lock.last, cpu);
        let wait = lock.arrive(cpu, at);
        self.exec.clock = at + wait + transfer;
        if wait > 0 {
            self.spun(id.word(), wait);
        }
    }

    /// Lets go of the lock at the executing CPU's present instant.
    #[inline(always)]
    pub(crate) fn unlock(&mut self, id: LockId) {
        let at = self.clock();
        match id {
            LockId::Rq(cpu) => self.cpus[cpu.idx()].rq_lock.release(at),
            LockId::Dsq(dsq) => self.ext.dsqs.get_mut(dsq).lock.release(at),
        }
    }

    /// `bpf_spin_lock` and `bpf_res_spin_lock`, named by guest address.
    pub(crate) fn lock_guest(&mut self, addr: u64) {
        let (cpu, at) = (self.exec.cpu, self.clock());
        let last = self.guest_locks.get(&addr).and_then(|lock| lock.last);
        let transfer = Self::transfer(&self.machine, last, cpu);
        let wait = self.guest_locks.entry(addr).or_default().arrive(cpu, at);
        self.charge(wait + transfer);
        if wait > 0 {
            self.spun(addr, wait);
        }
    }

    pub(crate) fn unlock_guest(&mut self, addr: u64) {
        let at = self.clock();
        if let Some(lock) = self.guest_locks.get_mut(&addr) {
            lock.release(at);
        }
    }

    #[cold]
    fn spun(&mut self, lock: u64, wait: Nanos) {
        let cpu = self.exec.cpu;
        self.cpus[cpu.idx()].time.lock_wait += wait;
        self.metrics.lock_wait.record(wait);
        self.trace(Kind::LockWait { lock, wait_ns: wait });
    }
}

impl LockId {
    /// The lock as a word for the trace: run queues by CPU, DSQs by table index with the top bit set.
    fn word(self) -> u64 {
        match self {
            LockId::Rq(cpu) => u64::from(cpu.0),
            LockId::Dsq(dsq) => 1 << 63 | u64::from(dsq.0),
        }
    }
}
