// SPDX-License-Identifier: GPL-2.0-only
//! Kernel functions that need no simulated kernel: number iterators, markers, spin locks, objects,
//! trees, lists, arena pages, dynptrs.
//!
//! Owns: the list of built-in kfuncs and their ids.
//! Does not: implement other kfuncs, which the `Host` does.
//! Models: kernel/bpf/helpers.c, bpf_iter.c, rqspinlock.c and arena.c, v7.3.
//! Differs: functions for RCU, preemption and interrupts are markers without effect, because
//! programs run one at a time.

use crate::errno::*;
use crate::fault::{Fault, FaultKind};
use crate::helper::{lock, unlock};
use crate::vm::{CallSite, Host};

mod arena;
mod dynptr;
pub(crate) mod num;
mod objects;
#[cfg(test)]
mod tests;

pub(crate) use objects::Objects;

/// Id of a kernel function within a simulation. Built-in kfuncs have the high bit set; the `Host`
/// implements the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KfuncId(pub u32);

const BUILTIN: u32 = 1 << 31;

impl KfuncId {
    #[inline(always)]
    pub fn is_builtin(self) -> bool {
        self.0 & BUILTIN != 0
    }
}

/// First of the addresses that stand for kernel functions (`bpf_ksym_exists`). No memory is mapped
/// at these addresses.
pub const KFUNC_BASE: u64 = 0xffff_ffff_8100_0000;

/// Returns the non-zero value that a program sees as the address of a kfunc.
pub fn kfunc_addr(id: KfuncId) -> u64 {
    let builtin = u64::from(id.is_builtin()) << 24;
    KFUNC_BASE + builtin + (u64::from(id.0 & !BUILTIN & 0xf_ffff) << 4)
}

/// Returns the built-in kfunc of this name, if there is one. The caller has removed a `___suffix`
/// from the name.
pub fn builtin(name: &str) -> Option<KfuncId> {
    let at = BUILTINS.iter().position(|builtin| builtin.0 == name)?;
    Some(KfuncId(BUILTIN | at as u32))
}

/// Work of a built-in kfunc that machine code carries out itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InPlaceBuiltin {
    /// Returns 0.
    Zero,
    /// Returns its first argument.
    Identity,
    IterNumNew,
    IterNumNext,
}

/// Returns the work of a built-in kfunc, if machine code carries it out itself.
pub(crate) fn in_place(id: KfuncId) -> Option<InPlaceBuiltin> {
    let at = id.is_builtin().then_some((id.0 & !BUILTIN) as usize)?;
    match BUILTINS.get(at)?.1 {
        Marker => Some(InPlaceBuiltin::Zero),
        Identity => Some(InPlaceBuiltin::Identity),
        IterNumNew => Some(InPlaceBuiltin::IterNumNew),
        IterNumNext => Some(InPlaceBuiltin::IterNumNext),
        _ => None,
    }
}

/// Returns the name of a built-in kfunc.
pub fn name(id: KfuncId) -> Option<&'static str> {
    let at = id.is_builtin().then_some((id.0 & !BUILTIN) as usize)?;
    BUILTINS.get(at).map(|builtin| builtin.0)
}

/// Behaviour of a built-in kfunc. Several kfuncs share one behaviour: for example, `x_impl` is the
/// older name of `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Builtin {
    /// Has no effect.
    Marker,
    /// Returns its first argument.
    Identity,
    IrqSave,
    IterNumNew,
    IterNumNext,
    ObjNew,
    ObjDrop,
    RefcountAcquire,
    RbAdd,
    RbRemove,
    RbFirst,
    RbRoot,
    RbLeft,
    RbRight,
    ListPushFront,
    ListPushBack,
    ListAdd,
    ListPopFront,
    ListPopBack,
    ListDel,
    ListFront,
    ListBack,
    ListIsFirst,
    ListIsLast,
    ListEmpty,
    ResLock,
    ResUnlock,
    ArenaAlloc,
    ArenaFree,
    ArenaReserve,
    DynptrSize,
    DynptrIsNull,
    DynptrIsRdonly,
    DynptrAdjust,
    DynptrClone,
    DynptrSlice,
    DynptrSliceRdwr,
}

use Builtin::*;

const BUILTINS: &[(&str, Builtin)] = &[
    ("bpf_iter_num_new", IterNumNew),
    ("bpf_iter_num_next", IterNumNext),
    ("bpf_iter_num_destroy", Marker),
    ("bpf_rcu_read_lock", Marker),
    ("bpf_rcu_read_unlock", Marker),
    ("bpf_preempt_disable", Marker),
    ("bpf_preempt_enable", Marker),
    ("bpf_local_irq_save", IrqSave),
    ("bpf_local_irq_restore", Marker),
    ("bpf_rdonly_cast", Identity),
    ("bpf_cast_to_kern_ctx", Identity),
    ("bpf_obj_new", ObjNew),
    ("bpf_obj_new_impl", ObjNew),
    ("bpf_obj_drop", ObjDrop),
    ("bpf_obj_drop_impl", ObjDrop),
    ("bpf_refcount_acquire", RefcountAcquire),
    ("bpf_refcount_acquire_impl", RefcountAcquire),
    ("bpf_rbtree_add", RbAdd),
    ("bpf_rbtree_add_impl", RbAdd),
    ("bpf_rbtree_remove", RbRemove),
    ("bpf_rbtree_first", RbFirst),
    ("bpf_rbtree_root", RbRoot),
    ("bpf_rbtree_left", RbLeft),
    ("bpf_rbtree_right", RbRight),
    ("bpf_list_push_front", ListPushFront),
    ("bpf_list_push_front_impl", ListPushFront),
    ("bpf_list_push_back", ListPushBack),
    ("bpf_list_push_back_impl", ListPushBack),
    ("bpf_list_add", ListAdd),
    ("bpf_list_pop_front", ListPopFront),
    ("bpf_list_pop_back", ListPopBack),
    ("bpf_list_del", ListDel),
    ("bpf_list_front", ListFront),
    ("bpf_list_back", ListBack),
    ("bpf_list_is_first", ListIsFirst),
    ("bpf_list_is_last", ListIsLast),
    ("bpf_list_empty", ListEmpty),
    ("bpf_res_spin_lock", ResLock),
    ("bpf_res_spin_unlock", ResUnlock),
    ("bpf_res_spin_lock_irqsave", ResLock),
    ("bpf_res_spin_unlock_irqrestore", ResUnlock),
    ("bpf_arena_alloc_pages", ArenaAlloc),
    ("bpf_arena_free_pages", ArenaFree),
    ("bpf_arena_reserve_pages", ArenaReserve),
    ("bpf_dynptr_size", DynptrSize),
    ("bpf_dynptr_is_null", DynptrIsNull),
    ("bpf_dynptr_is_rdonly", DynptrIsRdonly),
    ("bpf_dynptr_adjust", DynptrAdjust),
    ("bpf_dynptr_clone", DynptrClone),
    ("bpf_dynptr_slice", DynptrSlice),
    ("bpf_dynptr_slice_rdwr", DynptrSliceRdwr),
];

pub(crate) fn call<H: Host>(
    h: &mut H,
    site: CallSite,
    id: KfuncId,
    args: [u64; 5],
) -> Result<u64, Fault> {
    let [a, b, c, d, e] = args;
    let builtin = BUILTINS.get((id.0 & !BUILTIN) as usize);
    let Some(&(name, builtin)) = builtin else {
        return Err(poisoned(h, site, id));
    };
    match builtin {
        Marker => Ok(0),
        Identity => Ok(a),
        IrqSave => {
            h.vm().mem.write(a, 0u64)?;
            Ok(0)
        }
        IterNumNew => num::new(&mut h.vm().mem, a, b as i32, c as i32),
        IterNumNext => num::next(&mut h.vm().mem, a),
        ObjNew => objects::new(h, site, a),
        ObjDrop => objects::drop(h, a),
        RefcountAcquire => objects::acquire(h, a),
        RbAdd => objects::tree_add(h, site, a, b, c),
        RbRemove | RbFirst | RbRoot | RbLeft | RbRight => Ok(objects::tree(h.vm(), builtin, a, b)),
        ListPushFront | ListPushBack | ListAdd => objects::list_add(h, builtin, [a, b, c]),
        ListPopFront | ListPopBack | ListDel => Ok(objects::list_remove(h.vm(), builtin, a, b)),
        ListFront | ListBack | ListIsFirst | ListIsLast | ListEmpty => {
            Ok(objects::list_look(h.vm(), builtin, a, b))
        }
        ResLock => Ok(if lock(h, a)? { 0 } else { neg(EDEADLK) }),
        ResUnlock => unlock(h, a).map(|()| 0),
        ArenaAlloc => arena::alloc(h.vm(), [a, b, c, d, e]),
        ArenaFree => arena::free(h.vm(), a, b, c as u32),
        ArenaReserve => arena::reserve(h.vm(), a, b, c as u32),
        DynptrSize | DynptrIsNull | DynptrIsRdonly | DynptrAdjust | DynptrClone | DynptrSlice
        | DynptrSliceRdwr => dynptr::call(&mut h.vm().mem, name, builtin, args),
    }
}

/// Returns the fault of a poisoned call. The linker replaces an instruction that must not run by a
/// call of a kfunc whose id is at least the linker's `POISON`.
fn poisoned<H: Host>(h: &mut H, site: CallSite, id: KfuncId) -> Fault {
    let image = h.vm().instance(site.instance).map(|instance| instance.image().clone());
    match image.as_ref().and_then(|image| image.kfunc_names.get(&id)) {
        Some(what) => Fault::new(FaultKind::Poison { what: what.clone() }),
        None => Fault::unmodelled(format!("built-in kfunc {:#x}", id.0)),
    }
}
