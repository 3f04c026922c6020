/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Choice of a CPU for a task that becomes runnable: reschedule_idle() of 2.4.
 *
 * Owns: the choice of a CPU. Does not: queue the task on the CPU. In vanilla the task waits in the
 * common queue, and the chosen CPU takes the task that is the best when it looks.
 */
#pragma once
#include "goodness.bpf.h"

#define TARGET_NONE (-1)
#define TARGET_IDLE (1 << 16)	/* flag: the CPU is idle, and no other task will be sent to it */

/*
 * Returns the goodness that the waking task has on the CPU, less the goodness of the task that runs
 * there; above 0: the waking task may preempt.
 */
static __always_inline s32 preemption_goodness(const struct slot *s, s32 cpu)
{
	const struct cpu_state *c = cpu_at(cpu);
	const struct slot *curr = slot_at(c->curr);

	if (!c->curr)
		return 0;
	return goodness(s, cpu, c->mm) - goodness(curr, cpu, c->mm);
}

/*
 * Returns the CPU that has been idle for the longest, else the CPU whose running task the waking
 * one beats by the most goodness; TARGET_NONE: there is none. Skips off-line CPUs.
 */
__weak s32 find_other(u32 idx)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	const struct slot *s = slot_at(idx);
	s32 cpu, idle_cpu = TARGET_NONE, worst = TARGET_NONE, gap = 0;
	u64 oldest = ~0ULL;

	bpf_for(cpu, 0, scx_bpf_nr_cpu_ids()) {
		const struct cpu_state *c = cpu_at(cpu);

		if (!c->online || !may_run_on(s, cpu))
			continue;
		if (bpf_cpumask_test_cpu(cpu, idle)) {
			if (c->last_ns < oldest) {
				oldest = c->last_ns;
				idle_cpu = cpu;
			}
		} else if (idle_cpu < 0) {
			s32 more = preemption_goodness(s, cpu);

			if (more > gap) {
				gap = more;
				worst = cpu;
			}
		}
	}
	scx_bpf_put_idle_cpumask(idle);
	if (idle_cpu >= 0 && scx_bpf_test_and_clear_cpu_idle(idle_cpu))
		return idle_cpu | TARGET_IDLE;
	return worst;
}

/* Returns the task's last CPU if that is idle, else what find_other() finds. */
static s32 find_target(u32 idx, s32 home)
{
	if (cpu_at(home)->online && may_run_on(slot_at(idx), home) && scx_bpf_test_and_clear_cpu_idle(home))
		return home | TARGET_IDLE;
	return find_other(idx);
}

static void kick_target(s32 target)
{
	if (target < 0)
		return;
	if (target & TARGET_IDLE) {
		count(idle_wakes, 1);
		kick(target & ~TARGET_IDLE, SCX_KICK_IDLE);
	} else {
		count(preempted, 1);
		kick(target, SCX_KICK_PREEMPT);
	}
}
