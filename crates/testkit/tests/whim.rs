// SPDX-License-Identifier: GPL-2.0-only
//! No scheduler can break the simulated kernel: 300 random schedulers try, on random machines under
//! random workloads.

use scxlab_testkit::parallel;
use scxlab_testkit::whim::{STEPS, check, input};
use std::collections::BTreeMap;
use std::panic::catch_unwind;

/// Returns the seeds to run; WHIM_SEEDS=FROM..TO overrides the default.
fn seeds() -> std::ops::Range<u64> {
    let given = std::env::var("WHIM_SEEDS").ok();
    let given = given.and_then(|s| s.split_once("..").map(|(a, b)| (a.parse(), b.parse())));
    match given {
        Some((Ok(from), Ok(to))) => from..to,
        _ => 0..300,
    }
}

#[test]
fn random_schedulers_break_nothing() {
    let (mut broken, mut ends) = (Vec::new(), BTreeMap::<String, u32>::new());
    let seeds: Vec<u64> = seeds().collect();
    let seen = parallel::map(&seeds, |&seed| catch_unwind(|| check(&input(seed), STEPS)));
    for (seed, seen) in seeds.into_iter().zip(seen) {
        match seen {
            Ok(seen) => {
                for end in seen.ends {
                    *ends.entry(kind(&end)).or_default() += 1;
                }
            }
            // The panic has already printed its message.
            Err(_) => broken.push(seed),
        }
    }
    assert!(broken.is_empty(), "seeds {broken:?}");
    println!("{ends:#?}");
}

/// Returns the reason for an end without the numbers in it, so that ends for the same reason are
/// counted together.
fn kind(end: &str) -> String {
    end.chars().filter(|c| !c.is_ascii_hexdigit() || c.is_alphabetic()).take(100).collect()
}

/// A task's storage may hold a reference to the task itself. The kernel must drop this reference
/// when it frees the task.
#[test]
fn a_task_may_hold_itself() {
    for seed in [750, 929] {
        check(&input(seed), STEPS);
    }
}

/// Code on a CPU whose clock is ahead charges another CPU's running task for time that the other
/// CPU has yet to reach. If the other CPU then picks a task of the default class, this task must
/// not be charged for the same time.
#[test]
fn no_moment_of_a_cpu_is_charged_twice() {
    for seed in [1015, 1091] {
        check(&input(seed), STEPS);
    }
}
