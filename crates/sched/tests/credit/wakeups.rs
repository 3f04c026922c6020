// SPDX-License-Identifier: GPL-2.0-only
//! Preemption by wake-ups in whole runs, with the rule before a change of Xen (`tickle=old`) and
//! with the rule after this change (`tickle=new`).

use super::*;
use scxlab_kernel::metrics::TaskReport;
use scxlab_testkit::shipped::scheduled;
use scxlab_testkit::sim::run_ns;
use scxlab_testkit::state::{stat, task_stat};

const OLD: &str = "old";
const NEW: &str = "new";

/// Workload: two vCPUs, pinned to CPUs 0 and 1, never sleep; every 7 ms, the vCPU `parent` forks a
/// vCPU that runs for 300 us. These short vCPUs appear on every CPU in turn.
const SHORT_BESIDE_HOGS: &str = "
    duration = '10s'
    [[thread]]
    name = 'hog-0'
    cpus = '0'
    ops = [{ loop = { ops = [{ compute = '10ms' }] } }]
    [[thread]]
    name = 'hog-1'
    cpus = '1'
    ops = [{ loop = { ops = [{ compute = '10ms' }] } }]
    [[thread]]
    name = 'short'
    instances = 0
    cpus = '0-3'
    ops = [{ compute = '300us' }]
    [[thread]]
    name = 'parent'
    cpus = '3'
    ops = [{ loop = { ops = [{ fork = 'short' }, { sleep = '7ms' }] } }]
";

#[test]
fn with_a_suitable_idler_new_tells_no_busy_cpu_and_old_does() {
    let preempted = |side: &str| {
        let (mut k, loaded) = attached("4c", SHORT_BESIDE_HOGS, &[("tickle", side)]);
        run_for(&mut k, 2 * SECOND);
        let some = stat(&k, &loaded, "tickle_idlers_some");
        assert!(some > 100, "{side}: {some} wake-ups beside idlers");
        stat(&k, &loaded, "tickle_preempt")
    };
    assert_eq!(preempted(NEW), 0);
    let old = preempted(OLD);
    assert!(old > 50, "{old}");
}

/// Returns two numbers: the involuntary switches of vCPUs, without the switches by which a tick
/// moved a vCPU to another core or socket; and the busy CPUs that wake-ups told to reschedule
/// (`tickle_preempt`).
fn interrupted(machine: &str, tasks: usize, run_us: u32, seed: u64, side: &str) -> (u64, u64) {
    // Run times all differ; otherwise the vCPUs would wake up at the same times for ever.
    let mut text = "duration = '1s'\n".to_owned();
    for i in 0..tasks {
        let run_us = run_us + 37 * i as u32;
        text += &format!(
            "[[thread]]\nname = 'vcpu-{i}'\n\
             ops = [{{ loop = {{ ops = [{{ compute = '{run_us}us' }}, {{ sleep = '1ms' }}] }} }}]\n"
        );
    }
    let (mut k, loaded) = scheduled(&format!("credit,tickle={side}"), machine, &text, seed);
    run_for(&mut k, SECOND / 2);
    let ours = k.tasks.iter().filter(|t| t.name.starts_with("vcpu"));
    let lost: u64 = ours
        .map(|t| TaskReport::of(t, &k.machine.topology))
        .map(|report| report.switches - report.switches_voluntary)
        .sum();
    (lost - stat(&k, &loaded, "migrate_running"), stat(&k, &loaded, "tickle_preempt"))
}

/// There are at most as many vCPUs as CPUs, so that each vCPU that wakes up finds an idle CPU. The
/// new rule must therefore preempt no vCPU; the old rule does.
#[test]
fn with_an_idle_cpu_for_everybody_new_interrupts_nobody() {
    let machines =
        [("2n4c2t", 16), ("xen-16", 16), ("1n3c2t", 6), ("3n2c1t", 6), ("biglittle-4b4l", 8)];
    let mut old = 0;
    for (machine, cpus) in machines {
        for (seed, tasks, run_us) in [(1, cpus, 2000), (2, cpus - 1, 5000), (3, cpus / 2, 1500)] {
            let new = interrupted(machine, tasks, run_us, seed, NEW);
            assert_eq!(new, (0, 0), "{machine}, {tasks} vCPUs, {run_us} us, seed {seed}");
            old += interrupted(machine, tasks, run_us, seed, OLD).0;
        }
    }
    assert!(old > 50, "{old} with the old rule");
}

#[test]
fn one_idler_is_told_or_all_are() {
    let kicks = |one: &str| {
        let (mut k, _) = attached(
            "8c",
            &SHORT_BESIDE_HOGS.replace("'0-3'", "'0-7'"),
            &[("tickle_one_idle", one)],
        );
        run_for(&mut k, SECOND);
        k.cpus.iter().map(|c| c.kicks).sum::<u64>()
    };
    let (one, all) = (kicks("true"), kicks("false"));
    assert!(all * 2 > one * 3, "{all} kicks, {one} if one idler is told");
}

/// Returns the machine with BPF code that takes no time, so that a run with the old rule and a run
/// with the new rule are equal where both rules decide alike.
fn free_of_bpf(machine: &str) -> Machine {
    let mut machine = Machine::resolve(machine).expect("a machine");
    let costs = &mut machine.costs;
    costs.bpf.insn_ps = 0;
    costs.bpf.helper_call_ns = 0;
    costs.bpf.kfunc_call_ns = 0;
    costs.kfunc.idle_scan_word_ns = 0;
    costs.kfunc.cpumask_word_ns = 0;
    costs.kfunc.local_storage_ns = 0;
    machine
}

/// Returns the trace's hash and the number of busy CPUs that wake-ups told to reschedule
/// (`tickle_preempt`).
fn trace(machine: &str, text: &str, side: &str) -> (u64, u64) {
    let (mut k, loaded) = attached_to(free_of_bpf(machine), text, &[("tickle", side)]);
    run_for(&mut k, 5 * SECOND);
    (k.tracer.hash(), stat(&k, &loaded, "tickle_preempt"))
}

#[test]
fn without_idlers_both_sides_do_the_same() {
    let text = "
        duration = '10s'
        [[thread]]
        name = 'hog'
        instances = 4
        ops = [{ loop = { ops = [{ compute = '10ms' }] } }]
        [[thread]]
        name = 'sleeper'
        instances = 4
        ops = [{ loop = { ops = [{ compute = '300us' }, { sleep = '7ms' }] } }]
    ";
    let old = trace("2c", text, OLD);
    assert!(old.1 > 100, "{} wake-ups interrupted somebody", old.1);
    assert_eq!(trace("2c", text, NEW), old);
}

#[test]
fn pinned_vcpus_see_no_difference() {
    let mut text = "duration = '10s'\n".to_owned();
    for cpu in [0, 1] {
        text += &format!(
            "[[thread]]\nname = 'hog-{cpu}'\ninstances = 2\ncpus = '{cpu}'\n\
             ops = [{{ loop = {{ ops = [{{ compute = '10ms' }}] }} }}]\n\
             [[thread]]\nname = 'sleeper-{cpu}'\ncpus = '{cpu}'\n\
             ops = [{{ loop = {{ ops = [{{ compute = '300us' }}, {{ sleep = '7ms' }}] }} }}]\n"
        );
    }
    let old = trace("4c", &text, OLD);
    assert!(old.1 > 100, "{} wake-ups interrupted somebody", old.1);
    assert_eq!(trace("4c", &text, NEW), old);
}

/// A pinned task wakes up on CPU 0, where a hog runs, while CPU 1 is idle. Only the hog may run on
/// CPU 1: the new rule must move the hog there, once and for good; the old rule must not.
#[test]
fn new_migrates_away_whom_it_interrupts_and_old_lets_it_wait() {
    let text = "
        duration = '10s'
        [[thread]]
        name = 'hog'
        ops = [{ loop = { ops = [{ compute = '10ms' }] } }]
        [[thread]]
        name = 'pinned'
        cpus = '0'
        ops = [{ loop = { ops = [{ compute = '2ms' }, { sleep = '20ms' }] } }]
    ";
    let run = |side: &str| {
        let (mut k, loaded) = attached("2c", text, &[("tickle", side)]);
        k.start();
        // The pinned task sleeps.
        go_on(&mut k, 5 * MS);
        let hog = k.tasks.iter().find(|t| t.name == "hog").expect("it runs").id;
        let cpus = |cpu| scxlab_machine::cpumask::CpuMask::of(2, [scxlab_machine::id::CpuId(cpu)]);
        let mut both = cpus(0);
        scxlab_machine::cpumask::set(&mut both, scxlab_machine::id::CpuId(1));
        // Move the hog to CPU 0, and then let it run anywhere.
        use scxlab_kernel::behavior::Sys;
        k.user(|k| k.set_affinity(hog, &cpus(0))).expect("allowed");
        go_on(&mut k, MS);
        k.user(|k| k.set_affinity(hog, &both)).expect("allowed");
        go_on(&mut k, 2 * SECOND);
        let pid = k.tasks[hog].pid;
        (
            stat(&k, &loaded, "migrate_kicked_away"),
            task_stat(&k, &loaded, pid, "kicked_away"),
            k.tasks[hog].cpu.0,
            run_ns(&k, "hog"),
        )
    };
    let (new, old) = (run(NEW), run(OLD));
    assert_eq!((new.0, new.1, new.2), (1, 1, 1), "{new:?}");
    assert_eq!((old.0, old.1), (0, 0), "{old:?}");
    assert!(new.3 >= old.3, "{} ns, {} ns with old", new.3, old.3);
}

#[test]
fn a_vcpu_with_credit_is_boosted_and_runs_soon() {
    let text = "
        duration = '10s'
        [[thread]]
        name = 'hog'
        instances = 6
        ops = [{ loop = { ops = [{ compute = '10ms' }] } }]
        [[thread]]
        name = 'sleeper'
        ops = [{ loop = { ops = [{ compute = '200us' }, { sleep = '10ms' }] } }]
    ";
    let (mut k, _) = attached("2c", text, &[]);
    run_for(&mut k, 5 * SECOND);
    let (waited, slept) = (k.metrics.wakeup_latency.permille(900), 5 * MS);
    assert!(waited < slept, "{waited} ns at the 90th percentile");
}
