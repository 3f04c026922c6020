// SPDX-License-Identifier: GPL-2.0-only
//! The gate of `scxlab check`: how much worse each metric may become (`gate.toml`).
//!
//! Owns: the file's keys (`docs/reference/check.md`), and their defaults.

use indexmap::IndexMap;
use scxlab_lab::metric::{self, Better, Metric, Unit};
use scxlab_workload::program::TimeSpan;
use serde::Deserialize;
use wildmatch::WildMatch;

/// Limits of all metrics, and how sure a verdict must be.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// Expected part of false alarms among all alarms, at most.
    pub false_discovery_rate: f64,
    /// Half width of the 95 % interval of a change, as a part of 1, at which a change that is no
    /// alarm counts as passed.
    pub precision: f64,
    pub undecided: Undecided,
    entries: Vec<Entry>,
}

/// Limits of the metrics whose names a pattern fits.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    pattern: String,
    relative: Option<f64>,
    absolute: Option<f64>,
    /// Direction for all these metrics; None: each metric's own.
    better: Option<BetterWord>,
}

/// How a comparison with too few runs ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Undecided {
    Fail,
    Pass,
}

/// How much worse a metric may become. A change is a regression if it exceeds each limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Part of the baseline's value.
    pub relative: Option<f64>,
    /// In the metric's unit.
    pub absolute: Option<f64>,
    /// Whether a larger value is worse.
    pub more_is_worse: bool,
}

/// Reason why a gate cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {why}")]
pub struct GateError {
    pub file: String,
    pub why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GateFile {
    false_discovery_rate: Option<f64>,
    precision: Option<Amount>,
    undecided: Option<Undecided>,
    metric: IndexMap<String, LimitFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitFile {
    relative: Option<Amount>,
    absolute: Option<Amount>,
    better: Option<BetterWord>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BetterWord {
    Less,
    More,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Amount {
    Number(f64),
    Text(String),
}

/// The gate that scxlab ships.
const DEFAULT: &str = include_str!("gate.toml");

impl Default for Gate {
    fn default() -> Gate {
        Gate::parse(DEFAULT, "gate.toml").expect("the shipped gate is valid")
    }
}

impl Gate {
    /// Reads a gate; `file` names it in messages.
    pub fn parse(text: &str, file: &str) -> Result<Gate, GateError> {
        let wrong = |why: String| GateError { file: file.to_owned(), why };
        let read: GateFile = toml::from_str(text).map_err(|e| wrong(e.to_string()))?;
        let rate = read.false_discovery_rate.unwrap_or(0.01);
        if !(rate > 0.0 && rate <= 0.5) {
            return Err(wrong(format!("false_discovery_rate is {rate}, not between 0 and 0.5")));
        }
        let precision = read.precision.map_or(Ok(0.01), |amount| amount.part());
        let precision = precision.map_err(|why| wrong(format!("precision: {why}")))?;
        if read.metric.is_empty() {
            return Err(wrong("it has no [metric.NAME], so nothing would be checked".to_owned()));
        }
        let entries = read.metric.into_iter().map(|(pattern, limit)| {
            let fault = |why| wrong(format!("[metric.{pattern:?}]: {why}"));
            limit.entry(pattern.clone()).map_err(fault)
        });
        Ok(Gate {
            false_discovery_rate: rate,
            precision,
            undecided: read.undecided.unwrap_or(Undecided::Fail),
            entries: entries.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the limit of a metric; None if the gate does not check it. Of several entries that
    /// fit and tell a direction, the first counts.
    pub fn limit(&self, metric: &str) -> Option<Limit> {
        let own = metric::find(metric).map_or(Better::Open, |declared| declared.better);
        let fitting = self.entries.iter().filter(|e| WildMatch::new(&e.pattern).matches(metric));
        let mut limits = fitting.filter_map(|entry| {
            let more_is_worse = match (entry.better, own) {
                (Some(BetterWord::Less), _) | (None, Better::Less) => true,
                (Some(BetterWord::More), _) | (None, Better::More) => false,
                (None, Better::Open) => return None,
            };
            let Entry { relative, absolute, .. } = *entry;
            Some(Limit { relative, absolute, more_is_worse })
        });
        limits.next()
    }

    /// Returns the names and patterns of the metrics that the gate checks.
    pub fn metrics(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.pattern.as_str())
    }
}

/// Whether a name may fit both of two patterns, in which `*` stands for any text and `?` for one
/// character.
fn overlap(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    // Whether the rests of the patterns from here on overlap.
    let mut rests = vec![vec![false; b.len() + 1]; a.len() + 1];
    for i in (0..=a.len()).rev() {
        for j in (0..=b.len()).rev() {
            rests[i][j] = match (a.get(i), b.get(j)) {
                (None, None) => true,
                (Some(b'*'), other) => rests[i + 1][j] || other.is_some() && rests[i][j + 1],
                (other, Some(b'*')) => rests[i][j + 1] || other.is_some() && rests[i + 1][j],
                (Some(x), Some(y)) => (x == y || [x, y].contains(&&b'?')) && rests[i + 1][j + 1],
                _ => false,
            };
        }
    }
    rests[0][0]
}

impl LimitFile {
    fn entry(self, pattern: String) -> Result<Entry, String> {
        let is_pattern = pattern.contains(['*', '?']);
        // `<op>` and the like stand for any text.
        let any = |name: &str| {
            let parts = name.split('<').map(|part| part.split_once('>').map_or(part, |(_, p)| p));
            parts.collect::<Vec<_>>().join("*")
        };
        let declared: Vec<&Metric> = match is_pattern {
            true => metric::all().filter(|m| overlap(&pattern, &any(m.name))).collect(),
            false => metric::find(&pattern).into_iter().collect(),
        };
        if declared.is_empty() {
            return Err("no metric has this name (docs/reference/metrics.md)".into());
        }
        if self.better.is_none() && declared.iter().all(|m| m.better == Better::Open) {
            let why = "it has no better direction of its own: add better = \"less\" or \"more\"";
            return Err(why.into());
        }
        let is_time = |m: &&Metric| matches!(m.unit, Unit::Ns) || m.name.ends_with("_ns");
        let times = declared.iter().copied().filter(|m| is_time(m)).count();
        if self.absolute.is_some() && times != 0 && times != declared.len() {
            let why = "it fits times and other metrics, so that absolute has no unit: write an \
                       entry for each";
            return Err(why.into());
        }
        let relative = self.relative.map(|amount| amount.part()).transpose();
        let relative = relative.map_err(|why| format!("relative: {why}"))?;
        let absolute = self.absolute.map(|amount| amount.value(times != 0)).transpose();
        let absolute = absolute.map_err(|why| format!("absolute: {why}"))?;
        if relative.is_none() && absolute.is_none() {
            return Err("it has no limit: add relative = \"5 %\", absolute, or both".into());
        }
        Ok(Entry { pattern, relative, absolute, better: self.better })
    }
}

impl Amount {
    /// Reads a percentage, as a part of 1.
    fn part(&self) -> Result<f64, String> {
        let Amount::Text(text) = self else {
            return Err("a percentage is a text such as \"5 %\"".to_owned());
        };
        let number = text.strip_suffix('%').and_then(|text| text.trim().parse::<f64>().ok());
        let number = number.filter(|n| (0.0..=1e6).contains(n));
        number.map(|n| n / 100.0).ok_or_else(|| format!("\"{text}\" is no percentage such as 5 %"))
    }

    /// Reads a time in ns, a percentage as a number, or a number.
    fn value(&self, is_time: bool) -> Result<f64, String> {
        let value = match self {
            Amount::Number(n) if is_time && *n != 0.0 => {
                return Err(format!("{n} has no unit; write a time such as \"20us\""));
            }
            Amount::Number(n) => *n,
            Amount::Text(text) if is_time => text.parse::<TimeSpan>()?.0 as f64,
            Amount::Text(text) => {
                let number = text.trim_end_matches('%').trim().parse::<f64>();
                number.map_err(|_| format!("\"{text}\" is no number"))?
            }
        };
        match value.is_finite() && value >= 0.0 {
            true => Ok(value),
            false => Err(format!("{value} is no limit: it must be 0 or more")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> String {
        Gate::parse(text, "g").unwrap_err().why
    }

    #[test]
    fn limits_are_read_with_their_units() {
        let gate = Gate::parse(
            "[metric.throughput]\nrelative = '2 %'\n[metric.'wakeup_latency_p9*']\nabsolute = '20us'\n\
             [metric.migrations]\nbetter = 'less'\nabsolute = 10\n",
            "g",
        );
        let gate = gate.unwrap();
        let throughput = Limit { relative: Some(0.02), absolute: None, more_is_worse: false };
        assert_eq!(gate.limit("throughput"), Some(throughput));
        let latency = Limit { relative: None, absolute: Some(20_000.0), more_is_worse: true };
        assert_eq!(gate.limit("wakeup_latency_p99"), Some(latency));
        assert_eq!(gate.limit("wakeup_latency_p50"), None);
        assert_eq!(gate.limit("migrations").unwrap().absolute, Some(10.0));
        assert_eq!(Gate::default().metrics().count(), 7);
    }

    /// Each metric that a pattern fits keeps its own direction, and one without direction is not
    /// checked.
    #[test]
    fn a_pattern_has_the_directions_of_its_metrics() {
        let gate = |pattern: &str| {
            Gate::parse(&format!("[metric.'{pattern}']\nrelative = '5 %'\n"), "g").unwrap()
        };
        let every = ["*", "?*", "*a*"].map(gate);
        for metric in metric::all().filter(|m| m.name.contains('a')) {
            // A name with a part is no metric by itself.
            let name = metric.name.replace(['<', '>'], "");
            let Some(declared) = metric::find(&name) else { continue };
            for gate in &every {
                let worse = gate.limit(&name).map(|limit| limit.more_is_worse);
                let expected = match declared.better {
                    Better::Less => Some(true),
                    Better::More => Some(false),
                    Better::Open => None,
                };
                assert_eq!(worse, expected, "{name}");
            }
        }
        for pattern in ["*latency*", "w*", "*_p99", "wakeup_latency_p?9", "wakeup*"] {
            let limit = gate(pattern).limit("wakeup_latency_p99").expect(pattern);
            assert!(limit.more_is_worse, "{pattern}");
        }
        assert_eq!(gate("*latency*").limit("throughput"), None);
        assert_eq!(gate("c*").limit("context_switches"), None);
        assert!(gate("cpu*").limit("cpu_overhead").unwrap().more_is_worse);
        let both = "[metric.context_switches]\nrelative='1 %'\nbetter='less'\n\
                    [metric.'*']\nrelative='5 %'\n";
        assert!(Gate::parse(both, "g").unwrap().limit("context_switches").is_some());
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(why("").contains("metric"), "{}", why(""));
        assert!(why("[metric]").contains("nothing would be checked"));
        assert!(why("[metric.trougput]\nrelative='1 %'").contains("no metric has this name"));
        assert!(why("[metric.throughput]").contains("no limit"));
        assert!(why("[metric.throughput]\nrelative=5").contains("percentage"));
        assert!(why("[metric.throughput]\nrelative='-5 %'").contains("percentage"));
        assert!(why("[metric.migrations]\nrelative='5 %'").contains("better direction"));
        assert!(why("[metric.wakeup_latency_p99]\nabsolute=20").contains("no unit"));
        assert!(why("[metric.'*']\nabsolute='20us'").contains("no unit"));
        assert!(why("[metric.'x*y']\nrelative='1 %'").contains("no metric has this name"));
        assert!(why("[metric.'context_s*']\nrelative='1 %'").contains("better direction"));
        assert!(why("[metric.throughput]\nrelativ='5 %'").contains("relativ"));
        assert!(why("false_discovery_rate=2\n[metric.throughput]\nrelative='1 %'").contains("0.5"));
    }
}
