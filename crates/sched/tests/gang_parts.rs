// SPDX-License-Identifier: GPL-2.0-only
//! The election of gang leaders alone (`bpf/lib/gang.bpf.h`), compared with an independent model.

use scxlab_kernel::Kernel;
use scxlab_loader::link::Loaded;
use scxlab_testkit::shipped::{run_on_words, selftest};
use scxlab_testkit::sim::kernel;

const ELECT: u64 = 0;
const END: u64 = 1;
const LOOK: u64 = 2;
const SETUP: u64 = 1 << 63;

struct Part {
    k: Kernel,
    loaded: Loaded,
}

/// Result of one step of `take_step`, and the round of the step's domain after the step.
struct After {
    result: u64,
    round: u64,
}

impl Part {
    fn new() -> Self {
        let mut k = kernel("1c", "hogs,tasks=1", 1);
        let loaded = selftest(&mut k, "gang");
        Part { k, loaded }
    }

    /// Runs one step of the BPF program `take_step`, such as an election; `on` is the domain, the
    /// CPU and the gang.
    fn step(&mut self, kind: u64, on: [u64; 3], times: [u64; 2], round: u64) -> After {
        let mut words = [kind, on[0], on[1], on[2], times[0], times[1], round, 0];
        run_on_words(&mut self.k, &self.loaded, "take_step", &mut words);
        After { result: words[7], round: words[6] }
    }
}

fn random(state: &mut u64, n: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % n
}

/// Several gangs compete in each domain. While an elected leader leads a domain, every other
/// election in this domain must fail.
#[test]
fn a_domain_has_one_leader_at_a_time() {
    let mut part = Part::new();
    let mut state = 7;
    // Indexed by domain: the round and the time of its end.
    let mut model = [(0u64, 0u64); 4];
    let (mut now, mut rounds) = (1, 0u64);
    for step in 0..4_000 {
        now += random(&mut state, 5);
        let on = [random(&mut state, 4), random(&mut state, 8), 1 + random(&mut state, 3)];
        let [domain, cpu, gang] = on;
        let (round, until) = model[domain as usize];
        let led = round != 0 && until > now;
        match random(&mut state, 3) {
            0 | 1 => {
                let until = now + 1 + random(&mut state, 30);
                let after = part.step(ELECT, on, [now, until], 0);
                assert_eq!(after.result == 0, led, "step {step}");
                if !led {
                    assert_eq!(after.result & 0xffff, cpu + 1, "the leader");
                    assert_eq!(after.result >> 48, gang, "the gang");
                    assert_eq!(after.result >> 16 & 0xffff_ffff, rounds, "all rounds differ");
                    assert_eq!(after.result & SETUP, 0);
                    model[domain as usize] = (after.result, until);
                    rounds += 1;
                }
            }
            _ => {
                // Try to end a round that, in most cases, is the round of another domain: this must
                // have no effect.
                let other = model[random(&mut state, 4) as usize].0;
                part.step(END, on, [now, 0], other);
                if other == round {
                    model[domain as usize] = (0, 0);
                }
            }
        }
        let (round, until) = model[domain as usize];
        let after = part.step(LOOK, on, [now, 0], 0);
        assert_eq!(after.round, round, "step {step}");
        assert_eq!(after.result, if until > now { round } else { 0 }, "step {step}");
    }
    assert!(rounds > 500, "{rounds}");
}
