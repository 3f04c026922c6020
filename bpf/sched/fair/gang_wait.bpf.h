/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPUs that stay idle until a gang's round is over.
 *
 * A CPU may stay idle if its own tasks of that gang sleep and its runnable tasks are all of other
 * gangs.
 *
 * Owns: which CPUs stay idle, for how long, and the kick that tells them that a round ended early.
 * GANG.md, rule 5.
 */
#ifndef FAIR_GANG_WAIT_BPF_H
#define FAIR_GANG_WAIT_BPF_H

#include "gang_outside.bpf.h"

/*
 * Timer that ends a CPU's wait for the end of a round. A CPU stays idle for a tenth of its time at
 * most, which bounds the loss of throughput, and for migration_cost_ns in one stretch, because CFS
 * holds that a search for other tasks does not pay in so short an idle time.
 */
struct gang_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct gang_timer);
} gang_timers SEC(".maps");

static int wait_is_over(void *map, u32 *cpu, struct gang_timer *timer)
{
	kick(*cpu, 0);
	return 0;
}

/* Whether the CPU may still stay idle for a gang, and for long enough to be worth a timer. */
static __always_inline bool may_wait(struct gang_cpu *g, u64 now)
{
	g->spare = min_u64(g->spare + (now - g->spare_at) / SPARE_PARTS, migration_cost_ns);
	g->spare_at = now;
	return g->spare >= migration_cost_ns / 16;
}

static __always_inline bool begin_wait(struct gang_cpu *g, u32 cpu, u64 now)
{
	struct gang_timer *timer = bpf_map_lookup_elem(&gang_timers, &cpu);

	if (!timer || bpf_timer_start(&timer->timer, g->spare, 0))
		return false;
	g->waits_until = now + g->spare;
	return true;
}

static __always_inline void end_wait(struct gang_cpu *g, u64 now)
{
	g->spare -= min_u64(now - g->spare_at, g->spare);
	g->spare_at = now;
	g->waits_until = 0;
}

/* Kicks the CPUs of the domain that stay idle until the end of a round, because it ended early. */
__weak int tell_waiting(u32 cpu)
{
	u32 i, first = gang_cpu(cpu)->first, nr = gang_cpu(cpu)->nr;

	bpf_for(i, first, first + nr) {
		u32 at = nth_cpu(i);

		if (at != cpu && gang_cpu(at)->waits_until)
			kick(at, 0);
	}
	return 0;
}

/*
 * Whether the first task of a queue need not wait for the end of the round: another CPU of the
 * domain is idle, or the domain has enough CPUs for the task's gang beside the round's gang.
 */
static __always_inline bool runs_anyway(u64 dsq, u32 group, u32 leads, u32 cpu)
{
	struct task_struct *p = __COMPAT_scx_bpf_dsq_peek(dsq);
	u32 i, first = gang_cpu(cpu)->first, nr = gang_cpu(cpu)->nr;
	bool found = false;

	if (!p || p->nr_cpus_allowed == 1)
		return false;
	if (gang_size(group, cpu) + gang_size(leads, cpu) <= nr)
		return true;
	bpf_for(i, first, first + nr) {
		u32 at = nth_cpu(i);

		if (at == cpu || cpu_at(at)->root->h_nr || !cpu_at(at)->online || !bpf_cpumask_test_cpu(at, p->cpus_ptr))
			continue;
		found = true;
		break;
	}
	return found;
}

/*
 * Whether a gang as a whole waits for the end of the round. It does not if it runs on as many CPUs
 * as the round's gang, because then only a part of it is kept out. Nor does it if it does not fit,
 * or if just one task of it ran lately.
 */
static __always_inline bool waits_as_one(u32 group, u32 cpu, u64 round, u64 now)
{
	return group != ROOT_GROUP && gang_size(group, cpu) >= 2 && gang_fits(group, cpu, now) &&
	       gang_running(group, cpu) < gang_running(gang_of_round(round), cpu);
}

/* Whether the CPU has only tasks of gangs that cannot run together before the end of the round. */
static __noinline bool has_only_gangs(u32 cpu, u64 round, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	bool only = false;
	u32 tries, group;
	u64 dsq;

	c->round++;
	bpf_for(tries, 0, MAX_LEFT) {
		dsq = pick(cpu, false);
		only = dsq == PICK_NONE && tries;
		if (dsq == PICK_NONE)
			break;
		group = gang_of(dsq >> 16 & 0xffff);
		if (!waits_as_one(group, cpu, round, now) || runs_anyway(dsq, group, gang_of_round(round), cpu))
			break;
		rq_at(group, cpu)->se.skip_round = c->round;
	}
	c->round++;
	return only;
}

/*
 * v2: whether a CPU whose own task of the round sleeps waits for the end of the round. The round's
 * tasks on other CPUs are about to sleep, too. If the CPU took the next gang now, that gang and all
 * later ones would begin at a different time on each CPU.
 */
__weak bool wait_for_end(u32 cpu, u64 now)
{
	struct gang_cpu *g = gang_cpu(cpu);
	u64 round = round_of(cpu, now);

	if (!round || rq_at(gang_of_round(round), cpu)->h_nr || !cpu_at(cpu)->root->h_nr)
		return false;
	if (g->waits_until)
		return has_only_gangs(cpu, round, now);
	return may_wait(g, now) && has_only_gangs(cpu, round, now) && begin_wait(g, cpu, now);
}

static __always_inline bool gang_waits(u32 cpu, u64 now)
{
	return gang == FAIR_GANG_V2 && wait_for_end(cpu, now);
}

#endif
