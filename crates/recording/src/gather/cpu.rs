// SPDX-License-Identifier: GPL-2.0-only
//! The CPUs of a recording: the task that runs on each, and the speed of its work.
//!
//! Owns: the speed by the CPU's capacity and its busy siblings, as in the simulated kernel.
//! Does not: know what a task does.

use scxlab_machine::cost::Ratio;
use scxlab_machine::{CpuId, Machine, Nanos, cpumask};

use crate::history::TaskIndex;

/// Shift from ns to the unit of work, 1/1024 ns, in which time multiplied by a speed is exact.
pub(super) const WORK_SHIFT: u32 = 10;

/// All CPUs.
pub(super) struct Cpus {
    cpus: Vec<Cpu>,
    busy_sibling_speed: Ratio,
}

struct Cpu {
    task: Option<TaskIndex>,
    /// Time from which the task works.
    from: Nanos,
    /// Full speed in 1/1024 of the reference.
    capacity: u64,
    siblings: Vec<CpuId>,
}

impl Cpus {
    pub fn new(machine: &Machine) -> Cpus {
        let topology = &machine.topology;
        let cpu = |id: CpuId| Cpu {
            task: None,
            from: 0,
            capacity: u64::from(topology.cpu(id).capacity),
            siblings: cpumask::iter(topology.core_mask(id)).filter(|s| *s != id).collect(),
        };
        Cpus {
            cpus: topology.cpu_ids().map(cpu).collect(),
            busy_sibling_speed: machine.costs.smt.busy_sibling_speed,
        }
    }

    pub fn ids(&self) -> impl Iterator<Item = CpuId> + use<> {
        (0..self.cpus.len() as u32).map(CpuId)
    }

    pub fn has(&self, cpu: CpuId) -> bool {
        cpu.idx() < self.cpus.len()
    }

    /// Returns the task that runs on the CPU.
    pub fn task(&self, cpu: CpuId) -> Option<TaskIndex> {
        self.cpus[cpu.idx()].task
    }

    /// Returns the time from which the CPU's task works.
    pub fn from(&self, cpu: CpuId) -> Nanos {
        self.cpus[cpu.idx()].from
    }

    /// Returns the siblings whose speed changes if the CPU becomes busy or idle.
    pub fn changes_with(&self, cpu: CpuId, busy: bool) -> Vec<CpuId> {
        let changes = self.cpus[cpu.idx()].task.is_some() != busy;
        if changes { self.cpus[cpu.idx()].siblings.clone() } else { Vec::new() }
    }

    /// Sets the CPU's task, which works from a time on.
    pub fn set_task(&mut self, cpu: CpuId, task: Option<TaskIndex>, from: Nanos) {
        let cpu = &mut self.cpus[cpu.idx()];
        (cpu.task, cpu.from) = (task, from);
    }

    /// Notes that the CPU is in the kernel until a time.
    pub fn busy_until(&mut self, cpu: CpuId, until: Nanos) {
        let from = &mut self.cpus[cpu.idx()].from;
        *from = (*from).max(until);
    }

    /// Lets the CPU's task work until `at`. Returns the task and its work in 1/1024 ns.
    pub fn run_to(&mut self, cpu: CpuId, at: Nanos) -> Option<(TaskIndex, u64)> {
        let speed = self.speed(cpu);
        let c = &mut self.cpus[cpu.idx()];
        let task = c.task?;
        let wall = at.saturating_sub(c.from);
        c.from = c.from.max(at);
        Some((task, wall.saturating_mul(speed)))
    }

    fn speed(&self, cpu: CpuId) -> u64 {
        let cpu = &self.cpus[cpu.idx()];
        let is_busy = |sibling: &CpuId| self.cpus[sibling.idx()].task.is_some();
        match cpu.siblings.iter().any(is_busy) {
            true => self.busy_sibling_speed.of(cpu.capacity),
            false => cpu.capacity,
        }
    }
}
