// SPDX-License-Identifier: GPL-2.0-only
//! Balancing by contributed load: the example of the series.

use scxlab_kernel::Kernel;
use scxlab_testkit::shipped::scheduled;

use crate::{MS, SECOND, stayed};

/// One task of 80 % and two of 40 %, with periods that drift against each other.
const TASKS: &str = r#"
    duration = "12s"
    [[thread]]
    name = "a"
    ops = [{ loop = { ops = [{ compute = "12ms" }, { sleep = "3ms" }] } }]
    [[thread]]
    name = "b"
    ops = [{ loop = { ops = [{ compute = "16ms" }, { sleep = "24ms" }] } }]
    [[thread]]
    name = "c"
    ops = [{ loop = { ops = [{ compute = "20ms" }, { sleep = "30ms" }] } }]
"#;

/// Two CPUs that share no cache: no waking task looks for an idle one over there.
const MACHINE: &str = "1n2l1c1t";

/// The large one has a CPU for itself.
fn is_split(k: &Kernel) -> bool {
    let cpu = |name: &str| k.tasks.iter().find(|t| t.name == name).expect("a task").cpu;
    cpu("b") == cpu("c") && cpu("a") != cpu("b")
}

/// Part of the time in which it has, percent.
fn split_percent(tasks: &str, machine: &str, scheduler: &str, seed: u64) -> u64 {
    let (mut k, _) = scheduled(scheduler, machine, tasks, seed);
    k.start();
    k.advance(2 * SECOND);
    let (mut split, mut looks) = (0, 0);
    while k.now < 12 * SECOND {
        let at = k.now + MS;
        k.advance(at);
        split += u64::from(is_split(&k));
        looks += 1;
    }
    stayed(&k);
    split * 100 / looks
}

#[test]
fn pelt_keeps_80_from_40_and_40_and_window_does_not() {
    for seed in 1..=3 {
        let pelt = split_percent(TASKS, MACHINE, "fair,load=FAIR_LOAD_PELT", seed);
        assert!(pelt > 95, "pelt, seed {seed}: {pelt} %");
        let window = split_percent(TASKS, MACHINE, "fair", seed);
        assert!(window < 70, "window, seed {seed}: {window} %");
    }
}
