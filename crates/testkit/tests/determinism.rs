// SPDX-License-Identifier: GPL-2.0-only
//! Equal inputs and seed give equal events, in one thread or in several; another seed gives other
//! events.

use scxlab_testkit::sim::{attach, kernel};

fn hash(scheduler: &str, seed: u64) -> (u64, u64) {
    let mut k = kernel("2n4c2t", "hackbench,groups=1,loops=100", seed);
    if let Some(shipped) = scxlab_sched::find(scheduler) {
        attach(&mut k, scheduler, shipped.object, &[]);
    }
    k.run(Some(200_000_000));
    (k.tracer.hash(), k.tracer.count())
}

#[test]
fn twenty_runs_are_one() {
    for scheduler in ["eevdf", "vtime"] {
        let first = hash(scheduler, 7);
        assert!(first.1 > 1000, "{scheduler}: only {} events", first.1);
        for _ in 1..20 {
            assert_eq!(hash(scheduler, 7), first, "{scheduler}");
        }
    }
}

#[test]
fn threads_change_nothing() {
    let alone = hash("vtime", 3);
    let together: Vec<_> = std::thread::scope(|s| {
        let runs: Vec<_> = (0..4).map(|_| s.spawn(|| hash("vtime", 3))).collect();
        runs.into_iter().map(|r| r.join().expect("no panic")).collect()
    });
    assert_eq!(together, vec![alone; 4]);
}

#[test]
fn a_seed_matters() {
    assert_ne!(hash("vtime", 1), hash("vtime", 2));
}
