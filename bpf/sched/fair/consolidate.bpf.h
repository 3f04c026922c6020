/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Consolidation: a CPU that found nothing to do brings a process together on its node.
 *
 * Owns: which process, from which node, from which CPU. Does not: count (lib/numa.bpf.h), move (balance.bpf.h).
 * Models: the idle pull of "Improve numa scheduling by consolidating tasks" (2013).
 */
#ifndef FAIR_CONSOLIDATE_BPF_H
#define FAIR_CONSOLIDATE_BPF_H

#include "balance.bpf.h"

#define LOOKS_PER_SETTLE	8	/* of one idle CPU, at most */

/* Process and node that the CPU should take a task from. In the arena, as balance is. */
__weak bool choose_process(s32 cpu, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	u32 here = node_of(cpu), i;
	u64 most = 0;
	bool limited = false;

	c->take = NULL;
	bpf_for(i, 0, nr_cpus) {
		u32 at = nth_cpu(i);
		numa_proc_t *p = cpu_at(at)->proc;
		s32 from, memory;
		u64 home;

		if (!p || p == c->take)
			continue;
		memory = numa_memory(p);
		if (node_of(at) != here && memory != (s32)here)
			continue;
		home = numa_share(p, here)->home + 1;
		if (home <= most)
			continue;
		from = numa_source(p, here, memory);
		if (from == NUMA_NOWHERE)
			continue;
		/* More of it than the node has CPUs would only wait for each other. */
		if (numa_share(p, here)->nr >= c->node_cpus ||
		    !numa_has_room(here, numa_task_weight(p, from), imbalance_pct(NR_LEVELS - 1), now)) {
			limited = true;
			continue;
		}
		most = home;
		c->take = p;
		c->take_from = from;
	}
	if (!c->take && limited)
		count(numa_limited);
	return c->take != NULL;
}

/* The CPU of the node where the process runs, or one where something waits: of several the one with the fewest at home there. */
__weak s32 choose_queue(s32 cpu, bool runs)
{
	fair_cpu_t *c = cpu_at(cpu);
	u32 i, least = ~0U;
	s32 best = NO_CPU;

	bpf_for(i, 0, nr_cpus) {
		u32 at = nth_cpu(i);
		fair_cpu_t *other = cpu_at(at);

		if (node_of(at) != (u32)c->take_from || !other->online || other->nr_local >= least)
			continue;
		if (runs ? !other->curr || other->proc != c->take : other->root->h_nr < 2)
			continue;
		least = other->nr_local;
		best = at;
	}
	return best;
}

/* One that waits, and comes at once. */
static bool pull_waiting(s32 cpu, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	pull_t *pull = &c->pull;
	s32 from = choose_queue(cpu, false);

	if (from == NO_CPU)
		return false;
	zero_words((u64 __arena *)pull, sizeof(*pull));
	pull->from = from;
	pull->to = cpu;
	pull->imbalance = ~0ULL >> 1;
	pull->now = now;
	pull->tries = nr_migrate;
	pull->level = NR_LEVELS - 1;
	pull->take_hot = 1;
	pull->helps = 1;
	apart();
	pull->only = c->take;
	pull->gang = ROOT_GROUP;
	return pull_task(cpu);
}

/* One that runs, and is sent when it is off its CPU. */
static void pull_running(s32 cpu, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	s32 from = choose_queue(cpu, true);
	fair_task_t *t;

	if (from == NO_CPU)
		return;
	t = cpu_at(from)->curr;
	if (!t)
		return;
	if (is_settling(t, now)) {
		count(numa_bounces_avoided);
		return;
	}
	push_from(from, cpu, c->take);
}

/* This CPU has nothing, and nobody has too much. True if a task came. */
__weak bool consolidate(s32 cpu, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);

	if (!numa_on() || c->leave_prev)
		return false;
	if (!c->look && (s64)(now - c->looked_at) < (s64)(numa_settle_ns / LOOKS_PER_SETTLE))
		return false;
	c->look = 0;
	c->looked_at = now;
	if (!choose_process(cpu, now))
		return false;
	if (pull_waiting(cpu, now)) {
		count(numa_pulls);
		return true;
	}
	pull_running(cpu, now);
	return false;
}

/* At a tick: if the process that runs here is spread, and could come here, an idle CPU of this node shall look: it has no ticks. */
static __noinline void ask_for_consolidation(s32 cpu, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	numa_proc_t *p = c->proc;
	const struct cpumask *idle;
	u32 node = node_of(cpu), i;

	if ((s64)(now - c->asked_at) < (s64)numa_settle_ns)
		return;
	c->asked_at = now;
	if (numa_source(p, node, numa_memory(p)) == NUMA_NOWHERE)
		return;
	idle = scx_bpf_get_idle_cpumask();
	bpf_for(i, 0, nr_cpus) {
		u32 at = nth_cpu(i);

		if (node_of(at) != node || !is_idle(idle, at))
			continue;
		cpu_at(at)->look = 1;
		kick(at, SCX_KICK_IDLE);
		break;
	}
	scx_bpf_put_idle_cpumask(idle);
}

#endif
