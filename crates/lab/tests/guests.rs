// SPDX-License-Identifier: GPL-2.0-only
//! Results of runs with guests: times that add up, metrics, threads that never ran, the trace.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use scxlab_lab::input::{NoFiles, SchedulerInput};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::run::{Run, VcpuResult};
use scxlab_lab::sim::{SimSpec, simulate};
use scxlab_machine::Machine;
use scxlab_trace::event::{Event, EventKind};
use scxlab_trace::{Names, Sink, Tracer};
use scxlab_workload::{Program, WorkloadArg, load, parse_workload_arg};

const MS: u64 = 1_000_000;

fn run_traced(work: &str, machine: &str, tracer: Tracer) -> Run {
    let machine = Arc::new(Machine::resolve(machine).unwrap());
    let eevdf = SchedulerInput::resolve("eevdf", &NoFiles).unwrap();
    let workload: Program = match parse_workload_arg(work) {
        Ok(WorkloadArg::Program(program)) => *program,
        _ => load("w.toml", work).unwrap(),
    };
    let scheduler = Prepared::simulated(&eevdf, &machine).unwrap();
    let spec =
        SimSpec { duration: Some(100 * MS), ..SimSpec::new(&machine, &workload, &scheduler, 1) };
    simulate(&spec, tracer, &|_| None).unwrap().0
}

fn run(work: &str, machine: &str) -> Run {
    run_traced(work, machine, Tracer::default())
}

fn metric(run: &Run, name: &str) -> f64 {
    run.metrics.get(name).unwrap_or_else(|| panic!("{name}")).value
}

/// The metrics are sums over the guests, the times of a virtual CPU add up to its life, and those
/// of its task on the host agree with them.
#[test]
fn results_of_guests_add_up() {
    let run = run("lock_holder,vms=2,vcpus=2,unmap=10", "1n2c1t");
    assert!(run.succeeded(), "{:?}", run.stop);
    let names: Vec<&str> = run.guests.iter().map(|guest| guest.name.as_str()).collect();
    assert_eq!(names, ["vm0", "vm1"]);
    let vcpus = || run.guests.iter().flat_map(|guest| &guest.vcpus);
    for vcpu in vcpus() {
        let VcpuResult { user_ns, spin_ns, kernel_ns, idle_ns, steal_ns, .. } = *vcpu;
        let times = [user_ns, spin_ns, kernel_ns, idle_ns, steal_ns].map(Option::unwrap);
        let (life, steal_ns) = (times.iter().sum::<u64>(), times[4]);
        assert!((99 * MS..=100 * MS).contains(&life), "{vcpu:?}");
        let task = run.tasks.iter().find(|task| task.name == vcpu.name).expect("its task");
        // The host may count a wait from before the end of the guest's kernel code
        // (`VcpuReport::overlap`).
        let overlap = task.wait_ns.expect("the simulation counts waits").checked_sub(steal_ns);
        assert!(overlap.is_some_and(|overlap| overlap <= 1_000), "{overlap:?}, {vcpu:?}");
    }
    let sum = |of: fn(&VcpuResult) -> Option<u64>| vcpus().filter_map(of).sum::<u64>() as f64;
    assert_eq!(metric(&run, "guest_user"), sum(|v| v.user_ns));
    assert_eq!(metric(&run, "guest_spin"), sum(|v| v.spin_ns));
    assert_eq!(metric(&run, "guest_kernel"), sum(|v| v.kernel_ns));
    assert_eq!(metric(&run, "guest_steal"), sum(|v| v.steal_ns));
    assert!(metric(&run, "guest_spin") > 0.0 && metric(&run, "guest_steal") > 0.0);
    let timers: u64 = run.guests.iter().map(|guest| guest.exits.unwrap().timer).sum();
    assert_eq!(metric(&run, "guest_exits_timer"), timers as f64);
    let work = [0, 1].map(|n| metric(&run, &format!("guest{n}_work_units")));
    assert_eq!(work.iter().sum::<f64>(), metric(&run, "work_units"));
    let of_threads: u64 = run.guests[0].threads.iter().map(|thread| thread.work_units).sum();
    assert_eq!((of_threads, work[0] as u64), (run.guests[0].work_units, of_threads));
    assert_eq!(metric(&run, "guest0_throughput"), work[0] * 10.0, "per second of 100 ms");
    let waits = ["guest_lock_wait_max", "guest_flush_wait_max"];
    assert!(waits.iter().all(|name| metric(&run, name) > 0.0));
    let sleepers = self::run("sleepers,tasks=2,vms=1,vcpus=2", "1n2c1t");
    assert!(metric(&sleepers, "guest_wakeup_latency_max") > 0.0);
}

#[test]
fn runs_without_guests_do_not_mention_them() {
    let run = run("lock_holder", "1n2c1t");
    assert!(run.guests.is_empty() && !run.metrics.keys().any(|name| name.starts_with("guest")));
}

/// A thread of a guest that never runs is named, as a task of the host is.
#[test]
fn starved_threads_of_guests_are_named() {
    let text = "[[guest]]\nname = 'g'\n[[guest.program.thread]]\nname = 'hog'\n\
                policy = { fifo = 1 }\nops = [{ loop = { ops = [{ compute = '1ms' }] } }]\n\
                [[guest.program.thread]]\nname = 'starved'\n\
                ops = [{ loop = { ops = [{ compute = '1ms' }] } }]";
    let run = run(text, "1n2c1t");
    let [starved] = &run.never_ran[..] else { panic!("{:?}", run.never_ran) };
    assert!(starved.name.contains("starved") && starved.wait_ns > 90 * MS, "{starved:?}");
}

/// Events of guests, each with the name of its thread.
type Seen = Vec<(Event, Option<String>)>;

/// The guests' events of a run.
#[derive(Default)]
struct GuestRuns(Arc<Mutex<Seen>>);

impl Sink for GuestRuns {
    fn event(&mut self, event: &Event, names: &Names) {
        if let EventKind::GuestRun { guest, thread, .. } = event.kind {
            let name = thread.map(|thread| names.guest(guest, Some(thread)));
            self.0.lock().unwrap().push((*event, name));
        }
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The trace says which thread each virtual CPU runs, by name. It repeats nothing.
#[test]
fn the_trace_has_the_threads_of_virtual_cpus() {
    let sink = GuestRuns::default();
    let seen = sink.0.clone();
    run_traced("sleepers,tasks=3,vms=1,vcpus=2", "1n2c1t", Tracer::with_sink(sink));
    let seen = seen.lock().unwrap();
    let names: BTreeSet<&str> = seen.iter().filter_map(|(_, name)| name.as_deref()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names.iter().all(|name| name.contains("sleeper-")), "{names:?}");
    for vcpu in 0..2 {
        let of_vcpu = |event: &Event| match event.kind {
            EventKind::GuestRun { vcpu: v, thread, spins, .. } if v == vcpu => {
                Some((thread, spins))
            }
            _ => None,
        };
        let runs: Vec<_> = seen.iter().filter_map(|(event, _)| of_vcpu(event)).collect();
        assert!(runs.len() > 20, "{runs:?}");
        assert!(runs.windows(2).all(|pair| pair[0] != pair[1]), "{runs:?}");
    }
}
