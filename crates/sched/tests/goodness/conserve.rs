// SPDX-License-Identifier: GPL-2.0-only
//! No CPU is idle beside waiting work, and a lone pair of tasks that wake each other stays on its
//! CPUs. The tests cover machines of 1 to 64 CPUs, several seeds and loads, and all modes.

use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::Sys;
use scxlab_kernel::task::Task;
use scxlab_machine::id::CpuId;
use scxlab_machine::{Machine, Stream};
use scxlab_testkit::checks;
use scxlab_testkit::sim::{attach_shipped, kernel, kernel_as_run};

use crate::{HAMQ, MODES, MS};

const MACHINES: [&str; 10] =
    ["1c", "2c", "3c", "2n2c2t", "4n2c1t", "p3-8way", "biglittle-4b4l", "2n8c1t", "4n4c2t", "64c"];

/// Returns the longest allowed time from a task's wake-up until it runs: twice the exit latency of
/// the deepest idle state, plus 130 us for the interrupt, the scan and kernel work on the way. In
/// all modes but hamq, one tick is added: the scheduler predicts that a waker goes to sleep; if the
/// waker does not, the scheduler notices at the waker's next tick (README, "Limits").
fn bound(k: &Kernel, mode: &str) -> u64 {
    let exits = k.machine.costs.idle.iter().map(|state| state.exit_latency_ns);
    let grace = 2 * exits.max().unwrap_or_default() + 130_000;
    if mode == HAMQ { grace } else { grace + k.machine.costs.tick_period_ns() }
}

/// Returns a description of a CPU that has been idle for longer than `bound` beside a task that has
/// waited for longer than `bound` and may run there.
fn idle_beside_work(k: &Kernel, idle_since: &mut [Option<u64>], bound: u64) -> Option<String> {
    for (c, since) in k.cpus.iter().zip(idle_since) {
        let idle = c.online && c.is_idle() && !c.need_resched && c.wake_list.is_empty();
        *since = if idle { since.or(Some(k.now)) } else { None };
        let Some(since) = *since else { continue };
        let waits = |t: &&Task| {
            let waited = t.account.waiting_since.map_or(0, |since| k.now.saturating_sub(since));
            waited.min(k.now - since) > bound && k.is_workload(t) && t.allowed_on(c.id)
        };
        if let Some(t) = k.tasks.iter().find(waits) {
            return Some(format!("CPU {} since {since}, now {}, beside {}", c.id, k.now, t.name));
        }
    }
    None
}

fn thread(name: &str, instances: u64, more: &str, ops: &str) -> String {
    format!(
        "[[thread]]\nname = \"{name}\"\ninstances = {instances}\n{more}\nops = [{{ loop = {{ ops = [{ops}] }} }}]\n"
    )
}

/// Returns six kinds of load for a number of CPUs, drawn from a seed.
fn loads(seed: u64, cpus: u64) -> [String; 6] {
    let mut rng = Stream::new(seed, "load", cpus);
    let mut some = |most: u64| rng.between(1, most);
    let hog = "{ compute = \"1ms\" }";
    let (few, many) = (some(cpus), some(3 * cpus));
    // Pairs of tasks that take turns on one CPU, until the first task wakes the second and
    // continues to compute.
    let [to, back] = ["to", "back"].map(|pipe| format!("pipe = \"{pipe}{{i}}\", bytes = 4"));
    let work = 100 * some(200);
    let talk = format!(
        "{{ loop = {{ times = 9, ops = [{{ write = {{ {to} }} }}, {{ read = {{ {back} }} }}] }} }}, \
         {{ write = {{ {to} }} }}, {{ compute = \"{work}us\" }}, {{ read = {{ {back} }} }}"
    );
    let listen = format!("{{ read = {{ {to} }} }}, {{ write = {{ {back} }} }}");
    let pause =
        |run: u64, sleep: u64| format!("{{ compute = \"{run}us\" }}, {{ sleep = \"{sleep}us\" }}");
    [
        format!("hogs,tasks={many},nice=0:5:-10"),
        format!("sleepers,tasks={many},run={}us,sleep={}us", some(4000), some(4000)),
        format!("hackbench,groups=1,fds={},ipc=pipe", some(10)),
        thread("talk", few, "", &talk) + &thread("listen", few, "", &listen),
        thread("bound", some(3), "cpus = \"0\"", hog)
            + &thread("free", few, "", &pause(some(3000), some(3000))),
        thread("polite", many, "", &format!("{}, \"yield\"", pause(some(900), some(900)))),
    ]
}

/// Runs for `ms` from now; returns a violation of the bound, if any.
fn watch(k: &mut Kernel, ms: u64, bound: u64) -> Option<String> {
    let (mut idle_since, end) = (vec![None; k.cpus.len()], k.now + ms * MS);
    while k.now < end && k.end.stop.is_none() {
        k.advance(k.now + MS / 20);
        let broken = idle_beside_work(k, &mut idle_since, bound);
        if broken.is_some() {
            return broken;
        }
    }
    checks::after(k);
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
    None
}

#[test]
fn no_cpu_is_idle_beside_a_waiting_task() {
    let mut broken = Vec::new();
    for (seed, machine) in (1..).zip(MACHINES) {
        let cpus = Machine::resolve(machine).unwrap().topology.nr_cpus() as u64;
        for (load, text) in loads(seed, cpus).iter().enumerate() {
            for mode in MODES {
                let mut k = kernel(machine, text, seed);
                attach_shipped(&mut k, "goodness", &[("mode", mode)]);
                let bound = bound(&k, mode);
                k.start();
                if let Some(what) = watch(&mut k, 60, bound) {
                    broken.push(format!("{mode}, {machine}, seed {seed}, load {load}: {what}"));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{} broken:\n{}", broken.len(), broken.join("\n"));
}

/// CPUs go off line and come back; no CPU may stay idle beside waiting work. Two facts make this
/// hard: a CPU that goes off line hands on its tasks but must not kick another CPU, and the
/// scheduler still counts the CPU as idle after it has left.
#[test]
fn cpus_that_come_and_go_leave_no_cpu_idle_beside_work() {
    for seed in 1..=8 {
        let mut rng = Stream::new(seed, "hotplug", 0);
        let text = format!("hogs,tasks={}", rng.between(2, 7));
        for mode in MODES {
            let mut k = kernel("8c", &text, seed);
            attach_shipped(&mut k, "goodness", &[("mode", mode)]);
            let bound = bound(&k, mode) + k.machine.costs.tick_period_ns();
            k.start();
            for _ in 0..4 {
                for cpu in 1..8 {
                    if rng.below(2) == 0 {
                        let online = !k.cpus[CpuId(cpu)].online;
                        k.user(|k| k.set_cpu_online(CpuId(cpu), online)).expect("possible");
                    }
                }
                let broken = watch(&mut k, 30, bound);
                assert_eq!(broken, None, "{mode}, seed {seed}: {text}");
            }
        }
    }
}

/// A pair of tasks that wake each other may migrate four times at most: the scheduler may move each
/// of the two tasks once at the start, and once more when the first wait of the other task is
/// short. With one list for all CPUs, a pair may go round the CPUs whose round, or whose way from a
/// wake-up to the next sleep, is shorter than the time in which a called CPU comes: another CPU,
/// such as the waker's own, then takes the task. A call on a socket is such a way.
#[test]
fn a_lone_pair_does_not_wander() {
    for (seed, machine) in (1..).zip(MACHINES) {
        for ipc in ["pipe", "socket", "futex"] {
            for mode in MODES {
                let works =
                    if mode == HAMQ { ["0us", "3us", "200us"] } else { ["20us", "60us", "200us"] };
                for work in works.into_iter().filter(|_| mode == HAMQ || ipc != "socket") {
                    let text = format!("pingpong,ipc={ipc},work={work}");
                    let resolved = Machine::resolve(machine).unwrap();
                    let mut k = kernel_as_run(resolved, &text, seed);
                    attach_shipped(&mut k, "goodness", &[("mode", mode)]);
                    k.run(Some(20 * MS));
                    let moves: u64 = k.metrics.migrations.iter().sum();
                    let about = format!("{mode}, {machine}, {text}");
                    assert!(moves <= 4, "{about}: {moves} migrations");
                    assert!(k.metrics.work_units > 10, "{about}: {}", k.metrics.work_units);
                }
            }
        }
    }
}
