// SPDX-License-Identifier: GPL-2.0-only
//! A fork that `ops.init_task()` refuses leaves nothing behind, and the parent continues.

use scxlab_testkit::checks;
use scxlab_testkit::shipped::selftest_object;
use scxlab_testkit::sim::{attach, kernel};

const MS: u64 = 1_000_000;

/// Six parents that fork a short-lived child each millisecond or so.
const FORKERS: &str = "[[thread]]\nname = 'parent-{i}'\ninstances = 6\n\
     ops = [{ loop = { ops = [{ fork = 'child' }, { compute = '200us' }, { sleep = '300us' }] } }]\n\
     [[thread]]\nname = 'child'\ninstances = 0\nops = [{ compute = '100us' }]\n";

/// Returns the number of forks made, the number of tasks at the end, and the CPU time used, after
/// half a second.
fn run(refuse_permille: u32, machine: &str, seed: u64) -> (u64, usize, u64) {
    let mut k = kernel(machine, FORKERS, seed);
    let knob = refuse_permille.to_string();
    k.start();
    attach(&mut k, "lapse", selftest_object("lapse"), &[("refuse_permille", &knob)]);
    k.advance(500 * MS);
    checks::after(&k);
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
    let tasks = k.tasks.iter().filter(|t| k.is_workload(t)).count();
    (k.metrics.forks, tasks, k.tasks.iter().map(|t| t.account.run_ns).sum())
}

#[test]
fn refused_forks_leave_nothing_behind() {
    for (machine, seed) in [("1c", 1), ("2n2c1t", 2), ("1n4c2t", 3), ("8c", 4)] {
        let all = run(0, machine, seed);
        let half = run(500, machine, seed);
        let none = run(1000, machine, seed);
        // The number of forks includes the six parents. The number of tasks is compared only if
        // every fork was refused, because otherwise some children may not have exited yet.
        assert!(all.0 > 500 && half.0 > 200, "{machine}: {all:?} {half:?}");
        assert!(half.0 < all.0, "{machine}: {all:?} {half:?}");
        assert_eq!((none.0, none.1), (6, 6), "{machine}: parents only");
        assert!(none.2 > 100 * MS, "{machine}: the parents run on: {none:?}");
    }
}
