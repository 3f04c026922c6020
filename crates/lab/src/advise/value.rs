// SPDX-License-Identifier: GPL-2.0-only
//! The value of a goal's quantity in a run.
//!
//! Owns: what is missing for a quantity, in words. A missing value is never 0.

use scxlab_kernel::metrics::{Watched, WatchedTasks, quantile};
use scxlab_workload::Program;

use super::goal::{Measure, Term};
use crate::fairness::{unfairness, unweighted};
use crate::metric::{
    CONTEXT_SWITCHES, LOCK_WAIT, LOCK_WAITS, Metric, Part, RUN_QUEUE_WAIT, THROUGHPUT,
    WAKEUP_LATENCY, WAKEUPS, WORK_UNITS,
};
use crate::run::{Run, StopKind};

/// A finished run, and the waits of the tasks that the goals name.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    pub run: &'a Run,
    /// None if the target does not know the waits of single tasks, as a real kernel.
    pub watched: Option<&'a Watched>,
}

impl Seen<'_> {
    /// Returns the value of a quantity; else the reason why the run has none.
    pub fn value(&self, measure: &Measure) -> Result<f64, String> {
        match measure {
            Measure::Quantile { metric, part, tasks: None } => {
                self.metric(&metric.named(part.name))
            }
            Measure::Quantile { metric, part, tasks: Some(tasks) } => {
                let group = self.group(tasks)?;
                let waits = match **metric == RUN_QUEUE_WAIT {
                    true => &group.run_queue_wait,
                    false => &group.wakeup_latency,
                };
                let at = part.quantile.expect("a distribution's parts are quantiles");
                match waits.count() {
                    0 => Err(format!("no task \"{tasks}\" {}", verb(metric))),
                    _ => Ok(quantile(&waits.histogram(), at) as f64),
                }
            }
            Measure::Metric(name) => self.metric(name),
            Measure::Finish => match self.run.stop.kind {
                StopKind::AllExited => Ok(self.run.virtual_ns as f64),
                _ => Err("the workload did not finish".to_owned()),
            },
            Measure::Unfairness => unfairness(&self.run.tasks, &self.run.cgroups),
        }
    }

    fn metric(&self, name: &str) -> Result<f64, String> {
        let found = self.run.metrics.get(name).map(|metric| metric.value);
        found.ok_or_else(|| format!("target {} has no metric {name} of this run", self.run.target))
    }

    fn group(&self, tasks: &str) -> Result<&WatchedTasks, String> {
        let lacks =
            || format!("target {} does not measure the waits of single tasks", self.run.target);
        let watched = self.watched.ok_or_else(lacks)?;
        let group = watched.groups().iter().find(|group| group.pattern == tasks);
        let group = group.expect("a run watches the tasks of all goals");
        if group.tasks == 0 {
            let mut names: Vec<&str> = self.run.tasks.iter().map(|t| t.name.as_str()).collect();
            names.dedup();
            names.truncate(8);
            return Err(format!("no task is called \"{tasks}\"; tasks are {}", names.join(", ")));
        }
        Ok(group)
    }

    /// Checks that a run has enough samples to answer for a term. A quantile needs at least one
    /// sample beyond it: p99 needs 100 samples.
    pub fn suffices(&self, term: &Term) -> Result<(), String> {
        let value = self.value(&term.measure)?;
        match &term.measure {
            Measure::Metric(name) if *name == THROUGHPUT.name || *name == WORK_UNITS.name => {
                match value {
                    0.0 => Err("the workload finishes no unit of work".to_owned()),
                    _ => Ok(()),
                }
            }
            Measure::Quantile { metric, part, tasks } => {
                let (needed, found) = (samples(part), self.samples(metric, tasks.as_deref())?);
                if found >= needed {
                    return Ok(());
                }
                let of = tasks.as_deref().unwrap_or("tasks");
                Err(format!("{of} {} {found} times; {} needs {needed}", verb(metric), part.name))
            }
            _ => Ok(()),
        }
    }

    fn samples(&self, metric: &Metric, tasks: Option<&str>) -> Result<u64, String> {
        if let Some(tasks) = tasks {
            let group = self.group(tasks)?;
            return Ok(match *metric == RUN_QUEUE_WAIT {
                true => group.run_queue_wait.count(),
                false => group.wakeup_latency.count().saturating_sub(group.tasks),
            });
        }
        let counter = match *metric {
            RUN_QUEUE_WAIT => &CONTEXT_SWITCHES,
            LOCK_WAIT => &LOCK_WAITS,
            WAKEUP_LATENCY => &WAKEUPS,
            // The number of a guest's waits is no metric.
            _ => return Ok(u64::MAX),
        };
        let count = self.metric(counter.name)? as u64;
        // A thread's start offset ends with a wake-up.
        let begins = if *metric == WAKEUP_LATENCY { self.run.tasks.len() as u64 } else { 0 };
        Ok(count.saturating_sub(begins))
    }
}

/// Number of samples from which a quantile tells something.
pub fn samples(part: &Part) -> u64 {
    let beyond = 10_000 - u64::from(part.quantile.unwrap_or(10_000));
    10_000u64.checked_div(beyond).unwrap_or(1)
}

fn verb(metric: &Metric) -> &'static str {
    match *metric {
        RUN_QUEUE_WAIT => "waited for a CPU",
        LOCK_WAIT => "waited for a lock",
        _ => "woke up",
    }
}

/// Tells why a workload cannot answer for a quantity, as far as its program shows it.
pub fn refused_by(program: &Program, measure: &Measure) -> Option<String> {
    match measure {
        Measure::Finish => program.duration.map(|length| {
            format!("the workload ends after its duration of {length}, whatever the scheduler")
        }),
        Measure::Unfairness => unweighted(program),
        _ => None,
    }
}
