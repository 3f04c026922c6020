// SPDX-License-Identifier: GPL-2.0-only
//! Regret: how much worse the recommended scheduler is than the best of all candidates, which are
//! all measured in worlds that neither the search nor the decision has seen. `--nocapture` prints
//! the table.

use scxlab_lab::advise::candidate::Candidates;
use scxlab_lab::advise::goal::Direction;
use scxlab_lab::advise::trials::{Outcome, Trials};
use scxlab_lab::advise::world::{Purpose, World};
use scxlab_lab::advise::{Advice, Unhurried};

use super::{Question, chosen, question};

/// Number of worlds in which all candidates are measured.
const WORLDS: u32 = 24;

/// Returns the mean of the goal for each candidate that never failed, by the candidate's text.
fn measured(question: &Question, advice: &Advice) -> Vec<(String, f64)> {
    let mut sources = question.sources.clone();
    // The variants that the search made of the best candidates are candidates as well.
    sources.given = advice.candidates.iter().map(|c| c.scheduler.clone()).collect();
    let candidates = Candidates::collect(&sources, question.origin()).unwrap();
    let mut request = question.request();
    request.seed += 1000;
    let trials = Trials::new(&request, &request.goals, &Unhurried).unwrap();
    let world = |n| trials.world(Purpose::Decide, n);
    let all: Vec<World> = (0..WORLDS).map(world).collect();
    let who: Vec<usize> = (0..candidates.all().len()).collect();
    let outcomes = trials.execute(candidates.all(), &who, &all).unwrap();
    let mean = |at: &usize| {
        let values = outcomes.iter().map(|world| match &world[*at] {
            Outcome::Values(values) => Some(values[0]),
            Outcome::Failed(_) => None,
        });
        let sum: Option<f64> = values.sum();
        Some((candidates.all()[*at].text().to_owned(), sum? / f64::from(WORLDS)))
    };
    who.iter().filter_map(mean).collect()
}

/// Returns the loss of the recommended scheduler against the best one, relative to the best one.
/// `measure` returns the means of the candidates.
pub fn regret(question: &Question, measure: impl FnOnce(&Advice) -> Vec<(String, f64)>) -> f64 {
    let advice = question.ask().unwrap();
    let all = measure(&advice);
    let better = advice.goals.objectives[0].better;
    let order = |a: &&(String, f64), b: &&(String, f64)| match better {
        Direction::Less => a.1.total_cmp(&b.1),
        Direction::More => b.1.total_cmp(&a.1),
    };
    let best = all.iter().min_by(order).unwrap();
    let ours = all.iter().find(|(text, _)| text == chosen(&advice)).unwrap();
    let regret = (ours.1 - best.1).abs() / best.1;
    println!(
        "{:>6.2} %  {:40} {:24} {} ({}) instead of {} ({})",
        regret * 100.0,
        question.program.name,
        advice.goals.objectives[0].text,
        ours.1,
        ours.0,
        best.1,
        best.0
    );
    regret
}

#[test]
fn the_recommended_scheduler_is_hardly_worse_than_the_best() {
    let mut all: Vec<f64> = [
        ("hackbench,groups=1,duration=100ms", "4c", "max:throughput"),
        ("sleepers,tasks=12,duration=300ms", "4c", "max:throughput"),
        ("schbench,duration=300ms", "2n2c1t", "max:throughput"),
        ("hackbench,groups=2,duration=60ms", "4c", "min:context_switches"),
        ("hogs,tasks=6,duration=300ms", "laptop-4c8t", "max:throughput"),
    ]
    .iter()
    .map(|(workload, machine, goal)| {
        let question = question(workload, machine).goal(goal);
        regret(&question, |advice| measured(&question, advice))
    })
    .collect();
    all.sort_by(f64::total_cmp);
    assert!(all[all.len() / 2] < 0.03, "{all:?}");
    assert!(all[all.len() - 1] < 0.10, "{all:?}");
}
