// SPDX-License-Identifier: GPL-2.0-only
use scxlab_machine::topology::spec::{Sizes, Spec};
use scxlab_machine::topology::{CoreLayout, Layout, LlcLayout, NodeLayout};

use super::*;

fn machine(spec: &str) -> Topology {
    Topology::build(Spec::parse(spec).unwrap().layout(Sizes::default()).unwrap()).unwrap()
}

/// Builds a machine from the CPU lists of its cores, LLCs and nodes.
fn odd(cores: &[&[u32]], llcs: &[&[u32]], nodes: &[&[u32]]) -> Topology {
    let cpus = |list: &&[u32]| list.to_vec();
    Topology::build(Layout {
        cores: cores.iter().map(|c| CoreLayout { cpus: cpus(c), ..Default::default() }).collect(),
        llcs: llcs.iter().map(|c| LlcLayout { cpus: cpus(c), ..Default::default() }).collect(),
        nodes: nodes.iter().map(|c| NodeLayout { cpus: cpus(c), ..Default::default() }).collect(),
        capacities: Vec::new(),
    })
    .unwrap()
}

#[test]
fn regular_machines_keep_their_numbers() {
    let shape = Shape::of(&machine("2n3l4c2t")).unwrap();
    assert_eq!((shape.sockets, shape.cores, shape.threads), (6, 4, 2));
    assert_eq!(shape.node_cpus, [(0, 24), (24, 24)]);
    assert_eq!(shape.guest_cpus, (0..48).collect::<Vec<_>>());
    assert_eq!(shape.distances, [[10, 20], [20, 10]]);
}

#[test]
fn firmware_numbers_are_mapped() {
    let shape = Shape::of(&machine("2n2c2tf")).unwrap();
    // The cores of the machine's first node have CPUs 0,4 and 1,5; those of the second node have
    // CPUs 2,6 and 3,7. The guest numbers the CPUs in this order, so its CPU 1 is the machine's
    // CPU 4.
    assert_eq!(shape.guest_cpus, [0, 2, 4, 6, 1, 3, 5, 7]);
}

#[test]
fn the_mapped_machine_describes_as_the_guest_will() {
    let ours = machine("2n2l2c2tf");
    let shape = Shape::of(&ours).unwrap();
    let mapped = describe(&ours, |cpu| shape.guest_cpus[cpu as usize]);
    assert_eq!(difference(&mapped, &describe(&machine("2n2l2c2t"), |cpu| cpu)), None);
    assert!(mapped.starts_with("CPU 0: core 0-1, LLC 0-3, node 0\n"), "{mapped}");
    assert!(mapped.ends_with("node 1: distances 20 10\n"), "{mapped}");
}

#[test]
fn differences_are_named() {
    let one = |spec| describe(&machine(spec), |cpu| cpu);
    let said = difference(&one("1n4c"), &one("1n2c2t")).unwrap();
    assert!(said.contains("CPU 0: core 0,") && said.contains("core 0-1"), "{said}");
    assert!(difference(&one("1n4c"), &one("2n2c")).is_some());
    assert!(difference(&one("1n4c"), &one("1n5c")).is_some());
    assert!(difference(&one("1n5c"), &one("1n4c")).is_some());
}

#[test]
fn memory_only_nodes_have_no_socket() {
    let shape = Shape::of(&odd(&[&[0], &[1]], &[&[0, 1]], &[&[], &[0, 1]])).unwrap();
    assert_eq!((shape.sockets, shape.cores), (1, 2));
    assert_eq!(shape.node_cpus, [(0, 0), (0, 2)]);
}

#[test]
fn nodes_may_have_different_numbers_of_caches() {
    let shape =
        Shape::of(&odd(&[&[0], &[1], &[2]], &[&[0], &[1], &[2]], &[&[0, 2], &[1]])).unwrap();
    assert_eq!(shape.node_cpus, [(0, 2), (2, 1)]);
    assert_eq!(shape.guest_cpus, [0, 2, 1]);
}

#[test]
fn what_is_not_regular_is_refused_by_name() {
    let refused = |topology| Shape::of(&topology).unwrap_err();
    assert_eq!(
        refused(odd(&[&[0, 1], &[2]], &[&[0, 1, 2]], &[&[0, 1, 2]])),
        ShapeError::Irregular { what: "core", index: 1, has: 1, parts: "CPUs", other: 2 }
    );
    assert_eq!(
        refused(odd(&[&[0], &[1], &[2]], &[&[0, 1], &[2]], &[&[0, 1, 2]])),
        ShapeError::Irregular { what: "LLC", index: 1, has: 1, parts: "cores", other: 2 }
    );
    let mut layout = Spec::parse("2c").unwrap().layout(Sizes::default()).unwrap();
    layout.capacities = vec![1024, 512];
    assert_eq!(
        refused(Topology::build(layout).unwrap()),
        ShapeError::Capacity { cpu: 1, capacity: 512 }
    );
}

#[test]
fn apic_ids_are_counted_with_their_gaps() {
    assert!(Shape::of(&machine("255c")).is_ok());
    assert_eq!(Shape::of(&machine("256c")), Err(ShapeError::Cpus { cpus: 256, ids: 256 }));
    // Three cores of three threads take 4 x 4 APIC ids per socket, as each level is rounded up to
    // a power of two. The last socket takes only 2 x 4 + 3, as the ids after its last CPU do not
    // count.
    assert!(Shape::of(&machine("4n4l3c3t")).is_ok());
    let ids = 16 * 16 + 2 * 4 + 3;
    assert_eq!(Shape::of(&machine("17l3c3t")), Err(ShapeError::Cpus { cpus: 153, ids }));
    assert_eq!(Shape::of(&machine("129n1c")), Err(ShapeError::Nodes { nodes: 129 }));
}
