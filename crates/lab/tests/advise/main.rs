// SPDX-License-Identifier: GPL-2.0-only
//! Tests of advice: that it is honest, that it finds what is best by construction, that it respects
//! limits and ejections, and that it is a function of the number of rounds.

mod best;
mod equal;
mod knobs;
mod recorded;
mod refused;
mod regret;

use std::sync::Arc;

use scxlab_lab::advise::candidate::{Candidates, Origin, Sources};
use scxlab_lab::advise::goal::Goals;
use scxlab_lab::advise::report::{Asked, document, json};
use scxlab_lab::advise::{Advice, AdviseError, Observer, Request, Rounds, Unhurried, advise};
use scxlab_lab::input::{MemoryFiles, Workload};
use scxlab_lab::report::document::Screen;
use scxlab_lab::sim::{MAX_MEMORY, NumaBalancing};
use scxlab_machine::Machine;
use scxlab_workload::Program;

/// A question, with what most tests leave as it is.
struct Question {
    machine: Arc<Machine>,
    program: Program,
    goals: Vec<String>,
    sources: Sources,
    files: MemoryFiles,
    rounds: Option<Rounds>,
    threads: usize,
    seed: u64,
}

/// Returns the question which scheduler suits a generator or a workload file's text.
fn question(workload: &str, machine: &str) -> Question {
    let mut files = MemoryFiles::default();
    let mut name = workload;
    if workload.contains('\n') {
        files.0.insert("test.toml".into(), workload.into());
        name = "test.toml";
    }
    let Workload::Program(program) = Workload::resolve(name, &files).unwrap() else {
        panic!("{workload} is a command")
    };
    Question {
        machine: Arc::new(Machine::resolve(machine).unwrap()),
        program: *program,
        goals: Vec::new(),
        sources: Sources::default(),
        files,
        rounds: Some(Rounds { search: 1000, decide: 1000 }),
        threads: 0,
        seed: 1,
    }
}

impl Question {
    fn goal(mut self, goal: &str) -> Question {
        self.goals.push(goal.into());
        self
    }

    fn among(mut self, schedulers: &[&str]) -> Question {
        self.sources.given = schedulers.iter().map(|text| (*text).to_owned()).collect();
        self
    }

    fn origin(&self) -> Origin<'_> {
        Origin { machine: &self.machine, program: &self.program, files: &self.files }
    }

    fn request(&self) -> Request<'_> {
        Request {
            machine: self.machine.clone(),
            program: &self.program,
            goals: Goals::parse(&self.goals).unwrap(),
            seed: self.seed,
            duration: None,
            cap: Some(5_000_000_000),
            rounds: self.rounds,
            max_memory: MAX_MEMORY,
            numa_balancing: NumaBalancing::default(),
            threads: self.threads,
        }
    }

    fn asked(&self) -> Asked<'_> {
        Asked {
            workload: "test",
            machine: &self.machine.name,
            unit: "loop",
            seed: self.seed,
            likeness: None,
        }
    }

    fn ask_with(&self, observer: &dyn Observer) -> Result<Advice, AdviseError> {
        let candidates = Candidates::collect(&self.sources, self.origin())?;
        advise(&self.request(), candidates, observer)
    }

    fn ask(&self) -> Result<Advice, AdviseError> {
        self.ask_with(&Unhurried)
    }

    fn text(&self, advice: &Advice) -> String {
        document(advice, &self.asked(), None).text(Screen::default())
    }

    fn json(&self, advice: &Advice) -> String {
        json(advice, &self.asked(), None)
    }
}

/// Returns the recommended scheduler.
fn chosen(advice: &Advice) -> &str {
    advice.chosen.map_or("eevdf", |at| &advice.candidates[at].scheduler)
}
