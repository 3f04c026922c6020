/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * gang: which gang has its turn in a set of CPUs, which CPU leads it there, and for how long.
 *
 * Owns: the election of the CPU that leads a round, and the end of a round. Does not: know tasks or
 * queues, or how CPUs favour a gang; the caller passes the time.
 *
 * A gang is a set of tasks that want to run at the same time. A domain (a set of CPUs) gives one
 * gang at a time a turn, which is called a round, so that gangs do not divide the domain's CPUs
 * among themselves. The CPU that starts a round is its leader:
 *
 *	             gang_elect()            gang_end()
 *	no round --------------> a round --------------> no round
 *
 * gang_elect() starts a round if the domain has none, or if the time `until` of the last one is
 * over. The caller calls gang_end() when the gang sleeps, or when the leader runs no gang.
 *
 * A round is stored as one word: the gang's number, the round's number, and the leader's CPU. All
 * gangs share one counter of rounds, so that a finished round is not mistaken for a later one
 * before 2^32 rounds have passed. A CPU that takes part in a round remembers the word. It compares
 * the word with the domain's present word to know whether its round goes on.
 *
 * The CPU that wins the election first stores the word with the flag GANG_SETUP, then the end of
 * the round, and then clears GANG_SETUP. Other CPUs therefore see a round either as being set up,
 * and leave it alone, or complete.
 */
#ifndef LIB_GANG_BPF_H
#define LIB_GANG_BPF_H

#define GANG_SETUP		(1ULL << 63)
#define GANG_ID_SHIFT		48
#define GANG_ID_MAX		0x7fff
#define GANG_ROUND_SHIFT	16
#define GANG_ROUND_MASK		0xffffffffULL
#define GANG_LEADER_MASK	0xffffULL	/* the leader's CPU number + 1 */

/* State of one domain. It fills one cache line. */
struct gang_lead {
	u64 round;		/* the present round as one word; 0: no CPU leads */
	u64 until;		/* end of the round, ns */
	u64 asleep_since;		/* time since which most of the gang sleeps, ns; 0: most
					 * of it is awake */
	u32 width;		/* largest number of CPUs that had a runnable task of the gang at
				 * once in this round */
	u32 wants;		/* gang that this round kept from starting a round of its own,
				 * and that has no task on this round's leader; 0: none */
	u64 pad[4];
};

/* State of one CPU, written under the lock of its run queue. It fills one cache line. */
struct gang_cpu {
	u64 round;		/* gang=v2: round in which the CPU takes part; gang=v1: last round
				 * that the CPU joined or tried to join */
	u64 waits_until;	/* time until which the CPU waits for the end of a round at most,
				 * ns; 0: it does not wait */
	u64 spare_at;		/* time of the last update of `spare` */
	u64 grace_at;		/* time of the last update of `grace` */
	u32 spare;		/* ns for which the CPU may still stay idle to wait for the end
				 * of a round */
	s32 grace;		/* ns for which the CPU may still delay woken tasks that are in
				 * no gang */
	u32 delays_outsider;	/* the CPU delays a woken task that is in no gang */
	u32 tries;		/* the CPU's present pick tries to join the domain's round */
	u32 marked;		/* gang that the present pick puts first; 0: none */
	u32 domain;		/* first CPU of the domain, in an order in which the CPUs of a
				 * domain are adjacent */
	u32 first;		/* position of the domain's first CPU in the order in which the CPUs
				 * of a domain are adjacent */
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

/* Returns whether a CPU leads a round in the domain, or is setting one up. */
static __always_inline bool gang_is_led(struct gang_lead *l, u64 now)
{
	u64 round = l->round;

	return round & GANG_SETUP || (round && (s64)(l->until - now) > 0);
}

/* Returns the domain's present round; 0 if there is none, or if it is being set up. */
static __always_inline u64 gang_round(struct gang_lead *l, u64 now)
{
	u64 round = l->round;

	return !(round & GANG_SETUP) && (s64)(l->until - now) > 0 ? round : 0;
}

/*
 * Elects `cpu` as the leader of a new round of the gang `id`, and returns that round. Returns 0 if
 * the domain has a round already, or if another CPU wins the election. All gangs share `serial`,
 * the counter of rounds.
 */
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

/* Ends the given round. Has no effect if the domain has another round by now. */
static __always_inline void gang_end(struct gang_lead *l, u64 round)
{
	__sync_val_compare_and_swap(&l->round, round, 0);
}

#endif
