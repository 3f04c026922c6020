/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Load: how much work a queue had lately, and what part of its weight a cgroup has on each CPU. Two ways, by the knob `load`.
 *
 * window  Per queue: weight times time, over windows of shares_window_ns; at a boundary what is before counts half. A task that
 *         leaves takes its weight along, its history stays.
 * pelt    Per entity, see lib/pelt.bpf.h. A queue has the sum over its runnable entities, and the sum over those that sleep,
 *         which decays as one number. An entity that wakes up takes back exactly what it has left in there.
 *
 * All is called with the lock of the queue's CPU. Models: Linux 3.2 for window, 3.8 for pelt.
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
 * Time for load tracking in a queue. The clock of a throttled queue stands where its parent's was then, and stays behind it by
 * that much from then on. So clocks add up along the path to the root, and throttling touches one queue.
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

/* Tells one of a group's totals what this CPU has, unless what it was told is off by no more than `slack`. */
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
	/* Another CPU, whose clock was ahead, was here before. */
	if ((s64)(now - q->load_stamp) < 0)
		now = q->load_stamp;
	delta = now - q->load_stamp;
	/* After four idle windows nothing of the past is left. */
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
	/* The division is here, at the end of a window. */
	if (force || q->load_period > window || !q->load_period)
		tell(&q->of->load_weight, &q->load_contrib, q->load_avg / (q->load_period + 1),
		     force ? 0 : q->load_contrib / 8);
	while (q->load_period > window && can_loop) {
		q->load_period /= 2;
		q->load_avg /= 2;
	}
	return 0;
}

/* The root has no group to tell. */
static __always_inline void window_update(fair_rq_t *q, u64 now, bool force)
{
	if (q->depth)
		window_track(q, now, force);
}

/* ---- pelt ---- */

/* Small changes wait, so that CPUs do not fight for one cache line. */
static __always_inline void pelt_contribute(fair_rq_t *q, bool force)
{
	tell(&q->of->load_avg, &q->tg_load_contrib, q->runnable_load + q->blocked_load,
	     force ? 0 : q->tg_load_contrib / 8);
}

/*
 * The part of the time in which the group has work anywhere: a group that seldom has must not weigh its full shares. And the
 * part in which it runs.
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

/* Decays what sleeps, and takes off what woke up on another CPU. */
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

/* The blocked load as an update would leave it. */
static u64 pelt_blocked_now(fair_rq_t *q, u64 now)
{
	u64 period = load_clock(q, now) >> PELT_PERIOD_SHIFT, left = q->blocked_load;

	left -= min_u64(q->removed_load, left);
	return (s64)(period - q->last_decay) > 0 ? pelt_decay(left, period - q->last_decay) : left;
}

/* A sleeper's own load decays as often as the sum that it is part of did. */
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
 * Brings an entity's load up to date, and its queue's with it if it is counted there. True if that may have changed: the caller tells the
 * group.
 */
static __noinline bool pelt_update_entity(fair_entity_t *se, fair_rq_t *q, u64 now, bool counted)
{
	bool blocked = !se->on_rq && se->decays_at > 0;
	u64 old;

	if (!pelt_update(&se->avg, load_clock(se->mine ?: q, now), se->on_rq, q->curr == se))
		return false;
	if (blocked && counted) {
		/* What it has in the sum is what is left of it there. */
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

/* The same when nothing else changes on the queue. */
static __always_inline void pelt_refresh_entity(fair_entity_t *se, fair_rq_t *q, u64 now, bool counted)
{
	if (pelt_update_entity(se, q, now, counted))
		pelt_contribute(q, false);
}

static void pelt_enqueue(fair_entity_t *se, fair_rq_t *q, u64 now)
{
	bool woken = se->decays_at > 0;

	if (woken) {
		/* Its load is in this queue's blocked load. */
		pelt_sync_decay(se, q);
		unblock_load(q, se->contrib);
		pelt_update_entity(se, q, now, false);
	} else {
		/* From another CPU, or new: it takes over this queue's clock, and what it slept. */
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

/* A sleeper leaves for another CPU: its load goes along, and is taken off here when somebody looks. Needs no lock. */
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

/* An entity that stays: at a tick, or when something changed below it. */
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
 * What part of its group's shares the queue has as weight on this CPU: as much as its part of the group's load. The group's
 * load as seen by all is old where it is about this CPU, so that part is replaced by the present weight.
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
