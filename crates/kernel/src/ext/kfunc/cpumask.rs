// SPDX-License-Identifier: GPL-2.0-only
//! kfuncs on CPU sets: `bpf_cpumask` objects and the operations on them, and the machine's own
//! sets.
//!
//! Owns: the checks of arguments. A set that is only read may be any readable memory. A set that is
//! changed must be a live object or the program's own memory, such as a `struct bpf_cpumask` in a
//! global variable. The verifier ensures this by type; here `changeable` checks it.
//! Models: kernel/bpf/cpumask.c and lib/cpumask.c with CONFIG_NR_CPUS=8192, 7.3. Differs: no known
//! difference; bits after the last CPU change in the same operations as in the kernel, which works
//! on whole words.

use super::{Handler, KfResult};
use crate::ext::idle::bits;
use crate::ext::idle::objects::OBJECT_BYTES;
use crate::kernel::Kernel;
use scxlab_bpf::errno::EACCES;
use scxlab_bpf::fault::{Access, Fault};
use scxlab_machine::cpumask;
use scxlab_machine::id::CpuId;

pub(super) const TABLE: &[(&str, Handler)] = &[
    ("bpf_cpumask_create", create),
    ("bpf_cpumask_acquire", acquire),
    ("bpf_cpumask_release", release),
    ("bpf_cpumask_release_dtor", release),
    ("bpf_cpumask_first", first),
    ("bpf_cpumask_first_zero", first_zero),
    ("bpf_cpumask_first_and", first_and),
    ("bpf_cpumask_set_cpu", set_cpu),
    ("bpf_cpumask_clear_cpu", clear_cpu),
    ("bpf_cpumask_test_cpu", test_cpu),
    ("bpf_cpumask_test_and_set_cpu", test_and_set_cpu),
    ("bpf_cpumask_test_and_clear_cpu", test_and_clear_cpu),
    ("bpf_cpumask_setall", setall),
    ("bpf_cpumask_clear", clear),
    ("bpf_cpumask_and", and),
    ("bpf_cpumask_or", or),
    ("bpf_cpumask_xor", xor),
    ("bpf_cpumask_equal", equal),
    ("bpf_cpumask_intersects", intersects),
    ("bpf_cpumask_subset", subset),
    ("bpf_cpumask_empty", empty),
    ("bpf_cpumask_full", full),
    ("bpf_cpumask_copy", copy),
    ("bpf_cpumask_any_distribute", any_distribute),
    ("bpf_cpumask_any_and_distribute", any_and_distribute),
    ("bpf_cpumask_weight", weight),
    ("bpf_cpumask_populate", populate),
    ("scx_bpf_get_possible_cpumask", get_possible_cpumask),
    ("scx_bpf_get_online_cpumask", get_online_cpumask),
    ("scx_bpf_put_cpumask", put_cpumask),
];

/// Encodes the result of a kfunc that returns `s32`.
pub(super) fn s32(value: i64) -> u64 {
    value as u64
}

/// Encodes the result of a kfunc that returns `bool`.
pub(super) fn flag(value: bool) -> u64 {
    u64::from(value)
}

/// Checks that all words of a set can be read.
#[inline(always)]
pub(super) fn readable(k: &Kernel, addr: u64) -> Result<u64, Fault> {
    let bytes = k.ext.idle.nr_words() as u64 * 8;
    let ok = addr.is_multiple_of(8) && k.vm.mem.allows(addr, bytes, Access::Load);
    if ok { Ok(addr) } else { Err(unreadable(k, addr, bytes)) }
}

#[cold]
#[inline(never)]
fn unreadable(k: &Kernel, addr: u64, bytes: u64) -> Fault {
    match k.vm.mem.bytes(addr, bytes) {
        Err(fault) => fault.into(),
        Ok(_) => Fault::bad_argument("cpumask", format!("{addr:#x} is not aligned")),
    }
}

/// Checks that a set may be changed. The set may lie in a map's value or on the stack, because the
/// verifier treats the struct as plain memory there.
fn changeable(k: &Kernel, call: &'static str, addr: u64) -> Result<u64, Fault> {
    if k.ext.idle.objects.is_live(addr) {
        return Ok(addr);
    }
    let own = addr.is_multiple_of(8) && k.vm.mem.allows(addr, OBJECT_BYTES, Access::Store);
    if own { Ok(addr) } else { object(k, call, addr) }
}

/// Checks that a live object, which has references, is at `addr`.
fn object(k: &Kernel, call: &'static str, addr: u64) -> Result<u64, Fault> {
    if k.ext.idle.objects.is_live(addr) {
        return Ok(addr);
    }
    // For a bad pointer, report the fault of the memory access.
    k.vm.mem.bytes(addr, OBJECT_BYTES)?;
    Err(Fault::bad_argument(call, format!("{addr:#x} is not a live bpf_cpumask")))
}

/// Drops a reference to a `bpf_cpumask`, for a program or for a map element that is freed.
pub(crate) fn release_cpumask(k: &mut Kernel, addr: u64) -> Result<(), Fault> {
    let addr = object(k, "bpf_cpumask_release", addr)?;
    k.ext.idle.objects.release(&mut k.vm.mem, addr);
    Ok(())
}

/// Charges the time of one pass over a whole mask.
#[inline(always)]
fn charge_mask(k: &mut Kernel) {
    charge_words(k, k.ext.idle.nr_words() as u64);
}

fn charge_words(k: &mut Kernel, n: u64) {
    k.charge(n * k.machine.costs.kfunc.cpumask_word_ns);
}

#[inline(always)]
fn mask(k: &Kernel, addr: u64) -> &[u64] {
    k.vm.mem.words(addr, k.ext.idle.nr_words())
}

#[inline(always)]
fn mask_mut(k: &mut Kernel, addr: u64) -> &mut [u64] {
    k.vm.mem.words_mut(addr, k.ext.idle.nr_words())
}

fn nr_cpu_ids(k: &Kernel) -> usize {
    k.ext.idle.nr_cpus()
}

fn create(k: &mut Kernel, _: &[u64; 5]) -> KfResult {
    charge_mask(k);
    let objects = &mut k.ext.idle.objects;
    // The program gets NULL if memory is exhausted, as in the kernel.
    Ok(objects.create(&mut k.vm.mem).unwrap_or(0))
}

fn acquire(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let addr = object(k, "bpf_cpumask_acquire", a[0])?;
    k.ext.idle.objects.acquire(&mut k.vm.mem, addr);
    Ok(addr)
}

fn release(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    release_cpumask(k, a[0])?;
    Ok(0)
}

/// Returns the number of the CPU, or nr_cpu_ids if there is none.
fn cpu_or_end(k: &Kernel, cpu: Option<u32>) -> u64 {
    cpu.map_or(nr_cpu_ids(k) as u64, u64::from)
}

fn first(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    first_and(k, &[a[0], a[0], 0, 0, 0])
}

fn first_zero(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let words = mask(k, readable(k, a[0])?);
    let gap = words.iter().position(|&w| w != u64::MAX);
    let looked_at = gap.map_or(words.len(), |at| at + 1) as u64;
    let cpu = gap.map(|at| at as u32 * 64 + words[at].trailing_ones());
    charge_words(k, looked_at);
    let nr = nr_cpu_ids(k);
    Ok(cpu_or_end(k, cpu.filter(|&cpu| (cpu as usize) < nr)))
}

fn first_and(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let (x, y) = (readable(k, a[0])?, readable(k, a[1])?);
    let mut words_read = 0;
    let found = bits::next_and(mask(k, x), mask(k, y), 0, nr_cpu_ids(k), &mut words_read);
    charge_words(k, words_read);
    Ok(cpu_or_end(k, found))
}

/// Returns the CPU that a program named. None if no CPU has that number; the kfuncs ignore such a
/// number.
fn cpu_arg(k: &Kernel, cpu: u64) -> Option<CpuId> {
    let cpu = cpu as u32;
    ((cpu as usize) < nr_cpu_ids(k)).then_some(CpuId(cpu))
}

/// Sets or clears one bit and returns its old value.
fn change_cpu(k: &mut Kernel, call: &'static str, a: &[u64; 5], to: bool) -> Result<bool, Fault> {
    let addr = changeable(k, call, a[1])?;
    let Some(cpu) = cpu_arg(k, a[0]) else {
        return Ok(false);
    };
    charge_words(k, 1);
    let words = mask_mut(k, addr);
    let was = cpumask::test(words, cpu);
    let change = if to { cpumask::set } else { cpumask::clear };
    change(words, cpu);
    Ok(was)
}

fn set_cpu(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    change_cpu(k, "bpf_cpumask_set_cpu", a, true).map(|_| 0)
}

fn clear_cpu(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    change_cpu(k, "bpf_cpumask_clear_cpu", a, false).map(|_| 0)
}

fn test_and_set_cpu(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    change_cpu(k, "bpf_cpumask_test_and_set_cpu", a, true).map(flag)
}

fn test_and_clear_cpu(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    change_cpu(k, "bpf_cpumask_test_and_clear_cpu", a, false).map(flag)
}

fn test_cpu(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let addr = readable(k, a[1])?;
    let Some(cpu) = cpu_arg(k, a[0]) else {
        return Ok(0);
    };
    charge_words(k, 1);
    Ok(flag(cpumask::test(mask(k, addr), cpu)))
}

fn setall(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    fill(k, "bpf_cpumask_setall", a[0], u64::MAX)
}

fn clear(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    fill(k, "bpf_cpumask_clear", a[0], 0)
}

fn fill(k: &mut Kernel, call: &'static str, addr: u64, word: u64) -> KfResult {
    let addr = changeable(k, call, addr)?;
    charge_mask(k);
    mask_mut(k, addr).fill(word);
    Ok(0)
}

/// Computes `dst = op(src1, src2)` on whole words.
#[inline(always)]
fn combine(
    k: &mut Kernel,
    call: &'static str,
    a: &[u64; 5],
    op: impl Fn(u64, u64) -> u64,
) -> KfResult {
    let (dst, x, y) = (changeable(k, call, a[0])?, readable(k, a[1])?, readable(k, a[2])?);
    charge_mask(k);
    k.vm.mem.combine_words(dst, [x, y], k.ext.idle.nr_words(), op);
    Ok(0)
}

/// Only AND clears the bits after the last CPU, because it returns whether any CPU is left.
fn and(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    combine(k, "bpf_cpumask_and", a, |x, y| x & y)?;
    let tail = bits::tail(nr_cpu_ids(k));
    let words = mask_mut(k, a[0]);
    if let Some(last) = words.last_mut() {
        *last &= tail;
    }
    Ok(flag(!cpumask::is_empty(words)))
}

fn or(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    combine(k, "bpf_cpumask_or", a, |x, y| x | y)
}

fn xor(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    combine(k, "bpf_cpumask_xor", a, |x, y| x ^ y)
}

fn copy(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    combine(k, "bpf_cpumask_copy", &[a[0], a[1], a[1], 0, 0], |x, _| x)
}

/// Returns whether a relation holds for all words of two sets.
#[inline(always)]
fn compare(k: &mut Kernel, x: u64, y: u64, test: impl Fn(u64, u64) -> bool) -> Result<bool, Fault> {
    let (x, y) = (readable(k, x)?, readable(k, y)?);
    charge_mask(k);
    Ok(bits::all_words(mask(k, x), mask(k, y), nr_cpu_ids(k), test))
}

fn equal(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    compare(k, a[0], a[1], |x, y| x == y).map(flag)
}

fn intersects(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    compare(k, a[0], a[1], |x, y| x & y == 0).map(|apart| flag(!apart))
}

fn subset(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    compare(k, a[0], a[1], |x, y| x & !y == 0).map(flag)
}

fn empty(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    compare(k, a[0], a[0], |x, _| x == 0).map(flag)
}

fn full(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let possible = k.ext.idle.possible_mask();
    compare(k, possible, a[0], |all, x| all & !x == 0).map(flag)
}

fn weight(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let addr = readable(k, a[0])?;
    charge_mask(k);
    let possible = k.ext.idle.possible_mask();
    Ok(u64::from(bits::weight_and(mask(k, addr), mask(k, possible))))
}

fn any_distribute(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    any_and_distribute(k, &[a[0], a[0], 0, 0, 0])
}

fn any_and_distribute(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let (x, y) = (readable(k, a[0])?, readable(k, a[1])?);
    let found = k.guest_any_distribute(x, y);
    Ok(cpu_or_end(k, found.map(|cpu| cpu.0)))
}

/// Loads a set from a program's buffer, which must hold at least the words of all possible CPUs.
fn populate(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let &[dst, src, len, ..] = a;
    let dst = changeable(k, "bpf_cpumask_populate", dst)?;
    let nr_words = k.ext.idle.nr_words();
    if len < nr_words as u64 * 8 {
        return Ok(s32(-EACCES));
    }
    charge_mask(k);
    for at in 0..nr_words {
        let word: u64 = k.vm.mem.read(src.wrapping_add(at as u64 * 8))?;
        mask_mut(k, dst)[at] = word;
    }
    Ok(0)
}

fn get_possible_cpumask(k: &mut Kernel, _: &[u64; 5]) -> KfResult {
    Ok(k.ext.idle.possible_mask())
}

fn get_online_cpumask(k: &mut Kernel, _: &[u64; 5]) -> KfResult {
    Ok(k.ext.idle.online_mask())
}

/// Releases nothing, because the machine's sets never go away.
fn put_cpumask(_: &mut Kernel, _: &[u64; 5]) -> KfResult {
    Ok(0)
}

#[cfg(test)]
mod tests;
