/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The round of a domain, and the gangs that can have one.
 *
 * Owns: the state of domains and CPUs, the end of a round, the counts of a gang. Does not: elect
 * (lib/gang.bpf.h), start a round or choose what a CPU runs (gang.bpf.h).
 *
 * A CPU's state (gang_cpus[]) is written under the lock of its run queue. All CPUs write a domain's
 * state (gang_leads[]): the round by compare-and-swap, the other fields without a lock. A lost
 * write to another field makes a round slightly longer or shorter.
 */
#ifndef FAIR_GANG_ROUND_BPF_H
#define FAIR_GANG_ROUND_BPF_H

#include "gang_switch.bpf.h"

/*
 * Rounds cost tasks outside of their gang at most one part in SPARE_PARTS of a CPU's time, so
 * throughput and shares fall by no more than that.
 */
#define SPARE_PARTS	10

/*
 * The state of each domain's round, indexed by the domain's first CPU, and the state of each CPU.
 * Both arrays are global, because tests read them.
 */
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
 * Returns the time by which a CPU tells whether a round is over. In v2 this time is a tick late on
 * all CPUs but the leader. The leader thus sees the end of its round first, and can lead the next
 * one, too. This is wanted, because CPUs order gangs differently, and agree by following one CPU.
 */
static __always_inline u64 gang_clock(u32 cpu, u64 now)
{
	return gang == FAIR_GANG_V1 || gang_leader_of(lead_of(cpu)->round) == cpu ? now : now - tick_ns();
}

/* Returns the current round of the CPU's domain; 0: there is none. */
static __always_inline u64 round_of(u32 cpu, u64 now)
{
	u64 round = gang_round(lead_of(cpu), gang_clock(cpu, now));

	return round && group_at(gang_of_round(round))->gang ? round : 0;
}

/* v2: whether the CPU has joined the round that its domain has now, and has not left it since. */
static __always_inline bool gang_bound(u32 cpu, u64 now)
{
	u64 round = gang_cpu(cpu)->round;

	return gang == FAIR_GANG_V2 && round && round == round_of(cpu, now);
}

/* ---- which gangs can run together ---- */

/* Returns the gang's queue on the domain's first CPU, which has the domain's counts of the gang. */
static __always_inline fair_rq_t *gang_counted(u32 group, u32 cpu)
{
	return rq_at(group, gang_cpu(cpu)->domain);
}

/* Number of CPUs of the domain with a runnable task of the gang. */
static __always_inline u32 gang_width(u32 group, u32 cpu)
{
	return gang_counted(group, cpu)->gang_nr;
}

/*
 * Returns the number of CPUs of the domain that run a task of the gang. The function is global so
 * that the verifier walks through it once.
 */
__weak u32 gang_running(u32 group, u32 cpu)
{
	u32 i, first = gang_cpu(cpu)->first, nr = gang_cpu(cpu)->nr, running = 0;

	bpf_for(i, first, first + nr) {
		fair_task_t *runs = cpu_at(nth_cpu(i))->curr;

		running += runs && gang_of(runs->group) == group;
	}
	return running;
}

/*
 * A gang fits if all its tasks can run at once: the domain has as many CPUs, and no two tasks
 * are bound to one CPU. Otherwise it gains nothing from going first: a task spins while the one
 * that it waits for has to wait itself. The number of runnable tasks does not tell whether a gang
 * fits. A gang whose tasks sleep may have few runnable ones, until a round of another gang keeps
 * out a lock holder; then the rest wake up, spin, and do not sleep again. So a gang's size is the
 * number of its tasks that ran in a window of GANG_WINDOW_NS for 1 / ACTIVE_PARTS of it; a helper
 * task that seldom runs does not count. A gang that does not fit leads no round until a whole
 * window shows that it fits. Before the first count, right after the tasks' creation, the number
 * of runnable tasks decides.
 */
#define GANG_WINDOW_NS	(50 * NSEC_PER_MSEC)
#define ACTIVE_PARTS	32

static __always_inline void gang_does_not_fit(u32 group, u32 cpu, u64 now)
{
	gang_counted(group, cpu)->gang_unfit_until = now + 2 * GANG_WINDOW_NS;
}

/*
 * Adds `tasks` to the number of runnable tasks that q's cgroup has in the domain of q's CPU, and
 * `cpus` to the number of the domain's CPUs with such a task.
 */
static void gang_counts(fair_rq_t *q, s64 tasks, s64 cpus, u64 now)
{
	u32 domain = gang_cpu(q->cpu)->domain;
	fair_rq_t *at = rq_at(q->group, domain);
	u64 nr = __sync_fetch_and_add(&at->gang_nr, (tasks << 32) + cpus) + (tasks << 32);

	if (!at->gang_window && nr >> 32 > gang_cpu(domain)->nr)
		gang_does_not_fit(q->group, domain, now);
}

/*
 * Increments `nr`, which counts tasks of a gang that ran in the present window, and returns it. A
 * race at the beginning of a window may lose some tasks; the next window counts them again.
 */
static __always_inline u32 count_active(fair_rq_t *q, u32 __arena *nr, u64 window)
{
	if (q->gang_window != window) {
		q->gang_window = window;
		q->gang_size = q->gang_active;
		q->gang_active = 0;
		q->gang_pinned = 0;
	}
	return __sync_fetch_and_add(nr, 1) + 1;
}

/* Counts a task of a gang in the present window, once, if it ran long enough in the window. */
static __noinline int note_active(fair_task_t *t, u32 group, u32 cpu, bool pinned, u64 now)
{
	u64 window = now / GANG_WINDOW_NS;
	fair_rq_t *q = gang_counted(group, cpu);

	if (t->gang_window != window) {
		t->gang_window = window;
		t->ran_at_window = t->se.ran;
		t->gang_noted = 0;
	}
	if (t->gang_noted || t->se.ran - t->ran_at_window < GANG_WINDOW_NS / ACTIVE_PARTS)
		return 0;
	t->gang_noted = 1;
	if (count_active(q, &q->gang_active, window) > gang_cpu(cpu)->nr)
		gang_does_not_fit(group, cpu, now);
	q = rq_at(group, cpu);
	if (pinned && count_active(q, &q->gang_pinned, window) > 1)
		gang_does_not_fit(group, cpu, now);
	return 0;
}

/* Counts a task of a gang when the task arrives, and at its ticks. Not called with gang=off. */
static __always_inline void gang_notes(struct task_struct *p, fair_task_t *t, u64 now)
{
	u32 group = t ? gang_of(t->group) : ROOT_GROUP;

	if (group != ROOT_GROUP)
		note_active(t, group, scx_bpf_task_cpu(p), p->nr_cpus_allowed == 1, now);
}

/*
 * Returns the number of tasks of a gang that ran in this window, or in the last window in which any
 * ran.
 */
static __always_inline u32 gang_size(u32 group, u32 cpu)
{
	fair_rq_t *q = gang_counted(group, cpu);

	return max_u64(q->gang_size, q->gang_active);
}

static __always_inline bool gang_fits(u32 group, u32 cpu, u64 now)
{
	fair_rq_t *q = gang_counted(group, cpu);

	return q->gang_nr >> 32 <= gang_cpu(cpu)->nr && (s64)(now - q->gang_unfit_until) >= 0;
}

/* Whether a gang may lead rounds: it fits, and has tasks on two CPUs at least. */
static __always_inline bool may_lead(u32 group, u32 cpu, u64 now)
{
	return gang_width(group, cpu) >= 2 && gang_fits(group, cpu, now);
}

#endif
