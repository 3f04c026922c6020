// SPDX-License-Identifier: GPL-2.0-only
//! The decision: the best candidates of the search against the default class, in worlds that the
//! search has not seen.
//!
//! Owns: how many worlds, and the level of error. The chance that a change is advised although no
//! candidate is better is at most `ERROR`, whatever the number of candidates: the tests are about
//! the few that the search leaves, and the level is divided by the number of tests.

use std::collections::BTreeMap;

use super::goal::Goals;
use super::judge::{Standing, Values, rank, standing};
use super::search::{FINALISTS, Scores, Search};
use super::world::{Purpose, World};
use super::{AdviseError, State};

/// Chance of advising a change if nothing is better.
const ERROR: f64 = 0.02;

/// Numbers of worlds after which the decision may end.
const LOOKS: [usize; 3] = [FIRST_LOOK, 24, 48];
pub const FIRST_LOOK: usize = 12;

/// The decision's results.
pub struct Decision {
    /// Number of worlds.
    pub rounds: u32,
    /// All values, of the default class as well.
    pub scores: Scores,
    /// How each finalist compares with the default class; without those that failed.
    pub standings: BTreeMap<usize, Standing>,
    /// Finalists and the default class, the best first.
    pub order: Vec<usize>,
    /// The candidate to recommend; None: the default class.
    pub chosen: Option<usize>,
    /// Whether the decision ended by itself.
    pub is_whole: bool,
}

/// Decides among the finalists. `max_rounds` limits the number of worlds.
pub fn decide(
    search: &mut Search<'_>,
    finalists: &[usize],
    max_rounds: Option<u32>,
) -> Result<Decision, AdviseError> {
    let mut decision = Decision {
        rounds: 0,
        scores: Scores::default(),
        standings: BTreeMap::new(),
        order: Vec::new(),
        chosen: None,
        is_whole: false,
    };
    let max = max_rounds.map_or(usize::MAX, |max| max as usize);
    for look in LOOKS {
        let wanted = look.min(max);
        while (decision.rounds as usize) < wanted {
            if decision.run(search, finalists, wanted)? == 0 {
                return Ok(decision);
            }
        }
        decision.is_whole =
            decision.is_settled() || look == LOOKS[LOOKS.len() - 1] || wanted == max;
        if decision.is_whole {
            break;
        }
    }
    Ok(decision)
}

impl Decision {
    /// Makes the rounds up to number `until`, or as many as there is time for, and judges anew.
    /// Returns the number of rounds made.
    fn run(
        &mut self,
        search: &mut Search<'_>,
        finalists: &[usize],
        until: usize,
    ) -> Result<usize, AdviseError> {
        let alive: Vec<usize> =
            finalists.iter().copied().filter(|c| !search.failed.contains_key(c)).collect();
        if alive.is_empty() {
            return Ok(0);
        }
        search.trials.tell(&State {
            rounds: search.rounds + self.rounds,
            candidates: alive.len(),
            best: search.candidate(alive[0]).text().to_owned(),
            decides: true,
        });
        let who: Vec<usize> = [0].into_iter().chain(alive).collect();
        let world = |n| search.trials.world(Purpose::Decide, n);
        let worlds: Vec<World> = (self.rounds..until as u32).map(world).collect();
        let made = search.trials.execute(search.candidates.all(), &who, &worlds)?;
        let count = made.len();
        self.rounds += count as u32;
        let failed = &mut search.failed;
        self.scores.add(search.goals, &who, made, |candidate, why| {
            failed.entry(candidate).or_insert(why);
        });
        let left: Vec<usize> = who.into_iter().filter(|c| !search.failed.contains_key(c)).collect();
        if count > 0 {
            self.judge(search.goals, &left);
        }
        Ok(count)
    }

    fn judge(&mut self, goals: &Goals, left: &[usize]) {
        // Each finalist may be tested by each term at each look, and once more if time runs out.
        let tests = FINALISTS * goals.terms().count() * (LOOKS.len() + 1);
        let level = ERROR / tests as f64;
        let values = |candidate: usize| -> &Values { self.scores.of(candidate) };
        let standings = left.iter().filter(|candidate| **candidate != 0);
        let standings: BTreeMap<usize, Standing> =
            standings.map(|at| (*at, standing(goals, values(0), values(*at), level))).collect();
        let order = rank(goals, left, &values);
        let is_better = |at: &usize| matches!(standings.get(at), Some(Standing::Better { .. }));
        self.chosen = order.iter().copied().find(is_better);
        (self.standings, self.order) = (standings, order);
    }

    /// Tells whether more worlds would hardly change the decision: the best of all is beyond doubt
    /// better than the default class, or the default class is the best.
    fn is_settled(&self) -> bool {
        match self.order.first() {
            None | Some(0) => true,
            first => self.chosen.as_ref() == first,
        }
    }
}
