// SPDX-License-Identifier: GPL-2.0-only
//! Machine code for programs: the second engine, which does exactly what the interpreter does.
//!
//! Owns: which functions are compiled, when, and that runs of equal code share them.
//! Does not: give an instruction a meaning (`vm/interp.rs` does, this follows it); compile for a host other than x86-64
//! and aarch64: there, and for what it refuses, the interpreter runs.
//!
//! A function of an image is compiled when the interpreter has spent so much on it that compiling is worth its time
//! (`Limits::compile_after`). As both engines agree in everything that can be seen - results, memory, counts, faults and
//! their places - it does not matter which functions are compiled by then, nor that another run did it. Both call each
//! other: the interpreter enters code where a program or callback begins, code enters the interpreter at a function that
//! has none.
//!
//! ```text
//!   decoded function -> facts (blocks, ranges of values) -> translate, alu, memory, helper -> Cranelift -> compile: bytes that run
//!   call -> native: context, entry -> code -> ways out: helpers, kfuncs, refused accesses, functions without code
//! ```

mod alu;
mod compile;
mod ctx;
mod facts;
mod foreign;
mod groups;
mod height;
mod helper;
mod memory;
mod native;
mod range;
#[cfg(test)]
mod tests;
mod translate;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};

use memmap2::Mmap;

pub use compile::Refusal;
use compile::{Compiler, Isa};
pub(crate) use ctx::{Contexts, Place};
use facts::Facts;
pub use foreign::{Foreign, ForeignFunc, Surroundings, generate, layout};
pub(crate) use native::{Args, Entry, call, call_in};
use translate::Input;

use crate::insn::uses::{self, RegSet};
use crate::insn::{Insn, Op};
use crate::map::array::Array;
use crate::vm::{Func, FuncId, Image, Limits};

/// What executes programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    Interp,
    /// Machine code for what runs often, where the host has it.
    #[default]
    Jit,
}

/// Compiled code by content: whoever holds a clone shares it, on any thread.
#[derive(Clone, Debug, Default)]
pub struct CodeCache(Arc<Shelf>);

#[derive(Debug, Default)]
struct Shelf {
    isa: OnceLock<Option<IsaOf>>,
    /// Oldest first.
    codes: Mutex<Vec<Arc<Code>>>,
}

/// Slots of the longest function that is compiled: the compiler's time and memory grow a little faster than they. The
/// longest known function has 6,562.
const SLOTS_MAX: u32 = 1 << 13;

/// What the way into the interpreter and out of it takes, in instructions that it interprets.
const WAY_IN: u64 = 32;

/// Images of one object that are kept: it is linked anew for each machine and each setting of its knobs.
const MAX_IMAGES: usize = 8;

struct IsaOf(Isa);

impl std::fmt::Debug for IsaOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

impl CodeCache {
    /// The code of an image that runs in a memory of so many pages. None where the interpreter runs it.
    pub(crate) fn code(
        &self,
        image: &Arc<Image>,
        data: Vec<Data>,
        nr_pages: u64,
        limits: &Limits,
    ) -> Option<Arc<Code>> {
        let isa = self.0.isa.get_or_init(|| compile::host_isa().map(IsaOf)).as_ref()?;
        if has_tail_call(image) {
            return None;
        }
        let mut codes = lock(&self.0.codes);
        if let Some(code) = codes.iter().find(|code| code.fits(image, &data, nr_pages, limits)) {
            return Some(Arc::clone(code));
        }
        let code = Arc::new(Code::new(isa.0.clone(), Arc::clone(image), data, nr_pages, limits));
        if codes.len() == MAX_IMAGES {
            codes.remove(0);
        }
        codes.push(Arc::clone(&code));
        Some(code)
    }
}

/// Functions of an image that are never compiled, and why.
pub fn refusals(image: &Image) -> Vec<(String, Refusal)> {
    let tail_call = has_tail_call(image);
    let why = |func: &Func| match func.len {
        _ if tail_call => Some(Refusal::TailCall),
        len if len > SLOTS_MAX => Some(Refusal::TooLong { len, max: SLOTS_MAX }),
        _ => None,
    };
    image.funcs.iter().filter_map(|func| Some((func.name.clone(), why(func)?))).collect()
}

/// A program that is replaced takes its frame along and counts over all frames of an invocation: whole images with one
/// are interpreted.
fn has_tail_call(image: &Image) -> bool {
    image.code.iter().any(|insn| insn.op == Op::TailCall)
}

/// Memory that an instance has from before its code is installed until it is removed, with the same permission all the time:
/// the values of an array. Sections of global data are such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Data {
    pub addr: u64,
    pub len: u64,
    /// All of it may be read.
    pub writable: bool,
    /// How programs find its elements; None of a map of maps.
    pub elements: Option<Elements>,
}

/// An array that programs look up in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elements {
    /// What they have as the map.
    pub map: u64,
    /// Each CPU has elements of its own.
    pub percpu: bool,
    pub array: Array,
}

/// The functions of one image, compiled or not yet.
pub(crate) struct Code {
    isa: Isa,
    image: Arc<Image>,
    data: Vec<Data>,
    nr_pages: u64,
    compile_after: u64,
    /// By function. Compiled code has their addresses in it.
    slots: Box<[Slot]>,
    /// What refused accesses call; NULL until the first function is compiled.
    access: AtomicPtr<u8>,
    /// No function calls itself, so that calls within the code need no check of their depth.
    bounded: bool,
    /// First slot of a function, and which it is.
    starts: BTreeMap<u32, FuncId>,
    work: Mutex<Work>,
}

#[derive(Default)]
struct Slot {
    /// NULL until the function is compiled.
    entry: AtomicPtr<u8>,
    /// Frames that it needs below its own, once it is compiled: more than there are until then.
    needs: AtomicU8,
    /// The same where r1 is all that it gets: if it takes more, it is not entered so.
    needs_simple: AtomicU8,
    height: u8,
    /// Instructions that the interpreter has executed from its entry on. Approximate when threads share it.
    warmth: AtomicU64,
    /// Warmth at which it is compiled; never if it was refused.
    due: AtomicU64,
}

impl Slot {
    /// The address of the function's machine code, if there is any, and it and what it calls has room in so many frames,
    /// which are no more than `MAX_FRAMES`.
    #[inline(always)]
    fn entry(&self, args: &Args, frames: u32) -> Option<*const u8> {
        let needs = match args {
            Args::One(_) => &self.needs_simple,
            Args::All(_) => &self.needs,
        };
        let fits = u32::from(needs.load(Ordering::Acquire)) < frames;
        fits.then(|| self.entry.load(Ordering::Relaxed).cast_const())
    }
}

#[derive(Default)]
struct Work {
    compiler: Compiler,
    /// How many arguments functions take that were asked about.
    arguments: BTreeMap<FuncId, usize>,
    maps: Vec<Mmap>,
    refused: BTreeMap<FuncId, Refusal>,
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Code of {} ({} functions compiled)", self.image.name, self.compiled())
    }
}

impl Code {
    fn new(isa: Isa, image: Arc<Image>, data: Vec<Data>, nr_pages: u64, limits: &Limits) -> Code {
        let starts = image.funcs.iter().enumerate();
        let due = |func: &Func| u64::from(func.len).saturating_mul(limits.compile_after);
        let heights = height::heights(&image);
        let bounded = heights.is_some();
        let heights = heights.unwrap_or_else(|| vec![0; image.funcs.len()]);
        let slot = |(func, height)| {
            let due = due(func).into();
            let [needs, needs_simple] = [u8::MAX, u8::MAX].map(AtomicU8::new);
            Slot { due, needs, needs_simple, height, ..Slot::default() }
        };
        Code {
            isa,
            bounded,
            data,
            nr_pages,
            compile_after: limits.compile_after,
            slots: image.funcs.iter().zip(heights).map(slot).collect(),
            access: AtomicPtr::default(),
            starts: starts.map(|(at, func)| (func.start, FuncId(at as u32))).collect(),
            work: Mutex::default(),
            image,
        }
    }

    fn fits(&self, image: &Image, data: &[Data], nr_pages: u64, limits: &Limits) -> bool {
        let places = |image: &Image| -> Vec<(u32, u32)> {
            image.funcs.iter().map(|func| (func.start, func.len)).collect()
        };
        (self.nr_pages, self.compile_after) == (nr_pages, limits.compile_after)
            && self.image.code == image.code
            && self.data == data
            && places(&self.image) == places(image)
    }

    /// Functions that have machine code by now.
    pub fn compiled(&self) -> usize {
        self.slots.iter().filter(|slot| !slot.entry.load(Ordering::Relaxed).is_null()).count()
    }

    /// Functions that the compiler refused when it was their turn.
    pub fn refused(&self) -> Vec<(String, Refusal)> {
        let name = |func: &FuncId| self.image.func(*func).map_or("?", |func| &func.name).to_owned();
        let compiler = |(_, why): &(&FuncId, &Refusal)| !matches!(why, Refusal::TooLong { .. });
        let refused = &lock(&self.work).refused;
        let by_compiler = refused.iter().filter(compiler);
        by_compiler.map(|(func, why)| (name(func), why.clone())).collect()
    }

    /// The function that begins at a slot; the code calls no other slots.
    fn func_at(&self, pc: u32) -> FuncId {
        self.starts.get(&pc).copied().unwrap_or(FuncId(u32::MAX))
    }

    fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Makes a function's machine code if it is time; whether it has some.
    #[inline]
    pub(crate) fn due(&self, func: FuncId) -> bool {
        let Some(slot) = self.slots.get(func.idx()) else { return false };
        if slot.warmth.load(Ordering::Relaxed) < slot.due.load(Ordering::Relaxed) {
            return false;
        }
        self.make(slot, func);
        !slot.entry.load(Ordering::Relaxed).is_null()
    }

    #[cold]
    fn make(&self, slot: &Slot, func: FuncId) {
        let mut work = match self.work.try_lock() {
            Ok(work) => work,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread compiles; this one interprets meanwhile.
            Err(TryLockError::WouldBlock) => return,
        };
        // The other may have been faster.
        if slot.entry.load(Ordering::Acquire).is_null()
            && !work.refused.contains_key(&func)
            && let Err(why) = self.compile(&mut work, slot, func)
        {
            slot.due.store(u64::MAX, Ordering::Relaxed);
            work.refused.insert(func, why);
        }
    }

    /// The function was interpreted, and executed so many instructions.
    #[inline]
    pub(crate) fn warm(&self, func: FuncId, insns: u64) {
        if let Some(slot) = self.slots.get(func.idx()) {
            // Lost updates of another thread only make it a little later. Never is not reached.
            let warmth = slot.warmth.load(Ordering::Relaxed).saturating_add(insns + WAY_IN);
            slot.warmth.store(warmth.min(u64::MAX - 1), Ordering::Relaxed);
        }
    }

    /// What refused accesses call; NULL until some function has been compiled.
    fn access(&self) -> *const u8 {
        self.access.load(Ordering::Acquire)
    }

    fn compile(&self, work: &mut Work, slot: &Slot, func: FuncId) -> Result<(), Refusal> {
        let bytes = self.bytes(work, func)?;
        if self.access.load(Ordering::Relaxed).is_null() {
            let map = compile::executable(&work.compiler.access_thunk(&*self.isa)?)?;
            self.access.store(map.as_ptr().cast_mut(), Ordering::Release);
            work.maps.push(map);
        }
        let map = compile::executable(&bytes)?;
        slot.entry.store(map.as_ptr().cast_mut(), Ordering::Release);
        slot.needs.store(slot.height, Ordering::Release);
        if work.arguments(&self.image, func) <= 1 {
            slot.needs_simple.store(slot.height, Ordering::Release);
        }
        work.maps.push(map);
        Ok(())
    }

    fn bytes(&self, work: &mut Work, id: FuncId) -> Result<Vec<u8>, Refusal> {
        let image = &self.image;
        let func = &image.funcs[id.idx()];
        if func.len > SLOTS_MAX {
            return Err(Refusal::TooLong { len: func.len, max: SLOTS_MAX });
        }
        let live = live(&image.code, func);
        let own = work.arguments(image, id);
        let mut compiler = std::mem::take(&mut work.compiler);
        let work = std::cell::RefCell::new(work);
        let callee = |pc: u32| {
            let func = self.func_at(pc);
            let entry_at =
                self.slots.get(func.idx()).map_or(ptr::null(), |slot| &raw const slot.entry);
            (entry_at.addr() as u64, work.borrow_mut().arguments(image, func))
        };
        let input = Input {
            code: &image.code,
            func,
            live: &live,
            call_conv: self.isa.default_call_conv(),
            data: &self.data,
            bounded: self.bounded,
            entered: entered(&image.code, func),
            nr_pages: self.nr_pages,
            callee: &callee,
        };
        let isa = &*self.isa;
        // A fault of the compiler must not take the run along: the interpreter can do without it.
        let bytes = catch_unwind(AssertUnwindSafe(|| compiler.bytes(isa, input, own)))
            .unwrap_or_else(|_| Err(Refusal::Compiler("it panicked".to_owned())));
        if bytes.is_ok() {
            work.into_inner().compiler = compiler;
        }
        bytes
    }
}

impl Work {
    fn arguments(&mut self, image: &Image, func: FuncId) -> usize {
        let found = || image.func(func).map_or(0, |func| arguments(&image.code, func));
        *self.arguments.entry(func).or_insert_with(found)
    }
}

/// Live registers before each slot of a function, on ways that may be taken. Both engines report faults by it: code has no others.
pub(crate) fn live(code: &[Insn], func: &Func) -> Vec<RegSet> {
    // Without what lies in data, of which callers know nothing.
    let facts = Facts::of(code, func, &[]);
    uses::live(code, func, |at| facts.next[at])
}

/// Which slots each slot of a function leads to, without ways that are never taken.
pub(crate) fn next(code: &[Insn], func: &Func) -> Vec<[Option<u32>; 2]> {
    Facts::of(code, func, &[]).next
}

/// How many of r1 to r5 a function takes: up to the last one that is read before it is written.
fn arguments(code: &[Insn], func: &Func) -> usize {
    let first = live(code, func).first().copied().unwrap_or_default();
    (1..=5u8).rev().find(|reg| first.has(*reg)).unwrap_or(0).into()
}

/// Whether a function is only entered from outside: none of the image calls it by its number.
fn entered(code: &[Insn], func: &Func) -> bool {
    // Slots of longer ones have no room for what is noted beside them.
    let calls = |insn: &Insn| insn.op == Op::CallFunc && insn.off as u32 == func.start;
    code.len() < ctx::AT_ENTRY as usize && !code.iter().any(calls)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
