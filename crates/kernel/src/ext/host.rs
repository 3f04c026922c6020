// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's interface to the BPF virtual machine, and guest memory for arguments of operations.
//!
//! Owns: the implementations of `Host` and `Target`; scratch structs that operations get pointers
//! to.

use super::exit::ExitInfo;
use super::op::Op;
use super::{OpFrame, Outside};
use crate::bpf::abi;
use crate::bpf::flags::limit;
use crate::cgroup::quota_us;
use crate::kernel::boot::{PERCPU_STRIDE, percpu};
use crate::kernel::event::Event;
use crate::kernel::{AfterEvent, BOOT_NS, Kernel};
use crate::task::behavior::CgroupSpec;
use scxlab_bpf::fault::Fault;
use scxlab_bpf::kfunc::KfuncId;
use scxlab_bpf::mem::{Memory, OutOfMemory};
use scxlab_bpf::timer::TimerId;
use scxlab_bpf::vm::{CallSite, Host, KptrKind, Storage, Vm};
use scxlab_loader::btf::{Btf, BtfKind, TypeId};
use scxlab_loader::link::{KconfigValue, KsymVar, Target};
use scxlab_machine::id::{CpuId, TaskId};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Version of the modelled kernel (7.3.4), encoded as `LINUX_KERNEL_VERSION`.
const KERNEL_VERSION: i64 = 7 << 16 | 3 << 8 | 4;

/// Guest addresses at which the kernel builds arguments of operations. One struct of each type is
/// enough, because the kernel never calls an operation that takes it recursively.
#[derive(Clone, Copy, Debug)]
pub struct ArgScratch {
    init_task: u64,
    exit_task: u64,
    cgroup_init: u64,
    cpu_release: u64,
    exit_info: u64,
    /// Backtrace, reason and message of an exit, at the offsets in `exit_text`.
    text: u64,
    dump_text: u64,
    pub(super) dump_ctx: u64,
}

/// Offsets of the parts of `ArgScratch::text`, bytes.
mod exit_text {
    /// `scx_exit_info.bt`. It stays zero, because there are no kernel stacks.
    pub const BT: u64 = 0;
    pub const REASON: u64 = BT + 8 * super::limit::EXIT_BT_LEN as u64;
    pub const MSG: u64 = super::limit::EXIT_MSG_LEN as u64;
}

impl ArgScratch {
    pub fn new(mem: &mut Memory) -> Result<Self, OutOfMemory> {
        let mut room = |bytes: usize| mem.alloc_kernel(bytes as u64, 8);
        Ok(ArgScratch {
            init_task: room(size_of::<abi::scx_init_task_args>())?,
            exit_task: room(size_of::<abi::scx_exit_task_args>())?,
            cgroup_init: room(size_of::<abi::scx_cgroup_init_args>())?,
            cpu_release: room(size_of::<abi::scx_cpu_release_args>())?,
            exit_info: room(size_of::<abi::scx_exit_info>())?,
            text: room(2 * limit::EXIT_MSG_LEN)?,
            dump_text: room(limit::EXIT_DUMP_DFL_LEN as usize)?,
            dump_ctx: room(size_of::<abi::scx_dump_ctx>())?,
        })
    }
}

impl Kernel {
    pub(crate) fn scratch_init_task_args(&mut self, task: TaskId, fork: bool) -> u64 {
        let cgroup = self.cgroups.get(self.tasks[task].cgroup).map_or(0, |g| g.addr);
        let at = self.ext.scratch.init_task;
        let args: &mut abi::scx_init_task_args = self.vm.mem.host_mut(at);
        args.fork = u8::from(fork);
        args.cgroup = cgroup;
        at
    }

    pub(crate) fn scratch_exit_task_args(&mut self, cancelled: bool) -> u64 {
        let at = self.ext.scratch.exit_task;
        self.vm.mem.host_mut::<abi::scx_exit_task_args>(at).cancelled = u8::from(cancelled);
        at
    }

    pub(crate) fn scratch_cgroup_init_args(&mut self, spec: &CgroupSpec) -> u64 {
        let at = self.ext.scratch.cgroup_init;
        let args: &mut abi::scx_cgroup_init_args = self.vm.mem.host_mut(at);
        args.weight = spec.weight;
        args.bw_period_us = spec.period / 1000;
        args.bw_quota_us = quota_us(spec);
        args.bw_burst_us = spec.burst / 1000;
        args.sched_idle = u8::from(spec.idle);
        at
    }

    pub(crate) fn scratch_release_args(&mut self, reason: u32, task: u64) -> u64 {
        let at = self.ext.scratch.cpu_release;
        let args: &mut abi::scx_cpu_release_args = self.vm.mem.host_mut(at);
        args.reason = reason;
        args.task = task;
        at
    }

    /// Calls `ops.exit` with a `struct scx_exit_info`. A dump that is longer than the default
    /// length gets its own memory for the call. If there is no memory, the dump is cut.
    pub(crate) fn op_exit(&mut self, info: &ExitInfo, flags: u64) {
        let s = self.ext.scratch;
        let (size, default) = (info.dump.len() + 1, limit::EXIT_DUMP_DFL_LEN as usize);
        let long = size > default;
        let own = if long { self.vm.mem.alloc_kernel(size as u64, 8).ok() } else { None };
        let (dump, room) = own.map_or((s.dump_text, default), |addr| (addr, size));
        self.put_text(dump, &info.dump, room);
        let msg = s.text + exit_text::MSG;
        self.put_text(msg, &info.message, limit::EXIT_MSG_LEN);
        let reason = self.scratch_reason(info.kind.reason());
        let ei: &mut abi::scx_exit_info = self.vm.mem.host_mut(s.exit_info);
        ei.kind = info.kind as u32;
        ei.exit_cpu = info.cpu.map_or(-1, |cpu| cpu.0 as i32);
        ei.exit_code = info.code;
        (ei.flags, ei.bt, ei.bt_len) = (flags, s.text + exit_text::BT, 0);
        (ei.reason, ei.msg, ei.dump) = (reason, msg, dump);
        self.op(Op::Exit, None, &[s.exit_info]);
        if let Some(addr) = own {
            self.vm.mem.free(addr, size as u64);
        }
    }

    /// Writes the reason of an exit; returns its guest address.
    pub(super) fn scratch_reason(&mut self, reason: &str) -> u64 {
        let at = self.ext.scratch.text + exit_text::REASON;
        self.put_text(at, reason, (exit_text::MSG - exit_text::REASON) as usize);
        at
    }

    /// Writes a C string, cut so that it takes at most `room` bytes with its NUL.
    fn put_text(&mut self, at: u64, text: &str, room: usize) {
        let len = text.len().min(room - 1);
        let bytes = self.vm.mem.host_slice_mut::<u8>(at, len + 1);
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        bytes[len] = 0;
    }

    /// Runs the callback of a BPF timer that expires, unless the timer was armed again or
    /// cancelled.
    #[inline(never)]
    pub(crate) fn bpf_timer(&mut self, timer: TimerId, cpu: CpuId, generation: u32) -> AfterEvent {
        if !self.bpf.is_current(timer, generation) {
            return AfterEvent::Nothing;
        }
        self.on_cpu_last(cpu, |k| {
            k.charge(k.machine.costs.irq.timer_ns);
            let rights = k.vm.timers.get(timer).map_or(0, |timer| timer.rights);
            let outer = k.ext.frame.replace(OpFrame::outside(Outside::Timer(rights)));
            let start = k.clock();
            let result = scxlab_bpf::vm::fire_timer(k, timer);
            k.charge_insns();
            k.note_program(start);
            k.ext.frame = outer;
            if let Err(fault) = result {
                k.program_faulted("a timer callback", None, fault);
            }
        })
    }
}

impl Host for Kernel {
    #[inline(always)]
    fn vm(&mut self) -> &mut Vm {
        &mut self.vm
    }

    #[inline(always)]
    fn cpu(&mut self) -> u32 {
        self.exec.cpu.0
    }

    #[inline(always)]
    fn clock_mut(&mut self) -> &mut u64 {
        &mut self.exec.clock
    }

    #[inline(always)]
    fn rq_clock(&self) -> Option<&u64> {
        self.ext.locked_rq().map(|cpu| &self.cpus[cpu].rq_clock)
    }

    fn ktime_ns(&mut self) -> u64 {
        self.charge_insns();
        self.ktime()
    }

    fn prandom_u32(&mut self) -> u32 {
        self.bpf.prandom.next_u32()
    }

    fn current_task(&mut self) -> u64 {
        self.tasks[self.cpus[self.exec.cpu].curr].addr
    }

    fn kfunc(&mut self, _site: CallSite, id: KfuncId, args: &[u64; 5]) -> Result<u64, Fault> {
        self.charge_insns();
        self.charge(self.machine.costs.bpf.kfunc_call_ns);
        let (handler, groups) = self.bpf.kfuncs[id.0 as usize];
        if groups != 0 {
            self.check_context(id, groups)?;
        }
        handler(self, args)
    }

    fn helper(&mut self, _site: CallSite, id: u32, args: [u64; 5]) -> Result<u64, Fault> {
        self.charge_insns();
        match id {
            helper::GET_CURRENT_PID_TGID => {
                let t = &self.tasks[self.cpus[self.exec.cpu].curr];
                Ok(u64::from(t.tgid) << 32 | u64::from(t.pid))
            }
            helper::PER_CPU_PTR => Ok(self.per_cpu_ptr(args[0], args[1] as u32)),
            helper::THIS_CPU_PTR => Ok(self.per_cpu_ptr(args[0], self.exec.cpu.0)),
            _ => Err(scxlab_bpf::helper::unmodelled(id)),
        }
    }

    /// Returns whether a scheduler may write to the address: it must be in one of the fields of
    /// `task_struct` that `bpf_scx_btf_struct_access()` allows.
    fn store_to_kernel(&mut self, addr: u64, len: u32) -> bool {
        let Some(task) = self.tasks.containing(addr) else {
            return false;
        };
        let off = addr - self.tasks[task].addr;
        let scx = offset_of!(abi::task_struct, scx) as u64;
        let field = |at: usize, size: u64| {
            let start = scx + at as u64;
            off >= start && off + u64::from(len) <= start + size
        };
        field(offset_of!(abi::sched_ext_entity, slice), 8)
            || field(offset_of!(abi::sched_ext_entity, dsq_vtime), 8)
            || field(offset_of!(abi::sched_ext_entity, disallow), 1)
    }

    fn printk(&mut self, text: &str) {
        self.charge_insns();
        self.charge(self.machine.costs.kfunc.printk_ns);
        let (time, cpu) = (self.clock(), self.exec.cpu);
        self.tracer.printk(time, cpu, text);
        if self.ext.printk.len() < PRINTK_LINES {
            self.ext.printk.push(text.to_owned());
        }
    }

    fn lock(&mut self, addr: u64) {
        self.charge_insns();
        self.lock_guest(addr);
    }

    fn unlock(&mut self, addr: u64) {
        self.charge_insns();
        self.unlock_guest(addr);
    }

    fn rights(&self) -> u8 {
        self.ext.frame.map_or(0, |frame| frame.rights())
    }

    fn timer_arm(&mut self, timer: TimerId, expires_ns: u64, cpu: Option<u32>) {
        self.charge_insns();
        self.charge(self.machine.costs.kfunc.timer_arm_ns);
        let generation = self.bpf.next_timer_generation(timer);
        let at = expires_ns.saturating_sub(BOOT_NS).max(self.clock());
        let cpu = cpu.map_or(self.exec.cpu, CpuId);
        self.events.push(at, Event::BpfTimer { timer, cpu, generation });
    }

    fn timer_cancel(&mut self, timer: TimerId) {
        self.bpf.next_timer_generation(timer);
    }

    fn kptr_release(&mut self, kind: KptrKind, ptr: u64) {
        self.charge_insns();
        let KptrKind::Kernel(btf_id) = kind else { return };
        let name = self.bpf.btf.name(TypeId(btf_id)).to_owned();
        let released = match name.as_str() {
            "bpf_cpumask" => super::kfunc::release_cpumask(self, ptr),
            "task_struct" => super::kfunc::release_task(self, ptr),
            _ => Ok(()),
        };
        if let Err(fault) = released {
            self.program_faulted("the release of a map element's kptr", None, fault);
        }
    }

    fn owner_alive(&self, kind: Storage, addr: u64) -> bool {
        match kind {
            Storage::Task => self.tasks.at(addr).is_some(),
            Storage::Cgroup => self.cgroups.at(addr).is_some(),
        }
    }
}

/// Maximum number of `bpf_printk` lines kept in `Ext::printk`. The trace has all of them.
const PRINTK_LINES: usize = 1000;

/// Numbers (`enum bpf_func_id`) of the helpers that need the kernel.
mod helper {
    pub const GET_CURRENT_PID_TGID: u32 = 14;
    pub const PER_CPU_PTR: u32 = 153;
    pub const THIS_CPU_PTR: u32 = 154;
}

impl Kernel {
    /// `per_cpu_ptr()` of a variable at the address that `ksym_var` returned; NULL (0) for a CPU
    /// that does not exist.
    fn per_cpu_ptr(&self, var: u64, cpu: u32) -> u64 {
        if cpu as usize >= self.cpus.len() { 0 } else { var + u64::from(cpu) * PERCPU_STRIDE }
    }
}

impl KernelTarget {
    /// Returns the address of a variable that is not per CPU, as kallsyms lists it, because
    /// frontends look up some variables there.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        self.shared.symbol(name)
    }
}

/// The part of the kernel that objects are linked against.
pub struct KernelTarget {
    pub btf: Arc<Btf>,
    percpu: u64,
    shared: crate::bpf::mirror::SharedGuestStructs,
    hz: u64,
    rq_address_known: Arc<AtomicBool>,
}

impl Kernel {
    pub fn target(&self) -> KernelTarget {
        KernelTarget {
            btf: self.bpf.btf.clone(),
            percpu: self.bpf.vars.percpu,
            shared: self.bpf.vars.shared,
            hz: self.machine.costs.clock.tick_hz,
            rq_address_known: self.bpf.rq_address_known.clone(),
        }
    }
}

/// Helpers that this kernel implements itself (`Host::helper`).
const HELPERS: [u32; 3] = [helper::GET_CURRENT_PID_TGID, helper::PER_CPU_PTR, helper::THIS_CPU_PTR];

impl Target for KernelTarget {
    fn btf(&self) -> &Btf {
        &self.btf
    }

    fn helper(&self, id: u32) -> bool {
        scxlab_bpf::helper::implemented(id) || HELPERS.contains(&id)
    }

    fn kfunc(&self, name: &str) -> Option<KfuncId> {
        if name == "scx_bpf_locked_rq" {
            self.rq_address_known.store(true, Ordering::Relaxed);
        }
        super::kfunc::by_name(name)
    }

    fn ksym_var(&self, name: &str) -> Option<KsymVar> {
        if let Some(addr) = self.symbol(name) {
            return Some(KsymVar { addr, btf_id: 0, per_cpu: false });
        }
        let off = match name {
            "runqueues" => {
                self.rq_address_known.store(true, Ordering::Relaxed);
                percpu::RUNQUEUE
            }
            "sd_llc_id" => percpu::SD_LLC_ID,
            "sd_llc_size" => percpu::SD_LLC_SIZE,
            "sched_core_priority" => percpu::CORE_PRIORITY,
            "cpufreq_cpu_data" => percpu::CPUFREQ_DATA,
            "__preempt_count" => percpu::PREEMPT_COUNT,
            _ => return None,
        };
        let btf_id = self.btf.find(name, BtfKind::Var).map_or(0, |id| id.0);
        Some(KsymVar { addr: self.percpu + off, btf_id, per_cpu: true })
    }

    /// Returns the indices of an operation's arguments that may be NULL, because the kernel's stub
    /// for the operation names them `..__nullable`.
    fn nullable_args(&self, struct_name: &str, member: &str) -> &[u32] {
        match (struct_name, member) {
            // `prev` is NULL if the previous task is not in sched_ext (such as the idle task); `to`
            // is NULL for a plain sched_yield().
            ("sched_ext_ops", "dispatch" | "yield") => &[1],
            _ => &[],
        }
    }

    fn kconfig(&self, name: &str) -> Option<KconfigValue> {
        Some(match name {
            "LINUX_KERNEL_VERSION" => KconfigValue::Int(KERNEL_VERSION),
            "CONFIG_NR_CPUS" => KconfigValue::Int(i64::from(abi::NR_CPUS)),
            "CONFIG_HZ" => KconfigValue::Int(self.hz as i64),
            "CONFIG_PREEMPT_RCU" | "CONFIG_X86_64" => KconfigValue::Yes,
            "CONFIG_NO_HZ_IDLE" | "CONFIG_PREEMPT_RT" => KconfigValue::No,
            "CONFIG_CC_VERSION_TEXT" | "CONFIG_LOCALVERSION" => KconfigValue::Str("scxlab".into()),
            _ => return None,
        })
    }
}
