// SPDX-License-Identifier: GPL-2.0-only
//! Affinity and cpusets: a task's affinity request, limited by its cgroup's cpuset, in the default
//! class and in the class of sched_ext.

use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::Sys;
use scxlab_machine::cpumask::{self, CpuMask};
use scxlab_machine::id::CpuId;
use scxlab_testkit::checks;
use scxlab_testkit::sim::{attach, kernel};

const MS: u64 = 1_000_000;

const TWO_GROUPS: &str = r#"
    duration = "1s"
    [[cgroup]]
    path = "/left"
    cpus = "0-1"
    [[cgroup]]
    path = "/free"
    [[thread]]
    name = "l"
    instances = 4
    cgroup = "/left"
    ops = [{ loop = { ops = [{ compute = "3ms" }, { sleep = "1ms" }] } }]
    [[thread]]
    name = "f"
    instances = 2
    cgroup = "/free"
    ops = [{ loop = { ops = [{ compute = "3ms" }, { sleep = "1ms" }] } }]
"#;

fn started(scheduler: &str) -> Kernel {
    let mut k = kernel("4c", TWO_GROUPS, 1);
    if let Some(shipped) = scxlab_sched::find(scheduler) {
        attach(&mut k, scheduler, shipped.object, &[]);
    }
    k.start();
    k
}

/// Samples for 50 ms the CPUs on which tasks of a cgroup run.
fn seen(k: &mut Kernel, path: &str) -> CpuMask {
    let group = k.cgroups.iter().find(|g| g.path == path).expect("it exists").id;
    let mut cpus = CpuMask::new(k.cpus.len());
    for at in (k.now / MS + 1)..(k.now / MS + 50) {
        k.advance(at * MS);
        for t in k.tasks.iter().filter(|t| t.cgroup == group && t.on_cpu) {
            cpumask::set(&mut cpus, t.cpu);
        }
    }
    checks::after(k);
    cpus
}

#[test]
fn a_cpuset_confines_its_tasks() {
    for scheduler in ["eevdf", "vtime"] {
        let mut k = started(scheduler);
        assert_eq!(seen(&mut k, "/left"), CpuMask::of(4, [CpuId(0), CpuId(1)]), "{scheduler}");
        assert!(k.ext.exits.is_empty(), "{scheduler}: {:?}", k.ext.exits);
    }
}

#[test]
fn a_cpuset_that_changes_moves_its_tasks() {
    for scheduler in ["eevdf", "vtime"] {
        let mut k = started(scheduler);
        k.advance(20 * MS);
        let left = k.cgroups.iter().find(|g| g.path == "/left").expect("it exists").id;
        let other = CpuMask::of(4, [CpuId(3)]);
        k.user(|k| k.set_cpuset(left, Some(&other))).unwrap();
        k.advance(30 * MS);
        assert_eq!(seen(&mut k, "/left"), other, "{scheduler}");
        assert!(k.ext.exits.is_empty(), "{scheduler}: {:?}", k.ext.exits);
    }
}

#[test]
fn what_a_task_asked_for_comes_back_with_its_freedom() {
    let mut k = started("eevdf");
    k.advance(5 * MS);
    let task = k.tasks.iter().find(|t| t.name.starts_with('f')).expect("it runs").id;
    let wish = CpuMask::of(4, [CpuId(2)]);
    k.user(|k| k.set_affinity(task, &wish)).unwrap();
    let left = k.cgroups.iter().find(|g| g.path == "/left").expect("it exists").id;
    k.user(|k| k.move_to_cgroup(task, left)).unwrap();
    // No CPU of the requested mask is left: the task gets the whole cpuset.
    assert_eq!(k.tasks[task].cpus, CpuMask::of(4, [CpuId(0), CpuId(1)]));
    let free = k.cgroups.iter().find(|g| g.path == "/free").expect("it exists").id;
    k.user(|k| k.move_to_cgroup(task, free)).unwrap();
    assert_eq!(k.tasks[task].cpus, wish);
    assert!(k.user(|k| k.set_cpuset(left, Some(&CpuMask::new(4)))).is_err());
    checks::after(&k);
}
