// SPDX-License-Identifier: GPL-2.0-only
//! The declaration of every metric: name, unit, better direction, definition on each target, rows
//! of the report, and whether targets are compared by the metric.
//!
//! Owns: the metrics of results. The report, comparisons between targets, the tables of
//! `docs/reference/metrics.md` and the JSON schema follow from `SECTIONS`.
//! Does not: measure; `sim/measure.rs` and the live crate put values into a `MetricTable`.

mod table;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

pub use table::MetricTable;

/// One metric, or a family of metrics whose names differ in one part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Name in results. In a family's name `<...>` stands for the part that differs.
    pub name: &'static str,
    pub unit: Unit,
    pub better: Better,
    /// Parts that a name of the family can have; empty if the parts depend on the run.
    pub parts: &'static [Part],
    /// Rows of the report that show the metric.
    pub rows: &'static [Row],
    /// Full names of the metrics that are compared between targets (`agreement.rs`), because each
    /// target measures the same quantity under that name.
    pub agrees: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Ns,
    /// 10^6 bytes per second.
    MbPerSecond,
    /// A number without unit: a count, or a mean of counts.
    One,
    Percent,
    /// The workload's unit of work.
    Work,
    /// The workload's unit of work per second.
    WorkPerSecond,
    /// `ns` if the name ends in `_ns`, or else `1`.
    ByName,
}

/// Direction in which a metric is better, other things being equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Less,
    More,
    /// The better direction depends on the reader's goal.
    Open,
}

/// The part in which the names of a family differ, such as `p99` in `lock_wait_p99`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub name: &'static str,
    /// Fraction of the samples at or below the metric's value, in 1/10,000: 9,900 for `p99`. None
    /// if the part names no quantile.
    pub quantile: Option<u32>,
    /// Number of samples below which the metric is absent.
    pub samples_min: u64,
}

/// A row of the report, which shows one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Full name of the metric, which for a family includes the variable part.
    pub name: &'static str,
    pub label: &'static str,
    pub show: Show,
    /// Whether the row is one of the few that a table has by default.
    pub is_deciding: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    Value,
    /// The metric's value, which the table over several machines shows too.
    Main,
    /// The metric's value as a percentage of all CPU time.
    CpuShare,
}

/// Metrics that share one definition, and a row of `docs/reference/metrics.md`.
#[derive(Clone, Copy, Debug)]
pub struct Topic {
    /// Definition on `sim`, in Markdown; `-` if `sim` does not measure the metrics.
    pub sim: &'static str,
    /// Definition on `vm` and `host`.
    pub live: &'static str,
    pub metrics: &'static [Metric],
}

/// Declares the metrics once: each becomes a constant, and `SECTIONS` lists all of them.
macro_rules! metrics {
    ($($section:literal { $($sim:literal, $live:literal => $($id:ident = $metric:expr),+;)+ })+) => {
        $($($(pub const $id: Metric = $metric;)+)+)+

        /// All metrics in the order of the report, by section of `docs/reference/metrics.md`.
        pub const SECTIONS: &[(&str, &[Topic])] = &[
            $(($section, &[$(Topic { sim: $sim, live: $live, metrics: &[$($id),+] }),+])),+
        ];
    };
}

metrics! {
    "work" {
        "finished units of work per second of virtual time; the workload says what a unit is",
        "the same, per second of CLOCK_MONOTONIC from the release of the threads to the end" =>
            THROUGHPUT = metric("throughput", Unit::WorkPerSecond).more()
                .rows(&[main_row("throughput", "throughput")]);
        "number of finished units of work",
        "the same; for a command: 1 if it ended with exit status 0" =>
            WORK_UNITS = metric("work_units", Unit::Work).more();
        "mean time from the start of the run until a thread that existed at the start exited; absent \
         if one of them has not exited",
        "-" =>
            COMPLETION_MEAN = metric("completion_mean", Unit::Ns).less();
    }
    "waiting" {
        "from a wake-up until the task runs; absent if no wake-ups but those that end start offsets \
         need have happened",
        "from `sched_waking` until the `sched_switch` to the task; if the task was still on its way \
         off a CPU, from `sched_wakeup`" =>
            WAKEUP_LATENCY = metric("wakeup_latency_<q>", Unit::Ns).less()
                .parts(&[P50, P90, P99, P99_9, P99_99, MAX])
                .rows(&[
                    deciding(row("wakeup_latency_p50", "wake-up latency p50")),
                    main_row("wakeup_latency_p99", "wake-up latency p99"),
                    deciding(row("wakeup_latency_p99.9", "wake-up latency p99.9")),
                    row("wakeup_latency_p99.99", "wake-up latency p99.99"),
                ])
                .agrees(&["wakeup_latency_p50", "wakeup_latency_p99"]);
        "every wait for a CPU: after a wake-up, after preemption, after fork",
        "the same: from the above, from the `sched_switch` away from a runnable task, from \
         `sched_wakeup_new`" =>
            RUN_QUEUE_WAIT = metric("run_queue_wait_<q>", Unit::Ns).less()
                .parts(&[P50, P90, P99, P99_9, MAX])
                .rows(&[
                    row("run_queue_wait_p50", "run-queue wait p50"),
                    main_row("run_queue_wait_p99", "run-queue wait p99"),
                    row("run_queue_wait_p99.9", "run-queue wait p99.9"),
                    row("run_queue_wait_max", "run-queue wait max"),
                ])
                .agrees(&["run_queue_wait_p50", "run_queue_wait_p90", "run_queue_wait_p99"]);
    }
    "timers" {
        "from the end of a timer's period until the thread that waited for it ran; for a timer that a \
         thread reached late, until it reached it; for one that it has not reached, until the end of \
         the run",
        "the same" =>
            TIMER_LATENCY_MEAN = metric("timer_latency_mean", Unit::Ns).less()
                .rows(&[deciding(row("timer_latency_mean", "timer latency mean"))]),
            TIMER_LATENCY_MAX = metric("timer_latency_max", Unit::Ns).less();
        "time left when a thread reached its timer; negative when it was late, or when the run ended \
         before it came",
        "the same" =>
            TIMER_SLACK_MIN = metric("timer_slack_min", Unit::Ns).more()
                .rows(&[row("timer_slack_min", "timer slack min")]),
            TIMER_SLACK_MEAN = metric("timer_slack_mean", Unit::Ns).more();
        "periods of timers that were over before their threads came: those that were reached late, \
         those that a relative timer passed over, those that were not reached by the end of the run; \
         a timer that several threads share counts once",
        "the same, without timers that several threads share and nobody reached by the end" =>
            TIMERS_MISSED = metric("timers_missed", Unit::One).less()
                .rows(&[deciding(row("timers_missed", "timers missed"))]);
    }
    "switches" {
        "every switch of a CPU from one task to another, idle included",
        "those from or to a task of the workload" =>
            CONTEXT_SWITCHES = metric("context_switches", Unit::One)
                .rows(&[deciding(row("context_switches", "context switches"))])
                .agrees(&["context_switches"]);
        "how often tasks of the workload left a CPU because they slept or ended; because they were \
         preempted",
        "the same: asleep or dead; preempted or still runnable, which includes yielding" =>
            SWITCHES_VOLUNTARY = metric("switches_voluntary", Unit::One)
                .agrees(&["switches_voluntary"]),
            SWITCHES_INVOLUNTARY = metric("switches_involuntary", Unit::One)
                .rows(&[row("switches_involuntary", "  of them involuntary")])
                .agrees(&["switches_involuntary"]);
        "tasks woken up",
        "tasks of the workload woken up: `sched_waking`" =>
            WAKEUPS = metric("wakeups", Unit::One).agrees(&["wakeups"]);
        "how often a task of the workload came to belong to another CPU, whether it ran there or was \
         moved on",
        "the same: `sched_migrate_task`" =>
            MIGRATIONS = metric("migrations", Unit::One)
                .rows(&[deciding(row("migrations", "migrations"))])
                .agrees(&["migrations"]);
        "migrations by distance: to a thread of the same core, another core of the LLC, another LLC \
         of the node, another node",
        "the same" =>
            MIGRATIONS_BY_DISTANCE = metric("migrations_<distance>", Unit::One)
                .parts(&[part("smt"), part("core"), part("llc"), part("node")])
                .rows(&[
                    row("migrations_smt", "migrations to SMT sibling"),
                    row("migrations_core", "migrations in LLC"),
                    row("migrations_llc", "migrations across LLCs"),
                    row("migrations_node", "migrations across nodes"),
                ]);
        "CPUs that a scheduler asked to reschedule",
        "-" =>
            KICKS = metric("kicks", Unit::One).rows(&[row("kicks", "kicks")]);
    }
    "cpu" {
        "time of all CPUs in tasks' own work",
        "time of all CPUs in any task, of the workload or not, including its system calls, kernel \
         paths and interrupts" =>
            CPU_BUSY = metric("cpu_busy", Unit::Ns).rows(&[deciding(share("cpu_busy", "CPU busy"))]);
        "time of all CPUs in which they are idle",
        "time of all CPUs in the idle task" =>
            CPU_IDLE = metric("cpu_idle", Unit::Ns).rows(&[share("cpu_idle", "CPU idle")]);
        "the part of it in which a task waited that may run on that CPU: each waiting task counts for \
         one CPU, and each CPU until it has switched to a task; absent with `cpu.max`, and if a CPU \
         went off line",
        "-" =>
            IDLE_WHILE_WAITING = metric("idle_while_waiting", Unit::Ns).less()
                .rows(&[deciding(share("idle_while_waiting", "CPU idle, task waits"))]);
        "time of all CPUs in the kernel",
        "-, it is part of `cpu_busy`" =>
            CPU_OVERHEAD = metric("cpu_overhead", Unit::Ns).less()
                .rows(&[deciding(share("cpu_overhead", "CPU overhead"))]);
        "the same for one CPU",
        "the first two" =>
            ONE_CPU_BUSY = metric("cpu<n>_busy", Unit::Ns),
            ONE_CPU_IDLE = metric("cpu<n>_idle", Unit::Ns),
            ONE_CPU_OVERHEAD = metric("cpu<n>_overhead", Unit::Ns).less();
        "the part of the overhead that was spent spinning for locks",
        "-" =>
            CPU_LOCK_WAIT = metric("cpu_lock_wait", Unit::Ns).less()
                .rows(&[share("cpu_lock_wait", "CPU waiting for locks")]);
        "time that tasks lost to cold caches",
        "-" =>
            CACHE_REFILL = metric("cache_refill", Unit::Ns).less()
                .rows(&[share("cache_refill", "CPU refilling caches")]);
        "part of the workload's CPU time that would have to change hands for each task and cgroup to \
         have what its weight entitles it to, at most as much as it wanted; only if weights differ, \
         without `cpu.max`, `cpu.idle` and real-time policies, and if all tasks may run on the same \
         CPUs",
        "the same" =>
            WEIGHT_ERROR = metric("weight_error", Unit::Percent).less()
                .rows(&[deciding(row("weight_error", "CPU time against weights"))]);
        "CPU time that a cgroup had beyond its `cpu.max`, in percent of what the limit allows, for the \
         cgroup that exceeds its limit most; only with `cpu.max`",
        "the same" =>
            QUOTA_EXCESS = metric("quota_excess", Unit::Percent).less()
                .rows(&[deciding(row("quota_excess", "CPU time beyond cpu.max"))]);
        "waits for contended locks of the kernel and of BPF: their number and their length",
        "-" =>
            LOCK_WAITS = metric("lock_waits", Unit::One).less(),
            LOCK_WAIT = metric("lock_wait_<q>", Unit::Ns).less()
                .parts(&[P50, P90, P99, P99_9, MAX])
                .rows(&[row("lock_wait_p99", "lock wait p99")]);
    }
    "memory" {
        "pages of the workload's regions on the node, at the end of the run or of their owner; only \
         with regions, as the other metrics of memory",
        "the same, as `move_pages` tells; absent if a process with regions was killed" =>
            MEMORY_NODE_PAGES = metric("memory_node<n>_pages", Unit::One).agrees(&[
                "memory_node0_pages",
                "memory_node1_pages",
                "memory_node2_pages",
                "memory_node3_pages",
                "memory_node4_pages",
                "memory_node5_pages",
                "memory_node6_pages",
                "memory_node7_pages",
            ]);
        "cache lines that tasks fetched from regions; those from another node than the CPU's",
        "-" =>
            MEMORY_ACCESSES = metric("memory_accesses", Unit::One)
                .rows(&[row("memory_accesses", "memory accesses")]),
            MEMORY_REMOTE_ACCESSES = metric("memory_remote_accesses", Unit::One).less()
                .rows(&[row("memory_remote_accesses", "  of them remote")]);
        "bytes that the node's memory delivered per second, mean over the run; a write counts twice",
        "-" =>
            MEMORY_NODE_BANDWIDTH = metric("memory_node<n>_bandwidth", Unit::MbPerSecond)
                .rows(&[
                    row("memory_node0_bandwidth", "bandwidth of node 0, MB/s"),
                    row("memory_node1_bandwidth", "bandwidth of node 1, MB/s"),
                ]);
        "kernel time of first accesses to pages: faults, clearing, copying of merged pages",
        "-" =>
            MEMORY_FIRST_TOUCH = metric("memory_first_touch", Unit::Ns).less();
        "kernel time in which NUMA balancing moved pages",
        "-" =>
            MEMORY_MIGRATE = metric("memory_migrate", Unit::Ns).less();
        "page-table entries that NUMA balancing marked, faults on marked pages, those of them on the \
         node of the CPU, pages that moved to the node of their user",
        "the same counts of the whole system (`/proc/vmstat`)" =>
            NUMA_PTE_UPDATES = metric("numa_pte_updates", Unit::One),
            NUMA_HINT_FAULTS = metric("numa_hint_faults", Unit::One),
            NUMA_HINT_FAULTS_LOCAL = metric("numa_hint_faults_local", Unit::One),
            NUMA_PAGES_MIGRATED = metric("numa_pages_migrated", Unit::One)
                .rows(&[row("numa_pages_migrated", "pages migrated")]);
        "tasks that NUMA balancing moved to another node, and pairs of tasks that it swapped",
        "the same, whether or not the kernel then found the destination busy \
         (tracepoints `sched_move_numa` and `sched_swap_numa`)" =>
            NUMA_TASK_MOVES = metric("numa_task_moves", Unit::One),
            NUMA_TASK_SWAPS = metric("numa_task_swaps", Unit::One);
    }
    "guests" {
        "time of all virtual CPUs (vCPUs) in threads' own work, without spinning, with what interrupts \
         of the host took of it, which a guest does not see; only with guests, as the other metrics of \
         guests",
        "-" =>
            GUEST_USER = metric("guest_user", Unit::Ns)
                .rows(&[share("guest_user", "vCPUs in threads")]);
        "time of all vCPUs in which their threads spin",
        "-" =>
            GUEST_SPIN = metric("guest_spin", Unit::Ns).less()
                .rows(&[share("guest_spin", "vCPUs spinning")]);
        "time of all vCPUs in the guest's kernel and in exits to the host",
        "-" =>
            GUEST_KERNEL = metric("guest_kernel", Unit::Ns).less()
                .rows(&[share("guest_kernel", "vCPUs in kernel and exits")]);
        "time of all vCPUs in which they have no thread to run, or are halted for a spin lock",
        "-" =>
            GUEST_IDLE = metric("guest_idle", Unit::Ns);
        "time for which vCPUs with work waited for a CPU",
        "the same: the waits of the vCPUs' threads, as in a task's `wait_ns`" =>
            GUEST_STEAL = metric("guest_steal", Unit::Ns).less()
                .rows(&[share("guest_steal", "steal")]);
        "exits of vCPUs by reason: halts, interrupts sent to another vCPU, interrupts received, timers \
         armed, pause loops",
        "-" =>
            GUEST_EXITS = metric("guest_exits_<reason>", Unit::One).less()
                .parts(&[
                    part("halt"),
                    part("ipi"),
                    part("interrupt"),
                    part("timer"),
                    part("pause"),
                ])
                .rows(&[
                    row("guest_exits_halt", "exits: halt"),
                    row("guest_exits_pause", "exits: pause loop"),
                ]);
        "directed yields that vCPUs tried after a pause loop, and those that the host did",
        "-" =>
            GUEST_YIELDS = metric("guest_yields", Unit::One),
            GUEST_YIELDS_DONE = metric("guest_yields_done", Unit::One);
        "from a wake-up of a guest's thread, or the time at which its timer was due, until it runs on a \
         vCPU that is on a CPU",
        "-" =>
            GUEST_WAKEUP_LATENCY = metric("guest_wakeup_latency_<q>", Unit::Ns).less()
                .parts(&[P50, P90, P99, P99_9, MAX])
                .rows(&[
                    row("guest_wakeup_latency_p50", "wake-up latency in guests p50"),
                    row("guest_wakeup_latency_p99", "wake-up latency in guests p99"),
                ]);
        "from a thread's first attempt until it has a spin lock that another thread holds; from a TLB \
         flush's begin until all vCPUs have answered",
        "-" =>
            GUEST_LOCK_WAIT = metric("guest_lock_wait_<q>", Unit::Ns).less()
                .parts(&[P50, P90, P99, P99_9, MAX])
                .rows(&[row("guest_lock_wait_p99", "spin lock wait in guests p99")]),
            GUEST_FLUSH_WAIT = metric("guest_flush_wait_<q>", Unit::Ns).less()
                .parts(&[P50, P90, P99, P99_9, MAX]);
        "the units of work of one guest, by its number; the same per second",
        "the same, per second of the guest's clock from its start to its end" =>
            ONE_GUEST_WORK_UNITS = metric("guest<n>_work_units", Unit::Work).more(),
            ONE_GUEST_THROUGHPUT = metric("guest<n>_throughput", Unit::WorkPerSecond).more();
    }
    "operations" {
        "calls of a scheduler's operation",
        "the same, as the kernel counts runs of the program; for all tasks that the scheduler has, \
         not only the workload's" =>
            OP_CALLS = metric("op_<name>_calls", Unit::One);
        "mean time",
        "mean time by the kernel's clock (`run_time_ns`), with interrupts that came meanwhile" =>
            OP_MEAN = metric("op_<name>_mean", Unit::Ns).less();
        "mean BPF instructions",
        "-" =>
            OP_INSNS = metric("op_<name>_insns", Unit::One).less();
        "events of the scheduler as the kernel counts them, `SCX_EV_*`, such as CPUs that the kernel \
         chose in its stead; only with a scheduler",
        "-" =>
            SCX_EV = metric("scx_ev_<event>", Unit::One).parts(&[
                part("select_cpu_fallback"),
                part("dispatch_local_dsq_offline"),
                part("dispatch_keep_last"),
                part("enq_skip_exiting"),
                part("enq_skip_migration_disabled"),
                part("reenq_immed"),
                part("reenq_repeat"),
                part("refill_slice_dfl"),
                part("slice_clamped"),
                part("slice_denied"),
                part("bypass_dispatch"),
                part("bypass_activate"),
                part("insert_not_owned"),
            ]);
        "time in bypass mode, `SCX_EV_BYPASS_DURATION`; only with a scheduler",
        "-" =>
            SCX_EV_BYPASS_DURATION = metric("scx_ev_bypass_duration", Unit::Ns);
        "events of the simulation",
        "-" =>
            EVENTS = metric("events", Unit::One);
        "BPF instructions executed",
        "-" =>
            BPF_INSTRUCTIONS = metric("bpf_instructions", Unit::One).less();
        "-",
        "instructions that the kernel's verifier walked through when it loaded the programs: of all, \
         of the largest; its limit is 1,000,000 for each" =>
            VERIFIER_INSNS = metric("verifier_insns", Unit::One).less(),
            VERIFIER_INSNS_MAX = metric("verifier_insns_max", Unit::One).less();
    }
    "counters" {
        "what the scheduler counts itself, from attach to the end of the run; its README says what a \
         field means",
        "the same" =>
            COUNTER = metric("sched.<field>", Unit::ByName);
    }
}

const P50: Part = quantile("p50", 5_000);
const P90: Part = quantile("p90", 9_000);
const P99: Part = quantile("p99", 9_900);
const P99_9: Part = quantile("p99.9", 9_990);
/// With fewer than 10,000 samples, p99.99 is absent, because there is no value that 1 sample in
/// 10,000 exceeds.
const P99_99: Part = Part { samples_min: 10_000, ..quantile("p99.99", 9_999) };
/// The largest sample, exact on every target.
const MAX: Part = quantile("max", 10_000);

const fn metric(name: &'static str, unit: Unit) -> Metric {
    Metric { name, unit, better: Better::Open, parts: &[], rows: &[], agrees: &[] }
}

const fn part(name: &'static str) -> Part {
    Part { name, quantile: None, samples_min: 0 }
}

const fn quantile(name: &'static str, per_10_000: u32) -> Part {
    Part { name, quantile: Some(per_10_000), samples_min: 1 }
}

const fn row(name: &'static str, label: &'static str) -> Row {
    Row { name, label, show: Show::Value, is_deciding: false }
}

const fn main_row(name: &'static str, label: &'static str) -> Row {
    Row { name, label, show: Show::Main, is_deciding: true }
}

const fn share(name: &'static str, label: &'static str) -> Row {
    Row { name, label, show: Show::CpuShare, is_deciding: false }
}

const fn deciding(row: Row) -> Row {
    Row { is_deciding: true, ..row }
}

impl Metric {
    const fn more(self) -> Metric {
        Metric { better: Better::More, ..self }
    }

    const fn less(self) -> Metric {
        Metric { better: Better::Less, ..self }
    }

    const fn parts(self, parts: &'static [Part]) -> Metric {
        Metric { parts, ..self }
    }

    const fn rows(self, rows: &'static [Row]) -> Metric {
        Metric { rows, ..self }
    }

    const fn agrees(self, agrees: &'static [&'static str]) -> Metric {
        Metric { agrees, ..self }
    }

    /// Splits a family's name into the text before its variable part, the placeholder's name, and
    /// the text after it; None for a single metric.
    fn split(&self) -> Option<(&'static str, &'static str, &'static str)> {
        let (before, rest) = self.name.split_once('<')?;
        let (variable, after) = rest.split_once('>')?;
        Some((before, variable, after))
    }

    /// Returns the name of the metric in the family that has this part.
    pub fn named(&self, part: impl std::fmt::Display) -> String {
        let (before, _, after) = self.split().expect("a family");
        format!("{before}{part}{after}")
    }

    /// Returns the variable part of a name in the family; None if the name is of another metric.
    pub fn part_of<'a>(&self, name: &'a str) -> Option<&'a str> {
        let (before, variable, after) = self.split()?;
        let part = name.strip_prefix(before)?.strip_suffix(after)?;
        let fits = match variable {
            "n" => part.bytes().all(|b| b.is_ascii_digit()),
            _ => self.parts.is_empty() || self.parts.iter().any(|p| p.name == part),
        };
        (fits && !part.is_empty()).then_some(part)
    }

    /// Returns the unit of the metric with this name. `work` is the workload's unit of work.
    pub fn unit_of(&self, name: &str, work: &str) -> Cow<'static, str> {
        match self.unit {
            Unit::Ns => "ns".into(),
            Unit::MbPerSecond => "MB/s".into(),
            Unit::One => "1".into(),
            Unit::Percent => "%".into(),
            Unit::Work => work.to_owned().into(),
            Unit::WorkPerSecond => format!("{work}/s").into(),
            Unit::ByName if name.ends_with("_ns") => "ns".into(),
            Unit::ByName => "1".into(),
        }
    }

    /// Tells whether this declaration is that of the metric called `name`, alone or as a member of
    /// a family.
    pub fn declares(&self, name: &str) -> bool {
        self.name == name && self.split().is_none() || self.part_of(name).is_some()
    }
}

/// Returns the declarations of all metrics, in the order of `SECTIONS`.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    SECTIONS.iter().flat_map(|(_, topics)| *topics).flat_map(|topic| topic.metrics)
}

/// Returns the declaration of the metric with this name.
pub fn find(name: &str) -> Option<&'static Metric> {
    all().find(|metric| metric.declares(name))
}
