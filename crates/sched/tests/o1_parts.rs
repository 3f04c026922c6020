// SPDX-License-Identifier: GPL-2.0-only
//! The parts of o1 alone: the sleep history compared with an independent model, and priority
//! arrays.

use scxlab_testkit::checks;
use scxlab_testkit::shipped::{run_on_words, selftest};
use scxlab_testkit::sim::{kernel, run_ns};
use scxlab_testkit::state::global;

const MS: u64 = 1_000_000;
const HZ: u64 = 100;

fn random(state: &mut u64, n: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % n
}

/// The sleep history as a list of seconds: the ticks slept in each second, and the times in jiffies
/// at which the task last stopped running to sleep, and last started to run.
#[derive(Default)]
struct Model {
    cells: [u64; 4],
    at: usize,
    stopped: u64,
    started: u64,
}

impl Model {
    fn stop(&mut self, now: u64) {
        match now / HZ - self.started / HZ {
            0 => {}
            turns @ 1..=3 => (0..turns).for_each(|_| {
                self.at = (self.at + 1) % 4;
                self.cells[self.at] = 0;
            }),
            _ => (self.cells, self.at) = ([0; 4], 0),
        }
        self.stopped = now;
    }

    /// Adds the sleep that ends at `now` to the history. Returns the task's penalty.
    fn start(&mut self, now: u64) -> u64 {
        let turns = now / HZ - self.stopped / HZ;
        let slept_now = if turns == 0 { now - self.stopped } else { now % HZ };
        match turns {
            0 => {}
            1..=3 => {
                self.cells[self.at] += HZ - self.stopped % HZ;
                // As in the diff of January 2002 (README), skip the first of the whole seconds that
                // the task slept through, and fill the others.
                for turn in 2..turns {
                    self.cells[(self.at + turn as usize) % 4] = HZ;
                }
                self.at = (self.at + turns as usize) % 4;
                self.cells[self.at] = 0;
            }
            _ => {
                self.cells = [HZ; 4];
                self.at = 0;
                self.cells[0] = 0;
            }
        }
        self.cells[self.at] += slept_now;
        self.started = now;
        let sleep = self.cells.iter().sum::<u64>() * HZ / (3 * HZ + now % HZ);
        assert!(sleep <= HZ, "{:?} at {now}", self.cells);
        13 * (HZ - sleep) / HZ
    }
}

#[test]
fn the_sleep_history_is_the_diffs() {
    for seed in 1..=8 {
        let mut k = kernel("1c", "hogs,tasks=1", 1);
        let loaded = selftest(&mut k, "o1_estimator");
        let (mut model, mut state, mut now) = (Model::default(), seed, 0);
        let reach = [3, 60, 250, 700][seed as usize % 4];
        for step in 0..400u64 {
            now += random(&mut state, reach);
            let wakes = step % 2;
            let mut sample = [now, wakes, 0, 0, 0, 0, 0, 0];
            run_on_words(&mut k, &loaded, "take_sample", &mut sample);
            if wakes == 1 {
                assert_eq!(sample[2], model.start(now), "seed {seed}, step {step}, jiffy {now}");
            } else {
                model.stop(now);
            }
            assert_eq!(sample[4..], model.cells, "seed {seed}, step {step}, jiffy {now}");
            assert_eq!(sample[3], model.at as u64, "seed {seed}, step {step}, jiffy {now}");
        }
    }
}

#[test]
fn levels_are_found_and_compared() {
    let mut k = kernel("1c", "hogs,tasks=1", 1);
    let loaded = selftest(&mut k, "prio_array");
    let mut state = 9;
    for round in 0..300 {
        let single = 1 << (round % 40);
        let levels = match round {
            0 => 0,
            1..=80 => single,
            _ => {
                (random(&mut state, 1 << 31) << 20 | random(&mut state, 1 << 20)) & ((1 << 40) - 1)
            }
        };
        let (level, equal) = (random(&mut state, 41), random(&mut state, 2));
        let mut query = [levels, level, equal, 0, 0];
        run_on_words(&mut k, &loaded, "levels", &mut query);
        assert_eq!(query[3], u64::from(levels.trailing_zeros().min(40)), "{levels:#x}");
        let better = (0..40).filter(|l| *l < level || equal == 1 && *l == level);
        assert_eq!(query[4], better.map(|l| 1 << l).sum::<u64>(), "level {level}, equal {equal}");
    }
}

#[test]
fn an_array_serves_by_level_and_within_one_in_turn() {
    let mut k = kernel("1c", "hogs,tasks=4,nice=0:5:5:19", 1);
    let loaded = selftest(&mut k, "prio_array");
    k.attach_object(&loaded, None).unwrap_or_else(|e| panic!("{e}"));
    k.start();
    k.advance(200 * MS);
    let ran = ["hog-0", "hog-1", "hog-2", "hog-3"].map(|name| run_ns(&k, name) / MS);
    // The kernel calls ops.dispatch before it queues the previous task again, so the best of the
    // other tasks runs every second turn. Of the 200 ms, `hog-0` therefore gets a half, and `hog-1`
    // and `hog-2` get equal parts of the other half.
    assert!(ran[0].abs_diff(100) < 10 && ran[3] == 0, "{ran:?}");
    assert!(ran[1].abs_diff(ran[2]) < 10, "{ran:?}");
    assert_ne!(global(&k, &loaded, "array.bitmap") & 1 << 39, 0);
    checks::after(&k);
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
}
