/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * gang: which CPU leads a gang, for how long, and what a CPU remembers of others' requests.
 *
 * Owns: election, the end of a round, requests. Does not: know tasks, queues, or what favouring means; time is an argument.
 *
 * A gang is a set of tasks that want to run at the same time. In each domain (a set of CPUs) at most one CPU leads it:
 *
 *	            gang_elect(): nobody leads, or the time is over          gang_end(): the leader runs something else
 *	   nobody ------------------------------------------------> a leader ------------------------------------------> nobody
 *	                                                               |  until `until`; after that anybody may be elected
 *
 * A round is one word: which gang, the number of the round, its leader. Numbers are given by one counter for all gangs, so a
 * round that is over is never mistaken for a later one (before 2^32 rounds). The word is all that a request has to carry: the
 * CPU that is asked compares it with what the domain says now, and knows whether it still counts.
 *
 * Who wins the election first puts the word in place with GANG_SETUP, then the time, then takes GANG_SETUP away: others see a
 * round either as being set up, when they leave it alone, or complete.
 */
#ifndef LIB_GANG_BPF_H
#define LIB_GANG_BPF_H

#define GANG_SETUP		(1ULL << 63)
#define GANG_ID_SHIFT		48
#define GANG_ID_MAX		0x7fff
#define GANG_ROUND_SHIFT	16
#define GANG_ROUND_MASK		0xffffffffULL
#define GANG_LEADER_MASK	0xffffULL	/* CPU + 1 */

/* Of one gang in one domain. */
struct gang_lead {
	u64 round;		/* 0: nobody leads */
	u64 until;		/* ns */
};

/* Of one CPU. */
struct gang_cpu {
	u64 asked;		/* the newest request that it has not answered; 0: none. Written by others */
	u64 follows;		/* round of another CPU that it favours */
	u64 tries;		/* round that it is about to pick for */
	u64 leads;		/* round of its own */
	u64 since;		/* begin and end of the round that it leads, ns */
	u64 until;
	u32 sent;		/* requests of the round that it leads */
	u32 domain;		/* the first CPU of its domain, in their order */
	u32 marked;		/* gang of the pick that is being made */
	u32 pad;		/* a cache line each */
};

static __always_inline u32 gang_of_round(u64 round)
{
	return round >> GANG_ID_SHIFT & GANG_ID_MAX;
}

static __always_inline u32 gang_leader_of(u64 round)
{
	return (round & GANG_LEADER_MASK) - 1;
}

/* Somebody leads, or is about to. */
static __always_inline bool gang_is_led(struct gang_lead __arena *l, u64 now)
{
	u64 round = l->round;

	return round & GANG_SETUP || (round && (s64)(l->until - now) > 0);
}

/* Whether this round is the domain's present one. */
static __always_inline bool gang_goes_on(struct gang_lead __arena *l, u64 round, u64 now)
{
	return round && l->round == round && (s64)(l->until - now) > 0;
}

/* The round that `cpu` leads from now on; 0: another CPU leads. `serial` is the counter for all gangs. */
static __always_inline u64 gang_elect(struct gang_lead __arena *l, u64 *serial, u32 id, u32 cpu, u64 until, u64 now)
{
	u64 old = l->round, round;

	if (gang_is_led(l, now))
		return 0;
	round = (u64)(id & GANG_ID_MAX) << GANG_ID_SHIFT |
		(__sync_fetch_and_add(serial, 1) & GANG_ROUND_MASK) << GANG_ROUND_SHIFT | (cpu + 1);
	if (__sync_val_compare_and_swap(&l->round, old, round | GANG_SETUP) != old)
		return 0;
	l->until = until;
	__sync_fetch_and_and(&l->round, ~GANG_SETUP);
	return round;
}

/* The leader gives the round up. Nothing happens if it is another one's by now. */
static __always_inline void gang_end(struct gang_lead __arena *l, u64 round)
{
	__sync_val_compare_and_swap(&l->round, round, 0);
}

/* Asks a CPU to join. True if a request is lost by that: it remembers the newest only. */
static __always_inline bool gang_ask(struct gang_cpu *c, u64 round)
{
	return __sync_lock_test_and_set(&c->asked, round) != 0;
}

/* The request was answered, unless there is a newer one. */
static __always_inline void gang_answer(struct gang_cpu *c, u64 round)
{
	__sync_val_compare_and_swap(&c->asked, round, 0);
}

#endif
