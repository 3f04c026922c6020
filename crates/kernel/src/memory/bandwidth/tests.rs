// SPDX-License-Identifier: GPL-2.0-only
//! Tests of pressure: the users of a full node or link get its bandwidth, and share it.

use super::*;
use scxlab_machine::Machine;

/// Returns a load whose memory time is `percent` of its work, with parts by node.
fn load(from: u32, percent: u64, parts: &[(u32, u64)], mb_s: u64) -> Load {
    let part = |&(node, share): &(u32, u64)| Part {
        node: NodeId(node),
        bytes: (mb_s << RATE) * percent * share / 10_000,
        time: ((percent * share) << TIME) / 10_000,
    };
    let parts = parts.iter().map(part).collect();
    Load { from: NodeId(from), pure: ((100 - percent) << TIME) / 100, parts }
}

/// Sets the loads, settles every node that asks for it, and returns the MB/s of each load by part.
fn rates(bandwidth: &mut Bandwidth, loads: &[Load]) -> Vec<Vec<u64>> {
    for (cpu, load) in loads.iter().enumerate() {
        for node in bandwidth.set(cpu, Some(load.clone())) {
            bandwidth.settle(node);
        }
    }
    let rate = |load: &Load| {
        let time = bandwidth.time(load);
        load.parts.iter().map(|part| ((part.bytes << TIME) / time) >> RATE).collect()
    };
    loads.iter().map(rate).collect()
}

fn machine(nodes: u32) -> Bandwidth {
    let machine = Machine::resolve(&format!("{nodes}n16c1t")).unwrap();
    Bandwidth::new(machine.node_memory(), 64)
}

fn near(sum: u64, wanted: u64) -> bool {
    sum.abs_diff(wanted) * 100 <= wanted
}

#[test]
fn below_capacity_nobody_waits() {
    let mut b = machine(1);
    let seen = rates(&mut b, &vec![load(0, 100, &[(0, 100)], 10_000); 14]);
    assert!(seen.iter().all(|r| r[0] == 10_000), "{seen:?}");
}

#[test]
fn streams_share_a_full_node() {
    for k in [16, 20, 40, 64] {
        let mut b = machine(1);
        let seen = rates(&mut b, &vec![load(0, 100, &[(0, 100)], 10_240); k]);
        let sum: u64 = seen.iter().map(|r| r[0]).sum();
        assert!(near(sum, 150_000), "{k}: {sum}");
        assert!(seen.iter().all(|r| near(r[0], 150_000 / k as u64)), "{seen:?}");
    }
}

/// Steps that compute between accesses demand less as accesses slow down, but still fill the node.
#[test]
fn mixed_demands_fill_a_node() {
    let mut b = machine(1);
    let loads: Vec<Load> =
        (0..60).map(|i| load(0, [30, 60, 100][i % 3], &[(0, 100)], 10_240)).collect();
    let seen = rates(&mut b, &loads);
    let sum: u64 = seen.iter().map(|r| r[0]).sum();
    assert!((147_000..=150_500).contains(&sum), "{sum}");
    assert!(seen[0][0] < seen[1][0] && seen[1][0] < seen[2][0]);
}

#[test]
fn a_link_limits_only_those_behind_it() {
    let mut b = machine(2);
    let mut loads = vec![load(1, 100, &[(0, 100)], 10_000); 8];
    loads.extend(vec![load(0, 100, &[(0, 100)], 10_000); 4]);
    let seen = rates(&mut b, &loads);
    let over: u64 = seen[..8].iter().map(|r| r[0]).sum();
    assert!(near(over, 45_000), "{over}");
    assert!(seen[8..].iter().all(|r| r[0] == 10_000), "{seen:?}");
    // With more local streams the node is full, too.
    let mut b = machine(2);
    loads.extend(vec![load(0, 100, &[(0, 100)], 10_000); 20]);
    let seen = rates(&mut b, &loads);
    let sum: u64 = seen.iter().map(|r| r[0]).sum();
    assert!(near(sum, 150_000), "{sum}");
}

/// Loads that span two nodes, one of them full: the full node delivers its bandwidth.
#[test]
fn loads_that_span_nodes() {
    let mut b = machine(2);
    let mut loads = vec![load(0, 100, &[(0, 50), (1, 50)], 10_000); 20];
    loads.extend(vec![load(0, 100, &[(0, 100)], 10_000); 20]);
    let seen = rates(&mut b, &loads);
    let on_0: u64 = seen.iter().map(|r| r[0]).sum();
    let over: u64 = seen[..20].iter().map(|r| r[1]).sum();
    assert!((145_000..=151_500).contains(&on_0), "{on_0}");
    assert!(over <= 45_500, "{over}");
}

/// The sums of demands return to zero, whatever came and went.
#[test]
fn demands_add_up() {
    let mut b = machine(2);
    for i in 0..500_u64 {
        let cpu = (i * 7 % 64) as usize;
        let some = load((i % 2) as u32, 1 + i % 100, &[(0, 30), (1, 70)], 9_999);
        for node in b.set(cpu, (i % 3 != 0).then_some(some)) {
            b.settle(node);
        }
        for n in [NodeId(0), NodeId(1)] {
            assert_eq!(b.demand(n), b.demand_of_loads(n));
        }
    }
    (0..64).for_each(|cpu| drop(b.set(cpu, None)));
    assert_eq!((b.demand(NodeId(0)), b.demand(NodeId(1))), (0, 0));
}
