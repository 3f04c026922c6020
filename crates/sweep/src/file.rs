// SPDX-License-Identifier: GPL-2.0-only
//! The file of a sweep (`sweep.toml`): axes, exclusions, metrics (`docs/guide/sweep.md`).
//!
//! Owns: the file's keys, the limits on its size, the variants of a scheduler or a workload that
//! its axes make. Does not: resolve names (see `plan.rs`).

use indexmap::IndexMap;
use scxlab_lab::metric;
use scxlab_lab::report::selection::Selection;
use scxlab_workload::program::TimeSpan;
use serde::Deserialize;

use crate::SweepError;
use crate::exclude::{Exclude, ExcludeText};
use crate::value::{OneOrMany, Value};

/// Upper bound on the cells of a sweep, counted before exclusions: a week of one CPU, if a cell
/// takes 0.3 s.
pub const CELLS_MAX: u64 = 2_000_000;

/// Upper bound on the pairs of a scheduler's variant and a machine, each of which is prepared
/// before work begins.
pub const PREPARED_MAX: u64 = 20_000;

/// A sweep as its file says.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Name of the file, for messages.
    pub name: String,
    pub schedulers: Vec<Variant>,
    pub workloads: Vec<Variant>,
    pub machines: Vec<String>,
    pub seeds: Vec<u64>,
    /// Replaces the duration of every workload.
    pub duration: Option<TimeSpan>,
    pub numa_balancing: Numa,
    /// Metrics of the table of results; the store keeps all.
    pub metrics: Selection,
    pub(crate) excludes: Vec<Exclude>,
}

/// A scheduler or a workload with one value for each of its knobs or parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// Name as in the file.
    pub name: String,
    pub settings: Vec<(String, Value)>,
}

impl Variant {
    /// Returns the form of `-s` and `-w`.
    pub fn arg(&self) -> String {
        let settings = self.settings.iter().map(|(name, value)| format!(",{name}={value}"));
        std::iter::once(self.name.clone()).chain(settings).collect()
    }

    pub fn setting(&self, name: &str) -> Option<&Value> {
        self.settings.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }
}

/// Automatic NUMA balancing, as `--numa-balancing` of `run` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Numa {
    Off,
    #[default]
    On,
    Ext,
    #[serde(rename = "ext-3.9")]
    ExtLinux39,
    #[serde(rename = "ext-v5")]
    ExtSeriesV5,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SweepText {
    scheduler: Vec<SchedulerText>,
    workload: Vec<WorkloadText>,
    machines: Vec<String>,
    seeds: Seeds,
    duration: Option<TimeSpan>,
    #[serde(default)]
    numa_balancing: Numa,
    metrics: Option<Vec<String>>,
    #[serde(default)]
    exclude: Vec<ExcludeText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SchedulerText {
    name: String,
    #[serde(default)]
    knobs: IndexMap<String, OneOrMany>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadText {
    name: String,
    #[serde(default)]
    parameters: IndexMap<String, OneOrMany>,
}

/// `seeds = 20` stands for 1 to 20.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a number of seeds, or a list of seeds, is needed")]
enum Seeds {
    Count(u64),
    List(Vec<u64>),
}

impl Sweep {
    /// Reads a sweep; `name` is the name of its file, for messages.
    pub fn parse(name: &str, text: &str) -> Result<Sweep, SweepError> {
        let wrong = |why: String| SweepError::File { file: name.to_owned(), why };
        let read: SweepText =
            toml::from_str(text).map_err(|e| wrong(e.to_string().trim_end().to_owned()))?;
        let schedulers = read.scheduler.into_iter().map(|s| (s.name, s.knobs)).collect();
        let schedulers = Axis { kind: "scheduler", setting: "knob", entries: schedulers };
        let workloads = read.workload.into_iter().map(|w| (w.name, w.parameters)).collect();
        let workloads = Axis { kind: "workload", setting: "parameter", entries: workloads };
        schedulers.check().and_then(|()| workloads.check()).map_err(&wrong)?;
        let (seeds, machines) = (&read.seeds, &read.machines);
        check_size(&schedulers, &workloads, machines, seeds).map_err(&wrong)?;
        if read.duration.is_some_and(|duration| duration.0 == 0) {
            return Err(wrong("the duration must be above 0".to_owned()));
        }
        let sweep = Sweep {
            name: name.to_owned(),
            schedulers: schedulers.variants(),
            workloads: workloads.variants(),
            machines: read.machines,
            seeds: read.seeds.list(),
            duration: read.duration,
            numa_balancing: read.numa_balancing,
            metrics: selection(read.metrics.as_deref()).map_err(&wrong)?,
            excludes: Vec::new(),
        };
        sweep.check_repetitions().map_err(&wrong)?;
        let names = sweep.axis_names();
        let exclude = |(at, text): (usize, ExcludeText)| {
            let why = |why| wrong(format!("[[exclude]] number {}: {why}", at + 1));
            Exclude::new(text, &names).map_err(why)
        };
        let excludes = read.exclude.into_iter().enumerate().map(exclude);
        Ok(Sweep { excludes: excludes.collect::<Result<_, _>>()?, ..sweep })
    }

    /// Returns the names of all axes, which are columns of the table of results.
    pub fn axis_names(&self) -> Vec<String> {
        let mut names = vec!["scheduler".to_owned()];
        names.extend(setting_names(&self.schedulers).map(|name| knob_column(&name)));
        names.push("workload".to_owned());
        names.extend(setting_names(&self.workloads).map(|name| parameter_column(&name)));
        names.extend(["machine".to_owned(), "seed".to_owned()]);
        names
    }

    fn check_repetitions(&self) -> Result<(), String> {
        let schedulers: Vec<String> = self.schedulers.iter().map(Variant::arg).collect();
        let workloads: Vec<String> = self.workloads.iter().map(Variant::arg).collect();
        let seeds: Vec<String> = self.seeds.iter().map(u64::to_string).collect();
        let all = [
            ("scheduler", &schedulers),
            ("workload", &workloads),
            ("machine", &self.machines),
            ("seed", &seeds),
        ];
        for (kind, values) in all {
            let mut sorted: Vec<&String> = values.iter().collect();
            sorted.sort();
            if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(format!("{kind} \"{}\" is given twice", pair[0]));
            }
        }
        Ok(())
    }
}

pub fn knob_column(name: &str) -> String {
    format!("knob.{name}")
}

pub fn parameter_column(name: &str) -> String {
    format!("parameter.{name}")
}

/// Returns the names of all settings of some variants, in the order of the file.
pub fn setting_names(variants: &[Variant]) -> impl Iterator<Item = String> {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in variants.iter().flat_map(|variant| &variant.settings) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names.into_iter()
}

impl Seeds {
    fn count(&self) -> u64 {
        match self {
            Seeds::Count(count) => *count,
            Seeds::List(list) => list.len() as u64,
        }
    }

    fn list(self) -> Vec<u64> {
        match self {
            Seeds::Count(count) => (1..=count).collect(),
            Seeds::List(list) => list,
        }
    }
}

/// The schedulers or the workloads of the file, each with the values of its settings.
struct Axis {
    kind: &'static str,
    setting: &'static str,
    entries: Vec<(String, IndexMap<String, OneOrMany>)>,
}

impl Axis {
    fn check(&self) -> Result<(), String> {
        let Axis { kind, setting, .. } = self;
        for (name, settings) in &self.entries {
            for (key, values) in settings {
                if values.values().is_empty() {
                    return Err(format!("{setting} \"{key}\" of {kind} \"{name}\" has no value"));
                }
                let has_comma = |value: &&Value| match value {
                    Value::Text(text) => text.contains(',') && !text.starts_with('"'),
                    _ => false,
                };
                if let Some(value) = values.values().iter().find(has_comma) {
                    return Err(format!(
                        "{setting} \"{key}\" of {kind} \"{name}\": the value {value} has a comma; put it into double quotes within the text"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Number of variants; None if it exceeds 64 bits.
    fn count(&self) -> Option<u64> {
        let one = |settings: &IndexMap<String, OneOrMany>| {
            let mut counts = settings.values().map(|values| values.values().len() as u64);
            counts.try_fold(1u64, |product, count| product.checked_mul(count))
        };
        self.entries.iter().try_fold(0u64, |sum, (_, settings)| sum.checked_add(one(settings)?))
    }

    /// Returns every variant; the last setting changes fastest.
    fn variants(&self) -> Vec<Variant> {
        let of = |(name, settings): &(String, IndexMap<String, OneOrMany>)| {
            let mut all = vec![Variant { name: name.clone(), settings: Vec::new() }];
            for (key, values) in settings {
                let with = |variant: &Variant| {
                    let one = |value: &Value| {
                        let mut longer = variant.clone();
                        longer.settings.push((key.clone(), value.clone()));
                        longer
                    };
                    values.values().iter().map(one).collect::<Vec<_>>()
                };
                all = all.iter().flat_map(with).collect();
            }
            all
        };
        self.entries.iter().flat_map(of).collect()
    }
}

/// Refuses axes that are empty, or that multiply to more than the limits.
fn check_size(
    schedulers: &Axis,
    workloads: &Axis,
    machines: &[String],
    seeds: &Seeds,
) -> Result<(), String> {
    let sizes = [
        ("[[scheduler]]", schedulers.count()),
        ("[[workload]]", workloads.count()),
        ("machines", Some(machines.len() as u64)),
        ("seeds", Some(seeds.count())),
    ];
    if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == Some(0)) {
        return Err(format!("{name} is empty: the sweep has no cells"));
    }
    let product = |sizes: &[Option<u64>]| {
        sizes.iter().try_fold(1u64, |product, size| product.checked_mul((*size)?))
    };
    let [of_schedulers, of_workloads, of_machines, of_seeds] = sizes.map(|(_, size)| size);
    let shown = |size: Option<u64>| size.map_or("over 10^19".to_owned(), |n| n.to_string());
    let cells = product(&[of_schedulers, of_workloads, of_machines, of_seeds]);
    if cells.is_none_or(|cells| cells > CELLS_MAX) {
        return Err(format!(
            "{} variants of schedulers x {} of workloads x {} machines x {} seeds are {} cells; the limit is {CELLS_MAX}: leave values out, or make several sweeps into one folder",
            shown(of_schedulers),
            shown(of_workloads),
            shown(of_machines),
            shown(of_seeds),
            shown(cells),
        ));
    }
    let prepared = product(&[of_schedulers, of_machines]);
    if prepared.is_none_or(|pairs| pairs > PREPARED_MAX) {
        return Err(format!(
            "{} variants of schedulers x {} machines are {} schedulers to prepare; the limit is {PREPARED_MAX}: make several sweeps into one folder",
            shown(of_schedulers),
            shown(of_machines),
            shown(prepared),
        ));
    }
    Ok(())
}

/// Reads the metrics of the table; all of them by default. The store keeps no metric of one CPU.
fn selection(words: Option<&[String]>) -> Result<Selection, String> {
    let Some(words) = words else { return Ok(Selection::all()) };
    let words = words.iter().map(String::as_str);
    let of_one_cpu = |word: &&str| metric::find(word).is_some() && is_of_one_cpu(word);
    if let Some(word) = words.clone().find(of_one_cpu) {
        return Err(format!("metrics: a sweep keeps no metric of one CPU, such as {word}"));
    }
    Selection::parse(words).map_err(|why| format!("metrics: {why}"))
}

/// Tells whether a metric is of one CPU. Cells do not keep such metrics, because there can be
/// thousands.
pub fn is_of_one_cpu(name: &str) -> bool {
    scxlab_lab::compare::is_per_cpu(name)
}
