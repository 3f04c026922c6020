/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gangs are spread: two tasks of one on a CPU cannot run together, and a CPU without one stays out of every round.
 *
 * A task of a gang goes where the fewest of its gang are, and balancing does not bring it to a CPU that has as many of them as the
 * one it leaves. A CPU that finds at a tick that it has several sends one that waits to a CPU of its domain that has none; load
 * follows with the next balancing, which then brings back something else. Each such move leaves one pair less on one CPU, so they
 * come to an end.
 *
 * Models: nothing. The original's users bound their tasks; README, "Gangs".
 */
#ifndef FAIR_SPREAD_BPF_H
#define FAIR_SPREAD_BPF_H

#include "gang.bpf.h"
#include "wake.bpf.h"

/* How often a CPU looks where to send one. */
#define SPREAD_NS	(20 * NSEC_PER_MSEC)

/* The runnable tasks of a gang on a CPU, in all cgroups below it. */
static __always_inline u32 gang_tasks(u32 group, u32 cpu)
{
	return rq_at(group, cpu)->h_nr;
}

/* Whether balancing may take a task from its CPU to another, for its gang's sake. */
static __always_inline bool gang_lets(fair_task_t *t, s32 from, s32 to)
{
	u32 group = gang == FAIR_GANG_OFF ? ROOT_GROUP : gang_of(t->group);

	return group == ROOT_GROUP || gang_tasks(group, to) < gang_tasks(group, from);
}

/*
 * The CPU of a domain with the fewest tasks of a gang, of these the one with the fewest tasks; `cpu` if there is no better one. A
 * CPU that waits for the end of a round counts as one that has a task.
 */
static __noinline s32 least_ganged(struct task_struct *p, u32 group, s32 cpu)
{
	u32 i, first = gang_cpu(cpu)->first, nr = gang_cpu(cpu)->nr;
	u64 least = ~0ULL;
	s32 best = cpu;

	/* Each of them has one. */
	if (gang_width(group, cpu) >= nr)
		return cpu;
	bpf_for(i, first, first + nr) {
		u32 at = nth_cpu(i);
		u64 full = (u64)gang_tasks(group, at) << 32 | (cpu_at(at)->root->h_nr + !!gang_cpu(at)->waits_until);

		if (full >= least || !cpu_at(at)->online || (p && !may_run_on(p, at)))
			continue;
		least = full;
		best = at;
		if (!full)
			break;
	}
	return best;
}

/* Where a task that wakes up or is new goes, if it was to go to `cpu`. */
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

/* At a tick of a task of `group`: whether the next dispatch shall send one of its gang away. */
static __noinline bool spread_is_due(u32 cpu, u32 group, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	s32 to;

	group = gang_of(group);
	if (group == ROOT_GROUP || gang_tasks(group, cpu) < 2 || (s64)(now - c->spread_at) < (s64)SPREAD_NS)
		return false;
	c->spread_at = now;
	to = least_ganged(NULL, group, cpu);
	if (gang_tasks(group, to))
		return false;
	c->spread_to = to;
	c->spread_gang = group;
	return true;
}

static __always_inline bool gang_spreads(u32 cpu, u32 group, u64 now)
{
	return gang != FAIR_GANG_OFF && spread_is_due(cpu, group, now);
}

#endif
