// SPDX-License-Identifier: GPL-2.0-only
//! A kernel for unit tests: a machine from a spec, tasks that run for ever, and a scheduler whose
//! operations all call one Rust function.

use crate::ext::OpsData;
use crate::ext::op::Op;
use crate::ext::program::{ExtProgram, NativeOps};
use crate::kernel::boot::Setup;
use crate::kernel::{Kernel, Limits};
use crate::task::behavior::{Behavior, Policy, Sys, TaskSpec, TaskStep};
use scxlab_machine::Machine;
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CgroupId, CpuId, TaskId};
use std::rc::Rc;
use std::sync::Arc;

/// Tasks that never sleep, one per entry. An entry is the CPU to which the task is pinned, or None
/// for a task that is not pinned.
struct Hogs(Vec<Option<u32>>);

impl Behavior for Hogs {
    fn start(&mut self, sys: &mut dyn Sys) {
        let nr = sys.nr_cpus() as usize;
        for (n, pin) in self.0.iter().enumerate() {
            let spec = TaskSpec {
                name: format!("hog{n}"),
                policy: Policy::Normal,
                nice: 0,
                slice_request: 0,
                affinity: pin.map(|cpu| CpuMask::of(nr, [CpuId(cpu)])),
                cgroup: CgroupId(0),
                thread_group_of: None,
                kthread: false,
                footprint_bytes: 0,
            };
            sys.fork(None, spec).unwrap();
        }
    }
    fn step(&mut self, _: &mut dyn Sys, _: TaskId) -> TaskStep {
        TaskStep::Compute { work: 1_000_000_000 }
    }
    fn on_timer(&mut self, _: &mut dyn Sys, _: u64) {}
    fn unit(&self) -> &str {
        "nothing"
    }
    fn waits_for(&self, _: TaskId) -> Option<String> {
        None
    }
}

/// Returns a kernel on machine `spec` with one task that never sleeps per entry of `hogs`. The
/// kernel has not run yet.
pub(crate) fn kernel(spec: &str, hogs: &[Option<u32>]) -> Kernel {
    let setup = Setup {
        machine: Arc::new(Machine::from_spec(spec).unwrap()),
        seed: 1,
        limits: Limits::default(),
        tracer: Default::default(),
        mem_size: 1 << 32,
    };
    Kernel::boot(setup, Box::new(Hogs(hogs.to_vec()))).unwrap()
}

type Call = fn(&mut Kernel, Op, &[u64]) -> u64;

struct Closures(&'static [Op], Call);

impl NativeOps for Closures {
    fn has(&self, op: Op) -> bool {
        self.0.contains(&op)
    }
    fn call(&self, k: &mut Kernel, op: Op, args: &[u64]) -> u64 {
        (self.1)(k, op, args)
    }
}

/// Attaches a scheduler that implements the operations `has`. All of them call the function `call`.
pub(crate) fn load(k: &mut Kernel, flags: u64, has: &'static [Op], call: Call) {
    let data = OpsData {
        name: "fixture".to_owned(),
        flags,
        timeout_ms: 0,
        dispatch_max_batch: 0,
        exit_dump_len: 0,
        hotplug_seq: 0,
    };
    k.attach(ExtProgram::Native(Rc::new(Closures(has, call))), data).unwrap();
}

/// Returns the message of the exit that was claimed for the loaded scheduler; empty without one.
pub(crate) fn error(k: &Kernel) -> &str {
    k.ext.root.as_ref().and_then(|s| s.exit.as_ref()).map_or("", |exit| &exit.message)
}
