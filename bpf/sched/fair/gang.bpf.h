/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gangs: cgroups whose tasks want to run at the same time.
 *
 * Owns: which cgroups are gangs, who is asked to join a round, whether and how a CPU does. Election: lib/gang.bpf.h.
 *
 * A CPU that starts to run a task of a gang that nobody leads in its domain leads it for as long as the task's slice is, and
 * asks the others that have a runnable task of it. How a CPU follows:
 *
 *	v1  the gang's cgroup is the next buddy at every level: it runs if that is fair up to the wake-up granularity.
 *	v2  the gang's cgroup comes first at every level, and stays until the round is over; tasks from outside that wake up do
 *	    not preempt it. The gang may be ahead of who waits by one slice when it joins, not by more: may_follow().
 *
 * State of a CPU (gang_cpus[]) is written by that CPU, under its run queue's lock; only `asked` is written by all.
 * Models: "Gang scheduling in CFS" (December 2011). Differs: README, "Gangs".
 */
#ifndef FAIR_GANG_BPF_H
#define FAIR_GANG_BPF_H

#include "group.bpf.h"

/* Of all gangs in all domains, for tests: what a CPU leads and follows is public. */
struct gang_cpu gang_cpus[MAX_CPUS];
static u64 gang_serial;

static __always_inline struct gang_cpu *gang_cpu(u32 cpu)
{
	return &gang_cpus[cpu & (MAX_CPUS - 1)];
}

/* ---- which cgroups are gangs ---- */

#define GANG_XATTR	"user.cpu.gang"
#define GANG_READ_NS	(10 * NSEC_PER_MSEC)

struct gang_value {
	char text[8];
};

/* One element for where the scheduler may sleep, one for where it may not: the latter interrupts the former. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct gang_value);
} gang_values SEC(".maps");

extern int LINUX_KERNEL_VERSION __kconfig;
extern int bpf_cgroup_read_xattr(struct cgroup *cgroup, const char *name__str, struct bpf_dynptr *value_p) __weak __ksym;

/* Before 7.3 the attribute can be read only where a program may sleep. */
#define may_read_anywhere() (LINUX_KERNEL_VERSION >= KERNEL_VERSION(7, 3, 0))

enum { GANG_VALUE_NO, GANG_VALUE_YES, GANG_VALUE_BAD };

static __always_inline int read_switch(struct cgroup *cgrp, u32 slot)
{
	struct gang_value *v = bpf_map_lookup_elem(&gang_values, &slot);
	struct bpf_dynptr to;
	int len;

	if (!v || bpf_dynptr_from_mem(v, sizeof(*v), 0, &to))
		return GANG_VALUE_NO;
	len = bpf_cgroup_read_xattr(cgrp, GANG_XATTR, &to);
	if (len == -ERANGE)
		return GANG_VALUE_BAD;
	if (len < 0)
		return GANG_VALUE_NO;
	if (len != 1)
		return GANG_VALUE_BAD;
	if (v->text[0] == '1')
		return GANG_VALUE_YES;
	return v->text[0] == '0' ? GANG_VALUE_NO : GANG_VALUE_BAD;
}

static __always_inline void read_gang(struct cgroup *cgrp, u32 group, u32 slot)
{
	fair_group_t *g = group_at(group);
	int value;

	if (gang == FAIR_GANG_OFF || group == ROOT_GROUP || !bpf_ksym_exists(bpf_cgroup_read_xattr))
		return;
	value = read_switch(cgrp, slot);
	g->gang_read_at = scx_bpf_now();
	if (value == GANG_VALUE_BAD && !g->gang_bad)
		count(gang_bad_values);
	g->gang_bad = value == GANG_VALUE_BAD;
	g->gang = value == GANG_VALUE_YES;
}

/* In a program that may sleep. */
static void gang_cgroup_appears(struct cgroup *cgrp, u32 group)
{
	read_gang(cgrp, group, 1);
}

/* A cgroup and those above it, each at most every GANG_READ_NS. */
static int gang_read_path(struct cgroup *cgrp, u64 now)
{
	u32 level;

	if (!may_read_anywhere() || !cgrp)
		return 0;
	bpf_for(level, 1, cgrp->level + 1) {
		struct cgroup *at = bpf_cgroup_ancestor(cgrp, level);
		struct group_stor *s;

		if (!at)
			break;
		s = bpf_cgrp_storage_get(&group_stors, at, 0, 0);
		if (s && s->owner && (s64)(now - group_at(s->group)->gang_read_at) >= (s64)GANG_READ_NS)
			read_gang(at, s->group, 0);
		bpf_cgroup_release(at);
	}
	return 0;
}

/* Whether it is time to read the switch of a cgroup or of one above it. */
static __noinline bool gang_is_stale(u32 group, u64 now)
{
	while (group != ROOT_GROUP && can_loop) {
		if ((s64)(now - group_at(group)->gang_read_at) >= (s64)GANG_READ_NS)
			return true;
		group = group_at(group)->parent;
	}
	return false;
}

static __always_inline void read_task_gang(struct task_struct *p, u32 group, u64 now)
{
	struct cgroup *cgrp;

	if (!may_read_anywhere() || !gang_is_stale(group, now))
		return;
	cgrp = scx_bpf_task_cgroup(p);
	if (!cgrp)
		return;
	gang_read_path(cgrp, now);
	bpf_cgroup_release(cgrp);
}

/* The nearest gang from a cgroup upwards; 0: none. */
static u32 gang_of(u32 group)
{
	while (group != ROOT_GROUP && !group_at(group)->gang && can_loop)
		group = group_at(group)->parent;
	return group;
}

/* ---- rounds ---- */

static __always_inline u32 gang_domain_id(u32 cpu)
{
	switch (gang_domain) {
	case FAIR_GANG_DOMAIN_CORE: return core_of(cpu);
	case FAIR_GANG_DOMAIN_LLC: return llc_of(cpu);
	case FAIR_GANG_DOMAIN_NODE: return node_of(cpu);
	default: return 0;
	}
}

static __always_inline struct gang_lead __arena *lead_of(u32 group, u32 cpu)
{
	return &rq_at(group, gang_cpu(cpu)->domain)->gang_lead;
}

static __always_inline bool round_goes_on(u32 cpu, u64 round, u64 now)
{
	u32 group = gang_of_round(round);

	return round && group_at(group)->gang && gang_goes_on(lead_of(group, cpu), round, now);
}

/* Balancing waits for the end of another's round: what it brings would run at once. */
static __always_inline bool gang_follows(u32 cpu, u64 now)
{
	return round_goes_on(cpu, gang_cpu(cpu)->follows, now);
}

/* The round that a CPU is bound to: one that it follows, or leads and others were asked to; 0: none. */
static __always_inline u64 gang_bound(u32 cpu, u64 now)
{
	struct gang_cpu *g = gang_cpu(cpu);

	if (round_goes_on(cpu, g->follows, now))
		return g->follows;
	return g->sent && round_goes_on(cpu, g->leads, now) ? g->leads : 0;
}

/*
 * v2: whether a gang may come before those that wait on a CPU. It may be ahead of each, at every level, by the slice that is
 * its own there. So what it got too much is bounded, whatever is asked of a CPU; see README, "Gangs".
 */
__weak bool may_follow(u32 group, u32 cpu)
{
	fair_entity_t *se = &rq_at(group, cpu)->se;
	fair_rq_t *q = rq_at(group, cpu)->depth ? se->q : NULL;

	if (!q || !rq_at(group, cpu)->h_nr || rq_at(group, cpu)->throttle_depth)
		return false;
	while (q && can_loop) {
		u64 first = se->vruntime, slice = sched_period(q->nr) * NICE_0_LOAD / (q->weight ?: 1);

		leftmost(q, &first);
		if (q->curr && q->curr->on_rq && time_before(q->curr->vruntime, first))
			first = q->curr->vruntime;
		if ((s64)(se->vruntime - first) > (s64)slice)
			return false;
		se = &q->se;
		q = q->depth ? se->q : NULL;
	}
	return true;
}

/* Asks one CPU. Who runs a task of the gang joins at its next tick; who is bound or may not, when that has changed. */
static __always_inline bool ask_cpu(u32 cpu, u32 group, u64 round, u64 now)
{
	fair_rq_t *q = rq_at(group, cpu);
	fair_cpu_t *c = cpu_at(cpu);
	fair_task_t *runs;

	if (!c->online || !q->h_nr || q->throttle_depth)
		return false;
	if (gang_ask(gang_cpu(cpu), round))
		count(gang_declined);
	count(gang_requests);
	runs = c->curr;
	if (runs && gang_of(runs->group) == group)
		return true;
	if (gang_bound(cpu, now) || (gang == FAIR_GANG_V2 && !may_follow(group, cpu)))
		return true;
	kick(cpu, SCX_KICK_PREEMPT);
	return true;
}

__weak int ask_domain(u32 cpu, u64 round, u64 now)
{
	u32 i, domain = gang_cpu(cpu)->domain, group = gang_of_round(round), sent = 0;

	bpf_for(i, 0, nr_cpus) {
		u32 at = nth_cpu(i);

		if (at != cpu && gang_cpu(at)->domain == domain)
			sent += ask_cpu(at, group, round, now);
	}
	return sent;
}

/* It runs something else than what it leads. */
static __always_inline void stop_leading(u32 cpu, u64 now)
{
	struct gang_cpu *g = gang_cpu(cpu);

	if (round_goes_on(cpu, g->leads, now))
		count(gang_released_early);
	gang_end(lead_of(gang_of_round(g->leads), cpu), g->leads);
	g->leads = 0;
	g->sent = 0;
}

static __always_inline void follow(struct gang_cpu *g, u64 round)
{
	g->follows = gang == FAIR_GANG_V2 ? round : 0;
	count(gang_favoured);
}

/* A task of the CPU's was picked while another CPU leads its gang: it takes part in the round, asked or not. */
__weak int join_late(u32 cpu, u32 group, u64 round, u64 now)
{
	struct gang_cpu *g = gang_cpu(cpu);

	if (gang == FAIR_GANG_V1 || g->follows || g->leads || !round_goes_on(cpu, round, now) || !may_follow(group, cpu))
		return 0;
	if (g->asked == round) {
		gang_answer(g, round);
		count(gang_favoured);
	}
	g->follows = round;
	return 0;
}

/* A task of `group` starts to run, or was picked again. */
__weak int start_gang(u32 cpu, u32 group, u64 slice, u64 now)
{
	struct gang_cpu *g = gang_cpu(cpu);
	struct gang_lead __arena *l;
	u64 round;

	group = gang_of(group);
	if (g->leads && (gang_of_round(g->leads) != group || !round_goes_on(cpu, g->leads, now)))
		stop_leading(cpu, now);
	if (g->tries) {
		if (gang_of_round(g->tries) == group)
			follow(g, g->tries);
		else
			count(gang_declined);
		g->tries = 0;
	}
	if (g->follows && gang_of_round(g->follows) != group)
		g->follows = 0;
	if (group == ROOT_GROUP)
		return 0;
	l = lead_of(group, cpu);
	round = gang_elect(l, &gang_serial, group, cpu, now + slice, now);
	if (!round)
		return join_late(cpu, group, l->round, now);
	g->follows = 0;
	g->leads = round;
	g->since = now;
	g->until = now + slice;
	count(gang_rounds);
	g->sent = ask_domain(cpu, round, now);
	return 0;
}

static __always_inline void gang_starts(fair_cpu_t *c, fair_task_t *t)
{
	if (gang != FAIR_GANG_OFF && t)
		start_gang(c->root->cpu, t->group, sched_slice(t->se.q, &t->se), scx_bpf_now());
}

/* v2: whether a task that woke up has to wait for the end of a round, under the CPU's lock. */
static __always_inline bool gang_keeps(u32 cpu, u32 group, u64 now)
{
	u64 round = gang == FAIR_GANG_V2 ? gang_bound(cpu, now) : 0;

	return round && gang_of(group) != gang_of_round(round);
}

/* Nothing runs. */
static __always_inline void gang_idles(u32 cpu, u64 now)
{
	if (gang != FAIR_GANG_OFF && gang_cpu(cpu)->leads)
		stop_leading(cpu, now);
}

/* ---- joining ---- */

/* The request that a CPU should answer now; one that came too late is dropped. */
static __always_inline u64 open_request(u32 cpu, u64 now)
{
	struct gang_cpu *g = gang_cpu(cpu);
	u64 round = g->asked;

	if (!round)
		return 0;
	if (!round_goes_on(cpu, round, now)) {
		gang_answer(g, round);
		count(gang_declined);
		return 0;
	}
	if (gang_bound(cpu, now) || (gang == FAIR_GANG_V2 && !may_follow(gang_of_round(round), cpu)))
		return 0;
	return round;
}

/* At a tick: whether the task that runs shall be preempted, given whether its slice is over. */
__weak bool tick_gang(u32 cpu, u32 group, bool over, u64 now)
{
	struct gang_cpu *g = gang_cpu(cpu);
	u64 round;

	if (g->follows && round_goes_on(cpu, g->follows, now))
		return false;
	round = open_request(cpu, now);
	if (round && gang_of_round(round) == gang_of(group)) {
		/* It runs with the others already. */
		gang_answer(g, round);
		follow(g, round);
		return gang == FAIR_GANG_V1 && over;
	}
	if (g->follows) {
		/* The round is over: fairness decides what comes. */
		g->follows = 0;
		return true;
	}
	return over || round;
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

/* Before a pick: the gang to be picked, if any, is marked. */
__weak int mark_gang(u32 cpu, u64 now)
{
	struct gang_cpu *g = gang_cpu(cpu);
	struct fair_lock *l = lock_of(cpu);
	u64 round = g->follows;

	if (!l)
		return 0;
	if (!round_goes_on(cpu, round, now)) {
		g->follows = 0;
		round = open_request(cpu, now);
		if (!round)
			return 0;
		gang_answer(g, round);
		g->tries = round;
	}
	bpf_spin_lock(&l->lock);
	mark_path(gang_of_round(round), cpu, true);
	bpf_spin_unlock(&l->lock);
	g->marked = gang_of_round(round);
	return 0;
}

static __always_inline void gang_before_pick(u32 cpu, u64 now)
{
	if (gang != FAIR_GANG_OFF)
		mark_gang(cpu, now);
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

	if (gang > FAIR_GANG_V2 || gang_domain > FAIR_GANG_DOMAIN_ALL) {
		scx_bpf_error("gang=%d, gang_domain=%d: 0 (off), 1 (v1) or 2 (v2), and 0 (core), 1 (llc), 2 (node) or 3 (all)",
			      gang, gang_domain);
		return -EINVAL;
	}
	bpf_for(i, 0, nr_cpus) {
		u32 cpu = nth_cpu(i);

		if (!i || gang_domain_id(cpu) != gang_domain_id(first))
			first = cpu;
		gang_cpu(cpu)->domain = first;
	}
	return 0;
}

#endif
