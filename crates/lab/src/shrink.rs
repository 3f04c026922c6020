// SPDX-License-Identifier: GPL-2.0-only
//! Shrinking: a smaller workload and machine on which a scheduler is still ejected the same way, to
//! attach to a report of the fault.
//!
//! Owns: what is tried, and what "the same way" means. The machine shrinks first, then the
//! workload, whose text form is reduced piece by piece (delta debugging, Zeller and Hildebrandt
//! 2002), until no piece can go.
//! Does not: read clocks (the caller says when to stop), or format.

use std::sync::Arc;

use scxlab_machine::Machine;
use scxlab_machine::id::Nanos;
use scxlab_trace::Tracer;
use scxlab_workload::program::TimeSpan;
use scxlab_workload::{Perturb, Program, compile};
use serde_json::Value;

use crate::input::SchedulerInput;
use crate::prepare::{PrepareError, Prepared};
use crate::run::{Exit, Run};
use crate::sim::{SimError, SimSpec, simulate};

/// A run to shrink.
pub struct Request<'a> {
    pub scheduler: &'a SchedulerInput,
    pub machine: Arc<Machine>,
    /// The machine as the user named it.
    pub machine_name: &'a str,
    pub program: &'a Program,
    pub seed: u64,
    pub duration: Option<Nanos>,
    /// Maximum length of a run whose workload has no duration.
    pub cap: Nanos,
    pub perturb: Perturb,
    pub max_memory: u64,
    /// Returns whether the work must end now. What has been reached then is the result.
    pub must_stop: &'a dyn Fn() -> bool,
}

/// The smaller run.
pub struct Shrunk {
    /// The workload, whose duration ends just after the exit.
    pub program: Program,
    /// The machine, in the form of -m.
    pub machine: String,
    pub nr_cpus: usize,
    pub exit: Exit,
    /// Number of threads at the start, before and after.
    pub threads: (u64, u64),
    /// Number of simulations that were made.
    pub tried: u32,
    /// Whether the caller ended the work before nothing more could go.
    pub is_cut: bool,
}

/// Reason why nothing was shrunk.
#[derive(Debug, thiserror::Error)]
pub enum ShrinkError {
    #[error("there is nothing to shrink: the scheduler {0}")]
    NotEjected(String),
    #[error("the budget was used up, or the command interrupted, before the first run had ended")]
    Interrupted,
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Sim(#[from] SimError),
}

/// The machines that are tried, smallest first, up to the number of CPUs of the original.
const MACHINES: &[&str] = &[
    "1n1c1t", "1n2c1t", "1n1c2t", "2n1c1t", "1n3c1t", "1n4c1t", "1n2c2t", "2n2c1t", "4n1c1t",
    "1n8c1t", "1n4c2t", "2n4c1t", "1n16c1t", "2n4c2t", "2n8c2t",
];

/// Returns the smallest run that is found.
pub fn shrink(request: &Request<'_>) -> Result<Shrunk, ShrinkError> {
    let prepared = Prepared::simulated(request.scheduler, &request.machine)?;
    let whole = Case {
        machine: request.machine.clone(),
        name: request.machine_name.to_owned(),
        prepared: Arc::new(prepared),
        length: request.duration.or(request.program.duration.map(|d| d.0)).unwrap_or(request.cap),
    };
    let run = simulate_case(request, &whole, request.program)?;
    if !run.was_ejected() && run.stop.was_interrupted() {
        return Err(ShrinkError::Interrupted);
    }
    if !run.was_ejected() {
        return Err(ShrinkError::NotEjected(format!(
            "stayed until the end ({}) with seed {}",
            run.stop.kind.meaning(),
            request.seed
        )));
    }
    let mut search = Search {
        request,
        signature: Signature::of(&run.exit),
        best: request.program.clone(),
        exit: run.exit,
        case: whole,
        tried: 1,
    };
    // A smaller workload may fit a smaller machine.
    loop {
        let before = search.size();
        search.shrink_machine();
        search.shrink_workload();
        if search.size() == before || (request.must_stop)() {
            break;
        }
    }
    let mut program = search.best;
    program.duration = search.exit.at_ns.map(|at| TimeSpan(at + 1_000_000)).or(program.duration);
    Ok(Shrunk {
        threads: (threads(request.program), threads(&program)),
        program,
        machine: search.case.name,
        nr_cpus: search.case.machine.topology.nr_cpus(),
        exit: search.exit,
        tried: search.tried,
        is_cut: (request.must_stop)(),
    })
}

/// A machine, and the scheduler that was prepared for it.
#[derive(Clone)]
struct Case {
    machine: Arc<Machine>,
    name: String,
    prepared: Arc<Prepared>,
    length: Nanos,
}

struct Search<'a> {
    request: &'a Request<'a>,
    signature: Signature,
    best: Program,
    exit: Exit,
    case: Case,
    tried: u32,
}

impl Search<'_> {
    /// Returns the machine, and the length of the workload's text.
    fn size(&self) -> (String, usize) {
        (self.case.name.clone(), text_of(&self.best).to_string().len())
    }

    /// Tries a run, and keeps it if the scheduler is ejected the same way. Tells whether it did.
    fn try_run(&mut self, case: &Case, program: Program) -> bool {
        if (self.request.must_stop)() || compile::check(&program).is_err() {
            return false;
        }
        self.tried += 1;
        // A run that needs twice the time is no better.
        let length = self.exit.at_ns.map_or(case.length, |at| case.length.min(2 * at + 1_000_000));
        let case = Case { length, ..case.clone() };
        match simulate_case(self.request, &case, &program) {
            Ok(run) if run.was_ejected() && Signature::of(&run.exit) == self.signature => {
                (self.best, self.exit, self.case) = (program, run.exit, case);
                true
            }
            _ => false,
        }
    }

    /// Takes the smallest machine that will do.
    fn shrink_machine(&mut self) {
        let cpus = self.case.machine.topology.nr_cpus();
        for name in MACHINES {
            let Ok(machine) = Machine::from_spec(name) else { continue };
            if machine.topology.nr_cpus() >= cpus {
                return;
            }
            let Ok(prepared) = Prepared::simulated(self.request.scheduler, &machine) else {
                continue;
            };
            let case = Case {
                machine: Arc::new(machine),
                name: (*name).to_owned(),
                prepared: Arc::new(prepared),
                length: self.case.length,
            };
            if self.try_run(&case, self.best.clone()) {
                return;
            }
        }
    }

    /// Removes pieces of the workload until none can go.
    fn shrink_workload(&mut self) {
        let mut text = text_of(&self.best);
        loop {
            let before = text.to_string().len();
            for pointer in pointers(&text) {
                self.reduce(&mut text, &pointer);
            }
            if text.to_string().len() >= before || (self.request.must_stop)() {
                return;
            }
        }
    }

    /// Reduces what a pointer into the workload's text points to, if it still exists.
    fn reduce(&mut self, text: &mut Value, pointer: &str) {
        match text.pointer(pointer) {
            Some(Value::Array(_)) => self.reduce_array(text, pointer),
            Some(Value::Object(fields)) => {
                let names: Vec<String> = fields.keys().cloned().collect();
                for name in names {
                    self.try_change(text, pointer, |value| {
                        value.as_object_mut().is_some_and(|all| all.shift_remove(&name).is_some())
                    });
                }
            }
            Some(Value::Number(number)) => {
                if let Some(number) = number.as_u64() {
                    self.reduce_number(text, pointer, number);
                }
            }
            _ => {}
        }
    }

    /// Removes runs of items, long ones first, and puts the ops of loops in their places.
    fn reduce_array(&mut self, text: &mut Value, pointer: &str) {
        let mut size = length(text, pointer);
        while size > 0 {
            let mut at = 0;
            while at < length(text, pointer) {
                if !self.try_change(text, pointer, |value| remove(value, at, size)) {
                    at += size;
                }
            }
            size /= 2;
        }
        for at in (0..length(text, pointer)).rev() {
            self.try_change(text, pointer, |value| unwrap_loop(value, at));
        }
    }

    /// Replaces a number by 1, or else takes parts of it away: halves, then quarters and so on, as
    /// long as a part of at least 1 is left to try.
    fn reduce_number(&mut self, text: &mut Value, pointer: &str, mut number: u64) {
        if number < 2 || self.try_change(text, pointer, |value| set(value, 1)) {
            return;
        }
        let mut divisor = 2;
        while number > 2 {
            let part = (number / divisor).max(1);
            if self.try_change(text, pointer, |value| set(value, number - part)) {
                number -= part;
            } else if part == 1 {
                return;
            } else {
                divisor *= 2;
            }
        }
    }

    /// Makes a change to the text, and takes it back if the run is no longer ejected the same way.
    /// Tells whether the change stays.
    fn try_change(
        &mut self,
        text: &mut Value,
        pointer: &str,
        change: impl FnOnce(&mut Value) -> bool,
    ) -> bool {
        let mut other = text.clone();
        let Some(value) = other.pointer_mut(pointer) else { return false };
        if !change(value) {
            return false;
        }
        let Ok(program) = serde_json::from_value::<Program>(other.clone()) else { return false };
        let case = self.case.clone();
        let stays = self.try_run(&case, program);
        if stays {
            *text = other;
        }
        stays
    }
}

fn simulate_case(request: &Request<'_>, case: &Case, program: &Program) -> Result<Run, SimError> {
    let spec = SimSpec {
        duration: Some(case.length),
        perturb: request.perturb,
        max_memory: request.max_memory,
        ..SimSpec::new(&case.machine, program, &case.prepared, request.seed)
    };
    let watch = |_| (request.must_stop)().then(|| "the time is up".to_owned());
    simulate(&spec, Tracer::default(), &watch).map(|(run, _)| run)
}

/// What must be equal in two exits for them to be the same.
#[derive(PartialEq, Eq)]
struct Signature {
    kind: String,
    code: i64,
    /// The message without words that have a digit, because names of tasks, ids, addresses and
    /// times differ.
    message: String,
    stall: Option<Stall>,
}

/// What distinguishes stalls, whose messages are alike.
#[derive(PartialEq, Eq)]
struct Stall {
    place: Place,
    /// Whether a CPU that the task may use was idle. If so, a kick is missing; if not, the task's
    /// turn does not come.
    beside_idle_cpu: bool,
}

/// Where a stalled task waits.
#[derive(PartialEq, Eq)]
enum Place {
    /// In no DSQ: the scheduler holds it.
    Held,
    /// In a DSQ that the scheduler created.
    Own,
    /// In a local or global DSQ.
    Builtin,
}

impl Signature {
    fn of(exit: &Exit) -> Signature {
        let has_digit = |word: &&str| word.contains(|c: char| c.is_ascii_digit());
        let words = exit.message.split_whitespace().filter(|word| !has_digit(word));
        let task =
            exit.story.as_ref().filter(|story| story.is_stall()).and_then(|s| s.task.as_ref());
        Signature {
            kind: exit.kind.clone(),
            code: exit.code,
            message: words.collect::<Vec<_>>().join(" "),
            stall: task.map(|task| Stall {
                place: match task.own_dsq() {
                    Some(_) => Place::Own,
                    None if task.dsq.is_some() => Place::Builtin,
                    None => Place::Held,
                },
                beside_idle_cpu: !task.idle_cpus.is_empty(),
            }),
        }
    }
}

fn text_of(program: &Program) -> Value {
    serde_json::to_value(program).expect("a program is plain data")
}

fn threads(program: &Program) -> u64 {
    program.threads.iter().map(|thread| u64::from(thread.instances)).sum()
}

/// Returns the pointers to all arrays, objects and numbers, those near the root first.
fn pointers(text: &Value) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut at = 0;
    while at < all.len() {
        let pointer = all[at].clone();
        match text.pointer(&pointer) {
            Some(Value::Array(items)) => {
                all.extend((0..items.len()).map(|item| format!("{pointer}/{item}")));
            }
            Some(Value::Object(fields)) => {
                // Names of fields have neither '/' nor '~', which a pointer would escape.
                all.extend(fields.keys().map(|name| format!("{pointer}/{name}")));
            }
            _ => {}
        }
        at += 1;
    }
    all
}

fn length(text: &Value, pointer: &str) -> usize {
    text.pointer(pointer).and_then(Value::as_array).map_or(0, Vec::len)
}

/// Removes up to `size` items; tells whether there were any.
fn remove(value: &mut Value, at: usize, size: usize) -> bool {
    let Some(items) = value.as_array_mut().filter(|items| at < items.len()) else { return false };
    let end = items.len().min(at + size);
    items.drain(at..end);
    true
}

/// Puts the ops of a loop in its place.
fn unwrap_loop(value: &mut Value, at: usize) -> bool {
    let Some(items) = value.as_array_mut() else { return false };
    let body = items.get(at).and_then(|op| op.pointer("/loop/ops")).and_then(Value::as_array);
    let Some(body) = body.cloned() else { return false };
    items.splice(at..=at, body);
    true
}

fn set(value: &mut Value, number: u64) -> bool {
    *value = number.into();
    true
}
