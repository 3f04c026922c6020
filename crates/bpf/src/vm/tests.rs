// SPDX-License-Identifier: GPL-2.0-only
mod alu;
mod flow;
mod memory;

use super::bare::BareHost;
use super::*;
use crate::fault::{FaultKind, MemWhy};
use crate::map::{MapDef, map_flag, map_type};
use crate::mem::{ARENA_WINDOW, PAGE, Perm};

/// A host with one program; small limits, so that endless loops end soon.
pub(crate) fn host(text: &str) -> (BareHost, InstanceId) {
    let limits = Limits { insns_per_call: 10_000, may_goto: 100, ..Limits::default() };
    let config = Config { nr_cpus: 4, limits, mem_size: 4 * ARENA_WINDOW, ..Config::default() };
    let mut h = BareHost::new(config).expect("memory");
    let instance = h.vm.add_instance("test");
    h.install_text(instance, text, Default::default()).expect("program");
    (h, instance)
}

/// Result of a program that is called with these registers.
pub(crate) fn exec(text: &str, args: &[u64]) -> Result<u64, Fault> {
    let (mut h, instance) = host(text);
    let mut regs = [0; 5];
    regs[..args.len()].copy_from_slice(args);
    let entry = h.vm.instance(instance).expect("instance").image.funcs[0].name.clone();
    h.run(instance, &entry, regs)
}

pub(crate) fn fault_kind(text: &str, args: &[u64]) -> FaultKind {
    exec(text, args).expect_err(text).kind().clone()
}
