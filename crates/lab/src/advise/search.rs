// SPDX-License-Identifier: GPL-2.0-only
//! The search: successive halving. All candidates run in a few worlds, the better half in as many
//! more, and so on, until few are left. One such heat is among the schedulers with their defaults,
//! the next among the best of these and all single settings, the others among variants of the best.
//! If time is short, the first heat alone gives an answer.
//!
//! Owns: who runs in which world. The order of the candidates is `judge.rs`'s.
//! Does not: decide whether the best one is better than the default class (`decide.rs`).

use std::collections::BTreeMap;

use super::candidate::{Candidate, Candidates};
use super::decide::FIRST_LOOK;
use super::goal::Goals;
use super::judge::{Values, rank};
use super::trials::{Outcome, Trials};
use super::world::{Purpose, World};
use super::{AdviseError, State};

/// Number of candidates that the search leaves.
pub const FINALISTS: usize = 3;

/// Numbers of worlds in a heat after which half of the candidates leave.
const CHECKPOINTS: [usize; 4] = [2, 4, 8, 16];

/// Number of times that the knobs of the best candidates are varied further.
const VARIATIONS: usize = 2;

/// Number of the best candidates whose knobs are varied.
const VARIED: usize = 2;

/// The values of candidates in a number of worlds that all of them share.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    by_candidate: BTreeMap<usize, Values>,
}

impl Scores {
    /// Adds the outcomes of some worlds. A candidate that failed in one of them loses its values;
    /// it and the reason are passed to `failed`.
    pub fn add(
        &mut self,
        goals: &Goals,
        who: &[usize],
        worlds: Vec<Vec<Outcome>>,
        mut failed: impl FnMut(usize, String),
    ) {
        for world in worlds {
            for (candidate, outcome) in who.iter().zip(world) {
                match outcome {
                    Outcome::Values(values) => self.push(goals, *candidate, &values),
                    Outcome::Failed(why) => failed(*candidate, why),
                }
            }
        }
    }

    fn push(&mut self, goals: &Goals, candidate: usize, values: &[f64]) {
        let empty = || vec![Vec::new(); goals.terms().count()];
        let columns = self.by_candidate.entry(candidate).or_insert_with(empty);
        columns.iter_mut().zip(values).for_each(|(column, value)| column.push(*value));
    }

    pub fn of(&self, candidate: usize) -> &Values {
        &self.by_candidate[&candidate]
    }

    pub fn get(&self, candidate: usize) -> Option<&Values> {
        self.by_candidate.get(&candidate)
    }
}

/// What the search knows of all candidates.
pub struct Search<'a> {
    pub trials: &'a Trials<'a>,
    pub goals: &'a Goals,
    pub candidates: Candidates<'a>,
    /// The reason why a candidate failed.
    pub failed: BTreeMap<usize, String>,
    /// The last values of each candidate, with those of the default class in the same worlds.
    pub seen: BTreeMap<usize, (Values, Values)>,
    /// Number of worlds used so far.
    pub rounds: u32,
    /// Largest number of worlds to use, if the user asked for one.
    pub max_rounds: Option<u32>,
}

impl Search<'_> {
    /// Returns the best candidates, the best first.
    pub fn finalists(&mut self) -> Result<Vec<usize>, AdviseError> {
        let all = 1..self.candidates.all().len();
        let (plain, tuned): (Vec<usize>, Vec<usize>) =
            all.partition(|at| self.candidate(*at).has_defaults());
        let mut best: Vec<usize> = Vec::new();
        for field in [plain, tuned].into_iter().filter(|field| !field.is_empty()) {
            if !self.heat_among(&mut best, field)? {
                return Ok(best);
            }
        }
        for _ in 0..VARIATIONS {
            let leader = best.first().copied();
            let mut new = Vec::new();
            for of in best.iter().take(VARIED) {
                new.extend(self.candidates.add_neighbours(*of));
            }
            if new.is_empty()
                || !self.heat_among(&mut best, new)?
                || best.first().copied() == leader
            {
                break;
            }
        }
        Ok(best)
    }

    /// Runs a heat among the best so far and new candidates, and leaves the best. Returns whether
    /// the heat came to its end; if not, the best so far stays the first.
    fn heat_among(&mut self, best: &mut Vec<usize>, new: Vec<usize>) -> Result<bool, AdviseError> {
        let field = best.iter().copied().chain(new).collect();
        let (order, is_whole) = self.heat(field)?;
        let leader = best.first().copied().filter(|_| !is_whole);
        *best =
            leader.into_iter().chain(order.into_iter().filter(|at| Some(*at) != leader)).collect();
        best.truncate(FINALISTS);
        Ok(is_whole)
    }

    /// Runs one heat. Returns the candidates that are left, the best first, and whether the heat
    /// came to its end.
    fn heat(&mut self, mut field: Vec<usize>) -> Result<(Vec<usize>, bool), AdviseError> {
        let mut scores = Scores::default();
        let mut done = 0;
        for checkpoint in CHECKPOINTS {
            while done < checkpoint {
                field.retain(|at| !self.failed.contains_key(at));
                if field.is_empty() {
                    return Ok((field, true));
                }
                let made = self.rounds(&field, checkpoint - done, &mut scores)?;
                if made == 0 {
                    return Ok((self.order(&field, &scores), false));
                }
                done += made;
            }
            field = self.order(&field, &scores);
            if field.len() <= FINALISTS && checkpoint >= CHECKPOINTS[1] {
                break;
            }
            field.truncate(field.len().div_ceil(2).max(FINALISTS));
        }
        Ok((field, true))
    }

    /// Makes up to `wanted` rounds, each of which is one world for all candidates of the field, and
    /// returns how many were made: 0 if the time or the number of rounds is used up.
    fn rounds(
        &mut self,
        field: &[usize],
        wanted: usize,
        scores: &mut Scores,
    ) -> Result<usize, AdviseError> {
        let count = self.affordable(field.len() + 1, wanted);
        if count == 0 {
            return Ok(0);
        }
        self.tell(field);
        let who: Vec<usize> = [0].into_iter().chain(field.iter().copied()).collect();
        let world = |n| self.trials.world(Purpose::Search, n);
        let worlds: Vec<World> = (self.rounds..self.rounds + count as u32).map(world).collect();
        let made = self.trials.execute(self.candidates.all(), &who, &worlds)?;
        let rounds = made.len();
        self.rounds += rounds as u32;
        let failed = &mut self.failed;
        scores.add(self.goals, &who, made, |candidate, why| {
            failed.entry(candidate).or_insert(why);
        });
        for candidate in who.into_iter().filter(|c| !self.failed.contains_key(c)) {
            if let Some(values) = scores.get(candidate) {
                self.seen.insert(candidate, (scores.of(0).clone(), values.clone()));
            }
        }
        Ok(rounds)
    }

    /// Returns how many of `wanted` rounds with `runs` runs each there is time for, if time must
    /// remain for the decision.
    fn affordable(&self, runs: usize, wanted: usize) -> usize {
        let left = self.max_rounds.map_or(wanted, |max| max.saturating_sub(self.rounds) as usize);
        let wanted = wanted.min(left);
        let Some(time) = self.trials.time_left() else { return wanted };
        let time = time.saturating_sub(self.trials.time_of(FIRST_LOOK * (FINALISTS + 1)));
        let fits = |rounds: &usize| self.trials.time_of(rounds * runs) <= time;
        // Without any round there would be no finalists.
        let least = if self.rounds == 0 { wanted.min(CHECKPOINTS[0]) } else { 0 };
        (1..=wanted).rev().find(fits).unwrap_or(least)
    }

    fn tell(&self, alive: &[usize]) {
        self.trials.tell(&State {
            rounds: self.rounds,
            candidates: alive.len(),
            best: self.candidates.all()[alive[0]].text().to_owned(),
            decides: false,
        });
    }

    /// Orders the candidates of a field that did not fail. Without values, their order stays.
    fn order(&self, field: &[usize], scores: &Scores) -> Vec<usize> {
        let alive: Vec<usize> =
            field.iter().copied().filter(|c| !self.failed.contains_key(c)).collect();
        if alive.iter().any(|candidate| scores.get(*candidate).is_none()) {
            return alive;
        }
        rank(self.goals, &alive, &|candidate| scores.of(candidate))
    }

    /// Tells whether every candidate but the default class failed.
    pub fn all_failed(&self) -> bool {
        (1..self.candidates.all().len()).all(|at| self.failed.contains_key(&at))
    }

    /// Returns the candidate with this index.
    pub fn candidate(&self, at: usize) -> &Candidate {
        &self.candidates.all()[at]
    }

    /// Returns the candidate of a scheduler as `-s` takes it.
    pub fn find(&self, scheduler: &str) -> Option<&Candidate> {
        self.candidates.all().iter().find(|candidate| candidate.text() == scheduler)
    }
}
