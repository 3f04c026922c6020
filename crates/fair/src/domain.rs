// SPDX-License-Identifier: GPL-2.0-only
//! Scheduling domains: the nested sets of CPUs over which tasks are placed and balanced, and their
//! groups.
//!
//! Owns: the domains of each CPU, smallest first, with their groups and their balancing state. CPUs
//! that see the same groups and spans share one copy of them.
//! Does not: balance.
//! Models: `build_sched_domains()`, `sd_init()`, `build_overlap_sched_groups()`,
//! `adjust_numa_imbalance()`, `cpu_attach_domain()`, topology.c v7.3: levels SMT, MC (the LLC), PKG
//! (the node), NUMA by distance.
//! Differs: no CLS level, no packing by priority; a level that would add no domain is never built.

use super::params::Params;
use scxlab_machine::cpumask::{self, CpuMask};
use scxlab_machine::id::{CpuId, Nanos};
use scxlab_machine::topology::Topology;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Topology of the machine as this class uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FairTopo {
    /// Core, LLC and node of each CPU, numbered from 0.
    pub core: Vec<u32>,
    pub llc: Vec<u32>,
    pub node: Vec<u32>,
    /// Size of each LLC, bytes.
    pub llc_bytes: Vec<u64>,
    /// Capacity of each CPU; 1024 for the fastest.
    pub capacity: Vec<u64>,
    /// Distance from each node to each node; 10 is local.
    pub distance: Vec<Vec<u32>>,
}

impl FairTopo {
    pub fn new(topology: &Topology) -> Self {
        let of = |f: &dyn Fn(CpuId) -> u32| topology.cpu_ids().map(f).collect::<Vec<_>>();
        FairTopo {
            core: of(&|cpu| topology.cpu(cpu).core.0),
            llc: of(&|cpu| topology.cpu(cpu).llc.0),
            node: of(&|cpu| topology.cpu(cpu).node.0),
            llc_bytes: topology.llcs().iter().map(|llc| llc.size_bytes).collect(),
            capacity: topology.cpu_ids().map(|cpu| topology.cpu(cpu).capacity.into()).collect(),
            distance: topology.nodes().iter().map(|node| node.distances.clone()).collect(),
        }
    }

    pub fn nr_cpus(&self) -> usize {
        self.core.len()
    }
}

/// Properties of a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// The CPUs are SMT siblings.
    pub share_capacity: bool,
    pub share_llc: bool,
    pub numa: bool,
    pub balance_newidle: bool,
    /// Fork and exec place tasks across the domain.
    pub balance_fork: bool,
    pub wake_affine: bool,
    /// Balancing spreads tasks over this domain and its siblings before it fills one of them.
    pub prefer_sibling: bool,
    /// The CPUs have different capacities (`SD_ASYM_CPUCAPACITY`).
    pub asym_capacity: bool,
}

/// The part of a domain's data that all CPUs of the domain share.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub span: Arc<CpuMask>,
    /// Words of the span that contain CPUs.
    pub words: Range<usize>,
    pub span_weight: u32,
    pub flags: Flags,
    /// Indices into `Domains::groups`.
    pub groups: Vec<u32>,
    pub imbalance_pct: u64,
    pub cache_nice_tries: u32,
    pub imb_numa_nr: u32,
    /// Index into `Domains::shared`: of the LLC domain, and of the smallest domain that has CPUs of
    /// all capacities; None for other domains.
    pub shared: Option<u32>,
}

/// A group of CPUs within a domain. Balancing compares the groups of a domain with each other.
#[derive(Clone, Debug)]
pub(super) struct SchedGroup {
    pub span: Arc<CpuMask>,
    /// Words of the span that contain CPUs.
    pub words: Range<usize>,
    pub weight: u32,
    pub cores: u32,
    /// Sum of the CPUs' capacities, and the smallest and largest of them.
    pub capacity: u64,
    pub min_capacity: u64,
    pub max_capacity: u64,
    /// Flags of the domain one or more levels below that spans exactly this group; all false if
    /// there is none, as for a group of a single CPU.
    pub flags: Flags,
    /// CPUs that may balance for the group.
    pub balance_mask: Arc<CpuMask>,
    /// Pinned tasks kept the domain one level below, which spans this group, from being balanced.
    pub imbalance: bool,
    /// Place of the group's sums, which `Sums::new` assigns.
    pub sums: u32,
}

/// State of an LLC, or of a domain that has CPUs of all capacities, that its CPUs share.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LlcShared {
    pub has_idle_cores: bool,
    /// Number of CPUs that a wake-up may examine in search of an idle CPU.
    pub nr_idle_scan: u32,
    pub nr_busy_cpus: u32,
    /// Utilisation and capacity of the LLC when the domain above it was last balanced.
    pub util: u64,
    pub capacity: u64,
}

/// A domain of one CPU: the index of the data that all CPUs of the domain share, and this CPU's own
/// balancing state.
#[derive(Clone, Debug)]
pub(super) struct Domain {
    pub shape: u32,
    /// Index, in `Shape::groups`, of the group that contains this CPU.
    pub own: u32,
    /// Time between two balances, ms.
    pub balance_interval: u32,
    pub last_balance: u64,
    pub nr_balance_failed: u32,
    pub max_newidle_lb_cost: Nanos,
    pub last_decay: u64,
    pub newidle_call: u32,
    pub newidle_success: u32,
    pub newidle_ratio: u32,
    pub newidle_stamp: Nanos,
}

/// The domains of all CPUs.
#[derive(Clone, Debug, Default)]
pub(super) struct Domains {
    pub shapes: Vec<Shape>,
    pub groups: Vec<SchedGroup>,
    pub shared: Vec<LlcShared>,
    /// The domains of each CPU, indexed by CPU, smallest domain first.
    pub of_cpu: Vec<Vec<Domain>>,
    /// `llc_of` holds the LLC of each CPU, and `llc_size` the number of on-line CPUs in that LLC.
    /// Both are indexed by CPU, and valid even if the LLC has no domain.
    pub llc_of: Vec<u32>,
    pub llc_size: Vec<u32>,
    /// Level of each CPU's LLC domain in `of_cpu`, indexed by CPU; None if the LLC has no domain.
    pub llc_level: Vec<Option<u32>>,
    /// Level of the smallest domain of each CPU, indexed by CPU, that has CPUs of all capacities
    /// (`SD_ASYM_CPUCAPACITY_FULL`); None on a symmetric machine.
    pub asym_level: Vec<Option<u32>>,
    /// Some domain has CPUs of different capacity.
    pub asymmetric: bool,
    /// `cores` holds the on-line CPUs of each core, indexed by core. `core_of` holds the core of
    /// each CPU, indexed by CPU.
    pub cores: Vec<SmallVec<[CpuId; 2]>>,
    pub core_of: Vec<u32>,
    pub smt_present: bool,
    /// Number of CPUs of the largest core, on line or not (`cpu_smt_num_threads`).
    pub smt_threads: u32,
    /// Node of each CPU, indexed by CPU.
    pub node_of: Vec<u32>,
}

/// A domain level under construction. `unit` holds the core, LLC or node of each CPU, indexed by
/// CPU. All CPUs of one unit see the same span.
struct Level {
    spans: Vec<Arc<CpuMask>>,
    unit: Vec<u32>,
    kind: LevelKind,
}

impl Level {
    fn span(&self, cpu: usize) -> &Arc<CpuMask> {
        &self.spans[self.unit[cpu] as usize]
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LevelKind {
    Smt,
    Llc,
    Node,
    /// A NUMA level, whose spans contain the nodes within this distance of a node.
    Numa(u32),
}

impl Domains {
    pub fn build(topo: &FairTopo, online: &[bool], params: &Params) -> Self {
        let n = topo.nr_cpus();
        let cores = topo.core.iter().max().map_or(0, |&c| c as usize + 1);
        let mut domains = Domains {
            of_cpu: vec![Vec::new(); n],
            llc_of: topo.llc.clone(),
            llc_size: vec![1; n],
            llc_level: vec![None; n],
            asym_level: vec![None; n],
            cores: vec![SmallVec::new(); cores],
            core_of: topo.core.clone(),
            node_of: topo.node.clone(),
            ..Domains::default()
        };
        for cpu in (0..n).filter(|&cpu| online[cpu]) {
            domains.cores[topo.core[cpu] as usize].push(CpuId(cpu as u32));
        }
        let mut threads = vec![0; cores];
        topo.core.iter().for_each(|&core| threads[core as usize] += 1);
        domains.smt_threads = threads.into_iter().max().unwrap_or(1);
        domains.smt_present = domains.cores.iter().any(|core| core.len() > 1);
        let levels = levels(topo, online);
        for cpu in (0..n).filter(|&cpu| online[cpu]) {
            domains.llc_size[cpu] = cpumask::weight(levels[1].span(cpu));
        }
        domains.add_levels(topo, online, params, &levels);
        domains.find_asym_levels(topo, online);
        domains
    }

    /// Finds the domains with CPUs of all capacities that are on line. If no NUMA level made such a
    /// domain, its CPUs share the state of a search for an idle CPU.
    fn find_asym_levels(&mut self, topo: &FairTopo, online: &[bool]) {
        self.asymmetric = self.shapes.iter().any(|shape| shape.flags.asym_capacity);
        if !self.asymmetric {
            return;
        }
        let on = (0..topo.nr_cpus()).filter(|&cpu| online[cpu]);
        let all = capacities(topo, on.clone().map(|cpu| CpuId(cpu as u32)));
        for cpu in on {
            let full = |d: &Domain| {
                capacities(topo, cpumask::iter(&self.shapes[d.shape as usize].span)) == all
            };
            let Some(level) = self.of_cpu[cpu].iter().position(full) else {
                continue;
            };
            self.asym_level[cpu] = Some(level as u32);
            let shape = self.of_cpu[cpu][level].shape;
            let row = &self.shapes[shape as usize];
            if row.shared.is_none() && !row.flags.numa {
                self.shapes[shape as usize].shared = Some(self.new_shared(shape));
            }
        }
    }

    fn add_levels(&mut self, topo: &FairTopo, online: &[bool], params: &Params, levels: &[Level]) {
        for (at, level) in levels.iter().enumerate() {
            // `made` maps a unit (a core, LLC or node) to the `Shape` of its domain at this level.
            // All CPUs of a unit share the shape, because they see the same span.
            let mut made: BTreeMap<u32, u32> = BTreeMap::new();
            for cpu in (0..topo.nr_cpus()).filter(|&cpu| online[cpu]) {
                let below = self.of_cpu[cpu].last().map(|d| d.shape);
                let weight = cpumask::weight(level.span(cpu));
                if weight < 2
                    || below.is_some_and(|b| self.shapes[b as usize].span_weight == weight)
                {
                    self.merge_level(cpu, level.kind, below);
                    continue;
                }
                let same = made.entry(level.unit[cpu]);
                let shape = *same.or_insert_with(|| self.make_shape(topo, params, levels, at, cpu));
                self.attach(cpu, shape, level.kind);
            }
        }
        self.set_imb_numa();
    }

    /// Handles a level that adds no domain for a CPU, because its span is a single CPU or no larger
    /// than the domain below. If this level is the LLC, the domain below, that of the core, becomes
    /// the CPU's LLC domain.
    fn merge_level(&mut self, cpu: usize, kind: LevelKind, below: Option<u32>) {
        if kind != LevelKind::Llc {
            return;
        }
        if let Some(below) = below {
            self.llc_level[cpu] = Some(self.of_cpu[cpu].len() as u32 - 1);
            if self.shapes[below as usize].shared.is_none() {
                self.shapes[below as usize].shared = Some(self.new_shared(below));
            }
        }
    }

    fn new_shared(&mut self, shape: u32) -> u32 {
        let weight = self.shapes[shape as usize].span_weight;
        // Start with the values that the first balance of an idle machine would set: idle cores
        // exist, and a wake-up may examine every CPU.
        self.shared.push(LlcShared {
            has_idle_cores: true,
            nr_idle_scan: weight,
            nr_busy_cpus: weight,
            ..LlcShared::default()
        });
        self.shared.len() as u32 - 1
    }

    fn attach(&mut self, cpu: usize, shape: u32, kind: LevelKind) {
        let row = &self.shapes[shape as usize];
        let own = row
            .groups
            .iter()
            .position(|&g| cpumask::test(&self.groups[g as usize].span, CpuId(cpu as u32)));
        let span_weight = row.span_weight;
        if kind == LevelKind::Llc {
            self.llc_level[cpu] = Some(self.of_cpu[cpu].len() as u32);
        }
        self.of_cpu[cpu].push(Domain {
            shape,
            own: own.expect("a CPU is in a group of each of its domains") as u32,
            balance_interval: span_weight,
            last_balance: 0,
            nr_balance_failed: 0,
            max_newidle_lb_cost: 0,
            last_decay: 0,
            newidle_call: 512,
            newidle_success: 256,
            newidle_ratio: 512,
            newidle_stamp: 0,
        });
    }

    fn make_shape(
        &mut self,
        topo: &FairTopo,
        params: &Params,
        levels: &[Level],
        at: usize,
        cpu: usize,
    ) -> u32 {
        let level = &levels[at];
        let span = level.span(cpu).clone();
        let span_weight = cpumask::weight(&span);
        let (mut flags, imbalance_pct, cache_nice_tries) = kind_properties(level.kind, params);
        flags.asym_capacity = capacities(topo, cpumask::iter(&span)).len() > 1;
        let groups = self.make_groups(topo, levels, at, cpu);
        let shape = self.shapes.len() as u32;
        self.shapes.push(Shape {
            words: words_of(&span),
            span,
            span_weight,
            flags,
            groups,
            imbalance_pct,
            cache_nice_tries,
            imb_numa_nr: 0,
            shared: None,
        });
        if level.kind == LevelKind::Llc {
            self.shapes[shape as usize].shared = Some(self.new_shared(shape));
        }
        shape
    }

    /// Builds the groups of a domain; the first is the group of `cpu`. Each group spans one child
    /// domain, or a single CPU if no lower level has a smaller domain.
    fn make_groups(
        &mut self,
        topo: &FairTopo,
        levels: &[Level],
        at: usize,
        cpu: usize,
    ) -> Vec<u32> {
        let span = levels[at].span(cpu);
        let n = topo.nr_cpus();
        let mut covered = CpuMask::new(n);
        let mut groups = Vec::new();
        for i in (0..n).map(|i| (cpu + i) % n) {
            let id = CpuId(i as u32);
            if !cpumask::test(span, id) || cpumask::test(&covered, id) {
                continue;
            }
            let child = child_span(levels, at, i, span);
            for (word, more) in covered.iter_mut().zip(child.iter()) {
                *word |= more;
            }
            self.groups.push(self.make_group(topo, levels, at, i, child));
            groups.push(self.groups.len() as u32 - 1);
        }
        groups
    }

    fn make_group(
        &self,
        topo: &FairTopo,
        levels: &[Level],
        at: usize,
        cpu: usize,
        span: Arc<CpuMask>,
    ) -> SchedGroup {
        let mut below = self.of_cpu[cpu].iter().map(|d| &self.shapes[d.shape as usize]);
        let flags = below.find(|s| s.span == span).map(|s| s.flags).unwrap_or_default();
        let own_view = |i: CpuId| child_span(levels, at, i.idx(), levels[at].span(cpu)) == span;
        let is_numa = matches!(levels[at].kind, LevelKind::Numa(_));
        // On a NUMA level all CPUs of a node see the same spans. If a CPU is on the same node as
        // the CPU before it, the closure `balances` therefore returns the same answer again.
        let mut last = None;
        let balances = |i: &CpuId| {
            let node = topo.node[i.idx()];
            let known = last.filter(|(of, _)| is_numa && *of == node);
            last.insert(known.unwrap_or_else(|| (node, own_view(*i)))).1
        };
        let balance_mask = CpuMask::of(topo.nr_cpus(), cpumask::iter(&span).filter(balances));
        let balance_mask =
            if balance_mask == *span { span.clone() } else { Arc::new(balance_mask) };
        let mut cores: Vec<u32> = cpumask::iter(&span).map(|i| topo.core[i.idx()]).collect();
        cores.sort_unstable();
        cores.dedup();
        let capacity = || cpumask::iter(&span).map(|i| topo.capacity[i.idx()]);
        SchedGroup {
            weight: cpumask::weight(&span),
            cores: cores.len() as u32,
            capacity: capacity().sum(),
            min_capacity: capacity().min().unwrap_or(0),
            max_capacity: capacity().max().unwrap_or(0),
            flags,
            balance_mask,
            imbalance: false,
            sums: 0,
            words: words_of(&span),
            span,
        }
    }

    /// Sets the number of tasks by which nodes may be out of balance, so that communicating tasks
    /// may stay together.
    fn set_imb_numa(&mut self) {
        for cpu in 0..self.of_cpu.len() {
            let Some(llc) = self.llc_level[cpu] else {
                continue;
            };
            let weight_of = |d: &Domain| self.shapes[d.shape as usize].span_weight;
            let llc_weight = weight_of(&self.of_cpu[cpu][llc as usize]);
            let above: Vec<u32> =
                self.of_cpu[cpu][llc as usize + 1..].iter().map(|d| d.shape).collect();
            let node_weight = above
                .iter()
                .map(|&s| &self.shapes[s as usize])
                .find(|s| !s.flags.numa)
                .map_or(llc_weight, |s| s.span_weight);
            let nr_llcs = node_weight / llc_weight;
            let imb = if nr_llcs == 1 { node_weight >> 3 } else { nr_llcs }.max(1);
            let numa = |s: &&u32| self.shapes[**s as usize].flags.numa;
            let unit = above.iter().find(numa).map(|&s| self.shapes[s as usize].span_weight);
            for shape in above {
                let weight = self.shapes[shape as usize].span_weight;
                let factor = (weight / unit.unwrap_or(node_weight)).max(1);
                self.shapes[shape as usize].imb_numa_nr = imb * factor;
            }
        }
    }

    #[inline]
    pub fn shape(&self, cpu: CpuId, level: usize) -> &Shape {
        &self.shapes[self.of_cpu[cpu.idx()][level].shape as usize]
    }

    /// Returns the `Shape` (the data that all CPUs of a domain share) of a CPU's LLC domain, or
    /// None if the LLC has no domain.
    #[inline]
    pub fn llc_shape(&self, cpu: CpuId) -> Option<&Shape> {
        self.llc_level[cpu.idx()].map(|level| self.shape(cpu, level as usize))
    }

    pub fn llc_shared(&mut self, cpu: CpuId) -> Option<&mut LlcShared> {
        let shared = self.llc_shape(cpu)?.shared?;
        Some(&mut self.shared[shared as usize])
    }

    /// State that the search for an idle CPU shares (`sd_balance_shared`): that of the smallest
    /// domain that has CPUs of all capacities, else the LLC's.
    fn balance_shared(&self, cpu: CpuId) -> Option<usize> {
        let asym = self.asym_level[cpu.idx()];
        let asym = asym.and_then(|level| self.shape(cpu, level as usize).shared);
        asym.or_else(|| self.llc_shape(cpu)?.shared).map(|shared| shared as usize)
    }

    /// Whether a search near a CPU may find an idle core; false without SMT (`test_idle_cores()`).
    pub fn has_idle_cores(&self, cpu: CpuId) -> bool {
        let shared = self.balance_shared(cpu).filter(|_| self.smt_present);
        shared.is_some_and(|at| self.shared[at].has_idle_cores)
    }

    pub fn set_idle_cores(&mut self, cpu: CpuId, some: bool) {
        if let Some(at) = self.balance_shared(cpu) {
            self.shared[at].has_idle_cores = some;
        }
    }

    /// Whether some LLC has several CPUs on line and is not alone (`sd_in_multi_llcs()`).
    pub fn has_multi_llcs(&self) -> bool {
        let all = |cpu: usize| {
            let top = self.of_cpu[cpu].last()?;
            Some(self.shapes[top.shape as usize].span_weight)
        };
        (0..self.of_cpu.len())
            .any(|cpu| self.llc_size[cpu] > 1 && all(cpu).is_some_and(|n| n > self.llc_size[cpu]))
    }

    /// On-line CPUs of a CPU's core, including the CPU itself, in ascending order.
    pub fn siblings(&self, cpu: CpuId) -> &[CpuId] {
        &self.cores[self.core_of[cpu.idx()] as usize]
    }

    pub fn share_cache(&self, a: CpuId, b: CpuId) -> bool {
        a == b || self.llc_of[a.idx()] == self.llc_of[b.idx()]
    }
}

/// Returns the different capacities of some CPUs.
fn capacities(topo: &FairTopo, cpus: impl Iterator<Item = CpuId>) -> BTreeSet<u64> {
    cpus.map(|cpu| topo.capacity[cpu.idx()]).collect()
}

/// Returns the words of a set from the first that is not 0 to the last.
fn words_of(span: &[u64]) -> Range<usize> {
    let end = span.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    span.iter().position(|word| *word != 0).unwrap_or(end)..end
}

/// Returns the child span of `cpu` within a domain of span `span`: that of the largest lower level
/// that is smaller than `span` and lies within it. Overlapping NUMA levels may reach out of `span`,
/// and are skipped. Without such a level, the child span is the CPU alone.
fn child_span(levels: &[Level], at: usize, cpu: usize, span: &CpuMask) -> Arc<CpuMask> {
    levels[..at]
        .iter()
        .rev()
        .map(|level| level.span(cpu))
        .find(|child| cpumask::is_subset(child, span) && ***child != *span)
        .cloned()
        .unwrap_or_else(|| Arc::new(CpuMask::of(span.len() * 64, [CpuId(cpu as u32)])))
}

fn levels(topo: &FairTopo, online: &[bool]) -> Vec<Level> {
    let n = topo.nr_cpus();
    let of_units = |kind, unit: &[u32]| {
        let nr = unit.iter().max().map_or(0, |&last| last as usize + 1);
        let mut spans = vec![CpuMask::new(n); nr];
        for cpu in (0..n).filter(|&cpu| online[cpu]) {
            cpumask::set(&mut spans[unit[cpu] as usize], CpuId(cpu as u32));
        }
        let spans = spans.into_iter().map(Arc::new).collect();
        Level { spans, unit: unit.to_vec(), kind }
    };
    let mut levels = vec![
        of_units(LevelKind::Smt, &topo.core),
        of_units(LevelKind::Llc, &topo.llc),
        of_units(LevelKind::Node, &topo.node),
    ];
    let nodes = levels[2].spans.clone();
    let within = |node: usize, far: u32| {
        let mut span = CpuMask::new(n);
        let near = nodes.iter().zip(&topo.distance[node]).filter(|(_, distance)| **distance <= far);
        for (word, more) in near.flat_map(|(other, _)| (0..).zip(other.iter())) {
            span[word] |= more;
        }
        Arc::new(span)
    };
    let mut seen: Vec<u32> = topo.distance.iter().flatten().copied().collect();
    seen.sort_unstable();
    seen.dedup();
    for far in seen.into_iter().skip(1) {
        let spans = (0..nodes.len()).map(|node| within(node, far)).collect();
        levels.push(Level { spans, unit: topo.node.clone(), kind: LevelKind::Numa(far) });
    }
    levels
}

/// Returns the flags, `imbalance_pct` and `cache_nice_tries` of the domains of one level, such as
/// SMT or NUMA.
fn kind_properties(kind: LevelKind, params: &Params) -> (Flags, u64, u32) {
    let base = Flags {
        balance_newidle: true,
        balance_fork: true,
        wake_affine: true,
        prefer_sibling: true,
        ..Flags::default()
    };
    match kind {
        LevelKind::Smt => (Flags { share_capacity: true, share_llc: true, ..base }, 110, 0),
        LevelKind::Llc => (Flags { share_llc: true, ..base }, 117, 1),
        LevelKind::Node => (base, 117, 1),
        LevelKind::Numa(distance) => {
            let near = distance <= params.node_reclaim_distance;
            let flags = Flags {
                numa: true,
                prefer_sibling: false,
                balance_fork: near,
                wake_affine: near,
                ..base
            };
            (flags, 117, 2)
        }
    }
}
