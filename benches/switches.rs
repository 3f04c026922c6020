// SPDX-License-Identifier: GPL-2.0-only
//! Context switches and events per second of one simulation on one core, and its memory.
//!
//! A case is named after its scheduler and its number of CPUs, such as `vtime-64`. The tasks run
//! 1 ms and sleep 4 ms. There are five per CPU (four in `SCHEDULER-1024x4096`, about ten in
//! `SCHEDULER-1024`). The trace is off, costs are the defaults, and the workload has no random
//! variation. Each case runs in a process of its own, so that its peak of resident memory is its
//! own. `-- CASE [interp]` runs one case in this process, for a profiler or on the interpreter.

use std::error::Error;
use std::process::Command;

use scxlab_benches::case::Case;
use scxlab_benches::{host, median};
use scxlab_bpf::vm::Engine;
use scxlab_trace::Tracer;

struct Setup {
    name: &'static str,
    machine: &'static str,
    tasks: u32,
    duration_ms: u64,
    rounds: usize,
}

const SETUPS: &[Setup] = &[
    Setup { name: "8", machine: "8c", tasks: 40, duration_ms: 20_000, rounds: 7 },
    Setup { name: "64", machine: "2n32c", tasks: 320, duration_ms: 4_000, rounds: 5 },
    Setup { name: "1024x4096", machine: "8n64c2t", tasks: 4_096, duration_ms: 1_000, rounds: 3 },
    Setup { name: "1024", machine: "8n64c2t", tasks: 10_000, duration_ms: 1_000, rounds: 1 },
];

const SCHEDULERS: [&str; 2] = ["vtime", "eevdf"];

/// The project's memory limit in bytes: a base, and an amount per task.
const MEMORY: u64 = 64 << 20;
const MEMORY_PER_TASK: u64 = 4 << 10;

const KIB: f64 = 1024.0;
const MIB: f64 = KIB * KIB;

fn main() -> Result<(), Box<dyn Error>> {
    let mut wanted = std::env::args().skip(1).filter(|arg| !arg.starts_with("--"));
    if let Some(name) = wanted.next() {
        let interpreted = wanted.next().as_deref() == Some("interp");
        return one(&name, if interpreted { Engine::Interp } else { Engine::Jit });
    }
    println!(
        "{:<15} {:>6} {:>12} {:>10} {:>8} {:>9} {:>9} {:>9}",
        "case", "tasks", "switches/s", "events/s", "x real", "peak MiB", "allowed", "KiB/task"
    );
    for setup in SETUPS {
        for scheduler in SCHEDULERS {
            let case = format!("{scheduler}-{}", setup.name);
            let status = Command::new(std::env::current_exe()?).arg(&case).status()?;
            if !status.success() {
                return Err(format!("{case}: {status}").into());
            }
        }
    }
    Ok(())
}

/// Runs a case, `SCHEDULER-CPUS`, and prints its row.
fn one(name: &str, engine: Engine) -> Result<(), Box<dyn Error>> {
    let (scheduler, size) = name.rsplit_once('-').ok_or_else(|| format!("no case {name}"))?;
    let setup = SETUPS.iter().find(|setup| setup.name == size);
    let setup = setup.ok_or_else(|| format!("no case {name}"))?;
    let case = |tasks, ms: u64| {
        let workload = format!("sleepers,tasks={tasks}");
        let mut case = Case::new(scheduler, &workload, setup.machine, ms * 1_000_000)?;
        case.engine = engine;
        Ok::<Case, Box<dyn Error>>(case)
    };
    // Run the same machine with a single task, to subtract the memory that does not depend on
    // tasks.
    case(1, 100)?.run(Tracer::default())?;
    let bare = host::peak_rss();
    let case = case(setup.tasks, setup.duration_ms)?;
    let (mut switches, mut events, mut speed) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..setup.rounds {
        let measured = case.run(Tracer::default())?;
        switches.push(measured.rate("context_switches"));
        events.push(measured.rate("events"));
        speed.push(measured.speed());
    }
    let peak = host::peak_rss();
    let allowed = MEMORY + MEMORY_PER_TASK * u64::from(setup.tasks);
    println!(
        "{name:<15} {:>6} {:>12.0} {:>10.0} {:>8.2} {:>9.1} {:>9.1} {:>9.1}",
        setup.tasks,
        median(switches),
        median(events),
        median(speed),
        peak as f64 / MIB,
        allowed as f64 / MIB,
        peak.saturating_sub(bare) as f64 / KIB / f64::from(setup.tasks),
    );
    Ok(())
}
