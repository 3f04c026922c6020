/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tasks: where they are counted, and the memory for them.
 *
 * A task is counted on a CPU from ops.runnable() to ops.quiescent(). All that changes it is called with the kernel's lock of the
 * task's run queue, so its own fields need none. When the kernel moves it between CPUs on the way it says nothing: whoever
 * is called next for the task calls follow_task(). If that is another CPU's program, it takes the lock of the CPU that the task left.
 */
#ifndef FAIR_TASK_BPF_H
#define FAIR_TASK_BPF_H

#include "entity.bpf.h"
#include "wake.bpf.h"
#include "gang.bpf.h"
#include "numa.bpf.h"

/* The vruntime of the first task that waits in a queue's DSQ. */
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

	t->policy_idle = p->policy == POLICY_IDLE;
	t->policy_batch = p->policy == POLICY_BATCH;
	if (nice > 39)
		nice = 20;
	t->se.weight = t->policy_idle ? IDLE_LOAD : nice_weight[nice];
}

/* The task becomes runnable on a CPU. */
static __noinline void attach_task(fair_task_t *t, s32 cpu, int how, u64 now)
{
	fair_rq_t *q = rq_at(t->group, cpu);
	fair_entity_t *se = &t->se;
	struct fair_lock *l = lock_of(cpu);

	if (!l || se->on_rq)
		return;
	if (is_pelt() && se->q && se->q != q)
		pelt_remove_sleeper(se, se->q);
	bpf_spin_lock(&l->lock);
	charge_until(cpu_at(cpu), now);
	enqueue_task(t, q, how, now);
	numa_note_enqueue(t, cpu, now);
	t->cpu = cpu;
	bpf_spin_unlock(&l->lock);
}

static __noinline void detach_task(fair_task_t *t, bool sleeps, u64 now)
{
	struct fair_lock *l = lock_of(t->cpu);
	fair_rq_t *q = t->se.q;
	u64 head = 0;
	bool has_head;

	if (!l || !q || !t->se.on_rq)
		return;
	has_head = peek_head(q, &head);
	bpf_spin_lock(&l->lock);
	charge_until(cpu_at(t->cpu), now);
	set_head(q, has_head, head);
	dequeue_task(t, sleeps, now);
	numa_note_dequeue(t, t->cpu, now);
	bpf_spin_unlock(&l->lock);
}

/* A task that was moved while it waited is still counted where it was. */
static void follow_task(fair_task_t *t, s32 cpu, u64 now)
{
	if (t->cpu == cpu || !t->se.on_rq)
		return;
	detach_task(t, false, now);
	attach_task(t, cpu, ENQ_MOVED, now);
}

/* Counts the task as waiting; true if it should run now. */
static __noinline bool start_waiting(fair_task_t *t, s32 cpu, u64 now)
{
	struct fair_lock *l = lock_of(cpu);
	fair_cpu_t *c = cpu_at(cpu);
	fair_rq_t *q = t->se.q;
	bool wins = false;

	if (!l || !q)
		return false;
	bpf_spin_lock(&l->lock);
	if (!q->has_head || time_before(t->se.vruntime, q->head)) {
		q->has_head = 1;
		q->head = t->se.vruntime;
	}
	if (t->fresh) {
		charge_until(c, now);
		wins = !gang_keeps(cpu, t->group, now) && preempts(c, t);
		t->fresh = 0;
	}
	t->queued = 1;
	bpf_spin_unlock(&l->lock);
	return wins;
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

/* Counts as one that ran all the time, until it is known better. */
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
