// SPDX-License-Identifier: GPL-2.0-only
//! The data fixed before the first thread exists: the compiled program, and the name, process,
//! objects and barrier parties of every instance.
//!
//! Owns: the tables that all processes of a run read and none writes. Equal plans give equal
//! tables, so that a process can rebuild them after `execve`.
//! Follows: the rules of `exec/spawn.rs` for names, parties and processes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;

use scxlab_machine::id::Nanos;
use serde::{Deserialize, Serialize};

use super::guests::GuestProcess;
use super::region::{self, RegionTable};
use super::report::Calibration;
use super::sys::{self, Mask};
use crate::compile::insn::{Insn, ObjectKind, ObjectRef, Xattr};
use crate::compile::{self, Compiled};
use crate::error::{SourcePlace, WorkloadError};
use crate::program::{CpuList, Part, PipeDef, PipeKind, Program, Sharing, names};

/// Number of instances of a forked thread template, beyond its instances at the start, for which
/// the run prepares object names with `{i}`.
const FORKED_BOUND: u32 = 1024;
/// Number of slots (thread records in shared memory) for forked threads.
const FORKED_SLOTS: u32 = 16_384;
/// Number of records of regions for forked threads.
const FORKED_REGIONS: usize = 4096;
/// Process index of a thread whose process has no name.
pub const NO_PROCESS: u32 = u32::MAX;
/// Maximum size in bytes of a write that the kernel does atomically (PIPE_BUF).
const PIPE_BUF: u64 = 4096;

/// The message from the caller to the director.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub program: Program,
    pub from_rtapp: bool,
    pub parent: i32,
    pub duration: Option<Nanos>,
    pub seed: u64,
    pub start_offset_max: Nanos,
    pub compute_noise_permille: u32,
    /// CPUs that the threads may use.
    pub cpus: Vec<u32>,
    /// Whether the caller limits the run to `cpus`. If not, `cpus` holds the CPUs that the threads
    /// inherit.
    pub restrict: bool,
    pub cgroups: Option<CgroupPlace>,
    pub calibration: Option<Calibration>,
    pub io_latency: Nanos,
    pub io_kib: Nanos,
    pub grace: Nanos,
    /// Descriptor of the `StartSignal`.
    pub start_fd: Option<i32>,
    /// Descriptor of the `GateEnd`.
    pub gate_fd: Option<i32>,
    /// Processes of the program's guests, in the order of `Program::guest_instances`.
    pub guests: Vec<GuestProcess>,
}

/// Location of the program's cgroups.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CgroupPlace {
    /// The cgroup2 mount point.
    pub mount: String,
    /// The directory that serves as the program's "/".
    pub base: String,
}

/// The plan, its compiled program, and tables of every instance that can exist.
pub struct Tables {
    pub plan: Plan,
    pub compiled: Compiled,
    /// Threads that exist at the start, in the order in which they are made.
    pub start: Vec<Start>,
    pub templates: Vec<TemplateTable>,
    pub nr_processes: u32,
    /// Whether each mutex is barging.
    pub barging: Vec<bool>,
    pub barriers: Vec<u32>,
    pub spin_barriers: Vec<u32>,
    pub sems: Vec<u32>,
    pub pipes: Vec<PipeTable>,
    pub masks: Vec<Box<Mask>>,
    pub all_cpus: Box<Mask>,
    /// Arguments for the `set_xattr` ops, indexed like `compiled.tables.xattrs`.
    pub xattrs: Vec<XattrCall>,
    pub nr_slots: u32,
    pub max_loops: u32,
    pub max_timers: u32,
    /// Names of the processes, by process index.
    pub process_names: Vec<String>,
    /// Regions, by the index of their objects.
    pub regions: Vec<RegionTable>,
    /// Largest number of accesses of a template to regions.
    pub max_accesses: u32,
    pub nr_region_records: usize,
}

/// Arguments of one `setxattr` call.
pub struct XattrCall {
    pub path: CString,
    pub name: CString,
    pub value: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub template: u32,
    pub instance: u32,
    pub process: u32,
}

/// Properties of a thread template that its instances do not share, and the size of their buffers.
pub struct TemplateTable {
    /// Bindings, indexed by instance: the indices of the instance's own objects. If no object name
    /// depends on the instance, one empty binding serves all instances.
    bindings: Vec<Box<[u32]>>,
    processes: Vec<u32>,
    pub mask: Option<Box<Mask>>,
    /// Size in bytes of the largest buffer that the template's ops touch.
    pub touched: u64,
}

pub struct PipeTable {
    pub kind: PipeKind,
    /// Argument of `F_SETPIPE_SZ` or `SO_SNDBUF`; None: the kernel's default.
    pub capacity: Option<u64>,
    /// Whether each transfer waits for its turn, because the transfers differ in size or one
    /// exceeds PIPE_BUF.
    pub turns: bool,
}

fn xattr_calls(plan: &Plan, compiled: &Compiled) -> Vec<XattrCall> {
    let base = plan.cgroups.as_ref().map_or("", |place| place.base.as_str());
    let call = |x: &Xattr| {
        let below = x.cgroup.map_or("", |c| compiled.cgroups[c as usize].path.as_str());
        // `compile::check` has refused a NUL in an attribute's name. If a cgroup's path contains a
        // NUL, the run ends before the first call, because the cgroup cannot be created.
        let text = |text: String| CString::new(text).unwrap_or_default();
        XattrCall {
            path: text(format!("{base}{below}")),
            name: text(x.name.clone()),
            value: x.value.clone().into_bytes(),
        }
    };
    compiled.tables.xattrs.iter().map(call).collect()
}

impl TemplateTable {
    /// Returns the binding of an instance: the indices of its own objects. None if the run has not
    /// prepared names for so many instances.
    pub fn binding(&self, instance: u32) -> Option<&[u32]> {
        let fixed = self.bindings.len() == 1 && self.bindings[0].is_empty();
        self.bindings.get(if fixed { 0 } else { instance as usize }).map(|b| &b[..])
    }

    pub fn process(&self, instance: u32) -> Option<u32> {
        let fixed = self.processes.len() == 1;
        self.processes.get(if fixed { 0 } else { instance as usize }).copied()
    }
}

impl Tables {
    pub fn new(mut plan: Plan) -> Result<Self, WorkloadError> {
        plan.program.from_rtapp = plan.from_rtapp;
        let compiled = compile::compile(&plan.program)?;
        let program = &plan.program;
        known_cpus(program, &plan.cpus)?;
        let mask = |list: &CpuList| sys::mask_of(list.iter());
        let mut tables = Tables {
            start: Vec::new(),
            templates: Vec::new(),
            nr_processes: 0,
            barging: Vec::new(),
            barriers: Vec::new(),
            spin_barriers: Vec::new(),
            sems: Vec::new(),
            pipes: Vec::new(),
            masks: compiled.tables.affinities.iter().map(mask).collect(),
            xattrs: xattr_calls(&plan, &compiled),
            all_cpus: sys::mask_of(plan.cpus.iter().copied()),
            nr_slots: 0,
            max_loops: compiled.templates.iter().map(|t| t.nr_loops.into()).max().unwrap_or(0),
            max_timers: compiled
                .templates
                .iter()
                .map(|t| t.nr_own_timers.into())
                .max()
                .unwrap_or(0),
            process_names: Vec::new(),
            regions: Vec::new(),
            max_accesses: compiled
                .templates
                .iter()
                .map(|t| t.accesses.len() as u32)
                .max()
                .unwrap_or(0),
            nr_region_records: 0,
            compiled,
            plan,
        };
        tables.bind();
        tables.regions = RegionTable::all(&tables);
        tables.parties();
        tables.values();
        tables.threads();
        tables.nr_region_records = tables.region_records();
        Ok(tables)
    }

    /// Returns the instructions of a thread template.
    pub fn body(&self, template: usize) -> &[Insn] {
        let end = self.compiled.templates.get(template + 1).map(|t| t.entry as usize);
        let code = &self.compiled.code;
        &code[self.compiled.templates[template].entry as usize..end.unwrap_or(code.len())]
    }

    /// Interns the names of the shared objects and processes of every instance that can exist. The
    /// instances of a thread template are those that exist at the start of the run, followed by
    /// `FORKED_BOUND` more if a thread forks the template.
    fn bind(&mut self) {
        let forks: BTreeSet<u32> = self.compiled.code.iter().filter_map(forked).collect();
        let mut processes: BTreeMap<String, u32> = BTreeMap::new();
        for (t, def) in self.plan.program.threads.iter().enumerate() {
            let compiled = &mut self.compiled;
            let slots = compiled.templates[t].slots.clone();
            let more = if forks.contains(&(t as u32)) { FORKED_BOUND } else { 0 };
            let instances = def.instances.saturating_add(more);
            let patterned = def.process.as_deref().is_some_and(names::is_pattern);
            let mut bindings: Vec<Box<[u32]>> = Vec::new();
            for i in 0..if slots.is_empty() { 1 } else { instances } {
                let object = |(kind, p): &(ObjectKind, String)| {
                    compiled.objects.intern(*kind, &names::instance_name(p, i))
                };
                bindings.push(slots.iter().map(object).collect());
            }
            let mut numbers = Vec::new();
            for i in 0..if patterned { instances } else { 1 } {
                let known = def.process.as_deref().map(|p| names::instance_name(p, i));
                let next = u32::try_from(processes.len()).unwrap_or(NO_PROCESS);
                numbers.push(known.map_or(NO_PROCESS, |n| *processes.entry(n).or_insert(next)));
            }
            let touched = self.body(t).iter().filter_map(|insn| match insn {
                Insn::Touch(i) => Some(self.compiled.tables.touches[*i as usize].size),
                _ => None,
            });
            let touched = touched.max().unwrap_or(0);
            let mask = def.cpus.as_ref().map(|list| sys::mask_of(list.iter()));
            self.templates.push(TemplateTable { bindings, processes: numbers, mask, touched });
        }
        self.nr_processes = processes.len() as u32;
        self.process_names = vec![String::new(); processes.len()];
        for (name, number) in processes {
            self.process_names[number as usize] = name;
        }
    }

    /// Returns the owner and the region's object of each access of a thread of the start, each pair
    /// once.
    fn regions_of_start(&self) -> BTreeSet<(u64, usize)> {
        let mut found = BTreeSet::new();
        for (i, start) in self.start.iter().enumerate() {
            let accesses = self.compiled.templates[start.template as usize].accesses.clone();
            let table = &self.templates[start.template as usize];
            let Some(binding) = table.binding(start.instance) else { continue };
            for access in accesses {
                let access = &self.compiled.tables.accesses[access as usize];
                let object = access.region.index(binding);
                let serial = i as u64 + 1;
                let owner = region::owner_of(self.regions[object].of, start.process, serial);
                found.insert((owner, object));
            }
        }
        found
    }

    fn region_records(&self) -> usize {
        let forked = if self.max_accesses > 0 && self.forks() { FORKED_REGIONS } else { 0 };
        self.regions_of_start().len() + forked
    }

    /// Sets the parties of each barrier. A barrier without a declaration waits for every thread
    /// that exists at the start of the run and uses the barrier.
    fn parties(&mut self) {
        let mut users: BTreeMap<(ObjectKind, u32), u32> = BTreeMap::new();
        for (t, def) in self.plan.program.threads.iter().enumerate() {
            let used: BTreeSet<_> = self.body(t).iter().filter_map(barrier_of).collect();
            for instance in 0..if used.is_empty() { 0 } else { def.instances } {
                let Some(binding) = self.templates[t].binding(instance) else { continue };
                for (kind, res) in &used {
                    *users.entry((*kind, res.index(binding) as u32)).or_default() += 1;
                }
            }
        }
        let defs = &self.plan.program.barriers;
        let parties = |kind: ObjectKind| {
            let names = self.compiled.objects.names(kind).iter();
            let count = |(i, name): (usize, &String)| {
                let declared =
                    defs.iter().find(|d| names::declares(&d.name, name)).map(|d| d.parties);
                let used = users.get(&(kind, i as u32)).copied();
                declared.or(used).unwrap_or(1)
            };
            names.enumerate().map(count).collect()
        };
        (self.barriers, self.spin_barriers) =
            (parties(ObjectKind::Barrier), parties(ObjectKind::SpinBarrier));
    }

    fn values(&mut self) {
        let program = &self.plan.program;
        let names = self.compiled.objects.names(ObjectKind::Sem).iter();
        let value = |name: &String| {
            program
                .semaphores
                .iter()
                .find(|d| names::declares(&d.name, name))
                .map_or(0, |d| d.value)
        };
        self.sems = names.map(value).collect();
        let names = self.compiled.objects.names(ObjectKind::Mutex).iter();
        self.barging = names.map(|name| program.is_barging(name)).collect();
        let sizes = self.pipe_sizes();
        let pipe = |(i, name): (usize, &String)| {
            let found = program.pipes.iter().find(|d| names::declares(&d.name, name));
            let fallback = PipeDef::new(name, PipeKind::Pipe);
            let def = found.unwrap_or(&fallback);
            let one_size = sizes.get(&(i as u32)).is_none_or(|s| s.len() == 1);
            let atomic =
                sizes.get(&(i as u32)).is_none_or(|s| s.iter().all(|n| (1..=PIPE_BUF).contains(n)));
            PipeTable { kind: def.kind, capacity: def.capacity, turns: !(one_size && atomic) }
        };
        let names = self.compiled.objects.names(ObjectKind::Pipe).iter();
        self.pipes = names.enumerate().map(pipe).collect();
    }

    /// Returns the set of transfer sizes of each pipe, reads and writes together.
    fn pipe_sizes(&self) -> BTreeMap<u32, BTreeSet<u64>> {
        let mut sizes: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        for (t, table) in self.templates.iter().enumerate() {
            for insn in self.body(t) {
                for (pipe, bytes) in insn.transfers(&self.compiled.tables) {
                    for binding in &table.bindings {
                        sizes.entry(pipe.index(binding) as u32).or_default().insert(bytes);
                    }
                }
            }
        }
        sizes
    }

    fn threads(&mut self) {
        for (t, def) in self.plan.program.threads.iter().enumerate() {
            for instance in 0..def.instances {
                let process = self.templates[t].process(instance).unwrap_or(NO_PROCESS);
                self.start.push(Start { template: t as u32, instance, process });
            }
        }
        self.nr_slots = self.start.len() as u32 + if self.forks() { FORKED_SLOTS } else { 0 };
    }

    /// Whether any thread of the program forks.
    pub fn forks(&self) -> bool {
        self.compiled.code.iter().any(|insn| matches!(insn, Insn::Fork(_)))
    }

    /// Returns a thread's name. rt-app numbers threads over all tasks, and adds a second number to
    /// forked threads. In an scxlab program, the template's name may be a pattern, such as
    /// `vm-{i}`. If the template's name is not a pattern, a thread's name ends with the instance
    /// number if the template has several instances or if the thread was forked. `made` is the
    /// number of all threads made before this one, `made_of` the number of those among them that
    /// were made from the template.
    pub fn thread_name(
        &self,
        template: u32,
        instance: u32,
        made: u32,
        made_of: u32,
        forked: bool,
    ) -> String {
        let t = &self.compiled.templates[template as usize];
        if self.plan.from_rtapp {
            let forks = made_of.saturating_sub(t.instances);
            let suffix = if forked { format!("-{forks}") } else { String::new() };
            return format!("{}-{made}{suffix}", t.name);
        }
        match names::is_pattern(&t.name) {
            true => names::instance_name(&t.name, instance),
            false if t.instances > 1 || forked => format!("{}-{instance}", t.name),
            false => t.name.clone(),
        }
    }

    /// Returns the total size in bytes of the buffers and regions of the threads that exist at the
    /// start.
    pub fn memory(&self) -> u64 {
        let of = |s: &Start| self.templates[s.template as usize].touched;
        let buffers = self.start.iter().map(of).fold(0, u64::saturating_add);
        let mut shared = BTreeSet::new();
        let regions = self.regions_of_start().into_iter().filter(|(_, object)| {
            self.regions[*object].of != Sharing::All || shared.insert(*object)
        });
        regions
            .map(|(_, object)| self.regions[object].bytes as u64)
            .fold(buffers, u64::saturating_add)
    }
}

/// Returns a thread's name as the kernel keeps it: up to 15 bytes and a terminating zero.
pub fn comm(name: &str) -> [u8; 16] {
    let mut comm = [0; 16];
    for (to, from) in comm[..15].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    comm
}

fn forked(insn: &Insn) -> Option<u32> {
    match insn {
        Insn::Fork(template) => Some(*template),
        _ => None,
    }
}

fn barrier_of(insn: &Insn) -> Option<(ObjectKind, ObjectRef)> {
    match *insn {
        Insn::Barrier(res) => Some((ObjectKind::Barrier, res)),
        Insn::SpinBarrier(res) => Some((ObjectKind::SpinBarrier, res)),
        _ => None,
    }
}

/// Checks that every CPU that the program names is one that the run may use.
fn known_cpus(program: &Program, cpus: &[u32]) -> Result<(), WorkloadError> {
    let nr_cpus = cpus.iter().max().map_or(0, |max| max + 1);
    let check = |at: SourcePlace, who: &str, list: &CpuList| match list
        .iter()
        .find(|c| !cpus.contains(c))
    {
        None => Ok(()),
        Some(cpu) if cpu >= nr_cpus => {
            Err(WorkloadError::NoSuchCpu { at, thread: who.to_owned(), cpu, nr_cpus })
        }
        Some(cpu) => Err(WorkloadError::Invalid {
            at,
            problem: format!("thread \"{who}\" names CPU {cpu}, which this run may not use"),
        }),
    };
    for (part, thread, list) in compile::cpu_lists(program) {
        check(program.place(part), thread, list)?;
    }
    for (number, guest) in program.guests.iter().enumerate() {
        let place = || program.place(Part::Entry("guest", number));
        guest.cpus.iter().try_for_each(|list| check(place(), &guest.name, list))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
