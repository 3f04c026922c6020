// SPDX-License-Identifier: GPL-2.0-only
//! Random workloads for a machine with a given number of CPUs, in the format of workload files.

use super::pick;
use scxlab_machine::Stream;

/// Kind of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomLoad {
    /// CPU hogs: fewer than the machine has CPUs, as many, or more.
    Hogs,
    /// Tasks that run and sleep for up to 5 ms each, and hogs beside them.
    Sleepers,
    /// One task that forks many hogs at once.
    Burst,
    /// Hogs that may run on two CPUs only, beside unbound hogs.
    Pinned,
    /// Hogs that bind themselves to one CPU and remove the binding again.
    Shifting,
    /// Hogs of different nice values.
    Nice,
    /// Hogs in cgroups of different weights, some of them nested.
    Groups,
    /// Hogs of policy SCHED_IDLE beside normal ones.
    Idle,
}

/// All kinds of workload.
pub const LOADS: [RandomLoad; 8] = [
    RandomLoad::Hogs,
    RandomLoad::Sleepers,
    RandomLoad::Burst,
    RandomLoad::Pinned,
    RandomLoad::Shifting,
    RandomLoad::Nice,
    RandomLoad::Groups,
    RandomLoad::Idle,
];

/// Draws a workload of a kind. Affinities name CPU 0 and another CPU, so that a task always has a
/// CPU while CPU 0 is on line.
pub fn load(kind: RandomLoad, seed: u64, cpus: u64) -> String {
    let mut rng = Stream::new(seed, "load", kind as u64);
    let few = rng.between(1, cpus);
    let many = pick(&mut rng, &[cpus, cpus + 1, cpus + cpus / 2, 2 * cpus, 3 * cpus]);
    let hogs = if rng.below(3) == 0 { few } else { many };
    match kind {
        RandomLoad::Hogs => thread("hog", hogs, "", HOG),
        RandomLoad::Sleepers => {
            let (run, sleep) = (rng.between(200, 5000), rng.between(200, 5000));
            let ops = format!("{{ compute = \"{run}us\" }}, {{ sleep = \"{sleep}us\" }}");
            thread("hog", few, "", HOG) + &thread("sleeper", many, "", &ops)
        }
        RandomLoad::Burst => {
            let ops = format!(
                "{{ loop = {{ times = {many}, ops = [{{ fork = \"hog\" }}] }} }}, {{ sleep = \"1s\" }}"
            );
            thread("burst", 1, "", &ops) + &thread("hog", 0, "", HOG)
        }
        RandomLoad::Pinned => {
            let other = rng.below(cpus);
            let bound = rng.between(1, 4);
            thread("bound", bound, &format!("cpus = \"0,{other}\""), HOG)
                + &thread("hog", hogs, "", HOG)
        }
        RandomLoad::Shifting => {
            let (bound, free) = (rng.between(5, 40), rng.between(5, 200));
            let ops = format!(
                "{{ compute = \"{free}ms\" }}, {{ set_affinity = \"0\" }}, {{ compute = \"{bound}ms\" }}, \"clear_affinity\""
            );
            thread("shifting", hogs, "", &ops)
        }
        RandomLoad::Nice => {
            let nice = rng.between(0, 39) as i64 - 20;
            thread("nice", few, &format!("nice = {nice}"), HOG) + &thread("hog", hogs, "", HOG)
        }
        RandomLoad::Groups => {
            let cgroup =
                |path: &str, weight| format!("[[cgroup]]\npath = \"{path}\"\nweight = {weight}\n");
            cgroup("/a", rng.between(1, 1000))
                + &cgroup("/b", rng.between(1, 1000))
                + &cgroup("/b/c", rng.between(1, 1000))
                + &thread("hog", hogs, "cgroup = \"/a\"", HOG)
                + &thread("few", few, "cgroup = \"/b/c\"", HOG)
        }
        RandomLoad::Idle => {
            thread("idle", hogs, "policy = \"idle\"", HOG) + &thread("hog", few, "", HOG)
        }
    }
}

const HOG: &str = "{ compute = \"1ms\" }";

fn thread(name: &str, instances: u64, more: &str, ops: &str) -> String {
    format!(
        "[[thread]]\nname = \"{name}\"\ninstances = {instances}\n{more}\nops = [{{ loop = {{ ops = [{ops}] }} }}]\n"
    )
}
