/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Spreading of gangs: two tasks of one gang on a CPU cannot run together, and a CPU without a task
 * of the gang stays out of the gang's rounds.
 *
 * A task of a gang goes to the CPU with the fewest tasks of its gang. Balancing does not bring it
 * to a CPU that has as many tasks of the gang as the CPU that it leaves. A CPU that finds at a tick
 * that it has several tasks of a gang sends a waiting one to a CPU of its domain that has none.
 * Balancing later evens out the load, and brings back a task that is not of this gang. Each move by
 * a CPU with several tasks leaves one pair of tasks less on one CPU, so these moves come to an end.
 *
 * Models: nothing. The original's users bound their tasks; GANG.md, rule 8. With
 * gang_rules=posted nothing is spread.
 */
#ifndef FAIR_SPREAD_BPF_H
#define FAIR_SPREAD_BPF_H

#include "gang.bpf.h"
#include "wake.bpf.h"

/* Whether gangs are spread. */
static __always_inline bool gangs_spread(void)
{
	return gang != FAIR_GANG_OFF && !gangs_as_posted();
}

/* Shortest interval between a CPU's searches for a CPU to which it can send a task of a gang. */
#define SPREAD_NS	(20 * NSEC_PER_MSEC)

/*
 * Returns the number of runnable tasks of a gang on a CPU, in the gang's cgroup and all below it.
 */
static __always_inline u32 gang_tasks(u32 group, u32 cpu)
{
	return rq_at(group, cpu)->h_nr;
}

/*
 * Whether balancing may move the task between these CPUs: `to` must have fewer tasks of its gang
 * than `from`.
 */
static __always_inline bool gang_lets(fair_task_t *t, s32 from, s32 to)
{
	u32 group = gangs_spread() ? gang_of(t->group) : ROOT_GROUP;

	return group == ROOT_GROUP || gang_tasks(group, to) < gang_tasks(group, from);
}

/*
 * Returns the allowed CPU of the domain with the fewest tasks of a gang, and of equal ones that
 * with the fewest tasks at all; `cpu` if each CPU has a task of the gang. A CPU that waits for the
 * end of a round counts as one with a task.
 */
static __noinline s32 least_ganged(struct task_struct *p, u32 group, s32 cpu)
{
	u32 i, first = gang_cpu(cpu)->first, nr = gang_cpu(cpu)->nr;
	u64 least = ~0ULL;
	s32 best = cpu;

	/* If each CPU has a task of the gang, the task goes to `cpu`. */
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

/* Returns the CPU for a woken or new task of a gang, which was to go to `cpu`. */
static __always_inline s32 gang_place(struct task_struct *p, fair_task_t *t, s32 cpu)
{
	u32 group = gangs_spread() && p->nr_cpus_allowed > 1 ? gang_of(t->group) : ROOT_GROUP;
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

/*
 * Returns a CPU without a task of the gang on which a task of the gang that waits on `cpu` may run;
 * `cpu` if there is none. Tries only the first task of each queue.
 */
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

/*
 * At a tick: whether the next dispatch is to send a waiting task of `group` to another CPU. If the
 * CPU has several tasks of the gang and none may go, the gang is marked as one that does not fit.
 */
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

/* Ends the turn of the task that runs on a CPU, if its gang may have rounds. */
static __noinline int end_turn(u32 cpu, u64 now)
{
	fair_task_t *t = cpu_at(cpu)->curr;
	u32 group = t ? gang_of(t->group) : ROOT_GROUP;

	if (group != ROOT_GROUP && gang_fits(group, cpu, now))
		kick(cpu, SCX_KICK_PREEMPT);
	return 0;
}

/*
 * Ends the turn on CPU `to`, on whose local queue a task was just put. Without this call the task
 * could wait for long: the CPU does not count the task before the task runs, so no tick there ends
 * a turn for it, and a CPU in round after round does not balance.
 */
static __always_inline void gang_sent(s32 to, u64 now)
{
	if (gangs_spread())
		end_turn(to, now);
}

static __always_inline bool gang_spreads(u32 cpu, u32 group, u64 now)
{
	return gangs_spread() && spread_is_due(cpu, group, now);
}

#endif
