// SPDX-License-Identifier: GPL-2.0-only
//! Tests that the two forms of the ABI headers, BTF and Rust structs, agree with each other. An
//! object is relocated to the offset of a field in the BTF, and the simulator writes the field of
//! the Rust struct. (`tools/check-abi.py` checks that the headers agree with a real kernel.)

use core::mem::offset_of;

use scxlab_loader::btf::{Btf, BtfKind, TypeId};

use super::*;

fn btf() -> Btf {
    Btf::parse(KERNEL_BTF).expect("clang's own BTF")
}

fn structure(btf: &Btf, name: &str) -> TypeId {
    btf.find(name, BtfKind::Struct).unwrap_or_else(|| panic!("BTF has no struct {name}"))
}

/// Byte offset of a member by its dotted path.
fn offset_in_btf(btf: &Btf, name: &str, path: &str) -> u64 {
    let field = btf.path(structure(btf, name), path);
    field.unwrap_or_else(|e| panic!("{name}.{path}: {e}")).byte_off()
}

macro_rules! same_layout {
    ($btf:ident, $name:ident: $($($field:ident).+),+ $(,)?) => {
        let id = structure(&$btf, stringify!($name));
        assert_eq!($btf.size_of(id).ok(), Some(size_of::<$name>() as u64), stringify!($name));
        $(
            let path = concat!($(".", stringify!($field)),+);
            assert_eq!(
                offset_in_btf(&$btf, stringify!($name), &path[1..]),
                offset_of!($name, $($field).+) as u64,
                "{}{path}", stringify!($name)
            );
        )+
    };
}

#[test]
fn btf_and_bindings_lay_out_tasks_alike() {
    let btf = btf();
    same_layout!(btf, task_struct: flags, on_cpu, se.sum_exec_runtime, se.avg.util_avg, scx.flags,
        scx.weight, scx.runnable_at, scx.tid, scx.slice, scx.dsq_vtime, scx.disallow, cpus_ptr, cpus_mask,
        nr_cpus_allowed, migration_disabled, mm, pid, tgid, real_parent, group_leader, thread_node.next,
        utime, nvcsw, comm, signal, cgroups, mempolicy, numa_preferred_nid);
    same_layout!(btf, pid: level, numbers);
    same_layout!(btf, signal_struct: nr_threads, thread_head.next, pids);
    same_layout!(btf, mempolicy: mode, nodes, home_node);
    same_layout!(btf, cred: euid.val, egid.val);
}

#[test]
fn btf_and_bindings_lay_out_cgroups_and_cpus_alike() {
    let btf = btf();
    same_layout!(btf, cgroup: level, kn, subsys, dom_cgrp, ancestors);
    same_layout!(btf, css_set: subsys, dfl_cgrp);
    same_layout!(btf, kernfs_node: name, id);
    same_layout!(btf, task_group: css, scx.weight, scx.bw_quota_us, scx.idle);
    same_layout!(btf, rq: curr, clock_task, clock_pelt, clock, lost_idle_time, cpu);
    same_layout!(btf, bpf_cpumask: cpumask.bits, usage.refs.counter);
}

#[test]
fn btf_and_bindings_lay_out_the_ops_alike() {
    let btf = btf();
    same_layout!(btf, sched_ext_ops: select_cpu, enqueue, init, exit, dispatch_max_batch, flags,
        sub_cgroup_id, name, cpu_acquire, cpu_release);
    same_layout!(btf, sched_ext_ops_cid: select_cid, set_cmask, enable, sub_cgroup_id, name);
    same_layout!(btf, scx_exit_info: kind, exit_cpu, exit_code, reason, bt_len, msg, dump);
    same_layout!(btf, scx_cgroup_init_args: weight, bw_quota_us, sched_idle);
    same_layout!(btf, scx_cmask: base, nr_cids, alloc_words);
    same_layout!(btf, scx_event_stats: SCX_EV_DISPATCH_KEEP_LAST, SCX_EV_SUB_RESCUE);
}

/// Programs own structs such as iterators, timers and locks, and the compiler puts their sizes into
/// a program's code. In the ABI headers each such struct must have the real kernel's size.
#[test]
fn what_programs_own_has_the_kernels_size() {
    let btf = btf();
    let sizes = [
        ("sched_ext_ops", 512),
        ("bpf_iter_scx_dsq", 48),
        ("bpf_iter_css", 24),
        ("bpf_iter_num", 8),
        ("bpf_timer", 16),
        ("bpf_spin_lock", 4),
        ("bpf_res_spin_lock", 4),
        ("bpf_rb_root", 16),
        ("bpf_rb_node", 32),
        ("scx_event_stats", 21 * 8),
        ("cpumask", 1024),
    ];
    for (name, bytes) in sizes {
        assert_eq!(btf.size_of(structure(&btf, name)).ok(), Some(bytes), "{name}");
    }
}

#[test]
fn functions_variables_and_constants_are_described() {
    let btf = btf();
    for name in ["scx_bpf_dsq_insert___v2", "bpf_iter_num_new", "bpf_cpumask_create"] {
        assert!(btf.find(name, BtfKind::Func).is_some(), "{name}");
    }
    for name in ["sd_llc_id", "runqueues", "cpufreq_cpu_data"] {
        assert!(btf.find(name, BtfKind::Var).is_some(), "{name}");
    }
    let kick = btf.find("scx_kick_flags", BtfKind::Enum).expect("a 32-bit enum");
    assert!(btf.enumerators(kick).any(|e| e.name == "SCX_KICK_WAIT" && e.value == 4));
    let dsq = btf.find("scx_dsq_id_flags", BtfKind::Enum64).expect("a 64-bit enum");
    assert!(
        btf.enumerators(dsq).any(|e| e.name == "SCX_DSQ_LOCAL_ON" && e.value == SCX_DSQ_LOCAL_ON)
    );
}

#[test]
fn a_field_that_is_not_modelled_is_not_there() {
    let btf = btf();
    assert!(btf.path(structure(&btf, "task_struct"), "core_cookie").is_err());
    assert!(btf.find("scx_bpf_cpu_rq", BtfKind::Func).is_none());
}

/// Asserts that the constants of a module of `flags.rs` have the values of the enumerators of a
/// kernel enum. Evaluates to the number of constants.
macro_rules! same_values {
    ($btf:ident, $module:ident, $enum:literal: $($ours:ident = $theirs:literal),+ $(,)?) => {{
        let id = $btf.find($enum, BtfKind::Enum).or_else(|| $btf.find($enum, BtfKind::Enum64));
        let id = id.unwrap_or_else(|| panic!("BTF has no enum {}", $enum));
        $(
            let theirs = $btf.enumerators(id).find(|e| e.name == $theirs).expect($theirs).value;
            assert_eq!(crate::bpf::flags::$module::$ours as u64, theirs, $theirs);
        )+
        [$($theirs),+].len()
    }};
}

/// Compares the constants of `flags.rs` with the ABI headers. `tools/check-abi.py` compares the
/// enums of the headers with those of a real kernel. The constants that are macros in the kernel
/// have no BTF to compare with.
#[test]
fn flags_have_the_values_of_the_kernels_enums() {
    let btf = btf();
    let tested = same_values!(btf, enq, "scx_enq_flags": WAKEUP = "SCX_ENQ_WAKEUP",
        HEAD = "SCX_ENQ_HEAD", CPU_SELECTED = "SCX_ENQ_CPU_SELECTED", PREEMPT = "SCX_ENQ_PREEMPT",
        IMMED = "SCX_ENQ_IMMED", RESCUE = "SCX_ENQ_RESCUE", REENQ = "SCX_ENQ_REENQ",
        LAST = "SCX_ENQ_LAST", INTERNAL_MASK = "__SCX_ENQ_INTERNAL_MASK",
        CLEAR_OPSS = "SCX_ENQ_CLEAR_OPSS", DSQ_PRIQ = "SCX_ENQ_DSQ_PRIQ",
        IGNORE_CAPS = "SCX_ENQ_IGNORE_CAPS", GDSQ_FALLBACK = "SCX_ENQ_GDSQ_FALLBACK",
        APPLY_SLICE = "SCX_ENQ_APPLY_SLICE", SLICE_DFL = "SCX_ENQ_SLICE_DFL")
        + same_values!(btf, deq, "scx_deq_flags": SLEEP = "SCX_DEQ_SLEEP",
            CORE_SCHED_EXEC = "SCX_DEQ_CORE_SCHED_EXEC", SCHED_CHANGE = "SCX_DEQ_SCHED_CHANGE")
        + same_values!(btf, wake, "scx_wake_flags": FORK = "SCX_WAKE_FORK",
            TTWU = "SCX_WAKE_TTWU", SYNC = "SCX_WAKE_SYNC")
        + same_values!(btf, kick, "scx_kick_flags": IDLE = "SCX_KICK_IDLE",
            PREEMPT = "SCX_KICK_PREEMPT", WAIT = "SCX_KICK_WAIT")
        + same_values!(btf, pick_idle, "scx_pick_idle_cpu_flags": CORE = "SCX_PICK_IDLE_CORE",
            IN_NODE = "SCX_PICK_IDLE_IN_NODE")
        + same_values!(btf, reenq, "scx_reenq_flags": ANY = "SCX_REENQ_ANY",
            USER_MASK = "__SCX_REENQ_USER_MASK", FILTER_MASK = "__SCX_REENQ_FILTER_MASK")
        + same_values!(btf, dsq_id, "scx_dsq_id_flags": FLAG_BUILTIN = "SCX_DSQ_FLAG_BUILTIN",
            FLAG_LOCAL_ON = "SCX_DSQ_FLAG_LOCAL_ON", INVALID = "SCX_DSQ_INVALID",
            GLOBAL = "SCX_DSQ_GLOBAL", LOCAL = "SCX_DSQ_LOCAL", BYPASS = "SCX_DSQ_BYPASS",
            LOCAL_ON = "SCX_DSQ_LOCAL_ON", LOCAL_CPU_MASK = "SCX_DSQ_LOCAL_CPU_MASK")
        + same_values!(btf, dsq_id, "scx_dsq_iter_flags": ITER_REV = "SCX_DSQ_ITER_REV")
        + same_values!(btf, ops, "scx_ops_flags": KEEP_BUILTIN_IDLE = "SCX_OPS_KEEP_BUILTIN_IDLE",
            ENQ_LAST = "SCX_OPS_ENQ_LAST", ENQ_EXITING = "SCX_OPS_ENQ_EXITING",
            SWITCH_PARTIAL = "SCX_OPS_SWITCH_PARTIAL",
            ENQ_MIGRATION_DISABLED = "SCX_OPS_ENQ_MIGRATION_DISABLED",
            ALLOW_QUEUED_WAKEUP = "SCX_OPS_ALLOW_QUEUED_WAKEUP",
            BUILTIN_IDLE_PER_NODE = "SCX_OPS_BUILTIN_IDLE_PER_NODE",
            ALWAYS_ENQ_IMMED = "SCX_OPS_ALWAYS_ENQ_IMMED", TID_TO_TASK = "SCX_OPS_TID_TO_TASK",
            ALL = "SCX_OPS_ALL_FLAGS")
        + same_values!(btf, ent, "scx_ent_flags": QUEUED = "SCX_TASK_QUEUED",
            IN_CUSTODY = "SCX_TASK_IN_CUSTODY", RESET_RUNNABLE_AT = "SCX_TASK_RESET_RUNNABLE_AT",
            DEQD_FOR_SLEEP = "SCX_TASK_DEQD_FOR_SLEEP", IMMED = "SCX_TASK_IMMED",
            STATE_SHIFT = "SCX_TASK_STATE_SHIFT", STATE_MASK = "SCX_TASK_STATE_MASK",
            REENQ_REASON_MASK = "SCX_TASK_REENQ_REASON_MASK", REENQ_KFUNC = "SCX_TASK_REENQ_KFUNC",
            REENQ_IMMED = "SCX_TASK_REENQ_IMMED", REENQ_PREEMPTED = "SCX_TASK_REENQ_PREEMPTED")
        + same_values!(btf, ecode, "scx_exit_code": RSN_HOTPLUG = "SCX_ECODE_RSN_HOTPLUG",
            ACT_RESTART = "SCX_ECODE_ACT_RESTART")
        + same_values!(btf, exit, "scx_exit_flags": INITIALIZED = "SCX_EFLAG_INITIALIZED")
        + same_values!(btf, slice, "scx_public_consts": DFL = "SCX_SLICE_DFL",
            BYPASS = "SCX_SLICE_BYPASS", INF = "SCX_SLICE_INF")
        + same_values!(btf, limit, "scx_public_consts": OPS_NAME_LEN = "SCX_OPS_NAME_LEN")
        + same_values!(btf, limit, "scx_consts": DSP_DFL_MAX_BATCH = "SCX_DSP_DFL_MAX_BATCH",
            DSP_MAX_LOOPS = "SCX_DSP_MAX_LOOPS", REENQ_MAX_REPEAT = "SCX_REENQ_MAX_REPEAT",
            EXIT_MSG_LEN = "SCX_EXIT_MSG_LEN", EXIT_BT_LEN = "SCX_EXIT_BT_LEN",
            EXIT_DUMP_DFL_LEN = "SCX_EXIT_DUMP_DFL_LEN");

    use crate::bpf::flags::{deq, enq, pf, queue};
    let twins = [
        (queue::WAKEUP, enq::WAKEUP),
        (queue::SLEEP, deq::SLEEP),
        (queue::HEAD, enq::HEAD),
        (queue::RQ_SELECTED, enq::CPU_SELECTED),
    ];
    twins.iter().for_each(|(ours, public)| assert_eq!(ours, public));
    let masks = [
        (pf::IDLE, PF_IDLE),
        (pf::EXITING, PF_EXITING),
        (pf::FORKNOEXEC, PF_FORKNOEXEC),
        (pf::KTHREAD, PF_KTHREAD),
    ];
    masks.iter().for_each(|(ours, declared)| assert_eq!(ours, declared));
    // This test cannot compare ten constants of `flags.rs`, because they are not in the ABI
    // headers: `WF_EXEC`, the limit of the watchdog's timeout (30 * HZ), and eight values of the
    // module `queue`.
    let declared = include_str!("../flags.rs").matches("pub const ").count();
    assert_eq!(tested + twins.len() + masks.len() + 10, declared, "a constant has no test");
}
