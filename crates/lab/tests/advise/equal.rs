// SPDX-License-Identifier: GPL-2.0-only
//! Workloads on which all schedulers are equal by construction: no task ever waits for another one,
//! and none can be placed better or worse. A change must hardly ever be recommended, though half a
//! hundred candidates are tried.

use scxlab_machine::Machine;

use super::{chosen, question};

/// Returns a workload with one thread for each CPU, bound to it.
fn bound(machine: &str, ops: &str) -> String {
    let nr_cpus = Machine::resolve(machine).unwrap().topology.nr_cpus();
    let thread = |cpu| format!("[[thread]]\nname = \"t{cpu}\"\ncpus = \"{cpu}\"\nops = [{ops}]\n");
    let threads: String = (0..nr_cpus).map(thread).collect();
    format!("unit = \"loop\"\nduration = \"130ms\"\n{threads}")
}

/// Returns a workload with one thread that may run on any CPU.
fn alone(ops: &str) -> String {
    format!("unit = \"loop\"\nduration = \"130ms\"\n[[thread]]\nname = \"t\"\nops = [{ops}]\n")
}

const HOG: &str = r#"{ loop = { ops = [{ compute = "500us" }, { count = 1 }] } }"#;
const SLEEPER: &str =
    r#"{ loop = { ops = [{ compute = "300us" }, { sleep = "700us" }, { count = 1 }] } }"#;
const PERIODIC: &str = r#"{ loop = { ops = [{ compute = "600us" }, { timer = { name = "unique", period = "2ms" } }, { count = 1 }] } }"#;

#[test]
fn equal_schedulers_are_told_to_stay_with_the_default() {
    let mut changed = Vec::new();
    let mut asked = 0;
    for machine in ["2c", "4c", "laptop-4c8t", "2n2c1t"] {
        let workloads = [
            ("bound hogs", bound(machine, HOG)),
            ("bound sleepers", bound(machine, SLEEPER)),
            ("bound periodic tasks", bound(machine, PERIODIC)),
            ("one hog", alone(HOG)),
            ("one sleeper", alone(SLEEPER)),
        ];
        for (name, workload) in workloads {
            let advice = question(&workload, machine).ask().unwrap();
            assert!(advice.candidates.len() > 25, "{} candidates", advice.candidates.len());
            asked += 1;
            if advice.chosen.is_some() {
                changed.push(format!("{name} on {machine}: {}", chosen(&advice)));
            }
        }
    }
    println!("a change is recommended in {} of {asked}: {changed:?}", changed.len());
    assert_eq!(asked, 20);
    assert!(changed.len() <= 1, "{changed:#?}");
}

/// Copies of one scheduler differ in nothing, but the best of many looks better in the worlds in
/// which it was found.
#[test]
fn copies_of_a_scheduler_are_no_better_than_each_other() {
    let workload = "sleepers,tasks=12,duration=300ms";
    let mut question = question(workload, "4c").goal("p99:wakeup_latency");
    let object = scxlab_sched::find("vtime").unwrap().object;
    for copy in 0..6 {
        let path = format!("copy{copy}.bpf.o");
        question.files.0.insert(path.clone(), object.to_vec());
        question.sources.given.push(path);
    }
    let advice = question.ask().unwrap();
    let finalists: Vec<_> = advice.candidates.iter().filter(|c| c.holds.is_some()).collect();
    let first = &advice.candidates[0];
    for other in &advice.candidates[1..3] {
        assert_eq!(first.values, other.values);
        assert_eq!(first.place, other.place);
    }
    assert!(finalists.is_empty() || chosen(&advice) == "copy0.bpf.o", "{}", chosen(&advice));
}
