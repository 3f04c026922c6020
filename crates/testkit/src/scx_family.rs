// SPDX-License-Identifier: GPL-2.0-only
//! The published schedulers of the scx project, as their crates compile them. In place of a
//! scheduler's frontend, a recipe (a file in `recipes/`) sets up the object.
//!
//! Owns: the list, the requirements on each, and their table in the docs.
//! Does not: compile the objects (`make scx-objects` does), or define a frontend's work (`recipes/`
//! does).

pub mod versions;

use std::path::PathBuf;
use std::sync::Arc;

use scxlab_kernel::Kernel;
use scxlab_kernel::ext::op::Op;
use scxlab_kernel::kernel::Stop;
use scxlab_lab::input::{RecipeInput, SchedulerInput};
use scxlab_lab::prepare::{Prepared, PreparedObject};
use scxlab_lab::recipe;
use scxlab_lab::sim::attach;
use scxlab_loader::link::Loaded;
use scxlab_machine::Machine;
use scxlab_machine::id::Nanos;

use crate::checks::{Contract, run_checked};
use crate::sim;

/// A scheduler whose crate is `scx_<name>`.
#[derive(Clone, Copy, Debug)]
pub struct PublishedScheduler {
    pub name: &'static str,
}

pub static FAMILY: [PublishedScheduler; 14] = [
    PublishedScheduler { name: "beerland" },
    PublishedScheduler { name: "bpfland" },
    PublishedScheduler { name: "cake" },
    PublishedScheduler { name: "chaos" },
    PublishedScheduler { name: "cosmos" },
    PublishedScheduler { name: "flash" },
    PublishedScheduler { name: "flow" },
    PublishedScheduler { name: "forge" },
    PublishedScheduler { name: "lavd" },
    PublishedScheduler { name: "layered" },
    PublishedScheduler { name: "p2dq" },
    PublishedScheduler { name: "pandemonium" },
    PublishedScheduler { name: "rusty" },
    PublishedScheduler { name: "tickless" },
];

const MS: Nanos = 1_000_000;
/// Machines and workloads of the runs. The machines: one whose cores have two threads, and one of
/// several LLCs and nodes. The workloads: tasks that sleep and wake up, tasks that communicate and
/// exit, and tasks that never sleep. Tasks that never sleep run on the machine of one node only,
/// because some schedulers leave a task waiting as long as another node has an idle CPU.
const RUNS: [(&str, &str); 5] = [
    ("1n4c2t", "sleepers,tasks=24"),
    ("1n4c2t", "hackbench,groups=1,loops=10"),
    ("1n4c2t", "hogs,tasks=12,duration=none"),
    ("2n2l2c1t", "sleepers,tasks=24"),
    ("2n2l2c1t", "hackbench,groups=1,loops=10"),
];
const DURATION: Nanos = 250 * MS;

/// Output folder of `make scx-objects`.
pub fn objects_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../build/scx/objects")
}

impl PublishedScheduler {
    fn object(&self) -> PathBuf {
        objects_dir().join(format!("{}.bpf.o", self.name))
    }

    /// Runs the scheduler with its recipe; panics when it does not meet the requirements.
    pub fn check(&self) {
        for (machine, workload) in RUNS {
            self.run(machine, workload);
        }
    }

    /// Boots a machine with a workload and attaches the scheduler, but does not start the kernel.
    /// Panics if the attach fails.
    pub fn attached(&self, machine: &str, workload: &str) -> (Kernel, Loaded) {
        let mut k = sim::kernel(machine, workload, 1);
        let loaded = self.attach(&mut k, machine);
        (k, loaded)
    }

    /// Attaches the scheduler to a booted machine; `machine` is the name of that machine.
    pub fn attach(&self, k: &mut Kernel, machine: &str) -> Loaded {
        let path = self.object();
        let bytes = std::fs::read(&path).unwrap_or_else(|error| {
            panic!("{}: {error}; `make scx-objects` takes the objects", path.display())
        });
        let name = format!("{}.bpf.o", self.name);
        let (loaded, prepared) =
            attach_object(k, &name, &bytes, machine).unwrap_or_else(|why| panic!("{why}"));
        let found = prepared.recipe.map(|r| r.recipe.name.clone());
        assert_eq!(found, Some(format!("recipes/{}.toml", self.name)), "chosen by its ops");
        loaded
    }

    fn run(&self, machine: &str, workload: &str) {
        let place = format!("{} on {machine} with {workload}", self.name);
        let (mut k, _) = self.attached(machine, workload);
        let stop = run_checked(&mut k, DURATION, MS / 4, Contract::default())
            .unwrap_or_else(|broken| panic!("{place}: {broken:#?}"));
        stayed(&k, &stop, &place);
    }
}

/// Attaches an object to a booted machine, with the recipe that belongs to the object's ops table.
/// Returns the reason if the object is refused.
fn attach_object(
    k: &mut Kernel,
    file_name: &str,
    bytes: &[u8],
    machine: &str,
) -> Result<(Loaded, PreparedObject), String> {
    let machine = Arc::new(Machine::resolve(machine).unwrap_or_else(|e| panic!("{e}")));
    let input = SchedulerInput::of_object(file_name, bytes, RecipeInput::Auto);
    let input = input.unwrap_or_else(|e| panic!("{e}"));
    let prepared = Prepared::simulated(&input, &machine).map_err(|e| e.to_string())?;
    let prepared = prepared.object.expect("an object");
    let loaded = attach(k, &prepared, file_name, &machine).map_err(|e| e.to_string())?;
    Ok((loaded, prepared))
}

/// Asserts that the scheduler was not ejected, that every task ran, and that the scheduler's own
/// operations placed the tasks.
fn stayed(k: &Kernel, stop: &Stop, place: &str) {
    assert!(k.ext.exits.is_empty(), "{place}: {:?}", k.ext.exits);
    assert!(matches!(stop, Stop::Finished | Stop::AllExited), "{place}: {stop:?}");
    for task in k.tasks.iter().filter(|t| k.is_workload(t)) {
        assert!(task.account.run_ns > 0, "{place}: {} never ran", task.name);
    }
    let calls = |op: Op| k.ext.op_stats.0[op as usize].calls;
    let (queued, ran) = (calls(Op::SelectCpu) + calls(Op::Enqueue), calls(Op::Running));
    let tasks = k.metrics.forks;
    assert!(queued >= tasks && ran >= tasks, "{place}: {queued} queued, {ran} ran, {tasks} tasks");
    let switches: u64 = k.cpus.iter().map(|c| c.switches).sum();
    assert!(ran * 4 >= switches, "{place}: {ran} of {switches} switches were the scheduler's");
}

/// Returns the text of `docs/reference/scx-schedulers.md`.
pub fn table() -> String {
    let mut out = String::from(HEADER);
    for scheduler in &FAMILY {
        let name = scheduler.name;
        let (recipe, _) = recipe::find(name).expect("each has a recipe");
        let mut left_out = recipe.leaves_out.join("; ");
        if left_out.is_empty() {
            left_out.push_str("nothing");
        }
        if let Some(remark) = &recipe.remark {
            left_out += &format!(" ({remark})");
        }
        out += &format!("| scx_{name} | [{name}](../../recipes/{name}.toml) | {left_out} |\n");
    }
    out + VERSIONS_HEADER + &versions::rows()
}

const HEADER: &str = "\
<!-- SPDX-License-Identifier: GPL-2.0-only -->
<!-- Generated: BLESS=1 cargo test -p scxlab-testkit --test scx_family -->

# Published schedulers

Which schedulers of the scx project run here, in which versions, and what of each is left out. Their objects are used
unmodified, as their crates' build scripts leave them. `make scx-objects` takes them from crates.io:

    make scx-objects
    scxlab run -s eevdf -s build/scx/objects/lavd.bpf.o -s build/scx/objects/lavd-1.1.3.bpf.o -w hackbench -m 2n4c2t

`lavd.bpf.o` is the newest version that `tools/pins.txt` names. A [recipe](recipes.md) does what a scheduler's
frontend does before it attaches, with the frontend's defaults. It is chosen by the name in the object's ops table;
`-s OBJECT,recipe=none` runs the object without one, and `recipe=FILE` with another.

## What is left out

Each run of a scheduler says what its recipe leaves out of the frontend, under the table and in `runs[].left_out`. Each
run also names the programs that watch the kernel and that its target does not run: simulated, those on anything but
`tp_btf/sched_switch`.

scx_layered is the largest: emulated, a kernel's verifier takes 10 s of the guest's time for it. Give such a run a longer
`--deadline`.

| scheduler | recipe | left out |
|---|---|---|
";

const VERSIONS_HEADER: &str = "
## Versions

The three newest published versions of each, as of November 2026. `make test` runs the newest of each on two machines
under several workloads: none may be ejected, every task must run, through the scheduler's own operations, and the
conservation laws must hold. It runs each version below on the machines 1n4c2t, 2n8l16c2t and epyc-2s (8, 512 and 256
CPUs) for 10 ms. \"Runs\" means that it is attached and not ejected there. \"Without\" lists what the recipe sets in
newer versions only: the older frontend does not set it either, since its object has no such thing. A run says so in a
note.

scx_rustland and scx_rlfifo share an object, and order tasks in a process. That process is not run, so they are refused.

scx_mitosis is not published on crates.io (its manifest has `publish = false`), so no object of it is tested here, and
it has no recipe. A run of an object without a recipe says what only a frontend can fill or run.

The objects of scx_p2dq 1.1.2 and scx_chaos 1.1.2 have an instruction, when clang 19 compiles them, that Linux refuses.

| scheduler | version | recipe | result |
|---|---|---|---|
";
