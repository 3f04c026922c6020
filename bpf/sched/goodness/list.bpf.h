/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A queue's list of waiting tasks, and the scan for the best of them, under the queue's lock.
 *
 * Owns: the list. Does not: move tasks. Waiting tasks are in the queue's DSQ, so that the kernel
 * knows where they are, and the CPU takes the task that a scan found from that DSQ. This fails if
 * the task has left the DSQ since the scan, or if it is still on its way into the DSQ. In the second
 * case `list_again` puts the task into the list again.
 */
#pragma once
#include "goodness.bpf.h"

/*
 * Links a slot, with the queue's lock held. Woken tasks go to the front, as in 2002: of tasks with
 * equal goodness the first in the list wins.
 */
static __always_inline void link_slot(struct queue *q, struct slot *s, u32 idx, u32 queue, bool first)
{
	if (__sync_val_compare_and_swap(&s->listed, 0, 1))
		return;
	s->linked_in = queue;
	s->prev = first ? NO_SLOT : q->tail;
	s->next = first ? q->head : NO_SLOT;
	if (s->prev)
		slot_at(s->prev)->next = idx;
	else
		q->head = idx;
	if (s->next)
		slot_at(s->next)->prev = idx;
	else
		q->tail = idx;
	q->nr++;
}

/* Unlinks a slot, with the lock held of the queue whose list the slot is in. */
static __always_inline void unlink_slot(struct queue *q, struct slot *s)
{
	if (s->prev)
		slot_at(s->prev)->next = s->next;
	else
		q->head = s->next;
	if (s->next)
		slot_at(s->next)->prev = s->prev;
	else
		q->tail = s->prev;
	q->nr--;
	__sync_lock_test_and_set(&s->listed, 0);
}

static __always_inline struct queue *queue_at(u32 queue)
{
	return bpf_map_lookup_elem(&queues, &queue);
}

/* Sets whether the task waits, and whether it is reserved. Updates nr_waiting. */
static __always_inline void set_waiting(struct slot *s, enum waiting waiting)
{
	u32 old = __sync_lock_test_and_set(&s->waiting, waiting);

	if ((old == WAITING) != (waiting == WAITING))
		__sync_fetch_and_add(&nr_waiting, waiting == WAITING ? 1 : -1);
}

/* Ends the task's reservation, so that any CPU may take the task. */
static __always_inline void claim_ends(struct slot *s)
{
	if (__sync_val_compare_and_swap(&s->waiting, WAITING_CLAIMED, WAITING) == WAITING_CLAIMED)
		__sync_fetch_and_add(&nr_waiting, 1);
}

/* Notes that the task begins to wait, and links its slot into the queue's list. */
static void list_add(struct slot *s, u32 idx, u32 queue, bool first, bool claimed)
{
	struct queue *q = queue_at(queue);

	if (!q)
		return;
	belong_to(s, queue);
	if (claimed)
		s->claimed_ns = scx_bpf_now();
	set_waiting(s, claimed ? WAITING_CLAIMED : WAITING);
	bpf_spin_lock(&q->lock);
	link_slot(q, s, idx, queue, first);
	bpf_spin_unlock(&q->lock);
}

/*
 * Notes that the task no longer waits, and unlinks its slot. Mostly a pick has just unlinked the
 * slot, and no lock is needed. If list_again() links the slot at the same time, either this
 * function sees it listed, or list_again() sees that the task does not wait.
 */
static void list_del(struct slot *s)
{
	struct queue *q;
	u32 queue;

	if (READ_ONCE(s->waiting))
		set_waiting(s, NOT_WAITING);
	if (!READ_ONCE(s->listed))
		return;
	queue = READ_ONCE(s->linked_in);
	q = queue_at(queue);
	if (!q)
		return;
	bpf_spin_lock(&q->lock);
	if (s->listed && s->linked_in == queue)
		unlink_slot(q, s);
	bpf_spin_unlock(&q->lock);
}

/*
 * Links a slot again after a failed pick. Returns true if the task still waits: it is on its way
 * into the DSQ.
 */
static bool list_again(struct slot *s, u32 idx)
{
	u32 queue = READ_ONCE(s->queue);
	struct queue *q = queue_at(queue);

	if (!q || !READ_ONCE(s->waiting))
		return false;
	bpf_spin_lock(&q->lock);
	link_slot(q, s, idx, queue, false);
	if (!READ_ONCE(s->waiting) && s->linked_in == queue)
		unlink_slot(q, s);
	bpf_spin_unlock(&q->lock);
	return READ_ONCE(s->waiting);
}

struct scan {
	s32 cpu;	/* CPU that scans */
	s32 best;	/* goodness of the best task so far, which the next one must beat */
	u32 slot;	/* best slot; NO_SLOT: none was better */
	u32 seen;
	u32 unspent;	/* tasks with ticks left that this CPU may not take */
	u32 own;	/* whether the queue is this CPU's own */
	u64 mm;
	u64 now;
};

/*
 * Whether a task is reserved for the idle CPU that was chosen for it. If a faster CPU took the
 * task, the chosen one would find nothing, and two tasks that wake each other would go round the
 * CPUs for ever. A reservation ends when the chosen CPU has looked, or after CLAIM_NS.
 */
static __always_inline bool is_claimed(struct slot *s, const struct scan *scan)
{
	if (mode != GOODNESS_MODE_HAMQ || READ_ONCE(s->waiting) != WAITING_CLAIMED)
		return false;
	if (!scan->own && scan->now - s->claimed_ns < CLAIM_NS)
		return true;
	claim_ends(s);
	return false;
}

/* Scans a queue's whole list for the best task, with the queue's lock held. */
static __always_inline void scan_list(struct queue *q, struct scan *scan)
{
	u32 idx = q->head, i;

	bpf_for(i, 0, MAX_TASKS) {
		struct slot *s;
		s32 weight;

		if (!idx)
			break;
		s = slot_at(idx);
		scan->seen++;
		catch_up(s);
		if (!is_claimed(s, scan) && may_run_on(s, scan->cpu)) {
			weight = goodness(s, scan->cpu, scan->mm);
			if (weight > scan->best) {
				scan->best = weight;
				scan->slot = idx;
			}
		} else if (s->counter > 0) {
			scan->unspent++;
		}
		idx = s->next;
	}
}

/*
 * Whether a recalculation is due: all tasks that this CPU may take are spent. While a task with
 * ticks left waits for another CPU there must be no recalculation: it would renew the spent tasks
 * here again and again, and they would go before that task for ever.
 */
static __always_inline bool all_spent(const struct scan *scan)
{
	return !scan->best && !scan->unspent;
}

/*
 * Finds the queue's best task, and takes it off the list if `take`. Returns its goodness, or
 * `scan->best` unchanged if no task of the queue is better. The function is global, as its callers
 * are, so that the verifier walks through it once.
 */
__weak s32 scan_queue(u32 queue, struct scan *scan, bool take)
{
	struct queue *q = queue_at(queue);

	if (!q || !scan)
		return 0;
	scan->own = queue == queue_of(scan->cpu);
	bpf_spin_lock(&q->lock);
	scan_list(q, scan);
	if (take && scan->slot && !all_spent(scan))
		unlink_slot(q, slot_at(scan->slot));
	bpf_spin_unlock(&q->lock);
	return scan->best;
}
