// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab record`: records a workload on this machine's kernel into a Perfetto file.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use scxlab_lab::results::quoted;
use scxlab_live::job::this_machine;
use scxlab_live::record::{RecordSpec, Recorded, Recording, Scope};
use scxlab_machine::plural;
use scxlab_trace::{PerfettoSink, Sink};

use crate::args::RecordArgs;
use crate::exit::CliError;
use crate::output::{self, Files};

/// Length of a recording if the user gives neither a length nor a command.
const DURATION: Duration = Duration::from_secs(10);

pub fn record(args: &RecordArgs) -> Result<()> {
    let stop = output::cancelled();
    let spec = spec(args);
    let length = spec.duration;
    let machine = this_machine()?;
    let nr_cpus = machine.topology.nr_cpus();
    let recording = Recording::prepare(spec, nr_cpus)?;
    let files = Files::default();
    let failed = |error| CliError::Write { what: args.output.display().to_string(), error };
    let out = files.create(&args.output).map_err(failed)?;
    let sink = PerfettoSink::new(out, &machine);
    let mut sink = match scxlab_live::kernel::scheduler() {
        Some(scheduler) => sink.under(&scheduler),
        None => sink,
    };
    output::say(&match length {
        Some(length) => format!("recording for {:.0} s; Ctrl-C ends it", length.as_secs_f64()),
        None => "recording until the command ends; Ctrl-C ends it".into(),
    });
    let recorded = recording.run(&mut sink, stop)?;
    sink.finish().map_err(failed)?;
    let bytes = sink.written();
    output::publish(files)?;
    report(&args.output, bytes, &recorded, nr_cpus).iter().for_each(|line| output::say(line));
    Ok(())
}

fn spec(args: &RecordArgs) -> RecordSpec {
    let scope = match (&args.cgroup, args.pid) {
        (Some(cgroup), _) => Scope::Cgroup(cgroup.clone()),
        (_, Some(pid)) => Scope::Process(pid),
        _ if !args.command.is_empty() => Scope::Command(args.command.clone()),
        _ => Scope::Machine,
    };
    let duration = args.duration.map(|d| Duration::from_nanos(d.0));
    let duration = duration.or(args.command.is_empty().then_some(DURATION));
    RecordSpec { scope, duration, ring: args.buffer }
}

/// Returns the lines that tell what a file holds, what it lacks, and what the recording took.
fn report(file: &Path, bytes: u64, recorded: &Recorded, nr_cpus: usize) -> Vec<String> {
    let Recorded { length, events, members, calls, lost, missed, unread, bpf, cpu, ref note } =
        *recorded;
    let seconds = length.as_secs_f64().max(1e-9);
    let mut lines = vec![format!(
        "{}: {:.1} MiB, {} in {seconds:.2} s ({:.0} per second), {calls} of them calls; {} of the workload",
        file.display(),
        bytes as f64 / f64::from(1 << 20),
        plural(events, "event"),
        events as f64 / seconds,
        plural(members, "task"),
    )];
    let share = |time: Duration| 100.0 * time.as_secs_f64() / (seconds * nr_cpus as f64);
    lines.push(format!(
        "overhead: {:.2} s of CPU time for BPF programs ({:.1} % of the machine), {:.2} s for writing the file ({:.1} %)",
        bpf.as_secs_f64(),
        share(bpf),
        cpu.as_secs_f64(),
        share(cpu),
    ));
    if lost > 0 {
        lines.push(format!(
            "warning: {} lost, because the buffer was full; a larger --buffer holds more",
            plural(lost, "event")
        ));
    }
    if missed > 0 {
        lines.push(format!(
            "warning: {} lost, because the kernel ran another program at the time",
            plural(missed, "event")
        ));
    }
    if unread > 0 {
        lines.push(format!(
            "note: {unread} calls are left out, because their arguments could not be read"
        ));
    }
    if members == 0 {
        lines.push("warning: no task of the workload ran".into());
    }
    lines.extend(note.iter().map(|note| format!("note: {note}")));
    if members > 0 {
        let file = quoted(&file.display().to_string());
        lines.push(format!("next: scxlab advise -w {file} -m {file}"));
    }
    lines
}
