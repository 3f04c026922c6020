// SPDX-License-Identifier: GPL-2.0-only
//! The on-line part of the topology, in the form that the picker of idle CPUs needs.
//!
//! Owns: sibling sets, on-line spans, and the decision which of the picker's steps exist.
//! Models: kernel `scx_idle_update_selcpu_topology()`, `llc_weight()`, `numa_weight()`,
//! `cpu_smt_mask()`, 7.3.
//! Differs: the real kernel asks its scheduling domains, which it builds from the on-line CPUs. It
//! has no domain of one CPU, and no domain with the same span as the domain below. This code gets
//! the same result by counting CPUs.

use super::{IdleState, bits};
use scxlab_bpf::mem::Memory;
use scxlab_machine::Topology;
use scxlab_machine::cpumask;
use scxlab_machine::id::CpuId;
use smallvec::SmallVec;

/// On-line threads of a core, as pairs of word index and bits of a mask.
#[derive(Clone, Debug, Default)]
pub(super) struct Siblings(SmallVec<[(u32, u64); 2]>);

impl Siblings {
    fn of(core: &[u64], online: &[u64]) -> Self {
        let both = core.iter().zip(online).map(|(a, b)| a & b).enumerate();
        Siblings(both.filter(|(_, w)| *w != 0).map(|(at, w)| (at as u32, w)).collect())
    }

    fn has(&self, cpu: CpuId) -> bool {
        self.0.iter().any(|&(at, bits)| at == cpu.0 / 64 && bits >> (cpu.0 % 64) & 1 != 0)
    }

    pub fn all_in(&self, words: &[u64]) -> bool {
        self.0.iter().all(|&(at, bits)| words[at as usize] & bits == bits)
    }

    /// Adds the threads to a mask; returns the number of bits added.
    pub fn add_to(&self, words: &mut [u64]) -> u32 {
        let mut added = 0;
        for &(at, bits) in &self.0 {
            added += (bits & !words[at as usize]).count_ones();
            words[at as usize] |= bits;
        }
        added
    }

    /// Removes the threads from a mask; returns the number of bits removed.
    pub fn remove_from(&self, words: &mut [u64]) -> u32 {
        let mut removed = 0;
        for &(at, bits) in &self.0 {
            removed += (bits & words[at as usize]).count_ones();
            words[at as usize] &= !bits;
        }
        removed
    }

    /// Returns the `n`-th thread in ascending order, counted from 0.
    pub fn nth(&self, n: usize) -> Option<CpuId> {
        let mut left = n;
        for &(at, bits) in &self.0 {
            let here = bits.count_ones() as usize;
            if left < here {
                let bit = (0..left).fold(bits, |w, _| w & (w - 1)).trailing_zeros();
                return Some(CpuId(at * 64 + bit));
            }
            left -= here;
        }
        None
    }

    fn weight(&self) -> u32 {
        self.weight_in(None)
    }

    /// Returns the number of threads that are in a mask; None stands for the mask of all CPUs.
    fn weight_in(&self, words: Option<&[u64]>) -> u32 {
        let of = |at: u32| words.map_or(u64::MAX, |words| words[at as usize]);
        self.0.iter().map(|&(at, bits)| (bits & of(at)).count_ones()).sum()
    }
}

/// On-line CPUs of each LLC and of each node. Models `llc_span()` and `numa_span()`.
#[derive(Debug)]
pub(super) struct OnlineSpans {
    /// On-line CPUs of each LLC, indexed by LLC. The set of an LLC is empty if fewer than two of
    /// its CPUs are on line, because the kernel then has no domain for this LLC.
    llcs: Vec<Box<[u64]>>,
    /// On-line CPUs of each node, indexed by node.
    nodes: Vec<Box<[u64]>>,
}

impl OnlineSpans {
    fn new(online: &[u64], topology: &Topology) -> Self {
        let common = |span: &[u64]| span.iter().zip(online).map(|(a, b)| a & b).collect();
        let llc = |span: &[u64]| match bits::two_in(span, online) {
            true => common(span),
            false => Box::default(),
        };
        OnlineSpans {
            llcs: topology.llcs().iter().map(|of| llc(&of.cpus)).collect(),
            nodes: topology.nodes().iter().map(|of| common(&of.cpus)).collect(),
        }
    }

    /// Returns the on-line CPUs of `cpu`'s LLC; None if the kernel has no domain for this LLC.
    pub fn llc(&self, topology: &Topology, cpu: CpuId) -> Option<&[u64]> {
        let span = &*self.llcs[topology.cpu(cpu).llc.idx()];
        (!span.is_empty()).then_some(span)
    }

    pub fn node(&self, topology: &Topology, cpu: CpuId) -> &[u64] {
        &self.nodes[topology.cpu(cpu).node.idx()]
    }
}

/// Work of the default picker when no CPU is idle, without searches in the masks of other nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedSearchWork {
    /// Number of searches for a CPU in a set of idle CPUs.
    pub searches: u16,
    /// Number of CPUs that the picker tries to claim.
    pub claims: u16,
}

impl IdleState {
    /// Number of searches that the picker makes in each set that it looks at. With hyper-threads
    /// there are three: for whole cores in its first steps, and for whole cores and then single
    /// CPUs in its last steps.
    pub(super) fn searches_per_set(&self) -> u16 {
        if self.smt_active { 3 } else { 1 }
    }

    /// Counts the work of a picker's search that finds no idle CPU, for a task that may run on the
    /// CPUs of `allowed` (None: on all) and ran on `cpu` last.
    pub(super) fn count_failed_search(
        &self,
        topology: &Topology,
        cpu: CpuId,
        allowed: Option<&[u64]>,
    ) -> FailedSearchWork {
        let core = self.siblings(topology, cpu);
        let spans = self.spans.as_deref().filter(|_| core.is_some());
        let among = |set: &[u64]| allowed.is_none_or(|allowed| cpumask::intersects(set, allowed));
        let llc = self.topo_llc && spans.and_then(|s| s.llc(topology, cpu)).is_some_and(among);
        let numa = self.topo_numa && spans.is_some_and(|s| among(s.node(topology, cpu)));
        let sets = 1 + u16::from(llc) + u16::from(numa);
        // With hyper-threads the picker tries to claim all threads of prev's core.
        let claims = match core.filter(|_| self.smt_active) {
            Some(core) => core.weight_in(allowed),
            None => allowed.is_none_or(|allowed| cpumask::test(allowed, cpu)).into(),
        };
        FailedSearchWork { searches: self.searches_per_set() * sets, claims: claims as u16 }
    }

    /// Counts the work of a failed search for each CPU that a task which may run on all CPUs may
    /// have run on last. The work depends on the on-line CPUs and on the picker's steps.
    fn count_failed_searches(&mut self, topology: &Topology) {
        let cpus = (0..self.nr_cpus as u32).map(CpuId);
        let failed_search = cpus.map(|cpu| self.count_failed_search(topology, cpu, None)).collect();
        self.failed_search = failed_search;
    }

    /// Updates the sibling sets and spans to the CPUs that are on line.
    pub(super) fn refresh_siblings(&mut self, mem: &Memory, topology: &Topology) {
        let online = mem.words(self.online, self.nr_words());
        self.spans = Some(Box::new(OnlineSpans::new(online, topology)));
        self.siblings.clear();
        self.siblings.extend(topology.cores().iter().map(|core| Siblings::of(&core.cpus, online)));
        self.smt_active = self.siblings.iter().any(|core| core.weight() > 1);
        self.count_failed_searches(topology);
    }

    /// `cpu_smt_mask()`: returns the on-line threads of `cpu`'s core, `cpu` included; None if `cpu`
    /// is off line.
    pub(super) fn siblings(&self, topology: &Topology, cpu: CpuId) -> Option<&Siblings> {
        let core = self.siblings.get(topology.cpu(cpu).core.idx())?;
        core.has(cpu).then_some(core)
    }

    /// Decides which steps of the picker exist, from the domains of the first on-line CPU, as the
    /// kernel does.
    pub(super) fn update_steps(&mut self, mem: &Memory, topology: &Topology, per_node: bool) {
        let view = OnlineDomains { online: mem.words(self.online, self.nr_words()), topology };
        let Some(first) = cpumask::first(view.online) else {
            return;
        };
        let nr_online = cpumask::weight(view.online);
        let partial = |weight: u32| weight > 0 && weight < nr_online;
        let several = view.several_nodes();
        let llc = partial(view.llc_weight(first));
        let numa = !per_node
            && partial(view.numa_weight(first, several))
            && cpumask::iter(view.online)
                .any(|c| view.llc_weight(c) != view.numa_weight(c, several));
        (self.topo_llc, self.topo_numa) = (llc, numa);
        self.count_failed_searches(topology);
    }
}

/// Scheduling domains as the kernel would build them from the on-line CPUs.
pub(super) struct OnlineDomains<'a> {
    pub online: &'a [u64],
    pub topology: &'a Topology,
}

impl OnlineDomains<'_> {
    /// Returns the number of on-line CPUs that share the last-level cache with `cpu`, `cpu`
    /// included; 0 if no other CPU shares it.
    fn llc_weight(&self, cpu: CpuId) -> u32 {
        self.domain_weight(cpu, self.topology.llc_mask(cpu))
    }

    fn domain_weight(&self, cpu: CpuId, span: &[u64]) -> u32 {
        let weight = bits::weight_and(span, self.online);
        if weight > 1 && cpumask::test(self.online, cpu) { weight } else { 0 }
    }

    /// Returns the number of on-line CPUs of `cpu`'s node; 0 if no other node has a CPU on line.
    fn numa_weight(&self, cpu: CpuId, several_nodes: bool) -> u32 {
        if !several_nodes || !cpumask::test(self.online, cpu) {
            return 0;
        }
        bits::weight_and(self.topology.node_mask(cpu), self.online)
    }

    /// Returns whether more than one node has CPUs on line.
    fn several_nodes(&self) -> bool {
        let populated =
            |node: &&scxlab_machine::topology::Node| cpumask::intersects(&node.cpus, self.online);
        self.topology.nodes().iter().filter(populated).take(2).count() > 1
    }

    /// `cpus_share_cache()`: returns whether two CPUs are the same CPU, or are on line and share an
    /// LLC.
    pub fn share_cache(&self, a: CpuId, b: CpuId) -> bool {
        let online = cpumask::test(self.online, a) && cpumask::test(self.online, b);
        a == b || (online && self.topology.same_llc(a, b))
    }
}
