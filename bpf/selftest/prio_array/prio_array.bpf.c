// SPDX-License-Identifier: GPL-2.0-only
/*
 * prio_array: strict priorities by nice, from one machine-wide array (bpf/lib/prio_array.bpf.h).
 *
 * Shows: that tasks leave an array by level, and within a level in the order of arrival; and, as a
 * separate program, the arithmetic of levels.
 * Suits: tests only: a task of a better level starves all others. crates/sched/tests/o1_parts.rs
 * runs it.
 *
 * Knobs:
 *   slice_ns   slice of every task
 */
#include <scx/common.bpf.h>
#include <lib/prio_array.bpf.h>

char _license[] SEC("license") = "GPL";

const volatile u64 slice_ns = 1000000;

static struct prio_array array;

UEI_DEFINE(uei);

struct level_query {
	u64 levels, level, equal;
	u64 first, better;
};

SEC("syscall")
int levels(struct level_query *q)
{
	q->first = prio_first(q->levels);
	q->better = prio_better(q->level, !!q->equal);
	return 0;
}

void BPF_STRUCT_OPS(prio_array_enqueue, struct task_struct *p, u64 enq_flags)
{
	s32 level = p->static_prio - 100;

	if (level < 0 || level >= PRIO_LEVELS)
		level = PRIO_LEVELS - 1;
	prio_array_insert(&array, 0, level, p, slice_ns, enq_flags);
}

void BPF_STRUCT_OPS(prio_array_dispatch, s32 cpu, struct task_struct *prev)
{
	prio_array_pop(&array, 0, PRIO_ALL);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(prio_array_init)
{
	return prio_array_create(0);
}

void BPF_STRUCT_OPS(prio_array_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

SCX_OPS_DEFINE(prio_array_ops,
	       .enqueue		= (void *)prio_array_enqueue,
	       .dispatch	= (void *)prio_array_dispatch,
	       .init		= (void *)prio_array_init,
	       .exit		= (void *)prio_array_exit,
	       .name		= "prio_array");
