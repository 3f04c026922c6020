// SPDX-License-Identifier: GPL-2.0-only

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Throughput and p99 wake-up latency in us of each run of a scheduler; None: the run was ejected.
type Runs = Vec<Option<(f64, f64)>>;

fn document(schedulers: &[(&str, Runs)]) -> Document {
    let run = |name: &str, seed: usize, values: &Option<(f64, f64)>| {
        let kind = if values.is_some() { "none" } else { "error" };
        let (throughput, latency) = values.unwrap_or((1e9, 1.0));
        let metric = |value: f64, unit: &str| json!({ "value": value, "unit": unit });
        json!({
            "scheduler": name, "seed": seed, "target": "sim",
            "exit": { "kind": kind, "code": 0, "message": "" },
            "stop": { "kind": "duration", "message": "" },
            "counts": values.is_some(), "trace_hash": "", "wall_ns": 1, "virtual_ns": 1,
            "metrics": { "throughput": metric(throughput, "op/s"), "wakeup_latency_p99": metric(latency * 1e3, "ns") },
            "tasks": [], "cgroups": [], "notes": [],
        })
    };
    let runs: Vec<Value> = schedulers
        .iter()
        .flat_map(|(name, values)| values.iter().enumerate().map(|(seed, v)| run(name, seed, v)))
        .collect();
    let names: Vec<Value> =
        schedulers.iter().map(|(name, _)| json!({ "scheduler": name, "object": null })).collect();
    let json = json!({
        "manifest": {
            "scxlab": { "version": "0", "commit": null }, "target": "sim", "targets": ["sim"],
            "schedulers": names,
            "workload": { "workload": "w", "name": "w", "unit": "op", "hash": "0" },
            "machine": { "machine": "m", "name": "m", "description": "", "nr_cpus": 1, "fingerprint": "0" },
            "runs": schedulers[0].1.len(), "seed": 0, "duration_ns": null,
            "start_offset_max_ns": 0, "compute_noise_permille": 0,
        },
        "runs": runs,
    });
    serde_json::from_value(json).unwrap()
}

fn steady(throughput: f64, latency: f64) -> Runs {
    (0..5).map(|i| Some((throughput + f64::from(i), latency + f64::from(i)))).collect()
}

fn sentence(schedulers: &[(&str, Runs)]) -> String {
    verdict(&[document(schedulers)]).sentence
}

#[test]
fn the_better_scheduler_is_taken_and_its_price_is_told() {
    let base = ("base", steady(1000.0, 500.0));
    let said =
        sentence(&[base.clone(), ("a", steady(1100.0, 900.0)), ("b", steady(1200.0, 500.0))]);
    assert!(said.starts_with("Take b: throughput 20.0 % higher than under base."), "{said}");
    let said = sentence(&[base.clone(), ("a", steady(1100.0, 900.0))]);
    assert!(said.starts_with("It depends on the goal: for throughput take a"), "{said}");
    assert!(
        said.contains("for p99 wake-up latency stay with base (a has it 79.7 % higher)"),
        "{said}"
    );
    let said =
        sentence(&[base.clone(), ("a", steady(1100.0, 900.0)), ("c", steady(1000.0, 300.0))]);
    assert!(said.contains("for p99 wake-up latency take c ("), "{said}");
    // What the other one costs is told, too.
    let said = sentence(&[base.clone(), ("a", steady(1100.0, 900.0)), ("c", steady(800.0, 300.0))]);
    assert!(said.contains("take c (throughput 20.0 % lower)"), "{said}");
    let said = sentence(&[base.clone(), ("a", steady(1000.0, 300.0))]);
    assert!(said.starts_with("Take a: p99 wake-up latency 39.8 % lower"), "{said}");
    assert!(sentence(&[base.clone(), ("a", base.1.clone())]).starts_with("Stay with base"));
}

#[test]
fn an_ejected_scheduler_is_out_and_an_ejected_baseline_leaves_no_verdict() {
    let mut broken = steady(9000.0, 1.0);
    broken[3] = None;
    let base = ("base", steady(1000.0, 500.0));
    let said = verdict(&[document(&[base.clone(), ("fast", broken.clone())])]);
    assert!(said.sentence.starts_with("Stay with base"), "{said:?}");
    assert_eq!(said.reasons[0], "fast is out: 1 of 5 ejected.");
    let said = sentence(&[("base", broken), ("a", base.1)]);
    assert!(said.starts_with("There is no verdict"), "{said}");
}

#[test]
fn what_is_too_small_to_matter_or_from_too_few_samples_decides_nothing() {
    let base = ("base", steady(1000.0, 500.0));
    // 0.5 % of the throughput; 10 us.
    for (throughput, latency) in [(1005.0, 500.0), (1000.0, 490.0)] {
        let said = sentence(&[base.clone(), ("a", steady(throughput, latency))]);
        assert!(said.starts_with("Stay with base"), "{said}");
    }
    let with_wakeups = |count: f64| {
        let mut document = document(&[base.clone(), ("a", steady(1000.0, 300.0))]);
        for run in &mut document.runs {
            let value = scxlab_lab::run::MetricValue { value: count, unit: "1".into() };
            run.metrics.insert("wakeups".to_owned(), value);
        }
        verdict(&[document]).sentence
    };
    assert!(with_wakeups(99.0).starts_with("Stay with base"));
    assert!(with_wakeups(100.0).starts_with("Take a"));
}

#[test]
fn a_scheduler_that_does_not_keep_limits_is_out() {
    let mut document = document(&[("base", steady(1e3, 500.0)), ("a", steady(3e3, 500.0))]);
    let value = scxlab_lab::run::MetricValue { value: 200.0, unit: "%".into() };
    document.runs[7].metrics.insert("quota_excess".to_owned(), value);
    let said = verdict(&[document]);
    assert!(said.sentence.starts_with("Stay with base"), "{said:?}");
    assert_eq!(said.reasons[0], "a is out: 1 of 5 with more CPU time than cpu.max allows.");
}

#[test]
fn one_run_each_decides_nothing() {
    let one = |throughput| vec![Some((throughput, 5.0))];
    let said = verdict(&[document(&[("base", one(1.0)), ("a", one(100.0))])]);
    assert!(said.sentence.starts_with("Undecided") && said.sure.contains("-n 5"), "{said:?}");
}

#[test]
fn sessions_that_disagree_are_said_to_depend_on_the_case() {
    let (slow, fast) = (steady(1000.0, 500.0), steady(1100.0, 500.0));
    let a = document(&[("base", slow.clone()), ("a", fast.clone())]);
    let b = document(&[("base", fast), ("a", slow)]);
    assert_eq!(verdict(&[a.clone(), b]).sentence, "It depends on the case.");
    assert_eq!(verdict(&[a.clone(), a]).sentence, "Take a in all 2 cases.");
}

proptest! {
    /// Whatever the values, only a scheduler whose runs all count is taken.
    #[test]
    fn only_whole_schedulers_are_taken(
        base in prop::collection::vec((1.0..1e6f64, 1.0..1e6f64), 4),
        other in prop::collection::vec(prop::option::weighted(0.9, (1.0..1e6f64, 1.0..1e6f64)), 4),
    ) {
        let whole = other.iter().all(Option::is_some);
        let base = base.into_iter().map(Some).collect();
        let said = sentence(&[("base", base), ("a", other)]);
        prop_assert!(whole || !said.starts_with("Take"), "{said}");
    }
}
