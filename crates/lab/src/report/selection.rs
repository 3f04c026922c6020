// SPDX-License-Identifier: GPL-2.0-only
//! Choice of the metrics that a report shows.

use wildmatch::WildMatch;

use crate::metric::{self, COUNTER, Metric};

/// The metrics that a report shows: by default the few that decide between schedulers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection(Vec<Choice>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    Deciding,
    All,
    /// Names, in which `*` stands for any text and `?` for one character.
    Named(String),
}

impl Default for Selection {
    fn default() -> Selection {
        Selection(vec![Choice::Deciding])
    }
}

impl Selection {
    pub const ALL: &str = "all";
    pub const DECIDING: &str = "default";

    pub fn all() -> Selection {
        Selection(vec![Choice::All])
    }

    /// Reads `default`, `all`, names of metrics and patterns; refuses a name that no metric has.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Selection, String> {
        words.into_iter().map(choice).collect::<Result<_, _>>().map(Selection)
    }

    /// Tells whether a metric is shown that has a row of its own.
    pub fn takes_row(&self, name: &str, is_deciding: bool) -> bool {
        self.0.iter().any(|choice| match choice {
            Choice::Deciding => is_deciding,
            Choice::All => true,
            Choice::Named(pattern) => WildMatch::new(pattern).matches(name),
        })
    }

    /// Tells whether a metric is chosen by its very name.
    pub fn names(&self, name: &str) -> bool {
        self.0.iter().any(|choice| matches!(choice, Choice::Named(pattern) if pattern == name))
    }

    /// Tells whether a metric without a row of its own is shown. Metrics of one CPU are shown only
    /// by name, because there can be thousands.
    pub fn takes(&self, name: &str, is_per_cpu: bool) -> bool {
        self.0.iter().any(|choice| match choice {
            Choice::Deciding => false,
            Choice::All => !is_per_cpu,
            Choice::Named(pattern) => WildMatch::new(pattern).matches(name),
        })
    }
}

fn choice(word: &str) -> Result<Choice, String> {
    let word = word.trim();
    match word {
        Selection::DECIDING => return Ok(Choice::Deciding),
        Selection::ALL => return Ok(Choice::All),
        _ => {}
    }
    let known = match word.contains(['*', '?']) {
        true => metric::all().any(|metric| may_match(metric, word)),
        false => metric::find(word).is_some(),
    };
    if known {
        return Ok(Choice::Named(word.to_owned()));
    }
    let all = "`all` shows every metric of a run";
    if word.is_empty() {
        return Err(format!("names of metrics are needed; {all}"));
    }
    if word.contains(['*', '?']) {
        return Err(format!("no metric's name matches \"{word}\"; {all}"));
    }
    let near = nearest(word);
    Err(format!("no metric is called \"{word}\"; the nearest is {near}. {all}"))
}

/// Tells whether a pattern may match a name of the metric. Names of a family whose parts depend on
/// the run are not known here.
fn may_match(metric: &Metric, pattern: &str) -> bool {
    let pattern_is = |name: &str| WildMatch::new(pattern).matches(name);
    let start = |text: &str| text.split(['<', '*', '?']).next().unwrap_or_default().to_owned();
    let (mine, its) = (start(metric.name), start(pattern));
    match (metric.name.contains('<'), metric.parts.is_empty()) {
        (false, _) => pattern_is(metric.name),
        (true, false) => metric.parts.iter().any(|part| pattern_is(&metric.named(part.name))),
        (true, true) => mine.starts_with(&its) || its.starts_with(&mine),
    }
}

/// Returns the name of a metric that shares most with the word.
fn nearest(word: &str) -> String {
    let names = metric::all().filter(|metric| **metric != COUNTER).flat_map(|metric| {
        let parts: Vec<String> = metric.parts.iter().map(|part| metric.named(part.name)).collect();
        if parts.is_empty() { vec![metric.name.to_owned()] } else { parts }
    });
    names.max_by_key(|name| likeness(name, word)).unwrap_or_default()
}

/// Returns the number of pairs of neighbouring letters that two words share, less a part of the
/// difference of their lengths.
fn likeness(name: &str, word: &str) -> i64 {
    let pairs = |text: &str| text.as_bytes().windows(2).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (of_name, of_word) = (pairs(name), pairs(word));
    let shared = of_word.iter().filter(|pair| of_name.contains(pair)).count() as i64;
    4 * shared - (name.len() as i64 - word.len() as i64).abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_patterns_choose() {
        let some = Selection::parse(["sched.*", "wakeup_latency_p9*"]).unwrap();
        assert!(some.takes("sched.kicks", false));
        assert!(some.takes_row("wakeup_latency_p99.9", false));
        assert!(!some.takes_row("throughput", true));
        assert!(Selection::default().takes_row("throughput", true));
        assert!(!Selection::default().takes("sched.kicks", false));
        let all = Selection::parse(["all"]).unwrap();
        assert!(all.takes("sched.kicks", false) && !all.takes("cpu3_busy", true));
        assert!(Selection::parse(["cpu3_busy"]).unwrap().takes("cpu3_busy", true));
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_nearest() {
        let why = Selection::parse(["wakeup_latency_p98"]).unwrap_err();
        assert!(why.contains("wakeup_latency_p9"), "{why}");
        let why = Selection::parse(["trougput"]).unwrap_err();
        assert!(why.contains("throughput"), "{why}");
        assert!(Selection::parse(["nothing*"]).is_err());
    }
}
