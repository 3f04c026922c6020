// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab conform`: compares the simulated kernel with a real one.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use scxlab_lab::conform::{Case, Observed, SHIPPED, compare, simulate};
use scxlab_lab::input::{self, InputError, SchedulerInput};
use scxlab_lab::prepare::Prepared;
use scxlab_live::job::{JobTask, Reply, Situation};
use scxlab_machine::{Machine, plural};
use scxlab_results::inputs::Inputs;

use crate::args::{AccelArg, ConformArgs, On};
use crate::exit::CliError;
use crate::{live, output};

pub fn conform(args: &ConformArgs) -> Result<()> {
    let inputs = Inputs::default();
    let texts = texts(&args.cases, &inputs)?;
    let mut cases =
        texts.iter().map(|(name, text)| Case::parse(name, text)).collect::<Result<Vec<_>, _>>()?;
    cases.iter_mut().for_each(|case| case.compare_turns = args.scheduler.is_empty());
    let machine = match args.on {
        On::Host => "host",
        _ => &args.machine,
    };
    let machine = Arc::new(input::machine(machine, &inputs)?);
    if args.on == On::Vm && !scxlab_vm::numbers_cpus_alike(&machine.topology) {
        return Err(CliError::Numbering { machine: args.machine.clone() }.into());
    }
    let mut checks = Vec::new();
    for case in &cases {
        if args.scheduler.is_empty() {
            checks.push(Check::new(case, &case.tracer(), &machine, &inputs)?);
        }
        for scheduler in &args.scheduler {
            checks.push(Check::new(case, scheduler, &machine, &inputs)?);
        }
    }
    let (release, real) = match args.on {
        On::Sim => {
            let again = checks.iter().map(|c| vec![c.simulated.clone()]).collect();
            ("simulated again".to_owned(), again)
        }
        on => observe(args, on, &machine, &checks, &texts)?,
    };
    let (text, differing) = report(args, &checks, &real, &release);
    output::print(&text)?;
    match differing {
        0 => Ok(()),
        cases => Err(CliError::Differs { cases, of: checks.len() }.into()),
    }
}

/// A case under a scheduler, with the result of its simulation.
struct Check<'a> {
    case: &'a Case,
    scheduler: SchedulerInput,
    simulated: Observed,
}

impl<'a> Check<'a> {
    fn new(
        case: &'a Case,
        scheduler: &str,
        machine: &Arc<Machine>,
        inputs: &Inputs,
    ) -> Result<Check<'a>> {
        let input = SchedulerInput::resolve(scheduler, inputs)?;
        let prepared = Prepared::simulated(&input, machine)?;
        if prepared.object.is_none() {
            return Err(CliError::NothingToAttach { name: scheduler.to_owned() }.into());
        }
        let simulated = simulate(case, &prepared, machine, 1)?;
        Ok(Check { case, scheduler: input, simulated })
    }
}

fn observe(
    args: &ConformArgs,
    on: On,
    machine: &Arc<Machine>,
    checks: &[Check<'_>],
    texts: &[(String, String)],
) -> Result<(String, Vec<Vec<Observed>>)> {
    let text_of = |case: &Case| {
        let found = texts.iter().find(|(name, _)| name.trim_end_matches(".toml") == case.name);
        found.cloned().unwrap_or_default()
    };
    let situation = |check: &Check<'_>| {
        let (name, text) = text_of(check.case);
        let (scheduler, simulated) = (check.scheduler.clone(), check.simulated.clone());
        Situation { scheduler, name, text, compare_turns: check.case.compare_turns, simulated }
    };
    let length: u64 = checks.iter().map(|c| c.case.duration.0 + 10_000_000_000).sum();
    let patience = Duration::from_secs(60) + Duration::from_nanos(length) * args.tries;
    let task =
        JobTask::Conform { cases: checks.iter().map(situation).collect(), tries: args.tries };
    let mut options = args.vm.clone();
    // Without KVM, use the clock that counts instructions: speed does not matter here, and other
    // load on the host must not affect the result.
    if on == On::Vm && options.accel == AccelArg::Auto && scxlab_vm::probe_kvm().is_err() {
        options.accel = AccelArg::Counted;
    }
    match live::carry_out(task, &[], on, machine, &options, patience)? {
        (Reply::Observed { kernel, cases }, notes) => {
            notes.iter().for_each(|note| output::say(&format!("note: {note}")));
            Ok((kernel, cases))
        }
        _ => Err(live::unexpected()),
    }
}

/// Returns names and texts of the cases.
fn texts(wanted: &[String], inputs: &Inputs) -> Result<Vec<(String, String)>> {
    let shipped = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
    if wanted.is_empty() {
        return Ok(SHIPPED.iter().map(shipped).collect());
    }
    let one = |name: &String| {
        if let Some(found) = SHIPPED.iter().find(|(n, _)| n == name) {
            return Ok(shipped(found));
        }
        if !name.contains('/') && !name.ends_with(".toml") {
            let names: Vec<&str> = SHIPPED.iter().map(|(n, _)| *n).collect();
            let available = format!("{} and files (a path)", names.join(", "));
            return Err(InputError::Unknown { kind: "case", name: name.clone(), available }.into());
        }
        Ok((name.clone(), input::read_text(name, inputs)?))
    };
    wanted.iter().map(one).collect()
}

/// Returns the report, and the number of cases that differ.
fn report(
    args: &ConformArgs,
    checks: &[Check<'_>],
    real: &[Vec<Observed>],
    release: &str,
) -> (String, usize) {
    let mut text = format!("simulated kernel against {release}\n\n");
    let mut differing = 0;
    for (Check { case, scheduler, simulated: sim, .. }, tries) in checks.iter().zip(real) {
        let differences: Vec<_> = tries.iter().map(|t| compare(case, sim, t)).collect();
        let agrees = differences.iter().any(Vec::is_empty);
        let verdict = if agrees { "agrees" } else { "DIFFERS" };
        let of = match tries.len() {
            0 | 1 => String::new(),
            n if agrees => format!(" (at try {n})"),
            n => format!(" ({n} tries)"),
        };
        let under = match args.scheduler.is_empty() {
            true => String::new(),
            false => format!(" under {}", scheduler.arg.text),
        };
        let _ = writeln!(text, "{verdict:8} {}{under}{of}: {}", case.name, case.doc);
        if !agrees {
            differing += 1;
            for d in differences.first().into_iter().flatten() {
                let shown =
                    |op: &Option<String>| op.clone().unwrap_or_else(|| "nothing more".into());
                let _ = writeln!(
                    text,
                    "         {}: after {} operations alike: simulated {}, real {}",
                    d.about,
                    d.same,
                    shown(&d.sim),
                    shown(&d.real)
                );
            }
        }
        if args.verbose || !agrees {
            let all = std::iter::once(("sim", sim)).chain(tries.iter().map(|t| ("real", t)));
            for (who, observed) in all {
                for (about, ops) in &observed.sequences {
                    let _ = writeln!(text, "           {who} {about}: {}", ops.join(" "));
                }
            }
        }
    }
    let _ =
        writeln!(text, "\n{} of {} agree", checks.len() - differing, plural(checks.len(), "case"));
    (text, differing)
}
