// SPDX-License-Identifier: GPL-2.0-only
//! External changes while every task wants to run: affinity, nice value and CPU hotplug.
//!
//! Owns: the sequence of changes, and the check that no task is lost. Does not: load a scheduler.

use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::Sys;
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::CpuId;

use crate::checks;

const MS: u64 = 1_000_000;
const ROUNDS: u32 = 24;

/// Starts a kernel of four CPUs whose workload is `hogs`, applies the changes, and lets the kernel
/// run for 4 s afterwards. Asserts that the scheduler is still loaded and that every task has run.
pub fn churn(k: &mut Kernel, about: &str) {
    assert_eq!(k.cpus.len(), 4, "the changes are made for four CPUs");
    k.start();
    let mut at = 0;
    for round in 0..ROUNDS {
        at += 25 * MS;
        k.advance(at);
        let hogs = k.tasks.iter().filter(|t| t.name.starts_with("hog"));
        let hogs: Vec<_> = hogs.map(|t| t.id).collect();
        let task = hogs[round as usize % hogs.len()];
        let cpus = CpuMask::of(4, [CpuId(round % 3), CpuId(3)]);
        k.user(|k| k.set_affinity(task, &cpus)).expect("allowed");
        k.user(|k| k.set_nice(task, (round as i8 % 40) - 20)).expect("allowed");
        let (cpu, online) = (CpuId(1 + round % 2), round % 4 >= 2);
        k.user(|k| k.set_cpu_online(cpu, online)).unwrap_or_else(|e| panic!("{round}: {e}"));
        stands(k, about);
    }
    k.advance(at + 4_000 * MS);
    stands(k, about);
    assert!(k.tasks.iter().all(|t| !k.is_workload(t) || t.account.run_ns > 0), "{about}");
}

fn stands(k: &Kernel, about: &str) {
    checks::after(k);
    assert!(k.ext.exits.is_empty(), "{about}: {:?}", k.ext.exits);
}
