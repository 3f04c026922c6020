// SPDX-License-Identifier: GPL-2.0-only
//! Schedulers in Rust: a correct one, and canaries. Each canary breaks one of the conservation laws
//! that `checks.rs` defines, to show that the law's checker reports the violation.
//!
//! Owns: misbehaviour. A canary writes to the kernel's state, which a loaded object cannot do.

use scxlab_kernel::Kernel;
use scxlab_kernel::ext::OpsData;
use scxlab_kernel::ext::dsq::InsertAt;
use scxlab_kernel::ext::op::Op;
use scxlab_kernel::ext::program::{ExtProgram, NativeOps};
use scxlab_kernel::metrics::IdleWhileWaiting;
use scxlab_machine::id::CpuId;
use scxlab_workload::exec::guests;
use std::cell::Cell;
use std::rc::Rc;

/// The fault that a canary commits after it has run correctly for `ENQUEUES_BEFORE_FAULT` enqueues.
/// `IgnoreQueue` and `ForgetWaits` last; after any other fault, the canary counts enqueues from 0
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    None,
    /// Takes a waiting task off its queue and forgets it.
    LoseTask,
    /// Queues a waiting task a second time.
    QueueTwice,
    /// Adds 1 ns to the busy time of CPU 0, although this time did not pass.
    StretchTime,
    /// Charges a task for time that no CPU spent.
    OverchargeTask,
    /// Counts a page of node 0 as used that no region has.
    LosePage,
    /// Counts a TB as delivered by node 0 that nobody accessed.
    StretchBandwidth,
    /// Lets the task of a guest's vCPU have waited for an hour.
    StretchWait,
    /// Does not dispatch from its queue, so that CPUs stay idle although tasks wait.
    IgnoreQueue,
    /// The same, and empties the account of CPUs that are idle beside waiting tasks.
    ForgetWaits,
}

/// Id of the scheduler's only DSQ.
const QUEUE: u64 = 0;
const SLICE: u64 = 5_000_000;
/// Number of enqueues before the fault.
const ENQUEUES_BEFORE_FAULT: u32 = 50;

/// A scheduler with one global FIFO and one fault.
pub struct Canary {
    fault: InjectedFault,
    enqueues: Cell<u32>,
}

impl Canary {
    /// Returns a canary with this fault, ready to be attached.
    pub fn program(fault: InjectedFault) -> ExtProgram {
        ExtProgram::Native(Rc::new(Canary { fault, enqueues: Cell::new(0) }))
    }

    fn is_time(&self) -> bool {
        self.enqueues.get() > ENQUEUES_BEFORE_FAULT
    }

    fn commit(&self, k: &mut Kernel) {
        let Some(dsq) = k.ext.dsqs.user(QUEUE) else {
            return;
        };
        let waiting = k.ext.dsqs.get(dsq).first();
        match (self.fault, waiting) {
            (InjectedFault::LoseTask, Some(task)) => {
                let (key, priq) = (k.tasks[task].ext.dsq_key, k.tasks[task].ext.on_priq);
                k.ext.dsqs.get_mut(dsq).remove(key, priq);
                k.tasks[task].ext.dsq = None;
            }
            (InjectedFault::QueueTwice, Some(task)) => {
                k.ext.dsqs.get_mut(dsq).insert(task, InsertAt::Tail);
            }
            (InjectedFault::StretchTime, _) => k.cpus[CpuId(0)].time.busy += 1,
            (InjectedFault::OverchargeTask, Some(task)) => {
                k.tasks[task].account.run_ns += 3_600_000_000_000;
            }
            (InjectedFault::LosePage, _) => {
                let Some(memory) = &mut k.memory else { return };
                memory.nodes.used[0] += 1;
            }
            (InjectedFault::StretchBandwidth, _) => {
                let Some(memory) = &mut k.memory else { return };
                memory.stats.served[0] += 1 << 80;
            }
            (InjectedFault::StretchWait, _) => {
                let vcpu = guests(k).first().and_then(|guest| guest.vcpu_tasks().next());
                let Some(vcpu) = vcpu else { return };
                k.tasks[vcpu].account.wait_ns += 3_600_000_000_000;
            }
            _ => return,
        }
        self.enqueues.set(0);
    }
}

impl NativeOps for Canary {
    fn has(&self, op: Op) -> bool {
        matches!(op, Op::Init | Op::Enqueue | Op::Dispatch)
    }

    fn call(&self, k: &mut Kernel, op: Op, args: &[u64]) -> u64 {
        match op {
            Op::Init => k.kf_create_dsq(QUEUE, -1),
            Op::Enqueue => {
                self.enqueues.set(self.enqueues.get() + 1);
                k.kf_dsq_insert(args[0], QUEUE, SLICE, None, args[1] & 0xffff_ffff).unwrap_or(0)
            }
            Op::Dispatch if self.fault == InjectedFault::IgnoreQueue && self.is_time() => 0,
            Op::Dispatch if self.fault == InjectedFault::ForgetWaits && self.is_time() => {
                k.metrics.idle_while_waiting = IdleWhileWaiting::default();
                0
            }
            Op::Dispatch => {
                if self.is_time() {
                    self.commit(k);
                }
                k.kf_move_to_local(QUEUE, 0)
            }
            _ => 0,
        }
    }
}

/// Returns ops settings with this name. All other settings are 0.
pub fn ops_data(name: &str) -> OpsData {
    OpsData {
        name: name.into(),
        flags: 0,
        timeout_ms: 0,
        dispatch_max_batch: 0,
        exit_dump_len: 0,
        hotplug_seq: 0,
    }
}
