// SPDX-License-Identifier: GPL-2.0-only
//! The code of an instance: all loaded functions, one after the other, with every reference
//! resolved.
//!
//! Owns: choosing the functions that programs can reach, patching them, and replacing the
//! instructions that must not be executed.
//! Does not: decode (see `insn::decode`).

use std::collections::BTreeMap;
use std::sync::Arc;

use indexmap::IndexSet;

use super::Target;
use super::error::LinkErrorKind;
use super::externs::ExternBinding;
use super::place::PlacedSection;
use crate::btf::{Btf, BtfKind, TypeId};
use crate::core_relo::patch::{Patched, patch};
use crate::core_relo::{self, RelocKind};
use crate::object::{Extern, ExternKind, Function, Object, ProgramKind, Reloc, RelocTarget, code};
use scxlab_bpf::insn::{self, Insn, Op, RawInsn};
use scxlab_bpf::kfunc::{self, KfuncId};
use scxlab_bpf::map::{LocalType, LocalTypes};
use scxlab_bpf::vm::{Func, FuncId, Image, InstanceParts, Line};

/// First kernel function id that marks a poisoned instruction. A call with an id from here on
/// replaces an instruction that must not be executed, and stops the run. `Image::kfunc_names` says
/// what the instruction needs and the kernel lacks.
pub const POISON: u32 = 0xc000_0000;

/// Code under construction. Function `i` of the image is function `order[i]` of the object.
pub struct ImageBuilder {
    order: Vec<usize>,
    /// Indexed by function of the object: the number of the function in the image, if the function
    /// is loaded.
    index: Vec<Option<usize>>,
    /// First slot of each image function.
    starts: Vec<u32>,
    raw: Vec<RawInsn>,
    /// Indexed by slot: whether the instruction there is a load through a kernel pointer, which
    /// reads 0 where nothing is mapped.
    is_kernel_load: Vec<bool>,
    /// Descriptions of what poisoned instructions need. `POISON` plus the index of a description is
    /// the id in the instruction's call.
    poison_descriptions: IndexSet<String>,
    /// Indexed by slot: whether the instruction there is poisoned.
    poisoned: Vec<bool>,
    /// Indexed by slot: whether a relocation has resolved the call there.
    call_bound: Vec<bool>,
}

/// Addresses and bindings that relocations write into the code.
pub struct Addresses<'a> {
    pub maps: Vec<u64>,
    pub sections: &'a [PlacedSection],
    pub kconfig: u64,
    pub externs: &'a [ExternBinding],
}

/// Takes the programs and all functions that they can reach, in the object's order.
pub fn select(object: &Object, programs: &[usize]) -> ImageBuilder {
    let mut wanted = vec![false; object.functions.len()];
    let mut queue = programs.to_vec();
    while let Some(f) = queue.pop() {
        if std::mem::replace(&mut wanted[f], true) {
            continue;
        }
        queue.extend(object.functions[f].relocs.iter().filter_map(|r| match r.target {
            RelocTarget::Function(callee) if !wanted[callee] => Some(callee),
            _ => None,
        }));
    }
    let order: Vec<usize> = (0..wanted.len()).filter(|f| wanted[*f]).collect();
    let mut code = ImageBuilder {
        index: vec![None; wanted.len()],
        starts: Vec::with_capacity(order.len()),
        raw: Vec::new(),
        is_kernel_load: Vec::new(),
        poison_descriptions: IndexSet::new(),
        poisoned: Vec::new(),
        call_bound: Vec::new(),
        order,
    };
    for (at, f) in code.order.iter().enumerate() {
        code.index[*f] = Some(at);
        code.starts.push(code.raw.len() as u32);
        code.raw.extend_from_slice(&object.functions[*f].insns);
    }
    code.is_kernel_load = vec![false; code.raw.len()];
    code.poisoned = vec![false; code.raw.len()];
    code.call_bound = vec![false; code.raw.len()];
    code
}

impl ImageBuilder {
    /// Applies the CO-RE relocations.
    pub fn relocate_core(&mut self, object: &Object, target: &Btf) -> Result<(), LinkErrorKind> {
        let mut budget = core_relo::Budget::default();
        for (at, f) in self.order.clone().into_iter().enumerate() {
            let function = &object.functions[f];
            let start = self.starts[at] as usize;
            let range = start..start + function.insns.len();
            for relo in &function.core_relos {
                let insn = function.section_start + relo.insn;
                let place = |source| LinkErrorKind::Core {
                    section: function.section.clone(),
                    insn,
                    source,
                };
                let resolved = core_relo::resolve_within(&object.btf, target, relo, &mut budget)
                    .map_err(place)?;
                let insns = &mut self.raw[range.clone()];
                let patched = patch(insns, relo.insn as usize, &resolved).map_err(|source| {
                    LinkErrorKind::Patch {
                        section: function.section.clone(),
                        insn,
                        field: core_relo::describe(&object.btf, relo),
                        source,
                    }
                })?;
                let slot = start + relo.insn as usize;
                let what = || core_relo::describe(&object.btf, relo);
                match patched {
                    Patched::Poisoned => {
                        self.poison(slot, format!("{}, which the kernel lacks", what()));
                    }
                    Patched::WrongSize => {
                        let why = "whose size the kernel has changed";
                        self.poison(slot, format!("{}, {why}", what()));
                    }
                    Patched::Done => self.mark_probe(slot, relo.kind),
                }
            }
        }
        Ok(())
    }

    /// Marks a load of a kernel field. Such a load goes through a kernel pointer, so it reads 0
    /// where nothing is mapped.
    fn mark_probe(&mut self, slot: usize, kind: RelocKind) {
        let is_load = code::class(&self.raw[slot]) == code::CLASS_LDX;
        self.is_kernel_load[slot] |= is_load && kind == RelocKind::FieldByteOffset;
    }

    /// Replaces an instruction by a call that stops the run and reports `what`. A valid program may
    /// contain such instructions in code that no run reaches, because the program tests for a field
    /// before it uses the field.
    fn poison(&mut self, slot: usize, what: String) {
        let (n, _) = self.poison_descriptions.insert_full(what);
        let slots = if self.raw[slot].code == code::LD_IMM64 { 2 } else { 1 };
        for at in slot..slot + slots {
            self.set_call(at, insn::call::KFUNC, (POISON | n as u32) as i32);
            self.is_kernel_load[at] = false;
            self.poisoned[at] = true;
        }
    }

    /// Resolves references to maps, data, functions and externs.
    pub fn relocate(&mut self, object: &Object, to: &Addresses<'_>) -> Result<(), LinkErrorKind> {
        for (at, f) in self.order.clone().into_iter().enumerate() {
            let function = &object.functions[f];
            for reloc in &function.relocs {
                self.relocate_one(object, function, self.starts[at], reloc, to)?;
            }
        }
        Ok(())
    }

    fn relocate_one(
        &mut self,
        object: &Object,
        function: &Function,
        start: u32,
        reloc: &Reloc,
        to: &Addresses<'_>,
    ) -> Result<(), LinkErrorKind> {
        let slot = (start + reloc.insn) as usize;
        let bad = |what: &str| LinkErrorKind::Code {
            section: function.section.clone(),
            insn: function.section_start + reloc.insn,
            what: what.to_owned(),
        };
        if self.poisoned[slot] {
            return Ok(());
        }
        let is_call = self.raw[slot].code == code::CALL;
        match reloc.target {
            RelocTarget::Map(map) => self.set_imm64(slot, to.maps[map]),
            RelocTarget::Data { section, offset } => {
                let place = to.sections[section];
                if offset >= place.size {
                    return Err(bad("address past the end of its data section"));
                }
                self.set_imm64(slot, place.addr + offset);
            }
            RelocTarget::Function(callee) => {
                let callee = self.index[callee].ok_or_else(|| bad("function was not loaded"))?;
                if is_call {
                    let distance = i64::from(self.starts[callee]) - slot as i64 - 1;
                    let distance = i32::try_from(distance).map_err(|_| bad("call too far"))?;
                    self.set_call(slot, insn::call::FUNC, distance);
                } else {
                    self.set_imm64(slot, insn::func_addr(FuncId(callee as u32)));
                }
            }
            RelocTarget::Extern(ext) => {
                let name = &object.externs[ext].name;
                match &to.externs[ext] {
                    ExternBinding::Kfunc(id) if is_call => {
                        self.set_call(slot, insn::call::KFUNC, id.0 as i32);
                    }
                    ExternBinding::Kfunc(id) => self.set_imm64(slot, kfunc::kfunc_addr(*id)),
                    _ if is_call
                        && !matches!(object.externs[ext].kind, ExternKind::Func { .. }) =>
                    {
                        return Err(bad("call of a variable"));
                    }
                    ExternBinding::Absent(why) if is_call => {
                        self.poison(slot, format!("call of {name}: {why}"));
                    }
                    ExternBinding::Absent(_) => self.set_imm64(slot, 0),
                    ExternBinding::Var { addr, .. } => self.set_imm64(slot, *addr),
                    ExternBinding::Kconfig { offset, .. } => {
                        self.set_imm64(slot, to.kconfig + offset);
                    }
                }
            }
        }
        Ok(())
    }

    fn set_imm64(&mut self, slot: usize, value: u64) {
        let dst = self.raw[slot].dst();
        self.raw[slot] = RawInsn::new(code::LD_IMM64, dst, 0, 0, value as i32);
        // `object/reloc.rs` has checked that the `ld_imm64` has its second slot.
        self.raw[slot + 1].imm = (value >> 32) as i32;
    }

    fn set_call(&mut self, slot: usize, kind: u8, imm: i32) {
        self.raw[slot] = RawInsn::new(code::CALL, 0, kind, 0, imm);
        self.call_bound[slot] = true;
    }

    /// Refuses calls of kernel functions that no relocation has bound to an extern. The number that
    /// the file has in such a call would select from the simulator's table of kernel functions. A
    /// real kernel would take the number for a BTF id that nothing has checked.
    fn refuse_unbound_calls(&self, object: &Object) -> Result<(), LinkErrorKind> {
        for (f, start) in self.order.iter().zip(&self.starts) {
            let function = &object.functions[*f];
            for at in 0..function.insns.len() as u32 {
                let slot = (start + at) as usize;
                let insn = &self.raw[slot];
                let is_kfunc = insn.code == code::CALL && insn.src() == insn::call::KFUNC;
                if is_kfunc && !self.call_bound[slot] {
                    return Err(LinkErrorKind::Code {
                        section: function.section.clone(),
                        insn: function.section_start + at,
                        what: "call of a kernel function that no relocation names".to_owned(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Function in the image of each function of the object; None for a function that is not
    /// loaded.
    pub fn funcs_by_object(&self) -> Vec<Option<FuncId>> {
        self.index.iter().map(|i| i.map(|i| FuncId(i as u32))).collect()
    }

    pub fn finish(
        self,
        object: &Object,
        target: &impl Target,
        externs: &[ExternBinding],
    ) -> Result<InstanceParts, LinkErrorKind> {
        let funcs: Vec<Func> = self
            .order
            .iter()
            .zip(&self.starts)
            .map(|(f, start)| image_func(&object.functions[*f], *start))
            .collect();
        self.refuse_unbound_calls(object)?;
        let mut code = insn::decode(&self.raw, &funcs, &self.is_kernel_load)?;
        record_unused_arg_regs(&mut code, object, target, externs);
        let bound = object.externs.iter().zip(externs);
        let mut kfunc_names: BTreeMap<KfuncId, String> = bound
            .filter_map(|(ext, state)| match state {
                ExternBinding::Kfunc(id) => {
                    Some((*id, crate::btf::essential_name(&ext.name).to_owned()))
                }
                _ => None,
            })
            .collect();
        for (n, what) in self.poison_descriptions.iter().enumerate() {
            kfunc_names.insert(KfuncId(POISON | n as u32), what.clone());
        }
        let image = Image {
            name: object.name.clone(),
            lines: self.lines(object),
            code,
            funcs,
            kfunc_names,
        };
        let local_types = local_types(object, target.btf())?;
        Ok(InstanceParts { image: Arc::new(image), local_types, ..InstanceParts::default() })
    }

    /// Line records of the loaded functions. Records with the same text share one copy of it.
    fn lines(&self, object: &Object) -> Vec<Line> {
        let mut texts = rustc_hash::FxHashMap::<u32, Arc<str>>::default();
        let mut text = |off: u32| {
            let shared = texts.entry(off).or_insert_with(|| object.btf.string(off).trim().into());
            Arc::clone(shared)
        };
        let mut lines = Vec::new();
        for (f, start) in self.order.iter().zip(&self.starts) {
            for l in &object.functions[*f].lines {
                lines.push(Line {
                    pc: start + l.insn,
                    file: text(l.file),
                    line: l.line,
                    text: text(l.text),
                });
            }
        }
        lines
    }
}

/// Writes into the `dst` of each call of a kernel function how many of the 5 argument registers the
/// function does not take, as far as the kernel's types say. The JIT compiler need not keep those
/// registers for the call. Binding has checked that the object's prototype agrees with the
/// kernel's.
fn record_unused_arg_regs(
    code: &mut [Insn],
    object: &Object,
    target: &impl Target,
    externs: &[ExternBinding],
) {
    let btf = target.btf();
    let unused_arg_regs = |(ext, state): (&Extern, &ExternBinding)| {
        let ExternBinding::Kfunc(id) = *state else { return None };
        let func = btf.find(crate::btf::essential_name(&ext.name), BtfKind::Func)?;
        let proto = btf.ty(func).ok()?.target()?;
        let params = btf.params(proto);
        let nr = params.len();
        let variable = params.last().is_some_and(|param| param.ty == TypeId::VOID);
        (!variable && nr < 5).then_some((i64::from(id.0), 5 - nr as u8))
    };
    let unused_arg_regs: BTreeMap<i64, u8> =
        object.externs.iter().zip(externs).filter_map(unused_arg_regs).collect();
    for insn in code.iter_mut().filter(|insn| insn.op == Op::CallKfunc) {
        insn.dst = unused_arg_regs.get(&insn.imm).copied().unwrap_or(0);
    }
}

fn image_func(function: &Function, start: u32) -> Func {
    use scxlab_bpf::vm::ProgramKind as Vm;
    let program = function.program.as_ref().map(|kind| match kind {
        ProgramKind::StructOps { sleepable } => Vm::StructOps { sleepable: *sleepable },
        ProgramKind::Syscall => Vm::Syscall,
        ProgramKind::Trace { .. } | ProgramKind::Other => {
            let plain = function.section.strip_prefix('?').unwrap_or(&function.section);
            let (kind, target) = plain.split_once('/').unwrap_or((plain, ""));
            Vm::Other { kind: kind.to_owned(), target: target.to_owned() }
        }
    });
    Func {
        name: function.name.clone(),
        section: function.section.clone(),
        start,
        len: function.insns.len() as u32,
        program,
    }
}

/// Types that programs allocate: those whose id in the object's BTF a relocation asks for, those
/// that the object's trees and lists hold, and those that its kptrs point to and the target's types
/// lack.
fn local_types(object: &Object, target: &Btf) -> Result<LocalTypes, LinkErrorKind> {
    use crate::btf::special::BtfSpecialKind;
    let mut found = LocalTypes::new();
    let asked = object.functions.iter().flat_map(|f| &f.core_relos);
    let mut queue: Vec<TypeId> =
        asked.filter(|r| r.kind == RelocKind::TypeIdLocal).map(|r| r.ty).collect();
    let note = |fields: &[crate::btf::special::BtfSpecialField], queue: &mut Vec<TypeId>| {
        for field in fields {
            match &field.kind {
                BtfSpecialKind::RbRoot(c) | BtfSpecialKind::ListHead(c) => queue.push(c.ty_id),
                BtfSpecialKind::Kptr { pointee, pointee_id, .. }
                    if target.find(pointee, BtfKind::Struct).is_none() =>
                {
                    queue.push(*pointee_id);
                }
                _ => {}
            }
        }
    };
    for map in &object.maps {
        note(&map.special, &mut queue);
    }
    for datasec in object.sections.iter().filter_map(|s| s.datasec) {
        note(&object.btf.special_globals(datasec)?, &mut queue);
    }
    while let Some(id) = queue.pop() {
        let resolved = object.btf.resolve(id)?;
        if object.btf.kind(resolved) != BtfKind::Struct || found.contains_key(&id.0) {
            continue;
        }
        let fields = object.btf.special_fields(resolved)?;
        note(&fields, &mut queue);
        let local = LocalType {
            name: object.btf.name(resolved).to_owned(),
            size: object.btf.size_of(resolved)? as u32,
            special: super::place::special_fields(&fields, target),
        };
        found.insert(id.0, local);
    }
    Ok(found)
}

/// Whether libbpf gives programs in this section a program type that has no `ProgramKind` of its
/// own.
pub fn is_known_section(name: &str) -> bool {
    const KNOWN: [&str; 36] = [
        "socket",
        "sk_reuseport",
        "uprobe",
        "uretprobe",
        "kprobe.multi",
        "kretprobe.multi",
        "kprobe.session",
        "uprobe.multi",
        "uretprobe.multi",
        "uprobe.session",
        "ksyscall",
        "kretsyscall",
        "usdt",
        "tc",
        "tcx",
        "classifier",
        "action",
        "netkit",
        "fsession",
        "freplace",
        "lsm",
        "lsm_cgroup",
        "xdp",
        "xdp.frags",
        "perf_event",
        "lwt_in",
        "lwt_out",
        "lwt_xmit",
        "lwt_seg6local",
        "sockops",
        "sk_skb",
        "sk_msg",
        "cgroup",
        "cgroup_skb",
        "sk_lookup",
        "netfilter",
    ];
    let plain = name.strip_prefix('?').unwrap_or(name);
    let head = plain.split_once('/').map_or(plain, |(head, _)| head);
    let base = head.strip_suffix(".s").unwrap_or(head);
    KNOWN.contains(&base)
}
