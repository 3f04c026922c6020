/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gangs: cgroups whose tasks want to run at the same time.
 *
 * Owns: which CPU leads a round, which CPUs are asked to join, how a CPU joins, when a round ends
 * before its time. Does not: keep the state of domains and CPUs (gang_round.bpf.h), protect tasks
 * of no gang (gang_outside.bpf.h), make CPUs wait for the end of a round (gang_wait.bpf.h).
 *
 * A domain has one round at a time. A CPU that picks a task of a gang, and finds no round in its
 * domain, leads one for as long as the task's slice, and asks the other CPUs that have a runnable
 * task of the gang. A CPU follows like this:
 *
 *     v1  the gang's cgroup is the next buddy at every level, once: it runs if that is fair within
 *         the wake-up granularity.
 *     v2  the gang's cgroup goes first at every level until the round is over; woken tasks from
 *         outside do not preempt it, and woken tasks of the gang run at once. The gang may be ahead
 *         of waiting tasks by two turns when it joins: may_follow(). Sleepers from outside lose a
 *         tenth of their time to rounds at most: outsider_is_next(), has_grace().
 *
 * A round is over when its time is up, or when most of its gang sleeps: is_asleep(). A CPU whose
 * own task of the gang sleeps before the others may wait a moment for the end: wait_for_end().
 *
 * With gang_rules=posted there are no rounds: gang_posted.bpf.h.
 *
 * Models: "Gang scheduling in CFS" (December 2011). Differs: GANG.md, "Departures".
 */
#ifndef FAIR_GANG_BPF_H
#define FAIR_GANG_BPF_H

#include "gang_wait.bpf.h"
#include "gang_posted.bpf.h"

/* ---- who joins ---- */

/*
 * v2: whether a gang may go before the tasks that wait on a CPU. At every level it may be ahead of
 * each waiting entity by two turns: one because gangs take turns, and one because CPUs order gangs
 * differently. A turn is a slice and the tick that ends it. This bounds the CPU time that a gang
 * gets too early (GANG.md).
 */
__weak bool may_follow(u32 group, u32 cpu)
{
	fair_entity_t *se = &rq_at(group, cpu)->se;
	fair_rq_t *q = rq_at(group, cpu)->depth ? se->q : NULL;

	if (!q || !rq_at(group, cpu)->h_nr || is_held(rq_at(group, cpu)))
		return false;
	while (q && can_loop) {
		u64 slice = sched_period(q->nr) * NICE_0_LOAD / (q->weight ?: 1), first = se->vruntime;

		leftmost(q, &first);
		if (q->curr && q->curr->on_rq && time_before(q->curr->vruntime, first))
			first = q->curr->vruntime;
		if ((s64)(se->vruntime - first) > (s64)(2 * (slice + to_vruntime(tick_ns(), se))))
			return false;
		se = &q->se;
		q = q->depth ? se->q : NULL;
	}
	return true;
}

/*
 * Whether the CPU, which does not take part in the round, should join it. To join, the CPU needs a
 * runnable task of the round's gang.
 */
static __always_inline bool should_join(u32 cpu, u64 round)
{
	fair_rq_t *q = rq_at(gang_of_round(round), cpu);

	if (gang == FAIR_GANG_V2)
		return may_follow(gang_of_round(round), cpu);
	return gang_cpu(cpu)->round != round && q->h_nr && !is_held(q);
}

/* Asks one CPU to join the round. Interrupts the CPU only if it would join. */
static __always_inline void ask_cpu(u32 cpu, u64 round)
{
	u32 group = gang_of_round(round);
	fair_cpu_t *c = cpu_at(cpu);
	fair_task_t *runs = c->curr;

	if (!c->online || !rq_at(group, cpu)->h_nr)
		return;
	count(gang_requests);
	if (runs && gang_of(runs->group) == group)
		return;
	if (should_join(cpu, round) && !(gang == FAIR_GANG_V2 && outsider_runs(cpu)))
		kick(cpu, SCX_KICK_PREEMPT);
	else
		count(gang_declined);
}

__weak int ask_domain(u32 cpu, u64 round)
{
	u32 i, first = gang_cpu(cpu)->first, nr = gang_cpu(cpu)->nr;

	bpf_for(i, first, first + nr) {
		u32 at = nth_cpu(i);

		if (at != cpu)
			ask_cpu(at, round);
	}
	return 0;
}

/* Notes that the CPU takes part in the round: a task of the round's gang starts to run here. */
static __always_inline void take_part(struct gang_cpu *g, u64 round)
{
	if (g->round != round || g->tries)
		count(gang_favoured);
	g->round = round;
	g->tries = 0;
}

/*
 * Returns the gang for which a CPU starts a round when it runs a task of `group`. A gang that was
 * kept from leading comes first, because a gang without a task on the leader's CPU would never lead
 * otherwise.
 */
static __always_inline u32 next_gang(u32 cpu, u32 group, u64 now)
{
	struct gang_lead *l = lead_of(cpu);
	u32 other = l->wants;

	l->wants = ROOT_GROUP;
	if (other == ROOT_GROUP || !group_at(other)->gang || rq_at(other, cpu)->h_nr || !may_lead(other, cpu, now))
		return group;
	return other;
}

static __always_inline void lead_gang(u32 cpu, u32 group, fair_task_t *t, u64 now)
{
	struct gang_lead *l = lead_of(cpu);
	u32 next = next_gang(cpu, group, now);
	u64 round = l->round;

	/* Ends a round whose cgroup is no gang any more. */
	if (round && !group_at(gang_of_round(round))->gang)
		gang_end(l, round);
	round = gang_elect(l, &gang_serial, next, cpu, now + sched_slice(t->se.q, &t->se), gang_clock(cpu, now));

	if (!round)
		return;
	l->width = 0;
	l->asleep_since = 0;
	if (next == group)
		gang_cpu(cpu)->round = round;
	count(gang_rounds);
	ask_domain(cpu, round);
}

/* Joins, starts or ends a round when a task of `group` starts to run, or was picked again. */
__weak int start_gang(u32 cpu, u32 group, u64 now)
{
	struct gang_cpu *g = gang_cpu(cpu);
	u64 round = round_of(cpu, now);
	fair_task_t *t = cpu_at(cpu)->curr;
	struct gang_lead *l = lead_of(cpu);
	bool leads;

	group = gang_of(group);
	if (g->waits_until)
		end_wait(g, now);
	if (round && gang_of_round(round) == group) {
		take_part(g, round);
		return 0;
	}
	if (g->tries)
		count(gang_declined);
	g->tries = 0;
	if (gang == FAIR_GANG_V2)
		g->round = 0;
	leads = group != ROOT_GROUP && t && may_lead(group, cpu, now);
	if (round) {
		if (leads && !rq_at(group, gang_leader_of(round))->h_nr)
			l->wants = group;
	} else if (leads) {
		lead_gang(cpu, group, t, now);
	} else if (gang_leader_of(l->round) == cpu) {
		gang_end(l, l->round);
		tell_waiting(cpu);
	}
	return 0;
}

static __always_inline void gang_starts(fair_cpu_t *c, fair_task_t *t)
{
	if (gang == FAIR_GANG_OFF || !t)
		return;
	if (gangs_as_posted())
		posted_starts(c->root->cpu, t->group);
	else
		start_gang(c->root->cpu, t->group, scx_bpf_now());
}

/* v2: whether a task that woke up runs at once, because its gang has its round. */
static __always_inline bool gang_enters(u32 cpu, u32 group, u64 now)
{
	u64 round = gang == FAIR_GANG_V2 ? round_of(cpu, now) : 0;

	return round && gang_cpu(cpu)->round != round && gang_of(group) == gang_of_round(round) &&
	       should_join(cpu, round) && !outsider_runs(cpu);
}

/* Whether the running task has used its slice among the tasks of its gang. */
static __always_inline bool turn_is_over(u32 cpu, u32 gang_group)
{
	fair_task_t *t = cpu_at(cpu)->curr;
	fair_entity_t *se;
	fair_rq_t *q;

	if (!t)
		return false;
	se = &t->se;
	q = se->q;
	while (q && gang_of(q->group) == gang_group && can_loop) {
		if (slice_is_over(q, se))
			return true;
		se = &q->se;
		q = q->depth ? se->q : NULL;
	}
	return false;
}

/* At a tick: whether to preempt the running task; `over`: its slice is over. */
__weak bool tick_gang(u32 cpu, u32 group, bool over, u64 now)
{
	struct gang_cpu *g = gang_cpu(cpu);
	u64 round = round_of(cpu, now);
	bool graced;

	if (round && gang_of_round(round) == gang_of(group)) {
		/*
		 * A leader whose CPU has no task of another gang leads round after round. A CPU
		 * that has one follows into the next round only if it might join that round.
		 */
		if (gang == FAIR_GANG_V2 && g->round && g->round != round && !may_follow(gang_of(group), cpu)) {
			g->round = 0;
			return true;
		}
		take_part(g, round);
		if (gang == FAIR_GANG_V1)
			return over;
		graced = has_grace(g, now);
		g->delays_outsider = g->delays_outsider || (over && outsider_is_next(cpu, gang_of(group), true));
		return (g->delays_outsider && !graced) || turn_is_over(cpu, gang_of(group));
	}
	if (gang == FAIR_GANG_V2 && g->round) {
		/* The round is over: preempts the task, so that fairness decides what runs. */
		g->round = 0;
		return true;
	}
	return over || (round && should_join(cpu, round) && !outsider_runs(cpu));
}

static __always_inline bool gang_tick(u32 cpu, struct task_struct *p, u32 group, bool over, u64 now)
{
	if (gang == FAIR_GANG_OFF)
		return over;
	read_task_gang(p, group, now);
	if (gangs_as_posted())
		return over;
	gang_notes(p, cpu_at(cpu)->curr, now);
	return tick_gang(cpu, group, over, now);
}

/* Makes pick() prefer each cgroup on the path from the root to a gang's cgroup, or ends that. */
static __noinline int mark_path(u32 group, u32 cpu, bool mark)
{
	fair_entity_t *se = &rq_at(group, cpu)->se;
	fair_rq_t *q = se->q;

	while (q && can_loop) {
		if (gang == FAIR_GANG_V1)
			q->buddy_next = se;
		else
			q->buddy_gang = mark ? se : NULL;
		se = &q->se;
		q = q->depth ? se->q : NULL;
	}
	return 0;
}

/*
 * Whether all of a gang sleeps, or most of it has slept for so long that the remaining tasks will
 * not sleep soon.
 */
static __always_inline bool is_asleep(u32 group, u32 cpu, struct gang_lead *l, u64 now)
{
	u32 width = gang_width(group, cpu);

	if (width > l->width)
		l->width = width;
	if (2 * width > l->width) {
		l->asleep_since = 0;
		return false;
	}
	if (!l->asleep_since)
		l->asleep_since = now;
	return !width || (s64)(now - l->asleep_since) >= (s64)migration_cost_ns;
}

/* Before a pick: marks the gang to pick, if any, and ends a round whose gang sleeps. */
__weak int mark_gang(u32 cpu, bool prev_runs, u64 now)
{
	struct gang_cpu *g = gang_cpu(cpu);
	struct fair_lock *l = lock_of(cpu);
	u64 round = round_of(cpu, now);
	u32 group = gang_of_round(round);
	bool graced = has_grace(g, now), delays_outsider, bound;

	g->delays_outsider = 0;
	if (g->waits_until && (!round || (s64)(g->waits_until - now) <= 0 || rq_at(group, cpu)->h_nr))
		end_wait(g, now);
	if (!round || !l)
		return 0;
	if (is_asleep(group, cpu, lead_of(cpu), now)) {
		gang_end(lead_of(cpu), round);
		tell_waiting(cpu);
		count(gang_released_early);
		return 0;
	}
	delays_outsider = gang == FAIR_GANG_V2 && outsider_is_next(cpu, group, prev_runs);
	bound = gang_bound(cpu, now);
	if (bound ? delays_outsider && !graced : delays_outsider || !should_join(cpu, round))
		return 0;
	g->delays_outsider = delays_outsider;
	g->tries |= !bound;
	if (gang == FAIR_GANG_V1)
		g->round = round;
	bpf_spin_lock(&l->lock);
	mark_path(group, cpu, true);
	bpf_spin_unlock(&l->lock);
	g->marked = group;
	return 0;
}

/* gang_rules=posted: marks the gang that the leader asked for, for one pick. */
__weak int mark_request(u32 cpu)
{
	struct fair_lock *l = lock_of(cpu);
	u32 group = take_request(cpu);

	if (group == ROOT_GROUP || !l)
		return 0;
	bpf_spin_lock(&l->lock);
	mark_path(group, cpu, true);
	bpf_spin_unlock(&l->lock);
	gang_cpu(cpu)->marked = group;
	count(gang_favoured);
	return 0;
}

static __always_inline void gang_before_pick(u32 cpu, bool prev_runs, u64 now)
{
	if (gangs_as_posted())
		mark_request(cpu);
	else if (gang != FAIR_GANG_OFF)
		mark_gang(cpu, prev_runs, now);
}

static __always_inline void gang_after_pick(u32 cpu)
{
	struct gang_cpu *g = gang_cpu(cpu);

	if (gang == FAIR_GANG_V2 && g->marked)
		mark_path(g->marked, cpu, false);
	g->marked = 0;
}

/* ---- start ---- */

static s32 init_gangs(void)
{
	u32 i, first = 0;

	if (gang > FAIR_GANG_V2 || gang_domain > FAIR_GANG_DOMAIN_ALL || gang_rules > FAIR_GANG_RULES_POSTED) {
		scx_bpf_error("gang=%d, gang_rules=%d, gang_domain=%d: 0 (off), 1 (v1) or 2 (v2), 0 (bounded) or 1 (posted), and 0 (core), 1 (llc), 2 (node) or 3 (all)",
			      gang, gang_rules, gang_domain);
		return -EINVAL;
	}
	bpf_for(i, 0, nr_cpus) {
		u32 cpu = nth_cpu(i);

		if (!i || gang_domain_id(cpu) != gang_domain_id(nth_cpu(first)))
			first = i;
		gang_cpu(cpu)->first = first;
		gang_cpu(cpu)->domain = nth_cpu(first);
	}
	bpf_for(i, 0, nr_cpus)
		gang_cpu(gang_cpu(i)->domain)->nr++;
	bpf_for(i, 0, nr_cpus) {
		struct gang_timer *timer = bpf_map_lookup_elem(&gang_timers, &i);

		gang_cpu(i)->nr = gang_cpu(gang_cpu(i)->domain)->nr;
		if (!timer)
			continue;
		bpf_timer_init(&timer->timer, &gang_timers, 1 /* CLOCK_MONOTONIC */);
		bpf_timer_set_callback(&timer->timer, wait_is_over);
	}
	return 0;
}

#endif
