// SPDX-License-Identifier: GPL-2.0-only
//! Tests that the default class keeps all CPUs busy if there are enough hogs, in the simulator and
//! on a real kernel, on the same machines.
//!
//! `crates/testkit/tests/work_conserved.rs` tests the property for many more machines and workloads
//! in the simulator; here, a real kernel shows whether the simulator is right. CI tests a few
//! machines; `make conserve` tests all machines, and prints a table.

use scxlab_machine::Machine;
use serde_json::Value;

use crate::bench::{Bench, metric};

/// Distances between nodes. The kernel places a forked task on another node only over a distance of
/// 30 or less.
#[derive(Clone, Copy, Debug)]
enum Apart {
    All(u32),
    /// Nodes in a row; the distance grows by this amount per hop.
    Line(u32),
    Ring(u32),
    /// Distance within pairs of nodes, and distance between nodes of different pairs.
    Pairs(u32, u32),
}

use Apart::{All, Line, Pairs, Ring};

/// Machines to test. CI tests only the first `IN_CI` of them.
const MACHINES: [(&str, Apart); 30] = [
    ("2n2c1t", All(32)),
    ("4n1c1t", Line(15)),
    ("2n1l2c2t", All(254)),
    ("1n2l2c1t", All(20)),
    ("1n2c1t", All(20)),
    ("1n3c2t", All(20)),
    ("1n8c1t", All(20)),
    ("1n4l2c1t", All(20)),
    ("1n2l4c2t", All(20)),
    ("2n1c1t", All(20)),
    ("2n1c1t", All(31)),
    ("2n1c2t", All(100)),
    ("2n4c1t", All(30)),
    ("2n4c1t", All(31)),
    ("2n4c2t", All(21)),
    ("2n4c2t", All(40)),
    ("2n2l2c1t", All(32)),
    ("2n2l2c2t", All(32)),
    ("2n8c1t", All(254)),
    ("3n1c1t", Line(12)),
    ("3n2c1t", All(40)),
    ("3n2c2t", Line(30)),
    ("4n2c1t", All(20)),
    ("4n2c1t", All(40)),
    ("4n2c1t", Ring(11)),
    ("4n2c2t", Pairs(16, 32)),
    ("4n4c1t", Line(10)),
    ("5n2c1t", Ring(15)),
    ("8n1c1t", Ring(10)),
    ("8n2c1t", Pairs(12, 60)),
];
const IN_CI: usize = 4;

/// Limit of a CPU's idle time in a run of a second.
const LIMIT_MS: f64 = 500.0;

fn distance(apart: Apart, nodes: u32, a: u32, b: u32) -> u32 {
    let hops = a.abs_diff(b);
    match apart {
        _ if hops == 0 => 10,
        All(distance) => distance,
        Line(step) => 10 + step * hops,
        Ring(step) => 10 + step * hops.min(nodes - hops),
        Pairs(near, far) => {
            if a / 2 == b / 2 {
                near
            } else {
                far
            }
        }
    }
}

fn machine_file(spec: &str, apart: Apart) -> String {
    let nodes: u32 = spec[..1].parse().expect("nodes come first");
    let row = |a| (0..nodes).map(|b| distance(apart, nodes, a, b)).collect::<Vec<_>>();
    let rows: Vec<_> = (0..nodes).map(row).collect();
    format!(
        "name = \"{spec}\"\ndescription = \"{apart:?}\"\nsource = \"a test\"\n\
         [topology]\nspec = \"{spec}\"\ndistances = {rows:?}\n"
    )
}

/// Returns the largest total idle time of any CPU in a run, in ms.
fn idle_ms(run: &Value, cpus: usize) -> f64 {
    (0..cpus).map(|cpu| metric(run, &format!("cpu{cpu}_idle")) / 1e6).fold(0.0, f64::max)
}

/// Makes a run in the simulation and on the real kernel. Returns a line of text that names the run,
/// and for each of the two kernels the total idle time of the CPU that was idle longest, in ms.
fn compare(at: usize) -> Option<(String, f64, f64)> {
    let bench = Bench::new()?;
    let (spec, apart) = MACHINES[at];
    let text = machine_file(spec, apart);
    let cpus = Machine::from_toml(spec, &text).expect("a machine").topology.nr_cpus();
    let file = bench.file("machine.toml", text);
    let hogs = [cpus, cpus + 1, 2 * cpus][at % 3];
    let workload = format!("hogs,tasks={hogs}");
    let common = ["--on", "sim", "--accel", "counted", "--duration", "1s"];
    let done = bench.run(&[&common[..], &["-s", "eevdf", "-m", &file, "-w", &workload]].concat());
    let runs = done.runs();
    let of = |target: &str| runs.iter().find(|run| run["target"] == target).expect("it ran");
    let (sim, real) = (idle_ms(of("sim"), cpus), idle_ms(of("vm"), cpus));
    Some((format!("{spec:<9} {:<14} {hogs:>3} hogs", format!("{apart:?}")), sim, real))
}

/// Runs at least as many hogs as the machine has CPUs; all hogs begin on one CPU. CPUs may be idle
/// until the load averages show that a node is full (0.1 s) and each node's first balance is due
/// (2 ms per CPU, a few times). A CPU that balancing overlooks would be idle for the whole run, in
/// each boot of the real kernel: a longest idle time above the limit is that of two boots of three.
#[test]
fn enough_hogs_keep_all_cpus_busy() {
    let all = std::env::var_os("SCXLAB_THOROUGH").is_some();
    let mut idle = Vec::new();
    for at in 0..if all { MACHINES.len() } else { IN_CI } {
        let Some((mut line, sim, real)) = compare(at) else { return };
        let mut boots = vec![real];
        if real >= LIMIT_MS {
            boots.extend((0..2).filter_map(|_| compare(at)).map(|(_, _, real)| real));
        }
        for real in &boots {
            line.push_str(&format!("{real:>5.0}"));
        }
        let line = format!("{line} ms real, {sim:>4.0} ms simulated\n");
        // Write to stderr directly, because println! is not shown when a test passes.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
        let long = boots.iter().filter(|real| **real >= LIMIT_MS).count();
        if sim >= LIMIT_MS || long > 1 {
            idle.push(line);
        }
    }
    assert!(idle.is_empty(), "longest idle time of a CPU, of 1000 ms:\n{}", idle.concat());
}
