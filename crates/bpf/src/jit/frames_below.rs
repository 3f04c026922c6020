// SPDX-License-Identifier: GPL-2.0-only
//! Largest number of stack frames that the calls of a function need below the function's own frame.
//!
//! Owns: that computation.
//! Does not: count callbacks and calls by address, which have a depth check of their own.
//!
//! If no function is recursive, directly or indirectly, one check on entry into machine code covers
//! all calls in it.

use crate::insn::Op;
use crate::vm::Image;
use std::collections::BTreeMap;

/// Returns, for each function of an image, the largest number of frames below its own; None if a
/// function is recursive.
pub fn all(image: &Image) -> Option<Vec<u8>> {
    let at_slot: BTreeMap<u32, usize> =
        image.funcs.iter().enumerate().map(|(at, func)| (func.start, at)).collect();
    let callees: Vec<Vec<usize>> = image
        .funcs
        .iter()
        .map(|func| {
            let slots = func.start as usize..(func.start + func.len) as usize;
            let slots = image.code.get(slots).unwrap_or_default();
            let calls = slots.iter().filter(|insn| insn.op == Op::CallFunc);
            calls.filter_map(|insn| at_slot.get(&(insn.off as u32)).copied()).collect()
        })
        .collect();
    let mut counts: Vec<Option<u8>> = vec![None; callees.len()];
    // Each round assigns a count to the functions whose callees all have one. Recursive functions
    // never get one.
    loop {
        let known = |callee: &usize| counts[*callee].map(|count| count.saturating_add(1));
        let count = |at: usize| {
            callees[at].iter().map(known).try_fold(0, |most, next| Some(most.max(next?)))
        };
        let found: Vec<(usize, u8)> = (0..callees.len())
            .filter(|at| counts[*at].is_none())
            .filter_map(|at| Some((at, count(at)?)))
            .collect();
        if found.is_empty() {
            return counts.into_iter().collect();
        }
        found.into_iter().for_each(|(at, count)| counts[at] = Some(count));
    }
}
