// SPDX-License-Identifier: GPL-2.0-only
//! Simulated experiments with known truth, and everything that must not be averaged away.

use std::path::PathBuf;

use indexmap::IndexMap;
use scxlab_lab::results::Version;
use scxlab_lab::run::MetricValue;
use serde_json::json;

use super::*;

/// Draws: a fixed sequence of numbers (splitmix64).
struct Draws(u64);

impl Draws {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64 + 1e-17
    }

    /// A skewed factor of mean 1, log-normal with this spread.
    fn factor(&mut self, spread: f64) -> f64 {
        let (r, angle) = (self.uniform(), self.uniform());
        let normal = (-2.0 * r.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
        (spread * normal - spread * spread / 2.0).exp()
    }
}

fn manifest(workload: &str, machine: &str) -> Manifest {
    serde_json::from_value(json!({
        "scxlab": { "version": "0", "commit": null },
        "target": "sim",
        "targets": ["sim"],
        "schedulers": [],
        "workload": { "workload": workload, "name": workload, "unit": "loop", "hash": workload },
        "machine": { "machine": machine, "name": machine, "description": "", "nr_cpus": 1, "fingerprint": machine },
        "runs": 1, "seed": 1, "duration_ns": null, "start_offset_max_ns": 0, "compute_noise_permille": 10,
    }))
    .unwrap()
}

fn run(workload: &str, seed: u64, metrics: &[(&str, &'static str, f64)]) -> StoredRun {
    let value = |unit: &&'static str, value| MetricValue { value, unit: (*unit).into() };
    StoredRun {
        workload: workload.to_owned(),
        machine: "m".to_owned(),
        target: "sim".to_owned(),
        scheduler: "s".to_owned(),
        seed,
        counts: true,
        exit: Exit::NONE.to_owned(),
        exit_message: String::new(),
        stop: "duration".to_owned(),
        never_ran: 0,
        virtual_ns: 1,
        trace_hash: String::new(),
        metrics: metrics
            .iter()
            .map(|(name, unit, x)| ((*name).to_owned(), value(unit, *x)))
            .collect::<IndexMap<_, _>>(),
        tasks: Vec::new(),
    }
}

fn folder(workloads: &[&str], runs: Vec<StoredRun>) -> Folder {
    Folder {
        path: PathBuf::new(),
        scxlab: Version { version: "0".to_owned(), commit: None },
        manifests: workloads.iter().map(|w| manifest(w, "m")).collect(),
        runs,
    }
}

const WORKLOADS: [&str; 4] = ["w0", "w1", "w2", "w3"];

/// Runs of four workloads, each with a throughput and a latency with an effect of the seed and
/// noise of its own. `worse` is the factor by which NEW is worse in the first workload.
fn experiment(draws: &mut Draws, runs: u32, spread: f64, worse: f64) -> (Folder, Folder) {
    let (mut base, mut new) = (Vec::new(), Vec::new());
    for (at, workload) in WORKLOADS.iter().enumerate() {
        let worse = if at == 0 { worse } else { 1.0 };
        for seed in 0..u64::from(runs) {
            let shared = draws.factor(0.1);
            let mut one = |worse: f64| {
                let rate = 1000.0 * shared * draws.factor(spread) / worse;
                let latency = 1e6 * shared * draws.factor(spread) * worse;
                let metrics =
                    [("throughput", "loop/s", rate), ("wakeup_latency_p99", "ns", latency)];
                run(workload, seed, &metrics)
            };
            base.push(one(1.0));
            new.push(one(worse));
        }
    }
    (folder(&WORKLOADS, base), folder(&WORKLOADS, new))
}

/// Makes one adaptive comparison, as `scxlab check -n auto` does.
fn adaptive(draws: &mut Draws, gate: &Gate, spread: f64, worse: f64) -> Report {
    let (mut base, mut new) = (folder(&WORKLOADS, Vec::new()), folder(&WORKLOADS, Vec::new()));
    let mut done = 0;
    until_decided::<Refusal>(gate, &[4, 8, 16, 32, 64], |_, runs| {
        let (more_base, more_new) = experiment(draws, runs - done, spread, worse);
        let moved = |run: StoredRun| StoredRun { seed: run.seed + u64::from(done), ..run };
        base.runs.extend(more_base.runs.into_iter().map(moved));
        new.runs.extend(more_new.runs.into_iter().map(moved));
        done = runs;
        Ok((base.clone(), new.clone()))
    })
    .unwrap()
}

/// Runs that differ by noise alone raise an alarm in less than 1 % of 1,000 comparisons, with few
/// and with many runs, and even if no change at all is allowed in no more than the rate of the
/// gate.
#[test]
fn noise_raises_no_alarm() {
    let strict =
        "[metric.throughput]\nrelative = '0 %'\n[metric.wakeup_latency_p99]\nrelative = '0 %'";
    let strict = Gate::parse(strict, "strict").unwrap();
    for (gate, most) in [(Gate::default(), 9), (strict, 15)] {
        for runs in [3, 10] {
            let mut draws = Draws(u64::from(runs));
            let alarms = (0..1000).filter(|_| {
                let (base, new) = experiment(&mut draws, runs, 0.05, 1.0);
                compare(&base, &new, &gate, 1).unwrap().outcome() == Outcome::Regressed
            });
            let alarms = alarms.count();
            println!("{alarms} alarms of 1000, {runs} runs, at most {most} allowed");
            assert!(alarms <= most, "{alarms} alarms of 1000, {runs} runs");
        }
    }
}

/// The same if runs are added until all is decided, which looks at the results several times.
#[test]
fn looking_often_raises_no_alarm() {
    let mut draws = Draws(11);
    let gate = Gate::default();
    let reports: Vec<Report> = (0..1000).map(|_| adaptive(&mut draws, &gate, 0.02, 1.0)).collect();
    let alarms = reports.iter().filter(|r| r.outcome() == Outcome::Regressed).count();
    let passed = reports.iter().filter(|r| r.outcome() == Outcome::Passed).count();
    println!("{alarms} alarms and {passed} passes of 1000");
    assert!(alarms <= 9, "{alarms} alarms of 1000");
    assert!(passed >= 950, "{passed} of 1000 passed");
}

/// A planted regression of 5 % of the throughput is found in at least 95 % of comparisons.
#[test]
fn a_planted_regression_is_found() {
    for (seed, spread) in [(1, 0.005), (2, 0.02), (3, 0.03)] {
        let mut draws = Draws(seed);
        let gate = Gate::default();
        let found = (0..300).filter(|_| {
            let report = adaptive(&mut draws, &gate, spread, 1.0 / 0.95);
            report.findings.iter().any(|f| {
                f.metric == "throughput"
                    && f.cell.workload == "w0"
                    && f.verdict == Verdict::Regressed
            })
        });
        let found = found.count();
        println!("{found} of 300 found, spread {spread}");
        assert!(found >= 285, "{found} of 300, spread {spread}");
    }
}

#[test]
fn identical_runs_pass_even_if_there_is_one() {
    let one = || {
        let run = run("w0", 1, &[("throughput", "loop/s", 5.0)]);
        folder(&["w0"], vec![StoredRun { trace_hash: "abc".to_owned(), ..run }])
    };
    let report = compare(&one(), &one(), &Gate::default(), 1).unwrap();
    assert_eq!(report.outcome(), Outcome::Passed);
    let mut other = one();
    other.runs[0].trace_hash = "abd".to_owned();
    let report = compare(&one(), &other, &Gate::default(), 1).unwrap();
    assert_eq!(report.outcome(), Outcome::Undecided);
}

fn ten() -> Folder {
    let runs = (0..10).map(|seed| run("w0", seed, &[("throughput", "loop/s", 100.0)]));
    folder(&["w0"], runs.collect())
}

/// Returns what was lost if `change` is made to the third run of NEW.
fn lost(change: impl Fn(&mut StoredRun)) -> (Outcome, String) {
    let mut new = ten();
    // The other runs are far better: no mean may hide the lost one.
    for run in &mut new.runs {
        run.metrics.get_mut("throughput").unwrap().value = 200.0;
    }
    change(&mut new.runs[2]);
    let report = compare(&ten(), &new, &Gate::default(), 1).unwrap();
    let lost: Vec<String> =
        report.lost.iter().map(|l| format!("{}: {}", l.place(), l.what)).collect();
    (report.outcome(), lost.join("; "))
}

#[test]
fn failed_runs_are_never_averaged_away() {
    let (outcome, why) = lost(|run| {
        run.counts = false;
        run.exit = "error_stall".to_owned();
    });
    assert_eq!(outcome, Outcome::Regressed);
    assert!(why.starts_with("w0 on m, seed 2: ejected in NEW: error_stall"), "{why}");
    let (outcome, why) = lost(|run| {
        run.counts = false;
        run.stop = "deadlock".to_owned();
    });
    assert_eq!((outcome, &*why), (Outcome::Regressed, "w0 on m, seed 2: cut off in NEW: deadlock"));
    let (outcome, why) = lost(|run| run.never_ran = 3);
    assert_eq!(outcome, Outcome::Regressed);
    assert_eq!(why, "w0 on m, seed 2: 3 tasks never or hardly ever ran in NEW");
    let (outcome, why) = lost(|run| run.seed = 77);
    assert_eq!((outcome, &*why), (Outcome::Regressed, "w0 on m, seed 2: missing in NEW"));
    let (outcome, why) = lost(|run| run.metrics.clear());
    assert_eq!(outcome, Outcome::Regressed);
    assert_eq!(why, "w0 on m: 1 of 10 runs of NEW lack throughput");
}

#[test]
fn what_failed_before_is_no_alarm_and_no_pass() {
    let mut base = ten();
    base.runs.iter_mut().for_each(|run| run.counts = false);
    let report = compare(&base, &base, &Gate::default(), 1).unwrap();
    assert_eq!(report.outcome(), Outcome::Undecided);
    assert!(report.notes[0].contains("10 of 10 runs failed in both"), "{:?}", report.notes);
    let report = compare(&base, &ten(), &Gate::default(), 1).unwrap();
    assert_eq!((report.outcome(), report.lost.len()), (Outcome::Passed, 0));
    assert!(report.notes[0].contains("10 of 10 runs failed in BASE only"), "{:?}", report.notes);
}

#[test]
fn other_things_are_refused() {
    let refused = |base: &Folder, new: &Folder| {
        compare(base, new, &Gate::default(), 1).unwrap_err().to_string()
    };
    let mut new = ten();
    new.manifests[0].workload.hash = "other".to_owned();
    assert!(refused(&ten(), &new).contains("differ in the contents of w0 on m: w0 and other"));
    let mut new = ten();
    new.manifests[0].machine.fingerprint = "other".to_owned();
    assert!(refused(&ten(), &new).contains("differ in the machine of w0 on m"));
    let mut new = ten();
    new.manifests[0].duration_ns = Some(5);
    assert!(refused(&ten(), &new).contains("the duration"));
    let new = folder(&["w1"], vec![run("w1", 1, &[])]);
    assert!(refused(&ten(), &new).contains("no workload and machine are in both"));
    assert!(refused(&ten(), &folder(&["w0"], Vec::new())).contains("NEW has no runs"));
    let mut base = ten();
    base.runs[0].scheduler = "t".to_owned();
    assert!(refused(&base, &ten()).contains("which are to be compared"));
    let bare = folder(&["w0"], vec![run("w0", 1, &[("kicks", "1", 1.0)])]);
    assert!(refused(&bare, &bare).contains("no run of BASE has a metric of the gate"));
}

/// A cell of BASE that NEW lacks is lost, not left out.
#[test]
fn a_missing_cell_is_a_regression() {
    let mut base = ten();
    base.manifests.push(manifest("w1", "m"));
    base.runs.push(run("w1", 1, &[("throughput", "loop/s", 1.0)]));
    let report = compare(&base, &ten(), &Gate::default(), 1).unwrap();
    assert_eq!(report.outcome(), Outcome::Regressed);
    assert_eq!(report.lost[0].place(), "w1 on m");
}

/// A change must exceed both limits.
#[test]
fn both_limits_count() {
    let with = |base: f64, new: f64| {
        let all = |x: f64| {
            let runs = (0..10).map(|seed| {
                run("w0", seed, &[("wakeup_latency_p99", "ns", x + seed as f64 * x / 1e4)])
            });
            folder(&["w0"], runs.collect())
        };
        compare(&all(base), &all(new), &Gate::default(), 1).unwrap().findings[0].verdict
    };
    assert_eq!(with(1e3, 2e3), Verdict::Passed, "1 us more, of 20 allowed");
    assert_eq!(with(1e6, 1.03e6), Verdict::Passed, "3 % more, of 5 allowed");
    assert_eq!(with(1e6, 1.1e6), Verdict::Regressed);
    assert_eq!(with(1e6, 0.9e6), Verdict::Improved);
}

#[test]
fn ci_forms_say_the_same() {
    let mut new = ten();
    new.runs[2].counts = false;
    new.runs[2].exit = "error <\u{1b}&>".to_owned();
    for (at, run) in new.runs.iter_mut().enumerate() {
        run.metrics.get_mut("throughput").unwrap().value = 80.0 + at as f64 / 10.0;
    }
    let report = compare(&ten(), &new, &Gate::default(), 1).unwrap();
    let xml = crate::ci::junit(&report);
    let xml = roxmltree::Document::parse(&xml).unwrap();
    let suite = xml.descendants().find(|n| n.has_tag_name("testsuite")).unwrap();
    assert_eq!(suite.attribute("failures"), Some("2"));
    let failures: Vec<&str> = xml
        .descendants()
        .filter(|n| n.has_tag_name("failure"))
        .map(|n| n.attribute("message").unwrap())
        .collect();
    assert!(failures[0].contains("error <\\u{1b}&>"), "{failures:?}");
    assert!(failures[1].contains("-19."), "{failures:?}");
    let github = crate::ci::github(&report);
    assert_eq!(github.lines().count(), 2, "{github}");
    assert!(github.starts_with("::error title=scxlab%3A w0 on m::w0 on m, seed 2"), "{github}");
    assert!(github.contains("limit -2 %25"), "{github}");
    let text = document(&report, false).text(Default::default());
    assert!(text.starts_with("REGRESSED w0 on m, seed 2: ejected"), "{text}");
    assert!(text.ends_with("pairs of runs\n"), "{text}");
}
