// SPDX-License-Identifier: GPL-2.0-only
//! Shares by weight under saturation, and bounds on the waiting time.

use super::*;
use scxlab_testkit::sim::group_ns;

fn assert_shares(machine: &str, doms: &[Dom], knobs: &[(&str, &str)], weight_of: fn(&Dom) -> u32) {
    let (mut k, _) = attached(machine, &saturating(doms), knobs);
    k.start();
    // At the start, no tick has seen any vCPU, so the first slices do not follow the weights. The
    // measurement therefore begins after a second.
    go_on(&mut k, SECOND);
    let ns = |k: &Kernel| -> Vec<u64> {
        (0..doms.len()).map(|i| group_ns(k, &format!("/d{i}"))).collect()
    };
    let before = ns(&k);
    go_on(&mut k, 30 * SECOND);
    let got: Vec<u64> = ns(&k).iter().zip(&before).map(|(now, then)| now - then).collect();
    let all: u64 = got.iter().sum();
    let weights: u32 = doms.iter().map(weight_of).sum();
    for (i, dom) in doms.iter().enumerate() {
        let wanted = f64::from(weight_of(dom)) / f64::from(weights);
        let what = format!("{machine}: domain {i} of {}, weight {}", doms.len(), dom.weight);
        assert_near(&what, got[i] as f64 / all as f64, wanted, 2.0);
    }
}

#[test]
fn two_domains_share_by_weight() {
    for weights in [[100, 100], [100, 200], [100, 800]] {
        assert_shares("1c", &weights.map(Dom::weighing), &[], |d| d.weight);
    }
}

#[test]
fn eight_domains_share_by_weight() {
    let doms: Vec<Dom> = (1..=8).map(|i| Dom::weighing(i * 100)).collect();
    assert_shares("2c", &doms, &[], |d| d.weight);
}

#[test]
fn sixty_four_domains_share_by_weight() {
    let dom = |i: u32| Dom { weight: (i % 8 + 1) * 100, cap: None, tasks: 2 };
    let doms: Vec<Dom> = (0..64).map(dom).collect();
    assert_shares("32c", &doms, &[], |d| d.weight);
}

#[test]
fn a_domain_shares_its_weight_among_its_vcpus_or_each_has_it() {
    let doms = [Dom { weight: 100, cap: None, tasks: 6 }, Dom { weight: 200, cap: None, tasks: 3 }];
    assert_shares("2c", &doms, &[], |d| d.weight);
    let each = [("weight_of", "vcpu")];
    assert_shares("2c", &doms, &each, |d| d.weight * d.tasks);
}

#[test]
fn a_weight_that_changes_while_running_counts_from_then_on() {
    let doms = [100, 100].map(Dom::weighing);
    let (mut k, _) = attached("1c", &saturating(&doms), &[]);
    k.start();
    go_on(&mut k, 2 * SECOND);
    set(&mut k, "/d1", |spec| spec.weight = 300);
    let before = ["/d0", "/d1"].map(|d| group_ns(&k, d));
    go_on(&mut k, 20 * SECOND);
    let got = [0, 1].map(|i| (group_ns(&k, &format!("/d{i}")) - before[i]) as f64);
    assert_near("3 of 4", got[1] / (got[0] + got[1]), 0.75, 2.0);
}

/// No vCPU that never sleeps may wait for longer than the README says: until its debt is repaid,
/// and then for a slice of each other vCPU on its CPU. In this test, the debt is at most 90 ms, and
/// the vCPU repays it in nine times as long, because its share is 1/9 of the CPU.
#[test]
fn nobody_waits_longer_than_the_bound() {
    let doms = [100, 800].map(Dom::weighing);
    let (mut k, _) = attached("1c", &saturating(&doms), &[]);
    run_for(&mut k, 10 * SECOND);
    let bound = 90 * 9 * MS + 2 * 34 * MS;
    let longest = longest_wait(&k);
    assert!(longest < bound, "{longest} ns");
}

/// The rescue runs a vCPU that has waited for `rescue_ms` behind vCPUs of higher priority. Two
/// domains have weights 1 and 10000. Without the rescue, the light vCPU would wait for minutes
/// between slices; with it, for little more than `rescue_ms`.
#[test]
fn who_is_kept_waiting_is_rescued() {
    let doms = [1, 10000].map(Dom::weighing);
    let (mut k, loaded) = attached("1c", &saturating(&doms), &[("rescue_ms", "1000")]);
    run_for(&mut k, 20 * SECOND);
    let longest = longest_wait(&k);
    assert!(longest < 1100 * MS, "{longest} ns");
    assert!(scxlab_testkit::state::stat(&k, &loaded, "rescued") > 10);
}
