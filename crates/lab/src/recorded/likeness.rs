// SPDX-License-Identifier: GPL-2.0-only
//! How like its recording a replay is: the figures of both, under the recording's scheduler.
//!
//! Owns: the run of the replay, the comparison, and the tolerance.
//! Does not: compare under other schedulers, of which the recording tells nothing.

use std::sync::Arc;

use scxlab_machine::Machine;
use scxlab_recording::Figures;
use scxlab_trace::Tracer;
use scxlab_workload::{Perturb, Program};
use serde::Serialize;

use crate::agreement::TOLERANCE_PERCENT;
use crate::input::{NoFiles, SchedulerInput};
use crate::metric::{Metric, SWITCHES_INVOLUNTARY, SWITCHES_VOLUNTARY, WAKEUPS, WORK_UNITS};
use crate::prepare::Prepared;
use crate::run::Run;
use crate::scheduler::DEFAULT_CLASS;
use crate::session::MAX_LENGTH;
use crate::sim::{SimSpec, simulate};

const NS_PER_SEC: u64 = 1_000_000_000;

/// Noise in the lengths of work, without which threads that run in step make of their waits
/// whatever one order of events happens to be.
const NOISE_PERMILLE: u32 = 10;

/// A run of a program that ends by itself is cut off at so many times the recording's length.
const CAP: u64 = 10;

/// Counts differ by chance by so many times their square root.
const CHANCE: u64 = 2;

/// Time in run queues below this part of the CPU time differs by chance.
const SHORT: u64 = 100;

/// The figures of a recording and of a run of its replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Likeness {
    pub recorded: Figures,
    pub replayed: Figures,
    /// Whether the program ends by itself, so that its length is compared, and not its work.
    pub is_finite: bool,
}

/// One figure of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pair {
    pub name: &'static str,
    pub unit: &'static str,
    pub recorded: u64,
    pub replayed: u64,
    /// Whether they differ by more than the tolerance, other than by chance.
    pub differs: bool,
}

impl Pair {
    /// Returns the difference in percent; None if the recording has none of it.
    pub fn percent(&self) -> Option<f64> {
        (self.recorded > 0).then(|| (self.replayed as f64 / self.recorded as f64 - 1.0) * 100.0)
    }
}

impl Likeness {
    /// Runs a replay, and compares.
    pub(super) fn of(
        recorded: Figures,
        program: &Program,
        machine: &Arc<Machine>,
    ) -> Result<Likeness, String> {
        if recorded.length > MAX_LENGTH {
            return Err(format!("it is longer than the {} s of a run", MAX_LENGTH / NS_PER_SEC));
        }
        let run = run(program, machine, recorded.length)?;
        let is_finite = program.duration.is_none();
        Ok(Likeness { recorded, replayed: figures(&run), is_finite })
    }

    /// Returns numbers with the ratio of the speeds of replay and recording: work in a time.
    fn speeds(&self) -> [u128; 2] {
        let cross = |work: &Figures, time: &Figures| {
            u128::from(work.units.max(1)) * u128::from(time.length.max(1))
        };
        [cross(&self.replayed, &self.recorded), cross(&self.recorded, &self.replayed)]
    }

    /// Returns the speed of the replay in percent of the recording's.
    pub(super) fn speed_percent(&self) -> u128 {
        let [replayed, recorded] = self.speeds();
        replayed.saturating_mul(100) / recorded.max(1)
    }

    /// Returns how far apart the speeds, and the CPU times, of both are: the sum of the differences
    /// in thousandths of the smaller one.
    pub(super) fn distance(&self) -> u128 {
        let apart = |a: u128, b: u128| a.abs_diff(b).saturating_mul(1000) / a.min(b).max(1);
        let [replayed, recorded] = self.speeds();
        let cpu = apart(self.replayed.run_ns.into(), self.recorded.run_ns.into());
        apart(replayed, recorded).saturating_add(cpu)
    }

    /// Returns the figures side by side.
    pub fn pairs(&self) -> Vec<Pair> {
        let (a, b) = (&self.recorded, &self.replayed);
        let progress = match self.is_finite {
            true => ("length", "ns", a.length, b.length, 0),
            false => ("units of work", "", a.units, b.units, by_chance(a.units)),
        };
        let all = [
            progress,
            ("CPU time", "ns", a.run_ns, b.run_ns, 0),
            ("time in run queues", "ns", a.queue_ns, b.queue_ns, a.run_ns / SHORT),
            ("voluntary switches", "", a.voluntary, b.voluntary, by_chance(a.voluntary)),
            ("involuntary switches", "", a.involuntary, b.involuntary, by_chance(a.involuntary)),
            ("wake-ups", "", a.wakeups, b.wakeups, by_chance(a.wakeups)),
        ];
        let pair = |(name, unit, recorded, replayed, chance): (_, _, u64, u64, u64)| {
            let apart = recorded.abs_diff(replayed).saturating_sub(chance);
            let differs =
                u128::from(apart) * 100 > u128::from(recorded) * u128::from(TOLERANCE_PERCENT);
            Pair { name, unit, recorded, replayed, differs }
        };
        all.map(pair).into()
    }
}

/// Returns by how much a count may differ by chance.
fn by_chance(count: u64) -> u64 {
    CHANCE * count.max(1).isqrt()
}

/// Runs a replay under the default class.
fn run(program: &Program, machine: &Arc<Machine>, length: u64) -> Result<Run, String> {
    let eevdf = SchedulerInput::resolve(DEFAULT_CLASS, &NoFiles).map_err(|e| e.to_string())?;
    let eevdf = Prepared::simulated(&eevdf, machine).map_err(|e| e.to_string())?;
    let perturb = Perturb { start_offset_max: 0, compute_noise_permille: NOISE_PERMILLE };
    let spec = SimSpec {
        cap: Some(length.saturating_mul(CAP).min(MAX_LENGTH)),
        perturb,
        ..SimSpec::new(machine, program, &eevdf, 1)
    };
    let (run, _) = simulate(&spec, Tracer::default(), &|_| None).map_err(|e| e.to_string())?;
    if run.counts { Ok(run) } else { Err(run.stop.message) }
}

/// Returns the figures of a run.
fn figures(run: &Run) -> Figures {
    let count = |of: &Metric| run.metrics.get(of.name).map_or(0, |metric| metric.value as u64);
    Figures {
        length: run.virtual_ns,
        units: count(&WORK_UNITS),
        run_ns: run.tasks.iter().map(|task| task.run_ns).sum(),
        queue_ns: run.tasks.iter().filter_map(|task| task.wait_ns).sum(),
        voluntary: count(&SWITCHES_VOLUNTARY),
        involuntary: count(&SWITCHES_INVOLUNTARY),
        wakeups: count(&WAKEUPS),
    }
}
