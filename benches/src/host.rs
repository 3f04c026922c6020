// SPDX-License-Identifier: GPL-2.0-only
//! What the benchmarks read of the machine they run on.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time that this thread has spent on a CPU: what others do to the machine meanwhile does not count.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Time that all threads of this process have spent on CPUs.
pub fn process_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Most memory that this process has had resident, in bytes; 0 where the kernel does not say.
pub fn peak_rss() -> u64 {
    status_kib("VmHWM:") * 1024
}

fn status_kib(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
