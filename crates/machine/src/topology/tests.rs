// SPDX-License-Identifier: GPL-2.0-only
//! Tests of topologies: queries against the lists from which they were built, and the refusal of
//! every impossible machine.

use proptest::prelude::*;

use super::spec::{Numbering, Sizes, Spec, SpecError, looks_like_spec};
use super::*;
use crate::cpumask;

fn build(spec: &str) -> Topology {
    Topology::build(Spec::parse(spec).unwrap().layout(Sizes::default()).unwrap()).unwrap()
}

fn specs() -> impl Strategy<Value = Spec> {
    let numbering = prop_oneof![Just(Numbering::Adjacent), Just(Numbering::Firmware)];
    (1u32..5, 1u32..4, 1u32..6, 1u32..5, numbering).prop_map(
        |(nodes, llcs, cores, threads, numbering)| Spec { nodes, llcs, cores, threads, numbering },
    )
}

/// Computes the distance between two CPUs from the masks of cores, LLCs and nodes alone.
/// `Topology::distance` must give the same.
fn distance_by_masks(topology: &Topology, a: CpuId, b: CpuId) -> Distance {
    if a == b {
        Distance::Same
    } else if cpumask::test(topology.core_mask(a), b) {
        Distance::Smt
    } else if cpumask::test(topology.llc_mask(a), b) {
        Distance::Core
    } else if cpumask::test(topology.node_mask(a), b) {
        Distance::Llc
    } else {
        Distance::Node
    }
}

proptest! {
    #[test]
    fn a_spec_reads_back(spec in specs()) {
        prop_assert_eq!(Spec::parse(&spec.to_string()), Ok(spec));
        prop_assert!(looks_like_spec(&spec.to_string()));
    }

    #[test]
    fn counts_and_masks_follow_the_spec(spec in specs()) {
        let topology = build(&spec.to_string());
        prop_assert_eq!(topology.nr_cpus() as u64, spec.nr_cpus());
        prop_assert_eq!(topology.nodes().len() as u32, spec.nodes);
        prop_assert_eq!(topology.llcs().len() as u32, spec.nodes * spec.llcs);
        prop_assert_eq!(topology.cores().len() as u32, spec.nodes * spec.llcs * spec.cores);
        prop_assert_eq!(topology.has_smt(), spec.threads > 1);
        for cpu in topology.cpu_ids() {
            prop_assert_eq!(cpumask::weight(topology.core_mask(cpu)), spec.threads);
            prop_assert_eq!(cpumask::weight(topology.llc_mask(cpu)), spec.threads * spec.cores);
            prop_assert!(cpumask::is_subset(topology.core_mask(cpu), topology.llc_mask(cpu)));
            prop_assert!(cpumask::is_subset(topology.llc_mask(cpu), topology.node_mask(cpu)));
            prop_assert!(topology.cpu(cpu).smt < spec.threads);
            for other in topology.cpu_ids() {
                let distance = topology.distance(cpu, other);
                prop_assert_eq!(distance, distance_by_masks(&topology, cpu, other));
                prop_assert_eq!(distance, topology.distance(other, cpu));
                prop_assert_eq!(topology.same_core(cpu, other), distance <= Distance::Smt);
                prop_assert_eq!(topology.same_llc(cpu, other), distance <= Distance::Core);
                prop_assert_eq!(topology.same_node(cpu, other), distance <= Distance::Llc);
            }
        }
    }

    #[test]
    fn order_of_the_description_does_not_matter(spec in specs(), seed in any::<u64>()) {
        let layout = spec.layout(Sizes::default()).unwrap();
        let mut shuffled = layout.clone();
        let mut stream = crate::Stream::new(seed, "shuffle", 0);
        stream.shuffle(&mut shuffled.cores);
        stream.shuffle(&mut shuffled.llcs);
        shuffled.cores.iter_mut().for_each(|core| stream.shuffle(&mut core.cpus));
        prop_assert_eq!(Topology::build(shuffled), Topology::build(layout));
    }

    /// Any layout must give a topology or an error, never a panic, and only sound topologies.
    #[test]
    fn any_layout_is_built_or_refused(
        cores in prop::collection::vec(prop::collection::vec(0u32..6, 0..3), 0..5),
        llcs in prop::collection::vec(prop::collection::vec(0u32..6, 0..4), 0..3),
        nodes in prop::collection::vec((prop::collection::vec(0u32..6, 0..6), prop::collection::vec(9u32..13, 0..3)), 0..3),
        capacities in prop::collection::vec(prop_oneof![Just(1024u32), 0u32..1100], 0..6),
    ) {
        let layout = Layout {
            cores: cores.into_iter().map(|cpus| CoreLayout { cpus, ..Default::default() }).collect(),
            llcs: llcs.into_iter().map(|cpus| LlcLayout { cpus, size_bytes: 1 }).collect(),
            nodes: nodes
                .into_iter()
                .map(|(cpus, distances)| NodeLayout { cpus, memory_bytes: 1, distances })
                .collect(),
            capacities,
        };
        if let Ok(topology) = Topology::build(layout) {
            let covered: u32 = topology.nodes().iter().map(|node| cpumask::weight(&node.cpus)).sum();
            prop_assert_eq!(covered as usize, topology.nr_cpus());
            prop_assert!(topology.cpus().iter().any(|cpu| cpu.capacity == 1024));
        }
    }

    #[test]
    fn any_text_is_a_spec_or_refused(text in "[0-9nlctaf]{0,12}|.{0,12}") {
        if let Ok(spec) = Spec::parse(&text) {
            prop_assert!(spec.nr_cpus() >= 1 && spec.nr_cpus() <= CPUS_MAX as u64);
        }
    }
}

#[test]
fn numbering_adjacent_and_firmware() {
    let adjacent = build("2n2c2t");
    assert_eq!(adjacent.core_mask(CpuId(0)).to_string(), "0-1");
    assert_eq!(adjacent.node_mask(CpuId(0)).to_string(), "0-3");
    let firmware = build("2n2c2tf");
    assert_eq!(firmware.core_mask(CpuId(0)).to_string(), "0,4");
    assert_eq!(firmware.node_mask(CpuId(0)).to_string(), "0-1,4-5");
    assert_eq!(firmware.cpu(CpuId(4)).smt, 1);
    assert_eq!(firmware.node_distance(NodeId(0), NodeId(1)), 20);
}

#[test]
fn bad_specs_are_refused_with_the_reason() {
    let cases = [
        ("", "it must start with a count"),
        ("nct", "it must start with a count"),
        ("4", "no unit after 4"),
        ("4x", "unknown unit 'x'"),
        ("4c2n", "'n' is repeated or out of order"),
        ("4c4c", "'c' is repeated or out of order"),
        ("2n0c", "0c leaves no CPU"),
        ("99999999999c", "99999999999 is too large a count"),
        ("2n4c2tx", "unexpected \"x\""),
        ("2é", "unknown unit 'é'"),
        ("8193c", "8193 CPUs; at most 8192 are possible"),
        ("4294967295n4294967295l4294967295c4294967295t", "18446744073709551615 CPUs"),
        ("2000n", "2000 nodes; at most 1024"),
    ];
    for (spec, reason) in cases {
        let error = Spec::parse(spec).unwrap_err().to_string();
        assert!(error.contains(reason), "{spec}: {error}");
    }
    assert!(matches!(Spec::parse("8193c"), Err(SpecError::Impossible { .. })));
}

/// Returns two nodes, each with one core of two threads: CPUs 0,1 and 2,3.
fn sound() -> Layout {
    Spec::parse("2n1c2t").unwrap().layout(Sizes::default()).unwrap()
}

#[test]
fn impossible_machines_are_refused_with_the_reason() {
    type Spoil = fn(&mut Layout);
    let cases: &[(&str, Spoil)] = &[
        ("a machine needs at least one CPU", |m| m.cores.clear()),
        ("CPU 1 is missing though CPU 3 exists", |m| m.cores[0].cpus = vec![0]),
        ("CPU 1 is in two cores", |m| m.cores[1].cpus.push(1)),
        ("CPU 3 is in two nodes", |m| m.nodes[0].cpus.push(3)),
        ("CPU 2 is in two LLCs", |m| m.llcs[0].cpus.push(2)),
        ("CPU 3 is in no node", |m| m.nodes[1].cpus = vec![2]),
        ("CPU 0 is in no LLC", |m| m.llcs[0].cpus = vec![1]),
        ("LLC 1 names CPU 9, which does not exist", |m| m.llcs[1].cpus.push(9)),
        ("LLC 0 has no CPU", |m| m.llcs[0].cpus.clear()),
        ("core 2 has no CPU", |m| m.cores.push(CoreLayout::default())),
        ("the core of CPU 1 is split across LLCs", |m| {
            m.llcs[0].cpus = vec![0];
            m.llcs[1].cpus = vec![1, 2, 3];
        }),
        ("the LLC of CPU 2 is split across nodes", |m| {
            m.llcs = vec![LlcLayout { cpus: vec![0, 1, 2, 3], size_bytes: 1 }];
        }),
        ("CPU 1 has capacity 1025", |m| m.capacities = vec![1024, 1025]),
        ("CPU 0 has capacity 0", |m| m.capacities = vec![0]),
        ("no CPU has capacity 1024", |m| m.capacities = vec![512; 4]),
        ("5 capacities for 4 CPUs", |m| m.capacities = vec![1024; 5]),
        ("node 1 has 0 distances, but there are 2 nodes", |m| m.nodes[0].distances = vec![10, 20]),
        ("node 0 is at distance 11 from itself", |m| distances(m, [[11, 20], [20, 10]])),
        ("nodes 0 and 1 are at distance 10;", |m| distances(m, [[10, 10], [10, 10]])),
        ("nodes 0 and 1 are at distance 255;", |m| distances(m, [[10, 255], [255, 10]])),
        ("node 0 is at distance 20 from node 1, but 21 the other way", |m| {
            distances(m, [[10, 20], [21, 10]])
        }),
        ("node 1 has 4503599627370497 bytes", |m| m.nodes[1].memory_bytes = (1 << 52) + 1),
    ];
    for (reason, spoil) in cases {
        let mut layout = sound();
        spoil(&mut layout);
        let error = Topology::build(layout).expect_err(reason).to_string();
        assert!(error.contains(reason), "expected \"{reason}\", got \"{error}\"");
    }
    assert!(Topology::build(sound()).is_ok());
}

fn distances(layout: &mut Layout, matrix: [[u32; 2]; 2]) {
    layout.nodes.iter_mut().zip(matrix).for_each(|(node, row)| node.distances = row.to_vec());
}

#[test]
fn too_many_cpus_or_nodes_in_a_layout() {
    let core = |cpu| CoreLayout { cpus: vec![cpu], ..Default::default() };
    let layout = Layout { cores: (0..8193).map(core).collect(), ..Default::default() };
    assert_eq!(Topology::build(layout), Err(TopologyError::TooManyCpus { nr: 8193 }));
    let layout = Layout { nodes: vec![NodeLayout::default(); 1025], ..sound() };
    assert_eq!(Topology::build(layout), Err(TopologyError::TooManyNodes { nr: 1025 }));
}

/// A topology with more different distances than its number of nodes allows is refused. The nodes
/// form a ring. The last layout, 1024 nodes without given distances, has a single remote distance
/// and is accepted.
#[test]
fn many_nodes_at_many_distances_are_refused() {
    let ring = |nr: u32, most: u32| {
        let mut layout =
            Spec::parse(&format!("{nr}n1c")).unwrap().layout(Sizes::default()).unwrap();
        for (from, node) in (0_u32..).zip(&mut layout.nodes) {
            let hops = |to: u32| from.abs_diff(to).min(nr - from.abs_diff(to));
            node.distances = (0..nr).map(|to| 10 + hops(to).min(most)).collect();
        }
        Topology::build(layout).map(|_| ())
    };
    assert_eq!((ring(128, 64), ring(256, 64), ring(1024, 4)), (Ok(()), Ok(()), Ok(())));
    let refused =
        |nodes, distances, most| Err(TopologyError::TooManyDistances { nodes, distances, most });
    assert_eq!(ring(256, 65), refused(256, 65, 64));
    assert_eq!(ring(1024, 200), refused(1024, 200, 4));
    assert!(
        Topology::build(Spec::parse("1024n8c").unwrap().layout(Sizes::default()).unwrap()).is_ok()
    );
}

#[test]
fn a_node_may_be_memory_only() {
    let mut layout = sound();
    layout.nodes.push(NodeLayout { memory_bytes: 5 << 30, ..Default::default() });
    let topology = Topology::build(layout).unwrap();
    assert!(cpumask::is_empty(&topology.node(NodeId(2)).cpus));
    assert_eq!(topology.memory_bytes(), (64 + 64 + 5) << 30);
}

#[test]
fn the_largest_machine_is_built() {
    let topology = build("16n4l64c2t");
    assert_eq!(topology.nr_cpus(), CPUS_MAX);
    assert_eq!(topology.distance(CpuId(0), CpuId(8191)), Distance::Node);
}
