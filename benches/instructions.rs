// SPDX-License-Identifier: GPL-2.0-only
//! The host's instructions per context switch and per event, counted by callgrind, which gives
//! figures without noise.
//!
//! Only the simulation itself counts (`Kernel::advance`), not building the kernel or linking the
//! object. The count should begin once the scheduler's operations are compiled, so the benchmark
//! subtracts the count of a run's beginning from the count of the whole run. Each row shows the
//! shares of the interpreter and of the compiler. Each of these shares is 0 if nothing was
//! interpreted or compiled in the counted part. The benchmark needs valgrind, which is not a part
//! of this project. The profile of the whole run stays in the folder for temporary files, for
//! `callgrind_annotate`.

use std::error::Error;

use scxlab_benches::callgrind;
use scxlab_benches::case::Case;
use scxlab_trace::Tracer;

struct Setup {
    scheduler: &'static str,
    workload: &'static str,
    machine: &'static str,
    /// Virtual time from which on a run's instructions count.
    from_ms: u64,
    /// Virtual time at which the run ends. It is short, because a program runs 50 times slower
    /// under callgrind.
    to_ms: u64,
}

const CASES: &[Setup] = &[
    case("vtime", "sleepers,tasks=40", "8c", [11_500, 11_800]),
    case("eevdf", "sleepers,tasks=40", "8c", [100, 400]),
    case("vtime", "sleepers,tasks=320", "2n32c", [900, 930]),
    case("eevdf", "sleepers,tasks=320", "2n32c", [20, 70]),
    case("vtime", "sleepers,tasks=4096", "8n64c2t", [100, 105]),
    case("eevdf", "sleepers,tasks=4096", "8n64c2t", [30, 35]),
];

const fn case(
    scheduler: &'static str,
    workload: &'static str,
    machine: &'static str,
    [from_ms, to_ms]: [u64; 2],
) -> Setup {
    Setup { scheduler, workload, machine, from_ms, to_ms }
}

/// Number of figures that `count` returns for a case.
const COUNTS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).filter(|arg| !arg.starts_with("--"));
    let number = args.next().map(|number| number.parse::<usize>()).transpose()?;
    if let (Some(number), Some(ms)) = (number, args.next()) {
        return run(CASES.get(number).ok_or("no such case")?, ms.parse()?);
    }
    if !callgrind::available() {
        println!("instructions: not counted, there is no valgrind");
        return Ok(());
    }
    println!("{:61}misses per switch", "");
    println!("{:37}per switch  per event interpreter compiler  code  data", "");
    let all = 0..CASES.len();
    all.filter(|case| number.is_none_or(|number| number == *case)).try_for_each(row)
}

/// Runs a case, under callgrind, and prints its switches and events for the process that started
/// it.
fn run(setup: &Setup, ms: u64) -> Result<(), Box<dyn Error>> {
    let case = Case::new(setup.scheduler, setup.workload, setup.machine, ms * 1_000_000)?;
    let run = case.run(Tracer::default())?;
    println!("{} {}", run.metric("context_switches"), run.metric("events"));
    Ok(())
}

/// Counts the instructions of a case, and prints the case's row of the table.
fn row(number: usize) -> Result<(), Box<dyn Error>> {
    let Setup { scheduler, workload, machine, from_ms, to_ms } = CASES[number];
    let (before, after) = (count(number, from_ms)?, count(number, to_ms)?);
    let [switches, events, insns, interpreter, compiler, code, data]: [f64; COUNTS] =
        std::array::from_fn(|i| after[i] - before[i]);
    // Two counts of the same work may differ by some instructions, so that a share would come out
    // negative; 0 is printed then.
    let share = |part: f64| (part / insns * 100.0).max(0.0);
    println!(
        "{scheduler:<6} {workload:<20} {machine:<8} {:10.0} {:10.0} {:9.1} % {:6.1} % {:5.0} {:5.0}",
        insns / switches,
        insns / events,
        share(interpreter),
        share(compiler),
        code / switches,
        data / switches
    );
    Ok(())
}

/// Makes callgrind count the first `ms` milliseconds of a case, in virtual time. Returns switches,
/// events, all instructions, the instructions of the interpreter and of the compiler, and the
/// misses for code and for data.
fn count(number: usize, ms: u64) -> Result<[f64; COUNTS], Box<dyn Error>> {
    let Setup { scheduler, machine, .. } = CASES[number];
    let args = [number.to_string(), ms.to_string()];
    let profile = callgrind::profile(&format!("{scheduler}-{machine}"), &args, true)?;
    let printed = &profile.printed;
    let (switches, events) = printed.trim().split_once(' ').ok_or("the case printed no counts")?;
    let mut own = [0.0; 2];
    for place in profile.costs()?.0 {
        if let Some(counter) = counter(place.function) {
            own[counter] += place.insns;
        }
    }
    let [interpreter, compiler] = own;
    let sum = |events: &[&str]| profile.sum(events);
    let (all, code, data) = (sum(&["Ir"])?, sum(&["I1mr"])?, sum(&["D1mr", "D1mw"])?);
    Ok([switches.parse()?, events.parse()?, all, interpreter, compiler, code, data])
}

/// Returns which count a function's instructions belong to: 0 is the interpreter's count, 1 the
/// compiler's; None for any other function.
fn counter(name: &str) -> Option<usize> {
    let compiler = ["cranelift", "regalloc2", "jit::translate", "jit::memory", "jit::alu"];
    if name.contains("vm::interp::run") {
        return Some(0);
    }
    compiler.iter().any(|part| name.contains(part)).then_some(1)
}
