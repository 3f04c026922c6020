// SPDX-License-Identifier: GPL-2.0-only
//! The compiler from a program as data to flat code: it checks the program, numbers its objects,
//! and lays out its loops.
//!
//! Owns: the rules for a correct program (with `compile/check.rs`), and every limit on its size.
//! Does not: know the machine. The executors know it and check CPU numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::error::WorkloadError;
pub use crate::program::arg::MAX_BYTES;
use crate::program::{CgroupDef, CpuList, Op, Part, Program, ThreadTemplate, TimerMode, names};

mod check;
mod guests;
pub mod insn;
mod region;

pub use check::undeclared_cgroups;
use insn::{Insn, LongCall, NR_KINDS, ObjectKind, ObjectRef, ROOT_CGROUP, Tables};

/// Maximum number of threads at the start of a run, over all thread templates.
pub const MAX_THREADS: u64 = 100_000;
/// Maximum number of instructions of all thread templates together. An instruction takes 24 bytes.
pub const MAX_INSNS: usize = 1 << 24;
/// Maximum number of a thread's own timers, and of names in a thread that depend on the instance.
pub const MAX_OBJECTS: usize = 4096;
/// Maximum nesting depth of loops and phases.
pub const MAX_NESTING: u16 = 32;

/// A compiled program, ready to run.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub code: Vec<Insn>,
    pub templates: Vec<Template>,
    pub objects: Objects,
    pub tables: Tables,
    /// Every cgroup of the program except the root, parents before children.
    pub cgroups: Vec<CgroupDef>,
}

impl Compiled {
    /// Returns the instructions of a thread template.
    pub fn body(&self, template: usize) -> &[Insn] {
        let end = self.templates.get(template + 1).map_or(self.code.len(), |t| t.entry as usize);
        &self.code[self.templates[template].entry as usize..end]
    }

    /// Whether a thread template has phases, whose passes are measured and reported.
    pub fn has_phases(&self, template: usize) -> bool {
        self.body(template).contains(&Insn::PhaseBegin)
    }
}

/// A compiled thread template: the properties that all its instances (threads) share.
#[derive(Clone, Debug)]
pub struct Template {
    pub name: String,
    pub entry: u32,
    pub instances: u32,
    pub nr_loops: u16,
    pub nr_own_timers: u16,
    /// The template's slots: objects that differ between instances, by kind and name pattern. A
    /// thread's binding is the list of the indices of its own objects, in the order of the slots.
    pub slots: Vec<(ObjectKind, String)>,
    /// The template's part of `Tables::accesses`.
    pub accesses: Range<u32>,
    /// Index into `Compiled::cgroups`. With None, a forked thread gets its parent's cgroup, and a
    /// thread that exists at the start of the run gets the root.
    pub cgroup: Option<u32>,
}

/// Names of the shared objects, and each object's index within its kind.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    index: BTreeMap<(ObjectKind, String), u32>,
    names: [Vec<String>; NR_KINDS],
}

impl Objects {
    /// Returns the index of the object of that name, which is added if it is new.
    pub fn intern(&mut self, kind: ObjectKind, name: &str) -> u32 {
        if let Some(&index) = self.index.get(&(kind, name.to_owned())) {
            return index;
        }
        let names = &mut self.names[kind as usize];
        let index = u32::try_from(names.len()).unwrap_or(u32::MAX);
        names.push(name.to_owned());
        self.index.insert((kind, name.to_owned()), index);
        index
    }

    /// Returns the names of all shared objects of a kind, in the order of their indices.
    pub fn names(&self, kind: ObjectKind) -> &[String] {
        &self.names[kind as usize]
    }
}

/// Checks a program. Returns the first error.
pub fn check(program: &Program) -> Result<(), WorkloadError> {
    check::program(program)?;
    lower(program).map(drop)
}

/// Checks the parts of a program that depend on the machine's nodes: policies, sizes, cpusets.
pub fn check_nodes(program: &Program, nodes: &[NodeInfo]) -> Result<(), WorkloadError> {
    region::check_nodes(program, nodes)
}

/// Returns the size in bytes of the regions of all threads that exist at the start.
pub fn region_bytes(program: &Program) -> u64 {
    u64::try_from(region::bytes_of_start(program)).unwrap_or(u64::MAX)
}

/// A node of the machine, as far as programs depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    pub memory_bytes: u64,
}

/// Returns the names along a cycle of threads that fork one another, with the first repeated at the
/// end.
pub fn fork_cycle(program: &Program) -> Option<Vec<String>> {
    check::fork_cycle(program)
}

/// Returns every cgroup of a correct program except the root, parents before children. Includes
/// cgroups that only an op, a thread or the path of another cgroup names.
pub fn cgroups(program: &Program) -> Vec<CgroupDef> {
    check::cgroups(program).unwrap_or_default()
}

/// Returns the lists of CPUs that the program's threads and their ops name, each with its place and
/// its thread.
pub(crate) fn cpu_lists(program: &Program) -> Vec<(Part, &str, &CpuList)> {
    let mut lists = Vec::new();
    for (thread, template) in program.threads.iter().enumerate() {
        let name = template.name.as_str();
        lists.extend(template.cpus.iter().map(|list| (Part::Entry("thread", thread), name, list)));
        check::visit(&template.ops, &mut |number, op| {
            if let Op::SetAffinity(list) | Op::CpuOffline(list) | Op::CpuOnline(list) = op {
                lists.push((Part::Op { thread, number }, name, list));
            }
        });
    }
    lists
}

/// Checks and compiles a program.
pub fn compile(program: &Program) -> Result<Compiled, WorkloadError> {
    check::program(program)?;
    lower(program)
}

fn lower(program: &Program) -> Result<Compiled, WorkloadError> {
    let cgroups = check::cgroups(program)?;
    let mut lowering = Lowering {
        program,
        out: Compiled {
            code: Vec::new(),
            templates: Vec::new(),
            objects: Objects::default(),
            tables: Tables::default(),
            cgroups,
        },
        absolute: absolute_timers(program),
        template_index: indices(program.threads.iter().map(|t| t.name.as_str())),
        cgroup_index: BTreeMap::new(),
        slots: Vec::new(),
        own_timers: Vec::new(),
        nr_loops: 0,
    };
    let paths: Vec<String> = lowering.out.cgroups.iter().map(|c| c.path.clone()).collect();
    lowering.cgroup_index = indices(paths.iter().map(String::as_str));
    for (i, thread) in program.threads.iter().enumerate() {
        lowering.thread(i, thread)?;
    }
    Ok(lowering.out)
}

/// Returns the timers with the mode `absolute`, each as a pair of template and name; the template
/// is None for a shared timer. A timer is absolute if any of its uses is, because rt-app keeps the
/// mode in the timer.
fn absolute_timers(program: &Program) -> BTreeSet<(Option<usize>, String)> {
    let mut found = BTreeSet::new();
    for (i, thread) in program.threads.iter().enumerate() {
        check::visit(&thread.ops, &mut |_, op| {
            if let Op::Timer { name, mode: TimerMode::Absolute, unique, .. } = op {
                found.insert((unique.then_some(i), name.clone()));
            }
        });
    }
    found
}

struct Lowering<'a> {
    program: &'a Program,
    out: Compiled,
    absolute: BTreeSet<(Option<usize>, String)>,
    template_index: BTreeMap<String, u32>,
    cgroup_index: BTreeMap<String, u32>,
    /// This field and the next two belong to the template being compiled.
    slots: Vec<(ObjectKind, String)>,
    own_timers: Vec<String>,
    nr_loops: u16,
}

impl Lowering<'_> {
    fn thread(&mut self, index: usize, thread: &ThreadTemplate) -> Result<(), WorkloadError> {
        self.slots.clear();
        self.own_timers.clear();
        self.nr_loops = 0;
        let entry = self.here();
        let first_access = self.nr_accesses();
        if let Some(delay) = thread.delay {
            self.emit(Insn::Delay(delay.0))?;
        }
        self.ops(index, &thread.ops, 0)?;
        self.emit(Insn::Takes(LongCall::Exit))?;
        self.emit(Insn::Exit)?;
        self.bounded("number of timers of a thread", self.own_timers.len(), MAX_OBJECTS)?;
        self.bounded("number of {i} names of a thread", self.slots.len(), MAX_OBJECTS)?;
        let cgroup = thread.cgroup.as_deref();
        let cgroup = cgroup.map(|path| self.cgroup(path).unwrap_or(ROOT_CGROUP));
        self.out.templates.push(Template {
            name: thread.name.clone(),
            entry,
            instances: thread.instances,
            nr_loops: self.nr_loops,
            nr_own_timers: u16::try_from(self.own_timers.len()).unwrap_or(u16::MAX),
            slots: self.slots.clone(),
            accesses: first_access..self.nr_accesses(),
            cgroup,
        });
        Ok(())
    }

    fn nr_accesses(&self) -> u32 {
        self.out.tables.accesses.len() as u32
    }

    fn here(&self) -> u32 {
        u32::try_from(self.out.code.len()).unwrap_or(u32::MAX)
    }

    fn emit(&mut self, insn: Insn) -> Result<(), WorkloadError> {
        self.out.code.push(insn);
        self.bounded("number of ops", self.out.code.len(), MAX_INSNS)
    }

    fn bounded(&self, what: &'static str, value: usize, max: usize) -> Result<(), WorkloadError> {
        if value <= max {
            return Ok(());
        }
        let at = self.program.whole();
        Err(WorkloadError::Limit { at, what, value: value as u64, max: max as u64 })
    }

    fn ops(&mut self, thread: usize, ops: &[Op], depth: u16) -> Result<(), WorkloadError> {
        for op in ops {
            match op {
                Op::Loop { times, ops } => self.looped(thread, *times, ops, depth, false)?,
                Op::Phase { times, ops, .. } => self.looped(thread, *times, ops, depth, true)?,
                op => self.simple(thread, op)?,
            }
        }
        Ok(())
    }

    fn looped(
        &mut self,
        thread: usize,
        times: Option<u64>,
        ops: &[Op],
        depth: u16,
        phase: bool,
    ) -> Result<(), WorkloadError> {
        self.nr_loops = self.nr_loops.max(depth + 1);
        let init = self.here();
        if let Some(times) = times {
            self.emit(Insn::LoopInit { slot: depth, times, end: 0 })?;
        }
        let start = self.here();
        if phase {
            self.emit(Insn::PhaseBegin)?;
        }
        self.ops(thread, ops, depth + 1)?;
        if phase {
            self.emit(Insn::PhaseEnd)?;
        }
        match times {
            None => self.emit(Insn::Jump(start))?,
            Some(_) => self.emit(Insn::LoopNext { slot: depth, start })?,
        }
        let after = self.here();
        if let Some(Insn::LoopInit { end, .. }) = self.out.code.get_mut(init as usize) {
            *end = after;
        }
        Ok(())
    }

    fn object(&mut self, kind: ObjectKind, name: &str) -> ObjectRef {
        if !names::is_pattern(name) {
            return ObjectRef::direct(self.out.objects.intern(kind, name));
        }
        let known = self.slots.iter().position(|(k, n)| *k == kind && n == name);
        let slot = known.unwrap_or_else(|| {
            self.slots.push((kind, name.to_owned()));
            self.slots.len() - 1
        });
        ObjectRef::bound(u32::try_from(slot).unwrap_or(u32::MAX >> 1))
    }

    fn template(&self, name: &str) -> u32 {
        // `check::forks` has refused programs that fork a thread template that does not exist.
        self.template_index.get(name).copied().unwrap_or(0)
    }

    fn cgroup(&self, path: &str) -> Option<u32> {
        self.cgroup_index.get(path).copied()
    }
}

/// Returns a map from each name to its position in `names`.
fn indices<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<String, u32> {
    names.map(str::to_owned).zip(0..).collect()
}

#[cfg(test)]
mod tests;
