// SPDX-License-Identifier: GPL-2.0-only
//! Calls during which no page loses a permission, so that the result of a check before the call
//! still holds after it. A page that gains a permission meanwhile makes the check merely too
//! strict, and a refused access is checked again outside the code.
//!
//! Owns: the list of helpers and built-in kernel functions of which this is known.
//! Does not: trust a kernel function of the host that is not in `InPlaceFuncs`, because it may run
//! other programs.

use std::collections::BTreeMap;

use super::InPlaceFuncs;
use crate::insn::{Insn, Op};
use crate::kfunc::{self, KfuncId};
use crate::vm::Image;

/// Helpers that free no memory: lookups, clocks, the CPU and its variables, random numbers, the
/// current task, spin locks, values of local storage.
const HELPERS: &[u32] = &[1, 5, 7, 8, 14, 35, 93, 94, 118, 125, 153, 154, 156, 158, 160, 195, 210];

/// The functions of an image that call only functions, helpers and kernel functions during which no
/// page loses a permission.
pub struct KeepsMemory {
    in_place: InPlaceFuncs,
    /// By first slot.
    funcs: BTreeMap<u32, bool>,
}

impl KeepsMemory {
    pub fn of(image: &Image, in_place: InPlaceFuncs) -> KeepsMemory {
        let funcs = image.funcs.iter().map(|func| (func.start, true)).collect();
        let mut found = KeepsMemory { in_place, funcs };
        // Each round removes the functions that call a removed one.
        loop {
            let keeps = |start: u32, len: u32| {
                let slots = start as usize..(start + len) as usize;
                let slots = image.code.get(slots).unwrap_or_default();
                slots.iter().all(|insn| !calls(insn) || found.call(insn))
            };
            let lost =
                image.funcs.iter().filter(|f| found.funcs[&f.start] && !keeps(f.start, f.len));
            let lost: Vec<u32> = lost.map(|func| func.start).collect();
            if lost.is_empty() {
                return found;
            }
            found.funcs.extend(lost.into_iter().map(|start| (start, false)));
        }
    }

    /// Returns whether no page loses a permission during a call.
    pub fn call(&self, call: &Insn) -> bool {
        let number = call.imm as u32;
        match call.op {
            Op::CallFunc => self.funcs.get(&(call.off as u32)).copied().unwrap_or(false),
            Op::CallHelper => HELPERS.contains(&number),
            Op::CallKfunc => {
                let id = KfuncId(number);
                let InPlaceFuncs { test_cpu, task_cpu, now, .. } = self.in_place;
                let of_host = [test_cpu, task_cpu.map(|(id, _)| id), now];
                kfunc::in_place(id).is_some() || of_host.contains(&Some(id))
            }
            _ => false,
        }
    }
}

fn calls(insn: &Insn) -> bool {
    matches!(insn.op, Op::CallFunc | Op::CallReg | Op::CallHelper | Op::CallKfunc | Op::TailCall)
}
