/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * numa=preferred: a running task goes to the node that automatic NUMA balancing prefers for it.
 *
 * Owns: the choice of the CPU, and when to try. numa.bpf.h has the rule by which balancing leaves a
 * task on its preferred node.
 * Models: task_numa_migrate() and task_numa_find_cpu() of "Basic scheduler support for automatic
 * NUMA balancing V5" (2013), with the exchange of tasks of its last patch. Differs: the tick after
 * the choice of a node starts the move, an idle core comes first, and a CPU gets one task at a time.
 * Faults by node cannot be read. Therefore a task resists leaving its preferred node only, where the
 * series also compares the faults of two other nodes; and a task is exchanged only if it comes to its
 * own preferred node, where the series demands that it does not lose by the exchange.
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
 * Sends the task with that pid, which runs on `from`, to the CPU `to`. If `partner` is not 0, the task
 * with that pid then comes from `to` in exchange.
 */
static void exchange_from(s32 from, s32 to, u32 pid, u32 partner)
{
	fair_cpu_t *c = cpu_at(from);

	if (!c->curr || c->curr->pid != pid || c->push_to != NO_CPU || !gang_lets(c->curr, from, to))
		return;
	count(numa_swaps);
	c->push_pid = pid;
	c->swap_pid = partner;
	apart();
	c->push_to = to;
	kick(from, SCX_KICK_PREEMPT);
}

/*
 * Returns a CPU of the node that runs a task of about the same weight which prefers the node of
 * `cpu`; NO_CPU: there is none. That task is not on its preferred node, and would come to it.
 */
static __noinline s32 partner_on(u32 node, s32 cpu, struct task_struct *p)
{
	fair_task_t *t = cpu_at(cpu)->curr;
	s32 here = node_of(cpu);
	u32 i;

	if (!p || !t)
		return NO_CPU;
	bpf_for(i, 0, nr_cpus) {
		u32 at = nth_cpu(i);
		fair_task_t *o = cpu_at(at)->curr;

		if (node_of(at) != node || !o || o->numa.memory != here || !may_run_on(p, at))
			continue;
		if (weighs_alike(t->se.weight, o->se.weight) && curr_may_go(at, cpu))
			return at;
	}
	return NO_CPU;
}

/* Exchanges the running task for one that runs on the node that the task prefers. */
static __noinline bool exchange_with(u32 node, s32 cpu, struct task_struct *p)
{
	s32 at = partner_on(node, cpu, p);
	fair_task_t *t = cpu_at(cpu)->curr, *o;

	if (at == NO_CPU || !t)
		return false;
	o = cpu_at(at)->curr;
	if (!o)
		return false;
	exchange_from(at, cpu, o->pid, t->pid);
	return true;
}

/* After the first task of an exchange went to the CPU `to`: makes that CPU send the other one. */
static void note_exchanged(fair_cpu_t *c, s32 to)
{
	if (c->swap_pid)
		exchange_from(to, c->root->cpu, c->swap_pid, 0);
}

/*
 * At a tick: sends the running task to an idle CPU of its preferred node, or to one with less load,
 * or exchanges it. A task tries once when it gets a preferred node, and then at long intervals.
 */
static __noinline void go_to_preferred(s32 cpu, struct task_struct *p, u64 now)
{
	fair_task_t *t = cpu_at(cpu)->curr;
	s32 node, to;

	if (!p || !t || is_migration_disabled(p))
		return;
	node = preferred_node(p);
	if (node != t->numa.memory) {
		t->numa.memory = node;
		t->pinned_until = now;
	}
	if (node < 0 || node == (s32)node_of(cpu) || time_before(now, t->pinned_until))
		return;
	t->pinned_until = now + PREFERRED_RETRY_NS;
	to = idle_cpu_of(node, p);
	if (to == NO_CPU || !scx_bpf_test_and_clear_cpu_idle(to)) {
		to = least_loaded_of(node, p, now);
		if (to == NO_CPU || !has_less_load(t, cpu, to, now)) {
			if (!exchange_with(node, cpu, p))
				count(numa_limited);
			return;
		}
	}
	cpu_at(to)->preferred_at = now;
	count(numa_preferred);
	push_from(cpu, to, NULL);
}

#endif
