/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Balancing by load: which task comes from the busiest CPU, and when a busy CPU looks for one.
 *
 * Models: load_balance() and rebalance_domains() of Linux 3.2. Differs: a pass moves one task,
 * which runs next, because a task reaches another CPU only through that CPU's local queue. If more
 * load should move, the pass is repeated at the next dispatch. A tick only marks the levels (core,
 * LLC, node, machine) that are due; the dispatch that the tick asks for balances them.
 */
#ifndef FAIR_BALANCE_BPF_H
#define FAIR_BALANCE_BPF_H

#include "entity.bpf.h"
#include "wake.bpf.h"
#include "spread.bpf.h"
#include "busiest.bpf.h"

#define REDOS		16	/* largest number of CPUs that one pass leaves out because they have
				 * no suitable task */

/* Failed passes after which a cache-hot task is moved; after two more, the running task. */
static __always_inline u32 nice_tries(u32 level)
{
	return level < 2 ? level : level - 1;
}

/* ---- moving ---- */

/* Whether the task ran so lately that its cache is worth more than the balance. */
static __always_inline bool is_hot(fair_task_t *t, u64 now)
{
	return (s64)(now - t->stopped_at) < (s64)migration_cost_ns;
}

static __always_inline bool may_pull(struct task_struct *p, fair_task_t *t, pull_t *pull)
{
	if (!t || !may_run_on(p, pull->to) || is_migration_disabled(p))
		return false;
	pull->pinned = 0;
	if (pull->gang && gang_of(t->group) != pull->gang)
		return false;
	if (!gang_lets(t, pull->from, pull->to))
		return false;
	if (!pull->take_hot && is_hot(t, pull->now) && !comes_to_preferred(p, pull))
		return false;
	if (numa_on() && !numa_lets(t, pull))
		return false;
	if (prefers_nodes() && !preferred_lets(p, t, pull))
		return false;
	pull->load = task_load(t);
	return pull->load / 2 <= pull->imbalance;
}

/* Moves the first task of a DSQ, by vruntime, that may_pull() accepts to the CPU `pull->to`. */
__weak bool pull_from_queue(u64 dsq, s32 cpu)
{
	pull_t *pull = &cpu_at(cpu)->pull;
	struct task_struct *p;
	bool moved = false;

	bpf_for_each(scx_dsq, p, dsq, 0) {
		fair_task_t *t = task_of(p);

		if (!pull->tries)
			break;
		pull->tries--;
		if (!may_pull(p, t, pull))
			continue;
		if (scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | pull->to, 0)) {
			numa_note_move(t, pull->from, pull->to, pull->now);
			moved = true;
			break;
		}
	}
	return moved;
}

/*
 * Moves a waiting task from the CPU `pull->from` to `pull->to`, under the conditions in `pull`. The
 * search may overlook a task if the list of queues on `pull->from` changes in the meantime.
 */
__weak bool pull_task(s32 cpu)
{
	pull_t *pull = &cpu_at(cpu)->pull;
	fair_rq_t *q = cpu_at(pull->from)->waiting;
	u32 i;

	bpf_for(i, 0, nr_groups) {
		fair_rq_t *next;

		if (!q || !pull->tries)
			break;
		next = q->wait_next;
		if (q->cpu == (u32)pull->from && !is_held(q) && pull_from_queue(q->dsq, cpu))
			return true;
		q = next;
	}
	return false;
}

/*
 * Takes a waiting task from the CPU `pull->from`. If that CPU is on another node, a first search
 * takes only a task whose process the move does not scatter; a second one takes any that
 * numa_lets() allows.
 */
static bool pull_best(s32 cpu)
{
	pull_t *pull = &cpu_at(cpu)->pull;

	if (!numa_on() || node_of(pull->from) == node_of(pull->to))
		return pull_task(cpu);
	pull->helps = 1;
	pull->full = !numa_has_room(node_of(pull->to), 0, 1, pull->now);
	if (pull_task(cpu)) {
		count(numa_first_pass);
		return true;
	}
	pull->helps = 0;
	pull->tries = nr_migrate;
	if (!pull_task(cpu))
		return false;
	count(numa_second_pass);
	return true;
}

/* Whether the task that runs on one CPU may run on another. */
static __always_inline bool curr_may_go(s32 from, s32 to)
{
	struct task_struct *p = scx_bpf_cpu_curr(from);

	return p && may_run_on(p, to) && !is_migration_disabled(p);
}

/*
 * Preempts the task on `from`. fair_enqueue() then sends it to `to` if it is of process `only`
 * (NULL: of any).
 */
static void push_from(s32 from, s32 to, numa_proc_t *only)
{
	fair_cpu_t *c = cpu_at(from);

	if (!c->curr || c->push_to != NO_CPU || !gang_lets(c->curr, from, to))
		return;
	if (!only && numa_on() && !numa_lets_go(c->curr, from, to))
		return;
	c->push_proc = only;
	apart();
	c->push_swap = SWAP_NONE;
	c->push_pid = 0;
	c->swap_pid = 0;
	apart();
	c->push_to = to;
	kick(from, SCX_KICK_PREEMPT);
}

/* ---- intervals ---- */

/*
 * Shortest interval between two balancing passes of a busy CPU, ms. It applies after a move; each
 * pass that finds no CPU to take a task from doubles the interval.
 */
static __always_inline u32 shortest_interval(u32 level)
{
	return level < 3 ? 1 * 64 : 8 * 32;
}

static __always_inline u32 longest_interval(u32 level)
{
	u32 ms = !level ? 2 * 64 : level < 3 ? 4 * 64 : 32 * 32;

	return min_u64(ms, 100 * nr_cpus);
}

static void note_balanced(fair_level_t *at, u32 level)
{
	at->failed = 0;
	apart();
	at->interval = min_u64(2 * max_u64(at->interval, shortest_interval(level)), longest_interval(level));
}

/* At a tick: notes which levels are due for balancing. Returns true if any is. */
static __always_inline bool balance_is_due(fair_cpu_t *c, u64 now)
{
	u32 level;

	for (level = 0; level < NR_LEVELS && can_loop; level++) {
		fair_level_t *at = &c->level[level];
		u64 ms;

		if (!is_compared(at))
			continue;
		ms = max_u64(at->interval, shortest_interval(level));
		if (now - at->last < ms * NSEC_PER_MSEC)
			continue;
		at->last = now;
		c->due |= 1 << level;
	}
	return c->due;
}

/* ---- a level ---- */

enum { PULLED, PULL_FAILED, PULL_PINNED };

/* Counts a failed pass. After several failed passes, asks for the task that runs on `from`. */
static int push_if_failed(fair_cpu_t *c, fair_level_t *at, s32 from)
{
	balance_t *b = &c->balance;
	u32 tries = nice_tries(b->level);

	count(balance_failed);
	if (++at->failed <= tries + 2)
		return PULL_FAILED;
	if (!curr_may_go(from, b->cpu))
		return PULL_PINNED;
	push_from(from, b->cpu, NULL);
	at->failed = tries + 1;
	return PULL_FAILED;
}

/* Takes a task from `from`, the busiest CPU. */
static int pull_from(fair_cpu_t *c, s32 from)
{
	balance_t *b = &c->balance;
	pull_t *pull = &c->pull;
	fair_level_t *at = &c->level[b->level];

	pull->from = from;
	pull->to = b->cpu;
	pull->imbalance = b->imbalance;
	pull->now = b->now;
	pull->level = b->level;
	pull->tries = nr_migrate;
	pull->only = NULL;
	pull->gang = ROOT_GROUP;
	pull->take_hot = at->failed > nice_tries(b->level) || b->kind == BALANCE_IDLE;
	if (cpu_at(from)->root->h_nr < 2)
		return push_if_failed(c, at, from);
	pull->pinned = 1;
	if (pull_best(b->cpu)) {
		at->failed = 0;
		apart();
		at->interval = 0;
		/*
		 * If the imbalance is at least twice the load that moved, as much again should
		 * move.
		 */
		c->repeats = pull->imbalance >= 2 * pull->load;
		return PULLED;
	}
	return pull->pinned ? PULL_PINNED : push_if_failed(c, at, from);
}

/*
 * Returns the CPU to take a task from at this level. NO_CPU: the level is balanced, or it is
 * another CPU's turn to balance.
 */
static __noinline s32 find_busiest(s32 cpu, u32 level, int kind, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	balance_t *b = &c->balance;

	zero_words((u64 __arena *)b, sizeof(*b));
	b->cpu = cpu;
	b->level = level;
	b->kind = kind;
	b->now = now;
	b->pass = (u64)cpu << 32 | c->passes;
	sum_groups(cpu);
	/* One CPU balances for a group: its first idle CPU, else its first CPU. */
	if (kind == BALANCE_BUSY && cpu != (b->first_idle != NO_CPU ? b->first_idle : b->first))
		return NO_CPU;
	b->imbalance = imbalance_of(cpu);
	return b->imbalance ? busiest_cpu(cpu) : NO_CPU;
}

/* Balances one level by moving one task here. Leaves out CPUs whose tasks may not run here. */
__weak bool balance_level(s32 cpu, u32 level, int kind, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	u32 tries;

	if (level >= NR_LEVELS || !is_compared(&c->level[level]))
		return false;
	c->passes++;
	c->repeats = 0;
	bpf_for(tries, 0, REDOS) {
		s32 from = find_busiest(cpu, level, kind, now);
		int how;

		if (from == NO_CPU)
			break;
		how = pull_from(c, from);
		if (how != PULL_PINNED)
			return how == PULLED;
		cpu_at(from)->skipped_by = c->balance.pass;
	}
	note_balanced(&c->level[level], level);
	return false;
}

/* In a dispatch: balances the levels that are due. Returns true if a task came. */
__weak bool balance_due(s32 cpu, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	u32 due = c->due, level;

	c->due = 0;
	bpf_for(level, 0, NR_LEVELS) {
		if (!(due & 1 << level))
			continue;
		count(balance_periodic);
		if (!balance_level(cpu, level, BALANCE_BUSY, now))
			continue;
		count(migrate_periodic);
		c->due = due & ~((2 << level) - 1);
		if (c->repeats)
			c->due |= 1 << level;
		return true;
	}
	return false;
}

#endif
