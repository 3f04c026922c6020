/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Interface between the recorder and its reader, crates/live/src/record. crates/live/build.rs makes
 * the reader's types and constants from this file. Include "probe.h" first: it declares the types
 * of the kernel for bindgen.
 */
#ifndef SCXLAB_RECORD_H
#define SCXLAB_RECORD_H

#include "probe.h"

/* Tasks of which calls and attributes are recorded: the workload. */
enum record_scope {
	SCOPE_ALL,	/* every task except the recorder's own */
	SCOPE_CHILDREN,	/* processes that the recorder starts, and their descendants */
	SCOPE_PROCESS,	/* a process and its descendants */
	SCOPE_CGROUP,	/* the tasks of a cgroup and of those below it */
};

/* Constants of a recording, which the reader sets before it loads the programs. */
struct record_config {
	__u64 salt;	/* random, so that objects in the file do not tell the kernel's addresses */
	__u64 realtime_offset;	/* CLOCK_REALTIME - CLOCK_MONOTONIC, ns */
	__u64 boottime_offset;	/* CLOCK_BOOTTIME - CLOCK_MONOTONIC, ns */
	__u64 cgroup;	/* id of the cgroup of SCOPE_CGROUP */
	__u32 scope;	/* an enum record_scope */
	__u32 recorder;	/* process of the reader */
	__u32 process;	/* process of SCOPE_PROCESS */
	__u32 cpu_words;	/* number of words in a mask of the machine's CPUs */
	__u32 page_shift;
	__u32 interrupt_mask;	/* bits of the preempt count by which an interrupt is recognised */
};

enum record_kind {
	RECORD_SWITCH,	/* from `task` to `arg[0]`; `arg[1]` is an enum record_state */
	RECORD_WAKEUP,	/* `arg[0]` (0: an interrupt) wakes `task`, whose CPU is `arg[1]` */
	RECORD_MIGRATE,	/* `task` moves from CPU `arg[0]` to CPU `arg[1]` */
	RECORD_FORK,	/* `arg[0]` forks `task` */
	RECORD_TASK,	/* struct record_task */
	RECORD_CALL,	/* struct record_call */
	RECORD_ATTRIBUTES,	/* struct record_attributes */
	RECORD_CGROUP,	/* struct record_cgroup */
};

/* State of the task that was switched out. */
enum record_state {
	STATE_RUNNABLE,
	STATE_SLEEPING,
	STATE_UNINTERRUPTIBLE,
	STATE_DEAD,
};

enum record_call_kind {
	CALL_NONE,
	CALL_FUTEX_WAIT,	/* `value`: timeout, if `has_value` */
	CALL_FUTEX_WAKE,	/* `value`: maximum number of tasks to wake */
	CALL_WRITE,	/* `value`: bytes; `channel`: an enum channel_kind */
	CALL_READ,	/* the same */
	CALL_POLL,	/* `value`: timeout, if `has_value` */
	CALL_SLEEP_FOR,	/* `value`: length */
	CALL_SLEEP_UNTIL,	/* `value`: time on CLOCK_MONOTONIC */
	CALL_IO,	/* `value`: bytes, 0 if unknown */
	CALL_EXEC,
	CALL_YIELD,
	CALL_JOIN,
	CALL_COUNT,	/* `value`: units */
};

enum channel_kind {
	CHANNEL_NONE,	/* no channel: a file of a file system, or a file that never blocks */
	CHANNEL_PIPE,
	CHANNEL_SOCKET,
	CHANNEL_EVENTFD,
	CHANNEL_OUTSIDE,
	CHANNEL_TIMER,	/* a timerfd; not the channel of a call */
	CHANNEL_MARKER,	/* the file trace_marker; not the channel of a call */
};

/* Begin of every record. `at` is bpf_ktime_get_ns(); `kind` is an enum record_kind. */
struct record_head {
	__u64 at;
	__u32 task;	/* pid; 0: the idle task */
	__u16 cpu;
	__u16 kind;
};

struct record_event {
	struct record_head head;
	__u32 arg[2];
};

/* Name and priority of a task, before the first event of the task and after each change. */
struct record_task {
	struct record_head head;
	__u32 tgid;
	__s32 prio;
	__u8 comm[COMM_BYTES];
};

struct record_call {
	struct record_head head;
	__u16 call;	/* an enum record_call_kind */
	__u16 channel;
	__u32 has_value;
	__u64 object;
	__u64 value;
};

/* Number of words of the mask of allowed CPUs: CPUs beyond are not recorded. */
#define CPU_WORDS 128

struct record_attributes {
	struct record_head head;
	__u64 cgroup;	/* id of the cgroup */
	__u64 slice;	/* requested slice, ns; 0: the default */
	__u64 runtime;	/* budget, deadline and period of SCHED_DEADLINE, ns */
	__u64 deadline;
	__u64 period;
	__u32 policy;
	__s32 nice;
	__u32 rt_priority;
	__u32 is_kthread;
	__u64 cpus[CPU_WORDS];
};

#define PATH_BYTES 512

/* Path of a cgroup that was made during the recording. */
struct record_cgroup {
	struct record_head head;
	__u64 id;
	__u8 path[PATH_BYTES];
};

/* Counters of one CPU. */
struct record_counts {
	__u64 lost;	/* records for which the ring had no room */
	__u64 unread;	/* calls that are not recorded, because their arguments could not be read */
};

#endif
