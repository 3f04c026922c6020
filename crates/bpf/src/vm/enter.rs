// SPDX-License-Identifier: GPL-2.0-only
//! Entry into programs: calls by the kernel, callbacks of helpers, timers; and the clean-up around
//! them.
//!
//! Owns: nesting, the limit of the outermost invocation, the rule that no lock outlives that
//! invocation.
//! Does not: execute (see `interp.rs`).

use super::interp::MAX_FRAMES;
use super::run::run_outermost;
use super::{CallSite, FuncId, Host, InstanceId, KptrKind, Storage, Vm, run};
use crate::fault::{Fault, FaultKind};
use crate::insn::func_of_addr;
use crate::jit::Args;
use crate::map::{Dropped, MapId};
use crate::timer::TimerId;

/// Offset in the scratch page, behind the arguments, of keys and dynptrs for callbacks.
const CALLBACK_SCRATCH: u64 = 1024;
/// Largest number of arguments of a program.
const MAX_ARGS: usize = CALLBACK_SCRATCH as usize / size_of::<u64>();
/// Size in bytes of the scratch slot that each frame has for the keys and dynptrs of callbacks.
const CALLBACK_STRIDE: u64 = 64;

/// Calls a struct_ops (or tracing) program with the address of an array of its arguments in r1.
/// Words behind the array are undefined. Inlining is forced here and in the callees, because the
/// entry would otherwise take half the time of a short callback.
#[inline(always)]
pub fn call<H: Host, const N: usize>(
    h: &mut H,
    instance: InstanceId,
    func: FuncId,
    args: &[u64; N],
) -> Result<u64, Fault> {
    const { assert!(N <= MAX_ARGS) };
    invoke(h, instance, func, |vm| {
        let at = vm.stacks.scratch();
        *vm.mem.own_mut::<[u64; N]>(at) = *args;
        Args::One(at)
    })
}

/// Calls a function with registers r1 to r5: a syscall program with its context, or an asynchronous
/// callback.
pub fn call_raw<H: Host>(
    h: &mut H,
    instance: InstanceId,
    func: FuncId,
    regs: [u64; 5],
) -> Result<u64, Fault> {
    invoke(h, instance, func, |_| Args::All(regs))
}

/// Runs the callback of a timer that the host was told to arm. Does nothing if the timer is gone or
/// idle.
pub fn fire_timer<H: Host>(h: &mut H, id: TimerId) -> Result<(), Fault> {
    let vm = h.vm();
    let Some(timer) = vm.timers.get_mut(id).filter(|timer| timer.armed) else {
        return Ok(());
    };
    timer.armed = false;
    let timer = *timer;
    let Some(callback) = timer.callback else {
        return Ok(());
    };
    let outer = vm.timers.running.replace(id);
    let result = invoke(h, timer.instance, callback, |vm| {
        // The callback's key goes into the scratch slot after those of all frames, because helpers
        // that the callback calls use the slots of its frames.
        let scratch = vm.callback_scratch(MAX_FRAMES as u32);
        let (map, key) = vm.callback_key(timer.map, timer.value, scratch);
        Args::All([map, key, timer.value, 0, 0])
    });
    h.vm().timers.running = outer;
    result.map(|_| ())
}

/// Calls back into the program that called a helper or kfunc: one frame deeper, on the same stack.
pub(crate) fn callback<H: Host>(
    h: &mut H,
    site: CallSite,
    addr: u64,
    args: [u64; 5],
) -> Result<u64, Fault> {
    let func = func_of_addr(addr).ok_or_else(|| Fault::new(FaultKind::BadCall { addr }))?;
    h.vm().record_pending_call(site.depth, site.pc);
    run(h, site.instance, func, site.depth + 1, |_| Args::All(args))
}

/// Tells the host which timers and references map operations have dropped. Every invocation begins
/// and ends with a call of this function.
#[inline]
pub fn release_dropped<H: Host>(h: &mut H) {
    if !h.vm().dropped.is_empty() {
        tell_dropped(h);
    }
}

#[inline(never)]
fn tell_dropped<H: Host>(h: &mut H) {
    while !h.vm().dropped.is_empty() {
        for dropped in std::mem::take(&mut h.vm().dropped) {
            match dropped {
                Dropped::Timer(id) => h.timer_cancel(id),
                Dropped::Kptr { kind: KptrKind::Local(_), ptr, .. } => h.vm().drop_object(ptr),
                Dropped::Kptr { kind, ptr, .. } => h.kptr_release(kind, ptr),
            }
        }
    }
}

/// Frees the values of a task or cgroup that is gone, in all storage maps.
pub fn storage_owner_gone<H: Host>(h: &mut H, kind: Storage, owner: u64) {
    let vm = h.vm();
    for id in vm.maps.storage_ids() {
        vm.storage_owner_gone_in(id, kind, owner);
    }
    release_dropped(h);
}

/// Unloads an object with its maps. None of its programs may be running.
pub fn remove_instance<H: Host>(h: &mut H, id: InstanceId) {
    assert!(!h.vm().running(), "instance {} removed while a program runs", id.0);
    h.vm().contexts.forget();
    let Some(instance) = h.vm().instance(id) else {
        return;
    };
    for map in instance.maps.clone() {
        h.vm().destroy_map(map);
    }
    release_dropped(h);
    h.vm().instances[id.idx()] = None;
}

impl Vm {
    /// Returns the address of 64 bytes that a helper called in frame `depth` may pass to its
    /// callback.
    pub(crate) fn callback_scratch(&self, depth: u32) -> u64 {
        self.stacks.scratch() + CALLBACK_SCRATCH + u64::from(depth) * CALLBACK_STRIDE
    }

    /// Returns the address of a value's map and the address of the value's key, for callbacks. For
    /// an array, the function writes the key to `scratch`.
    pub(crate) fn callback_key(&mut self, map: MapId, value: u64, scratch: u64) -> (u64, u64) {
        let Some(map) = self.maps.get(map) else {
            return (0, 0);
        };
        match map.key_at(value) {
            crate::map::KeyAt::Addr(key) => (map.addr, key),
            crate::map::KeyAt::Index(index) => {
                let addr = map.addr;
                *self.mem.host_mut::<u32>(scratch) = index;
                (addr, scratch)
            }
        }
    }

    fn storage_owner_gone_in(&mut self, id: MapId, kind: Storage, owner: u64) {
        let (maps, mut ctx) = self.split_maps();
        if let Some(map) = maps.get_mut(id).filter(|map| map.storage_kind() == Some(kind)) {
            // The deletion fails if the owner has no value in this map. This is usual, so the error
            // is dropped.
            let _absent = map.storage_delete(&mut ctx, owner);
        }
    }
}

/// Runs a program on a nesting level of its own, which has its own guest stack.
#[inline(always)]
fn invoke<H: Host>(
    h: &mut H,
    instance: InstanceId,
    func: FuncId,
    setup: impl FnOnce(&mut Vm) -> Args,
) -> Result<u64, Fault> {
    release_dropped(h);
    let vm = h.vm();
    if vm.running() {
        return nested(h, instance, func, setup);
    }
    vm.stacks.enter_outermost();
    let result = run_outermost(h, instance, func, setup);
    let vm = h.vm();
    vm.stacks.leave_outermost();
    if vm.dropped.len() | vm.locks.len() == 0 { result } else { finish(h, result) }
}

/// Runs a program inside a call of another program.
#[inline(never)]
fn nested<H: Host>(
    h: &mut H,
    instance: InstanceId,
    func: FuncId,
    setup: impl FnOnce(&mut Vm) -> Args,
) -> Result<u64, Fault> {
    let vm = h.vm();
    if vm.stacks.full() {
        return Err(Fault::new(FaultKind::Nesting { max: vm.limits.nesting }));
    }
    let outer = vm.stacks.enter();
    let (calling, code_calling) = (vm.calling, vm.contexts.code_calling());
    let result = run(h, instance, func, 0, setup);
    let vm = h.vm();
    vm.stacks.leave(outer);
    vm.calling = calling;
    vm.contexts.set_calling(code_calling);
    if vm.dropped.is_empty() { result } else { finish(h, result) }
}

/// Cleans up after an invocation that left locks or dropped references.
#[cold]
#[inline(never)]
fn finish<H: Host>(h: &mut H, result: Result<u64, Fault>) -> Result<u64, Fault> {
    let outermost = !h.vm().running();
    let result = if outermost { release_locks(h, result) } else { result };
    release_dropped(h);
    result
}

/// Releases the locks that a program held when it ended or faulted. Ending with a lock held is a
/// fault.
fn release_locks<H: Host>(h: &mut H, result: Result<u64, Fault>) -> Result<u64, Fault> {
    let Some(&first) = h.vm().locks.first() else {
        return result;
    };
    while let Some(addr) = h.vm().locks.pop() {
        // The write may fail, because the program may have freed the memory of the lock. The lock
        // counts as released even so.
        let _gone = h.vm().mem.write(addr, 0u32);
        h.unlock(addr);
    }
    result.and(Err(Fault::new(FaultKind::Lock {
        addr: first,
        what: "still held when the program ended",
    })))
}
