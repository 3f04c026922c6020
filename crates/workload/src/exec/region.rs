// SPDX-License-Identifier: GPL-2.0-only
//! The regions of the program: one per process, per thread or for all, as each declaration says.
//!
//! Owns: the life of regions. A region is made with the first thread that uses it, and freed when
//! its process or thread ends, or executes another program.
//! Does not: know pages or nodes (the kernel does).

use std::collections::BTreeMap;

use scxlab_kernel::behavior::{AccessId, MemPolicy, RegionId, RegionSpec, Sys, TaskStep};
use scxlab_kernel::memory::{Memory, PAGE_BYTES};
use scxlab_machine::id::NodeId;
use serde::{Deserialize, Serialize};

use super::run::noisy;
use super::{Executor, Flow};
use crate::compile::insn::ObjectKind;
use crate::program::{NodeList, RegionDef, RegionPolicy, Sharing, names};

/// Owner of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// Serial number of a thread.
    Thread(u64),
    /// Process number.
    Process(u32),
    All,
}

/// The regions that exist, and the pages of those that are gone.
#[derive(Default)]
pub(super) struct Regions {
    /// By owner and index of the region's name.
    living: BTreeMap<(Owner, u32), Living>,
    gone: Vec<RegionPages>,
}

struct Living {
    id: RegionId,
    region: String,
    owner: String,
    /// By index into `Tables::accesses`.
    accesses: BTreeMap<u32, AccessId>,
}

/// Where the pages of one region lie, or lay when its owner ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionPages {
    /// Name of the process, or of the thread if the region is the thread's or the process has no
    /// name; empty for a region that all share.
    pub owner: String,
    pub region: String,
    /// Number of present pages by node, merged pages included.
    pub pages: Vec<u64>,
}

/// Maximum number of regions of ended owners whose pages are kept.
const GONE_MAX: usize = 10_000;

impl Executor {
    /// Gives a new thread, or one after `execve`, its regions: those that its ops name and that its
    /// process does not have yet.
    pub(super) fn map_regions(&mut self, sys: &mut dyn Sys, t: usize) {
        let template = &self.compiled.templates[self.threads[t].template as usize];
        let accesses = template.accesses.clone();
        let ids: Box<[Option<AccessId>]> =
            accesses.map(|index| self.access(sys, t, index)).collect();
        self.threads[t].accesses = ids;
    }

    /// Returns the id of an access of a thread; None if the kernel refused the region.
    fn access(&mut self, sys: &mut dyn Sys, t: usize, index: u32) -> Option<AccessId> {
        let access = self.compiled.tables.accesses[index as usize].clone();
        let thread = &self.threads[t];
        let object = access.region.index(&thread.binding) as u32;
        let name = self.compiled.objects.names(ObjectKind::Region)[object as usize].clone();
        let mut defs = self.program.regions.iter();
        let def = defs.find(|def| names::declares(&def.name, &name))?.clone();
        let owner = match (def.of, thread.process) {
            (Sharing::All, _) => Owner::All,
            (Sharing::Process, Some(process)) => Owner::Process(process),
            _ => Owner::Thread(thread.serial),
        };
        if !self.regions.living.contains_key(&(owner, object)) {
            let id = match sys.region_new(spec(&def)) {
                Ok(id) => id,
                Err(error) => {
                    self.checked(sys, t, "mmap", Err(error));
                    return None;
                }
            };
            let owner_name = self.owner_name(owner, t);
            let living = Living { id, region: name, owner: owner_name, accesses: BTreeMap::new() };
            self.regions.living.insert((owner, object), living);
        }
        let living = self.regions.living.get_mut(&(owner, object)).expect("present");
        sys.region_map(self.threads[t].task, living.id);
        if let Some(&known) = living.accesses.get(&index) {
            return Some(known);
        }
        match sys.access_new(self.costs.access(&access, living.id)) {
            Ok(id) => Some(*living.accesses.entry(index).or_insert(id)),
            Err(error) => {
                self.checked(sys, t, "mmap", Err(error));
                None
            }
        }
    }

    fn owner_name(&self, owner: Owner, t: usize) -> String {
        match owner {
            Owner::All => String::new(),
            Owner::Thread(_) => self.threads[t].name.clone(),
            Owner::Process(process) => {
                let mut all = self.processes.iter();
                all.find(|(_, number)| **number == process).map_or(String::new(), |p| p.0.clone())
            }
        }
    }

    /// Frees the regions of a thread that ends, and those of its process if no other thread is
    /// left.
    pub(super) fn unmap_regions(&mut self, sys: &mut dyn Sys, t: usize) {
        let thread = &self.threads[t];
        let (serial, process) = (thread.serial, thread.process);
        let others = |p: u32| {
            let mut threads = self.threads.iter().enumerate();
            threads.any(|(i, other)| i != t && other.serial != 0 && other.process == Some(p))
        };
        let last_of = process.filter(|p| !others(*p)).map(Owner::Process);
        for owner in [Some(Owner::Thread(serial)), last_of].into_iter().flatten() {
            let keys = self.regions.living.range((owner, 0)..=(owner, u32::MAX));
            for key in keys.map(|(key, _)| *key).collect::<Vec<_>>() {
                let living = self.regions.living.remove(&key).expect("listed");
                let pages = sys.region_pages(living.id);
                sys.region_free(living.id);
                if self.regions.gone.len() < GONE_MAX {
                    let Living { owner, region, .. } = living;
                    self.regions.gone.push(RegionPages { owner, region, pages });
                }
            }
        }
    }

    /// `execve` replaces the address space of a process that has no other thread.
    pub(super) fn remap_regions(&mut self, sys: &mut dyn Sys, t: usize) {
        let process = self.threads[t].process;
        let mut threads = self.threads.iter().enumerate();
        let shared = |(i, other): (usize, &super::Thread)| {
            i != t && other.serial != 0 && other.process == process
        };
        if process.is_none() || !threads.any(shared) {
            self.unmap_regions(sys, t);
            self.map_regions(sys, t);
        }
    }

    /// Executes `touch` of a region, or `compute` with one.
    pub(super) fn access_region(&mut self, sys: &mut dyn Sys, t: usize, index: u32) -> Flow {
        let thread = &mut self.threads[t];
        let template = &self.compiled.templates[thread.template as usize];
        let local = (index - template.accesses.start) as usize;
        let access = &self.compiled.tables.accesses[index as usize];
        let work = match access.work {
            None => self.costs.touch(&access.touch),
            Some((work, _)) => {
                thread.note_run(sys.now(), work);
                match self.perturb.compute_noise_permille {
                    0 => work,
                    noise => noisy(work, noise, sys, thread.task),
                }
            }
        };
        match thread.accesses[local] {
            Some(access) if work > 0 => {
                sys.set_access(thread.task, access);
                Flow::Yield(TaskStep::Memory { work })
            }
            _ => Flow::Next,
        }
    }

    /// Returns where the pages of each region lie, or lay when its owner ended. `memory` is the
    /// kernel's memory.
    pub fn region_pages(&self, memory: Option<&Memory>) -> Vec<RegionPages> {
        let mut all = self.regions.gone.clone();
        for living in self.regions.living.values() {
            let Some(region) = memory.and_then(|memory| memory.region(living.id)) else { continue };
            let (owner, name) = (living.owner.clone(), living.region.clone());
            all.push(RegionPages { owner, region: name, pages: region.pages_by_node() });
        }
        all
    }
}

/// Returns a declaration in the form of the simulated kernel.
pub(super) fn spec(def: &RegionDef) -> RegionSpec {
    let nodes = |list: &NodeList| list.0.iter().map(NodeId).collect::<Vec<_>>();
    RegionSpec {
        name: def.name.clone(),
        pages: def.size.0.div_ceil(PAGE_BYTES),
        policy: match &def.policy {
            RegionPolicy::FirstTouch => MemPolicy::FirstTouch,
            RegionPolicy::Interleave(list) => MemPolicy::Interleave(nodes(list)),
            RegionPolicy::Bind(list) => MemPolicy::Bind(nodes(list)),
            RegionPolicy::Preferred(node) => MemPolicy::Preferred(NodeId(*node)),
        },
        populate: def.populate.as_ref().map_or(Vec::new(), nodes),
        huge: def.is_huge(),
        merge_percent: def.merge,
    }
}
