/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Domains: the levels at which balancing compares CPUs.
 *
 * There are four levels, each a span of CPUs made of groups: a core of CPUs, an LLC of cores, a
 * node of LLCs, the machine of nodes. A span is a range of cpu_order[]. A level whose span is a
 * single group is left out, because there is nothing to compare. For each span, the fair_level of
 * its first CPU counts the CPUs with more than one task (`nr_over`). A CPU that becomes idle skips
 * spans without such a CPU.
 *
 * Models: the domains SIBLING, MC, CPU and NODE of Linux 3.2. Differs: an LLC ends where its node
 * ends.
 */
#ifndef FAIR_DOMAIN_BPF_H
#define FAIR_DOMAIN_BPF_H

#include "fair.bpf.h"

#define CPU_POWER	1024
#define SMT_POWER	1178	/* power of a core with several threads */

/* Returns the group of a CPU at a level: the CPU's span one level below. */
static __always_inline u32 group_id(u32 level, u32 cpu)
{
	switch (level) {
	case 0: return cpu;
	case 1: return core_of(cpu);
	case 2: return llc_of(cpu);
	case 3: return node_of(cpu);
	}
	return 0;
}

static __always_inline bool same_span(u32 level, u32 a, u32 b)
{
	if (level < 3 && node_of(a) != node_of(b))
		return false;
	if (level < 2 && llc_of(a) != llc_of(b))
		return false;
	return level || core_of(a) == core_of(b);
}

static __always_inline u64 power_of(u32 cpu)
{
	return cpu_at(cpu)->power;
}

static __always_inline bool is_compared(fair_level_t *at)
{
	return at->groups > 1;
}

/* ---- making the domains ---- */

static bool has_threads;			/* whether some core has several threads */

__weak int set_span(u32 level, u32 first, u32 end, u32 groups)
{
	u64 now = scx_bpf_now();
	u32 i;

	if (level >= NR_LEVELS)
		return 0;
	bpf_for(i, first, end) {
		fair_level_t *at = &cpu_at(nth_cpu(i))->level[level];

		at->from = cpu_at(nth_cpu(first));
		at->first = first;
		at->end = end;
		at->cpus = end - first;
		at->groups = groups;
		at->last = now;
		if (!level && is_compared(at))
			has_threads = true;
	}
	return 0;
}

__weak int make_domains(void)
{
	u32 level, i;

	bpf_for(i, 0, nr_cpus) {
		u32 threads = core_size[i & (MAX_CPUS - 1)];

		cpu_at(i)->power = threads > 1 ? SMT_POWER / threads : CPU_POWER;
		cpu_at(nth_cpu(i))->next = cpu_at(nth_cpu(i + 1 < nr_cpus ? i + 1 : 0));
	}
	bpf_for(level, 0, NR_LEVELS) {
		u32 first = 0, groups = 1;

		bpf_for(i, 1, nr_cpus) {
			u32 cpu = nth_cpu(i), before = nth_cpu(i - 1);

			if (same_span(level, cpu, before)) {
				groups += group_id(level, cpu) != group_id(level, before);
				continue;
			}
			set_span(level, first, i, groups);
			first = i;
			groups = 1;
		}
		set_span(level, first, nr_cpus, groups);
	}
	return 0;
}

/* ---- CPUs with more than one task ---- */

/* Returns the fair_level of the span's first CPU, which has the span's nr_over. */
static __always_inline fair_level_t *span_at(fair_level_t *at, u32 level)
{
	return &at->from->level[level];
}

/*
 * Updates nr_over of each level after the number of a CPU's tasks changed. The caller holds the
 * CPU's lock. The machine's count is updated even if the machine's level is left out, because
 * nr_over() returns it.
 */
static __always_inline void note_tasks(fair_cpu_t *c, u32 was, u32 is)
{
	s32 delta = (is > 1) - (was > 1);
	u32 level;

	if (!delta)
		return;
	for (level = 0; level < NR_LEVELS && can_loop; level++) {
		fair_level_t *at = &c->level[level];

		if (is_compared(at) || level == NR_LEVELS - 1)
			__sync_fetch_and_add(&span_at(at, level)->nr_over, delta);
	}
}

/* Number of CPUs of the machine with more than one task; `c` is any CPU. */
static __always_inline u32 nr_over(fair_cpu_t *c)
{
	return c->level[NR_LEVELS - 1].from->level[NR_LEVELS - 1].nr_over;
}

#endif
