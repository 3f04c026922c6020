// SPDX-License-Identifier: GPL-2.0-only
//! Sensitivity of the metrics: each test changes a setting that must move a metric, and checks the
//! sign of the change.

use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::Sys;
use scxlab_kernel::ext::op::Op;
use scxlab_machine::Machine;
use scxlab_machine::topology::Distance;
use scxlab_testkit::checks;
use scxlab_testkit::sim::{attach, group_ns, kernel, kernel_on};

const MS: u64 = 1_000_000;

/// Settings of a run, with defaults in `RunSettings::default`.
struct RunSettings {
    machine: &'static str,
    tune: fn(&mut Machine),
    workload: &'static str,
    scheduler: Option<&'static str>,
    knobs: &'static [(&'static str, &'static str)],
}

impl Default for RunSettings {
    fn default() -> Self {
        RunSettings {
            machine: "4c",
            tune: |_| {},
            workload: "sleepers,tasks=8",
            scheduler: Some("vtime"),
            knobs: &[],
        }
    }
}

fn run(case: RunSettings) -> Kernel {
    let mut machine = Machine::resolve(case.machine).unwrap();
    (case.tune)(&mut machine);
    let mut k = kernel_on(machine, case.workload, 1);
    if let Some(name) = case.scheduler {
        attach(&mut k, name, scxlab_sched::find(name).unwrap().object, case.knobs);
    }
    k.run(Some(500 * MS));
    checks::after(&k);
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
    k
}

/// Asserts that the metric is greater in the second case than in the first.
fn grows(metric: fn(&Kernel) -> u64, less: RunSettings, more: RunSettings) {
    let (less, more) = (metric(&run(less)), metric(&run(more)));
    assert!(more > less, "{less} should be less than {more}");
}

fn overhead(k: &Kernel) -> u64 {
    k.cpus.iter().map(|c| c.time.overhead).sum()
}

#[test]
fn throughput_grows_with_cpus() {
    let hogs = || RunSettings { workload: "hogs,tasks=8", ..RunSettings::default() };
    grows(|k| k.metrics.work_units, RunSettings { machine: "2c", ..hogs() }, hogs());
}

#[test]
fn a_busy_sibling_costs_throughput() {
    let hogs = || RunSettings { workload: "hogs,tasks=4", ..RunSettings::default() };
    grows(|k| k.metrics.work_units, RunSettings { machine: "2c2t", ..hogs() }, hogs());
}

#[test]
fn wakeup_latency_grows_with_load() {
    let heavy = RunSettings { workload: "sleepers,tasks=24", ..RunSettings::default() };
    grows(|k| k.metrics.wakeup_latency.permille(900), RunSettings::default(), heavy);
}

#[test]
fn wakeup_latency_grows_with_the_idle_states_exit() {
    let slow = |m: &mut Machine| m.costs.idle.iter_mut().for_each(|s| s.exit_latency_ns *= 10);
    // The workload is a ping-pong, in which one task wakes up another, so that the wake-up latency
    // contains the exit latency of the idle state. The wake-up latency after a timed sleep does
    // not: the timer's interrupt ends the CPU's idle state before the task wakes up.
    let light = || RunSettings { workload: "pingpong,pairs=1,work=1ms", ..RunSettings::default() };
    grows(
        |k| k.metrics.wakeup_latency.permille(500),
        light(),
        RunSettings { tune: slow, ..light() },
    );
}

/// A task that may run on one CPU leaves the others idle, and waits for one that is busy.
#[test]
fn idle_time_beside_waiting_tasks_is_that_of_cpus_they_may_have() {
    let idle = |k: &Kernel| k.metrics.idle_while_waiting.until(k.now);
    let slow = |m: &mut Machine| m.costs.idle.iter_mut().for_each(|s| s.exit_latency_ns *= 10);
    let light = || RunSettings { workload: "pingpong,pairs=1,work=1ms", ..RunSettings::default() };
    grows(idle, light(), RunSettings { tune: slow, ..light() });
    let hogs = |cpus: &str| {
        let text = format!(
            "[[thread]]\nname = 't'\ninstances = 4\ncpus = \"{cpus}\"\n\
             ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]"
        );
        let k = run(RunSettings { workload: Box::leak(text.into()), ..RunSettings::default() });
        idle(&k)
    };
    let (one, two) = (hogs("0"), hogs("0-1"));
    assert!(one < MS && two < MS, "{one} {two}");
    let starved = run(RunSettings {
        workload: "[[thread]]\nname = 'v'\ninstances = 3\ncpus = \"0-1\"\n\
                   ops = [{ loop = { ops = [{ compute = '1ms' }] } }]",
        scheduler: Some("lapse"),
        knobs: &[("starve", "118")],
        ..RunSettings::default()
    });
    // Two CPUs, for all but the first moments of 500 ms.
    let starved = idle(&starved);
    assert!((990 * MS..=1000 * MS).contains(&starved), "{starved}");
}

#[test]
fn run_queue_wait_grows_with_tasks() {
    let more = RunSettings { workload: "hogs,tasks=16", ..RunSettings::default() };
    let few = RunSettings { workload: "hogs,tasks=5", ..RunSettings::default() };
    grows(|k| k.metrics.run_queue_wait.max(), few, more);
}

/// Waits that have not ended when the run ends count up to the end of the run, also waits after a
/// wake-up.
#[test]
fn waits_grow_when_tasks_are_starved() {
    const VICTIMS: &str = "[[thread]]\nname = 'victim'\ninstances = 2\nops = [{ sleep = '10ms' }, { loop = { ops = [{ compute = '1ms' }] } }]\n\
                           [[thread]]\nname = 'fed'\nops = [{ loop = { ops = [{ compute = '1ms' }] } }]";
    let case = |knobs| RunSettings {
        workload: VICTIMS,
        scheduler: Some("lapse"),
        knobs,
        ..RunSettings::default()
    };
    // 118 is the letter "v": lapse starves the tasks whose names begin with it. Without `woken`,
    // lapse does so from a task's fork on, and with `woken` from the end of the task's sleep on.
    let starved: &[_] = &[("starve", "118")];
    let woken: &[_] = &[("starve", "118"), ("woken", "1")];
    grows(|k| k.metrics.idle_while_waiting.until(k.now), case(&[]), case(starved));
    let wait = |k: &Kernel| k.tasks.iter().map(|t| t.account.wait_ns).sum::<u64>();
    grows(|k| k.metrics.run_queue_wait.max(), case(&[]), case(starved));
    grows(wait, case(&[]), case(starved));
    grows(|k| k.metrics.wakeup_latency.max(), case(&[]), case(woken));
    let k = run(case(woken));
    assert!(k.metrics.wakeup_latency.permille(999) > 480 * MS, "of three wake-ups");
}

#[test]
fn switches_grow_as_slices_shrink() {
    let hogs = || RunSettings { workload: "hogs,tasks=8", ..RunSettings::default() };
    let involuntary =
        |k: &Kernel| k.tasks.iter().map(|t| t.account.switches_involuntary).sum::<u64>();
    let long: &[_] = &[("slice_ns", "40000000")];
    let short: &[_] = &[("slice_ns", "4000000")];
    grows(
        involuntary,
        RunSettings { knobs: long, ..hogs() },
        RunSettings { knobs: short, ..hogs() },
    );
    grows(
        |k| k.metrics.switches,
        RunSettings { knobs: long, ..hogs() },
        RunSettings { knobs: short, ..hogs() },
    );
}

#[test]
fn migrations_cross_nodes_only_where_there_are_two() {
    let across = |k: &Kernel| k.metrics.migrations[Distance::Node as usize];
    let sleepers = "[[thread]]\nname = 's'\ninstances = 24\nops = [{ loop = { ops = [\
                    { set_affinity = '0' }, { compute = '1ms' }, 'clear_affinity', { sleep = '4ms' }] } }]\n";
    let one = RunSettings { machine: "1n4c", workload: sleepers, ..RunSettings::default() };
    assert_eq!(across(&run(one)), 0);
    assert!(
        across(&run(RunSettings { machine: "2n2c", workload: sleepers, ..RunSettings::default() }))
            > 0
    );
}

#[test]
fn busy_time_grows_with_work_and_idle_time_shrinks() {
    let light = || RunSettings { workload: "sleepers,tasks=2", ..RunSettings::default() };
    let busy = |k: &Kernel| k.cpus.iter().map(|c| c.time.busy).sum::<u64>();
    let idle = |k: &Kernel| k.cpus.iter().map(|c| c.time.idle).sum::<u64>();
    grows(busy, light(), RunSettings::default());
    grows(idle, RunSettings::default(), light());
}

#[test]
fn overhead_grows_with_the_price_of_a_switch() {
    let dear = |m: &mut Machine| m.costs.sched.context_switch_ns *= 10;
    grows(overhead, RunSettings::default(), RunSettings { tune: dear, ..RunSettings::default() });
}

#[test]
fn time_per_op_grows_with_the_price_of_an_instruction() {
    let dear = |m: &mut Machine| m.costs.bpf.insn_ps *= 20;
    let enqueue = |k: &Kernel| {
        let cost = k.ext.op_stats.0[Op::Enqueue as usize];
        cost.ns / cost.calls
    };
    grows(enqueue, RunSettings::default(), RunSettings { tune: dear, ..RunSettings::default() });
}

#[test]
fn lock_wait_grows_with_the_cpus_that_share_a_queue() {
    let short = "sleepers,tasks=64,run=20us,sleep=20us";
    let wait = |k: &Kernel| k.cpus.iter().map(|c| c.time.lock_wait).sum::<u64>();
    let few = RunSettings { machine: "2c", workload: short, ..RunSettings::default() };
    grows(wait, few, RunSettings { machine: "16c", workload: short, ..RunSettings::default() });
}

#[test]
fn refills_grow_with_the_footprint() {
    const SMALL: &str = "[[thread]]\nname = 't'\ninstances = 12\nfootprint = 65536\nops = [{ loop = { ops = [{ compute = '1ms' }, { sleep = '1ms' }] } }]";
    const LARGE: &str = "[[thread]]\nname = 't'\ninstances = 12\nfootprint = 1048576\nops = [{ loop = { ops = [{ compute = '1ms' }, { sleep = '1ms' }] } }]";
    grows(
        |k| k.metrics.refill_ns,
        RunSettings { workload: SMALL, ..RunSettings::default() },
        RunSettings { workload: LARGE, ..RunSettings::default() },
    );
}

#[test]
fn throttles_come_with_a_quota() {
    let capped = |quota: &str| {
        let text = format!(
            "duration = '1s'\n[[cgroup]]\npath = '/c'\nquota = '{quota}'\nperiod = '100ms'\n\
             [[thread]]\nname = 't'\ninstances = 2\ncgroup = '/c'\n\
             ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}] }} }}]"
        );
        let mut k = kernel("2c", &text, 1);
        k.run(None);
        (k.metrics.throttles, group_ns(&k, "/c"))
    };
    let (few, much) = capped("199ms");
    let (many, little) = capped("50ms");
    assert!(many > few, "{many} throttles at 50 ms, {few} at 199 ms");
    assert!(little < much);
}

#[test]
fn overhead_grows_with_ticks() {
    let often = |m: &mut Machine| m.costs.clock.tick_hz = 1000;
    let hogs =
        || RunSettings { workload: "hogs,tasks=4", scheduler: None, ..RunSettings::default() };
    grows(overhead, hogs(), RunSettings { tune: often, ..hogs() });
}

#[test]
fn a_nicer_task_gets_less() {
    let mut k = kernel("1c", "hogs,tasks=2", 1);
    k.start();
    k.advance(10 * MS);
    let task = k.tasks.iter().find(|t| t.name == "hog-0").unwrap().id;
    k.user(|k| k.set_nice(task, 10)).unwrap();
    k.advance(1000 * MS);
    let ns = |name| scxlab_testkit::sim::run_ns(&k, name);
    assert!(ns("hog-0") * 5 < ns("hog-1"), "{} of {}", ns("hog-0"), ns("hog-1"));
}
