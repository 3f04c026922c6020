// SPDX-License-Identifier: GPL-2.0-only
//! The weight of a node for a task or its group: the part of its faults on the node, and on nodes
//! near it.
//!
//! Owns: the kind of the machine's interconnect.
//! Models: `init_numa_topology_type()`, topology.c; `score_nearby_nodes()`, `task_weight()`,
//! `group_weight()`, `preferred_group_nid()`, fair.c v7.3; `numa_nearest_node()`, mempolicy.c.

use super::super::domain::FairTopo;
use super::faults::{Kind, index};
use super::{Numa, NumaGroup};
use scxlab_machine::cpumask::{self, CpuMask};
use scxlab_machine::id::{CpuId, TaskId};
use std::collections::BTreeSet;

const LOCAL_DISTANCE: u32 = 10;

/// Kinds of interconnects (`enum numa_topology_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interconnect {
    /// All nodes are equally far from each other.
    Direct,
    /// Distant nodes reach each other through nodes between them.
    GluelessMesh,
    /// Groups of nodes reach each other through controllers.
    Backplane,
}

/// The nodes as NUMA balancing sees them.
#[derive(Clone, Debug)]
pub(super) struct Topology {
    /// Node of each CPU.
    pub node_of: Vec<u32>,
    /// CPUs of each node.
    pub cpus: Vec<CpuMask>,
    pub distance: Vec<Vec<u32>>,
    pub kind: Interconnect,
    max_distance: u32,
    /// Distances between nodes with CPUs, the local one included.
    distances: BTreeSet<u32>,
}

impl Topology {
    pub fn new(topo: &FairTopo) -> Topology {
        let (nr_cpus, nr_nodes) = (topo.nr_cpus(), topo.distance.len());
        let mut cpus = vec![CpuMask::new(nr_cpus); nr_nodes];
        for (cpu, node) in (0..).map(CpuId).zip(&topo.node) {
            cpumask::set(&mut cpus[*node as usize], cpu);
        }
        let with_cpus: Vec<usize> =
            (0..nr_nodes).filter(|n| !cpumask::is_empty(&cpus[*n])).collect();
        let pairs = with_cpus.iter().flat_map(|a| with_cpus.iter().map(move |b| (*a, *b)));
        let distances: BTreeSet<u32> = pairs.map(|(a, b)| topo.distance[a][b]).collect();
        let max_distance = distances.last().copied().unwrap_or(LOCAL_DISTANCE);
        let kind = interconnect(&topo.distance, &with_cpus, distances.len(), max_distance);
        let (node_of, distance) = (topo.node.clone(), topo.distance.clone());
        Topology { node_of, cpus, distance, kind, max_distance, distances }
    }

    pub fn nr_nodes(&self) -> usize {
        self.cpus.len()
    }

    pub fn has_cpus(&self, node: u32) -> bool {
        !cpumask::is_empty(&self.cpus[node as usize])
    }

    pub fn nr_cpu_nodes(&self) -> usize {
        self.cpu_nodes().count()
    }

    /// Iterates over the nodes with CPUs.
    pub fn cpu_nodes(&self) -> impl Iterator<Item = u32> + use<> {
        let nodes: Vec<u32> = (0..self.nr_nodes() as u32).filter(|n| self.has_cpus(*n)).collect();
        nodes.into_iter()
    }

    pub fn between(&self, a: u32, b: u32) -> u32 {
        self.distance[a as usize][b as usize]
    }

    /// Returns the nearest node with CPUs, the first of several.
    pub fn nearest_cpu_node(&self, node: u32) -> u32 {
        match self.has_cpus(node) {
            true => node,
            false => {
                let near = |n: &u32| self.between(node, *n);
                self.cpu_nodes().min_by_key(near).unwrap_or(node)
            }
        }
    }
}

fn interconnect(
    distance: &[Vec<u32>],
    nodes: &[usize],
    nr_distances: usize,
    max: u32,
) -> Interconnect {
    if nr_distances <= 2 {
        return Interconnect::Direct;
    }
    let pairs = || nodes.iter().flat_map(|a| nodes.iter().map(move |b| (*a, *b)));
    let Some((a, b)) = pairs().find(|(a, b)| distance[*a][*b] >= max) else {
        return Interconnect::Direct;
    };
    let between = |c: &usize| distance[a][*c] < max && distance[b][*c] < max;
    if nodes.iter().any(between) { Interconnect::GluelessMesh } else { Interconnect::Backplane }
}

/// The faults that a weight counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Task,
    Group,
}

impl Numa {
    fn mem_faults(&self, faults: &[i64], node: u32) -> i64 {
        let at = |private| index(self.topo.nr_nodes(), Kind::Mem, node, private);
        faults.get(at(0)).map_or(0, |shared| shared + faults[at(1)])
    }

    /// Faults of a task, or of its group, on memory of a node.
    fn faults_on(&self, id: TaskId, node: u32, of: Of) -> i64 {
        match of {
            Of::Task => self.task(id).map_or(0, |task| self.mem_faults(&task.faults, node)),
            Of::Group => self.group_of(id).map_or(0, |group| self.mem_faults(&group.faults, node)),
        }
    }

    pub(super) fn group_faults(&self, id: TaskId, node: u32) -> i64 {
        self.faults_on(id, node, Of::Group)
    }

    pub(super) fn group_faults_cpu(&self, group: &NumaGroup, node: u32) -> i64 {
        let at = |private| index(self.topo.nr_nodes(), Kind::Cpu, node, private);
        group.faults[at(0)] + group.faults[at(1)]
    }

    /// Private and shared faults of a group on memory.
    pub(super) fn private_and_shared(&self, group: &NumaGroup) -> (u64, u64) {
        let nr = self.topo.nr_nodes();
        let sum = |private| -> u64 {
            let faults = |node| group.faults[index(nr, Kind::Mem, node, private)];
            (0..nr as u32).map(faults).sum::<i64>().max(0) as u64
        };
        (sum(1), sum(0))
    }

    fn nearby(&self, id: TaskId, node: u32, limit: u32, of: Of) -> i64 {
        let topo = &self.topo;
        if topo.kind == Interconnect::Direct {
            return 0;
        }
        let mut score = 0;
        for other in (0..topo.nr_nodes() as u32).filter(|other| *other != node) {
            let distance = topo.between(node, other);
            if distance >= topo.max_distance
                || topo.kind == Interconnect::Backplane && distance >= limit
            {
                continue;
            }
            let mut faults = self.faults_on(id, other, of);
            if topo.kind == Interconnect::GluelessMesh {
                faults *= i64::from(topo.max_distance - distance);
                faults /= i64::from(topo.max_distance - LOCAL_DISTANCE);
            }
            score += faults;
        }
        score
    }

    /// Weight of a node for a task or its group, in thousandths. `limit` is the distance below
    /// which other nodes count, on a machine with a backplane.
    pub(super) fn weight(&self, id: TaskId, node: u32, limit: u32, of: Of) -> i64 {
        let total = match of {
            Of::Task => self.task(id).map_or(0, |task| task.total_faults),
            Of::Group => self.group_of(id).map_or(0, |group| group.total_faults),
        };
        if total <= 0 {
            return 0;
        }
        1000 * (self.faults_on(id, node, of) + self.nearby(id, node, limit, of)) / total
    }

    /// Returns the node that a member of a group should prefer. `best` has most of the group's
    /// faults.
    pub(super) fn preferred_of_group(&self, id: TaskId, best: u32) -> u32 {
        let topo = &self.topo;
        match topo.kind {
            Interconnect::Direct => best,
            Interconnect::GluelessMesh => {
                let (mut most, mut found) = (0, best);
                for node in topo.cpu_nodes() {
                    let score = self.weight(id, node, topo.max_distance, Of::Group);
                    if score > most {
                        (most, found) = (score, node);
                    }
                }
                found
            }
            Interconnect::Backplane => self.preferred_behind_backplane(id, best),
        }
    }

    /// Searches groups of ever nearer nodes, each time inside the group with most faults.
    fn preferred_behind_backplane(&self, id: TaskId, best: u32) -> u32 {
        let topo = &self.topo;
        let mut nodes: Vec<u32> = topo.cpu_nodes().collect();
        let mut found = best;
        for distance in topo.distances.iter().rev().filter(|d| **d > LOCAL_DISTANCE) {
            let (mut most, mut top) = (0, Vec::new());
            let mut left = nodes.clone();
            for a in nodes {
                if !left.contains(&a) {
                    continue;
                }
                let near = |b: &u32| topo.between(a, *b) < *distance;
                let (group, rest): (Vec<u32>, Vec<u32>) = left.iter().partition(|b| near(b));
                left = rest;
                let faults: i64 = group.iter().map(|b| self.group_faults(id, *b)).sum();
                if faults > most {
                    (most, top, found) = (faults, group, a);
                }
            }
            if most == 0 {
                break;
            }
            nodes = top;
        }
        found
    }
}
