/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Cgroups: their slots, their queues on every CPU, and the limit of cpu.max.
 *
 * A slot and its queues are created at first use, and reused after a cgroup is gone, so a DSQ is
 * never destroyed. Tasks of a cgroup without a slot, or too deep, count as tasks of its parent.
 *
 * cpu.max: a timer fills the group's pool every period, and CPUs take slices from the pool. A queue
 * that has no time left and cannot get more is taken off its parent's queue with all its entities,
 * until the timer pays its debt.
 */
#ifndef FAIR_GROUP_BPF_H
#define FAIR_GROUP_BPF_H

#include "entity.bpf.h"

struct group_stor {
	u32 group;
	u32 owner;	/* the slot belongs to this cgroup alone */
};

struct {
	__uint(type, BPF_MAP_TYPE_CGRP_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct group_stor);
} group_stors SEC(".maps");

struct fair_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_GROUPS);
	__type(key, u32);
	__type(value, struct fair_timer);
} timers SEC(".maps");

/* Returns the slot to which a cgroup's tasks belong. */
static u32 group_of(struct cgroup *cgrp)
{
	struct group_stor *s = cgrp ? bpf_cgrp_storage_get(&group_stors, cgrp, 0, 0) : NULL;

	return s ? s->group : ROOT_GROUP;
}

static u64 to_shares(u32 weight)
{
	u64 shares = (u64)weight * NICE_0_LOAD / 100;

	return shares < MIN_SHARES ? MIN_SHARES : shares;
}

/* ---- cpu.max ---- */

/* Takes up to `want` ns from the group's pool, by atomic operations. */
static void take_runtime(fair_rq_t *q, fair_group_t *g, s64 want)
{
	s64 old = __sync_fetch_and_sub(&g->pool, want);

	if (old < want) {
		s64 got = old > 0 ? old : 0;

		__sync_fetch_and_add(&g->pool, want - got);
		want = got;
	}
	q->runtime += want;
}

/* Returns whether the queue has CPU time left. If not, first takes some from the group's pool. */
static bool has_runtime(fair_rq_t *q, fair_group_t *g)
{
	if (g->quota && q->runtime <= 0)
		take_runtime(q, g, (s64)bandwidth_slice_ns - q->runtime);
	return !g->quota || q->runtime > 0;
}

static void throttle(fair_rq_t *q, u64 now)
{
	fair_entity_t *se = &q->se;
	fair_rq_t *at = se->q;

	count_tasks(at, -(s32)q->h_nr, now);
	while (at && se->on_rq && can_loop) {
		dequeue_entity(at, se, true, now);
		if (at->throttled || at->nr || !at->depth)
			break;
		se = &at->se;
		at = se->q;
	}
	q->throttled_at = load_clock(q->se.q, now);
	q->throttled = 1;
	cpu_at(q->cpu)->nr_throttled++;
}

static void unthrottle(fair_rq_t *q, u64 now)
{
	fair_entity_t *se = &q->se;
	fair_rq_t *at = q->se.q;
	s64 stood = load_clock(at, now) - q->throttled_at;

	/* Counts no negative time: the clock of the CPU that throttled the queue may have been ahead. */
	if (stood > 0)
		q->throttled_ns += stood;
	q->throttled = 0;
	cpu_at(q->cpu)->nr_throttled--;
	if (!q->nr)
		return;
	count_tasks(at, q->h_nr, now);
	while (at && !se->on_rq && can_loop) {
		enqueue_entity(at, se, ENQ_WOKEN, now);
		if (at->throttled || !at->depth)
			break;
		se = &at->se;
		at = se->q;
	}
}

/* Whether every group on the path to the root has time left. */
static bool path_has_runtime(fair_rq_t *q)
{
	bool has = true;

	while (q && q->depth && can_loop) {
		has = has_runtime(q, group_at(q->group)) && has;
		q = q->se.q;
	}
	return has;
}

/*
 * Throttles the queues on the path to the root that have no time left. Returns whether there was
 * one.
 */
static bool throttle_path(fair_rq_t *q, u64 now)
{
	bool any = false;

	while (q && q->depth && can_loop) {
		fair_rq_t *up = q->se.q;

		if (!q->throttled && !has_runtime(q, group_at(q->group))) {
			throttle(q, now);
			any = true;
		}
		q = up;
	}
	return any;
}

/*
 * Pays a throttled queue's debt from the pool, over several periods if needed. Returns true if the
 * queue may run.
 */
static bool pay(fair_rq_t *q, bool lifted)
{
	if (lifted)
		q->runtime = 1;
	else
		take_runtime(q, group_at(q->group), 1 - q->runtime);
	return q->runtime > 0;
}

/* Unthrottles the cgroup's queues whose debt the pool can pay; all if the limit was lifted. */
static __noinline int release_group(u32 group, bool lifted)
{
	u64 now = scx_bpf_now();
	u32 i, n = 0;

	bpf_for(i, 0, nr_cpus) {
		fair_rq_t *q = rq_at(group, i);
		struct fair_lock *l;
		bool released = false;

		if (!q->throttled || !(l = lock_of(i)))
			continue;
		bpf_spin_lock(&l->lock);
		if (q->throttled && pay(q, lifted)) {
			unthrottle(q, now);
			released = true;
		}
		bpf_spin_unlock(&l->lock);
		if (released) {
			n++;
			count(unthrottles);
			kick(i, 0);
		}
	}
	return n;
}

static int refill(void *map, u32 *group, struct fair_timer *timer)
{
	fair_group_t *g = group_at(*group);

	if (!g->used || !g->quota) {
		g->timer_on = 0;
		return 0;
	}
	g->pool = g->quota;
	release_group(*group, false);
	bpf_timer_start(&timer->timer, g->period, 0);
	return 0;
}

static void set_quota(u32 group, u64 period_us, u64 quota_us)
{
	fair_group_t *g = group_at(group);
	struct fair_timer *timer = bpf_map_lookup_elem(&timers, &group);

	g->period = period_us * 1000;
	g->quota = quota_us == ~0ULL ? 0 : quota_us * 1000;
	g->pool = g->quota;
	if (!timer)
		return;
	if (!g->quota) {
		release_group(group, true);
		return;
	}
	if (g->timer_on)
		return;
	bpf_timer_init(&timer->timer, &timers, 1 /* CLOCK_MONOTONIC */);
	bpf_timer_set_callback(&timer->timer, refill);
	if (!bpf_timer_start(&timer->timer, g->period, 0))
		g->timer_on = 1;
}

/* ---- slots ---- */

static __always_inline u64 dsq_id(u32 group, u32 cpu)
{
	return (1ULL << 40) | (u64)group << 16 | cpu;
}

#define ARENA_PAGE	4096

static void __arena *alloc_bytes(u64 bytes)
{
	return bpf_arena_alloc_pages(&arena, NULL, (bytes + ARENA_PAGE - 1) / ARENA_PAGE, NUMA_NO_NODE, 0);
}

/* Creates the queues of a slot that is used for the first time. */
static s32 make_queues(fair_group_t *g, u32 group)
{
	fair_rq_t *rqs = alloc_bytes((u64)nr_cpus * sizeof(struct fair_rq));
	u32 cpu;

	if (!rqs)
		return -ENOMEM;
	bpf_for(cpu, 0, nr_cpus) {
		s32 err = scx_bpf_create_dsq(dsq_id(group, cpu), -1);

		if (err && err != -EEXIST)
			return err;
	}
	g->rqs = rqs;
	return 0;
}

/*
 * Clears `has_head` of a removed cgroup's queue. No task waits there, but the flag may be out of
 * date.
 */
static __always_inline void forget_waiting(fair_rq_t *q)
{
	struct fair_lock *l = lock_of(q->cpu);

	if (!q->has_head || !l)
		return;
	bpf_spin_lock(&l->lock);
	note_waiting(q, false);
	bpf_spin_unlock(&l->lock);
}

static void reset_queues(fair_group_t *g, u32 group)
{
	u64 now = scx_bpf_now(), clock;
	u32 cpu;

	bpf_for(cpu, 0, nr_cpus) {
		fair_rq_t *q = g->rqs + cpu;
		fair_rq_t *up = group == ROOT_GROUP ? NULL : rq_at(g->parent, cpu);

		forget_waiting(q);
		zero_words((u64 __arena *)q, sizeof(*q));
		q->dsq = dsq_id(group, cpu);
		q->on = cpu_at(cpu);
		q->of = g;
		q->cpu = cpu;
		q->group = group;
		q->depth = g->depth;
		q->se.mine = q;
		q->se.q = up;
		q->se.weight = MIN_SHARES;
		q->decays = 1;
		clock = load_clock(q, now);
		q->se.avg.last = clock;
		q->load_stamp = clock;
		q->load_last = clock;
		q->last_decay = clock >> PELT_PERIOD_SHIFT;
		if (up)
			q->se.vruntime = up->min_vruntime;
	}
}

/*
 * Returns a slot for a child of `parent`; the parent's own if no slot is left, or the child is too
 * deep.
 */
static s32 make_group(u32 parent, u64 cgid, u32 weight)
{
	u32 group, depth = group_at(parent)->depth + 1;
	fair_group_t *g;
	fair_rq_t *rqs;
	s32 err;

	if (depth >= MAX_DEPTH)
		return parent;
	bpf_for(group, 1, MAX_GROUPS) {
		g = group_at(group);
		if (g->used)
			continue;
		if (!g->rqs) {
			err = make_queues(g, group);
			if (err)
				return err;
		}
		rqs = g->rqs;
		zero_words((u64 __arena *)g, sizeof(*g));
		g->rqs = rqs;
		g->cgid = cgid;
		g->parent = parent;
		g->depth = depth;
		g->shares = to_shares(weight);
		reset_queues(g, group);
		g->used = 1;
		if (group >= nr_groups)
			nr_groups = group + 1;
		return group;
	}
	return parent;
}

static void gang_cgroup_appears(struct cgroup *cgrp, u32 group);	/* defined in
									 * gang_switch.bpf.h */

s32 BPF_STRUCT_OPS_SLEEPABLE(fair_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	struct group_stor *s = bpf_cgrp_storage_get(&group_stors, cgrp, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct cgroup *up;
	s32 group = ROOT_GROUP, parent = ROOT_GROUP;

	if (!s)
		return -ENOMEM;
	if (cgrp->level > 0) {
		up = bpf_cgroup_ancestor(cgrp, cgrp->level - 1);
		if (up) {
			parent = group_of(up);
			bpf_cgroup_release(up);
		}
		group = make_group(parent, cgrp->kn->id, args->weight);
		if (group < 0)
			return group;
	}
	s->group = group;
	s->owner = group != parent;
	if (!s->owner) {
		if (cgrp->level > 0)
			count(groups_clamped);
		return 0;
	}
	gang_cgroup_appears(cgrp, group);
	if (args->bw_quota_us != ~0ULL)
		set_quota(group, args->bw_period_us, args->bw_quota_us);
	return 0;
}

/*
 * Takes the queues of a given-up slot off the leaf lists. What load they have left decays in their
 * parents' queues.
 */
static __noinline int forget_leafs(u32 group)
{
	u32 i;

	bpf_for(i, 0, nr_cpus) {
		fair_rq_t *q = rq_at(group, i);
		struct fair_lock *l;

		if (!q->leaf || !(l = lock_of(i)))
			continue;
		bpf_spin_lock(&l->lock);
		leaf_remove(q);
		bpf_spin_unlock(&l->lock);
	}
	return 0;
}

void BPF_STRUCT_OPS(fair_cgroup_exit, struct cgroup *cgrp)
{
	struct group_stor *s = bpf_cgrp_storage_get(&group_stors, cgrp, 0, 0);
	fair_group_t *g;

	use_arena();
	if (!s || !s->owner)
		return;
	g = group_at(s->group);
	if (g->quota) {
		g->quota = 0;
		release_group(s->group, true);
	}
	g->gang = 0;
	forget_leafs(s->group);
	g->used = 0;
}

void BPF_STRUCT_OPS(fair_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	struct group_stor *s = bpf_cgrp_storage_get(&group_stors, cgrp, 0, 0);
	u32 i;

	use_arena();
	if (!s || !s->owner)
		return;
	group_at(s->group)->shares = to_shares(weight);
	bpf_for(i, 0, nr_cpus) {
		fair_rq_t *q = rq_at(s->group, i);
		struct fair_lock *l = lock_of(i);

		if (!q->nr || !l)
			continue;
		bpf_spin_lock(&l->lock);
		update_shares(q);
		bpf_spin_unlock(&l->lock);
	}
}

void BPF_STRUCT_OPS(fair_cgroup_set_bandwidth, struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us)
{
	struct group_stor *s = bpf_cgrp_storage_get(&group_stors, cgrp, 0, 0);

	use_arena();
	if (s && s->owner)
		set_quota(s->group, period_us, quota_us);
}

#endif
