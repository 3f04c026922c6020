// SPDX-License-Identifier: GPL-2.0-only
//! Which operations and other programs may call which kfuncs.
//!
//! Owns: the groups of kfuncs and the groups that each program may call
//! (`scx_kfunc_context_filter()` and `scx_kf_allow_flags[]` of 7.3).
//! Does not: look at programs before they run. The kernel's verifier refuses a program that
//! contains a forbidden call in live code; here the call is a fault when it is made.

use crate::ext::op::Op;

const UNLOCKED: u8 = 1;
const CPU_RELEASE: u8 = 1 << 1;
const DISPATCH: u8 = 1 << 2;
const ENQUEUE: u8 = 1 << 3;
const SELECT_CPU: u8 = 1 << 4;

/// The groups that a syscall program may call. A tracing program may call none of them.
pub const OF_SYSCALL: u8 = UNLOCKED | SELECT_CPU;

/// Returns the groups to which a kfunc belongs; 0: any operation may call it.
pub fn groups(kfunc: &str) -> u8 {
    match kfunc {
        "scx_bpf_dsq_insert"
        | "scx_bpf_dsq_insert___v2"
        | "scx_bpf_dsq_insert_vtime"
        | "__scx_bpf_dsq_insert_vtime" => ENQUEUE,
        "scx_bpf_dispatch_nr_slots"
        | "scx_bpf_dispatch_cancel"
        | "scx_bpf_dsq_move_to_local"
        | "scx_bpf_dsq_move_to_local___v2" => DISPATCH,
        "scx_bpf_dsq_move"
        | "scx_bpf_dsq_move_vtime"
        | "scx_bpf_dsq_move_set_slice"
        | "scx_bpf_dsq_move_set_vtime" => DISPATCH | UNLOCKED,
        "scx_bpf_reenqueue_local" => CPU_RELEASE,
        "scx_bpf_create_dsq" => UNLOCKED,
        "scx_bpf_select_cpu_dfl" | "scx_bpf_select_cpu_and" | "__scx_bpf_select_cpu_and" => {
            SELECT_CPU | UNLOCKED
        }
        _ => 0,
    }
}

/// Returns the groups that an operation may call.
pub fn of_op(op: Op) -> u8 {
    match op {
        Op::SelectCpu | Op::Enqueue => SELECT_CPU | ENQUEUE,
        Op::Dispatch => ENQUEUE | DISPATCH,
        Op::CpuRelease => CPU_RELEASE,
        Op::DumpCpu | Op::DumpTask => 0,
        op if op.is_unlocked() => UNLOCKED,
        _ => 0,
    }
}
