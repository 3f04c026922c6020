// SPDX-License-Identifier: GPL-2.0-only
//! Recordings of a real kernel as workloads: programs are recorded in a guest under two schedulers,
//! and the recordings under the first are simulated under both.
//!
//! Time is counted, and what is compared are counts and shares, so that the host's load has no
//! effect. The guest has one CPU, because the emulator has one thread for all. `BLESS=1` writes the
//! figures to the page.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use scxlab_lab::recorded::{self, Parameters};
use scxlab_recording::Figures;
use scxlab_trace::TaskName;
use serde_json::Value;

use super::{PRINTS, SHOW, decode};
use crate::bench::{Bench, Done, metric, scxlab};
use crate::benchmarks::{cc1, check_rows, short, write_build};

const PAGE: &str = "docs/benchmarks/recordings.md";

/// The scheduler of the recordings that are simulated, and one to predict.
const RECORDED: &str = "eevdf";
const PREDICTED: &str = "vtime";

/// Largest difference of a replay from its recording, relative to the recording.
const TOLERANCE: f64 = 0.15;
/// The same of hackbench, whose waits differ by 20 % (standard deviation) from one recording to the
/// next.
const WIDE_TOLERANCE: f64 = 0.3;
/// Counts below this one differ by chance.
const FEW: f64 = 100.0;
/// Part of the CPU time from which a task's share is compared.
const SMALL_SHARE: f64 = 0.01;

struct Case {
    name: &'static str,
    command: String,
    /// Programs that the command starts.
    programs: Vec<String>,
    /// Whether the command can run while a scheduler is attached.
    predicted: bool,
    /// Number of recordings, whose counts are added.
    recordings: usize,
    tolerance: f64,
}

fn cases(build: &Path) -> Vec<Case> {
    let case = |name, command: &str, programs: &[&str]| Case {
        name,
        command: command.to_owned(),
        programs: programs.iter().map(|program| (*program).to_owned()).collect(),
        predicted: true,
        recordings: 1,
        tolerance: TOLERANCE,
    };
    let (build, cc1) = (build.display().to_string(), cc1());
    vec![
        Case {
            recordings: 4,
            tolerance: WIDE_TOLERANCE,
            ..case("hackbench", "/usr/bin/hackbench --groups 1 --loops 20", &["hackbench"])
        },
        case(
            "sysbench_threads",
            "/usr/bin/sysbench threads --thread-yields=100 --thread-locks=2 --events=30 \
             --threads=4 --time=0 run",
            &["sysbench"],
        ),
        case(
            "stress_ng_cpu",
            "/usr/bin/stress-ng --cpu 4 --cpu-method loop --timeout 1",
            &["stress-ng"],
        ),
        case("make", &format!("/bin/sh {build}"), &["make", "gcc", "as", "ld", &cc1, &build]),
        // `run` refuses to start beside a scheduler.
        Case {
            predicted: false,
            recordings: 3,
            ..case(
                "schbench",
                "/init run --on host -m host -s eevdf -w schbench,workers=8 --duration 700ms",
                &[],
            )
        },
    ]
}

/// What a recording, or a simulation of it, did.
#[derive(Clone, Default)]
struct Counts {
    voluntary: f64,
    involuntary: f64,
    wakeups: f64,
    /// Time on a CPU by task, in ns. Tasks of one name are numbered in the order of their ids,
    /// which are others in each recording.
    run_ns: BTreeMap<(String, usize), f64>,
}

/// Names of a recording's tasks in a simulation, and their keys in `Counts`.
type Names = BTreeMap<String, (String, usize)>;

impl Counts {
    fn of_recording(path: &str, bytes: &[u8], scheduler: &str) -> (Counts, Names) {
        let parameters = Parameters::parse(path, "").unwrap();
        let open = || -> std::io::Result<Box<dyn std::io::Read>> { Ok(Box::new(bytes)) };
        let read = recorded::read(path, &open, &parameters).unwrap_or_else(|why| panic!("{why}"));
        // A busy host may make the recorder lose some events, which it counts.
        let (lost, all) = (read.history.lost, read.imported.events.all());
        assert!(lost * 100 <= all, "{path}: {lost} of {all} events are lost");
        let mut damage = read.imported.damage();
        damage.retain(|what| !what.starts_with("the recorder lost "));
        assert_eq!(damage, Vec::<String>::new());
        assert_eq!(read.imported.scheduler.as_deref(), Some(scheduler), "{path}");
        let tasks = &read.history.tasks;
        let figures = Figures::of(&read.history, &read.replay);
        let mut counts = Counts {
            voluntary: figures.voluntary as f64,
            involuntary: figures.involuntary as f64,
            wakeups: figures.wakeups as f64,
            run_ns: BTreeMap::new(),
        };
        let mut names = Names::new();
        for (task, _) in tasks.iter().zip(&read.replay.kept).filter(|(_, kept)| **kept) {
            let TaskName { comm, pid, .. } = &task.name;
            let alike = || tasks.iter().filter(|other| other.name.comm == *comm);
            let key = (comm.clone(), alike().filter(|other| other.name.pid < *pid).count());
            let single = alike().count() == 1;
            names.insert(if single { comm.clone() } else { format!("{comm}.{pid}") }, key.clone());
            counts.run_ns.insert(key, task.run_ns as f64);
        }
        (counts, names)
    }

    /// Takes the counts of a simulated run.
    fn of_run(run: &Value, names: &Names) -> Counts {
        assert_eq!(run["exit"]["kind"], "none", "{run}");
        assert_eq!(run["stop"]["kind"], "all_exited", "{run}");
        let mut run_ns = BTreeMap::new();
        for task in run["tasks"].as_array().unwrap() {
            let name = task["name"].as_str().unwrap();
            // A forked task has the number of its instance behind its name.
            let key = names.get(name).or_else(|| names.get(name.strip_suffix("-0")?));
            run_ns.insert(key.expect(name).clone(), task["run_ns"].as_f64().unwrap());
        }
        Counts {
            voluntary: metric(run, "switches_voluntary"),
            involuntary: metric(run, "switches_involuntary"),
            wakeups: metric(run, "wakeups"),
            run_ns,
        }
    }

    fn add(&mut self, other: Counts) {
        self.voluntary += other.voluntary;
        self.involuntary += other.involuntary;
        self.wakeups += other.wakeups;
        for (task, ns) in other.run_ns {
            *self.run_ns.entry(task).or_default() += ns;
        }
    }

    fn share(&self, task: &(String, usize)) -> f64 {
        self.run_ns.get(task).copied().unwrap_or(0.0) / self.run_ns.values().sum::<f64>()
    }

    /// Returns the shares, in percent, of the task whose shares differ most, relative to its share
    /// here. Small shares do not count.
    fn share_apart(&self, other: &Counts) -> Option<[f64; 2]> {
        let shares = self.run_ns.keys().map(|task| [self.share(task), other.share(task)]);
        let large = shares.filter(|[share, _]| *share >= SMALL_SHARE);
        let apart = |[a, b]: &[f64; 2]| (b / a - 1.0).abs();
        let most = large.max_by(|a, b| apart(a).total_cmp(&apart(b)));
        most.map(|shares| shares.map(|share| share * 100.0))
    }
}

#[derive(Clone, Copy)]
enum Measure {
    Switches,
    Voluntary,
    Involuntary,
    Wakeups,
}

const MEASURES: [Measure; 4] =
    [Measure::Switches, Measure::Voluntary, Measure::Involuntary, Measure::Wakeups];

impl Measure {
    fn of(self, counts: &Counts) -> f64 {
        match self {
            Measure::Switches => counts.voluntary + counts.involuntary,
            Measure::Voluntary => counts.voluntary,
            Measure::Involuntary => counts.involuntary,
            Measure::Wakeups => counts.wakeups,
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Measure::Switches => "switches",
            Measure::Voluntary => "voluntary switches",
            Measure::Involuntary => "involuntary switches",
            Measure::Wakeups => "wake-ups",
        })
    }
}

/// Returns the rows of a case, and those that are too far apart.
fn compare(bench: &Bench, case: &Case, done: &Done) -> (String, Vec<String>) {
    let Case { name, predicted, recordings, tolerance, .. } = case;
    let mut real = vec![Counts::default(); 1 + usize::from(*predicted)];
    let mut simulated: [Counts; 2] = Default::default();
    for recording in 0..*recordings {
        let path = format!("/{name}.{recording}.pftrace");
        let files = decode(done, &path);
        assert_eq!(files.len(), 2, "{name}: {done}");
        let read = files.iter().zip([RECORDED, PREDICTED]).take(real.len());
        let read = read.map(|(bytes, scheduler)| Counts::of_recording(&path, bytes, scheduler));
        let (counts, names): (Vec<Counts>, Vec<Names>) = read.unzip();
        real.iter_mut().zip(counts).for_each(|(sum, counts)| sum.add(counts));
        let counts = simulate(bench, name, &files[0], &names[0]);
        simulated.iter_mut().zip(counts).for_each(|(sum, counts)| sum.add(counts));
    }
    let (mut rows, mut faults) = (String::new(), Vec::new());
    let mut row = |measure: &str, values: [Option<[f64; 2]>; 2], bounded: bool| {
        let row = format!("| {name} | {measure} |{}{}\n", cells(values[0]), cells(values[1]));
        let apart = values[0].map_or(0.0, |[real, model]| (model / real - 1.0).abs());
        if bounded && (apart.is_nan() || apart > *tolerance) {
            faults.push(row.clone());
        }
        rows.push_str(&row);
    };
    for measure in MEASURES {
        let pair = |at: usize| Some([measure.of(real.get(at)?), measure.of(&simulated[at])]);
        let values = [pair(0), pair(1)];
        if values.iter().flatten().any(|[real, _]| *real >= FEW) {
            row(&measure.to_string(), values, values[0].is_some_and(|[real, _]| real >= FEW));
        }
    }
    // The largest difference, of the task with that share.
    let pair = |at: usize| real.get(at)?.share_apart(&simulated[at]);
    row("share of CPU time, %, of the task with the largest difference", [pair(0), pair(1)], true);
    (rows, faults)
}

/// Returns the cells of a measured and a simulated figure.
fn cells(values: Option<[f64; 2]>) -> String {
    let Some([real, model]) = values else { return " | | |".to_owned() };
    format!(" {} | {} | {:+.0} % |", short(real), short(model), (model / real - 1.0) * 100.0)
}

/// Returns the counts of a recording's simulations under both schedulers.
fn simulate(bench: &Bench, name: &str, bytes: &[u8], names: &Names) -> [Counts; 2] {
    let file = bench.file(&format!("{name}.pftrace"), bytes);
    let args = ["run", "-s", RECORDED, "-s", PREDICTED, "-w", &file, "-m", &file];
    let done = bench.output(scxlab(&args).args(["--format", "json"]));
    assert_eq!(done.code, Some(0), "{name}: {done}");
    let runs = done.runs();
    [0, 1].map(|at| Counts::of_run(&runs[at], names))
}

/// A replay under the recording's scheduler has the recording's switches, wake-ups and shares. How
/// well it predicts another scheduler is told, and not bounded.
#[test]
#[ignore = "long"]
fn a_recording_of_a_real_kernel_replays() {
    let Some(bench) = Bench::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cases = cases(&write_build(folder.path()));
    let mut script = format!("exec >/dev/console 2>&1\n{SHOW}\n");
    for Case { name, command, recordings, .. } in &cases {
        for path in (0..*recordings).map(|recording| format!("/{name}.{recording}.pftrace")) {
            script.push_str(&format!(
                "/init record -o {path} --duration 100s -- {command}\necho \"{name}: $?\"\nshow {path}\n"
            ));
        }
    }
    let mut programs = vec!["gzip", "base64"];
    programs.extend(cases.iter().flat_map(|case| case.programs.iter().map(String::as_str)));
    let args = ["-s", RECORDED, "-s", PREDICTED, "-m", "1n1c1t", "--accel", "counted"];
    let done = bench.script(&[&args[..], &["--duration", PRINTS]].concat(), &script, &programs);
    let (mut rows, mut faults) = (String::new(), Vec::new());
    for case in &cases {
        let (more, wrong) = compare(&bench, case, &done);
        rows.push_str(&more);
        faults.extend(wrong);
    }
    println!("{rows}");
    assert!(faults.is_empty(), "too far apart:\n{}", faults.concat());
    check_rows(PAGE, &rows);
}
