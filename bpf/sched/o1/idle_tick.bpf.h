/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The tick of idle CPUs. In 2002 each idle CPU looked for work at its own tick; here a timer kicks
 * idle CPUs.
 */
#pragma once
#include "o1.bpf.h"

/*
 * Number of ticks after which the queue of a CPU is drained, if tasks wait there and the CPU runs
 * no task of o1.
 */
#define STUCK_TICKS 10

struct o1_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct o1_timer);
} timers SEC(".maps");

/* Whether a task waits behind another one, so that an idle CPU could take it. */
static bool anyone_waits(void)
{
	s32 cpu;

	bpf_for(cpu, 0, scx_bpf_nr_cpu_ids())
		if (nr_running(rq_of(cpu)) > 1)
			return true;
	return false;
}

/* Moves all tasks that wait for `cpu` to the global queue, and kicks idle CPUs. */
__weak int drain(s32 cpu)
{
	struct task_struct *p;
	u32 list;
	s32 other;

	bpf_for(list, 0, 2 * 64) {
		if ((list & 63) >= PRIO_LEVELS)
			continue;
		bpf_for_each(scx_dsq, p, lists_of(cpu, 0) + list, 0) {
			if (scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_GLOBAL, 0))
				count(rescued, 1);
		}
	}
	bpf_for(other, 0, scx_bpf_nr_cpu_ids())
		if (other != cpu)
			scx_bpf_kick_cpu(other, SCX_KICK_IDLE);
	return 0;
}

/*
 * Drains the queues in which tasks have waited at STUCK_TICKS ticks since the CPU last ran a task of
 * o1. Such a CPU may be going off line, and may have pulled tasks that the kernel no longer lets it
 * run. If the CPU is merely slow, draining its queue loses only the order of the tasks.
 */
static void look_for_stuck(void)
{
	s32 cpu;

	bpf_for(cpu, 0, scx_bpf_nr_cpu_ids()) {
		struct o1_rq *rq = rq_of(cpu);

		if (READ_ONCE(rq->curr_prio) != PRIO_NONE || READ_ONCE(rq->nr_queued) <= 0) {
			rq->stuck = 0;
		} else if (++rq->stuck >= STUCK_TICKS) {
			rq->stuck = 0;
			drain(cpu);
		}
	}
}

/* Kicks all idle CPUs: any of them may be the only one on which a waiting task may run. */
static void send_idle_cpus(void)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	s32 cpu;

	bpf_for(cpu, 0, scx_bpf_nr_cpu_ids()) {
		if (!bpf_cpumask_test_cpu(cpu, idle))
			continue;
		kick(cpu, SCX_KICK_IDLE);
		count(idle_kicks, 1);
	}
	scx_bpf_put_idle_cpumask(idle);
}

static int idle_tick(void *map, int *key, struct o1_timer *timer)
{
	look_for_stuck();
	if (idle_tick_ns && anyone_waits())
		send_idle_cpus();
	bpf_timer_start(&timer->timer, idle_tick_ns ?: JIFFY_NS, 0);
	return 0;
}

static s32 start_idle_tick(void)
{
	u32 key = 0;
	struct o1_timer *timer = bpf_map_lookup_elem(&timers, &key);
	s32 err;

	if (!timer)
		return -ENOENT;
	err = bpf_timer_init(&timer->timer, &timers, CLOCK_MONOTONIC);
	if (err)
		return err;
	bpf_timer_set_callback(&timer->timer, idle_tick);
	return bpf_timer_start(&timer->timer, idle_tick_ns ?: JIFFY_NS, 0);
}
