// SPDX-License-Identifier: GPL-2.0-only
//! Generators beside the programs that they model, on the same real kernel under the default class.
//!
//! Compares what does not depend on the speed of the guest: tasks, switches and wake-ups for each
//! unit of work, and the mean time that a task runs from one switch to the next. Time is counted,
//! so that the host's load has no effect. `BLESS=1` writes the figures to the page.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::bench::{Bench, metric, root};

const PAGE: &str = "docs/benchmarks/real-programs.md";

/// Largest difference of a generator from its program, relative to the program.
const TOLERANCE: f64 = 0.25;

/// Source files of the build, and its job slots.
const FILES: u32 = 8;
const JOBS: u32 = 4;

struct Pair {
    machine: &'static str,
    generator: &'static str,
    command: String,
    /// Programs that the command starts.
    programs: Vec<String>,
    /// Units of work of both, or 1 if no measure is per unit.
    units: f64,
    /// Number of runs of each in one boot, whose measures are averaged.
    runs: u32,
    /// Number of boots of each, whose measures are averaged.
    boots: u32,
    measures: &'static [Measure],
}

#[derive(Clone, Copy)]
enum Measure {
    Tasks,
    Voluntary,
    Involuntary,
    Wakeups,
    RunLength,
}

use Measure::*;

impl Measure {
    /// Returns the measure's mean over runs of so many units of work each.
    fn mean(self, runs: &[Value], units: f64) -> f64 {
        runs.iter().map(|run| self.of(run, units)).sum::<f64>() / runs.len() as f64
    }

    fn of(self, run: &Value, units: f64) -> f64 {
        let tasks = run["tasks"].as_array().expect("a list of tasks");
        let sum = |key: &str| tasks.iter().filter_map(|task| task[key].as_f64()).sum::<f64>();
        match self {
            Tasks => tasks.len() as f64,
            Voluntary => metric(run, "switches_voluntary") / units,
            Involuntary => metric(run, "switches_involuntary") / units,
            Wakeups => metric(run, "wakeups") / units,
            RunLength => sum("run_ns") / sum("switches") / 1000.0,
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tasks => "tasks",
            Voluntary => "voluntary switches per unit",
            Involuntary => "involuntary switches per unit",
            Wakeups => "wake-ups per unit",
            RunLength => "time on a CPU, mean, us",
        })
    }
}

fn pairs(build: &Path) -> Vec<Pair> {
    let sysbench = |options: &str| format!("/usr/bin/sysbench {options} --threads=4 --time=0 run");
    let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let mut compilers: Vec<String> = named(&["make", "gcc", "as", "ld"]);
    compilers.extend([cc1(), build.display().to_string()]);
    vec![
        Pair {
            machine: "1n1c1t",
            generator: "hackbench,groups=1,loops=400",
            command: "/usr/bin/hackbench --groups 1 --loops 400".into(),
            programs: named(&["hackbench"]),
            units: 160_000.0,
            runs: 4,
            boots: 2,
            measures: &[Tasks, Voluntary, Involuntary, Wakeups],
        },
        Pair {
            machine: "1n1c1t",
            generator: "sysbench_threads,threads=4,thread_locks=2,yields=100,requests=200",
            command: sysbench("threads --thread-yields=100 --thread-locks=2 --events=200"),
            programs: named(&["sysbench"]),
            units: 200.0,
            runs: 1,
            boots: 1,
            measures: &[Voluntary, Involuntary, Wakeups],
        },
        Pair {
            machine: "1n1c1t",
            generator: "sysbench_cpu,threads=4,requests=2000,max_prime=2000,division=20ns",
            command: sysbench("cpu --cpu-max-prime=2000 --events=2000"),
            programs: named(&["sysbench"]),
            units: 2000.0,
            runs: 1,
            boots: 1,
            measures: &[RunLength],
        },
        Pair {
            machine: "1n1c1t",
            generator: "sysbench_memory,threads=4,total=128MiB",
            command: sysbench("memory --memory-total-size=128M"),
            programs: named(&["sysbench"]),
            units: 131_072.0,
            runs: 1,
            boots: 1,
            measures: &[RunLength],
        },
        Pair {
            machine: "1n1c1t",
            generator: "hogs,tasks=4,duration=1s",
            command: "/usr/bin/stress-ng --cpu 4 --cpu-method loop --timeout 1".into(),
            programs: named(&["stress-ng"]),
            units: 1.0,
            runs: 1,
            boots: 1,
            measures: &[RunLength],
        },
        Pair {
            machine: "1n1c1t",
            generator: "kernbench,jobs=4,files=8,work=100ms,parse=20ms,link=50ms",
            command: format!("/bin/sh {}", build.display()),
            programs: compilers,
            units: FILES.into(),
            runs: 6,
            boots: 1,
            measures: &[Tasks, Voluntary, Wakeups],
        },
    ]
}

/// Returns the path of the compiler proper, which gcc starts.
pub fn cc1() -> String {
    let asked = Command::new("gcc").arg("-print-prog-name=cc1").output().expect("gcc");
    String::from_utf8(asked.stdout).expect("a path").trim().to_owned()
}

/// Writes a script that makes a small project and builds it with make.
pub fn write_build(folder: &Path) -> PathBuf {
    let mut text = "#!/bin/sh\nset -e\ncd /tmp\n".to_owned();
    let files = 0..FILES;
    for file in files.clone() {
        text.push_str("echo '\n");
        // Files of four lengths.
        for function in 0..(file % 4 + 1) * 4 {
            text.push_str(&format!(
                "int f{file}_{function}(int *a, int n) {{ int s = 0; for (int i = 0; i < n; i++) \
                 s += a[i] * (i ^ {function}); return s; }}\n"
            ));
        }
        text.push_str(&format!("' >f{file}.c\n"));
    }
    let objects: Vec<String> = files.map(|file| format!("f{file}.o")).collect();
    text.push_str(&format!(
        "echo '\nall.o: {}\n\tld -r -o $@ $^\n%.o: %.c\n\tgcc -I. -c -o $@ $<\n' >Makefile\n\
         exec make -j{JOBS}\n",
        objects.join(" ")
    ));
    let path = folder.join("build.sh");
    fs::write(&path, text).unwrap();
    path
}

fn run(pair: &Pair, workload: &str) -> Vec<Value> {
    // Each machine has its own environment, because two run at the same time.
    let bench = Bench::new().expect("the first one was found");
    let runs = pair.runs.to_string();
    let mut args = vec!["-s", "eevdf", "-m", pair.machine, "-w", workload, "-n", &runs];
    args.extend(["--accel", "counted"]);
    args.extend(pair.programs.iter().flat_map(|program| ["--vm-program", program]));
    let runs: Vec<_> = (0..pair.boots).flat_map(|_| bench.run(&args).runs()).collect();
    for run in &runs {
        assert!(metric(run, "work_units") >= 1.0, "{workload}: {}", run["notes"]);
    }
    runs
}

/// Runs both sides of a pair, and returns the rows of the page's table and the differences that are
/// too large.
fn compare(pair: &Pair) -> (String, Vec<String>) {
    let command = format!("cmd:{}", pair.command);
    let (real, generated) = std::thread::scope(|scope| {
        let real = scope.spawn(|| run(pair, &command));
        let generated = run(pair, pair.generator);
        (real.join().expect("the command's run"), generated)
    });
    let name = pair.generator.split(',').next().unwrap_or_default();
    let (mut rows, mut faults) = (String::new(), Vec::new());
    for measure in pair.measures {
        let (real, model) = (measure.mean(&real, pair.units), measure.mean(&generated, pair.units));
        let difference = model / real - 1.0;
        let row = format!(
            "| {name} | {measure} | {} | {} | {:+.0} % |\n",
            short(real),
            short(model),
            difference * 100.0
        );
        if difference.abs() > TOLERANCE || !difference.is_finite() {
            faults.push(row.clone());
        }
        rows.push_str(&row);
    }
    (rows, faults)
}

/// Returns a figure with three significant digits.
pub fn short(value: f64) -> String {
    let digits = if value == 0.0 { 0 } else { 2 - value.abs().log10().floor() as i32 };
    format!("{value:.*}", digits.clamp(0, 5) as usize)
}

#[test]
#[ignore = "long"]
fn generators_have_the_shape_of_their_programs() {
    if Bench::new().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let build = write_build(folder.path());
    let compared: Vec<_> = pairs(&build).iter().map(compare).collect();
    let rows: String = compared.iter().map(|(rows, _)| rows.as_str()).collect();
    println!("{rows}");
    let faults: Vec<_> = compared.into_iter().flat_map(|(_, faults)| faults).collect();
    assert!(
        faults.is_empty(),
        "too far apart:
{}",
        faults.concat()
    );
    check_rows(PAGE, &rows);
}

/// Checks that the page has a row for each measure, or writes the rows into it with BLESS.
pub fn check_rows(file: &str, rows: &str) {
    let path = root().join(file);
    let page = fs::read_to_string(&path).unwrap();
    let is_row = |line: &&str| line.starts_with("| ") && line.contains(" % |");
    if std::env::var_os("BLESS").is_some() {
        let at = page.find("| ---").and_then(|at| Some(at + page[at..].find('\n')? + 1)).unwrap();
        let rest: String =
            page[at..].split_inclusive('\n').skip_while(|line| is_row(&line.trim_end())).collect();
        fs::write(&path, format!("{}{rows}{rest}", &page[..at])).unwrap();
        return;
    }
    let key = |row: &str| row.split(" | ").take(2).collect::<Vec<_>>().join(" | ");
    let of_page: Vec<_> = page.lines().filter(is_row).map(key).collect();
    let measured: Vec<_> = rows.lines().map(key).collect();
    assert_eq!(of_page, measured, "BLESS=1 writes the rows of {file}");
}
