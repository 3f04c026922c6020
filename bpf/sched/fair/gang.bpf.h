/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gangs: cgroups whose tasks want to run at the same time.
 *
 * Owns: rounds: which gang leads in a domain, who is asked to join, whether and how a CPU does. Election: lib/gang.bpf.h.
 *
 * A domain has one round at a time. A CPU that picks a task of a gang, and finds no round in its domain, leads one for as long as
 * the task's slice is, and asks the others that have a runnable task of the gang. How a CPU follows:
 *
 *	v1  the gang's cgroup is the next buddy at every level, once: it runs if that is fair up to the wake-up granularity.
 *	v2  the gang's cgroup comes first at every level until the round is over; tasks from outside that wake up do not preempt it,
 *	    and tasks of the gang that wake up run at once. The gang may be ahead of who waits by two turns when it joins: may_follow().
 *	    Sleepers from outside lose a tenth of their time to rounds at most: outsider_is_next(), has_grace().
 *
 * A round is over when its time is, or when most of its gang sleeps: is_asleep(). A CPU whose own task of the gang sleeps before the
 * others' do may wait a moment for the end: wait_for_end().
 *
 * State of a CPU (gang_cpus[]) is written by that CPU, under its run queue's lock. A domain's (gang_leads[]) is written by all: the
 * round by compare-and-swap; of the rest a lost write makes a round a little longer or shorter.
 * Models: "Gang scheduling in CFS" (December 2011). Differs: GANG.md, "Departures".
 */
#ifndef FAIR_GANG_BPF_H
#define FAIR_GANG_BPF_H

#include "gang_switch.bpf.h"

/* Public for tests: the round of each domain, at its first CPU, and what each CPU knows of it. */
struct gang_lead gang_leads[MAX_CPUS];
struct gang_cpu gang_cpus[MAX_CPUS];
static u64 gang_serial;

static __always_inline struct gang_cpu *gang_cpu(u32 cpu)
{
	return &gang_cpus[cpu & (MAX_CPUS - 1)];
}

/* ---- rounds ---- */

static __always_inline u64 tick_ns(void)
{
	return NSEC_PER_SEC / (tick_hz ?: 250);
}

static __always_inline u32 gang_domain_id(u32 cpu)
{
	switch (gang_domain) {
	case FAIR_GANG_DOMAIN_CORE: return core_of(cpu);
	case FAIR_GANG_DOMAIN_LLC: return llc_of(cpu);
	case FAIR_GANG_DOMAIN_NODE: return node_of(cpu);
	default: return 0;
	}
}

static __always_inline struct gang_lead *lead_of(u32 cpu)
{
	return &gang_leads[gang_cpu(cpu)->domain & (MAX_CPUS - 1)];
}

/*
 * The clock by which a CPU tells whether a round is over. In v2 others than the leader are a tick late, so that the leader, if it
 * runs a gang again, leads again. CPUs differ a little in the order of gangs: they agree if they follow the same one.
 */
static __always_inline u64 gang_clock(u32 cpu, u64 now)
{
	return gang == FAIR_GANG_V1 || gang_leader_of(lead_of(cpu)->round) == cpu ? now : now - tick_ns();
}

/* The round that goes on in the CPU's domain; 0: none. */
static __always_inline u64 round_of(u32 cpu, u64 now)
{
	u64 round = gang_round(lead_of(cpu), gang_clock(cpu, now));

	return round && group_at(gang_of_round(round))->gang ? round : 0;
}

/* A queue has so many tasks more, and maybe its first one or none any more. */
static void gang_counts(fair_rq_t *q, s64 tasks, s64 cpus)
{
	__sync_fetch_and_add(&rq_at(q->group, gang_cpu(q->cpu)->domain)->gang_nr, (tasks << 32) + cpus);
}

/* CPUs of the domain that have a runnable task of a gang. */
static __always_inline u32 gang_width(u32 group, u32 cpu)
{
	return rq_at(group, gang_cpu(cpu)->domain)->gang_nr;
}

/*
 * Whether a gang can run together: it has tasks on two CPUs at least, and not more of them than the domain has CPUs. Else it leads no
 * round, as a task that waits for one that has to wait itself only loses by coming first.
 */
static __always_inline bool may_lead(u32 group, u32 cpu)
{
	u64 nr = rq_at(group, gang_cpu(cpu)->domain)->gang_nr;

	return (u32)nr >= 2 && nr >> 32 <= gang_cpu(cpu)->nr;
}

/* v2: whether the CPU runs the gang whose round goes on. Only fairness to all, at the end of the round, takes it away. */
static __always_inline bool gang_bound(u32 cpu, u64 now)
{
	u64 round = gang_cpu(cpu)->round;

	return gang == FAIR_GANG_V2 && round && round == round_of(cpu, now);
}

/*
 * v2: whether a gang may come before those that wait on a CPU. At every level it may be ahead of each by two turns: one since gangs
 * take turns, and one since the leader's order is not quite the CPU's own. A turn is the slice and the tick that ends it. So the CPU
 * time that a gang has got too early is bounded, whatever is asked of a CPU; see GANG.md.
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

/* ---- who wakes up outside ---- */

/* What others lose for rounds is a tenth of a CPU's time at most: so throughput, and shares, cannot fall by more. */
#define SPARE_PARTS	10

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
static __always_inline void gang_arrives(fair_task_t *t, int how)
{
	if (how == ENQ_WOKEN)
		t->ran_at_wake = t->se.ran;
	else if (how == ENQ_NEW)
		t->ran_at_wake = t->se.ran - SPARE_PARTS * latency();
}

/* A CPU looks at so many gangs at most for who comes after them. */
#define MAX_LEFT	16

/*
 * v2: whether a sleeper from outside is more deserving than `group`, whose round goes on. It
 * does not wait for other gangs, which have to wait themselves. If so the next pick leaves those out, too.
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

/* ---- who joins ---- */

/* Whether the CPU has a task for a round that it does not take part in. */
static __always_inline bool should_join(u32 cpu, u64 round)
{
	fair_rq_t *q = rq_at(gang_of_round(round), cpu);

	if (gang == FAIR_GANG_V2)
		return may_follow(gang_of_round(round), cpu);
	return gang_cpu(cpu)->round != round && q->h_nr && !is_held(q);
}

/* Whether the CPU runs a sleeper from outside. It is not preempted for a round. */
static __always_inline bool outsider_runs(u32 cpu)
{
	fair_task_t *t = cpu_at(cpu)->curr;

	return t && is_sleeper(t) && gang_of(t->group) == ROOT_GROUP;
}

/* Asks one CPU. It is interrupted only if that changes something. */
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

/* ---- waiting for the end of a round ---- */

/*
 * A CPU stays idle for a gang for a tenth of its time at most, so that throughput cannot fall by more; and for migration_cost_ns at
 * once, as CFS holds that an idle time as short as that is not worth a look for work.
 */
struct gang_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct gang_timer);
} gang_timers SEC(".maps");

static int wait_is_over(void *map, u32 *cpu, struct gang_timer *timer)
{
	kick(*cpu, 0);
	return 0;
}

/* Whether there is time to spare, and enough to be worth a timer. */
static __always_inline bool may_wait(struct gang_cpu *g, u64 now)
{
	g->spare = min_u64(g->spare + (now - g->spare_at) / SPARE_PARTS, migration_cost_ns);
	g->spare_at = now;
	return g->spare >= migration_cost_ns / 16;
}

static __always_inline bool begin_wait(struct gang_cpu *g, u32 cpu, u64 now)
{
	struct gang_timer *timer = bpf_map_lookup_elem(&gang_timers, &cpu);

	if (!timer || bpf_timer_start(&timer->timer, g->spare, 0))
		return false;
	g->waits_until = now + g->spare;
	return true;
}

static __always_inline void end_wait(struct gang_cpu *g, u64 now)
{
	g->spare -= min_u64(now - g->spare_at, g->spare);
	g->spare_at = now;
	g->waits_until = 0;
}

/* A task of the gang whose round goes on starts to run. */
static __always_inline void take_part(struct gang_cpu *g, u64 round)
{
	if (g->round != round || g->tries)
		count(gang_favoured);
	g->round = round;
	g->tries = 0;
}

/*
 * The gang whose round a CPU starts that runs a task of `group`. A gang that has nothing on the leader's CPU would never be found
 * there: if it was kept from leading it comes first.
 */
static __always_inline u32 next_gang(u32 cpu, u32 group)
{
	struct gang_lead *l = lead_of(cpu);
	u32 other = l->wants;

	l->wants = ROOT_GROUP;
	if (other == ROOT_GROUP || !group_at(other)->gang || rq_at(other, cpu)->h_nr || !may_lead(other, cpu))
		return group;
	return other;
}

static __always_inline void lead_gang(u32 cpu, u32 group, fair_task_t *t, u64 now)
{
	struct gang_lead *l = lead_of(cpu);
	u32 next = next_gang(cpu, group);
	u64 round = l->round;

	/* No gang any more. */
	if (round && !group_at(gang_of_round(round))->gang)
		gang_end(l, round);
	round = gang_elect(l, &gang_serial, next, cpu, now + sched_slice(t->se.q, &t->se), gang_clock(cpu, now));

	if (!round)
		return;
	l->width = 0;
	l->fades_at = 0;
	if (next == group)
		gang_cpu(cpu)->round = round;
	count(gang_rounds);
	ask_domain(cpu, round);
}

/* A task of `group` starts to run, or was picked again. */
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
	leads = group != ROOT_GROUP && t && may_lead(group, cpu);
	if (round) {
		if (leads && !rq_at(group, gang_leader_of(round))->h_nr)
			l->wants = group;
	} else if (leads) {
		lead_gang(cpu, group, t, now);
	} else if (gang_leader_of(l->round) == cpu) {
		gang_end(l, l->round);
	}
	return 0;
}

static __always_inline void gang_starts(fair_cpu_t *c, fair_task_t *t)
{
	if (gang != FAIR_GANG_OFF && t)
		start_gang(c->root->cpu, t->group, scx_bpf_now());
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

/* v2: whether a task that woke up runs at once, since it is its gang's round. */
static __always_inline bool gang_enters(u32 cpu, u32 group, u64 now)
{
	u64 round = gang == FAIR_GANG_V2 ? round_of(cpu, now) : 0;

	return round && gang_cpu(cpu)->round != round && gang_of(group) == gang_of_round(round) &&
	       should_join(cpu, round) && !outsider_runs(cpu);
}

/* Whether the task that runs has had its slice among those of its gang. */
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

/* At a tick: whether the task that runs shall be preempted, given whether its slice is over. */
__weak bool tick_gang(u32 cpu, u32 group, bool over, u64 now)
{
	struct gang_cpu *g = gang_cpu(cpu);
	u64 round = round_of(cpu, now);
	bool graced;

	if (round && gang_of_round(round) == gang_of(group)) {
		take_part(g, round);
		if (gang == FAIR_GANG_V1)
			return over;
		graced = has_grace(g, now);
		g->keeps = g->keeps || (over && outsider_is_next(cpu, gang_of(group), true));
		return (g->keeps && !graced) || turn_is_over(cpu, gang_of(group));
	}
	if (gang == FAIR_GANG_V2 && g->round) {
		/* The round is over: fairness decides what comes. */
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
	return tick_gang(cpu, group, over, now);
}

/* Marks the way from the root to a gang's cgroup, or takes the marks away. */
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

/* Whether a gang sleeps: all of it, or most of it for so long that who runs is not about to follow. */
static __always_inline bool is_asleep(struct gang_lead *l, u32 width, u64 now)
{
	if (width > l->width)
		l->width = width;
	if (2 * width > l->width) {
		l->fades_at = 0;
		return false;
	}
	if (!l->fades_at)
		l->fades_at = now;
	return !width || (s64)(now - l->fades_at) >= (s64)migration_cost_ns;
}

/* Before a pick: the gang to be picked, if any, is marked. A round whose gang sleeps is over. */
__weak int mark_gang(u32 cpu, bool prev_runs, u64 now)
{
	struct gang_cpu *g = gang_cpu(cpu);
	struct fair_lock *l = lock_of(cpu);
	u64 round = round_of(cpu, now);
	u32 group = gang_of_round(round);
	bool graced = has_grace(g, now), keeps, bound;

	g->keeps = 0;
	if (g->waits_until && (!round || (s64)(g->waits_until - now) <= 0 || rq_at(group, cpu)->h_nr))
		end_wait(g, now);
	if (!round || !l)
		return 0;
	if (is_asleep(lead_of(cpu), gang_width(group, cpu), now)) {
		gang_end(lead_of(cpu), round);
		count(gang_released_early);
		return 0;
	}
	keeps = gang == FAIR_GANG_V2 && outsider_is_next(cpu, group, prev_runs);
	bound = gang_bound(cpu, now);
	if (bound ? keeps && !graced : keeps || !should_join(cpu, round))
		return 0;
	g->keeps = keeps;
	g->tries |= !bound;
	if (gang == FAIR_GANG_V1)
		g->round = round;
	bpf_spin_lock(&l->lock);
	mark_path(group, cpu, true);
	bpf_spin_unlock(&l->lock);
	g->marked = group;
	return 0;
}

static __always_inline void gang_before_pick(u32 cpu, bool prev_runs, u64 now)
{
	if (gang != FAIR_GANG_OFF)
		mark_gang(cpu, prev_runs, now);
}

static __always_inline void gang_after_pick(u32 cpu)
{
	struct gang_cpu *g = gang_cpu(cpu);

	if (gang == FAIR_GANG_V2 && g->marked)
		mark_path(g->marked, cpu, false);
	g->marked = 0;
}

/* Whether the first task of a queue could run on another CPU of the domain, which has nothing else. */
static __always_inline bool runs_elsewhere(u64 dsq, u32 cpu)
{
	struct task_struct *p = __COMPAT_scx_bpf_dsq_peek(dsq);
	u32 i, first = gang_cpu(cpu)->first, nr = gang_cpu(cpu)->nr;
	bool found = false;

	if (!p || p->nr_cpus_allowed == 1)
		return false;
	bpf_for(i, first, first + nr) {
		u32 at = nth_cpu(i);

		if (at == cpu || cpu_at(at)->root->h_nr || !cpu_at(at)->online || !bpf_cpumask_test_cpu(at, p->cpus_ptr))
			continue;
		found = true;
		break;
	}
	return found;
}

/* Whether all that a CPU could run are tasks of gangs that cannot run together before the end of the round. */
static __noinline bool has_only_gangs(u32 cpu)
{
	fair_cpu_t *c = cpu_at(cpu);
	bool only = false;
	u32 tries, group;
	u64 dsq;

	c->round++;
	bpf_for(tries, 0, MAX_LEFT) {
		dsq = pick(cpu, false);
		only = dsq == PICK_NONE && tries;
		if (dsq == PICK_NONE)
			break;
		group = gang_of(dsq >> 16 & 0xffff);
		if (group == ROOT_GROUP || gang_width(group, cpu) < 2 || runs_elsewhere(dsq, cpu))
			break;
		rq_at(group, cpu)->se.skip_round = c->round;
	}
	c->round++;
	return only;
}

/*
 * v2: whether a CPU whose own task of the round sleeps leaves the next gangs for when the round is over: the tasks on the other CPUs
 * are about to sleep, too. If it took the next gang now, that one would begin on each CPU at another time, and so would all that
 * follow it.
 */
__weak bool wait_for_end(u32 cpu, u64 now)
{
	struct gang_cpu *g = gang_cpu(cpu);
	u64 round = round_of(cpu, now);

	if (!round || rq_at(gang_of_round(round), cpu)->h_nr || !cpu_at(cpu)->root->h_nr)
		return false;
	if (g->waits_until)
		return has_only_gangs(cpu);
	return may_wait(g, now) && has_only_gangs(cpu) && begin_wait(g, cpu, now);
}

static __always_inline bool gang_waits(u32 cpu, u64 now)
{
	return gang == FAIR_GANG_V2 && wait_for_end(cpu, now);
}

/* ---- start ---- */

static s32 init_gangs(void)
{
	u32 i, first = 0;

	if (gang > FAIR_GANG_V2 || gang_domain > FAIR_GANG_DOMAIN_ALL) {
		scx_bpf_error("gang=%d, gang_domain=%d: 0 (off), 1 (v1) or 2 (v2), and 0 (core), 1 (llc), 2 (node) or 3 (all)",
			      gang, gang_domain);
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
