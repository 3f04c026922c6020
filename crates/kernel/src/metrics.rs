// SPDX-License-Identifier: GPL-2.0-only
//! Measurements of a run: counts and distributions, in integers.
//!
//! Owns: the accumulators of these measurements.
//! Does not: interpret them (the lab computes statistics and floats).

use crate::task::Task;
use scxlab_machine::id::{CgroupId, Nanos};
use scxlab_machine::topology::{Distance, Topology};

pub use idle_while_waiting::IdleWhileWaiting;
pub use times::{TimeHistogram, quantile};
pub use watched::{Watched, WatchedTasks};

mod idle_while_waiting;
mod times;
mod watched;

/// Account of a task when it has exited, or when the run ends.
#[derive(Clone, Debug)]
pub struct TaskReport {
    pub name: String,
    pub pid: u32,
    pub nice: i8,
    pub cgroup: CgroupId,
    pub run_ns: Nanos,
    pub wait_ns: Nanos,
    pub switches: u64,
    pub switches_voluntary: u64,
    pub migrations: u64,
    /// CPU time by node; shorter than the number of nodes if the task ran on none of the last.
    pub node_ns: Vec<Nanos>,
    pub work_units: u64,
    pub exited: bool,
}

impl TaskReport {
    pub fn of(task: &Task, topology: &Topology) -> Self {
        let mut account = task.account.clone();
        account.leave_node(topology.cpu(task.cpu).node);
        TaskReport {
            name: task.name.clone(),
            pid: task.pid,
            nice: task.nice,
            cgroup: task.cgroup,
            run_ns: account.run_ns,
            wait_ns: account.wait_ns,
            switches: account.switches_voluntary + account.switches_involuntary,
            switches_voluntary: account.switches_voluntary,
            migrations: account.migrations,
            node_ns: account.node_ns,
            work_units: account.work_units,
            exited: task.state == crate::task::TaskState::Dead,
        }
    }
}

/// Accumulators of one run.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub events: u64,
    pub switches: u64,
    pub wakeups: u64,
    pub forks: u64,
    /// Time from a wake-up until the task runs, or until the end of the run.
    pub wakeup_latency: TimeHistogram,
    /// Waits for a CPU: after a wake-up, after preemption, after fork. Waits that the end of the
    /// run cuts off are included.
    pub run_queue_wait: TimeHistogram,
    /// Time for which CPUs are idle while tasks wait that may run on them.
    pub idle_while_waiting: IdleWhileWaiting,
    /// Waits of the tasks that the run watches by name; most runs watch none.
    pub watched: Watched,
    /// Times for which CPUs spun for contended locks.
    pub lock_wait: TimeHistogram,
    /// Number of migrations, indexed by the `Distance` between the two CPUs.
    pub migrations: [u64; 5],
    pub refill_ns: Nanos,
    /// A CPU was off line for a while, so that the CPU's times do not add up to the run's duration.
    pub hotplugged: bool,
    /// Number of times that a cgroup ran out of cpu.max quota on a CPU.
    pub throttles: u64,
    /// Number of requests of schedulers for a CPU performance level. The simulated kernel ignores
    /// the requested levels.
    pub cpuperf_requests: u64,
    /// Finished units of work of all tasks.
    pub work_units: u64,
    /// Tasks that have exited.
    pub tasks: Vec<TaskReport>,
}

impl Metrics {
    /// Counts a wait of a task, and the latency of the wake-up if one began the wait. `watched` is
    /// the mask of the task's watched groups.
    #[inline(always)]
    pub(crate) fn count_wait(&mut self, watched: u32, wait: Nanos, latency: Option<Nanos>) {
        self.run_queue_wait.record(wait);
        if let Some(latency) = latency {
            self.wakeup_latency.record(latency);
        }
        if watched != 0 {
            self.watched.record(watched, wait, latency);
        }
    }

    pub fn count_migration(&mut self, distance: Distance) {
        self.migrations[distance as usize] += 1;
    }
}
