/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gangs by the rules of the patches as they were posted (gang_rules=posted).
 *
 * Owns: what the leader and the CPUs that it asks do under these rules. Does not: know rounds;
 * there are none, so the state of gang_round.bpf.h stays empty, and CPUs neither wait for the end
 * of a round nor protect a gang from tasks that wake up.
 *
 * A domain has one leader for good, its first CPU. Whenever the leader picks a task of a gang, also
 * one that it ran before, it interrupts the other CPUs of the domain that have a runnable task of
 * the gang. Each of them schedules again, and favours the gang in that one pick:
 *
 *     v1  as next buddy: the gang goes first if that is fair within the wake-up granularity.
 *     v2  in any case.
 *
 * After that pick the CPU goes on by fairness alone, until the leader asks again. A CPU that
 * already runs the gang is asked, too, and its task begins a new slice if it is picked again.
 *
 * Models: "Gang scheduling in CFS" (December 2011), patches 2 to 4. Differs: a CPU without a
 * runnable task of the gang is not interrupted, as it would do nothing.
 */
#ifndef FAIR_GANG_POSTED_BPF_H
#define FAIR_GANG_POSTED_BPF_H

#include "gang_round.bpf.h"

/*
 * The gang that the leader asked each CPU to favour in its next pick; ROOT_GROUP: none. The leader
 * writes it, and the CPU clears it. If both do at once, one request may be lost, and the next pick
 * of the leader makes another.
 */
static u32 gang_asked[MAX_CPUS];

static __always_inline bool gangs_as_posted(void)
{
	return gang != FAIR_GANG_OFF && gang_rules == FAIR_GANG_RULES_POSTED;
}

static __always_inline u32 *asked_gang(u32 cpu)
{
	return &gang_asked[cpu & (MAX_CPUS - 1)];
}

/* Asks the other CPUs of the domain to favour the gang, if the CPU that picked it is the leader. */
__weak int posted_starts(u32 cpu, u32 group)
{
	u32 i, first = gang_cpu(cpu)->first, nr = gang_cpu(cpu)->nr;

	group = gang_of(group);
	if (group == ROOT_GROUP || cpu != gang_cpu(cpu)->domain)
		return 0;
	count(gang_rounds);
	bpf_for(i, first, first + nr) {
		u32 at = nth_cpu(i);

		if (at == cpu || !cpu_at(at)->online || !rq_at(group, at)->h_nr)
			continue;
		*asked_gang(at) = group;
		count(gang_requests);
		kick(at, SCX_KICK_PREEMPT);
	}
	return 0;
}

/* Returns the gang that the CPU's present pick favours, and forgets the request. */
static __always_inline u32 take_request(u32 cpu)
{
	u32 group = *asked_gang(cpu);

	if (group == ROOT_GROUP)
		return ROOT_GROUP;
	*asked_gang(cpu) = ROOT_GROUP;
	return rq_at(group, cpu)->h_nr && !is_held(rq_at(group, cpu)) ? group : ROOT_GROUP;
}

#endif
