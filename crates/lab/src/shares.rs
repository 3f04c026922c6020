// SPDX-License-Identifier: GPL-2.0-only
//! CPU time of cgroups beside what their weights promise, from whatever target measured it.

use std::collections::BTreeMap;

use crate::run::CgroupResult;

/// A cgroup with the CPU time of its own tasks.
#[derive(Clone, Debug)]
pub struct Group {
    /// From the root, which is `/`.
    pub path: String,
    pub weight: u32,
    pub own_ns: u64,
    pub together: Together,
}

/// How much the own tasks of a cgroup ran together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Together {
    /// Time in which two or more were runnable and at least one ran.
    pub some_ns: u64,
    /// The part of it in which all of them ran, or one on each CPU.
    pub all_ns: u64,
}

/// Sums up below each, and shares among the children of one parent; those that used no time do not count.
pub fn shares(groups: &[Group]) -> Vec<CgroupResult> {
    let run: Vec<u64> = groups.iter().map(|g| total(groups, &g.path)).collect();
    let mut families: BTreeMap<Option<&str>, (u64, u64)> = BTreeMap::new();
    for (group, run) in groups.iter().zip(&run).filter(|(_, run)| **run > 0) {
        let family = families.entry(parent(&group.path)).or_default();
        family.0 += run;
        family.1 += u64::from(group.weight);
    }
    let result = |(group, run): (&Group, &u64)| {
        let (family_run, family_weight) =
            families.get(&parent(&group.path)).copied().unwrap_or_default();
        let weight = if *run > 0 { u64::from(group.weight) } else { 0 };
        CgroupResult {
            path: group.path.clone(),
            weight: group.weight,
            run_ns: *run,
            share_permille: permille(*run, family_run),
            weight_permille: permille(weight, family_weight),
            together_permille: (group.together.some_ns > 0)
                .then(|| permille(group.together.all_ns, group.together.some_ns)),
        }
    };
    groups.iter().zip(&run).map(result).collect()
}

fn total(groups: &[Group], path: &str) -> u64 {
    let below =
        |p: &str| p.strip_prefix(path.trim_end_matches('/')).is_some_and(|r| r.starts_with('/'));
    groups.iter().filter(|g| g.path == path || below(&g.path)).map(|g| g.own_ns).sum()
}

/// None of the root.
fn parent(path: &str) -> Option<&str> {
    let (above, name) = path.rsplit_once('/')?;
    (!name.is_empty()).then_some(above)
}

fn permille(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 1000.0 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_share_and_parents_sum_up() {
        let together = Together { some_ns: 400, all_ns: 100 };
        let group =
            |path: &str, weight, own_ns| Group { path: path.into(), weight, own_ns, together };
        let all = [
            group("/", 100, 50),
            group("/a", 300, 0),
            group("/a/x", 100, 600),
            group("/ab", 100, 200),
            group("/idle", 800, 0),
        ];
        let found = shares(&all);
        assert_eq!(found.iter().map(|g| g.run_ns).collect::<Vec<_>>(), [850, 600, 600, 200, 0]);
        assert_eq!((found[1].share_permille, found[1].weight_permille), (750.0, 750.0));
        assert_eq!(found[2].share_permille, 1000.0);
        assert_eq!(found[2].together_permille, Some(250.0));
        assert_eq!((found[4].share_permille, found[4].weight_permille), (0.0, 0.0));
    }
}
