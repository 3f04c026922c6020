// SPDX-License-Identifier: GPL-2.0-only
//! Carrying out a recipe: on an object that is open, and again on each kernel that it is loaded into.
//!
//! Owns: the order: constants and sizes, then load, then maps and programs, then (by the caller) attach.
//! Does not: choose a recipe or attach.

use scxlab_bpf::btf::{Btf, Kind, TypeId};
use scxlab_bpf::fault::{Fault, FaultKind};
use scxlab_bpf::link::knob;
use scxlab_bpf::link::{GlobalError, Loaded, OpenObject};
use scxlab_bpf::object::{Object, ProgramKind};
use scxlab_kernel::Kernel;
use scxlab_machine::Machine;

use super::expr::Expr;
use super::facts::Scope;
use super::{Action, Assignment, Formula, PathPart, Recipe, RecipeError, Step, What};

/// What a recipe is applied to.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub machine: &'a Machine,
    /// The kernel's types: enumerators are named in formulas.
    pub kernel: &'a Btf,
    /// Name of the struct_ops table that will be attached.
    pub table: &'a str,
}

/// A recipe whose parameters have values.
#[derive(Clone, Debug)]
pub struct Applied {
    pub params: Vec<(String, i128)>,
}

/// Values of the parameters, and of the loop variables of a step.
struct Values<'a> {
    params: &'a [(String, i128)],
    locals: Vec<(String, i128)>,
}

/// A loop over CPUs in a loop over CPUs, on the largest machine of use; more is a slip.
const MAX_ITERATIONS: u64 = 1 << 22;

type Outcome<T> = Result<T, RecipeError>;

impl Recipe {
    /// Steps before load. `given` are the user's values for parameters, as text.
    pub fn prepare(
        &self,
        subject: Subject<'_>,
        open: &mut OpenObject,
        given: &[(String, String)],
    ) -> Outcome<Applied> {
        let params = self.params(subject, open, given)?;
        for step in self.steps.iter().filter(|s| !s.action.needs_loaded()) {
            self.each(subject, step, &params, open, &mut |open, values| {
                self.change(subject, open, &step.action, values)
            })?;
        }
        Ok(Applied { params })
    }

    /// Steps between load and attach. `open` is what `loaded` was loaded from.
    pub fn after_load(
        &self,
        subject: Subject<'_>,
        applied: &Applied,
        open: &OpenObject,
        kernel: &mut Kernel,
        loaded: &Loaded,
    ) -> Outcome<()> {
        for step in self.steps.iter().filter(|s| s.action.needs_loaded()) {
            // The loop's variables are evaluated against the object as it was loaded.
            let mut open = open.clone();
            self.each(subject, step, &applied.params, &mut open, &mut |open, values| {
                self.use_loaded(subject, open, kernel, loaded, &step.action, values)
            })?;
        }
        Ok(())
    }

    /// Whether anything remains to be done after load.
    pub fn has_steps_after_load(&self) -> bool {
        self.steps.iter().any(|s| s.action.needs_loaded())
    }

    fn params(
        &self,
        subject: Subject<'_>,
        open: &OpenObject,
        given: &[(String, String)],
    ) -> Outcome<Vec<(String, i128)>> {
        let mut params: Vec<(String, i128)> = Vec::new();
        for param in &self.params {
            let values = Values { params: &params, locals: Vec::new() };
            let value = match given.iter().find(|(name, _)| *name == param.name) {
                None => self.value(subject, open, &values, &param.default)?,
                Some((_, text)) => {
                    let line = param.default.line;
                    let expr = Expr::parse(text).map_err(|e| self.error(line, e.into()))?;
                    let formula = Formula { line, text: text.clone(), expr };
                    self.value(subject, open, &values, &formula)?
                }
            };
            params.push((param.name.clone(), value));
        }
        Ok(params)
    }

    /// Calls `act` for each combination of the step's loop variables for which its condition holds.
    fn each(
        &self,
        subject: Subject<'_>,
        step: &Step,
        params: &[(String, i128)],
        open: &mut OpenObject,
        act: &mut dyn FnMut(&mut OpenObject, &Values<'_>) -> Outcome<()>,
    ) -> Outcome<()> {
        let mut values = Values { params, locals: Vec::new() };
        let mut counts = Vec::new();
        for l in &step.each {
            let count = self.value(subject, open, &values, &l.count)?;
            counts.push(u64::try_from(count).unwrap_or(0));
        }
        let total = counts.iter().try_fold(1u64, |all, n| all.checked_mul(*n));
        let total = total
            .filter(|n| *n <= MAX_ITERATIONS)
            .ok_or_else(|| self.error(step.line, What::Iterations { max: MAX_ITERATIONS }))?;
        for at in 0..total {
            let mut rest = at;
            values.locals.clear();
            // The last variable changes fastest.
            for (l, count) in step.each.iter().zip(&counts).rev() {
                values.locals.push((l.var.clone(), i128::from(rest % count)));
                rest /= count;
            }
            if self.holds(subject, open, &values, &step.when)? {
                act(open, &values)?;
            }
        }
        Ok(())
    }

    fn holds(
        &self,
        subject: Subject<'_>,
        open: &OpenObject,
        values: &Values<'_>,
        when: &Option<Formula>,
    ) -> Outcome<bool> {
        match when {
            None => Ok(true),
            Some(formula) => Ok(self.value(subject, open, values, formula)? != 0),
        }
    }

    fn value(
        &self,
        subject: Subject<'_>,
        open: &OpenObject,
        values: &Values<'_>,
        formula: &Formula,
    ) -> Outcome<i128> {
        let scope = Scope {
            machine: subject.machine,
            kernel: subject.kernel,
            object: open.object(),
            globals: &open.globals,
            params: values.params,
            locals: &values.locals,
        };
        formula.expr.value(&scope).map_err(|e| self.error(formula.line, e.into()))
    }

    fn change(
        &self,
        subject: Subject<'_>,
        open: &mut OpenObject,
        action: &Action,
        values: &Values<'_>,
    ) -> Outcome<()> {
        match action {
            Action::Require(condition, message) => {
                if self.value(subject, open, values, condition)? == 0 {
                    return Err(self.error(condition.line, What::Required(message.clone())));
                }
            }
            Action::Set(all) => {
                for assignment in all {
                    self.assign(subject, open, assignment, values)?;
                }
            }
            Action::Ops(pairs) => {
                for (member, formula) in pairs {
                    let value = self.value(subject, open, values, formula)?.to_string();
                    let object = open.object().clone();
                    let Some(table) = open.table_mut(subject.table) else { continue };
                    let set = table.set(&object.btf, member, &value);
                    set.map_err(|e| self.error(formula.line, e.into()))?;
                }
            }
            Action::Resize(pairs) => {
                for (name, formula) in pairs {
                    let len = self.count(subject, open, values, formula)?;
                    let resized = open.globals.resize_array(name, len);
                    resized.map_err(|e| self.error(formula.line, e.into()))?;
                }
            }
            Action::MaxEntries(pairs) => {
                for (map, formula) in pairs {
                    let entries = self.count(subject, open, values, formula)?;
                    let entries = u32::try_from(entries).unwrap_or(u32::MAX);
                    if !open.set_max_entries(map, entries) {
                        return Err(self.no_map(open.object(), formula.line, map));
                    }
                }
            }
            Action::Autoload(pairs) => {
                for (program, formula) in pairs {
                    let load = self.value(subject, open, values, formula)? != 0;
                    if !open.set_autoload(program, load) {
                        return Err(self.no_program(open.object(), formula.line, program, |_| true));
                    }
                }
            }
            Action::InnerMaps(_) | Action::Run { .. } => {}
        }
        Ok(())
    }

    fn assign(
        &self,
        subject: Subject<'_>,
        open: &mut OpenObject,
        assignment: &Assignment,
        values: &Values<'_>,
    ) -> Outcome<()> {
        let mut path = String::new();
        for part in &assignment.path {
            match part {
                PathPart::Text(text) => path.push_str(text),
                PathPart::Index(formula) => {
                    let index = self.value(subject, open, values, formula)?;
                    path.push_str(&format!("[{index}]"));
                }
            }
        }
        let value = self.value(subject, open, values, &assignment.value)?;
        match open.globals.set(&path, &value.to_string()) {
            Err(GlobalError::NoVariable { .. }) if assignment.optional => Ok(()),
            result => result.map_err(|e| self.error(assignment.value.line, e.into())),
        }
    }

    /// A formula that counts; what is below 0 counts as nothing, and is refused where that is no size.
    fn count(
        &self,
        subject: Subject<'_>,
        open: &OpenObject,
        values: &Values<'_>,
        formula: &Formula,
    ) -> Outcome<u64> {
        Ok(u64::try_from(self.value(subject, open, values, formula)?.max(0)).unwrap_or(u64::MAX))
    }

    fn use_loaded(
        &self,
        subject: Subject<'_>,
        open: &OpenObject,
        kernel: &mut Kernel,
        loaded: &Loaded,
        action: &Action,
        values: &Values<'_>,
    ) -> Outcome<()> {
        match action {
            Action::InnerMaps(pairs) => {
                for (map, formula) in pairs {
                    let slots = self.count(subject, open, values, formula)?;
                    self.fill_map_of_maps(kernel, loaded, map, slots, formula.line)?;
                }
                Ok(())
            }
            Action::Run { program, ctx, returns } => {
                let mut fields = Vec::new();
                for (field, formula) in ctx {
                    let value = self.value(subject, open, values, formula)?;
                    fields.push((field.as_str(), value, formula.line));
                }
                let wanted = self.value(subject, open, values, returns)?;
                self.run(kernel, loaded, program, &fields, wanted, returns.line)
            }
            _ => Ok(()),
        }
    }

    /// New maps like the template, in slots 0 and up.
    fn fill_map_of_maps(
        &self,
        kernel: &mut Kernel,
        loaded: &Loaded,
        map: &str,
        slots: u64,
        line: usize,
    ) -> Outcome<()> {
        let refuse = |why: String| self.error(line, What::Map { map: map.to_owned(), why });
        let Some(outer) = loaded.map(map) else {
            return Err(self.no_map(&loaded.object, line, map));
        };
        let template = kernel.vm.map(outer).and_then(|m| m.def.inner.clone());
        let template = template.ok_or_else(|| refuse("it does not hold maps".into()))?;
        for slot in 0..slots.min(u64::from(u32::MAX)) as u32 {
            let inner = kernel.vm.create_map(loaded.instance, &template);
            let inner = inner.map_err(|e| refuse(e.to_string()))?;
            let put = kernel.vm.map_set_inner(outer, &slot.to_ne_bytes(), inner);
            put.map_err(|errno| refuse(format!("slot {slot}: errno {errno}")))?;
        }
        Ok(())
    }

    fn run(
        &self,
        kernel: &mut Kernel,
        loaded: &Loaded,
        program: &str,
        fields: &[(&str, i128, usize)],
        wanted: i128,
        line: usize,
    ) -> Outcome<()> {
        let is_syscall = |kind: &ProgramKind| *kind == ProgramKind::Syscall;
        let found = loaded.programs().find(|(_, name, kind)| *name == program && is_syscall(kind));
        let Some((func, ..)) = found else {
            return Err(self.no_program(&loaded.object, line, program, is_syscall));
        };
        let mut ctx = self.context(&loaded.object, program, fields, line)?;
        let result = kernel.user(|k| k.run_syscall(loaded.instance, func, &mut ctx));
        let value = result.map_err(|fault| {
            let fault = Box::new(fault);
            self.error(line, What::Fault { program: program.to_owned(), fault })
        })?;
        if i128::from(value as i32) == wanted {
            return Ok(());
        }
        let shown: Vec<_> =
            fields.iter().map(|(name, value, _)| format!("{name} = {value}")).collect();
        let context =
            if shown.is_empty() { String::new() } else { format!(" (with {})", shown.join(", ")) };
        let wanted = wanted as i32;
        let program = program.to_owned();
        Err(self.error(line, What::Returned { program, value: value as i32, wanted, context }))
    }

    /// The bytes of a program's context struct.
    fn context(
        &self,
        object: &Object,
        program: &str,
        fields: &[(&str, i128, usize)],
        line: usize,
    ) -> Outcome<Vec<u8>> {
        if fields.is_empty() && context_type(object, program).is_none() {
            return Ok(Vec::new());
        }
        let no_context = || self.error(line, What::NoContext { program: program.to_owned() });
        let ty = context_type(object, program).ok_or_else(no_context)?;
        let size = object.btf.size_of(ty).ok().filter(|s| *s <= 1 << 16).ok_or_else(no_context)?;
        let mut bytes = vec![0; size as usize];
        for (field, value, line) in fields {
            let refuse = |why: String| {
                let (program, field) = (program.to_owned(), (*field).to_owned());
                self.error(*line, What::Context { program, field, why })
            };
            let place =
                object.btf.path(ty, &format!(".{field}")).map_err(|e| refuse(e.to_string()))?;
            let value = knob::parse_value(&object.btf, place.ty, &value.to_string());
            let value = value.map_err(|e| refuse(e.to_string()))?;
            let at = place.byte_off() as usize;
            let slot = bytes.get_mut(at..at + value.len());
            slot.ok_or_else(|| refuse("it lies outside the struct".into()))?
                .copy_from_slice(&value);
        }
        Ok(bytes)
    }

    fn no_map(&self, object: &Object, line: usize, name: &str) -> RecipeError {
        let present = object.maps.iter().map(|m| m.name.as_str());
        self.missing("map", line, name, present)
    }

    fn no_program(
        &self,
        object: &Object,
        line: usize,
        name: &str,
        fits: impl Fn(&ProgramKind) -> bool,
    ) -> RecipeError {
        let present =
            object.programs().filter(|(_, _, k)| fits(k)).map(|(_, f, _)| f.name.as_str());
        self.missing("such program", line, name, present)
    }

    fn missing<'a>(
        &self,
        what: &'static str,
        line: usize,
        name: &str,
        present: impl Iterator<Item = &'a str>,
    ) -> RecipeError {
        let present: Vec<_> = present.collect();
        let present = if present.is_empty() { "none".into() } else { present.join(", ") };
        self.error(line, What::Missing { what, name: name.to_owned(), present })
    }
}

impl RecipeError {
    /// The part of the simulation that a program asked for and that does not exist.
    pub fn unmodelled(&self) -> Option<&str> {
        match &*self.what {
            What::Fault { fault, .. } => match Fault::kind(fault) {
                FaultKind::Unmodelled { what } => Some(what),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The struct that a program's only argument points to.
fn context_type(object: &Object, program: &str) -> Option<TypeId> {
    let btf = &object.btf;
    let function = &object.functions[object.function(program)?];
    let proto = btf.ty(function.btf_func?).ok()?.target()?;
    let pointer = btf.resolve(btf.params(proto).next()?.ty).ok()?;
    if btf.kind(pointer) != Kind::Ptr {
        return None;
    }
    let target = btf.resolve(btf.ty(pointer).ok()?.target()?).ok()?;
    (btf.kind(target) == Kind::Struct).then_some(target)
}
