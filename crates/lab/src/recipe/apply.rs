// SPDX-License-Identifier: GPL-2.0-only
//! Execution of a recipe: the steps before load once, on the open object; the later steps on each
//! kernel that the object is loaded into.
//!
//! Owns: the order (constants and sizes, load, maps and programs, attach, remaining steps), loops,
//! and the values of formulas.
//! Does not: choose a recipe, load or attach; the caller does these between the phases.
//! `apply/open.rs` and `apply/loaded.rs` implement the actions.

mod loaded;
mod open;

use std::collections::BTreeSet;

use scxlab_bpf::fault::{Fault, FaultKind};
use scxlab_loader::btf::Btf;
use scxlab_loader::link::OpenObject;
use scxlab_loader::object::{Object, ProgramKind};
use scxlab_machine::Machine;
use scxlab_machine::topology::sysfs::parse_cpu_list;

use super::expr::{Expr, ExprError, PathStep, Target};
use super::facts::{Scope, Vars, View, indices};
use super::frontend::Frontend;
use super::{
    Action, Default, Formula, Param, Phase, Recipe, RecipeError, RecipeErrorKind, RecipeResult,
    RecipeStep, SourcePos,
};

/// The machine, the kernel and the struct_ops table for which a recipe is carried out.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub machine: &'a Machine,
    /// The kernel's types, whose enumerators formulas may name.
    pub kernel: &'a Btf,
    /// Name of the struct_ops table that will be attached.
    pub table: &'a str,
}

/// State of a recipe between two phases: the values of its parameters and variables.
#[derive(Clone, Debug)]
pub struct Applied {
    pub params: Vec<(String, i128)>,
    vars: Vars,
}

/// Maximum iterations of a step: two nested loops over 2048 CPUs. A larger number is an error in
/// the recipe.
const MAX_ITERATIONS: u64 = 1 << 22;
/// Name of the variable that holds the number of a step's current iteration, from 0.
const PASS: &str = "nth";

impl Recipe {
    /// Carries out the steps before load. `given` holds the user's values for parameters, as text.
    pub fn prepare(
        &self,
        subject: Subject<'_>,
        open: &mut OpenObject,
        given: &[(String, String)],
    ) -> RecipeResult<Applied> {
        let mut work = RecipeExecution::new(subject);
        let side = &mut ObjectState::Open(open);
        for param in &self.params {
            let given = given.iter().find(|(name, _)| *name == param.name).map(|(_, text)| text);
            work.param(param, given.map(String::as_str), side).map_err(|e| e.advised(self))?;
        }
        work.phase(&self.steps, Phase::Open, side).map_err(|e| e.advised(self))?;
        Ok(work.state)
    }

    /// Carries out the steps between load and attach.
    pub fn after_load(
        &self,
        subject: Subject<'_>,
        applied: &Applied,
        frontend: &mut dyn Frontend,
    ) -> RecipeResult<Applied> {
        self.use_loaded(Phase::Loaded, subject, applied, frontend)
    }

    /// Carries out the steps after attach.
    pub fn after_attach(
        &self,
        subject: Subject<'_>,
        applied: &Applied,
        frontend: &mut dyn Frontend,
    ) -> RecipeResult<Applied> {
        self.use_loaded(Phase::Attached, subject, applied, frontend)
    }

    /// Tells whether the recipe has steps for a loaded object.
    pub fn needs_loaded(&self) -> bool {
        self.steps.iter().any(|s| s.phase != Phase::Open)
    }

    fn use_loaded(
        &self,
        phase: Phase,
        subject: Subject<'_>,
        applied: &Applied,
        frontend: &mut dyn Frontend,
    ) -> RecipeResult<Applied> {
        let mut work = RecipeExecution { subject, state: applied.clone(), locals: Vec::new() };
        let done = work.phase(&self.steps, phase, &mut ObjectState::Loaded(frontend));
        done.map_err(|e| e.advised(self))?;
        Ok(work.state)
    }
}

/// The object that steps act on: open, or loaded into a kernel.
enum ObjectState<'a> {
    Open(&'a mut OpenObject),
    Loaded(&'a mut dyn Frontend),
}

impl ObjectState<'_> {
    fn object(&self) -> &Object {
        match self {
            ObjectState::Open(open) => open.object(),
            ObjectState::Loaded(frontend) => frontend.object(),
        }
    }

    fn view(&self) -> View<'_> {
        match self {
            ObjectState::Open(open) => View::Open(&open.globals),
            ObjectState::Loaded(frontend) => View::Loaded(&**frontend),
        }
    }
}

/// A recipe in execution.
struct RecipeExecution<'a> {
    subject: Subject<'a>,
    state: Applied,
    /// Loop variables, innermost last.
    locals: Vec<(String, i128)>,
}

impl<'a> RecipeExecution<'a> {
    fn new(subject: Subject<'a>) -> RecipeExecution<'a> {
        let state = Applied { params: Vec::new(), vars: Vars::default() };
        RecipeExecution { subject, state, locals: Vec::new() }
    }

    /// Sets a parameter to the user's value or its default.
    fn param(
        &mut self,
        param: &Param,
        given: Option<&str>,
        side: &ObjectState<'_>,
    ) -> RecipeResult<()> {
        match &param.default {
            Default::Number(default) => {
                let formula = match given {
                    None => default.clone(),
                    Some(text) => {
                        let place = default.place.clone();
                        let expr = Expr::parse(text);
                        let expr = expr.map_err(|e| RecipeError::at(&place, e.into()))?;
                        Formula { place, text: text.to_owned(), expr }
                    }
                };
                let value = self.value(side, &formula)?;
                self.state.params.push((param.name.clone(), value));
            }
            Default::Cpus(place, default) => {
                let list = given.unwrap_or(default);
                let cpus = self.cpus(list).map_err(|why| {
                    let (param, list) = (param.name.clone(), list.to_owned());
                    RecipeError::at(place, RecipeErrorKind::Cpus { param, list, why })
                })?;
                for cpu in 0..self.subject.machine.topology.nr_cpus() as u32 {
                    let member = cpus.contains(&cpu).into();
                    self.state.vars.set(&param.name, vec![cpu.into()], member);
                }
                let count = format!("nr_{}", param.name);
                self.state.vars.set(&count, Vec::new(), cpus.len() as i128);
            }
        }
        Ok(())
    }

    /// Parses a list of CPUs such as `0-3,8`. The list is in quotes if it contains a comma, because
    /// a comma ends a knob.
    fn cpus(&self, list: &str) -> Result<BTreeSet<u32>, String> {
        let nr_cpus = self.subject.machine.topology.nr_cpus() as u32;
        let cpus = match list.trim().trim_matches('"') {
            "all" => return Ok((0..nr_cpus).collect()),
            "none" => return Ok(BTreeSet::new()),
            list => parse_cpu_list(list)
                .map_err(|why| format!("{why}; a list of CPUs is like 0-3,8, all or none"))?,
        };
        match cpus.iter().find(|cpu| **cpu >= nr_cpus) {
            Some(cpu) => Err(format!("the machine has CPUs 0 to {}, not {cpu}", nr_cpus - 1)),
            None => Ok(cpus.into_iter().collect()),
        }
    }

    fn phase(
        &mut self,
        steps: &[RecipeStep],
        phase: Phase,
        side: &mut ObjectState<'_>,
    ) -> RecipeResult<()> {
        for step in steps.iter().filter(|s| s.phase == phase) {
            if step.sort.is_empty() {
                self.in_order(step, side)?;
            } else {
                self.sorted(step, side)?;
            }
        }
        Ok(())
    }

    /// Carries out the step's iterations one by one; each iteration sees the effects of the earlier
    /// iterations.
    fn in_order(&mut self, step: &RecipeStep, side: &mut ObjectState<'_>) -> RecipeResult<()> {
        let mut nth = 0;
        self.walk(step, 0, 1, side, &mut |work, side| {
            work.act(step, nth, side)?;
            nth += 1;
            Ok(())
        })
    }

    /// Carries out the iterations of a step with `sort`, in the order of their keys. Evaluates the
    /// conditions and keys of all iterations before the first iteration runs.
    fn sorted(&mut self, step: &RecipeStep, side: &mut ObjectState<'_>) -> RecipeResult<()> {
        let mut passes = Vec::new();
        self.walk(step, 0, 1, side, &mut |work, side| {
            let keys = step.sort.iter().map(|key| work.value(side, key));
            passes.push((keys.collect::<RecipeResult<Vec<i128>>>()?, work.locals.clone()));
            Ok(())
        })?;
        passes.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (nth, (_, locals)) in passes.into_iter().enumerate() {
            self.locals = locals;
            self.act(step, nth as i128, side)?;
        }
        self.locals.clear();
        Ok(())
    }

    /// Calls `visit` for each combination of the step's loop variables for which the step's
    /// condition holds. The last variable changes fastest. The count of a variable may depend on
    /// the variables before it.
    fn walk(
        &mut self,
        step: &RecipeStep,
        depth: usize,
        passes: u64,
        side: &mut ObjectState<'_>,
        visit: &mut dyn FnMut(&mut Self, &mut ObjectState<'_>) -> RecipeResult<()>,
    ) -> RecipeResult<()> {
        let Some(inner) = step.each.get(depth) else {
            let holds = match &step.when {
                None => true,
                Some(condition) => self.value(side, condition)? != 0,
            };
            return if holds { visit(self, side) } else { Ok(()) };
        };
        let count = u64::try_from(self.value(side, &inner.count)?).unwrap_or(0);
        let passes = passes.checked_mul(count.max(1)).filter(|n| *n <= MAX_ITERATIONS);
        let too_many = RecipeErrorKind::Iterations { max: MAX_ITERATIONS };
        let passes = passes.ok_or_else(|| RecipeError::at(&step.place, too_many))?;
        for at in 0..count {
            self.locals.push((inner.var.clone(), at.into()));
            self.walk(step, depth + 1, passes, side, visit)?;
            self.locals.pop();
        }
        Ok(())
    }

    fn act(
        &mut self,
        step: &RecipeStep,
        nth: i128,
        side: &mut ObjectState<'_>,
    ) -> RecipeResult<()> {
        self.locals.push((PASS.to_owned(), nth));
        let done = match &step.action {
            Action::Require(condition, message) => match self.value(side, condition)? {
                0 => {
                    let what = RecipeErrorKind::Required(message.clone());
                    return Err(RecipeError::at(&condition.place, what));
                }
                _ => Ok(()),
            },
            Action::Let(all) => all.iter().try_for_each(|a| {
                let value = self.value(side, &a.value)?;
                self.assign(side, &a.target, value, &a.value.place)
            }),
            action => match side {
                ObjectState::Open(open) => self.change(open, action),
                ObjectState::Loaded(frontend) => self.use_loaded(*frontend, action, &step.place),
            },
        };
        self.locals.pop();
        done
    }

    /// Assigns a value to a variable of the recipe.
    fn assign(
        &mut self,
        side: &ObjectState<'_>,
        target: &Target,
        value: i128,
        place: &SourcePos,
    ) -> RecipeResult<()> {
        let error = |e: ExprError| RecipeError::at(place, e.into());
        if target.at.is_some() || target.optional {
            let why = ": it is no variable of a recipe".into();
            return Err(error(ExprError::NoValue { place: target.name.clone(), why }));
        }
        let steps = self.steps(side, target, place)?;
        let at = indices(&target.name, &steps).map_err(error)?;
        self.state.vars.set(&target.name, at, value);
        Ok(())
    }

    fn steps(
        &self,
        side: &ObjectState<'_>,
        target: &Target,
        place: &SourcePos,
    ) -> RecipeResult<Vec<PathStep>> {
        target.steps(&self.scope(side)).map_err(|e| RecipeError::at(place, e.into()))
    }

    fn value(&self, side: &ObjectState<'_>, formula: &Formula) -> RecipeResult<i128> {
        formula.expr.value(&self.scope(side)).map_err(|e| RecipeError::at(&formula.place, e.into()))
    }

    /// Evaluates a formula that gives a number or size. Negative values become 0; an action for
    /// which 0 is not a valid size refuses it.
    fn count(&self, side: &ObjectState<'_>, formula: &Formula) -> RecipeResult<u64> {
        Ok(u64::try_from(self.value(side, formula)?.max(0)).unwrap_or(u64::MAX))
    }

    fn scope<'s>(&'s self, side: &'s ObjectState<'_>) -> Scope<'s> {
        Scope {
            machine: self.subject.machine,
            kernel: self.subject.kernel,
            object: side.object(),
            globals: side.view(),
            params: &self.state.params,
            vars: &self.state.vars,
            locals: &self.locals,
        }
    }
}

fn no_map(object: &Object, place: &SourcePos, name: &str) -> RecipeError {
    missing(object, "map", place, name, object.maps.iter().map(|m| m.name.as_str()))
}

fn no_program(
    object: &Object,
    place: &SourcePos,
    name: &str,
    fits: impl Fn(&ProgramKind) -> bool,
) -> RecipeError {
    let present = object.programs().filter(|(_, _, k)| fits(k)).map(|(_, f, _)| f.name.as_str());
    missing(object, "such program", place, name, present)
}

fn missing<'a>(
    object: &Object,
    what: &'static str,
    place: &SourcePos,
    name: &str,
    present: impl Iterator<Item = &'a str>,
) -> RecipeError {
    let present: Vec<_> = present.collect();
    let present = if present.is_empty() { "none".into() } else { present.join(", ") };
    RecipeError::at(
        place,
        RecipeErrorKind::Missing {
            object: object.name.clone(),
            what,
            name: name.to_owned(),
            present,
        },
    )
}

impl RecipeError {
    /// Returns the feature that the simulator does not model, if a program failed because it needs
    /// that feature.
    pub fn unmodelled(&self) -> Option<&str> {
        match &*self.what {
            RecipeErrorKind::Fault { fault, .. } => match Fault::kind(fault) {
                FaultKind::Unmodelled { what } => Some(what),
                _ => None,
            },
            _ => None,
        }
    }
}
