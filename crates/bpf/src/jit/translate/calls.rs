// SPDX-License-Identifier: GPL-2.0-only
//! Calls in Cranelift's intermediate code: out to helpers and kernel functions, and to functions of
//! the program.
//!
//! Owns: the arguments that a call passes and the use of its result. Does not: perform the calls
//! (see `native.rs`).

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{AbiParam, BlockArg, InstBuilder, SigRef, Signature, Value};

use super::{I64, Translator, flags};
use crate::insn::Insn;
use crate::jit::ctx::{AT_ENTRY, WHY_DEPTH, Way, at};
use crate::jit::memory::guest;
use crate::vm::stack::{CALL_SLOT_OFFSET, FRAME};

impl Translator<'_, '_> {
    /// Emits a call of one of the ways out of machine code. `fp` is the frame pointer of the
    /// caller, or of the callee for `Way::Func`. The call passes only the first `arguments` of r1
    /// to r5, because passing registers that the callee does not read would keep them alive for
    /// nothing.
    fn way_out(
        &mut self,
        way: Way,
        number: u32,
        fp: Value,
        arguments: usize,
        pc: u32,
    ) -> [Value; 2] {
        let executed = self.settle();
        let zero = self.iconst(0);
        let regs =
            (1..=5u8).map(|reg| if usize::from(reg) <= arguments { self.reg(reg) } else { zero });
        let regs: Vec<Value> = regs.collect();
        let inside = matches!(way, Way::Func | Way::FuncReg);
        let at_entry = self.input.entered && !inside;
        if !at_entry {
            self.b.ins().store(flags(), fp, self.ctx, at::OUT_FP);
        }
        if way != Way::Kfunc4 {
            self.b.ins().store(flags(), regs[4], self.ctx, at::OUT_R5);
        }
        let pc = if at_entry { pc | AT_ENTRY } else { pc };
        let which = self.iconst(u64::from(number) << 32 | u64::from(pc));
        self.b.ins().store(flags(), which, self.ctx, at::OUT_PC);
        let calls = self.b.ins().load(I64, flags().with_readonly(), self.ctx, at::CALLS);
        let callee = self.b.ins().load(I64, flags().with_readonly(), calls, way.at());
        let signature = self.signature_ref(6);
        let all = [&[self.ctx, executed], &regs[..4]].concat();
        let call = self.b.ins().call_indirect(signature, callee, &all);
        let results = self.b.inst_results(call);
        [results[0], results[1]]
    }

    /// Returns the signature with `arguments` parameters and two results.
    fn signature_ref(&mut self, arguments: usize) -> SigRef {
        let known = self.signatures.iter().find(|(n, _)| *n == arguments);
        if let Some((_, signature)) = known {
            return *signature;
        }
        let mut signature = Signature::new(self.input.call_conv);
        signature.params.extend(vec![AbiParam::new(I64); arguments]);
        signature.returns.extend([AbiParam::new(I64); 2]);
        let made = self.b.import_signature(signature);
        self.signatures.push((arguments, made));
        made
    }

    pub fn call_out(&mut self, way: Way, arguments: usize, insn: &Insn, pc: u32) {
        let [value, executed] = self.way_out(way, insn.imm as u32, self.fp, arguments, pc);
        self.returned(value, executed, pc, true);
    }

    /// Emits the code after a call, which continues with the call's result, or leaves the function
    /// with the failure that the call reported. `innermost` tells that no other frame of compiled
    /// code has reported the failure.
    fn returned(&mut self, value: Value, executed: Value, pc: u32, innermost: bool) {
        let (out, on) = (self.block(true), self.block(false));
        let failed = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, executed, 0);
        self.b.ins().brif(failed, out, &[], on, &[]);
        self.enter(out);
        if innermost {
            self.store_live(pc);
        }
        let pc = self.iconst(u64::from(pc));
        self.b.ins().jump(self.fail_up, &[BlockArg::Value(pc)]);
        self.enter(on);
        self.b.def_var(self.executed, executed);
        self.clobber(value);
    }

    /// Sets the registers after a call: r0 is its result, r1 to r5 are zero.
    pub fn clobber(&mut self, value: Value) {
        self.set_reg(0, value);
        let zero = self.iconst(0);
        (1..=5).for_each(|reg| self.set_reg(reg, zero));
    }

    /// Emits a call of a function of the program: directly if the function is compiled by the time
    /// of the call, otherwise through the interpreter.
    pub(super) fn call_func(&mut self, insn: &Insn, pc: u32) {
        let executed = self.settle();
        let fp = self.b.ins().iadd_imm_s(self.fp, -(FRAME as i64));
        if !self.input.bounded {
            let fp_min = self.b.ins().load(I64, flags(), self.ctx, at::FP_MIN);
            let deep = self.b.ins().icmp(IntCC::UnsignedLessThan, fp, fp_min);
            self.stop_if(deep, WHY_DEPTH, pc);
        }
        self.check_limit(pc);
        let frame = self.b.ins().iadd(self.base, self.fp);
        let slot = self.iconst(u64::from(pc));
        self.b.ins().istore32(guest(), slot, frame, CALL_SLOT_OFFSET as i32);
        let (at, arguments) = (self.input.callee)(insn.off as u32);
        let entries = self.b.ins().load(I64, flags().with_readonly(), self.ctx, at::ENTRIES);
        let entry = self.b.ins().load(I64, flags(), entries, at);
        let (direct, slow, join) = (self.block(false), self.block(true), self.block(false));
        let value = self.b.append_block_param(join, I64);
        let count = self.b.append_block_param(join, I64);
        self.b.ins().brif(entry, direct, &[], slow, &[]);

        self.enter(slow);
        let results = self.way_out(Way::Func, insn.off as u32, fp, arguments, pc);
        self.b.ins().jump(join, &results.map(BlockArg::Value));

        self.enter(direct);
        let mut all = vec![self.ctx, executed, fp];
        all.extend((1..=arguments as u8).map(|reg| self.reg(reg)));
        let signature = self.signature_ref(all.len());
        let call = self.b.ins().call_indirect(signature, entry, &all);
        let results: Vec<BlockArg> =
            self.b.inst_results(call).iter().map(|value| BlockArg::Value(*value)).collect();
        self.b.ins().jump(join, &results);

        self.enter(join);
        self.returned(value, count, pc, false);
    }

    /// Emits a call of a function by its address. Such calls are rare, so `Calls::func_reg` does
    /// all the work.
    pub(super) fn call_reg(&mut self, insn: &Insn, pc: u32) {
        let addr = self.reg(insn.dst);
        self.b.ins().store(flags(), addr, self.ctx, at::OUT_TARGET);
        let [value, executed] = self.way_out(Way::FuncReg, 0, self.fp, 5, pc);
        self.returned(value, executed, pc, true);
    }
}
