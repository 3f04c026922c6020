// SPDX-License-Identifier: GPL-2.0-only
//! What programs on a real kernel do otherwise than the simulated ones: sleeps until a time, and
//! servers that begin when their requests are there.

use std::sync::Arc;

use scxlab_machine::Machine;
use scxlab_recording::{Options, Recorder, infer};
use scxlab_trace::import::import;
use scxlab_trace::{Call, Event, EventKind, Names, Sink};
use scxlab_workload::program::Op;
use scxlab_workload::{Program, load};

use super::{LENGTH, Terms, metric, percent, record_on, replay, run_on};

/// A recorder of tasks that add the length of a sleep to the clock, and sleep until then.
struct Clocked(Recorder);

impl Sink for Clocked {
    fn event(&mut self, event: &Event, names: &Names) {
        let mut event = *event;
        if let EventKind::Call { call: call @ Call::SleepFor { .. }, .. } = &mut event.kind
            && let Call::SleepFor { length } = *call
        {
            *call = Call::SleepUntil { at: event.time + length };
        }
        self.0.event(&event, names);
    }

    fn finish(&mut self) -> std::io::Result<()> {
        self.0.finish()
    }
}

/// Returns the ops of a list, each loop's once.
fn flat(ops: &[Op]) -> Vec<&Op> {
    let mut all = Vec::new();
    for op in ops {
        match op {
            Op::Loop { ops, .. } => all.extend(flat(ops)),
            op => all.push(op),
        }
    }
    all
}

/// Returns the numbers of sleeps and of timers in a program.
fn sleeps_and_timers(program: &Program) -> (usize, usize) {
    let all = || program.threads.iter().flat_map(|thread| flat(&thread.ops));
    let sleeps = all().filter(|op| matches!(op, Op::Sleep(_))).count();
    (sleeps, all().filter(|op| matches!(op, Op::Timer { .. })).count())
}

/// A task that sleeps until a time which it computes from the clock waits as long when it is late.
/// One that keeps a period does not.
#[test]
fn sleeps_until_a_time_are_delays_or_a_period() {
    let text = |rest: &str| {
        format!(
            "[[thread]]\nname = 'hog'\ninstances = 2\nops = [{{ loop = {{ ops = \
             [{{ compute = '500us' }}] }} }}]\n[[thread]]\nname = 'worker'\ninstances = 3\nops = \
             [{{ loop = {{ ops = [{{ compute = '400us' }}, {{ count = 1 }}, {rest}] }} }}]\n"
        )
    };
    let delays = load("d.toml", &text("{ sleep = '700us' }")).unwrap();
    let period = load("p.toml", &text("{ timer = { name = 't', period = '20ms' } }")).unwrap();
    for machine in ["1n1c1t", "1n2c1t"] {
        let machine = Arc::new(Machine::resolve(machine).unwrap());
        for seed in 1..=4 {
            let (first, bytes) = record_on(&machine, &delays, Terms::noisy(seed, LENGTH));
            let mut clocked = Clocked(Recorder::new(&machine));
            import("d.pftrace", &bytes[..], &mut clocked).unwrap();
            let history = clocked.0.history(Some(LENGTH));
            let again = infer(&history, &machine, &Options::default()).unwrap().program;
            let (sleeps, timers) = sleeps_and_timers(&again);
            assert!(sleeps > 100 && timers == 0, "{} {seed}: {sleeps}, {timers}", machine.name);
            // With half of the hogs' work there is room for more: a delay follows, a period not.
            let alone = |program: &Program| {
                let mut program = program.clone();
                program.threads.retain(|thread| !thread.name.starts_with("hog"));
                let run = run_on(&machine, "eevdf", &program, Terms::noisy(seed, LENGTH));
                metric(&run, "wakeups")
            };
            let (original, replayed) = (alone(&delays), alone(&again));
            assert!(original > 1.2 * metric(&first, "wakeups"), "the hogs hold the workers up");
            let error = percent(replayed, original);
            assert!(error.abs() <= 3.0, "{} {seed}: {error:+.1} %", machine.name);

            let (_, bytes) = record_on(&machine, &period, Terms::noisy(seed, LENGTH));
            let (sleeps, timers) = sleeps_and_timers(&replay(&bytes));
            assert!(sleeps == 0 && timers >= 3, "{} {seed}: {sleeps}, {timers}", machine.name);
        }
    }
}

/// A server that begins when requests are there has taken them, although no call shows it. A server
/// that answers before it takes the request would be one request ahead to the end.
#[test]
fn a_server_that_begins_late_is_not_ahead() {
    for (machine, workers) in [("1n1c1t", 3), ("1n1c1t", 8), ("1n2c1t", 5)] {
        let worker = |i: usize| {
            format!(
                "[[thread]]\nname = 'worker-{i}'\nprocess = 'p'\nops = [{{ loop = {{ ops = [\
                 {{ sem_post = 'request' }}, {{ sem_wait = 'answer' }}, {{ sleep = '{}us' }}, \
                 {{ compute = '{}us' }}, {{ count = 1 }}] }} }}]\n",
                90 + i,
                900 + i * 57
            )
        };
        let threads: String = (0..workers).map(worker).collect();
        let text = format!(
            "{threads}[[thread]]\nname = 'server'\nprocess = 'p'\nops = [{{ sleep = '1ms' }}, \
             {{ loop = {{ ops = [{{ sem_wait = 'request' }}, {{ compute = '20us' }}, \
             {{ sem_post = 'answer' }}] }} }}]\n"
        );
        let program = load("w.toml", &text).unwrap();
        let machine = Arc::new(Machine::resolve(machine).unwrap());
        let pair = |seed| {
            let (first, bytes) = record_on(&machine, &program, Terms::noisy(seed, LENGTH));
            let again = replay(&bytes);
            assert_eq!(again.semaphores, [], "{} {seed}", machine.name);
            let server = again.threads.iter().find(|thread| thread.name == "server").unwrap();
            let is_token = |op: &&Op| matches!(op, Op::SemWait(_) | Op::SemPost(_));
            let first_token = flat(&server.ops).into_iter().find(is_token);
            assert!(matches!(first_token, Some(Op::SemWait(_))), "{seed}: {first_token:?}");
            let second = run_on(&machine, "eevdf", &again, Terms::noisy(seed + 100, LENGTH));
            [metric(&first, "wakeups"), metric(&second, "wakeups")]
        };
        let pairs: Vec<[f64; 2]> = (1..=6).map(pair).collect();
        let all = |at: usize| pairs.iter().map(|pair| pair[at]).sum();
        let error = percent(all(1), all(0));
        println!("{} {workers}: wake-ups {error:+.1} %", machine.name);
        assert!(error.abs() <= 8.0, "{} {workers}: {error:+.1} %", machine.name);
    }
}
