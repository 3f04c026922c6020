// SPDX-License-Identifier: GPL-2.0-only
//! A claim: a sentence, the commands whose results show it, and checks.

use std::path::Path;

use indexmap::IndexMap;
use serde::Deserialize;

use crate::check::Check;
use crate::figures::range;
use crate::reading::Reading;

/// Number of seeds; runs use seeds 1 to this one.
pub const SEEDS: usize = 5;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// One sentence, which may use the variants' names.
    pub claim: String,
    /// Arguments of `scxlab run` that all variants share.
    #[serde(default)]
    pub run: String,
    /// Arguments of `scxlab run` that differ, by variant name.
    pub variants: IndexMap<String, String>,
    pub machines: Vec<String>,
    #[serde(rename = "check")]
    pub checks: Vec<Check>,
}

impl Claim {
    pub fn parse(text: &str) -> Result<Claim, String> {
        let claim: Claim = toml::from_str(text).map_err(|e| e.to_string())?;
        let mut machines = claim.machines.clone();
        machines.sort();
        machines.dedup();
        if machines.len() < 2 {
            return Err("a claim is about at least two machines".into());
        }
        if claim.checks.iter().all(Check::is_shown_only) {
            return Err("nothing is checked".into());
        }
        for check in &claim.checks {
            check.validate(&claim.variants)?;
        }
        Ok(claim)
    }

    /// Returns the commands, machine by machine and variant by variant.
    pub fn commands(&self) -> Vec<Vec<String>> {
        let one = |machine: &String, variant: &String| {
            let text = format!("run {variant} {} -m {machine} -n {SEEDS}", self.run);
            text.split_whitespace().map(str::to_owned).collect()
        };
        let of = |machine| self.variants.values().map(move |variant| one(machine, variant));
        self.machines.iter().flat_map(of).collect()
    }

    /// Tells whether the claim is measured in virtual machines, which takes minutes.
    pub fn is_live(&self) -> bool {
        self.run.contains("--on vm")
    }

    /// Returns a file below `build/` that a command needs and that has not been built.
    pub fn missing(&self, root: &Path) -> Option<String> {
        let commands = self.commands();
        let files = commands.iter().flatten().filter_map(|word| word.split(',').next());
        let missing = |file: &&str| file.starts_with("build/") && !root.join(file).exists();
        files.filter(missing).map(str::to_owned).next()
    }

    /// Returns each machine with the results of the variants on it.
    fn by_machine<'a>(
        &'a self,
        readings: &'a [Reading],
    ) -> impl Iterator<Item = (&'a String, &'a [Reading])> {
        self.machines.iter().zip(readings.chunks(self.variants.len()))
    }

    /// Returns the violations, each with its machine.
    pub fn broken(&self, readings: &[Reading]) -> Vec<String> {
        let mut broken = Vec::new();
        for (machine, readings) in self.by_machine(readings) {
            let names = self.variants.keys().map(String::as_str);
            let columns: IndexMap<&str, &Reading> = names.zip(readings).collect();
            for check in &self.checks {
                let why = check.broken(&columns);
                broken.extend(why.into_iter().map(|why| format!("on {machine}, {why}")));
            }
        }
        broken
    }

    /// Returns the text that a page must have between the claim's markers, or an error if a figure
    /// cannot be shown.
    pub fn table(&self, readings: &[Reading]) -> Result<String, String> {
        if let Some(fault) = readings.iter().find_map(Reading::fault) {
            return Err(fault);
        }
        let mut columns: Vec<&Check> = Vec::new();
        for check in &self.checks {
            if !columns.iter().any(|c| c.quantity() == check.quantity()) {
                columns.push(check);
            }
        }
        let heads: Vec<String> = columns.iter().map(|c| c.head()).collect();
        let mut text = format!("**{}**\n\n", self.claim.trim_end());
        text += &format!("| | | {} |\n", heads.join(" | "));
        text += &format!("|---|---|{}\n", "---|".repeat(columns.len()));
        for (machine, readings) in self.by_machine(readings) {
            for (at, (name, reading)) in self.variants.keys().zip(readings).enumerate() {
                let machine = if at == 0 { machine } else { "" };
                let cells: Vec<String> =
                    columns.iter().map(|c| range(&c.values(reading), c.unit(reading))).collect();
                text += &format!("| {machine} | {name} | {} |\n", cells.join(" | "));
            }
        }
        let bounds: Vec<String> = columns.iter().map(|c| self.bounds(c)).collect();
        text += &format!("| *checked* | | {} |\n\n{}\n", bounds.join(" | "), self.footer());
        Ok(text)
    }

    /// Returns, in words, the bounds of all checks that belong to a column of the table.
    fn bounds(&self, column: &Check) -> String {
        let same = self.checks.iter().filter(|c| c.quantity() == column.quantity());
        same.filter(|c| !c.is_shown_only()).map(Check::bound).collect::<Vec<_>>().join("; ")
    }

    /// Returns the line below the table: the command, and the arguments of the variants. A variant
    /// that has the name of its scheduler needs no explanation.
    fn footer(&self) -> String {
        let mut variants: Vec<String> = Vec::new();
        let mut first = "VARIANT";
        if let [only] = &self.variants.values().collect::<Vec<_>>()[..] {
            first = only;
        } else {
            let named = self.variants.iter().filter(|(name, args)| **args != format!("-s {name}"));
            variants.extend(named.map(|(name, args)| format!("; {name}: `{args}`")));
        }
        let run = format!("scxlab run {first} {} -m MACHINE -n {SEEDS}", self.run);
        let run = run.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("`{run}`{}. From the lowest to the highest seed.", variants.concat())
    }
}
