// SPDX-License-Identifier: GPL-2.0-only
//! Tests that pages and the JSON schema of the results agree with the declarations in code: of
//! metrics, of the kinds of a run's end, and of knobs.
//! `BLESS=1 cargo test -p scxlab-lab --test reference` rewrites stale parts.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use scxlab_lab::metric::{self, Better, Metric, SECTIONS, Topic, Unit};
use scxlab_lab::run::StopKind;
use scxlab_loader::link::{Knob, OpenObject};
use scxlab_loader::object::Object;
use serde_json::{Map, Value, json};

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}

/// Asserts that a file has this text, or writes it if `BLESS` is set.
fn check(file: &str, found: &str, wanted: &str) {
    if std::env::var_os("BLESS").is_some() {
        fs::write(path(file), wanted).unwrap();
    } else {
        assert!(
            found == wanted,
            "{file} is stale: BLESS=1 cargo test -p scxlab-lab --test reference"
        );
    }
}

/// Returns the page with `text` in place of what stood between `<!-- KIND NAME -->` and
/// `<!-- end of KIND -->`.
fn with_block(page: &str, kind: &str, name: &str, text: &str) -> String {
    let (begin, end) = (format!("<!-- {kind} {name} -->\n"), format!("<!-- end of {kind} -->\n"));
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("the page has {begin}"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{begin} has {end}"));
    format!("{before}{begin}{text}{end}{after}")
}

#[test]
fn the_metrics_page_is_fresh() {
    let file = "docs/reference/metrics.md";
    let found = fs::read_to_string(path(file)).unwrap();
    let mut page = found.clone();
    for (section, topics) in SECTIONS {
        page = with_block(&page, "metrics", section, &table(topics));
    }
    check(file, &found, &page);
}

fn table(topics: &[Topic]) -> String {
    let mut text =
        "| metric | unit | better | `sim` | `vm`, `host` |\n|---|---|---|---|---|\n".to_owned();
    for Topic { sim, live, metrics } in topics {
        let names: Vec<String> = metrics.iter().map(name).collect();
        let (unit, better) = (each(metrics, unit), each(metrics, better));
        writeln!(text, "| {} | {unit} | {better} | {sim} | {live} |", names.join(", ")).unwrap();
    }
    text
}

fn name(metric: &Metric) -> String {
    let parts: Vec<String> = metric.parts.iter().map(part).collect();
    match parts.is_empty() {
        true => format!("`{}`", metric.name),
        false => format!("`{}`: {}", metric.name, parts.join(", ")),
    }
}

fn part(part: &metric::Part) -> String {
    match part.samples_min {
        0 | 1 => format!("`{}`", part.name),
        min => format!("`{}` (of {min} samples or more)", part.name),
    }
}

/// Joins the texts that `say` returns for the metrics; equal neighbours appear once.
fn each(metrics: &[Metric], say: fn(&Metric) -> &'static str) -> String {
    let mut all: Vec<&str> = metrics.iter().map(say).collect();
    all.dedup();
    all.join(", ")
}

fn unit(metric: &Metric) -> &'static str {
    match metric.unit {
        Unit::Ns => "`ns`",
        Unit::MbPerSecond => "`MB/s`",
        Unit::One => "`1`",
        Unit::Percent => "`%`",
        Unit::Work => "the workload's",
        Unit::WorkPerSecond => "the workload's, `/s`",
        Unit::ByName => "`ns` if the name ends in `_ns`, or `1`",
    }
}

fn better(metric: &Metric) -> &'static str {
    match metric.better {
        Better::Less => "less",
        Better::More => "more",
        Better::Open => "-",
    }
}

#[test]
fn the_schema_is_fresh() {
    let file = "docs/reference/results.schema.json";
    let found = fs::read_to_string(path(file)).unwrap();
    let mut schema: Value = serde_json::from_str(&found).unwrap();
    let kinds: Vec<&str> = StopKind::ALL.iter().map(|kind| kind.name()).collect();
    let stop = &mut schema["$defs"]["run"]["properties"]["stop"];
    stop["properties"]["kind"]["enum"] = json!(kinds);
    let metrics = &mut schema["$defs"]["run"]["properties"]["metrics"];
    let (single, families) = metrics_by_name();
    metrics["properties"] = Value::Object(single);
    metrics["patternProperties"] = Value::Object(families);
    metrics["additionalProperties"] = json!(false);
    for (name, unit) in [(NS, "ns"), (ONE, "1"), (PERCENT, "%"), (MB_S, "MB/s")] {
        let unit = json!({ "unit": { "enum": [unit] } });
        schema["$defs"][name] = json!({ "$ref": "#/$defs/metric", "properties": unit });
    }
    let wanted = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    check(file, &found, &wanted);
}

/// Names of the schema's definitions of metrics with a fixed unit.
const NS: &str = "metric_ns";
const ONE: &str = "metric_1";
const PERCENT: &str = "metric_percent";
const MB_S: &str = "metric_mb_s";

/// Returns what the JSON schema of the results says of a run's metrics: `properties`, by name, and
/// `patternProperties`, by a pattern for names that have a variable part.
fn metrics_by_name() -> (Map<String, Value>, Map<String, Value>) {
    let (mut single, mut families) = (Map::new(), Map::new());
    for metric in metric::all() {
        let definition = match metric.unit {
            Unit::Ns => NS,
            Unit::One => ONE,
            Unit::Percent => PERCENT,
            Unit::MbPerSecond => MB_S,
            Unit::Work | Unit::WorkPerSecond | Unit::ByName => "metric",
        };
        let rule = json!({ "$ref": format!("#/$defs/{definition}") });
        for part in metric.parts {
            single.insert(metric.named(part.name), rule.clone());
        }
        match metric.name.contains('<') {
            false => _ = single.insert(metric.name.to_owned(), rule),
            true if metric.parts.is_empty() => {
                let part = if metric.name.contains("<n>") { "[0-9]+" } else { ".+" };
                let pattern = metric.named(part).replace("sched.", "sched\\.");
                families.insert(format!("^{pattern}$"), rule);
            }
            true => {}
        }
    }
    (single, families)
}

/// The page `results.md` says what each kind of a run's end means.
#[test]
fn the_results_page_is_fresh() {
    let file = "docs/reference/results.md";
    let found = fs::read_to_string(path(file)).unwrap();
    let mut text = "| `stop.kind` | the run ended because |\n|---|---|\n".to_owned();
    for kind in StopKind::ALL {
        writeln!(text, "| `{}` | {} |", kind.name(), kind.meaning()).unwrap();
    }
    check(file, &found, &with_block(&found, "generated", "stops", &text));
}

/// The README of a shipped scheduler lists the knobs that its object declares.
#[test]
fn the_tables_of_knobs_are_fresh() {
    for shipped in scxlab_sched::shipped() {
        let object = Object::parse(shipped.object, shipped.name).unwrap();
        let knobs = OpenObject::new(Arc::new(object)).globals.knobs();
        let mut text = "| knob | default | meaning |\n| --- | --- | --- |\n".to_owned();
        for Knob { name, default, meaning, values, .. } in knobs {
            if meaning.is_empty() {
                continue;
            }
            let explained = values.iter().any(|v| meaning.starts_with(&format!("{v}: ")));
            let names: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
            let names =
                if names.is_empty() || explained { String::new() } else { names.join(", ") + ": " };
            writeln!(text, "| `{name}` | `{default}` | {names}{} |", linked(&meaning)).unwrap();
        }
        let file = format!("bpf/sched/{0}/README.md", shipped.name);
        let found = fs::read_to_string(path(&file)).unwrap();
        check(&file, &found, &with_block(&found, "knobs", shipped.name, &text));
    }
}

/// Turns the name of each page in parentheses, such as `(kick.md)`, into a link.
fn linked(text: &str) -> String {
    let link = |part: &str| match part.split_once(".md)") {
        Some((page, rest)) => format!("[{page}.md]({page}.md)){rest}"),
        None => part.to_owned(),
    };
    text.split('(').map(link).collect::<Vec<_>>().join("(")
}
