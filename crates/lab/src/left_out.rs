// SPDX-License-Identifier: GPL-2.0-only
//! The parts of a scheduler that a run leaves out. With a recipe, these are the parts of the
//! frontend that the recipe does not perform. Without a recipe, it is the whole frontend, if the
//! object shows that it needs one. In both cases, programs that nothing starts are left out too.
//!
//! Owns: the signs of an absent frontend. Each sign is proof: it names an action that only user
//! space can perform, and on which the object's programs depend. Constants and arrays that a
//! frontend might set are no sign, because their defaults may be right.
//! Does not: judge how much the omission matters.

use scxlab_bpf::map::map_type;
use scxlab_loader::object::{MapSpec, Object, ProgramKind, RelocTarget, code};

use crate::prepare::PreparedObject;

/// Returns one line for each kind of omitted part. `is_attached` tells whether this target runs a
/// given program that watches the kernel.
pub fn left_out(
    prepared: &PreparedObject,
    is_attached: impl Fn(&str, &ProgramKind) -> bool,
) -> Vec<String> {
    let object = prepared.open.object();
    let mut all = match &prepared.recipe {
        Some(r) => r.recipe.leaves_out.clone(),
        None => frontend(object).into_iter().collect(),
    };
    let idle = object.programs().filter(|(index, f, kind)| {
        // A recipe loads the same programs as the frontend, so a program that the recipe does not
        // load is not missing. Without a recipe, any program may be one that the frontend loads.
        let wanted = prepared.open.is_loaded(*index) || prepared.recipe.is_none();
        wanted && is_watcher(kind) && !is_attached(&f.name, kind)
    });
    let idle: Vec<&str> = idle.map(|(_, f, _)| f.name.as_str()).collect();
    if !idle.is_empty() {
        all.push(format!("programs that watch the kernel: {}", listed(&idle)));
    }
    all
}

/// Tells whether the program is started by an event in the kernel, such as a tracepoint, and not as
/// a scheduler operation or by user space.
fn is_watcher(kind: &ProgramKind) -> bool {
    match kind {
        ProgramKind::StructOps { .. } | ProgramKind::Syscall => false,
        ProgramKind::Trace { target, .. } => target != REGISTRATION,
        ProgramKind::Other => true,
    }
}

/// The function that the kernel calls to register a scheduler. The common headers of sched_ext have
/// a program that traces one call of it, to learn how the kernel starts programs. That program does
/// not affect scheduling.
const REGISTRATION: &str = "bpf_scx_reg";

/// Describes the missing frontend of an object without a recipe; None if the object shows no sign
/// that it needs a frontend.
fn frontend(object: &Object) -> Option<String> {
    let runs: Vec<&str> = object
        .programs()
        .filter(|(_, _, kind)| **kind == ProgramKind::Syscall)
        .map(|(_, f, _)| f.name.as_str())
        .collect();
    let used = |(index, map): (usize, &MapSpec)| is_filled_outside(object, index, map);
    let fills: Vec<&str> = object
        .maps
        .iter()
        .enumerate()
        .filter(|(index, map)| used((*index, map)))
        .map(|(_, map)| map.name.as_str())
        .collect();
    let mut alone = Vec::new();
    if !fills.is_empty() {
        alone.push(format!("fills {}", listed(&fills)));
    }
    if !runs.is_empty() {
        alone.push(format!("runs {}", listed(&runs)));
    }
    (!alone.is_empty()).then(|| format!("its frontend; only user space {}", alone.join(" and ")))
}

/// Tells whether programs use a map that only user space can fill: a user ring buffer, or a map
/// that is empty after load and to which no program adds an element.
fn is_filled_outside(object: &Object, index: usize, map: &MapSpec) -> bool {
    let mut uses = object.functions.iter().flat_map(|f| {
        let here = f.relocs.iter().filter(move |r| r.target == RelocTarget::Map(index));
        here.map(move |r| next_call(&f.insns, r.insn as usize))
    });
    match map.map_type {
        map_type::USER_RINGBUF => uses.next().is_some(),
        map_type::HASH
        | map_type::LRU_HASH
        | map_type::PERCPU_HASH
        | map_type::LRU_PERCPU_HASH
        | map_type::QUEUE
        | map_type::STACK => {
            let all: Vec<Option<u32>> = uses.collect();
            !all.is_empty()
                && all.iter().all(|call| call.is_some_and(|id| NON_INSERTING_HELPERS.contains(&id)))
        }
        _ => false,
    }
}

/// Returns the id of the helper that the next call after instruction `from` calls; `from` loads a
/// map's address. Returns None if the next call is not a helper call, or if `from` does not load
/// the address into the register of the first argument. The scan is linear and ignores jumps.
fn next_call(insns: &[scxlab_bpf::insn::RawInsn], from: usize) -> Option<u32> {
    let first = insns.get(from)?;
    let call = insns[from..].iter().find(|insn| insn.code == code::CALL)?;
    (first.dst() == MAP_ARGUMENT && call.src() == 0).then_some(call.imm as u32)
}

/// Register of a helper's first argument.
const MAP_ARGUMENT: u8 = 1;
/// Ids of helpers that add no element to a map: `bpf_map_lookup_elem`, `bpf_map_delete_elem`,
/// `bpf_map_pop_elem`, `bpf_map_peek_elem`, `bpf_for_each_map_elem`.
const NON_INSERTING_HELPERS: [u32; 5] = [1, 3, 88, 89, 164];

/// Lists the first few names and the number of further names.
fn listed(names: &[&str]) -> String {
    const SHOWN: usize = 4;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
