// SPDX-License-Identifier: GPL-2.0-only
//! Whether results got worse: each metric of each workload on each machine, NEW against BASE.
//!
//! Owns: which runs are compared, the verdicts, the number of runs that a verdict needs.
//! Does not: make runs; the statistics are those of `lab::stats`.
//!
//! The runs of one seed are a pair. A metric *regressed* if its change for the worse exceeds each
//! limit of the gate by more than noise explains, by one-sided t tests, at the false discovery rate
//! of the gate over all cells (Benjamini and Hochberg). It *passed* if it does not exceed one of
//! them by the same kind of test, or if its mean does not and the interval of the change is as
//! narrow as the gate's precision. Otherwise it is *undecided*. A run that is missing in NEW, or
//! failed only there, or in which only there a cgroup had more than its `cpu.max`, is a regression
//! whatever the means say. A run that failed in BASE is not compared.

mod report;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use scxlab_lab::results::Manifest;
use scxlab_lab::run::Exit;
use scxlab_lab::stats::{self, Change, Summary, adjusted, change, p_greater};
use scxlab_machine::plural;

use crate::folder::{Folder, StoredRun};
use crate::gate::{Gate, Limit, Undecided};
pub use report::document;

/// A workload on a machine and target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    pub workload: String,
    pub machine: String,
    pub target: String,
}

/// The comparison of two folders.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// One entry for each metric of the gate in each cell that has it.
    pub findings: Vec<Finding>,
    /// Runs that are missing in NEW or failed only there.
    pub lost: Vec<Lost>,
    /// What a reader must know, such as runs that failed in both.
    pub notes: Vec<String>,
    /// Number of runs of NEW beside their pair in BASE.
    pub pairs: usize,
    undecided: Undecided,
}

/// Probabilities that noise alone explains the pairs of one finding; None if there are too few.
struct Evidence {
    /// If the metric were just within the limit.
    alarm: Option<f64>,
    /// If the metric were just beyond the limit.
    pass: Option<f64>,
    /// Whether the mean is within a limit.
    is_within: bool,
    /// Whether the runs are the same, event for event.
    is_same: bool,
}

/// One metric in one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub cell: Cell,
    pub metric: String,
    pub unit: String,
    pub limit: Limit,
    /// Means over the pairs.
    pub base: Summary,
    pub new: Summary,
    pub change: Change,
    /// Probability of a change for the worse at least as clear if it were at the limit, adjusted
    /// for the number of findings; None if there are too few pairs.
    pub p: Option<f64>,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Regressed,
    Undecided,
    /// Passed, and better beyond noise.
    Improved,
    Passed,
}

/// A run, or all runs of a cell, that NEW does not have as BASE has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    pub cell: Cell,
    /// The seed; None if it is not about one run.
    pub seed: Option<u64>,
    pub what: String,
}

/// Outcome of a comparison as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Regressed,
    Undecided,
}

/// Reason why two folders cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "BASE and NEW differ in {what} of {cell}: {base} and {new}; only runs of the same workload on the same machine can be compared"
    )]
    Different { what: &'static str, cell: String, base: String, new: String },
    #[error("BASE has {base}, and NEW has {new}: no workload and machine are in both")]
    Disjoint { base: String, new: String },
    #[error(
        "BASE has the schedulers {base}, and NEW has {new}: which are to be compared? Make each folder with one, or both with the same"
    )]
    Schedulers { base: String, new: String },
    #[error("{0} has no runs")]
    Empty(&'static str),
    #[error("no run of BASE has a metric of the gate ({0})")]
    NoMetric(String),
}

/// Part of wrong `Passed` verdicts, at most.
const PASS_LEVEL: f64 = 0.05;

/// Compares NEW with BASE. `looks` is the number of times that the caller looks at growing results
/// before it stops; each look gets its share of the error rates.
pub fn compare(base: &Folder, new: &Folder, gate: &Gate, looks: usize) -> Result<Report, Refusal> {
    for (folder, name) in [(base, "BASE"), (new, "NEW")] {
        if folder.runs.is_empty() {
            return Err(Refusal::Empty(name));
        }
    }
    let schedulers = schedulers(base, new)?;
    let mut report = Report {
        findings: Vec::new(),
        lost: Vec::new(),
        notes: Vec::new(),
        pairs: 0,
        undecided: gate.undecided,
    };
    match_requests(base, new, &mut report)?;
    let (of_new, mut all) = (by_cell(new), Vec::new());
    for ((cell, scheduler), runs) in by_cell(base) {
        let other = schedulers.get(scheduler).copied().unwrap_or(scheduler);
        let Some(news) = of_new.get(&(cell.clone(), other)) else {
            let what = format!("no run of {other} in NEW");
            report.lost.push(Lost { cell, seed: None, what });
            continue;
        };
        all.extend(compare_cell(&cell, &runs, news, gate, &mut report));
    }
    let is_checked = |run: &StoredRun| run.metrics.keys().any(|name| gate.limit(name).is_some());
    if !base.runs.iter().any(is_checked) && report.lost.is_empty() {
        return Err(Refusal::NoMetric(gate.metrics().collect::<Vec<_>>().join(", ")));
    }
    report.findings = decide(all, gate, looks.max(1));
    Ok(report)
}

/// Makes runs, and compares, until every cell is decided or the last number of runs is reached.
/// `more` returns BASE and NEW with at least the given number of runs in the cells that are still
/// open.
pub fn until_decided<E: From<Refusal>>(
    gate: &Gate,
    looks: &[u32],
    mut more: impl FnMut(&dyn Fn(&Cell) -> bool, u32) -> Result<(Folder, Folder), E>,
) -> Result<Report, E> {
    let mut open: Option<BTreeSet<Cell>> = None;
    let mut last = None;
    for runs in looks {
        let is_open = |cell: &Cell| open.as_ref().is_none_or(|open| open.contains(cell));
        let (base, new) = more(&is_open, *runs)?;
        let report = compare(&base, &new, gate, looks.len())?;
        // More runs decide nothing in a cell in which all have failed.
        let undecided =
            report.findings.iter().filter(|f| f.verdict == Verdict::Undecided && f.base.n > 0);
        open = Some(undecided.map(|finding| finding.cell.clone()).collect());
        last = Some(report);
        if open.as_ref().is_some_and(BTreeSet::is_empty) {
            break;
        }
    }
    Ok(last.expect("at least one look"))
}

impl Report {
    pub fn outcome(&self) -> Outcome {
        let has = |verdict| self.findings.iter().any(|finding| finding.verdict == verdict);
        if !self.lost.is_empty() || has(Verdict::Regressed) {
            Outcome::Regressed
        } else if has(Verdict::Undecided) && self.undecided == Undecided::Fail {
            Outcome::Undecided
        } else {
            Outcome::Passed
        }
    }

    pub fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.workload, self.machine)?;
        if self.target == "sim" { Ok(()) } else { write!(f, " ({})", self.target) }
    }
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Regressed => "regressed",
            Verdict::Undecided => "undecided",
            Verdict::Improved => "improved",
            Verdict::Passed => "passed",
        }
    }
}

/// Returns, for each scheduler of BASE, the one of NEW that it is compared with: the one of the
/// same name, or the only one.
fn schedulers<'a>(
    base: &'a Folder,
    new: &'a Folder,
) -> Result<BTreeMap<&'a str, &'a str>, Refusal> {
    let names = |folder: &'a Folder| -> BTreeSet<&'a str> {
        folder.runs.iter().map(|run| run.scheduler.as_str()).collect()
    };
    let (of_base, of_new) = (names(base), names(new));
    if of_base.is_subset(&of_new) {
        return Ok(of_base.into_iter().map(|name| (name, name)).collect());
    }
    if let (1, 1) = (of_base.len(), of_new.len()) {
        return Ok(of_base.into_iter().zip(of_new).collect());
    }
    let list = |names: BTreeSet<&str>| names.into_iter().collect::<Vec<_>>().join(" and ");
    Err(Refusal::Schedulers { base: list(of_base), new: list(of_new) })
}

/// Refuses requests that differ in more than the scheduler, and tells which cells are in one folder
/// only.
fn match_requests(base: &Folder, new: &Folder, report: &mut Report) -> Result<(), Refusal> {
    let name = |m: &Manifest| format!("{} on {}", m.workload.workload, m.machine.machine);
    let names = |folder: &Folder| folder.manifests.iter().map(name).collect::<Vec<_>>();
    let (of_base, of_new) = (names(base), names(new));
    if !of_base.iter().any(|name| of_new.contains(name)) {
        let (base, new) = (of_base.join(", "), of_new.join(", "));
        return Err(Refusal::Disjoint { base, new });
    }
    for before in &base.manifests {
        let cell = name(before);
        if let Some(now) = new.manifests.iter().find(|m| name(m) == cell) {
            same(&cell, before, now)?;
        }
    }
    for only in of_new.iter().filter(|name| !of_base.contains(name)) {
        report.notes.push(format!("{only} is in NEW only, and is not compared"));
    }
    Ok(())
}

fn same(cell: &str, base: &Manifest, new: &Manifest) -> Result<(), Refusal> {
    let text = |value: &dyn std::fmt::Debug| format!("{value:?}").replace('"', "");
    let facts = |m: &Manifest| {
        [
            ("the contents", m.workload.hash.clone()),
            ("the unit of work", m.workload.unit.clone()),
            ("the machine", m.machine.fingerprint.clone()),
            ("the duration in ns", text(&m.duration_ns)),
            ("the start offset in ns", text(&m.start_offset_max_ns)),
            ("the compute noise in permille", text(&m.compute_noise_permille)),
            ("NUMA balancing", text(&m.numa_balancing)),
            ("the time of attachment in ns", text(&m.attach_after_ns)),
        ]
    };
    match facts(base).into_iter().zip(facts(new)).find(|(a, b)| a != b) {
        None => Ok(()),
        Some(((what, base), (_, new))) => {
            Err(Refusal::Different { what, cell: cell.to_owned(), base, new })
        }
    }
}

/// Runs by cell and scheduler, in these by seed.
fn by_cell(folder: &Folder) -> BTreeMap<(Cell, &str), BTreeMap<u64, &StoredRun>> {
    let mut cells: BTreeMap<(Cell, &str), BTreeMap<u64, &StoredRun>> = BTreeMap::new();
    for run in &folder.runs {
        let cell = Cell {
            workload: run.workload.clone(),
            machine: run.machine.clone(),
            target: run.target.clone(),
        };
        cells.entry((cell, &run.scheduler)).or_default().insert(run.seed, run);
    }
    cells
}

/// Compares the runs of one scheduler in one cell.
fn compare_cell(
    cell: &Cell,
    base: &BTreeMap<u64, &StoredRun>,
    new: &BTreeMap<u64, &StoredRun>,
    gate: &Gate,
    report: &mut Report,
) -> Vec<(Finding, Evidence)> {
    let Paired { pairs, failed_in_both } = pair(cell, base, new, report);
    report.pairs += pairs.len();
    let (mut seen, mut findings) = (BTreeSet::new(), Vec::new());
    let metrics = base.values().flat_map(|run| &run.metrics);
    for (metric, value) in metrics.filter(|(metric, _)| seen.insert(metric.as_str())) {
        let Some(limit) = gate.limit(metric) else { continue };
        let all: Vec<(f64, f64)> = pairs
            .iter()
            .filter_map(|(before, now)| Some((before.value(metric)?, now.value(metric)?)))
            .collect();
        let had = pairs.iter().filter(|(before, _)| before.value(metric).is_some()).count();
        if had > all.len() {
            let what = format!("{} of {had} runs of NEW lack {metric}", had - all.len());
            report.lost.push(Lost { cell: cell.clone(), seed: None, what });
        }
        // A run that failed in both may have the metric, and leaves it undecided.
        if had > 0 || failed_in_both > 0 {
            let evidence = evidence(limit, &all, &pairs);
            findings.push((finding(cell, metric, &value.unit, limit, &all), evidence));
        }
    }
    findings
}

/// The runs of a cell that can be compared.
struct Paired<'a> {
    /// Runs of one seed of BASE and of NEW.
    pairs: Vec<(&'a StoredRun, &'a StoredRun)>,
    failed_in_both: usize,
}

/// Pairs runs by seed. Puts runs that were lost into the report, and notes the other runs that have
/// no pair.
fn pair<'a>(
    cell: &Cell,
    base: &BTreeMap<u64, &'a StoredRun>,
    new: &BTreeMap<u64, &'a StoredRun>,
    report: &mut Report,
) -> Paired<'a> {
    let mut lost = |seed: u64, what: String| {
        report.lost.push(Lost { cell: cell.clone(), seed: Some(seed), what });
    };
    let (mut pairs, mut both, mut restarts, mut mended) = (Vec::new(), 0, 0, 0);
    let restarts_at = |run: &StoredRun| run.exit == Exit::RESTART;
    for (seed, before) in base {
        match (new.get(seed), before.succeeded()) {
            (None, _) => lost(*seed, "missing in NEW".to_owned()),
            (Some(now), true) if !now.succeeded() => lost(*seed, failure(now)),
            (Some(now), false) if restarts_at(before) && restarts_at(now) => restarts += 1,
            (Some(now), false) if !now.succeeded() => both += 1,
            // What the runs of BASE lack would make NEW look worse.
            (Some(_), false) => mended += 1,
            (Some(now), true) => {
                if !now.keeps_quotas() && before.keeps_quotas() {
                    lost(*seed, "a cgroup of NEW had more CPU time than its cpu.max".to_owned());
                }
                pairs.push((*before, *now));
            }
        }
    }
    let of = plural(base.len(), "run");
    let extra = new.keys().filter(|seed| !base.contains_key(seed)).count();
    let notes = [
        (mended, format!("{mended} of {of} failed in BASE only")),
        (both, format!("{both} of {of} failed in both")),
        (
            restarts,
            format!("{restarts} of {of} ended in both with a request to load the scheduler again"),
        ),
        (extra, format!("no pair in BASE: {} of NEW", plural(extra, "run"))),
    ];
    let notes = notes.into_iter().filter(|(count, _)| *count > 0);
    report.notes.extend(notes.map(|(_, note)| format!("{cell}: {note}")));
    Paired { pairs, failed_in_both: both }
}

/// Returns the evidence of the values of a metric, which the runs `pairs` have.
fn evidence(limit: Limit, values: &[(f64, f64)], pairs: &[(&StoredRun, &StoredRun)]) -> Evidence {
    let excess = excess(limit, values);
    let is_same = |(a, b): &(&StoredRun, &StoredRun)| {
        !a.trace_hash.is_empty() && a.trace_hash == b.trace_hash
    };
    let negated = |values: &Vec<f64>| values.iter().map(|x| -x).collect::<Vec<_>>();
    Evidence {
        // Each limit must be exceeded, so the weakest evidence counts. One that is kept is enough
        // to pass, at the price of two tries.
        alarm: excess.iter().map(|v| p_greater(v)).try_fold(0.0, |p: f64, q| Some(p.max(q?))),
        pass: excess
            .iter()
            .map(|v| p_greater(&negated(v)))
            .try_fold(1.0, |p: f64, q| Some(p.min(q? * excess.len() as f64))),
        is_within: excess.iter().any(|values| values.iter().sum::<f64>() <= 0.0),
        is_same: !pairs.is_empty() && pairs.iter().all(is_same),
    }
}

fn failure(run: &StoredRun) -> String {
    if run.exit != Exit::NONE {
        return format!("ejected in NEW: {}: {}", run.exit, run.exit_message);
    }
    match run.counts {
        false => format!("cut off in NEW: {}", run.stop),
        true => format!("{} never or hardly ever ran in NEW", plural(run.never_ran, "task")),
    }
}

fn finding(cell: &Cell, metric: &str, unit: &str, limit: Limit, pairs: &[(f64, f64)]) -> Finding {
    let side = |of: fn(&(f64, f64)) -> f64| Summary::of(&pairs.iter().map(of).collect::<Vec<_>>());
    Finding {
        cell: cell.clone(),
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        limit,
        base: side(|pair| pair.0),
        new: side(|pair| pair.1),
        change: change(pairs),
        p: None,
        verdict: Verdict::Undecided,
    }
}

/// Returns, for each limit, by how much each pair exceeds it.
fn excess(limit: Limit, pairs: &[(f64, f64)]) -> Vec<Vec<f64>> {
    let sign = if limit.more_is_worse { 1.0 } else { -1.0 };
    let of = |allowed: &dyn Fn(f64) -> f64| -> Vec<f64> {
        pairs.iter().map(|(base, new)| sign * (new - base) - allowed(*base)).collect()
    };
    let relative = limit.relative.map(|part| of(&|base| part * base.abs()));
    let absolute = limit.absolute.map(|most| of(&|_| most));
    relative.into_iter().chain(absolute).collect()
}

/// Adjusts the probabilities for their number, and gives the verdicts.
fn decide(all: Vec<(Finding, Evidence)>, gate: &Gate, looks: usize) -> Vec<Finding> {
    let known: Vec<f64> = all.iter().filter_map(|(_, evidence)| evidence.alarm).collect();
    let mut corrected = adjusted(&known).into_iter();
    let decided = |(finding, evidence): (Finding, Evidence)| {
        let p = evidence.alarm.and_then(|_| corrected.next());
        let verdict = verdict(&finding, &evidence, p, gate, looks as f64);
        Finding { p, verdict, ..finding }
    };
    all.into_iter().map(decided).collect()
}

fn verdict(
    finding: &Finding,
    evidence: &Evidence,
    p: Option<f64>,
    gate: &Gate,
    looks: f64,
) -> Verdict {
    if evidence.is_same {
        return Verdict::Passed;
    }
    if p.is_some_and(|p| p <= gate.false_discovery_rate / looks) {
        return Verdict::Regressed;
    }
    let change = finding.change;
    let half_width = change.low.zip(change.high).map(|(low, high)| (high - low) / 2.0);
    let is_kept = evidence.pass.is_some_and(|p| p <= PASS_LEVEL / looks)
        || evidence.is_within && half_width.is_some_and(|half| half <= gate.precision)
        || change.verdict == stats::Verdict::Equal;
    let is_less = change.relative.is_some_and(|relative| relative < 0.0);
    match (is_kept, change.verdict) {
        (false, _) => Verdict::Undecided,
        (true, stats::Verdict::Different) if is_less == finding.limit.more_is_worse => {
            Verdict::Improved
        }
        (true, _) => Verdict::Passed,
    }
}
