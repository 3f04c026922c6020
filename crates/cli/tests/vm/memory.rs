// SPDX-License-Identifier: GPL-2.0-only
//! Pages of regions, in the simulator and on a real kernel with several nodes.

use serde_json::Value;

use crate::bench::{Bench, metric, scxlab};

/// Regions of one machine. Each thread accesses memory on a node of its own.
fn workload(nodes: u32, huge: bool) -> String {
    let last = nodes - 1;
    let policies = [
        ("first", String::new()),
        ("interleaved", format!("policy = {{ interleave = '0-{last}' }}")),
        ("bound", format!("policy = {{ bind = '{last}' }}")),
        ("preferred", format!("policy = {{ preferred = {last} }}")),
        ("populated", format!("populate = '0-{last}'")),
        ("fenced", String::new()),
    ];
    let mut text = format!("[[cgroup]]\npath = '/fence'\nmems = '{last}'\n");
    for (name, policy) in &policies {
        text.push_str(&format!(
            "[[region]]\nname = '{name}'\nsize = '12MiB'\nhuge = {huge}\n{policy}\n"
        ));
        let cgroup = if *name == "fenced" { "cgroup = '/fence'\n" } else { "" };
        text.push_str(&format!(
            "[[thread]]\nname = '{name}'\ncpus = '0'\n{cgroup}\
             ops = [{{ touch = {{ region = '{name}', size = 8388608, kind = 'write' }} }}]\n"
        ));
    }
    text
}

/// Returns the pages of each region by node.
fn pages(run: &Value) -> Vec<(String, Vec<u64>)> {
    let all = run["memory"].as_array().unwrap_or_else(|| panic!("no regions: {run}"));
    let row = |region: &Value| {
        let pages = region["pages"].as_array().expect("a list").iter();
        let name = region["region"].as_str().expect("a name").to_owned();
        (name, pages.map(|n| n.as_u64().expect("a count")).collect())
    };
    let mut rows: Vec<_> = all.iter().map(row).collect();
    rows.sort();
    rows
}

#[test]
fn placement_follows_policy() {
    let Some(bench) = Bench::new() else { return };
    for (machine, nodes) in [("2n2c1t", 2), ("4n1c1t", 4)] {
        for huge in [false, true] {
            let file = bench.file("regions.toml", workload(nodes, huge));
            let args = ["-s", "eevdf", "-w", &file, "-m", machine];
            let simulated = [&["run", "--format", "json"][..], &args].concat();
            let simulated = pages(&bench.output(&mut scxlab(&simulated)).runs()[0]);
            let real = pages(&bench.run(&args).runs()[0]);
            assert_eq!(simulated, real, "{machine}, huge pages {huge}");
            let sum = |name: &str| {
                let (_, pages) = real.iter().find(|(region, _)| region == name).expect("listed");
                (pages[nodes as usize - 1], pages.iter().sum::<u64>())
            };
            assert_eq!(sum("bound"), (2048, 2048));
            assert_eq!(sum("fenced"), (2048, 2048));
            assert_eq!(sum("first"), (0, 2048));
            assert_eq!(sum("interleaved"), (2048 / u64::from(nodes), 2048));
            assert_eq!(sum("populated").1, 3072);
        }
    }
}

/// The refusal comes before a guest boots.
#[test]
fn a_node_that_the_machine_lacks_is_refused() {
    let Some(bench) = Bench::new() else { return };
    let text = "[[region]]\nname = 'r'\nsize = 1\npopulate = '2'\n\
        [[thread]]\nname = 'a'\nops = [{ touch = { region = 'r' } }]\n";
    let file = bench.file("far.toml", text);
    let args = ["run", "-s", "eevdf", "-w", &file, "-m", "2n2c1t"];
    let done = bench.output(bench.command(&args).args(["--on", "vm"]));
    assert_eq!(done.code, Some(3), "{done}");
    assert!(done.stderr.contains("names node 2; nodes with memory are 0, 1"), "{done}");
}

/// Two processes of two threads whose memory is on the other node, and which may not move.
const FAR: &str = r"
[[region]]
name = 'heap-a'
size = '16MiB'
huge = false
populate = '1'
[[region]]
name = 'heap-b'
size = '16MiB'
huge = false
populate = '0'
[[thread]]
name = 'a'
instances = 2
process = 'a'
cpus = '0-1'
ops = [{ loop = { ops = [{ compute = { work = '1ms', region = 'heap-a', memory = 50 } }] } }]
[[thread]]
name = 'b'
instances = 2
process = 'b'
cpus = '2-3'
ops = [{ loop = { ops = [{ compute = { work = '1ms', region = 'heap-b', memory = 50 } }] } }]
";

/// Pages follow their tasks in the simulator as on a real kernel, and stay where they are without
/// balancing, or under a scheduler that has all tasks: 7.3 scans only tasks of the default class.
#[test]
#[ignore = "long"]
fn pages_follow_their_tasks() {
    let Some(bench) = Bench::new() else { return };
    let file = bench.file("far.toml", FAR);
    let common = ["-w", &file, "-m", "2n2c1t", "--duration", "8s", "--accel", "counted"];
    let moved = |run: &Value| {
        let rows = pages(run);
        let on = |at: usize, node: usize| rows[at].1[node];
        assert_eq!(rows.iter().map(|(_, pages)| pages.iter().sum::<u64>()).sum::<u64>(), 8192);
        (on(0, 0) + on(1, 1), metric(run, "numa_pages_migrated"))
    };
    let both = |more: &[&str]| {
        let args = [&common[..], more].concat();
        let simulated = [&["run", "--format", "json"][..], &args].concat();
        let simulated = bench.output(&mut scxlab(&simulated));
        let real = bench.run(&args);
        (moved(&simulated.runs()[0]), moved(&real.runs()[0]))
    };
    let (simulated, real) = both(&["-s", "eevdf", "--numa-balancing", "on"]);
    println!("pages at home, pages migrated: sim {simulated:?}, vm {real:?}");
    for (home, migrated) in [simulated, real] {
        assert!(home >= 8192 * 8 / 10, "sim {simulated:?}, vm {real:?}");
        assert!(migrated >= 8192.0 * 0.8);
    }
    assert!(real.1 <= 10.0 * simulated.1 && simulated.1 <= 10.0 * real.1);
    let (simulated, real) = both(&["-s", "eevdf", "--numa-balancing", "off"]);
    assert_eq!((simulated, real), ((0, 0.0), (0, 0.0)), "off");
    let (simulated, real) = both(&["-s", "vtime", "--numa-balancing", "on"]);
    assert_eq!(simulated, (0, 0.0));
    // Processes outside the workload are tasks of the default class, so the counts of the whole
    // system may move a little; the workload's pages do not.
    assert_eq!(real.0, 0, "{real:?}");
}

/// Four processes of four threads, twice as many threads as CPUs. The memory of each process lies
/// on the other node than its threads, which may move after 100 ms.
fn four_processes() -> String {
    let process = |i: u32| {
        let (node, home) = (i % 2, 1 - i % 2);
        let first = node * 4;
        format!(
            "[[region]]\nname = 'heap-{i}'\nsize = '32MiB'\nhuge = false\npopulate = '{home}'\n\
             [[thread]]\nname = 'task-{i}-{{i}}'\nprocess = 'process-{i}'\ninstances = 4\n\
             cpus = '{first}-{last}'\n\
             ops = [{{ compute = '100ms' }}, 'clear_affinity', {{ loop = {{ ops = [\
             {{ compute = {{ work = '1ms', region = 'heap-{i}', memory = 50 }} }}] }} }}]\n",
            last = first + 3
        )
    };
    (0..4).map(process).collect()
}

/// The processes come to their memory within half a minute, in the simulator and on a real kernel,
/// by about as many migrated pages. Few tasks change nodes, so the pages move.
///
/// In the simulation all pages end where the threads began. The kernel sometimes moves a process to
/// its pages instead, and in three of nine runs (four of them 45 s or 60 s long) pages of one or
/// two processes were on their way between the nodes at the end: each process then had between 50
/// and 85 % of its pages on one node, and all processes together between 83 and 88 %.
#[test]
#[ignore = "long"]
fn four_processes_come_to_their_memory() {
    let Some(bench) = Bench::new() else { return };
    let file = bench.file("four.toml", four_processes());
    let args = ["-s", "eevdf", "-w", &file, "-m", "2n4c1t", "--duration", "30s"];
    let args = [&args[..], &["--accel", "counted", "--numa-balancing", "on"]].concat();
    let simulated = [&["run", "--format", "json"][..], &args].concat();
    let simulated = bench.output(&mut scxlab(&simulated));
    let real = bench.run(&args);
    let all = 4.0 * 8192.0;
    let seen = |run: &Value| {
        let rows = pages(run);
        let sum = |of: &dyn Fn(usize, &[u64]) -> u64| {
            rows.iter().enumerate().map(|(i, (_, pages))| of(i, pages)).sum::<u64>() as f64
        };
        assert_eq!(sum(&|_, pages| pages.iter().sum()), all);
        let together = sum(&|_, pages| pages.iter().max().copied().unwrap_or_default());
        let moved = sum(&|i, pages| pages[i % 2]);
        let count = |name: &str| metric(run, name);
        let crossed = count("migrations_node") / count("migrations");
        (together / all, moved / all, count("numa_pages_migrated") / all, crossed)
    };
    let (simulated, real) = (seen(&simulated.runs()[0]), seen(&real.runs()[0]));
    let both = format!("sim {simulated:?}, vm {real:?}");
    println!(
        "parts of all pages: on their process's node, on the node where its threads began, \
         migrated; part of migrations between nodes: {both}"
    );
    assert_eq!((simulated.0, simulated.1), (1.0, 1.0), "{both}");
    assert!(real.0 >= 0.75 && real.1 >= 0.6, "{both}");
    for (_, _, migrated, crossed) in [simulated, real] {
        assert!(migrated >= 0.675 && crossed < 0.2, "{both}");
    }
    assert!(real.2 <= 3.0 * simulated.2 && simulated.2 <= 3.0 * real.2, "{both}");
}
