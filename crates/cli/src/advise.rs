// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab advise`: recommends a scheduler for a workload on a machine.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use scxlab_bpf::vm::Engine;
use scxlab_lab::advise::candidate::{Candidates, Origin, Sources};
use scxlab_lab::advise::goal::Goals;
use scxlab_lab::advise::report::{Asked, document, json};
use scxlab_lab::advise::verify::{self, Verified};
use scxlab_lab::advise::world::World;
use scxlab_lab::advise::{Advice, Observer, Request, State, advise as seek};
use scxlab_lab::input::{self, InputError, SchedulerInput, Workload};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::session::{CAP, LengthOf, MAX_LENGTH, Session, SessionError};
use scxlab_lab::sim::NumaBalancing;
use scxlab_results::inputs::Inputs;

use crate::args::{AdviseArgs, Format, On};
use crate::live::{self, LiveRequest};
use crate::output;
use crate::progress::{Shown, with_bar};
use crate::run::{interrupt, refuse_simulated};

pub fn advise(args: &AdviseArgs) -> Result<()> {
    let goals = Goals::parse(&args.goal)?;
    let inputs = args.cache.inputs();
    let machine = Arc::new(input::machine(&args.machine, &inputs)?);
    let named = args.load.of(&args.workload)?;
    let (workload, likeness) = Workload::compared(&named, &inputs)?;
    let program = match &workload {
        Workload::Program(program) => program,
        Workload::Command(words) => {
            return Err(SessionError::Command { command: words.join(" ") }.into());
        }
    };
    check(args, &workload)?;
    let objects = args.candidates.as_deref().map(objects).transpose()?.unwrap_or_default();
    let sources = Sources { given: args.scheduler.clone(), objects };
    let origin = Origin { machine: &machine, program, files: &inputs };
    let candidates = Candidates::collect(&sources, origin)?;
    let request = Request {
        machine: machine.clone(),
        program,
        goals,
        seed: args.seed,
        duration: args.duration.map(|d| d.0),
        cap: Some(CAP),
        rounds: args.rounds,
        max_memory: args.memory_limit,
        numa_balancing: NumaBalancing::default(),
        threads: args.jobs,
    };
    let watch = Watch::new(args);
    let advice = with_bar(&watch, || seek(&request, candidates, &watch))?;
    let asked = Asked {
        workload: &named,
        machine: &args.machine,
        unit: &program.unit,
        seed: args.seed,
        likeness: likeness.as_ref(),
    };
    let verified = match (args.verify, watch.interrupt()) {
        (Some(on), None) => Some(verify(args, on, &request, &workload, &advice, &inputs)?),
        _ => None,
    };
    match args.format {
        Format::Table => output::print_report(&document(&advice, &asked, verified.as_ref()))?,
        Format::Json => output::print(&json(&advice, &asked, verified.as_ref()))?,
    }
    match watch.interrupt() {
        Some(why) => Err(SessionError::Interrupted { why }.into()),
        None => Ok(()),
    }
}

/// Refuses what neither the simulation nor the target of --verify can carry out, before any run.
fn check(args: &AdviseArgs, workload: &Workload) -> Result<()> {
    if args.verify == Some(On::Host) {
        live::check_host(&args.machine)?;
    }
    if let Some(on) = args.verify {
        refuse_simulated(workload, &[on])?;
    }
    let given = args.duration.map(|duration| (LengthOf::Request, duration.0));
    let own = workload.duration().map(|ns| (LengthOf::Workload, ns));
    match given.or(own) {
        Some((what, ns)) if ns > MAX_LENGTH => Err(SessionError::Length { what, ns }.into()),
        _ => Ok(()),
    }
}

/// Runs the default class and the best candidates on a real kernel.
fn verify(
    args: &AdviseArgs,
    on: On,
    request: &Request<'_>,
    workload: &Workload,
    advice: &Advice,
    inputs: &Inputs,
) -> Result<Verified> {
    let schedulers = verify::schedulers(advice).into_iter().map(|text| {
        let input = SchedulerInput::resolve(&text, inputs)?;
        Ok(Prepared::simulated(&input, &request.machine)?)
    });
    let as_given = World::as_given(&request.machine, args.seed);
    let session = Session {
        machine: request.machine.clone(),
        workload: workload.clone(),
        schedulers: schedulers.collect::<Result<_>>()?,
        runs: args.verify_runs,
        seed: args.seed,
        duration: request.duration,
        cap: request.cap,
        perturb: as_given.perturb,
        engine: Engine::Jit,
        max_memory: request.max_memory,
        numa_balancing: None,
        attach_after: None,
        threads: args.jobs,
    };
    session.check()?;
    let (runs, _) =
        live::runs(&LiveRequest { session: &session, trace_buffer: None }, on, &args.vm)?;
    Ok(verify::verify(advice, on.name(), &runs))
}

/// Returns the paths of the objects in a folder, in order.
fn objects(folder: &Path) -> Result<Vec<String>, InputError> {
    let failed = |error| InputError::Read { path: folder.to_owned(), error };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|end| end == "o") && path.is_file() {
            let text = path.to_str().ok_or_else(|| InputError::NotText { path: path.clone() })?;
            paths.push(text.to_owned());
        }
    }
    paths.sort();
    Ok(paths)
}

/// The budget, the signals, and the state that the bar shows.
struct Watch {
    start: Instant,
    budget: Option<Duration>,
    interrupt: Box<dyn Fn() -> Option<String> + Sync>,
    state: Mutex<State>,
}

impl Watch {
    fn new(args: &AdviseArgs) -> Watch {
        let budget = args.rounds.is_none().then(|| Duration::from_nanos(args.budget.0));
        Watch {
            start: Instant::now(),
            budget,
            interrupt: Box::new(interrupt(args.vm.deadline)),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Observer for Watch {
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

impl Shown for Watch {
    /// The work may end before the budget is used.
    fn has_end(&self) -> bool {
        false
    }

    fn permille(&self) -> u64 {
        0
    }

    fn message(&self, _: Duration) -> String {
        let state = self.state();
        let what = if state.decides { "deciding among" } else { "searching," };
        let limit = self.budget.map(|budget| format!(", at most {} s", budget.as_secs()));
        format!(
            "{what} {} candidates left after {} worlds, best {}{}",
            state.candidates,
            state.rounds,
            if state.best.is_empty() { "-" } else { &state.best },
            limit.unwrap_or_default()
        )
    }
}
