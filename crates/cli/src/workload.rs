// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab workload show`: shows a workload, and what was understood of a recording.

use std::fmt::Write;

use anyhow::Result;
use scxlab_lab::input::{self, Workload};
use scxlab_lab::recorded::Recorded;
use scxlab_lab::scheduler::DEFAULT_CLASS;
use scxlab_machine::plural;
use scxlab_recording::understand;
use scxlab_recording::understanding::{Role, Understanding};
use scxlab_results::inputs::Inputs;
use scxlab_workload::Program;
use scxlab_workload::program::dump::dump;

use crate::args::{WorkloadCommand, WorkloadShowArgs};
use crate::exit::CliError;
use crate::output;

/// Largest number of chains of wake-ups that are shown.
const CHAINS: usize = 12;

pub fn workload(command: &WorkloadCommand) -> Result<()> {
    let WorkloadCommand::Show(args) = command;
    show(args, &Inputs::default())
}

fn show(args: &WorkloadShowArgs, inputs: &Inputs) -> Result<()> {
    let workload = args.load.of(&args.workload)?;
    if let Some(recorded) = input::recording(&workload, inputs)? {
        return match args.toml {
            true => print_toml(&recorded.replay.program),
            false => output::print(&recording(&recorded)),
        };
    }
    match Workload::resolve(&workload, inputs)? {
        Workload::Program(program) if args.toml => print_toml(&program),
        Workload::Program(program) => output::print(&dump(&program)),
        Workload::Command(words) => {
            Err(CliError::CommandIsNoProgram { command: words.join(" ") }.into())
        }
    }
}

fn print_toml(program: &Program) -> Result<()> {
    output::print(&scxlab_workload::program::to_toml(program))
}

fn recording(recorded: &Recorded) -> String {
    let understood = understand(&recorded.history, &recorded.replay);
    let mut text = head(recorded, &understood);
    text.push_str(&roles(&understood));
    text.push_str(&chains(&understood));
    text.push_str(&path(&understood));
    text.push_str(&likeness(recorded));
    text.push_str(&gaps(recorded, &understood));
    text
}

fn head(recorded: &Recorded, understood: &Understanding) -> String {
    let machine = &recorded.machine;
    let imported = &recorded.imported;
    let tasks: u64 = understood.roles.iter().map(|role| role.tasks).sum();
    let program = &recorded.replay.program;
    let open: u64 = understood.roles.iter().map(|role| role.open_loop).sum();
    let waits: u64 = understood.roles.iter().flat_map(|role| role.waits.values()).sum();
    format!(
        "{}, {}, {}\nmachine: {}, {}{}\nworkload: {}, {}, unit: {}\n\
         understood: {} of run time\nopen loop: {open} of {} end at times of their own\n",
        imported.format.name(),
        plural(imported.events.all(), "event"),
        time(imported.length),
        machine.name,
        plural(machine.topology.nr_cpus(), "CPU"),
        if recorded.knows_machine { "" } else { " (assumed; the file does not hold its machine)" },
        scaled(plural(tasks, "task"), tasks, program),
        program.duration.map_or("until all exit".to_owned(), |d| time(d.0)),
        program.unit,
        percent(understood.explained_ns, understood.run_ns),
        plural(waits, "wait"),
    )
}

/// Adds the number of the program's threads, if its scale makes it another one.
fn scaled(text: String, tasks: u64, program: &Program) -> String {
    let threads = program.threads.iter().map(|t| u64::from(t.instances.max(1))).sum::<u64>();
    match threads == tasks {
        true => text,
        false => format!("{text}, as {}", plural(threads, "thread")),
    }
}

fn roles(understood: &Understanding) -> String {
    let mut text = format!(
        "\n{:<20} {:>6} {:>10} {:>10} {:>10}  waits\n",
        "role", "tasks", "run time", "share", "queued"
    );
    for role in &understood.roles {
        let Role { name, tasks, run_ns, queue_ns, .. } = role;
        let waits: Vec<String> =
            role.waits.iter().map(|(n, count)| format!("{n} {count}")).collect();
        let _ = writeln!(
            text,
            "{name:<20} {tasks:>6} {:>10} {:>10} {:>10}  {}",
            time(*run_ns),
            percent(*run_ns, understood.run_ns),
            time(*queue_ns),
            waits.join(", ")
        );
    }
    text
}

fn chains(understood: &Understanding) -> String {
    let mut text =
        String::from("\nwake-ups, with the mean work of the woken task until it waits again\n");
    for chain in understood.chains.iter().take(CHAINS) {
        let arrow = format!("{} -> {}", chain.from, chain.to);
        let _ =
            writeln!(text, "  {arrow:<36} {:>8} times {:>10}", chain.count, time(chain.work_ns));
    }
    let more = understood.chains.len().saturating_sub(CHAINS);
    if more > 0 {
        let _ = writeln!(text, "  and {more} rarer ones");
    }
    text
}

fn path(understood: &Understanding) -> String {
    let mut text = String::from("\ncritical path to the end of the recording\n");
    for part in &understood.path {
        let _ = writeln!(
            text,
            "  {:<20} {:>10} in {}",
            part.role,
            time(part.length),
            plural(part.pieces, "piece")
        );
    }
    text
}

fn likeness(recorded: &Recorded) -> String {
    let likeness = match recorded.likeness() {
        Ok(likeness) => likeness,
        Err(why) => {
            return format!("\nreplay: how like the recording it is, is not known: {why}\n");
        }
    };
    let mut text = format!(
        "\n{:<34} {:>10} {:>10}\n",
        format!("replay under {DEFAULT_CLASS}, as recorded"),
        "recorded",
        "replayed"
    );
    for pair in likeness.pairs() {
        let value = |value| if pair.unit == "ns" { time(value) } else { value.to_string() };
        let percent = pair.percent().map(|percent| format!("{percent:+.1} %"));
        let _ = writeln!(
            text,
            "  {:<32} {:>10} {:>10} {:>9}{}",
            pair.name,
            value(pair.recorded),
            value(pair.replayed),
            percent.unwrap_or_default(),
            if pair.differs { "  NOT ALIKE" } else { "" }
        );
    }
    text
}

fn gaps(recorded: &Recorded, understood: &Understanding) -> String {
    let mut lines: Vec<String> = understood
        .unknown
        .iter()
        .map(|(cause, n)| format!("{}: {cause}", plural(n, "wait")))
        .collect();
    let history = &recorded.history;
    if history.inconsistent > 0 {
        lines.push(format!(
            "{} out of line with those before",
            plural(history.inconsistent, "event")
        ));
    }
    if history.lost > 0 {
        lines.push(format!("{} lost", plural(history.lost, "event")));
    }
    let section = |name: &str, lines: &[String]| match lines {
        [] => String::new(),
        lines => format!("\n{name}\n  {}\n", lines.join("\n  ")),
    };
    let notes = &recorded.replay.program.notes;
    section("not understood", &lines) + &section("notes", notes) + UNTOLD
}

/// What no recording holds.
const UNTOLD: &str = "
not in any recording
  memory that a task uses again and again: programs have no footprint, and the time to refill a
  cold cache is part of the work
  uses of a lock without contention: they are inferred from those with it
";

fn percent(part: u64, whole: u64) -> String {
    let permille = u128::from(part) * 1000 / u128::from(whole.max(1));
    format!("{}.{} %", permille / 10, permille % 10)
}

/// Formats a time with three or four digits.
fn time(ns: u64) -> String {
    let (unit, scale) = match ns {
        0..10_000 => return format!("{ns} ns"),
        10_000..10_000_000 => ("us", 1_000),
        10_000_000..10_000_000_000 => ("ms", 1_000_000),
        _ => ("s", 1_000_000_000),
    };
    format!("{} {unit}", ns.saturating_add(scale / 2) / scale)
}
