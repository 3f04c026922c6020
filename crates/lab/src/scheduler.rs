// SPDX-License-Identifier: GPL-2.0-only
//! The `-s` argument: `eevdf`, a shipped scheduler, or an object file, each with knobs.
//!
//! Owns: the `NAME[,knob=value]...` syntax. Does not: read files (see `input`).

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

/// A scheduler as given with `-s`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerArg {
    /// The whole argument.
    pub text: String,
    pub name: String,
    pub knobs: Vec<(String, String)>,
    /// `recipe=`: a shipped recipe's name, a path, or `none`.
    pub recipe: Option<String>,
    /// `ops=`: name of the struct_ops table to attach, for an object that has several such tables.
    pub ops: Option<String>,
}

impl SchedulerArg {
    /// Splits `NAME[,knob=value]...`. A comma inside double quotes belongs to the value.
    ///
    /// ```
    /// use scxlab_lab::scheduler::SchedulerArg;
    /// let arg = SchedulerArg::parse("vtime,slice_ns=3000000").unwrap();
    /// assert_eq!((arg.name.as_str(), arg.knobs.len()), ("vtime", 1));
    /// assert!(SchedulerArg::parse("vtime,slice_ns").is_err());
    /// ```
    pub fn parse(text: &str) -> Result<SchedulerArg, SchedulerArgError> {
        let mut parts = split_outside_quotes(text).into_iter();
        let name = parts.next().unwrap_or_default().trim();
        if name.is_empty() {
            return Err(SchedulerArgError::NoName { text: text.into() });
        }
        let mut arg = SchedulerArg {
            text: text.into(),
            name: name.into(),
            knobs: Vec::new(),
            recipe: None,
            ops: None,
        };
        for part in parts {
            arg.take(part)?;
        }
        if arg.is_default_class() && arg.has_settings() {
            return Err(SchedulerArgError::DefaultClass { text: text.into() });
        }
        Ok(arg)
    }

    fn take(&mut self, part: &str) -> Result<(), SchedulerArgError> {
        let Some((knob, value)) = part.split_once('=') else {
            return Err(SchedulerArgError::NoValue {
                text: self.text.clone(),
                knob: part.trim().into(),
            });
        };
        let (knob, value) = (knob.trim(), value.trim().to_owned());
        let twice = match knob {
            "recipe" => self.recipe.replace(value).is_some(),
            "ops" => self.ops.replace(value).is_some(),
            _ => {
                let twice = self.knobs.iter().any(|(name, _)| name == knob);
                self.knobs.push((knob.into(), value));
                twice
            }
        };
        if twice {
            return Err(SchedulerArgError::Twice { text: self.text.clone(), knob: knob.into() });
        }
        Ok(())
    }

    /// Tells whether the argument names the kernel's default class, for which nothing is loaded.
    pub fn is_default_class(&self) -> bool {
        self.name == DEFAULT_CLASS
    }

    fn has_settings(&self) -> bool {
        !self.knobs.is_empty() || self.recipe.is_some() || self.ops.is_some()
    }

    /// Returns the short form for tables and file names: a path without its folder and endings.
    pub fn short(&self) -> String {
        let (name, rest) = self.text.split_at(self.text.find(',').unwrap_or(self.text.len()));
        let base = name.trim().rsplit('/').next().unwrap_or(name);
        let base = base.strip_suffix(".o").unwrap_or(base);
        format!("{}{rest}", base.strip_suffix(".bpf").unwrap_or(base))
    }
}

/// Name of the default class in `-s`.
pub const DEFAULT_CLASS: &str = "eevdf";

/// Reason why a scheduler argument cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchedulerArgError {
    #[error("scheduler \"{text}\" has no name; give eevdf, a shipped scheduler or an object file")]
    NoName { text: String },
    #[error("scheduler \"{text}\": knob \"{knob}\" has no value; write {knob}=VALUE")]
    NoValue { text: String, knob: String },
    #[error("scheduler \"{text}\": knob \"{knob}\" is given twice")]
    Twice { text: String, knob: String },
    #[error("scheduler \"{text}\": the default class is not a BPF object; it has no knobs")]
    DefaultClass { text: String },
}

fn split_outside_quotes(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut quoted) = (0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            b',' if !quoted => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}
