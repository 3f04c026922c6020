// SPDX-License-Identifier: GPL-2.0-only
//! Preparation of a scheduler, once for all runs: opens its object, applies its recipe, sets its
//! knobs.
//!
//! Owns: the order of the steps (constants, recipe, knobs), and the choice of the struct_ops table
//! to attach.
//! Does not: resolve the user's names (see `input`).

#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use indexmap::IndexMap;
use scxlab_loader::btf::Btf;
use scxlab_loader::btf::essential_name;
use scxlab_loader::link::{GlobalError, OpenObject};
use scxlab_loader::object::{Object, ObjectError};
use scxlab_machine::Machine;
use scxlab_machine::hash::hash_bytes;

use crate::input::{ObjectInput, RecipeInput, SchedulerInput};
use crate::recipe::{self, Applied, Recipe, RecipeError, Subject};
use crate::scheduler::SchedulerArg;
use crate::sim::kernel_types;

/// A prepared scheduler, from which runs can start.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The scheduler as the user named it.
    pub input: SchedulerInput,
    /// The scheduler's object; None if only the default class runs.
    pub object: Option<PreparedObject>,
}

/// An object as its frontend would hand it to the kernel.
#[derive(Clone, Debug)]
pub struct PreparedObject {
    pub open: OpenObject,
    /// The object file's contents, for targets that have their own loader.
    pub bytes: Bytes,
    /// Name of the struct_ops table to attach.
    pub table: String,
    /// The object's other tables, if `ops=` chose none.
    unasked: Vec<String>,
    /// Member `name` of the attached struct_ops table, by which a shipped recipe is chosen.
    pub ops_name: String,
    /// Hash of the object file's bytes.
    pub hash: u64,
    pub recipe: Option<PreparedRecipe>,
    /// All knobs with their values.
    pub knobs: IndexMap<String, String>,
}

#[derive(Clone, Debug)]
pub struct PreparedRecipe {
    pub recipe: Arc<Recipe>,
    /// Names that the recipe would set up, but that this version of the object does not have.
    pub absent: Vec<String>,
    pub applied: Applied,
    /// Hash of the recipe's text.
    pub hash: u64,
}

/// Reason why a scheduler cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error("object \"{object}\" has no struct sched_ext_ops: it is no scheduler")]
    NoScheduler { object: String },
    #[error("object \"{object}\" has no ops `{wanted}`; it has {present}")]
    NoTable { object: String, wanted: String, present: String },
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    #[error("scheduler \"{label}\": {error}{also}")]
    Knob { label: String, error: Box<GlobalError>, also: String },
}

/// Type of the struct_ops tables that are schedulers.
const OPS_TYPE: &str = "sched_ext_ops";
/// Variant of `sched_ext_ops` in which CPUs are numbered by topology (cids).
const OPS_CID_TYPE: &str = "sched_ext_ops_cid";

impl Prepared {
    /// Opens a scheduler's object and prepares it for a machine and a kernel.
    pub fn new(
        input: &SchedulerInput,
        machine: &Machine,
        kernel: &Btf,
    ) -> Result<Prepared, PrepareError> {
        let object = input.object.as_ref();
        let object = object.map(|o| PreparedObject::new(&input.arg, o, machine, kernel));
        Ok(Prepared { input: input.clone(), object: object.transpose()? })
    }

    /// Prepares a scheduler for a machine and the simulated kernel.
    pub fn simulated(input: &SchedulerInput, machine: &Machine) -> Result<Prepared, PrepareError> {
        Prepared::new(input, machine, &kernel_types())
    }

    /// Returns the scheduler as given with `-s`.
    pub fn label(&self) -> &str {
        &self.input.arg.text
    }
}

impl PreparedObject {
    fn new(
        arg: &SchedulerArg,
        input: &ObjectInput,
        machine: &Machine,
        kernel: &Btf,
    ) -> Result<PreparedObject, PrepareError> {
        let object = Arc::new(Object::parse(&input.bytes, &input.name)?);
        let mut open = OpenObject::new(object.clone());
        // Code that is kept pays for a thread that compiles it early. Without a store the run
        // compiles it itself, so that tests know when functions are compiled.
        if let Some(store) = &input.code_store {
            open.keep_code_in(Arc::clone(store));
        }
        open.globals.fill_enum_globals("__", kernel);
        let (table, other_tables) = choose_table(&object, arg.ops.as_deref())?;
        let ops_name = ops_name(&open, &table);
        let subject = Subject { machine, kernel, table: &table };
        let recipe = choose_recipe(&input.recipe, &ops_name)?;
        let params = |knob: &str| {
            recipe.as_ref().is_some_and(|(r, _)| r.params.iter().any(|p| p.name == knob))
        };
        let (given, knobs): (Vec<_>, Vec<_>) =
            arg.knobs.iter().cloned().partition(|(k, _)| params(k));
        // Set the knobs before the recipe, so that the recipe's formulas see the user's values, and
        // again after the recipe, so that the user's values win. A knob may exist only once the
        // recipe has resized an array. Setting such a knob fails here and succeeds below.
        for (knob, value) in &knobs {
            let _ = open.globals.set(knob, value);
        }
        let recipe = match recipe {
            None => None,
            Some((mut recipe, hash)) => {
                let absent = recipe.fit(&object);
                let applied = recipe.prepare(subject, &mut open, &given)?;
                Some(PreparedRecipe { recipe: Arc::new(recipe), absent, applied, hash })
            }
        };
        for (knob, value) in &knobs {
            let set = open.globals.set(knob, value);
            set.map_err(|error| knob_error(arg, error, recipe.as_ref()))?;
        }
        let knobs = open.globals.knobs().into_iter().map(|k| (k.name, k.default)).collect();
        let (bytes, hash) = (input.bytes.clone(), hash_bytes(&input.bytes));
        let unasked = if arg.ops.is_some() { Vec::new() } else { other_tables };
        Ok(PreparedObject { open, bytes, table, unasked, ops_name, hash, recipe, knobs })
    }

    /// Returns notes on the preparation for readers of the results.
    pub fn notes(&self) -> Vec<String> {
        let recipe = self.recipe.iter().filter(|r| !r.absent.is_empty());
        let note = |r: &PreparedRecipe| {
            let (recipe, object) = (&r.recipe.name, &self.open.object().name);
            format!("{recipe} skips what \"{object}\" does not have: {}", r.absent.join(", "))
        };
        let mut notes: Vec<String> = recipe.map(note).collect();
        if !self.unasked.is_empty() {
            notes.push(format!(
                "object \"{}\" has several ops, of which the first, {}, runs; ops= selects another: {}",
                self.open.object().name,
                self.table,
                self.unasked.join(", ")
            ));
        }
        notes
    }
}

/// Builds the error for a knob that cannot be set. The error lists the recipe's parameters, because
/// the user may have misspelt one of them.
fn knob_error(
    arg: &SchedulerArg,
    error: GlobalError,
    recipe: Option<&PreparedRecipe>,
) -> PrepareError {
    let params = recipe.map_or(&[][..], |r| &r.recipe.params);
    let also = match &error {
        GlobalError::NoVariable { .. } if !params.is_empty() => {
            let names: Vec<_> = params.iter().map(|p| p.name.as_str()).collect();
            format!("; its recipe takes {}", names.join(", "))
        }
        _ => String::new(),
    };
    PrepareError::Knob { label: arg.text.clone(), error: Box::new(error), also }
}

/// Returns the ops to run, which are the first unless `wanted` names others, and all other ones.
fn choose_table(
    object: &Object,
    wanted: Option<&str>,
) -> Result<(String, Vec<String>), PrepareError> {
    let is_ops = |name: &str| matches!(essential_name(name), OPS_TYPE | OPS_CID_TYPE);
    let all: Vec<&str> = object
        .struct_ops
        .iter()
        .filter(|t| is_ops(&t.type_name))
        .map(|t| t.name.as_str())
        .collect();
    let Some(first) = all.first() else {
        return Err(PrepareError::NoScheduler { object: object.name.clone() });
    };
    let chosen = wanted.unwrap_or(first);
    if !all.contains(&chosen) {
        return Err(PrepareError::NoTable {
            object: object.name.clone(),
            wanted: chosen.to_owned(),
            present: all.join(", "),
        });
    }
    let others = all.iter().filter(|name| **name != chosen).map(|name| (*name).to_owned());
    Ok((chosen.to_owned(), others.collect()))
}

fn ops_name(open: &OpenObject, table: &str) -> String {
    let btf = &open.object().btf;
    let found = open.tables.iter().find(|t| t.name() == table);
    let text = found.and_then(|t| t.get(btf, "name").ok()).unwrap_or_default();
    text.trim_matches('"').to_owned()
}

fn choose_recipe(choice: &RecipeInput, ops: &str) -> Result<Option<(Recipe, u64)>, PrepareError> {
    Ok(match choice {
        RecipeInput::None => None,
        RecipeInput::Auto => recipe::for_ops(ops).map(|(r, text)| (r, hash_bytes(text.as_bytes()))),
        RecipeInput::Text { name, text } => {
            Some((Recipe::parse(name, text)?, hash_bytes(text.as_bytes())))
        }
    })
}
