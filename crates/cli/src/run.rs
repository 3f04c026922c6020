// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab run`: makes runs, and compares their results.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use scxlab_bpf::vm::Engine;
use scxlab_lab::input::{self, SchedulerInput, Workload};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::report::benchmark;
use scxlab_lab::report::csv::csv;
use scxlab_lab::report::document::{Document, Screen};
use scxlab_lab::report::selection::Selection;
use scxlab_lab::report::{OnMachine, across_machines, report};
use scxlab_lab::results::{Request, Results, Version};
use scxlab_lab::run::{Run, StopKind};
use scxlab_lab::session::{CAP, Progress, Session};
use scxlab_machine::Machine;
use scxlab_page::Collected;
use scxlab_results::inputs::Inputs;
use scxlab_workload::Perturb;
use scxlab_workload::program::TimeSpan;

use crate::again::{self, StoredRequest};
use crate::args::{EngineArg, NumaArg, On, RunArgs, RunFormat};
use crate::exit::{CliError, FailedRuns};
use crate::progress::with_bar;
use crate::report::PageBuilder;
use crate::traces::Traces;
use crate::{live, output, traces};

/// The runs on one of the machines.
struct MachineRuns {
    /// The machine as the user named it.
    machine: String,
    session: Session,
    /// Folder for the results, if the user asked for one.
    folder: Option<PathBuf>,
    /// File of --trace, with the machine's name inserted if there are several machines.
    trace: Option<PathBuf>,
}

pub fn run(args: &RunArgs) -> Result<()> {
    let Some(folder) = &args.again else {
        return carry_out(args, &args.cache.inputs()).map(|_| ());
    };
    let kept = StoredRequest::read(folder)?;
    let all = carry_out(&kept.args(args)?, kept.inputs())?;
    kept.compare(&all)
}

/// Makes all runs, and returns the results of each machine.
fn carry_out(args: &RunArgs, inputs: &Inputs) -> Result<Vec<Results>> {
    let targets = targets(args)?;
    let parts = parts(args, inputs)?;
    for part in &parts {
        if targets.contains(&On::Sim) {
            part.session.program()?;
        }
        refuse_simulated(&part.session.workload, &targets)?;
    }
    let _folder = args.output.as_deref().map(output::lock_folder).transpose()?;
    args.report.as_deref().map(output::check_place).transpose()?;
    let mut all: Vec<Results> = Vec::new();
    let mut page = PageBuilder::default();
    for part in &parts {
        let mut done = run_part(args, part, &targets)?;
        if let Some(folder) = args.output.as_ref().filter(|_| all.is_empty()) {
            // Replace the command stored in the results folder only now. Until the runs on the
            // first machine are complete, the folder may hold the results of another command.
            again::keep(folder, args, inputs, version())?;
        }
        if matches!(args.format, RunFormat::Table | RunFormat::Markdown) && !all.is_empty() {
            output::print("\n")?;
        }
        publish(args, part, &done)?;
        if args.report.is_some() {
            page.add_results(&done.results, &part.session, std::mem::take(&mut done.intervals));
        }
        all.push(done.results);
        if let Some(error) = done.interrupted {
            finish(args, &parts, &all)?;
            return Err(error.into());
        }
    }
    finish(args, &parts, &all)?;
    if let Some(path) = &args.report {
        page.write(path, &[])?;
    }
    let runs = || all.iter().flat_map(|results| &results.runs);
    let bad = bad(runs());
    if args.fail_on_exit && bad.runs > 0 {
        return Err(CliError::WentBadly(bad).into());
    }
    Ok(all)
}

/// Refuses on a real kernel a workload that cannot run there: one with guests where KVM does not
/// work, or whose guests have properties that real guests lack, or one that takes CPUs off line.
/// Whether KVM works in a virtual machine shows when the machine runs.
pub fn refuse_simulated(workload: &Workload, targets: &[On]) -> Result<()> {
    let Workload::Program(program) = workload else { return Ok(()) };
    let Some(on) = targets.iter().find(|on| **on != On::Sim) else { return Ok(()) };
    if let Some((at, thread)) = program.first_hotplug() {
        let thread = thread.to_owned();
        return Err(CliError::Hotplug { at, thread, on: on.name() }.into());
    }
    scxlab_live::guest::check(program)?;
    if targets.contains(&On::Host)
        && let Some((at, guest)) = program.first_guest()
        && let Err(why) = scxlab_vm::probe_kvm()
    {
        let (guest, on) = (guest.name.clone(), On::Host.name());
        return Err(CliError::Guests { at, guest, on, why }.into());
    }
    Ok(())
}

/// Returns the runs to make on each machine, in the order given. Reads all inputs before any run
/// begins.
fn parts(args: &RunArgs, inputs: &Inputs) -> Result<Vec<MachineRuns>> {
    let machines = machines(args);
    let are_many = machines.len() > 1;
    let workload = Workload::resolve(&args.workload()?, inputs)?;
    let schedulers = args.scheduler.iter().map(|text| SchedulerInput::resolve(text, inputs));
    let schedulers = schedulers.collect::<Result<Vec<_>, _>>()?;
    let part = |(machine, short): (String, String)| {
        let model = Arc::new(input::machine(&machine, inputs)?);
        let session = session(args, model, &workload, &schedulers)?;
        session.check()?;
        let folder = args.output.as_deref().map(|folder| machine_folder(folder, &short, are_many));
        let trace = args.trace.as_ref().map(|file| match are_many {
            true => output::with_name(file, &short),
            false => file.clone(),
        });
        Ok(MachineRuns { machine, session, folder, trace })
    };
    machines.into_iter().map(part).collect()
}

/// Returns each machine once, with a unique name that is safe in file names.
fn machines(args: &RunArgs) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for machine in &args.machine {
        if all.iter().any(|(name, _)| name == machine) {
            continue;
        }
        let mut short = output::safe_name(machine);
        if all.iter().any(|(_, taken)| *taken == short) {
            short = format!("{short}-{}", all.len() + 1);
        }
        all.push((machine.clone(), short));
    }
    all
}

fn machine_folder(folder: &Path, short: &str, are_many: bool) -> PathBuf {
    if are_many { folder.join(short) } else { folder.to_owned() }
}

/// Returns the folder with the results of each machine, below a folder of -o.
pub fn machine_folders(args: &RunArgs, folder: &Path) -> Vec<PathBuf> {
    let machines = machines(args);
    let are_many = machines.len() > 1;
    machines.iter().map(|(_, short)| machine_folder(folder, short, are_many)).collect()
}

/// The outcome of the runs on one machine.
struct MachineResults {
    results: Results,
    /// What the traced runs did: for each, the index of its scheduler.
    intervals: Vec<(usize, Collected)>,
    timelines: String,
    /// Events in perf's layout, if the user wants them.
    perf: String,
    interrupted: Option<CliError>,
}

fn run_part(args: &RunArgs, part: &MachineRuns, targets: &[On]) -> Result<MachineResults> {
    let session = &part.session;
    let (mut timelines, mut perf) = (String::new(), String::new());
    if let Some(folder) = &part.folder {
        output::make_folder(folder)?;
    }
    let files = output::Files::default();
    let mut runs = Vec::new();
    let mut intervals = Vec::new();
    for on in targets {
        let among = (targets.len() > 1).then_some(*on);
        let paths = trace_paths(part, *on, among);
        let layout = args.format.perf();
        let mut traces = Traces::new(session, &files, paths, args.timeline, layout, among);
        if args.report.is_some() {
            traces = traces.with_page(*on);
        }
        let progress = Progress::new(session);
        runs.extend(match on {
            On::Sim => {
                let interrupt = interrupt(args.vm.deadline);
                with_bar(&progress, || {
                    session.execute(&|key| traces.tracer(key), &progress, &interrupt)
                })?
            }
            on => {
                let trace_buffer = traces.are_wanted().then_some(args.trace_buffer);
                let request = live::LiveRequest { session, trace_buffer };
                // Create the trace files before the work begins, so that errors show early.
                let tracers = traces.first_runs()?;
                let (runs, recordings) = live::runs(&request, *on, &args.vm)?;
                traces.replay(tracers, &runs, &recordings)?;
                runs
            }
        });
        timelines.push_str(&traces.timelines());
        intervals.extend(traces.intervals());
        perf.push_str(&traces.perf());
    }
    if is_unasked(args, session) {
        note_cut(&mut runs);
    }
    let interrupted = interrupted(&runs);
    let results = Results::new(session, request(args, &part.machine, targets)?, runs);
    output::publish(files)?;
    Ok(MachineResults { results, intervals, timelines, perf, interrupted })
}

/// Returns the paths of the trace files of a target. If there are several targets, the name of
/// --trace's file gets the target's name. The folder of -o gets traces of simulated runs only,
/// because tracing on a real kernel takes CPU time from the workload. Only --trace traces a real
/// kernel.
fn trace_paths(part: &MachineRuns, on: On, among: Option<On>) -> Vec<PathBuf> {
    let file = part.trace.as_ref().map(|file| match among {
        Some(on) => output::with_name(file, on.name()),
        None => file.clone(),
    });
    let folder = part.folder.as_deref().filter(|_| on == On::Sim);
    traces::paths(file, folder, &part.session)
}

/// Returns a function that tells whether simulated runs must end now, and why. Runs on a real
/// kernel handle signals and the deadline themselves.
pub fn interrupt(deadline: Option<TimeSpan>) -> impl Fn() -> Option<String> + Sync {
    let (cancelled, start) = (output::cancelled(), Instant::now());
    move || {
        if cancelled.load(Ordering::Relaxed) {
            return Some("cancelled".to_owned());
        }
        let late = deadline.filter(|d| start.elapsed() >= Duration::from_nanos(d.0));
        late.map(|d| format!("the deadline of {d} has passed"))
    }
}

pub fn interrupted(runs: &[Run]) -> Option<CliError> {
    let simulated = runs.iter().filter(|run| run.target == "sim");
    let some: Vec<&Run> = simulated.filter(|run| run.stop.was_interrupted()).collect();
    let not_begun = some.iter().filter(|run| run.virtual_ns == 0).count();
    let why = some.first()?.stop.message.trim_start_matches("not begun: ").to_owned();
    let (whole, cut) = (runs.len() - some.len(), some.len() - not_begun);
    Some(CliError::Interrupted { why, whole, cut, not_begun })
}

fn bad<'a>(runs: impl Iterator<Item = &'a Run> + Clone) -> FailedRuns {
    let count = |is: fn(&Run) -> bool| runs.clone().filter(|run| is(run)).count();
    FailedRuns {
        runs: count(|run| !run.succeeded()),
        of: runs.clone().count(),
        ejected: count(Run::was_ejected),
        stopped_early: count(|run| !run.stop.is_regular()),
        starved: count(|run| !run.never_ran.is_empty()),
    }
}

/// Returns each target once, in the order given.
fn targets(args: &RunArgs) -> Result<Vec<On>> {
    let mut all: Vec<On> = Vec::new();
    for on in &args.on {
        if *on == On::Host {
            args.machine.iter().try_for_each(|machine| live::check_host(machine))?;
        }
        if !all.contains(on) {
            all.push(*on);
        }
    }
    Ok(all)
}

fn session(
    args: &RunArgs,
    machine: Arc<Machine>,
    workload: &Workload,
    schedulers: &[SchedulerInput],
) -> Result<Session> {
    let schedulers = schedulers.iter().map(|input| Prepared::simulated(input, &machine));
    let schedulers = schedulers.collect::<Result<_, _>>()?;
    Ok(Session {
        machine,
        workload: workload.clone(),
        schedulers,
        runs: args.runs,
        seed: args.seed,
        duration: args.duration.map(|d| d.0),
        cap: Some(CAP),
        perturb: Perturb {
            start_offset_max: args.start_offset.0,
            compute_noise_permille: args.compute_noise,
        },
        engine: match args.engine {
            EngineArg::Interp => Engine::Interp,
            EngineArg::Jit => Engine::Jit,
        },
        max_memory: args.memory_limit,
        numa_balancing: args.numa_balancing.map(NumaArg::mode),
        attach_after: args.attach_after.map(|at| at.0),
        threads: args.jobs,
    })
}

fn is_unasked(args: &RunArgs, session: &Session) -> bool {
    args.duration.is_none() && session.workload.duration().is_none()
}

fn note_cut(runs: &mut [Run]) {
    for run in runs.iter_mut().filter(|r| r.stop.kind == StopKind::Duration && r.virtual_ns >= CAP)
    {
        run.notes.push(
            "the workload has no duration and was stopped after 60s; --duration sets another"
                .into(),
        );
    }
}

pub fn version() -> Version {
    Version {
        version: env!("CARGO_PKG_VERSION").into(),
        commit: option_env!("SCXLAB_COMMIT").map(str::to_owned),
    }
}

fn request(args: &RunArgs, machine: &str, targets: &[On]) -> Result<Request> {
    Ok(Request {
        version: version(),
        workload: args.workload()?,
        machine: machine.to_owned(),
        targets: targets.iter().map(|on| on.name().to_owned()).collect(),
        tolerance_percent: args.tolerance,
    })
}

/// Prints and writes the results of one machine. `finish` prints the formats that cover all
/// machines together.
fn publish(args: &RunArgs, part: &MachineRuns, done: &MachineResults) -> Result<()> {
    let MachineRuns { session, folder, .. } = part;
    let report = report(session, &done.results, &args.metrics.clone().unwrap_or_default());
    if let Some(folder) = folder {
        let is_simulated = done.results.runs.iter().any(|run| run.target == "sim");
        let traces = if is_simulated { trace_paths(part, On::Sim, None) } else { Vec::new() };
        output::remove_others(folder, "trace.", ".pftrace", &traces)?;
        output::write_file(&folder.join("results.json"), done.results.to_json().as_bytes())?;
        let text = report.text(Screen::default());
        output::write_file(&folder.join("report.txt"), text.as_bytes())?;
    }
    match args.format {
        RunFormat::PerfSched | RunFormat::PerfTimehist => output::print(&done.perf)?,
        RunFormat::Schbench => output::print(&benchmark::schbench(&done.results))?,
        RunFormat::Hackbench => output::print(&benchmark::hackbench(&done.results))?,
        _ => print_document(args, &report)?,
    }
    traces::show(args.format, &done.timelines)
}

fn print_document(args: &RunArgs, document: &Document) -> Result<()> {
    match args.format {
        RunFormat::Table => output::print_report(document),
        RunFormat::Markdown => output::print(&document.markdown()),
        _ => Ok(()),
    }
}

/// Prints the output that covers all machines. If the command was interrupted, the output covers
/// the machines up to the one with the interrupted run.
fn finish(args: &RunArgs, parts: &[MachineRuns], all: &[Results]) -> Result<()> {
    if let Some(folder) = &args.output {
        output::write_folder(folder, &version(), all, args.csv)?;
    }
    match args.format {
        RunFormat::Csv => {
            let selection = args.metrics.clone().unwrap_or_else(Selection::all);
            output::print(&csv(all, args.runs as usize, &selection))?;
        }
        RunFormat::Json => {
            let texts: Vec<String> = all.iter().map(Results::to_json).collect();
            output::print(&match &texts[..] {
                [one] if parts.len() == 1 => one.clone(),
                many => format!("[\n{}]\n", many.join(",\n")),
            })?;
        }
        _ => {}
    }
    if all.len() < 2 {
        return Ok(());
    }
    let done = parts.iter().zip(all);
    let done = done.map(|(part, results)| OnMachine {
        name: &part.machine,
        session: &part.session,
        results,
    });
    let mut document = Document::default();
    document.push_text("\n");
    document.append(across_machines(&done.collect::<Vec<_>>()));
    if let Some(folder) = &args.output {
        let text = document.text(Screen::default());
        output::write_file(&folder.join("report.txt"), text.trim_start().as_bytes())?;
    }
    print_document(args, &document)
}
