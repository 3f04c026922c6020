/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * gang: the gang that has its turn in a set of CPUs, its leader there, and the length of the turn.
 *
 * Owns: election, the end of a round. Does not: know tasks, queues or favouring; time is an argument.
 *
 * A gang is a set of tasks that want to run at the same time. A domain (a set of CPUs) has one
 * round at a time, so that gangs do not divide its CPUs among themselves:
 *
 *	            gang_elect(): no round, or its time is over          gang_end(): the gang sleeps, or the leader runs no gang
 *	   nobody ------------------------------------------------> a round ----------------------------------------------> nobody
 *	                                                               |  until `until`; after that anybody may be elected
 *
 * A round is one word: the gang, the number of the round, its leader. All gangs share one counter of rounds,
 * so that a finished round is never mistaken for a later one (before 2^32 rounds). A CPU that takes part
 * remembers the word, compares it with the domain's present word, and so knows whether its round goes on.
 *
 * The winner of the election first stores the word with GANG_SETUP, then the time, then clears
 * GANG_SETUP: others see a round either as being set up, and leave it alone, or complete.
 */
#ifndef LIB_GANG_BPF_H
#define LIB_GANG_BPF_H

#define GANG_SETUP		(1ULL << 63)
#define GANG_ID_SHIFT		48
#define GANG_ID_MAX		0x7fff
#define GANG_ROUND_SHIFT	16
#define GANG_ROUND_MASK		0xffffffffULL
#define GANG_LEADER_MASK	0xffffULL	/* CPU number + 1 */

/* State of one domain. A cache line each. */
struct gang_lead {
	u64 round;		/* 0: no leader */
	u64 until;		/* end of the round, ns */
	u64 asleep_since;		/* time since which most of the gang sleeps, ns; 0: it does not */
	u32 width;		/* largest number so far of CPUs with a runnable task of the gang */
	u32 wants;		/* a gang that was kept from leading and has no task on the leader's CPU; 0: none */
	u64 pad[4];
};

/* State of one CPU, written by that CPU only. A cache line each. */
struct gang_cpu {
	u64 round;		/* v2: the round that it takes part in; v1: the one that it answered last */
	u64 waits_until;	/* end of the round for which it stays idle, ns; 0: it does not */
	u64 spare_at;		/* time of the last update of `spare` */
	u64 grace_at;		/* time of the last update of `grace` */
	u32 spare;		/* ns for which it may still stay idle in this way */
	s32 grace;		/* ns for which it may delay a task of no gang that woke up */
	u32 delays_outsider;	/* it delays such a task now */
	u32 tries;		/* its pick is for the domain's round, which it did not take part in */
	u32 marked;		/* gang of the present pick */
	u32 domain;		/* first CPU of its domain, in the domains' order of CPUs */
	u32 first;		/* position of that CPU in the order */
	u32 nr;			/* number of CPUs of the domain */
};

static __always_inline u32 gang_of_round(u64 round)
{
	return round >> GANG_ID_SHIFT & GANG_ID_MAX;
}

static __always_inline u32 gang_leader_of(u64 round)
{
	return (round & GANG_LEADER_MASK) - 1;
}

/* Returns whether a CPU leads, or is about to. */
static __always_inline bool gang_is_led(struct gang_lead *l, u64 now)
{
	u64 round = l->round;

	return round & GANG_SETUP || (round && (s64)(l->until - now) > 0);
}

/* Returns the present round; 0: none, or it is being set up. */
static __always_inline u64 gang_round(struct gang_lead *l, u64 now)
{
	u64 round = l->round;

	return !(round & GANG_SETUP) && (s64)(l->until - now) > 0 ? round : 0;
}

/* Elects `cpu` and returns its round; 0: another CPU leads. All gangs share `serial`. */
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

/* Ends the leader's round. No effect if the domain has another round by now. */
static __always_inline void gang_end(struct gang_lead *l, u64 round)
{
	__sync_val_compare_and_swap(&l->round, round, 0);
}

#endif
