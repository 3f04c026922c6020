/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A scheduler's side of sched_ext: its operations and the structs passed to them and to the kfuncs.
 *
 * Owns: the ops table in the kernel's two forms (CPUs with Linux's numbers, and CPUs numbered by
 * topology) and the argument structs, in the kernel's order and layout, because programs build some
 * of these structs on their stacks. An object's table is matched by member name, so a table of an
 * older or newer kernel fits as well.
 * Models: 7.3, kernel/sched/ext/internal.h.
 */
#ifndef ABI_OPS_H
#define ABI_OPS_H

#include "types.h"
#include "enums.h"

struct cgroup;
struct cpumask;
struct task_struct;

struct scx_exit_info {
	enum scx_exit_kind kind;
	s32 exit_cpu;
	s64 exit_code;
	u64 flags;
	const ptr(char) reason;
	ptr(unsigned long) bt;
	u32 bt_len;
	ptr(char) msg;
	ptr(char) dump;
};

struct scx_init_task_args {
	bool fork;
	ptr(struct cgroup) cgroup;
};

struct scx_exit_task_args {
	bool cancelled;
};

struct scx_enable_args {
	u64 cmask_arena_addr;
};

struct scx_cgroup_init_args {
	u32 weight;
	u64 bw_period_us;
	u64 bw_quota_us;
	u64 bw_burst_us;
	bool sched_idle;
};

#ifndef __BINDGEN__
/* scx_cpu_acquire_args is empty in the kernel too. The Rust code does not use it. */
struct scx_cpu_acquire_args {};
#endif

struct scx_cpu_release_args {
	enum scx_cpu_preempt_reason reason;
	ptr(struct task_struct) task;
};

struct scx_sub_attach_args {
	ptr(struct sched_ext_ops) ops;
	ptr(char) cgroup_path;
};

struct scx_sub_detach_args {
	ptr(struct sched_ext_ops) ops;
	ptr(char) cgroup_path;
};

struct scx_dump_ctx {
	enum scx_exit_kind kind;
	s64 exit_code;
	const ptr(char) reason;
	u64 at_ns;
	u64 at_jiffies;
};

struct scx_event_stats {
	s64 SCX_EV_SELECT_CPU_FALLBACK;
	s64 SCX_EV_DISPATCH_LOCAL_DSQ_OFFLINE;
	s64 SCX_EV_DISPATCH_KEEP_LAST;
	s64 SCX_EV_ENQ_SKIP_EXITING;
	s64 SCX_EV_ENQ_SKIP_MIGRATION_DISABLED;
	s64 SCX_EV_REENQ_IMMED;
	s64 SCX_EV_REENQ_REPEAT;
	s64 SCX_EV_REFILL_SLICE_DFL;
	s64 SCX_EV_SLICE_CLAMPED;
	s64 SCX_EV_SLICE_DENIED;
	s64 SCX_EV_BYPASS_DURATION;
	s64 SCX_EV_BYPASS_DISPATCH;
	s64 SCX_EV_BYPASS_ACTIVATE;
	s64 SCX_EV_INSERT_NOT_OWNED;
	s64 SCX_EV_SUB_BYPASS_DISPATCH;
	s64 SCX_EV_SUB_FORCED_ADMIT;
	s64 SCX_EV_SUB_PREEMPT_DENIED;
	s64 SCX_EV_SUB_KICK_DENIED;
	s64 SCX_EV_SUB_REENQ_DENIED;
	s64 SCX_EV_SUB_CIDPERF_DENIED;
	s64 SCX_EV_SUB_RESCUE;
};

struct scx_bpf_dsq_insert_vtime_args {
	u64 dsq_id;
	u64 slice;
	u64 vtime;
	u64 enq_flags;
};

struct scx_bpf_select_cpu_and_args {
	s32 prev_cpu;
	u64 wake_flags;
	u64 flags;
};

struct scx_cid_topo {
	s32 core_cid;
	s32 core_idx;
	s32 llc_cid;
	s32 llc_idx;
	s32 node_cid;
	s32 node_idx;
	s32 shard_cid;
	s32 shard_idx;
};

/* A set of CPUs numbered by topology (cids): this header, then the words of the bit mask. */
struct scx_cmask {
	u32 base;
	u32 nr_cids;
	u32 alloc_words;
#ifdef __BINDGEN__
	u32 to_bits;
#else
	u64 bits[];
#endif
};

/* The callbacks from enqueue to set_weight, which sched_ext_ops and sched_ext_ops_cid share. */
#define SCX_OPS_TASK_PATH						\
	op(void, enqueue, struct task_struct *p, u64 enq_flags);	\
	op(void, dequeue, struct task_struct *p, u64 deq_flags);	\
	op(void, dispatch, s32 cpu, struct task_struct *prev);		\
	op(void, tick, struct task_struct *p);				\
	op(void, runnable, struct task_struct *p, u64 enq_flags);	\
	op(void, running, struct task_struct *p);			\
	op(void, stopping, struct task_struct *p, bool runnable);	\
	op(void, quiescent, struct task_struct *p, u64 deq_flags);	\
	op(bool, yield, struct task_struct *from, struct task_struct *to); \
	op(bool, core_sched_before, struct task_struct *a, struct task_struct *b); \
	op(void, set_weight, struct task_struct *p, u32 weight)

/* Members that are not callbacks. */
#define SCX_OPS_DATA							\
	u32 dispatch_max_batch;						\
	u64 flags;							\
	u32 timeout_ms;							\
	u32 exit_dump_len;						\
	u64 hotplug_seq;						\
	u32 cid_shard_size;						\
	u32 rescue_bandwidth_ppt;					\
	u32 rescue_quantum_us;						\
	u64 sub_cgroup_id;						\
	char name[SCX_OPS_NAME_LEN];					\
	ptr(void) priv

struct sched_ext_ops {
	op(s32, select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	SCX_OPS_TASK_PATH;
	op(void, set_cpumask, struct task_struct *p, const struct cpumask *cpumask);
	op(void, update_idle, s32 cpu, bool idle);
	op(s32, init_task, struct task_struct *p, struct scx_init_task_args *args);
	op(void, exit_task, struct task_struct *p, struct scx_exit_task_args *args);
	op(void, enable, struct task_struct *p);
	op(void, disable, struct task_struct *p);
	op(void, dump, struct scx_dump_ctx *ctx);
	op(void, dump_cpu, struct scx_dump_ctx *ctx, s32 cpu, bool idle);
	op(void, dump_task, struct scx_dump_ctx *ctx, struct task_struct *p);
	op(s32, cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args);
	op(void, cgroup_exit, struct cgroup *cgrp);
	op(s32, cgroup_prep_move, struct task_struct *p, struct cgroup *from, struct cgroup *to);
	op(void, cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to);
	op(void, cgroup_cancel_move, struct task_struct *p, struct cgroup *from, struct cgroup *to);
	op(void, cgroup_set_weight, struct cgroup *cgrp, u32 weight);
	op(void, cgroup_set_bandwidth, struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us);
	op(void, cgroup_set_idle, struct cgroup *cgrp, bool idle);
	op(s32, sub_attach, struct scx_sub_attach_args *args);
	op(void, sub_detach, struct scx_sub_detach_args *args);
	op(void, sub_caps_updated, const struct scx_cmask *cmask, u64 caps);
	op(void, sub_ecaps_updated, s32 cid, u64 before, u64 after);
	op(void, cpu_online, s32 cpu);
	op(void, cpu_offline, s32 cpu);
	op(s32, init_cids, void);
	op(s32, init, void);
	op(void, exit, struct scx_exit_info *info);
	SCX_OPS_DATA;
	op(void, cpu_acquire, s32 cpu, struct scx_cpu_acquire_args *args);
	op(void, cpu_release, s32 cpu, struct scx_cpu_release_args *args);
};

/* The form of the ops table in which CPUs are numbered by topology (cids). */
struct sched_ext_ops_cid {
	op(s32, select_cid, struct task_struct *p, s32 prev_cid, u64 wake_flags);
	SCX_OPS_TASK_PATH;
	op(void, set_cmask, struct task_struct *p, const struct scx_cmask *cmask);
	op(void, update_idle, s32 cid, bool idle);
	op(s32, init_task, struct task_struct *p, struct scx_init_task_args *args);
	op(void, exit_task, struct task_struct *p, struct scx_exit_task_args *args);
	op(void, enable, struct task_struct *p, struct scx_enable_args *args);
	op(void, disable, struct task_struct *p);
	op(void, dump, struct scx_dump_ctx *ctx);
	op(void, dump_cid, struct scx_dump_ctx *ctx, s32 cid, bool idle);
	op(void, dump_task, struct scx_dump_ctx *ctx, struct task_struct *p);
	op(s32, cpuctl_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args);
	op(void, cpuctl_exit, struct cgroup *cgrp);
	op(s32, cpuctl_prep_move, struct task_struct *p, struct cgroup *from, struct cgroup *to);
	op(void, cpuctl_move, struct task_struct *p, struct cgroup *from, struct cgroup *to);
	op(void, cpuctl_cancel_move, struct task_struct *p, struct cgroup *from, struct cgroup *to);
	op(void, cpuctl_set_weight, struct cgroup *cgrp, u32 weight);
	op(void, cpuctl_set_bandwidth, struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us);
	op(void, cpuctl_set_idle, struct cgroup *cgrp, bool idle);
	op(s32, sub_attach, struct scx_sub_attach_args *args);
	op(void, sub_detach, struct scx_sub_detach_args *args);
	op(void, sub_caps_updated, const struct scx_cmask *cmask, u64 caps);
	op(void, sub_ecaps_updated, s32 cid, u64 before, u64 after);
	op(void, cid_online, s32 cid);
	op(void, cid_offline, s32 cid);
	op(s32, init_cids, void);
	op(s32, init, void);
	op(void, exit, struct scx_exit_info *info);
	SCX_OPS_DATA;
};

#endif
