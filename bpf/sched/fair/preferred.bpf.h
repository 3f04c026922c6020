/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * numa=preferred: a running task goes to the node that automatic NUMA balancing prefers for it.
 *
 * Owns: the choice of the CPU, and when to try. numa.bpf.h has the rule by which balancing leaves a
 * task on its preferred node.
 * Models: task_numa_migrate() and task_numa_find_cpu() of "Basic scheduler support for automatic
 * NUMA balancing V5" (2013). Differs: the tick after the choice of a node starts the move, an idle
 * core comes first, and a CPU gets one task at a time. Without faults by node, a task resists leaving its preferred node only;
 * the series also compares the faults of two other nodes.
 */
#ifndef FAIR_PREFERRED_BPF_H
#define FAIR_PREFERRED_BPF_H

#include "consolidate.bpf.h"

/* Time after which a task that is not on its preferred node tries again, as in the series. */
#define PREFERRED_RETRY_NS	(5 * NSEC_PER_SEC)

/*
 * Returns the CPU of the node with the least load on which the task may run. Leaves out CPUs to
 * which another task was sent a moment ago, because that task may not be counted there yet.
 */
static __noinline s32 least_loaded_of(u32 node, struct task_struct *p, u64 now)
{
	s32 best = NO_CPU;
	u64 least = 0;
	u32 i;

	if (!p)
		return NO_CPU;
	bpf_for(i, 0, nr_cpus) {
		u32 at = nth_cpu(i);
		fair_cpu_t *c = cpu_at(at);
		u64 load;

		if (node_of(at) != node || !c->online || !may_run_on(p, at))
			continue;
		if ((s64)(now - c->preferred_at) < (s64)look_ns())
			continue;
		load = cpu_load_now(c, now);
		if (best != NO_CPU && load >= least)
			continue;
		least = load;
		best = at;
	}
	return best;
}

/*
 * Whether the CPU `to` has, with the task, no more load than `from` has now. Half of the tolerance
 * of balancing is added, as for a wake-up.
 */
static bool has_less_load(fair_task_t *t, s32 from, s32 to, u64 now)
{
	u64 here = cpu_load_now(cpu_at(from), now), there = cpu_load_now(cpu_at(to), now);

	return 100 * (there + task_load(t)) <= (50 + imbalance_pct(NR_LEVELS - 1) / 2) * here;
}

/*
 * At a tick: sends the running task to an idle CPU of its preferred node, or to one with less load.
 * A task tries once when it gets a preferred node, and then at long intervals.
 */
static __noinline void go_to_preferred(s32 cpu, struct task_struct *p, u64 now)
{
	fair_task_t *t = cpu_at(cpu)->curr;
	s32 node, to;

	if (!p || !t || is_migration_disabled(p))
		return;
	node = preferred_node(p);
	if (node < 0 || node == (s32)node_of(cpu))
		return;
	if (node == t->numa.memory && time_before(now, t->pinned_until))
		return;
	t->numa.memory = node;
	t->pinned_until = now + PREFERRED_RETRY_NS;
	to = idle_cpu_of(node, p);
	if (to == NO_CPU || !scx_bpf_test_and_clear_cpu_idle(to)) {
		to = least_loaded_of(node, p, now);
		if (to == NO_CPU || !has_less_load(t, cpu, to, now)) {
			count(numa_limited);
			return;
		}
	}
	cpu_at(to)->preferred_at = now;
	count(numa_preferred);
	push_from(cpu, to, NULL);
}

#endif
