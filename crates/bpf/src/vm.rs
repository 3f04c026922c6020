// SPDX-License-Identifier: GPL-2.0-only
//! The virtual machine: loaded objects, and how the simulated kernel calls into them and is called back.
//!
//! Owns: instances, the counters of executed work, limits, nesting of invocations.
//! Does not: know kernel functions (see `Host`), keep time, or choose what to run.
//! Models: how the kernel enters BPF programs (trampolines, callbacks), v7.3. Differs: programs are not verified in
//! advance, they are checked while they run.

use std::sync::Arc;

use crate::fault::{Access, Fault, FaultKind};
use crate::insn::Insn;
use crate::jit::{self, Code, CodeCache, Contexts, Data, Elements, Refusal};
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

pub use crate::jit::Engine;
pub(crate) use enter::callback;
pub use enter::{call, call_raw, fire_timer, remove_instance, settle, storage_owner_gone};
pub(crate) use run::run;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub u32);

/// Index into `Image::funcs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FuncId(pub u32);

impl InstanceId {
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

impl FuncId {
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

/// A linked object: code with the addresses of one instance in it.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// Name of the object, for reports.
    pub name: String,
    /// Output of `insn::decode`, 1:1 with 8-byte slots.
    pub code: Vec<Insn>,
    pub funcs: Vec<Func>,
    /// Sorted by `pc`.
    pub lines: Vec<Line>,
    /// Names of the host's kfuncs that the code calls, for disassembly.
    pub kfunc_names: std::collections::BTreeMap<KfuncId, String>,
}

/// A function of an image: a program or a subprogram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Func {
    pub name: String,
    /// ELF section, as `struct_ops/simple_enqueue` or `.text`.
    pub section: String,
    /// First slot in `Image::code`, and number of slots.
    pub start: u32,
    pub len: u32,
    /// Set for entry points: what the section name says about the program's type.
    pub program: Option<ProgramKind>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramKind {
    StructOps {
        sleepable: bool,
    },
    Syscall,
    /// Anything else: the section's prefix and what it attaches to.
    Other {
        kind: String,
        target: String,
    },
}

/// Source line of the instructions from `pc` on.
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
    /// Only `Vm::install` writes it, and never while a program runs: the interpreter borrows it.
    image: Arc<Image>,
    /// Its machine code, unless the interpreter runs all of it. As with `image`.
    code: Option<Arc<Code>>,
    /// In order of creation.
    pub maps: Vec<MapId>,
    /// Window of the arena that its programs use, 0 without one.
    pub arena_base: u64,
    /// Types that `bpf_obj_new` may make, by BTF id of the object.
    pub local_types: LocalTypes,
}

impl Instance {
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Functions that are interpreted whatever the engine, and why: those that machine code is never made of, and
    /// those that the compiler turned out to refuse.
    pub fn refusals(&self) -> Vec<(String, Refusal)> {
        let mut all = jit::refusals(&self.image);
        if let Some(code) = &self.code {
            all.extend(code.refused());
        }
        all
    }

    /// Its machine code, unless the interpreter runs all of it.
    #[inline(always)]
    pub(crate) fn code(&self) -> Option<&Code> {
        self.code.as_deref()
    }

    /// How many functions are machine code by now.
    pub fn compiled(&self) -> usize {
        self.code.as_ref().map_or(0, |code| code.compiled())
    }
}

/// What the linker hands over once all addresses are known.
#[derive(Default)]
pub struct InstanceParts {
    pub image: Arc<Image>,
    pub local_types: LocalTypes,
    /// Where machine code of an equal image may be, and where its own goes.
    pub codes: CodeCache,
}

/// Bounds on what one outermost invocation may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Instructions of one outermost invocation, everything called from it included. The kernel has no such limit at
    /// run time (its verifier bounds a path to 1 M instructions, and helpers such as `bpf_loop` multiply that by up
    /// to 8 M); 64 M is more than any scheduler callback can mean.
    pub insns_per_call: u64,
    /// Frames of one program with its subprograms and callbacks: `MAX_CALL_FRAMES`.
    pub call_depth: u32,
    /// Programs running inside each other's kernel calls.
    pub nesting: u32,
    /// Iterations that one frame's `may_goto` loops get: `BPF_MAX_LOOPS`.
    pub may_goto: u32,
    /// A function is compiled once the interpreter has executed so many instructions for each slot of it, counting the way
    /// into it as some: about where it has lost as much time as compiling takes (25 us of a slot; an interpreted instruction
    /// loses 2 ns).
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

/// What a virtual machine is built with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Possible CPUs: how many copies per-CPU maps have.
    pub nr_cpus: u32,
    /// `CONFIG_HZ`, for `bpf_jiffies64`.
    pub hz: u32,
    /// Address space of the memory, in bytes.
    pub mem_size: u64,
    pub work: Work,
    pub limits: Limits,
    pub engine: Engine,
}

/// The work of helpers and kernel functions beyond their call, which the machine's costs decide.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Bytes that one handles for what its call costs.
    pub call_bytes: u64,
    /// Giving or taking one page of an arena is as much work as so many bytes.
    pub arena_page_bytes: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            nr_cpus: 1,
            hz: 1000,
            mem_size: crate::mem::DEFAULT_SIZE,
            work: Work::default(),
            limits: Limits::default(),
            engine: Engine::default(),
        }
    }
}

/// Everything BPF of one simulation.
pub struct Vm {
    pub mem: Memory,
    pub maps: MapTable,
    pub timers: Timers,
    pub limits: Limits,
    /// Of objects that are linked from now on.
    pub engine: Engine,
    pub nr_cpus: u32,
    pub hz: u32,
    work: Work,
    /// Instructions executed since the start. Up to date whenever the host is called.
    pub executed: u64,
    pub(crate) helper_calls: u64,
    pub kfunc_calls: u64,
    /// Trees, lists and objects made by programs.
    pub(crate) objects: crate::kfunc::Objects,
    /// What map operations let go of and the host has not been told yet.
    pub(crate) dropped: Vec<Dropped>,
    /// `bpf_spin_lock`s held by running programs, oldest first.
    pub(crate) locks: Vec<u64>,
    instances: Vec<Option<Instance>>,
    pub(crate) stacks: stack::Stacks,
    /// Value of `executed` at which the outermost invocation is stopped.
    pub(crate) deadline: u64,
    /// Of machine code.
    pub(crate) contexts: Contexts,
    /// The last call of a kernel function that the interpreter made, unless code has made one since (`Contexts::calling`).
    pub(crate) calling: CallSite,
}

/// Where a call out of a program comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSite {
    pub instance: InstanceId,
    /// Slot index of the call in the image.
    pub pc: u32,
    /// Frame of the caller, 0 for a program's own.
    pub depth: u32,
}

/// Which kernel objects a local storage map hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Storage {
    Task,
    Cgroup,
}

/// The type of a referenced kernel pointer that a map value or object holds: its BTF id in the target, or in the
/// object for a pointer to what `bpf_obj_new` made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KptrKind {
    Kernel(u32),
    Local(u32),
}

/// The simulated kernel, as the virtual machine sees it.
///
/// `vm` is a field projection: it is called often. During every call into the host, `Vm::executed` is up to date.
pub trait Host: Sized {
    fn vm(&mut self) -> &mut Vm;
    /// CPU that the program runs on.
    fn cpu(&mut self) -> u32;
    fn ktime_ns(&mut self) -> u64;
    fn prandom_u32(&mut self) -> u32;
    /// Guest address of the current `task_struct`.
    fn current_task(&mut self) -> u64;
    fn kfunc(&mut self, site: CallSite, id: KfuncId, args: &[u64; 5]) -> Result<u64, Fault>;
    /// A helper that this crate does not implement. Return `helper::unmodelled(id)` for what you do not either.
    fn helper(&mut self, site: CallSite, id: u32, args: [u64; 5]) -> Result<u64, Fault>;
    /// May the running program store `len` bytes at this address of a kernel structure?
    fn store_to_kernel(&mut self, addr: u64, len: u32) -> bool;
    fn printk(&mut self, text: &str);
    /// `bpf_spin_lock` and `bpf_res_spin_lock` in virtual time: called when the running CPU takes and leaves one.
    fn lock(&mut self, addr: u64);
    fn unlock(&mut self, addr: u64);
    /// `expires_ns` is absolute, on the clock of `ktime_ns`; `cpu` pins it. Arming again moves it.
    fn timer_arm(&mut self, timer: TimerId, expires_ns: u64, cpu: Option<u32>);
    fn timer_cancel(&mut self, timer: TimerId);
    /// A map element or object that held this reference went away. Never called for `KptrKind::Local`.
    fn kptr_release(&mut self, kind: KptrKind, ptr: u64);
    /// Whether storage may still be made for this task or cgroup.
    fn owner_alive(&self, kind: Storage, addr: u64) -> bool;
}

impl Vm {
    pub fn new(config: Config) -> Result<Vm, OutOfMemory> {
        let mut mem = Memory::with_size(config.mem_size)?;
        let stacks = stack::Stacks::new(&mut mem, config.limits)?;
        let maps = MapTable::new(&mut mem)?;
        let contexts = Contexts::new(&mem);
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
            calling: CallSite { instance: InstanceId(0), pc: 0, depth: 0 },
        })
    }

    /// Counts what a kernel function is about to do to so many pages of an arena.
    pub(crate) fn work_on_pages(&mut self, pages: u64) -> Result<(), Fault> {
        self.work(self.work.arena_page_bytes.saturating_mul(pages))
    }

    /// Counts what a helper is about to do, by its bytes: an instruction for each word beyond the few that are part of any call.
    /// So it takes virtual time, and a program's limit holds for it.
    pub(crate) fn work(&mut self, bytes: u64) -> Result<(), Fault> {
        let more = bytes.saturating_sub(self.work.call_bytes) / 8;
        if more == 0 {
            return Ok(());
        }
        // What goes beyond the limit is not done, and not counted.
        let left = self.deadline.saturating_sub(self.executed);
        self.executed += more.min(left);
        if more < left {
            return Ok(());
        }
        Err(Fault::new(FaultKind::InsnLimit { limit: self.limits.insns_per_call }))
    }

    /// Make room for an object: its maps are created in it first, then its code is linked against their addresses.
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

    /// Give an instance its code. All its maps exist by now, and no program runs.
    pub fn install(&mut self, id: InstanceId, parts: InstanceParts) {
        assert!(!self.running(), "instance {} gets its code while a program runs", id.0);
        let pages = self.mem.size() / PAGE;
        let code = match self.engine {
            Engine::Interp => None,
            Engine::Jit => parts.codes.code(&parts.image, self.data_of(id), pages, &self.limits),
        };
        let instance = self.instance_mut(id).expect("install: no such instance");
        instance.image = parts.image;
        instance.code = code;
        instance.local_types = parts.local_types;
        self.contexts.forget();
    }

    /// The instance's memory that machine code need not look at before each access.
    fn data_of(&self, id: InstanceId) -> Vec<Data> {
        let maps = self.instance(id).map_or(&[][..], |instance| &instance.maps);
        let data = |id: &MapId| {
            let map = self.maps.get(*id)?;
            let MapKind::Array(array) = map.kind else { return None };
            let (addr, len) = (array.base, array.len());
            let elements = Elements { map: map.addr, percpu: map.is_percpu(), array };
            let elements = (!map.holds_maps()).then_some(elements);
            let writable = self.mem.allows(addr, len, Access::Store);
            let data = Data { addr, len, writable, elements };
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

    /// Helpers that programs have called.
    pub fn helper_calls(&self) -> u64 {
        self.helper_calls.wrapping_add(self.contexts.helper_calls())
    }

    /// Whether a program is running now: an invocation that began has not returned.
    pub fn running(&self) -> bool {
        self.stacks.level > 0
    }

    /// How many invocations run, each but the first inside of another's call.
    #[inline]
    pub fn level(&self) -> u32 {
        self.stacks.level
    }

    /// `get_jiffies_64()` at this time: the kernel starts counting 300 s before a 32-bit wrap.
    pub fn jiffies64(&self, ktime_ns: u64) -> u64 {
        let hz = u64::from(self.hz);
        let initial = u64::from((300 * self.hz).wrapping_neg());
        let (secs, rest) = (ktime_ns / 1_000_000_000, ktime_ns % 1_000_000_000);
        initial.wrapping_add(secs.wrapping_mul(hz)).wrapping_add(rest * hz / 1_000_000_000)
    }
}
