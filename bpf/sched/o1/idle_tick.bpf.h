/* SPDX-License-Identifier: GPL-2.0-only */
/* The tick of idle CPUs: in 2002 each had one and looked for work in it. Today they have none, so a timer sends them. */
#pragma once
#include "o1.bpf.h"

struct o1_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct o1_timer);
} timers SEC(".maps");

/* Tasks that wait behind another: what idle CPUs could take. */
static s32 nr_waiting(void)
{
	s32 cpu, waiting = 0;

	bpf_for(cpu, 0, scx_bpf_nr_cpu_ids()) {
		s32 nr = nr_running(rq_of(cpu));

		if (nr > 1)
			waiting += nr - 1;
	}
	return waiting;
}

/* Wakes as many CPUs as could find something. */
static int idle_tick(void *map, int *key, struct o1_timer *timer)
{
	s32 waiting = nr_waiting();
	const struct cpumask *idle;
	s32 cpu;

	if (waiting > 0) {
		idle = scx_bpf_get_idle_cpumask();
		bpf_for(cpu, 0, scx_bpf_nr_cpu_ids()) {
			if (waiting <= 0)
				break;
			if (!bpf_cpumask_test_cpu(cpu, idle))
				continue;
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
			count(idle_kicks, 1);
			waiting--;
		}
		scx_bpf_put_idle_cpumask(idle);
	}
	bpf_timer_start(&timer->timer, idle_tick_ns, 0);
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
	return bpf_timer_start(&timer->timer, idle_tick_ns, 0);
}
