// SPDX-License-Identifier: GPL-2.0-only
//! The virtual machine: loaded objects, calls of their programs by the simulated kernel, and the
//! programs' calls into the kernel.
//!
//! Owns: instances, counters of executed work, limits, nesting of invocations.
//! Does not: implement kernel functions (see `Host`), keep time, or choose which program runs.
//! Models: the kernel's entry into BPF programs (trampolines, callbacks), v7.3.
//! Differs: the machine checks programs while they run, instead of verifying them in advance.

use std::sync::Arc;

use crate::fault::{Access, Fault, FaultKind};
use crate::insn::Insn;
use crate::jit::{self, Code, CodeCache, Contexts, Data, Elements, InPlace, Keys, Refusal};
use crate::kfunc::KfuncId;
use crate::map::{Dropped, LocalTypes, MapId, MapKind, MapTable};
use crate::mem::{Memory, OutOfMemory, PAGE};
use crate::timer::{TimerId, Timers};

pub mod bare;
mod enter;
pub(crate) mod interp;
mod report;
mod run;
pub(crate) mod stack;
#[cfg(test)]
pub(crate) mod tests;

pub use crate::jit::{Engine, InPlaceFuncs, InPlaceValues};
pub(crate) use enter::callback;
pub use enter::{call, call_raw, fire_timer, release_dropped, remove_instance, storage_owner_gone};
pub(crate) use run::run;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub u32);

/// Index into `Image::funcs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FuncId(pub u32);

impl InstanceId {
    #[inline(always)]
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

impl FuncId {
    #[inline(always)]
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

/// A linked object. Its code contains the addresses of the maps of one instance.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// Name of the object, for reports.
    pub name: String,
    /// Output of `insn::decode`, one entry per 8-byte slot.
    pub code: Vec<Insn>,
    pub funcs: Vec<Func>,
    /// Line information, sorted by `pc`.
    pub lines: Vec<Line>,
    /// Names of the host's kfuncs that the code calls, for the disassembly.
    pub kfunc_names: std::collections::BTreeMap<KfuncId, String>,
}

/// A function of an image: a program or a subprogram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Func {
    pub name: String,
    /// ELF section, such as `struct_ops/simple_enqueue` or `.text`.
    pub section: String,
    /// First slot in `Image::code`, and number of slots.
    pub start: u32,
    pub len: u32,
    /// Program type given by the section name; None for subprograms.
    pub program: Option<ProgramKind>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramKind {
    StructOps {
        sleepable: bool,
    },
    Syscall,
    /// A program that is neither a struct_ops nor a syscall program: the prefix of its ELF
    /// section's name, such as `fentry`, and the attach target.
    Other {
        kind: String,
        target: String,
    },
}

/// Source line of the instructions from slot `pc` up to the next `Line`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub pc: u32,
    pub file: Arc<str>,
    pub line: u32,
    pub text: Arc<str>,
}

impl Image {
    pub fn func(&self, id: FuncId) -> Option<&Func> {
        self.funcs.get(id.idx())
    }

    pub fn func_by_name(&self, name: &str) -> Option<FuncId> {
        self.funcs.iter().position(|f| f.name == name).map(|at| FuncId(at as u32))
    }
}

/// A loaded object with its maps.
pub struct Instance {
    pub id: InstanceId,
    pub name: String,
    /// Only `Vm::install` writes this field, and never while a program runs, because the
    /// interpreter borrows the image.
    image: Arc<Image>,
    /// Machine code of the image; None if the interpreter runs the whole image. Only `Vm::install`
    /// writes this field.
    code: Option<Arc<Code>>,
    /// Maps of the object, in order of creation.
    pub maps: Vec<MapId>,
    /// Guest address of the arena window that the instance's programs use; 0 without an arena.
    pub arena_base: u64,
    /// Types that `bpf_obj_new` may allocate, by BTF id in the object.
    pub local_types: LocalTypes,
}

impl Instance {
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Returns the functions that only the interpreter runs, each with the reason. They are the
    /// functions that the JIT never tries to compile, and those that the compiler refused.
    pub fn refusals(&self) -> Vec<(String, Refusal)> {
        let mut all = jit::refusals(&self.image);
        if let Some(code) = &self.code {
            all.extend(code.refused());
        }
        all
    }

    /// Returns the machine code of the instance's image; None if the interpreter runs the whole
    /// image.
    #[inline(always)]
    pub(crate) fn code(&self) -> Option<&Code> {
        self.code.as_deref()
    }

    /// Returns the number of functions compiled so far.
    pub fn compiled(&self) -> usize {
        self.code.as_ref().map_or(0, |code| code.compiled())
    }
}

/// Parts that the linker makes of an object. The linker passes them to `Vm::install` once it knows
/// all addresses.
#[derive(Default)]
pub struct InstanceParts {
    pub image: Arc<Image>,
    pub local_types: LocalTypes,
    /// Cache that may already hold machine code of an equal image, and that receives this image's
    /// code.
    pub codes: CodeCache,
}

/// Limits on one outermost invocation, which is a program that the kernel calls while no other
/// runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Instructions of one outermost invocation, including all that the invocation calls. The
    /// kernel has no such limit at run time: its verifier bounds a path to 1 M instructions, and
    /// helpers such as `bpf_loop` multiply that by up to 8 M. No scheduler callback has a
    /// legitimate need for 64 M instructions.
    pub insns_per_call: u64,
    /// Largest number of frames of one program with its subprograms and callbacks. The kernel's
    /// `MAX_CALL_FRAMES`.
    pub call_depth: u32,
    /// Largest number of programs that run inside each other's kernel calls.
    pub nesting: u32,
    /// Largest number of iterations of `may_goto` loops per frame. The kernel's `BPF_MAX_LOOPS`.
    pub may_goto: u32,
    /// Number of interpreted instructions per slot of a function after which the JIT compiles the
    /// function. Each entry into the function counts as `ENTRY_COST_INSNS` more instructions. At
    /// the default of 10,000 the interpreter has lost about as much time as compiling takes:
    /// compiling takes 25 us per slot, and an interpreted instruction takes 2 ns longer than
    /// machine code.
    pub compile_after: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            insns_per_call: 64 << 20,
            call_depth: 8,
            nesting: 8,
            may_goto: 8 << 20,
            compile_after: 10_000,
        }
    }
}

/// Configuration of a virtual machine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of possible CPUs, which is also the number of copies of each value of a per-CPU map.
    pub nr_cpus: u32,
    /// `CONFIG_HZ`, for `bpf_jiffies64`.
    pub hz: u32,
    /// Address space of the memory, in bytes.
    pub mem_size: u64,
    pub work: WorkCosts,
    pub limits: Limits,
    pub engine: Engine,
    pub in_place: InPlaceFuncs,
    pub in_place_values: InPlaceValues,
}

/// Costs of what helpers and kernel functions do beyond the call itself, from the machine's cost
/// model.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkCosts {
    /// Bytes that a helper may handle within the cost of its call.
    pub call_bytes: u64,
    /// Bytes whose handling costs as much as allocating or freeing one arena page.
    pub arena_page_bytes: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            nr_cpus: 1,
            hz: 1000,
            mem_size: crate::mem::DEFAULT_SIZE,
            work: WorkCosts::default(),
            limits: Limits::default(),
            engine: Engine::default(),
            in_place: InPlaceFuncs::default(),
            in_place_values: InPlaceValues::default(),
        }
    }
}

/// The BPF state of one simulation.
pub struct Vm {
    pub mem: Memory,
    pub maps: MapTable,
    pub timers: Timers,
    pub limits: Limits,
    /// Engine for objects that are linked from now on.
    pub engine: Engine,
    pub nr_cpus: u32,
    pub hz: u32,
    work: WorkCosts,
    /// Instructions executed since the simulation began. Up to date during every call into the
    /// host.
    pub executed: u64,
    pub(crate) helper_calls: u64,
    pub(crate) kfunc_calls: u64,
    /// Trees, lists and objects that programs allocated.
    pub(crate) objects: crate::kfunc::Objects,
    /// References and timers that map operations dropped and that `release_dropped` has not
    /// reported to the host yet.
    pub(crate) dropped: Vec<Dropped>,
    /// Addresses of the `bpf_spin_lock`s held by running programs, oldest first.
    pub(crate) locks: Vec<u64>,
    instances: Vec<Option<Instance>>,
    pub(crate) stacks: stack::Stacks,
    /// Value of `executed` at which the engines stop the outermost invocation.
    pub(crate) deadline: u64,
    /// Contexts of machine code: one structure for each active entry into machine code, with all
    /// that the code needs to know of its run.
    pub(crate) contexts: Contexts,
    pub(crate) in_place: InPlace,
    in_place_funcs: InPlaceFuncs,
    /// Most recent kernel function call that the interpreter made. `Contexts::calling` holds the
    /// call that machine code makes, and takes precedence if it is set.
    pub(crate) calling: CallSite,
}

/// Origin of a call that a program makes to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSite {
    pub instance: InstanceId,
    /// Slot of the call instruction in the image.
    pub pc: u32,
    /// Frame of the caller; 0 is the program's first frame.
    pub depth: u32,
}

/// Kind of kernel object that a local storage map attaches to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Storage {
    Task,
    Cgroup,
}

/// Type of a referenced pointer (kptr) in a map value or an allocated object. `Kernel` is a BTF id
/// in the target kernel. `Local` is a BTF id in the loaded object file, for a pointer to memory
/// from `bpf_obj_new`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KptrKind {
    Kernel(u32),
    Local(u32),
}

/// The simulated kernel as seen by the virtual machine. Comments call it the host.
///
/// `vm` must be cheap (a field access), because the engines call it often. `Vm::executed` is up to
/// date during every call into the host.
pub trait Host: Sized {
    fn vm(&mut self) -> &mut Vm;
    /// CPU that the program runs on.
    fn cpu(&mut self) -> u32;
    /// Clock that advances with the time of kernel functions, in ns. Machine code advances it for
    /// those of `InPlaceFuncs`.
    fn clock_mut(&mut self) -> &mut u64;
    /// Clock of the run queue that is locked while the program runs, if one is.
    fn rq_clock(&self) -> Option<&u64> {
        None
    }
    fn ktime_ns(&mut self) -> u64;
    fn prandom_u32(&mut self) -> u32;
    /// Guest address of the current task's `task_struct`.
    fn current_task(&mut self) -> u64;
    fn kfunc(&mut self, site: CallSite, id: KfuncId, args: &[u64; 5]) -> Result<u64, Fault>;
    /// A helper that this crate does not implement. An implementation returns
    /// `helper::unmodelled(id)` if the host has no model of the helper either.
    fn helper(&mut self, site: CallSite, id: u32, args: [u64; 5]) -> Result<u64, Fault>;
    /// Whether the running program may store `len` bytes at this address of a kernel structure.
    fn store_to_kernel(&mut self, addr: u64, len: u32) -> bool;
    fn printk(&mut self, text: &str);
    /// Reports that the running CPU takes (`lock`) or releases (`unlock`) a `bpf_spin_lock` or
    /// `bpf_res_spin_lock`, in virtual time.
    fn lock(&mut self, addr: u64);
    fn unlock(&mut self, addr: u64);
    /// Returns the rights of the running program, in a form of the host's. A timer keeps those of
    /// the program that sets its callback, because a kernel verifies the callback with it.
    fn rights(&self) -> u8 {
        0
    }
    /// Arms a timer. `expires_ns` is absolute, on the clock of `ktime_ns`; `cpu` pins the timer to
    /// a CPU. Arming a timer again replaces the expiry time.
    fn timer_arm(&mut self, timer: TimerId, expires_ns: u64, cpu: Option<u32>);
    fn timer_cancel(&mut self, timer: TimerId);
    /// Releases a reference whose map element or object went away. The machine never calls this
    /// function for `KptrKind::Local`.
    fn kptr_release(&mut self, kind: KptrKind, ptr: u64);
    /// Whether a program may still create storage for this task or cgroup.
    fn owner_alive(&self, kind: Storage, addr: u64) -> bool;
}

impl Vm {
    pub fn new(config: Config) -> Result<Vm, OutOfMemory> {
        let mut mem = Memory::with_size(config.mem_size)?;
        let stacks = stack::Stacks::new(&mut mem, config.limits)?;
        let maps = MapTable::new(&mut mem)?;
        let in_place = InPlace::new(config.in_place_values);
        let contexts = Contexts::new(&mem, &in_place);
        Ok(Vm {
            mem,
            maps,
            timers: Timers::default(),
            limits: config.limits,
            engine: config.engine,
            nr_cpus: config.nr_cpus.max(1),
            hz: config.hz.max(1),
            work: config.work,
            executed: 0,
            helper_calls: 0,
            kfunc_calls: 0,
            objects: Default::default(),
            dropped: Vec::new(),
            locks: Vec::new(),
            instances: Vec::new(),
            stacks,
            deadline: 0,
            contexts,
            in_place,
            in_place_funcs: config.in_place,
            calling: CallSite { instance: InstanceId(0), pc: 0, depth: 0 },
        })
    }

    /// Counts the work of allocating or freeing `pages` arena pages, as `work` does for bytes.
    pub(crate) fn work_on_pages(&mut self, pages: u64) -> Result<(), Fault> {
        self.work(self.work.arena_page_bytes.saturating_mul(pages))
    }

    /// Counts the work that a helper is about to do on `bytes` bytes: one instruction per 8-byte
    /// word beyond the bytes that any call includes. The work takes virtual time and counts towards
    /// the program's instruction limit.
    pub(crate) fn work(&mut self, bytes: u64) -> Result<(), Fault> {
        let more = bytes.saturating_sub(self.work.call_bytes) / 8;
        if more == 0 {
            return Ok(());
        }
        // The helper does no work beyond the instruction limit, so only the work up to the limit
        // counts.
        let left = self.deadline.saturating_sub(self.executed);
        self.executed += more.min(left);
        if more < left {
            return Ok(());
        }
        Err(Fault::new(FaultKind::InsnLimit { limit: self.limits.insns_per_call }))
    }

    /// Adds an empty instance for an object. The loader first creates the object's maps in the
    /// instance, then links the object's code against their addresses.
    pub fn add_instance(&mut self, name: &str) -> InstanceId {
        let id = InstanceId(self.instances.len() as u32);
        self.instances.push(Some(Instance {
            id,
            name: name.to_owned(),
            image: Arc::default(),
            code: None,
            maps: Vec::new(),
            arena_base: 0,
            local_types: LocalTypes::default(),
        }));
        id
    }

    /// Gives an instance its code. All its maps must exist, and no program may run.
    pub fn install(&mut self, id: InstanceId, parts: InstanceParts) {
        assert!(!self.running(), "instance {} gets its code while a program runs", id.0);
        let pages = self.mem.size() / PAGE;
        let code = match self.engine {
            Engine::Interp => None,
            Engine::Jit => {
                let (data, funcs) = (self.data_of(id), self.in_place_funcs);
                parts.codes.code(&parts.image, data, pages, funcs, &self.limits)
            }
        };
        let instance = self.instance_mut(id).expect("install: no such instance");
        instance.image = parts.image;
        instance.code = code;
        instance.local_types = parts.local_types;
        self.contexts.forget();
    }

    /// Returns the values of the instance's array maps, which machine code can access without
    /// checking page permissions, and the keys of hashes that it can look up in its cache.
    fn data_of(&self, id: InstanceId) -> Vec<Data> {
        let maps = self.instance(id).map_or(&[][..], |instance| &instance.maps);
        let data = |id: &MapId| {
            let map = self.maps.get(*id)?;
            if let Some(size) = map.short_key() {
                let keys = Some(Keys { map: map.addr, size });
                return Some(Data { addr: 0, len: 0, writable: false, elements: None, keys });
            }
            let MapKind::Array(array) = map.kind else { return None };
            let (addr, len) = (array.base, array.len());
            let elements = Elements { map: map.addr, percpu: map.is_percpu(), array };
            let elements = (!map.holds_maps()).then_some(elements);
            let writable = self.mem.allows(addr, len, Access::Store);
            let data = Data { addr, len, writable, elements, keys: None };
            self.mem.allows(addr, len, Access::Load).then_some(data)
        };
        maps.iter().filter_map(data).collect()
    }

    #[inline(always)]
    pub fn instance(&self, id: InstanceId) -> Option<&Instance> {
        self.instances.get(id.idx())?.as_ref()
    }

    pub fn instance_mut(&mut self, id: InstanceId) -> Option<&mut Instance> {
        self.instances.get_mut(id.idx())?.as_mut()
    }

    pub fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.instances.iter().flatten()
    }

    /// Number of helper calls made by programs, on either engine.
    pub fn helper_calls(&self) -> u64 {
        self.helper_calls.wrapping_add(self.contexts.helper_calls())
    }

    /// Number of kernel function calls made by programs, on either engine.
    pub fn kfunc_calls(&self) -> u64 {
        self.kfunc_calls.wrapping_add(self.in_place.kfunc_calls())
    }

    /// Records that a task lies at an address, so that machine code can read it for kernel
    /// functions of the host. The record lasts until `forget_task`.
    #[inline]
    pub fn note_task(&mut self, addr: u64) {
        self.in_place.note_task(addr);
    }

    /// Forgets the task at an address, because it is gone.
    pub fn forget_task(&mut self, addr: u64) {
        self.in_place.forget_task(addr);
    }

    /// Records the first task of a dispatch queue (its address, or 0), so that machine code can
    /// read it for kernel functions of the host. The record lasts until `forget_dsq`.
    #[inline]
    pub fn note_dsq_first(&mut self, dsq: u64, task: u64) {
        self.in_place.note_dsq_first(dsq, task);
    }

    /// Records the length of a dispatch queue, as `note_dsq_first` does its first task.
    #[inline]
    pub fn note_dsq_len(&mut self, dsq: u64, len: u64) {
        self.in_place.note_dsq_len(dsq, len);
    }

    /// Forgets what was recorded of a dispatch queue, because it gets or loses a task or is gone.
    #[inline]
    pub fn forget_dsq(&mut self, dsq: u64) {
        self.in_place.forget_dsq(dsq);
    }

    /// Returns whether a program is running: an invocation has begun and not returned.
    #[inline(always)]
    pub fn running(&self) -> bool {
        self.stacks.level > 0
    }

    /// Number of nested invocations that run now. Every invocation after the first runs inside a
    /// kernel function call of the previous one.
    #[inline]
    pub fn level(&self) -> u32 {
        self.stacks.level
    }

    /// Returns `get_jiffies_64()` at the time `ktime_ns`. As in the kernel, the count starts 300 s
    /// before a 32-bit wrap.
    pub fn jiffies64(&self, ktime_ns: u64) -> u64 {
        let hz = u64::from(self.hz);
        let initial = u64::from((300 * self.hz).wrapping_neg());
        let (secs, rest) = (ktime_ns / 1_000_000_000, ktime_ns % 1_000_000_000);
        initial.wrapping_add(secs.wrapping_mul(hz)).wrapping_add(rest * hz / 1_000_000_000)
    }
}
