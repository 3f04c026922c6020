// SPDX-License-Identifier: GPL-2.0-only
/*
 * Makes clang emit BTF for the ABI headers. The code of this file never runs; the build uses only
 * the .BTF section of the object file.
 *
 * clang emits BTF only for definitions. Therefore each kernel function has a body (never called),
 * each per-CPU variable is defined, and each type is the type of a member of one variable.
 */
#include "kernel.h"

#define kfunc(ret, name, ...) ret name(__VA_ARGS__) { __builtin_unreachable(); }
#define percpu(type, name) __attribute__((section(".data..percpu"), used)) type name;
#include "kfuncs.h"

union {
	struct task_struct *task_struct;
	struct pid pid;
	struct task_struct task;
	struct mm_struct mm;
	struct cred cred;
	struct signal_struct signal;
	struct mempolicy mempolicy;
	struct pid_namespace pid_namespace;
	struct cgroup cgroup;
	struct kernfs_node kernfs_node;
	struct css_set css_set;
	struct task_group task_group;
	struct rq rq;
	struct cpufreq_policy cpufreq_policy;
	struct bpf_cpumask bpf_cpumask;
	struct sched_ext_ops ops;
	struct sched_ext_ops_cid ops_cid;
	struct scx_exit_info exit_info;
	struct scx_init_task_args init_task;
	struct scx_exit_task_args exit_task;
	struct scx_enable_args enable;
	struct scx_cgroup_init_args cgroup_init;
	struct scx_cpu_acquire_args cpu_acquire;
	struct scx_cpu_release_args cpu_release;
	struct scx_sub_attach_args sub_attach;
	struct scx_sub_detach_args sub_detach;
	struct scx_dump_ctx dump_ctx;
	struct scx_event_stats event_stats;
	struct scx_bpf_dsq_insert_vtime_args insert_vtime;
	struct scx_bpf_select_cpu_and_args select_cpu_and;
	struct scx_cid_topo cid_topo;
	struct scx_cmask *cmask;
	struct bpf_iter_num iter_num;
	struct bpf_iter_scx_dsq iter_scx_dsq;
	struct bpf_iter_css iter_css;
	struct bpf_iter_css_task iter_css_task;
	struct bpf_iter_task iter_task;
	struct bpf_iter_bits iter_bits;
	struct bpf_iter_meta iter_meta;
	struct bpf_iter__task iter__task;
	struct bpf_timer timer;
	struct bpf_spin_lock spin_lock;
	struct bpf_res_spin_lock res_spin_lock;
	struct bpf_rb_root rb_root;
	struct bpf_rb_node rb_node;
	struct bpf_list_head list_head;
	struct bpf_list_node list_node;
	struct bpf_refcount refcount;
	struct bpf_dynptr dynptr;
	struct bpf_perf_event_value perf_event_value;
	class_rcu_t class_rcu;
	nodemask_t nodemask;
} abi_types;

/*
 * struct scx_cmask ends in a flexible array, so it may not be a member of the union abi_types. This
 * variable makes clang emit its BTF.
 */
struct scx_cmask abi_cmask;

union {
	enum scx_public_consts public_consts;
	enum scx_consts consts;
	enum scx_cid_consts cid_consts;
	enum scx_dsq_id_flags dsq_id_flags;
	enum scx_dsq_iter_flags dsq_iter_flags;
	enum scx_ent_dsq_flags ent_dsq_flags;
	enum scx_enq_flags enq_flags;
	enum scx_deq_flags deq_flags;
	enum scx_reenq_flags reenq_flags;
	enum scx_kick_flags kick_flags;
	enum scx_wake_flags wake_flags;
	enum scx_pick_idle_cpu_flags pick_idle_cpu_flags;
	enum scx_ops_flags ops_flags;
	enum scx_exit_kind exit_kind;
	enum scx_exit_code exit_code;
	enum scx_exit_flags exit_flags;
	enum scx_ent_flags ent_flags;
	enum scx_cpu_preempt_reason cpu_preempt_reason;
	enum scx_rq_flags rq_flags;
	enum scx_tg_flags tg_flags;
	enum scx_cap_flags cap_flags;
	enum cgroup_subsys_id cgroup_subsys_id;
	enum pid_type pid_type;
	enum bpf_cgroup_iter_order cgroup_iter_order;
	enum cpu_usage_stat cpu_usage_stat;
} abi_enums;
