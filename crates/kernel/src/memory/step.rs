// SPDX-License-Identifier: GPL-2.0-only
//! Memory steps: work of which a part is access to a region.
//!
//! Owns: the stops of a step, at which pages are touched first or after a mark; a step's speed.
//! Does not: plan the next stop (see `plan.rs`), choose nodes (see `alloc.rs`), or compute pressure
//! (see `bandwidth.rs`).
//! Differs from a machine: a region's accesses are spread over its nodes as its pages are, even if
//! the step touches only a part of the region.
//!
//! A step runs from stop to stop. A stop is the step's end, or the time of the next first touches.
//! `Task::step_left` is the work to the next stop, in 2^-20 ns; `MemoryStep::rest` is the work
//! behind the stop. The speed between stops is `Task::mem_speed`.

use super::access::{Access, AccessId, Order};
use super::alloc::{Fault, Full};
use super::bandwidth::{Load, ONE, Part, RATE};
use super::region::{Region, RegionId};
use super::{HUGE_PAGES, Memory};
use crate::kernel::event::{Event, lane};
use crate::kernel::{AfterEvent, Kernel, Stop};
use crate::task::behavior::TaskStep;
use scxlab_machine::id::{CpuId, Nanos, NodeId, TaskId};

/// Shift from ns of work to the unit of `Task::step_left` in a memory step.
pub(crate) const STEP_SHIFT: u32 = 20;
/// Longest work from stop to stop, 2^-20 ns: 18 minutes.
pub(super) const SEGMENT_MAX: u64 = 1 << 60;
/// Small pages that one stop touches at most, and pages that a large unit pays for at a time. It
/// bounds the time of one path through the kernel.
pub(super) const STOP_PAGES: u64 = 64;
/// Units that one stop of a step with random accesses touches at most.
pub(super) const STOP_UNITS: u64 = 16;
/// Delay from a change of demand to the new pressure, ns. It bounds the number of such events.
const PRESSURE_DELAY: Nanos = 20_000;
/// State of a task's memory step.
#[derive(Clone, Debug)]
pub(super) struct MemoryStep {
    pub access: AccessId,
    /// Work behind the next stop, 2^-20 ns.
    pub rest: u128,
    /// Work from the last stop to the next, 2^-20 ns.
    pub segment: u64,
    /// Work up to which accesses are counted, as `Task::step_left`.
    pub counted: u64,
    /// Work since the window's begin, for sequential accesses: where the step is at its next stop,
    /// 2^-20 ns.
    pub cursor: u128,
    /// `Region::epoch` when the next stop was planned.
    pub epoch: u64,
    /// Units to touch at the next stop; at least this number of units is untouched then.
    pub due: u64,
    /// Kernel time that is still to be charged for the unit that was touched last, ns, and the time
    /// charged per stop.
    owed: Nanos,
    owed_per_stop: Nanos,
}

impl Memory {
    pub(super) fn step(&mut self, task: TaskId) -> &mut MemoryStep {
        self.steps[task.idx()].as_mut().expect("a task in a memory step")
    }

    /// Returns the load of a CPU of `from` that runs a step with this access.
    fn load_of(&self, id: AccessId, from: NodeId, cpu_speed: u64, prices: Prices) -> Load {
        let access = &self.accesses[id.0 as usize];
        let region = self.regions[access.region.0 as usize].as_deref().expect("in use");
        let permille = access.memory_permille;
        // A CPU's speed is in 1/1024 of full speed.
        let pure = (1000 - permille) * ((1 << 30) / cpu_speed.max(1)) / 1000;
        let huge = region.spec.huge && access.order == Order::Random;
        let factor = if huge { prices.huge_access } else { ONE };
        let present = region.present().max(1);
        let pages = region.on().iter().zip(region.merged_on());
        let parts = (0..).map(NodeId).zip(pages).filter(|(_, (own, merged))| *own + *merged > 0);
        let part = |(node, (own, merged)): (NodeId, (&u64, &u64))| {
            let share = u128::from(own + merged) * u128::from(ONE) / u128::from(present);
            let slow = self.bandwidth.slowdown(from, node, prices.mem_access);
            let time = u128::from(permille) * share * u128::from(slow) * u128::from(factor) / 1000;
            Part {
                node,
                bytes: ((u128::from(access.traffic * permille) * share / 1000) >> (16 - RATE))
                    as u64,
                // Three factors in `ONE`ths make 2^48.
                time: (time >> (48 - STEP_SHIFT)) as u64,
            }
        };
        Load { from, pure, parts: parts.map(part).collect() }
    }
}

/// Costs that a step's speed depends on.
#[derive(Clone, Copy)]
struct Prices {
    /// Time of a local access in the cost table, ns.
    mem_access: u64,
    /// In `ONE`ths.
    huge_access: u64,
}

impl Kernel {
    /// Declares an access pattern.
    pub(crate) fn access_create(&mut self, access: Access) -> Option<AccessId> {
        let memory = self.memory.as_mut()?;
        let region = memory.region(access.region)?;
        let end = access.first_page.checked_add(access.pages)?;
        let fits = access.pages > 0 && end <= region.spec.pages;
        if !fits || !(1..=1000).contains(&access.memory_permille) {
            return None;
        }
        memory.accesses.push(access);
        memory.cursors.push(0);
        Some(AccessId(memory.accesses.len() as u32 - 1))
    }

    /// Sets the access pattern of the following memory steps of a task.
    pub(crate) fn access_choose(&mut self, task: TaskId, access: AccessId) {
        let Some(memory) = &mut self.memory else { return };
        if memory.chosen.len() <= task.idx() {
            memory.chosen.resize(task.idx() + 1, AccessId(0));
        }
        memory.chosen[task.idx()] = access;
    }

    /// Starts a memory step. Returns false if it is over at once.
    #[cold]
    pub(crate) fn memory_begin(&mut self, cpu: CpuId, task: TaskId, work: Nanos) -> bool {
        let memory = self.memory.as_mut().expect("an access has a region");
        let id = memory.chosen[task.idx()];
        let access = &memory.accesses[id.0 as usize];
        let resume = access.order == Order::Sequential { resume: true };
        if memory.steps.len() <= task.idx() {
            memory.steps.resize(task.idx() + 1, None);
        }
        memory.steps[task.idx()] = Some(MemoryStep {
            access: id,
            rest: u128::from(work) << STEP_SHIFT,
            segment: 0,
            counted: 0,
            cursor: if resume { memory.cursors[id.0 as usize] } else { 0 },
            epoch: 0,
            due: 0,
            owed: 0,
            owed_per_stop: 0,
        });
        self.tasks[task].step_left = 0;
        self.memory_stop(cpu, task)
    }

    /// Returns whether the current task is in a memory step that goes on after this stop.
    #[cold]
    pub(crate) fn memory_goes_on(&mut self, cpu: CpuId, task: TaskId) -> bool {
        matches!(self.tasks[task].step, Some(TaskStep::Memory { .. }))
            && self.memory_stop(cpu, task)
    }

    /// Handles a stop of the current task's memory step: touches pages and plans the next stop.
    /// Returns false if the step is over.
    fn memory_stop(&mut self, cpu: CpuId, task: TaskId) -> bool {
        self.count_accesses(cpu, task);
        let memory = self.memory.as_mut().expect("an access has a region");
        let step = memory.step(task);
        step.segment = 0;
        if step.owed > 0 {
            let paid = step.owed.min(step.owed_per_stop);
            step.owed -= paid;
            memory.stats.first_touch_ns += paid;
            self.charge(paid);
            return true;
        }
        if step.due > 0 {
            let due = std::mem::take(&mut step.due);
            return self.first_touches(cpu, task, due);
        }
        if step.rest == 0 {
            let (id, cursor) = (step.access, step.cursor);
            memory.cursors[id.0 as usize] = cursor;
            self.memory_leave(cpu, task);
            self.memory.as_mut().expect("checked").steps[task.idx()] = None;
            return false;
        }
        self.plan_stop(task);
        self.memory_enter(cpu, task);
        true
    }

    /// Touches the units that are due at a stop. Returns true: the step goes on.
    fn first_touches(&mut self, cpu: CpuId, task: TaskId, due: u64) -> bool {
        let node = self.machine.topology.cpu(cpu).node;
        let mems = self.mems_effective(self.tasks[task].cgroup);
        let units = self.units_to_touch(task, due);
        let memory = self.memory.as_mut().expect("an access has a region");
        let id = memory.step(task).access;
        let access = memory.accesses[id.0 as usize].clone();
        let mut cost = 0;
        for unit in units {
            let memory = self.memory.as_mut().expect("checked");
            if memory.region(access.region).is_some_and(|region| region.is_marked(unit)) {
                let fault = self.hint_fault(cpu, task, access.region, unit);
                self.charge(fault);
                continue;
            }
            match memory.touch(access.region, unit, access.write, node, mems.as_deref()) {
                Ok(None) => {}
                Ok(Some(fault)) => {
                    let region = memory.region(access.region).expect("in use");
                    let (each, pages) = fault_price(&self.machine, region, fault);
                    let stops =
                        pages.div_ceil(if region.spec.huge { HUGE_PAGES } else { STOP_PAGES });
                    let whole = each * pages / if region.spec.huge { HUGE_PAGES } else { 1 };
                    let first = whole / stops;
                    cost += first;
                    let step = memory.step(task);
                    (step.owed, step.owed_per_stop) = (whole - first, first.max(1));
                }
                Err(Full) => {
                    let region = memory.region(access.region).expect("in use");
                    let name = region.spec.name.clone();
                    self.end.stop_with(Stop::MemoryFull { region: name });
                    return true;
                }
            }
        }
        let memory = self.memory.as_mut().expect("checked");
        memory.stats.first_touch_ns += cost;
        let region = memory.regions[access.region.0 as usize].as_deref_mut().expect("in use");
        let moved = region.take_moved();
        self.charge(cost);
        if moved {
            self.region_moved(access.region);
        }
        true
    }

    /// Returns the units that a stop touches.
    fn units_to_touch(&mut self, task: TaskId, due: u64) -> Vec<usize> {
        let Kernel { memory, streams, .. } = self;
        let memory = memory.as_mut().expect("an access has a region");
        let step = memory.steps[task.idx()].as_ref().expect("a task in a memory step");
        let access = &memory.accesses[step.access.0 as usize];
        let region = memory.regions[access.region.0 as usize].as_deref().expect("in use");
        let (first, last) = memory.window(access);
        let (write, unit_pages) = (access.write, region.unit_pages());
        let mut units = Vec::new();
        match access.order {
            Order::Sequential { .. } => {
                // Neighbours that the rest of the step reaches are touched at the same stop.
                let pages = step.rest / access.period_work();
                let reached = (pages / u128::from(unit_pages) + 1).min(1 << 20) as usize;
                let most = (STOP_PAGES / unit_pages).max(1) as usize;
                let here = access.unit_at(step.cursor, region);
                let to = (here + most.min(reached)).min(last + 1);
                let mut next = here;
                while let Some(unit) = region.next_untouched(write, next, to).filter(|u| *u == next)
                {
                    units.push(unit);
                    next += 1;
                }
            }
            Order::Random => {
                for _ in 0..due {
                    let draw = streams.next("memory.touch", u64::from(task.0));
                    let from = first + (draw % (last - first + 1) as u64) as usize;
                    let found = region.next_untouched(write, from, last + 1);
                    units.extend(found.or_else(|| region.next_untouched(write, first, from)));
                }
                units.sort_unstable();
                units.dedup();
            }
        }
        units
    }

    /// Gives new speeds and stops to the tasks that access a region, because its pages have moved
    /// or were marked.
    pub(crate) fn region_moved(&mut self, region: RegionId) {
        let memory = self.memory.as_ref().expect("a region exists");
        let cpus: Vec<usize> = memory.bandwidth.loaded().collect();
        for cpu in cpus.into_iter().map(|cpu| CpuId(cpu as u32)) {
            let task = self.cpus[cpu].curr;
            let memory = self.memory.as_mut().expect("a region exists");
            let access = memory.step(task).access;
            if memory.accesses[access.0 as usize].region == region {
                self.memory_refresh(cpu);
            }
        }
    }

    /// Adds the load of a CPU that begins to run a task, if the task is in a memory step.
    pub(crate) fn memory_enter(&mut self, cpu: CpuId, task: TaskId) {
        if !matches!(self.tasks[task].step, Some(TaskStep::Memory { .. })) {
            return;
        }
        let (node, speed) = (self.machine.topology.cpu(cpu).node, self.cpus[cpu].speed);
        let costs = &self.machine.costs;
        let prices = Prices {
            mem_access: costs.workload.mem_access_ns.max(1),
            huge_access: costs.memory.huge_access.of(ONE),
        };
        let memory = self.memory.as_mut().expect("an access has a region");
        if memory.step(task).segment == 0 {
            return;
        }
        self.replan(task);
        let memory = self.memory.as_mut().expect("checked");
        let access = memory.step(task).access;
        let load = memory.load_of(access, node, speed, prices);
        let time = memory.bandwidth.time(&load);
        memory.step(task).counted = self.tasks[task].step_left;
        self.tasks[task].mem_speed = (1u64 << (2 * STEP_SHIFT)) / time.max(1);
        let stale = memory.bandwidth.set(cpu.idx(), Some(load));
        self.post_pressure(stale);
    }

    /// Counts the accesses of a CPU's task so far, and removes the CPU's load.
    pub(crate) fn memory_leave(&mut self, cpu: CpuId, task: TaskId) {
        self.count_accesses(cpu, task);
        let memory = self.memory.as_mut().expect("the caller has checked");
        if memory.bandwidth.load(cpu.idx()).is_some() {
            let stale = memory.bandwidth.set(cpu.idx(), None);
            self.post_pressure(stale);
        }
    }

    /// Counts the accesses that the task of a CPU has made since they were last counted. Its
    /// progress must be settled.
    fn count_accesses(&mut self, cpu: CpuId, task: TaskId) {
        let memory = &mut **self.memory.as_mut().expect("the caller has checked");
        let Some(load) = memory.bandwidth.load(cpu.idx()) else { return };
        let step = memory.steps[task.idx()].as_mut().expect("a load has a step");
        let left = self.tasks[task].step_left;
        let write = memory.accesses[step.access.0 as usize].write;
        memory.stats.count(load, step.counted - left, write);
        step.counted = left;
    }

    /// Counts the accesses of all running tasks, for results.
    pub(crate) fn count_all_accesses(&mut self) {
        let Some(memory) = &self.memory else { return };
        let cpus: Vec<usize> = memory.bandwidth.loaded().collect();
        for cpu in cpus.into_iter().map(|cpu| CpuId(cpu as u32)) {
            self.count_accesses(cpu, self.cpus[cpu].curr);
        }
    }

    /// Computes the speed of a CPU's memory step again: the CPU's speed, the region's pages or the
    /// pressure have changed.
    pub(crate) fn memory_refresh(&mut self, cpu: CpuId) {
        let memory = self.memory.as_ref().expect("the caller has checked");
        if memory.bandwidth.load(cpu.idx()).is_none() {
            return;
        }
        self.settle(cpu);
        let task = self.cpus[cpu].curr;
        self.count_accesses(cpu, task);
        self.memory_enter(cpu, task);
        self.arm_step_end(cpu);
    }

    /// Ends a task's memory step before its time. The task's progress must be settled. Returns the
    /// work that is left, ns, and the time that the task owes for its last first touch.
    pub(crate) fn memory_cut(&mut self, task: TaskId) -> (Nanos, Nanos) {
        let (cpu, on_cpu) = (self.tasks[task].cpu, self.tasks[task].on_cpu);
        if on_cpu {
            self.memory_leave(cpu, task);
        }
        let to_stop = self.tasks[task].step_left;
        let memory = self.memory.as_mut().expect("an access has a region");
        let step = memory.steps[task.idx()].take().expect("a task in a memory step");
        let access = &memory.accesses[step.access.0 as usize];
        let pass = access.period_work() * u128::from(access.pages);
        let here = (step.cursor + pass - u128::from(to_stop) % pass) % pass;
        memory.cursors[step.access.0 as usize] = here;
        memory.stats.first_touch_ns += step.owed;
        self.tasks[task].step = None;
        let left = step.rest + u128::from(to_stop);
        (left.div_ceil(1 << STEP_SHIFT) as Nanos, step.owed)
    }

    fn post_pressure(&mut self, nodes: Vec<NodeId>) {
        for node in nodes {
            let at = self.now + PRESSURE_DELAY;
            self.events.push_in(lane::SOON, at, Event::MemoryPressure { node });
        }
    }

    /// Computes the pressure on a node, and gives new speeds to the tasks that access it.
    pub(crate) fn memory_pressure(&mut self, node: NodeId) -> AfterEvent {
        let memory = self.memory.as_mut().expect("the event's sender has a region");
        for cpu in memory.bandwidth.settle(node) {
            let cpu = CpuId(cpu as u32);
            self.settle(cpu);
            let task = self.cpus[cpu].curr;
            self.count_accesses(cpu, task);
            let memory = self.memory.as_ref().expect("checked");
            let load = memory.bandwidth.load(cpu.idx()).expect("listed");
            let time = memory.bandwidth.time(load);
            self.tasks[task].mem_speed = (1u64 << (2 * STEP_SHIFT)) / time.max(1);
            self.arm_step_end(cpu);
        }
        AfterEvent::Nothing
    }
}

/// Returns the kernel's time for a fault, per page or per huge page, and the number of small pages.
fn fault_price(machine: &scxlab_machine::Machine, region: &Region, fault: Fault) -> (Nanos, u64) {
    let costs = &machine.costs.memory;
    let kib = if region.spec.huge { HUGE_PAGES * 4 } else { 4 };
    let entry = if region.spec.huge { costs.huge_fault_ns } else { costs.page_fault_ns };
    match fault {
        Fault::New { pages } => (entry + kib * costs.page_clear_ns_per_kib, pages),
        Fault::Merged { pages } => (entry, pages),
        Fault::Unmerged { pages } => (entry + kib * costs.page_copy_ns_per_kib, pages),
    }
}
