/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * numa: what fair tells lib/numa.bpf.h, and which tasks may go from one node to another. Acting on it is consolidate.bpf.h's.
 *
 * With numa=off, or one node, each of these is a test and nothing else. Kernel threads belong to no process here.
 *
 * Knobs:
 *   numa             off; consolidate, which brings the tasks of a process together on a node, by their weights; consolidate+load,
 *                    by their load (needs load=pelt, else refused); consolidate+faults, where the process's NUMA faults decide
 *                    between nodes that have as much of it as each other. More than 64 nodes: refused
 *   numa_settle_ns   for how long a task that came from another node is not moved to another again; 0: never a limit. A CPU looks
 *                    for tasks eight times in that time at most, and a process moves as many. An eighth of it is also how long a
 *                    task waits before balancing takes it away from its process
 *
 * Limits: an idle CPU may leave a task of another node waiting that came there less than numa_settle_ns ago, or has waited for less
 * than an eighth of it. A task that runs and, asked for, may not come because of its affinity is not asked for again for 31 times
 * as long. Tasks of throttled cgroups count as queued. Which processes are on a node is seen by what runs on its CPUs, or ran last.
 */
#ifndef FAIR_NUMA_BPF_H
#define FAIR_NUMA_BPF_H

#include "fair.bpf.h"

#define PF_KTHREAD	0x00200000
#define LOOKS_PER_SETTLE	8	/* of one CPU, at most */
#define PINNED_SETTLES	31	/* numa_settle_ns, before a task is tried again that runs and may not come */

static __always_inline bool numa_on(void)
{
	return numa != FAIR_NUMA_OFF && numa_nr_nodes > 1;
}

/* ---- counting ---- */

/* The task was counted on a CPU, under its lock. */
static __always_inline void numa_note_enqueue(fair_task_t *t, u32 cpu, u64 now)
{
	u32 node = node_of(cpu);

	if (!numa_on() || !t->numa.proc)
		return;
	numa_enqueue(&t->numa, node, numa == FAIR_NUMA_CONSOLIDATE__LOAD ? t->se.contrib : t->se.weight, now);
	t->numa_local = numa_is_local(t->numa.proc, node);
	cpu_at(cpu)->nr_local += t->numa_local;
}

static __always_inline void numa_note_dequeue(fair_task_t *t, u32 cpu, u64 now)
{
	if (!numa_on() || !t->numa.proc)
		return;
	numa_dequeue(&t->numa, now);
	cpu_at(cpu)->nr_local -= t->numa_local;
	t->numa_local = 0;
}

/* The load of a task that is counted has changed. */
static __always_inline void numa_note_load(fair_entity_t *se, u64 now)
{
	if (numa == FAIR_NUMA_CONSOLIDATE__LOAD && numa_on() && !se->mine)
		numa_reweigh(&((fair_task_t *)se)->numa, se->contrib, now);
}

static void numa_note_task(fair_task_t *t, struct task_struct *p)
{
	if (numa_on())
		numa_join(&t->numa, p->flags & PF_KTHREAD ? 0 : p->tgid);
}

static void numa_forget_task(fair_task_t *t, u64 now)
{
	if (numa_on())
		numa_leave(&t->numa, now);
}

/* Where automatic NUMA balancing, if the kernel has it and it is on, thinks that the task's memory is. */
static void numa_note_memory(fair_task_t *t, struct task_struct *p)
{
	u64 faults = 1;

	if (!bpf_core_field_exists(p->numa_preferred_nid))
		return;
	if (bpf_core_field_exists(p->total_numa_faults))
		faults += BPF_CORE_READ(p, total_numa_faults);
	numa_remember(&t->numa, BPF_CORE_READ(p, numa_preferred_nid), faults);
}

static __always_inline void numa_note_running(fair_cpu_t *c, fair_task_t *t, struct task_struct *p)
{
	if (!numa_on())
		return;
	c->proc = t->numa.proc;
	if (numa == FAIR_NUMA_CONSOLIDATE__FAULTS)
		numa_note_memory(t, p);
}

/* A CPU comes or goes: its part of a core. */
static void numa_note_cpu(u32 cpu, s64 cpus)
{
	u32 threads = core_size[cpu & (MAX_CPUS - 1)];

	if (numa_on())
		__sync_fetch_and_add(&numa_nodes[node_of(cpu)].places, cpus * (NUMA_PLACE / (threads ?: 1)));
}

static __always_inline u32 max_node(void)
{
	u32 cpu, max = 0;

	bpf_for(cpu, 0, nr_cpus)
		max = max_u64(max, node_of(cpu));
	return max;
}

static s32 numa_start(void)
{
	u32 nodes;

	if (numa == FAIR_NUMA_OFF)
		return 0;
	if (numa > FAIR_NUMA_CONSOLIDATE__FAULTS) {
		scx_bpf_error("numa=%u: it is off, consolidate, consolidate+load or consolidate+faults (0 to 3)", numa);
		return -EINVAL;
	}
	if (numa == FAIR_NUMA_CONSOLIDATE__LOAD && load != FAIR_LOAD_PELT) {
		scx_bpf_error("numa=consolidate+load weighs tasks by their load: it needs load=pelt");
		return -EINVAL;
	}
	nodes = max_node() + 1;
	if (nodes > NUMA_MAX_NODES) {
		scx_bpf_error("node %u: fair with numa=consolidate is built for nodes 0 to %u; with numa=off for any", nodes - 1,
			      NUMA_MAX_NODES - 1);
		return -E2BIG;
	}
	return nodes > 1 ? numa_init(nodes) : 0;
}

/* ---- judging ---- */

static __always_inline bool by_faults(void)
{
	return numa == FAIR_NUMA_CONSOLIDATE__FAULTS;
}

/* How often one CPU looks for something to bring together, and a process moves a task, at most. */
static __always_inline u64 look_ns(void)
{
	return numa_settle_ns / LOOKS_PER_SETTLE;
}

/* It came from another node a moment ago. */
static __always_inline bool is_settling(fair_task_t *t, u64 now)
{
	return t->numa.moved_at && (s64)(now - t->numa.moved_at) < (s64)numa_settle_ns;
}

/* It may be brought to where its process is: not if it came a moment ago, or could not a while ago. */
static __always_inline bool may_move(fair_task_t *t, u64 now)
{
	return !is_settling(t, now) && !time_before(now, t->pinned_until);
}

static bool numa_helps(fair_task_t *t, u32 from, u32 to)
{
	return numa_gains(t->numa.proc, from, to, t->numa.weight, by_faults());
}

static bool scatters(fair_task_t *t, u32 from, u32 to)
{
	return numa_scatters(t->numa.proc, from, to, t->numa.weight, by_faults());
}

/*
 * Whether balancing may take it from a queue, in this pass: in the first only one whose process is not scattered by that, in the
 * second any that has waited for so long that its node is not only busy for a moment.
 */
static __noinline bool numa_lets(fair_task_t *t, pull_t *pull)
{
	u32 from, to;

	if (!t || !pull)
		return false;
	from = node_of(pull->from);
	to = node_of(pull->to);
	if (from == to)
		return true;
	if (pull->only && (t->numa.proc != pull->only || !numa_helps(t, from, to)))
		return false;
	if (pull->helps && (scatters(t, from, to) || (pull->full && numa_helps(t, from, to))))
		return false;
	/* The second pass takes it if it has to wait for that node. */
	if (pull->helps && !pull->only && by_faults() && numa_nearer_memory(t->numa.proc, from, to) != NUMA_NOWHERE)
		return false;
	if (is_settling(t, pull->now)) {
		count(numa_bounces_avoided);
		return false;
	}
	if (!pull->helps && (s64)(pull->now - t->waits_since) < (s64)look_ns()) {
		count(numa_waits);
		return false;
	}
	return true;
}

/* Whether a wake-up may take it to the waker's node: if it is all of its process, or brings it together. */
static __noinline bool numa_lets_wake(fair_task_t *t, u32 from, u32 to)
{
	u64 now = scx_bpf_now();

	if (!t)
		return false;
	from = node_of(from);
	to = node_of(to);
	if (from == to)
		return true;
	if (!numa_helps(t, from, to))
		return !scatters(t, from, to);
	return !is_settling(t, now) && numa_has_room(to, t->numa.weight, 0, now);
}

/* It was taken. */
static __always_inline void numa_note_move(fair_task_t *t, u32 from, u32 to, u64 now)
{
	if (numa_on() && t && node_of(from) != node_of(to))
		t->numa.moved_at = now;
}

/* It may not go there: it is left alone for a while. */
static void numa_note_pinned(fair_cpu_t *c, fair_task_t *t, u64 now)
{
	if (!numa_on() || !c->push_proc)
		return;
	count(numa_limited);
	t->pinned_until = now + PINNED_SETTLES * numa_settle_ns;
}

/*
 * Whether the task that runs may be sent to another node by balancing: if its process is not scattered by that, or if it would
 * have a core there and has none here.
 */
static __noinline bool numa_lets_go(fair_task_t *t, u32 from, u32 to)
{
	if (!t)
		return false;
	from = node_of(from);
	to = node_of(to);
	return from == to || !scatters(t, from, to) || (numa_is_crowded(from) && !numa_is_full(to));
}

/* Whether the task that ran may be sent: the one that was meant, if one was, to a CPU that still has nothing. */
static __noinline bool numa_lets_push(fair_cpu_t *c, fair_task_t *t, s32 to, u64 now)
{
	numa_proc_t *meant;
	u32 from, dest;

	if (!c || !t)
		return false;
	meant = c->push_proc;
	from = c->root->cpu;
	dest = node_of(to);
	if (node_of(from) == dest)
		return true;
	if (is_settling(t, now)) {
		count(numa_bounces_avoided);
		return false;
	}
	if (!meant)
		return numa_lets_go(t, from, to);
	if (t->numa.proc != meant)
		return false;
	switch (c->push_swap) {
	case SWAP_FIRST:
		return numa_swap_gains(meant, c->swap_proc, node_of(from), dest, t->numa.weight, c->swap_weight, by_faults());
	case SWAP_SECOND:
		return true;
	}
	return !cpu_at(to)->root->h_nr && numa_helps(t, node_of(from), dest);
}

#endif
