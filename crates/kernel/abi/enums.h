/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The enumerators that objects and their frontends look up by name, with the values of Linux 7.3.
 *
 * Owns: names and values; tools/check-abi.py compares both with a real kernel's BTF. An object
 * compiled against another kernel gets these values through relocations and through its __SCX_*
 * variables.
 * Does not: list enumerators that no program can see (internal states of sched_ext).
 */
#ifndef ABI_ENUMS_H
#define ABI_ENUMS_H

enum scx_public_consts {
	SCX_OPS_NAME_LEN = 128ULL,
	SCX_SLICE_DFL = 20000000ULL,		/* ns */
	SCX_SLICE_BYPASS = 5000000ULL,		/* ns */
	SCX_SLICE_INF = 0xffffffffffffffffULL,
};

/* Limits of sched_ext that programs can observe. Times are in the unit at the end of the name. */
enum scx_consts {
	SCX_DSP_DFL_MAX_BATCH = 32,
	SCX_DSP_MAX_LOOPS = 32,
	SCX_RESCUE_DFL_BW_PPT = 20,
	SCX_RESCUE_MAX_BW_PPT = 250,
	SCX_RESCUE_DISABLE = 0xffffffffU,
	SCX_RESCUE_DFL_QUANTUM_US = 5000,
	SCX_RESCUE_MIN_QUANTUM_US = 1000,
	SCX_RESCUE_MAX_QUANTUM_US = 100000,
	SCX_EXIT_BT_LEN = 64,
	SCX_EXIT_MSG_LEN = 1024,
	SCX_EXIT_DUMP_DFL_LEN = 32768,
	SCX_CPUPERF_ONE = 1024,
	SCX_BYPASS_HOST_NTH = 2,
	SCX_REENQ_MAX_REPEAT = 256,
	SCX_SUB_MAX_DEPTH = 4,
};

enum scx_cid_consts {
	SCX_CID_SHARD_SIZE_DFL = 24,
	SCX_CID_SHARD_MAX_CPUS = 512,
};

enum scx_dsq_id_flags {
	SCX_DSQ_FLAG_BUILTIN = 1ULL << 63,
	SCX_DSQ_FLAG_LOCAL_ON = 1ULL << 62,
	SCX_DSQ_INVALID = SCX_DSQ_FLAG_BUILTIN | 0,
	SCX_DSQ_GLOBAL = SCX_DSQ_FLAG_BUILTIN | 1,
	SCX_DSQ_LOCAL = SCX_DSQ_FLAG_BUILTIN | 2,
	SCX_DSQ_BYPASS = SCX_DSQ_FLAG_BUILTIN | 3,
	SCX_DSQ_REJECT = SCX_DSQ_FLAG_BUILTIN | 4,
	SCX_DSQ_RESCUE = SCX_DSQ_FLAG_BUILTIN | 5,
	SCX_DSQ_LOCAL_ON = SCX_DSQ_FLAG_BUILTIN | SCX_DSQ_FLAG_LOCAL_ON,
	SCX_DSQ_LOCAL_CPU_MASK = 0xffffffffULL,
};

enum scx_dsq_iter_flags {
	SCX_DSQ_ITER_REV = 1U << 16,
};

enum scx_ent_dsq_flags {
	SCX_TASK_DSQ_ON_PRIQ = 1 << 0,
};

enum scx_enq_flags {
	SCX_ENQ_WAKEUP = 1ULL << 0,
	SCX_ENQ_HEAD = 1ULL << 16,
	SCX_ENQ_CPU_SELECTED = 1ULL << 20,
	SCX_ENQ_PREEMPT = 1ULL << 32,
	SCX_ENQ_IMMED = 1ULL << 33,
	SCX_ENQ_RESCUE = 1ULL << 34,
	SCX_ENQ_REENQ = 1ULL << 40,
	SCX_ENQ_LAST = 1ULL << 41,
	/* Bits 56-63 of the enqueue flags are internal to the kernel. */
	__SCX_ENQ_INTERNAL_MASK = 0xffULL << 56,
	SCX_ENQ_CLEAR_OPSS = 1ULL << 56,
	SCX_ENQ_DSQ_PRIQ = 1ULL << 57,
	SCX_ENQ_NESTED = 1ULL << 58,
	SCX_ENQ_GDSQ_FALLBACK = 1ULL << 59,
	SCX_ENQ_IGNORE_CAPS = 1ULL << 60,
	SCX_ENQ_APPLY_SLICE = 1ULL << 61,
	SCX_ENQ_SLICE_DFL = 1ULL << 62,
};

enum scx_deq_flags {
	SCX_DEQ_SLEEP = 1ULL << 0,
	SCX_DEQ_CORE_SCHED_EXEC = 1ULL << 32,
	SCX_DEQ_SCHED_CHANGE = 1ULL << 33,
};

enum scx_reenq_flags {
	SCX_REENQ_ANY = 1ULL << 0,
	SCX_REENQ_CAP_REVOKE = 1ULL << 1,
	__SCX_REENQ_FILTER_MASK = 0xffffULL,
	__SCX_REENQ_USER_MASK = SCX_REENQ_ANY,
};

enum scx_kick_flags {
	SCX_KICK_IDLE = 1 << 0,
	SCX_KICK_PREEMPT = 1 << 1,
	SCX_KICK_WAIT = 1 << 2,
};

enum scx_wake_flags {
	SCX_WAKE_FORK = 1 << 2,
	SCX_WAKE_TTWU = 1 << 3,
	SCX_WAKE_SYNC = 1 << 4,
};

enum scx_pick_idle_cpu_flags {
	SCX_PICK_IDLE_CORE = 1 << 0,
	SCX_PICK_IDLE_IN_NODE = 1 << 1,
};

enum scx_ops_flags {
	SCX_OPS_KEEP_BUILTIN_IDLE = 1ULL << 0,
	SCX_OPS_ENQ_LAST = 1ULL << 1,
	SCX_OPS_ENQ_EXITING = 1ULL << 2,
	SCX_OPS_SWITCH_PARTIAL = 1ULL << 3,
	SCX_OPS_ENQ_MIGRATION_DISABLED = 1ULL << 4,
	SCX_OPS_ALLOW_QUEUED_WAKEUP = 1ULL << 5,
	SCX_OPS_BUILTIN_IDLE_PER_NODE = 1ULL << 6,
	SCX_OPS_ALWAYS_ENQ_IMMED = 1ULL << 7,
	SCX_OPS_TID_TO_TASK = 1ULL << 8,
	SCX_OPS_ALL_FLAGS = 0x1ffULL,
	__SCX_OPS_INTERNAL_MASK = 0xffULL << 56,
	SCX_OPS_HAS_CPU_PREEMPT = 1ULL << 56,
};

enum scx_exit_kind {
	SCX_EXIT_NONE = 0,
	SCX_EXIT_DONE = 1,
	SCX_EXIT_UNREG = 64,
	SCX_EXIT_UNREG_BPF = 65,
	SCX_EXIT_UNREG_KERN = 66,
	SCX_EXIT_SYSRQ = 67,
	SCX_EXIT_PARENT = 68,
	SCX_EXIT_PARENT_KILL = 69,
	SCX_EXIT_ERROR = 1024,
	SCX_EXIT_ERROR_BPF = 1025,
	SCX_EXIT_ERROR_STALL = 1026,
	SCX_EXIT_ERROR_REENQ = 1027,
	SCX_EXIT_ERROR_RESCUE = 1028,
};

enum scx_exit_code {
	SCX_ECODE_RSN_HOTPLUG = 1ULL << 32,
	SCX_ECODE_RSN_CGROUP_OFFLINE = 1ULL << 33,
	SCX_ECODE_ACT_RESTART = 1ULL << 48,
};

enum scx_exit_flags {
	SCX_EFLAG_INITIALIZED = 1 << 0,
};

enum scx_ent_flags {
	SCX_TASK_QUEUED = 1 << 0,
	SCX_TASK_IN_CUSTODY = 1 << 1,
	SCX_TASK_RESET_RUNNABLE_AT = 1 << 2,
	SCX_TASK_DEQD_FOR_SLEEP = 1 << 3,
	SCX_TASK_SUB_INIT = 1 << 4,
	SCX_TASK_IMMED = 1 << 5,
	SCX_TASK_PROTECTED = 1 << 6,
	/* bits 8-10: the task's state under its scheduler */
	SCX_TASK_STATE_SHIFT = 8,
	SCX_TASK_STATE_BITS = 3,
	SCX_TASK_STATE_MASK = 7 << 8,
	SCX_TASK_NONE = 0 << 8,
	SCX_TASK_INIT_BEGIN = 1 << 8,
	SCX_TASK_INIT = 2 << 8,
	SCX_TASK_READY = 3 << 8,
	SCX_TASK_ENABLED = 4 << 8,
	SCX_TASK_DEAD = 5 << 8,
	/* bits 12-14: the reason of the task's last re-enqueue */
	SCX_TASK_REENQ_REASON_SHIFT = 12,
	SCX_TASK_REENQ_REASON_BITS = 3,
	SCX_TASK_REENQ_REASON_MASK = 7 << 12,
	SCX_TASK_REENQ_NONE = 0 << 12,
	SCX_TASK_REENQ_KFUNC = 1 << 12,
	SCX_TASK_REENQ_IMMED = 2 << 12,
	SCX_TASK_REENQ_PREEMPTED = 3 << 12,
	SCX_TASK_REENQ_CAP = 4 << 12,
#ifndef __BINDGEN__
	/*
	 * The entity that has this flag is the cursor of an iterator, not a task. The Rust code
	 * does not get the flag, because its value is negative and the flags in Rust are unsigned.
	 */
	SCX_TASK_CURSOR = 1 << 31,
#endif
};

enum scx_cpu_preempt_reason {
	SCX_CPU_PREEMPT_RT = 0,
	SCX_CPU_PREEMPT_DL = 1,
	SCX_CPU_PREEMPT_STOP = 2,
	SCX_CPU_PREEMPT_UNKNOWN = 3,
};

enum scx_rq_flags {
	SCX_RQ_ONLINE = 1 << 0,
	SCX_RQ_CAN_STOP_TICK = 1 << 1,
	SCX_RQ_CLK_VALID = 1 << 5,
	SCX_RQ_BAL_CB_PENDING = 1 << 6,
	SCX_RQ_SUB_IDLE_RENOTIFY = 1 << 7,
	SCX_RQ_ROOT_IDLE_RENOTIFY = 1 << 8,
	SCX_RQ_IN_WAKEUP = 1 << 16,
	SCX_RQ_IN_DISPATCH = 1 << 17,
};

enum scx_tg_flags {
	SCX_TG_ONLINE = 1 << 0,
	SCX_TG_INITED = 1 << 1,
	SCX_TG_SUB_INIT = 1 << 2,
};

/*
 * Capabilities that a parent scheduler may delegate. __SCX_CAP_* is the bit number of SCX_CAP_*,
 * except for __SCX_CAP_ALL, which is the mask of all bits.
 */
enum scx_cap_flags {
	__SCX_CAP_ENQ_IMMED = 0,
	__SCX_CAP_ENQ = 1,
	__SCX_CAP_PREEMPT = 2,
	__SCX_CAP_PERF = 3,
	__SCX_NR_CAPS = 4,
	__SCX_CAP_ALL = 0xf,
	SCX_CAP_ENQ_IMMED = 1 << __SCX_CAP_ENQ_IMMED,
	SCX_CAP_ENQ = 1 << __SCX_CAP_ENQ,
	SCX_CAP_PREEMPT = 1 << __SCX_CAP_PREEMPT,
	SCX_CAP_PERF = 1 << __SCX_CAP_PERF,
	SCX_CAP_BASE = SCX_CAP_ENQ_IMMED,
	SCX_CAPS_REENQ_ON_LOSS = SCX_CAP_ENQ_IMMED | SCX_CAP_ENQ,
};

/*
 * Numbers of the cgroup controllers in a kernel with Debian's configuration. The numbers depend on
 * which controllers the kernel is built with.
 */
enum cgroup_subsys_id {
	cpuset_cgrp_id = 0,
	cpu_cgrp_id = 1,
	cpuacct_cgrp_id = 2,
	io_cgrp_id = 3,
	memory_cgrp_id = 4,
	devices_cgrp_id = 5,
	freezer_cgrp_id = 6,
	net_cls_cgrp_id = 7,
	perf_event_cgrp_id = 8,
	net_prio_cgrp_id = 9,
	hugetlb_cgrp_id = 10,
	pids_cgrp_id = 11,
	rdma_cgrp_id = 12,
	misc_cgrp_id = 13,
	CGROUP_SUBSYS_COUNT = 14,
};

enum pid_type {
	PIDTYPE_PID = 0,
	PIDTYPE_TGID = 1,
	PIDTYPE_PGID = 2,
	PIDTYPE_SID = 3,
	PIDTYPE_MAX = 4,
};

enum bpf_cgroup_iter_order {
	BPF_CGROUP_ITER_ORDER_UNSPEC = 0,
	BPF_CGROUP_ITER_SELF_ONLY = 1,
	BPF_CGROUP_ITER_DESCENDANTS_PRE = 2,
	BPF_CGROUP_ITER_DESCENDANTS_POST = 3,
	BPF_CGROUP_ITER_ANCESTORS_UP = 4,
	BPF_CGROUP_ITER_CHILDREN = 5,
};

enum cpu_usage_stat {
	CPUTIME_USER = 0,
	CPUTIME_NICE = 1,
	CPUTIME_SYSTEM = 2,
	CPUTIME_SOFTIRQ = 3,
	CPUTIME_IRQ = 4,
	CPUTIME_IDLE = 5,
	CPUTIME_IOWAIT = 6,
	CPUTIME_STEAL = 7,
	CPUTIME_GUEST = 8,
	CPUTIME_GUEST_NICE = 9,
	NR_STATS = 10,
};

#ifdef __BINDGEN__
/* Values of task_struct fields that objects test. In the kernel they are macros without BTF. */
enum task_macros {
	PF_IDLE = 0x2,
	PF_EXITING = 0x4,
	PF_WQ_WORKER = 0x20,
	PF_FORKNOEXEC = 0x40,
	PF_KTHREAD = 0x200000,
	PF_NO_SETAFFINITY = 0x4000000,
	TASK_RUNNING = 0x0,
	TASK_INTERRUPTIBLE = 0x1,
	TASK_UNINTERRUPTIBLE = 0x2,
	TASK_DEAD = 0x80,
	TASK_NEW = 0x800,
	EXIT_DEAD = 0x10,
	EXIT_ZOMBIE = 0x20,
};
#endif

#endif
