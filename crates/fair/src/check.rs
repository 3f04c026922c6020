// SPDX-License-Identifier: GPL-2.0-only
//! Comparison of a CPU's EEVDF state, task counts and loads with values that are recomputed from
//! scratch, for checkers and tests.

use super::Fair;
use super::state::{CfsRqId, EntityId};
use super::tree::{self, vdiff};
use scxlab_machine::cpumask;
use scxlab_machine::id::{CpuId, TaskId};

/// A violated invariant, which is a bug in this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("CPU {cpu}: sum of weights is {kept}, should be {found}")]
    SumWeight { cpu: CpuId, kept: u64, found: u64 },
    #[error("CPU {cpu}: weighted sum of vruntimes is {kept}, should be {found}")]
    SumVruntime { cpu: CpuId, kept: i128, found: i128 },
    #[error("CPU {cpu}: the zero-lag point is outside the range of its tasks' vruntimes")]
    ZeroLag { cpu: CpuId },
    #[error("CPU {cpu}: no queued task is eligible")]
    NoneEligible { cpu: CpuId },
    #[error(
        "CPU {cpu}: task {task} is out of order in the tree, or its node has a wrong minimum vruntime or slice"
    )]
    Tree { cpu: CpuId, task: TaskId },
    #[error("CPU {cpu}: a task count is {kept}, should be {found}")]
    Count { cpu: CpuId, kept: u32, found: u32 },
    #[error("CPU {cpu}: the set of possibly idle CPUs is wrong about it")]
    Free { cpu: CpuId },
    #[error("CPU {cpu}: the tree and a linear search pick different tasks")]
    Pick { cpu: CpuId },
    #[error("CPU {cpu}: the sums of its group at level {level} are not those of the group's CPUs")]
    Sums { cpu: CpuId, level: usize },
    #[error("NUMA group {group}: the {what} is {kept}, but its members have {found}")]
    NumaGroup { group: usize, what: &'static str, kept: i64, found: i64 },
    #[error("CPU {cpu}: a queue's load is {kept}, should be {found}")]
    Load { cpu: CpuId, kept: u64, found: u64 },
    #[error("CPU {cpu}: {kept} tasks prefer LLC {llc}, should be {found}")]
    Preference { cpu: CpuId, llc: u32, kept: u32, found: u32 },
    #[error("CPU {cpu}: {kept} runnable tasks are on their preferred LLC, should be {found}")]
    AtHome { cpu: CpuId, kept: u32, found: u32 },
}

impl Fair {
    /// Checks the state of a CPU. The check visits every entity, so its time grows with the number
    /// of tasks.
    pub fn check(&mut self, cpu: CpuId) -> Result<(), Violation> {
        let mut waiting = Vec::new();
        tree::for_each(&self.ents, self.cpus[cpu].tree, &mut |e| waiting.push(e));
        self.check_sums(cpu, &waiting)?;
        self.check_tree(cpu, &waiting)?;
        let mut queued = waiting.clone();
        queued.extend(self.curr_queued(cpu));
        self.check_counts(cpu, &queued)?;
        self.check_preferences(cpu, &queued)?;
        self.check_loads(cpu)?;
        self.check_group_sums(cpu)?;
        if !queued.is_empty() {
            self.check_eligibility(cpu, &waiting, &queued)?;
        }
        Ok(())
    }

    fn check_sums(&self, cpu: CpuId, waiting: &[EntityId]) -> Result<(), Violation> {
        let row = &self.cpus[cpu];
        let found: u64 = waiting.iter().map(|&e| self.ents[e].h_load).sum();
        if row.sum_weight != found {
            return Err(Violation::SumWeight { cpu, kept: row.sum_weight, found });
        }
        let key = |e: EntityId| i128::from(vdiff(self.ents[e].vruntime, row.zero_vruntime));
        let found = waiting.iter().map(|&e| key(e) * i128::from(self.ents[e].h_load)).sum();
        if row.sum_w_vruntime != found {
            return Err(Violation::SumVruntime { cpu, kept: row.sum_w_vruntime, found });
        }
        Ok(())
    }

    fn check_tree(&self, cpu: CpuId, waiting: &[EntityId]) -> Result<(), Violation> {
        let wrong = |e: EntityId| {
            let task = self.ents[e].task.expect("only tasks are in the tree");
            Err(Violation::Tree { cpu, task })
        };
        for pair in waiting.windows(2) {
            if self.entity_before(pair[1], pair[0]) {
                return wrong(pair[1]);
            }
        }
        for &e in waiting {
            let node = &self.ents[e].node;
            let mut below = Vec::new();
            tree::for_each(&self.ents, e, &mut |e| below.push(e));
            let slices = || below.iter().map(|&e| self.ents[e].slice);
            let least = below.iter().all(|&b| vdiff(self.ents[b].vruntime, node.min_vruntime) >= 0);
            if !least
                || slices().min() != Some(node.min_slice)
                || slices().max() != Some(node.max_slice)
            {
                return wrong(e);
            }
        }
        Ok(())
    }

    fn check_counts(&self, cpu: CpuId, queued: &[EntityId]) -> Result<(), Violation> {
        let root = &self.rqs[CfsRqId(cpu.0)];
        let found = queued.len() as u32;
        if root.h_nr_queued != found {
            return Err(Violation::Count { cpu, kept: root.h_nr_queued, found });
        }
        let awake = queued.iter().filter(|&&e| !self.ents[e].sched_delayed).count() as u32;
        if root.h_nr_runnable != awake {
            return Err(Violation::Count { cpu, kept: root.h_nr_runnable, found: awake });
        }
        let idle = queued.iter().filter(|&&e| self.counts_as_idle(e)).count() as u32;
        if root.h_nr_idle != idle {
            return Err(Violation::Count { cpu, kept: root.h_nr_idle, found: idle });
        }
        if cpumask::test(&self.maybe_idle_cpus, cpu) != (found == idle) {
            return Err(Violation::Free { cpu });
        }
        Ok(())
    }

    fn counts_as_idle(&self, task: EntityId) -> bool {
        let mut idle = self.has_idle_policy(task);
        let mut at = task;
        while let Some(e) = at.some() {
            idle |= self.rqs[self.ents[e].cfs_rq].idle;
            at = self.ents[e].parent;
        }
        idle
    }

    /// Checks that the load of each queue is the sum of the loads of the entities on it.
    fn check_loads(&self, cpu: CpuId) -> Result<(), Violation> {
        let mut found = vec![0; self.rqs.0.len()];
        for entity in self.ents.0.iter().filter(|e| e.on_rq) {
            found[entity.cfs_rq.0 as usize] += entity.load;
        }
        for (row, found) in self.rqs.0.iter().zip(found).filter(|(row, _)| row.cpu == cpu) {
            if row.load != found {
                return Err(Violation::Load { cpu, kept: row.load, found });
            }
        }
        Ok(())
    }

    /// Checks the sums of the groups that contain the CPU, after bringing them up to date as a
    /// balance does.
    fn check_group_sums(&mut self, cpu: CpuId) -> Result<(), Violation> {
        for level in 0..self.domains.of_cpu[cpu.idx()].len() {
            self.refresh_sums(cpu, level);
            let group = &self.domains.groups[self.group_from_own(cpu, level, 0)];
            if *self.sums.of_group(group) != self.recount(&group.span) {
                return Err(Violation::Sums { cpu, level });
            }
        }
        Ok(())
    }

    fn check_eligibility(
        &mut self,
        cpu: CpuId,
        waiting: &[EntityId],
        queued: &[EntityId],
    ) -> Result<(), Violation> {
        let avg = self.avg_vruntime(cpu);
        let ahead = |e: &&EntityId| vdiff(self.ents[**e].vruntime, avg);
        let least = queued.iter().map(|e| ahead(&e)).min().unwrap_or(0);
        let most = queued.iter().map(|e| ahead(&e)).max().unwrap_or(0);
        if least > 0 || most < 0 {
            return Err(Violation::ZeroLag { cpu });
        }
        let eligible = |e: &&EntityId| self.eligible(cpu, **e);
        if !queued.iter().any(|e| eligible(&e)) {
            return Err(Violation::NoneEligible { cpu });
        }
        let first = waiting.iter().find(eligible).copied();
        let found = tree::first_eligible(&self.ents, self.cpus[cpu].tree, |v| {
            self.vruntime_eligible(cpu, v)
        });
        if first != found {
            return Err(Violation::Pick { cpu });
        }
        Ok(())
    }
}
