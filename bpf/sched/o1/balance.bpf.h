/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Balancing: a CPU whose queue is short pulls tasks from the longest queue.
 *
 * Owns: which queue to pull from, how many tasks, and which ones. Does not: decide when (o1.bpf.c).
 * All functions are global, so that the verifier walks through each only once. The pulling CPU
 * moves tasks between DSQs in its own dispatch, so no other CPU clears bits in the bitmaps of its
 * arrays meanwhile.
 */
#pragma once
#include "o1.bpf.h"

/*
 * Largest number of tasks that one balancing pass pulls, and of CPUs from which it tries to pull.
 * Tasks beyond that are left to later passes.
 */
#define MAX_PULL 64
#define MAX_VICTIMS 4

/*
 * Returns the CPU with the longest queue among those that come after CPU `last`, and stores the
 * queue's length in `*length`. CPUs are ordered by descending length, then by ascending number; the
 * queue of `last` has the length `below`. Returns -1 if no such queue is longer than `above`.
 */
__weak s32 longest_queue(s32 self, s32 above, s32 below, s32 last, s32 *length)
{
	s32 cpu, best = -1;

	if (!length)
		return -1;
	bpf_for(cpu, 0, scx_bpf_nr_cpu_ids()) {
		s32 nr = nr_running(rq_of(cpu));

		if (cpu != self && nr > above && (nr < below || (nr == below && cpu > last))) {
			best = cpu;
			above = nr;
		}
	}
	*length = above;
	return best;
}

/*
 * Pulls up to `want` tasks that may run on the CPU `self` from the list of one level, the last task
 * first. Returns the number of tasks pulled.
 */
__weak s32 pull_level(s32 self, u64 from, u32 level, s32 want)
{
	struct o1_rq *rq = rq_of(self);
	u64 to = lists_of(self, rq->active);
	struct task_struct *p;
	s32 pulled = 0;

	bpf_for_each(scx_dsq, p, from + level, SCX_DSQ_ITER_REV) {
		struct o1_task *t;

		if (pulled >= want)
			break;
		if (!bpf_cpumask_test_cpu(self, p->cpus_ptr) || is_migration_disabled(p))
			continue;
		t = task_of(p);
		if (!t)
			continue;
		prio_array_mark(array_of(rq, rq->active), level);
		if (!scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, to + level, 0))
			continue;
		t->array = rq->active;
		count_on(t, self + 1);
		pulled++;
	}
	return pulled;
}

/*
 * Moves the best task of another CPU's array to this CPU's local queue, if the kernel permits. An
 * idle CPU gets its first task through this function, and not through pull_array(), because the CPU
 * may be going off line. It then still looks for work, but the kernel does not let it run other
 * CPUs' tasks.
 */
__weak bool take_from(s32 self, s32 victim, u32 array)
{
	u64 levels = READ_ONCE(array_of(rq_of(victim), array)->bitmap) & PRIO_ALL;
	u64 from = lists_of(victim, array);
	u32 step;

	bpf_for(step, 0, PRIO_LEVELS) {
		u32 level = prio_first(levels);

		if (level >= PRIO_LEVELS)
			break;
		if (scx_bpf_dsq_move_to_local(from + level, 0))
			return true;
		levels &= levels - 1;
	}
	return false;
}

/* Takes a task from any queue that has one for this idle CPU. */
__weak bool take_from_any(s32 self)
{
	u32 i, nr_cpus = scx_bpf_nr_cpu_ids();

	bpf_for(i, 1, nr_cpus) {
		s32 victim = ((u32)self + i) % nr_cpus;
		u32 expired;

		if (nr_running(rq_of(victim)) < 2)
			continue;
		expired = !READ_ONCE(rq_of(victim)->active);
		if (take_from(self, victim, expired) || take_from(self, victim, !expired))
			return true;
	}
	return false;
}

/* Pulls up to `want` tasks from one of another CPU's arrays, the best levels first. */
__weak s32 pull_array(s32 self, s32 victim, u32 array, s32 want)
{
	u64 levels = READ_ONCE(array_of(rq_of(victim), array)->bitmap) & PRIO_ALL;
	u64 from = lists_of(victim, array);
	s32 pulled = 0;
	u32 step;

	bpf_for(step, 0, PRIO_LEVELS) {
		u32 level = prio_first(levels);

		if (level >= PRIO_LEVELS || pulled >= want)
			break;
		pulled += pull_level(self, from, level, want - pulled);
		levels &= levels - 1;
	}
	return pulled;
}

/*
 * Pulls tasks from the longest queue, and returns their number. `running` is this CPU's queue
 * length. If half of the difference between the two lengths is more than a quarter of `running`,
 * the CPU pulls that half, expired tasks first, because they would not run soon anyway. If no task
 * of a queue may run here, the CPU tries the next longest queue. An idle CPU that tried MAX_VICTIMS
 * queues in vain then takes a task from any queue that has one for it.
 */
__weak s32 balance(s32 self, s32 running, bool idle)
{
	s32 below = 1 << 30, victim = -1;
	u32 attempt;

	bpf_for(attempt, 0, MAX_VICTIMS) {
		s32 want, pulled = 0, length = 0;
		u32 expired;

		victim = longest_queue(self, running, below, victim, &length);
		if (victim < 0)
			return 0;
		want = (length - running) / 2;
		if (want <= (running + 3) / 4)
			return 0;
		if (want > MAX_PULL)
			want = MAX_PULL;
		below = length;
		expired = !READ_ONCE(rq_of(victim)->active);
		if (idle) {
			pulled = take_from(self, victim, expired) || take_from(self, victim, !expired);
			if (!pulled)
				continue;
		}
		if (pulled < want)
			pulled += pull_array(self, victim, expired, want - pulled);
		if (pulled < want)
			pulled += pull_array(self, victim, !expired, want - pulled);
		if (pulled)
			return pulled;
	}
	return idle && take_from_any(self);
}
