// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the bit arithmetic against sets of numbers.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const NR: usize = 200;

fn mask(cpus: &BTreeSet<u32>) -> CpuMask {
    CpuMask::of(NR, cpus.iter().map(|&cpu| CpuId(cpu)))
}

fn cpus() -> impl Strategy<Value = BTreeSet<u32>> {
    prop::collection::btree_set(0..NR as u32, 0..30)
}

proptest! {
    #[test]
    fn agrees_with_sets(a in cpus(), b in cpus(), cpu in 0..NR as u32) {
        let (x, y) = (mask(&a), mask(&b));
        prop_assert_eq!(iter(&x).map(|c| c.0).collect::<BTreeSet<_>>(), a.clone());
        let both = iter_and(&x, &y).map(|c| c.0);
        prop_assert!(both.eq(a.intersection(&b).copied()));
        for words in [0..x.len(), 1..3, 2..2] {
            let inside = |c: &&u32| words.contains(&(**c as usize / 64));
            let some = iter_within(&x, words.clone()).map(|c| c.0);
            prop_assert!(some.eq(a.iter().filter(inside).copied()));
            let both = iter_and_within(&x, &y, words.clone()).map(|c| c.0);
            prop_assert!(both.eq(a.intersection(&b).filter(inside).copied()));
        }
        prop_assert_eq!(weight(&x) as usize, a.len());
        prop_assert_eq!(is_empty(&x), a.is_empty());
        prop_assert_eq!(first(&x).map(|c| c.0), a.first().copied());
        prop_assert_eq!(test(&x, CpuId(cpu)), a.contains(&cpu));
        prop_assert_eq!(first_and(&x, &y).map(|c| c.0), a.intersection(&b).next().copied());
        prop_assert_eq!(intersects(&x, &y), !a.is_disjoint(&b));
        prop_assert_eq!(is_subset(&x, &y), a.is_subset(&b));
        let mut changed = x.clone();
        clear(&mut changed, CpuId(cpu));
        prop_assert!(!test(&changed, CpuId(cpu)));
        set(&mut changed, CpuId(cpu));
        prop_assert!(test(&changed, CpuId(cpu)));
        prop_assert_eq!(x.to_string(), mask(&a).to_string());
    }

    #[test]
    fn list_form_reads_back(a in cpus()) {
        let read = crate::topology::sysfs::parse_cpu_list(&mask(&a).to_string()).unwrap();
        prop_assert_eq!(read.into_iter().collect::<BTreeSet<_>>(), a);
    }
}

#[test]
fn the_end_of_the_set_is_safe() {
    let mut small = CpuMask::new(64);
    set(&mut small, CpuId(64));
    set(&mut small, CpuId(u32::MAX));
    clear(&mut small, CpuId(64));
    assert!(is_empty(&small));
    assert!(!test(&small, CpuId(1 << 20)));
    assert_eq!(weight(&CpuMask::all(65)), 65);
    assert_eq!(CpuMask::new(0).len(), 1);
    // Two sets may differ in length. CPUs past the end of the shorter set must count as absent from
    // it.
    assert!(!is_subset(&CpuMask::all(65), &CpuMask::all(64)));
    assert!(is_subset(&CpuMask::all(64), &CpuMask::all(65)));
    assert_eq!(iter_and(&CpuMask::all(65), &CpuMask::all(64)).count(), 64);
}

#[test]
fn list_form() {
    assert_eq!(CpuMask::of(200, [0, 1, 2, 3, 8, 63, 64].map(CpuId)).to_string(), "0-3,8,63-64");
    assert_eq!(CpuMask::new(8).to_string(), "");
}
