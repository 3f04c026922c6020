/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Interface between the probe and its reader, crates/live/src/probe.rs. crates/live/build.rs makes
 * the reader's types and constants from this file.
 */
#ifndef SCXLAB_PROBE_H
#define SCXLAB_PROBE_H

#ifdef __BINDGEN__
/* These types replace, for the reader, the kernel's types, which the probe takes from vmlinux.h. */
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;

struct bpf_spin_lock {
	__u32 val;
};
#endif

/*
 * The top SUB_BITS + 1 bits of a duration choose its bucket. Buckets are exact below 2^SUB_BITS ns,
 * and within 1.6 % from there on.
 */
#define SUB_BITS 6
#define SUB (1 << SUB_BITS)
#define BUCKETS ((65 - SUB_BITS) * SUB)

#define MAX_DONE (1 << 18)

#define COMM_BYTES 16

/* A bit of the preempt count that is set while the CPU handles a softirq. */
#define IN_SOFTIRQ (1 << 8)
/*
 * Bits that are set while the CPU handles an interrupt or an NMI. From Linux 7.3 on, the bits that
 * had this meaning count how often interrupts were disabled (local_interrupt_disable()).
 */
#define IN_INTERRUPT (0xff << 16)
#define IN_INTERRUPT_SINCE_7_3 (0x1f << 24)

enum times {
	WAKEUP_LATENCY,
	RUN_QUEUE_WAIT,
	NR_TIMES,
};

/*
 * Distribution of one kind of duration: how many durations fell into each bucket, and the longest.
 * Each CPU has one for each value of `enum times`.
 */
struct distribution {
	__u64 max;
	__u32 count[BUCKETS];
};

/* Figures of one CPU. Only that CPU writes them. */
struct cpu_account {
	__u64 since;	/* time of the CPU's last switch, ns; 0: no switch yet */
	__u64 is_busy;	/* whether the present task is not the idle task */
	__u64 busy;	/* ns in tasks of any kind */
	__u64 idle;	/* ns in the idle task */
	__u64 switches;	/* switches to or from a task of the workload */
	__u64 wakeups;	/* wake-ups of tasks of the workload */
	__u64 lost;	/* tasks that ended when the map `done` was full */
	__u64 untraced;	/* events left out because the ring was full */
	__u64 numa_moves;	/* moves of tasks of the workload that NUMA balancing began */
	__u64 numa_swaps;	/* swaps that it began, of two tasks of which one is of the workload */
};

/* Figures of a task of the workload, from its first switch in until its last switch out. */
struct task_account {
	__u64 run;	/* ns in which the task ran */
	__u64 wait;	/* ns in which the task was runnable and did not run */
	__u64 voluntary;
	__u64 involuntary;
	__u64 migrations;
	__u32 pid;
	__u32 tgid;
	__s32 nice;
	__u32 pad;
	__u8 comm[COMM_BYTES];
	__u64 cgroup;	/* inode number of the task's cgroup */
};

/* How much the workload's tasks of one cgroup run at the same time. */
struct cgroup_account {
	__u64 since;	/* time up to which `some` and `all` are counted, ns */
	__u64 some;	/* ns in which two or more tasks were runnable and at least one ran */
	__u64 all;	/* part of `some` in which all runnable tasks ran, or one on each CPU */
	__u32 waits;
	__u32 runs;
};

/* A value of the probe's map `cgroups`. */
struct cgroup_state {
	struct bpf_spin_lock lock;
	struct cgroup_account sum;
};

enum trace_kind {
	TRACE_SWITCH,	/* a switch from `task` to `other`; `arg[0]` is an enum trace_state */
	TRACE_WAKEUP,	/* `other` (pid 0: an interrupt) wakes `task`, whose CPU is `arg[0]` */
	TRACE_MIGRATE,	/* `task` moves from CPU `arg[0]` to CPU `arg[1]` */
	TRACE_FORK,	/* `other` forks `task` */
};

/* State of the task that was switched out. */
enum trace_state {
	TRACE_RUNNABLE,
	TRACE_SLEEPING,
	TRACE_DEAD,
};

/* A task, with its name at the time of the event. Pid 0 is the idle task, or no task. */
struct trace_task {
	__u32 pid;
	__u32 tgid;
	__s32 prio;
	__u8 comm[COMM_BYTES];
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
