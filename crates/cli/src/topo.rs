// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab topo`: shows a machine's topology and costs.

use std::fmt::Write;

use anyhow::Result;
use scxlab_lab::input;
use scxlab_machine::id::NodeId;
use scxlab_machine::plural;
use scxlab_machine::{CpuId, CpuMask, Machine, Topology};
use scxlab_results::inputs::Inputs;

use crate::args::{Format, TopoArgs};
use crate::output;

pub fn topo(args: &TopoArgs) -> Result<()> {
    let machine = input::machine(&args.machine, &Inputs::default())?;
    if args.format == Format::Json {
        return output::print(&format!("{}\n", machine.canonical()));
    }
    let mut text = head(&machine);
    text.push_str(&tree(&machine.topology));
    text.push_str(&distances(&machine.topology));
    if args.costs {
        text.push_str(&memory(&machine));
        text.push_str(&costs(&machine));
    }
    output::print(&text)
}

fn head(machine: &Machine) -> String {
    let t = &machine.topology;
    format!(
        "{}: {}\nsource: {}\nfingerprint: {:016x}\n{}, {}, {}, {}, {}\n\n",
        machine.name,
        machine.description,
        machine.source,
        machine.fingerprint(),
        plural(t.nr_cpus(), "CPU"),
        plural(t.cores().len(), "core"),
        plural(t.llcs().len(), "LLC"),
        plural(t.nodes().len(), "node"),
        bytes(t.memory_bytes()),
    )
}

fn tree(t: &Topology) -> String {
    let mut text = String::new();
    for (n, node) in t.nodes().iter().enumerate() {
        let _ = writeln!(
            text,
            "node {n}  CPUs {}  memory {}",
            ranges(&node.cpus),
            bytes(node.memory_bytes)
        );
        for (l, llc) in t.llcs().iter().enumerate().filter(|(_, llc)| llc.node.idx() == n) {
            let _ =
                writeln!(text, "  LLC {l}  CPUs {}  {}", ranges(&llc.cpus), bytes(llc.size_bytes));
            for (c, core) in t.cores().iter().enumerate().filter(|(_, core)| core.llc.idx() == l) {
                let _ = writeln!(
                    text,
                    "    core {c}  CPUs {}{}",
                    ranges(&core.cpus),
                    core_detail(t, c)
                );
            }
        }
    }
    text
}

fn core_detail(t: &Topology, core: usize) -> String {
    let core = &t.cores()[core];
    let mut text = format!("  L1d {}, L2 {}", bytes(core.l1d_bytes), bytes(core.l2_bytes));
    let first = t.cpu_ids().find(|c| has(&core.cpus, *c));
    if let Some(cpu) = first.filter(|_| t.is_asymmetric()) {
        let _ = write!(text, ", capacity {}", t.cpu(cpu).capacity);
    }
    text
}

fn distances(t: &Topology) -> String {
    if t.nodes().len() < 2 {
        return String::new();
    }
    let mut text = String::from("\ndistances, 10 is local\n      ");
    (0..t.nodes().len()).for_each(|n| {
        let _ = write!(text, "{n:>5}");
    });
    text.push('\n');
    for (n, node) in t.nodes().iter().enumerate() {
        let _ = write!(text, "{n:>6}");
        node.distances.iter().for_each(|d| {
            let _ = write!(text, "{d:>5}");
        });
        text.push('\n');
    }
    text
}

/// Formats the speed of memory between nodes.
fn memory(machine: &Machine) -> String {
    let memory = machine.node_memory();
    let nodes = || (0..machine.topology.nodes().len() as u32).map(NodeId);
    let mut text = String::from("\nmemory bandwidth, MB/s\n");
    for node in nodes() {
        let _ = writeln!(text, "{:>6}{:>8}", node.0, memory.bandwidth_mb_s[node.idx()]);
    }
    let mut matrix = |title: &str, value: &dyn Fn(NodeId, NodeId) -> Option<u64>| {
        let _ = write!(text, "\n{title}; row: node of the CPU, column: node of the memory\n      ");
        for to in nodes() {
            let _ = write!(text, "{:>8}", to.0);
        }
        text.push('\n');
        for from in nodes() {
            let _ = write!(text, "{:>6}", from.0);
            for to in nodes() {
                let value = value(from, to).map_or("-".to_owned(), |value| value.to_string());
                let _ = write!(text, "{value:>8}");
            }
            text.push('\n');
        }
    };
    matrix("memory latency, ns", &|from, to| Some(memory.latency_ns.at(from, to)));
    if nodes().len() > 1 {
        matrix("link bandwidth, MB/s", &|from, to| {
            (from != to).then(|| memory.link_mb_s.at(from, to))
        });
    }
    text
}

fn costs(machine: &Machine) -> String {
    let mut text = String::from("\ncosts\n");
    let constants = &machine.costs.constants;
    let width = constants.iter().map(|c| c.name.len()).max().unwrap_or(0);
    for c in constants {
        let _ = writeln!(text, "{:width$}  {} {}\n    {}", c.name, c.value, c.unit, c.source);
        if !c.note.is_empty() {
            let _ = writeln!(text, "    {}", c.note);
        }
    }
    text.push_str("\nidle states\n");
    for s in &machine.costs.idle {
        let _ = writeln!(
            text,
            "{}: from {} ns of idleness on, {} ns to wake up\n    {}",
            s.name, s.min_residency_ns, s.exit_latency_ns, s.source
        );
    }
    text
}

fn has(mask: &CpuMask, cpu: CpuId) -> bool {
    scxlab_machine::cpumask::test(mask, cpu)
}

/// Formats a set of CPUs, such as `0-3,8-11`.
fn ranges(mask: &CpuMask) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for cpu in scxlab_machine::cpumask::iter(mask) {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == cpu.0 => *last = cpu.0,
            _ => runs.push((cpu.0, cpu.0)),
        }
    }
    let one = |(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    if runs.is_empty() { "none".into() } else { runs.iter().map(one).collect::<Vec<_>>().join(",") }
}

fn bytes(n: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let fits = |size: u64| n >= size && (n.is_multiple_of(size) || n >= 10 * size);
    match UNITS.iter().find(|(size, _)| fits(*size)) {
        Some((size, unit)) => format!("{} {unit}", n / size),
        None => format!("{n} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_shown_as_ranges() {
        let of = |cpus: &[u32]| ranges(&CpuMask::of(128, cpus.iter().map(|c| CpuId(*c))));
        assert_eq!(of(&[0, 1, 2, 8, 64, 65]), "0-2,8,64-65");
        assert_eq!(of(&[]), "none");
    }

    #[test]
    fn sizes_have_the_unit_that_fits() {
        assert_eq!(bytes(32 << 10), "32 KiB");
        assert_eq!(bytes(1280 << 10), "1280 KiB");
        assert_eq!(bytes(33 << 30), "33 GiB");
        assert_eq!(bytes(100), "100 B");
    }
}
