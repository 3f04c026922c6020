/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the probe and its reader (crates/live/src/probe.rs) share.
 */
#ifndef SCXLAB_PROBE_H
#define SCXLAB_PROBE_H

/* Times fall into buckets by their top SUB_BITS + 1 bits: exact below 2^SUB_BITS ns, then within 1.6 %. */
#define SUB_BITS 6
#define SUB (1 << SUB_BITS)
#define BUCKETS ((65 - SUB_BITS) * SUB)

#define MAX_DONE (1 << 18)

#define COMM_BYTES 16

enum times {
	WAKEUP_LATENCY,
	RUN_QUEUE_WAIT,
	NR_TIMES,
};

/* Counts and the largest value, per CPU. */
struct distribution {
	__u64 max;
	__u32 count[BUCKETS];
};

/* Per CPU; only that CPU writes it. */
struct cpu_account {
	__u64 since;	/* of the present task's time; 0: it has not switched yet */
	__u64 is_busy;	/* whether the present task is another than the idle one */
	__u64 busy;	/* ns in tasks, anyone's */
	__u64 idle;	/* ns in the idle task */
	__u64 switches;	/* to or from a task of the workload */
	__u64 wakeups;	/* of tasks of the workload */
	__u64 lost;	/* tasks that ended and found the table full */
	__u64 untraced;	/* events that found the ring full */
};

/* What a task of the workload got, from its first switch in until it was switched away for ever. */
struct task_account {
	__u64 run;	/* ns */
	__u64 wait;	/* ns runnable and not running */
	__u64 voluntary;
	__u64 involuntary;
	__u64 migrations;
	__u32 pid;
	__u32 tgid;
	__s32 nice;
	__u32 pad;
	char comm[COMM_BYTES];
	__u64 cgroup;	/* its inode */
};

/* How much the workload's tasks of a cgroup run together. */
struct cgroup_account {
	__u64 since;	/* of the present numbers */
	__u64 some;	/* ns in which two or more were runnable and at least one ran */
	__u64 all;	/* the part of it in which all did, or one on each CPU */
	__u32 waits;
	__u32 runs;
};

enum trace_kind {
	TRACE_SWITCH,	/* from `task` to `other`; `arg[0]` is an enum trace_state */
	TRACE_WAKEUP,	/* of `task` by `other`, whose pid is 0 if an interrupt did it; `arg[0]` is the CPU of `task` */
	TRACE_MIGRATE,	/* of `task`, from CPU `arg[0]` to CPU `arg[1]` */
	TRACE_FORK,	/* of `task` by `other` */
};

/* What became of the task that was switched away. */
enum trace_state {
	TRACE_RUNNABLE,
	TRACE_SLEEPING,
	TRACE_DEAD,
};

/* A task as it was called then; pid 0 is the idle task, or nobody. */
struct trace_task {
	__u32 pid;
	__u32 tgid;
	__s32 prio;
	char comm[COMM_BYTES];
};

/* An event of a traced run. */
struct trace_record {
	__u64 at;	/* bpf_ktime_get_ns() */
	__u32 cpu;
	__u32 kind;
	struct trace_task task;
	struct trace_task other;
	__u32 arg[2];
};

#endif
