// SPDX-License-Identifier: GPL-2.0-only
//! The two forms of the ABI headers agree with each other: an object is relocated to the offset at
//! which the simulator writes. (`tools/check-abi.py` checks that they agree with a real kernel.)

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

/// Sizes that are compiled into programs.
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
