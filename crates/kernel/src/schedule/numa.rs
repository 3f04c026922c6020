// SPDX-License-Identifier: GPL-2.0-only
//! Automatic NUMA balancing: the bridge between the default class, which decides, and the pages and
//! CPUs that its decisions move.
//!
//! Owns: the costs of scans, and the moves and swaps of tasks.
//! Models: the call of `task_tick_numa()` in `task_tick_fair()`, `task_numa_work()`,
//! `sched_setnuma()`, `migrate_task_to()`, `migrate_swap()`, 7.3.
//! Differs: a scan is part of the tick's path, not of the return to user mode. A swap is not
//! atomic: the partner's CPU pushes the partner, and then the other CPU pushes the task.

use crate::bpf::flags::queue;
use crate::cpu::Push;
use crate::kernel::Kernel;
use crate::memory::scan::Scanner;
use crate::task::Class;
use scxlab_fair::{FairTopo, Go, HintFault, MmScan, NumaRules};
use scxlab_machine::id::{CpuId, Nanos, TaskId};

/// Automatic NUMA balancing (`kernel.numa_balancing`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumaBalancing {
    Off,
    /// The normal mode of 7.3: ticks of tasks of the default class scan.
    #[default]
    On,
    /// Ticks of tasks of sched_ext scan too. No kernel does this.
    Ext,
    /// As `Ext`, by the rules of Linux 3.9.
    ExtLinux39,
    /// As `Ext`, by the rules of `NumaRules::SeriesV5`.
    ExtSeriesV5,
}

impl NumaBalancing {
    pub const ALL: [NumaBalancing; 5] = [
        NumaBalancing::Off,
        NumaBalancing::On,
        NumaBalancing::Ext,
        NumaBalancing::ExtLinux39,
        NumaBalancing::ExtSeriesV5,
    ];

    pub fn name(self) -> &'static str {
        match self {
            NumaBalancing::Off => "off",
            NumaBalancing::On => "on",
            NumaBalancing::Ext => "ext",
            NumaBalancing::ExtLinux39 => "ext-3.9",
            NumaBalancing::ExtSeriesV5 => "ext-v5",
        }
    }

    /// Returns the mode of a name.
    pub fn named(name: &str) -> Option<NumaBalancing> {
        NumaBalancing::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// Whether ticks of tasks of sched_ext scan.
    pub fn scans_ext(self) -> bool {
        !matches!(self, NumaBalancing::Off | NumaBalancing::On)
    }

    pub(crate) fn rules(self) -> NumaRules {
        match self {
            NumaBalancing::ExtLinux39 => NumaRules::Linux39,
            NumaBalancing::ExtSeriesV5 => NumaRules::SeriesV5,
            _ => NumaRules::Linux73,
        }
    }
}

impl Kernel {
    /// Switches balancing on in the default class, when the first region is made.
    pub(crate) fn numa_start(&mut self) {
        if self.numa_balancing != NumaBalancing::Off {
            let rules = self.numa_balancing.rules();
            self.fair.numa_enable(&FairTopo::new(&self.machine.topology), rules);
        }
    }

    /// Returns the scans of an address space that begins now.
    pub(crate) fn numa_new_scan(&mut self) -> MmScan {
        MmScan::new(self.jiffies(), self.ticks.period_ns)
    }

    /// `init_numa_balancing()`: a new thread has the preferred node of the thread of its process
    /// that made it, and a new process has a new address space.
    pub(crate) fn numa_forked(&mut self, task: TaskId, creator: Option<TaskId>) {
        let leader = self.tasks[task].leader;
        match creator.filter(|creator| self.tasks[*creator].leader == leader) {
            Some(creator) => self.fair.numa_thread_new(task, creator),
            None if leader == task => self.memory.as_mut().expect("checked").mm_gone(leader),
            None => {}
        }
        self.mirror_numa(task);
    }

    /// `execve(2)`: the task has a new address space and no statistics.
    pub(crate) fn numa_execed(&mut self, task: TaskId) {
        self.fair.numa_free(task, false);
        let leader = self.tasks[task].leader;
        self.memory.as_mut().expect("checked").mm_restart(leader, MmScan::default());
        self.mirror_numa(task);
    }

    /// Handles the tick of a CPU's current task: the task may scan its address space.
    #[cold]
    pub(crate) fn numa_tick(&mut self, cpu: CpuId) {
        let task = self.cpus[cpu].curr;
        let scans = match self.tasks[task].class {
            Class::Fair => true,
            Class::Ext => self.numa_balancing.scans_ext(),
            _ => false,
        };
        if !scans || !self.fair.numa_enabled() {
            return;
        }
        let leader = self.tasks[task].leader;
        let jiffies = self.jiffies();
        let memory = self.memory.as_ref().expect("the caller has checked");
        let Some(mut scan) = memory.mm(leader).map(|mm| mm.scan) else { return };
        if !self.fair_numa_tick(task, &scan, jiffies) {
            return;
        }
        // Pages that have one node to go to cannot migrate.
        if self.mems_effective(self.tasks[task].cgroup).is_some_and(|mems| mems.len() == 1) {
            return;
        }
        let budget = self.fair_numa_scan(task, &mut scan, jiffies);
        let rules = self.numa_balancing.rules();
        let by = Scanner {
            pid: self.tasks[task].pid,
            nr_threads: self.tasks[leader].nr_other_threads + 1,
            node: self.machine.topology.cpu(cpu).node,
            jiffies,
            tick_ns: self.ticks.period_ns,
            rules,
        };
        let memory = self.memory.as_mut().expect("checked");
        memory.mm_mut(leader).expect("checked").scan = scan;
        let Some(budget) = budget else { return };
        if rules != NumaRules::Linux73 && memory.rates.stop_scans(by.node, &by) {
            return;
        }
        let done = memory.scan(leader, &by, budget);
        memory.stats.pte_updates += done.entries;
        if done.entries == 0 {
            return;
        }
        let cost =
            done.entries * self.machine.costs.memory.pte_scan_ns + self.flush_cost(cpu, leader);
        self.charge(cost);
        self.fair.numa_scanned(task, cost);
        for region in done.regions {
            self.region_moved(region);
        }
    }

    /// Cost of a TLB flush in all CPUs that run a process: the flushing CPU waits for the others.
    pub(crate) fn flush_cost(&self, cpu: CpuId, leader: TaskId) -> Nanos {
        let costs = &self.machine.costs;
        let runs = |other: &CpuId| {
            *other != cpu
                && self.tasks.get(self.cpus[*other].curr).is_some_and(|t| t.leader == leader)
        };
        let others: Vec<CpuId> = self.machine.topology.cpu_ids().filter(runs).collect();
        let far =
            |other: &CpuId| costs.irq.ipi_latency_ns[self.machine.topology.distance(cpu, *other)];
        let wait = others.iter().map(far).max().unwrap_or(0);
        let each = costs.irq.ipi_send_ns + costs.memory.tlb_ipi_ns;
        costs.memory.tlb_flush_ns + others.len() as u64 * each + wait
    }

    /// Counts a hinting fault of the current task, and carries out what the default class answers.
    pub(crate) fn fair_numa_fault(&mut self, cpu: CpuId, task: TaskId, fault: &HintFault) {
        let leader = self.tasks[task].leader;
        let jiffies = self.jiffies();
        let mm = self.memory.as_ref().and_then(|memory| memory.mm(leader));
        let mut scan = mm.map(|mm| mm.scan).unwrap_or_default();
        let action = self.fair_count_fault(fault, &mut scan, jiffies);
        if let Some(mm) = self.memory.as_mut().and_then(|memory| memory.mm_mut(leader)) {
            mm.scan = scan;
        }
        let looked = u64::from(action.scanned_cpus);
        self.charge(looked * self.machine.costs.sched.select_scan_cpu_ns);
        if action.preferred.is_some() {
            // `sched_setnuma()` takes the task off its queue and puts it back.
            let change = self.change_begin(task, queue::SAVE);
            self.change_end(change);
        }
        self.mirror_numa(task);
        // In the mode `Ext`, tasks of sched_ext stay where their scheduler puts them.
        let fair = self.tasks[task].class == Class::Fair;
        match action.go {
            Go::Stay => {}
            Go::Move(to) if fair && self.cpus[cpu].pushing.is_none() => {
                self.push(cpu, Push { numa: Some(to), ..Push::new(task, to) });
            }
            Go::Swap(other, to) if fair && self.cpus[to].pushing.is_none() => {
                let push = Push::new(other, cpu);
                self.push(to, Push { then: Some(task), numa: Some(to), ..push });
            }
            Go::Move(to) | Go::Swap(_, to) => self.fair.numa_arrived(to),
        }
    }

    /// Follows up a push that NUMA balancing requested. `moved` tells whether the task could be
    /// moved. In a swap, requests the push of the other task.
    pub(crate) fn numa_pushed(&mut self, cpu: CpuId, push: Push, moved: bool) {
        let Some(target) = push.numa else { return };
        if let Some(memory) = self.memory.as_mut().filter(|_| moved) {
            match push.then {
                Some(_) => {}
                None if push.swapped => memory.stats.task_swaps += 1,
                None => memory.stats.task_moves += 1,
            }
        }
        match push.then.filter(|_| moved && self.cpus[push.to].pushing.is_none()) {
            Some(task) => {
                let from = push.to;
                let push = Push::new(task, cpu);
                self.push(from, Push { numa: Some(target), swapped: true, ..push });
            }
            None => self.fair.numa_arrived(target),
        }
    }
}
