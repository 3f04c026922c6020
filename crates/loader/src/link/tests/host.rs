// SPDX-License-Identifier: GPL-2.0-only
//! A kernel with a few functions, for the linker's tests.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::btf::{Btf, BtfKind};
use crate::link::{KconfigValue, KsymVar, Target};
use crate::object::tests::kernel_btf;
use scxlab_bpf::fault::Fault;
use scxlab_bpf::kfunc::KfuncId;
use scxlab_bpf::timer::TimerId;
use scxlab_bpf::vm::{CallSite, Config, Host, KptrKind, Storage, Vm};

pub struct TestKernel {
    pub vm: Vm,
    clock: u64,
    target: Rc<TestTarget>,
}

pub struct TestTarget {
    btf: Btf,
    hidden: BTreeSet<&'static str>,
}

pub const KFUNCS: [&str; 4] = ["kfunc_add", "kfunc_v2", "kfunc_task", "kfunc_ptr"];

impl TestKernel {
    pub fn new() -> TestKernel {
        let target = TestTarget { btf: kernel_btf(), hidden: BTreeSet::new() };
        TestKernel { vm: Vm::new(Config::default()).unwrap(), clock: 0, target: Rc::new(target) }
    }

    /// Hides a symbol, as if the kernel lacked it.
    pub fn hide(&mut self, name: &'static str) {
        Rc::get_mut(&mut self.target).unwrap().hidden.insert(name);
    }

    pub fn target(&self) -> Rc<TestTarget> {
        Rc::clone(&self.target)
    }
}

impl Target for TestTarget {
    fn btf(&self) -> &Btf {
        &self.btf
    }

    fn kfunc(&self, name: &str) -> Option<KfuncId> {
        let at = KFUNCS.iter().position(|k| *k == name && !self.hidden.contains(k))?;
        Some(KfuncId(at as u32))
    }

    fn ksym_var(&self, name: &str) -> Option<KsymVar> {
        let var = self.btf.find(name, BtfKind::Var).filter(|_| !self.hidden.contains(name))?;
        Some(KsymVar { addr: 0x1234, btf_id: var.0, per_cpu: name.starts_with("per_cpu") })
    }

    fn kconfig(&self, name: &str) -> Option<KconfigValue> {
        let text = match name {
            _ if self.hidden.contains(name) => return None,
            "LINUX_KERNEL_VERSION" => "0x70304",
            "CONFIG_YES" => "y",
            "CONFIG_TEXT" => "\"texts are cut\"",
            "CONFIG_HZ" => "1000",
            _ => return None,
        };
        KconfigValue::parse(text)
    }
}

impl Host for TestKernel {
    fn vm(&mut self) -> &mut Vm {
        &mut self.vm
    }

    fn cpu(&mut self) -> u32 {
        0
    }

    fn clock_mut(&mut self) -> &mut u64 {
        &mut self.clock
    }

    fn ktime_ns(&mut self) -> u64 {
        0
    }

    fn prandom_u32(&mut self) -> u32 {
        4
    }

    fn current_task(&mut self) -> u64 {
        0
    }

    fn kfunc(&mut self, _site: CallSite, id: KfuncId, args: &[u64; 5]) -> Result<u64, Fault> {
        match KFUNCS.get(id.0 as usize) {
            Some(&"kfunc_add") => Ok(args[0] + args[1]),
            Some(&"kfunc_v2") => Ok(args[0] + args[1] + args[2]),
            _ => Err(Fault::unmodelled(format!("kfunc {}", id.0))),
        }
    }

    fn helper(&mut self, _site: CallSite, id: u32, _args: [u64; 5]) -> Result<u64, Fault> {
        Err(Fault::unmodelled(format!("helper {id}")))
    }

    fn store_to_kernel(&mut self, _addr: u64, _len: u32) -> bool {
        false
    }

    fn printk(&mut self, _text: &str) {}
    fn lock(&mut self, _addr: u64) {}
    fn unlock(&mut self, _addr: u64) {}
    fn timer_arm(&mut self, _timer: TimerId, _expires_ns: u64, _cpu: Option<u32>) {}
    fn timer_cancel(&mut self, _timer: TimerId) {}
    fn kptr_release(&mut self, _kind: KptrKind, _ptr: u64) {}

    fn owner_alive(&self, _kind: Storage, _addr: u64) -> bool {
        true
    }
}
