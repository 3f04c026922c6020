// SPDX-License-Identifier: GPL-2.0-only
//! Sums of load and of tasks over the CPUs of each group of the domains, kept from one balance to
//! the next.
//!
//! Owns: the sums. A CPU whose queue has changed is stale until a balance needs its group's sums.
//! Does not: count idle CPUs, because the class alone does not know which CPUs idle, or judge
//! groups (see `lb_stats.rs`).
//!
//! The kernel visits every CPU of a domain in each balance and comes to the same sums. With 1,024
//! CPUs these visits were a third of a run.

use super::Fair;
use super::domain::SchedGroup;
use super::state::CfsRqId;
use scxlab_machine::cpumask::{self, CpuMask};
use scxlab_machine::id::CpuId;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sums over a set of CPUs of what their root queues count and average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LoadSums {
    pub load: u64,
    pub util: u64,
    pub runnable: u64,
    /// Tasks of this class, delayed ones included.
    pub nr_queued: u32,
    pub nr_runnable: u32,
    /// CPUs with more than one task of this class.
    pub nr_overloaded: u32,
}

impl LoadSums {
    /// Adds the difference of two values. Differences may be negative, so the sums wrap on the way.
    fn change(&mut self, from: &LoadSums, to: &LoadSums) {
        let wide =
            |sum: &mut u64, from: u64, to: u64| *sum = sum.wrapping_add(to.wrapping_sub(from));
        let short =
            |sum: &mut u32, from: u32, to: u32| *sum = sum.wrapping_add(to.wrapping_sub(from));
        wide(&mut self.load, from.load, to.load);
        wide(&mut self.util, from.util, to.util);
        wide(&mut self.runnable, from.runnable, to.runnable);
        short(&mut self.nr_queued, from.nr_queued, to.nr_queued);
        short(&mut self.nr_runnable, from.nr_runnable, to.nr_runnable);
        short(&mut self.nr_overloaded, from.nr_overloaded, to.nr_overloaded);
    }
}

#[derive(Debug, Default)]
pub(super) struct Sums {
    /// The sums of each CPU, indexed by CPU, and then those of each set of CPUs that is the span of
    /// a group. `SchedGroup::sums` is an index.
    rows: Vec<LoadSums>,
    /// Indices in `rows` of the sets that contain a CPU, indexed by CPU.
    sets: Vec<SmallVec<[u32; 4]>>,
    /// CPUs whose row may differ from their queue.
    stale: Box<[u64]>,
}

impl Sums {
    /// Returns the sums for the groups of new domains, with every CPU stale.
    pub fn new(nr_cpus: usize, groups: &mut [SchedGroup]) -> Sums {
        let mut sums = Sums {
            rows: vec![LoadSums::default(); nr_cpus],
            sets: vec![SmallVec::new(); nr_cpus],
            stale: vec![u64::MAX; nr_cpus.div_ceil(64)].into(),
        };
        let mut known: BTreeMap<Vec<u64>, u32> = BTreeMap::new();
        for group in groups {
            group.sums = match cpumask::first(&group.span) {
                Some(only) if group.weight == 1 => only.0,
                _ => *known.entry(group.span.to_vec()).or_insert_with(|| sums.add(&group.span)),
            };
        }
        sums
    }

    fn add(&mut self, span: &Arc<CpuMask>) -> u32 {
        let row = self.rows.len() as u32;
        self.rows.push(LoadSums::default());
        cpumask::iter(span).for_each(|cpu| self.sets[cpu.idx()].push(row));
        row
    }

    pub fn of_group(&self, group: &SchedGroup) -> &LoadSums {
        &self.rows[group.sums as usize]
    }

    /// Returns the sums of one CPU, which a balance of its domain has brought up to date.
    pub fn of_cpu(&self, cpu: CpuId) -> &LoadSums {
        &self.rows[cpu.idx()]
    }

    /// Notes that a queue has changed, which counts if it is the root queue of a CPU.
    #[inline(always)]
    pub fn touch(&mut self, rq: CfsRqId) {
        // Queues of groups have numbers from `nr_cpus` on, most of which are past the set's end.
        cpumask::set(&mut self.stale, CpuId(rq.0));
    }
}

impl Fair {
    /// Brings the sums up to date with the CPUs of a domain.
    pub(super) fn refresh_sums(&mut self, cpu: CpuId, level: usize) {
        let shape = self.domains.of_cpu[cpu.idx()][level].shape as usize;
        for at in self.domains.shapes[shape].words.clone() {
            let mut stale = self.sums.stale[at] & self.domains.shapes[shape].span[at];
            self.sums.stale[at] &= !stale;
            while stale != 0 {
                self.refresh(CpuId(at as u32 * 64 + stale.trailing_zeros()));
                stale &= stale - 1;
            }
        }
    }

    fn refresh(&mut self, cpu: CpuId) {
        let now = self.sums_of(cpu);
        let Sums { rows, sets, .. } = &mut self.sums;
        let was = std::mem::replace(&mut rows[cpu.idx()], now);
        for set in &sets[cpu.idx()] {
            rows[*set as usize].change(&was, &now);
        }
    }

    /// Returns the present values of one CPU.
    fn sums_of(&self, cpu: CpuId) -> LoadSums {
        let queue = &self.rqs[CfsRqId(cpu.0)];
        LoadSums {
            load: queue.avg.load_avg,
            util: self.cpu_util(cpu, None, false),
            runnable: queue.avg.runnable_avg,
            nr_queued: queue.h_nr_queued,
            nr_runnable: queue.h_nr_runnable,
            nr_overloaded: u32::from(queue.h_nr_queued > 1),
        }
    }

    /// Adds the present values of all CPUs of a set.
    pub(super) fn recount(&self, cpus: &CpuMask) -> LoadSums {
        cpumask::iter(cpus).fold(LoadSums::default(), |mut sums, cpu| {
            sums.change(&LoadSums::default(), &self.sums_of(cpu));
            sums
        })
    }
}
