// SPDX-License-Identifier: GPL-2.0-only
//! What `fair` costs where tasks switch often, beside `vtime`, the smallest scheduler here.

use scxlab_kernel::Kernel;
use scxlab_testkit::shipped::scheduled;

use crate::stayed;

/// Messages per second of virtual time, in hackbench of that many groups.
fn rate(scheduler: &str, machine: &str, groups: u32, seed: u64) -> u64 {
    let (mut k, _): (Kernel, _) =
        scheduled(scheduler, machine, &format!("hackbench,groups={groups}"), seed);
    k.run(None);
    stayed(&k);
    (u128::from(k.metrics.work_units) * 1_000_000_000 / u128::from(k.now)) as u64
}

/// A synchronous wake-up leaves the CPU to its waker: senders fill the pipes before the readers run, as under `vtime`, which preempts
/// nobody.
#[test]
fn hackbench_is_not_far_from_vtime() {
    for (machine, groups, seed) in [("8c", 10, 1), ("8c", 20, 2), ("64c", 10, 3)] {
        let (vtime, fair) =
            (rate("vtime", machine, groups, seed), rate("fair", machine, groups, seed));
        assert!(fair * 100 >= vtime * 70, "{machine}, {groups} groups: {fair} of {vtime}");
    }
}
