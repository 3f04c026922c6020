// SPDX-License-Identifier: GPL-2.0-only
//! Helpers: functions that programs call by number.
//!
//! Owns: dispatch, and every helper that needs no kernel knowledge.
//! Does not: know tasks, cgroups or per-CPU kernel variables; those helpers go to `Host::helper`.
//! Models: kernel/bpf/helpers.c and the `BPF_CALL_*` functions of the map files, v7.3.

use crate::errno::*;
use crate::fault::Fault;
use crate::vm::{CallSite, Host, release_dropped};

mod dynptr;
mod loops;
mod map;
mod memory;
mod names;
mod print;
mod ring;
mod sync;
#[cfg(test)]
mod tests;

pub use dynptr::Dynptr;
pub(crate) use sync::{lock, unlock};

/// Value of r0 that a helper returns, or the fault that ends the program.
pub(crate) type HelperResult = Result<u64, Fault>;

/// Returns the name of a helper, if the ABI has one with this id.
pub fn name(id: u32) -> Option<&'static str> {
    names::NAMES.get(id as usize).filter(|_| id != 0).copied()
}

/// Returns whether this crate implements a helper. Calls of other helpers go to `Host::helper`.
pub fn implemented(id: u32) -> bool {
    IMPLEMENTED.contains(&id)
}

/// Returns the fault for a helper that neither this crate nor the host implements.
pub fn unmodelled(id: u32) -> Fault {
    match name(id) {
        Some(name) => Fault::unmodelled(format!("helper {name} ({id})")),
        None => Fault::unmodelled(format!("helper {id}")),
    }
}

const IMPLEMENTED: &[u32] = &[
    1, 2, 3, 4, 5, 6, 7, 8, 12, 22, 35, 45, 55, 87, 88, 89, 93, 94, 112, 113, 114, 115, 118, 125,
    130, 131, 132, 133, 134, 156, 157, 158, 160, 164, 165, 169, 170, 171, 172, 177, 181, 182, 194,
    195, 197, 198, 199, 200, 201, 202, 203, 209, 210, 211,
];

/// Runs a helper. The result goes into r0; a fault stops the program.
pub(crate) fn call<H: Host>(
    h: &mut H,
    site: CallSite,
    id: u32,
    args: [u64; 5],
) -> Result<u64, Fault> {
    let [a, b, c, d, _] = args;
    match id {
        1 => map::lookup(h, a, b),
        2 => settled(h, |h| map::update(h, a, b, c, d)),
        3 => settled(h, |h| map::delete(h, a, b)),
        87 => map::push(h, a, b, c),
        88 => map::pop(h, a, b),
        89 => map::peek(h, a, b),
        195 => map::lookup_percpu(h, a, b, c),
        156 | 210 => map::storage_get(h, id, [a, b, c, d]),
        157 | 211 => settled(h, |h| map::storage_delete(h, id, [a, b])),
        22 | 55 => map::perf_event_read(h, id, [a, b, c, d]),
        4 | 112 | 113 => memory::probe_read(h, a, b, c),
        45 | 114 | 115 => memory::probe_read_str(h, a, b, c),
        182 => memory::strncmp(h, a, b, c),
        194 => memory::kptr_xchg(h, a, b),
        5 | 125 => Ok(h.ktime_ns()),
        160 => Ok(coarse(h)),
        118 => {
            let now = h.ktime_ns();
            Ok(h.vm().jiffies64(now))
        }
        7 => Ok(h.prandom_u32().into()),
        8 => Ok(h.cpu().into()),
        35 | 158 => Ok(h.current_task()),
        6 => print::trace_printk(h, args),
        177 => print::trace_vprintk(h, [a, b, c, d]),
        165 => print::snprintf(h, args),
        164 => loops::for_each_map_elem(h, site, [a, b, c, d]),
        181 => loops::bpf_loop(h, site, [a, b, c, d]),
        93 => sync::spin_lock(h, a),
        94 => sync::spin_unlock(h, a),
        169..=172 => sync::timer(h, id, [a, b, c]),
        130..=134 | 198..=200 => ring::call(h, id, [a, b, c, d]),
        209 => ring::drain(h, site, [a, b, c, d]),
        197 | 201..=203 => dynptr::call(h, id, args),
        _ => h.helper(site, id, args),
    }
}

/// Runs one of the helpers that schedulers call most, without the large frame of `call`; None for
/// any other helper.
#[inline(always)]
pub(crate) fn call_frequent<H: Host>(h: &mut H, id: u32, args: &[u64; 5]) -> Option<HelperResult> {
    Some(match id {
        1 => map::lookup(h, args[0], args[1]),
        5 | 125 => Ok(h.ktime_ns()),
        35 | 158 => Ok(h.current_task()),
        93 => sync::spin_lock(h, args[0]),
        94 => sync::spin_unlock(h, args[0]),
        _ => return None,
    })
}

/// Runs an operation that may drop references or timers, then tells the host which of them it
/// dropped.
fn settled<H: Host>(
    h: &mut H,
    operation: impl FnOnce(&mut H) -> Result<u64, Fault>,
) -> Result<u64, Fault> {
    let result = operation(h);
    release_dropped(h);
    result
}

/// Models `ktime_get_coarse_ns`: the time of the last tick.
fn coarse<H: Host>(h: &mut H) -> u64 {
    let now = h.ktime_ns();
    let tick = 1_000_000_000 / u64::from(h.vm().hz).min(1_000_000_000);
    now - now % tick
}

/// Returns the register value of a kernel function that returns 0 or an error.
pub(crate) fn status(result: Result<(), i64>) -> u64 {
    result.map_or_else(neg, |()| 0)
}
