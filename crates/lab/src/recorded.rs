// SPDX-License-Identifier: GPL-2.0-only
//! Recordings as workloads: a trace file behind `-w`, and the machine in it.
//!
//! Owns: the parameters behind a file's name, what a user is told about a recording, and the choice
//! of the meaning of mutexes.
//! Does not: open files, or interpret events (`scxlab_recording` does).

mod likeness;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use scxlab_machine::{Machine, plural};
use scxlab_recording::history::TaskHistory;
use scxlab_recording::{
    Figures, History, MAX_STEPS, Mutexes, Options, Recorder, Replay, Scale, Scope, name_matches,
};
use scxlab_trace::import::{ImportError, Imported, import};
use scxlab_trace::{Event, Names, Sink};
use scxlab_workload::compile::MAX_INSNS;
use scxlab_workload::program::{Op, TimeSpan};

use crate::scheduler::DEFAULT_CLASS;
pub use likeness::{Likeness, Pair};

/// A recording, and the workload that it became.
pub struct Recorded {
    /// The machine of the recording.
    pub machine: Arc<Machine>,
    /// Whether the file has its machine. If not, `machine` has as many CPUs as the file, without
    /// siblings, and the default costs.
    pub knows_machine: bool,
    /// Contents of the file, and what it lacks.
    pub imported: Imported,
    /// The history of its tasks.
    pub history: History,
    /// The program and the meanings of waits.
    pub replay: Replay,
    /// How the program was made.
    options: Options,
    repeat: u32,
}

impl Recorded {
    /// Runs the replay as it was recorded, without `scale` and `repeat`, and compares it with the
    /// recording. The error says why that is not possible.
    pub fn likeness(&self) -> Result<Likeness, String> {
        check_scheduler(&self.imported)?;
        if self.options.scale.is_one() && self.repeat == 1 {
            return likeness(&self.history, &self.replay, &self.machine);
        }
        let options = Options { scale: Scale::default(), ..self.options.clone() };
        let one = scxlab_recording::infer(&self.history, &self.machine, &options);
        likeness(&self.history, &one.map_err(|error| error.to_string())?, &self.machine)
    }
}

fn likeness(
    history: &History,
    replay: &Replay,
    machine: &Arc<Machine>,
) -> Result<Likeness, String> {
    Likeness::of(Figures::of(history, replay), &replay.program, machine)
}

/// Checks that a recording can be compared with a run under the default class. A file that does not
/// tell its scheduler is taken for a recording of that class.
fn check_scheduler(imported: &Imported) -> Result<(), String> {
    match &imported.scheduler {
        Some(name) if name != DEFAULT_CLASS => Err(format!("it was made under {name}")),
        _ => Ok(()),
    }
}

/// Reason why a trace file is no workload.
#[derive(Debug, thiserror::Error)]
pub enum RecordedError {
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error("{file}: {error}")]
    Infer { file: String, error: scxlab_recording::InferError },
    #[error("{file}: the machine in the trace: {error}")]
    Machine { file: String, error: Box<scxlab_machine::MachineError> },
    #[error("{file} does not hold its machine; name one (-m)")]
    NoMachine { file: String },
    #[error("{file}: {error}")]
    Read { file: String, error: io::Error },
    #[error(
        "{file} has {events} events in {length}, and the {MAX_STEPS} system calls, waits and pieces \
         of work that a workload can have are reached after {reached}; choose a window, such as \
         {file},from={from},for={window}, or some of the tasks, such as {file},tasks={busiest}"
    )]
    TooLong {
        file: String,
        events: u64,
        length: TimeSpan,
        /// Time from the window's begin until the limit.
        reached: TimeSpan,
        from: TimeSpan,
        /// A length that fits.
        window: TimeSpan,
        /// Pattern of the names of the tasks with the most steps.
        busiest: String,
    },
    #[error(
        "{file}: the workload has {ops} ops, and at most {MAX_INSNS} are possible; choose a shorter \
         window (for=), some of the tasks (tasks=) or a smaller scale"
    )]
    TooManyOps { file: String, ops: usize },
    #[error("{file} is only {length} long, so that nothing begins at {from}")]
    Window { file: String, length: TimeSpan, from: TimeSpan },
    #[error("{file} has no tasks of {wanted}; it has {has}")]
    NoSuchTasks { file: String, wanted: String, has: String },
    /// `unread` tells what of the file was not understood, and is empty if that is nothing.
    #[error(
        "{file} has no context switches (sched_switch), so that no workload can be made of it{unread}"
    )]
    NoSwitches { file: String, unread: String },
    #[error("{file}: \"{text}\" is no parameter of a recording; it takes {}", parameters())]
    Parameter { file: String, text: String },
    #[error("{file}: {key} is a parameter of recordings, and the file is a workload of ops")]
    NoRecording { file: String, key: &'static str },
    #[error("{file}: {key} is given twice")]
    Twice { file: String, key: &'static str },
    #[error("{file}: {key} is \"{value}\", must be {expected}")]
    Value { file: String, key: &'static str, value: String, expected: &'static str },
}

/// Largest value of `repeat` and `scale`.
const TIMES_MAX: u32 = 1_000;

/// The parameters of a recording: key, kind of value, and what values are right.
pub const PARAMETERS: [(&str, &str, &str); 7] = [
    ("from", "TIME", "a time such as 2s"),
    ("for", "TIME", "a time above 0 such as 2s"),
    ("tasks", "NAME", "a name or a pattern such as worker*"),
    ("cgroup", "PATH", "the path of a cgroup"),
    ("repeat", "N", "a whole number from 1 to 1000"),
    ("scale", "N", "a number from 0.001 to 1000 with at most three decimals"),
    ("steps", "NAME", "a name or a pattern such as worker*"),
];

/// Parameters that may be given several times.
const SEVERAL: [&str; 2] = ["tasks", "steps"];

fn parameters() -> String {
    let all = PARAMETERS.map(|(key, value, _)| format!("{key}={value}"));
    format!("{}, with N up to {TIMES_MAX}, of scale with up to three decimals", all.join(", "))
}

/// The parameters behind the name of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The part of the recording that is the workload.
    pub scope: Scope,
    /// Number of recordings that the workload lasts for.
    pub repeat: u32,
    /// The load from outside, compared with the recording.
    pub scale: Scale,
    /// Patterns of the names of the tasks whose work counts as throughput; without any, all count.
    pub steps: Vec<String>,
}

impl Default for Parameters {
    fn default() -> Parameters {
        let (scope, scale) = (Scope::default(), Scale::default());
        Parameters { scope, repeat: 1, scale, steps: Vec::new() }
    }
}

impl Parameters {
    /// Parses `key=value` pairs, which commas separate.
    pub fn parse(file: &str, text: &str) -> Result<Parameters, RecordedError> {
        let mut parameters = Parameters::default();
        let mut given = BTreeSet::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (key, value) = (key.trim(), value.trim());
            let known = PARAMETERS.into_iter().find(|(name, ..)| *name == key);
            if let Some((key, ..)) = known.filter(|(key, ..)| !SEVERAL.contains(key))
                && !given.insert(key)
            {
                return Err(RecordedError::Twice { file: file.to_owned(), key });
            }
            if parameters.set(key, value).is_none() {
                let file = file.to_owned();
                return Err(match known {
                    Some((key, _, expected)) => {
                        RecordedError::Value { file, key, value: value.to_owned(), expected }
                    }
                    None => RecordedError::Parameter { file, text: pair.to_owned() },
                });
            }
        }
        Ok(parameters)
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        let time = || value.parse::<TimeSpan>().ok().map(|time| time.0);
        let text = || (!value.is_empty()).then(|| value.to_owned());
        let times = || {
            let number = value.strip_suffix('x').unwrap_or(value).parse().ok();
            number.filter(|n| (1..=TIMES_MAX).contains(n))
        };
        match key {
            "from" => self.scope.from = time()?,
            "for" => self.scope.length = Some(time().filter(|length| *length > 0)?),
            "tasks" => self.scope.tasks.push(text()?),
            "cgroup" => self.scope.cgroup = Some(text()?),
            "repeat" => self.repeat = times()?,
            "scale" => self.scale = scale(value)?,
            "steps" => self.steps.push(text()?),
            _ => return None,
        }
        Some(())
    }
}

/// Parses a factor such as 2, 0.5 or 1.25x, with at most three decimals.
fn scale(text: &str) -> Option<Scale> {
    let text = text.strip_suffix('x').unwrap_or(text);
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 3 {
        return None;
    }
    let whole: u32 = whole.parse().ok().filter(|whole| *whole <= TIMES_MAX)?;
    let permille = whole * 1000 + format!("{part:0<3}").parse::<u32>().ok()?;
    (1..=TIMES_MAX * 1000).contains(&permille).then_some(Scale { permille })
}

impl RecordedError {
    /// Whether the file may be something else than a trace.
    pub fn is_no_trace(&self) -> bool {
        let RecordedError::Import(error) = self else { return false };
        matches!(error, ImportError::NoTrace { .. } | ImportError::Empty { .. })
    }
}

/// Opens a file, from its begin. A recording is read twice.
pub type Open<'a> = dyn Fn() -> io::Result<Box<dyn Read + 'a>> + 'a;

/// Reads a recording. Its bytes are never in memory as a whole.
pub fn read(
    file: &str,
    open: &Open<'_>,
    parameters: &Parameters,
) -> Result<Recorded, RecordedError> {
    let imported = pass(file, open, &mut Nothing)?;
    if imported.events.switches == 0 {
        let unread = imported.unread().map_or(String::new(), |what| format!("; {what}"));
        return Err(RecordedError::NoSwitches { file: file.to_owned(), unread });
    }
    let scope = &parameters.scope;
    if scope.from > 0 && scope.from >= imported.length {
        return Err(RecordedError::Window {
            file: file.to_owned(),
            length: TimeSpan(rounded(imported.length)),
            from: TimeSpan(scope.from),
        });
    }
    let known = machine_in(file, &imported)?;
    let knows_machine = known.is_some();
    let machine = match known {
        Some(machine) => machine,
        None => plain_machine(file, &imported)?,
    };
    let machine = Arc::new(machine);
    let history = history(file, open, &machine, scope, &imported)?;
    let Parameters { scale, ref steps, .. } = *parameters;
    let counts = |task: &TaskHistory| task.in_scope && name_matches(steps, &task.name.comm);
    if !steps.is_empty() && !history.tasks.iter().any(counts) {
        let wanted = steps.iter().map(|name| format!("steps={name}")).collect();
        return Err(no_such_tasks(file, wanted, &history));
    }
    let mutexes = Mutexes::default();
    let mut options = Options { name: name(file), scale, steps: steps.clone(), mutexes };
    let failed = |error| RecordedError::Infer { file: file.to_owned(), error };
    let mut replay = scxlab_recording::infer(&history, &machine, &options).map_err(failed)?;
    if replay.has_mutexes()
        && check_scheduler(&imported).is_ok()
        && let Some(note) = without_mutexes(&history, &replay, &machine, &options)
    {
        options.mutexes = Mutexes::Dependencies;
        replay = scxlab_recording::infer(&history, &machine, &options).map_err(failed)?;
        replay.program.notes.push(format!("{file}: {note}"));
    }
    scxlab_recording::repeat(&mut replay.program, parameters.repeat.into());
    let ops = replay.program.threads.iter().map(|thread| count(&thread.ops)).sum();
    if ops > MAX_INSNS {
        return Err(RecordedError::TooManyOps { file: file.to_owned(), ops });
    }
    if !knows_machine {
        replay.program.notes.push(format!(
            "{file} does not hold its machine, which is taken for one of {} with the default costs",
            plural(machine.topology.nr_cpus(), "equal core")
        ));
    }
    if imported.events.hotplugs > 0 {
        replay.program.notes.push(format!(
            "{file}: CPUs went off line or came on line {}; the replay has all CPUs all the time",
            plural(imported.events.hotplugs, "time")
        ));
    }
    let faults = imported.damage().into_iter().chain(imported.missing());
    replay.program.notes.extend(faults.map(|text| format!("{file}: {text}")));
    let repeat = parameters.repeat;
    Ok(Recorded { machine, knows_machine, imported, history, replay, options, repeat })
}

/// A replay whose distance from the recording is below this one, in thousandths, is like it.
const NEAR: u128 = 100;

/// Tells why the waits for mutexes have to become dependencies, if they do: the inferred uses do
/// not make the tasks wait as they did, and dependencies do.
fn without_mutexes(
    history: &History,
    used: &Replay,
    machine: &Arc<Machine>,
    options: &Options,
) -> Option<String> {
    let compared = |replay: &Replay| likeness(history, replay, machine).ok();
    let compared_with = |mutexes| {
        let options = Options { scale: Scale::default(), mutexes, ..options.clone() };
        compared(&scxlab_recording::infer(history, machine, &options).ok()?)
    };
    // A replay that cannot be compared is further off than any other.
    let far = |like: &Option<Likeness>| like.as_ref().map_or(u128::MAX, Likeness::distance);
    let used = match options.scale.is_one() {
        true => compared(used),
        false => compared_with(Mutexes::Used),
    };
    if far(&used) < NEAR || far(&compared_with(Mutexes::Dependencies)) > far(&used) / 2 {
        return None;
    }
    let how = match used {
        Some(like) => format!("has {} % of its speed", like.speed_percent()),
        None => "does not end".to_owned(),
    };
    Some(format!(
        "most uses of its mutexes are free, and show no system call; with those that were \
         inferred the replay {how}, so that a wait for a mutex is one for the task that released it"
    ))
}

/// Returns the number of instructions that ops become.
fn count(ops: &[Op]) -> usize {
    let one = |op: &Op| match op {
        Op::Loop { ops, .. } => count(ops) + 2,
        _ => 1,
    };
    // Each thread ends with an exit.
    ops.iter().map(one).sum::<usize>() + 1
}

/// Returns the machine that a trace file holds.
pub fn machine(file: &str, open: &Open<'_>) -> Result<Machine, RecordedError> {
    let imported = pass(file, open, &mut Nothing)?;
    machine_in(file, &imported)?.ok_or_else(|| RecordedError::NoMachine { file: file.to_owned() })
}

/// Passes the events of a file to a sink.
fn pass(file: &str, open: &Open<'_>, sink: &mut dyn Sink) -> Result<Imported, RecordedError> {
    let bytes = open().map_err(|error| RecordedError::Read { file: file.to_owned(), error })?;
    Ok(import(file, bytes, sink)?)
}

/// Gathers the history of the scope. Reads no further than it needs.
fn history(
    file: &str,
    open: &Open<'_>,
    machine: &Machine,
    scope: &Scope,
    imported: &Imported,
) -> Result<History, RecordedError> {
    let is_done = Arc::new(AtomicBool::new(false));
    let recorder = Recorder::of(machine, scope.clone());
    let mut recorder = UntilDone { recorder, is_done: is_done.clone() };
    let bytes = open().map_err(|error| RecordedError::Read { file: file.to_owned(), error })?;
    import(file, Until { bytes, is_done }, &mut recorder)?;
    let recorder = recorder.recorder;
    let is_full = recorder.is_full();
    let history = recorder.history(Some(imported.length));
    if is_full {
        return Err(too_long(file, scope, imported, &history));
    }
    if scope.selects_tasks() && !history.tasks.iter().any(|task| task.in_scope) {
        let names = scope.tasks.iter().map(|name| format!("tasks={name}"));
        let cgroup = scope.cgroup.iter().map(|path| format!("cgroup={path}"));
        return Err(no_such_tasks(file, names.chain(cgroup).collect(), &history));
    }
    Ok(history)
}

fn no_such_tasks(file: &str, wanted: Vec<String>, history: &History) -> RecordedError {
    let has = roles(history, |task| task.run_ns);
    let (wanted, has) = (wanted.join(","), has.join(", "));
    RecordedError::NoSuchTasks { file: file.to_owned(), wanted, has }
}

fn too_long(file: &str, scope: &Scope, imported: &Imported, history: &History) -> RecordedError {
    let reached = history.full.unwrap_or(history.end).saturating_sub(history.start);
    let busiest = roles(history, |task| task.steps.len() as u64);
    RecordedError::TooLong {
        file: file.to_owned(),
        events: imported.events.all(),
        length: TimeSpan(rounded(imported.length)),
        reached: TimeSpan(rounded(reached)),
        from: TimeSpan(scope.from),
        window: TimeSpan(rounded(reached)),
        busiest: busiest.into_iter().next().unwrap_or_default(),
    }
}

/// Returns a time with at most two digits that are not 0, rounded down.
fn rounded(ns: u64) -> u64 {
    let unit = 10u64.pow(ns.max(1).ilog10().saturating_sub(1));
    ns / unit * unit
}

/// Number of roles that a message names.
const ROLES: usize = 5;

/// Returns patterns of the roles with the highest sums, the highest first.
fn roles(history: &History, value: impl Fn(&TaskHistory) -> u64) -> Vec<String> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for task in &history.tasks {
        let role = scxlab_recording::role_name(&task.name.comm);
        *sums.entry(role.replace('N', "*") + "*").or_default() += value(task);
    }
    let mut sums: Vec<(String, u64)> = sums.into_iter().collect();
    sums.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
    sums.into_iter().take(ROLES).map(|(role, _)| role).collect()
}

/// The bytes of a file, up to the place from which no event matters.
struct Until<R> {
    bytes: R,
    is_done: Arc<AtomicBool>,
}

impl<R: Read> Read for Until<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.is_done.load(Ordering::Relaxed) { Ok(0) } else { self.bytes.read(to) }
    }
}

/// A recorder that tells when no later event matters.
struct UntilDone {
    recorder: Recorder,
    is_done: Arc<AtomicBool>,
}

impl Sink for UntilDone {
    fn event(&mut self, event: &Event, names: &Names) {
        self.recorder.event(event, names);
        self.is_done.store(self.recorder.is_done(), Ordering::Relaxed);
    }

    fn finish(&mut self) -> io::Result<()> {
        self.recorder.finish()
    }
}

fn machine_in(file: &str, imported: &Imported) -> Result<Option<Machine>, RecordedError> {
    let parse = |text: &String| Machine::from_toml(file, text);
    imported
        .machine
        .as_ref()
        .map(parse)
        .transpose()
        .map_err(|error| RecordedError::Machine { file: file.to_owned(), error: Box::new(error) })
}

/// Returns a machine with as many CPUs as the file has.
fn plain_machine(file: &str, imported: &Imported) -> Result<Machine, RecordedError> {
    let seen = imported.cpus.last().map_or(1, |cpu| cpu.0.saturating_add(1));
    let cpus = imported.nr_cpus.unwrap_or(0).max(seen);
    Machine::from_spec(&format!("1n{cpus}c1t"))
        .map_err(|error| RecordedError::Machine { file: file.to_owned(), error: Box::new(error) })
}

/// Returns the file's name without folder and extension.
fn name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.rsplit_once('.').map_or(base, |(stem, _)| if stem.is_empty() { base } else { stem }).into()
}

/// A sink that keeps nothing.
struct Nothing;

impl Sink for Nothing {
    fn event(&mut self, _: &Event, _: &Names) {}

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_parsed_and_refused() {
        let parse = |text: &str| Parameters::parse("a.pftrace", text);
        assert_eq!(parse("").unwrap(), Parameters::default());
        let scale = |permille| Scale { permille };
        let times = Parameters { repeat: 3, scale: scale(2000), ..Parameters::default() };
        assert_eq!(parse("repeat=3,scale=2x").unwrap(), times);
        assert_eq!(parse("scale=0.5").unwrap().scale, scale(500));
        assert_eq!(parse("scale=1.25x").unwrap().scale, scale(1250));
        let scope = parse("from=2s,for=500ms,tasks=web*,tasks=db,cgroup=/shop").unwrap().scope;
        assert_eq!((scope.from, scope.until()), (2_000_000_000, 2_500_000_000));
        assert_eq!((scope.tasks.len(), scope.cgroup.as_deref()), (2, Some("/shop")));
        assert_eq!(parse("steps=vm*,steps=db").unwrap().steps, ["vm*", "db"]);
        for (key, values) in [
            ("scale", &["", "0", "1001", "2y", "1.2345", ".5"][..]),
            ("repeat", &["0", "-1", "1001"]),
            ("from", &["2"]),
            ("for", &["0s"]),
            ("tasks", &[""]),
            ("steps", &[""]),
        ] {
            for value in values {
                let error = parse(&format!("{key}={value}")).unwrap_err().to_string();
                let wanted = format!("a.pftrace: {key} is \"{value}\", must be ");
                assert!(error.starts_with(&wanted), "{error}");
            }
        }
        let error = parse("scal=2").unwrap_err().to_string();
        assert!(error.contains("\"scal=2\" is no parameter") && error.contains("repeat=N"));
    }

    #[test]
    fn text_is_no_recording() {
        for other in [&b"[[thread]]\nname = 'x'"[..], b""] {
            let open = || -> io::Result<Box<dyn Read>> { Ok(Box::new(other)) };
            let error = read("a", &open, &Parameters::default()).err().unwrap();
            assert!(error.is_no_trace() && error.to_string().starts_with("a is "), "{error}");
        }
    }
}
