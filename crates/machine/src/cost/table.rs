// SPDX-License-Identifier: GPL-2.0-only
//! Cost tables as files: a complete base table, and a machine's overrides of single constants.
//!
//! Owns: the file form and its checks (units, bounds, every constant present exactly once, each
//! with a source).
//! Does not: name constants. The declaration in `cost.rs` is the only list.
//!
//! ```toml
//! [sched.context_switch]
//! value = 600                 # or { smt = .., core = .., llc = .., node = .. }
//!                             # or { num = .., den = .. }
//! unit = "ns"                 # must be the constant's own unit: it is there for the reader
//! source = "lat_ctx, ..."     # or "estimate: why"
//! note = "optional"
//! ```

use std::collections::BTreeMap;

use serde::Serialize;

use super::units::{ByDistance, ConstantValue, Ratio};
use super::{CostTable, NAMES};
use crate::id::Nanos;
use crate::machine::MachineError;
use crate::reader::{Document, Item, Table};

/// Base tables that a machine file may name: pairs of name and text.
pub const BASES: &[(&str, &str)] =
    &[("modern-x86", include_str!("../../../../machines/costs/modern-x86.toml"))];

/// Upper bound of a single cost in ns, so that sums of costs cannot overflow.
const NS_MAX: u64 = 1_000_000_000;
const RATIO_MAX: u64 = 1_000_000;
/// Shortest window of pause-loop exiting, ns: each window is an event or more.
const PLE_WINDOW_MIN: u64 = 100;
/// The kernel's limit of idle states (CPUIDLE_STATE_MAX).
const IDLE_STATES_MAX: usize = 10;

/// A constant with its unit and source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Constant {
    /// Group and key, joined by a dot, such as `clock.tick`.
    pub name: String,
    pub value: ConstantValue,
    pub unit: &'static str,
    /// Source of the value; starts with "estimate:" if it is the authors' judgement.
    pub source: String,
    /// Further remark, possibly empty.
    pub note: String,
}

/// One idle state of the CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IdleState {
    /// Name, as in cpuidle.
    pub name: String,
    /// Shortest idle time for which entering the state pays.
    pub min_residency_ns: Nanos,
    /// Time from the waking event until the CPU executes again.
    pub exit_latency_ns: Nanos,
    /// Source of the figures.
    pub source: String,
}

/// The constants of one file, by `group.key`, each with its line number.
#[derive(Default)]
pub(crate) struct Overrides {
    constants: BTreeMap<String, (Constant, usize)>,
    idle: Option<Vec<IdleState>>,
    /// A factor, with its source, on every time of the base table that the machine file does not
    /// replace. It does not apply to idle states.
    scale: Option<(Ratio, String)>,
}

/// Returns the base table for machines that name none.
pub(crate) fn default_base() -> CostTable {
    let (name, text) = BASES[0];
    // The embedded table is part of the program; a test of this crate checks that it loads.
    CostTable::from_toml(name, text).expect("the embedded cost table is complete")
}

impl CostTable {
    /// Parses a complete cost table. `file` is only a name for messages.
    pub fn from_toml(file: &str, text: &str) -> Result<CostTable, MachineError> {
        let document = Document::parse(file, text)?;
        Overrides::read(document, &[])?.complete(file)
    }

    /// Parses the base table `name` and replaces single constants. None if there is no such table.
    pub(crate) fn from_base(
        name: &str,
        overrides: Overrides,
    ) -> Option<Result<Self, MachineError>> {
        let (file, text) = BASES.iter().find(|(base, _)| *base == name)?;
        Some(Self::merge(file, text, overrides))
    }

    fn merge(file: &str, text: &str, overrides: Overrides) -> Result<Self, MachineError> {
        let mut all = Overrides::read(Document::parse(file, text)?, &[])?;
        if let Some((ratio, source)) = overrides.scale {
            all.constants.values_mut().for_each(|(constant, _)| scale(constant, ratio, &source));
        }
        all.constants.extend(overrides.constants);
        all.idle = overrides.idle.or(all.idle);
        all.complete(file)
    }
}

impl Overrides {
    /// Parses the constants in `table`. `also` lists the keys that the caller reads from the table
    /// itself; the message about an unknown key names them, too.
    pub fn read(mut table: Table<'_>, also: &[&str]) -> Result<Overrides, MachineError> {
        let mut read = Overrides::default();
        if let Some(states) = table.take("idle") {
            read.idle = Some(read_idle_states(states)?);
        }
        if let Some(item) = table.take("scale") {
            read.scale = Some(read_scale(item)?);
        }
        let mut groups: Vec<&str> = NAMES.iter().map(|name| name.0).collect();
        groups.dedup();
        for group in &groups {
            let Some(item) = table.take(group) else {
                continue;
            };
            let mut entries = item.table()?;
            let known = NAMES.iter().filter(|name| name.0 == *group);
            for &(_, key, unit) in known.clone() {
                let Some(item) = entries.take(key) else {
                    continue;
                };
                let line = item.document.line(&item.span);
                let name = format!("{group}.{key}");
                let constant = read_constant(item, &name, unit)?;
                read.constants.insert(name, (constant, line));
            }
            entries.finish(&known.map(|name| name.1).collect::<Vec<_>>())?;
        }
        groups.extend(["idle", "scale"]);
        groups.extend(also);
        table.finish(&groups)?;
        Ok(read)
    }

    /// Returns the constants as a cost table with typed fields, or an error if a constant is
    /// missing.
    fn complete(self, file: &str) -> Result<CostTable, MachineError> {
        let error =
            |line: usize, what: String| MachineError::File { file: file.to_owned(), line, what };
        let absent = |name: &str| error(1, format!("missing constant \"{name}\""));
        let idle = self.idle.ok_or_else(|| absent("idle"))?;
        let list = self.constants.values().map(|(constant, _)| constant.clone()).collect();
        let find = |group: &str, key: &str| self.constants.get(&format!("{group}.{key}"));
        let table = CostTable::fill(
            |group, key| {
                let found = find(group, key).ok_or_else(|| absent(&format!("{group}.{key}")))?;
                Ok(found.0.value)
            },
            |group, key, form| {
                let line = find(group, key).map_or(1, |found| found.1);
                error(line, format!("{group}.{key}.value must be {form}"))
            },
            idle,
            list,
        )?;
        let line_of = |group: &str, key: &str| find(group, key).map_or(1, |found| found.1);
        check(&table).map_err(|(group, key, what)| {
            error(line_of(group, key), format!("{group}.{key}.value {what}"))
        })?;
        Ok(table)
    }
}

/// Applies a machine's factor to a time. Ratios, frequencies, sizes and bandwidths are not times
/// and stay unchanged.
pub(super) fn scale(constant: &mut Constant, ratio: Ratio, source: &str) {
    if ["ratio", "hz", "bytes", "lines", "MB/s"].contains(&constant.unit) {
        return;
    }
    let apply = |n: u64| ratio.of(n).min(NS_MAX);
    constant.value = match constant.value {
        ConstantValue::Number(n) => ConstantValue::Number(apply(n)),
        ConstantValue::ByDistance(by) => ConstantValue::ByDistance(ByDistance {
            smt: apply(by.smt),
            core: apply(by.core),
            llc: apply(by.llc),
            node: apply(by.node),
        }),
        ConstantValue::Ratio(_) => return,
    };
    constant.source = format!("{ratio} times ({}); {source}", constant.source);
}

/// Checks the constants whose range of values is narrower than the range that their unit allows.
pub(super) fn check(table: &CostTable) -> Result<(), (&'static str, &'static str, &'static str)> {
    let smt = table.smt.busy_sibling_speed;
    let remote = table.memory.remote_slowdown;
    if !(1..=10_000).contains(&table.clock.tick_hz) {
        return Err(("clock", "tick", "must be in 1..=10000"));
    }
    if smt.num == 0 || smt.num > smt.den {
        return Err(("smt", "busy_sibling_speed", "must be above 0 and at most 1"));
    }
    if remote.num < remote.den {
        return Err(("memory", "remote_slowdown", "must be 1 or more"));
    }
    let huge = table.memory.huge_access;
    if huge.num == 0 || huge.num > huge.den {
        return Err(("memory", "huge_access", "must be above 0 and at most 1"));
    }
    if table.memory.bandwidth_mb_s == 0 {
        return Err(("memory", "bandwidth", "must be above 0"));
    }
    if table.memory.link_mb_s == 0 {
        return Err(("memory", "link_bandwidth", "must be above 0"));
    }
    if table.guest.ple_window_ns < PLE_WINDOW_MIN {
        return Err(("guest", "ple_window", "must be 100 or more"));
    }
    if table.guest.ple_grow.num < table.guest.ple_grow.den {
        return Err(("guest", "ple_grow", "must be 1 or more"));
    }
    Ok(())
}

fn read_constant(item: Item<'_>, name: &str, unit: &'static str) -> Result<Constant, MachineError> {
    let mut table = item.table()?;
    let value = read_value(table.require("value")?, unit)?;
    let given = table.require("unit")?;
    let (document, span) = (given.document, given.span.clone());
    let given = given.string()?;
    if given != unit {
        return Err(document.error(&span, format!("{name} is in {unit}, not in \"{given}\"")));
    }
    let source = read_source(&mut table)?;
    let note = table.take("note").map_or(Ok(String::new()), Item::string)?;
    table.finish(&["value", "unit", "source", "note"])?;
    Ok(Constant { name: name.to_owned(), value, unit, source, note })
}

/// Reads the required key `source`, which names where a value comes from. A bare "estimate:" counts
/// as empty, which is an error.
pub(crate) fn read_source(table: &mut Table<'_>) -> Result<String, MachineError> {
    let item = table.require("source")?;
    let (document, span) = (item.document, item.span.clone());
    let source = item.string()?;
    if source.trim_start_matches("estimate:").trim().is_empty() {
        return Err(document.error(&span, "a source must say where the value comes from"));
    }
    Ok(source)
}

fn read_value(item: Item<'_>, unit: &str) -> Result<ConstantValue, MachineError> {
    if !item.is_table() {
        return Ok(ConstantValue::Number(item.integer(NS_MAX)?));
    }
    let mut table = item.table()?;
    let value = if unit == "ratio" {
        let ratio = take_ratio(&mut table)?;
        table.finish(&["num", "den"])?;
        ConstantValue::Ratio(ratio)
    } else {
        let mut get = |key: &str| table.require(key)?.integer(NS_MAX);
        let by = ByDistance {
            smt: get("smt")?,
            core: get("core")?,
            llc: get("llc")?,
            node: get("node")?,
        };
        table.finish(&["smt", "core", "llc", "node"])?;
        ConstantValue::ByDistance(by)
    };
    Ok(value)
}

fn take_ratio(table: &mut Table<'_>) -> Result<Ratio, MachineError> {
    let num = table.require("num")?.integer(RATIO_MAX)? as u32;
    let den = table.require("den")?;
    match den.integer(RATIO_MAX)? as u32 {
        0 => Err(den.error(format!("{} cannot be 0", den.path))),
        den => Ok(Ratio { num, den }),
    }
}

/// Reads a machine's factor on the base table, which must be above 0 and have a source.
fn read_scale(item: Item<'_>) -> Result<(Ratio, String), MachineError> {
    let mut table = item.table()?;
    let ratio = take_ratio(&mut table)?;
    if ratio.num == 0 {
        return Err(table.error(format!("{}.num cannot be 0", table.path)));
    }
    let source = read_source(&mut table)?;
    table.finish(&["num", "den", "source"])?;
    Ok((ratio, source))
}

/// Reads the idle states, shallowest first. Each deeper state must have a longer residency and no
/// shorter exit latency.
fn read_idle_states(item: Item<'_>) -> Result<Vec<IdleState>, MachineError> {
    let (document, span) = (item.document, item.span.clone());
    let items = item.array()?;
    if items.is_empty() || items.len() > IDLE_STATES_MAX {
        let what = format!("{} idle states; there must be 1 to {IDLE_STATES_MAX}", items.len());
        return Err(document.error(&span, what));
    }
    let mut states: Vec<IdleState> = Vec::new();
    for item in items {
        let mut table = item.table()?;
        let state = IdleState {
            name: table.require("name")?.string()?,
            min_residency_ns: table.require("min_residency_ns")?.integer(NS_MAX)?,
            exit_latency_ns: table.require("exit_latency_ns")?.integer(NS_MAX)?,
            source: read_source(&mut table)?,
        };
        let deeper = states.last().is_none_or(|last| {
            last.min_residency_ns < state.min_residency_ns
                && last.exit_latency_ns <= state.exit_latency_ns
        });
        if !deeper {
            return Err(
                table.error(format!("idle state {} is not deeper than the one before", state.name))
            );
        }
        table.finish(&["name", "min_residency_ns", "exit_latency_ns", "source"])?;
        states.push(state);
    }
    Ok(states)
}
