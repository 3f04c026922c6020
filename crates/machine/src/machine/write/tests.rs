// SPDX-License-Identifier: GPL-2.0-only
//! Machines as text and back.

use proptest::prelude::*;

use super::super::presets;
use super::*;
use crate::topology::{CoreLayout, Layout, LlcLayout, NodeLayout};

fn check(machine: &Machine) {
    let text = machine.to_toml();
    let back = Machine::from_toml("back", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(&back, machine, "{text}");
    assert_eq!(back.fingerprint(), machine.fingerprint());
}

#[test]
fn every_preset_comes_back() {
    for (name, _) in presets() {
        check(&Machine::resolve(name).unwrap());
    }
}

#[test]
fn every_lstopo_file_comes_back() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/lstopo");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "xml") {
            let text = std::fs::read_to_string(&path).unwrap();
            let Ok(machine) = Machine::from_lstopo(&path.display().to_string(), &text) else {
                continue;
            };
            check(&machine);
            count += 1;
        }
    }
    assert!(count > 0, "no lstopo file in {folder}");
}

/// A plain machine says little: the text of a recording grows with the CPUs, not with the costs.
#[test]
fn default_costs_are_not_written() {
    let text = Machine::resolve("1n4c2t").unwrap().to_toml();
    assert!(text.len() < 1000, "{} bytes:\n{text}", text.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_spec_comes_back(nodes in 1u32..5, cores in 1u32..9, threads in 1u32..3) {
        check(&Machine::from_spec(&format!("{nodes}n{cores}c{threads}t")).unwrap());
    }

    /// Any texts, sizes that are no multiple of anything, a node without CPUs, and figures of
    /// memory.
    #[test]
    fn odd_machines_come_back(
        texts in any::<[String; 3]>(),
        sizes in any::<[u32; 5]>(),
        distance in 11u32..=254,
        capacity in 1u32..=1024,
        (ple, node_reclaim_distance) in (any::<bool>(), 0u32..=255),
        speed in prop::option::of(1u64..1000),
    ) {
        let [l1d_bytes, l2_bytes, size_bytes, near, far] = sizes.map(u64::from);
        let row = |local| (0..2).map(|node| if node == local { 10 } else { distance }).collect();
        let layout = Layout {
            cores: vec![
                CoreLayout { cpus: vec![0, 3], l1d_bytes, l2_bytes },
                CoreLayout { cpus: vec![1, 2], l1d_bytes: 0, l2_bytes },
            ],
            llcs: vec![LlcLayout { cpus: vec![0, 1, 2, 3], size_bytes }],
            nodes: vec![
                NodeLayout { cpus: vec![0, 1, 2, 3], memory_bytes: near, distances: row(0) },
                NodeLayout { cpus: Vec::new(), memory_bytes: far, distances: row(1) },
            ],
            capacities: vec![1024, capacity],
        };
        let [name, description, source] = texts;
        let mut machine = Machine::from_spec("1n4c1t").unwrap();
        machine.topology = Topology::build(layout).unwrap();
        (machine.name, machine.description, machine.source) = (name, description, source);
        (machine.ple, machine.node_reclaim_distance) = (ple, node_reclaim_distance);
        if let Some(speed) = speed {
            machine.memory.latency = Some(vec![vec![speed, speed + 1], vec![speed + 7, speed]]);
            machine.memory.bandwidth = Some(vec![speed, 1]);
            machine.memory.link_bandwidth = Some(vec![vec![0, speed], vec![speed, 0]]);
        }
        check(&machine);
    }
}
