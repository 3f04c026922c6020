// SPDX-License-Identifier: GPL-2.0-only
//! The interpreter: one flat match over decoded instructions.
//!
//! Owns: the meaning of every instruction; it is the specification of execution.
//! Does not: implement helpers or kfuncs, or know why it was called (see `enter.rs`).
//! Models: the BPF ISA v4 with arena casts and may_goto (kernel/bpf/core.c and the x86 JIT, v7.3).
//! Differs: one thread runs all programs, so atomics are plain operations; the interpreter checks
//! memory at every access; `may_goto` counts iterations, not time.
//!
//! Every executed instruction counts one. The interpreter keeps the counter in a local variable and
//! writes it back before every call out of the program. The interpreter checks the instruction
//! limit on entry, at taken backward jumps and at calls of the program's own functions, so a
//! stretch of code without these may exceed the limit by its own length.
//! Registers that the kernel's verifier would not let a program read are zero: r0 and r6 to r9 on
//! entry to a function, r1 to r5 after a call. A function's behaviour therefore does not depend on
//! its caller, and machine code (`crate::jit`) agrees with the interpreter.

use super::report::place;
use super::run::missing;
use super::{CallSite, FuncId, Host, Image, InstanceId};
use crate::fault::{Access, Fault, FaultKind};
use crate::insn::uses::{RegSet, taken};
use crate::insn::{Insn, Op, func_of_addr};
use crate::kfunc::{self, KfuncId};
use crate::map::MapKind;
use crate::vm::stack::FRAME;

/// Largest number of frames of one program. The kernel's `MAX_CALL_FRAMES`. `Limits::call_depth`
/// can only lower it.
pub(crate) const MAX_FRAMES: usize = 8;
/// Largest number of tail calls of one program. The kernel's `MAX_TAIL_CALL_CNT`.
const MAX_TAIL_CALLS: u32 = 33;

/// State that a call saves: the slot to return to, the callee-saved registers r6 to r9, and the
/// frame's remaining `may_goto` budget.
#[derive(Clone, Copy)]
struct Frame {
    pc: u32,
    budget: u32,
    saved: [u64; 4],
}

/// Parameters of one interpreted invocation, besides the host.
#[derive(Clone, Copy)]
pub(crate) struct Invocation<'a> {
    pub instance: InstanceId,
    pub image: &'a Image,
    pub arena_base: u64,
    pub func: FuncId,
    pub depth: u32,
    pub max_depth: u32,
}

/// Interprets a function until it returns. The caller has checked call depth and instruction limit.
pub(crate) fn run<H: Host>(
    h: &mut H,
    start: &Invocation<'_>,
    args: &[u64; 5],
) -> Result<u64, Fault> {
    let Invocation { instance, image, arena_base, func, depth, max_depth } = *start;
    let Some(first) = image.func(func).map(|func| func.start) else {
        return Err(missing(format!("no function {} in {}", func.0, image.name)));
    };
    let vm = h.vm();
    let window = vm.mem.window();
    let deadline = vm.deadline;
    let may_goto = vm.limits.may_goto;

    let code: *const Insn = image.code.as_ptr();
    let slot = |index: u32| code.wrapping_add(index as usize);
    let index = |ip: *const Insn| (ip.addr().wrapping_sub(code.addr()) / size_of::<Insn>()) as u32;
    let mut ip = slot(first);
    let mut executed = vm.executed;
    let mut regs = [0u64; 16];
    regs[1..6].copy_from_slice(args);
    regs[10] = vm.stacks.frame_pointer(depth);
    let base_depth = depth;
    let mut depth = depth;
    let mut frames = [Frame { pc: 0, budget: 0, saved: [0; 4] }; MAX_FRAMES];
    let mut budget = may_goto;
    let mut tail_calls = 0;

    macro_rules! dst {
        ($i:expr) => {
            regs[usize::from($i.dst & 15)]
        };
    }
    macro_rules! src {
        ($i:expr) => {
            regs[usize::from($i.src & 15)]
        };
    }
    macro_rules! alu64 {
        ($i:expr, |$d:ident| $value:expr) => {{
            let $d = dst!($i);
            dst!($i) = $value;
        }};
    }
    macro_rules! alu32 {
        ($i:expr, |$d:ident| $value:expr) => {{
            let $d = dst!($i) as u32;
            dst!($i) = u64::from($value);
        }};
    }
    // Stops the program if it has reached the instruction limit. Every entry of a function checks
    // the limit, because functions could otherwise call one another for ever.
    macro_rules! check_limit {
        () => {
            if executed >= deadline {
                let limit = h.vm().limits.insns_per_call;
                break Fault::new(FaultKind::InsnLimit { limit });
            }
        };
    }
    // Only backward jumps check the limit, because forward jumps cannot form a loop.
    macro_rules! jump {
        ($i:expr) => {{
            let target = slot($i.off as u32);
            if executed >= deadline && target < ip {
                let limit = h.vm().limits.insns_per_call;
                break Fault::new(FaultKind::InsnLimit { limit });
            }
            ip = target;
        }};
    }
    macro_rules! jump_if {
        ($i:expr, $cond:expr) => {
            if $cond {
                jump!($i);
            }
        };
    }
    macro_rules! load {
        ($i:expr, $t:ty, $probe:expr) => {{
            let addr = src!($i).wrapping_add($i.off as u64);
            match window.load::<$t>(addr) {
                Some(value) => dst!($i) = value as u64,
                None => match load_slow(h, addr, size_of::<$t>() as u32, $probe, arena_base) {
                    Ok(value) => dst!($i) = value as $t as u64,
                    Err(fault) => break fault,
                },
            }
        }};
    }
    macro_rules! store {
        ($i:expr, $t:ty, $value:expr) => {{
            let addr = dst!($i).wrapping_add($i.off as u64);
            let value = $value as $t;
            if !window.store::<$t>(addr, value) {
                h.vm().executed = executed;
                if let Err(fault) =
                    store_slow(h, addr, size_of::<$t>() as u32, value as u64, arena_base)
                {
                    break fault;
                }
            }
        }};
    }
    // Carries out an atomic operation: reads, modifies and writes memory. The result is the old
    // value.
    macro_rules! atomic {
        ($i:expr, $t:ty, |$old:ident, $arg:ident| $new:expr) => {{
            let addr = dst!($i).wrapping_add($i.off as u64);
            let $arg = src!($i) as $t;
            let old = match window.load::<$t>(addr) {
                Some(old) => old,
                None => match load_slow(h, addr, size_of::<$t>() as u32, false, arena_base) {
                    Ok(old) => old as $t,
                    Err(fault) => break fault,
                },
            };
            let $old = old;
            let new: $t = $new;
            if !window.store::<$t>(addr, new) {
                h.vm().executed = executed;
                if let Err(fault) =
                    store_slow(h, addr, size_of::<$t>() as u32, new.into(), arena_base)
                {
                    break fault;
                }
            }
            old
        }};
    }
    // Does what `atomic` does, and puts the old value into the source register.
    macro_rules! fetch {
        ($i:expr, $t:ty, |$old:ident, $arg:ident| $new:expr) => {
            src!($i) = atomic!($i, $t, |$old, $arg| $new) as u64
        };
    }
    // Calls a helper or kfunc. `Vm::executed` is up to date during the call, and the call may
    // advance it.
    macro_rules! call_out {
        ($counter:ident, |$site:ident, $args:ident| $call:expr) => {{
            let $site = CallSite { instance, pc: index(ip).wrapping_sub(1), depth };
            let $args = [regs[1], regs[2], regs[3], regs[4], regs[5]];
            let vm = h.vm();
            vm.executed = executed;
            vm.$counter = vm.$counter.wrapping_add(1);
            let result = $call;
            executed = h.vm().executed;
            match result {
                Ok(value) => regs[0] = value,
                Err(fault) => break fault,
            }
            regs[1..6].fill(0);
        }};
    }
    macro_rules! enter {
        ($target:expr) => {{
            if depth + 1 >= max_depth {
                break Fault::new(FaultKind::CallDepth { max: max_depth });
            }
            check_limit!();
            let saved = [regs[6], regs[7], regs[8], regs[9]];
            frames[depth as usize & (MAX_FRAMES - 1)] = Frame { pc: index(ip), budget, saved };
            h.vm().record_pending_call(depth, index(ip).wrapping_sub(1));
            depth += 1;
            budget = may_goto;
            regs[0] = 0;
            regs[6..10].fill(0);
            regs[10] = regs[10].wrapping_sub(FRAME);
            ip = slot($target);
        }};
    }

    let fault = loop {
        // SAFETY: decoding has checked that every jump target and fall-through of every function is
        // a slot of the code, and that functions end in an exit or a jump, so `ip` points to an
        // instruction here. `run.rs` guarantees that the image stays and that nothing modifies it.
        let i = unsafe { &*ip };
        ip = ip.wrapping_add(1);
        executed = executed.wrapping_add(1);
        match i.op {
            Op::Add64K => alu64!(i, |d| d.wrapping_add(i.imm as u64)),
            Op::Add64X => alu64!(i, |d| d.wrapping_add(src!(i))),
            Op::Add32K => alu32!(i, |d| d.wrapping_add(i.imm as u32)),
            Op::Add32X => alu32!(i, |d| d.wrapping_add(src!(i) as u32)),
            Op::Sub64K => alu64!(i, |d| d.wrapping_sub(i.imm as u64)),
            Op::Sub64X => alu64!(i, |d| d.wrapping_sub(src!(i))),
            Op::Sub32K => alu32!(i, |d| d.wrapping_sub(i.imm as u32)),
            Op::Sub32X => alu32!(i, |d| d.wrapping_sub(src!(i) as u32)),
            Op::Mul64K => alu64!(i, |d| d.wrapping_mul(i.imm as u64)),
            Op::Mul64X => alu64!(i, |d| d.wrapping_mul(src!(i))),
            Op::Mul32K => alu32!(i, |d| d.wrapping_mul(i.imm as u32)),
            Op::Mul32X => alu32!(i, |d| d.wrapping_mul(src!(i) as u32)),
            Op::Or64K => alu64!(i, |d| d | i.imm as u64),
            Op::Or64X => alu64!(i, |d| d | src!(i)),
            Op::Or32K => alu32!(i, |d| d | i.imm as u32),
            Op::Or32X => alu32!(i, |d| d | src!(i) as u32),
            Op::And64K => alu64!(i, |d| d & i.imm as u64),
            Op::And64X => alu64!(i, |d| d & src!(i)),
            Op::And32K => alu32!(i, |d| d & i.imm as u32),
            Op::And32X => alu32!(i, |d| d & src!(i) as u32),
            Op::Xor64K => alu64!(i, |d| d ^ i.imm as u64),
            Op::Xor64X => alu64!(i, |d| d ^ src!(i)),
            Op::Xor32K => alu32!(i, |d| d ^ i.imm as u32),
            Op::Xor32X => alu32!(i, |d| d ^ src!(i) as u32),
            Op::Lsh64K => alu64!(i, |d| d.wrapping_shl(i.imm as u32)),
            Op::Lsh64X => alu64!(i, |d| d.wrapping_shl(src!(i) as u32)),
            Op::Lsh32K => alu32!(i, |d| d.wrapping_shl(i.imm as u32)),
            Op::Lsh32X => alu32!(i, |d| d.wrapping_shl(src!(i) as u32)),
            Op::Rsh64K => alu64!(i, |d| d.wrapping_shr(i.imm as u32)),
            Op::Rsh64X => alu64!(i, |d| d.wrapping_shr(src!(i) as u32)),
            Op::Rsh32K => alu32!(i, |d| d.wrapping_shr(i.imm as u32)),
            Op::Rsh32X => alu32!(i, |d| d.wrapping_shr(src!(i) as u32)),
            Op::Arsh64K => alu64!(i, |d| (d as i64).wrapping_shr(i.imm as u32) as u64),
            Op::Arsh64X => alu64!(i, |d| (d as i64).wrapping_shr(src!(i) as u32) as u64),
            Op::Arsh32K => alu32!(i, |d| (d as i32).wrapping_shr(i.imm as u32) as u32),
            Op::Arsh32X => alu32!(i, |d| (d as i32).wrapping_shr(src!(i) as u32) as u32),
            Op::Div64K => alu64!(i, |d| div64(d, i.imm as u64)),
            Op::Div64X => alu64!(i, |d| div64(d, src!(i))),
            Op::Div32K => alu32!(i, |d| div32(d, i.imm as u32)),
            Op::Div32X => alu32!(i, |d| div32(d, src!(i) as u32)),
            Op::Mod64K => alu64!(i, |d| rem64(d, i.imm as u64)),
            Op::Mod64X => alu64!(i, |d| rem64(d, src!(i))),
            Op::Mod32K => alu32!(i, |d| rem32(d, i.imm as u32)),
            Op::Mod32X => alu32!(i, |d| rem32(d, src!(i) as u32)),
            Op::SDiv64K => alu64!(i, |d| sdiv64(d, i.imm as u64)),
            Op::SDiv64X => alu64!(i, |d| sdiv64(d, src!(i))),
            Op::SDiv32K => alu32!(i, |d| sdiv32(d, i.imm as u32)),
            Op::SDiv32X => alu32!(i, |d| sdiv32(d, src!(i) as u32)),
            Op::SMod64K => alu64!(i, |d| srem64(d, i.imm as u64)),
            Op::SMod64X => alu64!(i, |d| srem64(d, src!(i))),
            Op::SMod32K => alu32!(i, |d| srem32(d, i.imm as u32)),
            Op::SMod32X => alu32!(i, |d| srem32(d, src!(i) as u32)),
            Op::Mov64K => alu64!(i, |_d| i.imm as u64),
            Op::Mov64X => alu64!(i, |_d| src!(i)),
            Op::Mov32K => alu32!(i, |_d| i.imm as u32),
            Op::Mov32X => alu32!(i, |_d| src!(i) as u32),
            Op::Neg64 => alu64!(i, |d| d.wrapping_neg()),
            Op::Neg32 => alu32!(i, |d| d.wrapping_neg()),
            Op::MovSx8To64 => alu64!(i, |_d| src!(i) as i8 as u64),
            Op::MovSx16To64 => alu64!(i, |_d| src!(i) as i16 as u64),
            Op::MovSx32To64 => alu64!(i, |_d| src!(i) as i32 as u64),
            Op::MovSx8To32 => alu32!(i, |_d| src!(i) as i8 as u32),
            Op::MovSx16To32 => alu32!(i, |_d| src!(i) as i16 as u32),
            Op::Le16 => alu64!(i, |d| u64::from(d as u16)),
            Op::Le32 => alu64!(i, |d| u64::from(d as u32)),
            Op::Le64 => {}
            Op::Be16 | Op::Bswap16 => alu64!(i, |d| u64::from((d as u16).swap_bytes())),
            Op::Be32 | Op::Bswap32 => alu64!(i, |d| u64::from((d as u32).swap_bytes())),
            Op::Be64 | Op::Bswap64 => alu64!(i, |d| d.swap_bytes()),
            Op::CastKern | Op::CastUser => alu64!(i, |_d| cast(src!(i), arena_base)),
            Op::LdImm64 => {
                alu64!(i, |_d| i.imm as u64);
                ip = ip.wrapping_add(1);
            }
            Op::LdxB => load!(i, u8, false),
            Op::LdxProbeB => load!(i, u8, true),
            Op::LdxH => load!(i, u16, false),
            Op::LdxProbeH => load!(i, u16, true),
            Op::LdxW => load!(i, u32, false),
            Op::LdxProbeW => load!(i, u32, true),
            Op::LdxDw => load!(i, u64, false),
            Op::LdxProbeDw => load!(i, u64, true),
            Op::LdxBs => load!(i, i8, false),
            Op::LdxProbeBs => load!(i, i8, true),
            Op::LdxHs => load!(i, i16, false),
            Op::LdxProbeHs => load!(i, i16, true),
            Op::LdxWs => load!(i, i32, false),
            Op::LdxProbeWs => load!(i, i32, true),
            Op::StxB => store!(i, u8, src!(i)),
            Op::StB => store!(i, u8, i.imm),
            Op::LoadAcqB => load!(i, u8, false),
            Op::StoreRelB => store!(i, u8, src!(i)),
            Op::StxH => store!(i, u16, src!(i)),
            Op::StH => store!(i, u16, i.imm),
            Op::LoadAcqH => load!(i, u16, false),
            Op::StoreRelH => store!(i, u16, src!(i)),
            Op::StxW => store!(i, u32, src!(i)),
            Op::StW => store!(i, u32, i.imm),
            Op::LoadAcqW => load!(i, u32, false),
            Op::StoreRelW => store!(i, u32, src!(i)),
            Op::StxDw => store!(i, u64, src!(i)),
            Op::StDw => store!(i, u64, i.imm),
            Op::LoadAcqDw => load!(i, u64, false),
            Op::StoreRelDw => store!(i, u64, src!(i)),
            Op::AtomicAddW => {
                atomic!(i, u32, |old, arg| old.wrapping_add(arg));
            }
            Op::AtomicFetchAddW => fetch!(i, u32, |old, arg| old.wrapping_add(arg)),
            Op::AtomicAddDw => {
                atomic!(i, u64, |old, arg| old.wrapping_add(arg));
            }
            Op::AtomicFetchAddDw => fetch!(i, u64, |old, arg| old.wrapping_add(arg)),
            Op::AtomicOrW => {
                atomic!(i, u32, |old, arg| old | arg);
            }
            Op::AtomicFetchOrW => fetch!(i, u32, |old, arg| old | arg),
            Op::AtomicOrDw => {
                atomic!(i, u64, |old, arg| old | arg);
            }
            Op::AtomicFetchOrDw => fetch!(i, u64, |old, arg| old | arg),
            Op::AtomicAndW => {
                atomic!(i, u32, |old, arg| old & arg);
            }
            Op::AtomicFetchAndW => fetch!(i, u32, |old, arg| old & arg),
            Op::AtomicAndDw => {
                atomic!(i, u64, |old, arg| old & arg);
            }
            Op::AtomicFetchAndDw => fetch!(i, u64, |old, arg| old & arg),
            Op::AtomicXorW => {
                atomic!(i, u32, |old, arg| old ^ arg);
            }
            Op::AtomicFetchXorW => fetch!(i, u32, |old, arg| old ^ arg),
            Op::AtomicXorDw => {
                atomic!(i, u64, |old, arg| old ^ arg);
            }
            Op::AtomicFetchXorDw => fetch!(i, u64, |old, arg| old ^ arg),
            Op::AtomicXchgW => fetch!(i, u32, |_old, arg| arg),
            Op::AtomicCmpxchgW => {
                let expected = regs[0] as u32;
                regs[0] =
                    u64::from(atomic!(i, u32, |old, arg| if old == expected { arg } else { old }));
            }
            Op::AtomicXchgDw => fetch!(i, u64, |_old, arg| arg),
            Op::AtomicCmpxchgDw => {
                let expected = regs[0];
                regs[0] = atomic!(i, u64, |old, arg| if old == expected { arg } else { old });
            }
            Op::Jeq64K => jump_if!(i, dst!(i) == i.imm as u64),
            Op::Jeq64X => jump_if!(i, dst!(i) == src!(i)),
            Op::Jeq32K => jump_if!(i, (dst!(i) as u32) == i.imm as u32),
            Op::Jeq32X => jump_if!(i, (dst!(i) as u32) == src!(i) as u32),
            Op::Jne64K => jump_if!(i, dst!(i) != i.imm as u64),
            Op::Jne64X => jump_if!(i, dst!(i) != src!(i)),
            Op::Jne32K => jump_if!(i, (dst!(i) as u32) != i.imm as u32),
            Op::Jne32X => jump_if!(i, (dst!(i) as u32) != src!(i) as u32),
            Op::Jgt64K => jump_if!(i, dst!(i) > i.imm as u64),
            Op::Jgt64X => jump_if!(i, dst!(i) > src!(i)),
            Op::Jgt32K => jump_if!(i, (dst!(i) as u32) > i.imm as u32),
            Op::Jgt32X => jump_if!(i, (dst!(i) as u32) > src!(i) as u32),
            Op::Jge64K => jump_if!(i, dst!(i) >= i.imm as u64),
            Op::Jge64X => jump_if!(i, dst!(i) >= src!(i)),
            Op::Jge32K => jump_if!(i, (dst!(i) as u32) >= i.imm as u32),
            Op::Jge32X => jump_if!(i, (dst!(i) as u32) >= src!(i) as u32),
            Op::Jlt64K => jump_if!(i, dst!(i) < i.imm as u64),
            Op::Jlt64X => jump_if!(i, dst!(i) < src!(i)),
            Op::Jlt32K => jump_if!(i, (dst!(i) as u32) < i.imm as u32),
            Op::Jlt32X => jump_if!(i, (dst!(i) as u32) < src!(i) as u32),
            Op::Jle64K => jump_if!(i, dst!(i) <= i.imm as u64),
            Op::Jle64X => jump_if!(i, dst!(i) <= src!(i)),
            Op::Jle32K => jump_if!(i, (dst!(i) as u32) <= i.imm as u32),
            Op::Jle32X => jump_if!(i, (dst!(i) as u32) <= src!(i) as u32),
            Op::Jsgt64K => jump_if!(i, (dst!(i) as i64) > i.imm),
            Op::Jsgt64X => jump_if!(i, (dst!(i) as i64) > src!(i) as i64),
            Op::Jsgt32K => jump_if!(i, (dst!(i) as i32) > i.imm as i32),
            Op::Jsgt32X => jump_if!(i, (dst!(i) as i32) > src!(i) as i32),
            Op::Jsge64K => jump_if!(i, (dst!(i) as i64) >= i.imm),
            Op::Jsge64X => jump_if!(i, (dst!(i) as i64) >= src!(i) as i64),
            Op::Jsge32K => jump_if!(i, (dst!(i) as i32) >= i.imm as i32),
            Op::Jsge32X => jump_if!(i, (dst!(i) as i32) >= src!(i) as i32),
            Op::Jslt64K => jump_if!(i, (dst!(i) as i64) < i.imm),
            Op::Jslt64X => jump_if!(i, (dst!(i) as i64) < src!(i) as i64),
            Op::Jslt32K => jump_if!(i, (dst!(i) as i32) < i.imm as i32),
            Op::Jslt32X => jump_if!(i, (dst!(i) as i32) < src!(i) as i32),
            Op::Jsle64K => jump_if!(i, (dst!(i) as i64) <= i.imm),
            Op::Jsle64X => jump_if!(i, (dst!(i) as i64) <= src!(i) as i64),
            Op::Jsle32K => jump_if!(i, (dst!(i) as i32) <= i.imm as i32),
            Op::Jsle32X => jump_if!(i, (dst!(i) as i32) <= src!(i) as i32),
            Op::Jset64K => jump_if!(i, (dst!(i) & (i.imm as u64)) != 0),
            Op::Jset64X => jump_if!(i, (dst!(i) & src!(i)) != 0),
            Op::Jset32K => jump_if!(i, (dst!(i) & (i.imm as u64)) as u32 != 0),
            Op::Jset32X => jump_if!(i, (dst!(i) & src!(i)) as u32 != 0),
            Op::Ja => jump!(i),
            Op::MayGoto => {
                if budget == 0 {
                    jump!(i);
                } else {
                    budget -= 1;
                }
            }
            Op::CallFunc => enter!(i.off as u32),
            Op::CallReg => {
                let addr = dst!(i);
                match func_of_addr(addr).and_then(|func| image.func(func)) {
                    Some(func) => enter!(func.start),
                    None => break Fault::new(FaultKind::BadCall { addr }),
                }
            }
            Op::CallHelper => {
                let id = i.imm as u32;
                call_out!(helper_calls, |site, args| crate::helper::call(h, site, id, args));
            }
            Op::CallKfunc => {
                let id = KfuncId(i.imm as u32);
                regs[1 + taken(i)..6].fill(0);
                call_out!(kfunc_calls, |site, args| {
                    h.vm().calls_from(site);
                    call_kfunc(h, site, id, &args)
                });
            }
            Op::TailCall => {
                h.vm().helper_calls += 1;
                match tail_target(h, instance, regs[2], regs[3] as u32) {
                    Ok(Some(target)) if tail_calls < MAX_TAIL_CALLS => {
                        check_limit!();
                        tail_calls += 1;
                        ip = slot(target);
                    }
                    Ok(_) => {}
                    Err(fault) => break fault,
                }
            }
            Op::Exit => {
                if depth == base_depth {
                    h.vm().executed = executed;
                    return Ok(regs[0]);
                }
                depth -= 1;
                let frame = frames[depth as usize & (MAX_FRAMES - 1)];
                ip = slot(frame.pc);
                budget = frame.budget;
                regs[1..6].fill(0);
                regs[6..10].copy_from_slice(&frame.saved);
                regs[10] = regs[10].wrapping_add(FRAME);
            }
            Op::Pad => unreachable!("decoding lets nothing reach the second slot of a constant"),
        }
    };
    h.vm().executed = executed;
    let callers = frames[base_depth as usize..depth as usize].iter().rev().map(|frame| frame.pc);
    let pcs: Vec<u32> =
        std::iter::once(index(ip)).chain(callers).map(|pc| pc.wrapping_sub(1)).collect();
    Err(locate(h, instance, fault, &pcs, |reg| regs[reg]))
}

/// Adds to a fault the frames of one entry into an engine. `pcs` are the slots of the frames,
/// innermost first. If the fault has no frame yet, `regs` supplies the live registers of the
/// innermost frame.
#[cold]
pub(crate) fn locate<H: Host>(
    h: &mut H,
    instance: InstanceId,
    mut fault: Fault,
    pcs: &[u32],
    regs: impl Fn(usize) -> u64,
) -> Fault {
    let Some(instance) = h.vm().instance(instance) else { return fault };
    if let (true, Some(&pc)) = (fault.0.backtrace.is_empty(), pcs.first()) {
        let live = instance.image.live_at(pc).and(RegSet::of(10));
        for (reg, value) in fault.0.regs.iter_mut().enumerate() {
            *value = live.has(reg as u8).then(|| regs(reg));
        }
    }
    fault.0.backtrace.extend(pcs.iter().map(|&pc| place(instance, pc)));
    fault
}

pub(crate) fn call_kfunc<H: Host>(
    h: &mut H,
    site: CallSite,
    id: KfuncId,
    args: &[u64; 5],
) -> Result<u64, Fault> {
    if id.is_builtin() { kfunc::call(h, site, id, *args) } else { h.kfunc(site, id, args) }
}

/// Returns the first slot of a tail call's target. Returns None if the map has no such entry, in
/// which case the program continues after the call.
#[cold]
fn tail_target<H: Host>(
    h: &mut H,
    instance: InstanceId,
    map: u64,
    index: u32,
) -> Result<Option<u32>, Fault> {
    let vm = h.vm();
    let bad = || Fault::bad_argument("bpf_tail_call", format!("{map:#x} is not a program array"));
    let found = match &vm.maps.by_addr(map).ok_or_else(bad)?.kind {
        MapKind::Progs(progs) => progs.get(&index).copied(),
        _ => return Err(bad()),
    };
    let image = vm.instance(instance).map(|instance| &instance.image);
    Ok(found.and_then(|func| image.and_then(|image| image.func(func))).map(|func| func.start))
}

/// Performs a load that the fast path refused: across pages, in an arena hole, through a probed
/// pointer, or invalid.
#[cold]
#[inline(never)]
pub(crate) fn load_slow<H: Host>(
    h: &mut H,
    addr: u64,
    size: u32,
    probe: bool,
    arena_base: u64,
) -> Result<u64, Fault> {
    let mem = &h.vm().mem;
    // A probed pointer is a kernel pointer, so it is not completed as the lower half of an arena
    // pointer would be.
    let addr = if probe { addr } else { arena_low(addr, arena_base) };
    let mut bytes = [0; 8];
    match mem.bytes(addr, size.into()) {
        Ok(found) => bytes[..size as usize].copy_from_slice(found),
        Err(_) if probe || mem.arena_at(addr).is_some() => {}
        Err(fault) => return Err(fault.into()),
    }
    Ok(u64::from_le_bytes(bytes))
}

/// Performs a store that the fast path refused: across pages, into an arena hole (where the store
/// has no effect), to a kernel structure, or invalid.
#[cold]
#[inline(never)]
pub(crate) fn store_slow<H: Host>(
    h: &mut H,
    addr: u64,
    size: u32,
    value: u64,
    arena_base: u64,
) -> Result<(), Fault> {
    let addr = arena_low(addr, arena_base);
    let bytes = &value.to_le_bytes()[..size as usize];
    if h.vm().mem.is_kernel(addr, size.into()) {
        let agreed = h.store_to_kernel(addr, size);
        let mem = &mut h.vm().mem;
        if !agreed {
            return Err(mem.fault(addr, size, Access::Store).into());
        }
        mem.host_slice_mut::<u8>(addr, bytes.len()).copy_from_slice(bytes);
        return Ok(());
    }
    let mem = &mut h.vm().mem;
    let fault = match mem.bytes_mut(addr, size.into()) {
        Ok(to) => {
            to.copy_from_slice(bytes);
            return Ok(());
        }
        Err(fault) => fault,
    };
    if mem.arena_at(addr).is_none() {
        return Err(fault.into());
    }
    mem.arena_stores_dropped += 1;
    Ok(())
}

/// Returns the full address for the lower half of an arena pointer. Programs with an arena may use
/// the lower half as a pointer, because the kernel adds the arena's base to every access through an
/// arena pointer.
fn arena_low(addr: u64, arena_base: u64) -> u64 {
    let low = addr >> 32 == 0 && arena_base != 0;
    if low { arena_base | addr } else { addr }
}

/// Returns whether an operation loads through a kernel pointer and reads zero instead of faulting
/// (`BPF_PROBE_MEM`).
pub(crate) fn probes(op: Op) -> bool {
    (Op::LdxProbeB as u8..=Op::LdxProbeWs as u8).contains(&(op as u8))
}

/// Returns whether a load sign-extends its value.
pub(crate) fn signed(op: Op) -> bool {
    use Op::*;
    matches!(op, LdxBs | LdxHs | LdxWs | LdxProbeBs | LdxProbeHs | LdxProbeWs)
}

/// Performs `addr_space_cast` in either direction: NULL stays NULL, any other value becomes an
/// address in the arena's window.
#[inline(always)]
fn cast(ptr: u64, arena_base: u64) -> u64 {
    let low = ptr & 0xffff_ffff;
    if low == 0 { 0 } else { arena_base | low }
}

// Division as the ISA defines it: division by zero gives 0, the remainder of a division by zero is
// the dividend, and the one signed overflow wraps.

fn div64(a: u64, b: u64) -> u64 {
    a.checked_div(b).unwrap_or(0)
}

fn rem64(a: u64, b: u64) -> u64 {
    a.checked_rem(b).unwrap_or(a)
}

fn div32(a: u32, b: u32) -> u32 {
    a.checked_div(b).unwrap_or(0)
}

fn rem32(a: u32, b: u32) -> u32 {
    a.checked_rem(b).unwrap_or(a)
}

fn sdiv64(a: u64, b: u64) -> u64 {
    if b == 0 { 0 } else { (a as i64).wrapping_div(b as i64) as u64 }
}

fn srem64(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { (a as i64).wrapping_rem(b as i64) as u64 }
}

fn sdiv32(a: u32, b: u32) -> u32 {
    if b == 0 { 0 } else { (a as i32).wrapping_div(b as i32) as u32 }
}

fn srem32(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { (a as i32).wrapping_rem(b as i32) as u32 }
}
