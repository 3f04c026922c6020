// SPDX-License-Identifier: GPL-2.0-only
//! The next stop of a memory step: the time of the next accesses that trap into the kernel, or the
//! step's end.
//!
//! Owns: plans. Does not: handle stops (see `step.rs`).

use super::Memory;
use super::access::{Access, Order};
use super::region::Region;
use super::step::{SEGMENT_MAX, STOP_PAGES, STOP_UNITS};
use crate::kernel::Kernel;
use scxlab_machine::id::TaskId;

/// The next stop of a step.
pub(super) struct Plan {
    /// Work to it, 2^-20 ns.
    pub segment: u64,
    pub due: u64,
    /// `MemoryStep::cursor` at the stop.
    pub cursor: u128,
}

impl Memory {
    /// Returns the first and the last unit of an access's window.
    pub(super) fn window(&self, access: &Access) -> (usize, usize) {
        let unit = self.regions[access.region.0 as usize].as_ref().expect("in use").unit_pages();
        let last = (access.first_page + access.pages - 1) / unit;
        ((access.first_page / unit) as usize, last as usize)
    }

    /// Plans the next stop. `draw` gives random numbers.
    fn plan(&self, task: TaskId, draw: impl FnOnce() -> u64) -> Plan {
        let step = self.steps[task.idx()].as_ref().expect("a task in a memory step");
        let access = &self.accesses[step.access.0 as usize];
        let region = self.regions[access.region.0 as usize].as_deref().expect("in use");
        let period = access.period_work();
        let ends =
            |cursor| Plan { segment: step.rest.min(SEGMENT_MAX.into()) as u64, due: 0, cursor };
        let (first, last) = self.window(access);
        match access.order {
            Order::Sequential { .. } => {
                let pass = period * u128::from(access.pages);
                let segment = step.rest.min(SEGMENT_MAX.into());
                let plan = ends((step.cursor + segment) % pass);
                let here = access.unit_at(step.cursor, region);
                let found = region.next_untouched(access.write, here, last + 1);
                let found = found.or_else(|| region.next_untouched(access.write, first, here));
                let Some(unit) = found else { return plan };
                let start = (unit as u64 * region.unit_pages()).saturating_sub(access.first_page);
                let ahead = match unit == here {
                    true => 0,
                    false => (u128::from(start) * period + pass - step.cursor) % pass,
                };
                if ahead >= segment {
                    return plan;
                }
                Plan { segment: ahead as u64, due: 1, cursor: (step.cursor + ahead) % pass }
            }
            Order::Random => {
                let units = (last - first + 1) as u128;
                let untouched = u128::from(region.nr_untouched(access.write, first, last + 1));
                if untouched == 0 {
                    return ends(0);
                }
                // On average, one of `units / untouched` accesses is the first to its unit.
                let each = period * units;
                let expected = step.rest.min(SEGMENT_MAX.into()) * untouched;
                let most = (STOP_PAGES / region.unit_pages()).clamp(1, STOP_UNITS);
                let due = match expected / each {
                    0 => u128::from(u128::from(draw()) % each < expected),
                    due => due.min(most.into()).min(untouched),
                };
                let work = (due * each / untouched).min(step.rest);
                if due == 0 || work > SEGMENT_MAX.into() {
                    return ends(0);
                }
                Plan { segment: work as u64, due: due as u64, cursor: 0 }
            }
        }
    }
}

impl Region {
    /// Returns the first unit in `from..to` whose next access traps: it is absent, marked, or
    /// merged and written.
    pub(super) fn next_untouched(&self, write: bool, from: usize, to: usize) -> Option<usize> {
        let also = if write { &self.merged } else { &self.trapped };
        self.trapped.next_of_either(also, from, to)
    }

    fn nr_untouched(&self, write: bool, from: usize, to: usize) -> u64 {
        let also = if write { &self.merged } else { &self.trapped };
        self.trapped.count_of_either(also, from, to)
    }
}

impl Kernel {
    /// Plans the next stop of a task's memory step, which is at a stop.
    pub(super) fn plan_stop(&mut self, task: TaskId) {
        let Kernel { memory, streams, .. } = self;
        let memory = memory.as_mut().expect("an access has a region");
        let plan = memory.plan(task, || streams.next("memory.touch", u64::from(task.0)));
        let access = memory.step(task).access;
        let region = memory.accesses[access.0 as usize].region;
        let epoch = memory.region(region).expect("in use").epoch;
        let step = memory.step(task);
        (step.segment, step.due, step.cursor) = (plan.segment, plan.due, plan.cursor);
        (step.rest, step.counted) = (step.rest - u128::from(plan.segment), plan.segment);
        step.epoch = epoch;
        self.tasks[task].step_left = plan.segment;
    }

    /// Plans the next stop of a task's memory step again if a scan has marked pages since. The
    /// task's accesses must be counted.
    pub(super) fn replan(&mut self, task: TaskId) {
        let left = self.tasks[task].step_left;
        let memory = self.memory.as_mut().expect("the caller has checked");
        let id = memory.step(task).access;
        let access = &memory.accesses[id.0 as usize];
        let epoch = memory.region(access.region).expect("in use").epoch;
        let pass = match access.order {
            Order::Sequential { .. } => access.period_work() * u128::from(access.pages),
            Order::Random => 0,
        };
        let step = memory.step(task);
        if step.epoch == epoch {
            return;
        }
        // Go back from the planned stop to the present place.
        step.rest += u128::from(left);
        if pass > 0 {
            step.cursor = (step.cursor + pass - u128::from(left) % pass) % pass;
        }
        self.plan_stop(task);
    }
}
