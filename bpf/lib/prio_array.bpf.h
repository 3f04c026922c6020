/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A priority array: a FIFO list per level, and a bitmap of the non-empty levels. Level 0 is the
 * best.
 *
 * Owns: the order of one array's waiting tasks. Does not: know the array's purpose, slices or CPUs.
 * Each list is a user DSQ, so the kernel removes a task that leaves the run queue, and no task can
 * be lost.
 *
 * A set bit may stand for a list that the kernel has emptied, because the list's last task changed
 * its affinity or was moved away. A clear bit never stands for a list with tasks. The scheduler
 * therefore sets a bit before it inserts a task, under the lock of the run queue that the array
 * belongs to. It clears a bit only in that run queue's own dispatch, during which no task can be
 * inserted.
 *
 * Taking the best task costs the same for any number of tasks: one search in a word and one list
 * head. A set bit of an empty list costs one more step, once.
 */
#pragma once
#include <scx/common.bpf.h>

#define PRIO_LEVELS 40
#define PRIO_NONE PRIO_LEVELS		/* no level: worse than all levels */
#define PRIO_ALL ((1ULL << PRIO_LEVELS) - 1)

struct prio_array {
	u64 bitmap;	/* bit N: list N may have tasks */
};

/* Returns the best of a set of levels. */
static __always_inline u32 prio_first(u64 levels)
{
	return levels ? ctzll(levels) : PRIO_NONE;
}

/* Returns the levels better than this one, and with `equal` also the level itself. */
static __always_inline u64 prio_better(u32 level, bool equal)
{
	u32 n = level + equal;

	return n >= PRIO_LEVELS ? PRIO_ALL : (1ULL << n) - 1;
}

/* Creates an array's lists, the DSQs `base` to `base + PRIO_LEVELS - 1`. May sleep. */
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

/* Sets a level's bit. The caller does so before it puts a task on the level's list. */
static __always_inline void prio_array_mark(struct prio_array *a, u32 level)
{
	u64 bit = 1ULL << (level & 63);

	if (!(READ_ONCE(a->bitmap) & bit))
		__sync_fetch_and_or(&a->bitmap, bit);
}

/*
 * Clears a level's bit if the level's list is empty. Only the dispatch of the array's own run queue
 * may call this.
 */
static __always_inline void prio_array_clear_if_empty(struct prio_array *a, u64 base, u32 level)
{
	if (!scx_bpf_dsq_nr_queued(base + level))
		__sync_fetch_and_and(&a->bitmap, ~(1ULL << (level & 63)));
}

/*
 * For ops.enqueue or select_cpu: puts the task at the end of its level's list, or at the head with
 * SCX_ENQ_HEAD.
 */
static __always_inline void prio_array_insert(struct prio_array *a, u64 base, u32 level, struct task_struct *p,
					      u64 slice_ns, u64 enq_flags)
{
	prio_array_mark(a, level);
	scx_bpf_dsq_insert(p, base + level, slice_ns, enq_flags);
}

/*
 * For ops.dispatch: moves the first task of the best of `levels` to the local DSQ, and returns
 * whether there was one. Skips lists whose tasks may not run on this CPU, and leaves their bits
 * set. The function is global so that the verifier walks through it once.
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
