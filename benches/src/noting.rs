// SPDX-License-Identifier: GPL-2.0-only
//! A `vm::Host` whose kernel functions only record their calls, as those of `native/kfuncs.c` do,
//! so that a benchmark measures how programs are entered, executed, and call the kernel.
//!
//! Owns: the ring of recorded calls. Does not: implement anything else that programs could call.

use scxlab_bpf::fault::Fault;
use scxlab_bpf::kfunc::KfuncId;
use scxlab_bpf::mem::OutOfMemory;
use scxlab_bpf::timer::TimerId;
use scxlab_bpf::vm::{CallSite, Config, Host, KptrKind, Storage, Vm};

/// Number of calls that the ring keeps; the same as `KEPT` in `native/kfuncs.c`.
const KEPT: usize = 4096;

pub struct RecordingHost {
    pub vm: Vm,
    calls: Box<[(KfuncId, [u64; 5]); KEPT]>,
    nr_calls: usize,
    clock: u64,
}

impl RecordingHost {
    pub fn new(config: Config) -> Result<RecordingHost, OutOfMemory> {
        let calls = Box::new([(KfuncId(0), [0; 5]); KEPT]);
        Ok(RecordingHost { vm: Vm::new(config)?, calls, nr_calls: 0, clock: 0 })
    }
}

impl Host for RecordingHost {
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
        0
    }

    fn current_task(&mut self) -> u64 {
        0
    }

    fn kfunc(&mut self, _site: CallSite, id: KfuncId, args: &[u64; 5]) -> Result<u64, Fault> {
        self.calls[self.nr_calls % KEPT] = (id, *args);
        self.nr_calls += 1;
        Ok(0)
    }

    fn helper(&mut self, _site: CallSite, id: u32, _args: [u64; 5]) -> Result<u64, Fault> {
        Err(scxlab_bpf::helper::unmodelled(id))
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
        false
    }
}
