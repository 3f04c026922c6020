// SPDX-License-Identifier: GPL-2.0-only
//! The `-s` argument: `eevdf`, a shipped scheduler, or an object file, each with knobs. The knobs
//! of `eevdf` are the tunables of a running kernel.
//!
//! Owns: the `NAME[,knob=value]...` syntax. Does not: read files (see `input`).

#[cfg(test)]
mod tests;

pub use scxlab_fair::{TUNABLES, Tunable};
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
        if arg.is_default_class() {
            arg.check_tuning()?;
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

    /// Returns the tunables of the default class that the argument sets, with their values.
    pub fn tuning(&self) -> Vec<(&'static Tunable, u64)> {
        let knobs = self.knobs.iter().filter(|_| self.is_default_class());
        knobs.filter_map(|(knob, value)| Some((tunable(knob)?, value.parse().ok()?))).collect()
    }

    fn check_tuning(&self) -> Result<(), SchedulerArgError> {
        let text = || self.text.clone();
        if self.recipe.is_some() || self.ops.is_some() {
            return Err(SchedulerArgError::DefaultClass { text: text() });
        }
        for (knob, value) in &self.knobs {
            let Some(tunable) = tunable(knob) else {
                let names: Vec<&str> = TUNABLES.iter().map(|tunable| tunable.name).collect();
                return Err(SchedulerArgError::NoTunable {
                    text: text(),
                    knob: knob.clone(),
                    known: names.join(", "),
                });
            };
            let allowed = tunable.min..=tunable.max;
            if !value.parse().is_ok_and(|value: u64| allowed.contains(&value)) {
                return Err(SchedulerArgError::TunableValue {
                    text: text(),
                    knob: knob.clone(),
                    value: value.clone(),
                    min: tunable.min,
                    max: tunable.max,
                });
            }
        }
        Ok(())
    }

    /// Returns the short form for tables and file names: a path without its folder and endings.
    pub fn short(&self) -> String {
        let (name, rest) = self.text.split_at(self.text.find(',').unwrap_or(self.text.len()));
        let base = name.trim().rsplit('/').next().unwrap_or(name);
        let base = base.strip_suffix(".o").unwrap_or(base);
        format!("{}{rest}", base.strip_suffix(".bpf").unwrap_or(base))
    }
}

fn tunable(name: &str) -> Option<&'static Tunable> {
    TUNABLES.iter().find(|tunable| tunable.name == name)
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
    #[error("scheduler \"{text}\": the default class is not a BPF object; it has no recipe or ops")]
    DefaultClass { text: String },
    #[error("scheduler \"{text}\": the default class has no tunable \"{knob}\"; it has {known}")]
    NoTunable { text: String, knob: String, known: String },
    #[error("scheduler \"{text}\": {knob} is a number from {min} to {max}, not \"{value}\"")]
    TunableValue { text: String, knob: String, value: String, min: u64, max: u64 },
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
