// SPDX-License-Identifier: GPL-2.0-only
//! Advice, and predictions of published tables. Both return a text for people and JSON.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use scxlab_lab::advise::candidate::{Candidates, Origin, Sources};
use scxlab_lab::advise::goal::Goals;
use scxlab_lab::advise::report::{self, Asked};
use scxlab_lab::advise::{Observer, Request, Rounds, State, advise as seek};
use scxlab_lab::report::document::Screen;
use scxlab_lab::reproduce::experiment::Experiment;
use scxlab_lab::reproduce::job::{Jobs, NoStore};
use scxlab_lab::reproduce::plan::{Plan, Wanted};
use scxlab_lab::reproduce::report as predictions;
use scxlab_lab::reproduce::{ReproduceError, experiments, threads};
use scxlab_lab::session::{CAP, Progress};
use scxlab_lab::sim::{MAX_MEMORY, NumaBalancing};

use crate::error::Failure;
use crate::inputs;
use crate::session::{one_line, time};
use crate::watch::{Interrupt, watched};

/// What to seek advice on.
struct Wish {
    workload: String,
    machine: String,
    goals: Vec<String>,
    schedulers: Vec<String>,
    rounds: Option<Rounds>,
    seed: u64,
    duration: Option<u64>,
    jobs: usize,
}

/// Recommends a scheduler. Returns a text and JSON.
#[pyfunction]
#[pyo3(signature = (workload, machine, goals, schedulers, rounds, budget, seed, duration, jobs, progress))]
#[expect(clippy::too_many_arguments, reason = "Python passes them by name")]
pub fn advise(
    py: Python<'_>,
    workload: String,
    machine: String,
    goals: Vec<String>,
    schedulers: Vec<String>,
    rounds: Option<&str>,
    budget: &str,
    seed: u64,
    duration: Option<&str>,
    jobs: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, String)> {
    let rounds = rounds.map(str::parse::<Rounds>).transpose().map_err(Failure::Input)?;
    let budget = rounds.is_none().then(|| time(budget)).transpose()?.map(Duration::from_nanos);
    let duration = duration.map(time).transpose()?;
    let wish = Wish { workload, machine, goals, schedulers, rounds, seed, duration, jobs };
    let state = Mutex::new(State::default());
    // The number of worlds is not known before.
    let finished = || (state.lock().unwrap_or_else(PoisonError::into_inner).rounds as usize, 0);
    watched(py, progress, &finished, |interrupt| {
        let watch = Watch { start: Instant::now(), budget, interrupt, state: &state };
        seek_advice(&wish, &watch)
    })
}

fn seek_advice(wish: &Wish, watch: &Watch<'_>) -> Result<(String, String), Failure> {
    let inputs = inputs::inputs();
    let machine = inputs::machine(&wish.machine, &inputs)?;
    let (program, likeness) = inputs::compared(&wish.workload, &inputs)?;
    let sources = Sources { given: wish.schedulers.clone(), objects: Vec::new() };
    let origin = Origin { machine: &machine, program: &program, files: &inputs };
    let candidates = Candidates::collect(&sources, origin)?;
    let request = Request {
        machine: machine.clone(),
        program: &program,
        goals: Goals::parse(&wish.goals)?,
        seed: wish.seed,
        duration: wish.duration,
        cap: Some(CAP),
        rounds: wish.rounds,
        max_memory: MAX_MEMORY,
        numa_balancing: NumaBalancing::default(),
        threads: wish.jobs,
    };
    let advice = seek(&request, candidates, watch)?;
    let (workload, machine) = (one_line(wish.workload.clone()), one_line(wish.machine.clone()));
    let asked = Asked {
        workload: &workload,
        machine: &machine,
        unit: &program.unit,
        seed: wish.seed,
        likeness: likeness.as_ref(),
    };
    let text = report::document(&advice, &asked, None).text(Screen::default());
    Ok((text, report::json(&advice, &asked, None)))
}

/// The budget, and whether the caller has been interrupted.
struct Watch<'a> {
    start: Instant,
    budget: Option<Duration>,
    interrupt: &'a Interrupt<'a>,
    state: &'a Mutex<State>,
}

impl Observer for Watch<'_> {
    fn interrupt(&self) -> Option<String> {
        (self.interrupt)()
    }

    fn time_left(&self) -> Option<Duration> {
        self.budget.map(|budget| budget.saturating_sub(self.start.elapsed()))
    }

    fn tell(&self, state: &State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state.clone();
    }
}

/// Predicts the published tables of a thread, or of all. Returns a text and JSON.
#[pyfunction]
#[pyo3(signature = (thread, tables, runs, seed, jobs, progress))]
pub fn reproduce(
    py: Python<'_>,
    thread: Option<String>,
    tables: Vec<String>,
    runs: u32,
    seed: u64,
    jobs: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, String)> {
    let plans = py.detach(|| plans(thread.as_deref(), tables))?;
    let work: Vec<Jobs<'_>> =
        plans.iter().map(|plan| Jobs::new(plan, &NoStore, runs, seed)).collect();
    let state = Progress::of(work.iter().flat_map(Jobs::lengths).collect());
    let finished = || (state.runs_done(), state.runs());
    let reports = watched(py, progress, &finished, |interrupt| {
        let mut first = 0;
        let mut reports = Vec::new();
        for (jobs_of_plan, plan) in work.into_iter().zip(&plans) {
            let missing = jobs_of_plan.missing();
            let made = jobs_of_plan.execute(jobs, &state, first, interrupt);
            reports.push(predictions::report(plan, &made?, runs));
            first += missing;
        }
        Ok(reports)
    })?;
    let text = predictions::document(&reports).text(Screen::default());
    Ok((text, predictions::json(&reports)))
}

fn plans(thread: Option<&str>, tables: Vec<String>) -> Result<Vec<Plan>, Failure> {
    let is_wanted = |name: &str| thread.is_none_or(|thread| thread == name);
    let wanted = Wanted { tables, ..Wanted::default() };
    let plan = |name, published, experiment| -> Result<Plan, ReproduceError> {
        Plan::new(Experiment::parse(name, published, experiment)?, &wanted)
    };
    let files = experiments().iter().filter(|files| is_wanted(files.name));
    let plans = files.map(|files| plan(files.name, files.published, files.experiment));
    let plans = plans.collect::<Result<Vec<_>, _>>()?;
    match thread {
        Some(name) if plans.is_empty() => Err(Failure::from(ReproduceError::Unknown {
            kind: "thread",
            name: name.to_owned(),
            available: threads().collect::<Vec<_>>().join(", "),
        })),
        _ => Ok(plans),
    }
}
