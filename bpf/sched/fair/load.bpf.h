/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Load: recent work of a queue, and a cgroup's weight on each CPU. The knob `load` chooses how load
 * is measured.
 *
 *   window  Per queue: weight times time, over windows of shares_window_ns. At the end of a window
 *           earlier load is halved. A task that leaves takes its weight along; its past load stays
 *           in the queue.
 *   pelt    Per entity, see lib/pelt.bpf.h. A queue has the sum over its runnable entities, and the
 *           sum over its sleeping ones, which decays as one number. An entity that wakes up takes
 *           exactly what is left of its load out of the second sum.
 *
 * Callers of all functions hold the lock of the queue's CPU, except where a function says
 * otherwise. Models: Linux 3.2 (window), 3.8 (pelt).
 */
#ifndef FAIR_LOAD_BPF_H
#define FAIR_LOAD_BPF_H

#include "fair.bpf.h"
#include "numa.bpf.h"

static void reweight(fair_entity_t *se, u64 weight)
{
	if (se->on_rq && se->q)
		se->q->weight += weight - se->weight;
	se->weight = weight;
}

/*
 * Returns the time by the clock of load tracking in a queue. A throttled queue's clock stops, and
 * lags behind its parent's clock afterwards. The lags of all queues on the path to the root add up,
 * so throttling changes one queue only.
 */
static __noinline u64 cgroup_clock(fair_rq_t *q, u64 now)
{
	u64 behind = 0;

	while (q->depth && can_loop) {
		behind += q->throttled_ns;
		if (q->throttled)
			return q->throttled_at - behind;
		q = q->se.q;
	}
	return now - behind;
}

static __always_inline u64 load_clock(fair_rq_t *q, u64 now)
{
	return q->depth ? cgroup_clock(q, now) : now;
}

/* Updates one of a group's totals with this CPU's value, unless the change is at most `slack`. */
static __always_inline void tell(s64 __arena *total, u64 __arena *told, u64 value, u64 slack)
{
	s64 delta = value - *told;

	if ((u64)(delta < 0 ? -delta : delta) > slack) {
		__sync_fetch_and_add(total, delta);
		*told = value;
	}
}

/* ---- window ---- */

static __noinline int window_track(fair_rq_t *q, u64 now, bool force)
{
	u64 window = shares_window_ns, delta;

	now = load_clock(q, now);
	/* No time has passed if the last update was by another CPU, whose clock was ahead. */
	if ((s64)(now - q->load_stamp) < 0)
		now = q->load_stamp;
	delta = now - q->load_stamp;
	/* After four windows without weight, all earlier load is dropped. */
	if ((s64)(q->load_stamp - q->load_last) > 0 && (s64)(now - q->load_last) > (s64)(4 * window)) {
		q->load_period = 0;
		apart();
		q->load_avg = 0;
		delta = window - 1;
	}
	q->load_stamp = now;
	q->load_period += delta;
	if (q->weight) {
		q->load_last = now;
		q->load_avg += delta * q->weight;
	}
	/* Divides only at the end of a window or with `force`, because a division takes long. */
	if (force || q->load_period > window || !q->load_period)
		tell(&q->of->load_weight, &q->load_contrib, q->load_avg / (q->load_period + 1),
		     force ? 0 : q->load_contrib / 8);
	while (q->load_period > window && can_loop) {
		q->load_period /= 2;
		q->load_avg /= 2;
	}
	return 0;
}

/* Updates the window of a queue. The root's queue needs none, because the root has no totals. */
static __always_inline void window_update(fair_rq_t *q, u64 now, bool force)
{
	if (q->depth)
		window_track(q, now, force);
}

/* ---- pelt ---- */

/*
 * Updates the queue's part of its group's load. A change by an eighth or less is held back unless
 * `force`, so that CPUs do not contend for one cache line.
 */
static __always_inline void pelt_contribute(fair_rq_t *q, bool force)
{
	tell(&q->of->load_avg, &q->tg_load_contrib, q->runnable_load + q->blocked_load,
	     force ? 0 : q->tg_load_contrib / 8);
}

/*
 * Updates the group's totals of the part of the time in which the group has work, and of the part
 * in which it runs. The first is needed because a group that seldom has work must not weigh its
 * full shares.
 */
static void pelt_contribute_times(fair_rq_t *q)
{
	fair_group_t *g = q->of;
	struct pelt_avg __arena *avg = &q->se.avg;

	tell(&g->runnable_avg, &q->tg_runnable_contrib, pelt_share(NICE_0_LOAD, avg->runnable, avg->period),
	     q->tg_runnable_contrib / 64);
	tell(&g->usage_avg, &q->tg_usage_contrib, pelt_share(NICE_0_LOAD, avg->running, avg->period),
	     q->tg_usage_contrib / 64);
}

static u64 group_load(fair_rq_t *q)
{
	fair_group_t *g = q->of;
	u64 load = q->tg_load_contrib * g->shares / ((u64)g->load_avg + 1);
	u64 runs = g->runnable_avg;

	return runs < NICE_0_LOAD ? load * runs / NICE_0_LOAD : load;
}

static __always_inline void unblock_load(fair_rq_t *q, u64 load)
{
	q->blocked_load -= min_u64(load, q->blocked_load);
}

/*
 * Decays the queue's blocked load, and subtracts the load of sleepers that woke up on other CPUs.
 */
static __always_inline void pelt_decay_blocked(fair_rq_t *q, u64 now)
{
	u64 period = load_clock(q, now) >> PELT_PERIOD_SHIFT;
	s64 passed = period - q->last_decay;

	if (q->removed_load)
		unblock_load(q, __sync_fetch_and_and(&q->removed_load, 0));
	if (passed > 0) {
		if (q->blocked_load)
			q->blocked_load = pelt_decay(q->blocked_load, passed);
		q->decays += passed;
		q->last_decay = period;
	}
}

static __noinline int pelt_update_blocked(fair_rq_t *q, u64 now, bool force)
{
	pelt_decay_blocked(q, now);
	pelt_contribute(q, force);
	return 0;
}

/* Returns the queue's blocked load as an update would leave it, without an update. */
static u64 pelt_blocked_now(fair_rq_t *q, u64 now)
{
	u64 period = load_clock(q, now) >> PELT_PERIOD_SHIFT, left = q->blocked_load;

	left -= min_u64(q->removed_load, left);
	return (s64)(period - q->last_decay) > 0 ? pelt_decay(left, period - q->last_decay) : left;
}

/*
 * Decays a sleeper's load as often as the queue's blocked load, which contains it, was decayed.
 * Returns the number of decays.
 */
static s64 pelt_sync_decay(fair_entity_t *se, fair_rq_t *q)
{
	s64 passed = (s64)q->decays - se->decays_at;

	if (se->decays_at <= 0 || passed <= 0)
		passed = 0;
	else
		se->contrib = pelt_decay(se->contrib, passed);
	se->decays_at = 0;
	return passed;
}

/*
 * Updates an entity's load and, if `counted`, the load of its queue, which contains it. Returns
 * true if the queue's load may have changed; the caller then updates the group.
 */
static __noinline bool pelt_update_entity(fair_entity_t *se, fair_rq_t *q, u64 now, bool counted)
{
	bool blocked = !se->on_rq && se->decays_at > 0;
	u64 old;

	if (!pelt_update(&se->avg, load_clock(se->mine ?: q, now), se->on_rq, q->curr == se))
		return false;
	if (blocked && counted) {
		/* Decays se's load as often as q's blocked load, which contains it. */
		pelt_decay_blocked(q, now);
		pelt_sync_decay(se, q);
		se->decays_at = q->decays;
	}
	old = se->contrib;
	if (se->mine) {
		pelt_contribute_times(se->mine);
		se->contrib = group_load(se->mine);
	} else {
		se->contrib = pelt_share(se->weight, se->avg.runnable, se->avg.period);
	}
	if (!counted)
		return false;
	if (se->on_rq) {
		q->runnable_load += se->contrib - old;
		numa_note_load(se, now);
	} else if (blocked) {
		unblock_load(q, old);
		q->blocked_load += se->contrib;
	}
	return true;
}

/*
 * Updates an entity's load and, if the queue's load may have changed, the total of the queue's
 * group. For callers that change nothing else on the queue.
 */
static __always_inline void pelt_refresh_entity(fair_entity_t *se, fair_rq_t *q, u64 now, bool counted)
{
	if (pelt_update_entity(se, q, now, counted))
		pelt_contribute(q, false);
}

static void pelt_enqueue(fair_entity_t *se, fair_rq_t *q, u64 now)
{
	bool woken = se->decays_at > 0;

	if (woken) {
		/* The entity slept on this queue: its load leaves the queue's blocked load. */
		pelt_sync_decay(se, q);
		unblock_load(q, se->contrib);
		pelt_update_entity(se, q, now, false);
	} else {
		/*
		 * The entity is new or from another CPU: it adopts this queue's clock, and its
		 * sleep is counted.
		 */
		u64 slept = (u64)-se->decays_at << PELT_PERIOD_SHIFT;

		se->avg.last = load_clock(se->mine ?: q, now) - slept;
		se->decays_at = 0;
		if (slept)
			pelt_update_entity(se, q, now, false);
	}
	q->runnable_load += se->contrib;
	pelt_update_blocked(q, now, !woken);
}

static void pelt_dequeue(fair_entity_t *se, fair_rq_t *q, u64 now, bool sleeps)
{
	pelt_update_entity(se, q, now, true);
	pelt_decay_blocked(q, now);
	q->runnable_load -= min_u64(se->contrib, q->runnable_load);
	if (sleeps) {
		q->blocked_load += se->contrib;
		se->decays_at = q->decays;
	}
	pelt_contribute(q, !sleeps);
}

/*
 * Takes a sleeper and its load off a queue, mostly for another CPU. The queue subtracts the load
 * later. Needs no lock.
 */
static void pelt_remove_sleeper(fair_entity_t *se, fair_rq_t *q)
{
	s64 passed;

	if (se->decays_at <= 0)
		return;
	passed = pelt_sync_decay(se, q);
	se->decays_at = -passed;
	__sync_fetch_and_add(&q->removed_load, se->contrib);
}

/* ---- both ---- */

static __always_inline bool is_pelt(void)
{
	return load == FAIR_LOAD_PELT;
}

static void load_enqueue(fair_entity_t *se, fair_rq_t *q, u64 now)
{
	if (is_pelt())
		pelt_enqueue(se, q, now);
	else
		window_update(q, now, false);
}

static void load_dequeue(fair_entity_t *se, fair_rq_t *q, u64 now, bool sleeps)
{
	if (is_pelt())
		pelt_dequeue(se, q, now, sleeps);
	else
		window_update(q, now, false);
}

/* Updates an entity that stays on its queue: at a tick, or after a change below it. */
static void load_update(fair_entity_t *se, fair_rq_t *q, u64 now)
{
	if (is_pelt()) {
		pelt_update_entity(se, q, now, true);
		pelt_update_blocked(q, now, false);
	} else {
		window_update(q, now, false);
	}
}

/*
 * Sets the weight of a cgroup on the queue's CPU: the group's shares times the queue's part of the
 * group's load. The group's total contains an old value of this queue; the calculation uses the
 * queue's present weight instead.
 */
static __noinline int divide_shares(fair_rq_t *q)
{
	fair_group_t *g = q->of;
	u64 weight = q->weight, all, shares;

	if (is_pelt())
		all = g->load_avg - q->tg_load_contrib + weight;
	else
		all = g->load_weight - q->load_contrib + weight;
	shares = g->shares * weight;
	if ((s64)all > 0)
		shares /= all;
	if (shares < MIN_SHARES)
		shares = MIN_SHARES;
	if (shares > g->shares)
		shares = g->shares;
	if (shares != q->se.weight)
		reweight(&q->se, shares);
	return 0;
}

static __always_inline void update_shares(fair_rq_t *q)
{
	if (q->depth)
		divide_shares(q);
}

#endif
