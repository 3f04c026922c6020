// SPDX-License-Identifier: GPL-2.0-only
//! The report on an error names the operation, the program and the source line that caused it. The
//! report on a stall names the task, the task's DSQ, the code that inserted the task there, and the
//! operations on the CPUs that could have taken the task. The knobs of `bpf/selftest/lapse` cause
//! these failures.

use std::sync::Arc;

use scxlab_bpf::vm::Engine;
use scxlab_lab::input::{NoFiles, SchedulerInput};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::run::{Exit, Run};
use scxlab_lab::sim::{SimSpec, simulate};
use scxlab_machine::Machine;
use scxlab_workload::load;

const LAPSE: &str = include_str!("../../../bpf/selftest/lapse/lapse.bpf.c");

/// Tasks that sleep, so that every operation and a kick of an idle CPU occur.
const SLEEPERS: &str = "[[thread]]\nname = 'a'\ninstances = 3\n\
    ops = [{ loop = { ops = [{ compute = '300us' }, { sleep = '400us' }] } }]";

fn run(scheduler: &str, work: &str, machine: &str, engine: Engine, seed: u64, seconds: u64) -> Run {
    let machine = Arc::new(Machine::resolve(machine).unwrap());
    let scheduler = SchedulerInput::resolve(scheduler, &NoFiles).unwrap();
    let scheduler = Prepared::simulated(&scheduler, &machine).unwrap();
    let workload = load("w.toml", work).unwrap();
    let spec = SimSpec {
        duration: Some(seconds * 1_000_000_000),
        engine,
        ..SimSpec::new(&machine, &workload, &scheduler, seed)
    };
    simulate(&spec, Default::default(), &|_| None).unwrap().0
}

/// Tells whether a place is the line of `lapse.bpf.c` that ends with this remark. The compiler may
/// merge several calls of an inline function into one, and the place then names all of their lines.
fn is_at(place: &str, remark: &str) -> bool {
    let remark = format!("/* {remark} */");
    let ends = |text: &str| text.ends_with(&remark);
    let at: Vec<usize> =
        (1..).zip(LAPSE.lines()).filter(|(_, l)| ends(l)).map(|(n, _)| n).collect();
    assert_eq!(at.len(), 1, "{remark}");
    let Some((_, after)) = place.rsplit_once("lapse.bpf.c:") else { return false };
    // The source text follows the line number, if the compiler put the text into the object.
    let lines = after.split_once([':', '(', ')']).map_or(after, |(lines, _)| lines);
    let lines: Vec<&str> = lines.split(" or ").collect();
    assert!(lines.len() == 1 || place.contains("scx/compat.bpf.h:"), "{place}");
    lines.iter().any(|line| line.parse() == Ok(at[0]))
}

/// Runs `lapse`, which commits error number `wrong` 20 ms after its attach, and returns its exit.
fn wronged(wrong: u32, machine: &str, engine: Engine, seed: u64) -> Exit {
    let scheduler = format!("lapse,wrong={wrong},eject_after_ns=20000000");
    let exit = run(&scheduler, SLEEPERS, machine, engine, seed, 1).exit;
    assert_ne!(exit.kind, Exit::NONE, "{scheduler} on {machine}");
    exit
}

/// Each error that `lapse` can commit: its number, the kernel's message, the operation or callback
/// that the report names, and the BPF function that the report names.
const WRONGS: [(u32, &str, &str, &str); 13] = [
    (0, "its time is over", "in ops.dispatch()", "lapse_dispatch"),
    (1, "non-existent DSQ 0xbad", "in ops.enqueue()", "lapse_enqueue"),
    (
        2,
        "invalid CPU 9999 in SCX_DSQ_LOCAL_ON dispatch verdict",
        "in ops.enqueue()",
        "lapse_enqueue",
    ),
    (3, "invalid CPU 9999", "in ops.enqueue()", "lapse_enqueue"),
    (4, "invalid CPU 9999", "in ops.enqueue()", "kick_below"),
    (5, "invalid CPU 9999", "in ops.enqueue()", "kick_in_loop"),
    (
        6,
        "scx_bpf_dump() must only be called from ops.dump() and friends",
        "in ops.enqueue()",
        "lapse_enqueue",
    ),
    (7, "non-existent DSQ 0xbad", "in ops.dispatch()", "lapse_dispatch"),
    (8, "invalid DSQ ID 0x0000000000000bad", "in ops.dispatch()", "lapse_dispatch"),
    (9, "peek on non-existent DSQ 0xbad", "in a timer callback", "ring"),
    (10, "accessing rq without holding rq lock", "in a timer callback", "ring"),
    (
        11,
        "invalid CPU 9999 from ops.select_cpu()",
        "returned by ops.select_cpu()",
        "lapse_select_cpu",
    ),
    (12, "ops.init() failed (-5)", "returned by ops.init()", "lapse_init"),
];

/// The report on an error names the right line on each of several machines with different seeds,
/// and with both engines.
#[test]
fn an_error_names_the_line_that_makes_it() {
    for (nth, machine) in ["1n2c1t", "1n2c2t", "2n2c1t"].into_iter().enumerate() {
        for engine in [Engine::Interp, Engine::Jit] {
            for (wrong, message, program, func) in WRONGS {
                let exit = wronged(wrong, machine, engine, nth as u64 + 1);
                let about = format!("{wrong} on {machine}, {engine:?}: {exit:#?}");
                assert!(exit.message.ends_with(message), "{about}");
                let origin = &exit.origin[0];
                assert!(origin.starts_with(&format!("{program}: {func} ")), "{about}");
                assert!(is_at(origin, &format!("wrong {wrong}")), "{about}");
                let (_, dump) = exit.dump.split_once("\nBacktrace:\n").expect(&about);
                let frame = dump.lines().nth(exit.origin.len()).expect(&about);
                assert!(frame.starts_with(&format!("  #0 {func} [lapse ")), "{about}");
                assert!(is_at(frame, &format!("wrong {wrong}")), "{about}");
            }
        }
    }
}

/// The report on an error in a subprogram or in a callback of a loop names the caller of that
/// function. Reports on other errors name no caller.
#[test]
fn an_error_names_the_callers_of_its_function() {
    for (wrong, ..) in WRONGS {
        for engine in [Engine::Interp, Engine::Jit] {
            let exit = wronged(wrong, "1n2c1t", engine, 7);
            let callers = &exit.origin[1..];
            if wrong == 4 || wrong == 5 {
                assert_eq!(callers.len(), 1, "{exit:#?}");
                assert!(
                    callers[0].starts_with("called by lapse_enqueue at instruction "),
                    "{exit:#?}"
                );
                assert!(is_at(&callers[0], &format!("calls {wrong}")), "{exit:#?}");
            } else {
                assert_eq!(callers, [""; 0], "{exit:#?}");
            }
        }
    }
}

/// Returns a workload of `count` tasks that want one of the CPUs `cpus` at 5 ms, and that the
/// scheduler will starve. Another task keeps CPU 0 busy.
fn victims(count: u32, cpus: &str) -> String {
    format!(
        "[[thread]]\nname = 'victim'\ninstances = {count}\ncpus = '{cpus}'\n\
         ops = [{{ sleep = '5ms' }}, {{ compute = '1ms' }}, {{ sleep = '60min' }}]\n\
         [[thread]]\nname = 'fed'\ncpus = '0'\nops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]"
    )
}

fn stalled(starve_in: u32, machine: &str, cpus: &str, seed: u64) -> Run {
    stalled_of(2, starve_in, machine, cpus, seed)
}

fn stalled_of(count: u32, starve_in: u32, machine: &str, cpus: &str, seed: u64) -> Run {
    let scheduler = format!("lapse,starve=118,woken=1,starve_in={starve_in}");
    let work = victims(count, cpus);
    let run = run(&scheduler, &work, machine, Engine::Jit, seed, 60);
    assert_eq!(run.exit.kind, "error_stall", "{:?}", run.exit);
    run
}

/// Parses a time such as `since 0.005012 s` into nanoseconds.
fn time_after(text: &str, word: &str) -> u64 {
    let (_, rest) = text.split_once(word).unwrap_or_else(|| panic!("{word} in {text}"));
    let (number, _) = rest.trim_start().split_once(" s").unwrap();
    (number.parse::<f64>().unwrap() * 1e9) as u64
}

/// On every machine and seed, a stall names the task of the message, the start of its wait, and
/// what ran on its allowed CPUs.
#[test]
fn a_stall_says_since_when_and_what_ran_meanwhile() {
    for (seed, (machine, cpus, all)) in
        [("1n1c1t", "0", "CPU 0"), ("1n4c1t", "1-2", "CPUs 1-2"), ("2n2c2t", "0-7", "CPUs 0-7")]
            .into_iter()
            .enumerate()
    {
        for starve_in in [0, 1] {
            let run = stalled(starve_in, machine, cpus, seed as u64 + 3);
            let exit = &run.exit;
            let about = format!("{starve_in} on {machine}: {exit:#?}");
            let (task, _) = exit.message.split_once(" failed to run for ").expect(&about);
            let who = &exit.origin[0];
            assert!(who.starts_with(&format!("{task} waits since ")), "{about}");
            assert!(who.ends_with(&format!("; it may run on {all}")), "{about}");
            let (since, waited) = (time_after(who, " since "), time_after(who, ", for "));
            assert!((5_000_000..7_000_000).contains(&since), "{about}");
            assert!((since + waited).abs_diff(exit.at_ns.unwrap()) < 100_000, "{about}");
            // The report leaves out operations before the wait, so each reported time must lie
            // after the start of the wait.
            assert!(exit.origin.len() > 2, "{about}");
            for ran in &exit.origin[2..] {
                assert!(ran.starts_with("since ") && time_after(ran, "since ") > since, "{about}");
            }
            let ran: u64 = exit.origin[2..].iter().map(|line| dispatches(line)).sum();
            let all_calls = run.metrics["op_dispatch_calls"].value;
            if machine == "1n1c1t" {
                // The report counts the calls of `ops.dispatch` in two of the three intervals
                // between the watchdog's checks. The calls are spread evenly over time, so the
                // report must count two thirds of them.
                let share = ran as f64 / all_calls;
                assert!((0.64..0.69).contains(&share), "{about}: {all_calls}");
            } else if cpus == "1-2" {
                assert_eq!(exit.origin.len(), 3, "{about}");
                assert!(exit.origin[2].ends_with(&format!("{all}: no operation")), "{about}");
            } else {
                assert!(ran > 1000 && (ran as f64) < all_calls, "{about}: {all_calls}");
            }
        }
    }
}

/// Returns the number of calls of `ops.dispatch` that a line reports.
fn dispatches(line: &str) -> u64 {
    let Some((_, rest)) = line.split_once("dispatch ") else { return 0 };
    rest.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(1)
}

#[test]
fn a_stall_names_the_queue_and_the_line_that_put_the_task_there() {
    for (machine, seed) in [("1n1c1t", 1), ("1n4c1t", 2), ("2n2c2t", 3)] {
        let exit = stalled(0, machine, "0", seed).exit;
        let place = &exit.origin[1];
        let begin = "on DSQ 0x1 at its head, inserted there by ops.enqueue(): lapse_enqueue at instruction ";
        assert!(place.starts_with(begin) && is_at(place, "puts in 0"), "{exit:#?}");
        assert!(
            exit.dump.contains(&format!("\nBacktrace:\n  {}\n  {place}\n", exit.origin[0])),
            "{exit:#?}"
        );
        // The task was never inserted into a DSQ, so the report names the operation that received
        // the task.
        let exit = stalled(1, machine, "0", seed).exit;
        let begin = "on no DSQ: held by the scheduler since ops.enqueue(): lapse_enqueue (";
        assert!(exit.origin[1].starts_with(begin), "{exit:#?}");
        assert!(exit.dump.contains("\n  #0 lapse_enqueue ["), "{exit:#?}");
        // The task waits behind a task with an endless slice, so the report names that running
        // task.
        let exit = stalled(2, machine, "0", seed).exit;
        let place = &exit.origin[1];
        let begin = "on local DSQ of CPU 0 at its head, while fed[";
        assert!(place.starts_with(begin), "{exit:#?}");
        assert!(
            place.contains("] with an endless slice runs there, inserted there by ops.enqueue(): "),
            "{exit:#?}"
        );
        assert!(is_at(place, "puts in 2"), "{exit:#?}");
    }
}

/// `lapse` inserts each task before the tasks that already wait, so the task that waits longest is
/// last. The report on the stall must say how many tasks are before it.
#[test]
fn a_stall_says_how_many_are_before_the_task() {
    for (machine, seed) in [("1n1c1t", 1), ("1n4c1t", 2), ("2n2c2t", 3)] {
        for (victims, place) in [(1, " at its head"), (2, " behind 1 task"), (5, " behind 4 tasks")]
        {
            let exit = stalled_of(victims, 3, machine, "0", seed).exit;
            let begin = format!("on local DSQ of CPU 0{place}, while fed[");
            assert!(exit.origin[1].starts_with(&begin), "{exit:#?}");
            assert!(is_at(&exit.origin[1], "puts in 3"), "{exit:#?}");
        }
    }
}

/// A real-time task that keeps the CPU is not the scheduler's fault, and the report says that such
/// a task runs. The deadline server's 50 ms in a second are too little for so many tasks.
#[test]
fn a_stall_below_a_real_time_task_says_so() {
    let work = "[[thread]]\nname = 'a'\ninstances = 1500\ncpus = '0'\n\
                ops = [{ sleep = '5ms' }, { compute = '1s' }]\n\
                [[thread]]\nname = 'hog'\npolicy = { fifo = 10 }\ncpus = '0'\n\
                ops = [{ sleep = '1ms' }, { loop = { ops = [{ compute = '10ms' }] } }]";
    let exit = run("lapse", work, "1n2c1t", Engine::Jit, 1, 60).exit;
    assert_eq!(exit.kind, "error_stall", "{exit:#?}");
    let ran = exit.origin.last().unwrap();
    assert!(ran.contains(" on CPU 0: enqueue "), "{exit:#?}");
    assert!(ran.ends_with("; a task of a higher scheduling class runs there"), "{exit:#?}");
}
