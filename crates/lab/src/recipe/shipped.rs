// SPDX-License-Identifier: GPL-2.0-only
//! The recipes that ship with the program: files under `recipes/`, embedded.
//!
//! Owns: nothing but the lists. That each loads, and that the lists are complete, are tests.

use super::Recipe;

macro_rules! embed {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../recipes/", $name, ".toml")))),*]
    };
}

/// Every shipped recipe: its name and its file's text.
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

/// Steps that several recipes include.
fn shared() -> &'static [(&'static str, &'static str)] {
    embed!["shared/arena", "shared/core-types"]
}

/// The text that `include` means.
pub(super) fn text(name: &str) -> Option<&'static str> {
    let (_, text) = shipped().iter().chain(shared()).find(|(n, _)| *n == name)?;
    Some(text)
}

/// Its file, for messages.
pub(super) fn file(name: &str) -> String {
    format!("recipes/{name}.toml")
}

/// The shipped recipe of that name, with its text.
pub fn find(name: &str) -> Option<(Recipe, &'static str)> {
    let (name, text) = shipped().iter().find(|(n, _)| *n == name)?;
    Some((parse(name, text), text))
}

/// The shipped recipe for a scheduler whose ops have that name.
pub fn for_ops(ops: &str) -> Option<(Recipe, &'static str)> {
    // One that does not even mention the name need not be read: a run with a recipe of none would read them all.
    let mut candidates = shipped().iter().filter(|(_, text)| text.contains(ops));
    candidates.find_map(|(name, text)| {
        let recipe = parse(name, text);
        (recipe.ops.as_deref() == Some(ops)).then_some((recipe, *text))
    })
}

fn parse(name: &str, text: &str) -> Recipe {
    // An embedded recipe is part of the program; that it loads is a test of this crate.
    Recipe::parse(&file(name), text).expect("an embedded recipe is correct")
}
