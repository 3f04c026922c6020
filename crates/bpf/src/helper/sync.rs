// SPDX-License-Identifier: GPL-2.0-only
//! Spin locks and timers.
//!
//! Owns: the rules that a program takes a lock only once and that only the holder releases it. Does
//! not: spend virtual time; `Host::lock` does.

use super::HelperResult;
use super::map::find;
use crate::errno::*;
use crate::fault::{Fault, FaultKind};
use crate::insn::func_of_addr;
use crate::map::SpecialKind;
use crate::timer::{Timer, TimerId, id_of_word, word_of_id};
use crate::vm::Host;

pub fn spin_lock<H: Host>(h: &mut H, addr: u64) -> HelperResult {
    if lock(h, addr)? { Ok(0) } else { Err(lock_fault(addr, "taken while already held")) }
}

pub fn spin_unlock<H: Host>(h: &mut H, addr: u64) -> HelperResult {
    unlock(h, addr)?;
    Ok(0)
}

/// Takes a lock. Returns false if the running program already holds it. If the lock is busy on
/// another CPU, `Host::lock` waits for that CPU in virtual time.
pub(crate) fn lock<H: Host>(h: &mut H, addr: u64) -> Result<bool, Fault> {
    let vm = h.vm();
    if vm.locks.contains(&addr) {
        return Ok(false);
    }
    vm.mem.write(addr, 1u32)?;
    vm.locks.push(addr);
    h.lock(addr);
    Ok(true)
}

pub(crate) fn unlock<H: Host>(h: &mut H, addr: u64) -> Result<(), Fault> {
    let vm = h.vm();
    let held = vm.locks.iter().rposition(|&lock| lock == addr);
    vm.locks.remove(held.ok_or_else(|| lock_fault(addr, "released while not held"))?);
    vm.mem.write(addr, 0u32)?;
    h.unlock(addr);
    Ok(())
}

fn lock_fault(addr: u64, what: &'static str) -> Fault {
    Fault::new(FaultKind::Lock { addr, what })
}

/// Dispatches `bpf_timer_init`, `_set_callback`, `_start` and `_cancel`: helpers 169 to 172.
pub fn timer<H: Host>(h: &mut H, id: u32, [addr, arg, flags]: [u64; 3]) -> HelperResult {
    match id {
        169 => timer_init(h, addr, arg, flags),
        170 => timer_set_callback(h, addr, arg),
        171 => timer_start(h, addr, arg, flags),
        _ => timer_cancel(h, addr),
    }
}

fn timer_init<H: Host>(h: &mut H, addr: u64, map: u64, flags: u64) -> HelperResult {
    const CLOCK_REALTIME: u64 = 0;
    const CLOCK_MONOTONIC: u64 = 1;
    const CLOCK_BOOTTIME: u64 = 7;
    if !matches!(flags, CLOCK_REALTIME | CLOCK_MONOTONIC | CLOCK_BOOTTIME) {
        return Ok(neg(EINVAL));
    }
    if timer_at(h, addr)?.is_some() {
        return Ok(neg(EBUSY));
    }
    let (found, ctx) = find(h.vm(), "bpf_timer_init", map)?;
    let field = found.def.special.iter().find(|field| field.kind == SpecialKind::Timer);
    let Some(field) = field else {
        return Err(Fault::bad_argument("bpf_timer_init", "the map's values contain no bpf_timer"));
    };
    ctx.mem.bytes_mut(addr, 16)?;
    let timer = Timer {
        addr,
        map: found.id,
        value: addr - u64::from(field.offset),
        instance: found.instance,
        callback: None,
        rights: 0,
        armed: false,
    };
    let id = ctx.timers.insert(timer);
    ctx.mem.write(addr, word_of_id(id))?;
    Ok(0)
}

fn timer_set_callback<H: Host>(h: &mut H, addr: u64, func: u64) -> HelperResult {
    let Some(id) = timer_at(h, addr)? else {
        return Ok(neg(EINVAL));
    };
    let callback =
        func_of_addr(func).ok_or_else(|| Fault::new(FaultKind::BadCall { addr: func }))?;
    let rights = h.rights();
    with_timer(h, id, |timer| (timer.callback, timer.rights) = (Some(callback), rights));
    Ok(0)
}

fn timer_start<H: Host>(h: &mut H, addr: u64, nsecs: u64, flags: u64) -> HelperResult {
    const ABSOLUTE: u64 = 1;
    const CPU_PIN: u64 = 2;
    if flags & !(ABSOLUTE | CPU_PIN) != 0 {
        return Ok(neg(EINVAL));
    }
    let Some(id) = timer_at(h, addr)? else {
        return Ok(neg(EINVAL));
    };
    if h.vm().timers.get(id).is_none_or(|timer| timer.callback.is_none()) {
        return Ok(neg(EINVAL));
    }
    // Times are signed in the kernel, which clamps an expiry time to the largest signed number.
    let start = if flags & ABSOLUTE != 0 { 0 } else { h.ktime_ns() };
    let expires = start.saturating_add(nsecs).min(i64::MAX as u64);
    let cpu = (flags & CPU_PIN != 0).then(|| h.cpu());
    with_timer(h, id, |timer| timer.armed = true);
    h.timer_arm(id, expires, cpu);
    Ok(0)
}

/// Cancels a timer and forgets its callback. Returns 1 if the timer was armed, 0 if not.
fn timer_cancel<H: Host>(h: &mut H, addr: u64) -> HelperResult {
    let Some(id) = timer_at(h, addr)? else {
        return Ok(neg(EINVAL));
    };
    if h.vm().timers.running == Some(id) {
        return Ok(neg(EDEADLK));
    }
    let armed = h.vm().timers.get(id).is_some_and(|timer| timer.armed);
    with_timer(h, id, |timer| (timer.armed, timer.callback) = (false, None));
    if armed {
        h.timer_cancel(id);
    }
    Ok(armed.into())
}

/// Returns the timer that was initialised at this address, if any.
fn timer_at<H: Host>(h: &mut H, addr: u64) -> Result<Option<TimerId>, Fault> {
    let vm = h.vm();
    let id = id_of_word(vm.mem.read::<u64>(addr)?);
    Ok(id.filter(|&id| vm.timers.get(id).is_some_and(|timer| timer.addr == addr)))
}

fn with_timer<H: Host>(h: &mut H, id: TimerId, change: impl FnOnce(&mut Timer)) {
    if let Some(timer) = h.vm().timers.get_mut(id) {
        change(timer);
    }
}
