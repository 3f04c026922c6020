// SPDX-License-Identifier: GPL-2.0-only
//! Spin locks in virtual time: a lock is free from a certain time on, and a CPU that needs it
//! earlier spins.
//!
//! Owns: how long a CPU waits for a lock.
//! Does not: nest or order locks; events are atomic, so no deadlock is possible here.
//! Models: `raw_spinlock_t` (queued): FIFO in order of arrival, cost of the hand-over by distance.
//! With `lock.waiter`, each CPU that waits makes the hand-over longer, as the locks before queued
//! ones did: all waiters spin on the lock's one cache line.

use crate::kernel::Kernel;
use scxlab_machine::Machine;
use scxlab_machine::id::{CpuId, Nanos};
use scxlab_trace::event::EventKind;
use std::collections::VecDeque;
use std::ops::Range;

/// A lock.
///
/// Requests may arrive out of order. Events are atomic, so a kernel path may request the lock for a
/// time well after its event (after a fork's work, for example), and the handler of a later event
/// may then request the lock for an earlier time. No request is for a time before its event, so the
/// lock keeps every interval in which it is held and that ends after the present event. A CPU that
/// requests the lock within such an interval waits for its end. A CPU that requests it between two
/// intervals gets it at once; if that CPU holds the lock for longer than the gap, the model moves
/// the later intervals back, because it has already handled their requests. So two intervals never
/// overlap: later requests wait for the time that was held twice.
#[derive(Clone, Debug, Default)]
pub struct Lock {
    /// Time at which the present holder got the lock.
    since: Nanos,
    /// The latest interval in which the lock is held without a break.
    latest: Range<Nanos>,
    /// Intervals before `latest`, in their order. Between any two intervals the lock is free.
    earlier: VecDeque<Range<Nanos>>,
    last: Option<CpuId>,
    /// Times at which CPUs that waited got the lock, where waiting CPUs have a price.
    grants: VecDeque<Nanos>,
}

impl Lock {
    /// Takes the lock on a CPU whose clock is `at`. Returns the time that this takes. For the
    /// kernel of a guest, whose run queues have such locks.
    pub fn acquire(&mut self, machine: &Machine, cpu: CpuId, at: Nanos) -> Nanos {
        let transfer = Kernel::transfer(machine, self.last, cpu);
        self.arrive(cpu, at) + transfer
    }

    /// Registers the request of a CPU whose clock is `at`. Returns how long the CPU spins.
    #[inline]
    fn arrive(&mut self, cpu: CpuId, at: Nanos) -> Nanos {
        self.last = Some(cpu);
        self.since = at;
        if at < self.latest.end { self.wait(at) } else { 0 }
    }

    fn wait(&mut self, at: Nanos) -> Nanos {
        // Most requests are for a time after all earlier intervals.
        let held = match self.earlier.back() {
            Some(last) if last.end > at => {
                &self.earlier[self.earlier.partition_point(|held| held.end <= at)]
            }
            _ => &self.latest,
        };
        self.since = if held.contains(&at) { held.end } else { at };
        self.since - at
    }

    /// Notes that a CPU which arrived at `at` had to wait. Returns how many CPUs then waited before
    /// it; as many stand behind it, on average, when it gets the lock.
    #[inline(never)]
    fn crowd(&mut self, at: Nanos) -> u64 {
        while self.grants.pop_front_if(|granted| *granted <= at).is_some() {}
        let ahead = self.grants.len() as u64;
        self.grants.push_back(self.since);
        ahead
    }

    /// Releases the lock at the holder's clock `at`, in an event at `now`.
    #[inline]
    pub fn release(&mut self, at: Nanos, now: Nanos) {
        if self.since > self.latest.end {
            if self.latest.end > now {
                self.keep_latest(now);
            } else {
                self.earlier.clear();
            }
            self.latest = self.since..at;
        } else if self.since == self.latest.end {
            self.latest.end = at;
        } else if at < self.latest.start && self.earlier.back().is_none_or(|e| e.end < self.since) {
            self.earlier.push_back(self.since..at);
        } else {
            self.insert(self.since..at);
        }
    }

    /// Moves the latest interval to the earlier ones, of which those that ended before `now` are
    /// forgotten.
    #[inline(never)]
    fn keep_latest(&mut self, now: Nanos) {
        while self.earlier.pop_front_if(|held| held.end <= now).is_some() {}
        self.earlier.push_back(self.latest.clone());
    }

    /// Inserts an interval that begins before the end of the latest one. Those that it overlaps
    /// move back, and those that then touch become one.
    #[inline(never)]
    fn insert(&mut self, held: Range<Nanos>) {
        let all = &mut self.earlier;
        all.push_back(self.latest.clone());
        let mut place = all.partition_point(|other| other.start < held.start);
        if place > 0 && all[place - 1].end == held.start {
            place -= 1;
            all[place].end = held.end;
        } else {
            all.insert(place, held);
        }
        let mut end = all[place].end;
        let overlaps = |later: &&Range<Nanos>| {
            let overlaps = later.start <= end;
            end += if overlaps { later.end - later.start } else { 0 };
            overlaps
        };
        let overlapped = all.range(place + 1..).take_while(overlaps).count();
        all.drain(place + 1..=place + overlapped);
        all[place].end = end;
        self.latest = all.pop_back().expect("the interval itself");
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
    pub(crate) fn transfer(machine: &Machine, last: Option<CpuId>, cpu: CpuId) -> Nanos {
        match last {
            Some(last) if last != cpu => Self::hand_over_on(machine, last, cpu),
            _ => machine.costs.lock.uncontended_ns,
        }
    }

    /// Cost of getting a lock for which other CPUs wait too, beyond that of its cache line.
    #[inline]
    fn crowd(machine: &Machine, lock: &mut Lock, at: Nanos, wait: Nanos) -> Nanos {
        match machine.costs.lock.waiter_ns {
            price if price > 0 && wait > 0 => price * lock.crowd(at),
            _ => 0,
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
        let crowd = Self::crowd(machine, lock, at, wait);
        self.exec.clock = at + wait + transfer + crowd;
        if wait > 0 {
            self.spun(id.word(), wait, |k| k.lock_name(id));
        }
    }

    /// Releases the lock at the clock of the executing CPU.
    #[inline(always)]
    pub(crate) fn unlock(&mut self, id: LockId) {
        let (at, now) = (self.clock(), self.now);
        match id {
            LockId::Rq(cpu) => self.cpus[cpu].rq_lock.release(at, now),
            LockId::Dsq(dsq) => self.ext.dsqs.get_mut(dsq).lock.release(at, now),
        }
    }

    /// `switch_rq_lock()`: releases the run queue lock of one CPU and takes that of another, unless
    /// both are the same.
    pub(crate) fn switch_rq_lock(&mut self, from: CpuId, to: CpuId) {
        if from != to {
            self.unlock(LockId::Rq(from));
            self.lock(LockId::Rq(to));
        }
    }

    /// Takes the `bpf_spin_lock` or `bpf_res_spin_lock` at a guest address.
    pub(crate) fn lock_guest(&mut self, addr: u64) {
        let (cpu, at) = (self.exec.cpu, self.clock());
        let Kernel { bpf, machine, .. } = self;
        let lock = bpf.locks.entry(addr).or_default();
        let transfer = Self::transfer(machine, lock.last, cpu);
        let wait = lock.arrive(cpu, at);
        let crowd = Self::crowd(machine, lock, at, wait);
        self.charge(wait + transfer + crowd);
        if wait > 0 {
            self.spun(addr, wait, |k| k.guest_lock_name(addr));
        }
    }

    pub(crate) fn unlock_guest(&mut self, addr: u64) {
        let (at, now) = (self.clock(), self.now);
        if let Some(lock) = self.bpf.locks.get_mut(&addr) {
            lock.release(at, now);
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

    /// Holds the lock for `for_ns` on a CPU whose clock is `at`, in an event at 0. Returns how long
    /// the CPU waits for it.
    fn hold(lock: &mut Lock, cpu: u32, at: Nanos, for_ns: Nanos) -> Nanos {
        let wait = lock.arrive(CpuId(cpu), at);
        lock.release(at + wait + for_ns, 0);
        wait
    }

    /// Returns begin and end of the intervals.
    fn held(lock: &Lock) -> Vec<(Nanos, Nanos)> {
        let all = lock.earlier.iter().chain([&lock.latest]);
        all.filter(|held| !held.is_empty()).map(|held| (held.start, held.end)).collect()
    }

    #[test]
    fn a_queue_is_served_in_order_however_long_it_is() {
        let mut lock = Lock::default();
        for cpu in 0..64 {
            assert_eq!(hold(&mut lock, cpu, 10 * u64::from(cpu), 50), 40 * u64::from(cpu));
        }
        assert_eq!(held(&lock), [(0, 3200)], "a queue is one interval");
    }

    #[test]
    fn who_asks_before_a_queue_comes_first_and_those_after_pay() {
        let mut lock = Lock::default();
        assert_eq!(hold(&mut lock, 0, 100, 50), 0);
        assert_eq!(hold(&mut lock, 1, 20, 50), 0);
        assert_eq!(hold(&mut lock, 2, 120, 10), 30, "nothing overlapped");
        assert_eq!(hold(&mut lock, 3, 90, 30), 0);
        assert_eq!(hold(&mut lock, 4, 150, 10), 30, "20 ns were held twice");
        assert_eq!(hold(&mut lock, 5, 30, 10), 40, "the early request holds the lock, too");
        assert_eq!(hold(&mut lock, 6, 110, 10), 80, "the queue has begun");
    }

    /// Three CPUs wait for the lock when the fourth arrives; a late one finds none.
    #[test]
    fn the_crowd_is_counted() {
        let mut lock = Lock::default();
        let mut crowds = Vec::new();
        for (cpu, at) in [(0, 0), (1, 10), (2, 20), (3, 30), (4, 390), (5, 1000)] {
            let wait = lock.arrive(CpuId(cpu), at);
            crowds.push(if wait > 0 { lock.crowd(at) } else { 0 });
            lock.release(at + wait + 100, 0);
        }
        assert_eq!(crowds, [0, 0, 1, 2, 0, 0]);
    }

    #[test]
    fn a_hold_longer_than_its_gap_moves_all_later_ones() {
        let mut lock = Lock::default();
        for at in [100, 200, 400] {
            assert_eq!(hold(&mut lock, 0, at, 50), 0);
        }
        assert_eq!(hold(&mut lock, 1, 90, 100), 0);
        assert_eq!(held(&lock), [(90, 290), (400, 450)]);
        assert_eq!(hold(&mut lock, 2, 80, 300), 0);
        assert_eq!(held(&lock), [(80, 630)]);
    }

    /// In random sequences, intervals are in order and neither touch nor overlap, and their lengths
    /// add up to what the CPUs held.
    #[test]
    fn a_lock_is_never_held_twice() {
        for seed in 1..=100u64 {
            let (mut lock, mut state, mut held) = (Lock::default(), seed, 0);
            let mut draw = |n: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) % n
            };
            for event in 0..200u64 {
                // 16 CPUs take the lock in turn. Their clocks run far ahead of their events.
                let for_ns = 1 + draw(30);
                let at = event + draw(500);
                let wait = hold(&mut lock, event as u32 % 16, at, for_ns);
                held += for_ns;
                let got = at + wait;
                let all = self::held(&lock);
                assert!(all.iter().any(|other| (other.0..other.1).contains(&got)), "seed {seed}");
                assert!(all.is_sorted_by(|a, b| a.1 < b.0), "seed {seed}: {all:?}");
                let total: Nanos = all.iter().map(|held| held.1 - held.0).sum();
                assert_eq!(total, held, "seed {seed}");
            }
        }
    }

    #[test]
    fn a_lock_forgets_what_ended_before_the_event() {
        let mut lock = Lock::default();
        for event in 0..1_000 {
            let at = 100 * event + if event % 2 == 0 { 150 } else { 0 };
            let wait = lock.arrive(CpuId(0), at);
            lock.release(at + wait + 10, 100 * event);
            assert!(lock.earlier.len() <= 3, "{:?}", lock.earlier);
        }
    }
}
