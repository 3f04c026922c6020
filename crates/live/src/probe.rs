// SPDX-License-Identifier: GPL-2.0-only
//! The reader of the probe, which measures a workload on a real kernel: loads
//! `bpf/live/probe.bpf.c`, and sums up its per-CPU data.
//!
//! Owns: the maps and variables of the probe; `abi.rs` has the layout of their values.
//! Does not: name metrics (see `measure.rs`).

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};

use scxlab_lab::shares::CoscheduledTime;
use scxlab_workload::native::StartSignal;

use crate::LiveError;
use crate::abi::{self, SUB_BITS, plain};
use crate::kernel::RunningKernel;
use crate::log::{listen, missing_symbol};
use crate::ring;
use crate::trace::Recording;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/probe.bpf.o"));

/// Number of buckets of a distribution per power of two.
const SUB: usize = abi::SUB as usize;

/// A distribution of times in ns.
#[derive(Clone, Debug, Default)]
pub struct Times {
    pub max: u64,
    counts: Vec<u64>,
}

impl Times {
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the value at or below which `per_10_000` of 10,000 times lie, to within 1.6 %; 0 if
    /// the distribution is empty.
    pub fn quantile(&self, per_10_000: u64) -> u64 {
        let wanted = (self.count() * per_10_000).div_ceil(10_000).max(1);
        let mut below = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            below += count;
            if below >= wanted {
                return last_of(bucket).min(self.max);
            }
        }
        0
    }
}

/// Returns the largest time that falls into a bucket, ns.
fn last_of(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let shift = (bucket >> SUB_BITS) as u32 - 1;
    let mantissa = (SUB + (bucket & (SUB - 1))) as u64;
    (mantissa << shift) + ((1 << shift) - 1)
}

/// Sums over the life of one task of the workload.
#[derive(Clone, Debug, Default)]
pub struct TaskSum {
    pub name: String,
    pub tid: u32,
    pub tgid: u32,
    pub nice: i32,
    pub run_ns: u64,
    pub wait_ns: u64,
    pub voluntary: u64,
    pub involuntary: u64,
    pub migrations: u64,
    /// Inode of the cgroup in which the probe last saw the task.
    pub cgroup: u64,
}

/// All data that the probe collected.
#[derive(Clone, Debug, Default)]
pub struct ProbeData {
    pub wakeup_latency: Times,
    pub run_queue_wait: Times,
    /// Time that each CPU spent in tasks and in its idle task, in ns; indexed by CPU.
    pub busy_ns: Vec<u64>,
    pub idle_ns: Vec<u64>,
    pub switches: u64,
    pub wakeups: u64,
    /// Number of ended tasks for which the probe's map of ended tasks had no room.
    pub lost: u64,
    /// Moves of the workload's tasks, and swaps with one of them, that NUMA balancing began.
    pub numa_moves: u64,
    pub numa_swaps: u64,
    /// Migrations as (from CPU, to CPU, count).
    pub moves: Vec<(u32, u32, u64)>,
    /// Tasks in the order of their ends. All tasks have ended, because the data is read
    /// after the workload.
    pub tasks: Vec<TaskSum>,
    /// Time in which two or more tasks of a cgroup were runnable and at least one ran, and the part
    /// of this time in which all of them ran at once, or one on each CPU; by the cgroup's inode.
    pub cgroups: BTreeMap<u64, CoscheduledTime>,
}

/// Period that the probe measures. The probe measures nothing until the period is set.
pub struct Window(MapHandle);

impl Window {
    /// Sets start and end of the measured period, on CLOCK_MONOTONIC in ns.
    pub fn set(&self, from: u64, until: u64) -> Result<(), LiveError> {
        // The probe's `.data` section consists of the variables `from` and `until`, in this order.
        let bytes: Vec<u8> = [from, until].iter().flat_map(|at| at.to_ne_bytes()).collect();
        let set = self.0.update(&0u32.to_ne_bytes(), &bytes, MapFlags::ANY);
        set.map_err(|e| LiveError::Probe(format!("its window: {e}")))
    }

    /// Returns a signal through which the workload's director itself sets start and end when it
    /// releases the threads. A thread of this process might set them too late, because it might
    /// have to wait for a CPU at that moment.
    pub fn start_signal(&self) -> Result<StartSignal, LiveError> {
        let signal = StartSignal::in_memory(self.0.as_fd());
        signal.map_err(|e| LiveError::Probe(format!("its window: {e}")))
    }

    /// Returns the start of the measured period, once it is set.
    pub fn start(&self) -> Option<u64> {
        self.get().ok().map(|(from, _)| from).filter(|from| *from != u64::MAX)
    }

    fn get(&self) -> Result<(u64, u64), libbpf_rs::Error> {
        let bytes = self.0.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default();
        let at = |at: usize| bytes.get(at..).and_then(plain::<u64>).unwrap_or(u64::MAX);
        Ok((at(0), at(size_of::<u64>())))
    }
}

/// The loaded and attached probe.
pub struct Probe {
    object: Object,
    _links: Vec<Link>,
}

impl Probe {
    /// Starts to observe all descendants of this process, on a machine with `nr_cpus` CPUs. With
    /// `directed` the children of this process do not count, only what descends from them. If
    /// `ring` is given, the probe also records the events of every task in a ring of that size in
    /// bytes, a power of two.
    pub fn attach(
        kernel: &RunningKernel,
        directed: bool,
        nr_cpus: u32,
        ring: Option<u32>,
    ) -> Result<Probe, LiveError> {
        // The constants in order: `root_tgid`, `nr_cpus`, `tracing`, `interrupt_mask`, `directed`.
        let constants = [
            std::process::id(),
            nr_cpus,
            ring.is_some().into(),
            kernel.interrupt_mask(),
            directed.into(),
        ];
        let (result, log) = listen(|| Probe::attach_quietly(constants, ring));
        result.map_err(|e| match missing_symbol(&log) {
            Some(symbol) => LiveError::NoSymbol { symbol },
            None => LiveError::Probe(format!("{e}\n{}", tail(&log))),
        })
    }

    fn attach_quietly(constants: [u32; 5], ring: Option<u32>) -> Result<Probe, libbpf_rs::Error> {
        let mut open = ObjectBuilder::default().name("probe")?.open_memory(OBJECT)?;
        for mut map in open.maps_mut() {
            if let Some(bytes) = ring.filter(|_| map.name() == "ring") {
                map.set_max_entries(bytes)?;
            }
            let is_constant = map.name().to_string_lossy().ends_with(".rodata");
            if let Some(bytes) = map.initial_value_mut().filter(|_| is_constant) {
                for (to, value) in bytes.chunks_exact_mut(4).zip(constants) {
                    to.copy_from_slice(&value.to_ne_bytes());
                }
            }
        }
        let object = open.load()?;
        let mut links = Vec::new();
        for program in object.progs_mut() {
            links.push(program.attach()?);
        }
        Ok(Probe { object, _links: links })
    }

    /// Returns the `Window` with which the caller sets the measured period.
    pub fn window(&self) -> Result<Window, LiveError> {
        let failed = |why: String| LiveError::Probe(format!("its window: {why}"));
        let data = self.object.maps().find(|m| m.name().to_string_lossy().ends_with(".data"));
        let data = data.ok_or_else(|| failed("no data section".into()))?;
        MapHandle::try_from(&data).map(Window).map_err(|e| failed(e.to_string()))
    }

    /// Sums up the data between `from` and `until`. The workload must have ended, because `tasks`
    /// holds ended tasks only.
    pub fn read(&self, from: u64, until: u64) -> Result<ProbeData, LiveError> {
        let window = self.window()?.get().map_err(|e| LiveError::Probe(e.to_string()))?;
        if window.0 == u64::MAX {
            return Err(LiveError::Probe("nothing has opened its window".into()));
        }
        self.read_all(from, until).map_err(|e| LiveError::Probe(e.to_string()))
    }

    fn read_all(&self, from: u64, until: u64) -> Result<ProbeData, libbpf_rs::Error> {
        let mut data = ProbeData {
            wakeup_latency: self.times(abi::WAKEUP_LATENCY)?,
            run_queue_wait: self.times(abi::RUN_QUEUE_WAIT)?,
            ..ProbeData::default()
        };
        for cpu in self.cpus()? {
            // The CPU's sums end at its last switch, at `since`. From then until `until` the CPU
            // was busy all the time, or idle all the time, as `is_busy` says.
            let rest = until.saturating_sub(cpu.since.max(from));
            let (busy, idle) = if cpu.is_busy != 0 { (rest, 0) } else { (0, rest) };
            data.busy_ns.push(cpu.busy + busy);
            data.idle_ns.push(cpu.idle + idle);
            data.switches += cpu.switches;
            data.wakeups += cpu.wakeups;
            data.lost += cpu.lost;
            data.numa_moves += cpu.numa_moves;
            data.numa_swaps += cpu.numa_swaps;
        }
        let moves = self.map("moves")?;
        for key in moves.keys() {
            let value = moves.lookup(&key, MapFlags::ANY)?.unwrap_or_default();
            if let (Some(pair), Some(count)) = (plain::<u32>(&key), plain::<u64>(&value)) {
                data.moves.push((pair >> 16, pair & 0xffff, count));
            }
        }
        data.moves.sort_unstable();
        data.tasks = self.tasks()?;
        let cgroups = self.map("cgroups")?;
        for key in cgroups.keys() {
            let value = cgroups.lookup(&key, MapFlags::ANY)?.unwrap_or_default();
            let state = plain::<abi::cgroup_state>(&value);
            if let (Some(inode), Some(state)) = (plain::<u64>(&key), state) {
                let time = CoscheduledTime { some_ns: state.sum.some, all_ns: state.sum.all };
                data.cgroups.insert(inode, time);
            }
        }
        Ok(data)
    }

    /// Takes all recorded events out of the ring.
    pub fn recording(&self) -> Result<Recording, LiveError> {
        let recorded = self.window().map(|window| self.recorded(&window))?;
        recorded.map_err(|e| LiveError::Probe(format!("its trace: {e}")))
    }

    fn recorded(&self, window: &Window) -> Result<Recording, libbpf_rs::Error> {
        let (from, until) = window.get()?;
        let mut records = Vec::new();
        ring::read(&self.map("ring")?, |record| records.extend_from_slice(record))?;
        let lost = self.cpus()?.iter().map(|cpu| cpu.untraced).collect();
        Ok(Recording { scheduler: 0, from, until, lost, len: records.len(), records })
    }

    fn cpus(&self) -> Result<Vec<abi::cpu_account>, libbpf_rs::Error> {
        let copies = self.map("cpus")?.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)?;
        Ok(copies.unwrap_or_default().iter().filter_map(|bytes| plain(bytes)).collect())
    }

    fn tasks(&self) -> Result<Vec<TaskSum>, libbpf_rs::Error> {
        let done = self.map("done")?;
        let mut tasks = Vec::new();
        for key in done.keys() {
            let value = done.lookup(&key, MapFlags::ANY)?.unwrap_or_default();
            if let (Some(order), Some(task)) =
                (plain::<u64>(&key), plain::<abi::task_account>(&value))
            {
                tasks.push((order, summed(&task)));
            }
        }
        tasks.sort_by_key(|(order, _)| *order);
        Ok(tasks.into_iter().map(|(_, task)| task).collect())
    }

    fn times(&self, which: u32) -> Result<Times, libbpf_rs::Error> {
        let map = self.map("times")?;
        let mut times = Times { max: 0, counts: vec![0; abi::BUCKETS as usize] };
        let copies = map.lookup_percpu(&which.to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default();
        for bytes in copies {
            let Some(part) = plain::<abi::distribution>(&bytes) else { continue };
            times.max = times.max.max(part.max);
            for (sum, count) in times.counts.iter_mut().zip(part.count) {
                *sum += u64::from(count);
            }
        }
        Ok(times)
    }

    fn map(&self, name: &str) -> Result<libbpf_rs::Map<'_>, libbpf_rs::Error> {
        let found = self.object.maps().find(|m| m.name() == std::ffi::OsStr::new(name));
        found.ok_or_else(|| std::io::Error::other(format!("no map {name}")).into())
    }
}

fn summed(task: &abi::task_account) -> TaskSum {
    TaskSum {
        name: text(&task.comm),
        tid: task.pid,
        tgid: task.tgid,
        nice: task.nice,
        run_ns: task.run,
        wait_ns: task.wait,
        voluntary: task.voluntary,
        involuntary: task.involuntary,
        migrations: task.migrations,
        cgroup: task.cgroup,
    }
}

/// Returns the text in `bytes` up to the first NUL.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

pub(crate) fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bucket of a time, computed as in the C code.
    fn bucket_of(ns: u64) -> usize {
        if ns < SUB as u64 {
            return ns as usize;
        }
        let shift = 63 - ns.leading_zeros() - SUB_BITS;
        (((shift + 1) << SUB_BITS) as usize) + ((ns >> shift) as usize & (SUB - 1))
    }

    #[test]
    fn a_bucket_ends_within_two_percent_of_what_falls_into_it() {
        for ns in (0..64).map(|bit| 1u64 << bit).flat_map(|n| [n - 1, n, n + n / 3]) {
            let bucket = bucket_of(ns);
            assert!(bucket < abi::BUCKETS as usize, "{ns}");
            let last = last_of(bucket);
            assert!(last >= ns && last - ns <= ns / 50, "{ns} in a bucket that ends at {last}");
        }
    }

    #[test]
    fn quantiles_come_from_counts() {
        let mut times = Times { max: 1000, counts: vec![0; abi::BUCKETS as usize] };
        times.counts[bucket_of(10)] = 90;
        times.counts[bucket_of(1000)] = 10;
        assert_eq!((times.count(), times.quantile(5_000), times.quantile(9_000)), (100, 10, 10));
        assert_eq!(times.quantile(9_900), 1000);
        assert_eq!(Times::default().quantile(5_000), 0);
    }
}
