// SPDX-License-Identifier: GPL-2.0-only
//! Outputs made from events: a Perfetto file and a timeline of the first run of each scheduler on
//! each target.
//!
//! Owns: the names of the files. Does not: know the source of the events.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use scxlab_lab::run::Run;
use scxlab_lab::scheduler::DEFAULT_CLASS;
use scxlab_lab::session::{RunKey, Session, SessionError};
use scxlab_live::trace::Recording;
use scxlab_page::{Collected, IntervalSink};
use scxlab_trace::{PerfLayout, PerfSchedSink, PerfettoSink, Sink, Tee, TimelineSink, Tracer};

use crate::args::{On, RunFormat, Span};
use crate::output::{self, Files};

/// The traces of a session on one target.
pub struct Traces<'a> {
    session: &'a Session,
    files: &'a Files,
    /// Trace file of each scheduler's first run; empty if the user wants no files.
    paths: Vec<PathBuf>,
    span: Option<Span>,
    timelines: Vec<TextBuffer>,
    /// What each scheduler's first run did, for a page; empty if the user wants no page.
    intervals: Mutex<Vec<(usize, Collected)>>,
    has_page: bool,
    /// Layout of perf in which the events are printed.
    perf: Option<PerfLayout>,
    perf_texts: Vec<TextBuffer>,
    /// The target, for headings; None if the command has only one target.
    on: Option<On>,
}

impl<'a> Traces<'a> {
    pub fn new(
        session: &'a Session,
        files: &'a Files,
        paths: Vec<PathBuf>,
        span: Option<Span>,
        perf: Option<PerfLayout>,
        on: Option<On>,
    ) -> Traces<'a> {
        let texts = || session.schedulers.iter().map(|_| TextBuffer::default()).collect();
        let (timelines, perf_texts) = (texts(), texts());
        let (intervals, has_page) = (Mutex::default(), false);
        Traces { session, files, paths, span, timelines, intervals, has_page, perf, perf_texts, on }
    }

    /// Collects the intervals of simulated runs, for a page. On a real kernel the page shows them
    /// if the run is traced for another reason, because tracing takes CPU time from the workload.
    pub fn with_page(self, on: On) -> Traces<'a> {
        Traces { has_page: on == On::Sim || self.are_wanted(), ..self }
    }

    /// Returns the collected intervals, by scheduler.
    pub fn intervals(&self) -> Vec<(usize, Collected)> {
        let mut all = self.intervals.lock().unwrap_or_else(PoisonError::into_inner);
        all.sort_by_key(|(scheduler, _)| *scheduler);
        std::mem::take(&mut all)
    }

    /// Tells whether any output needs the events.
    pub fn are_wanted(&self) -> bool {
        !self.paths.is_empty() || self.span.is_some() || self.perf.is_some()
    }

    pub fn tracer(&self, key: RunKey) -> io::Result<Tracer> {
        let machine = &self.session.machine;
        let nr_cpus = machine.topology.nr_cpus();
        let mut sinks: Vec<Box<dyn Sink>> = Vec::new();
        if key.index == 0 {
            if let Some(path) = self.paths.get(key.scheduler) {
                let out = self.files.create(path)?;
                let sink = PerfettoSink::new(out, machine);
                let scheduler = self.session.schedulers[key.scheduler].label();
                sinks.push(Box::new(match self.session.attach_after {
                    Some(_) if scheduler != DEFAULT_CLASS => {
                        sink.under(&format!("{DEFAULT_CLASS}, then {scheduler}"))
                    }
                    _ => sink.under(scheduler),
                }));
            }
            if let Some(Span { from, to }) = self.span {
                let out = self.timelines[key.scheduler].clone();
                sinks.push(Box::new(TimelineSink::new(out, nr_cpus, from.0, to.0)));
            }
            if self.has_page {
                let (sink, collected) = IntervalSink::new();
                sinks.push(Box::new(sink));
                let mut all = self.intervals.lock().unwrap_or_else(PoisonError::into_inner);
                all.push((key.scheduler, collected));
            }
            if let Some(layout) = self.perf {
                let out = self.perf_texts[key.scheduler].clone();
                sinks.push(Box::new(PerfSchedSink::new(out, layout)));
            }
        }
        Ok(if sinks.is_empty() { Tracer::default() } else { Tracer::with_sink(Tee(sinks)) })
    }

    /// Returns the tracers of each scheduler's first run.
    pub fn first_runs(&self) -> Result<Vec<Tracer>, SessionError> {
        let keys = (0..self.session.schedulers.len()).map(first);
        keys.map(|key| self.tracer(key).map_err(|error| self.failed(key, error))).collect()
    }

    /// Passes events recorded on a real kernel to the tracers. `runs` holds all runs of the
    /// session, in order.
    pub fn replay(
        &self,
        mut tracers: Vec<Tracer>,
        runs: &[Run],
        recordings: &[Recording],
    ) -> Result<(), SessionError> {
        for recording in recordings {
            let run = &runs[recording.scheduler * self.session.runs as usize];
            let tracer = &mut tracers[recording.scheduler];
            recording.replay(&run.exit, tracer);
            tracer.run_ended(run.virtual_ns);
            let key = first(recording.scheduler);
            tracer.finish().map_err(|error| self.failed(key, error))?;
        }
        Ok(())
    }

    fn failed(&self, key: RunKey, error: io::Error) -> SessionError {
        let scheduler = self.session.schedulers[key.scheduler].label().to_owned();
        SessionError::Trace { scheduler, seed: self.session.seed_of(key), error }
    }

    /// Returns the timelines with their headings.
    pub fn timelines(&self) -> String {
        self.headed(&self.timelines, "\n")
    }

    /// Returns the events in perf's layout, with headings.
    pub fn perf(&self) -> String {
        self.headed(&self.perf_texts, "# ")
    }

    fn headed(&self, texts: &[TextBuffer], before: &str) -> String {
        let on = self.on.map_or(String::new(), |on| format!(" on {}", on.name()));
        let mut text = String::new();
        for (scheduler, drawn) in self.session.schedulers.iter().zip(texts) {
            let drawn = drawn.text();
            if !drawn.is_empty() {
                let (short, seed) = (scheduler.input.arg.short(), self.session.seed);
                text.push_str(&format!("{before}{short}{on}, seed {seed}\n{drawn}"));
            }
        }
        text
    }
}

fn first(scheduler: usize) -> RunKey {
    RunKey { scheduler, index: 0 }
}

/// Prints timelines: beside data for programs, on standard error.
pub fn show(format: RunFormat, timelines: &str) -> anyhow::Result<()> {
    match format {
        RunFormat::Table => output::print(timelines),
        _ if timelines.is_empty() => Ok(()),
        _ => {
            output::say(timelines.trim_end_matches('\n'));
            Ok(())
        }
    }
}

/// Returns the trace file of each scheduler's first run; empty if the user wants no traces.
pub fn paths(file: Option<PathBuf>, folder: Option<&Path>, session: &Session) -> Vec<PathBuf> {
    let shorts: Vec<String> = session.schedulers.iter().map(|s| s.input.arg.short()).collect();
    match (file, folder) {
        (Some(file), _) if shorts.len() == 1 => vec![file],
        (Some(file), _) => named(&file, &shorts),
        (None, Some(folder)) => in_folder(folder, &shorts),
        (None, None) => Vec::new(),
    }
}

/// Returns the trace file of each scheduler's first run in a folder of -o.
pub fn in_folder(folder: &Path, shorts: &[String]) -> Vec<PathBuf> {
    named(&folder.join("trace.pftrace"), shorts)
}

fn named(file: &Path, shorts: &[String]) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for (at, short) in shorts.iter().enumerate() {
        let path = output::with_name(file, short);
        // Two schedulers' names can have the same form in a file name. The later scheduler's number
        // is then added to its file name.
        let taken = paths.contains(&path);
        paths.push(if taken {
            output::with_name(file, &format!("{short}-{}", at + 1))
        } else {
            path
        });
    }
    paths
}

/// A writer that keeps its text in memory, for one timeline.
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
