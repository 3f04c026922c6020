// SPDX-License-Identifier: GPL-2.0-only
//! Time is conserved: a CPU's busy, idle and kernel time add up to the elapsed time. Tasks are
//! charged at most the time for which their CPUs were not idle; with long paths (see `check`), at
//! most the elapsed time.

use super::Violation;
use scxlab_kernel::Kernel;

const LAW: &str = "time adds up";

/// Checks the time law. A path through the kernel makes all changes of state at the path's
/// beginning. A long path, such as an attach, charges tasks of other CPUs up to the path's end,
/// although some of these CPUs are idle before this end. With `long_paths`, the bound therefore
/// includes idle time: all tasks together are charged at most the elapsed time of all CPUs.
pub(super) fn check(k: &Kernel, long_paths: bool, broken: &mut Vec<Violation>) {
    let mut say = |what: String| broken.push(Violation { law: LAW, at: k.now, what });
    let mut used = 0;
    for c in &k.cpus {
        let t = &c.time;
        let accounted = t.busy + t.idle + t.overhead;
        used += t.busy + t.overhead;
        // The kernel has accounted the CPU's time up to `progress_from`, so busy, idle and kernel
        // time must add up to `progress_from`. It may be later than `now` while the CPU is in the
        // kernel.
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
    // The kernel settles the progress of running tasks lazily; the time since the last settlement
    // counts as used.
    let unsettled: u64 =
        k.cpus.iter().filter(|c| !c.is_idle()).map(|c| k.now.saturating_sub(c.progress_from)).sum();
    let passed: u64 = k.cpus.iter().map(|c| k.now.max(c.progress_from).max(c.charged_until)).sum();
    let bound = if long_paths { passed } else { used + unsettled };
    if living + gone > bound {
        say(format!("tasks were charged {} ns of {bound} ns", living + gone));
    }
}
