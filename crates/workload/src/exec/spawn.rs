// SPDX-License-Identifier: GPL-2.0-only
//! The creation of cgroups, shared objects and threads.
//!
//! Owns: the names of threads, the processes, the binding of each instance to its objects, the
//! parties of barriers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use scxlab_kernel::behavior::{CgroupSpec, Sys, TaskSpec};
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CgroupId, CpuId, Nanos, NodeId, TaskId};

use super::pipe::Pipe;
use super::spin::{SpinBarrier, SpinLock};
use super::stats::{Pending, Phase};
use super::sync::{Barrier, Cond, Mutex, Sem};
use super::thread::{NEVER, NO_THREAD, Thread, TimerState, Wait};
use super::{Executor, RefusedCall, cpu_mask, kernel_policy};
use crate::compile::insn::{Insn, ObjectKind};
use crate::program::{PipeDef, PipeKind, names};

impl Executor {
    /// Makes the program's cgroups, parents first.
    pub(super) fn make_cgroups(&mut self, sys: &mut dyn Sys) {
        let mut ids: BTreeMap<String, CgroupId> = BTreeMap::new();
        for def in self.compiled.cgroups.clone() {
            let (parent, name) = def.path.rsplit_once('/').unwrap_or(("", &def.path));
            let parent = ids.get(parent).copied().unwrap_or(CgroupId(0));
            let spec = CgroupSpec {
                weight: def.weight,
                quota: def.quota.map(|q| q.0),
                period: def.period.0,
                burst: def.burst.0,
                idle: def.idle,
            };
            let id = sys.mkdir(parent, name, spec).unwrap_or_else(|error| {
                self.fault(sys.now(), def.path.clone(), "mkdir", error);
                parent
            });
            if let Some(cpus) = &def.cpus {
                let cpus = cpus.iter().filter(|&c| c < sys.nr_cpus()).map(CpuId);
                let cpus = CpuMask::of(sys.nr_cpus() as usize, cpus);
                if let Err(error) = sys.set_cpuset(id, Some(&cpus)) {
                    self.fault(sys.now(), def.path.clone(), "cpuset.cpus", error);
                }
            }
            if let Some(mems) = &def.mems {
                let mems: Vec<NodeId> = mems.0.iter().map(NodeId).collect();
                if let Err(error) = sys.set_mems(id, Some(&mems)) {
                    self.fault(sys.now(), def.path.clone(), "cpuset.mems", error);
                }
            }
            for (name, value) in &def.xattrs {
                if let Err(error) = sys.set_xattr(id, name, value.as_bytes()) {
                    self.fault(sys.now(), def.path.clone(), "setxattr", error);
                }
            }
            ids.insert(def.path.clone(), id);
            self.cgroup_ids.push(id);
        }
    }

    /// Interns the names of the shared objects of every instance that exists at the start, and
    /// makes these objects.
    pub(super) fn make_objects(&mut self) {
        let compiled = &mut self.compiled;
        for template in &compiled.templates {
            for instance in 0..template.instances {
                for (kind, pattern) in &template.slots {
                    compiled.objects.intern(*kind, &names::instance_name(pattern, instance));
                }
            }
        }
        self.grow_objects();
        self.set_parties();
    }

    /// Makes the shared objects that have a name in `Objects` but do not exist yet. A fork can add
    /// names.
    fn grow_objects(&mut self) {
        let objects = &self.compiled.objects;
        let count = |kind| objects.names(kind).len();
        self.conds.resize_with(count(ObjectKind::Cond), Cond::default);
        self.timers.resize_with(count(ObjectKind::Timer), TimerState::default);
        self.spin_locks.resize_with(count(ObjectKind::SpinLock), SpinLock::default);
        self.line_writers.resize(count(ObjectKind::Lines), None);
        for name in objects.names(ObjectKind::Mutex).iter().skip(self.mutexes.len()) {
            self.mutexes.push(Mutex::new(self.program.is_barging(name)));
        }
        for name in objects.names(ObjectKind::Barrier).iter().skip(self.barriers.len()) {
            let parties = declared_parties(self, name).unwrap_or(1);
            self.barriers.push(Barrier { parties, waiters: Default::default() });
        }
        for name in objects.names(ObjectKind::SpinBarrier).iter().skip(self.spin_barriers.len()) {
            let parties = declared_parties(self, name).unwrap_or(1);
            self.spin_barriers.push(SpinBarrier::new(parties));
        }
        for name in objects.names(ObjectKind::Sem).iter().skip(self.sems.len()) {
            let mut defs = self.program.semaphores.iter();
            let value =
                defs.find(|d| names::declares(&d.name, name)).map_or(0, |d| u64::from(d.value));
            self.sems.push(Sem::new(value));
        }
        for name in objects.names(ObjectKind::Pipe).iter().skip(self.pipes.len()) {
            let found = self.program.pipes.iter().find(|d| names::declares(&d.name, name));
            let fallback = PipeDef::new(name, PipeKind::Pipe);
            let def = found.unwrap_or(&fallback);
            self.pipes.push(Pipe::new(def.kind, def.capacity(), def.overhead()));
        }
    }

    /// Sets the parties of each barrier without a declaration: the number of threads that exist at
    /// the start of the run and use the barrier.
    fn set_parties(&mut self) {
        let mut users: BTreeMap<(ObjectKind, u32), u32> = BTreeMap::new();
        let compiled = &mut self.compiled;
        let used = |i| compiled.body(i).iter().filter_map(barrier_of).collect();
        let used: Vec<BTreeSet<_>> = (0..compiled.templates.len()).map(used).collect();
        let objects = &mut compiled.objects;
        for (template, used) in compiled.templates.iter().zip(&used) {
            for instance in 0..template.instances {
                let binding: Vec<u32> = template
                    .slots
                    .iter()
                    .map(|(kind, p)| objects.intern(*kind, &names::instance_name(p, instance)))
                    .collect();
                for (kind, res) in used {
                    *users.entry((*kind, res.index(&binding) as u32)).or_default() += 1;
                }
            }
        }
        for ((kind, index), count) in users {
            let name = &self.compiled.objects.names(kind)[index as usize];
            if declared_parties(self, name).is_some() {
                continue;
            }
            match kind {
                ObjectKind::Barrier => self.barriers[index as usize].parties = count,
                _ => self.spin_barriers[index as usize].parties = count,
            }
        }
    }

    /// Forks a thread of the thread template `template`, for a running thread.
    pub(super) fn fork(&mut self, sys: &mut dyn Sys, parent: usize, template: usize) {
        let instance = self.made_of[template];
        if self.spawn(sys, Some(parent), template, instance) {
            self.threads[parent].children += 1;
        }
    }

    /// Makes a thread. If the kernel refuses, records the refusal and returns false.
    pub(super) fn spawn(
        &mut self,
        sys: &mut dyn Sys,
        parent: Option<usize>,
        template: usize,
        instance: u32,
    ) -> bool {
        let name = self.thread_name(template, instance, parent.is_some());
        let process = self.process_of(template, instance);
        let spec = self.task_spec(&name, template, parent, process);
        let cgroup = spec.cgroup;
        let parent_task = parent.map(|p| self.threads[p].task);
        let task = match sys.fork(parent_task, spec) {
            Ok(task) => task,
            Err(error) => {
                if parent.is_none() {
                    let (at, who) = (sys.now(), name.clone());
                    self.missing.get_or_insert(RefusedCall { at, who, what: "fork", error });
                }
                self.fault(sys.now(), name, "fork", error);
                return false;
            }
        };
        let (time_zero, wait) = match parent {
            Some(_) => (sys.now(), Wait::None),
            None => match self.start_offset(sys, task) {
                0 => (0, Wait::None),
                offset => (offset, Wait::Until(offset)),
            },
        };
        let thread = self.new_thread(name, task, template, instance);
        let t = self.place(Thread {
            cgroup,
            process,
            time_zero,
            wait,
            parent: parent.map(|p| (p as u32, self.threads[p].serial)),
            ..thread
        });
        self.adopt(task, t, process);
        self.map_regions(sys, t as usize);
        self.made += 1;
        self.made_of[template] += 1;
        self.live += 1;
        true
    }

    /// Returns a thread's name. rt-app numbers threads over all tasks, and adds a second number to
    /// forked threads. In an scxlab program, the template's name may be a pattern, such as
    /// `vm-{i}`. If the template's name is not a pattern, a thread's name ends with the instance
    /// number if the template has several instances or if the thread was forked.
    fn thread_name(&self, template: usize, instance: u32, forked: bool) -> String {
        let t = &self.compiled.templates[template];
        if self.rtapp_names {
            let forks = self.made_of[template] - t.instances.min(self.made_of[template]);
            let suffix = if forked { format!("-{forks}") } else { String::new() };
            return format!("{}-{}{suffix}", t.name, self.made);
        }
        match names::is_pattern(&t.name) {
            true => names::instance_name(&t.name, instance),
            false if t.instances > 1 || forked => format!("{}-{instance}", t.name),
            false => t.name.clone(),
        }
    }

    fn process_of(&mut self, template: usize, instance: u32) -> Option<u32> {
        let name =
            names::instance_name(self.program.threads[template].process.as_deref()?, instance);
        let number = *self.processes.entry(name).or_insert_with(|| {
            self.last_of_process.push(NO_THREAD);
            (self.last_of_process.len() - 1) as u32
        });
        Some(number)
    }

    fn task_spec(
        &self,
        name: &str,
        template: usize,
        parent: Option<usize>,
        process: Option<u32>,
    ) -> TaskSpec {
        let def = &self.program.threads[template];
        let inherited = parent.map_or(CgroupId(0), |p| self.threads[p].cgroup);
        let own = self.compiled.templates[template].cgroup;
        let nr_cpus = scxlab_machine::cpumask::weight(&self.all_cpus);
        TaskSpec {
            name: name.to_owned(),
            policy: kernel_policy(def.policy),
            nice: def.nice,
            slice_request: def.slice.map_or(0, |s| s.0),
            affinity: def.cpus.as_ref().map(|list| cpu_mask(list, nr_cpus)),
            cgroup: own.map_or(inherited, |i| {
                // An index outside the table, such as `ROOT_CGROUP`, means the root cgroup.
                self.cgroup_ids.get(i as usize).copied().unwrap_or(CgroupId(0))
            }),
            thread_group_of: process.and_then(|p| self.member_of(p, parent)),
            kthread: false,
            footprint_bytes: def.footprint,
        }
    }

    /// Returns a live thread of the process `process`, which a new thread is to join: the new
    /// thread's parent if that belongs to the process, else the thread that joined the process
    /// last, else any live thread of the process; None if the process has no live thread.
    fn member_of(&self, process: u32, parent: Option<usize>) -> Option<TaskId> {
        let belongs =
            |t: usize| self.threads[t].process == Some(process) && self.threads[t].serial != 0;
        if let Some(parent) = parent.filter(|&p| belongs(p)) {
            return Some(self.threads[parent].task);
        }
        let last = self.last_of_process[process as usize];
        let guess = (last != NO_THREAD && belongs(last as usize)).then_some(last as usize);
        let found = guess.or_else(|| (0..self.threads.len()).find(|&t| belongs(t)))?;
        Some(self.threads[found].task)
    }

    fn start_offset(&self, sys: &mut dyn Sys, task: TaskId) -> Nanos {
        match self.perturb.start_offset_max {
            0 => 0,
            max => sys.random("workload.start_offset", task) % max.saturating_add(1),
        }
    }

    fn new_thread(&mut self, name: String, task: TaskId, template: usize, instance: u32) -> Thread {
        self.serial += 1;
        let binding = self.bind(template, instance);
        let t = &self.compiled.templates[template];
        Thread {
            task,
            serial: self.serial,
            name,
            template: template as u32,
            pc: t.entry,
            wait: Wait::None,
            paid: false,
            phased: self.phased[template],
            pending: Pending::None,
            time_zero: 0,
            last_pass_at: NEVER,
            loops: vec![0; t.nr_loops.into()].into(),
            timers: vec![TimerState::default(); t.nr_own_timers.into()].into(),
            accesses: Box::default(),
            binding,
            cgroup: CgroupId(0),
            process: None,
            parent: None,
            wakes: VecDeque::new(),
            children: 0,
            phase: Phase::default(),
        }
    }

    /// Returns the binding of an instance: the indices of the objects that its name patterns stand
    /// for. Makes those objects that no earlier instance named.
    fn bind(&mut self, template: usize, instance: u32) -> Box<[u32]> {
        let objects = &mut self.compiled.objects;
        let slots = &self.compiled.templates[template].slots;
        let binding: Box<[u32]> = slots
            .iter()
            .map(|(kind, pattern)| objects.intern(*kind, &names::instance_name(pattern, instance)))
            .collect();
        if !binding.is_empty() {
            self.grow_objects();
        }
        binding
    }

    /// Puts a thread into a free entry of the executor's thread table, or into a new one. Returns
    /// the entry's index.
    fn place(&mut self, thread: Thread) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.threads[slot as usize] = thread;
            return slot;
        }
        self.threads.push(thread);
        (self.threads.len() - 1) as u32
    }

    fn adopt(&mut self, task: TaskId, t: u32, process: Option<u32>) {
        if self.by_task.len() <= task.idx() {
            self.by_task.resize(task.idx() + 1, NO_THREAD);
        }
        self.by_task[task.idx()] = t;
        if let Some(process) = process {
            self.last_of_process[process as usize] = t;
        }
    }
}

/// Returns the barrier that an instruction uses.
fn barrier_of(insn: &Insn) -> Option<(ObjectKind, crate::compile::insn::ObjectRef)> {
    match *insn {
        Insn::Barrier(res) => Some((ObjectKind::Barrier, res)),
        Insn::SpinBarrier(res) => Some((ObjectKind::SpinBarrier, res)),
        _ => None,
    }
}

fn declared_parties(executor: &Executor, name: &str) -> Option<u32> {
    executor.program.barriers.iter().find(|d| names::declares(&d.name, name)).map(|d| d.parties)
}
