// SPDX-License-Identifier: GPL-2.0-only
//! Kernel functions that machine code carries out itself: iterators over numbers, markers, a bit of
//! a mask of CPUs, the CPU of a task, the clock of a locked run queue, the first task and the
//! length of a dispatch queue.
//!
//! Owns: the list of these functions, and the accounts of their calls.
//! Does not: define their meaning (`crate::kfunc` and the `Host` do); carry out the rare cases,
//! such as an iterator outside the frame or a pointer that is not known to lead to a task. The code
//! calls out for those.
//!
//! The code advances the host's clock by the time of a function of the host. The time of the
//! instructions before it is charged later, at the next call out. Nothing reads the clock between.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, BlockArg, InstBuilder, MemFlagsData, Value};

use super::ctx::{self, Way};
use super::in_place::{self, InPlaceFuncs, at};
use super::memory::{AccessLocation, guest};
use super::translate::{I32, I64, Translator, flags};
use crate::errno::{E2BIG, EINVAL, neg};
use crate::insn::Insn;
use crate::insn::uses::taken;
use crate::kfunc::num::MAX_LOOPS;
use crate::kfunc::{self, InPlaceBuiltin, KfuncId};

/// Flags of a load of `InPlaceValues`, which do not change while code runs.
fn shared_value() -> MemFlagsData {
    flags().with_readonly()
}

impl Translator<'_, '_> {
    /// Translates a call of a kernel function.
    pub fn kfunc(&mut self, insn: &Insn, pc: u32) {
        let id = KfuncId(insn.imm as u32);
        let funcs = self.input.in_place;
        if funcs.test_cpu == Some(id) {
            return self.test_cpu(insn, pc);
        }
        if let Some((_, offset)) = funcs.task_cpu.filter(|(task_cpu, _)| *task_cpu == id) {
            return self.task_cpu(offset, insn, pc);
        }
        if funcs.now == Some(id) {
            return self.now(insn, pc);
        }
        if funcs.dsq_first == Some(id) {
            return self.of_dsq(in_place::DSQ_FIRST, insn, pc);
        }
        if funcs.dsq_len == Some(id) {
            return self.of_dsq(in_place::DSQ_LEN, insn, pc);
        }
        let value = match kfunc::in_place(id) {
            Some(InPlaceBuiltin::Zero) => Some(self.iconst(0)),
            Some(InPlaceBuiltin::Identity) => Some(self.reg(1)),
            Some(InPlaceBuiltin::IterNumNew) => self.iter_num_new(),
            Some(InPlaceBuiltin::IterNumNext) => self.iter_num_next(),
            None => None,
        };
        let Some(value) = value else { return self.call_kfunc(insn, pc) };
        self.count_kfunc();
        self.clobber(value);
    }

    fn call_kfunc(&mut self, insn: &Insn, pc: u32) {
        let few = taken(insn) < 5 && !KfuncId(insn.imm as u32).is_builtin();
        let way = if few { Way::Kfunc4 } else { Way::Kfunc };
        self.call_out(way, taken(insn), insn, pc);
    }

    /// Returns the address of the state that the contexts share.
    pub fn shared(&mut self) -> Value {
        let stable = flags().with_readonly().with_can_move();
        self.b.ins().load(I64, stable, self.ctx, ctx::at::IN_PLACE)
    }

    fn count_kfunc(&mut self) -> Value {
        let shared = self.shared();
        let calls = self.b.ins().load(I64, flags(), shared, at::KFUNC_CALLS);
        let calls = self.b.ins().iadd_imm_s(calls, 1);
        self.b.ins().store(flags(), calls, shared, at::KFUNC_CALLS);
        shared
    }

    /// Accounts for a function of the host whose time is the value at `cost` in the shared state.
    fn charge_kfunc(&mut self, cost: i32) {
        let shared = self.count_kfunc();
        let cost = self.b.ins().load(I64, shared_value(), shared, cost);
        let clock = self.b.ins().load(I64, shared_value(), shared, at::CLOCK);
        let time = self.b.ins().load(I64, flags(), clock, 0);
        let time = self.b.ins().iadd(time, cost);
        self.b.ins().store(flags(), time, clock, 0);
    }

    /// Creates the block that calls out, and the block in which both ways go on with the result.
    pub fn in_place_blocks(&mut self) -> (Block, Block) {
        let (slow, done) = (self.block(true), self.block(false));
        self.b.append_block_param(done, I64);
        (slow, done)
    }

    /// Ends the way on which the code did the work itself.
    pub fn finish_in_place(&mut self, value: Value, done: Block) {
        self.b.ins().jump(done, &[BlockArg::Value(value)]);
    }

    /// Ends the way on which the code called out, and goes on in `done`.
    pub fn join_in_place(&mut self, done: Block) {
        let value = self.reg(0);
        self.b.ins().jump(done, &[BlockArg::Value(value)]);
        self.enter(done);
        let value = self.b.block_params(done)[0];
        self.clobber(value);
    }

    /// Ends a kernel function that the code has carried out itself, with its result, and emits the
    /// block that calls out. `cost` is the place of the function's time in the shared state, and
    /// `blocks` the result of `in_place_blocks`.
    fn end_kfunc(
        &mut self,
        value: Value,
        cost: i32,
        (slow, done): (Block, Block),
        insn: &Insn,
        pc: u32,
    ) {
        self.charge_kfunc(cost);
        self.finish_in_place(value, done);
        self.enter(slow);
        self.call_kfunc(insn, pc);
        self.join_in_place(done);
    }

    /// Returns the host address, less `in_place::at::OWNER` and so on, of the cache's entry for an
    /// owner. Without an entry, the generated code branches to `slow`.
    pub fn cached(&mut self, owner: Value, tag: u64, slow: Block) -> Value {
        let shared = self.shared();
        let at = self.b.ins().ushr_imm_u(owner, i64::from(in_place::OWNER_SHIFT));
        let at = self.b.ins().bxor(at, owner);
        let at = self.b.ins().bxor_imm_u(at, in_place::salt(tag) as i64);
        let at = self.b.ins().band_imm_u(at, in_place::ENTRY_MASK as i64);
        let at = self.b.ins().ishl_imm_u(at, i64::from(in_place::ENTRY_BYTES_LOG2));
        let entry = self.b.ins().iadd(shared, at);
        let of_owner = self.b.ins().load(I64, flags(), entry, at::OWNER);
        let same_owner = self.b.ins().icmp(IntCC::Equal, of_owner, owner);
        self.go_on_if(same_owner, slow);
        let tagged = self.b.ins().load(I64, flags(), entry, at::TAG);
        let tag = self.iconst(tag);
        let same_tag = self.b.ins().icmp(IntCC::Equal, tagged, tag);
        self.go_on_if(same_tag, slow);
        entry
    }

    fn go_on_if(&mut self, condition: Value, slow: Block) {
        let go = self.block(false);
        self.b.ins().brif(condition, go, &[], slow, &[]);
        self.enter(go);
    }

    /// Emits `scx_bpf_task_cpu`: reads the CPU, 32 bits at `offset`, of a task that the host has
    /// recorded.
    fn task_cpu(&mut self, offset: u32, insn: &Insn, pc: u32) {
        self.settle();
        let (slow, done) = self.in_place_blocks();
        let task = self.reg(1);
        self.cached(task, in_place::TASK, slow);
        let at = self.b.ins().iadd(self.base, task);
        let cpu = self.b.ins().load(I32, guest(), at, offset as i32);
        let cpu = self.b.ins().uextend(I64, cpu);
        self.end_kfunc(cpu, at::CALL_NS, (slow, done), insn, pc);
    }

    /// Emits a look at a dispatch queue of which the host has recorded what the program wants.
    fn of_dsq(&mut self, tag: u64, insn: &Insn, pc: u32) {
        self.settle();
        let (slow, done) = self.in_place_blocks();
        let dsq = self.reg(1);
        let entry = self.cached(dsq, tag, slow);
        let value = self.b.ins().load(I64, flags(), entry, at::VALUE);
        self.end_kfunc(value, at::CALL_NS, (slow, done), insn, pc);
    }

    /// Emits `scx_bpf_now` for programs that run with a locked run queue.
    fn now(&mut self, insn: &Insn, pc: u32) {
        self.settle();
        let (slow, done) = self.in_place_blocks();
        let clock = self.b.ins().load(I64, shared_value(), self.ctx, ctx::at::RQ_CLOCK);
        self.go_on_if(clock, slow);
        let shared = self.shared();
        let time = self.b.ins().load(I64, flags(), clock, 0);
        let base = self.b.ins().load(I64, shared_value(), shared, at::RQ_CLOCK_BASE_NS);
        let now = self.b.ins().iadd(time, base);
        self.end_kfunc(now, at::CALL_NS, (slow, done), insn, pc);
    }

    /// Emits `bpf_cpumask_test_cpu` for a CPU that exists and a readable mask on one page.
    fn test_cpu(&mut self, insn: &Insn, pc: u32) {
        self.settle();
        let (slow, done) = self.in_place_blocks();
        let (cpu, mask) = (self.low_half(1), self.reg(2));
        let InPlaceFuncs { nr_cpus, mask_bytes, .. } = self.input.in_place;
        let exists = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, cpu, i64::from(nr_cpus));
        self.go_on_if(exists, slow);
        let place = self.readable_on_page(mask, mask_bytes, slow);
        let word = if mask_bytes == I64.bytes() {
            place
        } else {
            let offset = self.b.ins().ushr_imm_u(cpu, 6);
            let offset = self.b.ins().ishl_imm_u(offset, 3);
            self.b.ins().iadd(place, offset)
        };
        let word = self.b.ins().load(I64, guest(), word, 0);
        let bit = self.b.ins().ushr(word, cpu);
        let bit = self.b.ins().band_imm_u(bit, 1);
        self.end_kfunc(bit, at::TEST_CPU_NS, (slow, done), insn, pc);
    }

    /// Returns the place of an iterator over numbers at r1: host address and offset. None if the
    /// iterator may lie outside the frame and the instance's data.
    fn iterator(&mut self) -> Option<(Value, i32)> {
        let place = AccessLocation::at(self.known[1], 0, I64.bytes(), false, self.input.data);
        let (from, off) = match place {
            AccessLocation::Frame(off) => (self.fp, off),
            AccessLocation::Inside => (self.reg(1), 0),
            AccessLocation::LikelyFrame | AccessLocation::Anywhere => return None,
        };
        Some((self.b.ins().iadd(self.base, from), off))
    }

    fn iter_num_new(&mut self) -> Option<Value> {
        let (at, off) = self.iterator()?;
        let start = self.narrow(2, I32);
        let end = self.narrow(3, I32);
        let [none, bad, long] =
            [0, neg(EINVAL), neg(E2BIG)].map(|errno| self.b.ins().iconst(I64, errno as i64));
        let backward = self.b.ins().icmp(IntCC::SignedGreaterThan, start, end);
        let span = self.b.ins().isub(end, start);
        let max = i64::from(MAX_LOOPS);
        let too_long = self.b.ins().icmp_imm_u(IntCC::UnsignedGreaterThan, span, max);
        let errno = self.b.ins().select(too_long, long, none);
        let errno = self.b.ins().select(backward, bad, errno);
        let before = self.b.ins().iadd_imm_s(start, -1);
        let nothing = self.b.ins().iconst(I32, 0);
        let refused = self.b.ins().bor(backward, too_long);
        for (number, at_word) in [(before, off), (end, off + 4)] {
            let word = self.b.ins().select(refused, nothing, number);
            self.b.ins().store(guest(), word, at, at_word);
        }
        Some(errno)
    }

    fn iter_num_next(&mut self) -> Option<Value> {
        let (at, off) = self.iterator()?;
        let current = self.b.ins().load(I32, guest(), at, off);
        let end = self.b.ins().load(I32, guest(), at, off + 4);
        let next = self.b.ins().iadd_imm_s(current, 1);
        let more = self.b.ins().icmp(IntCC::SignedLessThan, next, end);
        let zero = self.b.ins().iconst(I32, 0);
        let new_end = self.b.ins().select(more, end, zero);
        let new = self.b.ins().select(more, next, zero);
        self.b.ins().store(guest(), new, at, off);
        self.b.ins().store(guest(), new_end, at, off + 4);
        let (number, none) = (self.reg(1), self.iconst(0));
        Some(self.b.ins().select(more, number, none))
    }
}
