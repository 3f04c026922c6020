// SPDX-License-Identifier: GPL-2.0-only
//! Tests of files that lstopo wrote, and of faulty and hostile files.

use proptest::prelude::*;

use super::*;
use crate::id::{CpuId, NodeId};
use crate::topology::Distance;

const FORMAT2: &str = include_str!("../../../tests/data/lstopo/two-nodes-format2.xml");
const FORMAT1: &str = include_str!("../../../tests/data/lstopo/two-nodes-format1.xml");
const LLC_ABOVE_NODES: &str = include_str!("../../../tests/data/lstopo/llc-above-nodes.xml");
const VM: &str = include_str!("../../../tests/data/lstopo/virtual-machine.xml");

#[test]
fn format2_with_distances_and_kinds() {
    let topology = parse(FORMAT2).unwrap();
    assert_eq!((topology.nr_cpus(), topology.cores().len()), (16, 8));
    assert_eq!((topology.llcs().len(), topology.nodes().len()), (4, 2));
    assert_eq!(topology.llc_mask(CpuId(5)).to_string(), "4-7");
    assert_eq!(topology.llc(topology.cpu(CpuId(0)).llc).size_bytes, 16 << 20);
    assert_eq!(topology.cores()[0].l1d_bytes, 32 << 10);
    assert_eq!(topology.cores()[0].l2_bytes, 4 << 20);
    assert_eq!(topology.node_distance(NodeId(0), NodeId(1)), 21);
    assert_eq!(topology.distance(CpuId(0), CpuId(4)), Distance::Llc);
    // The file gives the two kinds of CPUs 4000 and 3000 MHz, so their capacities must be 1024 and
    // 768.
    assert_eq!(topology.cpu(CpuId(7)).capacity, 1024);
    assert_eq!(topology.cpu(CpuId(8)).capacity, 768);
}

#[test]
fn format1_gives_the_same_machine() {
    let without_kinds = FORMAT2.replace("FrequencyMaxMHz", "NothingKnown");
    assert_eq!(parse(FORMAT1), parse(&without_kinds));
}

#[test]
fn a_cache_above_several_nodes_counts_as_one_per_node() {
    let topology = parse(LLC_ABOVE_NODES).unwrap();
    assert_eq!((topology.llcs().len(), topology.nodes().len()), (2, 2));
    assert_eq!(topology.llc_mask(CpuId(0)).to_string(), "0-3");
    assert_eq!(topology.llcs()[1].size_bytes, 8 << 20);
}

#[test]
fn a_virtual_machine() {
    let topology = parse(VM).unwrap();
    assert_eq!((topology.nr_cpus(), topology.cores().len(), topology.llcs().len()), (2, 2, 1));
    assert_eq!(topology.memory_bytes(), 8_280_150_016);
    assert_eq!(topology.cpu(CpuId(1)).capacity, 1024);
}

/// Returns a file of two CPUs, with `inside` under the Package beside them and `beside` after the
/// tree.
fn file(inside: &str, beside: &str) -> String {
    format!(
        r#"<topology version="2.0"><object type="Machine" os_index="0"><object type="Package">{inside}
        <object type="Core"><object type="PU" os_index="0"/></object>
        <object type="Core"><object type="PU" os_index="1"/></object></object></object>{beside}</topology>"#
    )
}

#[test]
fn a_file_may_leave_out_caches_and_nodes() {
    let topology = parse(&file("", "")).unwrap();
    assert_eq!(
        (topology.llcs().len(), topology.nodes().len(), topology.llcs()[0].size_bytes),
        (1, 1, 0)
    );
}

#[test]
fn of_two_kinds_of_memory_the_first_has_the_cpus() {
    let inside = r#"<object type="NUMANode" os_index="1" local_memory="7"/>
        <object type="MemCache"><object type="NUMANode" os_index="0" local_memory="5"/></object>"#;
    let topology = parse(&file(inside, "")).unwrap();
    assert_eq!(topology.node_mask(CpuId(0)).to_string(), "0-1");
    assert_eq!(topology.cpu(CpuId(0)).node, NodeId(0));
    assert_eq!(topology.nodes()[1].memory_bytes, 7);
    assert_eq!(topology.nodes()[1].cpus.to_string(), "");
}

#[test]
fn kinds_with_the_kernels_capacity_are_preferred() {
    let kinds = r#"<cpukind cpuset="0x1"><info name="LinuxCapacity" value="446"/><info name="FrequencyMaxMHz" value="9"/></cpukind>
        <cpukind cpuset="0x00000000,,0x2"><info name="FrequencyMaxMHz" value="1"/><info name="LinuxCapacity" value="1024"/></cpukind>"#;
    let topology = parse(&file("", kinds)).unwrap();
    assert_eq!(topology.cpu(CpuId(0)).capacity, 446);
    assert_eq!(topology.cpu(CpuId(1)).capacity, 1024);
}

#[test]
fn bad_files_are_refused_with_the_reason() {
    let node = r#"<object type="NUMANode" os_index="0"/>"#;
    let matrix = |indexes: &str, values: &str| {
        let beside = format!(
            r#"<distances2 type="NUMANode" kind="5"><indexes>{indexes}</indexes><u64values>{values}</u64values></distances2>"#
        );
        file(node, &beside)
    };
    let cases = [
        (String::new(), "not usable as XML"),
        ("<topology>".to_owned(), "not usable as XML"),
        ("<html/>".to_owned(), "the root element is <html>"),
        ("<topology/>".to_owned(), "at least one CPU"),
        (
            file("", "").replace(r#"os_index="1""#, r#"os_index="2""#),
            "CPU 1 is missing though CPU 2 exists",
        ),
        (file("", "").replace(r#"os_index="1""#, r#"os_index="0""#), "CPU 0 is in two cores"),
        (file("", "").replace(r#"os_index="1""#, r#"os_index="-1""#), "\"-1\" is no number"),
        (
            file("", "").replace(r#"os_index="1""#, r#"os_index="99999999999""#),
            "99999999999 is no CPU",
        ),
        (
            file("", "").replace(r#"PU" os_index="1""#, r#"PU""#),
            "line 3: <object> attribute os_index: is missing",
        ),
        (
            file(r#"<object type="NUMANode" os_index="0" local_memory="x"/>"#, ""),
            "local_memory: \"x\" is no number",
        ),
        (matrix("0", "10 20"), "2 distances among 1 of 1 nodes"),
        (matrix("1", "10"), "does not name every node"),
        (matrix("0", "11"), "at distance 11 from itself"),
        (matrix("0", "ten"), "\"ten\" in a distance matrix is no number"),
        (
            file("", r#"<cpukind cpuset="0xzz"><info name="LinuxCapacity" value="1"/></cpukind>"#),
            "\"0xzz\" is no bitmap",
        ),
    ];
    for (xml, reason) in cases {
        let error = parse(&xml).expect_err(reason).to_string();
        assert!(error.contains(reason), "expected \"{reason}\", got \"{error}\"");
    }
}

#[test]
fn hostile_files_are_refused() {
    let bomb = r#"<?xml version="1.0"?><!DOCTYPE topology [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><topology>&b;</topology>"#;
    assert_eq!(parse(bomb), Err(LstopoError::OwnDtd { line: 1 }));
    // This file has a second document type after the one that `blank_doctype` removes; the XML
    // parser must refuse it.
    let second =
        r#"<!DOCTYPE topology SYSTEM "hwloc2.dtd"><!DOCTYPE t [<!ENTITY a "b">]><topology/>"#;
    assert!(matches!(parse(second), Err(LstopoError::Xml { .. })));
    let entity = parse("<!DOCTYPE topology SYSTEM \"x\"><topology>&undefined;</topology>");
    assert!(matches!(entity, Err(LstopoError::Xml { .. })));

    let deep = |levels: usize| {
        let open = r#"<object type="Group">"#.repeat(levels);
        let close = "</object>".repeat(levels);
        format!(r#"<topology>{open}<object type="PU" os_index="0"/>{close}</topology>"#)
    };
    assert!(parse(&deep(50)).is_ok());
    assert_eq!(parse(&deep(100)), Err(LstopoError::TooDeep { line: 1 }));
    assert_eq!(parse(&deep(300_000)), Err(LstopoError::TooDeep { line: 1 }));

    let wide = (0..9000).map(|cpu| format!(r#"<object type="PU" os_index="{cpu}"/>"#));
    let wide = format!("<topology>{}</topology>", wide.collect::<String>());
    assert_eq!(parse(&wide), Err(TopologyError::TooManyCpus { nr: 8193 }.into()));
    let nodes = (0..2000).map(|node| format!(r#"<object type="NUMANode" os_index="{node}"/>"#));
    let nodes = format!("<topology>{}</topology>", nodes.collect::<String>());
    assert_eq!(parse(&nodes), Err(TopologyError::TooManyNodes { nr: 1025 }.into()));
    assert_eq!(
        parse(&" ".repeat(BYTES_MAX + 1)),
        Err(LstopoError::TooLong { bytes: BYTES_MAX + 1 })
    );
}

/// Checks the bounds on attributes and namespaces: the parser compares the attributes of an element
/// with each other, and copies namespaces to every element below.
#[test]
fn what_is_more_than_linear_work_is_refused_before_it_is_parsed() {
    let attributes = |nr: usize| (0..nr).map(|n| format!(" a{n}='>'")).collect::<String>();
    let with = |nr| file("", &format!("\n<!--><a b='--><info{}/>", attributes(nr)));
    assert!(parse(&with(64)).is_ok());
    assert_eq!(parse(&with(65)), Err(LstopoError::TooManyAttributes { line: 4 }));
    // More attributes than the parser could handle in reasonable time, also in a tag that does not
    // end.
    let many = with(800_000);
    assert_eq!(parse(&many), Err(LstopoError::TooManyAttributes { line: 4 }));
    let open = many.split_once("/></topology>").unwrap().0;
    assert_eq!(parse(open), Err(LstopoError::TooManyAttributes { line: 4 }));

    for name in ["xmlns", "xmlns:a"] {
        let info = format!("<info a=\"\"\n{name} = 'b'/>");
        assert_eq!(parse(&file(&info, "")), Err(LstopoError::Namespace { line: 1 }));
    }
    assert!(parse(&file("<info name='xmlns' value='xmlns='/>", "")).is_ok());
}

proptest! {
    /// Cuts a piece out of a real file or doubles it. The result must be a machine or an error,
    /// never a panic.
    #[test]
    fn damaged_files(
        which in 0usize..4, at in any::<prop::sample::Index>(), length in 1usize..200, double in any::<bool>(),
    ) {
        let text = [FORMAT2, FORMAT1, LLC_ABOVE_NODES, VM][which];
        let start = at.index(text.len());
        let end = (start + length).min(text.len());
        let middle = if double { &text[start..end] } else { "" };
        let damaged = format!("{}{middle}{middle}{}", &text[..start], &text[end..]);
        let _ = parse(&damaged);
    }
}
