// SPDX-License-Identifier: GPL-2.0-only
//! Goals: what a user wants of a scheduler, as `--goal` says it.
//!
//! Owns: the grammar, and which quantities exist. Does not: read values from runs (`value.rs`) or
//! compare them (`judge.rs`).
//!
//! ```text
//! goal     = term { "," term }
//! term     = what ":" quantity [ "@" tasks ] [ ( "<" | ">" ) value ]
//! what     = "p50" | "p90" | "p99" | "p99.9" | "p99.99" | "max" | "min" | "fair"
//! ```

#[cfg(test)]
mod tests;

use scxlab_workload::program::TimeSpan;

use crate::metric::{
    self, Better, GUEST_FLUSH_WAIT, GUEST_LOCK_WAIT, GUEST_WAKEUP_LATENCY, LOCK_WAIT, Metric, Part,
    RUN_QUEUE_WAIT, Unit, WAKEUP_LATENCY, WEIGHT_ERROR,
};

/// All goals of a request, in the order of their importance.
#[derive(Clone, Debug, PartialEq)]
pub struct Goals {
    /// Quantities to improve. A later one decides only between schedulers that the earlier ones
    /// cannot tell apart.
    pub objectives: Vec<Term>,
    /// Bounds that a scheduler must keep.
    pub limits: Vec<Limit>,
    /// Whether the objectives are the default ones. The user asked for none, so an objective that
    /// the workload cannot answer is dropped.
    pub are_default: bool,
}

/// A quantity and its better direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// The term as written, without a limit.
    pub text: String,
    pub measure: Measure,
    pub better: Direction,
}

/// The better direction of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Less,
    More,
}

/// A quantity of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Measure {
    /// A quantile of a distribution of waits.
    Quantile {
        metric: &'static Metric,
        part: &'static Part,
        /// Pattern of the names of the tasks whose waits count; None: all tasks.
        tasks: Option<String>,
    },
    /// The metric with this name.
    Metric(String),
    /// The time until all threads have exited.
    Finish,
    /// The part of the CPU time that did not go where the weights say (`fairness.rs`).
    Unfairness,
}

/// A bound on a quantity: an upper bound if less is better, else a lower bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    pub term: Term,
    pub bound: f64,
    /// The whole term as written.
    pub text: String,
}

/// A mistake in the text of a goal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("goal \"{text}\", character {at}: {what}")]
pub struct GoalError {
    pub text: String,
    /// Position of the mistake, from 1, in characters.
    pub at: usize,
    pub what: String,
}

/// The objectives if the user names none.
const DEFAULT: &str = "max:throughput,p99:wakeup_latency";

/// The last objective of workloads with weights.
const FAIRNESS: &str = "fair:weight";

impl Goals {
    /// Parses the goals of a request. Without an objective, the default ones hold.
    ///
    /// ```
    /// use scxlab_lab::advise::goal::Goals;
    /// let goals = Goals::parse(&["max:throughput,p99:wakeup_latency@render*<2ms".into()]).unwrap();
    /// assert_eq!((goals.objectives.len(), goals.limits[0].bound), (1, 2e6));
    /// let error = Goals::parse(&["max:throughput,p99:latency".into()]).unwrap_err();
    /// assert_eq!(error.at, 20);
    /// ```
    pub fn parse(texts: &[String]) -> Result<Goals, GoalError> {
        let mut goals = Goals { objectives: Vec::new(), limits: Vec::new(), are_default: false };
        for text in texts {
            goals.add(text)?;
        }
        if goals.objectives.is_empty() {
            goals.add(DEFAULT)?;
            goals.are_default = true;
        }
        Ok(goals)
    }

    fn add(&mut self, text: &str) -> Result<(), GoalError> {
        let mut start = 0;
        for part in text.split(',') {
            let parsed = parse_term(part);
            match parsed.map_err(|(at, what)| error(text, start + at, what))? {
                (term, None) => {
                    let twice = self.objectives.iter().any(|t| t.text == term.text);
                    if twice {
                        return Err(error(text, start, format!("\"{part}\" is given twice")));
                    }
                    self.objectives.push(term);
                }
                (term, Some(bound)) => {
                    self.limits.push(Limit { term, bound, text: part.trim().to_owned() });
                }
            }
            start += part.len() + 1;
        }
        Ok(())
    }

    /// Adds fairness by weight as the last objective. Returns its text; None if the goals have it.
    pub fn add_fairness(&mut self) -> Option<&'static str> {
        if self.terms().any(|term| term.measure == Measure::Unfairness) {
            return None;
        }
        let (measure, better) = (Measure::Unfairness, Direction::Less);
        self.objectives.push(Term { text: FAIRNESS.to_owned(), measure, better });
        Some(FAIRNESS)
    }

    /// Returns all terms, the limits' first.
    pub fn terms(&self) -> impl Iterator<Item = &Term> {
        self.limits.iter().map(|limit| &limit.term).chain(&self.objectives)
    }

    /// Returns the patterns of tasks that the terms name, each once.
    pub fn patterns(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for term in self.terms() {
            if let Measure::Quantile { tasks: Some(tasks), .. } = &term.measure
                && !all.contains(tasks)
            {
                all.push(tasks.clone());
            }
        }
        all
    }
}

/// Builds an error from a position in bytes.
fn error(text: &str, at: usize, what: String) -> GoalError {
    let before = text.char_indices().take_while(|(byte, _)| *byte < at).count();
    GoalError { text: text.to_owned(), at: before + 1, what }
}

/// Position in bytes, and what is wrong there.
type Mistake = (usize, String);

fn parse_term(text: &str) -> Result<(Term, Option<f64>), Mistake> {
    let lead = text.len() - text.trim_start().len();
    let at = |mistake: Mistake| (mistake.0 + lead, mistake.1);
    let text = text.trim();
    let (plain, limit) = match text.find(['<', '>']) {
        None => (text, None),
        Some(sign) => (&text[..sign], Some(sign)),
    };
    let plain = plain.trim_end();
    let term = parse_plain(plain).map_err(at)?;
    let bound = limit.map(|sign| parse_bound(&term, text, sign)).transpose().map_err(at)?;
    Ok((term, bound))
}

/// Parses a term without its limit.
fn parse_plain(text: &str) -> Result<Term, Mistake> {
    let Some((what, rest)) = text.split_once(':') else {
        let form = "a goal is written WHAT:QUANTITY, as in max:throughput or p99:wakeup_latency";
        return Err((0, form.to_owned()));
    };
    let begin = what.len() + 1;
    let (quantity, tasks) = match rest.split_once('@') {
        None => (rest, None),
        Some((quantity, tasks)) => (quantity, Some(tasks)),
    };
    let (measure, better) = measure(what, quantity, tasks).map_err(|mistake| match mistake {
        Wrong::What(why) => (0, why),
        Wrong::Quantity(why) => (begin, why),
        Wrong::Tasks(why) => (begin + quantity.len(), why),
    })?;
    Ok(Term { text: text.to_owned(), measure, better })
}

/// The part of a term that is wrong, with the reason.
enum Wrong {
    What(String),
    Quantity(String),
    Tasks(String),
}

/// Distributions of waits. The first two are known for each task.
const DISTRIBUTIONS: [(&str, &Metric); 6] = [
    ("wakeup_latency", &WAKEUP_LATENCY),
    ("run_queue_wait", &RUN_QUEUE_WAIT),
    ("lock_wait", &LOCK_WAIT),
    ("guest_wakeup_latency", &GUEST_WAKEUP_LATENCY),
    ("guest_lock_wait", &GUEST_LOCK_WAIT),
    ("guest_flush_wait", &GUEST_FLUSH_WAIT),
];

fn measure(what: &str, quantity: &str, tasks: Option<&str>) -> Result<(Measure, Direction), Wrong> {
    if let Some((name, waits)) = DISTRIBUTIONS.iter().find(|(name, _)| *name == quantity) {
        let measure = quantile(what, name, waits, tasks)?;
        return Ok((measure, Direction::Less));
    }
    let measured = match (what, quantity) {
        ("fair", "weight") => (Measure::Unfairness, Direction::Less),
        ("fair", _) => return Err(Wrong::Quantity("write fair:weight".to_owned())),
        ("min", "finish") => (Measure::Finish, Direction::Less),
        (_, "finish") => {
            return Err(Wrong::What("the time to finish is to be short: write min:finish".into()));
        }
        ("min", _) => (scalar(what, quantity, Direction::Less)?, Direction::Less),
        ("max", _) => (scalar(what, quantity, Direction::More)?, Direction::More),
        _ if is_quantile(what) => {
            let names: Vec<&str> = DISTRIBUTIONS.iter().map(|(name, _)| *name).collect();
            let why = format!("only a distribution has a {what}: {}", names.join(", "));
            return Err(Wrong::Quantity(why));
        }
        _ => return Err(Wrong::What(format!("\"{what}\" is not one of {WHATS}"))),
    };
    match tasks {
        None => Ok(measured),
        Some(_) => Err(Wrong::Tasks(PER_TASK.to_owned())),
    }
}

const WHATS: &str = "p50, p90, p99, p99.9, p99.99, max, min, fair";
const PER_TASK: &str = "only wakeup_latency and run_queue_wait are known for each task";

fn is_quantile(what: &str) -> bool {
    WAKEUP_LATENCY.parts.iter().any(|part| part.name == what)
}

fn quantile(
    what: &str,
    name: &str,
    waits: &'static Metric,
    tasks: Option<&str>,
) -> Result<Measure, Wrong> {
    let Some(part) = waits.parts.iter().find(|part| part.name == what) else {
        let parts: Vec<&str> = waits.parts.iter().map(|part| part.name).collect();
        let why = format!("{name} is a distribution; write one of {}", parts.join(", "));
        return Err(Wrong::What(why));
    };
    let tasks = match tasks.map(str::trim) {
        Some("") => return Err(Wrong::Tasks("a name of tasks follows @: @render*".to_owned())),
        Some(_) if ![WAKEUP_LATENCY, RUN_QUEUE_WAIT].contains(waits) => {
            return Err(Wrong::Tasks(PER_TASK.to_owned()));
        }
        tasks => tasks.map(str::to_owned),
    };
    Ok(Measure::Quantile { metric: waits, part, tasks })
}

fn scalar(what: &str, quantity: &str, wanted: Direction) -> Result<Measure, Wrong> {
    let Some(metric) = metric::find(quantity) else {
        let why = format!(
            "unknown quantity \"{quantity}\"; common ones are throughput, finish, migrations, wakeup_latency and \
             run_queue_wait, and each metric of `scxlab run --format json` is one"
        );
        return Err(Wrong::Quantity(why));
    };
    let (best, write) = match metric.better {
        Better::Less => (Direction::Less, "min"),
        Better::More => (Direction::More, "max"),
        Better::Open => (wanted, what),
    };
    if best != wanted {
        return Err(Wrong::What(format!(
            "the other direction is better: write {write}:{quantity}"
        )));
    }
    Ok(Measure::Metric(quantity.to_owned()))
}

/// Parses the limit of a term; `sign` is the position of its `<` or `>`.
fn parse_bound(term: &Term, text: &str, sign: usize) -> Result<f64, Mistake> {
    let (wanted, kind) = match term.better {
        Direction::Less => ("<", "an upper"),
        Direction::More => (">", "a lower"),
    };
    if !text[sign..].starts_with(wanted) {
        return Err((sign, format!("the limit of {} is {kind} bound: write {wanted}", term.text)));
    }
    let value = text[sign + 1..].trim_start_matches('=').trim();
    let at = text.len() - value.len();
    term.measure.parse_value(value).map_err(|why| (at, why))
}

impl Measure {
    /// Tells whether the quantity is this metric.
    pub fn is_metric(&self, metric: &str) -> bool {
        match self {
            Measure::Metric(name) => name == metric,
            Measure::Unfairness => metric == WEIGHT_ERROR.name,
            _ => false,
        }
    }

    /// Parses a value of this quantity: a time, a share in percent or a number.
    fn parse_value(&self, text: &str) -> Result<f64, String> {
        if self.is_time() {
            return text.parse::<TimeSpan>().map(|time| time.0 as f64);
        }
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|n| n.is_finite());
        match (self, text.strip_suffix('%')) {
            (Measure::Unfairness, Some(percent)) => number(percent).map(|n| n / 100.0),
            (Measure::Unfairness, None) => None,
            (_, None) => number(text),
            (_, Some(_)) => None,
        }
        .ok_or_else(|| match self {
            Measure::Unfairness => format!("\"{text}\" is not a percentage, such as 5%"),
            _ => format!("\"{text}\" is not a number"),
        })
    }

    /// Tells whether values are times in ns.
    pub fn is_time(&self) -> bool {
        match self {
            Measure::Quantile { .. } | Measure::Finish => true,
            Measure::Metric(name) => metric::find(name).is_some_and(|m| m.unit == Unit::Ns),
            Measure::Unfairness => false,
        }
    }
}
