// SPDX-License-Identifier: GPL-2.0-only
//! Tests that compare the tree's pick with a search through all entities, under arbitrary sequences
//! of operations.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Wake(u8),
    Sleep,
    Run(u32),
    Nice(u8, i8),
    Slice(u8, u32),
    Group(u8, u8),
    Weight(u8, u16),
    Migrate(u8),
    Yield,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => any::<u8>().prop_map(Op::Wake),
        3 => Just(Op::Sleep),
        6 => (1u32..20_000_000).prop_map(Op::Run),
        1 => (any::<u8>(), -20i8..=19).prop_map(|(t, n)| Op::Nice(t, n)),
        1 => (any::<u8>(), 0u32..200_000_000).prop_map(|(t, s)| Op::Slice(t, s)),
        1 => (any::<u8>(), 0u8..4).prop_map(|(t, g)| Op::Group(t, g)),
        1 => (1u8..4, 1u16..=10_000).prop_map(|(g, w)| Op::Weight(g, w)),
        1 => any::<u8>().prop_map(Op::Migrate),
        1 => Just(Op::Yield),
    ]
}

const TASKS: u8 = 12;

/// A machine with two CPUs. Operations act on CPU 0; tasks go to CPU 1 only to come back at once.
struct Machine {
    fair: Fair,
    now: Nanos,
    curr: Option<TaskId>,
    awake: Vec<bool>,
}

impl Machine {
    fn new() -> Self {
        let mut fair = Fair::new(&topo(1, 1, 2, 1), Params::default());
        for group in 1..4 {
            fair.add_group(CgroupId(group), CgroupId(group / 2));
        }
        for task in 0..TASKS {
            fair.task_new(TaskId(task.into()), in_group(u32::from(task) % 4));
        }
        Machine { fair, now: 0, curr: None, awake: vec![false; TASKS.into()] }
    }

    fn schedule(&mut self) {
        let cpu = CpuId(0);
        let next = self.fair.pick_next(cpu, self.now);
        if next != self.curr {
            self.fair.put_prev(cpu, self.now);
            if let Some(task) = next {
                self.fair.set_next(cpu, task, self.now);
            }
            self.curr = next;
        }
    }

    fn apply(&mut self, op: &Op) {
        let cpu = CpuId(0);
        let id = |t: &u8| TaskId(u32::from(t % TASKS));
        match op {
            Op::Wake(t) => {
                let task = id(t);
                if !std::mem::replace(&mut self.awake[task.idx()], true) {
                    let new = self.fair.dump_task(task).cpu.is_none();
                    let flags = if new { EnqueueFlags::INITIAL } else { EnqueueFlags::WAKEUP };
                    self.fair.enqueue(cpu, task, self.now, flags);
                    self.fair.wakeup_preempt(cpu, task, WakeFlags::TTWU);
                }
            }
            Op::Sleep => {
                if let Some(task) = self.curr {
                    self.awake[task.idx()] = false;
                    self.fair.dequeue(cpu, task, self.now, DequeueFlags::SLEEP);
                }
            }
            Op::Run(time) => {
                self.now += Nanos::from(*time);
                self.fair.tick(cpu, self.now);
            }
            Op::Nice(t, n) => {
                self.fair.reweight(id(t), *n, FairPolicy::Normal, self.now);
            }
            Op::Slice(t, s) => self.fair.set_slice_request(id(t), (*s).into(), self.now),
            Op::Group(t, g) => self.fair.set_group(id(t), CgroupId((*g).into()), self.now),
            Op::Weight(g, w) => {
                self.fair.set_group_weight(CgroupId((*g).into()), (*w).into(), self.now);
            }
            Op::Migrate(t) => self.there_and_back(id(t)),
            Op::Yield => self.fair.yield_task(cpu, self.now),
        }
        self.schedule();
    }

    fn there_and_back(&mut self, task: TaskId) {
        if self.curr == Some(task) || !self.awake[task.idx()] {
            return;
        }
        for (from, to) in [(0, 1), (1, 0)] {
            self.fair.dequeue(CpuId(from), task, self.now, DequeueFlags::MIGRATE);
            let flags = EnqueueFlags { migrated: true, ..EnqueueFlags::RESTORE };
            self.fair.enqueue(CpuId(to), task, self.now, flags);
            self.fair.check(CpuId(to)).expect("books balance");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn books_and_pick_hold_under_any_operations(ops in prop::collection::vec(op(), 1..200)) {
        let mut machine = Machine::new();
        for op in &ops {
            machine.apply(op);
            if let Err(violation) = machine.fair.check(CpuId(0)) {
                prop_assert!(false, "after {op:?}: {violation}");
            }
            let awake = machine.awake.iter().filter(|&&a| a).count() as u32;
            prop_assert_eq!(machine.fair.nr_runnable(CpuId(0)), awake);
            // Work is conserved: a task runs whenever any task is awake.
            prop_assert_eq!(machine.curr.is_some(), awake != 0);
        }
    }
}
