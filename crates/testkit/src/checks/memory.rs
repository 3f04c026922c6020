// SPDX-License-Identifier: GPL-2.0-only
//! Pages are conserved: each page that a node has given away belongs to one region or to one set of
//! merged pages, and each unit of a region is absent or has its pages somewhere. Faults are
//! conserved: the counts of a NUMA group are those of its members.

use super::Violation;
use scxlab_kernel::Kernel;
use scxlab_kernel::memory::region::{Place, Region};
use scxlab_machine::id::NodeId;

const LAW: &str = "pages add up";

pub(super) fn check(k: &Kernel, broken: &mut Vec<Violation>) {
    let Some(memory) = &k.memory else { return };
    let mut say = |what: String| broken.push(Violation { law: LAW, at: k.now, what });
    for n in 0..memory.nodes.len() {
        let (node, used) = (NodeId(n as u32), memory.nodes.used[n]);
        let own: u64 = memory.regions().map(|r| r.on()[n]).sum();
        let merged: u64 = memory.merged().map(|set| set.on()[n]).sum();
        if own + merged != used {
            say(format!("node {node}: regions have {own} + {merged} pages of {used} used"));
        }
        let capacity = memory.nodes.capacity(node);
        if used > capacity {
            say(format!("node {node}: {used} pages of {capacity} are used"));
        }
    }
    memory.regions().for_each(|region| units(region, &mut say));
    if let Err(wrong) = k.fair.check_numa() {
        say(wrong.to_string());
    }
    for n in (0..memory.nodes.len() as u32).map(NodeId) {
        let (counted, found) = (memory.bandwidth.demand(n), memory.bandwidth.demand_of_loads(n));
        if counted != found {
            say(format!("node {n}: counts a demand of {counted}, its tasks demand {found}"));
        }
        // The pressure follows a change of demand after 20 us, during which a node may deliver as
        // much as all CPUs demand. It comes within 2 % of the bandwidth.
        let served = u128::from(memory.stats.served_bytes(n));
        let bandwidth = u128::from(memory.bandwidth.capacity(n));
        let most = bandwidth * u128::from(k.now) / 1000;
        if served > most + most / 50 + bandwidth * 100 {
            say(format!("node {n}: delivered {served} bytes, at most {most} were possible"));
        }
    }
}

/// Compares the counts of a region with the places of its units.
fn units(region: &Region, say: &mut impl FnMut(String)) {
    let mut on = vec![0; region.on().len()];
    let (mut spread, mut merged) = (0, 0);
    for unit in 0..region.nr_units() {
        let pages = region.pages_of(unit);
        match region.place(unit) {
            Place::Absent => {}
            Place::On(node) => on[node.idx()] += pages,
            Place::Spread => spread += pages,
            Place::Merged => merged += pages,
        }
    }
    let name = &region.spec.name;
    let counted: u64 = region.on().iter().sum();
    let found: u64 = on.iter().sum::<u64>() + spread;
    if counted != found || (spread == 0 && on != region.on()) {
        say(format!("region {name}: counts {:?}, units {on:?} + {spread}", region.on()));
    }
    if merged != region.merged_on().iter().sum::<u64>() {
        say(format!("region {name}: {merged} merged pages, counted {:?}", region.merged_on()));
    }
}
