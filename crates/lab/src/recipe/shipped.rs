// SPDX-License-Identifier: GPL-2.0-only
//! The recipes that ship with the program: files under `recipes/`, embedded.
//!
//! Owns: the list of recipes for users, and the list of recipes that only other recipes include.
//! Tests check that every recipe loads and that both lists are complete.

use super::Recipe;

macro_rules! embed {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../recipes/", $name, ".toml")))),*]
    };
}

/// Pairs of name and file contents of all shipped recipes.
pub fn shipped() -> &'static [(&'static str, &'static str)] {
    embed![
        "beerland",
        "bpfland",
        "cake",
        "central",
        "chaos",
        "cosmos",
        "credit",
        "fair",
        "flash",
        "flatcg",
        "flow",
        "flow-3",
        "forge",
        "lavd",
        "layered",
        "p2dq",
        "pair",
        "pandemonium",
        "rustland",
        "rusty",
        "tickless",
    ]
}

/// Recipes that other recipes include, and that users cannot name.
fn shared() -> &'static [(&'static str, &'static str)] {
    embed!["shared/arena", "shared/core-types"]
}

/// Returns the text of a recipe that `include` names.
pub(super) fn text(name: &str) -> Option<&'static str> {
    let (_, text) = shipped().iter().chain(shared()).find(|(n, _)| *n == name)?;
    Some(text)
}

/// Returns the file name of a recipe, for messages.
pub(super) fn file(name: &str) -> String {
    format!("recipes/{name}.toml")
}

/// Returns the shipped recipe of that name, with its text.
pub fn find(name: &str) -> Option<(Recipe, &'static str)> {
    let (name, text) = shipped().iter().find(|(n, _)| *n == name)?;
    Some((parse(name, text), text))
}

/// Returns the shipped recipe for a scheduler whose ops have that name.
pub fn for_ops(ops: &str) -> Option<(Recipe, &'static str)> {
    // Parse only texts that contain the name, so that a run of a scheduler without a recipe does
    // not parse all recipes.
    let mut candidates = shipped().iter().filter(|(_, text)| text.contains(ops));
    candidates.find_map(|(name, text)| {
        let recipe = parse(name, text);
        (recipe.ops.as_deref() == Some(ops)).then_some((recipe, *text))
    })
}

fn parse(name: &str, text: &str) -> Recipe {
    // An embedded recipe is part of the program; a test of this crate checks that it loads.
    Recipe::parse(&file(name), text).expect("an embedded recipe is correct")
}
