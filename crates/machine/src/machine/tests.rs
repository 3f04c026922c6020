// SPDX-License-Identifier: GPL-2.0-only
//! Tests of machines: the presets, machine files, and a sysfs tree made up in memory.

use std::collections::BTreeMap;
use std::io;

use super::*;
use crate::id::{CpuId, NodeId};
use crate::topology::Distance;

#[test]
fn every_preset_loads_under_its_name() {
    for (name, _) in presets() {
        let machine = Machine::resolve(name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(machine.name, *name);
        assert!(machine.source.len() > 20 && machine.description.len() > 20, "{name}");
        assert!(!looks_like_spec(name), "{name} hides a spec string");
    }
}

/// The presets for machines of papers and mailing-list threads must have the numbers of CPUs, cores
/// and nodes that these sources give.
#[test]
fn the_papers_machines() {
    let shape = |name: &str| {
        let machine = Machine::resolve(name).unwrap();
        let t = &machine.topology;
        (t.nr_cpus(), t.cores().len(), t.nodes().len(), machine.ple)
    };
    assert_eq!(shape("x3650m2"), (8, 8, 2, false));
    assert_eq!(shape("x3850x5"), (8, 8, 2, true));
    assert_eq!(shape("p3-8way"), (8, 8, 1, false));
    assert_eq!(shape("dbench-host"), (80, 40, 4, true));
    assert_eq!(shape("x3750m4"), (64, 32, 4, true));
    assert_eq!(shape("x3950"), (64, 64, 8, false));
    assert_eq!(shape("xen-16"), (16, 8, 2, true));

    let x3750 = Machine::resolve("x3750m4").unwrap().topology;
    assert_eq!(x3750.node(NodeId(1)).cpus.to_string(), "8-15,40-47");
    assert_eq!(x3750.node(NodeId(0)).memory_bytes, 65468 << 20);
    assert_eq!(x3750.node(NodeId(3)).distances, [12, 11, 11, 10]);
    let x3950 = Machine::resolve("x3950").unwrap().topology;
    assert_eq!(x3950.node(NodeId(7)).cpus.to_string(), "56-63");
    assert_eq!(x3950.node(NodeId(7)).memory_bytes, 65280 << 20);

    let p3 = Machine::resolve("p3-8way").unwrap();
    assert_eq!(p3.topology.distance(CpuId(0), CpuId(7)), Distance::Llc);
    assert_eq!(p3.costs.tick_period_ns(), 10_000_000);
    // The factor in the machine file applies to every time that the file gives no figure for, and
    // to nothing else.
    assert_eq!(p3.costs.bpf.insn_ps, 6 * CostTable::modern().bpf.insn_ps);
    assert_eq!(p3.costs.bpf.call_bytes, CostTable::modern().bpf.call_bytes, "no time");
    assert_eq!(p3.costs.sched.context_switch_ns, 1200);
    assert_eq!(p3.costs.smt, CostTable::modern().smt);
}

#[test]
fn modern_machines() {
    let hybrid = Machine::resolve("hybrid-8p8e").unwrap().topology;
    assert!(hybrid.is_asymmetric() && hybrid.has_smt());
    assert_eq!((hybrid.nr_cpus(), hybrid.llcs().len()), (24, 1));
    let epyc = Machine::resolve("epyc-2s").unwrap();
    assert_eq!(epyc.node_reclaim_distance, 32);
    let epyc = epyc.topology;
    assert_eq!((epyc.nr_cpus(), epyc.llcs().len(), epyc.nodes().len()), (256, 16, 2));
    assert_eq!(epyc.core_mask(CpuId(0)).to_string(), "0,128");
    let desktop = Machine::resolve("desktop-8c16t").unwrap().topology;
    assert_eq!((desktop.nr_cpus(), desktop.llcs().len(), desktop.nodes().len()), (16, 2, 1));
}

#[test]
fn neither_preset_nor_spec() {
    let error = Machine::resolve("x3650m3").unwrap_err().to_string();
    assert!(error.contains("no machine \"x3650m3\"") && error.contains("x3650m2"), "{error}");
    assert!(matches!(Machine::resolve("4c2n"), Err(MachineError::Spec(_))));
    assert!(matches!(Machine::resolve(""), Err(MachineError::Unknown { .. })));
}

#[test]
fn canonical_form_and_fingerprint() {
    let a = Machine::resolve("2n4c2t").unwrap();
    assert_eq!(a.canonical(), Machine::resolve("2n4c2t").unwrap().canonical());
    assert!(a.canonical().contains("\"cpus\":\"0-1\""));
    assert_eq!(a.fingerprint(), Machine::resolve("2n4c2t").unwrap().fingerprint());
    let mut renamed = a.clone();
    renamed.name = "other".to_owned();
    assert_eq!(renamed.fingerprint(), a.fingerprint());
    let mut resourced = a.clone();
    resourced.costs.idle[0].source = "another".to_owned();
    resourced.source = "another".to_owned();
    assert_eq!(resourced.fingerprint(), a.fingerprint(), "sources do not matter");
    let mut dearer = a.clone();
    dearer.costs.sched.pick_ns += 1;
    assert_ne!(dearer.fingerprint(), a.fingerprint());
    assert_ne!(Machine::resolve("2n4c2tf").unwrap().fingerprint(), a.fingerprint());
}

/// Without figures of its own, a machine's memory is as fast as its cost table and its distances
/// say. Figures of the machine file replace those, and count in the fingerprint.
#[test]
fn memory_speed_is_resolved_from_file_costs_and_distances() {
    let (near, far) = (NodeId(0), NodeId(1));
    let plain = Machine::resolve("2n1c1t").unwrap();
    let memory = plain.node_memory();
    assert_eq!((memory.latency_ns.at(near, near), memory.latency_ns.at(near, far)), (90, 153));
    assert_eq!((memory.bandwidth_mb_s[1], memory.link_mb_s.at(far, near)), (150_000, 45_000));
    let mut slower = plain.clone();
    slower.costs.workload.mem_access_ns *= 2;
    assert_eq!(slower.node_memory().latency_ns.at(near, far), 306);

    let file = |memory: &str| {
        let head = "name = 'm'\ndescription = 'd'\nsource = 's'\n[topology]\nspec = '2n1c1t'\n";
        Machine::from_toml("m.toml", &format!("{head}[memory]\n{memory}"))
    };
    let figure = |key: &str, value: &str, unit: &str| {
        format!("{key} = {{ value = {value}, unit = '{unit}', source = 'measured' }}\n")
    };
    let given = file(
        &(figure("latency", "[[80, 200], [210, 85]]", "ns")
            + &figure("bandwidth", "[1000, 500]", "MB/s")
            + &figure("link_bandwidth", "[[0, 300], [400, 0]]", "MB/s")),
    )
    .unwrap();
    let memory = given.node_memory();
    assert_eq!((memory.latency_ns.at(far, near), memory.latency_ns.at(far, far)), (210, 85));
    assert_eq!((memory.bandwidth_mb_s[1], memory.link_mb_s.at(near, far)), (500, 300));
    assert_ne!(given.fingerprint(), plain.fingerprint());
    let error = file(&figure("latency", "[[90, 80], [150, 90]]", "ns")).unwrap_err().to_string();
    assert!(error.starts_with("m.toml:7: CPUs of node 0 reach node 1 in 80 ns"), "{error}");
    let error =
        file(&figure("link_bandwidth", "[[0, 0], [9, 0]]", "MB/s")).unwrap_err().to_string();
    assert!(error.starts_with("m.toml:7: the link from node 0 to 1 has 0 MB/s"), "{error}");
}

/// A machine's factor on times leaves bandwidths as they are.
#[test]
fn bandwidth_is_not_scaled_with_times() {
    let machine = Machine::resolve("intel-2s").unwrap();
    let scaled = "name = 'm'\ndescription = 'd'\nsource = 's'\n[topology]\nspec = '2n1c1t'\n\
                  [cost]\nscale = { num = 2, den = 1, source = 'x' }\n";
    let scaled = Machine::from_toml("m.toml", scaled).unwrap();
    assert_eq!(scaled.costs.memory.bandwidth_mb_s, machine.costs.memory.bandwidth_mb_s);
    assert_eq!(scaled.costs.memory.page_fault_ns, 2 * machine.costs.memory.page_fault_ns);
}

const PARTS: &str = r#"name = "odd"
description = "two cores, one with two threads"
source = "made up"
[topology]
cores = [{ cpus = "0-1", l1d_kib = 48 }, { cpus = "2" }]
llcs = [{ cpus = "0-2", size_kib = 8192 }]
nodes = [{ cpus = "0-2", memory_mib = 100 }]
capacities = [1024, 1024, 512]
[cost]
sched.pick = { value = 1, unit = "ns", source = "made up" }
"#;

#[test]
fn a_file_of_parts() {
    let machine = Machine::from_toml("odd.toml", PARTS).unwrap();
    assert!(machine.ple);
    assert_eq!(machine.node_reclaim_distance, 30);
    assert_eq!(machine.topology.core_mask(CpuId(1)).to_string(), "0-1");
    assert_eq!(machine.topology.cores()[0].l1d_bytes, 48 << 10);
    assert_eq!(machine.topology.cpu(CpuId(2)).capacity, 512);
    assert_eq!(machine.costs.sched.pick_ns, 1);
    assert_eq!(machine.costs.sched.enqueue_ns, CostTable::modern().sched.enqueue_ns);
}

#[test]
fn bad_files_are_refused_with_the_line() {
    let cases = [
        ("name = \"odd\"\n", "", "odd.toml:1: missing key \"name\""),
        ("source = ", "sauce = ", "missing key \"source\""),
        ("[topology]", "ple = 1\n[topology]", "odd.toml:4: ple must be true or false, not integer"),
        ("[topology]", "[topologie]", "missing key \"topology\""),
        ("[cost]", "colour = 1\n[cost]", "odd.toml:9: unknown key \"topology.colour\""),
        ("\"2\" }", "\"2-1\" }", "odd.toml:5: the range 2-1 is empty"),
        ("\"2\" }", "\"two\" }", "\"two\" is no CPU number"),
        ("\"2\" }", "\"9999\" }", "\"9999\" is no CPU number in 0..8192"),
        ("cores = [", "cores = [7, ", "odd.toml:5: topology.cores[0] must be a table"),
        ("\"2\" }", "\"3\" }", "odd.toml:4: CPU 2 is missing though CPU 3 exists"),
        (
            "capacities = [1024, 1024, 512]",
            "capacities = [1024, 2000]",
            "odd.toml:8: topology.capacities[1] is 2000",
        ),
        ("capacities", "distances = [[10], [10]]\ncapacities", "2 rows of distances for 1 nodes"),
        ("1024, 1024, 512]", "512, 512, 512]", "odd.toml:8: no CPU has capacity 1024"),
        (
            "nodes = [{ cpus = \"0-2\", memory_mib = 100 }]",
            "nodes = [{ cpus = \"0-2\" }, { cpus = \"\" }]\ndistances = [[10, 20], [30, 10]]",
            "odd.toml:8: node 0 is at distance 20 from node 1, but 30 the other way round",
        ),
        (
            "[cost]",
            "[memory]\nlatencies = 1\n[cost]",
            "odd.toml:10: unknown key \"memory.latencies\"",
        ),
        (
            "[cost]",
            "[memory]\nbandwidth = { value = [0], unit = \"MB/s\", source = \"x\" }\n[cost]",
            "odd.toml:10: the memory of node 0 has 0 MB/s",
        ),
        (
            "[cost]",
            "[memory]\nbandwidth = { value = [1, 2], unit = \"MB/s\", source = \"x\" }\n[cost]",
            "odd.toml:10: memory.bandwidth has 2 numbers for 1 nodes",
        ),
        (
            "[cost]",
            "[memory]\nlatency = { value = [[90]], unit = \"us\", source = \"x\" }\n[cost]",
            "odd.toml:10: memory.latency is in ns, not in \"us\"",
        ),
        (
            "[cost]",
            "[memory]\nlatency = { value = [[90, 1]], unit = \"ns\", source = \"x\" }\n[cost]",
            "odd.toml:10: memory.latency must have 1 rows of 1 numbers",
        ),
        (
            "sched.pick = { value = 1, unit = \"ns\"",
            "memory.bandwidth = { value = 0, unit = \"MB/s\"",
            "memory.bandwidth.value must be above 0",
        ),
        ("[cost]", "[cost]\nbase = \"none\"", "no cost table \"none\"; there are: modern-x86"),
        ("sched.pick", "sched.pock", "odd.toml:10: unknown key \"cost.sched.pock\""),
        (
            "[cost]",
            "[cost]\nscale = { num = 0, den = 1, source = \"x\" }",
            "cost.scale.num cannot be 0",
        ),
        (
            "cores = [{ cpus = \"0-1\", l1d_kib = 48 }, { cpus = \"2\" }]",
            "spec = \"4c2n\"",
            "odd.toml:5: \"4c2n\" is no machine spec",
        ),
    ];
    for (from, to, reason) in cases {
        assert!(PARTS.contains(from), "{from}");
        let error = Machine::from_toml("odd.toml", &PARTS.replacen(from, to, 1)).expect_err(reason);
        let error = error.to_string();
        assert!(error.contains(reason), "expected \"{reason}\", got \"{error}\"");
    }
}

/// A sysfs tree as a map from path to text.
struct Tree(BTreeMap<String, String>);

impl SysfsReader for Tree {
    fn read(&self, path: &str) -> io::Result<String> {
        self.0.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Returns a tree of two nodes, each with one core of two threads in firmware numbering, and with
/// L1, L2 and L3.
fn tree() -> Tree {
    let mut files = BTreeMap::new();
    let mut put = |path: String, text: &str| files.insert(path, format!("{text}\n"));
    put("devices/system/cpu/online".into(), "0-3");
    put("devices/system/node/online".into(), "0-1");
    for node in 0..2 {
        let dir = format!("devices/system/node/node{node}");
        put(format!("{dir}/cpulist"), &format!("{node},{}", node + 2));
        put(format!("{dir}/distance"), if node == 0 { "10 32" } else { "32 10" });
        put(
            format!("{dir}/meminfo"),
            &format!("Node {node} MemTotal:    1024 kB\nNode {node} MemFree: 5 kB"),
        );
    }
    for cpu in 0..4 {
        let siblings = format!("{},{}", cpu % 2, cpu % 2 + 2);
        let dir = format!("devices/system/cpu/cpu{cpu}");
        put(format!("{dir}/topology/thread_siblings_list"), &siblings);
        let caches = [
            ("1", "Data", "48K"),
            ("1", "Instruction", "32K"),
            ("2", "Unified", "2M"),
            ("3", "Unified", "4096K"),
        ];
        for (index, (level, kind, size)) in caches.into_iter().enumerate() {
            let dir = format!("{dir}/cache/index{index}");
            put(format!("{dir}/level"), level);
            put(format!("{dir}/type"), kind);
            put(format!("{dir}/size"), size);
            put(format!("{dir}/shared_cpu_list"), &siblings);
        }
    }
    Tree(files)
}

#[test]
fn sysfs() {
    let machine = Machine::from_sysfs(&tree()).unwrap();
    let t = &machine.topology;
    assert_eq!(machine.description, "4 CPUs, 2 cores, 2 LLCs, 2 nodes");
    assert_eq!(t.core_mask(CpuId(3)).to_string(), "1,3");
    assert_eq!((t.cores()[0].l1d_bytes, t.cores()[0].l2_bytes), (48 << 10, 2 << 20));
    assert_eq!((t.llcs()[0].size_bytes, t.nodes()[1].memory_bytes), (4 << 20, 1 << 20));
    assert_eq!(t.node_distance(NodeId(1), NodeId(0)), 32);
    assert!(!t.is_asymmetric());
}

#[test]
fn sysfs_without_numa_or_caches_and_with_capacities() {
    let mut tree = tree();
    tree.0.retain(|path, _| !path.contains("/node/") && !path.contains("/cache/"));
    for (cpu, capacity) in [(0, "400"), (1, "800"), (2, "400"), (3, "800")] {
        tree.0.insert(format!("devices/system/cpu/cpu{cpu}/cpu_capacity"), format!("{capacity}\n"));
    }
    let t = Machine::from_sysfs(&tree).unwrap().topology;
    assert_eq!((t.nodes().len(), t.llcs().len()), (1, 1));
    assert_eq!((t.cpu(CpuId(0)).capacity, t.cpu(CpuId(1)).capacity), (512, 1024));
}

#[test]
fn bad_sysfs_is_refused_with_the_path() {
    let spoiled = |path: &str, text: Option<&str>| {
        let mut tree = tree();
        match text {
            Some(text) => tree.0.insert(path.to_owned(), text.to_owned()),
            None => tree.0.remove(path),
        };
        Machine::from_sysfs(&tree).expect_err(path).to_string()
    };
    let online = "devices/system/cpu/online";
    assert!(spoiled(online, None).starts_with("this host: devices/system/cpu/online: "));
    assert!(spoiled(online, Some("0-9999999")).contains("\"9999999\" is no CPU number"));
    assert!(spoiled(online, Some("0,2-3")).contains("CPU 1 is missing though CPU 3 exists"));
    assert!(
        spoiled("devices/system/node/node1/distance", Some("32"))
            .contains("node 1 has 1 distances")
    );
    assert!(
        spoiled("devices/system/cpu/cpu0/cache/index3/level", Some("x"))
            .contains("index3/level: \"x\" is no number")
    );
}
