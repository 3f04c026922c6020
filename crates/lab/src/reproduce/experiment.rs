// SPDX-License-Identifier: GPL-2.0-only
//! Experiments (`experiments/*.toml`): the rules that say which machine, workload and scheduler
//! each published figure is.
//!
//! Owns: the form of the files, and the resolution of a figure's rules. Does not: know whether a
//! machine, workload or scheduler exists (see `plan.rs`).
//!
//! ```toml
//! thread = "o1-2002"
//! doc = "one sentence"
//! published = "rows.toml"                  # only in a user's experiment: the file of its figures
//!
//! [fitted.think]                           # a parameter that was fitted to baseline figures
//! value = "3us"
//! default = "2us"                          # its value with --blind
//! grid = ["1us", "2us", "3us"]             # values that a fit tries (see `fit.rs`)
//! cells = [{ table = "chat", rooms = 10, cpus = 2, column = "vanilla" }]
//! why = "..."
//!
//! [machine.p3]                             # a machine that rules can name
//! base = "p3-8way"
//! why = "..."
//! [machine.p3.set.topology]                # keys of the machine file that differ
//! spec = "1n{cpus}l1c1t"
//!
//! [workload]                               # workload files; a rule's `split,a=1` replaces <a> by 1
//! split = """..."""
//!
//! [[rule]]                                 # later rules override earlier ones
//! when = { table = "chat", column = "o1" } # keys of the row, `column`, `table`, and what `let` adds
//! scheduler = "o1"
//!
//! [[twin]]                                 # rows that the thread measured twice (see `Twin`)
//! when = { table = "chat", cpus = 2 }
//! with = { cpus = "4" }
//! why = "..."
//!
//! [[cause]]                                # a known reason why figures disagree
//! when = { table = "mkbench" }
//! text = "..."
//! ```

use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use super::published::{Published, Table};
use super::template::{Vars, fill};
use super::{ReproduceError, experiments, line_of, threads};
use crate::input::{Beside, InputFiles, read_text};

/// An experiment with the figures that it predicts.
#[derive(Clone, Debug)]
pub struct Experiment {
    pub published: Published,
    pub doc: String,
    pub fitted: IndexMap<String, Fitted>,
    pub causes: Vec<Cause>,
    twins: Vec<PlacedTwin>,
    pub ablations: IndexMap<String, Ablation>,
    /// Texts of workload files that rules can name.
    pub workloads: IndexMap<String, String>,
    machines: IndexMap<String, MachineSpec>,
    rules: Vec<PlacedRule>,
    file: String,
}

/// A parameter that was fitted to figures of baseline columns, or that has the factor between its
/// value and its default from another thread's fit.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fitted {
    pub value: String,
    pub default: String,
    /// Values that a fit tries.
    #[serde(default)]
    pub grid: Vec<String>,
    #[serde(default)]
    pub cells: Vec<When>,
    /// Thread whose parameter of the same name has the factor. Then there are no grid and no cells.
    pub from: Option<String>,
    pub why: String,
}

/// A machine that differs from a shipped one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineSpec {
    pub base: String,
    pub why: String,
    /// Keys of the machine file that replace those of `base`. Their texts are templates.
    #[serde(default)]
    pub set: toml::Table,
}

/// Rows that the thread measured a second time, in circumstances that do not belong to what is
/// compared: the same patches on another machine, say. How often the two have the same sign tells
/// how far the thread agrees with itself.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Twin {
    /// The rows, by their keys, `table` and `column`.
    when: When,
    /// The keys, or `table`, in which the second row differs.
    with: Vars,
    /// What differs, for readers of the file.
    #[serde(rename = "why")]
    _why: String,
}

#[derive(Clone, Debug)]
struct PlacedTwin {
    line: usize,
    twin: Twin,
}

/// A known reason why figures disagree.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cause {
    pub when: When,
    pub text: String,
}

/// A mechanism that is switched off or broken on purpose, as rules that follow all others.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ablation {
    pub doc: String,
    rule: Vec<Spanned<Rule>>,
}

/// Values that variables must have; a list allows any of its values.
pub type When = IndexMap<String, OneOrMore>;

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOrMore {
    More(Vec<toml::Value>),
    One(toml::Value),
}

/// What a figure is: the measure itself, a statistic of its runs, or a comparison with the
/// baseline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Mean of the measure.
    #[default]
    Value,
    Stddev,
    Min,
    Max,
    /// Difference from the baseline in percent of the baseline; positive is better.
    Improvement,
    /// Difference from the baseline in percent of the largest value of the runs; positive is
    /// better.
    ImprovementOverMax,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    #[default]
    Higher,
    Lower,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    #[serde(default)]
    when: When,
    #[serde(default, rename = "let")]
    vars: IndexMap<String, String>,
    machine: Option<String>,
    workload: Option<String>,
    scheduler: Option<String>,
    duration: Option<String>,
    numa_balancing: Option<String>,
    attach_after: Option<String>,
    figure: Option<Kind>,
    metric: Option<String>,
    per: Option<String>,
    scale: Option<String>,
    invert: Option<bool>,
    better: Option<Better>,
    baseline: Option<IndexMap<String, String>>,
    noise: Option<String>,
    not_predicted: Option<String>,
}

#[derive(Clone, Debug)]
struct PlacedRule {
    line: usize,
    rule: Rule,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    thread: String,
    doc: String,
    /// Read by `Experiment::read`, before the rest of the file.
    #[serde(default, rename = "published")]
    _published: Option<IgnoredAny>,
    #[serde(default)]
    fitted: IndexMap<String, Spanned<Fitted>>,
    #[serde(default)]
    machine: IndexMap<String, MachineSpec>,
    #[serde(default)]
    workload: IndexMap<String, String>,
    rule: Vec<Spanned<Rule>>,
    #[serde(default)]
    twin: Vec<Spanned<Twin>>,
    #[serde(default)]
    cause: Vec<Cause>,
    #[serde(default)]
    ablation: IndexMap<String, Ablation>,
}

/// The keys of an experiment's file that say which figures it is about.
#[derive(Deserialize)]
struct Head {
    thread: Spanned<String>,
    published: Option<Spanned<String>>,
}

/// The rules of one figure, resolved.
#[derive(Clone, Debug)]
pub enum Resolved {
    Figure(Box<Figure>),
    /// The figure is not predicted, for this reason.
    NotPredicted(String),
}

/// How to predict one figure.
#[derive(Clone, Debug)]
pub struct Figure {
    pub setup: SetupText,
    pub kind: Kind,
    /// The metrics whose weighted sum is the measure.
    pub metric: Vec<Term>,
    /// The metrics by whose weighted sum the measure is divided; empty: none.
    pub per: Vec<Term>,
    pub scale: f64,
    /// Whether the measure is the scale divided by the metric, as a time is by a rate.
    pub invert: bool,
    pub better: Better,
    /// Variables that lead to the figure's baseline.
    pub baseline: Option<Vars>,
    /// Column whose figure of this row is the published noise.
    pub noise: Option<String>,
    pub vars: Vars,
    /// Line of the experiment's file with the last rule for the setup.
    pub line: usize,
}

/// One metric of a sum, such as `guest_spin` or `0.33*guest_spin`.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    pub weight: f64,
    pub name: String,
}

/// What to run, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupText {
    pub machine: MachineText,
    pub workload: String,
    pub scheduler: String,
    pub duration: Option<String>,
    pub numa_balancing: Option<String>,
    pub attach_after: Option<String>,
}

/// A machine as `-m` takes it, with the keys of its file that differ.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineText {
    pub name: String,
    pub set: toml::Table,
}

impl Eq for MachineText {}

impl Experiment {
    /// Parses the experiment and the figures of a shipped thread.
    pub fn parse(
        thread: &str,
        published: &str,
        experiment: &str,
    ) -> Result<Experiment, ReproduceError> {
        let published = Published::parse(thread, &format!("published/{thread}.toml"), published)?;
        Experiment::of_text(published, format!("experiments/{thread}.toml"), experiment)
    }

    /// Reads the experiment of a user, and the figures that it predicts: those of the file that its
    /// key `published` names, or else those of the shipped thread of the same name.
    pub fn read(path: &str, files: &dyn InputFiles) -> Result<Experiment, ReproduceError> {
        let text = read_text(path, files)?;
        let fault = |at: usize, what: String| ReproduceError::File {
            file: path.to_owned(),
            line: line_of(&text, at),
            what,
        };
        let head: Head = toml::from_str(&text)
            .map_err(|e| fault(e.span().unwrap_or(0..0).start, e.message().to_owned()))?;
        let thread = head.thread.get_ref();
        let published = match &head.published {
            Some(name) => {
                let beside = Beside::new(path, files);
                let rows = read_text(name.get_ref(), &beside)
                    .map_err(|e| fault(name.span().start, e.to_string()))?;
                Published::parse(thread, name.get_ref(), &rows)?
            }
            None => {
                let shipped = experiments().iter().find(|shipped| shipped.name == thread);
                let rows = shipped.ok_or_else(|| {
                    let what = format!(
                        "no thread \"{thread}\" is shipped: name a file of its figures, as in \
                         published = \"rows.toml\", or one of the threads {}",
                        threads().collect::<Vec<_>>().join(", ")
                    );
                    fault(head.thread.span().start, what)
                })?;
                Published::parse(thread, &format!("published/{thread}.toml"), rows.published)?
            }
        };
        Experiment::of_text(published, path.to_owned(), &text)
    }

    fn of_text(
        published: Published,
        file: String,
        experiment: &str,
    ) -> Result<Experiment, ReproduceError> {
        let fault = |at: usize, what: String| ReproduceError::File {
            file: file.clone(),
            line: line_of(experiment, at),
            what,
        };
        let parsed: File = toml::from_str(experiment)
            .map_err(|e| fault(e.span().unwrap_or(0..0).start, e.message().to_owned()))?;
        if parsed.thread != published.thread {
            return Err(fault(0, format!("the thread is \"{}\"", parsed.thread)));
        }
        let place = |rule: Spanned<Rule>| PlacedRule {
            line: line_of(experiment, rule.span().start),
            rule: rule.into_inner(),
        };
        let place_twin = |twin: Spanned<Twin>| PlacedTwin {
            line: line_of(experiment, twin.span().start),
            twin: twin.into_inner(),
        };
        let lines: Vec<usize> =
            parsed.fitted.values().map(|f| line_of(experiment, f.span().start)).collect();
        let fitted = parsed.fitted.into_iter().map(|(name, f)| (name, f.into_inner())).collect();
        let found = Experiment {
            published,
            doc: parsed.doc,
            fitted,
            causes: parsed.cause,
            twins: parsed.twin.into_iter().map(place_twin).collect(),
            ablations: parsed.ablation,
            workloads: parsed.workload,
            machines: parsed.machine,
            rules: parsed.rule.into_iter().map(place).collect(),
            file,
        };
        found.check_fitted(&lines)?;
        found.check_twins()?;
        Ok(found)
    }

    /// Returns the experiment with the fitted parameters at their defaults.
    pub fn blind(mut self) -> Experiment {
        self.fitted.values_mut().for_each(|f| f.value.clone_from(&f.default));
        self
    }

    /// Returns the experiment from which a fit starts: all parameters that it fits at their
    /// defaults.
    pub fn unfitted(mut self) -> Experiment {
        let own = self.fitted.values_mut().filter(|f| f.from.is_none());
        own.for_each(|f| f.value.clone_from(&f.default));
        self
    }

    /// Returns the experiment with a mechanism switched off.
    pub fn ablated(mut self, name: &str) -> Result<Experiment, ReproduceError> {
        let Some(ablation) = self.ablations.get(name) else {
            let available: Vec<&str> = self.ablations.keys().map(String::as_str).collect();
            return Err(ReproduceError::Unknown {
                kind: "ablation",
                name: name.to_owned(),
                available: available.join(", "),
            });
        };
        let rules = ablation.rule.iter();
        // Its rules have no line of their own, because they are few and stand together.
        let placed = rules.map(|r| PlacedRule { line: 0, rule: r.get_ref().clone() });
        let placed: Vec<PlacedRule> = placed.collect();
        self.rules.extend(placed);
        Ok(self)
    }

    /// Resolves the rules of one figure.
    pub fn resolve(
        &self,
        table: &Table,
        row: usize,
        column: &str,
    ) -> Result<Resolved, ReproduceError> {
        self.resolve_vars(&table.id, table.vars_of(row, column), &Vars::new())
    }

    /// Returns the table and the row of a figure's twin; None if it has none.
    pub fn twin(
        &self,
        table: &Table,
        row: usize,
        column: &str,
    ) -> Result<Option<(&Table, usize)>, ReproduceError> {
        let mut vars = table.vars_of(row, column);
        let mut twins = self.twins.iter();
        let Some(PlacedTwin { line, twin }) = twins.find(|t| matches(&t.twin.when, &vars)) else {
            return Ok(None);
        };
        vars.extend(twin.with.clone());
        let other = self.published.table(&vars["table"]);
        let found = other.and_then(|other| Some((other, other.find(&vars)?)));
        let missing = || {
            let row: Vec<String> = vars.iter().map(|(k, v)| format!("{k}={v}")).collect();
            self.fault(*line, format!("no published row is this twin: {}", row.join(", ")))
        };
        found.map(Some).ok_or_else(missing)
    }

    /// Resolves the rules for these variables. No rule changes a variable of `pinned`.
    pub fn resolve_vars(
        &self,
        table: &str,
        mut vars: Vars,
        pinned: &Vars,
    ) -> Result<Resolved, ReproduceError> {
        vars.insert("table".into(), table.into());
        vars.extend(self.fitted.iter().map(|(k, f)| (k.clone(), f.value.clone())));
        vars.extend(pinned.clone());
        let mut sum = Rule::default();
        let mut line = 0;
        for PlacedRule { line: at, rule } in &self.rules {
            if !matches(&rule.when, &vars) {
                continue;
            }
            for (name, value) in &rule.vars {
                if !pinned.contains_key(name) {
                    let value = self.fill(*at, value, &vars)?;
                    vars.insert(name.clone(), value);
                }
            }
            if sum.add(rule) {
                line = *at;
            }
        }
        self.finish(sum, vars, line)
    }

    fn finish(&self, sum: Rule, vars: Vars, line: usize) -> Result<Resolved, ReproduceError> {
        if let Some(why) = &sum.not_predicted {
            return Ok(Resolved::NotPredicted(self.fill(line, why, &vars)?));
        }
        let need = |what: Option<String>, key: &str| {
            let text = what.ok_or_else(|| {
                let figure = vars.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>();
                self.fault(line, format!("no rule gives a {key} for {}", figure.join(", ")))
            })?;
            self.fill(line, &text, &vars)
        };
        let may = |what: Option<String>| what.map(|t| self.fill(line, &t, &vars)).transpose();
        let scale = may(sum.scale)?.map_or(Ok(1.0), |text| {
            let fault = || self.fault(line, format!("scale \"{text}\" is no product of numbers"));
            product(&text).ok_or_else(fault)
        })?;
        let terms = |text: String| {
            let fault =
                || self.fault(line, format!("metric \"{text}\" is no sum of W*NAME or NAME"));
            terms(&text).ok_or_else(fault)
        };
        let baseline = sum.baseline.map(|pairs| {
            let pairs = pairs.into_iter();
            pairs.map(|(k, v)| self.fill(line, &v, &vars).map(|v| (k, v))).collect()
        });
        let setup = SetupText {
            machine: self.machine(&need(sum.machine, "machine")?, &vars, line)?,
            workload: need(sum.workload, "workload")?,
            scheduler: need(sum.scheduler, "scheduler")?,
            duration: may(sum.duration)?,
            numa_balancing: may(sum.numa_balancing)?,
            attach_after: may(sum.attach_after)?,
        };
        Ok(Resolved::Figure(Box::new(Figure {
            setup,
            kind: sum.figure.unwrap_or_default(),
            metric: terms(need(sum.metric, "metric")?)?,
            per: may(sum.per)?.map_or(Ok(Vec::new()), terms)?,
            scale,
            invert: sum.invert.unwrap_or(false),
            better: sum.better.unwrap_or_default(),
            baseline: baseline.transpose()?,
            noise: sum.noise,
            vars,
            line,
        })))
    }

    fn machine(&self, name: &str, vars: &Vars, line: usize) -> Result<MachineText, ReproduceError> {
        let Some(spec) = self.machines.get(name) else {
            return Ok(MachineText { name: name.to_owned(), set: toml::Table::new() });
        };
        let mut set = spec.set.clone();
        self.fill_table(&mut set, vars, line)?;
        Ok(MachineText { name: spec.base.clone(), set })
    }

    fn fill_table(
        &self,
        table: &mut toml::Table,
        vars: &Vars,
        line: usize,
    ) -> Result<(), ReproduceError> {
        for (_, value) in table.iter_mut() {
            match value {
                toml::Value::Table(inner) => self.fill_table(inner, vars, line)?,
                toml::Value::String(text) => {
                    let filled = self.fill(line, text, vars)?;
                    // A text that is a variable alone may stand for a number.
                    let is_variable = text.starts_with('{') && *text != filled;
                    *value = match filled.parse::<i64>() {
                        Ok(number) if is_variable => toml::Value::Integer(number),
                        _ => toml::Value::String(filled),
                    };
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the cause that the experiment knows for a figure with these variables.
    pub fn cause(&self, vars: &Vars) -> Option<&str> {
        self.causes.iter().rev().find(|c| matches(&c.when, vars)).map(|c| c.text.as_str())
    }

    /// Checks that parameters were fitted to figures of baselines only.
    fn check_fitted(&self, lines: &[usize]) -> Result<(), ReproduceError> {
        for ((name, fitted), line) in self.fitted.iter().zip(lines) {
            if fitted.from.is_some() {
                if fitted.grid.is_empty() && fitted.cells.is_empty() {
                    continue;
                }
                let what =
                    format!("{name} has its factor from another thread, and a grid or cells");
                return Err(self.fault(*line, what));
            }
            if !fitted.grid.contains(&fitted.value) {
                let what = format!("{name} is {}, which is not on its grid", fitted.value);
                return Err(self.fault(*line, what));
            }
            for cells in &fitted.cells {
                let mut count = 0;
                for table in &self.published.tables {
                    for (row, column, _) in table.figures() {
                        if !matches(cells, &table.vars_of(row, column)) {
                            continue;
                        }
                        count += 1;
                        if let Resolved::Figure(figure) = self.resolve(table, row, column)?
                            && figure.is_treated()
                        {
                            let what = format!(
                                "{name} is fitted to a figure that is no baseline: {}, row {}, {column}",
                                table.id,
                                row + 1
                            );
                            return Err(self.fault(*line, what));
                        }
                    }
                }
                if count == 0 {
                    let what = format!("{name} is fitted to figures that do not exist");
                    return Err(self.fault(*line, what));
                }
            }
        }
        Ok(())
    }

    /// Checks that the rows of all twins exist.
    fn check_twins(&self) -> Result<(), ReproduceError> {
        let figures =
            || self.published.tables.iter().flat_map(|t| t.figures().map(move |f| (t, f)));
        for PlacedTwin { line, twin } in &self.twins {
            let is_of = |(table, (row, column, _)): (&Table, (usize, &str, f64))| {
                matches(&twin.when, &table.vars_of(row, column))
            };
            if !figures().any(is_of) {
                let what = "this twin is of figures that do not exist".to_owned();
                return Err(self.fault(*line, what));
            }
        }
        figures().try_for_each(|(table, (row, column, _))| self.twin(table, row, column).map(drop))
    }

    fn fill(&self, line: usize, text: &str, vars: &Vars) -> Result<String, ReproduceError> {
        fill(text, vars).map_err(|name| {
            self.fault(line, format!("\"{text}\" names {{{name}}}, which is no variable"))
        })
    }

    /// Returns an error at a line of the experiment's file.
    pub fn fault(&self, line: usize, what: String) -> ReproduceError {
        ReproduceError::File { file: self.file.clone(), line, what }
    }
}

impl Figure {
    /// Whether the figure is, or is compared with, a baseline other than itself.
    pub fn is_treated(&self) -> bool {
        let compared = matches!(self.kind, Kind::Improvement | Kind::ImprovementOverMax);
        let other = |pairs: &Vars| pairs.iter().any(|(k, v)| self.vars.get(k) != Some(v));
        compared || self.baseline.as_ref().is_some_and(other)
    }
}

impl Rule {
    /// Overrides what `rule` gives. Returns whether that includes a part of the setup.
    fn add(&mut self, rule: &Rule) -> bool {
        macro_rules! take {
            ($($field:ident),+) => {
                [$(rule.$field.is_some().then(|| self.$field = rule.$field.clone())),+]
            };
        }
        take!(figure, per, scale, invert, better, baseline, noise, not_predicted);
        let setup =
            take!(machine, workload, scheduler, duration, numa_balancing, attach_after, metric);
        setup.iter().any(Option::is_some)
    }
}

/// Returns the value of numbers that are multiplied and divided, such as `1000*8/3`.
fn product(text: &str) -> Option<f64> {
    let mut factors = text.split('*').map(|factor| {
        let mut parts = factor.split('/').map(|part| part.trim().parse::<f64>().ok());
        let first = parts.next()??;
        parts.try_fold(first, |quotient, part| Some(quotient / part?))
    });
    factors.try_fold(1.0, |product, factor| Some(product * factor?))
}

/// Splits a sum of metrics, each of which may have a product of numbers before its name. Returns
/// None if a name is missing or a weight is no number.
fn terms(text: &str) -> Option<Vec<Term>> {
    let term = |text: &str| {
        let (weight, name) = text.rsplit_once('*').unwrap_or(("1", text));
        let name = name.trim().to_owned();
        (!name.is_empty()).then_some(Term { weight: product(weight)?, name })
    };
    text.split('+').map(term).collect()
}

/// Whether the variables have the values that `when` asks for.
pub fn matches(when: &When, vars: &Vars) -> bool {
    let fits = |value: &toml::Value, given: &str| match value {
        toml::Value::String(text) => text == given,
        other => other.to_string() == given,
    };
    when.iter().all(|(name, values)| {
        let Some(given) = vars.get(name) else { return false };
        match values {
            OneOrMore::One(value) => fits(value, given),
            OneOrMore::More(values) => values.iter().any(|value| fits(value, given)),
        }
    })
}
