// SPDX-License-Identifier: GPL-2.0-only
//! Choice and claim of an idle CPU: the order of the default picker's steps, and the searches that
//! these steps make.
//!
//! Owns: the idle bits. A claim clears the bits of the CPU and of its core, so that no other search
//! picks the CPU.
//! Does not: charge time. The work is counted in `IdleState`, and the caller charges it.
//! Models: kernel `scx_select_cpu_dfl()`, `scx_pick_idle_cpu()`, `scx_idle_test_and_clear_cpu()`,
//! `update_builtin_idle()`, 7.3.

use super::topo::{OnlineDomains, OnlineSpans};
use super::{IdleMasks, IdleState, SearchBuffers};
use crate::bpf::flags::pick_idle;
use scxlab_bpf::mem::Memory;
use scxlab_machine::Topology;
use scxlab_machine::cpumask;
use scxlab_machine::id::{CpuId, NodeId};

/// The idle state, with the memory and the topology that a search needs.
pub(super) struct IdleView<'a> {
    pub state: &'a mut IdleState,
    pub mem: &'a mut Memory,
    pub topology: &'a Topology,
    /// Executing CPU. Searches use this CPU's cursor, and take it as the waker's CPU.
    pub here: CpuId,
}

/// Request for an idle CPU for a task.
pub(super) struct PickQuery<'a> {
    pub affinity: &'a [u64],
    /// Number of CPUs in `affinity`.
    pub nr_affine: u32,
    /// CPUs to which the scheduler restricts the search further.
    pub allowed: Option<&'a [u64]>,
    pub prev: CpuId,
    /// `SCX_PICK_IDLE_*`
    pub flags: u64,
    /// The waker, if the wake-up is synchronous.
    pub waker: Option<Waker>,
}

/// The waker of a synchronous wake-up.
pub(super) struct Waker {
    /// Whether the wakee may take the waker's CPU: the waker is not exiting, and the local DSQ of
    /// its CPU is empty.
    pub may_take_over: bool,
}

/// A `PickQuery` with the CPU sets that the search needs.
struct PickSearch<'a> {
    allowed: &'a [u64],
    llc: Option<&'a [u64]>,
    numa: Option<&'a [u64]>,
    prev: CpuId,
    prev_allowed: bool,
    node: Option<NodeId>,
    flags: u64,
}

/// Removes a CPU from a set; returns whether it was in the set.
fn test_and_clear(words: &mut [u64], cpu: CpuId) -> bool {
    let was = cpumask::test(words, cpu);
    cpumask::clear(words, cpu);
    was
}

impl SearchBuffers {
    /// Computes three sets: the CPUs on which the task may run, those of them in prev's LLC, and
    /// those in prev's node. A set without a CPU has no words. Returns false if the scheduler's
    /// restriction leaves no CPU.
    fn fill(&mut self, query: &PickQuery<'_>, llc: Option<&[u64]>, numa: Option<&[u64]>) -> bool {
        let SearchBuffers { allowed, llc: near, numa: node } = self;
        match query.allowed {
            None => intersect(allowed, query.affinity, query.affinity),
            Some(only) => intersect(allowed, only, query.affinity),
        }
        intersect(near, llc.unwrap_or_default(), allowed);
        intersect(node, numa.unwrap_or_default(), allowed);
        query.allowed.is_none() || !allowed.is_empty()
    }
}

/// Writes the CPUs that are in both `a` and `b` to `out`. If there is none, `out` has no words.
fn intersect(out: &mut Vec<u64>, a: &[u64], b: &[u64]) {
    out.clear();
    out.extend(a.iter().zip(b).map(|(a, b)| a & b));
    if cpumask::is_empty(out) {
        out.clear();
    }
}

impl IdleView<'_> {
    /// Claims a CPU in the default picker's order.
    pub fn select(&mut self, query: &PickQuery<'_>) -> Option<CpuId> {
        let spans = self.state.spans.take();
        let found = self.select_within(query, spans.as_deref());
        self.state.spans = spans;
        found
    }

    /// Carries out `select`. Takes the steps in prev's LLC and node only if prev is on line and
    /// `update_steps` found that these steps exist.
    fn select_within(
        &mut self,
        query: &PickQuery<'_>,
        spans: Option<&OnlineSpans>,
    ) -> Option<CpuId> {
        let online = self.mem.words(self.state.online, self.state.nr_words());
        let here = spans.filter(|_| cpumask::test(online, query.prev));
        let llc = here.filter(|_| self.state.topo_llc);
        let numa = here.filter(|_| self.state.topo_numa);
        let llc = llc.and_then(|spans| spans.llc(self.topology, query.prev));
        let numa = numa.map(|spans| spans.node(self.topology, query.prev));
        // For a task that may run anywhere, the search uses the sets of prev's LLC and node as they
        // are. For another task it first intersects these sets with the task's CPUs.
        let everywhere = query.nr_affine as usize >= self.state.nr_cpus;
        if query.allowed.is_none() && everywhere {
            return self.search(query, query.affinity, llc, numa);
        }
        let mut sets = std::mem::take(&mut self.state.buffers);
        let found = if sets.fill(query, llc, numa) {
            let own = u64::from(query.allowed.is_some() && !everywhere);
            let steps = u64::from(self.state.topo_llc) + u64::from(self.state.topo_numa);
            self.state.work.mask_words += (own + steps) * self.state.nr_words() as u64;
            let some = |words: &'_ [u64]| !words.is_empty();
            let (llc, numa) = (&sets.llc[..], &sets.numa[..]);
            self.search(query, &sets.allowed, some(llc).then_some(llc), some(numa).then_some(numa))
        } else {
            None
        };
        self.state.buffers = sets;
        found
    }

    #[inline(always)]
    fn search(
        &mut self,
        query: &PickQuery<'_>,
        allowed: &[u64],
        llc: Option<&[u64]>,
        numa: Option<&[u64]>,
    ) -> Option<CpuId> {
        let search = PickSearch {
            allowed,
            llc,
            numa,
            prev: query.prev,
            prev_allowed: cpumask::test(allowed, query.prev),
            node: self.node_of(query.prev),
            flags: query.flags,
        };
        if let Some(waker) = &query.waker
            && let Some(cpu) = self.for_sync_wakeup(&search, waker)
        {
            return Some(cpu);
        }
        self.in_order(&search)
    }

    /// Keeps the wakee near the waker: on the wakee's previous CPU if that CPU is idle and shares
    /// the waker's cache, else on the waker's CPU, because the waker is about to sleep. Does not
    /// take the waker's CPU if all CPUs are busy.
    fn for_sync_wakeup(&mut self, s: &PickSearch<'_>, waker: &Waker) -> Option<CpuId> {
        let here = self.here;
        let online = self.mem.words(self.state.online, self.state.nr_words());
        let near = OnlineDomains { online, topology: self.topology }.share_cache(here, s.prev);
        if s.prev_allowed && near && self.claim(s.prev) {
            return Some(s.prev);
        }
        let node = self.node_of(here);
        let right_node = s.flags & pick_idle::IN_NODE == 0 || node == s.node;
        let fits = waker.may_take_over && right_node && self.any_idle(node);
        if fits && cpumask::test(s.allowed, here) {
            self.claim(here);
            return Some(here);
        }
        None
    }

    fn any_idle(&mut self, node: Option<NodeId>) -> bool {
        if self.state.masks(node).nr_idle == 0 {
            self.state.work.scanned_words += self.state.nr_words() as u64;
            return false;
        }
        let words = self.mem.words(self.state.masks(node).cpu, self.state.nr_words());
        let at = words.iter().position(|&w| w != 0);
        self.state.work.scanned_words += at.map_or(words.len(), |at| at + 1) as u64;
        at.is_some()
    }

    /// Tries to claim a CPU in the kernel's order: whole idle cores first, near CPUs before far
    /// ones.
    fn in_order(&mut self, s: &PickSearch<'_>) -> Option<CpuId> {
        if self.state.smt_active {
            let core = self.idle_core(s);
            if core.is_some() || s.flags & pick_idle::CORE != 0 {
                return core;
            }
        }
        if s.prev_allowed && self.claim(s.prev) {
            return Some(s.prev);
        }
        self.idle_sibling(s)
            .or_else(|| s.llc.and_then(|llc| self.pick_in(llc, s.node, false)))
            .or_else(|| s.numa.and_then(|numa| self.pick_in(numa, s.node, false)))
            .or_else(|| self.pick(s.allowed, s.node, s.flags))
    }

    /// Claims a CPU on a core that is idle as a whole: on prev's core, else on a core in prev's
    /// LLC, in prev's node, or anywhere.
    fn idle_core(&mut self, s: &PickSearch<'_>) -> Option<CpuId> {
        let smt = self.mem.words(self.state.masks(s.node).smt, self.state.nr_words());
        if s.prev_allowed && cpumask::test(smt, s.prev) && self.claim(s.prev) {
            return Some(s.prev);
        }
        s.llc
            .and_then(|llc| self.pick_in(llc, s.node, true))
            .or_else(|| s.numa.and_then(|numa| self.pick_in(numa, s.node, true)))
            .or_else(|| self.pick(s.allowed, s.node, s.flags | pick_idle::CORE))
    }

    /// Claims an idle thread of prev's core, other than prev.
    fn idle_sibling(&mut self, s: &PickSearch<'_>) -> Option<CpuId> {
        if !self.state.smt_active {
            return None;
        }
        let mut n = 0;
        while let Some(cpu) =
            self.state.siblings(self.topology, s.prev).and_then(|core| core.nth(n))
        {
            if cpu != s.prev && cpumask::test(s.allowed, cpu) && self.claim(cpu) {
                return Some(cpu);
            }
            n += 1;
        }
        None
    }

    /// `scx_pick_idle_cpu()`: claims an idle CPU of `allowed` on `node`, or, unless
    /// SCX_PICK_IDLE_IN_NODE is set, on another node. Without `node` it may be any CPU of the
    /// machine.
    #[inline(always)]
    pub fn pick(&mut self, allowed: &[u64], node: Option<NodeId>, flags: u64) -> Option<CpuId> {
        let core = flags & pick_idle::CORE != 0;
        let found = self.pick_in(allowed, node, core);
        match node {
            Some(node) if found.is_none() && flags & pick_idle::IN_NODE == 0 => {
                self.pick_in_others(allowed, node, core)
            }
            _ => found,
        }
    }

    /// Searches all nodes except `start` in order of their distance from `start`; equally distant
    /// nodes in order of their numbers. Takes O(n^2) time for n nodes, as in the kernel.
    fn pick_in_others(&mut self, allowed: &[u64], start: NodeId, core: bool) -> Option<CpuId> {
        let topology = self.topology;
        let nodes = || (0..topology.nodes().len() as u32).map(NodeId).filter(|&n| n != start);
        let key = |n: NodeId| (topology.node_distance(start, n), n);
        let mut last = None;
        while let Some(next) = nodes().map(key).filter(|&k| last.is_none_or(|l| k > l)).min() {
            if let Some(cpu) = self.pick_in(allowed, Some(next.1), core) {
                return Some(cpu);
            }
            last = Some(next);
        }
        None
    }

    /// `pick_idle_cpu_in_node()`: claims a CPU on an idle core, else (unless `core_only`) any idle
    /// CPU.
    #[inline(always)]
    fn pick_in(&mut self, allowed: &[u64], node: Option<NodeId>, core_only: bool) -> Option<CpuId> {
        // The loop ends, because each failed claim clears bits of the core mask.
        loop {
            let IdleMasks { cpu, smt, nr_idle, nr_idle_core_cpus } = self.state.masks(node);
            let whole = if self.state.smt_active {
                self.any(smt, nr_idle_core_cpus, allowed)
            } else {
                None
            };
            if whole.is_none() && core_only && self.state.smt_active {
                return None;
            }
            let found = match whole {
                Some(cpu) => cpu,
                None => self.any(cpu, nr_idle, allowed)?,
            };
            if self.claim(found) {
                return Some(found);
            }
        }
    }

    #[inline(always)]
    fn any(&mut self, mask: u64, nr: u32, allowed: &[u64]) -> Option<CpuId> {
        if nr == 0 {
            self.state.work.scanned_words += self.state.words_if_none(self.here, 1);
            return None;
        }
        let words = self.mem.words(mask, self.state.nr_words());
        self.state.any_distribute(self.here, words, allowed)
    }

    /// `scx_idle_test_and_clear_cpu()`: claims the CPU; returns whether it was idle. Clears the
    /// bits of the CPU's core in the mask of idle cores even if the claim fails.
    #[inline(always)]
    pub fn claim(&mut self, cpu: CpuId) -> bool {
        self.state.work.claims += 1;
        let node = self.node_of(cpu);
        let masks = self.state.masks(node);
        (masks.nr_idle != 0 || masks.nr_idle_core_cpus != 0) && self.claim_one(cpu, node, masks)
    }

    fn claim_one(&mut self, cpu: CpuId, node: Option<NodeId>, mut masks: IdleMasks) -> bool {
        let IdleView { state, mem, topology, .. } = self;
        let nr_words = state.nr_words();
        if state.smt_active {
            let smt = mem.words_mut(masks.smt, nr_words);
            masks.nr_idle_core_cpus -= match state.siblings(topology, cpu) {
                Some(siblings) => siblings.remove_from(smt),
                // An off-line CPU has no sibling set, so only its own bit is cleared.
                None => u32::from(test_and_clear(smt, cpu)),
            };
        }
        let was = test_and_clear(mem.words_mut(masks.cpu, nr_words), cpu);
        masks.nr_idle -= u32::from(was);
        *state.masks_mut(node) = masks;
        was
    }

    /// `update_builtin_idle()`: marks a CPU idle or busy, and updates the mask of idle cores.
    pub fn mark(&mut self, cpu: CpuId, is_idle: bool) {
        let node = self.node_of(cpu);
        let IdleView { state, mem, topology, .. } = self;
        state.work.claims += 1;
        let nr_words = state.nr_words();
        let mut masks = state.masks(node);
        let idle = mem.words_mut(masks.cpu, nr_words);
        let was = test_and_clear(idle, cpu);
        if is_idle {
            cpumask::set(idle, cpu);
        }
        masks.nr_idle = masks.nr_idle - u32::from(was) + u32::from(is_idle);
        if state.smt_active
            && let Some(siblings) = state.siblings(topology, cpu)
        {
            let whole = siblings.all_in(idle);
            let smt = mem.words_mut(masks.smt, nr_words);
            match (is_idle, whole) {
                (true, true) => masks.nr_idle_core_cpus += siblings.add_to(smt),
                (true, false) => {}
                (false, _) => masks.nr_idle_core_cpus -= siblings.remove_from(smt),
            }
        }
        *state.masks_mut(node) = masks;
    }

    fn node_of(&self, cpu: CpuId) -> Option<NodeId> {
        self.state.per_node.then(|| self.topology.cpu(cpu).node)
    }
}
