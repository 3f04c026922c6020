// SPDX-License-Identifier: GPL-2.0-only
//! Guests: virtual CPUs that are tasks of the host, with a small kernel and any workload.

use scxlab_kernel::Kernel;
use scxlab_kernel::kernel::Stop;
use scxlab_testkit::sim::kernel;
use scxlab_workload::exec::guests;

const MS: u64 = 1_000_000;

fn run(machine: &str, workload: &str, ms: u64) -> (Kernel, Stop) {
    let mut k = kernel(machine, workload, 1);
    let stop = k.run(Some(ms * MS));
    (k, stop)
}

/// Each vCPU's times add up to its lifetime, and its steal is the host's wait for it.
fn assert_times_add_up(k: &Kernel) {
    for guest in guests(k) {
        let report = guest.report(k, k.now);
        for (vcpu, lifetime) in report.vcpus.iter().zip(guest.lifetimes(k.now)) {
            let t = vcpu.times;
            let sum = t.user + t.spin + t.kernel + t.idle + t.steal;
            assert_eq!(sum, lifetime, "{vcpu:?}");
            if let Some(task) = k.tasks.get(vcpu.task) {
                assert_eq!(t.steal, task.account.wait_ns, "{vcpu:?}");
            }
        }
        let of_threads: u64 = report.threads.iter().map(|thread| thread.times.run).sum();
        let of_vcpus: u64 = report.vcpus.iter().map(|v| v.times.user + v.times.spin).sum();
        assert_eq!(of_threads, of_vcpus, "{report:?}");
    }
}

fn work(k: &Kernel) -> u64 {
    k.metrics.work_units
}

#[test]
fn workloads_run_in_guests() {
    for load in ["hogs,tasks=4", "sleepers,tasks=4", "pingpong", "hackbench", "schbench", "chat"] {
        let (bare, _) = run("2n4c", load, 300);
        let (k, stop) = run("2n4c", &format!("{load},vms=1,vcpus=8"), 300);
        assert_times_add_up(&k);
        let (inside, outside) = (work(&k), work(&bare));
        println!("{load}: {inside} of {outside}, {stop:?}, {:?}", guests(&k)[0].stats().exits);
        println!("{:?}", guests(&k)[0].report(&k, k.now).vcpus[0]);
        assert!(inside * 2 > outside, "{load}: {inside} of {outside}");
    }
}

/// Prints what becomes of guests whose threads take one lock.
fn lock_holder(machine: &str, options: &str) -> u64 {
    let (k, stop) = run(machine, &format!("lock_holder,threads=8,vcpus=8,{options}"), 1000);
    assert_eq!(stop, Stop::Finished);
    assert_times_add_up(&k);
    let stats = guests(&k)[0].stats();
    let times = guests(&k)[0].report(&k, k.now).vcpus[0].times;
    println!("{machine} {options}: {} {:?}", work(&k), stats.exits);
    println!("  yields {} of {}, {times:?}", stats.yields_done, stats.yields_tried);
    println!(
        "  lock wait p50 {} p99 {}",
        stats.lock_wait.permille(500),
        stats.lock_wait.permille(990)
    );
    work(&k)
}

#[test]
fn preempted_lock_holders_stop_a_guest() {
    let old = "vm.spinlock=ticket,vm.pv_spinlock=no,vm.pv_tlb_flush=no";
    for machine in ["x3650m2", "x3850x5", "2n4c"] {
        for options in [
            format!("vms=1,{old}"),
            format!("vms=2,{old}"),
            format!("vms=2,vm.gang=yes,{old}"),
            "vms=2,vm.pv_spinlock=no".into(),
            "vms=2".into(),
            format!("vms=2,unmap=10,{old}"),
            format!("vms=2,unmap=10"),
        ] {
            lock_holder(machine, &options);
        }
    }
}
