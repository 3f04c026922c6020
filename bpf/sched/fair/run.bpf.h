/* SPDX-License-Identifier: GPL-2.0-only */
/* Steps of ops.dispatch(). Each step finds a task to run, or leaves that to the next step. */
#ifndef FAIR_RUN_BPF_H
#define FAIR_RUN_BPF_H

#include "entity.bpf.h"
#include "group.bpf.h"
#include "balance.bpf.h"
#include "preferred.bpf.h"

/* Slice that fair gives the kernel. A tick ends each turn before this slice runs out. */
#define SLICE_NS	(100 * NSEC_PER_MSEC)

/*
 * Sends the task that ran to the CPU `push_to`. fair_enqueue() calls this after the dispatch, when
 * the kernel puts the task back. Returns false if the task stays.
 */
static bool push_task(fair_cpu_t *c, struct task_struct *p, fair_task_t *t, u64 enq_flags, u64 now)
{
	s32 to = c->push_to;
	bool meant;

	if (to == NO_CPU || t->fresh)
		return false;
	c->push_to = NO_CPU;
	if (!may_run_on(p, to) || is_migration_disabled(p) || !cpu_at(to)->online) {
		numa_note_pinned(c, t, now);
		return false;
	}
	meant = numa_on() && c->push_proc;
	if (numa_on() && !numa_lets_push(c, t, to, now))
		return false;
	if (prefers_nodes() && c->push_pid && c->push_pid != t->pid)
		return false;
	numa_note_move(t, c->root->cpu, to, now);
	/* A task in a local DSQ is not in fair's queues, so no tick would end the turn of the other. */
	if (prefers_nodes() && cpu_at(to)->root->h_nr)
		enq_flags |= SCX_ENQ_PREEMPT;
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | to, SLICE_NS, enq_flags);
	gang_sent(to, now);
	if (prefers_nodes())
		note_exchanged(c, to);
	if (meant)
		note_pushed(c, to);
	else
		count(migrate_active);
	return true;
}

/* Moves the task with that pid to the CPU: pick() wants it out of turn. */
static bool take_wanted(u64 dsq, u32 pid, s32 cpu)
{
	struct task_struct *p;
	bool taken = false;

	bpf_for_each(scx_dsq, p, dsq, 0) {
		if (p->pid != pid)
			continue;
		taken = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
		break;
	}
	return taken;
}

/* Lets the task that ran go on, with a new slice at every level. */
static bool keep_prev(fair_cpu_t *c, struct task_struct *prev)
{
	struct fair_lock *l = lock_of(c->root->cpu);

	if (!l || !c->curr)
		return false;
	bpf_spin_lock(&l->lock);
	repick_curr(c);
	bpf_spin_unlock(&l->lock);
	gang_starts(c, c->curr);
	scx_bpf_task_set_slice(prev, SLICE_NS);
	count(picks_prev);
	return true;
}

enum { RUN_NOTHING, RUN_FOUND, RUN_AGAIN };

/*
 * Picks a task and takes it, or lets prev go on. Returns RUN_AGAIN if the task was gone when it was
 * to be taken.
 */
static __noinline int try_own(s32 cpu, struct task_struct *prev, bool prev_runs)
{
	fair_cpu_t *c = cpu_at(cpu);
	u64 dsq = pick(cpu, prev_runs);
	fair_task_t *want = c->want;

	if (dsq == PICK_NONE)
		return RUN_NOTHING;
	if (dsq == PICK_PREV)
		return prev && keep_prev(c, prev) ? RUN_FOUND : RUN_NOTHING;
	if (want && take_wanted(dsq, want->pid, cpu)) {
		count(picks_buddy);
		return RUN_FOUND;
	}
	return scx_bpf_dsq_move_to_local(dsq, 0) ? RUN_FOUND : RUN_AGAIN;
}

/*
 * Whether only tasks of the root's queue wait, and none is to go out of turn. Then the order of the
 * queue's DSQ is the right one.
 */
static __always_inline bool has_only_tasks(fair_rq_t *q)
{
	return !q->first && !q->buddy_next && !q->buddy_last && !q->buddy_gang;
}

/* Runs a task of the CPU's own queues: moves one from a DSQ, or lets the task that ran go on. */
static __noinline int run_own(s32 cpu, struct task_struct *prev, bool prev_runs)
{
	fair_rq_t *root = cpu_at(cpu)->root;
	int found = RUN_AGAIN;
	u32 tries;

	if (!prev_runs && has_only_tasks(root))
		return scx_bpf_dsq_move_to_local(root->dsq, 0);
	for (tries = 0; tries < 8 && found == RUN_AGAIN && can_loop; tries++)
		found = try_own(cpu, prev, prev_runs);
	return found == RUN_FOUND;
}

/*
 * Charges the task that ran, and throttles those of its cgroups that have no time left. The task
 * may go on after this, unless `stops`.
 */
static __noinline void settle_prev(fair_cpu_t *c, u64 sum_exec, bool stops, u64 now)
{
	struct fair_lock *l = lock_of(c->root->cpu);
	bool throttled;

	if (!l || !c->curr)
		return;
	bpf_spin_lock(&l->lock);
	charge_exact(c, sum_exec, now);
	throttled = throttle_path(c->curr->se.q, now);
	if (stops)
		put_curr(c, false, now);
	bpf_spin_unlock(&l->lock);
	if (throttled)
		count(throttles);
}

/*
 * Largest number of waiting tasks that one call of rescue() looks at. The next call begins at the
 * front of the DSQs again, when the tasks there have run.
 */
#define RESCUE_LOOKS	4096

/* Takes the first task of a DSQ that has waited for rescue_ns. */
__weak bool rescue_from(u64 dsq, s32 cpu, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	struct task_struct *p;
	bool moved = false;

	bpf_for_each(scx_dsq, p, dsq, 0) {
		fair_task_t *t = task_of(p);

		if (!c->pull.tries)
			break;
		c->pull.tries--;
		if (!t || (s64)(now - t->waits_since) < (s64)rescue_ns)
			continue;
		moved = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
		if (moved)
			break;
	}
	return moved;
}

/*
 * Fairness does not bound waits under very small weights and limits, but the kernel's watchdog
 * ejects a scheduler under which a task waits for too long. From time to time a CPU therefore runs
 * each task once that has waited for rescue_ns, and charges it.
 */
__weak bool rescue(s32 cpu, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	u32 i;

	c->pull.tries = RESCUE_LOOKS;
	bpf_for(i, 0, nr_groups) {
		fair_rq_t *q = rq_at(i, cpu);

		if (scx_bpf_dsq_nr_queued(q->dsq) <= 0 || !rescue_from(q->dsq, cpu, now))
			continue;
		count(rescues);
		return true;
	}
	c->rescue_at = now + rescue_ns / 8;
	return false;
}

static __always_inline bool rescue_is_due(fair_cpu_t *c, u64 now)
{
	return rescue_ns && (s64)(now - c->rescue_at) >= 0;
}

/*
 * Sends a waiting task of a gang that has several tasks here to a CPU without a task of the gang.
 */
__weak bool spread(s32 cpu, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	pull_t *pull = &c->pull;

	pull->gang = c->spread_gang;
	pull->from = cpu;
	pull->to = c->spread_to;
	pull->imbalance = ~0ULL;
	pull->now = now;
	pull->level = 0;
	pull->tries = nr_migrate;
	pull->only = NULL;
	pull->helps = 0;
	pull->take_hot = 1;
	c->spread_gang = ROOT_GROUP;
	if (!pull_task(cpu))
		return false;
	gang_sent(pull->to, now);
	count(gang_spread);
	return true;
}

/* Runs a task that pick() misses, because the task's queue is not on its parent's queue. */
__weak bool run_stray(s32 cpu)
{
	u32 i;

	bpf_for(i, 0, nr_groups) {
		fair_rq_t *q = rq_at(i, cpu);

		if (is_held(q) || scx_bpf_dsq_nr_queued(q->dsq) <= 0 || !scx_bpf_dsq_move_to_local(q->dsq, 0))
			continue;
		count(picks_stray);
		return true;
	}
	return false;
}

#endif
