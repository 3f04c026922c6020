// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab run`

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use scxlab_bpf::vm::Engine;
use scxlab_lab::report::report;
use scxlab_lab::results::{Request, Results, Version};
use scxlab_lab::run::Run;
use scxlab_lab::session::{Progress, RunKey, Session};
use scxlab_trace::{PerfettoSink, Sink, Tee, TimelineSink, Tracer};
use scxlab_workload::Perturb;
use scxlab_workload::program::Dur;

use crate::args::{EngineArg, Format, On, RunArgs, Span};
use crate::exit::{Bad, CliError};
use crate::progress::with_bar;
use crate::{input, live, output};

/// A workload that says nothing of its end is not run for ever.
const MAX_UNASKED_NS: u64 = 60_000_000_000;

pub fn run(args: &RunArgs) -> Result<()> {
    let (session, command) = session(args)?;
    let targets = targets(args)?;
    if let (Some(words), true) = (&command, targets.contains(&On::Sim)) {
        return Err(CliError::CommandSimulated { command: words.join(" ") }.into());
    }
    let _folder = args.output.as_deref().map(output::lock_folder).transpose()?;
    let paths = trace_paths(args, &session);
    let timelines: Vec<TextBuffer> =
        session.schedulers.iter().map(|_| TextBuffer::default()).collect();
    let files = output::Files::default();
    let traces = |key: RunKey| tracer(args, &session, key, (&paths, &files), &timelines);
    if !targets.contains(&On::Sim) && (args.trace.is_some() || args.timeline.is_some()) {
        output::say("note: only simulated runs are traced; no trace is written");
    }
    let mut runs = Vec::new();
    for on in targets {
        let progress = Progress::new(&session);
        runs.extend(match on {
            On::Sim => {
                let interrupt = interrupt(args.vm.deadline);
                with_bar(&progress, || session.execute(&traces, &progress, &interrupt))?
            }
            on => live::runs(&session, &args.scheduler, command.as_deref(), on, &args.vm)?,
        });
    }
    if is_unasked(args, &session) {
        note_cut(&mut runs);
    }
    let (bad, interrupted) = (bad(&runs), interrupted(&runs));
    let results = Results::new(&session, request(args), runs);
    files.publish()?;
    publish(args, &session, &results)?;
    show(args, &session, &timelines)?;
    if let Some(error) = interrupted {
        return Err(error.into());
    }
    if args.fail_on_exit && bad.runs > 0 {
        return Err(CliError::WentBadly(bad).into());
    }
    Ok(())
}

/// Why simulated runs end now, if they do. A run on a real kernel has its own ways.
fn interrupt(deadline: Option<Dur>) -> impl Fn() -> Option<String> + Sync {
    let (cancelled, start) = (output::cancelled(), Instant::now());
    move || {
        if cancelled.load(Ordering::Relaxed) {
            return Some("cancelled".to_owned());
        }
        let late = deadline.filter(|d| start.elapsed() >= Duration::from_nanos(d.0));
        late.map(|d| format!("the deadline of {d} has passed"))
    }
}

fn interrupted(runs: &[Run]) -> Option<CliError> {
    let simulated = runs.iter().filter(|run| run.target == "sim");
    let some: Vec<&Run> = simulated.filter(|run| run.stop.was_interrupted()).collect();
    let not_begun = some.iter().filter(|run| run.virtual_ns == 0).count();
    let why = some.first()?.stop.message.trim_start_matches("not begun: ").to_owned();
    let (whole, cut) = (runs.len() - some.len(), some.len() - not_begun);
    Some(CliError::Interrupted { why, whole, cut, not_begun })
}

fn bad(runs: &[Run]) -> Bad {
    let count = |is: fn(&Run) -> bool| runs.iter().filter(|run| is(run)).count();
    Bad {
        runs: count(|run| !run.went_well()),
        of: runs.len(),
        ejected: count(Run::was_ejected),
        stopped_early: count(|run| !run.stop.is_regular()),
        starved: count(|run| !run.never_ran.is_empty()),
    }
}

/// Each once, in the order given.
fn targets(args: &RunArgs) -> Result<Vec<On>> {
    let mut all: Vec<On> = Vec::new();
    for on in &args.on {
        if *on == On::Host {
            live::check_host(&args.machine)?;
        }
        if !all.contains(on) {
            all.push(*on);
        }
    }
    Ok(all)
}

fn session(args: &RunArgs) -> Result<(Session, Option<Vec<String>>)> {
    let machine = input::machine(&args.machine)?;
    let (workload, command) = input::workload(&args.workload)?;
    let schedulers = input::schedulers(&args.scheduler, &machine)?;
    let session = Session {
        machine,
        workload,
        schedulers,
        runs: args.runs,
        seed: args.seed,
        duration: args.duration.map(|d| d.0),
        cap: Some(MAX_UNASKED_NS),
        perturb: Perturb {
            start_offset_max: args.start_offset.0,
            compute_noise_permille: args.compute_noise,
        },
        engine: match args.engine {
            EngineArg::Interp => Engine::Interp,
            EngineArg::Jit => Engine::Jit,
        },
        max_memory: args.memory_limit,
        threads: args.jobs,
    };
    Ok((session, command))
}

fn is_unasked(args: &RunArgs, session: &Session) -> bool {
    args.duration.is_none() && session.workload.duration.is_none()
}

fn note_cut(runs: &mut [Run]) {
    for run in
        runs.iter_mut().filter(|r| r.stop.kind == "duration" && r.virtual_ns >= MAX_UNASKED_NS)
    {
        run.notes.push(
            "the workload has no duration and was stopped after 60s; --duration sets another"
                .into(),
        );
    }
}

fn request(args: &RunArgs) -> Request {
    Request {
        version: Version {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: option_env!("SCXLAB_COMMIT").map(str::to_owned),
        },
        workload: args.workload.clone(),
        machine: args.machine.clone(),
        targets: args.on.iter().map(|on| on.name().to_owned()).collect(),
        tolerance_percent: args.tolerance,
    }
}

fn publish(args: &RunArgs, session: &Session, results: &Results) -> Result<()> {
    if let Some(folder) = &args.output {
        output::write_file(&folder.join("results.json"), results.to_json().as_bytes())?;
        output::write_file(
            &folder.join("report.txt"),
            output::visible(&report(session, results)).as_bytes(),
        )?;
    }
    output::print(&match args.format {
        Format::Table => report(session, results),
        Format::Json => results.to_json(),
    })
}

/// What is made of a run's events: a Perfetto file and a timeline, of the first run of each scheduler.
fn tracer(
    args: &RunArgs,
    session: &Session,
    key: RunKey,
    (paths, files): (&[PathBuf], &output::Files),
    timelines: &[TextBuffer],
) -> io::Result<Tracer> {
    let nr_cpus = session.machine.topology.nr_cpus();
    let mut sinks: Vec<Box<dyn Sink>> = Vec::new();
    if key.index == 0 {
        if let Some(path) = paths.get(key.scheduler) {
            let out = files.create(path)?;
            sinks.push(Box::new(PerfettoSink::new(out, &session.machine.name, nr_cpus)));
        }
        if let Some(Span { from, to }) = args.timeline {
            let out = timelines[key.scheduler].clone();
            sinks.push(Box::new(TimelineSink::new(out, nr_cpus, from.0, to.0)));
        }
    }
    Ok(if sinks.is_empty() { Tracer::default() } else { Tracer::with_sink(Tee(sinks)) })
}

/// A file in memory.
#[derive(Clone, Default)]
struct TextBuffer(Arc<Mutex<Vec<u8>>>);

impl TextBuffer {
    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl io::Write for TextBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The timelines that were drawn.
fn show(args: &RunArgs, session: &Session, timelines: &[TextBuffer]) -> Result<()> {
    let mut text = String::new();
    for (scheduler, timeline) in session.schedulers.iter().zip(timelines) {
        let drawn = timeline.text();
        if !drawn.is_empty() {
            text.push_str(&format!("\n{}, seed {}\n{drawn}", scheduler.short, session.seed));
        }
    }
    match args.format {
        Format::Table => output::print(&text),
        Format::Json => {
            output::say(text.trim_end_matches('\n'));
            Ok(())
        }
    }
}

/// The trace file of each scheduler's first run; none when no traces are wanted.
fn trace_paths(args: &RunArgs, session: &Session) -> Vec<PathBuf> {
    let shorts: Vec<&str> = session.schedulers.iter().map(|s| s.short.as_str()).collect();
    let in_folder = args.output.as_ref().map(|folder| folder.join("trace.pftrace"));
    match (&args.trace, in_folder) {
        (Some(file), _) if shorts.len() == 1 => vec![file.clone()],
        (Some(file), _) => named(file, &shorts),
        (None, Some(file)) => named(&file, &shorts),
        (None, None) => Vec::new(),
    }
}

fn named(file: &Path, shorts: &[&str]) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for (at, short) in shorts.iter().enumerate() {
        let path = output::with_name(file, short);
        // Two schedulers that look alike in a file's name.
        let taken = paths.contains(&path);
        paths.push(if taken {
            output::with_name(file, &format!("{short}-{}", at + 1))
        } else {
            path
        });
    }
    paths
}
