// SPDX-License-Identifier: GPL-2.0-only
//! Builds: a parent that waits for any of its children, some of which end while it is awake.

use std::sync::Arc;

use scxlab_machine::Machine;
use scxlab_workload::program::{Op, ThreadTemplate};
use scxlab_workload::{Program, WorkloadArg, load, parse_workload_arg};

use super::{MS, Terms, read, record_on, replay, run_on};

/// Longer than any of the builds takes.
const LONG: u64 = 100_000 * MS;

fn build(jobs: u32, files: u32) -> Program {
    let text = format!("kernbench,jobs={jobs},files={files},work=8ms,parse=3ms,link=20ms");
    let Ok(WorkloadArg::Program(program)) = parse_workload_arg(&text) else { panic!("{text}") };
    *program
}

/// The linker begins after the last file, so that a build and its replay take equally long.
#[test]
fn a_build_links_after_its_last_file() {
    let (mut wrong, mut sum) = (Vec::new(), 0.0);
    for (machine, jobs, files) in [
        ("1n1c1t", 2, 6),
        ("1n2c1t", 4, 24),
        ("1n4c1t", 3, 20),
        ("1n4c1t", 16, 40),
        ("2n2c1t", 8, 30),
        ("laptop-4c8t", 5, 33),
    ] {
        let machine = Arc::new(Machine::resolve(machine).unwrap());
        for seed in 1..=4 {
            let program = build(jobs, files);
            let (original, bytes) = record_on(&machine, &program, Terms::noisy(seed, LONG));
            let program = replay(&bytes);
            let again = run_on(&machine, "eevdf", &program, Terms::noisy(seed + 7, LONG));
            let ratio = again.virtual_ns as f64 / original.virtual_ns as f64;
            sum += ratio;
            if !(0.94..=1.06).contains(&ratio) {
                wrong.push(format!("{} -j{jobs}, {files}, {seed}: {ratio}", machine.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of 24: {wrong:#?}", wrong.len());
    let mean = sum / 24.0;
    assert!((0.98..=1.02).contains(&mean), "{mean}");
}

/// A shell that waits for its first child does not go on when its second one ends.
#[test]
fn a_wait_for_one_child_is_none_for_any() {
    let text = "[[thread]]\nname = 'sh'\nprocess = 'sh'\nops = [{ fork = 'slow' }, { fork = 'fast' }, \
                { sem_wait = 'slow is over' }, { compute = '2ms' }, { count = 1 }]
                [[thread]]\nname = 'slow'\ninstances = 0\nprocess = 'slow'\n\
                ops = [{ compute = '30ms' }, { sem_post = 'slow is over' }]
                [[thread]]\nname = 'fast'\ninstances = 0\nprocess = 'fast'\nops = [{ compute = '10ms' }]";
    let machine = Arc::new(Machine::resolve("4c").unwrap());
    let program = load("sh.toml", text).unwrap();
    let (_, bytes) = record_on(&machine, &program, Terms::exact(1, LONG));
    let program = replay(&bytes);
    let posts = |op: &Op| matches!(op, Op::SemPost(_));
    let of = |name: &str| -> &ThreadTemplate {
        program.threads.iter().find(|t| t.name.starts_with(name)).unwrap()
    };
    assert_eq!(of("slow").ops.iter().filter(|op| posts(op)).count(), 1);
    assert_eq!(of("fast").ops.iter().filter(|op| posts(op)).count(), 0);
}

/// A task that was forked before its parent had the name that is asked for begins by itself.
#[test]
fn children_of_a_task_that_comes_into_the_scope_later_begin_by_themselves() {
    let text = "# tracer: nop
#
          perf-105     [000] .....     1.000000: sched_process_fork: comm=perf pid=105 child_comm=app child_pid=108
          perf-105     [000] .....     1.001000: sched_switch: prev_comm=perf prev_pid=105 prev_prio=120 prev_state=S ==> next_comm=app next_pid=108 next_prio=120
          app-108      [000] .....     1.005000: sched_waking: comm=perf pid=105 prio=120 target_cpu=000
          app-108      [000] .....     1.006000: sched_switch: prev_comm=app prev_pid=108 prev_prio=120 prev_state=S ==> next_comm=app next_pid=105 next_prio=120
          app-105      [000] .....     1.008000: sched_waking: comm=app pid=108 prio=120 target_cpu=000
          app-105      [000] .....     1.009000: sched_switch: prev_comm=app prev_pid=105 prev_prio=120 prev_state=S ==> next_comm=app next_pid=108 next_prio=120
          app-108      [000] .....     1.012000: sched_switch: prev_comm=app prev_pid=108 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120
";
    let program = read(text.as_bytes(), "tasks=app").unwrap().replay.program;
    assert_eq!(program.threads.iter().map(|t| t.instances).collect::<Vec<_>>(), [1, 1]);
    let machine = Arc::new(Machine::resolve("2c").unwrap());
    assert!(run_on(&machine, "eevdf", &program, Terms::exact(1, 50 * MS)).counts);
}
