// SPDX-License-Identifier: GPL-2.0-only
//! Steps on an open object: globals, the ops table, sizes, which programs are loaded.
//!
//! Owns: nothing that outlives the step. Does not: touch a kernel.

use scxlab_loader::link::{OpenObject, TableError};

use super::super::expr::path_text;
use super::super::{Action, Assignment, Formula, RecipeError};
use super::{ObjectState, RecipeExecution, RecipeResult, no_map, no_program};

impl RecipeExecution<'_> {
    pub(super) fn change(&mut self, open: &mut OpenObject, action: &Action) -> RecipeResult<()> {
        match action {
            Action::Set(all) => all.iter().try_for_each(|a| self.set_open(open, a)),
            Action::Ops(pairs) => pairs.iter().try_for_each(|(m, f)| self.set_ops(open, m, f)),
            Action::Resize(pairs) => pairs.iter().try_for_each(|(name, formula)| {
                let len = self.count(&ObjectState::Open(open), formula)?;
                let resized = open.globals.resize_array(&name.name, len);
                resized.map_err(|e| RecipeError::at(&formula.place, e.into()))
            }),
            Action::MaxEntries(pairs) => pairs.iter().try_for_each(|(map, formula)| {
                let entries = self.count(&ObjectState::Open(open), formula)?;
                let entries = u32::try_from(entries).unwrap_or(u32::MAX);
                let found = open.set_max_entries(&map.name, entries);
                found.then_some(()).ok_or_else(|| no_map(open.object(), &formula.place, &map.name))
            }),
            Action::Autoload(pairs) => pairs.iter().try_for_each(|(program, formula)| {
                let load = self.value(&ObjectState::Open(open), formula)? != 0;
                let found = open.set_autoload(&program.name, load);
                let missing = || no_program(open.object(), &formula.place, &program.name, |_| true);
                found.then_some(()).ok_or_else(missing)
            }),
            // The caller handles `require` and `let`. The remaining actions need a loaded object.
            _ => Ok(()),
        }
    }

    fn set_open(&self, open: &mut OpenObject, assignment: &Assignment) -> RecipeResult<()> {
        let Assignment { target, value: formula } = assignment;
        let side = ObjectState::Open(open);
        let path = path_text(&target.name, &self.steps(&side, target, &formula.place)?);
        let value = self.value(&side, formula)?;
        let set = open.globals.set(&path, &value.to_string());
        set.map_err(|e| RecipeError::at(&formula.place, e.into()))
    }

    /// Sets a member of the ops table. A recipe can only remove a callback, by setting its member
    /// to 0, as a frontend would.
    fn set_ops(&self, open: &mut OpenObject, member: &str, formula: &Formula) -> RecipeResult<()> {
        let value = self.value(&ObjectState::Open(open), formula)?;
        let object = open.object().clone();
        let Some(table) = open.table_mut(self.subject.table) else { return Ok(()) };
        let set = match table.set(&object.btf, member, &value.to_string()) {
            Err(TableError::Callback { .. }) if value == 0 => table.set_callback(member, None),
            result => result,
        };
        set.map_err(|e| RecipeError::at(&formula.place, e.into()))
    }
}
