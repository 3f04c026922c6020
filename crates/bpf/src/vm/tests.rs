// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the virtual machine. Every test runs on both engines, which must agree. The JIT
//! compiles each function on its first entry.

use super::bare::BareHost;
use super::*;
use crate::fault::{BacktraceFrame, FaultKind, MemFaultReason};
use crate::map::{MapDef, map_flag, map_type};
use crate::mem::{ARENA_WINDOW, PAGE, Perm};

mod agree;

/// Instantiates the tests for one engine.
macro_rules! on_engine {
    ($name:ident, $engine:expr) => {
        #[path = "tests"]
        mod $name {
            #[allow(clippy::duplicate_mod, reason = "the same tests on two engines")]
            mod alu;
            #[allow(clippy::duplicate_mod, reason = "the same tests on two engines")]
            mod flow;
            #[allow(clippy::duplicate_mod, reason = "the same tests on two engines")]
            mod memory;
            #[allow(clippy::duplicate_mod, reason = "the same tests on two engines")]
            mod report;

            use super::*;

            fn host(text: &str) -> (BareHost, InstanceId) {
                super::host_on($engine, text)
            }

            /// Runs a program with these arguments in r1 and up, and returns its result.
            fn exec(text: &str, args: &[u64]) -> Result<u64, Fault> {
                let (mut h, instance) = host(text);
                let mut regs = [0; 5];
                regs[..args.len()].copy_from_slice(args);
                let entry = h.vm.instance(instance).expect("instance").image.funcs[0].name.clone();
                h.run(instance, &entry, regs)
            }

            fn fault_kind(text: &str, args: &[u64]) -> FaultKind {
                exec(text, args).expect_err(text).kind().clone()
            }
        }
    };
}

on_engine!(interp, Engine::Interp);
on_engine!(jit, Engine::Jit);

/// A host with one program and small limits, so that endless loops end soon.
pub(crate) fn host(text: &str) -> (BareHost, InstanceId) {
    host_on(Engine::Jit, text)
}

pub(crate) fn host_on(engine: Engine, text: &str) -> (BareHost, InstanceId) {
    let mut h = BareHost::new(small(engine)).expect("memory");
    let instance = h.vm.add_instance("test");
    h.install_text(instance, text, Default::default()).expect("program");
    (h, instance)
}

fn small(engine: Engine) -> Config {
    let limits =
        Limits { insns_per_call: 10_000, may_goto: 100, compile_after: 0, ..Limits::default() };
    // These are the work costs of the simulated machines, so a helper counts as many instructions
    // here as on a simulated machine.
    let work = WorkCosts { call_bytes: 256, arena_page_bytes: 64 };
    Config { nr_cpus: 4, limits, mem_size: 4 * ARENA_WINDOW, work, engine, ..Config::default() }
}
