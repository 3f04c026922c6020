/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Spreading of gangs: two tasks of one gang on a CPU cannot run together, and a CPU without one
 * stays out of every round.
 *
 * A task of a gang goes where the fewest of its gang are. Balancing does not bring it to a CPU that
 * has as many of them as the one it leaves. A CPU that finds at a tick that it has several sends a
 * waiting one to a CPU of its domain that has none. Load follows with the next balancing, which
 * then brings back another task. Each such move leaves one pair less on one CPU, so the moves come
 * to an end.
 *
 * Models: nothing. The original's users bound their tasks; GANG.md, rule 8.
 */
#ifndef FAIR_SPREAD_BPF_H
#define FAIR_SPREAD_BPF_H

#include "gang.bpf.h"
#include "wake.bpf.h"

/* Interval at which a CPU looks for a place to send a task. */
#define SPREAD_NS	(20 * NSEC_PER_MSEC)

/* Runnable tasks of a gang on a CPU, in all cgroups below it. */
static __always_inline u32 gang_tasks(u32 group, u32 cpu)
{
	return rq_at(group, cpu)->h_nr;
}

/* Whether balancing may move the task between these CPUs without bringing its gang together. */
static __always_inline bool gang_lets(fair_task_t *t, s32 from, s32 to)
{
	u32 group = gang == FAIR_GANG_OFF ? ROOT_GROUP : gang_of(t->group);

	return group == ROOT_GROUP || gang_tasks(group, to) < gang_tasks(group, from);
}

/*
 * CPU of a domain with the fewest tasks of a gang, of equals that with the fewest tasks; `cpu` if
 * none is better. A CPU that waits for the end of a round counts as one with a task.
 */
static __noinline s32 least_ganged(struct task_struct *p, u32 group, s32 cpu)
{
	u32 i, first = gang_cpu(cpu)->first, nr = gang_cpu(cpu)->nr;
	u64 least = ~0ULL;
	s32 best = cpu;

	/* Each CPU has one. */
	if (!p || gang_width(group, cpu) >= nr)
		return cpu;
	bpf_for(i, first, first + nr) {
		u32 at = nth_cpu(i);
		u64 full = (u64)gang_tasks(group, at) << 32 | (cpu_at(at)->root->h_nr + !!gang_cpu(at)->waits_until);

		if (full >= least || !cpu_at(at)->online || !may_run_on(p, at))
			continue;
		least = full;
		best = at;
		if (!full)
			break;
	}
	return best;
}

/* CPU for a woken or new task of a gang, which was to go to `cpu`. */
static __always_inline s32 gang_place(struct task_struct *p, fair_task_t *t, s32 cpu)
{
	u32 group = gang == FAIR_GANG_OFF || p->nr_cpus_allowed == 1 ? ROOT_GROUP : gang_of(t->group);
	s32 best;

	if (group == ROOT_GROUP || (!gang_tasks(group, cpu) && !gang_cpu(cpu)->waits_until))
		return cpu;
	best = least_ganged(p, group, cpu);
	if (best != cpu) {
		count(gang_spread);
		scx_bpf_test_and_clear_cpu_idle(best);
	}
	return best;
}

/* CPU without a task of the gang for one waiting on `cpu`; else `cpu`. Tries queue heads only. */
__weak s32 find_spread(u32 group, s32 cpu)
{
	fair_rq_t *q = cpu_at(cpu)->waiting;
	s32 to = cpu;
	u32 i;

	bpf_for(i, 0, nr_groups) {
		struct task_struct *p;

		if (!q || to != cpu)
			break;
		p = gang_of(q->group) == group ? __COMPAT_scx_bpf_dsq_peek(q->dsq) : NULL;
		if (p)
			to = least_ganged(p, group, cpu);
		if (to != cpu && gang_tasks(group, to))
			to = cpu;
		q = q->wait_next;
	}
	return to;
}

/* At a tick: whether the next dispatch sends a task of `group` away. If none may go, it is unfit. */
static __noinline bool spread_is_due(u32 cpu, u32 group, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	s32 to;

	group = gang_of(group);
	if (group == ROOT_GROUP || gang_tasks(group, cpu) < 2 || (s64)(now - c->spread_at) < (s64)SPREAD_NS)
		return false;
	c->spread_at = now;
	to = find_spread(group, cpu);
	if (to == (s32)cpu) {
		gang_does_not_fit(group, cpu, now);
		return false;
	}
	c->spread_to = to;
	c->spread_gang = group;
	return true;
}

/* Ends the turn of the task on a CPU, if its gang has rounds. */
static __noinline int end_turn(u32 cpu, u64 now)
{
	fair_task_t *t = cpu_at(cpu)->curr;
	u32 group = t ? gang_of(t->group) : ROOT_GROUP;

	if (group != ROOT_GROUP && gang_fits(group, cpu, now))
		kick(cpu, SCX_KICK_PREEMPT);
	return 0;
}

/*
 * A task was put on another CPU's local queue. It is not counted there before it runs, so no tick
 * of that CPU ends a turn for it, and a CPU in round after round does not balance.
 */
static __always_inline void gang_sent(s32 to, u64 now)
{
	if (gang != FAIR_GANG_OFF)
		end_turn(to, now);
}

static __always_inline bool gang_spreads(u32 cpu, u32 group, u64 now)
{
	return gang != FAIR_GANG_OFF && spread_is_due(cpu, group, now);
}

#endif
