// SPDX-License-Identifier: GPL-2.0-only
//! Fitting of a recipe to an object of another version: removes optional parts that the object does
//! not have.
//!
//! Owns: the check whether an object has what a name with `?` refers to. Does not: distinguish
//! versions, because no object states its own.

use scxlab_loader::btf::{Btf, PathError, TypeId};
use scxlab_loader::object::Object;

use super::expr::{PathStep, StepExpr, Target, path_text};
use super::{Action, Assignment, Content, Named, Recipe, Run, Update, layout};

/// Names of the parts that were removed from the recipe, each once, in the recipe's order.
#[derive(Default)]
struct Absent(Vec<String>);

impl Recipe {
    /// Removes parts whose name ends in `?` and that the object does not have, and returns their
    /// names.
    pub fn fit(&mut self, object: &Object) -> Vec<String> {
        let mut absent = Absent::default();
        self.steps.retain_mut(|step| absent.keeps(&mut step.action, object));
        absent.0
    }
}

impl Absent {
    /// Removes the optional parts of an action that the object does not have; returns false if
    /// nothing is left of the action.
    fn keeps(&mut self, action: &mut Action, object: &Object) -> bool {
        match action {
            Action::Set(all) => {
                let was_empty = all.is_empty();
                self.assignments(all, |target| has_variable(object, target));
                was_empty || !all.is_empty()
            }
            Action::Resize(all) => self.pairs(all, |name| object.variable(name).is_some()),
            Action::MaxEntries(all) | Action::InnerMaps(all) => {
                self.pairs(all, |name| object.map(name).is_some())
            }
            Action::Autoload(all) => self.pairs(all, |name| has_program(object, name)),
            Action::Run(run) => {
                let kept = self.named(&run.program, |name| has_program(object, name));
                if kept {
                    self.context(run, object);
                }
                kept
            }
            Action::Update(update) => {
                let kept = self.named(&update.map, |name| object.map(name).is_some());
                if kept {
                    self.element(update, object);
                }
                kept
            }
            Action::Require(..) | Action::Let(_) | Action::Ops(_) | Action::Attach => true,
        }
    }

    fn context(&mut self, run: &mut Run, object: &Object) {
        if let Some(ty) = layout::context_type(object, &run.program.name) {
            self.assignments(&mut run.ctx, |field| has_field(&object.btf, ty, field));
        }
    }

    fn element(&mut self, update: &mut Update, object: &Object) {
        let Some(map) = object.map(&update.map.name).map(|at| &object.maps[at]) else { return };
        for (content, ty) in [(&mut update.key, map.key_ty), (&mut update.value, map.value_ty)] {
            if let (Content::Fields(fields), Some(ty)) = (content, ty) {
                self.assignments(fields, |field| has_field(&object.btf, ty, field));
            }
        }
    }

    fn assignments(&mut self, all: &mut Vec<Assignment>, has: impl Fn(&Target) -> bool) {
        all.retain(|a| !a.target.optional || has(&a.target) || self.is_absent(&shown(&a.target)));
    }

    fn pairs<T>(&mut self, all: &mut Vec<(Named, T)>, has: impl Fn(&str) -> bool) -> bool {
        let was_empty = all.is_empty();
        all.retain(|(named, _)| self.named(named, &has));
        was_empty || !all.is_empty()
    }

    fn named(&mut self, named: &Named, has: impl Fn(&str) -> bool) -> bool {
        !named.optional || has(&named.name) || self.is_absent(&named.name)
    }

    /// Records the name of a part that the object lacks. Returns false, because the part is not
    /// kept.
    fn is_absent(&mut self, name: &str) -> bool {
        if !self.0.iter().any(|known| known == name) {
            self.0.push(name.to_owned());
        }
        false
    }
}

fn has_program(object: &Object, name: &str) -> bool {
    object.programs().any(|(_, function, _)| function.name == name)
}

fn has_variable(object: &Object, target: &Target) -> bool {
    let Some((section, at)) = object.variable(&target.name) else { return false };
    leads_somewhere(&object.btf, object.sections[section].variables[at].ty, "", target)
}

fn has_field(btf: &Btf, ty: TypeId, target: &Target) -> bool {
    leads_somewhere(btf, ty, &format!(".{}", target.name), target)
}

/// Tells whether each field on the path to the target exists in the object's types. Array indices
/// are ignored.
fn leads_somewhere(btf: &Btf, ty: TypeId, from: &str, target: &Target) -> bool {
    let path = path_text(from, &steps(target));
    !matches!(btf.path(ty, &path), Err(PathError::NoField { .. }))
}

fn steps(target: &Target) -> Vec<PathStep> {
    let step = |step: &StepExpr| match step {
        StepExpr::Field(name) => PathStep::Field(name.clone()),
        StepExpr::Index(_) => PathStep::Index(0),
    };
    target.steps.iter().map(step).collect()
}

/// Formats the path to a target without its indices: `a.b` for `a[1].b`.
fn shown(target: &Target) -> String {
    let fields = |step: &StepExpr| match step {
        StepExpr::Field(name) => Some(PathStep::Field(name.clone())),
        StepExpr::Index(_) => None,
    };
    path_text(&target.name, &target.steps.iter().filter_map(fields).collect::<Vec<_>>())
}
