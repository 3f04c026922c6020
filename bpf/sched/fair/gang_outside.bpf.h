/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tasks of no gang beside gangs: the limit of what rounds may cost them.
 *
 * Owns: which task is a sleeper from outside, when it goes before the gang that has its round, and
 * how long a CPU keeps it waiting.
 *
 * Vruntime makes up for the time that rounds take from a task that always runs, but not from a
 * sleeper. A CPU therefore keeps sleepers waiting for a tenth of its time at most. GANG.md, rule 7.
 */
#ifndef FAIR_GANG_OUTSIDE_BPF_H
#define FAIR_GANG_OUTSIDE_BPF_H

#include "gang_round.bpf.h"

/*
 * Longest uninterrupted time for which a CPU keeps a woken task of no gang waiting. The wait ends
 * at the first tick after this time.
 */
static __always_inline s32 max_grace(void)
{
	return tick_ns();
}

/*
 * Whether the CPU may keep sleepers from outside waiting now. It may do so for a tenth of its time
 * at most, because vruntime does not compensate a sleeper for a wait: after its next sleep the
 * sleeper starts from the queue's min_vruntime again.
 */
static __always_inline bool has_grace(struct gang_cpu *g, u64 now)
{
	s64 passed = now - g->grace_at, left = g->grace + passed / SPARE_PARTS - (g->delays_outsider ? passed : 0);

	g->grace_at = now;
	g->grace = left > max_grace() ? max_grace() : left < -(s64)NSEC_PER_SEC ? -(s64)NSEC_PER_SEC : left;
	return g->grace > 0;
}

/*
 * Whether a task counts as a sleeper: it has run for less than ten times latency() since it woke
 * up. In a longer burst the two turns by which a gang may be ahead of the task are a small part,
 * and vruntime makes up for the rest.
 */
static __always_inline bool is_sleeper(fair_task_t *t)
{
	return t->se.ran - t->ran_at_wake < SPARE_PARTS * latency();
}

/* Notes that the task becomes runnable. A new task counts as no sleeper before its first sleep. */
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

/* Largest number of gangs that a CPU passes over to find the task that comes after them. */
#define MAX_LEFT	16

/*
 * v2: whether a sleeper from outside deserves the CPU more than `group`, which has its round. Other
 * gangs, which have to wait for a round themselves, do not hold the sleeper up: the next pick
 * leaves them out, too.
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

/* Whether the CPU runs a sleeper from outside, which a round does not preempt. */
static __always_inline bool outsider_runs(u32 cpu)
{
	fair_task_t *t = cpu_at(cpu)->curr;

	return t && is_sleeper(t) && gang_of(t->group) == ROOT_GROUP;
}

/*
 * v2: whether a woken task that would preempt has to wait, because the CPU takes part in a round of
 * another gang than the task's. A task of no gang waits only while has_grace(). Called under the
 * CPU's lock.
 */
static __always_inline bool gang_keeps(u32 cpu, u32 group, u64 now)
{
	struct gang_cpu *g = gang_cpu(cpu);

	if (!gang_bound(cpu, now) || gang_of(group) == gang_of_round(g->round))
		return false;
	if (gang_of(group) != ROOT_GROUP)
		return true;
	if (!has_grace(g, now))
		return false;
	g->delays_outsider = 1;
	return true;
}

#endif
