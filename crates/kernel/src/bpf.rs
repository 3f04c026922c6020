// SPDX-License-Identifier: GPL-2.0-only
//! The parts of the kernel that BPF programs use: types, functions, variables, timers and locks.
//!
//! Owns: the generation number of each BPF timer, which tells a stale expiry from the present one.
//! Does not: run programs (`Kernel::vm` does), or implement functions (see `ext/kfunc.rs`).

pub mod abi;
pub(crate) mod errno;
pub mod flags;
pub(crate) mod insn_time;
pub(crate) mod mirror;

use crate::bpf::insn_time::InsnTime;
use crate::cpu::lock::Lock;
use crate::ext::kfunc::Handler;
use crate::kernel::boot::KernelVars;
use scxlab_bpf::timer::TimerId;
use scxlab_loader::btf::Btf;
use scxlab_machine::Stream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub struct Bpf {
    pub btf: Arc<Btf>,
    pub(crate) vars: KernelVars,
    /// Handlers of kernel functions and their groups (`kfunc::context`), indexed by `KfuncId`.
    pub(crate) kfuncs: Box<[(Handler, u8)]>,
    pub(crate) insn_time: InsnTime,
    pub(crate) prandom: Stream,
    /// Locks of programs, by guest address.
    pub(crate) locks: rustc_hash::FxHashMap<u64, Lock>,
    /// Generation of each timer. An expiry with an older generation is ignored.
    timers: Vec<u32>,
    /// Whether a loaded object can find a run queue, because it refers to the variable `runqueues`
    /// or to `scx_bpf_locked_rq()`. The kernel must then keep the clocks of run queues up to date
    /// in guest memory. `KernelTarget`, against which objects are linked, sets this flag.
    pub(crate) rq_address_known: Arc<AtomicBool>,
}

impl Bpf {
    pub(crate) fn new(vars: KernelVars, insn_ps: u64, seed: u64) -> Self {
        Bpf {
            btf: Arc::new(Btf::parse(abi::KERNEL_BTF).expect("the kernel's own BTF is valid")),
            vars,
            kfuncs: crate::ext::kfunc::handlers(),
            insn_time: InsnTime::new(insn_ps),
            prandom: Stream::new(seed, "bpf_get_prandom_u32", 0),
            locks: Default::default(),
            timers: Vec::new(),
            rq_address_known: Default::default(),
        }
    }

    /// Returns whether `generation` is the timer's present generation. It is not if the timer has
    /// been armed again or cancelled since.
    pub(crate) fn is_current(&self, timer: TimerId, generation: u32) -> bool {
        self.timers.get(timer.idx()) == Some(&generation)
    }

    pub(crate) fn next_timer_generation(&mut self, timer: TimerId) -> u32 {
        if self.timers.len() <= timer.idx() {
            self.timers.resize(timer.idx() + 1, 0);
        }
        let generation = &mut self.timers[timer.idx()];
        *generation = generation.wrapping_add(1);
        *generation
    }
}
