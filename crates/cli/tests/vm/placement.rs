// SPDX-License-Identifier: GPL-2.0-only
//! Placement by the default class, in the simulator and on a real kernel.

use std::collections::BTreeMap;
use std::path::Path;

use perfetto_protos::ftrace_event::ftrace_event::Event as Ftrace;

use crate::bench::{Bench, metric, scxlab};
use crate::trace::{by_time, parse};

/// Two processes of three threads, which use a tenth of a CPU each.
const WORKLOAD: &str = "
duration = '6s'
[[thread]]
name = 'a'
process = 'a'
instances = 3
ops = [{ loop = { ops = [{ compute = '1ms' }, { sleep = '9ms' }] } }]
[[thread]]
name = 'b'
process = 'b'
instances = 3
ops = [{ loop = { ops = [{ compute = '1ms' }, { sleep = '9ms' }] } }]
";

/// Returns the run time of each process on each LLC of four CPUs in the last third of a trace, ns.
fn by_llc(file: &str) -> BTreeMap<String, [u64; 2]> {
    let trace = parse(Path::new(file));
    let events = by_time(&trace);
    let times = || events.iter().map(|(_, event)| event.timestamp());
    let (first, last) = (times().next().unwrap_or(0), times().next_back().unwrap_or(0));
    let begin = last - (last - first) / 3;
    let mut since: BTreeMap<u32, u64> = BTreeMap::new();
    let mut there: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    for (cpu, event) in events {
        let Some(Ftrace::SchedSwitch(switch)) = &event.event else { continue };
        let from = since.insert(cpu, event.timestamp()).unwrap_or(0).max(begin);
        let process = switch.prev_comm().split('-').next().unwrap_or_default();
        if ["a", "b"].contains(&process) {
            let row = there.entry(process.to_owned()).or_default();
            row[cpu as usize / 4] += event.timestamp().saturating_sub(from);
        }
    }
    there
}

/// `CONFIG_SCHED_CACHE`: the threads of a process gather on an LLC. The load is so low that they do
/// under emulation on a busy host too.
#[test]
fn threads_of_a_process_share_an_llc() {
    let Some(bench) = Bench::new() else { return };
    let file = bench.file("threads.toml", WORKLOAD);
    let trace = bench.file("trace.pftrace", "");
    let args = ["-s", "eevdf", "-w", &file, "-m", "1n2l4c1t", "--trace", &trace];
    let simulated = [&["run", "--format", "json"][..], &args].concat();
    bench.output(&mut scxlab(&simulated)).runs();
    let simulated = by_llc(&trace);
    bench.run(&args).runs();
    for (kernel, there) in [("simulated", simulated), ("real", by_llc(&trace))] {
        assert_eq!(there.len(), 2, "{kernel}: {there:?}");
        for row in there.values() {
            let (most, all) = (row[0].max(row[1]), row[0] + row[1]);
            assert!(most * 10 >= all * 9, "{kernel}: {there:?}");
        }
    }
}

/// A tunable of the default class acts on the simulated kernel and on the real one in the same
/// direction, and only for the time of its run.
#[test]
fn a_longer_slice_saves_switches() {
    let Some(bench) = Bench::new() else { return };
    let args = ["-w", "hogs,tasks=4", "-m", "1c", "--duration", "2s", "-s"];
    let long = "eevdf,base_slice_ns=40000000";
    let args = [&args[..], &["eevdf", "-s", long, "-s", "eevdf"]].concat();
    let simulated = [&["run", "--format", "json"][..], &args].concat();
    let simulated = bench.output(&mut scxlab(&simulated)).runs();
    for runs in [simulated, bench.run(&args).runs()] {
        let switches: Vec<f64> = runs.iter().map(|run| metric(run, "context_switches")).collect();
        assert!(switches[1] * 2.0 < switches[0].min(switches[2]), "{switches:?}");
    }
}
