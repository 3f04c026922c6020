// SPDX-License-Identifier: GPL-2.0-only
//! CPU time of cgroups beside the shares that their weights entitle them to, for all targets.

use std::collections::BTreeMap;

use crate::run::CgroupResult;

/// A cgroup with the CPU time of its own tasks.
#[derive(Clone, Debug)]
pub struct CgroupTime {
    /// Path from the root, which is `/`.
    pub path: String,
    pub weight: u32,
    /// Whether the cgroup has `cpu.idle`, with which its weight does not count.
    pub idle: bool,
    pub own_ns: u64,
    /// Whether one of its tasks waited for a CPU. Such a cgroup is entitled to a share even if it
    /// got none.
    pub waited: bool,
    pub coscheduled: CoscheduledTime,
}

/// Time in which a cgroup's own tasks ran at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoscheduledTime {
    /// Time in which two or more of the cgroup's own tasks were runnable and at least one of them
    /// ran, in ns.
    pub some_ns: u64,
    /// Part of `some_ns` in which all of the cgroup's runnable tasks ran, or one on each CPU, in
    /// ns.
    pub all_ns: u64,
}

/// Returns the weight with which a cgroup competes, in the kernel's units: 1024 for weight 100, and
/// `WEIGHT_IDLEPRIO` with `cpu.idle`.
fn load(group: &CgroupTime) -> u64 {
    if group.idle { 3 } else { u64::from(group.weight) * 1024 / 100 }
}

/// Sums the CPU time below each cgroup, and computes shares among the children of one parent. A
/// cgroup whose tasks neither ran nor waited is entitled to no share.
pub fn shares(groups: &[CgroupTime]) -> Vec<CgroupResult> {
    let sums = sums::<&str>(groups);
    let all: Vec<(u64, bool)> = groups.iter().map(|g| sums[trimmed(&g.path)]).collect();
    let mut families: BTreeMap<Option<&str>, (u64, u64)> = BTreeMap::new();
    for (group, (run, _)) in groups.iter().zip(&all).filter(|(_, (_, wanted))| *wanted) {
        let family = families.entry(parent(&group.path)).or_default();
        family.0 += run;
        family.1 += load(group);
    }
    let result = |(group, (run, wanted)): (&CgroupTime, &(u64, bool))| {
        let (family_run, family_weight) =
            families.get(&parent(&group.path)).copied().unwrap_or_default();
        let weight = if *wanted { load(group) } else { 0 };
        CgroupResult {
            path: group.path.clone(),
            weight: group.weight,
            run_ns: *run,
            share_permille: permille(*run, family_run),
            weight_permille: permille(weight, family_weight).unwrap_or_default(),
            coscheduled_permille: permille(group.coscheduled.all_ns, group.coscheduled.some_ns),
        }
    };
    groups.iter().zip(&all).map(result).collect()
}

/// Returns, by path, the CPU time of each group and the groups below it, and whether any of these
/// groups ran or waited. The function adds each group to its ancestors, which avoids comparisons
/// between siblings.
fn sums<'a, Path: Ord + From<&'a str>>(groups: &'a [CgroupTime]) -> BTreeMap<Path, (u64, bool)> {
    let mut sums = BTreeMap::new();
    for group in groups {
        for path in std::iter::successors(Some(trimmed(&group.path)), |path| parent(path)) {
            let (ns, wanted): &mut (u64, bool) = sums.entry(Path::from(path)).or_default();
            *ns += group.own_ns;
            *wanted |= group.waited || group.own_ns > 0;
        }
    }
    sums
}

/// Returns the path without a trailing slash, so that the root is the empty prefix of its
/// children's paths.
fn trimmed(path: &str) -> &str {
    path.trim_end_matches('/')
}

/// Returns the parent's path; None for the root.
fn parent(path: &str) -> Option<&str> {
    let (above, name) = path.rsplit_once('/')?;
    (!name.is_empty()).then_some(above)
}

/// Returns the quotient in thousandths; None if `whole` is 0.
fn permille(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 * 1000.0 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::cmp::Ordering;

    thread_local!(static COMPARED: Cell<u64> = const { Cell::new(0) });

    #[derive(PartialEq, Eq)]
    struct Counted<'a>(&'a str);

    impl<'a> From<&'a str> for Counted<'a> {
        fn from(path: &'a str) -> Self {
            Counted(path)
        }
    }

    impl PartialOrd for Counted<'_> {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl Ord for Counted<'_> {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARED.set(COMPARED.get() + 1);
            self.0.cmp(other.0)
        }
    }

    /// Returns the number of path comparisons made while `n` siblings are summed up.
    fn compared(n: u32) -> u64 {
        let group = |i: u32| CgroupTime {
            path: format!("/all/{i}"),
            weight: 100,
            idle: false,
            own_ns: 1,
            waited: false,
            coscheduled: CoscheduledTime::default(),
        };
        let groups: Vec<CgroupTime> = (0..n).map(group).collect();
        COMPARED.set(0);
        let sums = sums::<Counted<'_>>(&groups);
        let compared = COMPARED.get();
        assert_eq!(sums[&Counted("")], (n.into(), true));
        compared
    }

    #[test]
    fn twice_the_siblings_are_hardly_more_than_twice_the_work() {
        for n in [1000, 4000, 16_000] {
            let (once, twice) = (compared(n), compared(2 * n));
            assert!(once > u64::from(n) && twice * 10 < once * 23, "{n}: {once}, {twice}");
        }
    }

    #[test]
    fn children_share_and_parents_sum_up() {
        let coscheduled = CoscheduledTime { some_ns: 400, all_ns: 100 };
        let group = |path: &str, weight, own_ns| CgroupTime {
            path: path.into(),
            weight,
            idle: false,
            own_ns,
            waited: own_ns > 0,
            coscheduled,
        };
        let all = [
            group("/", 100, 50),
            group("/a", 300, 0),
            group("/a/x", 100, 600),
            group("/ab", 100, 200),
            group("/idle", 800, 0),
        ];
        let found = shares(&all);
        assert_eq!(found.iter().map(|g| g.run_ns).collect::<Vec<_>>(), [850, 600, 600, 200, 0]);
        assert_eq!((found[1].share_permille, found[1].weight_permille), (Some(750.0), 750.0));
        assert_eq!(found[2].share_permille, Some(1000.0));
        assert_eq!(found[2].coscheduled_permille, Some(250.0));
        assert_eq!((found[4].share_permille, found[4].weight_permille), (Some(0.0), 0.0));
    }

    #[test]
    fn an_idle_cgroup_is_promised_next_to_nothing() {
        let group = |path: &str, idle| CgroupTime {
            path: path.into(),
            weight: 100,
            idle,
            own_ns: 100,
            waited: true,
            coscheduled: CoscheduledTime::default(),
        };
        let found = shares(&[group("/a", false), group("/b", false), group("/c", true)]);
        let promised = found.iter().map(|g| g.weight_permille.round()).collect::<Vec<_>>();
        assert_eq!(promised, [499.0, 499.0, 1.0]);
    }

    /// A cgroup whose tasks wait but never run still has its entitled share. A cgroup has no share
    /// of the CPU time if neither the cgroup nor a sibling ran.
    #[test]
    fn a_starved_cgroup_is_promised_its_share() {
        let group = |path: &str, own_ns, waited| CgroupTime {
            path: path.into(),
            weight: 100,
            idle: false,
            own_ns,
            waited,
            coscheduled: CoscheduledTime::default(),
        };
        let starved = shares(&[group("/fed", 500, true), group("/hungry", 0, true)]);
        assert_eq!((starved[1].share_permille, starved[1].weight_permille), (Some(0.0), 500.0));
        assert_eq!((starved[0].share_permille, starved[0].weight_permille), (Some(1000.0), 500.0));
        let nobody = shares(&[group("/a", 0, true), group("/b", 0, false)]);
        assert_eq!((nobody[0].share_permille, nobody[0].weight_permille), (None, 1000.0));
        assert_eq!((nobody[1].share_permille, nobody[1].weight_permille), (None, 0.0));
    }
}
