// SPDX-License-Identifier: GPL-2.0-only
//! The measured result of one run: one scheduler, workload, machine and seed. Every target returns
//! this form.
//!
//! Owns: the form of a result; names and units are stable (`docs/reference/results.schema.json`).
//! Does not: know which target made the run.

use std::borrow::Cow;

use indexmap::IndexMap;
use scxlab_workload::Program;
use serde::{Deserialize, Serialize};

use crate::fairness::{quota_excess, weight_error};
use crate::metric::{Metric, QUOTA_EXCESS, WEIGHT_ERROR};
use crate::story::Story;

/// The result of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The scheduler as given with `-s`, knobs included.
    pub scheduler: String,
    pub seed: u64,
    /// `sim`, `vm` or `host`.
    pub target: Cow<'static, str>,
    pub exit: Exit,
    pub stop: StopReason,
    /// Whether the figures describe this scheduler over the whole workload: the scheduler was not
    /// ejected, and the run ended regularly. Means, comparisons and agreements use only runs that
    /// count.
    pub counts: bool,
    /// Tasks that starved: they never ran, or hardly ever, though they were runnable for long.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub never_ran: Vec<NeverRan>,
    /// Parts of the scheduler that did not run, frontend included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Rolling hash of all events, in hexadecimal.
    pub trace_hash: String,
    /// Numbers of events in the trace of a run on a real kernel; None if the run was not traced.
    /// A simulated run loses no events, and has None too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceCounts>,
    pub wall_ns: u64,
    pub virtual_ns: u64,
    /// Metrics by name, in the order in which they are shown (`metric.rs`).
    pub metrics: IndexMap<String, MetricValue>,
    pub tasks: Vec<TaskResult>,
    pub cgroups: Vec<CgroupResult>,
    /// The workload's regions of memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<RegionResult>,
    /// The workload's guests, by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guests: Vec<GuestResult>,
    /// Notes for the reader: parts of the workload that are not modelled, system calls that failed.
    pub notes: Vec<String>,
}

impl Run {
    /// Returns the run with `counts`, `never_ran` and the metrics `weight_error` and `quota_excess`
    /// filled in from its other fields.
    pub fn with_verdict(self, program: &Program) -> Run {
        let counts = !self.was_ejected() && self.stop.is_regular();
        let never_ran = never_ran(&self);
        let error = weight_error(&self, program);
        let excess = quota_excess(&self, program);
        let mut run = Run { counts, never_ran, ..self };
        let mut add = |metric: Metric, value: f64| {
            let unit = metric.unit_of(metric.name, "");
            run.metrics.insert(metric.name.to_owned(), MetricValue { value, unit });
        };
        if let Some(value) = error {
            add(WEIGHT_ERROR, value);
        }
        if let Some((part, path)) = excess {
            let percent = part * 100.0;
            add(QUOTA_EXCESS, percent);
            if percent > QUOTA_TOLERANCE_PERCENT {
                run.notes.push(format!(
                    "the scheduler does not keep cpu.max: cgroup {path} had {percent:.0} % more CPU \
                     time than its limit allows"
                ));
            }
        }
        run
    }

    /// Returns the result of a run that had not begun when the session was interrupted.
    pub fn not_begun(scheduler: &str, seed: u64, why: &str) -> Run {
        Run {
            scheduler: scheduler.to_owned(),
            seed,
            target: "sim".into(),
            exit: Exit::none(),
            stop: StopReason { kind: StopKind::Interrupted, message: format!("not begun: {why}") },
            counts: false,
            never_ran: Vec::new(),
            left_out: Vec::new(),
            trace_hash: String::new(),
            trace: None,
            wall_ns: 0,
            virtual_ns: 0,
            metrics: IndexMap::new(),
            tasks: Vec::new(),
            cgroups: Vec::new(),
            memory: Vec::new(),
            guests: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Tells whether the scheduler left before the end, for any reason.
    pub fn was_ejected(&self) -> bool {
        self.exit.kind != Exit::NONE
    }

    /// Tells whether no cgroup had noticeably more CPU time than its `cpu.max` allows.
    pub fn keeps_quotas(&self) -> bool {
        keeps_quotas(&self.metrics)
    }

    /// Tells whether the scheduler stayed, no task starved, and the run ended regularly.
    pub fn succeeded(&self) -> bool {
        self.counts && self.never_ran.is_empty()
    }
}

/// Numbers of events recorded and lost in a run's trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceCounts {
    pub events: u64,
    /// Events for which the ring buffer had no room.
    pub lost: u64,
}

/// A task that starved (`is_starved`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeverRan {
    pub name: String,
    /// 0 if the task never ran.
    #[serde(default)]
    pub run_ns: u64,
    /// Time for which the task had waited when the run ended.
    pub wait_ns: u64,
}

impl NeverRan {
    /// Returns the words for what these tasks did.
    pub fn words<'a>(tasks: impl IntoIterator<Item = &'a NeverRan>) -> &'static str {
        match tasks.into_iter().all(|task| task.run_ns == 0) {
            true => "never ran",
            false => "hardly ever ran",
        }
    }
}

/// Wait, in ns, after which a task may count as starved in a run of ten times this length or more.
const STARVED_NS: u64 = 100_000_000;

/// The kernel's default slice in ns, `SCX_SLICE_DFL`.
const SLICE_DFL_NS: u64 = 20_000_000;

/// A starved task ran for less than this part of the time for which it waited.
const STARVED_PART: u64 = 1000;

/// Returns the wait from which a task that hardly ran counts as starved in a run of `virtual_ns`.
pub fn long_wait(virtual_ns: u64) -> u64 {
    (virtual_ns / 10).min(STARVED_NS)
}

/// Tells whether a task starved in a run of `virtual_ns`. A task that never ran did so if it waited
/// for a hundredth of the run or the kernel's default slice, whichever is shorter; a task that ran,
/// if it waited for `long_wait` each time before it ran, and ran for less than a thousandth of the
/// time for which it waited. A task that waited for less may just not have had its turn yet. The
/// mean over its waits counts, because a task that often wakes up for a moment waits for long in
/// sum.
pub fn is_starved(run_ns: u64, wait_ns: u64, switches: u64, virtual_ns: u64) -> bool {
    if run_ns == 0 {
        return wait_ns > 0 && wait_ns >= (virtual_ns / 100).min(SLICE_DFL_NS);
    }
    let each = wait_ns / (switches + 1);
    each >= long_wait(virtual_ns) && run_ns.saturating_mul(STARVED_PART) < wait_ns
}

/// Returns the tasks that starved, and the threads of guests that never ran; how often a thread of
/// a guest ran is not known.
fn never_ran(run: &Run) -> Vec<NeverRan> {
    let is_starved =
        |run_ns, wait_ns, switches| is_starved(run_ns, wait_ns, switches, run.virtual_ns);
    let starved = |name: &str, run_ns, wait_ns| NeverRan { name: name.to_owned(), run_ns, wait_ns };
    let tasks = run.tasks.iter().filter_map(|task| {
        let (run_ns, wait_ns) = (task.run_ns, task.wait_ns?);
        let is_starved = is_starved(run_ns, wait_ns, task.switches);
        is_starved.then(|| starved(&task.name, run_ns, wait_ns))
    });
    let threads = run.guests.iter().flat_map(|guest| &guest.threads);
    let times = |t: &GuestThread| Some((t.run_ns? + t.kernel_ns?, t.wait_ns? + t.steal_ns?));
    let threads = threads.filter_map(|thread| {
        let (run_ns, wait_ns) = times(thread)?;
        let is_starved = run_ns == 0 && is_starved(run_ns, wait_ns, 0);
        is_starved.then(|| starved(&thread.name, run_ns, wait_ns))
    });
    tasks.chain(threads).collect()
}

/// Tells whether the metrics of a run name no cgroup that had noticeably more CPU time than its
/// `cpu.max` allows.
pub fn keeps_quotas(metrics: &IndexMap<String, MetricValue>) -> bool {
    let excess = metrics.get(QUOTA_EXCESS.name);
    excess.is_none_or(|excess| excess.value <= QUOTA_TOLERANCE_PERCENT)
}

/// Part of a cgroup's limit by which the cgroup may exceed it, in percent: CPUs notice the end of a
/// quota late.
const QUOTA_TOLERANCE_PERCENT: f64 = 5.0;

/// The scheduler's exit; its kind is `none` if the scheduler stayed until the end of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub kind: String,
    pub code: i64,
    pub message: String,
    /// Time of the exit since the start of the run; absent if the scheduler stayed or the time is
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ns: Option<u64>,
    /// Lines that name the place in the scheduler that caused the exit. After a stall, they say
    /// where the stalled task waited and what ran meanwhile. Empty on a real kernel, which does not
    /// report this.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origin: Vec<String>,
    /// What happened before the exit; None on a real kernel, which does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub story: Option<Story>,
    /// The kernel's debug dump, for errors.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub dump: String,
}

impl Exit {
    /// Exit kind of a scheduler that stayed until the end of the run.
    pub const NONE: &'static str = "none";
    /// Exit kind after a hotplug that the scheduler does not handle. The kernel asks the frontend
    /// to load it again.
    pub const RESTART: &'static str = "unreg_kern";

    pub fn none() -> Self {
        Exit {
            kind: Exit::NONE.into(),
            code: 0,
            message: String::new(),
            at_ns: None,
            origin: Vec::new(),
            story: None,
            dump: String::new(),
        }
    }
}

/// Declares the kinds of a run's end: name in results, whether the run did all of its work,
/// meaning.
macro_rules! stop_kinds {
    ($($kind:ident = $name:literal, $is_regular:literal, $meaning:literal;)+) => {
        /// Kind of a run's end.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum StopKind {
            $(#[doc = $meaning] #[serde(rename = $name)] $kind,)+
        }

        impl StopKind {
            pub const ALL: &[StopKind] = &[$(StopKind::$kind),+];

            /// Returns the name in results.
            pub fn name(self) -> &'static str {
                match self { $(StopKind::$kind => $name,)+ }
            }

            pub fn meaning(self) -> &'static str {
                match self { $(StopKind::$kind => $meaning,)+ }
            }

            /// Tells whether the run did all of its work.
            pub fn is_regular(self) -> bool {
                match self { $(StopKind::$kind => $is_regular,)+ }
            }
        }
    };
}

stop_kinds! {
    Duration = "duration", true, "its duration has passed";
    AllExited = "all_exited", true, "all threads of the workload have exited";
    Deadlock = "deadlock", false, "every thread waits, and nothing will wake one";
    Livelock = "livelock", false, "a task made too many steps in a row that took no time, or \
        a CPU scheduled too often in a row without running a task";
    EventLimit = "event_limit", false, "it has more events than the limit";
    OutOfMemory = "out_of_memory", false, "the scheduler and the workload need more memory than \
        the limit (`--memory-limit`)";
    MemoryFull = "memory_full", false, "no node of the simulated machine has room for a page of a \
        region";
    ThreadsMissing = "threads_missing", false, "a thread with which the workload starts was refused; \
        the others ran as long as they should";
    Unmodelled = "unmodelled", false, "a program needs what the simulator does not model";
    Interrupted = "interrupted", false, "Ctrl-C, SIGTERM or `--deadline` ended it; the message tells if it was \
        not begun";
}

/// Reason why the run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopReason {
    pub kind: StopKind,
    /// The reason in words; may be empty.
    pub message: String,
}

impl StopReason {
    pub fn was_interrupted(&self) -> bool {
        self.kind == StopKind::Interrupted
    }

    pub fn is_regular(&self) -> bool {
        self.kind.is_regular()
    }
}

/// A measured value with its unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricValue {
    pub value: f64,
    /// Unit of the value; `1` for a count.
    pub unit: Cow<'static, str>,
}

/// The result of one task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskResult {
    pub name: String,
    pub nice: i8,
    pub cgroup: String,
    pub run_ns: u64,
    /// Time spent runnable but not running. None (here and in `migrations`) if the run was on a
    /// real kernel, the BPF program that measures threads did not see this thread, and the kernel
    /// does not report the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ns: Option<u64>,
    pub switches: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrations: Option<u64>,
    /// CPU time by node, without nodes after the last on which the task ran; empty on a machine
    /// with one node, and on a real kernel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_ns: Vec<u64>,
    /// Values of the scheduler's own counters for this task (`counters.rs`).
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub counters: IndexMap<String, u64>,
}

/// The result of one guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GuestResult {
    pub name: String,
    pub work_units: u64,
    /// None (here, in `yields`, and in the parts of virtual CPUs and threads) if the target does
    /// not measure the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exits: Option<GuestExits>,
    /// Directed yields after pause loops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yields: Option<GuestYields>,
    pub vcpus: Vec<VcpuResult>,
    /// Its threads; those that have exited first.
    pub threads: Vec<GuestThread>,
}

/// Numbers of a guest's exits to the host, by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestExits {
    pub halt: u64,
    /// Interrupts that a vCPU sent to another one.
    pub ipi: u64,
    /// Interrupts that a vCPU received.
    pub interrupt: u64,
    /// Timers that a vCPU armed.
    pub timer: u64,
    /// Pause loops.
    pub pause: u64,
}

/// Numbers of a guest's directed yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestYields {
    pub tried: u64,
    pub done: u64,
}

/// The times of one virtual CPU, which add up to its lifetime.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VcpuResult {
    /// Name of its task on the host.
    pub name: String,
    /// Threads' own work, without spinning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spin_ns: Option<u64>,
    /// The guest's kernel, and exits to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ns: Option<u64>,
    /// Time for which it waited for a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal_ns: Option<u64>,
    /// Switches from one of its threads to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<u64>,
}

/// The times of one thread of a guest, which add up to its lifetime.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GuestThread {
    /// Names of the guest and of the thread.
    pub name: String,
    /// On a CPU, spinning included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_ns: Option<u64>,
    /// In the guest's kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_ns: Option<u64>,
    /// In a run queue of the guest, or halted for a spin lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ns: Option<u64>,
    /// On a virtual CPU that waited for a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep_ns: Option<u64>,
    pub work_units: u64,
}

/// Where the pages of one region lie at the end of the run, or lay when its owner ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionResult {
    /// Name of the process, or of the thread if the region is the thread's or its process has no
    /// name; empty if all share the region.
    pub owner: String,
    pub region: String,
    /// Number of present 4 KiB pages by node.
    pub pages: Vec<u64>,
}

/// The result of one cgroup, and the share that its weight entitles it to among the children of its
/// parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CgroupResult {
    pub path: String,
    pub weight: u32,
    /// CPU time of the cgroup's own tasks and of the tasks in cgroups below it.
    pub run_ns: u64,
    /// The cgroup's part of the CPU time that the cgroup and its siblings used, in thousandths.
    /// None if they used no CPU time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_permille: Option<f64>,
    /// The cgroup's part of the sum of its own and its siblings' weights, in thousandths. The
    /// weight of a cgroup that neither used CPU time nor waited for it counts as 0.
    pub weight_permille: f64,
    /// Fraction of time, in thousandths, in which all runnable tasks of the cgroup itself ran at
    /// once, or as many tasks as there are CPUs. The base is the time in which at least two of its
    /// tasks were runnable and at least one ran; None if there was no such time.
    #[serde(default, alias = "together_permille", skip_serializing_if = "Option::is_none")]
    pub coscheduled_permille: Option<f64>,
}
