// SPDX-License-Identifier: GPL-2.0-only
//! The story of an ejection tells what each CPU did before it: after a stall, a fault and an abort
//! of `bpf/selftest/lapse`, on several machines and seeds.

use std::sync::Arc;

use scxlab_lab::input::{NoFiles, SchedulerInput};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::run::Run;
use scxlab_lab::sim::{SimSpec, simulate};
use scxlab_lab::story::{Looks, Story, StoryCpu, observe};
use scxlab_machine::Machine;
use scxlab_workload::load;

/// A hog and a sleeper for each CPU, and a task that `lapse` can starve.
const WORK: &str = "[[thread]]\nname = 'victim'\nops = [{ sleep = '5ms' }, { compute = '1ms' }]\n\
    [[thread]]\nname = 'hog-{i}'\ninstances = 2\nops = [{ loop = { ops = [{ compute = '10ms' }] } }]\n\
    [[thread]]\nname = 'sleeper-{i}'\ninstances = 2\n\
    ops = [{ loop = { ops = [{ compute = '200us' }, { sleep = '1ms' }] } }]";

/// Numbers of `lapse`'s endless loops (`enum wrong`).
const LOOP_IN_ENQUEUE: u32 = 13;
const LOOP_IN_TIMER: u32 = 14;

const MACHINES: [&str; 3] = ["1n1c1t", "1n3c1t", "2n2c2t"];

/// Runs a scheduler, whose ejection is told in full.
fn ejected(scheduler: &str, work: &str, machine: &str, seed: u64) -> (Run, Story) {
    let machine = Arc::new(Machine::resolve(machine).unwrap());
    let scheduler = SchedulerInput::resolve(scheduler, &NoFiles).unwrap();
    let scheduler = Prepared::simulated(&scheduler, &machine).unwrap();
    let workload = load("w.toml", work).unwrap();
    let spec = SimSpec {
        duration: Some(60_000_000_000),
        ..SimSpec::new(&machine, &workload, &scheduler, seed)
    };
    let (mut run, _) = simulate(&spec, Default::default(), &|_| None).unwrap();
    assert!(run.was_ejected(), "{:?}", run.exit);
    let before = (run.exit.clone(), run.trace_hash.clone());
    observe(&spec, &mut run, &|_| None).unwrap();
    let story = run.exit.story.clone().unwrap();
    assert_eq!((story.to_ns, &run.trace_hash), (before.0.at_ns.unwrap(), &before.1));
    (run, story)
}

/// Each CPU of a story ran tasks or programs, or was idle, for the whole period, and its last
/// moments do not overlap.
fn check_times(story: &Story, about: &str) {
    assert!(!story.cpus.is_empty(), "{about}");
    for StoryCpu { cpu, idle_ns, programs_ns, ran, last, .. } in &story.cpus {
        let sum = idle_ns + programs_ns + ran.iter().map(|ran| ran.run_ns).sum::<u64>();
        assert_eq!(sum, story.to_ns - story.from_ns, "CPU {cpu} of {about}");
        let in_order = |pair: &[scxlab_lab::story::Moment]| pair[0].end_ns <= pair[1].start_ns;
        assert!(last.windows(2).all(in_order), "CPU {cpu} of {about}");
        let inside = last
            .iter()
            .all(|moment| moment.start_ns < moment.end_ns && moment.end_ns <= story.to_ns);
        assert!(inside, "CPU {cpu} of {about}");
    }
}

fn text(story: &Story) -> String {
    story.lines().join("\n")
}

#[test]
fn a_stall_tells_what_the_cpus_did_instead() {
    for (seed, machine) in MACHINES.iter().enumerate() {
        let (_, story) = ejected("lapse,starve=118", WORK, machine, seed as u64);
        let (about, said) = (format!("{machine}: {story:#?}"), text(&story));
        check_times(&story, &about);
        let task = story.task.as_ref().unwrap();
        assert_eq!((task.name.as_str(), task.dsq), ("victim", Some(1)), "{about}");
        // The period is the whole wait, and the CPUs are those that the task may use.
        assert_eq!(task.waiting_since_ns, Some(story.from_ns), "{about}");
        assert!(story.to_ns - story.from_ns > 30_000_000_000, "{about}");
        let cpus: Vec<u32> = story.cpus.iter().map(|cpu| cpu.cpu).collect();
        assert_eq!(cpus, task.cpus, "{about}");
        assert_eq!(task.looks, Some(Looks::default()), "{about}");
        assert!(said.contains("no CPU tried to move a task from DSQ 0x1"), "{said}");
        assert!(said.contains(": ran hog-"), "{said}");
        // All CPUs take their tasks from the shared DSQ, which is empty now and then.
        let shared = story.cpus.iter().flat_map(|cpu| &cpu.looks);
        assert!(shared.clone().all(|looks| looks.dsq == "DSQ 0x0"), "{about}");
        assert!(shared.map(|looks| looks.looks.moved).sum::<u64>() > 1000, "{about}");
    }
}

/// A CPU that is idle all the time, and was never kicked, is where to look for a forgotten kick.
#[test]
fn a_stall_names_idle_cpus() {
    let work = "[[thread]]\nname = 'victim'\nops = [{ sleep = '5ms' }, { compute = '1ms' }]";
    let (_, story) = ejected("lapse,starve=118,starve_in=1", work, "1n2c1t", 1);
    let said = text(&story);
    assert_eq!(said.matches("idle all the time, ").count(), 2, "{said}");
    assert!(story.cpus.iter().all(|cpu| cpu.ran.is_empty()), "{story:#?}");
    assert_eq!(story.task.unwrap().dsq, None, "{said}");
}

#[test]
fn an_abort_tells_the_last_moments() {
    for (seed, machine) in MACHINES.iter().enumerate() {
        let scheduler = "lapse,wrong=4,eject_after_ns=50000000";
        let (run, story) = ejected(scheduler, WORK, machine, seed as u64);
        let (about, said) = (format!("{machine}: {story:#?}"), text(&story));
        check_times(&story, &about);
        assert_eq!(story.to_ns - story.from_ns, 20_000_000, "{about}");
        assert_eq!(story.cpus[0].cpu, story.cpu.unwrap(), "{about}");
        let task = story.task.as_ref().unwrap();
        let first = format!("on CPU {}, for {}[{}]\n", story.cpus[0].cpu, task.name, task.pid);
        assert!(said.starts_with(&first), "{said}");
        assert!(said.contains("in the 20 ms before the exit:\n  CPU "), "{said}");
        assert!(run.exit.origin[1].starts_with("called by lapse_enqueue"), "{:?}", run.exit);
    }
}

/// A CPU without a task that executes the scheduler's endless loop is not idle, whether the loop is
/// in an operation or in the callback of a timer.
#[test]
fn an_endless_loop_is_no_idle_time() {
    let sleeper = "[[thread]]\nname = 'sleeper'\nops = [{ loop = { ops = [{ sleep = '5ms' }] } }]";
    for wrong in [LOOP_IN_ENQUEUE, LOOP_IN_TIMER] {
        for machine in MACHINES {
            let scheduler = format!("lapse,wrong={wrong},eject_after_ns=50000000");
            let (run, story) = ejected(&scheduler, sleeper, machine, 1);
            let (about, said) = (format!("{scheduler}, {machine}: {story:#?}"), text(&story));
            check_times(&story, &about);
            let message = &run.exit.message;
            assert!(message.contains("instruction limit"), "{message}");
            // The limit of instructions takes longer than half of the period.
            let first = &story.cpus[0];
            assert!(first.programs_ns > 10_000_000, "{about}");
            assert!(first.idle_ns < 10_000_000, "{about}");
            assert!(said.contains(": ran the scheduler's programs for "), "{said}");
            for cpu in &story.cpus[1..] {
                assert!(cpu.programs_ns < 1_000_000, "{about}");
            }
            let idle = story.task.iter().flat_map(|task| &task.idle_cpus);
            assert!(idle.clone().all(|cpu| Some(*cpu) != story.cpu), "{about}");
        }
    }
}

/// A fault has its registers and its call chain.
#[test]
fn a_fault_tells_its_registers() {
    let scheduler = "lapse,wrong=13,eject_after_ns=50000000";
    let (run, story) = ejected(scheduler, WORK, "1n3c1t", 1);
    check_times(&story, "fault");
    let message = &run.exit.message;
    assert!(message.starts_with("BPF fault in ops.enqueue(): instruction limit"), "{message}");
    assert!(story.task.is_some() && !story.registers.is_empty(), "{story:#?}");
    assert!(text(&story).contains(&format!("registers: {}", story.registers[0])), "{story:#?}");
}

/// An exit without a task, such as one of a timer, is told as well.
#[test]
fn an_exit_outside_of_operations_is_told() {
    let (_, story) = ejected("lapse,wrong=9,eject_after_ns=50000000", WORK, "1n3c1t", 1);
    check_times(&story, "timer");
    assert_eq!(story.task, None);
    assert!(text(&story).starts_with(&format!("on CPU {}\n", story.cpu.unwrap())), "{story:#?}");
}
