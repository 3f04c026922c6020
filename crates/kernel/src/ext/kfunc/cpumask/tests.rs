// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the kfuncs on CPU sets, called through their handlers and compared with `BTreeSet`, and
//! of the life of `bpf_cpumask` objects.

use super::*;
use crate::ext::idle::fixture::kernel;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn try_call(k: &mut Kernel, name: &str, args: &[u64]) -> KfResult {
    let mut a = [0; 5];
    a[..args.len()].copy_from_slice(args);
    TABLE.iter().find(|(n, _)| *n == name).expect("a kfunc of this file").1(k, &a)
}

fn call(k: &mut Kernel, name: &str, args: &[u64]) -> u64 {
    try_call(k, name, args).expect("no fault")
}

fn new_mask(k: &mut Kernel, cpus: &BTreeSet<u64>) -> u64 {
    let mask = call(k, "bpf_cpumask_create", &[]);
    for &cpu in cpus {
        call(k, "bpf_cpumask_set_cpu", &[cpu, mask]);
    }
    mask
}

fn cpus_of(k: &mut Kernel, nr: u64, mask: u64) -> BTreeSet<u64> {
    (0..nr).filter(|&cpu| call(k, "bpf_cpumask_test_cpu", &[cpu, mask]) == 1).collect()
}

fn cpus(nr: u64) -> impl Strategy<Value = BTreeSet<u64>> {
    prop_oneof![
        prop::collection::btree_set(0..nr, 0..nr as usize),
        Just(BTreeSet::new()),
        Just((0..nr).collect()),
    ]
}

/// Number of CPUs: a set of them takes more than one word, and the last word is not full.
const NR: u64 = 70;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn operations_are_those_of_sets(a in cpus(NR), b in cpus(NR)) {
        let mut k = kernel("70c1t", &[]);
        let k = &mut k;
        let (x, y, dst) = (new_mask(k, &a), new_mask(k, &b), new_mask(k, &BTreeSet::new()));
        prop_assert_eq!(cpus_of(k, NR, x), a.clone());
        prop_assert_eq!(call(k, "bpf_cpumask_weight", &[x]), a.len() as u64);
        prop_assert_eq!(call(k, "bpf_cpumask_first", &[x]), a.first().copied().unwrap_or(NR));
        let gap = (0..NR).find(|cpu| !a.contains(cpu)).unwrap_or(NR);
        prop_assert_eq!(call(k, "bpf_cpumask_first_zero", &[x]), gap);
        let both: BTreeSet<u64> = &a & &b;
        let lowest = both.first().copied().unwrap_or(NR);
        prop_assert_eq!(call(k, "bpf_cpumask_first_and", &[x, y]), lowest);
        prop_assert_eq!(call(k, "bpf_cpumask_equal", &[x, y]), u64::from(a == b));
        prop_assert_eq!(call(k, "bpf_cpumask_intersects", &[x, y]), u64::from(!both.is_empty()));
        prop_assert_eq!(call(k, "bpf_cpumask_subset", &[x, y]), u64::from(a.is_subset(&b)));
        prop_assert_eq!(call(k, "bpf_cpumask_empty", &[x]), u64::from(a.is_empty()));
        prop_assert_eq!(call(k, "bpf_cpumask_full", &[x]), u64::from(a.len() as u64 == NR));
        prop_assert_eq!(call(k, "bpf_cpumask_and", &[dst, x, y]), u64::from(!both.is_empty()));
        prop_assert_eq!(cpus_of(k, NR, dst), both);
        call(k, "bpf_cpumask_or", &[dst, x, y]);
        prop_assert_eq!(cpus_of(k, NR, dst), &a | &b);
        call(k, "bpf_cpumask_xor", &[dst, x, y]);
        prop_assert_eq!(cpus_of(k, NR, dst), &a ^ &b);
        call(k, "bpf_cpumask_copy", &[dst, y]);
        prop_assert_eq!(cpus_of(k, NR, dst), b);
        let picked: BTreeSet<u64> =
            (0..a.len()).map(|_| call(k, "bpf_cpumask_any_distribute", &[x])).collect();
        prop_assert_eq!(picked, a, "one round of the cursor visits every CPU");
    }
}

#[test]
fn bits_behind_the_last_cpu_are_not_seen() {
    let mut k = kernel("70c1t", &[]);
    let k = &mut k;
    let mask = new_mask(k, &BTreeSet::new());
    call(k, "bpf_cpumask_setall", &[mask]);
    assert_eq!(
        k.vm.mem.words(mask, 3),
        [u64::MAX, u64::MAX, 0],
        "whole words are set, as in the kernel"
    );
    assert_eq!(call(k, "bpf_cpumask_weight", &[mask]), NR);
    assert_eq!(call(k, "bpf_cpumask_full", &[mask]), 1);
    assert_eq!(call(k, "bpf_cpumask_first_zero", &[mask]), NR);
    let possible = call(k, "scx_bpf_get_possible_cpumask", &[]);
    assert_eq!(call(k, "bpf_cpumask_equal", &[mask, possible]), 1);
    assert_eq!(call(k, "bpf_cpumask_test_cpu", &[NR, mask]), 0);
    call(k, "bpf_cpumask_and", &[mask, mask, mask]);
    assert_eq!(k.vm.mem.words(mask, 2)[1], (1 << (NR - 64)) - 1, "AND clears them");
    call(k, "bpf_cpumask_clear", &[mask]);
    call(k, "bpf_cpumask_set_cpu", &[NR, mask]);
    assert_eq!(k.vm.mem.words(mask, 2), [0, 0], "no such CPU");
}

#[test]
fn test_and_change_tell_what_was() {
    let mut k = kernel("4c1t", &[]);
    let k = &mut k;
    let mask = new_mask(k, &BTreeSet::from([2]));
    assert_eq!(call(k, "bpf_cpumask_test_and_set_cpu", &[2, mask]), 1);
    assert_eq!(call(k, "bpf_cpumask_test_and_set_cpu", &[1, mask]), 0);
    assert_eq!(call(k, "bpf_cpumask_test_and_clear_cpu", &[2, mask]), 1);
    assert_eq!(call(k, "bpf_cpumask_test_and_clear_cpu", &[2, mask]), 0);
    call(k, "bpf_cpumask_clear_cpu", &[1, mask]);
    assert_eq!(call(k, "bpf_cpumask_empty", &[mask]), 1);
}

#[test]
fn populate_wants_a_word_for_every_64_cpus() {
    let mut k = kernel("70c1t", &[]);
    let k = &mut k;
    let mask = new_mask(k, &BTreeSet::new());
    let src = k.vm.mem.alloc(16, 8).unwrap();
    k.vm.mem.words_mut(src, 2).copy_from_slice(&[0b101, 0b10]);
    assert_eq!(call(k, "bpf_cpumask_populate", &[mask, src, 15]), s32(-EACCES));
    assert_eq!(call(k, "bpf_cpumask_populate", &[mask, src, 16]), 0);
    assert_eq!(cpus_of(k, NR, mask), BTreeSet::from([0, 2, 65]));
}

#[test]
fn objects_live_as_long_as_their_references() {
    let mut k = kernel("4c1t", &[]);
    let k = &mut k;
    let mask = new_mask(k, &BTreeSet::from([3]));
    assert_eq!(call(k, "bpf_cpumask_acquire", &[mask]), mask);
    call(k, "bpf_cpumask_release", &[mask]);
    call(k, "bpf_cpumask_set_cpu", &[0, mask]);
    call(k, "bpf_cpumask_release_dtor", &[mask]);
    assert_eq!(k.ext.idle.objects.nr_live(), 0);
    assert!(try_call(k, "bpf_cpumask_release", &[mask]).is_err(), "released once too often");
    assert!(try_call(k, "bpf_cpumask_set_cpu", &[0, mask]).is_err(), "no longer an object");
    assert_eq!(
        call(k, "bpf_cpumask_test_cpu", &[3, mask]),
        1,
        "a reader in an RCU section still sees it"
    );
    let next = new_mask(k, &BTreeSet::new());
    assert_ne!(next, mask, "its memory rests first");
}

#[test]
fn storm_of_objects_reuses_memory_and_starts_empty() {
    let mut k = kernel("4c1t", &[]);
    let k = &mut k;
    let mut seen = BTreeSet::new();
    for _ in 0..1000 {
        let mask = call(k, "bpf_cpumask_create", &[]);
        assert_eq!(call(k, "bpf_cpumask_empty", &[mask]), 1);
        call(k, "bpf_cpumask_setall", &[mask]);
        seen.insert(mask);
        release_cpumask(k, mask).unwrap();
    }
    assert!(seen.len() < 100, "{} addresses", seen.len());
}

#[test]
fn only_objects_may_be_changed() {
    let mut k = kernel("4c1t", &[]);
    let k = &mut k;
    let online = call(k, "scx_bpf_get_online_cpumask", &[]);
    let before = cpus_of(k, 4, online);
    assert!(try_call(k, "bpf_cpumask_clear", &[online]).is_err());
    assert!(try_call(k, "bpf_cpumask_set_cpu", &[0, 0]).is_err());
    assert!(try_call(k, "bpf_cpumask_weight", &[0]).is_err());
    assert!(try_call(k, "bpf_cpumask_weight", &[online + 4]).is_err(), "not aligned");
    assert_eq!(cpus_of(k, 4, online), before);
    k.idle_set_online(CpuId(2), false);
    assert_eq!(cpus_of(k, 4, online), BTreeSet::from([0, 1, 3]), "the mask is live");
}

#[test]
fn whole_masks_cost_by_the_word() {
    let mut k = kernel("70c1t", &[]);
    let k = &mut k;
    let mask = new_mask(k, &BTreeSet::new());
    let before = k.clock();
    call(k, "bpf_cpumask_or", &[mask, mask, mask]);
    assert_eq!(k.clock() - before, 2 * k.machine.costs.kfunc.cpumask_word_ns);
}
