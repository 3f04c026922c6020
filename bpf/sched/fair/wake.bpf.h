/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Placement of a task that wakes up or is new, and preemption by the task.
 *
 * Models: select_task_rq_fair(), select_idle_sibling(), check_preempt_wakeup() of Linux 3.x.
 * Differs: the kernel's idle masks replace idle_cpu(), so that two tasks that wake up at once do
 * not take the same CPU. The task's own CPU, if empty, is preferred to the waker's (wake_affine()
 * of 5.11).
 */
#ifndef FAIR_WAKE_BPF_H
#define FAIR_WAKE_BPF_H

#include "entity.bpf.h"
#include "domain.bpf.h"

/* ---- how busy a CPU is ---- */

/* Weight (window) or load (pelt, with sleepers) of all tasks on the CPU. */
static u64 cpu_load_now(fair_cpu_t *c, u64 now)
{
	return is_pelt() ? c->root->runnable_load + pelt_blocked_now(c->root, now) : c->root->weight;
}

/* Returns the value of cpu_load_now() as of the last update of the CPU's load. */
static __always_inline u64 cpu_load_then(fair_cpu_t *c)
{
	return is_pelt() ? c->root->runnable_load + c->root->blocked_load : c->root->weight;
}

/*
 * Returns the load of runnable entities only, because a woken sleeper must not find its own load
 * there.
 */
static u64 runnable_load(fair_cpu_t *c)
{
	return is_pelt() ? c->root->runnable_load : c->root->weight;
}

/* Converts a weight or load in a cgroup's queue into a part of the CPU's weight or load. */
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

/*
 * Whether the waker's CPU, with the task, would be no busier than the task's last CPU with the
 * task. If the last CPU is empty, the answer is no, whatever the loads, unless the waker is about
 * to sleep: with pelt, a waker that seldom runs has almost no load, and would draw all tasks that
 * it wakes from idle cores into its own LLC, two to a core.
 */
static bool wake_affine(fair_task_t *t, s32 this_cpu, s32 prev_cpu, bool sync)
{
	fair_cpu_t *here = cpu_at(this_cpu), *prev = cpu_at(prev_cpu);
	u64 this_load = runnable_load(here), prev_load = runnable_load(prev), own = task_load(t);

	if (!sync && !prev->root->h_nr)
		return false;
	if (sync && here->curr)
		this_load -= min_u64(this_load, task_load(here->curr));
	if (!this_load)
		return true;
	/* The waker's CPU may be busier by half of the imbalance that balancing tolerates. */
	return 100 * (this_load + own) <= (100 + (125 - 100) / 2) * (prev_load + own);
}

static __always_inline bool is_idle(const struct cpumask *idle, s32 cpu)
{
	return bpf_cpumask_test_cpu(cpu, idle);
}

/* Claims the CPU for the task if a mask of idle CPUs has it. */
static __always_inline bool claim(struct task_struct *p, const struct cpumask *idle, s32 cpu)
{
	return is_idle(idle, cpu) && may_run_on(p, cpu) && scx_bpf_test_and_clear_cpu_idle(cpu);
}

/*
 * Claims the target CPU if the mask of idle CPUs has it, else the task's previous CPU if that one
 * shares the target's LLC, else the first CPU of the LLC in the mask. Skips a CPU of the LLC to
 * which a task is on its way; the mask may still have such a CPU.
 */
static s32 claim_near(struct task_struct *p, s32 prev_cpu, s32 target, const struct cpumask *idle)
{
	fair_level_t *llc = &cpu_at(target)->level[1];
	fair_cpu_t *c = llc->from;
	u32 left;

	if (claim(p, idle, target))
		return target;
	if (prev_cpu != target && llc_of(prev_cpu) == llc_of(target) && claim(p, idle, prev_cpu))
		return prev_cpu;
	for (left = llc->cpus; left && can_loop; left--) {
		fair_rq_t *q = c->root;

		if (!q->h_nr && claim(p, idle, q->cpu))
			return q->cpu;
		c = c->next;
	}
	return NO_CPU;
}

/* Claims an idle CPU near the target, preferably on an idle core; NO_CPU: none. */
static s32 pick_idle_sibling(struct task_struct *p, s32 prev_cpu, s32 target)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask(), *cores;
	s32 found = NO_CPU;

	if (!bpf_cpumask_empty(idle)) {
		cores = scx_bpf_get_idle_smtmask();
		found = claim_near(p, prev_cpu, target, cores);
		scx_bpf_put_idle_cpumask(cores);
		if (found == NO_CPU && has_threads)
			found = claim_near(p, prev_cpu, target, idle);
	}
	scx_bpf_put_idle_cpumask(idle);
	return found;
}

/*
 * How crowded a group of CPUs is: its tasks per power and, for ties, its load per power. Load alone
 * would be wrong: a cgroup's weight on a CPU is updated at ticks, and many tasks may be created
 * between two ticks.
 */
struct crowd {
	u64 nr;
	u64 load;
	u64 power;
};

/* Compares how crowded two groups are. 1: the first is less crowded; 0: equal; -1: the second. */
static __always_inline int less_crowded(struct crowd *a, struct crowd *b)
{
	u64 x = a->nr * b->power, y = b->nr * a->power;

	if (x == y) {
		x = a->load * b->power;
		y = b->load * a->power;
	}
	return (x < y) - (x > y);
}

/* Returns the first CPU of a group on which the task may run. */
static __always_inline s32 first_allowed(struct task_struct *p, fair_cpu_t *c, u32 nr)
{
	for (; nr && can_loop; nr--) {
		s32 cpu = c->root->cpu;

		if (c->online && may_run_on(p, cpu))
			return cpu;
		c = c->next;
	}
	return NO_CPU;
}

/*
 * Returns the first allowed CPU of the group with the fewest tasks per power in the span of `cpu`.
 * Of equal groups the group of `cpu` wins.
 */
static __noinline s32 least_crowded(struct task_struct *p, s32 cpu, u32 level)
{
	fair_cpu_t *own = cpu_at(cpu), *c = own->level[level & 3].from;
	u32 left = own->level[level & 3].cpus, nr, below = (level - 1) & 3;
	struct crowd least = { .nr = 1 };	/* 1 task on power 0: each group is less crowded */
	s32 best = cpu;

	if (!p)
		return cpu;
	for (; left && can_loop; left -= nr) {
		fair_cpu_t *group = c;
		struct crowd sum = { nought, nought, nought };
		int less;
		u32 i;
		s32 first;

		/* The groups of a level are the spans of the level below. */
		nr = c->level[below].cpus;
		for (i = nr; i && can_loop; i--) {
			if (c->online) {
				sum.nr += c->root->h_nr;
				sum.load += c->root->weight;
				sum.power += c->power;
			}
			c = c->next;
		}
		less = less_crowded(&sum, &least);
		if (less < 0 || (!less && own->level[below].from != group))
			continue;
		first = first_allowed(p, group, nr);
		if (first == NO_CPU)
			continue;
		least = sum;
		best = first;
	}
	return best;
}

/*
 * Does what least_crowded() does for a level at which each group is one CPU, so that all groups
 * have the same power.
 */
static __noinline s32 least_crowded_cpu(struct task_struct *p, s32 cpu, u32 level)
{
	fair_cpu_t *own = cpu_at(cpu), *c = own->level[level & 3].from;
	u32 left = own->level[level & 3].cpus, least = ~0U;
	u64 load = ~0ULL;
	s32 best = cpu;

	if (!p)
		return cpu;
	for (; left && can_loop; left--) {
		fair_cpu_t *at = c;
		fair_rq_t *q = c->root;
		u32 nr = q->h_nr;
		u64 weight;

		c = c->next;
		if (nr > least || !at->online)
			continue;
		weight = q->weight;
		if (nr == least && (weight > load || (weight == load && at != own)))
			continue;
		if (!may_run_on(p, q->cpu))
			continue;
		least = nr;
		load = weight;
		best = q->cpu;
	}
	return best;
}

/*
 * Returns the CPU of a new task. The choice goes from the machine down, at each level to the group
 * with the fewest tasks per power, so idle cores come first.
 */
static __noinline s32 pick_idlest(struct task_struct *p, s32 prev_cpu)
{
	s32 cpu = prev_cpu;
	u32 level;

	if (!p)
		return prev_cpu;
	for (level = NR_LEVELS; level > 0 && can_loop; level--) {
		fair_level_t *at = &cpu_at(cpu)->level[(level - 1) & 3];

		if (!is_compared(at))
			continue;
		if (at->groups == at->cpus)
			cpu = least_crowded_cpu(p, cpu, level - 1);
		else
			cpu = least_crowded(p, cpu, level - 1);
	}
	scx_bpf_test_and_clear_cpu_idle(cpu);
	return cpu;
}

/* ---- preemption ---- */

/*
 * Whether the task should preempt the running one. Compares the two where their paths to the root
 * meet.
 */
static bool preempts(fair_cpu_t *c, fair_task_t *t)
{
	fair_entity_t *se = &t->se, *curr;
	u32 i;

	if (!c->curr || c->curr == t || is_held(se->q))
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
	/*
	 * If many entities are runnable, the preempted one goes next after this task, because its
	 * cache is warm.
	 */
	if (curr->q->nr >= latency() / min_granularity() && !curr->mine)
		curr->q->buddy_last = curr;
	return true;
}

#endif
