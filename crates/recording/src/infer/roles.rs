// SPDX-License-Identifier: GPL-2.0-only
//! Roles: tasks that do the same.
//!
//! Owns: the rule. Tasks whose names differ only in digits have one role.

use std::collections::BTreeMap;

use crate::history::History;

/// Returns the name of a task's role.
pub fn name(comm: &str) -> String {
    let plain = comm.trim_end_matches(|c: char| c.is_ascii_digit() || "-._/:#".contains(c));
    let whole = if plain.is_empty() { comm } else { plain };
    whole.chars().map(|c| if c.is_ascii_digit() { 'N' } else { c }).collect()
}

/// Returns the number of each task's role.
pub fn roles(history: &History) -> Vec<u32> {
    let mut numbers: BTreeMap<String, u32> = BTreeMap::new();
    let role = |comm: &str| {
        let next = numbers.len() as u32;
        *numbers.entry(name(comm)).or_insert(next)
    };
    history.tasks.iter().map(|t| t.name.comm.as_str()).map(role).collect()
}
