/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * tickle: whom does a waking vCPU interrupt? The two sides of the change "xen: sched_credit: improve tickling of
 * idle CPUs" (2012), as a function of what can be seen at the wake-up. It decides; the caller kicks and counts.
 *
 * Terms:
 *   new       the vCPU that wakes up, queued on `cpu`
 *   cur       what runs on `cpu`; the idle vCPU when nothing does
 *   idlers    the CPUs that run nothing
 *   suitable  those of them on which new may run
 *
 * Owns: nothing. Tested as a table: cases/sched/credit/tickle.case.
 */
#ifndef SCXLAB_TICKLE_BPF_H
#define SCXLAB_TICKLE_BPF_H

/* Priorities, greater is better: Xen's numbers. */
enum tickle_pri {
	TICKLE_PRI_IDLE		= -64,
	TICKLE_PRI_OVER		= -2,	/* has used up its credit */
	TICKLE_PRI_UNDER	= -1,	/* has credit */
	TICKLE_PRI_BOOST	= 0,	/* has credit, and just woke up */
	TICKLE_PRI_OTHER	= 1,	/* of a higher scheduling class: nothing here interrupts it */
};

enum tickle_mode {
	TICKLE_OLD,	/* before the change */
	TICKLE_NEW,	/* after it */
};

struct tickle_in {
	s32 new_pri;
	s32 cur_pri;
	bool has_idlers;
	bool has_suitable;
	bool cpu_suits;		/* new may run on `cpu` */
};

/* What to do, and which of Xen's counters go up. */
enum tickle_action {
	TICKLE_LOCAL		= 1 << 0,	/* interrupt `cpu` */
	TICKLE_IDLERS		= 1 << 1,	/* wake one suitable idler, or all */
	TICKLE_MIGRATE_CUR	= 1 << 2,	/* place cur anew: kicked_away, migrate_r, migrate_kicked_away */

	TICKLE_COUNT_LOCAL_IDLER	= 1 << 8,
	TICKLE_COUNT_LOCAL_OVER		= 1 << 9,
	TICKLE_COUNT_LOCAL_UNDER	= 1 << 10,
	TICKLE_COUNT_LOCAL_OTHER	= 1 << 11,
	TICKLE_COUNT_IDLERS_NONE	= 1 << 12,
	TICKLE_COUNT_IDLERS_SOME	= 1 << 13,
};

static __always_inline u32 tickle_local_counter(s32 cur_pri)
{
	switch (cur_pri) {
	case TICKLE_PRI_IDLE:
		return TICKLE_COUNT_LOCAL_IDLER;
	case TICKLE_PRI_OVER:
		return TICKLE_COUNT_LOCAL_OVER;
	case TICKLE_PRI_UNDER:
		return TICKLE_COUNT_LOCAL_UNDER;
	default:
		return TICKLE_COUNT_LOCAL_OTHER;
	}
}

/* Higher priority interrupts; and idlers are told whenever two want to run here. */
static __always_inline u32 tickle_decide_old(const struct tickle_in *in)
{
	u32 what = 0;

	if (in->new_pri > in->cur_pri)
		what |= TICKLE_LOCAL | tickle_local_counter(in->cur_pri);
	if (in->cur_pri <= TICKLE_PRI_IDLE)
		return what;
	if (!in->has_idlers)
		return what | TICKLE_COUNT_IDLERS_NONE;
	if (in->has_suitable)
		what |= TICKLE_IDLERS | TICKLE_COUNT_IDLERS_SOME;
	/* With idlers, only CPUs on which new may run are interrupted. */
	if (!in->cpu_suits)
		what &= ~TICKLE_LOCAL;
	return what;
}

/* A suitable idler spares cur; if there are only others, cur goes to one of them. */
static __always_inline u32 tickle_decide_new(const struct tickle_in *in)
{
	bool higher = in->new_pri > in->cur_pri;

	if (in->cur_pri == TICKLE_PRI_IDLE)
		return TICKLE_LOCAL;
	if (!in->has_idlers)
		return higher ? TICKLE_LOCAL | TICKLE_COUNT_IDLERS_NONE : 0;
	if (in->has_suitable)
		return TICKLE_IDLERS | TICKLE_COUNT_IDLERS_SOME;
	return higher ? TICKLE_LOCAL | TICKLE_MIGRATE_CUR | TICKLE_COUNT_IDLERS_NONE : 0;
}

static __always_inline u32 tickle_decide(enum tickle_mode mode, const struct tickle_in *in)
{
	return mode == TICKLE_OLD ? tickle_decide_old(in) : tickle_decide_new(in);
}

/*
 * The next CPU after `last` that is in both masks, around; -1 if there is none. `TEST(cpu, mask)` says whether it is
 * in one: idle masks and affinities of the kernel have a function for it, a test has words. The CPU is computed from
 * the iterator's number, or the verifier would follow each of its values.
 */
#define TICKLE_CYCLE(last, nr_cpus, TEST, idlers, affinity)				\
({											\
	s32 __found = -1;								\
	u32 __i;									\
	bpf_for(__i, 0, (nr_cpus)) {							\
		u32 __cpu = ((last) + 1 + __i) % (nr_cpus);				\
		if (TEST(__cpu, (idlers)) && TEST(__cpu, (affinity))) {			\
			__found = __cpu;						\
			break;								\
		}									\
	}										\
	__found;									\
})

#endif /* SCXLAB_TICKLE_BPF_H */
