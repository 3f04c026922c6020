/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Leaf queues: a CPU's queues with load left, in a list that is walked from time to time. A
 * queue's part of its group's totals becomes out of date while nothing happens to the queue: while
 * the queue is empty and its load decays, or while its tasks wait behind others. The walk updates
 * every queue of the list and its part of the totals. It removes queues without load from the list.
 *
 * Children come before their parents, because a queue's load is part of its parent's. The parent of
 * a queue in the list is in the list, too.
 *
 * A CPU walks its own list at ticks and when it becomes idle, at most once in LEAF_NS. An idle CPU
 * has no ticks, so busy CPUs walk the lists of CPUs that have not walked for twice as long: one
 * busy CPU per LEAF_NS, at most LEAF_CPUS lists. A walk holds the lock of the list's CPU, and
 * releases it after each queue.
 *
 * Models: leaf_cfs_rq_list, update_shares() of Linux 3.2 and update_blocked_averages() of 3.8.
 * Differs: the walk goes by time, not by balancing; for idle CPUs the CPU whose tick comes first
 * walks, not the nohz balancer.
 */
#ifndef FAIR_LEAF_BPF_H
#define FAIR_LEAF_BPF_H

#include "load.bpf.h"

#define LEAF_NS		(8 * NSEC_PER_MSEC)
#define LEAF_CPUS	32

/* ---- the list ---- */

/*
 * Links the queue, and all queues above it that are not in the list, at the front of the list. With
 * load=window the root's queue is left out.
 */
static __noinline int leaf_link(fair_rq_t *q)
{
	fair_cpu_t *c = q->on;
	fair_rq_t *rest = c->leafs, *below = NULL;

	c->leafs = q;
	while (q && !q->leaf && (q->depth || is_pelt()) && can_loop) {
		q->leaf = 1;
		q->leaf_prev = below;
		if (below)
			below->leaf_next = q;
		below = q;
		q = q->depth ? q->se.q : NULL;
		if (q)
			q->leaf_below++;
	}
	below->leaf_next = rest;
	if (rest)
		rest->leaf_prev = below;
	return 0;
}

static __always_inline void leaf_add(fair_rq_t *q)
{
	if (!q->leaf && (q->depth || is_pelt()))
		leaf_link(q);
}

static void leaf_remove(fair_rq_t *q)
{
	fair_cpu_t *c = q->on;
	fair_rq_t *prev = q->leaf_prev, *next = q->leaf_next;

	if (!q->leaf)
		return;
	if (prev)
		prev->leaf_next = next;
	else
		c->leafs = next;
	if (next)
		next->leaf_prev = prev;
	if (c->leaf_at == q)
		c->leaf_at = next;
	if (q->depth)
		q->se.q->leaf_below--;
	q->leaf = 0;
}

/* ---- the walk ---- */

static bool has_load(fair_rq_t *q)
{
	if (q->nr || q->leaf_below)
		return true;
	if (!is_pelt())
		return q->load_avg || q->load_contrib;
	if (q->runnable_load || q->blocked_load || q->tg_load_contrib)
		return true;
	if (!q->depth)
		return q->on->avg.runnable;
	return q->se.contrib || q->tg_runnable_contrib || q->tg_usage_contrib;
}

static void leaf_refresh(fair_rq_t *q, u64 now)
{
	fair_cpu_t *c = q->on;

	if (!is_pelt()) {
		window_update(q, now, true);
	} else {
		pelt_update_blocked(q, now, true);
		if (q->depth)
			pelt_refresh_entity(&q->se, q->se.q, now, true);
		else
			pelt_update(&c->avg, now, q->h_nr, q->h_nr);
	}
	update_shares(q);
	if (!has_load(q))
		leaf_remove(q);
}

/*
 * Updates one queue of a walk, and returns whether there are more. Holds the lock for one queue
 * only.
 */
__weak bool leaf_step(s32 cpu, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	struct fair_lock *l = lock_of(cpu);
	fair_rq_t *q, *next = NULL;

	use_arena();
	if (!l)
		return false;
	bpf_spin_lock(&l->lock);
	q = c->leaf_at ?: c->leafs;
	if (q) {
		next = q->leaf_next;
		leaf_refresh(q, now);
	}
	c->leaf_at = next;
	bpf_spin_unlock(&l->lock);
	return next;
}

__weak int leaf_walk(s32 cpu, u64 now)
{
	u32 i;

	cpu_at(cpu)->leafs_at = now;
	bpf_for(i, 0, MAX_GROUPS)
		if (!leaf_step(cpu, now))
			break;
	return 0;
}

/*
 * Walks the lists of at most LEAF_CPUS CPUs that have not walked for 2 * LEAF_NS, such as idle
 * CPUs, which have no ticks.
 */
__weak int leaf_round(u64 now)
{
	u32 i, walks = 0, cpu = leaf_round_cpu;
	u64 due = leaf_round_at;

	use_arena();
	if (!__sync_bool_compare_and_swap(&leaf_round_at, due, now + LEAF_NS))
		return 0;
	bpf_for(i, 0, nr_cpus) {
		fair_cpu_t *c;

		cpu = cpu + 1 < nr_cpus ? cpu + 1 : 0;
		c = cpu_at(cpu);
		if (!c->leafs || (s64)(now - c->leafs_at) < (s64)(2 * LEAF_NS))
			continue;
		leaf_walk(cpu, now);
		if (++walks == LEAF_CPUS)
			break;
	}
	leaf_round_cpu = cpu;
	return 0;
}

/*
 * Updates the queues of this CPU's list if the last walk is at least LEAF_NS ago. Also walks for
 * the CPUs that do not walk themselves, if no CPU has done so for LEAF_NS. Called at this CPU's
 * ticks, and when it becomes idle.
 */
static __always_inline void leaf_tick(fair_cpu_t *c, s32 cpu, u64 now)
{
	if (c->leafs && (s64)(now - c->leafs_at) >= (s64)LEAF_NS)
		leaf_walk(cpu, now);
	if ((s64)(now - leaf_round_at) >= 0)
		leaf_round(now);
}

#endif
