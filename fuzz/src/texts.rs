// SPDX-License-Identifier: GPL-2.0-only
//! Texts that users write or other programs produce: any text is either refused with a reason or
//! accepted.
//!
//! Promises: no panic and no endless loop; reading twice gives the same; an accepted text can be
//! used.

use std::sync::Arc;

use scxlab_kernel::abi::KERNEL_BTF;
use scxlab_lab::compare::compare;
use scxlab_lab::input::{RecipeInput, SchedulerInput};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::run::Run;
use scxlab_lab::scheduler::SchedulerArg;
use scxlab_loader::btf::Btf;
use scxlab_machine::{Machine, cpumask};
use scxlab_workload::{ExecConfig, Executor, NodeInfo, load, parse_workload_arg};

use crate::null_sys::NullSys;

const CPUS: u32 = 4;

fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

/// Asserts that a refusal has a reason.
fn refused(error: impl std::fmt::Display) {
    assert!(!error.to_string().is_empty(), "a refusal without a reason");
}

/// Checks a machine file or a machine spec.
pub fn machine(data: &[u8]) {
    let Some(text) = text(data) else { return };
    if text.len() < 64
        && let Err(error) = Machine::from_spec(text)
    {
        refused(error);
    }
    let read = || Machine::from_toml("fuzz.toml", text);
    match read() {
        Err(error) => refused(error),
        Ok(machine) => same_machine(&machine, &read().expect("as before")),
    }
}

/// Checks output of `lstopo --of xml`.
pub fn lstopo(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let read = || Machine::from_lstopo("fuzz.xml", text);
    match read() {
        Err(error) => refused(error),
        Ok(machine) => same_machine(&machine, &read().expect("as before")),
    }
}

fn same_machine(a: &Machine, b: &Machine) {
    assert_eq!(a.canonical(), b.canonical(), "reading is a function");
    let cpus = a.topology.nr_cpus();
    assert!(cpus > 0, "a machine without CPUs");
    let in_nodes: u32 = a.topology.nodes().iter().map(|n| cpumask::weight(&n.cpus)).sum();
    assert_eq!(in_nodes as usize, cpus, "each CPU is in one node");
}

/// Checks a workload file in TOML or JSON, or a generator's argument; an accepted workload runs on
/// a kernel without scheduling.
pub fn workload(data: &[u8]) {
    let Some(text) = text(data) else { return };
    if text.len() < 256
        && let Err(error) = parse_workload_arg(text)
    {
        refused(error);
    }
    let program = match load("fuzz.toml", text) {
        Ok(program) => program,
        Err(error) => return refused(error),
    };
    assert_eq!(Ok(&program), load("fuzz.toml", text).as_ref(), "reading is a function");
    let nodes = vec![NodeInfo { memory_bytes: 1 << 30 }; 2];
    let config = ExecConfig { nr_cpus: CPUS, nodes, ..ExecConfig::default() };
    match Executor::new(&program, config) {
        Ok(mut executor) => NullSys::new(CPUS).run(&mut executor),
        Err(error) => refused(error),
    }
}

/// Checks a value of `-s` in the first line and a recipe after it: both are applied to a shipped
/// scheduler.
pub fn recipe(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let (arg, recipe) = text.split_once('\n').unwrap_or((text, ""));
    let arg = match SchedulerArg::parse(arg) {
        Ok(arg) => arg,
        Err(error) => return refused(error),
    };
    let shipped = scxlab_sched::find(&arg.name).unwrap_or(&scxlab_sched::shipped()[0]);
    thread_local! {
        static KERNEL: (Arc<Machine>, Btf) = (
            Arc::new(Machine::from_spec("2n2c2t").expect("a spec")),
            Btf::parse(KERNEL_BTF).expect("our own BTF"),
        );
    }
    KERNEL.with(|(machine, btf)| {
        let recipe = RecipeInput::Text { name: "fuzz.toml".into(), text: recipe.into() };
        let input =
            SchedulerInput::of_object(&arg.text, shipped.object, recipe).expect("as before");
        match Prepared::new(&input, machine, btf) {
            Ok(prepared) => assert!(prepared.object.is_some()),
            Err(error) => refused(error),
        }
    });
}

/// Checks results of runs in JSON, as the guest of a virtual machine sends them: results that can
/// be read can also be written, read again, and compared.
pub fn results(data: &[u8]) {
    let runs: Vec<Run> = match serde_json::from_slice(data) {
        Ok(runs) => runs,
        Err(error) => return refused(error),
    };
    let written = serde_json::to_string(&runs).expect("what was read can be written");
    let again: Vec<Run> = serde_json::from_str(&written).expect("and read again");
    assert_eq!(written, serde_json::to_string(&again).expect("as before"));
    for schedulers in 1..=runs.len().min(4) {
        if runs.len().is_multiple_of(schedulers) {
            let _ = compare(&runs, runs.len() / schedulers, schedulers);
        }
    }
}
