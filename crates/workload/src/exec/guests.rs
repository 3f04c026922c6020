// SPDX-License-Identifier: GPL-2.0-only
//! Workloads with guests: the tasks of the host's program and the virtual CPUs of the guests.
//!
//! Owns: which guest a task belongs to, the executors in the guests.
//! Does not: know a guest's kernel (see the crate `guest`).

use std::any::Any;
use std::sync::Arc;

use scxlab_guest::{Guest, GuestConfig, SpinLocks};
use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::{Behavior, RegionSpec, Sys, TaskStep};
use scxlab_machine::Machine;
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CgroupId, CpuId, TaskId};

use super::region::{self, RegionPages};
use super::{ExecConfig, Executor, known_cpus};
use crate::compile::NodeInfo;
use crate::error::{SourcePlace, WorkloadError};
use crate::program::guest::SpinLockKind;
use crate::program::{GuestDef, Part, Program};

/// Returns the behaviour of a program's tasks on a machine.
pub fn behavior(
    program: &Program,
    config: ExecConfig,
    machine: &Arc<Machine>,
) -> Result<Box<dyn Behavior>, WorkloadError> {
    if program.guests.is_empty() {
        return Ok(Box::new(Executor::new(program, config)?));
    }
    for (number, guest) in program.guests.iter().enumerate() {
        let at = || program.place(Part::Entry("guest", number));
        let mut lists = guest.cpus.iter();
        lists.try_for_each(|list| known_cpus(at, &guest.name, list, config.nr_cpus))?;
    }
    let made = program.guest_instances().zip(0..).map(|((def, instance), number)| {
        let failed = |error| WorkloadError::InGuest {
            guest: def.instance_name(instance),
            error: Box::new(error),
        };
        guest(def, instance, number, &config, machine).map_err(failed)
    });
    let made = made.collect::<Result<Vec<_>, _>>()?;
    let (guests, cgroups) = made.into_iter().unzip();
    let executor = Executor::new(program, ExecConfig { endless: true, ..config })?;
    Ok(Box::new(WithGuests { executor, guests, cgroups, by_task: Vec::new() }))
}

/// Returns the executor of a kernel's host program.
pub fn executor(k: &Kernel) -> Option<&Executor> {
    let composite = k.behavior::<WithGuests>().map(|composite| &composite.executor);
    composite.or_else(|| k.behavior::<Executor>())
}

/// Returns a kernel's guests.
pub fn guests(k: &Kernel) -> &[Guest] {
    k.behavior::<WithGuests>().map_or(&[], |composite| &composite.guests)
}

/// Returns where the pages of each region of the host lie, those of guests' memory included.
pub fn region_pages(k: &Kernel) -> Vec<RegionPages> {
    let memory = k.memory.as_deref();
    let mut all = executor(k).map_or(Vec::new(), |executor| executor.region_pages(memory));
    for guest in guests(k) {
        let region = memory.zip(guest.memory()).and_then(|(memory, id)| memory.region(id));
        if let Some(region) = region {
            let (owner, pages) = (guest.config().name.clone(), region.pages_by_node());
            all.push(RegionPages { owner, region: "memory".to_owned(), pages });
        }
    }
    all
}

/// Returns the executor of a guest's program.
pub fn executor_in(guest: &Guest) -> Option<&Executor> {
    let program: &dyn Any = guest.program();
    program.downcast_ref()
}

/// Paths of the cgroups of a guest's virtual CPUs; None: the root.
type CgroupPaths = Vec<Option<String>>;

/// Makes the guest `number` of a run.
fn guest(
    def: &GuestDef,
    instance: u32,
    number: u32,
    config: &ExecConfig,
    machine: &Arc<Machine>,
) -> Result<(Guest, CgroupPaths), WorkloadError> {
    let name = def.instance_name(instance);
    let nr_cpus = config.nr_cpus;
    let all: Vec<CpuId> = match &def.cpus {
        Some(list) => list.iter().map(CpuId).collect(),
        None => (0..nr_cpus).map(CpuId).collect(),
    };
    let cpus_of = |vcpu: u32| {
        let nth = u64::from(instance) * u64::from(def.vcpus) + u64::from(vcpu);
        let pinned = all.get((nth % all.len().max(1) as u64) as usize).filter(|_| def.pin);
        match (pinned, &def.cpus) {
            (Some(cpu), _) => Some(CpuMask::of(nr_cpus as usize, [*cpu])),
            (None, Some(_)) => Some(CpuMask::of(nr_cpus as usize, all.iter().copied())),
            (None, None) => None,
        }
    };
    let program = def
        .program
        .as_deref()
        .ok_or_else(|| WorkloadError::NoThreads { at: SourcePlace::file(&name) })?;
    let memory = def.memory.as_ref().map(|memory| NodeInfo { memory_bytes: memory.size.0 });
    let inner = ExecConfig {
        nr_cpus: def.vcpus,
        costs: config.costs.clone(),
        perturb: config.perturb,
        duration: None,
        nodes: memory.into_iter().collect(),
        endless: false,
    };
    let unending = Program { duration: None, ..program.clone() };
    let executor = Executor::new(&unending, inner)?;
    let guest = GuestConfig {
        name,
        number,
        cpus: (0..def.vcpus).map(cpus_of).collect(),
        nice: def.nice,
        // Instances of one declaration share their merged pages, so their memory has one name.
        memory: def.memory.as_ref().map(|memory| RegionSpec {
            name: format!("memory of {}", def.name),
            ..region::spec(&memory.region())
        }),
        spin_locks: match def.spinlock {
            SpinLockKind::Ticket => SpinLocks::Ticket,
            SpinLockKind::Queued => SpinLocks::Queued,
        },
        pv_spin_locks: def.pv_spinlock,
        pv_tlb_flush: def.pv_tlb_flush,
        halt_poll: def.halt_poll.0,
    };
    let cgroups = (0..def.vcpus).map(|vcpu| def.vcpu_cgroup(instance, vcpu)).collect();
    Ok((Guest::new(guest, machine.clone(), Box::new(executor)), cgroups))
}

/// The behaviour of a workload with guests.
pub struct WithGuests {
    executor: Executor,
    guests: Vec<Guest>,
    cgroups: Vec<CgroupPaths>,
    /// Guest and vCPU, by task; None for tasks of the host's program.
    by_task: Vec<Option<(u32, u32)>>,
}

impl WithGuests {
    fn guest_of(&self, task: TaskId) -> Option<(u32, u32)> {
        self.by_task.get(task.idx()).copied().flatten()
    }
}

impl Behavior for WithGuests {
    fn start(&mut self, sys: &mut dyn Sys) {
        self.executor.start(sys);
        for (number, guest) in (0..).zip(&mut self.guests) {
            let paths = &self.cgroups[number as usize];
            let id = |path: &Option<String>| {
                path.as_ref().and_then(|path| self.executor.cgroup_id(path)).unwrap_or(CgroupId(0))
            };
            let cgroups = paths.iter().map(id).collect();
            if let Err(error) = guest.boot(sys, cgroups) {
                self.executor.fault(sys.now(), guest.config().name.clone(), "boot", error);
            }
            for (vcpu, task) in (0..).zip(guest.vcpu_tasks()) {
                if self.by_task.len() <= task.idx() {
                    self.by_task.resize(task.idx() + 1, None);
                }
                self.by_task[task.idx()] = Some((number, vcpu));
            }
        }
    }

    fn step(&mut self, sys: &mut dyn Sys, task: TaskId) -> TaskStep {
        let Some((guest, vcpu)) = self.guest_of(task) else {
            return self.executor.step(sys, task);
        };
        let step = self.guests[guest as usize].step(sys, vcpu);
        if step == TaskStep::Exit {
            self.by_task[task.idx()] = None;
        }
        step
    }

    fn on_timer(&mut self, sys: &mut dyn Sys, token: u64) {
        self.executor.on_timer(sys, token);
    }

    fn prefetch_task(&self, task: TaskId) {
        self.executor.prefetch_task(task);
    }

    fn unit(&self) -> &str {
        self.executor.unit()
    }

    fn waits_for(&self, task: TaskId) -> Option<String> {
        match self.guest_of(task) {
            Some((guest, _)) => self.guests[guest as usize].waits_for(),
            None => self.executor.waits_for(task),
        }
    }
}
