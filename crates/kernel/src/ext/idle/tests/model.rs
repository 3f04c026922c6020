// SPDX-License-Identifier: GPL-2.0-only
//! A model of the picker of idle CPUs, written from the picker's documentation. It uses plain sets
//! instead of words in guest memory.

use crate::bpf::flags::pick_idle;
use scxlab_machine::Topology;
use scxlab_machine::id::{CpuId, NodeId};
use std::collections::BTreeSet;

pub(super) type Set = BTreeSet<u32>;

/// The idle state as plain sets, and the picker's documented rules on them.
pub(super) struct Model<'a> {
    pub topology: &'a Topology,
    pub per_node: bool,
    pub online: Set,
    pub idle: Set,
    /// CPUs that are marked as threads of an idle core.
    pub idle_core_cpus: Set,
    cursors: Vec<u32>,
    pub llc_step: bool,
    pub numa_step: bool,
}

impl<'a> Model<'a> {
    pub fn new(topology: &'a Topology, per_node: bool) -> Self {
        let nr = topology.nr_cpus() as u32;
        let mut model = Model {
            topology,
            per_node,
            online: (0..nr).collect(),
            idle: Set::new(),
            idle_core_cpus: Set::new(),
            cursors: vec![0; nr as usize],
            llc_step: false,
            numa_step: false,
        };
        model.update_steps();
        model
    }

    fn cpus_where(&self, test: impl Fn(CpuId) -> bool) -> Set {
        self.online.iter().copied().filter(|&cpu| test(CpuId(cpu))).collect()
    }

    fn core(&self, cpu: u32) -> Set {
        self.same(cpu, |a, b| self.topology.same_core(a, b))
    }

    fn llc(&self, cpu: u32) -> Set {
        let cpus = self.same(cpu, |a, b| self.topology.same_llc(a, b));
        if cpus.len() == 1 { Set::new() } else { cpus }
    }

    fn node(&self, cpu: u32) -> Set {
        self.same(cpu, |a, b| self.topology.same_node(a, b))
    }

    /// Returns the on-line CPUs for which `test`, called with the CPU and `cpu`, is true; none if
    /// `cpu` is off line.
    fn same(&self, cpu: u32, test: impl Fn(CpuId, CpuId) -> bool) -> Set {
        if self.online.contains(&cpu) {
            self.cpus_where(|c| test(c, CpuId(cpu)))
        } else {
            Set::new()
        }
    }

    fn smt(&self) -> bool {
        self.online.iter().any(|&cpu| self.core(cpu).len() > 1)
    }

    pub fn update_steps(&mut self) {
        let Some(&first) = self.online.first() else {
            return;
        };
        let nodes: BTreeSet<u32> =
            self.online.iter().map(|&cpu| self.topology.cpu(CpuId(cpu)).node.0).collect();
        let numa = |model: &Self, cpu| {
            if nodes.len() > 1 { model.node(cpu).len() } else { 0 }
        };
        let partial = |n: usize| n > 0 && n < self.online.len();
        let differ = self.online.iter().any(|&cpu| self.llc(cpu).len() != numa(self, cpu));
        let llc_step = partial(self.llc(first).len());
        let numa_step = !self.per_node && partial(numa(self, first)) && differ;
        (self.llc_step, self.numa_step) = (llc_step, numa_step);
    }

    pub fn mark(&mut self, cpu: u32, idle: bool) {
        let core = self.core(cpu);
        if idle {
            self.idle.insert(cpu);
        } else {
            self.idle.remove(&cpu);
        }
        if !self.smt() {
            return;
        }
        if !idle {
            self.idle_core_cpus.retain(|c| !core.contains(c));
        } else if core.is_subset(&self.idle) {
            self.idle_core_cpus.extend(core);
        }
    }

    pub fn claim(&mut self, cpu: u32) -> bool {
        if self.smt() {
            let core = self.core(cpu);
            self.idle_core_cpus.retain(|c| *c != cpu && !core.contains(c));
        }
        self.idle.remove(&cpu)
    }

    /// Tries to claim idle CPUs of `candidates`, starting after the CPU that the searches of CPU
    /// `here` tried last, until a claim succeeds.
    fn claim_any(&mut self, here: u32, candidates: &Set, core_only: bool) -> Option<u32> {
        loop {
            let idle_core_cpus: Set =
                self.idle_core_cpus.intersection(candidates).copied().collect();
            let idle: Set = self.idle.intersection(candidates).copied().collect();
            let from = match (self.smt(), core_only) {
                (true, true) => idle_core_cpus,
                (true, false) if !idle_core_cpus.is_empty() => idle_core_cpus,
                _ => idle,
            };
            let cursor = &mut self.cursors[here as usize];
            let chosen = *from.range(*cursor + 1..).next().or(from.first())?;
            *cursor = chosen;
            if self.claim(chosen) {
                return Some(chosen);
            }
        }
    }

    /// Returns the sets of CPUs to search in order: the nodes by distance, or one set of all CPUs.
    fn scopes(&self, node: u32, only_it: bool) -> Vec<Set> {
        if !self.per_node {
            return vec![(0..self.topology.nr_cpus() as u32).collect()];
        }
        let mut nodes: Vec<u32> = (0..self.topology.nodes().len() as u32).collect();
        nodes
            .sort_by_key(|&n| (n != node, self.topology.node_distance(NodeId(node), NodeId(n)), n));
        nodes.truncate(if only_it { 1 } else { nodes.len() });
        let all = 0..self.topology.nr_cpus() as u32;
        let of = |n: u32| all.clone().filter(|&c| self.node_of(c) == n).collect();
        nodes.into_iter().map(of).collect()
    }

    fn node_of(&self, cpu: u32) -> u32 {
        self.topology.cpu(CpuId(cpu)).node.0
    }

    pub fn pick(&mut self, here: u32, allowed: &Set, node: u32, flags: u64) -> Option<u32> {
        let core = flags & pick_idle::CORE != 0;
        self.scopes(node, flags & pick_idle::IN_NODE != 0)
            .into_iter()
            .find_map(|scope| self.claim_any(here, &(&scope & allowed), core))
    }

    pub fn select(
        &mut self,
        here: u32,
        prev: u32,
        allowed: &Set,
        flags: u64,
        sync: Option<bool>,
    ) -> Option<u32> {
        let near = self.scopes(self.node_of(prev), true).remove(0);
        let prev_ok = allowed.contains(&prev);
        if let Some(may_take_over) = sync {
            let shares = here == prev || self.llc(here).contains(&prev);
            if prev_ok && shares && self.claim(prev) {
                return Some(prev);
            }
            let same_scope = !self.per_node || self.node_of(here) == self.node_of(prev);
            let around = self.scopes(self.node_of(here), true).remove(0);
            let wanted = may_take_over && (flags & pick_idle::IN_NODE == 0 || same_scope);
            if wanted && !self.idle.is_disjoint(&around) && allowed.contains(&here) {
                self.claim(here);
                return Some(here);
            }
        }
        let llc = if self.llc_step { &(&self.llc(prev) & allowed) & &near } else { Set::new() };
        let numa = if self.numa_step { &(&self.node(prev) & allowed) & &near } else { Set::new() };
        if self.smt() {
            if prev_ok
                && near.contains(&prev)
                && self.idle_core_cpus.contains(&prev)
                && self.claim(prev)
            {
                return Some(prev);
            }
            for span in [&llc, &numa] {
                if let Some(cpu) = self.claim_any(here, span, true) {
                    return Some(cpu);
                }
            }
            let core = self.pick(here, allowed, self.node_of(prev), flags | pick_idle::CORE);
            if core.is_some() || flags & pick_idle::CORE != 0 {
                return core;
            }
        }
        if prev_ok && self.claim(prev) {
            return Some(prev);
        }
        if self.smt() {
            for sibling in &self.core(prev) & allowed {
                if sibling != prev && self.claim(sibling) {
                    return Some(sibling);
                }
            }
        }
        for span in [&llc, &numa] {
            if let Some(cpu) = self.claim_any(here, span, false) {
                return Some(cpu);
            }
        }
        self.pick(here, allowed, self.node_of(prev), flags)
    }
}
