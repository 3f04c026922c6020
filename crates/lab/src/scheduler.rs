// SPDX-License-Identifier: GPL-2.0-only
//! Naming a scheduler: `eevdf`, a shipped one, or an object file, each with knobs.
//!
//! Owns: the `NAME[,knob=value]...` form. Does not: read files; the caller supplies an object's bytes.

/// A scheduler as given with `-s`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerArg {
    /// The whole text.
    pub text: String,
    pub name: String,
    pub knobs: Vec<(String, String)>,
}

impl SchedulerArg {
    /// Splits `NAME[,knob=value]...`.
    pub fn parse(text: &str) -> Result<SchedulerArg, SchedulerArgError> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default().trim();
        if name.is_empty() {
            return Err(SchedulerArgError::NoName { text: text.into() });
        }
        let mut knobs = Vec::new();
        for part in parts {
            let Some((knob, value)) = part.split_once('=') else {
                return Err(SchedulerArgError::NoValue { text: text.into(), knob: part.into() });
            };
            knobs.push((knob.trim().to_owned(), value.trim().to_owned()));
        }
        Ok(SchedulerArg { text: text.into(), name: name.into(), knobs })
    }

    /// The kernel's own class, with nothing loaded.
    pub fn is_default_class(&self) -> bool {
        self.name == DEFAULT_CLASS
    }

    /// Whether it names a file rather than something shipped.
    pub fn is_path(&self) -> bool {
        self.name.contains('/') || self.name.ends_with(".o")
    }
}

/// What the default class is called.
pub const DEFAULT_CLASS: &str = "eevdf";

/// A scheduler argument that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchedulerArgError {
    #[error("scheduler \"{text}\" has no name; give eevdf, a shipped scheduler or an object file")]
    NoName { text: String },
    #[error("scheduler \"{text}\": knob \"{knob}\" has no value; write {knob}=VALUE")]
    NoValue { text: String, knob: String },
}
