// SPDX-License-Identifier: GPL-2.0-only
//! Machine code for programs: the second engine, which behaves exactly like the interpreter.
//!
//! Owns: the decision which functions to compile, and when; sharing of machine code between runs of
//! equal code, also with later processes (`kept.rs`).
//! Does not: define the meaning of an instruction (`vm/interp.rs` does); compile for processors
//! other than x86-64 and aarch64. On other processors, and for functions that the compiler refuses,
//! the interpreter runs.
//!
//! The JIT compiles a function once the interpreter has executed so many of its instructions that
//! compiling pays (`Limits::compile_after`). Both engines agree in everything observable: results,
//! memory, instruction counts, faults and their locations. It therefore does not matter which
//! functions are compiled, or whether another run compiled them. The engines call each other: the
//! interpreter enters machine code where a program or callback begins, and machine code calls the
//! interpreter for a function that is not compiled.
//!
//! ```text
//!   decoded function -> facts (blocks, ranges of values) -> translate, alu, memory, helper, kfunc -> Cranelift -> compile: bytes that run
//!   call -> native: context, entry -> code -> ways out: helpers, kfuncs, refused accesses, functions without code
//! ```

mod alu;
mod beside;
mod compile;
mod ctx;
mod facts;
mod foreign;
mod frames_below;
mod groups;
mod helper;
mod in_place;
mod keeps_memory;
mod kept;
mod kfunc;
mod memory;
mod native;
mod range;
#[cfg(test)]
mod tests;
mod translate;

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};
// tidy: allow(static): `OnceLock` is in the caller's `CodeCache`; its state changes no result.
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use memmap2::Mmap;

use beside::Beside;
pub use compile::Refusal;
use compile::{Compiler, Isa};
pub(crate) use ctx::{Contexts, EntryFrame};
use facts::FunctionAnalysis;
pub use foreign::{CrossCompiled, CrossCompiledFunc, generate, layout};
pub(crate) use in_place::InPlace;
pub use in_place::{InPlaceFuncs, InPlaceValues};
use keeps_memory::KeepsMemory;
use kept::Kept;
pub use kept::{CodeKey, CodeStore};
pub(crate) use native::{Args, CodeEntry, call, call_in};
use translate::Input;

use crate::insn::uses::{self, RegSet};
use crate::insn::{Insn, Op};
use crate::map::array::Array;
use crate::vm::{Func, FuncId, Image, Limits};

/// The engine that executes programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    Interp,
    /// Machine code for functions that run often, on x86-64 and aarch64; otherwise the interpreter.
    #[default]
    Jit,
}

/// Cache of compiled code, looked up by the content of an image. All clones of a cache share its
/// contents, on any thread.
#[derive(Clone, Debug, Default)]
pub struct CodeCache(Arc<CodeCacheInner>);

#[derive(Debug, Default)]
struct CodeCacheInner {
    // tidy: allow(static): the processor's instruction set is the same for all runs.
    isa: OnceLock<Option<IsaOf>>,
    /// Machine code of the cached images, oldest first.
    codes: Mutex<Vec<Arc<Code>>>,
    /// Where machine code outlives the process; None: nowhere.
    store: Option<Arc<dyn CodeStore>>,
    /// Threads that compile; None: the thread that runs a program compiles it.
    beside: Option<Beside>,
}

/// Largest number of slots of a function that the JIT compiles. The compiler's time and memory grow
/// a little faster than the number of slots. The longest known function has 6,562 slots.
const SLOTS_MAX: u32 = 1 << 13;

/// Cost of entering and leaving the interpreter, in interpreted instructions.
const ENTRY_COST_INSNS: u64 = 32;

/// By how much earlier a function is compiled if no run waits for that: another CPU may compile it,
/// and later commands may find the code in a store.
const BESIDE: u64 = 4;

/// Largest number of images whose code the cache keeps. The loader links an object anew for each
/// machine and for each setting of its knobs, and so makes several images of the object.
const MAX_IMAGES: usize = 8;

struct IsaOf(Isa);

impl std::fmt::Debug for IsaOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

impl CodeCache {
    /// Returns a cache that begins with the machine code in a store, and to which `keep` adds.
    pub fn kept_in(store: Arc<dyn CodeStore>) -> CodeCache {
        CodeCache(Arc::new(CodeCacheInner { store: Some(store), ..CodeCacheInner::default() }))
    }

    /// Returns the cache of `kept_in` for which threads of its own compile, while the interpreter
    /// goes on.
    pub fn compiled_beside(store: Arc<dyn CodeStore>) -> CodeCache {
        let (store, beside) = (Some(store), Some(Beside::new()));
        CodeCache(Arc::new(CodeCacheInner { store, beside, ..CodeCacheInner::default() }))
    }

    /// Puts machine code that was compiled since the last call into the store, after all functions
    /// that are waiting to be compiled.
    pub fn keep(&self) {
        let Some(store) = &self.0.store else { return };
        self.0.beside.iter().for_each(Beside::finish);
        let codes = lock(&self.0.codes).clone();
        codes.iter().for_each(|code| code.keep(&**store));
    }

    /// Compiles the functions that the interpreter has run so far, however seldom. Benchmarks call
    /// this before they measure a scheduler that runs for long.
    pub fn compile_used(&self) {
        let codes = lock(&self.0.codes).clone();
        for code in codes {
            let used = |slot: &FuncEntry| {
                slot.entry.load(Ordering::Relaxed).is_null()
                    && slot.interpreted_insns.load(Ordering::Relaxed) > 0
            };
            let funcs = (0..).map(FuncId).zip(&code.slots).filter(|(_, slot)| used(slot));
            funcs.filter(|(_, slot)| slot.claim()).for_each(|(func, _)| code.compile(func));
        }
    }

    /// Returns the code of an image that runs in a memory of `nr_pages` pages. Returns None if the
    /// interpreter runs the whole image.
    pub(crate) fn code(
        &self,
        image: &Arc<Image>,
        data: Vec<Data>,
        nr_pages: u64,
        funcs: InPlaceFuncs,
        limits: &Limits,
    ) -> Option<Arc<Code>> {
        let isa = self.0.isa.get_or_init(|| compile::host_isa().map(IsaOf)).as_ref()?;
        if has_tail_call(image) {
            return None;
        }
        let after = match self.0.beside {
            Some(_) => limits.compile_after / BESIDE,
            None => limits.compile_after,
        };
        let mut codes = lock(&self.0.codes);
        let fits = |code: &&Arc<Code>| code.fits(image, &data, nr_pages, funcs, after);
        if let Some(code) = codes.iter().find(fits) {
            return Some(Arc::clone(code));
        }
        let mut code = Code::new(isa.0.clone(), Arc::clone(image), data, nr_pages, funcs, after);
        if let Some(store) = &self.0.store {
            code.take_kept(&**store);
        }
        let code = Arc::new_cyclic(|own: &Weak<Code>| {
            code.beside = self.0.beside.clone().map(|thread| (thread, own.clone()));
            code
        });
        if codes.len() == MAX_IMAGES {
            codes.remove(0);
        }
        codes.push(Arc::clone(&code));
        Some(code)
    }
}

/// Returns the functions of an image that the JIT never compiles, each with the reason.
pub fn refusals(image: &Image) -> Vec<(String, Refusal)> {
    let tail_call = has_tail_call(image);
    let why = |func: &Func| match func.len {
        _ if tail_call => Some(Refusal::TailCall),
        len if len > SLOTS_MAX => Some(Refusal::TooLong { len, max: SLOTS_MAX }),
        _ => None,
    };
    image.funcs.iter().filter_map(|func| Some((func.name.clone(), why(func)?))).collect()
}

/// Returns whether an image contains a tail call. The interpreter runs the whole of such an image,
/// because a tail call reuses the frame of the program that it replaces, and the limit on tail
/// calls counts them over all frames of an invocation.
fn has_tail_call(image: &Image) -> bool {
    image.code.iter().any(|insn| insn.op == Op::TailCall)
}

/// What machine code knows of a map: the values of an array, such as a section of global data, or
/// the keys of a hash. The address and permission of the values do not change as long as the map's
/// instance (the loaded object) has machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Data {
    pub addr: u64,
    pub len: u64,
    /// Whether programs may write the values. Programs may always read them.
    pub writable: bool,
    /// How programs look up the map's elements; None for a map of maps.
    pub elements: Option<Elements>,
    /// Keys of a hash, whose values have no fixed addresses: `len` is 0.
    pub keys: Option<Keys>,
}

/// A hash map whose lookups change nothing, and which has one value for all CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    /// Address that programs hold for the map.
    pub map: u64,
    /// Bytes of a key: 4 or 8.
    pub size: u32,
}

/// An array map that programs look up elements in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elements {
    /// Address that programs hold for the map.
    pub map: u64,
    /// Whether each CPU has elements of its own.
    pub percpu: bool,
    pub array: Array,
}

/// The functions of one image, compiled or not yet.
pub(crate) struct Code {
    isa: Isa,
    image: Arc<Image>,
    data: Vec<Data>,
    nr_pages: u64,
    in_place: InPlaceFuncs,
    keeps: KeepsMemory,
    compile_after: u64,
    /// Entries of the functions, indexed by `FuncId`. The context of compiled code has their
    /// address.
    slots: Box<[FuncEntry]>,
    /// Address of the code that a compiled function calls if its own check refuses an access (see
    /// `access_thunk`); NULL until the first function is compiled.
    access: AtomicPtr<u8>,
    /// Whether no function is recursive. Calls within the code then need no check of the call
    /// depth, because one check on entry into the code covers them all.
    bounded: bool,
    /// The functions, by their first slot.
    starts: BTreeMap<u32, FuncId>,
    work: Mutex<CompileState>,
    /// The threads that compile, and this code as they need it.
    beside: Option<(Beside, Weak<Code>)>,
}

#[derive(Default)]
#[repr(C)]
struct FuncEntry {
    /// Address of the function's machine code; NULL until the function is compiled.
    entry: AtomicPtr<u8>,
    /// Equal to `frames_below` once the function is compiled. Until then `u8::MAX`, which is more
    /// frames than any stack has, so that `entry` returns None.
    needs: AtomicU8,
    /// Number of frames below the function's own that `entry` requires if the caller passes only
    /// r1. Equal to `needs`, but stays `u8::MAX` if the function takes more arguments than r1.
    needs_simple: AtomicU8,
    /// Number of frames that the function needs below its own (see `frames_below.rs`), compiled or
    /// not. 0 for all functions of a recursive image, whose calls check their depth.
    frames_below: u8,
    /// Number of instructions that the interpreter has executed in runs that began with this
    /// function, plus `ENTRY_COST_INSNS` per run. Approximate when several threads share the code.
    interpreted_insns: AtomicU64,
    /// Value of `interpreted_insns` at which the JIT compiles the function; `u64::MAX` (never
    /// reached) once a thread compiles the function (`FuncEntry::claim`).
    compile_at: AtomicU64,
}

impl FuncEntry {
    /// Lets the caller compile the function. Returns false if another thread does or did so.
    fn claim(&self) -> bool {
        self.compile_at.swap(u64::MAX, Ordering::Relaxed) != u64::MAX
    }

    /// Returns the address of the function's machine code, if it has some and `frames` frames (at
    /// most `MAX_FRAMES`) are enough for the function and everything it calls.
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
struct CompileState {
    /// Compilers that no thread uses now, for their buffers.
    compilers: Vec<Compiler>,
    /// Cache of `CompileState::arguments`: the number of arguments that a function takes.
    arguments: BTreeMap<FuncId, usize>,
    /// Code of functions that this process compiled.
    compiled: Vec<(FuncId, Mmap)>,
    access: Option<Mmap>,
    /// Code that a store had.
    kept: Option<Kept>,
    /// Number of functions in the store.
    nr_kept: usize,
    refused: BTreeMap<FuncId, Refusal>,
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Code of {} ({} functions compiled)", self.image.name, self.compiled())
    }
}

impl Code {
    fn new(
        isa: Isa,
        image: Arc<Image>,
        data: Vec<Data>,
        nr_pages: u64,
        in_place: InPlaceFuncs,
        compile_after: u64,
    ) -> Code {
        let starts = image.funcs.iter().enumerate();
        let compile_at = |func: &Func| u64::from(func.len).saturating_mul(compile_after);
        let counts = frames_below::all(&image);
        let bounded = counts.is_some();
        let counts = counts.unwrap_or_else(|| vec![0; image.funcs.len()]);
        let slot = |(func, frames_below)| {
            let compile_at = compile_at(func).into();
            let [needs, needs_simple] = [u8::MAX, u8::MAX].map(AtomicU8::new);
            FuncEntry { compile_at, needs, needs_simple, frames_below, ..FuncEntry::default() }
        };
        Code {
            isa,
            bounded,
            data,
            nr_pages,
            in_place,
            keeps: KeepsMemory::of(&image, in_place),
            compile_after,
            slots: image.funcs.iter().zip(counts).map(slot).collect(),
            access: AtomicPtr::default(),
            starts: starts.map(|(at, func)| (func.start, FuncId(at as u32))).collect(),
            work: Mutex::default(),
            beside: None,
            image,
        }
    }

    fn fits(
        &self,
        image: &Image,
        data: &[Data],
        nr_pages: u64,
        in_place: InPlaceFuncs,
        compile_after: u64,
    ) -> bool {
        let places = |image: &Image| -> Vec<(u32, u32)> {
            image.funcs.iter().map(|func| (func.start, func.len)).collect()
        };
        (self.nr_pages, self.compile_after) == (nr_pages, compile_after)
            && self.in_place == in_place
            && self.image.code == image.code
            && self.data == data
            && places(&self.image) == places(image)
    }

    /// Returns the number of functions that are compiled so far.
    pub fn compiled(&self) -> usize {
        self.slots.iter().filter(|slot| !slot.entry.load(Ordering::Relaxed).is_null()).count()
    }

    /// Returns the functions that the compiler refused.
    pub fn refused(&self) -> Vec<(String, Refusal)> {
        let name = |func: &FuncId| self.image.func(*func).map_or("?", |func| &func.name).to_owned();
        let compiler = |(_, why): &(&FuncId, &Refusal)| !matches!(why, Refusal::TooLong { .. });
        let refused = &lock(&self.work).refused;
        let by_compiler = refused.iter().filter(compiler);
        by_compiler.map(|(func, why)| (name(func), why.clone())).collect()
    }

    /// Returns the function that begins at a slot. Decoding guarantees that programs call no other
    /// slots.
    fn func_at(&self, pc: u32) -> FuncId {
        self.starts.get(&pc).copied().unwrap_or(FuncId(u32::MAX))
    }

    fn slots(&self) -> &[FuncEntry] {
        &self.slots
    }

    /// Compiles a function, or has another thread compile it, if the interpreter has executed
    /// enough of its instructions. Returns whether the function has machine code now.
    #[inline]
    pub(crate) fn compile_if_due(&self, func: FuncId) -> bool {
        let Some(slot) = self.slots.get(func.idx()) else { return false };
        if !slot.entry.load(Ordering::Acquire).is_null() {
            return true;
        }
        if slot.interpreted_insns.load(Ordering::Relaxed) < slot.compile_at.load(Ordering::Relaxed)
        {
            return false;
        }
        self.compile_slot(slot, func);
        !slot.entry.load(Ordering::Relaxed).is_null()
    }

    #[cold]
    fn compile_slot(&self, slot: &FuncEntry, func: FuncId) {
        let here = || self.beside.as_ref().is_none_or(|(threads, own)| !threads.compile(own, func));
        if slot.claim() && here() {
            self.compile(func);
        }
    }

    /// Records that the interpreter ran the function and executed `insns` instructions.
    #[inline]
    pub(crate) fn count_interpreted(&self, func: FuncId, insns: u64) {
        if let Some(slot) = self.slots.get(func.idx()) {
            // A lost update of another thread only delays compilation a little. The count never
            // reaches `u64::MAX`, the threshold of a claimed function.
            let before = slot.interpreted_insns.load(Ordering::Relaxed);
            let after = before.saturating_add(insns + ENTRY_COST_INSNS);
            slot.interpreted_insns.store(after.min(u64::MAX - 1), Ordering::Relaxed);
        }
    }

    /// Returns the address of the code that a compiled function calls if its own check refuses an
    /// access; NULL until the first function is compiled.
    fn access(&self) -> *const u8 {
        self.access.load(Ordering::Acquire)
    }

    /// Compiles a function that the caller has claimed.
    fn compile(&self, func: FuncId) {
        let compiled = self.bytes(func).and_then(|bytes| self.add(func, &bytes));
        if let Err(why) = compiled {
            lock(&self.work).refused.insert(func, why);
        }
    }

    /// Adds a function's machine code.
    fn add(&self, func: FuncId, bytes: &[u8]) -> Result<(), Refusal> {
        let work = &mut *lock(&self.work);
        if self.access.load(Ordering::Relaxed).is_null() {
            let map = compile::executable(&Compiler::default().access_thunk(&*self.isa)?)?;
            self.access.store(map.as_ptr().cast_mut(), Ordering::Release);
            work.access = Some(map);
        }
        let map = compile::executable(bytes)?;
        self.publish(work, func, map.as_ptr());
        work.compiled.push((func, map));
        Ok(())
    }

    /// Makes a function's code known to the callers.
    fn publish(&self, work: &mut CompileState, func: FuncId, code: *const u8) {
        let slot = &self.slots[func.idx()];
        slot.entry.store(code.cast_mut(), Ordering::Release);
        slot.needs.store(slot.frames_below, Ordering::Release);
        if work.arguments(&self.image, func) <= 1 {
            slot.needs_simple.store(slot.frames_below, Ordering::Release);
        }
    }

    /// Returns the machine code of a function. Several threads may do so at a time.
    fn bytes(&self, id: FuncId) -> Result<Vec<u8>, Refusal> {
        let image = &self.image;
        let func = &image.funcs[id.idx()];
        if func.len > SLOTS_MAX {
            return Err(Refusal::TooLong { len: func.len, max: SLOTS_MAX });
        }
        let live = live(&image.code, func);
        let arguments = |func| lock(&self.work).arguments(image, func);
        let callee = |pc: u32| {
            let func = self.func_at(pc);
            let at = func.idx() * size_of::<FuncEntry>() + offset_of!(FuncEntry, entry);
            (at as i32, arguments(func))
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
            in_place: self.in_place,
            keeps: &|call| self.keeps.call(call),
            callee: &callee,
        };
        let mut compiler = lock(&self.work).compilers.pop().unwrap_or_default();
        let compile = || compiler.bytes(&*self.isa, input, arguments(id));
        // A panic of the compiler must not end the run, because the interpreter can take over.
        let bytes = catch_unwind(AssertUnwindSafe(compile))
            .unwrap_or_else(|_| Err(Refusal::Compiler("internal panic".to_owned())));
        if bytes.is_ok() {
            lock(&self.work).compilers.push(compiler);
        }
        bytes
    }
}

impl CompileState {
    fn arguments(&mut self, image: &Image, func: FuncId) -> usize {
        let found = || image.func(func).map_or(0, |func| arguments(&image.code, func));
        *self.arguments.entry(func).or_insert_with(found)
    }
}

/// Returns the live registers before each slot of a function, ignoring paths that are never taken.
/// Both engines report exactly these registers in a fault, because machine code keeps no others.
pub(crate) fn live(code: &[Insn], func: &Func) -> Vec<RegSet> {
    // The analysis gets no array maps (`data`): the report of a fault calls this function with only
    // the image, and both engines must get the same result.
    let facts = FunctionAnalysis::of(code, func, &[]);
    uses::live(code, func, |at| facts.next[at])
}

/// Returns the slots that each slot of a function leads to, ignoring paths that are never taken.
pub(crate) fn next(code: &[Insn], func: &Func) -> Vec<[Option<u32>; 2]> {
    FunctionAnalysis::of(code, func, &[]).next
}

/// Returns how many of r1 to r5 a function takes: up to the last one that the function may read
/// before it writes it.
fn arguments(code: &[Insn], func: &Func) -> usize {
    let first = live(code, func).first().copied().unwrap_or_default();
    (1..=5u8).rev().find(|reg| first.has(*reg)).unwrap_or(0).into()
}

/// Returns whether only Rust enters the function's machine code: no function of the image calls the
/// function by number.
fn entered(code: &[Insn], func: &Func) -> bool {
    // Machine code stores the slot of a call together with the bit `AT_ENTRY`. In an image with
    // `AT_ENTRY` slots or more, slot numbers would overlap this bit, so none of the image's
    // functions counts as entered by Rust alone.
    let calls = |insn: &Insn| insn.op == Op::CallFunc && insn.off as u32 == func.start;
    code.len() < ctx::AT_ENTRY as usize && !code.iter().any(calls)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
