// SPDX-License-Identifier: GPL-2.0-only
//! Translation of a decoded function to Cranelift's intermediate code.
//!
//! Owns: blocks, registers as variables, the instruction count, jumps, the paths that stop the
//! program.
//! Does not: translate arithmetic (`alu.rs`), memory accesses (`memory.rs`) or calls
//! (`translate/calls.rs`); generate machine code (`compile.rs`).
//!
//! The instruction count is exact wherever the host can observe it. The code does not count each
//! instruction: it adds the number of instructions since the last addition (`pending`) before it
//! leaves a block, before a call, and on the path to a fault. The paths to faults are out of line.
//! Such a path stores the live registers in the context, then the slot, and every calling function
//! adds the slot of its call.

mod calls;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    AbiParam, Block, BlockArg, InstBuilder, MemFlagsData, SigRef, Signature, Type, Value, types,
};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::{FunctionBuilder, Variable};

use super::Data;
use super::ctx::{FAILED, WHY_LIMIT, at};
use super::facts::{FunctionAnalysis, Regs, known_outcome, step};
use super::groups::Groups;
use super::in_place::InPlaceFuncs;
use super::memory::access_signature;
use crate::insn::uses::RegSet;
use crate::insn::{Insn, Op, access_size};
use crate::vm::Func;

pub const I32: Type = types::I32;
pub const I64: Type = types::I64;

/// Input of the translation of one function.
pub struct Input<'a> {
    pub code: &'a [Insn],
    pub func: &'a Func,
    /// Live registers before each slot of the function.
    pub live: &'a [RegSet],
    pub call_conv: CallConv,
    /// Values of array maps, at fixed addresses. Accesses to them need no check.
    pub data: &'a [Data],
    /// Whether calls need no check of the call depth, because a check on entry into the code
    /// suffices.
    pub bounded: bool,
    /// Whether no function calls this one by number. Its frame is then always the one in which the
    /// code was entered.
    pub entered: bool,
    /// Number of pages of the memory. The code contains this number, so only memories of the same
    /// size share code.
    pub nr_pages: u64,
    /// Kernel functions of the host that the code carries out itself.
    pub in_place: InPlaceFuncs,
    /// Tells whether no page loses a permission during a call.
    pub keeps: &'a dyn Fn(&Insn) -> bool,
    /// Returns, given the first slot of a called function, the offset from `Ctx::entries` of the
    /// word that holds the function's code address, and the number of arguments that the function
    /// takes.
    pub callee: &'a dyn Fn(u32) -> (i32, usize),
}

/// Returns the signature of a compiled function. Parameters: context, number of instructions
/// executed so far, frame pointer, then the first `arguments` of r1 to r5. Results: r0 and the new
/// number of instructions.
pub fn signature(call_conv: CallConv, arguments: usize) -> Signature {
    let mut signature = Signature::new(call_conv);
    signature.params.extend(vec![AbiParam::new(I64); 3 + arguments]);
    signature.returns.extend([AbiParam::new(I64); 2]);
    signature
}

pub struct Translator<'a, 'b> {
    pub b: FunctionBuilder<'b>,
    pub input: Input<'a>,
    pub regs: [Variable; 10],
    executed: Variable,
    budget: Variable,
    /// Number of translated instructions that `executed` does not include yet.
    pub pending: i64,
    pub known: Regs,
    pub ctx: Value,
    pub fp: Value,
    pub base: Value,
    pub mem: Value,
    pub perms: Value,
    /// Indexed by slot: the block that begins there.
    blocks: Vec<Option<Block>>,
    preds_left: Vec<u32>,
    /// Block that stores the instruction count of a failure, with parameters slot and count.
    fail_here: Block,
    /// Block that adds the slot of one frame to a failure and returns, with the slot as parameter.
    fail_up: Block,
    pub groups: Groups,
    /// Indexed by group: permission of the group's pages, once the group's first access has loaded
    /// it.
    pub group_perms: Vec<Option<Value>>,
    /// Pairs of a number of parameters and the signature with that many parameters.
    signatures: Vec<(usize, SigRef)>,
    access_signature: Option<SigRef>,
}

pub fn flags() -> MemFlagsData {
    MemFlagsData::trusted()
}

impl<'a, 'b> Translator<'a, 'b> {
    /// Translates the whole function into `b`, which is empty and has the function's signature.
    pub fn function(mut b: FunctionBuilder<'b>, input: Input<'a>) -> FunctionBuilder<'b> {
        let facts = FunctionAnalysis::of(input.code, input.func, input.data);
        let head = b.create_block();
        b.append_block_params_for_function_params(head);
        b.switch_to_block(head);
        b.seal_block(head);
        let params = b.block_params(head).to_vec();
        let ctx = params[0];
        // Flags of a load that the compiler may move: it places the load before the uses, or drops
        // a load without uses.
        let stable = flags().with_readonly().with_can_move();
        let slots = &input.code[input.func.start as usize..][..input.func.len as usize];
        let accesses = slots.iter().filter(|insn| access_size(insn.op).is_some()).count();
        // In a function with several memory accesses and no loop, load `base` (the host address of
        // guest address 0) once at the start, because each access would otherwise load it again. In
        // a loop a free register is worth more, and the compiler hoists the load out of the loop
        // anyway.
        let at_once = accesses > 1 && !facts.loops(input.func);
        let when = if at_once { flags().with_readonly() } else { stable };
        let base = b.ins().load(I64, when, ctx, at::BASE);
        let mem = b.ins().load(I64, stable, ctx, at::MEM);
        let perms = b.ins().load(I64, stable, ctx, at::PERMS);
        let regs = [(); 10].map(|()| b.declare_var(I64));
        let executed = b.declare_var(I64);
        let budget = b.declare_var(I64);
        let zero = b.ins().iconst(I64, 0);
        for (reg, var) in regs.iter().enumerate() {
            let argument = (1..=5).contains(&reg).then(|| params.get(2 + reg)).flatten();
            b.def_var(*var, argument.copied().unwrap_or(zero));
        }
        b.def_var(executed, params[1]);
        let blocks =
            facts.blocks.iter().map(|known| known.map(|_| b.create_block())).collect::<Vec<_>>();
        let (fail_here, fail_up) = (b.create_block(), b.create_block());
        let groups = Groups::of(input.code, input.func, &facts, input.data, input.keeps);
        let mut t = Translator {
            regs,
            executed,
            budget,
            pending: 0,
            known: Regs::default(),
            ctx,
            fp: params[2],
            base,
            mem,
            perms,
            blocks,
            preds_left: facts.preds.clone(),
            fail_here,
            fail_up,
            group_perms: vec![None; groups.len()],
            groups,
            signatures: Vec::new(),
            access_signature: None,
            b,
            input,
        };
        t.prologue();
        t.body(&facts);
        t.epilogue();
        t.b.seal_all_blocks();
        t.b
    }

    /// Loads the budget of `may_goto`, if the function uses it, and jumps to the first block.
    fn prologue(&mut self) {
        let func = self.input.func;
        let slots = &self.input.code[func.start as usize..(func.start + func.len) as usize];
        if slots.iter().any(|insn| insn.op == Op::MayGoto) {
            let budget = self.b.ins().load(I64, flags(), self.ctx, at::MAY_GOTO);
            self.b.def_var(self.budget, budget);
        }
        let first = self.blocks[0].expect("a function begins with a block");
        self.b.ins().jump(first, &[]);
    }

    fn body(&mut self, facts: &FunctionAnalysis) {
        let start = self.input.func.start;
        let mut open = false;
        for slot in (0..facts.reached.len()).filter(|slot| facts.reached[*slot]) {
            if let (Some(block), Some(known)) = (self.blocks[slot], facts.blocks[slot]) {
                if open {
                    self.flow_to(block, slot);
                }
                self.b.switch_to_block(block);
                self.known = known;
                // The block is sealed here if all its predecessors are known by now. For the entry
                // block, the jump from the prologue exists already.
                if self.preds_left[slot] == 0 {
                    self.b.seal_block(block);
                }
            }
            let pc = start + slot as u32;
            let insn = self.input.code[pc as usize];
            self.pending += 1;
            open = self.insn(&insn, pc);
            step(&insn, pc, &mut self.known, self.input.data);
        }
    }

    /// Emits the blocks that stop the code: they store the count and this frame's slot and return
    /// `FAILED`. Each caller then adds its own slot.
    fn epilogue(&mut self) {
        self.b.switch_to_block(self.fail_here);
        self.b.set_cold_block(self.fail_here);
        let pc = self.b.append_block_param(self.fail_here, I64);
        let executed = self.b.append_block_param(self.fail_here, I64);
        self.b.ins().store(flags(), executed, self.ctx, at::EXECUTED);
        self.b.ins().jump(self.fail_up, &[BlockArg::Value(pc)]);
        self.b.switch_to_block(self.fail_up);
        self.b.set_cold_block(self.fail_up);
        let pc = self.b.append_block_param(self.fail_up, I64);
        let count = self.b.ins().load(I64, flags(), self.ctx, at::NR_PCS);
        let offset = self.b.ins().ishl_imm_u(count, 2);
        let place = self.b.ins().iadd(self.ctx, offset);
        self.b.ins().istore32(flags(), pc, place, at::PCS);
        let count = self.b.ins().iadd_imm_s(count, 1);
        self.b.ins().store(flags(), count, self.ctx, at::NR_PCS);
        let failed = self.b.ins().iconst(I64, FAILED as i64);
        self.b.ins().return_(&[failed, failed]);
    }

    /// Translates one instruction. Returns false if control cannot fall through to the next.
    fn insn(&mut self, insn: &Insn, pc: u32) -> bool {
        match insn.op {
            Op::Exit => {
                let executed = self.settle();
                let value = self.reg(0);
                self.b.ins().return_(&[value, executed]);
                return false;
            }
            Op::Ja => {
                self.settle();
                self.jump(insn, pc);
                return false;
            }
            Op::MayGoto => {
                self.may_goto(insn, pc);
                return false;
            }
            Op::CallHelper => self.helper(insn, pc),
            Op::CallKfunc => self.kfunc(insn, pc),
            Op::CallFunc => self.call_func(insn, pc),
            Op::CallReg => self.call_reg(insn, pc),
            op if (Op::Jeq64K as u8..=Op::Jset32X as u8).contains(&(op as u8)) => {
                return self.branch(insn, pc);
            }
            op if access_size(op).is_some() => self.memory(insn, pc),
            _ => self.alu(insn),
        }
        true
    }

    pub fn reg(&mut self, reg: u8) -> Value {
        if reg == 10 { self.fp } else { self.b.use_var(self.regs[usize::from(reg)]) }
    }

    pub fn set_reg(&mut self, reg: u8, value: Value) {
        // Decoding guarantees that no instruction writes r10.
        self.b.def_var(self.regs[usize::from(reg)], value);
    }

    pub fn iconst(&mut self, value: u64) -> Value {
        self.b.ins().iconst(I64, value as i64)
    }

    /// Returns the instruction count including the pending instructions, which stay pending.
    pub fn executed(&mut self) -> Value {
        let executed = self.b.use_var(self.executed);
        if self.pending == 0 { executed } else { self.b.ins().iadd_imm_s(executed, self.pending) }
    }

    /// Adds the pending instructions to the instruction count.
    pub fn settle(&mut self) -> Value {
        let executed = self.executed();
        self.b.def_var(self.executed, executed);
        self.pending = 0;
        executed
    }

    /// Creates a block. The compiler puts cold blocks at the end of the function.
    pub fn block(&mut self, cold: bool) -> Block {
        let block = self.b.create_block();
        if cold {
            self.b.set_cold_block(block);
        }
        block
    }

    /// Continues in a block all of whose predecessors exist.
    pub fn enter(&mut self, block: Block) {
        self.b.switch_to_block(block);
        self.b.seal_block(block);
    }

    /// Ends the open block with a jump to the next instruction, which begins a block of its own.
    fn flow_to(&mut self, block: Block, slot: usize) {
        self.settle();
        self.b.ins().jump(block, &[]);
        self.preds_left[slot] -= 1;
    }

    fn target(&mut self, insn: &Insn) -> Block {
        let slot = (insn.off as u32 - self.input.func.start) as usize;
        self.preds_left[slot] -= 1;
        self.blocks[slot].expect("a jump's target begins a block")
    }

    fn jump(&mut self, insn: &Insn, pc: u32) {
        if insn.off as u32 <= pc {
            self.check_limit(pc);
        }
        let target = self.target(insn);
        self.b.ins().jump(target, &[]);
    }

    /// Jumps if `taken`, of any integer type, is not zero; otherwise falls through.
    fn jump_if(&mut self, taken: Value, insn: &Insn, pc: u32) {
        let slot = (pc + 1 - self.input.func.start) as usize;
        let next = self.blocks[slot].expect("a block begins after a conditional jump");
        self.preds_left[slot] -= 1;
        if insn.off as u32 <= pc {
            let edge = self.block(false);
            self.b.ins().brif(taken, edge, &[], next, &[]);
            self.enter(edge);
            self.jump(insn, pc);
        } else {
            let target = self.target(insn);
            self.b.ins().brif(taken, target, &[], next, &[]);
        }
    }

    /// Translates a conditional jump. If the known values decide the jump, the function emits only
    /// one path.
    fn branch(&mut self, insn: &Insn, pc: u32) -> bool {
        match known_outcome(insn, &self.known) {
            Some(true) => {
                self.settle();
                self.jump(insn, pc);
            }
            Some(false) => return true,
            None => {
                self.settle();
                let taken = self.condition(insn);
                self.jump_if(taken, insn, pc);
            }
        }
        false
    }

    fn may_goto(&mut self, insn: &Insn, pc: u32) {
        self.settle();
        let budget = self.b.use_var(self.budget);
        let spent = self.b.ins().icmp_imm_s(IntCC::Equal, budget, 0);
        // A spent `may_goto` budget stays 0 instead of wrapping below 0. The new budget is right
        // whether the program then jumps or falls through.
        let less = self.b.ins().iadd_imm_s(budget, -1);
        let left = self.b.ins().select(spent, budget, less);
        self.b.def_var(self.budget, left);
        self.jump_if(spent, insn, pc);
    }

    /// Stops with the instruction limit's fault if the count has reached the limit.
    pub fn check_limit(&mut self, pc: u32) {
        let executed = self.executed();
        let deadline = self.b.ins().load(I64, flags(), self.ctx, at::DEADLINE);
        let over = self.b.ins().icmp(IntCC::UnsignedGreaterThanOrEqual, executed, deadline);
        self.stop_if(over, WHY_LIMIT, pc);
    }

    fn stop_if(&mut self, condition: Value, why: u64, pc: u32) {
        let (stop, on) = (self.block(true), self.block(false));
        self.b.ins().brif(condition, stop, &[], on, &[]);
        self.enter(stop);
        let why = self.iconst(why);
        self.b.ins().store(flags(), why, self.ctx, at::WHY);
        self.fail(pc);
        self.enter(on);
    }

    /// Emits code that stops the program here and stores the live registers in the context. No
    /// block is open afterwards.
    pub fn fail(&mut self, pc: u32) {
        self.store_live(pc);
        let executed = self.executed();
        let pc = self.iconst(u64::from(pc));
        self.b.ins().jump(self.fail_here, &[BlockArg::Value(pc), BlockArg::Value(executed)]);
    }

    fn store_live(&mut self, pc: u32) {
        let live = self.input.live[(pc - self.input.func.start) as usize];
        for reg in (0..10).filter(|reg| live.has(*reg)) {
            let value = self.reg(reg);
            self.b.ins().store(flags(), value, self.ctx, at::REGS + 8 * i32::from(reg));
        }
    }

    /// Emits a call of `Calls::access`, which performs an access outside the code. The call
    /// preserves every register, so that the possibility of a refused access costs nothing where
    /// none happens. Afterwards the context holds the loaded value. The result is non-zero if the
    /// program was stopped.
    pub fn access_outside(&mut self) -> Value {
        let signature = self.access_signature.unwrap_or_else(|| {
            let made = self.b.import_signature(access_signature());
            self.access_signature = Some(made);
            made
        });
        let callee = self.b.ins().load(I64, flags(), self.ctx, at::ACCESS);
        self.b.ins().call_indirect(signature, callee, &[self.ctx]);
        self.b.ins().load(I64, flags(), self.ctx, at::REFUSED_FAILED)
    }
}
