// SPDX-License-Identifier: GPL-2.0-only
//! Ring buffer helpers, with and without dynptrs, and the drain of user ring buffers.

use super::HelperResult;
use super::dynptr::MAX_SIZE;
use super::map::{find, wrong};
use super::{Dynptr, status};
use crate::errno::*;
use crate::fault::Fault;
use crate::map::MapKind;
use crate::map::ringbuf::{Ringbuf, UserRingbuf};
use crate::mem::Memory;
use crate::vm::{CallSite, Host, Vm, callback};

/// BPF_RB_NO_WAKEUP | BPF_RB_FORCE_WAKEUP. These flags have no effect, because consumers poll.
const WAKEUP_FLAGS: u64 = 3;
/// Largest number of records per drain. The kernel's BPF_MAX_USER_RINGBUF_SAMPLES.
const MAX_SAMPLES: u64 = 128 << 10;

pub fn call<H: Host>(h: &mut H, id: u32, args: [u64; 4]) -> HelperResult {
    let vm = h.vm();
    let [a, b, c, d] = args;
    match id {
        130 => output(vm, args),
        131 => {
            if c != 0 {
                return Ok(0);
            }
            with_ring(vm, "bpf_ringbuf_reserve", a, |ring, mem| ring.reserve(mem, b))
        }
        132 | 133 => commit(vm, a, id == 133).map(|()| 0),
        134 => query(vm, a, b),
        198 => reserve_dynptr(vm, a, b as u32, c, d),
        _ => commit_dynptr(vm, a, id == 200),
    }
}

fn with_ring<T>(
    vm: &mut Vm,
    call: &'static str,
    map: u64,
    operation: impl FnOnce(&mut Ringbuf, &mut Memory) -> T,
) -> Result<T, Fault> {
    let (found, ctx) = find(vm, call, map)?;
    match &mut found.kind {
        MapKind::Ringbuf(ring) => Ok(operation(ring, ctx.mem)),
        _ => Err(wrong(call, "ring buffer")),
    }
}

fn output(vm: &mut Vm, [map, data, size, flags]: [u64; 4]) -> HelperResult {
    vm.mem.bytes(data, size)?;
    vm.work(size)?;
    let copied = with_ring(vm, "bpf_ringbuf_output", map, |ring, mem| {
        if flags & !WAKEUP_FLAGS != 0 {
            return Err(EINVAL);
        }
        match ring.reserve(mem, size) {
            0 => Err(EAGAIN),
            sample => {
                mem.host_copy(sample, data, size as usize);
                ring.commit(mem, sample, false);
                Ok(())
            }
        }
    })?;
    Ok(status(copied))
}

/// Submits or discards a record that a program has reserved.
fn commit(vm: &mut Vm, sample: u64, discard: bool) -> Result<(), Fault> {
    let (maps, ctx) = vm.split_maps();
    match maps.ring_of(ctx.mem, sample) {
        Some(ring) => {
            ring.commit(ctx.mem, sample, discard);
            Ok(())
        }
        None => Err(Fault::bad_argument(
            "bpf_ringbuf_submit",
            format!("{sample:#x} is not a reserved ring buffer record"),
        )),
    }
}

fn query(vm: &mut Vm, map: u64, what: u64) -> HelperResult {
    let (found, _) = find(vm, "bpf_ringbuf_query", map)?;
    match &found.kind {
        MapKind::Ringbuf(ring) => Ok(ring.query(what)),
        MapKind::UserRingbuf(ring) => Ok(ring.query(what)),
        _ => Err(wrong("bpf_ringbuf_query", "ring buffer")),
    }
}

fn reserve_dynptr(vm: &mut Vm, map: u64, size: u32, flags: u64, out: u64) -> HelperResult {
    Dynptr::default().store(&mut vm.mem, out)?;
    if flags != 0 {
        return Ok(neg(EINVAL));
    }
    if size > MAX_SIZE {
        return Ok(neg(E2BIG));
    }
    let reserve = |ring: &mut Ringbuf, mem: &mut _| ring.reserve(mem, size.into());
    let data = with_ring(vm, "bpf_ringbuf_reserve_dynptr", map, reserve)?;
    if data == 0 {
        return Ok(neg(EINVAL));
    }
    Dynptr { data, size, ringbuf: true, ..Dynptr::default() }.store(&mut vm.mem, out)?;
    Ok(0)
}

fn commit_dynptr(vm: &mut Vm, at: u64, discard: bool) -> HelperResult {
    let ptr = Dynptr::load(&vm.mem, at)?;
    if ptr.data != 0 {
        commit(vm, ptr.data, discard)?;
        Dynptr::default().store(&mut vm.mem, at)?;
    }
    Ok(0)
}

/// Models `bpf_user_ringbuf_drain`: calls `func(dynptr, ctx)` for each record until `func` returns
/// non-zero. Returns the number of records, or an error.
pub fn drain<H: Host>(
    h: &mut H,
    site: CallSite,
    [map, func, ctx, flags]: [u64; 4],
) -> HelperResult {
    if flags & !WAKEUP_FLAGS != 0 {
        return Ok(neg(EINVAL));
    }
    if set_busy(h.vm(), map, true)? {
        return Ok(neg(EBUSY));
    }
    let result = drain_records(h, site, map, func, ctx);
    set_busy(h.vm(), map, false)?;
    result
}

fn drain_records<H: Host>(
    h: &mut H,
    site: CallSite,
    map: u64,
    func: u64,
    ctx: u64,
) -> HelperResult {
    let mut samples = 0;
    while samples < MAX_SAMPLES {
        let vm = h.vm();
        let at = vm.callback_scratch(site.depth) + 16;
        let Some((data, size)) = peek(vm, map)? else {
            break;
        };
        Dynptr { data, size, ..Dynptr::default() }.store(&mut vm.mem, at)?;
        let stop = callback(h, site, func, [at, ctx, 0, 0, 0])? != 0;
        release(h.vm(), map, size)?;
        samples += 1;
        if stop {
            break;
        }
    }
    Ok(samples)
}

fn user_ring(vm: &mut Vm, map: u64) -> Result<(&mut UserRingbuf, &Memory), Fault> {
    let (found, ctx) = find(vm, "bpf_user_ringbuf_drain", map)?;
    match &mut found.kind {
        MapKind::UserRingbuf(ring) => Ok((ring, ctx.mem)),
        _ => Err(wrong("bpf_user_ringbuf_drain", "user ring buffer")),
    }
}

fn set_busy(vm: &mut Vm, map: u64, busy: bool) -> Result<bool, Fault> {
    user_ring(vm, map).map(|(ring, _)| std::mem::replace(&mut ring.busy, busy))
}

fn peek(vm: &mut Vm, map: u64) -> Result<Option<(u64, u32)>, Fault> {
    user_ring(vm, map).map(|(ring, mem)| ring.peek(mem))
}

fn release(vm: &mut Vm, map: u64, size: u32) -> Result<(), Fault> {
    user_ring(vm, map).map(|(ring, _)| ring.release(size))
}
