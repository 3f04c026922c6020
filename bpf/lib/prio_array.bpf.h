/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A priority array: a FIFO list of tasks per level, and a bitmap of the levels that have any. Level 0 is the best.
 *
 * Owns: the order of waiting tasks of one array. Does not: know arrays' purposes, prices or CPUs.
 * Each list is a user DSQ, so the kernel takes a task off by itself when it leaves, and none can be lost.
 *
 * The bitmap errs to one side only: a set bit may stand for a list that has become empty by itself (a task was taken
 * off for a change of affinity, or moved away), never a clear bit for a list with tasks. So bits are set before the
 * insertion, by anybody who holds the lock of the run queue that the array belongs to; they are cleared by that run
 * queue's own dispatch only, which nobody can be inserting beside.
 *
 * Taking the best costs the same whatever the number of tasks: one search in a word and one list head. A stale bit costs
 * one more step, once.
 */
#pragma once
#include <scx/common.bpf.h>

#define PRIO_LEVELS 40
#define PRIO_NONE PRIO_LEVELS		/* no level: worse than all */
#define PRIO_ALL ((1ULL << PRIO_LEVELS) - 1)

struct prio_array {
	u64 bitmap;	/* bit N: list N may have tasks */
};

/* The best of a set of levels. */
static __always_inline u32 prio_first(u64 levels)
{
	return levels ? ctzll(levels) : PRIO_NONE;
}

/* Levels better than this one, and with `equal` the level itself. */
static __always_inline u64 prio_better(u32 level, bool equal)
{
	u32 n = level + equal;

	return n >= PRIO_LEVELS ? PRIO_ALL : (1ULL << n) - 1;
}

/* Makes the lists: DSQs `base` to `base + PRIO_LEVELS - 1`. Sleeps. */
static inline s32 prio_array_create(u64 base)
{
	u32 level;

	bpf_for(level, 0, PRIO_LEVELS) {
		s32 err = scx_bpf_create_dsq(base + level, -1);

		if (err)
			return err;
	}
	return 0;
}

/* A task is about to be put on this level's list. */
static __always_inline void prio_array_mark(struct prio_array *a, u32 level)
{
	u64 bit = 1ULL << (level & 63);

	if (!(READ_ONCE(a->bitmap) & bit))
		__sync_fetch_and_or(&a->bitmap, bit);
}

/* Only in the dispatch of the run queue that the array belongs to. */
static __always_inline void prio_array_clear_if_empty(struct prio_array *a, u64 base, u32 level)
{
	if (!scx_bpf_dsq_nr_queued(base + level))
		__sync_fetch_and_and(&a->bitmap, ~(1ULL << (level & 63)));
}

/* In ops.enqueue (or select_cpu): the task joins its level's list, at the end unless `enq_flags` says SCX_ENQ_HEAD. */
static __always_inline void prio_array_insert(struct prio_array *a, u64 base, u32 level, struct task_struct *p,
					      u64 slice_ns, u64 enq_flags)
{
	prio_array_mark(a, level);
	scx_bpf_dsq_insert(p, base + level, slice_ns, enq_flags);
}

/*
 * In ops.dispatch: the first task of the best of `levels` goes to this CPU's local queue; true if there was one. A list whose
 * tasks may not run on this CPU is passed over, and keeps its bit. Global, so that the verifier looks at it once.
 */
__weak bool prio_array_pop(struct prio_array *a, u64 base, u64 levels)
{
	u32 step;

	if (!a)
		return false;
	levels &= READ_ONCE(a->bitmap);
	bpf_for(step, 0, PRIO_LEVELS) {
		u32 level = prio_first(levels);
		bool moved;

		if (level >= PRIO_LEVELS)
			break;
		moved = scx_bpf_dsq_move_to_local(base + level, 0);
		prio_array_clear_if_empty(a, base, level);
		if (moved)
			return true;
		levels &= levels - 1;
	}
	return false;
}
