/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Slots, which hold the state of tasks. Each task has a slot from its creation to its exit. Also
 * the rules by which a counter of ticks is charged, and passes between parent and child.
 *
 * Owns: the list of free slots. A task without a slot runs from the global queue, counted as
 * rescued.
 */
#pragma once
#include "goodness.bpf.h"

private(SLOTS) struct bpf_spin_lock slots_lock;
private(SLOTS) u32 free_slots;		/* first free slot; free slots are linked by `next` */
private(SLOTS) u32 nr_slots = 1;	/* slots used so far, including NO_SLOT */

static u32 slot_get(void)
{
	u32 idx;

	bpf_spin_lock(&slots_lock);
	idx = free_slots;
	if (idx)
		free_slots = slot_at(idx)->next;
	else if (nr_slots < MAX_TASKS)
		idx = nr_slots++;
	bpf_spin_unlock(&slots_lock);
	return idx & (MAX_TASKS - 1);
}

static void slot_put(u32 idx)
{
	struct slot *s = slot_at(idx);

	if (!idx)
		return;
	s->pid = 0;
	bpf_spin_lock(&slots_lock);
	s->next = free_slots;
	free_slots = idx;
	bpf_spin_unlock(&slots_lock);
}

static void set_cpus(struct slot *s, const struct cpumask *mask, s32 nr_allowed)
{
	s32 nr_cpus = scx_bpf_nr_cpu_ids(), cpu;
	u32 word;

	for (word = 0; word < MAX_CPUS / 64; word++)
		s->cpus[word] = nr_allowed >= nr_cpus ? ~0ULL : 0;
	if (nr_allowed >= nr_cpus)
		return;
	bpf_for(cpu, 0, nr_cpus)
		if (bpf_cpumask_test_cpu(cpu, mask))
			s->cpus[(cpu >> 6) & (MAX_CPUS / 64 - 1)] |= 1ULL << (cpu & 63);
}

static s32 nice_of(const struct task_struct *p)
{
	s32 nice = p->static_prio - 120;

	if (nice < -20)
		return -20;
	return nice > 19 ? 19 : nice;
}

/*
 * Charges the task's run time to its counter, which never falls below 0. A slice that is used up
 * costs a level of dynamic priority.
 */
static void charge(struct task_struct *p, struct slot *s)
{
	u64 now = p->se.sum_exec_runtime;
	s64 left = s->left_ns - (s64)(now - s->charged_ns);
	bool had_some = s->left_ns > 0;

	s->charged_ns = now;
	s->left_ns = left > 0 ? left : 0;
	s->counter = ((u64)s->left_ns + TICK_NS - 1) / TICK_NS;
	if (had_some && !s->left_ns && s->dyn_prio)
		s->dyn_prio--;
	catch_up(s);
}

/* Divides the parent's remaining ticks between parent and child, so that forking gains nothing. */
static void share_counter(u32 parent, struct slot *s)
{
	struct slot *from = slot_at(parent);

	catch_up(from);
	set_counter(s, (from->counter + 1) >> 1);
	set_counter(from, from->counter >> 1);
	s->dyn_prio = from->dyn_prio;
	s->parent = parent;
	s->parent_pid = from->pid;
}

/* Returns the ticks of an exiting task to its parent, up to the most that a sleeper can have. */
static void return_counter(const struct slot *s)
{
	struct slot *to = slot_at(s->parent);
	s32 most;

	if (!s->parent || to->pid != s->parent_pid)
		return;
	catch_up(to);
	most = 2 * ticks_of(to->nice);
	if (to->counter < most)
		set_counter(to, to->counter + s->counter < most ? to->counter + s->counter : most);
}
