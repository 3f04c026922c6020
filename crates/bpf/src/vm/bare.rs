// SPDX-License-Identifier: GPL-2.0-only
//! A `Host` without a kernel: time stands still, one task exists, and the host records kfunc calls,
//! locks, timers, output and released references.
//!
//! It serves tests, examples, benchmarks and fuzzing of programs that need no kernel.

pub mod trial;

use super::{
    CallSite, Config, FuncId, Host, Image, InstanceId, InstanceParts, KptrKind, Storage, Vm,
};
use crate::fault::{BacktraceFrame, Fault};
use crate::insn::asm::assemble;
use crate::kfunc::KfuncId;
use crate::map::LocalTypes;
use crate::mem::OutOfMemory;
use crate::timer::TimerId;

/// A host without a kernel. Callers set its public fields before a run and read its records
/// afterwards.
pub struct BareHost {
    pub vm: Vm,
    pub now_ns: u64,
    pub cpu: u32,
    /// Time that machine code has charged for kernel functions, in ns.
    pub charged_ns: u64,
    pub rq_clock: Option<u64>,
    pub task: u64,
    /// State of `bpf_get_prandom_u32`, a Weyl sequence.
    pub random: u32,
    pub allow_kernel_stores: bool,
    pub dead_owners: Vec<u64>,
    pub printed: Vec<String>,
    pub locks: Vec<(u64, bool)>,
    /// Armed timers: id, expiry in nanoseconds, CPU. Cancelled timers are removed.
    pub timers: Vec<(TimerId, u64, Option<u32>)>,
    pub released: Vec<(KptrKind, u64)>,
    /// Results of kfunc calls, by id. Calls of other kfuncs fault.
    pub kfuncs: Vec<(KfuncId, u64)>,
    pub kfunc_calls: Vec<(KfuncId, [u64; 5])>,
    /// Backtrace of each kfunc call. A kfunc that runs a program records its own backtrace after
    /// the program has run.
    pub traces: Vec<Vec<BacktraceFrame>>,
    /// Kfunc that panics, as a bug of the simulator would.
    pub panics: Option<KfuncId>,
    /// Kfunc that runs a program, as dispatching to a child scheduler does.
    pub nested: Option<(KfuncId, InstanceId, FuncId)>,
}

impl BareHost {
    pub fn new(config: Config) -> Result<BareHost, OutOfMemory> {
        let mut vm = Vm::new(config)?;
        let task = vm.mem.alloc_kernel(64, 8)?;
        Ok(BareHost {
            vm,
            now_ns: 0,
            cpu: 0,
            charged_ns: 0,
            rq_clock: None,
            task,
            random: 0,
            allow_kernel_stores: false,
            dead_owners: Vec::new(),
            printed: Vec::new(),
            locks: Vec::new(),
            timers: Vec::new(),
            released: Vec::new(),
            kfuncs: Vec::new(),
            kfunc_calls: Vec::new(),
            traces: Vec::new(),
            panics: None,
            nested: None,
        })
    }

    /// Assembles a text with `insn::asm` and installs it as an instance's code.
    pub fn install_text(
        &mut self,
        instance: InstanceId,
        text: &str,
        local_types: LocalTypes,
    ) -> Result<(), String> {
        let assembled = assemble(text).map_err(|err| err.to_string())?;
        let image: Image = assembled.image("text").map_err(|err| err.to_string())?;
        self.vm.install(
            instance,
            InstanceParts { image: image.into(), local_types, ..InstanceParts::default() },
        );
        Ok(())
    }

    fn trace(&mut self) {
        let site = self.vm.call_site();
        self.traces.extend(site.map(|site| self.vm.backtrace(site)));
    }

    /// Calls a function of an instance by name, with r1 to r5.
    pub fn run(&mut self, instance: InstanceId, func: &str, regs: [u64; 5]) -> Result<u64, Fault> {
        let image = self.vm.instance(instance).map(|instance| instance.image.clone());
        let func = image.and_then(|image| image.func_by_name(func)).unwrap_or(FuncId(u32::MAX));
        super::call_raw(self, instance, func, regs)
    }
}

impl Host for BareHost {
    fn vm(&mut self) -> &mut Vm {
        &mut self.vm
    }

    fn cpu(&mut self) -> u32 {
        self.cpu
    }

    fn clock_mut(&mut self) -> &mut u64 {
        &mut self.charged_ns
    }

    fn rq_clock(&self) -> Option<&u64> {
        self.rq_clock.as_ref()
    }

    fn ktime_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn prandom_u32(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9);
        self.random
    }

    fn current_task(&mut self) -> u64 {
        self.task
    }

    fn kfunc(&mut self, _site: CallSite, id: KfuncId, args: &[u64; 5]) -> Result<u64, Fault> {
        assert!(self.panics != Some(id), "a kfunc's own fault");
        if let Some((_, instance, func)) = self.nested.filter(|nested| nested.0 == id) {
            let result = super::call(self, instance, func, args);
            self.trace();
            return result;
        }
        self.trace();
        self.kfunc_calls.push((id, *args));
        let known = self.kfuncs.iter().find(|known| known.0 == id);
        known.map(|known| known.1).ok_or_else(|| Fault::unmodelled(format!("kfunc {}", id.0)))
    }

    fn helper(&mut self, _site: CallSite, id: u32, _args: [u64; 5]) -> Result<u64, Fault> {
        Err(crate::helper::unmodelled(id))
    }

    fn store_to_kernel(&mut self, _addr: u64, _len: u32) -> bool {
        self.allow_kernel_stores
    }

    fn printk(&mut self, text: &str) {
        self.printed.push(text.to_owned());
    }

    fn lock(&mut self, addr: u64) {
        self.locks.push((addr, true));
    }

    fn unlock(&mut self, addr: u64) {
        self.locks.push((addr, false));
    }

    fn timer_arm(&mut self, timer: TimerId, expires_ns: u64, cpu: Option<u32>) {
        self.timers.retain(|armed| armed.0 != timer);
        self.timers.push((timer, expires_ns, cpu));
    }

    fn timer_cancel(&mut self, timer: TimerId) {
        self.timers.retain(|armed| armed.0 != timer);
    }

    fn kptr_release(&mut self, kind: KptrKind, ptr: u64) {
        self.released.push((kind, ptr));
    }

    fn owner_alive(&self, _kind: Storage, addr: u64) -> bool {
        !self.dead_owners.contains(&addr)
    }
}
