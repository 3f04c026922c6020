// SPDX-License-Identifier: GPL-2.0-only
//! CPU time of cgroups on several CPUs: it follows their weights, regardless of where their tasks
//! were before, for many trees, machines and seeds.
//!
//! The expectation is the rule of CFS: a cgroup's weight on a CPU is the cgroup's shares times the
//! fraction of its load that is on this CPU. For tasks that never sleep and never migrate, the rule
//! gives a closed formula, `Tree::expected`.

use std::collections::BTreeMap;

use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::{CgroupSpec, Sys};
use scxlab_machine::CpuMask;
use scxlab_machine::id::{CgroupId, CpuId, TaskId};
use scxlab_testkit::shipped::scheduled;
use scxlab_testkit::sim::group_ns;

use crate::{Dice, MS, SECOND, run_on};

const MODES: [&str; 2] = ["fair", "fair,load=FAIR_LOAD_PELT"];

/// A cgroup, and the CPU of each of its tasks.
#[derive(Debug)]
struct Group {
    path: String,
    weight: u64,
    hogs: Vec<usize>,
}

#[derive(Debug)]
struct Tree {
    nr_cpus: usize,
    groups: Vec<Group>,
}

impl Tree {
    fn workload(&self) -> String {
        let mut text = String::from("duration = \"60s\"\n");
        for g in &self.groups {
            text += &format!("[[cgroup]]\npath = \"{}\"\nweight = {}\n", g.path, g.weight);
        }
        for g in &self.groups {
            for (i, cpu) in g.hogs.iter().enumerate() {
                let name = format!("{}{i}", g.path.replace('/', "."));
                text += &format!(
                    "[[thread]]\nname = \"{name}\"\ncgroup = \"{}\"\ncpus = \"{cpu}\"\n\
                     ops = [{{ loop = {{ ops = [{{ compute = \"1ms\" }}] }} }}]\n",
                    g.path
                );
            }
        }
        text
    }

    fn children<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a Group> {
        let above = |g: &Group| g.path.rsplit_once('/').map_or("", |(up, _)| up).to_owned();
        self.groups.iter().filter(move |g| above(g) == path)
    }

    /// Returns for each CPU the sum of the weights of a cgroup's entities: its tasks on this CPU,
    /// and its child cgroups.
    fn weights(&self, path: &str) -> Vec<f64> {
        let mut all = vec![0.0; self.nr_cpus];
        for g in self.groups.iter().filter(|g| g.path == path) {
            g.hogs.iter().for_each(|&cpu| all[cpu] += 1024.0);
        }
        for child in self.children(path) {
            let shares = self.shares(child);
            (0..self.nr_cpus).for_each(|cpu| all[cpu] += shares[cpu]);
        }
        all
    }

    /// Returns the weight of a cgroup on each CPU.
    fn shares(&self, g: &Group) -> Vec<f64> {
        let weights = self.weights(&g.path);
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|w| (g.weight as f64 * 10.24 * w / sum.max(1.0)).floor()).collect()
    }

    /// Returns the CPU time that each cgroup's own tasks get together, as a number of CPUs.
    fn expected(&self) -> BTreeMap<&str, f64> {
        let mut all = BTreeMap::new();
        self.divide("", &vec![1.0; self.nr_cpus], &mut all);
        all
    }

    fn divide<'a>(&'a self, path: &'a str, has: &[f64], all: &mut BTreeMap<&'a str, f64>) {
        let weights = self.weights(path);
        for child in self.children(path) {
            let shares = self.shares(child);
            let part = |cpu: usize| {
                if shares[cpu] > 0.0 { has[cpu] * shares[cpu] / weights[cpu] } else { 0.0 }
            };
            let has: Vec<f64> = (0..self.nr_cpus).map(part).collect();
            self.divide(&child.path, &has, all);
        }
        if let Some(g) = self.groups.iter().find(|g| g.path == path) {
            let own = g.hogs.iter().map(|&cpu| has[cpu] * 1024.0 / weights[cpu]).sum();
            all.insert(&g.path, own);
        }
    }
}

/// Returns cgroups of weight 20 to 2000, some below a parent, with tasks on random CPUs; if `even`,
/// each cgroup has one task on every CPU.
fn tree(dice: &mut Dice, nr_cpus: usize, even: bool) -> Tree {
    let mut groups: Vec<Group> = Vec::new();
    for i in 0..2 + dice.below(3) {
        let mut path = format!("/g{i}");
        for depth in 0..1 + dice.below(3) {
            if depth > 0 {
                path += "/n";
            }
            let mut hogs: Vec<usize> = (0..dice.below(3) * u64::from(!even))
                .map(|_| dice.below(nr_cpus as u64) as usize)
                .collect();
            if even {
                hogs = (0..nr_cpus).collect();
            }
            let weight = [20, 50, 100, 100, 300, 700, 2000][dice.below(7) as usize];
            groups.push(Group { path: path.clone(), weight, hogs });
        }
        let last = groups.last_mut().expect("just made");
        if last.hogs.is_empty() {
            last.hogs.push(dice.below(nr_cpus as u64) as usize);
        }
    }
    Tree { nr_cpus, groups }
}

fn used(k: &Kernel, tree: &Tree) -> Vec<u64> {
    tree.groups.iter().map(|g| group_ns(k, &g.path)).collect()
}

/// Compares CPU time with the expectation for `seconds`, after the first second. The error is at
/// most `percent` of the expected time plus two ticks for each of the cgroup's tasks.
fn gets_its_shares(scheduler: &str, tree: &Tree, seconds: u64, percent: f64, seed: u64) {
    let machine = format!("{}c", tree.nr_cpus);
    let (mut k, _) = scheduled(scheduler, &machine, &tree.workload(), seed);
    k.start();
    run_on(&mut k, SECOND);
    let before = used(&k, tree);
    run_on(&mut k, (1 + seconds) * SECOND);
    let after = used(&k, tree);
    let expected = tree.expected();
    for (i, g) in tree.groups.iter().enumerate().filter(|(_, g)| !g.hogs.is_empty()) {
        let got = (after[i] - before[i]) as f64;
        let wanted = expected[g.path.as_str()] * (seconds * SECOND) as f64;
        let slack = wanted * percent / 100.0 + (8 * MS * g.hogs.len() as u64) as f64;
        assert!(
            (got - wanted).abs() <= slack,
            "{scheduler}, seed {seed}: {} got {:.1} ms, wanted {:.1}, off by {:.2} %: {tree:#?}",
            g.path,
            got / 1e6,
            wanted / 1e6,
            (got / wanted - 1.0) * 100.0
        );
    }
}

#[test]
fn shares_hold_where_all_have_work_everywhere() {
    for scheduler in MODES {
        for (nr_cpus, seeds) in [(1, 0..4), (2, 4..8), (5, 8..10), (8, 10..12), (64, 12..13)] {
            for seed in seeds {
                let tree = tree(&mut Dice(seed), nr_cpus, true);
                gets_its_shares(scheduler, &tree, 4, 1.0, seed);
            }
        }
    }
}

#[test]
fn shares_hold_where_work_is_uneven() {
    for scheduler in MODES {
        for (nr_cpus, seeds) in [(1, 20..22), (2, 22..27), (3, 27..32), (8, 32..37), (64, 37..39)] {
            for seed in seeds {
                let tree = tree(&mut Dice(seed), nr_cpus, false);
                gets_its_shares(scheduler, &tree, 4, 1.0, seed);
            }
        }
    }
}

fn task(k: &Kernel, name: &str) -> TaskId {
    k.tasks.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no task {name}")).id
}

fn bind(k: &mut Kernel, task: TaskId, cpu: usize) {
    let mask = CpuMask::of(k.cpus.len(), [CpuId(cpu as u32)]);
    k.user(|k| k.set_affinity(task, &mask)).expect("it is on line");
}

/// Returns two cgroups with one hog each on the same CPU. The cgroups are at the top of the tree,
/// or, if `below` is not empty, each is the child of a cgroup at the top.
fn two_on_one(nr_cpus: usize, weights: [u64; 2], below: &str) -> Tree {
    let group = |i: usize| Group {
        path: format!("/g{i}{below}"),
        weight: if below.is_empty() { weights[i] } else { 100 },
        hogs: vec![1 % nr_cpus],
    };
    let top = |i: usize| Group { path: format!("/g{i}"), weight: weights[i], hogs: vec![] };
    let mut groups = Vec::new();
    if !below.is_empty() {
        groups.extend([top(0), top(1)]);
    }
    groups.extend([group(0), group(1)]);
    Tree { nr_cpus, groups }
}

fn keeps_its_share_after(scheduler: &str, tree: &Tree, visits: usize, stay: u64) {
    let (mut k, _) = scheduled(scheduler, &format!("{}c", tree.nr_cpus), &tree.workload(), 1);
    k.start();
    let hog = format!("{}0", tree.groups[tree.groups.len() - 2].path.replace('/', "."));
    let mut to = 100 * MS;
    run_on(&mut k, to);
    for cpu in (0..tree.nr_cpus).filter(|&cpu| cpu != 1).take(visits) {
        let visitor = task(&k, &hog);
        bind(&mut k, visitor, cpu);
        to += stay;
        run_on(&mut k, to);
    }
    let visitor = task(&k, &hog);
    bind(&mut k, visitor, 1);
    run_on(&mut k, to + SECOND);
    let before = used(&k, tree);
    run_on(&mut k, to + 3 * SECOND);
    let after = used(&k, tree);
    let expected = tree.expected();
    for (i, g) in tree.groups.iter().enumerate() {
        let (got, wanted) = ((after[i] - before[i]) as f64 / 2e9, expected[g.path.as_str()]);
        assert!(
            (got - wanted).abs() <= 0.01,
            "{scheduler}: {} has {got:.3} of the CPU after {visits} visits, wanted {wanted:.3}",
            g.path
        );
    }
}

/// A cgroup loses no weight by visits of its task to other CPUs: the cgroup has its whole weight on
/// the CPU where the task is now.
#[test]
fn a_visit_elsewhere_costs_no_weight() {
    for scheduler in MODES {
        for visits in [1, 2, 3, 7] {
            keeps_its_share_after(scheduler, &two_on_one(8, [100, 100], ""), visits, 50 * MS);
        }
        keeps_its_share_after(scheduler, &two_on_one(8, [300, 100], ""), 5, 7 * MS);
        keeps_its_share_after(scheduler, &two_on_one(4, [100, 300], "/n"), 3, 20 * MS);
        keeps_its_share_after(scheduler, &two_on_one(2, [50, 100], "/n"), 1, 200 * MS);
        keeps_its_share_after(scheduler, &two_on_one(64, [100, 100], ""), 40, 5 * MS);
    }
}

/// Some tasks of a cgroup exit, sleep for long or move to another cgroup, or the cgroup is removed
/// and made again. Afterwards, the remaining tasks of the cgroup have its whole weight.
#[test]
fn what_is_gone_has_no_weight() {
    for scheduler in MODES {
        for how in ["ends", "sleeps", "moves", "is made again", "has another weight", "is limited"]
        {
            weight_returns(scheduler, how);
        }
    }
}

fn weight_returns(scheduler: &str, how: &str) {
    let hog = "ops = [{ loop = { ops = [{ compute = \"1ms\" }] } }]";
    let short = match how {
        "ends" => "ops = [{ compute = \"300ms\" }]",
        "sleeps" => "ops = [{ compute = \"300ms\" }, { sleep = \"60s\" }]",
        _ => hog,
    };
    let text = format!(
        "duration = \"60s\"\n[[cgroup]]\npath = \"/a\"\n[[cgroup]]\npath = \"/b\"\n[[cgroup]]\npath = \"/c\"\n\
         [[thread]]\nname = \"a\"\ncgroup = \"/a\"\ncpus = \"0\"\n{hog}\n\
         [[thread]]\nname = \"b\"\ncgroup = \"/b\"\ncpus = \"0\"\n{hog}\n\
         [[thread]]\nname = \"away\"\ninstances = 2\ncgroup = \"/a\"\ncpus = \"1-3\"\n{short}\n"
    );
    let (mut k, _) = scheduled(scheduler, "4c", &text, 1);
    k.start();
    run_on(&mut k, 100 * MS);
    let group = |k: &Kernel, path: &str| -> CgroupId {
        k.cgroups.iter().find(|g| g.path == path).expect("a cgroup").id
    };
    let (a, c) = (group(&k, "/a"), group(&k, "/c"));
    let away = k.tasks.iter().filter(|t| t.name.starts_with("away"));
    let away: Vec<TaskId> = away.map(|t| t.id).collect();
    assert_eq!(away.len(), 2);
    let limited = CgroupSpec { quota: Some(2 * MS), period: 50 * MS, ..CgroupSpec::default() };
    match how {
        "moves" => away.iter().for_each(|&t| k.user(|k| k.move_to_cgroup(t, c)).expect("moved")),
        "is made again" => {
            let task = task(&k, "a");
            let all: Vec<TaskId> = away.iter().copied().chain([task]).collect();
            all.iter().for_each(|&t| k.user(|k| k.move_to_cgroup(t, c)).expect("moved"));
            k.user(|k| k.rmdir(a)).expect("it is empty");
            let root = group(&k, "/");
            let again = k.user(|k| k.mkdir(root, "a", CgroupSpec::default())).expect("made");
            k.user(|k| k.move_to_cgroup(task, again)).expect("moved");
        }
        "has another weight" => {
            away.iter().for_each(|&t| k.user(|k| k.move_to_cgroup(t, c)).expect("moved"));
            let heavy = CgroupSpec { weight: 9000, ..CgroupSpec::default() };
            k.user(|k| k.set_cgroup(a, heavy)).expect("a weight");
            k.user(|k| k.set_cgroup(a, CgroupSpec::default())).expect("a weight");
        }
        "is limited" => {
            // The tasks leave the cgroup's queues on other CPUs while these queues are throttled.
            k.user(|k| k.set_cgroup(a, limited)).expect("a limit");
            run_on(&mut k, 300 * MS);
            away.iter().for_each(|&t| k.user(|k| k.move_to_cgroup(t, c)).expect("moved"));
            run_on(&mut k, 340 * MS);
            k.user(|k| k.set_cgroup(a, CgroupSpec::default())).expect("no limit");
        }
        _ => {}
    }
    run_on(&mut k, 1600 * MS);
    let used = |k: &Kernel| [task(k, "a"), task(k, "b")].map(|t| k.tasks[t].account.run_ns);
    let before = used(&k);
    run_on(&mut k, 3600 * MS);
    let after = used(&k);
    let got = (after[0] - before[0]) as f64 / 2e9;
    assert!(
        (got - 0.5).abs() <= 0.01,
        "{scheduler}: {got:.3} of the CPU after what was away {how}"
    );
}
