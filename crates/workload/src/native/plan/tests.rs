// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the native executor's tables: names and processes of the threads must be those of the
//! simulated executor, and a plan that was written as text and read back must give equal tables.

use scxlab_kernel::behavior::TaskSpec;

use super::*;
use crate::exec::mock::Mock;
use crate::exec::{ExecConfig, Executor};

fn plan(program: &Program) -> Plan {
    Plan {
        program: program.clone(),
        from_rtapp: program.from_rtapp,
        parent: 0,
        duration: None,
        seed: 0,
        start_offset_max: 0,
        compute_noise_permille: 0,
        cpus: (0..8).collect(),
        restrict: false,
        cgroups: None,
        calibration: None,
        io_latency: 0,
        io_kib: 0,
        grace: 0,
        start_fd: None,
        gate_fd: None,
        guests: Vec::new(),
    }
}

fn tables(text: &str) -> Tables {
    Tables::new(plan(&crate::load("t.toml", text).unwrap())).unwrap()
}

/// Returns the tasks that the simulated executor asks its kernel for.
fn simulated(program: &Program) -> Vec<TaskSpec> {
    let config = ExecConfig { nr_cpus: 8, ..ExecConfig::default() };
    let mut executor = Executor::new(program, config).unwrap();
    let mut mock = Mock::new(8, 1);
    mock.run(&mut executor, 1000);
    mock.tasks.into_iter().map(|t| t.spec).collect()
}

/// Compares names and thread groups at the start in both executors.
fn same_threads(program: &Program) {
    let tables = Tables::new(plan(program)).unwrap();
    let specs = simulated(program);
    assert_eq!(specs.len(), tables.start.len());
    let mut made_of = vec![0; program.threads.len()];
    for (made, (start, spec)) in tables.start.iter().zip(&specs).enumerate() {
        let of = &mut made_of[start.template as usize];
        let name = tables.thread_name(start.template, start.instance, made as u32, *of, false);
        *of += 1;
        assert_eq!(name, spec.name);
        let sibling = tables.start[..made]
            .iter()
            .any(|s| s.process == start.process && start.process != NO_PROCESS);
        assert_eq!(spec.thread_group_of.is_some(), sibling, "{name}");
    }
}

#[test]
fn threads_are_those_of_the_simulation() {
    let own = "[[thread]]\nname = 'a'\ninstances = 3\nprocess = 'p{i%2}'\nops = ['yield']\n\
               [[thread]]\nname = 'b{i}'\ninstances = 2\nprocess = 'p0'\nops = ['yield']\n\
               [[thread]]\nname = 'c'\nops = ['yield']";
    same_threads(&crate::load("t.toml", own).unwrap());
    let rtapp = r#"{ "tasks": { "x": { "instance": 2, "run": 10 }, "y": { "run": 10 } } }"#;
    same_threads(&crate::load("t.json", rtapp).unwrap());
}

#[test]
fn the_text_of_a_plan_gives_the_same_tables() {
    let text = "[[semaphore]]\nname = 's{i}'\nvalue = 4\n[[mutex]]\nname = 'm0'\nbarging = true\n[[barrier]]\nname = 'd'\nparties = 9\n\
                [[thread]]\nname = 'a'\ninstances = 3\nops = [{ sem_wait = 's{i}' }, { barrier = 'b{i/2}' }, \
                { lock = 'm{i}' }, { unlock = 'm{i}' }, \
                { barrier = 'd' }, { fork = 'f' }]\n\
                [[thread]]\nname = 'f'\ninstances = 0\nops = [{ sem_post = 'd{i}' }]";
    let first = tables(text);
    let json = serde_json::to_string(&first.plan).unwrap();
    let second = Tables::new(serde_json::from_str(&json).unwrap()).unwrap();
    assert_eq!(first.compiled.code, second.compiled.code);
    let sems = |t: &Tables| t.compiled.objects.names(ObjectKind::Sem).to_vec();
    assert_eq!(sems(&first), sems(&second));
    assert_eq!(sems(&first).len(), 3 + FORKED_BOUND as usize);
    assert_eq!(first.sems[..4], [4, 4, 4, 0]);
    assert_eq!(first.barging, [true, false, false]);
    let parties = |name| {
        let at = first.compiled.objects.names(ObjectKind::Barrier).iter().position(|n| n == name);
        first.barriers[at.unwrap()]
    };
    assert_eq!([parties("b0"), parties("b1"), parties("d")], [2, 1, 9]);
    let forked = &first.templates[1];
    assert!(forked.binding(FORKED_BOUND - 1).is_some() && forked.binding(FORKED_BOUND).is_none());
}

#[test]
fn turns_are_taken_where_sizes_differ() {
    let turns =
        |ops: &str| tables(&format!("[[thread]]\nname = 'a'\nops = [{ops}]")).pipes[0].turns;
    let write = |n: u32| format!("{{ write = {{ pipe = 'p', bytes = {n} }} }}");
    let read = |n: u32| format!("{{ read = {{ pipe = 'p', bytes = {n} }} }}");
    assert!(!turns(&format!("{}, {}", write(100), read(100))));
    assert!(turns(&format!("{}, {}", write(100), read(200))));
    assert!(turns(&format!("{}, {}", write(5000), read(5000))));
}

#[test]
fn comms_are_cut() {
    assert_eq!(&comm("abc")[..4], b"abc\0");
    assert_eq!(&comm("0123456789abcdefgh"), b"0123456789abcde\0");
}

/// The owners of regions are those of the simulated executor (`exec/region.rs`).
#[test]
fn the_regions_of_the_start_have_records() {
    let of = |more: &str| {
        tables(&format!(
            "[[region]]\nname = 'r'\nsize = 5000\nhuge = false\n{more}\n[[thread]]\nname = 'a'\n\
             instances = 4\nprocess = 'p{{i/2}}'\nops = [{{ touch = {{ region = 'r' }} }}]\n\
             [[thread]]\nname = 'b'\ninstances = 3\nops = [{{ touch = {{ region = 'r' }} }}]"
        ))
    };
    // Two processes with names, and three without.
    let process = of("");
    assert_eq!((process.nr_region_records, process.memory()), (5, 5 * 8192));
    assert_eq!(process.process_names, ["p0", "p1"]);
    let thread = of("of = 'thread'");
    assert_eq!((thread.nr_region_records, thread.memory()), (7, 7 * 8192));
    // Each process maps the region, whose pages exist once.
    let all = of("of = 'all'");
    assert_eq!((all.nr_region_records, all.memory()), (5, 8192));
}
