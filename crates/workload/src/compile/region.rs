// SPDX-License-Identifier: GPL-2.0-only
//! The checks of regions, and of the ops that name them.
//!
//! Owns: sizes, references, cpusets that contradict a region, and what depends on the machine's
//! nodes (`check_nodes`).

use std::collections::{BTreeMap, BTreeSet};

use super::check::{Checked, invalid, visit};
use super::{MAX_BYTES, NodeInfo};
use crate::error::WorkloadError;
use crate::program::{
    GuestDef, NodeList, Op, Part, Program, RegionDef, RegionPolicy, Sharing, names,
};

/// Returns the declaration of the region that an op names. The name may be a pattern; it counts as
/// the name for instance 0.
pub(super) fn declaration<'a>(program: &'a Program, name: &str) -> Option<&'a RegionDef> {
    Some(&program.regions[declared(program, name)?])
}

fn declared(program: &Program, name: &str) -> Option<usize> {
    let name = names::instance_name(name, 0);
    program.regions.iter().position(|def| names::declares(&def.name, &name))
}

/// Checks everything that does not depend on the machine.
pub(super) fn check(program: &Program) -> Checked {
    let mut seen = BTreeSet::new();
    for (i, def) in program.regions.iter().enumerate() {
        let fail = |problem: &str| {
            let problem = format!("region \"{}\": {problem}", def.name);
            invalid(program.place(Part::Entry("region", i)), problem)
        };
        if def.name.is_empty() {
            return fail("a region needs a name");
        }
        if let Err(problem) = names::resolve(&def.name, 0) {
            return fail(&problem);
        }
        if !seen.insert(&def.name) {
            return fail("is declared twice");
        }
        if let Err(problem) = definition(def) {
            return fail(problem);
        }
    }
    program.threads.iter().enumerate().try_for_each(|(i, _)| thread(program, i))
}

/// Checks a region's size, pages and sharing.
pub(super) fn definition(def: &RegionDef) -> Result<(), &'static str> {
    if !(1..=MAX_BYTES).contains(&def.size.0) {
        return Err("its size is from 1 byte to 1 TiB");
    }
    if def.merge > 100 {
        return Err("merge is a percentage from 0 to 100");
    }
    if def.merge > 0 && def.is_huge() {
        return Err("merge needs small pages: set huge = false");
    }
    if def.merge > 0 && def.of == Sharing::All {
        return Err("merge is for private memory, not for of = \"all\"");
    }
    if def.is_huge() && def.of == Sharing::All {
        return Err("huge pages are for private memory, not for of = \"all\"");
    }
    Ok(())
}

/// Checks the regions that a thread template's ops name, and its moves between cgroups.
fn thread(program: &Program, thread: usize) -> Checked {
    let mut result = Ok(());
    let template = &program.threads[thread];
    let mems_of = |path: &str| effective_mems(program, path);
    let own_mems = template.cgroup.as_deref().map_or(Vec::new(), mems_of);
    let uses_regions = !regions_of(program, thread).is_empty();
    visit(&template.ops, &mut |number, op| {
        let at = || program.place(Part::Op { thread, number });
        let found = match op {
            Op::MoveCgroup(path) if uses_regions && mems_of(path) != own_mems => {
                invalid(at(), "a thread that uses regions moves to a cgroup with other mems")
            }
            _ => match named(op) {
                Some((name, offset, size)) => window(program, at(), name, offset, size),
                None => Ok(()),
            },
        };
        if result.is_ok() {
            result = found;
        }
    });
    result
}

/// Returns the region that an op names, with offset and size.
fn named(op: &Op) -> Option<(&str, u64, Option<u64>)> {
    match op {
        Op::Compute(arg) => {
            let m = arg.memory.as_ref()?;
            Some((&m.region, m.offset, m.size.map(|s| s.0)))
        }
        Op::Touch(arg) => Some((arg.region.as_deref()?, arg.offset, arg.size.map(|s| s.0))),
        _ => None,
    }
}

fn window(
    program: &Program,
    at: crate::error::SourcePlace,
    name: &str,
    offset: u64,
    size: Option<u64>,
) -> Checked {
    let Some(def) = declaration(program, name) else {
        let candidates = program.regions.iter().map(|def| def.name.clone()).collect();
        let name = name.to_owned();
        return Err(WorkloadError::UnknownName { at, kind: "region", name, candidates });
    };
    let whole = def.size.0;
    let end = offset.saturating_add(size.unwrap_or(1));
    if size == Some(0) || end > whole {
        let problem = format!(
            "accesses bytes {offset} to {end} of region \"{}\", which has {whole} bytes",
            def.name
        );
        return invalid(at, problem);
    }
    Ok(())
}

/// Returns the indices of the declarations that a thread template's ops name.
fn regions_of(program: &Program, thread: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    visit(&program.threads[thread].ops, &mut |_, op| {
        found.extend(named(op).and_then(|(name, ..)| declared(program, name)));
    });
    found
}

/// Returns the nodes of a cgroup's `mems` and those of its parents, outermost first. Two cgroups
/// with equal lists allow the same nodes.
fn effective_mems(program: &Program, path: &str) -> Vec<NodeList> {
    let above =
        |def: &str| path == def || path.strip_prefix(def).is_some_and(|r| r.starts_with('/'));
    let mut found: Vec<_> = program.cgroups.iter().filter(|def| above(&def.path)).collect();
    found.sort_by_key(|def| def.path.len());
    found.into_iter().filter_map(|def| def.mems.clone()).collect()
}

/// Checks everything that depends on the machine's nodes.
pub(super) fn check_nodes(program: &Program, nodes: &[NodeInfo]) -> Checked {
    let usable = |n: u32| nodes.get(n as usize).is_some_and(|node| node.memory_bytes > 0);
    let known = || {
        let with_memory = (0..nodes.len() as u32).filter(|n| usable(*n));
        let numbers: Vec<String> = with_memory.map(|n| n.to_string()).collect();
        numbers.join(", ")
    };
    let refuse = |part: Part, what: String, list: &[u32]| match list.iter().find(|n| !usable(**n)) {
        Some(n) => {
            let problem = format!("{what} names node {n}; nodes with memory are {}", known());
            invalid(program.place(part), problem)
        }
        None => Ok(()),
    };
    for (i, def) in program.cgroups.iter().enumerate() {
        let mems: Vec<u32> = def.mems.iter().flat_map(|mems| mems.0.iter()).collect();
        refuse(Part::Entry("cgroup", i), format!("mems of cgroup {}", def.path), &mems)?;
    }
    let own = program.regions.iter().enumerate();
    let own = own.map(|(i, def)| {
        (Part::Entry("region", i), format!("region \"{}\"", def.name), def.clone())
    });
    let of_guests = program.guests.iter().enumerate().filter_map(|(i, guest)| {
        let name = format!("the memory of guest \"{}\"", guest.name);
        Some((Part::Entry("guest", i), name, guest.memory.as_ref()?.region()))
    });
    for (part, name, def) in own.chain(of_guests) {
        refuse(part, format!("the policy of {name}"), &def.policy.nodes())?;
        let populate: Vec<u32> = def.populate.iter().flat_map(|list| list.0.iter()).collect();
        refuse(part, format!("populate of {name}"), &populate)?;
        let RegionPolicy::Bind(set) = &def.policy else { continue };
        let room: u64 = set.0.iter().map(|n| nodes[n as usize].memory_bytes).sum();
        if def.size.0 > room {
            let problem = format!(
                "{name} has {}; the nodes that it is bound to ({set}) have {}",
                gib(def.size.0),
                gib(room)
            );
            return invalid(program.place(part), problem);
        }
    }
    cpusets(program)?;
    all_regions(program, nodes)
}

/// Refuses regions whose nodes the cpuset of a user excludes. `mbind(2)` would fail.
fn cpusets(program: &Program) -> Checked {
    for (thread, template) in program.threads.iter().enumerate() {
        let Some(path) = &template.cgroup else { continue };
        let Some(mems) = effective_mems(program, path).pop() else { continue };
        let allowed: Vec<u32> = mems.0.iter().collect();
        for i in regions_of(program, thread) {
            let def = &program.regions[i];
            let populate: Vec<u32> = def.populate.iter().flat_map(|list| list.0.iter()).collect();
            for nodes in [def.policy.nodes(), populate] {
                if !nodes.is_empty() && !nodes.iter().any(|n| allowed.contains(n)) {
                    let region = program.place(Part::Entry("region", i));
                    let problem = format!(
                        "thread \"{}\" is in cgroup {path}, whose mems ({mems}) exclude every node \
                         that region \"{}\" ({region}) names",
                        template.name, def.name
                    );
                    return invalid(program.place(Part::Entry("thread", thread)), problem);
                }
            }
        }
    }
    Ok(())
}

/// Refuses regions of the start that are larger than all memory together.
fn all_regions(program: &Program, nodes: &[NodeInfo]) -> Checked {
    let wanted = bytes_of_start(program);
    let room: u128 = nodes.iter().map(|node| u128::from(node.memory_bytes)).sum();
    if wanted <= room {
        return Ok(());
    }
    let (wanted, room) = (wanted.min(u64::MAX.into()) as u64, room.min(u64::MAX.into()) as u64);
    let guests = if program.guests.is_empty() { "" } else { " and the guests" };
    let problem = format!(
        "the regions{guests} of the start have {}; the machine has {}",
        gib(wanted),
        gib(room)
    );
    let first = if program.regions.is_empty() { "guest" } else { "region" };
    invalid(program.place(Part::Entry(first, 0)), problem)
}

/// Returns the size of the memory of all guests, and of the regions of all threads that exist at
/// the start.
pub(super) fn bytes_of_start(program: &Program) -> u128 {
    let mut owners: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    for (thread, template) in program.threads.iter().enumerate() {
        let mut used: Vec<(usize, &str)> = Vec::new();
        visit(&template.ops, &mut |_, op| {
            used.extend(named(op).and_then(|(name, ..)| Some((declared(program, name)?, name))));
        });
        for (i, name) in used {
            for instance in 0..template.instances {
                let own = names::instance_name(name, instance);
                let process =
                    template.process.as_deref().map(|p| names::instance_name(p, instance));
                let alone = format!("{thread}/{instance}");
                let owner = match (program.regions[i].of, process) {
                    (Sharing::All, _) => String::new(),
                    (Sharing::Process, Some(process)) => format!("process {process}"),
                    _ => alone,
                };
                owners.entry(i).or_default().insert(format!("{own} of {owner}"));
            }
        }
    }
    let bytes = |(i, owners): (&usize, &BTreeSet<String>)| {
        u128::from(program.regions[*i].size.0) * owners.len() as u128
    };
    let of_guest = |guest: &GuestDef| {
        let size = guest.memory.as_ref().map_or(0, |memory| memory.size.0);
        u128::from(size) * u128::from(guest.instances)
    };
    let of_guests: u128 = program.guests.iter().map(of_guest).sum();
    owners.iter().map(bytes).sum::<u128>() + of_guests
}

/// Formats a size in the largest unit of which it has at least one, rounded down.
fn gib(bytes: u64) -> String {
    match bytes {
        0x4000_0000.. => format!("{} GiB", bytes >> 30),
        0x10_0000.. => format!("{} MiB", bytes >> 20),
        _ => format!("{} KiB", bytes >> 10),
    }
}
