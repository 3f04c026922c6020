// SPDX-License-Identifier: GPL-2.0-only
//! Fairness by weight: how far the CPU time of tasks and cgroups is from what their weights entitle
//! them to. And the limits of cgroups: how far their CPU time is beyond `cpu.max`.
//!
//! Owns: the definitions. A task is entitled to CPU time in proportion to its weight within its
//! cgroup, and a cgroup within its parent, but to no more than it wanted, which is the time it ran
//! or waited for a CPU. The rest is divided among the others in the same way. The unfairness is the
//! part of all CPU time that would have to change hands: 0 if each has what it is entitled to.
//!
//! Does not: weigh tasks of cgroups with `cpu.max`, other policies than the normal ones, or tasks
//! whose affinities differ.

use std::collections::BTreeMap;

use scxlab_kernel::task::NICE_TO_WEIGHT;
use scxlab_workload::Program;
use scxlab_workload::program::{Op, PolicyDef, ThreadTemplate};

use crate::run::{CgroupResult, Run, TaskResult};

/// A task, or a cgroup with all below it, among those that share one cgroup's CPU time.
#[derive(Clone, Copy, Debug)]
struct Claim {
    weight: f64,
    /// CPU time that it would have used, in ns.
    wanted: f64,
    /// CPU time that it had, in ns.
    had: f64,
}

/// The members of one cgroup.
#[derive(Default)]
struct Members<'a> {
    tasks: Vec<Claim>,
    /// Paths and weights of the cgroups directly below.
    groups: Vec<(&'a str, f64)>,
}

type Tree<'a> = BTreeMap<&'a str, Members<'a>>;

/// Load weight of a cgroup of weight 100, and of a task of nice 0.
const NICE_0: f64 = 1024.0;

/// Tells which part of a program has a claim to CPU time that no weight expresses.
pub fn unweighted(program: &Program) -> Option<String> {
    if let Some(group) = program.cgroups.iter().find(|g| g.quota.is_some() || g.idle) {
        return Some(format!("cgroup {} has cpu.max or cpu.idle beside its weight", group.path));
    }
    let weighted = |policy| matches!(policy, PolicyDef::Normal | PolicyDef::Batch | PolicyDef::Ext);
    if let Some(thread) = program.threads.iter().find(|thread| !weighted(thread.policy)) {
        return Some(format!("the policy of thread {} has no weight", thread.name));
    }
    let confined = confined(program)?;
    Some(format!("the CPUs of {confined} are not those of all others"))
}

/// Returns the first part of a program whose CPUs differ from those of other parts. Tasks of
/// different CPUs do not compete, whatever their weights.
fn confined(program: &Program) -> Option<String> {
    let first = program.threads.first()?;
    let differs = |thread: &&ThreadTemplate| thread.cpus != first.cpus || moves(&thread.ops);
    if let Some(thread) = program.threads.iter().find(differs) {
        return Some(format!("thread {}", thread.name));
    }
    if let Some(guest) = program.guests.iter().find(|guest| guest.cpus.is_some()) {
        return Some(format!("guest {}", guest.name));
    }
    let group = program.cgroups.iter().find(|group| group.cpus.is_some())?;
    Some(format!("cgroup {}", group.path))
}

/// Tells whether a thread with these ops changes its affinity.
fn moves(ops: &[Op]) -> bool {
    ops.iter().any(|op| match op {
        Op::SetAffinity(_) => true,
        Op::Loop { ops, .. } | Op::Phase { ops, .. } => moves(ops),
        _ => false,
    })
}

/// Returns the unfairness of a run whose tasks or cgroups differ in weight, in percent. None if all
/// weights are equal, or if weights do not say all about the program's claims to CPU time.
pub fn weight_error(run: &Run, program: &Program) -> Option<f64> {
    let differ = run.tasks.iter().any(|task| task.nice != 0)
        || run.cgroups.iter().any(|group| group.path != "/" && group.weight != 100);
    if !differ || unweighted(program).is_some() {
        return None;
    }
    unfairness(&run.tasks, &run.cgroups).ok().map(|part| part * 100.0)
}

/// Returns how much more CPU time than `cpu.max` allows the cgroup had that exceeds its limit most,
/// as a part of what is allowed, with the cgroup's path. None if no cgroup has a limit. Allowed are
/// the burst, and the quota of each period that has begun at any time of the run.
pub fn quota_excess<'a>(run: &Run, program: &'a Program) -> Option<(f64, &'a str)> {
    let limited = program.cgroups.iter().filter_map(|group| {
        let quota = group.quota?;
        let result = run.cgroups.iter().find(|g| trimmed(&g.path) == trimmed(&group.path))?;
        // The first period of a cgroup can begin at any time.
        let periods = run.virtual_ns.div_ceil(group.period.0.max(1)) + 1;
        let allowed = quota.0 as f64 * periods as f64 + group.burst.0 as f64;
        Some(((result.run_ns as f64 / allowed - 1.0).max(0.0), group.path.as_str()))
    });
    limited.max_by(|a, b| a.0.total_cmp(&b.0))
}

/// Returns the unfairness of a run, from 0 to 1; else the reason why it is unknown.
pub fn unfairness(tasks: &[TaskResult], cgroups: &[CgroupResult]) -> Result<f64, String> {
    let mut tree = Tree::new();
    for group in cgroups {
        let path = trimmed(&group.path);
        tree.entry(path).or_default();
        if let Some((above, _)) = path.rsplit_once('/') {
            let weight = f64::from(group.weight) * NICE_0 / 100.0;
            tree.entry(above).or_default().groups.push((path, weight));
        }
    }
    for task in tasks {
        let wait_ns = task.wait_ns.ok_or("the target does not measure how long tasks wait")?;
        let had = task.run_ns as f64;
        let weight = NICE_TO_WEIGHT[(i32::from(task.nice).clamp(-20, 19) + 20) as usize] as f64;
        let claim = Claim { weight, wanted: had + wait_ns as f64, had };
        tree.entry(trimmed(&task.cgroup)).or_default().tasks.push(claim);
    }
    let whole = claim_of(&tree, "", NICE_0).had;
    if whole == 0.0 {
        return Err("no task used CPU time".to_owned());
    }
    // Each ns that changes hands is missing in one place and too much in another.
    Ok(misplaced(&tree, "", whole) / 2.0 / whole)
}

/// Returns the path without a trailing slash, so that the root is the empty path.
fn trimmed(path: &str) -> &str {
    path.trim_end_matches('/')
}

/// Returns the claim of a cgroup with all below it.
fn claim_of(tree: &Tree<'_>, path: &str, weight: f64) -> Claim {
    let mut all = Claim { weight, wanted: 0.0, had: 0.0 };
    let Some(members) = tree.get(path) else { return all };
    let groups = members.groups.iter().map(|(path, weight)| claim_of(tree, path, *weight));
    for claim in members.tasks.iter().copied().chain(groups) {
        all.wanted += claim.wanted;
        all.had += claim.had;
    }
    all
}

/// Returns the sum, over all tasks of a cgroup that is entitled to `time`, of the differences
/// between what they had and what they are entitled to.
fn misplaced(tree: &Tree<'_>, path: &str, time: f64) -> f64 {
    let Some(members) = tree.get(path) else { return 0.0 };
    let groups = members.groups.iter().map(|(path, weight)| claim_of(tree, path, *weight));
    let claims: Vec<Claim> = members.tasks.iter().copied().chain(groups).collect();
    let due = entitled(&claims, time);
    let (of_tasks, of_groups) = due.split_at(members.tasks.len());
    let own: f64 = members.tasks.iter().zip(of_tasks).map(|(c, due)| (c.had - due).abs()).sum();
    let below = members.groups.iter().zip(of_groups);
    own + below.map(|((path, _), due)| misplaced(tree, path, *due)).sum::<f64>()
}

/// Divides `time` in proportion to weights; a claim gets no more than it wanted, and what it leaves
/// goes to the others.
fn entitled(claims: &[Claim], time: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    // A claim with less wanted per weight is satisfied earlier.
    let per_weight = |at: &usize| claims[*at].wanted / claims[*at].weight;
    order.sort_by(|a, b| per_weight(a).total_cmp(&per_weight(b)));
    let mut weight: f64 = claims.iter().map(|claim| claim.weight).sum();
    let (mut left, mut due) = (time, vec![0.0; claims.len()]);
    for at in order {
        let claim = claims[at];
        due[at] = (left * claim.weight / weight).min(claim.wanted);
        left -= due[at];
        weight -= claim.weight;
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(nice: i8, cgroup: &str, run_ns: u64, wait_ns: u64) -> TaskResult {
        TaskResult {
            name: "t".into(),
            nice,
            cgroup: cgroup.into(),
            run_ns,
            wait_ns: Some(wait_ns),
            switches: 0,
            migrations: None,
            node_ns: Vec::new(),
            counters: Default::default(),
        }
    }

    fn group(path: &str, weight: u32) -> CgroupResult {
        CgroupResult {
            path: path.into(),
            weight,
            run_ns: 0,
            share_permille: None,
            weight_permille: 0.0,
            coscheduled_permille: None,
        }
    }

    fn check(tasks: &[TaskResult], groups: &[CgroupResult], expected: f64) {
        let found = unfairness(tasks, groups).unwrap();
        assert!((found - expected).abs() < 1e-3, "{found}, not {expected}: {tasks:?}");
    }

    #[test]
    fn equal_tasks_are_due_equal_time() {
        check(&[task(0, "/", 500, 500), task(0, "/", 500, 500)], &[], 0.0);
        // A quarter of the time would have to change hands.
        check(&[task(0, "/", 750, 250), task(0, "/", 250, 750)], &[], 0.25);
        // Nice 5 has about a third of the weight of nice 0.
        check(&[task(0, "/", 753, 247), task(5, "/", 247, 753)], &[], 0.0);
    }

    #[test]
    fn a_task_that_never_waits_has_all_that_it_is_due() {
        check(&[task(0, "/", 100, 0), task(0, "/", 450, 550), task(0, "/", 450, 550)], &[], 0.0);
        check(&[task(0, "/", 100, 0), task(0, "/", 800, 0)], &[], 0.0);
    }

    #[test]
    fn cgroups_share_by_weight_before_their_tasks_do() {
        let groups = [group("/", 100), group("/a", 300), group("/b", 100)];
        let tasks = [task(0, "/a", 750, 250), task(0, "/b", 125, 875), task(0, "/b", 125, 875)];
        check(&tasks, &groups, 0.0);
        let equal = [task(0, "/a", 334, 666), task(0, "/b", 333, 667), task(0, "/b", 333, 667)];
        check(&equal, &groups, 0.416);
        // Fair between the cgroups, unfair within one.
        let within = [task(0, "/a", 750, 250), task(0, "/b", 250, 750), task(0, "/b", 0, 1000)];
        check(&within, &groups, 0.125);
    }

    #[test]
    fn an_unknown_wait_or_no_time_is_said() {
        let unknown = TaskResult { wait_ns: None, ..task(0, "/", 1, 0) };
        assert!(unfairness(&[unknown], &[]).unwrap_err().contains("how long tasks wait"));
        assert!(unfairness(&[task(0, "/", 0, 5)], &[]).unwrap_err().contains("no task used"));
    }

    /// Tasks that are pinned to different CPUs are not compared by weight.
    #[test]
    fn tasks_of_different_cpus_have_no_common_share() {
        let program = |first: &str, second: &str| {
            let thread = |name: &str, more: &str| {
                format!("[[thread]]\nname = '{name}'\nops = [{{ compute = '1ms' }}]\n{more}\n")
            };
            let text = thread("a", first) + &thread("b", second);
            scxlab_workload::load("w.toml", &text).unwrap()
        };
        assert_eq!(unweighted(&program("nice = 5", "")), None);
        assert_eq!(unweighted(&program("nice = 5\ncpus = '0'", "cpus = '0'")), None);
        let said = unweighted(&program("nice = 5\ncpus = '0'", "cpus = '1'")).unwrap();
        assert_eq!(said, "the CPUs of thread b are not those of all others");
    }
}
