// SPDX-License-Identifier: GPL-2.0-only
//! Construction of a kernel: memory, tables, idle tasks, per-CPU variables that objects may read.

use crate::bpf::Bpf;
use crate::bpf::abi;
use crate::bpf::mirror::SharedGuestStructs;
use crate::cgroup::CgroupTable;
use crate::cpu::cache_occupancy::CacheTraffic;
use crate::cpu::{Cpu, PerCpu};
use crate::ext::op::Op;
use crate::ext::{Ext, ExtCpu};
use crate::kernel::streams::Streams;
use crate::kernel::{BOOT_NS, Exec, Kernel, Limits, RunEnd};
use crate::metrics::{IdleWhileWaiting, Metrics};
use crate::schedule::rt::RtQueues;
use crate::schedule::server::Servers;
use crate::schedule::tick::Ticks;
use crate::task::TaskTable;
use crate::task::behavior::Behavior;
use scxlab_bpf::mem::{OutOfMemory, Perm};
use scxlab_bpf::vm::{Config, InPlaceValues, Vm, WorkCosts};
use scxlab_fair::{Fair, FairTopo, Params};
use scxlab_machine::id::{CpuId, TaskId};
use scxlab_machine::{EventQueue, Machine};
use scxlab_trace::Tracer;
use std::sync::Arc;

/// Inputs of a run, apart from its behaviour and scheduler.
pub struct Setup {
    pub machine: Arc<Machine>,
    pub seed: u64,
    pub limits: Limits,
    pub tracer: Tracer,
    /// Address space of guest memory, bytes; only touched pages use memory.
    pub mem_size: u64,
}

/// Guest addresses of kernel variables that objects may read by name.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelVars {
    /// Guest address of CPU 0's per-CPU block. The block of CPU n is `n * PERCPU_STRIDE` bytes
    /// behind it.
    pub percpu: u64,
    pub(crate) shared: SharedGuestStructs,
}

/// Distance between two per-CPU blocks, bytes. It is a cache line more than a power of two, because
/// equal variables of many CPUs would otherwise share a few sets of the host's cache.
pub const PERCPU_STRIDE: u64 = 4096 + 64;
/// Offsets of the variables in a per-CPU block, bytes.
pub mod percpu {
    pub const RUNQUEUE: u64 = 0;
    pub const SD_LLC_ID: u64 = 1024;
    pub const SD_LLC_SIZE: u64 = 1032;
    pub const CORE_PRIORITY: u64 = 1040;
    /// A pointer that stays NULL, because the machine has no cpufreq driver (as a virtual machine
    /// has none).
    pub const CPUFREQ_DATA: u64 = 1048;
    pub const PREEMPT_COUNT: u64 = 1056;
    /// `PREEMPT_ENABLED` of x86: preemption is not disabled, and no reschedule is pending.
    pub const PREEMPT_ENABLED: u64 = 0x8000_0000;
}

impl Kernel {
    /// Boots a machine whose only tasks are init and the idle tasks.
    pub fn boot(setup: Setup, behavior: Box<dyn Behavior>) -> Result<Kernel, OutOfMemory> {
        let Setup { machine, seed, limits, mut tracer, mem_size } = setup;
        tracer.names.set_ops(Op::ALL.map(Op::name));
        let topology = &machine.topology;
        let nr_cpus = topology.nr_cpus();
        let config = Config {
            nr_cpus: nr_cpus as u32,
            hz: machine.costs.clock.tick_hz as u32,
            mem_size,
            work: WorkCosts {
                call_bytes: machine.costs.bpf.call_bytes,
                arena_page_bytes: machine.costs.bpf.arena_page_bytes,
            },
            in_place: crate::ext::kfunc::in_place(nr_cpus as u32),
            in_place_values: InPlaceValues {
                call_ns: machine.costs.bpf.kfunc_call_ns,
                rq_clock_base_ns: BOOT_NS,
                test_cpu_ns: machine.costs.bpf.kfunc_call_ns + machine.costs.kfunc.cpumask_word_ns,
            },
            ..Config::default()
        };
        let mut vm = Vm::new(config)?;
        vm.mem.set_limit(limits.max_memory);
        let tasks = TaskTable::new(&mut vm.mem, TaskId(nr_cpus as u32))?;
        let cgroups = CgroupTable::new(&mut vm.mem)?;
        let percpu = vm.mem.alloc_region(nr_cpus as u64 * PERCPU_STRIDE, Perm::Kernel)?;
        let prefetch_enabled = nr_cpus >= crate::cpu::prefetch::FROM_CPUS;
        if prefetch_enabled {
            tasks.expect_many(&mut vm.mem);
            vm.mem.expect_use(percpu, nr_cpus as u64 * PERCPU_STRIDE);
        }
        let shared = SharedGuestStructs::new(&mut vm.mem)?;
        let ext = Ext::new(&mut vm.mem, nr_cpus, topology.nodes().len())?;
        let tick_ns = machine.costs.tick_period_ns();
        let node_reclaim_distance = machine.node_reclaim_distance;
        let params = Params { tick_ns, seed, node_reclaim_distance, ..Params::default() };
        let vars = KernelVars { percpu, shared };
        let mut kernel = Kernel {
            vm,
            bpf: Bpf::new(vars, machine.costs.bpf.insn_ps, seed),
            cpus: PerCpu::default(),
            cache_traffic: CacheTraffic::new(topology.cores().len(), topology.llcs().len()),
            prefetch_enabled,
            tasks,
            cgroups,
            memory: None,
            numa_balancing: Default::default(),
            behavior: Some(behavior),
            fair: Fair::new(&FairTopo::new(topology), params),
            rt: RtQueues::new(nr_cpus),
            servers: Servers::default(),
            ext,
            now: 0,
            exec: Exec { cpu: CpuId(0), clock: 0, insns_from: 0, insns_ns: 0, stepping: false },
            events: EventQueue::new(),
            ticks: Ticks::new(tick_ns, nr_cpus, seed),
            end: RunEnd::new(limits),
            streams: Streams::new(seed),
            tracer,
            metrics: Metrics {
                idle_while_waiting: IdleWhileWaiting::new(&machine),
                ..Metrics::default()
            },
            machine: machine.clone(),
        };
        kernel.boot_cpus();
        Ok(kernel)
    }

    fn boot_cpus(&mut self) {
        let machine = self.machine.clone();
        let topology = &machine.topology;
        for cpu in topology.cpu_ids() {
            let idle = self.new_idle_task(cpu);
            let core = scxlab_machine::cpumask::iter(topology.core_mask(cpu));
            let siblings = core.filter(|&c| c != cpu).collect();
            self.cpus.push(Cpu::new(cpu, idle, siblings));
            let block = self.bpf.vars.percpu + u64::from(cpu.0) * PERCPU_STRIDE;
            let first = scxlab_machine::cpumask::first(topology.llc_mask(cpu)).unwrap_or(cpu);
            let size = scxlab_machine::cpumask::weight(topology.llc_mask(cpu));
            *self.vm.mem.host_mut::<i32>(block + percpu::SD_LLC_ID) = first.0 as i32;
            *self.vm.mem.host_mut::<i32>(block + percpu::SD_LLC_SIZE) = size as i32;
            *self.vm.mem.host_mut::<u64>(block + percpu::PREEMPT_COUNT) = percpu::PREEMPT_ENABLED;
            let addr = self.tasks[idle].addr;
            let rq: &mut abi::rq = self.vm.mem.host_mut(block + percpu::RUNQUEUE);
            rq.cpu = cpu.0 as i32;
            rq.online = 1;
            rq.curr = addr;
            rq.idle = addr;
            rq.cpu_capacity = u64::from(topology.cpu(cpu).capacity);
        }
        let init = self.new_init_task();
        debug_assert_eq!(init, self.tasks.init);
    }
}

impl Ext {
    fn new(
        mem: &mut scxlab_bpf::mem::Memory,
        nr_cpus: usize,
        nr_nodes: usize,
    ) -> Result<Ext, OutOfMemory> {
        Ok(Ext {
            dsqs: crate::ext::dsq::DsqTable::new(nr_cpus, nr_nodes),
            cpus: (0..nr_cpus).map(|_| ExtCpu::default()).collect(),
            root: None,
            state: Default::default(),
            enabled: false,
            switching_all: false,
            switched_all: false,
            init_task_enabled: false,
            cgroup_enabled: false,
            idle: crate::ext::idle::IdleState::new(mem, nr_cpus, nr_nodes)?,
            frame: None,
            direct: Default::default(),
            deferred_verdict: None,
            remote_activate_flags: 0,
            nr_queued: 0,
            runnable_count: 0,
            next_tid: 0,
            watchdog_gen: 0,
            watchdog_checked: 0,
            exits: Vec::new(),
            late_faults: Vec::new(),
            op_stats: Default::default(),
            recent_ops: crate::ext::recent_ops::RecentOpCounts::new(nr_cpus),
            dump: None,
            scratch: crate::ext::host::ArgScratch::new(mem)?,
            nr_rejected: 0,
            last_events: Default::default(),
            sched_switch: Vec::new(),
            printk: Vec::new(),
            op_record: None,
            nr_sync_waiters: 0,
            // The kernel counts one hotplug event for each CPU but the first, because they come on
            // line during boot.
            hotplug_seq: nr_cpus as u64 - 1,
        })
    }
}
