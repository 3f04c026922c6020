// SPDX-License-Identifier: GPL-2.0-only
//! Checks on figures. A check bounds the value of a metric in the runs of one of a claim's commands
//! (a variant), or the ratio of this value to another variant's value under the same seed.

use indexmap::IndexMap;
use scxlab_lab::metric;
use serde::Deserialize;

use crate::figures::{between, figure};
use crate::reading::{Quantity, Reading, derived};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// A name from `docs/reference/metrics.md`, or one that `reading.rs` derives.
    metric: String,
    /// Cgroup whose metric is checked.
    cgroup: Option<String>,
    /// Tasks whose metric is checked: all whose names begin with this text.
    task: Option<String>,
    /// Metric that is subtracted from `metric`.
    less: Option<String>,
    /// Metric by which the value is divided.
    per: Option<String>,
    /// Variant that is checked; by default every variant, except `to` if it is given.
    of: Option<String>,
    /// Variant whose value is the base of a ratio. If it is given, the bounds apply to the ratio.
    to: Option<String>,
    at_least: Option<f64>,
    at_most: Option<f64>,
}

impl Check {
    pub fn quantity(&self) -> Quantity<'_> {
        Quantity {
            metric: &self.metric,
            cgroup: self.cgroup.as_deref(),
            task: self.task.as_deref(),
            less: self.less.as_deref(),
            per: self.per.as_deref(),
        }
    }

    /// Tells whether the check has no bounds. Such a check only shows a figure beside the checked
    /// figures.
    pub fn is_shown_only(&self) -> bool {
        self.at_least.is_none() && self.at_most.is_none()
    }

    pub fn validate(&self, variants: &IndexMap<String, String>) -> Result<(), String> {
        for name in [&self.of, &self.to].into_iter().flatten() {
            if !variants.contains_key(name) {
                return Err(format!("{}: there is no variant {name:?}", self.metric));
            }
        }
        if self.cgroup.is_some() && self.task.is_some() {
            return Err(format!("{}: of a cgroup or of tasks?", self.metric));
        }
        let names = [Some(&self.metric), self.less.as_ref(), self.per.as_ref()];
        let whole_run = self.cgroup.is_none() && self.task.is_none();
        for name in names.into_iter().flatten().filter(|_| whole_run) {
            if derived(name) == name && metric::find(name).is_none() {
                return Err(format!("{name}: no metric has this name"));
            }
        }
        Ok(())
    }

    pub fn values(&self, reading: &Reading) -> Vec<Option<f64>> {
        reading.values(&self.quantity())
    }

    pub fn unit<'a>(&self, reading: &'a Reading) -> &'a str {
        reading.unit(&self.quantity())
    }

    /// Returns the violations of the check on one machine, each with the variant's name and the
    /// seed.
    pub fn broken(&self, columns: &IndexMap<&str, &Reading>) -> Vec<String> {
        if self.is_shown_only() {
            return Vec::new();
        }
        let is_checked = |name: &&str| match &self.of {
            Some(of) => of == name,
            None => self.to.as_deref() != Some(*name),
        };
        let mut broken = Vec::new();
        for name in columns.keys().copied().filter(is_checked) {
            let values = self.values(columns[name]);
            let bases = self.to.as_deref().map(|to| self.values(columns[to]));
            for (at, value) in values.iter().enumerate() {
                let base = bases.as_ref().map_or(Some(1.0), |bases| bases[at]);
                let why = self.fault(*value, base);
                broken.extend(why.map(|why| format!("{name}, seed {}: {why}", at + 1)));
            }
        }
        broken
    }

    /// Returns the violation for one seed. A missing value fails every check, and so does a ratio
    /// to 0.
    fn fault(&self, value: Option<f64>, base: Option<f64>) -> Option<String> {
        let head = self.head();
        let (Some(value), Some(base)) = (value, base) else {
            return Some(format!("{head} is not measured"));
        };
        let low = self.at_least.is_none_or(|low| value >= low * base);
        let high = self.at_most.is_none_or(|high| value <= high * base);
        if low && high && base > 0.0 {
            return None;
        }
        let than = if self.to.is_some() { format!(" beside {base}") } else { String::new() };
        Some(format!("{head} is {value}{than}; checked: {}", self.bound()))
    }

    /// Returns the heading of the check's column in the claim's table.
    pub fn head(&self) -> String {
        let quantity = self.quantity();
        if let Some(group) = quantity.cgroup.or(quantity.task) {
            return format!("{}, `{group}`", derived(&self.metric));
        }
        let mut head = match derived(&self.metric) {
            name if name == self.metric => format!("`{name}`"),
            words => words.to_owned(),
        };
        for (word, part) in [("less", quantity.less), ("per", quantity.per)] {
            head += &part.map_or(String::new(), |part| format!(" {word} `{part}`"));
        }
        head
    }

    /// Returns the check in words.
    pub fn bound(&self) -> String {
        let show = |bound: f64| match self.to {
            Some(_) => format!("{bound}"),
            None => figure(bound, self.quantity().unit()),
        };
        let bound = match (self.at_least, self.at_most) {
            (Some(low), Some(high)) => between(&show(low), &show(high)),
            (None, Some(0.0)) => show(0.0),
            (Some(low), None) => format!("at least {}", show(low)),
            (None, Some(high)) => format!("at most {}", show(high)),
            (None, None) => String::new(),
        };
        let of = self.of.as_deref().unwrap_or(if self.to.is_some() { "others" } else { "all" });
        let times = self.to.as_ref().map_or(String::new(), |to| format!(" times {to}"));
        format!("{of}: {bound}{times}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Check {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_bound_is_of_each_seed() {
        let check = check("metric = 'kicks'\nof = 'a'\nat_most = 3");
        let held = Reading::made("kicks", &[Some(1.0), Some(3.0)]);
        let broken = Reading::made("kicks", &[Some(1.0), Some(4.0)]);
        assert!(check.broken(&[("a", &held)].into()).is_empty());
        let why = check.broken(&[("a", &broken)].into());
        assert_eq!(why, ["a, seed 2: `kicks` is 4; checked: a: at most 3"]);
    }

    #[test]
    fn a_ratio_is_of_runs_of_one_seed() {
        let check = check("metric = 'kicks'\nto = 'a'\nat_least = 2");
        let base = Reading::made("kicks", &[Some(1.0), Some(10.0)]);
        let other = Reading::made("kicks", &[Some(2.0), Some(19.0)]);
        let columns = [("a", &base), ("b", &other)].into();
        let why = check.broken(&columns);
        assert_eq!(
            why,
            ["b, seed 2: `kicks` is 19 beside 10; checked: others: at least 2 times a"]
        );
    }

    #[test]
    fn nothing_is_no_evidence() {
        let check = check("metric = 'kicks'\nof = 'b'\nto = 'a'\nat_most = 2");
        let none = Reading::made("kicks", &[None]);
        let zero = Reading::made("kicks", &[Some(0.0)]);
        for base in [&none, &zero] {
            assert_eq!(check.broken(&[("a", base), ("b", &zero)].into()).len(), 1);
        }
    }
}
