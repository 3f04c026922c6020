// SPDX-License-Identifier: GPL-2.0-only
//! The metrics of one run, as a target measures them. The table takes only declared names, and
//! gives each value the declared unit.

use indexmap::IndexMap;
use scxlab_workload::timers::TimerTotals;

use super::{
    Metric, TIMER_LATENCY_MAX, TIMER_LATENCY_MEAN, TIMER_SLACK_MEAN, TIMER_SLACK_MIN, TIMERS_MISSED,
};
use crate::run::MetricValue;

/// Metrics in the order in which the target added them. Metrics that the target does not measure
/// are absent.
#[derive(Debug)]
pub struct MetricTable {
    values: IndexMap<String, MetricValue>,
    /// Name of the workload's unit of work.
    work: String,
}

impl MetricTable {
    pub fn new(unit_of_work: &str) -> MetricTable {
        MetricTable { values: IndexMap::new(), work: unit_of_work.to_owned() }
    }

    pub fn into_values(self) -> IndexMap<String, MetricValue> {
        self.values
    }

    pub fn put(&mut self, metric: &Metric, value: f64) {
        self.insert(metric, metric.name.to_owned(), value);
    }

    pub fn count(&mut self, metric: &Metric, value: u64) {
        self.put(metric, value as f64);
    }

    /// Adds the metric of a family whose name contains `part`.
    pub fn put_part(&mut self, metric: &Metric, part: impl std::fmt::Display, value: f64) {
        self.insert(metric, metric.named(part), value);
    }

    pub fn count_part(&mut self, metric: &Metric, part: impl std::fmt::Display, value: u64) {
        self.put_part(metric, part, value as f64);
    }

    fn insert(&mut self, metric: &Metric, name: String, value: f64) {
        assert!(metric.declares(&name), "{name} is no metric of {}", metric.name);
        let unit = metric.unit_of(&name, &self.work);
        self.values.insert(name, MetricValue { value, unit });
    }

    /// Adds the quantiles of a distribution that has `count` samples of a time, except the
    /// quantiles that need more samples. `quantile` returns the time at a fraction, given in
    /// 1/10,000.
    pub fn times(&mut self, metric: &Metric, count: u64, max: u64, quantile: impl Fn(u32) -> u64) {
        for part in metric.parts.iter().filter(|part| count >= part.samples_min) {
            let at = part.quantile.expect("a distribution's parts are quantiles");
            let value = if at == 10_000 { max } else { quantile(at) };
            self.count_part(metric, part.name, value);
        }
    }

    /// Adds a quotient, unless the divisor is 0.
    pub fn ratio(&mut self, metric: &Metric, sum: f64, count: f64) {
        if count > 0.0 {
            self.put(metric, sum / count);
        }
    }

    /// Adds the figures about timers, unless no timer was due.
    pub fn timers(&mut self, totals: &TimerTotals) {
        let Some(slack_min) = totals.slack_min else { return };
        self.put(&TIMER_SLACK_MIN, slack_min as f64);
        self.ratio(&TIMER_SLACK_MEAN, totals.slack_sum as f64, totals.slacks as f64);
        self.ratio(&TIMER_LATENCY_MEAN, totals.latency_sum as f64, totals.latencies as f64);
        if totals.latencies > 0 {
            self.count(&TIMER_LATENCY_MAX, totals.latency_max);
        }
        self.count(&TIMERS_MISSED, totals.missed);
    }
}
