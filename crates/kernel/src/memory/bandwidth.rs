// SPDX-License-Identifier: GPL-2.0-only
//! The bandwidth of nodes and of the links between them, shared by the tasks that run.
//!
//! Owns: the demand on each node and link, and the pressure that follows from it.
//! Does not: know tasks. A running memory step is a `Load` of its CPU.
//!
//! A node delivers at most its bandwidth. While the loads on it demand more, each access to it
//! takes `pressure` times as long, where the pressure is such that the loads together get exactly
//! the bandwidth. They then share it in proportion to their demands. The same holds for a link,
//! which loads of one node use to reach another. An access over a link takes the greater of the two
//! pressures.

use scxlab_machine::NodeMemory;
use scxlab_machine::id::NodeId;
use std::collections::BTreeMap;

/// 1 in the fixed-point numbers of pressures, shares and latency ratios: 2^16.
pub const ONE: u64 = 1 << 16;
/// Shift of times per unit of work: 2^-20 ns of wall time per ns of work.
const TIME: u32 = 20;
/// Shift of rates in bytes: they are in 2^-10 MB/s.
pub(super) const RATE: u32 = 10;
/// A new pressure is computed when demand has changed by more than 1/128 of the capacity.
const TRIGGER: u64 = 128;
/// Largest pressure.
const PRESSURE_MAX: u64 = ONE << 14;
/// Rounds of Newton's method, and sweeps over nodes whose loads overlap.
const ROUNDS: u32 = 12;
const SWEEPS: u32 = 4;

/// The part of a load that accesses one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub node: NodeId,
    /// Rate while the load makes progress at full speed, that is bytes per us of work, 2^-10.
    pub bytes: u64,
    /// Time per unit of work at pressure 1, 2^-20.
    pub time: u64,
}

/// A running memory step.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Node of the CPU.
    pub from: NodeId,
    /// Time per unit of work without memory, 2^-20.
    pub pure: u64,
    pub parts: Vec<Part>,
}

impl Load {
    /// Returns the rate that the load demands of a part at pressure 1.
    fn demand(&self, part: &Part) -> u64 {
        let alone = self.pure + self.parts.iter().map(|p| p.time).sum::<u64>();
        (part.bytes << TIME) / alone.max(1)
    }
}

/// A node or a link.
#[derive(Clone, Debug)]
struct Channel {
    /// Rate that it can deliver.
    capacity: u64,
    /// Sum of the demands of all loads.
    demand: u64,
    /// Demand for which `pressure` was computed.
    settled: u64,
    pressure: u64,
}

impl Channel {
    fn new(mb_s: u64) -> Channel {
        Channel { capacity: mb_s << RATE, demand: 0, settled: 0, pressure: ONE }
    }

    /// Whether the demand has changed so much that the pressure must be computed again.
    fn is_stale(&self) -> bool {
        let (was, is) = (self.settled.max(self.capacity), self.demand.max(self.capacity));
        was.abs_diff(is) * TRIGGER > was
    }
}

/// The bandwidth of a machine.
pub struct Bandwidth {
    nodes: Vec<Channel>,
    /// Links that have been used, by nodes of CPU and memory.
    links: BTreeMap<(NodeId, NodeId), Channel>,
    speed: NodeMemory,
    /// By CPU.
    loads: Vec<Option<Load>>,
    /// Nodes for which a settlement is under way.
    pending: Vec<bool>,
}

impl Bandwidth {
    pub(super) fn new(speed: NodeMemory, nr_cpus: usize) -> Bandwidth {
        let nodes: Vec<_> = speed.bandwidth_mb_s.iter().map(|mb_s| Channel::new(*mb_s)).collect();
        let pending = vec![false; nodes.len()];
        Bandwidth { nodes, links: BTreeMap::new(), speed, loads: vec![None; nr_cpus], pending }
    }

    /// Returns how much longer an access of a CPU of `from` to `to` takes than one of
    /// `reference_ns`, in `ONE`ths.
    pub(super) fn slowdown(&self, from: NodeId, to: NodeId, reference_ns: u64) -> u64 {
        self.speed.latency_ns.at(from, to) * ONE / reference_ns.max(1)
    }

    /// Returns the rate that loads demand of a node, 2^-10 MB/s.
    pub fn demand(&self, node: NodeId) -> u64 {
        self.nodes[node.idx()].demand
    }

    /// Returns the MB/s that a node can deliver.
    pub fn capacity(&self, node: NodeId) -> u64 {
        self.nodes[node.idx()].capacity >> RATE
    }

    /// Recomputes the demand on a node from the loads, for checks.
    pub fn demand_of_loads(&self, node: NodeId) -> u64 {
        let loads = self.loads.iter().flatten();
        let parts = loads.flat_map(|load| load.parts.iter().map(move |part| (load, part)));
        parts.filter(|(_, p)| p.node == node).map(|(load, part)| load.demand(part)).sum()
    }

    /// Iterates over the CPUs with a load.
    pub fn loaded(&self) -> impl Iterator<Item = usize> {
        self.loads.iter().enumerate().filter(|(_, load)| load.is_some()).map(|(cpu, _)| cpu)
    }

    /// Sets the load of a CPU. Returns the nodes that must be settled because of it, each once
    /// until it is settled.
    pub(super) fn set(&mut self, cpu: usize, load: Option<Load>) -> Vec<NodeId> {
        let old = self.loads[cpu].take();
        let changed = old.iter().map(|l| (l, false)).chain(load.iter().map(|l| (l, true)));
        for (load, added) in changed.clone() {
            for part in &load.parts {
                let demand = load.demand(part);
                count(&mut self.nodes[part.node.idx()].demand, demand, added);
                if part.node != load.from {
                    let link = self.links.entry((load.from, part.node));
                    let mb_s = self.speed.link_mb_s.at(load.from, part.node);
                    let link = link.or_insert_with(|| Channel::new(mb_s));
                    count(&mut link.demand, demand, added);
                }
            }
        }
        let mut stale = Vec::new();
        for (load, _) in changed {
            for node in load.parts.iter().map(|part| part.node) {
                let link = self.links.get(&(load.from, node));
                let needed =
                    self.nodes[node.idx()].is_stale() || link.is_some_and(Channel::is_stale);
                if needed && !std::mem::replace(&mut self.pending[node.idx()], true) {
                    stale.push(node);
                }
            }
        }
        self.loads[cpu] = load;
        stale
    }

    /// Returns the load of a CPU.
    pub(super) fn load(&self, cpu: usize) -> Option<&Load> {
        self.loads[cpu].as_ref()
    }

    /// Returns the wall time per unit of work of a load, 2^-20.
    pub(super) fn time(&self, load: &Load) -> u64 {
        let of = |part: &Part| part.time * self.pressure(load.from, part.node) / ONE;
        load.pure + load.parts.iter().map(of).sum::<u64>()
    }

    fn pressure(&self, from: NodeId, to: NodeId) -> u64 {
        let node = self.nodes[to.idx()].pressure;
        match self.links.get(&(from, to)) {
            Some(link) => node.max(link.pressure),
            None => node,
        }
    }

    /// Computes the pressure on a node and on the links to it, and on the other nodes that its
    /// loads access. Returns the CPUs whose speed may have changed.
    pub(super) fn settle(&mut self, node: NodeId) -> Vec<usize> {
        self.pending[node.idx()] = false;
        let mut nodes = vec![node];
        for load in self.loads.iter().flatten().filter(|l| l.parts.iter().any(|p| p.node == node)) {
            let busy = |n: &NodeId| {
                let channel = &self.nodes[n.idx()];
                channel.demand > channel.capacity || channel.pressure > ONE
            };
            for other in load.parts.iter().map(|p| p.node).filter(busy) {
                if !nodes.contains(&other) {
                    nodes.push(other);
                }
            }
        }
        let sweeps = if nodes.len() > 1 { SWEEPS } else { 2 };
        let pressures = |b: &Bandwidth| -> Vec<u64> {
            b.nodes.iter().chain(b.links.values()).map(|channel| channel.pressure).collect()
        };
        let before = pressures(self);
        for _ in 0..sweeps {
            for n in &nodes {
                self.settle_links(*n);
                self.settle_node(*n);
            }
        }
        if pressures(self) == before {
            return Vec::new();
        }
        let affected = |load: &&Option<Load>| {
            load.as_ref().is_some_and(|l| l.parts.iter().any(|p| nodes.contains(&p.node)))
        };
        let cpus = self.loads.iter().enumerate().filter(|(_, load)| affected(load));
        cpus.map(|(cpu, _)| cpu).collect()
    }

    fn settle_links(&mut self, to: NodeId) {
        let froms: Vec<NodeId> =
            self.links.keys().filter(|(_, node)| *node == to).map(|(from, _)| *from).collect();
        for from in froms {
            let floor = self.nodes[to.idx()].pressure;
            let users = self.users(to, |load| load.from == from, |_| floor);
            let link = self.links.get_mut(&(from, to)).expect("listed");
            link.pressure = solve(link.capacity, &users, link.pressure);
            link.settled = link.demand;
        }
    }

    fn settle_node(&mut self, node: NodeId) {
        let links = &self.links;
        let floor = |from: NodeId| links.get(&(from, node)).map_or(ONE, |link| link.pressure);
        let users = self.users(node, |_| true, floor);
        let channel = &mut self.nodes[node.idx()];
        channel.pressure = solve(channel.capacity, &users, channel.pressure);
        channel.settled = channel.demand;
    }

    /// Returns the users of a node among the loads that `uses` selects. `floor` is the least
    /// pressure for loads of a node.
    fn users(
        &self,
        node: NodeId,
        uses: impl Fn(&Load) -> bool,
        floor: impl Fn(NodeId) -> u64,
    ) -> Vec<User> {
        let mut users = Vec::new();
        for load in self.loads.iter().flatten().filter(|load| uses(load)) {
            for part in load.parts.iter().filter(|part| part.node == node) {
                let own = part.time * self.pressure(load.from, node) / ONE;
                users.push(User {
                    bytes: part.bytes,
                    rest: self.time(load) - own,
                    time: part.time,
                    floor: floor(load.from),
                });
            }
        }
        users
    }
}

fn count(sum: &mut u64, demand: u64, added: bool) {
    *sum = if added { *sum + demand } else { *sum - demand };
}

/// A load as one node or link sees it.
struct User {
    /// As `Part::bytes`.
    bytes: u64,
    /// Time per unit of work for everything but this node, 2^-20.
    rest: u64,
    /// Time per unit of work for this node at pressure 1, 2^-20.
    time: u64,
    /// Least pressure for this user.
    floor: u64,
}

/// Returns the pressure at which the users together get `capacity`; `ONE` if they need less. Uses
/// Newton's method, from the last pressure.
fn solve(capacity: u64, users: &[User], last: u64) -> u64 {
    // The rate that is served at a pressure, and how much it falls per `ONE` of more pressure.
    let served = |pressure: u64| {
        users.iter().fold((0, 0), |(sum, slope), user| {
            let time = user.rest + user.time * pressure.max(user.floor) / ONE;
            let rate = (user.bytes << TIME) / time.max(1);
            let falls = if pressure >= user.floor { rate * user.time / time.max(1) } else { 0 };
            (sum + rate, slope + falls)
        })
    };
    if served(ONE).0 <= capacity {
        return ONE;
    }
    let mut pressure = last;
    for _ in 0..ROUNDS {
        let (sum, slope) = served(pressure);
        if sum.abs_diff(capacity) * 1024 <= capacity {
            break;
        }
        let step = |off: u64| (off * ONE).checked_div(slope).unwrap_or(pressure);
        pressure = if sum > capacity {
            pressure.saturating_add(step(sum - capacity)).min(PRESSURE_MAX)
        } else {
            pressure.saturating_sub(step(capacity - sum)).max(ONE)
        };
    }
    pressure
}

#[cfg(test)]
mod tests;
