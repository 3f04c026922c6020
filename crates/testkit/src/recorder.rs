// SPDX-License-Identifier: GPL-2.0-only
//! A scheduler in Rust with one global FIFO that records calls of its operations, for tests of the
//! order of calls.
//!
//! Owns: the log. Does not: take any decision beyond the FIFO.

use scxlab_kernel::Kernel;
use scxlab_kernel::ext::op::Op;
use scxlab_kernel::ext::program::{ExtProgram, NativeOps};
use std::cell::RefCell;
use std::rc::Rc;

/// Id of the only DSQ.
const QUEUE: u64 = 0;

/// Calls of operations, in order. Each is written as `op(task, rest...)`; flags are in hexadecimal.
pub type Log = Rc<RefCell<Vec<String>>>;

struct Recorder {
    log: Log,
    slice: u64,
    leaves_out: Vec<Op>,
}

/// Returns the scheduler and its log. `slice` is in ns; the operations in `leaves_out` are not
/// implemented.
pub fn recorder(slice: u64, leaves_out: &[Op]) -> (ExtProgram, Log) {
    let log = Log::default();
    let ops = Recorder { log: log.clone(), slice, leaves_out: leaves_out.to_vec() };
    (ExtProgram::Native(Rc::new(ops)), log)
}

/// Tells whether the operation's first argument is a task.
fn is_about_task(op: Op) -> bool {
    use Op::*;
    matches!(
        op,
        SelectCpu
            | Enqueue
            | Dequeue
            | Tick
            | Runnable
            | Running
            | Stopping
            | Quiescent
            | Yield
            | SetWeight
            | SetCpumask
            | InitTask
            | ExitTask
            | Enable
            | Disable
            | CgroupPrepMove
            | CgroupMove
    )
}

impl NativeOps for Recorder {
    fn has(&self, op: Op) -> bool {
        use Op::*;
        let never = matches!(
            op,
            UpdateIdle
                | CpuAcquire
                | CpuRelease
                | SubAttach
                | SubDetach
                | SubCapsUpdated
                | SubEcapsUpdated
                | InitCids
                | CoreSchedBefore
                | Dump
                | DumpCpu
                | DumpTask
                | CpuOnline
                | CpuOffline
        );
        !never && !self.leaves_out.contains(&op)
    }

    fn call(&self, k: &mut Kernel, op: Op, args: &[u64]) -> u64 {
        if is_about_task(op)
            && let Some(task) = k.tasks.at(args[0])
        {
            let flags = match op {
                Op::Enqueue | Op::Dequeue | Op::Runnable | Op::Quiescent => {
                    format!(", {:#x}", args[1])
                }
                Op::Stopping | Op::SetWeight => format!(", {}", args[1]),
                _ => String::new(),
            };
            self.log.borrow_mut().push(format!("{}({}{flags})", op.name(), k.tasks[task].name));
        }
        match op {
            Op::Init => k.kf_create_dsq(QUEUE, -1),
            Op::SelectCpu => args[1],
            Op::Enqueue => k.kf_dsq_insert(args[0], QUEUE, self.slice, None, 0).unwrap_or(0),
            Op::Dispatch => k.kf_move_to_local(QUEUE, 0),
            _ => 0,
        }
    }
}

/// Returns the log lines about one task, one per operation.
pub fn lines_of_task(log: &Log, name: &str) -> Vec<String> {
    let about = |line: &&String| line.contains(&format!("({name}"));
    log.borrow().iter().filter(about).cloned().collect()
}
