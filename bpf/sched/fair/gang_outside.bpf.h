/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tasks of no gang beside gangs: what they may lose to rounds.
 *
 * Owns: who is a sleeper from outside, when it comes before the gang whose round goes on, and for how long a CPU keeps it waiting.
 *
 * Vruntime makes up for what a task that runs all the time loses to a round, but not for what a sleeper loses. So sleepers lose a
 * tenth of their time at most. GANG.md, rule 7.
 */
#ifndef FAIR_GANG_OUTSIDE_BPF_H
#define FAIR_GANG_OUTSIDE_BPF_H

#include "gang_round.bpf.h"

/* A CPU keeps no task from outside that woke up waiting for a round for longer than this at once, but for the tick that ends it. */
static __always_inline s32 max_grace(void)
{
	return tick_ns();
}

/*
 * A sleeper that waits loses what vruntime cannot give it back: it sleeps on, and the next time starts from the queue's minimum
 * again. So a CPU keeps them waiting for rounds for a tenth of its time at most.
 */
static __always_inline bool has_grace(struct gang_cpu *g, u64 now)
{
	s64 passed = now - g->grace_at, left = g->grace + passed / SPARE_PARTS - (g->keeps ? passed : 0);

	g->grace_at = now;
	g->grace = left > max_grace() ? max_grace() : left < -(s64)NSEC_PER_SEC ? -(s64)NSEC_PER_SEC : left;
	return g->grace > 0;
}

/*
 * Whether a task counts as one that sleeps: it has run for less than ten periods since it woke up. Of a longer burst the two turns that
 * gangs may be ahead of it when it sleeps again are a small part; vruntime makes up for all before.
 */
static __always_inline bool is_sleeper(fair_task_t *t)
{
	return t->se.ran - t->ran_at_wake < SPARE_PARTS * latency();
}

/* It was not runnable. A new task is no sleeper before it has slept. */
static __always_inline void gang_arrives(struct task_struct *p, fair_task_t *t, int how, u64 now)
{
	if (gang == FAIR_GANG_OFF)
		return;
	gang_notes(p, t, now);
	if (how == ENQ_WOKEN)
		t->ran_at_wake = t->se.ran;
	else if (how == ENQ_NEW)
		t->ran_at_wake = t->se.ran - SPARE_PARTS * latency();
}

/* A CPU looks at so many gangs at most for who comes after them. */
#define MAX_LEFT	16

/*
 * v2: whether a sleeper from outside is more deserving than `group`, whose round goes on. It does not wait for other gangs, which have to
 * wait themselves. If so the next pick leaves those out, too.
 */
__weak bool outsider_is_next(u32 cpu, u32 group, bool prev_runs)
{
	fair_cpu_t *c = cpu_at(cpu);
	struct task_struct *p;
	bool is_next = false;
	u32 tries, other;
	fair_task_t *t;
	u64 dsq;

	c->round++;
	bpf_for(tries, 0, MAX_LEFT) {
		dsq = pick(cpu, prev_runs);
		if (dsq == PICK_NONE)
			break;
		other = dsq == PICK_PREV ? c->curr->group : dsq >> 16 & 0xffff;
		other = gang_of(other);
		if (other == group)
			break;
		if (other != ROOT_GROUP) {
			rq_at(other, cpu)->se.skip_round = c->round;
			continue;
		}
		p = dsq == PICK_PREV ? NULL : __COMPAT_scx_bpf_dsq_peek(dsq);
		t = dsq == PICK_PREV ? c->curr : p ? task_of(p) : NULL;
		is_next = t && is_sleeper(t);
		break;
	}
	if (!is_next)
		c->round++;
	return is_next;
}

/* Whether the CPU runs a sleeper from outside. It is not preempted for a round. */
static __always_inline bool outsider_runs(u32 cpu)
{
	fair_task_t *t = cpu_at(cpu)->curr;

	return t && is_sleeper(t) && gang_of(t->group) == ROOT_GROUP;
}

/* v2: whether a task that woke up, and would preempt, has to wait for a round, under the CPU's lock. */
static __always_inline bool gang_keeps(u32 cpu, u32 group, u64 now)
{
	struct gang_cpu *g = gang_cpu(cpu);

	if (!gang_bound(cpu, now) || gang_of(group) == gang_of_round(g->round))
		return false;
	if (gang_of(group) != ROOT_GROUP)
		return true;
	if (!has_grace(g, now))
		return false;
	g->keeps = 1;
	return true;
}

#endif
