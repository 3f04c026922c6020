// SPDX-License-Identifier: GPL-2.0-only
//! Time is conserved: a CPU's busy, idle and kernel time add up to the time that has passed, and tasks are
//! charged no more than their CPUs were not idle, and under any scheduler no more than passed.

use super::Broken;
use scxlab_kernel::Kernel;

const LAW: &str = "time adds up";

/// A path through the kernel changes all state at its beginning. One that is long, as when a scheduler is attached, charges tasks of
/// other CPUs up to its end, and some of these CPUs idle before that. With `long_paths` idle time is no bound, therefore: each moment
/// of each CPU is charged once at most.
pub(super) fn check(k: &Kernel, long_paths: bool, broken: &mut Vec<Broken>) {
    let mut say = |what: String| broken.push(Broken { law: LAW, at: k.now, what });
    let mut used = 0;
    for c in &k.cpus {
        let t = &c.time;
        let accounted = t.busy + t.idle + t.overhead;
        used += t.busy + t.overhead;
        // Accounted up to `progress_from`, which may lie ahead of now while the CPU is in the kernel.
        if c.online && !k.metrics.hotplugged && accounted != c.progress_from {
            say(format!(
                "CPU {}: {} busy + {} idle + {} kernel = {accounted} of {} ns",
                c.id, t.busy, t.idle, t.overhead, c.progress_from
            ));
        }
        if t.lock_wait > t.overhead {
            say(format!(
                "CPU {}: waited {} ns for locks in {} ns of kernel",
                c.id, t.lock_wait, t.overhead
            ));
        }
    }
    let living: u64 = k.tasks.iter().map(|t| t.account.run_ns).sum();
    let gone: u64 = k.metrics.tasks.iter().map(|t| t.run_ns).sum();
    // Progress of running tasks is settled lazily: what has passed since counts as used.
    let unsettled: u64 =
        k.cpus.iter().filter(|c| !c.is_idle()).map(|c| k.now.saturating_sub(c.progress_from)).sum();
    let passed: u64 = k.cpus.iter().map(|c| k.now.max(c.progress_from).max(c.charged_until)).sum();
    let bound = if long_paths { passed } else { used + unsettled };
    if living + gone > bound {
        say(format!("tasks were charged {} ns of {bound} ns", living + gone));
    }
}
