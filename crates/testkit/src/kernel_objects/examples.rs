// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's example schedulers, prepared as their frontends prepare them, each under a mixed
//! load.

use super::bench::{Child, MS, SEC, TestMachine, resize, set};
use super::ejections::UNREG;
use super::load::{background, mixed, mixed_in, run_and_progress, seconds};
use super::script::{Script, hog, sleeper};
use scxlab_bpf::map::{MapDef, map_type};
use scxlab_kernel::behavior::{CgroupSpec, Sys, TaskSpec};
use scxlab_kernel::task::Class;
use scxlab_loader::link::Loaded;
use scxlab_machine::id::{CgroupId, CpuId, Nanos};

const SLICE_DFL: u64 = 20 * MS;

/// Function that makes one task's script, its behaviour.
type Make = fn() -> Script;

/// Returns one counter of a per-CPU array, summed over CPUs.
fn stat(b: &TestMachine, loaded: &Loaded, map: &str, index: u32) -> u64 {
    let map = loaded.map(map).expect("the map of counters");
    let copies = b.k.vm.map_lookup(map, &index.to_le_bytes()).expect("an element");
    copies.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes"))).sum()
}

/// Detaches the scheduler, and asserts that the exit record names this detach as the reason of the
/// exit.
fn leave(b: &mut TestMachine, loaded: &Loaded) {
    b.detach();
    b.expect_kind(loaded, UNREG);
}

pub fn simple(b: &mut TestMachine) {
    let quiet = background(b);
    let mut tasks = Vec::new();
    for fifo in [0, 1] {
        let mut open = b.open("scx_simple");
        set(&mut open, "fifo_sched", fifo);
        let loaded = b.load(open);
        b.attach(&loaded, "simple_ops");
        if fifo == 0 {
            run_and_progress(b, &quiet, 1);
            assert!(stat(b, &loaded, "stats", 0) > 100, "tasks went to idle CPUs");
            tasks = mixed(b);
        }
        run_and_progress(b, &tasks, 2);
        assert!(stat(b, &loaded, "stats", 1) > 1000, "tasks went to the shared queue");
        leave(b, &loaded);
        b.k.ext.exits.clear();
    }
}

/// scx_cpu0: tasks that wake up and may run on CPU 0 run on CPU 0.
pub fn cpu0(b: &mut TestMachine) {
    let tasks = mixed(b);
    let loaded = b.open_and_load("scx_cpu0");
    b.attach(&loaded, "cpu0_ops");
    run_and_progress(b, &tasks, 2);
    assert!(stat(b, &loaded, "stats", 1) > 50, "tasks went to CPU 0's queue");
    // A task that ran on another CPU at attach stays there until it wakes up.
    let woken = tasks.iter().filter(|t| ["sleeper", "short"].contains(&&*b.k.tasks[t.task].name));
    for t in woken {
        assert_eq!(b.k.tasks[t.task].cpu.0, 0, "pid {}", t.pid);
    }
    leave(b, &loaded);
}

/// scx_central: CPU 0 dispatches for all CPUs, driven by a timer; tasks on other CPUs get infinite
/// slices. All tasks must make progress, and the scheduler's queue must not overflow.
pub fn central(b: &mut TestMachine) {
    let mut open = b.open("scx_central");
    let nr = u64::from(b.nr_cpus());
    set(&mut open, "central_cpu", 0);
    set(&mut open, "nr_cpu_ids", nr);
    set(&mut open, "slice_ns", SLICE_DFL);
    resize(&mut open, "cpu_gimme_task", nr);
    resize(&mut open, "cpu_started_at", nr);
    let tasks = mixed(b);
    let loaded = b.load(open);
    b.attach(&loaded, "central_ops");
    run_and_progress(b, &tasks, 3);
    for counter in ["nr_total", "nr_locals", "nr_dispatches", "nr_timers"] {
        assert!(b.get(&loaded, counter) > 100, "{counter}: {}", b.get(&loaded, counter));
    }
    assert_eq!(b.get(&loaded, "nr_overflows"), 0);
    leave(b, &loaded);
}

/// scx_sdt: every task has arena memory, which the scheduler allocates and frees. The tasks must
/// make progress.
pub fn sdt(b: &mut TestMachine) {
    let tasks = mixed(b);
    let loaded = b.open_and_load("scx_sdt");
    b.attach(&loaded, "sdt_ops");
    run_and_progress(b, &tasks, 3);
    leave(b, &loaded);
}

/// scx_flatcg: CPU time follows the product of weights along the cgroup tree.
pub fn flatcg(b: &mut TestMachine) {
    let mut open = b.open("scx_flatcg");
    set(&mut open, "nr_cpus", u64::from(b.nr_cpus()));
    set(&mut open, "cgrp_slice_ns", SLICE_DFL);
    let loaded = b.load(open);
    let weight = |weight| CgroupSpec { weight, ..CgroupSpec::default() };
    // Cgroup a has a weight of 100 of 400. Cgroup b has 300 of 400, of which b/x gets a third and
    // b/y two thirds.
    let groups = b.k.user(|k| {
        let a = k.mkdir(CgroupId(0), "a", weight(100))?;
        let parent = k.mkdir(CgroupId(0), "b", weight(300))?;
        Ok::<_, scxlab_kernel::behavior::SysError>([
            (a, 250),
            (k.mkdir(parent, "x", weight(100))?, 250),
            (k.mkdir(parent, "y", weight(200))?, 500),
        ])
    });
    let groups = groups.expect("mkdir");
    let mut tasks = Vec::new();
    for (cgroup, _) in groups {
        let scripts: [(&str, Make); 2] = [("hog", hog), ("nap", || sleeper(5 * MS, MS))];
        for (name, script) in scripts {
            tasks.extend(
                (0..b.nr_cpus())
                    .map(|_| b.spawn(TaskSpec { cgroup, ..TaskSpec::normal(name) }, script())),
            );
        }
    }
    b.attach(&loaded, "flatcg_ops");
    run_and_progress(b, &tasks, 1);
    let used = |b: &TestMachine| groups.map(|(g, _)| b.k.cgroups.get(g).map_or(0, |g| g.run_ns));
    let before = used(b);
    run_and_progress(b, &tasks, 4);
    let ran: Vec<Nanos> = used(b).iter().zip(before).map(|(now, then)| now - then).collect();
    let total: Nanos = ran.iter().sum();
    for ((_, permille), ran) in groups.iter().zip(&ran) {
        let share = ran * 1000 / total;
        assert!(
            share.abs_diff(*permille) <= 40,
            "{share} instead of {permille} permille of {ran:?}"
        );
    }
    b.k.user(|k| k.set_cgroup(groups[0].0, weight(900))).expect("weight");
    b.sleep(SEC / 2);
    let before = used(b);
    b.sleep(seconds(2));
    let ran: Vec<Nanos> = used(b).iter().zip(before).map(|(now, then)| now - then).collect();
    let share = ran[0] * 1000 / ran.iter().sum::<Nanos>();
    assert!(share.abs_diff(750) <= 60, "{share} instead of 750 permille after the weight changed");
    leave(b, &loaded);
}

/// scx_pair: the two CPUs of a pair run tasks of one cgroup only.
pub fn pair(b: &mut TestMachine) {
    const MAX_CGRPS: u32 = 4096;
    const MAX_QUEUED: u32 = 4096;
    let mut open = b.open("scx_pair");
    pair_up(&mut open, b.nr_cpus());
    let loaded = b.load(open);
    let queues = loaded.map("cgrp_q_arr").expect("a map of maps");
    for i in 0..MAX_CGRPS {
        let queue = MapDef {
            name: String::new(),
            map_type: map_type::QUEUE,
            key_size: 0,
            value_size: 4,
            max_entries: MAX_QUEUED,
            map_flags: 0,
            map_extra: 0,
            numa_node: None,
            inner: None,
            special: Vec::new(),
        };
        let inner = b.k.vm.create_map(loaded.instance, &queue).expect("a queue");
        b.k.vm.map_set_inner(queues, &i.to_le_bytes(), inner).expect("a slot");
    }
    let group = |b: &mut TestMachine, name: &str| {
        b.k.user(|k| k.mkdir(CgroupId(0), name, CgroupSpec::default())).expect("mkdir")
    };
    let groups = [group(b, "one"), group(b, "two")];
    let mut tasks = mixed_in(b, &groups);
    // The program queues a cgroup once more each time that the cgroup empties and fills again. This
    // starves a cgroup that never empties, so both cgroups get more tasks than the pairs of CPUs
    // can run.
    for i in 0..4 * b.nr_cpus() {
        let cgroup = groups[i as usize % 2];
        tasks.push(b.spawn(TaskSpec { cgroup, ..TaskSpec::normal("hog") }, hog()));
    }
    b.attach(&loaded, "pair_ops");
    run_and_progress(b, &tasks, 3);
    for counter in ["nr_total", "nr_dispatched", "nr_kicks", "nr_exps", "nr_cgrp_next"] {
        assert!(b.get(&loaded, counter) > 10, "{counter}: {}", b.get(&loaded, counter));
    }
    assert!(b.get(&loaded, "nr_preemptions") > 100, "sched_switch sees the real-time task");
    same_cgroup_on_pairs(b);
    leave(b, &loaded);
}

/// Pairs CPU `i` of the first half with CPU `i` of the second.
fn pair_up(open: &mut scxlab_loader::link::OpenObject, nr: u32) {
    let half = nr / 2;
    set(open, "nr_cpu_ids", u64::from(nr));
    set(open, "pair_batch_dur_ns", SLICE_DFL);
    assert!(open.set_max_entries("pair_ctx", half));
    for array in ["pair_cpu", "pair_id", "in_pair_idx"] {
        resize(open, array, u64::from(nr));
    }
    for cpu in 0..nr {
        set(open, &format!("pair_cpu[{cpu}]"), u64::from((cpu + half) % nr));
        set(open, &format!("pair_id[{cpu}]"), u64::from(cpu % half));
        set(open, &format!("in_pair_idx[{cpu}]"), u64::from(cpu / half));
    }
}

/// Samples the tasks on both CPUs of each pair, and asserts that tasks of the scheduler mostly have
/// the same cgroup. They do not always, because the program dispatches through the global DSQ, from
/// which any CPU may take.
fn same_cgroup_on_pairs(b: &mut TestMachine) {
    let half = b.k.cpus.len() / 2;
    let (mut together, mut apart) = (0, 0);
    for _ in 0..1000 {
        b.sleep(MS / 2 + 37_000);
        for cpu in 0..half {
            let of = |cpu: usize| {
                let task = &b.k.tasks[b.k.cpus[CpuId(cpu as u32)].curr];
                (task.class == Class::Ext && task.cgroup != CgroupId(0)).then_some(task.cgroup)
            };
            match (of(cpu), of(cpu + half)) {
                (Some(one), Some(other)) if one == other => together += 1,
                (Some(_), Some(_)) => apart += 1,
                _ => {}
            }
        }
    }
    assert!(together > 200, "{together} samples of a busy pair");
    assert!(apart * 10 < together, "{apart} samples with two cgroups, {together} with one");
}

/// scx_userland: a user process orders all tasks but pinned ones by virtual time. All tasks must
/// make progress.
pub fn userland(b: &mut TestMachine) {
    super::userland::run(b, |b, loaded, scheduler| {
        let tasks: Vec<Child> = mixed(b);
        b.attach(loaded, "userland_ops");
        run_and_progress(b, &tasks, 3);
        assert!(b.k.tasks[scheduler.task].account.run_ns > 0);
        assert!(b.get(loaded, "nr_user_enqueues") > 1000, "tasks were ordered in user space");
        assert!(b.get(loaded, "nr_kernel_enqueues") > 100, "pinned tasks were not");
        assert_eq!(b.get(loaded, "nr_failed_enqueues"), 0);
        leave(b, loaded);
    });
}
