// SPDX-License-Identifier: GPL-2.0-only
//! Tasks that take turns: of two to four tasks one runs at a time, wherever the recording ends.

use std::fmt::Write;
use std::sync::Arc;

use scxlab_lab::run::Run;
use scxlab_machine::Machine;
use scxlab_recording::{Options, Recorder, infer};
use scxlab_trace::import::import;
use scxlab_trace::{Event, EventKind, Names, Sink};
use scxlab_workload::{Program, load};

use super::{MS, Terms, read, record_on, replay, run_on};

/// A recorder that sees no system calls, as that of `perf sched record`.
struct WithoutCalls(Recorder);

impl Sink for WithoutCalls {
    fn event(&mut self, event: &Event, names: &Names) {
        if !matches!(event.kind, EventKind::Call { .. }) {
            self.0.event(event, names);
        }
    }

    fn finish(&mut self) -> std::io::Result<()> {
        self.0.finish()
    }
}

/// Returns a program in which `tasks` tasks work one after the other, for 300 us, 600 us and so on.
fn ring(tasks: usize) -> Program {
    let mut text = String::new();
    for i in 0..tasks {
        let value = u32::from(i == 0);
        writeln!(text, "[[semaphore]]\nname = 's{i}'\nvalue = {value}").unwrap();
        writeln!(
            text,
            "[[thread]]\nname = 'task-{i}'\nops = [{{ loop = {{ ops = [{{ sem_wait = 's{i}' }}, \
             {{ compute = '{}us' }}, {{ sem_post = 's{}' }}] }} }}]",
            300 * (i + 1),
            (i + 1) % tasks
        )
        .unwrap();
    }
    load("ring.toml", &text).unwrap()
}

/// Returns the CPU time of all tasks per time of the run.
fn busy(run: &Run) -> f64 {
    run.tasks.iter().map(|task| task.run_ns).sum::<u64>() as f64 / run.virtual_ns as f64
}

/// Returns the replay of a recording that shows no system calls.
fn without_calls(machine: &Machine, bytes: &[u8], length: u64) -> Program {
    let mut recorder = WithoutCalls(Recorder::new(machine));
    import("ring.pftrace", bytes, &mut recorder).unwrap();
    infer(&recorder.0.history(Some(length)), machine, &Options::default()).unwrap().program
}

#[test]
fn one_task_runs_at_a_time_wherever_the_recording_ends() {
    let mut wrong = Vec::new();
    for (machine, tasks) in [("1n4c1t", 2), ("1n1c1t", 2), ("1n2c1t", 3), ("2n2c1t", 4)] {
        let machine = Arc::new(Machine::resolve(machine).unwrap());
        let program = ring(tasks);
        for cut in 0..12 {
            let length = 40 * MS + cut * 170_000;
            let (original, bytes) = record_on(&machine, &program, Terms::exact(1, length));
            let from = format!("from={}us", 7_000 + 130 * cut);
            let replays = [
                ("calls", replay(&bytes)),
                ("no calls", without_calls(&machine, &bytes, length)),
                ("later", read(&bytes, &from).unwrap().replay.program),
            ];
            for (calls, replayed) in replays {
                let again = run_on(&machine, "eevdf", &replayed, Terms::exact(2, length));
                let (first, second) = (busy(&original), busy(&again));
                // A replay on fewer CPUs loses less time by CPUs that wake up.
                if !(0.95 * first..=1.01).contains(&second) {
                    wrong.push(format!("{} {tasks} {calls}: {first} {second}", machine.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of 144: {wrong:#?}", wrong.len());
}
