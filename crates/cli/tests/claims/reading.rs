// SPDX-License-Identifier: GPL-2.0-only
//! Results of a command's runs: the figure of each seed.

use std::path::Path;
use std::process::Command;

use scxlab_lab::metric::{self, Metric};
use serde_json::Value;

/// Quantity that a check measures: a metric of the whole run, of a cgroup or of tasks. A metric of
/// the whole run may have another metric subtracted (`less`) or be divided by another (`per`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantity<'a> {
    pub metric: &'a str,
    pub cgroup: Option<&'a str>,
    pub task: Option<&'a str>,
    pub less: Option<&'a str>,
    pub per: Option<&'a str>,
}

impl Quantity<'_> {
    /// Returns the unit that the quantity's name implies. The text of a bound needs it, because no
    /// run gives the bound's unit.
    pub fn unit(&self) -> &'static str {
        if self.cgroup.is_some() || self.task.is_some() || self.metric == "idle" {
            return if self.metric == "migrations" { "1" } else { "%" };
        }
        if self.per.is_some() {
            return if self.metric == "ops_time" { "ns" } else { "1" };
        }
        let is_time = |declared: &Metric| declared.unit_of(self.metric, "1") == "ns";
        if metric::find(self.metric).is_some_and(is_time) { "ns" } else { "1" }
    }
}

/// The runs of one command, or the reason why there are none.
pub struct Reading {
    runs: Result<Vec<Value>, String>,
}

impl Reading {
    /// Runs a command in the project's folder.
    pub fn of(root: &Path, args: &[String]) -> Reading {
        let mut command = Command::new(env!("CARGO_BIN_EXE_scxlab"));
        // The deadline is long, because virtual machines that run side by side are slow.
        command
            .args(args)
            .args(["--format", "json", "-j", "1", "--deadline", "60min"])
            .current_dir(root);
        // The user's cache is for commands that need its kernel.
        if !args.iter().any(|arg| arg == "vm") {
            command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
        }
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        let runs = match serde_json::from_slice::<Value>(&out.stdout) {
            Ok(Value::Object(mut results)) => match results.remove("runs") {
                Some(Value::Array(runs)) => Ok(runs),
                _ => Err("no runs".into()),
            },
            _ => Err(said.trim().to_owned()),
        };
        Reading { runs: runs.map_err(|why| format!("scxlab {}: {why}", args.join(" "))) }
    }

    /// Returns the reason why the runs are unusable: there are none, or one had a failure.
    pub fn fault(&self) -> Option<String> {
        let runs = match &self.runs {
            Ok(runs) => runs,
            Err(why) => return Some(why.clone()),
        };
        let succeeded = |run: &Value| {
            let stop = run["stop"]["kind"].as_str().unwrap_or_default();
            let all_ran = run["never_ran"].as_array().is_none_or(Vec::is_empty);
            run["exit"]["kind"] == "none" && ["duration", "all_exited"].contains(&stop) && all_ran
        };
        let bad = runs.iter().find(|run| !succeeded(run))?;
        let [scheduler, seed, exit, stop, starved] =
            ["scheduler", "seed", "exit", "stop", "never_ran"].map(|key| &bad[key]);
        Some(format!("{scheduler}, seed {seed}: exit {exit}, stop {stop}, never ran: {starved}"))
    }

    fn runs(&self) -> &[Value] {
        self.runs.as_deref().unwrap_or_default()
    }

    /// Returns one value per seed; None if the run did not measure the quantity.
    pub fn values(&self, quantity: &Quantity<'_>) -> Vec<Option<f64>> {
        self.runs().iter().map(|run| value(run, quantity)).collect()
    }

    pub fn unit(&self, quantity: &Quantity<'_>) -> &str {
        let metric = |run: &'_ Value| run["metrics"].get(quantity.metric).is_some();
        if quantity.cgroup.or(quantity.task).or(quantity.per).is_some() {
            return quantity.unit();
        }
        let run = self.runs().iter().find(|run| metric(run));
        run.and_then(|run| run["metrics"][quantity.metric]["unit"].as_str())
            .unwrap_or(quantity.unit())
    }

    #[cfg(test)]
    pub fn made(metric: &str, values: &[Option<f64>]) -> Reading {
        let run = |value: &Option<f64>| match value {
            Some(value) => serde_json::json!({ "metrics": { metric: { "value": value } } }),
            None => serde_json::json!({ "metrics": {} }),
        };
        Reading { runs: Ok(values.iter().map(run).collect()) }
    }
}

fn value(run: &Value, quantity: &Quantity<'_>) -> Option<f64> {
    match (quantity.cgroup, quantity.task) {
        (Some(path), _) => of_cgroup(run, path, quantity.metric),
        (_, Some(name)) => of_tasks(run, name, quantity.metric),
        _ => combined(run, quantity),
    }
}

/// Returns a figure of the whole run: the metric, minus the metric `less` if given, divided by the
/// metric `per` if given.
fn combined(run: &Value, quantity: &Quantity<'_>) -> Option<f64> {
    let less = quantity.less.map_or(Some(0.0), |name| metric(run, name))?;
    let per = quantity.per.map_or(Some(1.0), |name| metric(run, name))?;
    Some((metric(run, quantity.metric)? - less) / per).filter(|value| value.is_finite())
}

fn metric(run: &Value, name: &str) -> Option<f64> {
    match name {
        "idle" => idle(run),
        "ops_insns" => of_operations(run, "insns"),
        "ops_time" => of_operations(run, "mean"),
        _ => run["metrics"].get(name)?["value"].as_f64(),
    }
}

/// Operations that are called for tasks that wake up, sleep and run.
const OPERATIONS: [&str; 10] = [
    "select_cpu",
    "enqueue",
    "dequeue",
    "dispatch",
    "runnable",
    "running",
    "stopping",
    "quiescent",
    "tick",
    "update_idle",
];

/// Sums, over `OPERATIONS`, the number of calls times the cost of one call. `what` is the kind of
/// cost: `insns` or `mean`.
fn of_operations(run: &Value, what: &str) -> Option<f64> {
    let cost = |op: &&str| {
        let calls = metric(run, &format!("op_{op}_calls"))?;
        Some(calls * metric(run, &format!("op_{op}_{what}"))?)
    };
    OPERATIONS.iter().filter_map(cost).reduce(|a, b| a + b)
}

/// Returns the idle share of the machine's CPU time in percent.
fn idle(run: &Value) -> Option<f64> {
    let idle = metric(run, "cpu_idle")?;
    Some(100.0 * idle / (idle + metric(run, "cpu_busy")? + metric(run, "cpu_overhead")?))
}

/// Returns the words for the name of a derived metric, and any other name unchanged.
pub fn derived(name: &str) -> &str {
    match name {
        "cpu" => "CPU time",
        "cpu_least" => "least CPU time",
        "cpu_most" => "most CPU time",
        "idle" => "idle time",
        "ops_insns" => "all these operations",
        "ops_time" => "time of all operations",
        name => name,
    }
}

/// Returns a figure of a cgroup in percent. `name` is `together` (time in which all of its tasks
/// ran at once), `share` (part of the CPU time of the cgroup and its siblings) or `cpu` (CPU time
/// as a part of one CPU's time).
fn of_cgroup(run: &Value, path: &str, name: &str) -> Option<f64> {
    let group = run["cgroups"].as_array()?.iter().find(|g| g["path"] == path)?;
    match name {
        "together" => Some(group["coscheduled_permille"].as_f64()? / 10.0),
        "share" => Some(group["share_permille"].as_f64()? / 10.0),
        "cpu" => Some(100.0 * group["run_ns"].as_f64()? / run["virtual_ns"].as_f64()?),
        _ => panic!("a cgroup has no {name}"),
    }
}

/// Returns a figure of the tasks whose names begin with `start`. `name` is `cpu` (the sum of their
/// CPU times), `cpu_least` or `cpu_most` (the smallest or largest CPU time of a task), each in
/// percent of one CPU's time, or `migrations`.
fn of_tasks(run: &Value, start: &str, name: &str) -> Option<f64> {
    let tasks = run["tasks"].as_array()?.iter();
    let ours = tasks.filter(|t| t["name"].as_str().is_some_and(|n| n.starts_with(start)));
    let virtual_ns = run["virtual_ns"].as_f64()?;
    let percent = |task: &Value| Some(100.0 * task["run_ns"].as_f64()? / virtual_ns);
    let all: Vec<&Value> = ours.collect();
    if all.is_empty() {
        return None;
    }
    let parts = all.iter().map(|t| percent(t)).collect::<Option<Vec<f64>>>()?;
    match name {
        "cpu" => Some(parts.iter().sum()),
        "cpu_least" => parts.into_iter().reduce(f64::min),
        "cpu_most" => parts.into_iter().reduce(f64::max),
        "migrations" => all.iter().map(|t| t["migrations"].as_f64()).sum(),
        _ => panic!("tasks have no {name}"),
    }
}
