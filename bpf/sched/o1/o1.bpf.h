/* SPDX-License-Identifier: GPL-2.0-only */
/* State of o1 per task and per CPU, and the rules that both modes share: slices, queue lengths. */
#pragma once
#include <scx/common.bpf.h>
#include <lib/knob.h>
#include <lib/kick.bpf.h>
#include <lib/prio_array.bpf.h>

/* A power of two, because a mask proves to the verifier that an index is in bounds. */
#define MAX_CPUS 1024

#define JIFFY_NS 10000000ULL	/* HZ was 100 in 2002 */
#define HZ 100
#define NICE_OFFSET 100		/* static_prio of level 0 */

enum o1_mode { O1_MODE_D1, O1_MODE_MQO1 };

KNOB(enum o1_mode, mode, O1_MODE_D1,
	     "d1: the O(1) scheduler of Linux 2.5.2-D1. mqo1: the multi-queue scheduler with O(1) "
	     "queues");
KNOB(u64, min_slice_ns, 20000000,
	     "slice at level 39; level u gets min + ceil((39 - u) x (max - min) / 40), in whole "
	     "jiffies; in ns if the range is less than a jiffy. From 1 us to max_slice_ns, or init "
	     "refuses");
KNOB(u64, max_slice_ns, 150000000,
	     "slice at level 0; from min_slice_ns to 1 s, or init refuses");
KNOB(u64, idle_tick_ns, JIFFY_NS,
	     "interval at which an idle CPU looks for work, at least 1 ms. 0: it looks only when it "
	     "becomes idle");

#define SLEEP_CELLS 4

struct o1_task {
	u32 prio;		/* level; 0 is the best */
	u32 array;		/* index of the task's array, one of the two of its CPU */
	u32 queued_on;		/* number + 1 of the CPU whose queue length includes the task; 0:
				 * none */
	u8 tail;		/* the task next joins the end of its level's list, not the head */
	u8 spent;		/* the task used up its slice and was not queued since */
	u8 fresh;		/* the task was never queued */
	u8 pad;
	s64 left_ns;		/* rest of the task's slice */
	u64 charged_ns;		/* sum_exec_runtime up to which left_ns is charged */

	/* Mode d1 only: how much the task slept. Times are in jiffies. */
	u64 sleep_at;		/* time of the last estimate_deactivate() */
	u64 run_at;		/* time of the last estimate_activate() */
	u32 sleep_hist[SLEEP_CELLS];
	u32 sleep_idx;
	u32 penalty;		/* levels added for too little sleep, as of the last sample */

	/* Mode mqo1 only. */
	u64 swap_last;		/* the CPU's number of array swaps when the task last woke up */
	u32 swap_cpu;		/* CPU whose array swaps swap_last and swap_sleep count */
	u32 bonus;		/* levels gained at the last wake-up, before the limit of level 0 */
	u64 swap_sleep;		/* the CPU's number of array swaps when the task went to sleep */
	u64 slept_swaps;	/* array swaps during the task's last sleep */
	u64 expirations;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct o1_task);
} tasks SEC(".maps");

struct o1_rq {
	struct prio_array arrays[2];
	u64 swaps;
	u32 active;		/* index of the active array */
	u32 curr_prio;		/* level of the running task; PRIO_NONE: it is not a task of o1 */
	s32 nr_queued;		/* tasks that wait in the two arrays */
	u32 online;
	u32 stuck;		/* timer ticks at which tasks waited since a task of o1 ran last */
} __attribute__((aligned(128)));

static struct o1_rq rqs[MAX_CPUS];

struct o1_stats {
	u64 picks;		/* tasks taken from an array */
	u64 kept;		/* times the running task went on, as none was better */
	u64 swaps;
	u64 expired;		/* slices used up: the task went to the expired array */
	u64 returned;		/* slices used up: the task went back to the active array (d1) */
	u64 preempted;		/* wake-ups that preempted a worse task */
	u64 bonus_levels;	/* mode mqo1: sum of o1_task.bonus over all wake-ups */
	u64 balanced_busy;	/* tasks pulled when a slice expired */
	u64 balanced_idle;	/* tasks pulled by a CPU that had no task */
	u64 idle_kicks;		/* idle CPUs kicked to look for work */
	u64 rescued;		/* tasks that went through the global queue */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct o1_stats);
} stats SEC(".maps");

#define count(field, n) do {								\
	u32 zero__ = 0;									\
	struct o1_stats *s__ = bpf_map_lookup_elem(&stats, &zero__);			\
	if (s__)									\
		s__->field += (n);							\
} while (0)

static __always_inline struct o1_rq *rq_of(s32 cpu)
{
	return &rqs[cpu & (MAX_CPUS - 1)];
}

static __always_inline struct o1_task *task_of(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, NULL, 0);
}

static __always_inline void kick(s32 cpu, u64 flags)
{
	kick_from(rq_of(bpf_get_smp_processor_id())->online, cpu, flags);
}

/* Returns the first DSQ of one of a CPU's arrays. */
static __always_inline u64 lists_of(s32 cpu, u32 array)
{
	return ((u64)cpu << 7) | (array & 1) << 6;
}

static __always_inline struct prio_array *array_of(struct o1_rq *rq, u32 array)
{
	return &rq->arrays[array & 1];
}

static __always_inline u32 nice_level(const struct task_struct *p)
{
	s32 level = p->static_prio - NICE_OFFSET;

	if (level < 0)
		return 0;
	return level >= PRIO_LEVELS ? PRIO_LEVELS - 1 : level;
}

/*
 * Returns the slice of a level. Like PRIO_TO_TIMESLICE() of 2.5.2, it counts whole jiffies and
 * rounds up.
 */
static __always_inline u64 slice_of(u32 prio)
{
	u64 range = (max_slice_ns - min_slice_ns) / JIFFY_NS;

	if (!range)	/* the range is less than a jiffy, so the slice is computed in ns */
		return min_slice_ns + (max_slice_ns - min_slice_ns) * (PRIO_LEVELS - 1 - prio) / PRIO_LEVELS;
	return min_slice_ns +
	       ((PRIO_LEVELS - 1 - prio) * range + PRIO_LEVELS - 1) / PRIO_LEVELS * JIFFY_NS;
}

static __always_inline void charge(struct task_struct *p, struct o1_task *t)
{
	u64 now = p->se.sum_exec_runtime;

	t->left_ns -= now - t->charged_ns;
	t->charged_ns = now;
}

static __always_inline u64 slice_left(const struct o1_task *t)
{
	return t->left_ns > 0 ? t->left_ns : 1;
}

/*
 * Moves the task from the queue length that includes it to that of another CPU (0: to none). The
 * additions are atomic, because a move may race with a wake-up.
 */
static __always_inline void count_on(struct o1_task *t, u32 cpu_plus_1)
{
	u32 old;

	if (cpu_plus_1)
		__sync_fetch_and_add(&rq_of(cpu_plus_1 - 1)->nr_queued, 1);
	old = __sync_lock_test_and_set(&t->queued_on, cpu_plus_1);
	if (old)
		__sync_fetch_and_add(&rq_of(old - 1)->nr_queued, -1);
}

static __always_inline s32 nr_running(const struct o1_rq *rq)
{
	return READ_ONCE(rq->nr_queued) + (READ_ONCE(rq->curr_prio) != PRIO_NONE);
}
