/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where a task goes that wakes up or is new, and whom it preempts there.
 *
 * Models: select_task_rq_fair(), select_idle_sibling(), check_preempt_wakeup() of Linux 3.x. Differs: the kernel's idle masks
 * stand for idle_cpu(), so that two tasks that wake up at once do not take the same CPU.
 */
#ifndef FAIR_WAKE_BPF_H
#define FAIR_WAKE_BPF_H

#include "entity.bpf.h"

/* ---- how busy a CPU is ---- */

/* Weight (window) or load (pelt, with what sleeps) of all that is there now. */
static u64 cpu_load_now(fair_cpu_t *c, u64 now)
{
	return is_pelt() ? c->root->runnable_load + pelt_blocked_now(c->root, now) : c->root->weight;
}

/* A weight or load in a cgroup's queue as part of the CPU's. */
static u64 load_at_root(fair_rq_t *q, u64 part)
{
	while (q->depth && can_loop) {
		if (is_pelt())
			part = part * q->se.contrib / (q->runnable_load + 1);
		else
			part = part * q->se.weight / (q->weight + 1);
		q = q->se.q;
	}
	return part;
}

static u64 task_load(fair_task_t *t)
{
	u64 own = is_pelt() ? t->se.contrib : t->se.weight;

	return t->se.q ? load_at_root(t->se.q, own) : own;
}

/* ---- placement ---- */

static __always_inline bool may_run_on(struct task_struct *p, s32 cpu)
{
	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

/* Whether the waker's CPU would, with the task there, be no busier than the task's own is with it. */
static bool wake_affine(fair_task_t *t, s32 this_cpu, s32 prev_cpu, bool sync, u64 now)
{
	fair_cpu_t *here = cpu_at(this_cpu);
	u64 this_load = cpu_load_now(here, now), prev_load = cpu_load_now(cpu_at(prev_cpu), now), own = task_load(t);

	if (sync && here->curr)
		this_load -= min_u64(this_load, task_load(here->curr));
	if (!this_load)
		return true;
	/* The task's own CPU may be busier by half of what balancing tolerates. */
	return 100 * (this_load + own) <= (100 + (125 - 100) / 2) * (prev_load + own);
}

static __always_inline bool is_idle(const struct cpumask *idle, s32 cpu)
{
	return bpf_cpumask_test_cpu(cpu, idle);
}

/*
 * An idle CPU near the target: itself, where the task was if that shares the cache, a core of the LLC that is idle as a whole,
 * a sibling. Claims it.
 */
static s32 pick_idle_sibling(struct task_struct *p, s32 prev_cpu, s32 target)
{
	const struct cpumask *idle, *cores;
	s32 found = NO_CPU;
	u32 i, llc;

	if (scx_bpf_test_and_clear_cpu_idle(target))
		return target;
	llc = llc_of(target);
	if (prev_cpu != target && llc_of(prev_cpu) == llc && scx_bpf_test_and_clear_cpu_idle(prev_cpu))
		return prev_cpu;
	idle = scx_bpf_get_idle_cpumask();
	cores = scx_bpf_get_idle_smtmask();
	bpf_for(i, 0, nr_cpus) {
		u32 cpu = nth_cpu(i);

		if (llc_of(cpu) != llc || !is_idle(idle, cpu) || !may_run_on(p, cpu))
			continue;
		if (is_idle(cores, cpu) || core_of(cpu) == core_of(target)) {
			if (scx_bpf_test_and_clear_cpu_idle(cpu)) {
				found = cpu;
				break;
			}
		}
	}
	scx_bpf_put_idle_cpumask(cores);
	scx_bpf_put_idle_cpumask(idle);
	return found == NO_CPU ? target : found;
}

/*
 * Where a new task goes: an idle CPU, else the one with the fewest tasks, of these the one with the least weight. Weight alone
 * would be wrong here: a cgroup's weight on a CPU is brought up to date at ticks, and many tasks may be made between two.
 */
static s32 pick_idlest(struct task_struct *p, s32 prev_cpu)
{
	s32 best = prev_cpu;
	u64 least = ~0ULL;
	u32 i;

	if (scx_bpf_test_and_clear_cpu_idle(prev_cpu))
		return prev_cpu;
	best = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (best >= 0)
		return best;
	best = prev_cpu;
	bpf_for(i, 0, nr_cpus) {
		u32 cpu = prev_cpu + i < nr_cpus ? prev_cpu + i : prev_cpu + i - nr_cpus;
		fair_rq_t *root = cpu_at(cpu)->root;
		u64 full;

		if (!may_run_on(p, cpu) || !cpu_at(cpu)->online)
			continue;
		full = (u64)root->h_nr << 32 | (u32)root->weight;
		if (full < least) {
			least = full;
			best = cpu;
		}
	}
	return best;
}

/* ---- preemption ---- */

/* Whether the task should run instead of the one that runs. They are compared where their paths to the root meet. */
static bool preempts(fair_cpu_t *c, fair_task_t *t)
{
	fair_entity_t *se = &t->se, *curr;
	u32 i;

	if (!c->curr || c->curr == t || se->q->throttle_depth)
		return false;
	if (c->curr->policy_idle && !t->policy_idle)
		return true;
	if (t->policy_batch || t->policy_idle)
		return false;
	curr = &c->curr->se;
	for (i = 0; i < MAX_DEPTH && se->q != curr->q && can_loop; i++) {
		u32 a = se->q->depth, b = curr->q->depth;

		if (a >= b)
			se = &se->q->se;
		if (b >= a)
			curr = &curr->q->se;
	}
	if (se->q != curr->q || beats(curr->vruntime, se) != 1)
		return false;
	/* When it is crowded the preempted one comes first after this: its cache is still warm. */
	if (curr->q->nr >= latency() / min_granularity() && !curr->mine)
		curr->q->buddy_last = curr;
	return true;
}

#endif
