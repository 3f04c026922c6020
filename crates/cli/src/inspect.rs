// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab inspect`: shows what an object needs.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use anyhow::Result;
use scxlab_bpf::helper;
use scxlab_lab::input::{self, RecipeInput, SchedulerInput};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::recipe;
use scxlab_lab::scheduler::{DEFAULT_CLASS, TUNABLES};
use scxlab_lab::sim::{kernel_target, try_load};
use scxlab_loader::inspect::{ExternClass, MapInfo, ObjectReport, inspect as look};
use scxlab_loader::link::{ExternBinding, Knob, OpenObject, Target};
use scxlab_loader::object::{Object, ProgramKind};
use scxlab_machine::{Machine, plural};
use scxlab_results::inputs::Inputs;

use crate::args::InspectArgs;
use crate::exit::CliError;
use crate::output;

/// The machine for the simulated kernel. An object's needs do not depend on the machine, so the
/// smallest one is enough.
const MACHINE: &str = "1n1c1t";

pub fn inspect(args: &InspectArgs) -> Result<()> {
    if args.object == DEFAULT_CLASS {
        return output::print(&tunables());
    }
    let (name, bytes) = input::object(&args.object, &Inputs::default())?;
    let machine = Arc::new(Machine::resolve(MACHINE)?);
    let report = report(&bytes, &name, &machine)?;
    let mut text = summary(&report);
    text.push_str(&operations(&report));
    text.push_str(&verdict(&report));
    text.push_str(&knobs(&report.knobs));
    if args.all {
        text.push_str(&everything(&report));
    }
    output::print(&text)?;
    loads(&report, &bytes, &machine)
}

/// The tunables of the default class.
fn tunables() -> String {
    let mut text = format!(
        "{DEFAULT_CLASS}: the kernel's default class\n\ntunables, which are set as knobs \
         ({DEFAULT_CLASS},base_slice_ns=3000000), with their files in debugfs:\n"
    );
    for t in TUNABLES {
        let range = format!("{} to {}", t.min, t.max);
        writeln!(text, "  {:<24}{range:<24}sched/{}", t.name, t.file).expect("a string grows");
    }
    text
}

/// Prints a summary of the object, and a list of the things that the object needs and that are
/// missing. Fails if the object does not load.
pub fn needs(object: &[u8], name: &str) -> Result<()> {
    let machine = Arc::new(Machine::resolve(MACHINE)?);
    let report = report(object, name, &machine)?;
    output::print(&(summary(&report) + &verdict(&report)))?;
    loads(&report, object, &machine)
}

/// Returns the error that a run of the object would end with before it begins, or else an error if
/// something is missing that the object requires. A recipe that does not fit `machine` is none.
fn loads(report: &ObjectReport, object: &[u8], machine: &Arc<Machine>) -> Result<()> {
    let input = SchedulerInput::of_object(&report.name, object, RecipeInput::Auto);
    let prepared = input.ok().and_then(|input| Prepared::simulated(&input, machine).ok());
    if let Some(object) = prepared.and_then(|prepared| prepared.object) {
        try_load(&object, machine)?;
    }
    match report.missing.is_empty() {
        true => Ok(()),
        false => Err(CliError::DoesNotLoad { object: report.name.clone() }.into()),
    }
}

fn report(object: &[u8], name: &str, machine: &Arc<Machine>) -> Result<ObjectReport> {
    let object = Arc::new(Object::parse(object, name)?);
    let target = kernel_target(machine)?;
    let mut open = OpenObject::new(object);
    open.globals.fill_enum_globals("__", target.btf());
    Ok(look(&open, &target)?)
}

fn summary(r: &ObjectReport) -> String {
    let insns: usize = r.programs.iter().map(|p| p.insns).sum();
    let syscall = r.programs.iter().filter(|p| p.kind == ProgramKind::Syscall).count();
    let mut text = format!(
        "{}: {} ({syscall} for its frontend), {}, {}, licence {}\n",
        r.name,
        plural(r.programs.len(), "program"),
        plural(insns, "instruction"),
        plural(r.maps.len(), "map"),
        r.license
    );
    for table in &r.tables {
        let setting = |wanted: &str| {
            table.settings.iter().find(|(name, _)| name == wanted).map(|(_, v)| v.as_str())
        };
        let name = setting("name").unwrap_or_default().trim_matches('"');
        let recipe = recipe::for_ops(name)
            .map_or("no shipped recipe".to_owned(), |(r, _)| format!("recipe {}", r.name));
        let _ =
            writeln!(text, "ops {} ({}), named \"{name}\": {recipe}", table.name, table.type_name);
    }
    text
}

fn operations(r: &ObjectReport) -> String {
    let mut text = String::new();
    for table in &r.tables {
        let callbacks: Vec<_> = table.callbacks.iter().map(|(name, _)| name.as_str()).collect();
        let _ = writeln!(text, "  callbacks: {}", callbacks.join(" "));
        for (name, value) in table.settings.iter().filter(|(name, _)| name != "name") {
            let _ = writeln!(text, "  {name} = {value}");
        }
    }
    text
}

fn verdict(r: &ObjectReport) -> String {
    let mut text = String::new();
    if r.missing.is_empty() {
        text.push_str("\nNothing that it needs is missing.\n");
    } else {
        text.push_str("\nIt does not load, because these are missing:\n");
        r.missing.iter().for_each(|line| {
            let _ = writeln!(text, "  {line}");
        });
    }
    if !r.poisoned.is_empty() {
        text.push_str("Missing, but needed only if the code that refers to them runs:\n");
        r.poisoned.iter().for_each(|line| {
            let _ = writeln!(text, "  {line}");
        });
    }
    text
}

fn knobs(knobs: &[Knob]) -> String {
    if knobs.is_empty() {
        return "\nNo knobs.\n".into();
    }
    let mut text = String::from("\nKnobs (name, type, default)\n");
    let name = knobs.iter().map(|k| k.name.len()).max().unwrap_or(0);
    let ty = knobs.iter().map(|k| k.ty.len()).max().unwrap_or(0);
    for k in knobs {
        let _ = write!(text, "  {:name$}  {:ty$}  {}", k.name, k.ty, shortened(&k.default));
        if !k.values.is_empty() {
            let _ = write!(text, "  (one of {})", k.values.join(", "));
        }
        text.push_str(if k.constant { "\n" } else { "  (data: programs may change it)\n" });
        if !k.meaning.is_empty() {
            let _ = writeln!(text, "      {}", k.meaning);
        }
    }
    text
}

/// Shortens the text of a long array. A run's manifest has the whole text.
fn shortened(value: &str) -> Cow<'_, str> {
    const SHOWN: usize = 60;
    let cut = value.char_indices().nth(SHOWN).and_then(|(at, _)| value[..at].rfind(", "));
    match cut {
        Some(at) if value.starts_with('[') => format!("{}, ...]", &value[..at]).into(),
        _ => value.into(),
    }
}

fn everything(r: &ObjectReport) -> String {
    let mut text = String::from("\nPrograms (section, instructions, with what they can reach)\n");
    for p in &r.programs {
        let optional = if p.optional { "  optional" } else { "" };
        let _ = writeln!(
            text,
            "  {}  {}  {}  {}{optional}",
            p.name, p.section, p.insns, p.insns_reachable
        );
    }
    text.push_str("\nMaps\n");
    r.maps.iter().for_each(|m| map(&mut text, m, "  "));
    text.push_str("\nHelpers\n");
    for h in &r.helpers {
        let name = helper::name(h.id).map_or_else(|| format!("helper {}", h.id), str::to_owned);
        let _ = writeln!(text, "  {name}  {} sites", h.sites);
    }
    text.push_str("\nKernel functions, variables and settings\n");
    for e in &r.externs {
        let class = match e.class {
            ExternClass::Kfunc => "function",
            ExternClass::Variable => "variable",
            ExternClass::Kconfig => "setting",
        };
        let weak = if e.weak { "weak" } else { "strong" };
        let state = match &e.state {
            ExternBinding::Absent(why) => format!("absent: {why}"),
            _ => "present".to_owned(),
        };
        let _ = writeln!(text, "  {}  {class}  {weak}  {} sites  {state}", e.name, e.sites);
    }
    text.push_str("\nKernel types and fields\n");
    for f in &r.fields {
        let found = if f.found { "present" } else { "absent" };
        let _ = writeln!(text, "  {}  {:?}  {} sites  {found}", f.what, f.kind, f.sites);
    }
    text
}

fn map(text: &mut String, m: &MapInfo, indent: &str) {
    let _ = writeln!(
        text,
        "{indent}{}  {}  key {} B, value {} B, {} entries",
        m.name, m.type_name, m.key_size, m.value_size, m.max_entries
    );
    for (what, offset) in &m.special {
        let _ = writeln!(text, "{indent}  at {offset}: {what}");
    }
    if let Some(inner) = &m.inner {
        map(text, inner, &format!("{indent}  holds "));
    }
}
