// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab attach`: runs a scheduler on this machine's kernel.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use indexmap::IndexMap;
use scxlab_lab::input::SchedulerInput;
use scxlab_lab::prepare::Prepared;
use scxlab_lab::run::Exit;
use scxlab_live::job::this_machine;
use scxlab_live::kernel::{self, RunningKernel};
use scxlab_live::run::RunStats;
use scxlab_live::scheduler::Scheduler;
use scxlab_live::tuning::Tuning;
use scxlab_results::inputs::Inputs;
use serde_json::json;

use crate::args::{AttachArgs, Format};
use crate::exit::CliError;
use crate::install::{self, ThisSystem};
use crate::output;

const POLL: Duration = Duration::from_millis(50);

pub fn attach(args: &AttachArgs) -> Result<()> {
    if args.uninstall {
        return uninstall();
    }
    let name = args.scheduler.as_deref().expect("clap requires it");
    if args.install {
        install::check(&ThisSystem)?;
    }
    let stop = output::cancelled();
    let kernel = RunningKernel::open()?;
    // A running service is stopped before the new one starts.
    if !(args.install && install::is_running(&ThisSystem)) {
        kernel.check_free()?;
    }
    let machine = this_machine()?;
    let input = SchedulerInput::resolve(name, &Inputs::default())?;
    let prepared = Prepared::new(&input, &machine, &kernel.btf)?;
    if prepared.object.is_none() && input.arg.tuning().is_empty() {
        return Err(CliError::NothingToAttach { name: name.to_owned() }.into());
    }
    if args.install {
        return install(&input);
    }
    let short = input.arg.short();
    let Some(object) = &prepared.object else {
        return tune(&input, &kernel.release, args.duration.map(|d| Duration::from_nanos(d.0)));
    };
    let scheduler = Scheduler::attach(object, prepared.label(), &machine, &kernel)?;
    let _stats = RunStats::enable();
    if scheduler.is_attached() {
        output::say(&format!("{} is attached to {}; Ctrl-C detaches it", short, kernel.release));
    }
    for note in &scheduler.notes {
        output::say(&format!("note: {note}"));
    }
    let start = Instant::now();
    let end = args.duration.map(|d| start + Duration::from_nanos(d.0));
    let interval = Duration::from_nanos(args.interval.0);
    let mut next = start + interval;
    let mut before = Counters::read(&scheduler);
    while !stop.load(Ordering::Relaxed) && scheduler.is_attached() {
        let now = Instant::now();
        if end.is_some_and(|end| now >= end) {
            break;
        }
        if !interval.is_zero() && now >= next {
            let counters = Counters::read(&scheduler);
            output::print(&counters.since(&before, start.elapsed(), interval, args.format))?;
            before = counters;
            next += interval;
        }
        std::thread::sleep(POLL);
    }
    let exit = scheduler.detach(0);
    if exit.kind != Exit::NONE {
        return Err(ejected(&short, &exit).into());
    }
    output::say(&format!("{short} is detached"));
    Ok(())
}

/// Sets tunables of the default class until the end, and restores them.
fn tune(input: &SchedulerInput, release: &str, duration: Option<Duration>) -> Result<()> {
    let stop = output::cancelled();
    let short = input.arg.short();
    let tuning = Tuning::apply(&input.arg)?;
    output::say(&format!("{short} is set on {release}; Ctrl-C restores what was"));
    let end = duration.map(|d| Instant::now() + d);
    while !stop.load(Ordering::Relaxed) && end.is_none_or(|end| Instant::now() < end) {
        std::thread::sleep(POLL);
    }
    tuning.restore()?;
    output::say(&format!("{short} is no longer set"));
    Ok(())
}

/// Installs the scheduler, which this machine's kernel can load as far as its types tell.
fn install(input: &SchedulerInput) -> Result<()> {
    let program = std::env::current_exe();
    let program = program
        .map_err(|e| CliError::Service { what: "the path of scxlab".into(), why: e.to_string() })?;
    install::install(&ThisSystem, &program, input)?;
    output::say(&format!(
        "{} is attached now and at each boot; `scxlab attach --uninstall` ends that, and `journalctl -u scxlab` has its messages",
        input.arg.short()
    ));
    Ok(())
}

fn uninstall() -> Result<()> {
    let there = install::uninstall(&ThisSystem)?;
    output::say(if there {
        "the service is stopped and removed"
    } else {
        "no service is installed"
    });
    Ok(())
}

fn ejected(name: &str, exit: &Exit) -> CliError {
    CliError::Left {
        name: name.to_owned(),
        kind: exit.kind.clone(),
        message: exit.message.clone(),
        dump: exit.dump.clone(),
    }
}

/// Counters since the scheduler was attached.
struct Counters {
    /// Number of calls and their total time in ns, by operation.
    ops: BTreeMap<String, (u64, u64)>,
    events: BTreeMap<String, u64>,
    /// The scheduler's own counters.
    own: IndexMap<String, u64>,
}

impl Counters {
    fn read(scheduler: &Scheduler<'_>) -> Counters {
        let ops = scheduler.op_costs().into_iter().map(|o| (o.op, (o.calls, o.ns))).collect();
        let own = scheduler.counters().total;
        Counters { ops, events: kernel::events().into_iter().collect(), own }
    }

    fn since(
        &self,
        before: &Counters,
        elapsed: Duration,
        interval: Duration,
        format: Format,
    ) -> String {
        let seconds = interval.as_secs_f64();
        let mut ops = Vec::new();
        for (op, (calls, ns)) in &self.ops {
            let (old_calls, old_ns) = before.ops.get(op).copied().unwrap_or_default();
            let calls = calls.saturating_sub(old_calls);
            if calls > 0 {
                ops.push((
                    op,
                    calls as f64 / seconds,
                    ns.saturating_sub(old_ns) as f64 / calls as f64,
                ));
            }
        }
        let grown = |(name, value): (&String, &u64)| {
            let more = value.saturating_sub(before.events.get(name).copied().unwrap_or(0));
            (more > 0).then(|| (name.clone(), more))
        };
        let events: Vec<_> = self.events.iter().filter_map(grown).collect();
        let grown = |(name, value): (&String, &u64)| {
            let more = value.wrapping_sub(before.own.get(name).copied().unwrap_or(0));
            (more > 0).then(|| (name.clone(), more))
        };
        let own: Vec<_> = self.own.iter().filter_map(grown).collect();
        if format == Format::Json {
            let ops: serde_json::Map<_, _> = ops
                .iter()
                .map(|(op, rate, mean)| {
                    ((*op).clone(), json!({ "calls_per_s": rate, "mean_ns": mean }))
                })
                .collect();
            let events: serde_json::Map<_, _> =
                events.iter().map(|(name, more)| (name.clone(), json!(more))).collect();
            let own: serde_json::Map<_, _> =
                own.iter().map(|(name, more)| (name.clone(), json!(more))).collect();
            let elapsed = elapsed.as_secs_f64();
            return format!(
                "{}\n",
                json!({ "elapsed_s": elapsed, "ops": ops, "events": events, "sched": own })
            );
        }
        let ops: Vec<String> =
            ops.iter().map(|(op, rate, mean)| format!("{op} {rate:.0}/s {mean:.0} ns")).collect();
        let events: Vec<String> =
            own.iter().chain(&events).map(|(name, more)| format!("{name} +{more}")).collect();
        format!("{:8.1} s  {}  {}\n", elapsed.as_secs_f64(), ops.join("  "), events.join("  "))
    }
}
