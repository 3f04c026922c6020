// SPDX-License-Identifier: GPL-2.0-only
//! Spin locks in virtual time: a lock is free from a certain time on, and a CPU that needs it
//! earlier spins.
//!
//! Owns: how long a CPU waits for a lock.
//! Does not: nest or order locks; events are atomic, so no deadlock is possible here.
//! Models: `raw_spinlock_t` (queued): FIFO in order of arrival, cost of the hand-over by distance.

use crate::kernel::Kernel;
use scxlab_machine::Machine;
use scxlab_machine::id::{CpuId, Nanos};
use scxlab_trace::event::EventKind;

/// A lock.
///
/// Requests may arrive out of order. Events are atomic, so a kernel path may request the lock for a
/// time well after its event (after a fork's work, for example), and the handler of a later event
/// may then request the lock for an earlier time. The model therefore keeps the latest interval in
/// which CPUs hold the lock without a break. A request within this interval joins the end of the
/// queue. A request for a time before the interval gets the lock without a wait. If the CPU that
/// made this early request releases the lock only after the interval has begun, two CPUs held the
/// lock at once, because the model has already handled the requests of the interval. The model then
/// makes the interval longer by that overlap, so that later requests wait for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lock {
    /// Interval in which the lock is held without a break.
    busy_from: Nanos,
    free_at: Nanos,
    /// The present holder took the lock before `busy_from`.
    came_first: bool,
    last: Option<CpuId>,
}

impl Lock {
    /// Registers the request of a CPU whose clock is `at`. Returns how long the CPU spins.
    #[inline]
    fn arrive(&mut self, cpu: CpuId, at: Nanos) -> Nanos {
        self.last = Some(cpu);
        if at >= self.free_at {
            self.busy_from = at;
            self.came_first = false;
            return 0;
        }
        self.came_first = at < self.busy_from;
        if self.came_first { 0 } else { self.free_at - at }
    }

    /// Releases the lock at the holder's clock.
    #[inline]
    fn release(&mut self, at: Nanos) {
        if self.came_first {
            self.free_at += at.saturating_sub(self.busy_from);
        } else {
            self.free_at = self.free_at.max(at);
        }
    }
}

/// Name of a kernel lock, which tells `Kernel::lock` and `Kernel::unlock` which lock is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockId {
    Rq(CpuId),
    Dsq(crate::ext::dsq::DsqId),
}

impl Kernel {
    /// Cost of moving a contended cache line, and the data that it guards, between two CPUs.
    pub(crate) fn hand_over(&self, from: CpuId, to: CpuId) -> Nanos {
        Self::hand_over_on(&self.machine, from, to)
    }

    fn hand_over_on(machine: &Machine, from: CpuId, to: CpuId) -> Nanos {
        machine.costs.lock.hand_over_ns[machine.topology.distance(from, to)]
    }

    /// Cost of getting a lock's cache line from the CPU that held the lock last; the uncontended
    /// cost if no other CPU held it last.
    #[inline]
    fn transfer(machine: &Machine, last: Option<CpuId>, cpu: CpuId) -> Nanos {
        match last {
            Some(last) if last != cpu => Self::hand_over_on(machine, last, cpu),
            _ => machine.costs.lock.uncontended_ns,
        }
    }

    /// Time from sending an interrupt until its handler starts.
    pub(crate) fn ipi_latency(&self, from: CpuId, to: CpuId) -> Nanos {
        self.machine.costs.irq.ipi_latency_ns[self.machine.topology.distance(from, to)]
    }

    /// Takes the lock on the executing CPU, which spins while another CPU holds it.
    // Not inlined, so that all callers share one copy: see "instructions" in
    // docs/internals/performance.md.
    #[inline(never)]
    pub(crate) fn lock(&mut self, id: LockId) {
        let (cpu, at) = (self.exec.cpu, self.clock());
        let Kernel { cpus, ext, machine, .. } = self;
        let lock = match id {
            LockId::Rq(cpu) => &mut cpus[cpu].rq_lock,
            LockId::Dsq(dsq) => &mut ext.dsqs.get_mut(dsq).lock,
        };
        let transfer = Self::transfer(machine, lock.last, cpu);
        let wait = lock.arrive(cpu, at);
        self.exec.clock = at + wait + transfer;
        if wait > 0 {
            self.spun(id.word(), wait, |k| k.lock_name(id));
        }
    }

    /// Releases the lock at the clock of the executing CPU.
    #[inline(always)]
    pub(crate) fn unlock(&mut self, id: LockId) {
        let at = self.clock();
        match id {
            LockId::Rq(cpu) => self.cpus[cpu].rq_lock.release(at),
            LockId::Dsq(dsq) => self.ext.dsqs.get_mut(dsq).lock.release(at),
        }
    }

    /// Takes the `bpf_spin_lock` or `bpf_res_spin_lock` at a guest address.
    pub(crate) fn lock_guest(&mut self, addr: u64) {
        let (cpu, at) = (self.exec.cpu, self.clock());
        let last = self.bpf.locks.get(&addr).and_then(|lock| lock.last);
        let transfer = Self::transfer(&self.machine, last, cpu);
        let wait = self.bpf.locks.entry(addr).or_default().arrive(cpu, at);
        self.charge(wait + transfer);
        if wait > 0 {
            self.spun(addr, wait, |k| k.guest_lock_name(addr));
        }
    }

    pub(crate) fn unlock_guest(&mut self, addr: u64) {
        let at = self.clock();
        if let Some(lock) = self.bpf.locks.get_mut(&addr) {
            lock.release(at);
        }
    }

    #[cold]
    fn spun(&mut self, lock: u64, wait: Nanos, name: impl FnOnce(&Kernel) -> String) {
        if self.tracer.is_recording() {
            let name = name(self);
            self.tracer.names.set_lock(lock, name);
        }
        let cpu = self.exec.cpu;
        self.cpus[cpu].time.lock_wait += wait;
        self.metrics.lock_wait.record(wait);
        self.trace(EventKind::LockWait { lock, wait_ns: wait });
    }

    fn lock_name(&self, id: LockId) -> String {
        match id {
            LockId::Rq(cpu) => format!("run queue of CPU {cpu}"),
            LockId::Dsq(dsq) => scxlab_trace::names::dsq(self.ext.dsqs.traced_id(dsq)),
        }
    }

    /// Returns the name of a scheduler's lock: the array map that contains the lock (global data is
    /// such a map), and the lock's offset in it.
    fn guest_lock_name(&self, addr: u64) -> String {
        match self.vm.maps.array_at(addr) {
            Some((map, at)) => format!("lock in {}, byte {at}", map.def.name),
            None => format!("lock at {addr:#x}"),
        }
    }
}

impl LockId {
    /// Returns the number that stands for the lock in the trace: for a run queue's lock the number
    /// of its CPU, for a DSQ's lock the DSQ's table index with the top bit set.
    fn word(self) -> u64 {
        match self {
            LockId::Rq(cpu) => u64::from(cpu.0),
            LockId::Dsq(dsq) => 1 << 63 | u64::from(dsq.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(lock: &mut Lock, cpu: u32, at: Nanos, for_ns: Nanos) -> Nanos {
        let wait = lock.arrive(CpuId(cpu), at);
        lock.release(at + wait + for_ns);
        wait
    }

    #[test]
    fn a_queue_is_served_in_order_however_long_it_is() {
        let mut lock = Lock::default();
        for cpu in 0..64 {
            assert_eq!(hold(&mut lock, cpu, 10 * u64::from(cpu), 50), 40 * u64::from(cpu));
        }
    }

    #[test]
    fn who_asks_before_a_queue_comes_first_and_those_after_pay() {
        let mut lock = Lock::default();
        assert_eq!(hold(&mut lock, 0, 100, 50), 0);
        assert_eq!(hold(&mut lock, 1, 20, 50), 0);
        assert_eq!(hold(&mut lock, 2, 120, 10), 30, "nothing overlapped");
        assert_eq!(hold(&mut lock, 3, 90, 30), 0);
        assert_eq!(hold(&mut lock, 4, 150, 10), 30, "20 ns were held twice");
        assert_eq!(hold(&mut lock, 5, 110, 10), 80, "the queue has begun");
    }

    /// In random sequences (20 seeds), the CPUs together do not hold the lock for longer than the
    /// time that passes.
    #[test]
    fn a_lock_is_never_held_for_longer_than_time_has_passed() {
        for seed in 1..=20u64 {
            let (mut lock, mut state, mut held) = (Lock::default(), seed, 0);
            let mut draw = |n: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) % n
            };
            for event in 0..1_000u64 {
                // 16 CPUs take the lock in turn. Their clocks run up to 20 ns ahead of their
                // events.
                let for_ns = 1 + draw(30);
                hold(&mut lock, event as u32 % 16, 5 * event + draw(20), for_ns);
                held += for_ns;
            }
            assert!(lock.free_at + 20 >= held, "seed {seed}: {held} in {}", lock.free_at);
        }
    }
}
