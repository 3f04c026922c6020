// SPDX-License-Identifier: GPL-2.0-only
//! kfuncs on CPUs, clocks and performance levels.
//!
//! Models: kernel `scx_bpf_kick_cpu()`, `scx_bpf_cpuperf_*()`, `scx_bpf_cpu_curr()`,
//! `__scx_bpf_now()`, 7.3. Differs: a performance level is stored and counted, and does not change
//! the CPU's speed.

use super::{Handler, KfResult};
use crate::kernel::{BOOT_NS, Kernel};

/// `SCX_CPUPERF_ONE`: full performance.
const PERF_ONE: u32 = 1024;

pub(super) const TABLE: &[(&str, Handler)] = &[
    ("scx_bpf_kick_cpu", kick),
    ("scx_bpf_nr_cpu_ids", nr_cpu_ids),
    ("scx_bpf_nr_node_ids", nr_node_ids),
    ("scx_bpf_cpu_curr", curr),
    ("scx_bpf_now", now),
    ("scx_bpf_cpuperf_cap", perf_cap),
    ("scx_bpf_cpuperf_cur", perf_cur),
    ("scx_bpf_cpuperf_set", perf_set),
    ("scx_bpf_locked_rq", locked_rq),
    ("scx_bpf_events", events),
    ("scx_bpf_nr_cids", nr_cids),
    ("scx_bpf_nr_online_cids", nr_online),
];

fn kick(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    if k.ext.root.is_some()
        && let Some(cpu) = k.ext_cpu_valid(a[0] as i32, "")
    {
        k.ext_kick(cpu, a[1]);
    }
    Ok(0)
}

fn nr_cpu_ids(k: &mut Kernel, _: &[u64; 5]) -> KfResult {
    Ok(k.cpus.len() as u64)
}

fn nr_node_ids(k: &mut Kernel, _: &[u64; 5]) -> KfResult {
    Ok(k.machine.topology.nodes().len() as u64)
}

fn curr(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let cpu = k.ext_cpu_valid(a[0] as i32, "");
    Ok(cpu.map_or(0, |cpu| k.tasks[k.cpus[cpu].curr].addr))
}

fn now(k: &mut Kernel, _: &[u64; 5]) -> KfResult {
    if let Some(cpu) = k.ext.locked_rq() {
        return Ok(BOOT_NS + k.cpus[cpu].rq_clock);
    }
    Ok(k.ktime())
}

fn perf_cap(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let cpu = k.ext_cpu_valid(a[0] as i32, "");
    Ok(cpu.map_or(PERF_ONE, |cpu| k.machine.topology.cpu(cpu).capacity) as u64)
}

/// Returns full performance, because frequency scaling is not modelled.
fn perf_cur(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    k.ext_cpu_valid(a[0] as i32, "");
    Ok(u64::from(PERF_ONE))
}

fn perf_set(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let perf = a[1] as u32;
    if k.ext.root.is_none() {
        return Ok(0);
    }
    if perf > PERF_ONE {
        let cpu = a[0] as i32;
        k.scx_error(format!("Invalid cpuperf target {perf} for CPU {cpu}"));
        return Ok(0);
    }
    let Some(cpu) = k.ext_cpu_valid(a[0] as i32, "") else { return Ok(0) };
    if k.ext.locked_rq().is_some_and(|held| held != cpu) {
        k.scx_error(format!("Invalid target CPU {cpu}"));
        return Ok(0);
    }
    k.ext.cpus[cpu].cpuperf_target = perf;
    k.metrics.cpuperf_requests += 1;
    Ok(0)
}

fn locked_rq(k: &mut Kernel, _: &[u64; 5]) -> KfResult {
    match k.ext.locked_rq() {
        Some(cpu) => Ok(k.rq_addr(cpu)),
        None => {
            k.scx_error("accessing rq without holding rq lock");
            Ok(0)
        }
    }
}

/// `scx_bpf_events()`: copies as many of the scheduler's event counters as the program's buffer
/// holds.
fn events(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    let Some(sched) = &k.ext.root else { return Ok(0) };
    let all = *sched.events.all();
    let room = (a[1] / 8) as usize;
    for (i, value) in all.iter().take(room).enumerate() {
        k.vm.mem.write(a[0] + i as u64 * 8, *value)?;
    }
    Ok(0)
}

fn nr_cids(k: &mut Kernel, _: &[u64; 5]) -> KfResult {
    Ok(k.cpus.len() as u64)
}

fn nr_online(k: &mut Kernel, _: &[u64; 5]) -> KfResult {
    Ok(k.cpus.iter().filter(|c| c.online).count() as u64)
}
