/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Sleep history of mode d1: how much a task slept in the last four seconds, and the penalty for too
 * little sleep. Each of four counters (cells) holds the jiffies slept in one second.
 *
 * The arithmetic follows, to the jiffy, the code that the diff of January 2002 removes (README.md),
 * and keeps two oddities of that code. A sleep across two or three boundaries of seconds leaves one
 * cell unchanged, and a task without history counts as one that never slept.
 */
#pragma once
#include "o1.bpf.h"

#define MAX_PENALTY (PRIO_LEVELS / 3)

static __always_inline u32 *cell(struct o1_task *t, u32 idx)
{
	return &t->sleep_hist[idx % SLEEP_CELLS];
}

static __always_inline void fill_cells(struct o1_task *t, u32 jiffies)
{
	*cell(t, 0) = *cell(t, 1) = *cell(t, 2) = *cell(t, 3) = jiffies;
	t->sleep_idx = 0;
}

/*
 * Takes a sample when the task stops running. The seconds through which it ran count as no sleep.
 */
static void estimate_deactivate(struct o1_task *t, u64 now)
{
	u64 passed = now / HZ - t->run_at / HZ;
	u32 i;

	if (passed >= SLEEP_CELLS) {
		fill_cells(t, 0);
	} else {
		for (i = 1; i < SLEEP_CELLS; i++) {
			if (i > passed)
				break;
			t->sleep_idx = (t->sleep_idx + 1) % SLEEP_CELLS;
			*cell(t, t->sleep_idx) = 0;
		}
	}
	t->sleep_at = now;
}

/* Counts a sleep that lasted beyond the second in which it began, up to the present second. */
static __always_inline void estimate_seconds(struct o1_task *t, u64 passed)
{
	u32 i;

	if (passed >= SLEEP_CELLS) {
		fill_cells(t, HZ);
	} else {
		*cell(t, t->sleep_idx) += HZ - t->sleep_at % HZ;
		t->sleep_idx = (t->sleep_idx + 1) % SLEEP_CELLS;
		for (i = 1; i < SLEEP_CELLS; i++) {
			if (i >= passed)
				break;
			t->sleep_idx = (t->sleep_idx + 1) % SLEEP_CELLS;
			*cell(t, t->sleep_idx) = HZ;
		}
	}
	*cell(t, t->sleep_idx) = 0;
}

/* Takes a sample when the task becomes runnable. The time since it stopped counts as sleep. */
static void estimate_activate(struct o1_task *t, u64 now)
{
	u64 passed = now / HZ - t->sleep_at / HZ;

	if (passed) {
		estimate_seconds(t, passed);
		*cell(t, t->sleep_idx) += now % HZ;
	} else {
		*cell(t, t->sleep_idx) += now - t->sleep_at;
	}
	t->run_at = now;
}

/* Average jiffies slept per second, over three seconds and the current part of the fourth. */
static __always_inline u32 sleep_average(struct o1_task *t, u64 now)
{
	u32 sum = *cell(t, 0) + *cell(t, 1) + *cell(t, 2) + *cell(t, 3);

	return sum * HZ / ((SLEEP_CELLS - 1) * HZ + now % HZ);
}

/* Takes a sample at `now` and computes the penalty from it. */
static void estimate_penalty(struct o1_task *t, u64 now)
{
	u32 sleep;

	estimate_activate(t, now);
	sleep = sleep_average(t, now);
	t->penalty = MAX_PENALTY * (sleep < HZ ? HZ - sleep : 0) / HZ;
}

static __always_inline void estimate_prio(struct task_struct *p, struct o1_task *t, u64 now)
{
	u32 prio;

	estimate_penalty(t, now);
	prio = nice_level(p) + t->penalty;
	t->prio = prio < PRIO_LEVELS ? prio : PRIO_LEVELS - 1;
}
