// SPDX-License-Identifier: GPL-2.0-only
//! Reads the results of guests from the kernel after the run.
//!
//! Owns: the order of their metrics. Does not: measure; the crate `guest` keeps the accounts.

use scxlab_guest::{Guest, Stats, VcpuTimes};
use scxlab_kernel::kernel::Kernel;
use scxlab_kernel::metrics::{TimeHistogram, quantile};
use scxlab_workload::Executor;
use scxlab_workload::exec::{executor_in, guests};

use crate::metric::{self, Metric, MetricTable};
use crate::run::{GuestExits, GuestResult, GuestThread, GuestYields, VcpuResult};

/// Returns the results of all guests.
pub fn results(k: &Kernel) -> Vec<GuestResult> {
    guests(k).iter().map(|guest| result(k, guest)).collect()
}

fn result(k: &Kernel, guest: &Guest) -> GuestResult {
    let report = guest.report(k, k.now);
    let stats = guest.stats();
    let exits = stats.exits;
    let vcpus = report.vcpus.into_iter().map(|vcpu| VcpuResult {
        name: vcpu.name,
        user_ns: Some(vcpu.times.user),
        spin_ns: Some(vcpu.times.spin),
        kernel_ns: Some(vcpu.times.kernel),
        idle_ns: Some(vcpu.times.idle),
        steal_ns: Some(vcpu.times.steal),
        switches: Some(vcpu.switches),
    });
    let threads = report.threads.into_iter().map(|thread| GuestThread {
        name: thread.name,
        run_ns: Some(thread.times.run),
        kernel_ns: Some(thread.times.kernel),
        wait_ns: Some(thread.times.wait),
        steal_ns: Some(thread.times.steal),
        sleep_ns: Some(thread.times.sleep),
        work_units: thread.work_units,
    });
    GuestResult {
        name: guest.config().name.clone(),
        work_units: stats.work_units,
        exits: Some(GuestExits {
            halt: exits.halt,
            ipi: exits.ipi,
            interrupt: exits.interrupt,
            timer: exits.timer,
            pause: exits.pause,
        }),
        yields: Some(GuestYields { tried: stats.yields_tried, done: stats.yields_done }),
        vcpus: vcpus.collect(),
        threads: threads.collect(),
    }
}

/// Adds the metrics of a run with guests.
pub fn metrics(t: &mut MetricTable, k: &Kernel) {
    let guests = guests(k);
    if guests.is_empty() {
        return;
    }
    let times: Vec<VcpuTimes> =
        guests.iter().flat_map(|guest| guest.report(k, k.now).vcpus).map(|v| v.times).collect();
    let time = |of: fn(&VcpuTimes) -> u64| times.iter().map(of).sum();
    t.count(&metric::GUEST_USER, time(|t| t.user));
    t.count(&metric::GUEST_SPIN, time(|t| t.spin));
    t.count(&metric::GUEST_KERNEL, time(|t| t.kernel));
    t.count(&metric::GUEST_IDLE, time(|t| t.idle));
    t.count(&metric::GUEST_STEAL, time(|t| t.steal));
    let stats: Vec<Stats> = guests.iter().map(|guest| guest.stats_at(k.now)).collect();
    let sum = |of: fn(&Stats) -> u64| stats.iter().map(of).sum();
    t.count_part(&metric::GUEST_EXITS, "halt", sum(|s| s.exits.halt));
    t.count_part(&metric::GUEST_EXITS, "ipi", sum(|s| s.exits.ipi));
    t.count_part(&metric::GUEST_EXITS, "interrupt", sum(|s| s.exits.interrupt));
    t.count_part(&metric::GUEST_EXITS, "timer", sum(|s| s.exits.timer));
    t.count_part(&metric::GUEST_EXITS, "pause", sum(|s| s.exits.pause));
    t.count(&metric::GUEST_YIELDS, sum(|s| s.yields_tried));
    t.count(&metric::GUEST_YIELDS_DONE, sum(|s| s.yields_done));
    all_times(t, &metric::GUEST_WAKEUP_LATENCY, &stats, |s| &s.wakeup_latency);
    all_times(t, &metric::GUEST_LOCK_WAIT, &stats, |s| &s.lock_wait);
    all_times(t, &metric::GUEST_FLUSH_WAIT, &stats, |s| &s.flush_wait);
    for (n, guest) in guests.iter().enumerate() {
        let units = guest.stats().work_units;
        t.count_part(&metric::ONE_GUEST_WORK_UNITS, n, units);
        if k.now > 0 {
            let per_second = units as f64 * 1e9 / k.now as f64;
            t.put_part(&metric::ONE_GUEST_THROUGHPUT, n, per_second);
        }
    }
}

/// Adds the quantiles of a time in all guests.
fn all_times(
    t: &mut MetricTable,
    metric: &Metric,
    stats: &[Stats],
    of: fn(&Stats) -> &TimeHistogram,
) {
    let mut each = stats.iter().map(|stats| of(stats).histogram());
    let Some(mut all) = each.next() else { return };
    for one in each {
        all.add(&one).expect("all histograms have the same bounds");
    }
    t.times(metric, all.len(), all.max(), |at| quantile(&all, at));
}

/// Returns the executors of the guests' programs.
pub fn executors(k: &Kernel) -> impl Iterator<Item = &Executor> {
    guests(k).iter().filter_map(executor_in)
}

/// Returns notes about the guests.
pub fn notes(k: &Kernel) -> Vec<String> {
    let mut notes = Vec::new();
    for guest in guests(k) {
        let name = &guest.config().name;
        if guest.stats().cgroups_ignored {
            notes.push(format!("guest {name}: cgroups inside a guest have no effect"));
        }
        let Some(executor) = executor_in(guest) else { continue };
        let (faults, total) = executor.faults();
        if let Some(first) = faults.first() {
            notes.push(format!("guest {name}: {total} system calls failed; the first: {first}"));
        }
    }
    notes
}
