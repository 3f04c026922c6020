// SPDX-License-Identifier: GPL-2.0-only
//! The running kernel: its release, types, and the state of sched_ext in sysfs.
//!
//! Owns: the reading of these facts. Does not: change anything in the kernel.

use std::fs;
use std::path::Path;

use scxlab_lab::scheduler::DEFAULT_CLASS;
use scxlab_loader::btf::{Btf, BtfKind};

use crate::LiveError;
use crate::abi::{IN_INTERRUPT, IN_INTERRUPT_SINCE_7_3, IN_SOFTIRQ};

const SCHED_EXT: &str = "/sys/kernel/sched_ext";
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// A kernel that schedulers can be loaded into, or that can be observed.
pub struct RunningKernel {
    pub release: String,
    pub btf: Btf,
}

impl RunningKernel {
    /// Checks that schedulers can be loaded here; the error says which requirement is missing.
    pub fn open() -> Result<RunningKernel, LiveError> {
        let release = read("/proc/sys/kernel/osrelease");
        if !Path::new(SCHED_EXT).exists() {
            return Err(LiveError::NoSchedExt { release });
        }
        if !is_root() {
            return Err(LiveError::NotRoot);
        }
        let btf = types(&release)?;
        Ok(RunningKernel { release, btf })
    }

    /// Checks that this process may observe a kernel, which need not have sched_ext.
    pub fn to_observe() -> Result<RunningKernel, LiveError> {
        let release = read("/proc/sys/kernel/osrelease");
        if !is_root() {
            return Err(LiveError::NotRootToRecord);
        }
        let btf = types(&release)?;
        Ok(RunningKernel { release, btf })
    }

    /// Returns the bits of the preempt count by which programs recognise an interrupt.
    pub fn interrupt_mask(&self) -> u32 {
        let is_new = self.btf.find("local_interrupt_disable_state", BtfKind::Var).is_some();
        IN_SOFTIRQ | if is_new { IN_INTERRUPT_SINCE_7_3 } else { IN_INTERRUPT }
    }

    /// Refuses if a scheduler is loaded already.
    pub fn check_free(&self) -> Result<(), LiveError> {
        match loaded() {
            None => Ok(()),
            Some(name) => Err(LiveError::Busy { name }),
        }
    }
}

fn is_root() -> bool {
    // SAFETY: geteuid takes no argument and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

fn types(release: &str) -> Result<Btf, LiveError> {
    let no_btf = |why: String| LiveError::NoBtf { release: release.to_owned(), why };
    let blob = fs::read(BTF).map_err(|e| no_btf(format!("{BTF}: {e}")))?;
    Btf::parse(&blob).map_err(|e| no_btf(format!("{BTF}: {e}")))
}

/// Returns sched_ext's `state`: `disabled`, `enabling`, `enabled` or `disabling`.
pub fn state() -> String {
    read(&format!("{SCHED_EXT}/state"))
}

/// Returns the loaded scheduler's name; None if there is none.
pub fn loaded() -> Option<String> {
    if state() == "disabled" {
        return None;
    }
    let name = of_scheduler("ops");
    Some(if name.is_empty() { "(unnamed)".into() } else { name })
}

/// Returns the name of the scheduler that has the tasks; None if the kernel has no sched_ext, so
/// that its default class may be an older one.
pub fn scheduler() -> Option<String> {
    Path::new(SCHED_EXT).exists().then(|| loaded().unwrap_or_else(|| DEFAULT_CLASS.to_owned()))
}

/// Returns the kernel's count of hotplug events. The ops must contain this number, or the kernel
/// refuses them.
pub fn hotplug_seq() -> u64 {
    read(&format!("{SCHED_EXT}/hotplug_seq")).parse().unwrap_or(0)
}

/// Returns the loaded scheduler's event counters, in the kernel's order.
pub fn events() -> Vec<(String, u64)> {
    let text = of_scheduler("events");
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

/// Reads a file of the loaded scheduler's sysfs directory.
fn of_scheduler(file: &str) -> String {
    let path = Path::new(SCHED_EXT).join("root").join(file);
    read(&path.display().to_string())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Returns the time on CLOCK_MONOTONIC in ns.
pub fn now() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable, and CLOCK_MONOTONIC exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
