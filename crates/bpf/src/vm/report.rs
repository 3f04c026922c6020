// SPDX-License-Identifier: GPL-2.0-only
//! Turning a place in an image into something a reader can act on.

use super::{FuncId, Image, Instance};
use crate::fault::Place;
use crate::insn::disasm;
use crate::insn::uses::RegSet;
use crate::jit::live;

impl Image {
    /// The function that contains a slot.
    pub fn func_at(&self, pc: u32) -> Option<FuncId> {
        let inside = |func: &super::Func| pc.wrapping_sub(func.start) < func.len;
        self.funcs.iter().position(inside).map(|at| FuncId(at as u32))
    }

    /// Registers that something from this slot on may read.
    pub(crate) fn live_at(&self, pc: u32) -> RegSet {
        let Some(func) = self.func_at(pc).and_then(|id| self.func(id)) else {
            return RegSet::default();
        };
        live(&self.code, func).get((pc - func.start) as usize).copied().unwrap_or_default()
    }

    /// `file:line: text` of a slot, if the object has line information for it.
    pub fn source_at(&self, pc: u32) -> Option<String> {
        let after = self.lines.partition_point(|line| line.pc <= pc);
        let line = self.lines.get(after.checked_sub(1)?)?;
        // Line information of another function does not count.
        let func = self.func_at(pc)?;
        (line.pc >= self.funcs[func.idx()].start)
            .then(|| format!("{}:{}: {}", line.file, line.line, line.text.trim()))
    }

    /// The instruction as llvm-objdump writes it; kfuncs by name where known.
    pub fn text_at(&self, pc: u32) -> String {
        match self.code.get(pc as usize) {
            Some(insn) => disasm(insn, pc, self),
            None => String::from("<outside the code>"),
        }
    }
}

/// Describe a slot of an instance.
pub(super) fn place(instance: &Instance, pc: u32) -> Place {
    let image = &instance.image;
    let func = image.func_at(pc).unwrap_or(FuncId(0));
    let (name, section, start) = match image.func(func) {
        Some(func) => (func.name.clone(), func.section.clone(), func.start),
        None => (String::from("?"), String::from("?"), 0),
    };
    Place {
        instance: instance.id,
        object: instance.name.clone(),
        func,
        func_name: name,
        section,
        insn: pc - start,
        text: image.text_at(pc),
        source: image.source_at(pc),
    }
}
