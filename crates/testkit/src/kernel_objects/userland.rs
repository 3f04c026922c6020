// SPDX-License-Identifier: GPL-2.0-only
//! The user-space half of scx_userland, as a task of the simulation: it takes tasks from one queue
//! map, orders them by virtual run time, and puts them into another.
//!
//! Differs from scx_userland.c: virtual time is in integers.

use super::bench::{Child, TestMachine, set};
use super::script::{Ctx, Script};
use scxlab_bpf::map::MapId;
use scxlab_kernel::behavior::{Policy, TaskSpec, TaskStep};
use scxlab_loader::link::Loaded;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Maximum number of tasks dispatched in one pass, before the scheduler yields.
const BATCH: usize = 8;
/// CPU time that the user-space scheduler itself takes for one pass.
const PASS_NS: u64 = 5_000;

/// Loads scx_userland with a process as its user-space scheduler, and calls `test`, which attaches
/// it.
pub fn run(b: &mut TestMachine, test: impl FnOnce(&mut TestMachine, &Loaded, Child)) {
    let shared: Rc<RefCell<Option<UserScheduler>>> = Rc::default();
    let process = TaskSpec { policy: Policy::Ext, ..TaskSpec::normal("scx_userland") };
    let child = b.spawn(process, main_loop(shared.clone()));
    let mut open = b.open("scx_userland");
    set(&mut open, "num_possible_cpus", u64::from(b.nr_cpus()));
    set(&mut open, "usersched_pid", u64::from(child.pid));
    let loaded = b.load(open);
    *shared.borrow_mut() = Some(UserScheduler::new(&loaded));
    test(b, &loaded, child);
}

/// Main loop of the process: one pass and a yield in turn. Until `shared` holds a scheduler the
/// process sleeps, which stands for its start-up.
fn main_loop(shared: Rc<RefCell<Option<UserScheduler>>>) -> Script {
    let mut worked = false;
    Box::new(move |ctx| {
        worked = !worked;
        if !worked {
            return TaskStep::Yield;
        }
        match &mut *shared.borrow_mut() {
            Some(scheduler) => scheduler.pass(ctx),
            None => return ctx.sleep(1_000_000),
        }
        TaskStep::Compute { work: PASS_NS }
    })
}

/// State of the user-space scheduler.
struct UserScheduler {
    enqueued: MapId,
    dispatched: MapId,
    /// Guest addresses of the two counters that this process shares with the BPF half.
    nr_queued: u64,
    nr_scheduled: u64,
    /// Indexed by pid: run time at the last enqueue, and virtual run time.
    seen: BTreeMap<u32, (u64, u64)>,
    /// Waiting tasks (pids), ordered by virtual run time, then arrival.
    waiting: BTreeMap<(u64, u64), u32>,
    arrivals: u64,
    min_vruntime: u64,
}

impl UserScheduler {
    fn new(loaded: &Loaded) -> UserScheduler {
        let map = |name| loaded.map(name).expect("a queue");
        let addr = |name| loaded.global(name).expect("a counter").addr;
        UserScheduler {
            enqueued: map("enqueued"),
            dispatched: map("dispatched"),
            nr_queued: addr("nr_queued"),
            nr_scheduled: addr("nr_scheduled"),
            seen: BTreeMap::new(),
            waiting: BTreeMap::new(),
            arrivals: 0,
            min_vruntime: 0,
        }
    }

    fn pass(&mut self, ctx: &mut Ctx) {
        self.drain(ctx);
        self.dispatch_batch(ctx);
    }

    /// Takes all records from the map `enqueued`, as `drain_enqueued_map()` does.
    fn drain(&mut self, ctx: &mut Ctx) {
        let vm = ctx.sys.bpf().expect("the kernel has maps");
        while let Ok(record) = vm.map_pop(self.enqueued) {
            self.enqueue(&record);
        }
        vm.poke(self.nr_queued, &0u64.to_le_bytes()).expect("a global");
    }

    /// Puts a task into virtual-time order, as `vruntime_enqueue()` does. `record` is a
    /// `struct scx_userland_enqueued_task`: pid, run time, weight.
    fn enqueue(&mut self, record: &[u8]) {
        let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("8 bytes"));
        let (pid, run, weight) = (word(0) as u32, word(8), word(16).max(1));
        let (last, vruntime) = self.seen.get(&pid).copied().unwrap_or((0, 0));
        let vruntime = (vruntime + run.saturating_sub(last) * 100 / weight).max(self.min_vruntime);
        self.seen.insert(pid, (run, vruntime));
        self.arrivals += 1;
        self.waiting.insert((vruntime, self.arrivals), pid);
    }

    /// Dispatches at most `BATCH` tasks, as `dispatch_batch()` does.
    fn dispatch_batch(&mut self, ctx: &mut Ctx) {
        let vm = ctx.sys.bpf().expect("the kernel has maps");
        for _ in 0..BATCH {
            let Some((key, pid)) = self.waiting.pop_first() else {
                break;
            };
            self.min_vruntime = key.0;
            if vm.map_update(self.dispatched, &[], &pid.to_le_bytes(), 0).is_err() {
                self.waiting.insert(key, pid);
                break;
            }
        }
        let waiting = self.waiting.len() as u64;
        vm.poke(self.nr_scheduled, &waiting.to_le_bytes()).expect("a global");
    }
}
