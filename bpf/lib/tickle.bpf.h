/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * tickle: which vCPU a waking vCPU interrupts, before and after the change "xen: sched_credit:
 * improve tickling of idle CPUs" (2012). The decision depends on the arguments alone; the caller
 * kicks CPUs and counts.
 *
 * Terms:
 *   new       the vCPU that wakes up, queued on `cpu`
 *   cur       the vCPU that runs on `cpu`; the idle vCPU if none does
 *   idlers    the CPUs without a running vCPU
 *   suitable  the idlers on which new may run
 *
 * Owns: nothing. The table in cases/sched/credit/tickle.case tests the decision.
 */
#ifndef SCXLAB_TICKLE_BPF_H
#define SCXLAB_TICKLE_BPF_H

/* Xen's priorities; a greater number is better. */
enum tickle_pri {
	TICKLE_PRI_IDLE		= -64,
	TICKLE_PRI_OVER		= -2,	/* the vCPU has used up its credit */
	TICKLE_PRI_UNDER	= -1,	/* the vCPU has credit */
	TICKLE_PRI_BOOST	= 0,	/* the vCPU has credit, and just woke up */
	TICKLE_PRI_OTHER	= 1,	/* a task of a higher scheduling class, which no vCPU
					 * interrupts */
};

enum tickle_mode {
	TICKLE_OLD,	/* the decision before the change of 2012 */
	TICKLE_NEW,	/* the decision after the change of 2012 */
};

struct tickle_in {
	s32 new_pri;
	s32 cur_pri;
	bool has_idlers;
	bool has_suitable;
	bool cpu_suits;		/* new may run on `cpu` */
};

/* A decision: the actions, and the counters of Xen that the caller increments. */
enum tickle_action {
	TICKLE_LOCAL		= 1 << 0,	/* interrupt `cpu` */
	TICKLE_IDLERS		= 1 << 1,	/* wake one suitable idler, or all suitable ones */
	TICKLE_MIGRATE_CUR	= 1 << 2,	/* move cur, and count that in kicked_away,
						 * migrate_r and migrate_kicked_away */

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

/*
 * The decision before the change: new interrupts cur if new's priority is higher. Suitable idlers
 * are woken as well whenever two vCPUs want to run on `cpu`.
 */
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
	/* If there are idlers, `cpu` is interrupted only if new may run on it. */
	if (!in->cpu_suits)
		what &= ~TICKLE_LOCAL;
	return what;
}

/*
 * The decision after the change: if an idler is suitable, suitable idlers are woken and cur is not
 * interrupted. If all idlers are unsuitable, new interrupts a cur of lower priority, and cur moves
 * to one of the idlers.
 */
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
 * Returns the next CPU after `last`, cyclically, that is in both masks; -1 if there is none.
 * `TEST(cpu, mask)` returns whether a mask has a CPU: the scheduler passes kernel masks, the
 * self-test passes words. The macro computes the CPU from the iterator's number, because the
 * verifier would follow each value of a CPU number that is incremented.
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
