/* SPDX-License-Identifier: GPL-2.0-only */
/* State of goodness per task and per queue: slots, lists of slots, counters of ticks. */
#pragma once
#include <scx/common.bpf.h>
#include <lib/knob.h>
#include <lib/kick.bpf.h>

/* Powers of two, because a mask proves to the verifier that an index is in bounds. */
#define MAX_CPUS 512
#define MAX_TASKS 32768
#define NO_SLOT 0		/* slot 0 belongs to no task */

#define TICK_NS 10000000ULL	/* HZ was 100 in 2002 */
#define MAX_DYN_PRIO 40
#define CLAIM_NS TICK_NS	/* how long a task is reserved for the idle CPU chosen for it */

enum goodness_mode { GOODNESS_MODE_VANILLA, GOODNESS_MODE_HAMQ, GOODNESS_MODE_2_4 };

KNOB(enum goodness_mode, mode, GOODNESS_MODE_VANILLA,
	     "vanilla: one run queue, as in Linux 2.5.2-pre9. hamq: a run queue per CPU. 2.4: the "
	     "scheduler of Linux 2.4");
KNOB(u32, affinity_bonus, 15,
	     "goodness that a task gains on the CPU where it ran last (PROC_CHANGE_PENALTY of x86). "
	     "At most 100, or init refuses");

/* Whether a task waits in a queue, and whether it is reserved for one CPU. */
enum waiting { NOT_WAITING, WAITING, WAITING_CLAIMED };

/*
 * State of one task. A scan holds a lock and may call no function, so all that it reads is here.
 *
 *     not waiting --enqueue--> waiting, listed --pick--> waiting --it leaves the DSQ--> not waiting
 *                                    ^                     |
 *                                    '--- the pick failed -'
 *
 * The scheduler changes `waiting` when the kernel calls its operations. The CPU that sets `listed`
 * links the slot into a list, under the lock of the queue `linked_in`.
 */
struct slot {
	u32 next, prev;		/* neighbours in a list; NO_SLOT: the end */
	u32 pid;
	u32 cpu;		/* CPU on which the task ran last */
	u32 queue;		/* queue to which the task belongs; the queue's DSQ holds the
				 * task */
	u32 linked_in;		/* queue whose list the slot is in; differs from `queue` only
				 * during a race */
	u32 listed;
	u32 waiting;		/* enum waiting */
	u8 yielded;		/* the task yielded, and loses against any other task once */
	u8 may_migrate;
	u8 claimed;		/* the task is reserved for the idle CPU of its queue (hamq) */
	u8 asleep;
	s32 nice;
	s32 counter;		/* ticks left */
	u32 dyn_prio;		/* dynamic priority: recalculations slept through, minus
				 * slices used up (not 2.4) */
	u32 parent;		/* slot of the task that forked this one */
	s64 left_ns;		/* rest of the counter, ns */
	u64 epoch;		/* recalculations of `queue` already applied to the task */
	u64 charged_ns;		/* sum_exec_runtime up to which left_ns is charged */
	u64 claimed_ns;		/* when the task, being reserved, began to wait */
	u64 mm;
	u64 cpus[MAX_CPUS / 64];
	u32 parent_pid;
};

static struct slot slots[MAX_TASKS];

/* A run queue and its lock. Its DSQ has the same number. */
struct queue {
	struct bpf_spin_lock lock;
	u32 head, tail;
	u32 nr;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct queue);
} queues SEC(".maps");

struct task_ctx {
	u32 slot;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_ctx);
} tasks SEC(".maps");

struct cpu_state {
	u32 curr;		/* slot of the running task; NO_SLOT: no task with a slot runs */
	u32 online;
	u32 expected;		/* the CPU was idle, was chosen for a task, and has not looked
				 * for a task since (hamq) */
	u32 owes;		/* the CPU is to kick idle CPUs for a task that a CPU going off
				 * line queued without a kick */
	u64 mm;			/* address space of the task that ran last */
	u64 last_ns;		/* when the CPU last switched */
} __attribute__((aligned(64)));

static struct cpu_state cpu_states[MAX_CPUS];

/* Recalculations so far, indexed by queue; in vanilla and 2.4 one count for the whole system. */
static u64 epochs[MAX_CPUS] SEC(".data.epochs") __attribute__((aligned(128)));
/* Number of tasks in all lists that are not reserved, so that any allowed CPU may take them. */
static s32 nr_waiting SEC(".data.nr_waiting") __attribute__((aligned(128)));

struct goodness_stats {
	u64 picks;		/* tasks taken from a list */
	u64 kept;		/* times the running task was the best itself */
	u64 scanned;		/* tasks that scans looked at */
	u64 recalculations;
	u64 steals;		/* tasks taken from another CPU's queue (hamq) */
	u64 idle_wakes;		/* wake-ups that found an idle CPU */
	u64 preempted;		/* wake-ups that interrupted a worse task */
	u64 retries;		/* picks that failed because the task had just left the queue */
	u64 rescued;		/* tasks that went through the global queue */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct goodness_stats);
} stats SEC(".maps");

#define count(field, n) do {								\
	u32 zero__ = 0;									\
	struct goodness_stats *s__ = bpf_map_lookup_elem(&stats, &zero__);		\
	if (s__)									\
		s__->field += (n);							\
} while (0)

static __always_inline struct slot *slot_at(u32 idx)
{
	return &slots[idx & (MAX_TASKS - 1)];
}

static __always_inline struct cpu_state *cpu_at(s32 cpu)
{
	return &cpu_states[cpu & (MAX_CPUS - 1)];
}

static __always_inline void kick(s32 cpu, u64 flags)
{
	kick_from(cpu_at(bpf_get_smp_processor_id())->online, cpu, flags);
}

/* Returns the task's slot; NO_SLOT: it has none. */
static __always_inline u32 slot_of(struct task_struct *p)
{
	struct task_ctx *ctx = bpf_task_storage_get(&tasks, p, NULL, 0);

	return ctx ? ctx->slot & (MAX_TASKS - 1) : NO_SLOT;
}

static __always_inline u32 queue_of(s32 cpu)
{
	return mode == GOODNESS_MODE_HAMQ ? cpu & (MAX_CPUS - 1) : 0;
}

static __always_inline bool may_run_on(const struct slot *s, s32 cpu)
{
	if (!s->may_migrate && s->cpu != cpu)
		return false;
	return s->cpus[(cpu >> 6) & (MAX_CPUS / 64 - 1)] >> (cpu & 63) & 1;
}

/*
 * Ticks of a new slice, at HZ 100. 2.4: 1 to 11, 6 at nice 0. 2.5.2: 10 ms at nice 19, 2.051 ms
 * more for each nice level below, in whole ticks: 1 to 8, 4 at nice 0.
 */
static __always_inline s32 ticks_of(s32 nice)
{
	if (mode == GOODNESS_MODE_2_4)
		return ((20 - nice) >> 2) + 1;
	return (10000 + 2051 * (19 - nice)) / (s32)(TICK_NS / 1000);
}

static __always_inline void set_counter(struct slot *s, s32 counter)
{
	s->counter = counter;
	s->left_ns = (s64)counter * TICK_NS;
}

static __always_inline void add_dyn_prio(struct slot *s, u64 n)
{
	s->dyn_prio = n < MAX_DYN_PRIO - s->dyn_prio ? s->dyn_prio + n : MAX_DYN_PRIO;
}

static __always_inline u64 *epoch_of(u32 queue)
{
	return &epochs[queue & (MAX_CPUS - 1)];
}

/*
 * 2.4: halves the counter and adds the ticks of the nice value, `times` times. From the eighth time
 * on the counter does not change.
 */
static __always_inline void renew_counter(struct slot *s, u64 times)
{
	s32 counter = s->counter;
	u32 i;

	for (i = 0; i < 8; i++) {
		if (i >= times)
			break;
		counter = (counter >> 1) + ticks_of(s->nice);
	}
	set_counter(s, counter);
}

/*
 * Applies to a task the recalculations since the last call for it. 2.4 renews every task's counter.
 * 2.5.2 gives a slice to a runnable task; a sleeping one gains a level of dynamic priority for each
 * recalculation that it sleeps through.
 */
static __always_inline void catch_up(struct slot *s)
{
	u64 behind = READ_ONCE(*epoch_of(s->queue)) - s->epoch;

	if (!behind)
		return;
	s->epoch += behind;
	if (mode == GOODNESS_MODE_2_4)
		renew_counter(s, behind);
	else if (s->asleep)
		add_dyn_prio(s, behind);
	else
		set_counter(s, ticks_of(s->nice));
}

/* Assigns the task to this queue, if it belongs to another one. */
static __always_inline void belong_to(struct slot *s, u32 queue)
{
	catch_up(s);
	if (s->queue == queue)
		return;
	s->queue = queue;
	s->epoch = READ_ONCE(*epoch_of(queue));
}

/*
 * Returns how much the task deserves a CPU whose last address space is `mm`; 0: the task's ticks
 * are spent; -1: it yielded.
 */
static __always_inline s32 goodness(const struct slot *s, s32 cpu, u64 mm)
{
	s32 weight;

	if (s->yielded)
		return -1;
	if (s->counter <= 0)
		return 0;
	weight = mode == GOODNESS_MODE_2_4 ? s->counter : s->dyn_prio + 1;
	if (s->cpu == cpu)
		weight += affinity_bonus;
	if (s->mm == mm || !s->mm)
		weight++;
	return weight + 20 - s->nice;
}
