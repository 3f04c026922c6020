/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tasks: where they are counted, and their memory.
 *
 * A task is counted on a CPU from its first ops.enqueue() to ops.quiescent(), or from ops.running()
 * if the kernel put it on the CPU directly. All changes are made under the kernel's lock of the
 * task's run queue, so the task's own fields need no lock. The kernel may move a task between CPUs
 * without a call to the scheduler, so the next operation on the task calls follow_task(). If the
 * task has left its CPU, follow_task() takes the lock of that CPU.
 *
 * Each operation takes its CPU's lock (lock_of()) once. ops.quiescent(), which follows
 * ops.stopping() at once, takes a task that goes to sleep off the CPU and its queue.
 */
#ifndef FAIR_TASK_BPF_H
#define FAIR_TASK_BPF_H

#include "entity.bpf.h"
#include "group.bpf.h"
#include "wake.bpf.h"
#include "gang.bpf.h"
#include "numa.bpf.h"

/* Finds the vruntime of the first waiting task in a queue's DSQ. Returns false if none waits. */
static __always_inline bool peek_head(fair_rq_t *q, u64 *head)
{
	struct task_struct *p = __COMPAT_scx_bpf_dsq_peek(q->dsq);

	if (p)
		*head = p->scx.dsq_vtime;
	return p != NULL;
}

static void read_policy(struct task_struct *p, fair_task_t *t)
{
	u32 nice = p->static_prio - 120 + 20;

	if (t->nice == nice && t->policy == p->policy)
		return;
	t->nice = nice;
	t->policy = p->policy;
	t->policy_idle = p->policy == POLICY_IDLE;
	t->policy_batch = p->policy == POLICY_BATCH;
	if (nice > 39)
		nice = 20;
	t->se.weight = t->policy_idle ? IDLE_LOAD : nice_weight[nice];
}

/*
 * Returns the task's queue on the CPU where the task becomes runnable, and takes the task off its
 * former queue. Called without a CPU's lock.
 */
static __always_inline fair_rq_t *to_queue(fair_task_t *t, s32 cpu)
{
	fair_rq_t *old = t->se.q, *q;

	if (old && t->cpu == cpu)
		return old;
	q = rq_at(t->group, cpu);
	if (is_pelt() && old && old != q)
		pelt_remove_sleeper(&t->se, old);
	return q;
}

static __always_inline void count_in(fair_task_t *t, fair_rq_t *q, s32 cpu, int how, u64 now)
{
	enqueue_task(t, q, how, now);
	if (numa_on())
		numa_note_enqueue(t, cpu, now);
	t->cpu = cpu;
}

static __noinline void attach_task(fair_task_t *t, s32 cpu, int how, u64 now)
{
	struct fair_lock *l = lock_of(cpu);
	fair_rq_t *q;

	if (!l || t->se.on_rq)
		return;
	q = to_queue(t, cpu);
	bpf_spin_lock(&l->lock);
	charge_until(q->on, now);
	count_in(t, q, cpu, how, now);
	bpf_spin_unlock(&l->lock);
}

/*
 * Takes a task that is no longer runnable here off its queue. If the task runs, it stops, at
 * `sum_exec` by its own clock.
 */
static __noinline void detach_task(fair_task_t *t, bool sleeps, u64 sum_exec, u64 now)
{
	struct fair_lock *l = lock_of(t->cpu);
	fair_rq_t *q = t->se.q;
	bool has_head = false, stops, throttled = false;
	fair_cpu_t *c;
	u64 head = 0;

	if (!l || !q || !t->se.on_rq)
		return;
	c = q->on;
	stops = c->curr == t;
	/*
	 * Looks at the first waiting task only if the running task stays. If the running task
	 * stops, fair_running() does so when the next task starts.
	 */
	if (!stops)
		has_head = peek_head(q, &head);
	bpf_spin_lock(&l->lock);
	if (stops) {
		charge_exact(c, sum_exec, now);
		throttled = throttle_path(q, now);
	} else {
		charge_until(c, now);
		set_head(q, has_head, head);
	}
	dequeue_task(t, sleeps, now);
	if (stops) {
		if (!q->nr)
			note_waiting(q, false);
		put_curr(c, !c->nr_throttled, now);
	}
	if (numa_on())
		numa_note_dequeue(t, t->cpu, now);
	bpf_spin_unlock(&l->lock);
	t->queued = 0;
	if (stops)
		t->stopped_at = now;
	if (throttled)
		count(throttles);
}

/* Removes the load of a sleeping task from the task's queue, to which the task will not return. */
static void forget_sleeper(fair_task_t *t)
{
	if (is_pelt() && t->se.q)
		pelt_remove_sleeper(&t->se, t->se.q);
}

/* Counts a task on the CPU `cpu`, to which the kernel moved it while it waited. */
static __always_inline void follow_task(fair_task_t *t, s32 cpu, u64 now)
{
	if (t->cpu == cpu || !t->se.on_rq)
		return;
	detach_task(t, false, 0, now);
	attach_task(t, cpu, ENQ_MOVED, now);
}

/*
 * Counts the task as waiting and, if it was not runnable, as runnable. Returns true if it should
 * preempt.
 */
static __noinline bool start_waiting(fair_task_t *t, s32 cpu, int how, u64 now)
{
	struct fair_lock *l = lock_of(cpu);
	bool wins = false, fresh = t->fresh, counted = t->se.on_rq;
	fair_rq_t *q = t->se.q;
	fair_cpu_t *c;

	if (!l)
		return false;
	if (!counted)
		q = to_queue(t, cpu);
	c = q->on;
	bpf_spin_lock(&l->lock);
	if (!counted) {
		charge_until(c, now);
		count_in(t, q, cpu, how, now);
	}
	if (!q->has_head || time_before(t->se.vruntime, q->head)) {
		note_waiting(q, true);
		q->head = t->se.vruntime;
	}
	if (fresh) {
		/*
		 * A waker that is about to sleep is not preempted, because that would only add a
		 * switch.
		 */
		wins = t->sync_waker != cpu && preempts(c, t) && !gang_keeps(cpu, t->group, now);
		t->sync_waker = NO_CPU;
		t->fresh = 0;
	}
	t->queued = 1;
	bpf_spin_unlock(&l->lock);
	return wins || (fresh && gang_enters(cpu, t->group, now));
}

/* ---- memory ---- */

struct fair_pool {
	struct bpf_spin_lock lock;
	u32 pad;
	fair_task_t *free;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct fair_pool);
} pool SEC(".maps");

static fair_task_t *alloc_task(void)
{
	u32 zero = 0, i, n = ARENA_PAGE / sizeof(struct fair_task);
	struct fair_pool *at = bpf_map_lookup_elem(&pool, &zero);
	fair_task_t *t, *page;

	if (!at)
		return NULL;
	bpf_spin_lock(&at->lock);
	t = at->free;
	if (t)
		at->free = t->free_next;
	bpf_spin_unlock(&at->lock);
	if (t)
		return t;
	page = alloc_bytes(ARENA_PAGE);
	if (!page)
		return NULL;
	for (i = 1; i + 1 < n && can_loop; i++)
		page[i].free_next = &page[i + 1];
	bpf_spin_lock(&at->lock);
	page[n - 1].free_next = at->free;
	at->free = &page[1];
	bpf_spin_unlock(&at->lock);
	return page;
}

static void free_task(fair_task_t *t)
{
	u32 zero = 0;
	struct fair_pool *at = bpf_map_lookup_elem(&pool, &zero);

	if (!at)
		return;
	bpf_spin_lock(&at->lock);
	t->free_next = at->free;
	at->free = t;
	bpf_spin_unlock(&at->lock);
}

/* A new task counts as always running until its load is known. */
static void init_load(fair_entity_t *se)
{
	u32 units = latency() >> PELT_UNIT_SHIFT;

	se->avg.last = scx_bpf_now();
	se->avg.runnable = units;
	se->avg.running = units;
	se->avg.period = units;
	se->avg.open = units % PELT_PERIOD;
	se->contrib = se->weight;
	se->decays_at = 0;
}

#endif
