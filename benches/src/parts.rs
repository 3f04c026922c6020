// SPDX-License-Identifier: GPL-2.0-only
//! The parts of a simulated second: the host's instructions by what they do, from a profile of
//! callgrind.
//!
//! Owns: the groups of source files, the table of the functions that programs call.
//! Does not: run callgrind (see `callgrind.rs`). A part that the compiler inlined counts where its
//! source file belongs, except code of Rust's library, which counts as a part of its caller.

use std::collections::BTreeMap;
use std::error::Error;

use crate::callgrind::Profile;

/// Groups of instructions by source file: the first entry that occurs in the file's path decides.
const GROUPS: &[(&str, &str)] = &[
    ("bpf/src/jit/native.rs", WAYS),
    ("bpf/src/jit/ctx.rs", WAYS),
    ("bpf/src/jit.rs", WAYS),
    ("bpf/src/vm/interp.rs", "interpreter, refused accesses"),
    ("bpf/src/vm", WAYS),
    ("bpf/src/helper.rs", WAYS),
    ("bpf/src/kfunc.rs", WAYS),
    ("kernel/src/ext/host.rs", WAYS),
    ("kernel/src/ext/op", WAYS),
    ("kernel/src/ext/program.rs", WAYS),
    ("kernel/src/bpf/insn_time.rs", WAYS),
    ("bpf/src/jit/", COMPILER),
    ("cranelift", COMPILER),
    ("regalloc", COMPILER),
    ("bpf/src/insn", COMPILER),
    ("bpf/src/mem", "accesses to guest memory by the kernel"),
    ("bpf/src", "helpers and maps"),
    ("rustc-hash", "helpers and maps"),
    ("hashbrown", "helpers and maps"),
    ("kernel/src/ext/kfunc", "kernel functions themselves"),
    ("kernel/src/ext/idle", "idle masks, CPU masks"),
    ("machine/src/cpumask", "idle masks, CPU masks"),
    ("kernel/src/ext/dsq", "DSQs"),
    ("kernel/src/ext/insert.rs", "DSQs"),
    ("kernel/src/ext", "other parts of sched_ext"),
    ("kernel/src/bpf", "fields that programs see"),
    ("fair/src", "EEVDF, load, balancing"),
    ("kernel/src/schedule/default_class.rs", "EEVDF, load, balancing"),
    ("kernel/src/schedule", "scheduling passes, ticks, wake-ups"),
    ("kernel/src/kernel", "clock and event loop"),
    ("kernel/src/task", "tasks and their steps"),
    ("kernel/src/cgroup", "tasks and their steps"),
    ("kernel/src/cpu", "state of CPUs, locks, caches"),
    ("kernel/src/metrics", "metrics"),
    ("machine/src", "event queue"),
    ("trace/src", "hash of the trace"),
    ("workload/src", "workload"),
];

const WAYS: &str = "ways in and out of programs";
const COMPILER: &str = "compiler";
const PROGRAMS: &str = "programs' own machine code";
const REST: &str = "everything else";

/// Paths of modules whose functions programs call.
const CALLED: [(&str, &str); 3] = [
    ("ext::kfunc::", "kernel function"),
    ("scxlab_bpf::kfunc::", "built-in function"),
    ("scxlab_bpf::helper::", "helper"),
];

/// Number of rows of the table of called functions.
const ROWS: usize = 30;

/// Instructions by group, and calls with their instructions by called function.
#[derive(Default)]
pub struct Parts {
    groups: BTreeMap<&'static str, f64>,
    called: BTreeMap<String, [f64; 2]>,
}

impl Parts {
    /// Sums a profile up.
    pub fn of(profile: &Profile) -> Result<Parts, Box<dyn Error>> {
        let (own, calls) = profile.costs()?;
        let mut parts = Parts::default();
        for place in own {
            let library = place.file.contains("/rustc/") || place.file.contains("/library/");
            let file = if library { place.home } else { place.file };
            *parts.groups.entry(group(place.function, file)).or_default() += place.insns;
        }
        for call in calls {
            let Some((path, kind)) = CALLED.iter().find(|(path, _)| call.callee.contains(path))
            else {
                continue;
            };
            let inside = call.caller.contains(path) && !call.caller.contains("helper::call");
            if !inside && !call.callee.contains("helper::call") {
                let name = call.callee.rsplit_once(path).map_or(call.callee, |(_, name)| name);
                let entry = parts.called.entry(format!("{kind} {name}")).or_default();
                entry[0] += call.count;
                entry[1] += call.insns;
            }
        }
        Ok(parts)
    }

    /// Prints the table of a run of `seconds` virtual seconds: millions of instructions per virtual
    /// second, and shares; then the called functions with most instructions.
    pub fn print(&self, seconds: f64) {
        let all: f64 = self.groups.values().sum();
        let mut groups: Vec<_> = self.groups.iter().filter(|(_, insns)| **insns > 0.0).collect();
        groups.sort_by(|a, b| b.1.total_cmp(a.1));
        println!("{:>10}  {:>6}", "M insns", "share");
        println!("{:>10.1}  {:>6}", all / seconds / 1e6, "");
        for (name, insns) in groups {
            println!("{:>10.1}  {:>5.1}%  {name}", insns / seconds / 1e6, insns / all * 100.0);
        }
        let mut called: Vec<_> = self.called.iter().filter(|(_, [n, _])| *n > 0.0).collect();
        called.sort_by(|a, b| b.1[1].total_cmp(&a.1[1]));
        println!("{:>10}  {:>6}  {:>10} {:>8}", "M insns", "share", "calls/ms", "per call");
        for (name, [count, insns]) in called.into_iter().take(ROWS) {
            println!(
                "{:>10.1}  {:>5.1}%  {:>10.1} {:>8.0}  {name}",
                insns / seconds / 1e6,
                insns / all * 100.0,
                count / seconds / 1e3,
                insns / count
            );
        }
    }
}

/// Returns the group of a function's instructions in a file. Machine code of programs has neither a
/// name nor a file; its names are addresses.
fn group(function: &str, file: &str) -> &'static str {
    if function.starts_with("0x") {
        return PROGRAMS;
    }
    let found = GROUPS.iter().find(|(part, _)| file.contains(part) || function_in(function, part));
    found.map_or(REST, |(_, group)| group)
}

/// Returns whether a function of Rust's library is a variant for a crate, such as `cranelift`.
fn function_in(function: &str, part: &str) -> bool {
    ["cranelift", "regalloc", "hashbrown"].contains(&part) && function.contains(part)
}
