/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Report of a queue's state, for a program that user space runs. It takes no lock, so on a busy CPU
 * the figures of one answer may be from slightly different times.
 */
#ifndef FAIR_REPORT_BPF_H
#define FAIR_REPORT_BPF_H

#include "fair.bpf.h"
#include "load.bpf.h"

struct fair_report_args {
	/* in */
	u32 cpu;
	u32 group;		/* slot of a cgroup; 0: the root's */
	/* out */
	u64 cgid;		/* id of the slot's cgroup; 0 for the root */
	u32 nr;			/* runnable entities */
	u32 h_nr;		/* runnable tasks */
	u64 weight;		/* sum of the runnable entities' weights */
	u64 share;		/* weight of the cgroup on this CPU */
	u64 min_vruntime;
	u64 runnable_load;	/* load=pelt */
	u64 blocked_load;	/* blocked load, decayed up to the time of the report */
	s64 group_load;		/* the cgroup's load on all CPUs */
	u64 load;		/* load=window: this CPU's part of the group's total */
	u32 throttled;
	u32 nr_groups;		/* number of slots */
	/* load=pelt; in parts of 1024 */
	u64 runnable;		/* part of the time in which the queue (root: the CPU) had work */
	u64 usage;		/* part of the time in which a task of the queue ran */
	s64 group_runnable;	/* `runnable` of the queue's group, summed over all CPUs */
	s64 group_usage;
};

/*
 * Returns the averages of a queue, or of the CPU if the queue is the root's, as an update would
 * leave them. The result is in the CPU's scratch copy, and the averages do not change.
 */
static struct pelt_avg __arena *times_now(fair_rq_t *q, u64 now)
{
	fair_cpu_t *c = cpu_at(q->cpu);
	struct pelt_avg __arena *avg = &c->report;
	bool work = q->depth ? q->se.on_rq : q->h_nr, runs = q->depth ? q->se.q->curr == &q->se : work;

	copy_words((u64 __arena *)avg, (u64 __arena *)(q->depth ? &q->se.avg : &c->avg), sizeof(*avg));
	pelt_update(avg, load_clock(q, now), work, runs);
	return avg;
}

SEC("syscall")
int fair_report(struct fair_report_args *a)
{
	fair_group_t *g = group_at(a->group);
	struct pelt_avg __arena *avg;
	u64 now = scx_bpf_now();
	fair_rq_t *q;

	use_arena();
	if (a->group >= nr_groups || a->cpu >= nr_cpus || !g->used)
		return -ENOENT;
	q = rq_at(a->group, a->cpu);
	a->cgid = g->cgid;
	a->nr = q->nr;
	a->h_nr = q->h_nr;
	a->weight = q->weight;
	a->share = q->se.weight;
	a->min_vruntime = q->min_vruntime;
	a->runnable_load = q->runnable_load;
	a->blocked_load = pelt_blocked_now(q, now);
	a->group_load = load == FAIR_LOAD_PELT ? g->load_avg : g->load_weight;
	a->load = q->load_contrib;
	a->throttled = is_held(q);
	a->nr_groups = nr_groups;
	avg = times_now(q, now);
	a->runnable = pelt_share(NICE_0_LOAD, avg->runnable, avg->period);
	a->usage = pelt_share(NICE_0_LOAD, avg->running, avg->period);
	a->group_runnable = g->runnable_avg;
	a->group_usage = g->usage_avg;
	return 0;
}

#endif
