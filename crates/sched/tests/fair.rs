// SPDX-License-Identifier: GPL-2.0-only
//! `bpf/sched/fair`: shares, load tracking, balancing, limits, and handling of unusual input.

mod fair {
    pub mod balance;
    pub mod cost;
    pub mod groups;
    pub mod input;
    pub mod load;
    pub mod shares;
    pub mod sums;
}

use scxlab_kernel::Kernel;
use scxlab_loader::link::Loaded;
use scxlab_testkit::checks::{Contract, run_checked};
use scxlab_testkit::shipped::run_program;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;

/// Result of the BPF program `fair_report` in its `struct fair_report_args`: the state of a
/// cgroup's queue on a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub cgid: u64,
    pub nr: u32,
    pub h_nr: u32,
    pub weight: u64,
    pub share: u64,
    pub min_vruntime: u64,
    pub runnable_load: u64,
    pub blocked_load: u64,
    pub group_load: i64,
    pub load: u64,
    pub throttled: u32,
    pub nr_groups: u32,
    pub runnable: u64,
    pub usage: u64,
    pub group_runnable: i64,
    pub group_usage: i64,
}

/// Returns the present state of a cgroup's queue on a CPU. `group` is the cgroup's slot, an index
/// into the scheduler's tables. Returns None if the slot is not in use.
pub fn report(k: &mut Kernel, loaded: &Loaded, group: u32, cpu: u32) -> Option<Report> {
    let mut ctx = [0u8; 120];
    ctx[..4].copy_from_slice(&cpu.to_ne_bytes());
    ctx[4..8].copy_from_slice(&group.to_ne_bytes());
    if run_program(k, loaded, "fair_report", &mut ctx) != 0 {
        return None;
    }
    let long = |at: usize| u64::from_ne_bytes(ctx[at..at + 8].try_into().expect("eight bytes"));
    let short = |at: usize| u32::from_ne_bytes(ctx[at..at + 4].try_into().expect("four bytes"));
    Some(Report {
        cgid: long(8),
        nr: short(16),
        h_nr: short(20),
        weight: long(24),
        share: long(32),
        min_vruntime: long(40),
        runnable_load: long(48),
        blocked_load: long(56),
        group_load: long(64) as i64,
        load: long(72),
        throttled: short(80),
        nr_groups: short(84),
        runnable: long(88),
        usage: long(96),
        group_runnable: long(104) as i64,
        group_usage: long(112) as i64,
    })
}

/// Runs for `ns` and checks the laws that hold in every simulation (testkit's `LawChecker`); the
/// scheduler must still be loaded.
pub fn run(k: &mut Kernel, ns: u64) {
    run_checked(k, ns, ns / 50, Contract::default()).unwrap_or_else(|broken| panic!("{broken:?}"));
    stayed(k);
}

/// Continues the run up to time `to`.
pub fn run_on(k: &mut Kernel, to: u64) {
    k.advance(to);
    stayed(k);
}

pub fn stayed(k: &Kernel) {
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
}

/// Pseudo-random numbers: the upper bits of a linear congruential generator.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}
