/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Entities and queues: vruntime, its order, enqueue, dequeue, charging, picking, preemption by
 * tick.
 *
 * Code that holds a CPU's lock reads no clock and no DSQ: callers pass the time, and the queue
 * keeps the vruntime of its DSQ's first task (`head`). A queue's waiting cgroups are in a list,
 * sorted by vruntime. The search for the place of a cgroup that ran begins at the end of the list,
 * where the cgroup belongs if weights are alike; for a cgroup that wakes up it begins at the front.
 */
#ifndef FAIR_ENTITY_BPF_H
#define FAIR_ENTITY_BPF_H

#include "fair.bpf.h"
#include "load.bpf.h"
#include "leaf.bpf.h"
#include "domain.bpf.h"

/* ---- time ---- */

/* Converts CPU time into an entity's vruntime. */
static __always_inline u64 to_vruntime(u64 ns, fair_entity_t *se)
{
	u64 weight = se->weight;

	/*
	 * Skips the division for nice 0, because a division would take as long as the rest of
	 * charge().
	 */
	return weight == NICE_0_LOAD || !weight ? ns : ns * NICE_0_LOAD / weight;
}

static __always_inline u64 latency(void)
{
	return sched_latency_ns * factor;
}

static __always_inline u64 min_granularity(void)
{
	return min_granularity_ns * factor;
}

/* Returns the time in which each entity of a queue should run once: longer if there are many. */
static __always_inline u64 sched_period(u64 nr)
{
	u64 stretched = nr * min_granularity();

	return max_u64(latency(), stretched);
}

/*
 * Returns the entity's slice: its queue's period times the entity's part of the queue's weight,
 * times the same part for each cgroup above. The entity need not be on the queue.
 */
static u64 sched_slice(fair_rq_t *q, fair_entity_t *se)
{
	u64 slice = sched_period(q->nr + !se->on_rq);

	while (q && can_loop) {
		u64 weight = q->weight + (se->on_rq ? 0 : se->weight);

		if (weight)
			slice = slice * se->weight / weight;
		se = &q->se;
		q = q->depth ? se->q : NULL;
	}
	return slice;
}

/* Moves min_vruntime forward to the vruntime of the entity that is furthest behind. */
static void update_min_vruntime(fair_rq_t *q)
{
	u64 min = q->min_vruntime;
	bool have = false;

	if (q->curr && q->curr->on_rq) {
		min = q->curr->vruntime;
		have = true;
	}
	if (q->first && (!have || time_before(q->first->vruntime, min))) {
		min = q->first->vruntime;
		have = true;
	}
	if (q->has_head && (!have || time_before(q->head, min)))
		min = q->head;
	if (time_after(min, q->min_vruntime))
		q->min_vruntime = min;
}

/* ---- the list of waiting cgroups ---- */

static void list_insert(fair_rq_t *q, fair_entity_t *se, bool from_end)
{
	fair_entity_t *after = NULL, *before = NULL;

	if (se->listed)
		return;
	if (from_end) {
		after = q->last;
		while (after && time_after(after->vruntime, se->vruntime) && can_loop) {
			before = after;
			after = after->prev;
		}
	} else {
		before = q->first;
		while (before && !time_after(before->vruntime, se->vruntime) && can_loop) {
			after = before;
			before = before->next;
		}
	}
	se->prev = after;
	apart();
	se->next = before;
	if (after)
		after->next = se;
	else
		q->first = se;
	if (before)
		before->prev = se;
	else
		q->last = se;
	se->listed = 1;
}

static void list_remove(fair_rq_t *q, fair_entity_t *se)
{
	fair_entity_t *prev = se->prev, *next = se->next;

	if (!se->listed)
		return;
	if (prev)
		prev->next = next;
	else
		q->first = next;
	if (next)
		next->prev = prev;
	else
		q->last = prev;
	se->prev = NULL;
	apart();
	se->next = NULL;
	se->listed = 0;
}

static void clear_buddies(fair_rq_t *q, fair_entity_t *se)
{
	if (q->buddy_next == se)
		q->buddy_next = NULL;
	if (q->buddy_last == se)
		q->buddy_last = NULL;
	if (q->buddy_skip == se)
		q->buddy_skip = NULL;
}

/* ---- charging ---- */

/* Charges `delta` ns of CPU time to the running task and to every cgroup above it. */
static void charge(fair_cpu_t *c, u64 delta)
{
	fair_entity_t *se = &c->curr->se;
	fair_rq_t *q = se->q;

	while (q && can_loop) {
		se->ran += delta;
		se->vruntime += to_vruntime(delta, se);
		update_min_vruntime(q);
		if (!q->depth)
			break;
		if (q->of->quota)
			q->runtime -= delta;
		se = &q->se;
		q = se->q;
	}
}

/*
 * Charges the running task by its own clock. This corrects the error of charge_until(), which goes
 * by the CPU's clock.
 */
static void charge_exact(fair_cpu_t *c, u64 sum_exec, u64 now)
{
	s64 delta;

	if (!c->curr)
		return;
	delta = (s64)(sum_exec - c->curr_base) - (s64)c->curr_charged;
	c->curr_at = now;
	if (delta > 0) {
		charge(c, delta);
		c->curr_charged += delta;
	}
}

static void charge_until(fair_cpu_t *c, u64 now)
{
	s64 delta = now - c->curr_at;

	if (!c->curr || delta <= 0)
		return;
	c->curr_at = now;
	charge(c, delta);
	c->curr_charged += delta;
}

/* ---- on and off a queue ---- */

enum { ENQ_MOVED = 0, ENQ_WOKEN = 1, ENQ_NEW = 2 };

/*
 * Sets the vruntime of an entity that becomes runnable. One that wakes up starts at most half of
 * latency() before the queue's min_vruntime, a new one starts a slice after it.
 */
static void place_entity(fair_rq_t *q, fair_entity_t *se, int how)
{
	u64 vruntime = q->min_vruntime;

	if (how == ENQ_NEW)
		vruntime += to_vruntime(sched_slice(q, se), se);
	else
		vruntime -= latency() / 2;
	if (how == ENQ_NEW || time_after(vruntime, se->vruntime))
		se->vruntime = vruntime;
}

/* Converts vruntime from one queue's scale to another's. */
static void rescale(fair_entity_t *se, fair_rq_t *q)
{
	if (se->q == q)
		return;
	if (se->q)
		se->vruntime -= se->q->min_vruntime;
	se->vruntime += q->min_vruntime;
	se->q = q;
}

static void enqueue_entity(fair_rq_t *q, fair_entity_t *se, int how, u64 now)
{
	rescale(se, q);
	leaf_add(q);
	load_enqueue(se, q, now);
	if (how != ENQ_MOVED)
		place_entity(q, se, how);
	se->on_rq = 1;
	q->weight += se->weight;
	q->nr++;
	update_shares(q);
	if (se->mine && q->curr != se)
		list_insert(q, se, false);
}

static void dequeue_entity(fair_rq_t *q, fair_entity_t *se, bool sleeps, u64 now)
{
	load_dequeue(se, q, now, sleeps);
	clear_buddies(q, se);
	if (se->mine)
		list_remove(q, se);
	se->on_rq = 0;
	q->weight -= se->weight;
	q->nr--;
	update_min_vruntime(q);
	update_shares(q);
}

/* Updates load and shares of the levels above an entity that stays on its queue. */
static void update_above(fair_entity_t *se, u64 now)
{
	fair_rq_t *q = se->q;

	while (q && can_loop) {
		load_update(se, q, now);
		update_shares(q);
		se = &q->se;
		q = q->depth ? se->q : NULL;
	}
}

static void gang_counts(fair_rq_t *q, s64 tasks, s64 cpus, u64 now);	/* defined in
									 * gang_round.bpf.h */

static void count_tasks(fair_rq_t *q, s32 delta, u64 now)
{
	while (q && can_loop) {
		u32 was = q->h_nr, is = was + delta;

		q->h_nr = is;
		if (gang != FAIR_GANG_OFF)
			gang_counts(q, delta, !!is - !!was, now);
		if (!q->depth) {
			/*
			 * Updates the CPU's average when the CPU gets its first task or loses its
			 * last one.
			 */
			if (is_pelt() && (!was || !is))
				pelt_update(&q->on->avg, now, was, was);
			note_tasks(q->on, was, is);
			break;
		}
		if (q->throttled)
			break;
		q = q->se.q;
	}
}

/* Makes the task runnable on `q`, and also every cgroup above it that was not runnable. */
static void enqueue_task(fair_task_t *t, fair_rq_t *q, int how, u64 now)
{
	fair_entity_t *se = &t->se;

	count_tasks(q, 1, now);
	while (q && !se->on_rq && can_loop) {
		enqueue_entity(q, se, how, now);
		how = ENQ_WOKEN;
		if (q->throttled)
			return;
		se = &q->se;
		q = q->depth ? se->q : NULL;
	}
	if (q)
		update_above(se, now);
}

static void dequeue_task(fair_task_t *t, bool sleeps, u64 now)
{
	fair_entity_t *se = &t->se;
	fair_rq_t *q = se->q;

	count_tasks(q, -1, now);
	while (q && se->on_rq && can_loop) {
		dequeue_entity(q, se, sleeps, now);
		sleeps = true;
		if (q->throttled)
			return;
		se = &q->se;
		q = q->depth ? se->q : NULL;
		/* A cgroup with other runnable entities stays on its parent's queue. */
		if (q && se->mine->nr)
			break;
	}
	if (q && se->on_rq)
		update_above(se, now);
}

/* ---- to and from the CPU ---- */

static void set_curr(fair_cpu_t *c, fair_task_t *t, u64 sum_exec, u64 now)
{
	fair_entity_t *se = &t->se;
	fair_rq_t *q = se->q;

	c->curr = t;
	c->curr_base = sum_exec;
	c->curr_charged = 0;
	c->curr_at = now;
	while (q && can_loop) {
		if (is_pelt())
			pelt_refresh_entity(se, q, now, se->on_rq);
		if (se->mine)
			list_remove(q, se);
		clear_buddies(q, se);
		q->curr = se;
		se->ran_at_pick = se->ran;
		se = &q->se;
		q = q->depth ? se->q : NULL;
	}
}

/*
 * Takes the running task off the CPU. `tracked`: its load, and that of all levels above, is up to
 * date.
 */
static void put_curr(fair_cpu_t *c, bool tracked, u64 now)
{
	fair_entity_t *se;
	fair_rq_t *q;

	if (!c->curr)
		return;
	se = &c->curr->se;
	q = se->q;
	c->curr = NULL;
	while (q && can_loop) {
		if (!tracked && is_pelt())
			pelt_refresh_entity(se, q, now, true);
		q->curr = NULL;
		if (se->mine && se->on_rq)
			list_insert(q, se, true);
		se = &q->se;
		q = q->depth ? se->q : NULL;
	}
}

/* Starts a new slice at every level for the running task, which was picked again. */
static void repick_curr(fair_cpu_t *c)
{
	fair_entity_t *se = &c->curr->se;
	fair_rq_t *q = se->q;

	while (q && can_loop) {
		se->ran_at_pick = se->ran;
		clear_buddies(q, se);
		se = &q->se;
		q = q->depth ? se->q : NULL;
	}
}

static __noinline int set_waiting(fair_rq_t *q, bool waits)
{
	fair_cpu_t *c = q->on;
	fair_rq_t *prev = q->wait_prev, *next = q->wait_next;

	q->has_head = waits;
	if (waits) {
		prev = NULL;
		next = c->waiting;
		q->wait_prev = NULL;
		apart();
		q->wait_next = next;
		c->waiting = q;
		if (next)
			next->wait_prev = q;
		return 0;
	}
	if (prev)
		prev->wait_next = next;
	else
		c->waiting = next;
	if (next)
		next->wait_prev = prev;
	return 0;
}

/*
 * Notes whether a task waits in the queue's DSQ, and updates the CPU's list of queues with such a
 * task.
 */
static __always_inline void note_waiting(fair_rq_t *q, bool waits)
{
	if (waits != q->has_head)
		set_waiting(q, waits);
}

/* After a change of the queue's DSQ: sets `head`, the vruntime of the DSQ's first task. */
static __always_inline void set_head(fair_rq_t *q, bool has_head, u64 head)
{
	note_waiting(q, has_head);
	q->head = head;
	update_min_vruntime(q);
}

/* ---- preemption ---- */

/* Finds the smallest vruntime of the entities that wait on a queue. Returns false if none waits. */
static bool leftmost(fair_rq_t *q, u64 *vruntime)
{
	bool have = q->first != NULL;

	if (have)
		*vruntime = q->first->vruntime;
	if (q->has_head && (!have || time_before(q->head, *vruntime))) {
		*vruntime = q->head;
		have = true;
	}
	return have;
}

/* Whether the entity running on `q` has used its slice, or is too far ahead of the waiting ones. */
static bool slice_is_over(fair_rq_t *q, fair_entity_t *se)
{
	u64 ideal, ran = se->ran - se->ran_at_pick, first = 0;

	if (q->nr < 2)
		return false;
	ideal = sched_slice(q, se);
	if (ran > ideal)
		return true;
	if (ran < min_granularity())
		return false;
	return leftmost(q, &first) && (s64)(se->vruntime - first) > (s64)ideal;
}

/* At a tick: updates load at all levels, and returns whether the slice is over at any of them. */
static bool tick_curr(fair_cpu_t *c, u64 now)
{
	fair_entity_t *se = &c->curr->se;
	fair_rq_t *q = se->q;
	bool over = false;

	while (q && can_loop) {
		load_update(se, q, now);
		update_shares(q);
		if (slice_is_over(q, se)) {
			clear_buddies(q, se);
			over = true;
		}
		se = &q->se;
		q = q->depth ? se->q : NULL;
	}
	return over;
}

/*
 * Compares `se`, which woke up, with the vruntime `curr` of the running entity. 1: `se` preempts;
 * 0: it is behind, but by too little; -1: it is not behind.
 */
static __always_inline int beats(u64 curr, fair_entity_t *se)
{
	s64 lead = curr - se->vruntime;

	if (lead <= 0)
		return -1;
	return lead > (s64)to_vruntime(wakeup_granularity_ns * factor, se);
}

/* ---- picking ---- */

/* Results of pick(); other values are DSQs. */
#define PICK_NONE	(~0ULL)
#define PICK_PREV	(~1ULL)

/* Returns the queue's first waiting cgroup that is not marked with `round` as one to leave out. */
static __always_inline fair_entity_t *first_group(fair_rq_t *q, u64 round)
{
	fair_entity_t *se = q->first;

	while (se && se->skip_round == round && can_loop)
		se = se->next;
	return se;
}

/*
 * Whether `se` may run although an entity with vruntime `first` deserves the CPU more. It may if
 * the two differ by the wake-up granularity at most.
 */
static __always_inline bool is_fair_enough(fair_entity_t *se, u64 first)
{
	return (s64)(se->vruntime - first) <= (s64)to_vruntime(wakeup_granularity_ns * factor, se);
}

/* Whether the entity waits, and pick() may take it out of turn. */
static __always_inline bool waits(fair_entity_t *se, u64 round)
{
	if (!se || !se->on_rq)
		return false;
	return se->mine ? se->listed && se->skip_round != round : ((fair_task_t *)se)->queued;
}

/*
 * One level of a pick: of the entity that ran, the first waiting cgroup and the first waiting task,
 * chooses the one with the smallest vruntime. Three things change this choice: buddy_gang, if it is
 * runnable, goes first in any case; another buddy goes first if that is fair enough; if the entity
 * that ran has yielded, the next entity goes first if that is fair enough. Input: the queue
 * c->level_of. Returns true if a task of the DSQ was chosen: c->want, or the first one if that is
 * NULL. Otherwise c->chosen is the choice; NULL: nothing is runnable.
 */
__weak bool choose(s32 cpu, bool keep)
{
	fair_cpu_t *c = cpu_at(cpu);
	fair_rq_t *q = c->level_of;
	struct task_struct *p = __COMPAT_scx_bpf_dsq_peek(q->dsq);
	fair_entity_t *best = first_group(q, c->round), *curr = keep ? q->curr : NULL, *buddy;
	u64 first = best ? best->vruntime : 0;
	bool head = false;

	buddy = q->buddy_gang;
	if (buddy && (waits(buddy, c->round) || (buddy == curr && buddy->skip_round != c->round))) {
		c->chosen = buddy;
		return false;
	}
	if (p && (!best || time_before(p->scx.dsq_vtime, first))) {
		first = p->scx.dsq_vtime;
		best = NULL;
		head = true;
	}
	if (curr && curr->on_rq && curr->skip_round != c->round && (curr->mine || !c->leave_prev)) {
		s64 lead = first - curr->vruntime;
		bool yields = q->buddy_skip == curr && lead <= (s64)to_vruntime(wakeup_granularity_ns * factor, curr);

		if ((!best && !head) || (lead > 0 && !yields)) {
			best = curr;
			first = curr->vruntime;
			head = false;
		}
	}
	c->chosen = best;
	buddy = q->buddy_next;
	if (!waits(buddy, c->round) || !is_fair_enough(buddy, first))
		buddy = q->buddy_last;
	if (!waits(buddy, c->round) || !is_fair_enough(buddy, first))
		return head;
	c->chosen = buddy;
	if (buddy->mine)
		return false;
	c->want = (fair_task_t *)buddy;
	return true;
}

/*
 * Picks from the root down. Returns a DSQ or PICK_*. A cgroup may be empty because its only task is
 * on its way between CPUs. The walk marks such a cgroup and begins anew, up to a limit; then
 * fair_dispatch() looks into every DSQ.
 */
__weak u64 pick(s32 cpu, bool prev_runs)
{
	fair_cpu_t *c = cpu_at(cpu);
	u32 tries;

	c->want = NULL;
	for (tries = 0; tries < MAX_DEPTH * 2 && can_loop; tries++) {
		fair_rq_t *q = c->root;
		bool keep = prev_runs && c->curr;

		while (q && can_loop) {
			fair_entity_t *se;

			c->level_of = q;
			if (choose(cpu, keep))
				return q->dsq;
			se = c->chosen;
			if (!se) {
				if (!q->depth)
					return PICK_NONE;
				q->se.skip_round = c->round;
				break;
			}
			if (!se->mine)
				return PICK_PREV;
			keep = keep && q->curr == se;
			q = se->mine;
		}
	}
	return PICK_NONE;
}

#endif
