// SPDX-License-Identifier: GPL-2.0-only
//! The loaded recorder: `bpf/live/record.bpf.c`.
//!
//! Owns: loading, the ring, the per-CPU counters, the run time of the programs. Does not: know the
//! meaning of a record (see `convert.rs`).

use std::ffi::OsStr;
use std::io::Read;
use std::time::Duration;

use libbpf_rs::{
    Iter, Link, MapCore, MapFlags, Object, ObjectBuilder, RingBuffer, RingBufferBuilder,
};

use super::failed;
use crate::LiveError;
use crate::abi::{plain, record as abi};
use crate::log::{listen, missing_symbol};
use crate::probe::tail;
use crate::scheduler::info;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/record.bpf.o"));

/// Name of the program that lists the tasks when a recording begins.
const ITERATOR: &str = "list_tasks";
/// Program at the begin of system calls, and program at the end of those that read or write.
const AT_BEGIN: &str = "on_enter";
const AT_END: &str = "on_exit";

/// System calls that read or write.
const TRANSFERS: &[&str] = &[
    "read",
    "readv",
    "recvfrom",
    "recvmsg",
    "recvmmsg",
    "write",
    "writev",
    "sendto",
    "sendmsg",
    "sendmmsg",
    "sendfile64",
    "splice",
];
/// Other system calls that are recorded.
const OTHERS: &[&str] = &[
    "futex",
    "ppoll",
    "pselect6",
    "epoll_pwait",
    "epoll_pwait2",
    "nanosleep",
    "clock_nanosleep",
    "sched_yield",
    "wait4",
    "waitid",
];
/// Calls that only old architectures have.
#[cfg(target_arch = "x86_64")]
const OLD: &[&str] = &["poll", "select", "epoll_wait"];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[&str] = &[];
/// Calls that a kernel which can be recorded may lack.
const NEW: &[&str] = &["futex_wait", "futex_wake"];

#[cfg(target_arch = "x86_64")]
const PREFIX: &str = "__x64_sys_";
#[cfg(not(target_arch = "x86_64"))]
const PREFIX: &str = "__arm64_sys_";

/// Maximum number of records that are taken from the ring before the caller looks at the time
/// again.
const BATCH: usize = 1 << 20;

/// Constants of a recording.
pub struct Settings {
    pub scope: u32,
    pub process: u32,
    pub cgroup: u64,
    pub nr_cpus: usize,
    pub interrupt_mask: u32,
    /// Size of the ring in bytes, a power of two.
    pub ring: u32,
}

/// The attached recorder. It is detached when it is dropped, or when the process ends.
pub struct Recorder {
    object: Object,
    iterator: Option<Link>,
    _links: Vec<Link>,
}

impl Recorder {
    pub fn attach(settings: &Settings) -> Result<Recorder, LiveError> {
        let (result, log) = listen(|| attach_quietly(settings));
        result.map_err(|e| match missing_symbol(&log) {
            Some(symbol) => LiveError::NoSymbol { symbol },
            None => LiveError::Recorder(format!("{e}\n{}", tail(&log))),
        })
    }

    /// Passes a record of each task that exists to `take`, with its attributes if it is of the
    /// workload.
    pub fn list_tasks(&self, mut take: impl FnMut(&[u8])) -> Result<(), LiveError> {
        let missing = || LiveError::Recorder("no list of tasks".into());
        let link = self.iterator.as_ref().ok_or_else(missing)?;
        let mut bytes = Vec::new();
        let read = Iter::new(link).and_then(|mut all| Ok(all.read_to_end(&mut bytes)?));
        read.map_err(failed)?;
        let mut rest = bytes.as_slice();
        while let Some(head) = plain::<abi::record_head>(rest) {
            let len = match u32::from(head.kind) {
                abi::RECORD_TASK => size_of::<abi::record_task>(),
                _ => size_of::<abi::record_attributes>(),
            };
            let (record, others) = rest.split_at(len.min(rest.len()));
            take(record);
            rest = others;
        }
        Ok(())
    }

    /// Maps the ring. The caller maps it once, because mapping takes long.
    pub fn ring<'a>(&self, mut take: impl FnMut(&[u8]) + 'a) -> Result<Ring<'a>, LiveError> {
        let ring = self.map("ring")?;
        let mut builder = RingBufferBuilder::new();
        let add = builder.add(&ring, move |record| {
            take(record);
            0
        });
        add.map_err(failed)?;
        builder.build().map(Ring).map_err(failed)
    }

    /// Returns the counters of each CPU.
    pub fn counts(&self) -> Result<Vec<abi::record_counts>, LiveError> {
        let copies = self.map("counts")?.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
        let copies = copies.map_err(failed)?.unwrap_or_default();
        Ok(copies.iter().filter_map(|bytes| plain(bytes)).collect())
    }

    /// Returns the run time of all programs since statistics were enabled.
    pub fn run_time(&self) -> Duration {
        let times = self.object.progs().filter_map(|p| info(&p)).map(|info| info.run_time_ns);
        Duration::from_nanos(times.sum())
    }

    /// Returns how often the kernel left out a program, because another one, or the same one, ran
    /// on the CPU.
    pub fn missed(&self) -> u64 {
        let programs = self.object.progs();
        programs.filter_map(|p| info(&p)).map(|info| info.recursion_misses).sum()
    }

    fn map(&self, name: &str) -> Result<libbpf_rs::Map<'_>, LiveError> {
        let found = self.object.maps().find(|m| m.name() == OsStr::new(name));
        found.ok_or_else(|| LiveError::Recorder(format!("no map {name}")))
    }
}

/// The mapped ring.
pub struct Ring<'a>(RingBuffer<'a>);

impl Ring<'_> {
    /// Passes the records in the ring to the function with which the ring was mapped.
    pub fn drain(&self) -> Result<(), LiveError> {
        match self.0.consume_raw_n(BATCH) {
            taken if taken < 0 => Err(LiveError::Recorder(format!("its ring: error {}", -taken))),
            _ => Ok(()),
        }
    }
}

fn attach_quietly(settings: &Settings) -> Result<Recorder, libbpf_rs::Error> {
    let mut open = ObjectBuilder::default().name("recorder")?.open_memory(OBJECT)?;
    for mut map in open.maps_mut() {
        if map.name() == "ring" {
            map.set_max_entries(settings.ring)?;
        }
        let constants = map.name().to_string_lossy().ends_with(".rodata");
        if let Some(bytes) = map.initial_value_mut().filter(|_| constants) {
            let config = config(settings)?;
            let config = bytemuck::bytes_of(&config);
            bytes[..config.len()].copy_from_slice(config);
        }
    }
    let object = open.load()?;
    let (mut links, mut iterator) = (Vec::new(), None);
    for program in object.progs_mut() {
        match program.name().to_str() {
            Some(ITERATOR) => iterator = Some(program.attach()?),
            Some(AT_BEGIN) => {
                let calls = [TRANSFERS, OTHERS, OLD].concat();
                links.push(program.attach_kprobe_multi(false, functions(&calls))?);
                links.extend(program.attach_kprobe_multi(false, functions(NEW)));
            }
            Some(AT_END) => links.push(program.attach_kprobe_multi(true, functions(TRANSFERS))?),
            _ => links.push(program.attach()?),
        }
    }
    Ok(Recorder { object, iterator, _links: links })
}

/// Returns the names of the kernel's functions of system calls.
fn functions(calls: &[&str]) -> Vec<String> {
    calls.iter().map(|call| format!("{PREFIX}{call}")).collect()
}

fn config(settings: &Settings) -> Result<abi::record_config, std::io::Error> {
    let mut salt = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut salt)?;
    let monotonic = clock(libc::CLOCK_MONOTONIC);
    let words = settings.nr_cpus.div_ceil(64).min(abi::CPU_WORDS as usize);
    // SAFETY: sysconf takes a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Ok(abi::record_config {
        salt: u64::from_ne_bytes(salt),
        realtime_offset: clock(libc::CLOCK_REALTIME).saturating_sub(monotonic),
        boottime_offset: clock(libc::CLOCK_BOOTTIME).saturating_sub(monotonic),
        cgroup: settings.cgroup,
        scope: settings.scope,
        recorder: std::process::id(),
        process: settings.process,
        cpu_words: words as u32,
        page_shift: page.cast_unsigned().trailing_zeros(),
        interrupt_mask: settings.interrupt_mask,
    })
}

/// Returns the time of a clock in ns.
fn clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable, and Linux has these clocks.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
