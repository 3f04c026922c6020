// SPDX-License-Identifier: GPL-2.0-only
//! Exclusions: combinations of values that a sweep leaves out.
//!
//! Owns: the form of `[[exclude]]`. A combination is left out if each named axis has one of the
//! values that the exclusion names for it. In a text, `*` stands for any text.

use indexmap::IndexMap;
use serde::Deserialize;
use wildmatch::WildMatch;

use crate::file::{knob_column, parameter_column};
use crate::value::OneOrMany;

/// `[[exclude]]` as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExcludeText {
    scheduler: Option<OneOrMany>,
    workload: Option<OneOrMany>,
    machine: Option<OneOrMany>,
    seed: Option<OneOrMany>,
    #[serde(default)]
    knob: IndexMap<String, OneOrMany>,
    #[serde(default)]
    parameter: IndexMap<String, OneOrMany>,
}

/// An exclusion: patterns for some axes.
#[derive(Clone, Debug)]
pub struct Exclude(Vec<(String, Vec<WildMatch>)>);

/// Name of the axis that the cells of one setup differ in.
const SEED: &str = "seed";

impl Exclude {
    /// Refuses an exclusion without axes, or with one that the sweep does not have.
    pub fn new(text: ExcludeText, axes: &[String]) -> Result<Exclude, String> {
        let plain = [
            ("scheduler", text.scheduler),
            ("workload", text.workload),
            ("machine", text.machine),
            (SEED, text.seed),
        ];
        let plain = plain.into_iter().filter_map(|(name, of)| Some((name.to_owned(), of?)));
        let knobs = text.knob.into_iter().map(|(name, of)| (knob_column(&name), of));
        let parameters = text.parameter.into_iter().map(|(name, of)| (parameter_column(&name), of));
        let mut all = Vec::new();
        for (axis, patterns) in plain.chain(knobs).chain(parameters) {
            if !axes.contains(&axis) {
                return Err(format!("the sweep has no axis {axis}; it has {}", axes.join(", ")));
            }
            let patterns = patterns.values().iter().map(|v| WildMatch::new(&v.to_string()));
            all.push((axis, patterns.collect()));
        }
        if all.is_empty() {
            return Err("it names no axis, so it would exclude all cells".to_owned());
        }
        Ok(Exclude(all))
    }

    /// Tells whether a setup has the excluded values, whatever its seed. `value` returns the
    /// setup's value on an axis.
    pub fn takes_setup(&self, value: &dyn Fn(&str) -> Option<String>) -> bool {
        self.0.iter().filter(|(axis, _)| axis != SEED).all(|(axis, patterns)| {
            value(axis).is_some_and(|text| patterns.iter().any(|p| p.matches(&text)))
        })
    }

    /// Tells whether the exclusion covers a seed of such a setup.
    pub fn takes_seed(&self, seed: u64) -> bool {
        let seed = seed.to_string();
        let mut patterns = self.0.iter().filter(|(axis, _)| axis == SEED);
        patterns.all(|(_, patterns)| patterns.iter().any(|p| p.matches(&seed)))
    }
}
