/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * numa: the calls from fair to lib/numa.bpf.h, and which tasks may change nodes. consolidate.bpf.h
 * moves tasks.
 *
 * With numa=off, or one node, none of this has an effect. Kernel threads belong to no process here.
 *
 * Knobs:
 *   numa             off; consolidate: brings the tasks of a process together on a node, by their
 *                    weights; consolidate+load: by their load (refused without load=pelt);
 *                    consolidate+faults: the process's NUMA faults decide between nodes with equal
 *                    shares of it; preferred: no consolidation, each task goes to the node with most
 *                    of its NUMA faults (preferred.bpf.h). Refused on more than 64 nodes
 *   numa_settle_ns   time for which a task that came from another node is not moved to another
 *                    again; 0: no limit. In this time a CPU looks for tasks at most eight times,
 *                    and a process moves at most eight tasks. An eighth of it is also the wait
 *                    after which balancing takes a task away from its process, or from its
 *                    preferred node
 *
 * Limits: an idle CPU may leave a task of another node waiting that came to that node less than
 * numa_settle_ns ago, or has waited for less than an eighth of numa_settle_ns. A running task that
 * was asked for and may not come because of its affinity is not asked for again for 31 times
 * numa_settle_ns. Tasks of throttled cgroups count as queued. An idle CPU finds a process on a node
 * only if a task of the process runs on one of the node's CPUs, or ran there last.
 */
#ifndef FAIR_NUMA_BPF_H
#define FAIR_NUMA_BPF_H

#include "fair.bpf.h"

#define PF_KTHREAD	0x00200000
#define LOOKS_PER_SETTLE	8	/* an idle CPU's searches for a process in numa_settle_ns, at
				 * most */
#define PINNED_SETTLES	31	/* time for which a running task that could not come is not asked
				 * for again, in units of numa_settle_ns */

/* Whether processes are consolidated. */
static __always_inline bool numa_on(void)
{
	return numa != FAIR_NUMA_OFF && numa != FAIR_NUMA_PREFERRED && numa_nr_nodes > 1;
}

/* Whether each task goes to its preferred node. */
static __always_inline bool prefers_nodes(void)
{
	return numa == FAIR_NUMA_PREFERRED && numa_nr_nodes > 1;
}

/* ---- counting ---- */

/*
 * Counts the task on the CPU's node. Called after the task was counted on the CPU, under the CPU's
 * lock.
 */
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

/* Tells lib/numa.bpf.h that the load of a counted task has changed. */
static __always_inline void numa_note_load(fair_entity_t *se, u64 now)
{
	if (numa == FAIR_NUMA_CONSOLIDATE__LOAD && numa_on() && !se->mine)
		numa_reweigh(&((fair_task_t *)se)->numa, se->contrib, now);
}

static void numa_note_task(fair_task_t *t, struct task_struct *p)
{
	if (numa_on())
		numa_join(&t->numa, p->flags & PF_KTHREAD ? 0 : p->tgid);
	else if (prefers_nodes())
		t->numa.memory = NUMA_NOWHERE;
}

static void numa_forget_task(fair_task_t *t, u64 now)
{
	if (numa_on())
		numa_leave(&t->numa, now);
}

/*
 * Returns the node with most of the task's NUMA faults; NUMA_NOWHERE: it is not known, or the kernel
 * has no NUMA balancing.
 */
static __always_inline s32 preferred_node(struct task_struct *p)
{
	return bpf_core_field_exists(p->numa_preferred_nid) ? BPF_CORE_READ(p, numa_preferred_nid) : NUMA_NOWHERE;
}

/* Notes the task's preferred node by automatic NUMA balancing, if the kernel has it switched on. */
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

/*
 * Adds a CPU to its node's number of cores if `cpus` is 1, and removes it if `cpus` is -1. A thread
 * counts as a fraction of its core; with numa_room=cpus, as a core.
 */
static void numa_note_cpu(u32 cpu, s64 cpus)
{
	u32 threads = numa_room == FAIR_NUMA_ROOM_CORES ? core_size[cpu & (MAX_CPUS - 1)] : 1;

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
	if (numa > FAIR_NUMA_PREFERRED) {
		scx_bpf_error("numa=%u: it is off, consolidate, consolidate+load, consolidate+faults or preferred (0 to 4)", numa);
		return -EINVAL;
	}
	if (numa_room > FAIR_NUMA_ROOM_CPUS) {
		scx_bpf_error("numa_room=%u: it is cores or cpus (0 or 1)", numa_room);
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
	if (numa == FAIR_NUMA_PREFERRED)
		numa_nr_nodes = nodes;
	return nodes > 1 && numa != FAIR_NUMA_PREFERRED ? numa_init(nodes) : 0;
}

/* ---- judging ---- */

static __always_inline bool by_faults(void)
{
	return numa == FAIR_NUMA_CONSOLIDATE__FAULTS;
}

/* Shortest interval between an idle CPU's searches for a process, and between a process's moves. */
static __always_inline u64 look_ns(void)
{
	return numa_settle_ns / LOOKS_PER_SETTLE;
}

/* Whether the task came from another node less than numa_settle_ns ago. */
static __always_inline bool is_settling(fair_task_t *t, u64 now)
{
	return t->numa.moved_at && (s64)(now - t->numa.moved_at) < (s64)numa_settle_ns;
}

/*
 * Whether the task may move to the node of its process: it did not come from another node, nor fail
 * to move, a short time ago.
 */
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
 * Whether balancing may take the task in this pass. First pass: only if the move does not scatter
 * the task's process, nor brings it together on a node without room. Second pass: only if the task
 * has waited for so long that its node is not just busy for a moment.
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
	/*
	 * The first pass leaves a task to another node that is nearer to the task's memory. If the
	 * task has waited for long, the second pass takes it.
	 */
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

/* Whether the move brings the task to its preferred node. */
static __always_inline bool comes_to_preferred(struct task_struct *p, pull_t *pull)
{
	u32 to = node_of(pull->to);

	return prefers_nodes() && to != node_of(pull->from) && preferred_node(p) == (s32)to;
}

/*
 * Whether balancing may take the task. A task leaves its preferred node only if it has waited for
 * long, and for a busy CPU only after passes that left it alone have failed.
 */
static __noinline bool preferred_lets(struct task_struct *p, fair_task_t *t, pull_t *pull)
{
	u32 from;

	if (!p || !t || !pull)
		return false;
	from = node_of(pull->from);
	if (from == node_of(pull->to) || preferred_node(p) != (s32)from)
		return true;
	if (pull->take_hot && (s64)(pull->now - t->waits_since) >= (s64)look_ns())
		return true;
	count(numa_waits);
	return false;
}

/*
 * Whether a woken task may go to its waker's node. It may if the task is all of its process. It may
 * also if the move brings its process together, the node has room, and the task has not come from
 * another node a short time ago.
 */
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

/* Notes the time of a task's move from another node. */
static __always_inline void numa_note_move(fair_task_t *t, u32 from, u32 to, u64 now)
{
	if (numa_on() && t && node_of(from) != node_of(to))
		t->numa.moved_at = now;
}

/* Leaves a task alone for a while, because it may not run on the CPU that asked for it. */
static void numa_note_pinned(fair_cpu_t *c, fair_task_t *t, u64 now)
{
	if (!numa_on() || !c->push_proc)
		return;
	count(numa_limited);
	t->pinned_until = now + PINNED_SETTLES * numa_settle_ns;
}

/*
 * Whether balancing may send the running task to another node: its process is not scattered, or the
 * task gets a core there and has none here.
 */
static __noinline bool numa_lets_go(fair_task_t *t, u32 from, u32 to)
{
	if (!t)
		return false;
	from = node_of(from);
	to = node_of(to);
	return from == to || !scatters(t, from, to) || (numa_is_crowded(from) && !numa_is_full(to));
}

/*
 * Whether to send the task that ran to the CPU `to`. It must be of the intended process, which the
 * move or exchange must still bring together; if it is a move, that CPU must still be idle.
 */
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
