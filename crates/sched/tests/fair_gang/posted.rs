// SPDX-License-Identifier: GPL-2.0-only
//! Gangs by the rules of the patches as they were posted (`gang_rules=posted`): one leader for
//! good, which interrupts the others at each of its picks, and a favour for one pick.

use super::*;

fn posted(gang: &str) -> [(&str, &str); 2] {
    [("gang", gang), ("gang_rules", "posted")]
}

/// The leader asks all other CPUs at each of its picks. A gang without a task on the leader's CPU
/// is therefore never led, while rounds would find it (`bounded`).
#[test]
fn only_the_first_cpu_of_a_domain_leads() {
    let count = |first_cpu: u32, rules: &str| {
        let text = jobs(&[Job::gang("left", 4), Job::gang("right", 4)]);
        let text = (0..4).rev().fold(text, |text, i| {
            text.replace(&format!("cpus = \"{i}\""), &format!("cpus = \"{}\"", i + first_cpu))
        });
        let (mut k, loaded) = attached("8c", &text, &[("gang", "v2"), ("gang_rules", rules)]);
        k.run(Some(500 * MS));
        assert_attached(&k);
        (stat(&k, &loaded, "gang_rounds"), stat(&k, &loaded, "gang_requests"))
    };
    let (picks, requests) = count(0, "posted");
    assert!(picks > 10, "{picks}");
    // Each of the three others has a task of the picked gang at most of the picks.
    assert!(requests > 2 * picks && requests <= 3 * picks, "{requests} of {picks}");
    assert_eq!(count(1, "posted"), (0, 0));
    assert!(count(1, "bounded").0 > 10);
}

/// A request is a favour of one pick. Gangs therefore run together for less of the time than in
/// rounds that are kept up, though for more than without gangs.
#[test]
fn a_favour_lasts_for_one_pick() {
    let bounded = demonstration(&[("gang", "v2")]);
    let [off, v1, v2] = ["off", "v1", "v2"].map(|gang| demonstration(&posted(gang)));
    assert!(v2.0 > 2 * off.0 && v2.2 > 2 * off.2, "{off:?} {v2:?}");
    assert!(v2.0 < bounded.0 && v2.2 < bounded.2, "{v2:?} {bounded:?}");
    assert!(v1.0 <= v2.0 && v1.2 <= v2.2, "{v1:?} {v2:?}");
}

/// A gang whose task on the leader's CPU sleeps and wakes up all the time makes the leader
/// interrupt the others each time. Bounded rounds do that far less.
#[test]
fn a_sleepy_leader_interrupts_everybody() {
    let run = |rules: &str| {
        let text = jobs(&[
            Job { before: "{ sleep = \"300us\" },", no_barrier: true, ..Job::gang("left", 8) },
            Job { no_barrier: true, ..Job::gang("right", 8) },
        ]);
        let (mut k, _) = attached("8c", &text, &[("gang", "v2"), ("gang_rules", rules)]);
        k.run(Some(1_000 * MS));
        assert_attached(&k);
        switches(&k)
    };
    let (bounded, posted) = (run("bounded"), run("posted"));
    assert!(posted > bounded, "{posted} {bounded}");
}
