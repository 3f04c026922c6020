// SPDX-License-Identifier: GPL-2.0-only
//! Runs and their comparison.

use pyo3::prelude::*;
use scxlab_bpf::vm::Engine;
use scxlab_lab::input::{SchedulerInput, Workload};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::report::document::Screen;
use scxlab_lab::report::report;
use scxlab_lab::report::selection::Selection;
use scxlab_lab::results::{Request, Results, Version};
use scxlab_lab::session::{CAP, PERTURB, Progress, Session as LabSession, SessionError};
use scxlab_lab::sim::MAX_MEMORY;
use scxlab_results::folder;
use scxlab_trace::Tracer;
use scxlab_workload::program::TimeSpan;

use crate::arrow::Table;
use crate::error::Failure;
use crate::inputs;
use crate::watch::watched;

/// The results of some runs.
#[pyclass(frozen, module = "scxlab._scxlab")]
pub struct Session {
    session: LabSession,
    results: Results,
}

#[pymethods]
impl Session {
    /// Returns the results as `--format json` prints them.
    fn json(&self) -> String {
        self.results.to_json()
    }

    /// Returns the table for people. `metrics` has the form of `--metrics`.
    #[pyo3(signature = (metrics=None))]
    fn text(&self, metrics: Option<&str>) -> PyResult<String> {
        let selection = metrics.map(|words| Selection::parse(words.split(','))).transpose();
        let selection = selection.map_err(Failure::Input)?.unwrap_or_default();
        Ok(report(&self.session, &self.results, &selection).text(Screen::default()))
    }

    /// Returns a row for each run and metric.
    fn runs_table(&self) -> Table {
        Table::new(folder::runs_table(std::slice::from_ref(&self.results)))
    }

    /// Returns a row for each run and task.
    fn tasks_table(&self) -> Table {
        Table::new(folder::tasks_table(std::slice::from_ref(&self.results)))
    }
}

/// Simulates a workload under each scheduler.
#[pyfunction]
#[pyo3(signature = (schedulers, workload, machine, runs, seed, duration, jobs, progress))]
#[expect(clippy::too_many_arguments, reason = "Python passes them by name")]
pub fn run(
    py: Python<'_>,
    schedulers: Vec<String>,
    workload: String,
    machine: String,
    runs: u32,
    seed: u64,
    duration: Option<&str>,
    jobs: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<Session> {
    let duration = duration.map(time).transpose()?;
    let session = py.detach(|| {
        let inputs = inputs::inputs();
        let model = inputs::machine(&machine, &inputs)?;
        let program = Workload::Program(Box::new(inputs::program(&workload, &inputs)?));
        let prepare = |text: &String| {
            let input = SchedulerInput::resolve(text, &inputs)?;
            Ok(Prepared::simulated(&input, &model)?)
        };
        let schedulers = schedulers.iter().map(prepare).collect::<Result<_, Failure>>()?;
        let session = LabSession {
            machine: model.clone(),
            workload: program,
            schedulers,
            runs,
            seed,
            duration,
            cap: Some(CAP),
            perturb: PERTURB,
            engine: Engine::Jit,
            max_memory: MAX_MEMORY,
            numa_balancing: None,
            attach_after: None,
            threads: jobs,
        };
        session.check()?;
        Ok::<_, Failure>(session)
    })?;
    let state = Progress::new(&session);
    let finished = || (state.runs_done(), state.runs());
    let all = watched(py, progress, &finished, |interrupt| {
        let all = session.execute(&|_| Ok(Tracer::default()), &state, interrupt)?;
        match all.iter().find(|run| run.stop.was_interrupted()) {
            Some(run) => {
                let why = run.stop.message.clone();
                Err(SessionError::Interrupted { why }.into())
            }
            None => Ok(all),
        }
    })?;
    let request = Request {
        version: Version { version: env!("CARGO_PKG_VERSION").to_owned(), commit: None },
        workload: one_line(workload),
        machine: one_line(machine),
        targets: vec!["sim".to_owned()],
        tolerance_percent: 0,
    };
    let results = Results::new(&session, request, all);
    Ok(Session { session, results })
}

/// Parses a time such as 500ms.
pub fn time(text: &str) -> Result<u64, Failure> {
    text.parse::<TimeSpan>()
        .map(|time| time.0)
        .map_err(|why| Failure::Input(format!("duration: {why}")))
}

/// Returns the name in results of an argument, which may be the text of a file.
pub fn one_line(text: String) -> String {
    if text.contains('\n') { "text".to_owned() } else { text }
}
