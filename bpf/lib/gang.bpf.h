/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * gang: which gang has its turn in a set of CPUs, who leads it there, and for how long.
 *
 * Owns: election, the end of a round. Does not: know tasks, queues, or what favouring means; time is an argument.
 *
 * A gang is a set of tasks that want to run at the same time. A domain (a set of CPUs) has one round at a time, so that gangs do not
 * divide its CPUs among themselves:
 *
 *	            gang_elect(): no round, or its time is over          gang_end(): the gang sleeps, or the leader runs no gang
 *	   nobody ------------------------------------------------> a round ----------------------------------------------> nobody
 *	                                                               |  until `until`; after that anybody may be elected
 *
 * A round is one word: which gang, the number of the round, its leader. Numbers are given by one counter for all gangs, so a round
 * that is over is never mistaken for a later one (before 2^32 rounds). A CPU that takes part remembers the word, compares it with what
 * the domain says now, and so knows whether its round goes on.
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

/* Of one domain. A cache line each. */
struct gang_lead {
	u64 round;		/* 0: nobody leads */
	u64 until;		/* ns */
	u64 fades_at;		/* since when most of the gang sleeps, ns; 0: it does not */
	u32 width;		/* CPUs with a runnable task of it, at most so far */
	u32 wants;		/* a gang that was kept from leading and has nothing on the leader's CPU; 0: none */
	u64 pad[4];
};

/* Of one CPU, written by it alone. A cache line each. */
struct gang_cpu {
	u64 round;		/* v2: that it takes part in; v1: that it answered last */
	u64 waits_until;	/* it stays idle for the end of a round, ns; 0: it does not */
	u64 spare_at;		/* when `spare` was last counted */
	u64 grace_at;		/* when `grace` was */
	u32 spare;		/* ns for which it may stay idle so */
	s32 grace;		/* ns for which it may keep a task from outside waiting that woke up */
	u32 keeps;		/* it does */
	u32 tries;		/* its pick is for the domain's round, which it was not part of */
	u32 marked;		/* gang of the pick that is being made */
	u32 domain;		/* the first CPU of its domain, in their order */
	u32 first;		/* where that CPU is in the order */
	u32 nr;			/* CPUs of the domain */
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
static __always_inline bool gang_is_led(struct gang_lead *l, u64 now)
{
	u64 round = l->round;

	return round & GANG_SETUP || (round && (s64)(l->until - now) > 0);
}

/* The round that goes on; 0: none, or it is being set up. */
static __always_inline u64 gang_round(struct gang_lead *l, u64 now)
{
	u64 round = l->round;

	return !(round & GANG_SETUP) && (s64)(l->until - now) > 0 ? round : 0;
}

/* The round that `cpu` leads from now on; 0: another CPU leads. `serial` is the counter for all gangs. */
static __always_inline u64 gang_elect(struct gang_lead *l, u64 *serial, u32 id, u32 cpu, u64 until, u64 now)
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
static __always_inline void gang_end(struct gang_lead *l, u64 round)
{
	__sync_val_compare_and_swap(&l->round, round, 0);
}

#endif
