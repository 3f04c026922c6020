// SPDX-License-Identifier: GPL-2.0-only
//! What of a scheduler does not run: the part of its frontend that a recipe leaves out or, without a recipe, all of a
//! frontend that the object shows to need one, and programs that nothing starts.
//!
//! Owns: the signs of a frontend that is absent. Each is proof: only user space can do what it names, and the object's
//! programs depend on it. Constants and arrays that a frontend might set are no sign, since their defaults may be right.
//! Does not: judge how much it matters.

use scxlab_bpf::map::map_type;
use scxlab_loader::object::{MapSpec, Object, ProgramKind, RelocTarget, code};

use crate::prepare::PreparedObject;

/// One line each. `is_attached` tells, of a program that watches the kernel, whether this target runs it.
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
        // A recipe says which optional programs its frontend loads; without one they are the frontend's choice.
        let wanted = prepared.open.is_loaded(*index) || prepared.recipe.is_none();
        wanted && is_watcher(kind) && !is_attached(&f.name, kind)
    });
    let idle: Vec<&str> = idle.map(|(_, f, _)| f.name.as_str()).collect();
    if !idle.is_empty() {
        all.push(format!("programs that watch the kernel: {}", listed(&idle)));
    }
    all
}

/// A program that something in the kernel starts, other than the scheduler's own operations.
fn is_watcher(kind: &ProgramKind) -> bool {
    match kind {
        ProgramKind::StructOps { .. } | ProgramKind::Syscall => false,
        ProgramKind::Trace { target, .. } => target != REGISTRATION,
        ProgramKind::Other => true,
    }
}

/// What the kernel calls to register a scheduler. The common headers of sched_ext watch it once, to learn how the kernel
/// starts programs; nothing is scheduled by that.
const REGISTRATION: &str = "bpf_scx_reg";

/// The frontend, if the object needs one and has no recipe.
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
    (!alone.is_empty()).then(|| format!("its frontend, which alone {}", alone.join(" and ")))
}

/// Whether programs take from the map what only user space can have put there: a user ring buffer, or a map without
/// elements at first, of which no program makes one.
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
            !all.is_empty() && all.iter().all(|call| call.is_some_and(|id| TAKES.contains(&id)))
        }
        _ => false,
    }
}

/// The helper that is called next, which the map is an argument of; None if that is no helper, as far as can be seen.
fn next_call(insns: &[scxlab_bpf::insn::RawInsn], from: usize) -> Option<u32> {
    let first = insns.get(from)?;
    let call = insns[from..].iter().find(|insn| insn.code == code::CALL)?;
    (first.dst() == MAP_ARGUMENT && call.src() == 0).then_some(call.imm as u32)
}

/// The register of a helper's first argument.
const MAP_ARGUMENT: u8 = 1;
/// Helpers that leave no more in a map than there was: `bpf_map_lookup_elem`, `bpf_map_delete_elem`, `bpf_map_pop_elem`,
/// `bpf_map_peek_elem`, `bpf_for_each_map_elem`.
const TAKES: [u32; 5] = [1, 3, 88, 89, 164];

/// The first few by name, and how many more there are.
fn listed(names: &[&str]) -> String {
    const SHOWN: usize = 4;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
