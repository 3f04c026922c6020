// SPDX-License-Identifier: GPL-2.0-only
//! A law about the sums that `fair` keeps for each cgroup (a group) and for the group's queue on
//! each CPU. After every step of the scenarios below, the test computes these sums anew from the
//! object's memory. `Sums::check` states the law.

use std::collections::BTreeMap;

use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::{CgroupSpec, Sys};
use scxlab_kernel::task::TaskState;
use scxlab_loader::link::Loaded;
use scxlab_machine::CpuMask;
use scxlab_machine::id::{CgroupId, CpuId, TaskId};
use scxlab_testkit::shipped::scheduled;
use scxlab_testkit::state::{Record, StructLayout, global, pointer, task_pointer};

use crate::{Dice, MS, stayed};

const MODES: [&str; 2] = ["fair", "fair,load=FAIR_LOAD_PELT"];

/// Time in ns after which an empty queue must have faded to zero, by kind of load tracking: four
/// windows, or as many halvings as the largest weight has bits. In both cases, 32 ms are added for
/// the walk by which another CPU updates idle CPUs every 16 ms.
const FADED: [u64; 2] = [40 * MS + 32 * MS, 18 * (32 << 20) + 32 * MS];

/// Time in ns after which a queue's windows have forgotten the largest weight (nice -20) beside the
/// smallest (nice 19): halvings, at least one in each walk of 16 ms.
const SETTLED: u64 = (13 * 16 + 32) * MS;

const QUEUE: &[&str] = &[
    "nr",
    "depth",
    "weight",
    "leaf",
    "leaf_below",
    "throttled",
    "se.on_rq",
    "se.ran",
    "se.weight",
    "se.contrib",
    "se.q",
    "se.avg.runnable",
    "se.avg.running",
    "se.avg.period",
    "load_avg",
    "load_period",
    "load_stamp",
    "load_last",
    "load_contrib",
    "runnable_load",
    "blocked_load",
    "removed_load",
    "tg_load_contrib",
    "tg_runnable_contrib",
    "tg_usage_contrib",
];
const GROUP: &[&str] =
    &["rqs", "used", "depth", "load_weight", "load_avg", "runnable_avg", "usage_avg"];
const TASK: &[&str] = &["se.q", "se.on_rq", "se.weight", "se.contrib"];

/// Sums over the runnable entities of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EntitySums {
    nr: i64,
    weight: i64,
    load: i64,
}

/// A queue's state, and the time of the state's last change.
#[derive(Clone, Copy)]
struct QueueSnapshot {
    since: u64,
    weight: i64,
    /// Load left in the queue, by either kind of load tracking: the sum of `load_avg` and
    /// `blocked_load`.
    left: i64,
    runnable: i64,
    /// CPU time in ns.
    ran: i64,
}

pub struct Sums {
    pelt: bool,
    /// Whether the run has no sleeping tasks and no limits. If so, a weight that is equal at two
    /// checks has not changed between them.
    steady: bool,
    queue: StructLayout,
    group: StructLayout,
    task: StructLayout,
    /// Indexed by the queue's address.
    since: BTreeMap<u64, QueueSnapshot>,
}

impl Sums {
    pub fn new(loaded: &Loaded, pelt: bool, steady: bool) -> Sums {
        Sums {
            pelt,
            steady,
            queue: StructLayout::new(loaded, "fair_rq", QUEUE),
            group: StructLayout::new(loaded, "fair_group", GROUP),
            task: StructLayout::new(loaded, "fair_task", TASK),
            since: BTreeMap::new(),
        }
    }

    /// Sums the entities of each queue (tasks and child cgroups), by the queue's address.
    fn held(&self, k: &Kernel, loaded: &Loaded, groups: &[Record]) -> BTreeMap<u64, EntitySums> {
        let mut held: BTreeMap<u64, EntitySums> = BTreeMap::new();
        let mut add = |e: &Record| {
            if e.get("se.on_rq") != 0 {
                let at = held.entry(e.addr("se.q")).or_default();
                at.nr += 1;
                at.weight += e.get("se.weight");
                at.load += e.get("se.contrib");
            }
        };
        for addr in k.tasks.iter().filter_map(|t| task_pointer(k, loaded, t)) {
            add(&self.task.read(k, addr, 0));
        }
        for g in groups.iter().filter(|g| g.get("depth") > 0) {
            (0..k.cpus.len() as u64).for_each(|cpu| add(&self.queue.read(k, g.addr("rqs"), cpu)));
        }
        held
    }

    /// Checks the law for every group. The group's totals are the sums of its queues'
    /// contributions. A queue's contribution equals the queue's own value, except for small changes
    /// that the scheduler does not add to the totals. The queue's value is the sum over its
    /// entities. The values of an empty queue fade to zero after a while.
    pub fn check(&mut self, k: &Kernel, loaded: &Loaded) {
        let (first, slots) = (pointer(k, loaded, "groups"), global(k, loaded, "nr_groups"));
        let groups: Vec<Record> = (0..slots as u64).map(|g| self.group.read(k, first, g)).collect();
        let used = |g: &Record| g.get("used") != 0;
        let groups: Vec<Record> = groups.into_iter().filter(used).collect();
        let held = self.held(k, loaded, &groups);
        let mut since = std::mem::take(&mut self.since);
        for g in &groups {
            let queues = (0..k.cpus.len() as u64).map(|cpu| self.queue.read(k, g.addr("rqs"), cpu));
            let queues: Vec<Record> = queues.collect();
            let told = |path| queues.iter().map(|q| q.get(path)).sum::<i64>();
            for (total, part) in [
                ("load_weight", "load_contrib"),
                ("load_avg", "tg_load_contrib"),
                ("runnable_avg", "tg_runnable_contrib"),
                ("usage_avg", "tg_usage_contrib"),
            ] {
                assert_eq!(g.get(total), told(part), "{total} of a group, {} ns", k.now);
            }
            for (cpu, q) in queues.iter().enumerate() {
                let has = held.get(&q.at).copied().unwrap_or_default();
                let what = format!("depth {} on CPU {cpu}, {} ns", g.get("depth"), k.now);
                self.check_queue(q, has, &what);
                let now = QueueSnapshot {
                    since: k.now,
                    weight: q.get("weight"),
                    left: q.get("load_avg") + q.get("blocked_load"),
                    runnable: q.get("se.avg.runnable"),
                    ran: q.get("se.ran"),
                };
                let held_up = self.is_held(k, q);
                let entry = since.entry(q.at).or_insert(now);
                // A task may have been in the queue only between two checks. Such a visit shows by
                // the CPU time that the task used or the load that it left.
                let left = now.left > entry.left || now.runnable > entry.runnable;
                let visited = left || now.ran != entry.ran;
                let changed = entry.weight != now.weight || (visited && now.weight == 0);
                let start = if changed || held_up { k.now } else { entry.since };
                *entry = QueueSnapshot { since: start, ..now };
                if k.now - start > FADED[usize::from(self.pelt)] && g.get("depth") > 0 {
                    let what = format!("{what}, as it is since {start}");
                    self.check_old(q, k.now - start, &what);
                }
            }
        }
        self.since = since;
    }

    /// Tells whether the queue or a queue above it is throttled. Time stands still in such a queue.
    fn is_held(&self, k: &Kernel, q: &Record) -> bool {
        let above = (q.get("depth") > 0).then(|| self.queue.read(k, q.addr("se.q"), 0));
        q.get("throttled") != 0 || above.is_some_and(|up| self.is_held(k, &up))
    }

    fn check_queue(&self, q: &Record, has: EntitySums, what: &str) {
        let found =
            EntitySums { nr: q.get("nr"), weight: q.get("weight"), load: q.get("runnable_load") };
        let wanted = if self.pelt { has } else { EntitySums { load: found.load, ..has } };
        assert_eq!(found, wanted, "{what}");
        if !self.pelt {
            return;
        }
        let (load, told) =
            (q.get("runnable_load") + q.get("blocked_load"), q.get("tg_load_contrib"));
        assert!((load - told).abs() <= told / 8, "{what}: has {load}, said {told}");
        // The scheduler adds a queue's share to the group's total when a period ends. Until the
        // next period ends, the share may change by the part that one period has in the average.
        for (sum, told) in
            [("se.avg.runnable", "tg_runnable_contrib"), ("se.avg.running", "tg_usage_contrib")]
        {
            let (all, told) = (q.get("se.avg.period") + 1, q.get(told));
            let (share, period) = (q.get(sum) * 1024 / all, 1024 * 1024 / all);
            let off = (share - told).abs();
            assert!(off <= told / 64 + period + 1, "{what}: {sum} {share}, said {told}");
        }
    }

    /// Checks a queue that has been unchanged for long. If the queue is empty and no queue below it
    /// has load, it must have no load left. If it has tasks, its load must be about its weight;
    /// this is checked only in steady runs without PELT.
    fn check_old(&self, q: &Record, age: u64, what: &str) {
        if q.get("nr") == 0 {
            for path in [
                "load_contrib",
                "tg_load_contrib",
                "tg_runnable_contrib",
                "tg_usage_contrib",
                "blocked_load",
                "leaf",
            ] {
                if q.get("leaf_below") == 0 {
                    let all: Vec<_> = QUEUE.iter().map(|&f| (f, q.get(f))).collect();
                    assert_eq!(q.get(path), 0, "{what}: {path} of an empty queue: {all:?}");
                }
            }
        } else if !self.pelt && self.steady && age > SETTLED {
            let (weight, told) = (q.get("weight"), q.get("load_contrib"));
            let all: Vec<_> = QUEUE.iter().map(|&f| (f, q.get(f))).collect();
            assert!((weight - told).abs() <= told / 8 + 1, "{what}: weight {weight}: {all:?}");
        }
    }
}

/// Returns hogs and short-lived tasks in cgroups of three levels; and, unless `steady`, sleepers,
/// and a limit for one of the cgroups.
fn workload(nr_cpus: u32, steady: bool) -> String {
    let limit = if steady { "" } else { "quota = \"3ms\"\nperiod = \"20ms\"\n" };
    let mut text = String::from("duration = \"60s\"\n");
    for (path, weight, quota) in
        [("/a", 100, ""), ("/a/x", 300, ""), ("/a/x/p", 50, ""), ("/b", 700, ""), ("/c", 40, limit)]
    {
        text += &format!("[[cgroup]]\npath = \"{path}\"\nweight = {weight}\n{quota}");
    }
    let tasks = 1 + nr_cpus / 4;
    for path in ["/a/x", "/a/x/p", "/b", "/c"] {
        let name = path.replace('/', "-");
        text += &format!(
            "[[thread]]\nname = \"hog{name}\"\ninstances = {tasks}\ncgroup = \"{path}\"\n\
             ops = [{{ loop = {{ ops = [{{ compute = \"1ms\" }}] }} }}]\n\
             [[thread]]\nname = \"end{name}\"\ncgroup = \"{path}\"\n\
             ops = [{{ compute = \"9ms\" }}, {{ sleep = \"5ms\" }}, {{ compute = \"9ms\" }}]\n"
        );
        if !steady {
            text += &format!(
                "[[thread]]\nname = \"nap{name}\"\ninstances = {tasks}\ncgroup = \"{path}\"\n\
                 ops = [{{ loop = {{ ops = [{{ compute = \"700us\" }}, {{ sleep = \"2300us\" }}] }} }}]\n"
            );
        }
    }
    text
}

/// Makes one random external change.
fn change(k: &mut Kernel, dice: &mut Dice) {
    let nr_cpus = k.cpus.len() as u64;
    let alive =
        |k: &Kernel, t: &scxlab_kernel::task::Task| k.is_workload(t) && t.state != TaskState::Dead;
    let tasks: Vec<TaskId> = k.tasks.iter().filter(|t| alive(k, t)).map(|t| t.id).collect();
    let task = tasks[dice.below(tasks.len() as u64) as usize];
    let groups: Vec<CgroupId> =
        k.cgroups.iter().filter(|g| g.path.len() > 1).map(|g| g.id).collect();
    let group = groups[dice.below(groups.len() as u64) as usize];
    let cpu = CpuId(dice.below(nr_cpus) as u32);
    match dice.below(8) {
        0 | 1 => {
            let one = CpuMask::of(nr_cpus as usize, [cpu]);
            let _ = k.user(|k| k.set_affinity(task, &one));
        }
        2 => {
            let all = CpuMask::all(nr_cpus as usize);
            k.user(|k| k.set_affinity(task, &all)).expect("all CPUs");
        }
        3 => {
            let _ = k.user(|k| k.move_to_cgroup(task, group));
        }
        4 => {
            let weight = 1 + dice.below(2000) as u32;
            k.user(|k| k.set_cgroup(group, CgroupSpec { weight, ..CgroupSpec::default() }))
                .expect("a weight");
        }
        5 => {
            let nice = dice.below(40) as i8 - 20;
            k.user(|k| k.set_nice(task, nice)).expect("a nice value");
        }
        6 => {
            let _ = k.user(|k| k.rmdir(group));
        }
        _ => {
            let online = dice.below(2) == 0;
            let _ = k.user(|k| k.set_cpu_online(cpu, online));
        }
    }
}

/// Makes external changes for a while, and then none, so that the remaining load fades.
fn keeps_the_sums(scheduler: &str, machine: &str, seed: u64, changes: u32) {
    let pelt = scheduler.contains("PELT");
    let nr_cpus = scxlab_machine::Machine::resolve(machine).unwrap().topology.nr_cpus() as u32;
    let steady = seed.is_multiple_of(2);
    let (mut k, loaded) = scheduled(scheduler, machine, &workload(nr_cpus, steady), seed);
    let mut sums = Sums::new(&loaded, pelt, steady);
    let mut dice = Dice(seed);
    k.start();
    for _ in 0..changes {
        let to = k.now + 200_000 + dice.below(3 * MS);
        k.advance(to);
        stayed(&k);
        sums.check(&k, &loaded);
        change(&mut k, &mut dice);
        sums.check(&k, &loaded);
    }
    // The checks are close, so that a task that visits a queue for some milliseconds is seen there.
    let end = k.now + 800 * MS;
    while k.now < end {
        let to = k.now + MS;
        k.advance(to);
        stayed(&k);
        sums.check(&k, &loaded);
    }
}

#[test]
fn groups_keep_their_sums_on_small_machines() {
    for scheduler in MODES {
        for (machine, seeds) in [("1c", 1..4), ("2c", 4..8), ("2n2c1t", 8..14), ("8c", 14..18)] {
            seeds.for_each(|seed| keeps_the_sums(scheduler, machine, seed, 150));
        }
    }
}

#[test]
fn groups_keep_their_sums_on_large_machines() {
    for scheduler in MODES {
        for (machine, seed) in [("16c", 21), ("64c", 22)] {
            keeps_the_sums(scheduler, machine, seed, 60);
        }
    }
}
