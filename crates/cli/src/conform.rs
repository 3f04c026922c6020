// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab conform`

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use scxlab_lab::conform::{Case, Observed, SHIPPED, compare, simulate};
use scxlab_lab::prepare::Source;
use scxlab_lab::sim::kernel_target;
use scxlab_live::job::{RecipeSource, Reply, SchedulerSource, Situation, Task};

use crate::args::{ConformArgs, On};
use crate::exit::CliError;
use crate::{input, live, output};

pub fn conform(args: &ConformArgs) -> Result<()> {
    let texts = texts(&args.cases)?;
    let cases =
        texts.iter().map(|(name, text)| Case::parse(name, text)).collect::<Result<Vec<_>, _>>()?;
    let machine = match args.on {
        On::Host => input::machine("host")?,
        _ => input::machine(&args.machine)?,
    };
    if !scxlab_vm::numbers_cpus_alike(&machine.topology) {
        return Err(CliError::Numbering { machine: args.machine.clone() }.into());
    }
    let target = kernel_target(&machine)?;
    let object = scxlab_sched::selftests().iter().find(|s| s.name == "tracer");
    let object = object.ok_or_else(|| anyhow::anyhow!("internal: no tracer"))?.object;
    let mut simulated = Vec::new();
    for case in &cases {
        let source = Source { name: "tracer", bytes: object };
        let tracer = case.prepare(source, &machine, &target.btf)?;
        simulated.push(simulate(case, &tracer, &machine, 1)?);
    }
    let (release, real) = match args.on {
        On::Sim => {
            ("simulated again".to_owned(), simulated.iter().map(|s| vec![s.clone()]).collect())
        }
        on => {
            let with = texts.into_iter().zip(simulated.clone());
            let situations =
                with.map(|((name, text), simulated)| Situation { name, text, simulated }).collect();
            observe(args, on, &machine, situations, object, &cases)?
        }
    };
    let (text, differing) = report(args, &cases, &simulated, &real, &release);
    output::print(&text)?;
    match differing {
        0 => Ok(()),
        cases => Err(CliError::Differs { cases, of: simulated.len() }.into()),
    }
}

fn observe(
    args: &ConformArgs,
    on: On,
    machine: &Arc<scxlab_machine::Machine>,
    situations: Vec<Situation>,
    object: &'static [u8],
    cases: &[Case],
) -> Result<(String, Vec<Vec<Observed>>)> {
    let tracer = SchedulerSource {
        text: "tracer".into(),
        name: "tracer".into(),
        recipe: RecipeSource::None,
        bytes: object.into(),
    };
    let length: u64 = cases.iter().map(|c| c.duration.0 + 10_000_000_000).sum();
    let patience = Duration::from_secs(60) + Duration::from_nanos(length) * args.tries;
    let task = Task::Conform { tracer, cases: situations, tries: args.tries };
    match live::carry_out(task, &[], on, machine, &args.vm, patience)? {
        (Reply::Observed { kernel, cases }, notes) => {
            notes.iter().for_each(|note| eprintln!("note: {note}"));
            Ok((kernel, cases))
        }
        (other, _) => Err(live::unexpected(&other)),
    }
}

/// Names and texts of the cases.
fn texts(wanted: &[String]) -> Result<Vec<(String, String)>> {
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
            let there_are = format!("{} and files (a path)", names.join(", "));
            return Err(CliError::Unknown { kind: "case", name: name.clone(), there_are }.into());
        }
        Ok((name.clone(), input::read_text(name)?))
    };
    wanted.iter().map(one).collect()
}

/// The table, and how many cases differ.
fn report(
    args: &ConformArgs,
    cases: &[Case],
    simulated: &[Observed],
    real: &[Vec<Observed>],
    release: &str,
) -> (String, usize) {
    let mut text = format!("simulated kernel against {release}\n\n");
    let mut differing = 0;
    for ((case, sim), tries) in cases.iter().zip(simulated).zip(real) {
        let differences: Vec<_> = tries.iter().map(|t| compare(case, sim, t)).collect();
        let agrees = differences.iter().any(Vec::is_empty);
        let verdict = if agrees { "agrees" } else { "DIFFERS" };
        let of = match tries.len() {
            0 | 1 => String::new(),
            n if agrees => format!(" (at try {n})"),
            n => format!(" ({n} tries)"),
        };
        let _ = writeln!(text, "{verdict:8} {}{of}: {}", case.name, case.doc);
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
    let _ = writeln!(text, "\n{} of {} cases agree", cases.len() - differing, cases.len());
    (text, differing)
}
