// SPDX-License-Identifier: GPL-2.0-only
//! What the picker needs to know of the topology, as far as it is on line.
//!
//! Owns: sibling sets, and which of the picker's steps exist.
//! Models: kernel `scx_idle_update_selcpu_topology()`, `llc_weight()`, `numa_weight()`,
//! `cpu_smt_mask()`, 7.3.
//! Differs: the kernel asks scheduling domains, which it builds from the CPUs on line; a domain of
//! one CPU, or one that spans what the domain below spans, does not exist. Here the same follows
//! from counting.

use super::{IdleState, bits};
use scxlab_bpf::mem::Memory;
use scxlab_machine::Topology;
use scxlab_machine::cpumask;
use scxlab_machine::id::CpuId;
use smallvec::SmallVec;

/// The threads of a core that are on line, as (word, bits) of a mask.
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

    /// How many bits were added.
    pub fn add_to(&self, words: &mut [u64]) -> u32 {
        let mut added = 0;
        for &(at, bits) in &self.0 {
            added += (bits & !words[at as usize]).count_ones();
            words[at as usize] |= bits;
        }
        added
    }

    /// How many bits were removed.
    pub fn remove_from(&self, words: &mut [u64]) -> u32 {
        let mut removed = 0;
        for &(at, bits) in &self.0 {
            removed += (bits & words[at as usize]).count_ones();
            words[at as usize] &= !bits;
        }
        removed
    }

    /// The `n`-th thread, ascending.
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
        self.0.iter().map(|(_, bits)| bits.count_ones()).sum()
    }
}

/// What of each LLC and of each node is on line: `llc_span()` and `numa_span()` of a CPU that is.
#[derive(Debug)]
pub(super) struct OnlineSpans {
    /// Empty where the kernel has no such domain: with less than two CPUs on line.
    llcs: Vec<Box<[u64]>>,
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

    /// None if there is no such domain.
    pub fn llc(&self, topology: &Topology, cpu: CpuId) -> Option<&[u64]> {
        let span = &*self.llcs[topology.cpu(cpu).llc.idx()];
        (!span.is_empty()).then_some(span)
    }

    pub fn node(&self, topology: &Topology, cpu: CpuId) -> &[u64] {
        &self.nodes[topology.cpu(cpu).node.idx()]
    }
}

/// What the default picker does in vain for a task that may run anywhere when no CPU is idle.
#[derive(Clone, Copy, Debug)]
pub(super) struct InVain {
    /// Searches of a set.
    pub searches: u16,
    /// CPUs that it tries to claim.
    pub claims: u16,
}

impl IdleState {
    /// Counts what is done in vain, from the CPUs on line and the steps that exist.
    fn count_in_vain(&mut self, topology: &Topology) {
        let in_vain = |cpu| {
            let threads = self.siblings(topology, cpu).map_or(0, Siblings::weight);
            let here = self.spans.as_ref().filter(|_| threads > 0);
            let llc = here.is_some_and(|s| self.topo_llc && s.llc(topology, cpu).is_some());
            let numa = here.is_some_and(|_| self.topo_numa);
            let sets = 1 + u16::from(llc) + u16::from(numa);
            match self.smt_active {
                // Whole cores are sought before single CPUs, and once more with them; all threads of the core are tried.
                true => InVain { searches: 3 * sets, claims: threads.max(1) as u16 },
                false => InVain { searches: sets, claims: 1 },
            }
        };
        self.in_vain = (0..self.nr_cpus as u32).map(|cpu| in_vain(CpuId(cpu))).collect();
    }

    /// Brings the sibling sets and spans up to date with the CPUs on line.
    pub(super) fn refresh_siblings(&mut self, mem: &Memory, topology: &Topology) {
        let online = mem.words(self.online, self.nr_words());
        self.spans = Some(Box::new(OnlineSpans::new(online, topology)));
        self.siblings.clear();
        self.siblings.extend(topology.cores().iter().map(|core| Siblings::of(&core.cpus, online)));
        self.smt_active = self.siblings.iter().any(|core| core.weight() > 1);
        self.count_in_vain(topology);
    }

    /// `cpu_smt_mask()`: the threads of `cpu`'s core, itself included; None if it is off line.
    pub(super) fn siblings(&self, topology: &Topology, cpu: CpuId) -> Option<&Siblings> {
        let core = self.siblings.get(topology.cpu(cpu).core.idx())?;
        core.has(cpu).then_some(core)
    }

    /// Sets which steps of the picker exist, seen from the first CPU on line as the kernel does.
    pub(super) fn update_steps(&mut self, mem: &Memory, topology: &Topology, per_node: bool) {
        let view = Spans { online: mem.words(self.online, self.nr_words()), topology };
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
        self.count_in_vain(topology);
    }
}

/// Domains as the kernel would build them from the CPUs on line.
pub(super) struct Spans<'a> {
    pub online: &'a [u64],
    pub topology: &'a Topology,
}

impl Spans<'_> {
    /// CPUs that share the last-level cache with `cpu`, itself included; 0 if it has the cache to
    /// itself.
    fn llc_weight(&self, cpu: CpuId) -> u32 {
        self.domain_weight(cpu, self.topology.llc_mask(cpu))
    }

    fn domain_weight(&self, cpu: CpuId, span: &[u64]) -> u32 {
        let weight = bits::weight_and(span, self.online);
        if weight > 1 && cpumask::test(self.online, cpu) { weight } else { 0 }
    }

    /// CPUs of `cpu`'s node; 0 if no other node has CPUs.
    fn numa_weight(&self, cpu: CpuId, several_nodes: bool) -> u32 {
        if !several_nodes || !cpumask::test(self.online, cpu) {
            return 0;
        }
        bits::weight_and(self.topology.node_mask(cpu), self.online)
    }

    /// Whether more than one node has CPUs on line.
    fn several_nodes(&self) -> bool {
        let populated =
            |node: &&scxlab_machine::topology::Node| cpumask::intersects(&node.cpus, self.online);
        self.topology.nodes().iter().filter(populated).take(2).count() > 1
    }

    /// `cpus_share_cache()`
    pub fn share_cache(&self, a: CpuId, b: CpuId) -> bool {
        let online = cpumask::test(self.online, a) && cpumask::test(self.online, b);
        a == b || (online && self.topology.same_llc(a, b))
    }
}
