// SPDX-License-Identifier: GPL-2.0-only
//! Real-time threads of the guest, which run before all others.
//!
//! Owns: their run queue per vCPU, placement by priority, slices of SCHED_RR, pulling to a vCPU
//! that has no such thread.
//! Models: `pick_task_rt()`, `find_lowest_rq()`, `pull_rt_task()`, `task_tick_rt()`, 7.3, as the
//! host's kernel does.
//! Differs: deadline threads act as the highest real-time priority.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use scxlab_kernel::behavior::{Policy, Sys};
use scxlab_machine::id::Nanos;

use crate::{Class, GuestKernel, State};

/// Slice of SCHED_RR (`RR_TIMESLICE`).
const RR_SLICE_NS: Nanos = 100_000_000;

/// Place in a queue: rank (highest first), then order of arrival.
pub(crate) type Key = (Reverse<u8>, u64);

/// The real-time threads of all vCPUs, running ones included.
#[derive(Debug, Default)]
pub(crate) struct RtQueues {
    queues: Vec<BTreeMap<Key, u32>>,
    arrivals: u64,
    /// Number of threads in all queues.
    queued: u32,
}

impl RtQueues {
    pub fn new(vcpus: usize) -> RtQueues {
        RtQueues { queues: vec![BTreeMap::new(); vcpus], ..RtQueues::default() }
    }

    pub fn nr_running(&self, v: usize) -> u32 {
        self.queues[v].len() as u32
    }

    /// Whether a thread is in some queue.
    pub fn any(&self) -> bool {
        self.queued != 0
    }

    pub fn threads(&self, v: usize) -> impl Iterator<Item = u32> {
        self.queues[v].values().copied()
    }

    fn insert(&mut self, v: usize, t: u32, rank: u8) -> Key {
        self.arrivals += 1;
        self.queued += 1;
        let key = (Reverse(rank), self.arrivals);
        self.queues[v].insert(key, t);
        key
    }

    fn remove(&mut self, v: usize, key: Key) {
        self.queued -= u32::from(self.queues[v].remove(&key).is_some());
    }
}

/// Returns the real-time rank of a policy: higher runs first, 0 is not real-time.
pub(crate) fn rank(policy: Policy) -> u8 {
    match policy {
        Policy::Fifo { prio } | Policy::RoundRobin { prio } => prio,
        Policy::Deadline { .. } => u8::MAX,
        _ => 0,
    }
}

impl GuestKernel {
    fn rank(&self, t: u32) -> u8 {
        rank(self.thread(t).policy)
    }

    pub(crate) fn rt_enqueue(&mut self, v: usize, t: u32) {
        let key = self.rt.insert(v, t, self.rank(t));
        self.thread_mut(t).rt_key = Some(key);
    }

    pub(crate) fn rt_dequeue(&mut self, t: u32) {
        let v = self.thread(t).vcpu;
        if let Some(key) = self.thread_mut(t).rt_key.take() {
            self.rt.remove(v, key);
        }
    }

    /// Moves a thread to the end of its priority's list.
    pub(crate) fn rt_requeue(&mut self, v: usize, t: u32) {
        self.rt_dequeue(t);
        self.rt_enqueue(v, t);
    }

    pub(crate) fn rt_pick(&mut self, host: &mut dyn Sys, v: usize) -> Option<u32> {
        if self.rt.queued == 0 {
            return None;
        }
        let lower = self.curr_class(v) < Class::Rt;
        if self.rt.queues[v].is_empty() && lower {
            self.rt_pull(host, v);
        }
        self.rt.threads(v).next()
    }

    /// Pulls a waiting thread from another vCPU.
    fn rt_pull(&mut self, host: &mut dyn Sys, v: usize) {
        let waits = |t: &u32| self.thread(*t).state == State::Waiting && self.allowed(*t, v);
        let others = (0..self.vcpus.len()).filter(|other| *other != v);
        let waiting = others.into_iter().find_map(|other| self.rt.threads(other).find(waits));
        if let Some(t) = waiting {
            self.move_queued(host, v, t, v);
        }
    }

    /// Returns `prev` if the thread outranks what runs there, else the vCPU whose thread ranks
    /// lowest, and `prev` if the thread outranks none.
    pub(crate) fn rt_select(&self, t: u32, prev: usize) -> usize {
        let there = |v: usize| match self.vcpus[v].rq_curr {
            None => (Class::Idle, 0),
            Some(t) => (self.class(t), self.rank(t)),
        };
        let own = (Class::Rt, self.rank(t));
        if self.allowed(t, prev) && there(prev) < own {
            return prev;
        }
        let allowed = (0..self.vcpus.len()).filter(|v| self.allowed(t, *v));
        let lowest = allowed.min_by_key(|v| (there(*v), *v));
        lowest.filter(|v| there(*v) < own).unwrap_or(prev)
    }

    pub(crate) fn rt_wakeup_preempt(&mut self, host: &mut dyn Sys, v: usize, to: usize, t: u32) {
        let Some(curr) = self.vcpus[to].rq_curr else { return };
        if self.rank(t) > self.rank(curr) {
            self.resched(host, v, to);
        }
    }

    /// Charges the running thread up to now.
    pub(crate) fn rt_charge(&mut self, host: &dyn Sys, v: usize, t: u32) {
        let now = host.now();
        let since = std::mem::replace(&mut self.vcpus[v].rt_since, now);
        self.thread_mut(t).rr_used += now.saturating_sub(since);
    }

    /// The tick of a vCPU that runs a real-time thread.
    pub(crate) fn rt_tick(&mut self, host: &mut dyn Sys, v: usize, t: u32) {
        self.rt_charge(host, v, t);
        let robin = matches!(self.thread(t).policy, Policy::RoundRobin { .. });
        if robin && self.thread(t).rr_used >= RR_SLICE_NS {
            self.thread_mut(t).rr_used = 0;
            self.rt_requeue(v, t);
            self.resched(host, v, v);
        }
    }
}
