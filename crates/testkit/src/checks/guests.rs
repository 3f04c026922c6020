// SPDX-License-Identifier: GPL-2.0-only
//! Guests' time adds up: each nanosecond of a vCPU's life is in one account, what was stolen from
//! it is what its task waited for a CPU, and its threads have its time. Each thread that waits is
//! in one run queue.

use super::Violation;
use scxlab_guest::Guest;
use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::Sys;
use scxlab_machine::id::Nanos;
use scxlab_workload::exec::guests;

const LAW: &str = "guest time adds up";

/// Longest time that the host's kernel needs to put a vCPU to sleep, after the vCPU's own work. A
/// wait for a CPU overlaps with the end of such a path, or with the guest's kernel, only.
const HOST_PATH_NS: Nanos = 50_000;
/// Longest path of the host's kernel besides: the start of a run, in which it forks all vCPUs.
const START_NS: Nanos = 2_000_000;

pub(super) fn check(k: &Kernel, broken: &mut Vec<Violation>) {
    for guest in guests(k) {
        let mut say = |what: String| {
            let what = format!("guest {}: {what}", guest.config().name);
            broken.push(Violation { law: LAW, at: k.now, what });
        };
        times(k, guest, &mut say);
        if let Err(wrong) = guest.check_threads() {
            say(wrong);
        }
    }
}

fn times(k: &Kernel, guest: &Guest, say: &mut impl FnMut(String)) {
    let report = guest.report(k, k.now);
    for (vcpu, lifetime) in report.vcpus.iter().zip(guest.lifetimes(k.now)) {
        let t = vcpu.times;
        let sum = t.user + t.spin + t.kernel + t.idle + t.steal;
        if sum != lifetime {
            say(format!("{} has lived for {lifetime} ns and has {t:?}", vcpu.name));
        }
        let switches = k
            .tasks
            .get(vcpu.task)
            .map_or(0, |task| task.account.switches_voluntary + task.account.switches_involuntary);
        let most = t.kernel + START_NS + switches * HOST_PATH_NS;
        if vcpu.overlap > most {
            say(format!("{} has waited for {} ns while it ran", vcpu.name, vcpu.overlap));
        }
        let exited = k.tasks.get(vcpu.task).is_none_or(|task| task.name != vcpu.name);
        let lost = t.steal + vcpu.overlap;
        let waited = if exited { lost } else { k.run_delay(vcpu.task) };
        if waited != lost {
            say(format!("{} has waited {waited} ns and lost {lost} ns", vcpu.name));
        }
    }
    let of_threads: Nanos = report.threads.iter().map(|thread| thread.times.run).sum();
    let of_vcpus: Nanos = report.vcpus.iter().map(|v| v.times.user + v.times.spin).sum();
    if of_threads != of_vcpus {
        say(format!("threads have run for {of_threads} ns, vCPUs for {of_vcpus} ns"));
    }
}
