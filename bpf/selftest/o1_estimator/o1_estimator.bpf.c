// SPDX-License-Identifier: GPL-2.0-only
/*
 * o1_estimator: runs o1's sleep history alone, sample by sample; a test compares it with a model.
 *
 * Shows: that the history equals the one of the diff of January 2002, for any pattern of sleeping.
 * Suits: tests only; it is no scheduler. `crates/sched/tests/o1_parts.rs` runs it.
 *
 * Knobs: none.
 */
#include <scx/common.bpf.h>
#include <sched/o1/estimator.bpf.h>

char _license[] SEC("license") = "GPL";

struct o1_sample {
	u64 now;		/* jiffies */
	u64 wakes;		/* 1: the task wakes up; 0: it goes to sleep */
	u64 penalty, sleep_idx;
	u64 cells[SLEEP_CELLS];
};

static struct o1_task subject;

SEC("syscall")
int take_sample(struct o1_sample *s)
{
	u32 i;

	if (s->wakes)
		estimate_penalty(&subject, s->now);
	else
		estimate_deactivate(&subject, s->now);
	s->penalty = subject.penalty;
	s->sleep_idx = subject.sleep_idx;
	for (i = 0; i < SLEEP_CELLS; i++)
		s->cells[i] = *cell(&subject, i);
	return 0;
}
