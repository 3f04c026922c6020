// SPDX-License-Identifier: GPL-2.0-only
//! Descriptions of a slot of an image for reports: function, disassembly, source line.

use std::{fmt, ptr};

use super::stack::CALL_SLOT_OFFSET;
use super::{CallSite, Func, FuncId, Image, Instance, Line, Vm};
use crate::fault::BacktraceFrame;
use crate::insn::disasm;
use crate::insn::uses::RegSet;
use crate::jit::{live, next};

/// Largest number of source lines, after the first, that a report lists as possible origins of an
/// inlined instruction.
const WAYS: usize = 4;

impl Image {
    /// Returns the function that contains a slot.
    pub fn func_at(&self, pc: u32) -> Option<FuncId> {
        let inside = |func: &super::Func| pc.wrapping_sub(func.start) < func.len;
        self.funcs.iter().position(inside).map(|at| FuncId(at as u32))
    }

    /// Returns the registers that the instruction in this slot, or one after it, may read.
    pub(crate) fn live_at(&self, pc: u32) -> RegSet {
        let Some(func) = self.func_at(pc).and_then(|id| self.func(id)) else {
            return RegSet::default();
        };
        live(&self.code, func).get((pc - func.start) as usize).copied().unwrap_or_default()
    }

    /// Returns `file:line: text` of a slot, if the object has line information for it; some objects
    /// lack the text. A slot inlined from another file also names the last line of the function's
    /// own file on each path to it: `file:line, at or after file:line`. The call itself may be on a
    /// later line, for which the compiler made no instruction.
    pub fn source_at(&self, pc: u32) -> Option<String> {
        let func = self.func(self.func_at(pc)?)?;
        let line = self.line_in(func, pc)?;
        let outer = self.lines_before(func, pc);
        let [first, rest @ ..] = &outer[..] else { return Some(line.to_string()) };
        let more = if rest.len() > WAYS { " or others" } else { "" };
        let rest = rest.iter().take(WAYS).map(|line| format!(" or {}", line.line));
        let rest: String = rest.chain([more.to_owned()]).collect();
        let Line { file, line, .. } = line;
        Some(format!("{file}:{line}, at or after {}:{}{rest}", first.file, first.line))
    }

    /// Returns the line information of a slot, ignoring lines that belong to another function.
    fn line_in(&self, func: &Func, pc: u32) -> Option<&Line> {
        let after = self.lines.partition_point(|line| line.pc <= pc);
        self.lines.get(after.checked_sub(1)?).filter(|line| line.pc >= func.start)
    }

    /// Returns, for a slot whose line is in another file, the last line of the function's own file
    /// on each path to the slot. An object does not record where a function was inlined.
    fn lines_before(&self, func: &Func, pc: u32) -> Vec<&Line> {
        let Some(own) = self.line_in(func, func.start).map(|line| &line.file) else {
            return Vec::new();
        };
        let next = next(&self.code, func);
        let mut before = vec![Vec::new(); next.len()];
        for (at, to) in (func.start..).zip(&next) {
            let inside = to.iter().flatten().map(|to| (to - func.start) as usize);
            inside.for_each(|to| before.get_mut(to).into_iter().for_each(|all| all.push(at)));
        }
        let (mut seen, mut queue, mut found) = (vec![false; next.len()], vec![pc], Vec::new());
        while let Some(at) = queue.pop() {
            let nth = (at - func.start) as usize;
            if std::mem::replace(&mut seen[nth], true) {
                continue;
            }
            match self.line_in(func, at).filter(|line| line.file == *own) {
                Some(line) => found.push(line),
                None => queue.extend(&before[nth]),
            }
        }
        found.sort_by_key(|line| line.line);
        found.dedup_by_key(|line| line.line);
        let here = self.line_in(func, pc).is_some_and(|line| line.file == *own);
        if here { Vec::new() } else { found }
    }

    /// Returns the instruction as llvm-objdump prints it; a kfunc appears by its name if the image
    /// knows it.
    pub fn text_at(&self, pc: u32) -> String {
        match self.code.get(pc as usize) {
            Some(insn) => disasm(insn, pc, self),
            None => String::from("<outside the code>"),
        }
    }
}

impl Line {
    fn after(&self) -> String {
        let text = self.text.trim();
        if text.is_empty() { String::new() } else { format!(": {text}") }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}{}", self.file, self.line, self.after())
    }
}

impl Vm {
    /// Returns the kernel function call that the innermost program is making; None while no program
    /// runs. The host may ask only while that kernel function runs. At other times the result may
    /// be a different call.
    pub fn call_site(&self) -> Option<CallSite> {
        self.running().then(|| self.contexts.calling().unwrap_or(self.calling))
    }

    /// Describes a call site; None if its instance is gone.
    pub fn place_of(&self, site: CallSite) -> Option<BacktraceFrame> {
        Some(place(self.instance(site.instance)?, site.pc))
    }

    /// Returns the frames that lead to a call made by the innermost program, innermost first.
    pub fn backtrace(&self, site: CallSite) -> Vec<BacktraceFrame> {
        let callers = (0..site.depth).rev().map(|depth| {
            let pc = *self.mem.own_ref::<u32>(self.stacks.frame_pointer(depth) + CALL_SLOT_OFFSET);
            CallSite { pc, depth, ..site }
        });
        std::iter::once(site).chain(callers).filter_map(|site| self.place_of(site)).collect()
    }

    /// Records that the interpreter makes this kernel function call.
    #[inline]
    pub(crate) fn calls_from(&mut self, site: CallSite) {
        self.calling = site;
        self.contexts.set_calling(ptr::null());
    }

    /// Records the slot of the call that a frame waits for. The frame is in the guest stack of the
    /// innermost program.
    #[inline]
    pub(crate) fn record_pending_call(&mut self, depth: u32, pc: u32) {
        let at = self.stacks.frame_pointer(depth) + CALL_SLOT_OFFSET;
        *self.mem.own_mut::<u32>(at) = pc;
    }
}

/// Describes the place of a slot of an instance, as a frame of a backtrace.
pub(super) fn place(instance: &Instance, pc: u32) -> BacktraceFrame {
    let image = &instance.image;
    let func = image.func_at(pc).unwrap_or(FuncId(0));
    let (name, section, start) = match image.func(func) {
        Some(func) => (func.name.clone(), func.section.clone(), func.start),
        None => (String::from("?"), String::from("?"), 0),
    };
    BacktraceFrame {
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
