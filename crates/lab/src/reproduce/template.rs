// SPDX-License-Identifier: GPL-2.0-only
//! Texts with variables in braces, such as `chat,rooms={rooms}`.
//!
//! Owns: the replacement. `{{` and `}}` stand for braces, which the pattern of a thread's name in a
//! workload needs.

use indexmap::IndexMap;

/// Variables by name: keys of a row, the column, fitted parameters, and what rules add.
pub type Vars = IndexMap<String, String>;

/// Returns the text with each `{name}` replaced by the variable's value, or the name of a variable
/// that does not exist.
pub fn fill(text: &str, vars: &Vars) -> Result<String, String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        filled.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        let after = &rest[at + 1..];
        if after.starts_with(brace) {
            filled.push_str(brace);
            rest = &after[1..];
            continue;
        }
        let (name, tail) = after.split_once('}').ok_or_else(|| after.to_owned())?;
        if brace == "}" {
            return Err("}".to_owned());
        }
        filled.push_str(vars.get(name).ok_or_else(|| name.to_owned())?);
        rest = tail;
    }
    filled.push_str(rest);
    Ok(filled)
}
