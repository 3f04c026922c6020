// SPDX-License-Identifier: GPL-2.0-only
//! Worlds: variations of a request, in each of which all candidates run. A recommendation must hold
//! in nearly all of them, because neither the workload nor the machine is known exactly.
//!
//! Owns: what varies, and by how much: the seed, the lengths of computations, the starts of
//! threads, the times of a recording's arrivals, and groups of the machine's costs by up to a
//! factor of two.
//! Does not: depend on the candidates. All run in the same worlds, so that their results are
//! paired.

use std::sync::Arc;

use scxlab_machine::cost::CostFactors;
use scxlab_machine::id::Nanos;
use scxlab_machine::{Machine, Ratio, Stream};
use scxlab_recording::{has_arrivals, vary_arrivals};
use scxlab_workload::{Perturb, Program};

/// What a world is for. The decision uses worlds that the search has not seen, because the best of
/// many equal candidates looks better than it is in the worlds in which it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Search,
    Decide,
}

/// One variation of a request.
#[derive(Clone, Debug)]
pub struct World {
    pub seed: u64,
    pub perturb: Perturb,
    pub machine: Arc<Machine>,
    /// The program with other arrivals; None: the program has none.
    pub program: Option<Arc<Program>>,
}

/// Factors from 1/2 to 2 in thousandths, evenly spaced in their logarithm.
const FACTORS: [u32; 17] =
    [500, 545, 595, 648, 707, 771, 841, 917, 1000, 1091, 1189, 1297, 1414, 1542, 1682, 1834, 2000];

/// Bounds of the maximum start offset, in ns.
const START_OFFSET: (Nanos, Nanos) = (1_000_000, 10_000_000);
/// Bounds of the noise of computations, in thousandths.
const COMPUTE_NOISE: (u64, u64) = (10, 50);

impl World {
    /// Returns the world as the request has it, with the noise that every run has.
    pub fn as_given(machine: &Arc<Machine>, seed: u64) -> World {
        let perturb = Perturb {
            start_offset_max: START_OFFSET.0,
            compute_noise_permille: COMPUTE_NOISE.0 as u32,
        };
        World { seed, perturb, machine: machine.clone(), program: None }
    }

    /// Returns the same world for runs of about this length.
    pub fn within(self, length: Nanos) -> World {
        World { perturb: self.perturb.within(length), ..self }
    }

    /// Returns a world by its number. Equal arguments give equal worlds.
    pub fn new(
        machine: &Arc<Machine>,
        program: &Program,
        seed: u64,
        purpose: Purpose,
        number: u32,
    ) -> World {
        let name = match purpose {
            Purpose::Search => "advise.search",
            Purpose::Decide => "advise.decide",
        };
        let mut stream = Stream::new(seed, name, u64::from(number));
        let run_seed = stream.next_u64();
        let perturb = Perturb {
            start_offset_max: stream.between(START_OFFSET.0, START_OFFSET.1),
            compute_noise_permille: stream.between(COMPUTE_NOISE.0, COMPUTE_NOISE.1) as u32,
        };
        let mut factor = || {
            let at = stream.below(FACTORS.len() as u64) as usize;
            Ratio { num: FACTORS[at], den: 1000 }
        };
        let factors =
            CostFactors { migration: factor(), switch: factor(), lock: factor(), bpf: factor() };
        let costs = machine.costs.scaled(&factors, "varied by advise");
        let machine = Arc::new(Machine { costs, ..Machine::clone(machine) });
        let program = has_arrivals(program).then(|| {
            let mut program = program.clone();
            vary_arrivals(&mut program, run_seed);
            Arc::new(program)
        });
        World { seed: run_seed, perturb, machine, program }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worlds_are_reproducible_and_differ() {
        let machine = Arc::new(Machine::resolve("2c").unwrap());
        let world = |purpose, number| World::new(&machine, &Program::default(), 7, purpose, number);
        let (one, same) = (world(Purpose::Search, 3), world(Purpose::Search, 3));
        assert_eq!((one.seed, one.perturb), (same.seed, same.perturb));
        assert_eq!(one.machine, same.machine);
        for other in [world(Purpose::Search, 4), world(Purpose::Decide, 3)] {
            assert_ne!(one.seed, other.seed);
            assert_ne!(one.machine.costs, other.machine.costs);
        }
    }

    #[test]
    fn a_short_run_does_not_consist_of_its_start_offsets() {
        let machine = Arc::new(Machine::resolve("2c").unwrap());
        let world = World::new(&machine, &Program::default(), 7, Purpose::Search, 3);
        let offset = |length| world.clone().within(length).perturb.start_offset_max;
        assert_eq!((offset(1_000_000), offset(0)), (10_000, 0));
        assert_eq!(offset(10_000_000_000), world.perturb.start_offset_max);
    }

    #[test]
    fn costs_stay_within_a_factor_of_two() {
        let machine = Arc::new(Machine::resolve("2c").unwrap());
        let given = machine.costs.sched.context_switch_ns;
        let costs = |n| {
            World::new(&machine, &Program::default(), 1, Purpose::Search, n)
                .machine
                .costs
                .sched
                .context_switch_ns
        };
        let all: Vec<u64> = (0..64).map(costs).collect();
        assert!(all.iter().all(|ns| (given / 2..=given * 2).contains(ns)), "{all:?}");
        assert!(
            all.iter().any(|ns| *ns < given * 3 / 4) && all.iter().any(|ns| *ns > given * 4 / 3)
        );
    }
}
