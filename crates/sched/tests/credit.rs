// SPDX-License-Identifier: GPL-2.0-only
//! Tests of `bpf/sched/credit`, Xen's credit scheduler: shares, caps, preemption by wake-ups,
//! bounds on waiting times, and changes while the scheduler runs.

#[path = "credit/caps.rs"]
mod caps;
#[path = "credit/life.rs"]
mod life;
#[path = "credit/shares.rs"]
mod shares;
#[path = "credit/tickle.rs"]
mod tickle;
#[path = "credit/wakeups.rs"]
mod wakeups;

use scxlab_kernel::Kernel;
use scxlab_loader::link::Loaded;
use scxlab_machine::Machine;
use scxlab_testkit::checks::{Contract, run_checked};
use scxlab_testkit::sim::{attach_shipped, kernel_on};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// A domain in Xen's sense, which is a cgroup of the workload; its tasks (vCPUs) never sleep.
struct Dom {
    weight: u32,
    /// Maximum CPU time, in hundredths of a CPU; None: no limit.
    cap: Option<u32>,
    tasks: u32,
}

impl Dom {
    fn weighing(weight: u32) -> Dom {
        Dom { weight, cap: None, tasks: 1 }
    }

    fn capped(cap: u32, tasks: u32) -> Dom {
        Dom { weight: 100, cap: Some(cap), tasks }
    }
}

/// Returns the workload; domain `i` is the cgroup `/di`.
fn saturating(doms: &[Dom]) -> String {
    let mut text = "duration = '60s'\n".to_owned();
    for (i, dom) in doms.iter().enumerate() {
        let quota = dom.cap.map_or(String::new(), |cap| format!("quota = '{cap}ms'"));
        text += &format!(
            "[[cgroup]]\npath = '/d{i}'\nweight = {}\n{quota}\n[[thread]]\nname = 'd{i}'\n\
             instances = {}\ncgroup = '/d{i}'\nops = [{{ loop = {{ ops = [{{ compute = '10ms' }}] }} }}]\n",
            dom.weight, dom.tasks
        );
    }
    text
}

fn attached(machine: &str, text: &str, knobs: &[(&str, &str)]) -> (Kernel, Loaded) {
    attached_to(Machine::resolve(machine).expect("a machine"), text, knobs)
}

fn attached_to(machine: Machine, text: &str, knobs: &[(&str, &str)]) -> (Kernel, Loaded) {
    let mut k = kernel_on(machine, text, 1);
    let loaded = attach_shipped(&mut k, "credit", knobs);
    (k, loaded)
}

/// Runs for `duration` and checks the laws that hold in every simulation (testkit's `LawChecker`);
/// the scheduler must still be loaded.
fn run_for(k: &mut Kernel, duration: u64) {
    run_checked(k, duration, SECOND / 10, Contract::default()).unwrap();
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
}

/// Continues the run of a started kernel for `duration`. At the end, checks the same laws as
/// `run_for`; the scheduler must still be loaded.
fn go_on(k: &mut Kernel, duration: u64) {
    k.advance(k.now + duration);
    scxlab_testkit::checks::after(k);
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
}

/// Asserts that `got` is within `percent` of `wanted`, relative to `wanted`.
fn assert_near(what: &str, got: f64, wanted: f64, percent: f64) {
    let off = (got / wanted - 1.0) * 100.0;
    assert!(off.abs() <= percent, "{what}: {got:.4}, wanted {wanted:.4}: {off:+.2} %");
}

/// Changes the settings of a cgroup while the kernel runs.
fn set(k: &mut Kernel, path: &str, change: impl FnOnce(&mut scxlab_kernel::behavior::CgroupSpec)) {
    use scxlab_kernel::behavior::Sys;
    let group = k.cgroups.iter().find(|g| g.path == path).expect("it exists");
    let (id, mut spec) = (group.id, group.spec);
    change(&mut spec);
    k.user(|k| k.set_cgroup(id, spec)).expect("accepted");
}

/// Returns the longest time for which a task was runnable and did not run, including waits that
/// have not ended.
fn longest_wait(k: &Kernel) -> u64 {
    let going_on = k.tasks.iter().filter_map(|t| t.account.waiting_since).map(|at| k.now - at);
    going_on.max().unwrap_or(0).max(k.metrics.run_queue_wait.max())
}
