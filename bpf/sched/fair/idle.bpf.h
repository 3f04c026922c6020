/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Idle CPUs: a CPU without work takes a task that waits on another CPU, and busy CPUs ask idle ones
 * to do so.
 *
 * A CPU that becomes idle looks through its levels from near to far, if their span has a CPU with
 * more than one task, and as long as a look takes less than the CPU is idle on average. At each
 * level it takes a task of the CPU with the most load. An idle CPU has no ticks, so at each tick a
 * CPU with n tasks asks up to n - 1 idle CPUs (at most ASKS) on which one of its waiting tasks may
 * run.
 *
 * While a task waits that may run on an idle CPU, that CPU therefore stays idle for a tick at most,
 * and one more for each ASKS tasks that wait on one CPU. With load=pelt an idle CPU does not take a
 * task that would make it, with its own sleepers, busier than the CPU that has the task, unless
 * that CPU is short of time. This adds SHORT_OF_TIME_NS to the bound.
 *
 * Models: idle_balance(), nohz_kick_needed() of Linux 3.2. Differs: 3.2 compared groups by load
 * here, too, and gave up if the CPU was idle for less than migration_cost_ns on average. It neither
 * measured a look (as 3.12 did) nor knew that there was nothing to take (as 3.19 did). In 3.2 CPUs
 * therefore stayed idle because of weights and affinities.
 */
#ifndef FAIR_IDLE_BPF_H
#define FAIR_IDLE_BPF_H

#include "balance.bpf.h"

#define ASKS		8	/* idle CPUs that a CPU asks at a tick, at most */
#define ASK_LOOKS	64	/* waiting tasks for which a CPU looks for an idle CPU at a
				 * tick, at most */
#define STEAL_LOOKS	4096	/* most tasks of one CPU that an idle CPU tries if it was asked to
				 * look; if it has just become idle, it tries nr_migrate */
#define QUICK_REDOS	2	/* most CPUs of a level that a CPU tries if it has just become
				 * idle; if it was asked to look, it tries REDOS */

/*
 * load=pelt: a CPU that has had work for this long without a break (two half-lives) is short of
 * time, whatever the weights are. After this time, less than a quarter of the earlier load still
 * counts.
 */
#define SHORT_OF_TIME_NS	(2 * (PELT_HALF << PELT_PERIOD_SHIFT))

/* ---- taking ---- */

static __always_inline bool is_short_of_time(fair_cpu_t *c, u64 now)
{
	return !c->idle_at && (s64)(now - c->busy_since) > (s64)SHORT_OF_TIME_NS;
}

/*
 * Returns the load that an idle CPU may take from another one, without limit if load=window or the
 * other CPU is short of time. Otherwise sleepers of this CPU may be back soon, so after the move
 * this CPU's load `here` must stay within tolerance of the other's load `there`.
 */
static __always_inline u64 spare_load(u32 level, u64 here, fair_cpu_t *from, u64 there, u64 now)
{
	u64 pct = imbalance_pct(level);

	if (!is_pelt() || is_short_of_time(from, now))
		return ~0ULL >> 1;
	here *= 100;
	there *= pct;
	return there > here ? (there - here) / (100 + pct) : 0;
}

/*
 * Returns the CPU with the most load of those with a task to spare. Looks at the CPUs of the
 * level's span that the level below does not cover.
 */
__weak s32 richest_cpu(s32 cpu, u32 level, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu), *at;
	u64 most = 0, power = CPU_POWER, too_little = 0;
	u32 i, first = 0, end = 0, span_end;
	s32 best = NO_CPU;

	if (level >= NR_LEVELS)
		return NO_CPU;
	if (level) {
		first = c->level[level - 1].first;
		end = c->level[level - 1].end;
	}
	if (is_pelt())
		too_little = 100 * cpu_load_now(c, now) / imbalance_pct(level);
	at = c->level[level].from;
	span_end = c->level[level].end;
	for (i = c->level[level].first; i < span_end && can_loop; i++) {
		fair_cpu_t *from = at;
		u64 load;

		at = at->next;
		if (from->root->h_nr < 2)
			continue;
		/*
		 * The load as of the last update rules out most CPUs without an update. The present
		 * load is not larger, because the load of a CPU's sleepers only decays.
		 */
		load = cpu_load_then(from);
		if (load <= too_little && !is_short_of_time(from, now))
			continue;
		if (best != NO_CPU && load * power <= most * from->power)
			continue;
		if ((i >= first && i < end) || !from->online || from->skipped_by == c->balance.pass)
			continue;
		if (is_pelt()) {
			load = cpu_load_now(from, now);
			if ((load <= too_little && !is_short_of_time(from, now)) ||
			    (best != NO_CPU && load * power <= most * from->power))
				continue;
		}
		most = load;
		power = from->power;
		best = from->root->cpu;
	}
	return best;
}

static bool take_from(s32 cpu, s32 from, u32 level, bool asked, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu), *there = cpu_at(from);
	pull_t *pull = &c->pull;

	pull->from = from;
	pull->to = cpu;
	/* Half of the spare load, because may_pull() accepts tasks of up to twice `imbalance`. */
	pull->imbalance = spare_load(level, cpu_load_now(c, now), there, cpu_load_now(there, now), now) / 2;
	pull->now = now;
	pull->level = level;
	pull->tries = asked ? STEAL_LOOKS : nr_migrate;
	pull->only = NULL;
	pull->gang = ROOT_GROUP;
	pull->take_hot = 1;
	return pull_best(cpu);
}

/* Takes a waiting task from the level's span, leaving out CPUs without a suitable task. */
__weak bool take_at(s32 cpu, u32 level, bool asked, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	u32 tries;

	c->balance.pass = (u64)cpu << 32 | ++c->passes;
	bpf_for(tries, 0, asked ? REDOS : QUICK_REDOS) {
		s32 from = richest_cpu(cpu, level, now);

		if (from == NO_CPU)
			break;
		if (take_from(cpu, from, level, asked, now))
			return true;
		cpu_at(from)->skipped_by = c->balance.pass;
	}
	return false;
}

/*
 * Whether a newly idle CPU should look at a level: a CPU there has more than one task, and the CPU
 * is idle for longer than a look takes, on average.
 */
static __always_inline bool may_pay(fair_cpu_t *c, fair_level_t *at, u32 level)
{
	return span_at(at, level)->nr_over && c->avg_idle >= at->cost;
}

/* Takes a task from one level if it can, and updates the level's average cost of such a search. */
static bool look_at(s32 cpu, u32 level, bool asked, u64 now)
{
	fair_level_t *at = &cpu_at(cpu)->level[level & 3];
	u64 began = bpf_ktime_get_ns();
	bool found = take_at(cpu, level, asked, now);
	s64 took = bpf_ktime_get_ns() - began;

	at->cost += (took - (s64)at->cost) / 8;
	return found;
}

/* Asks for a running task that shares a core with another, because no waiting task may come. */
static void balance_running(s32 cpu, u64 now)
{
	u32 level;

	bpf_for(level, 0, NR_LEVELS)
		balance_level(cpu, level, BALANCE_IDLE, now);
}

/* Finds a task for a CPU without work, from near levels to far ones. Returns true if one came. */
__weak bool balance_idle(s32 cpu, u64 now, bool asked)
{
	fair_cpu_t *c = cpu_at(cpu);
	u32 level;

	count(balance_newidle);
	tick_load(c, now);
	bpf_for(level, 0, NR_LEVELS) {
		fair_level_t *at = &c->level[level];

		if (!is_compared(at) || (!asked && !may_pay(c, at, level)))
			continue;
		if (!look_at(cpu, level, asked, now))
			continue;
		count(migrate_newidle);
		return true;
	}
	if (asked)
		balance_running(cpu, now);
	return false;
}

/* ---- asking ---- */

static __always_inline void ask(s32 idle)
{
	cpu_at(idle)->asked = 1;
	kick(idle, SCX_KICK_IDLE);
}

/* Asks an idle CPU that may run the task, if there is one, preferably on an idle core. */
static __always_inline bool ask_for(struct task_struct *p)
{
	s32 idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, SCX_PICK_IDLE_CORE);

	if (idle < 0)
		idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (idle < 0)
		return false;
	ask(idle);
	return true;
}

/* Asks idle CPUs to take the tasks of a DSQ, within the limits pull->tries and pull->asks. */
__weak int ask_for_queue(s32 cpu, u64 dsq)
{
	pull_t *pull = &cpu_at(cpu)->pull;
	struct task_struct *p;

	bpf_for_each(scx_dsq, p, dsq, 0) {
		if (!pull->tries || !pull->asks)
			break;
		pull->tries--;
		if (is_migration_disabled(p))
			continue;
		if (ask_for(p))
			pull->asks--;
		else if (p->nr_cpus_allowed >= (int)nr_cpus)
			pull->asks = 0;
	}
	return 0;
}

__weak int ask_for_waiting(s32 cpu)
{
	fair_cpu_t *c = cpu_at(cpu);
	pull_t *pull = &c->pull;
	fair_rq_t *q = c->waiting;
	u32 i;

	pull->tries = ASK_LOOKS;
	pull->asks = min_u64(c->root->h_nr - 1, ASKS);
	bpf_for(i, 0, nr_groups) {
		if (!q || !pull->tries || !pull->asks)
			break;
		if (!is_held(q))
			ask_for_queue(cpu, q->dsq);
		q = q->wait_next;
	}
	return 0;
}

/* Whether another thread of the core runs a task. */
static __always_inline bool shares_core(s32 cpu)
{
	fair_level_t *at = &cpu_at(cpu)->level[0];
	u32 i;

	bpf_for(i, at->first, at->end) {
		u32 other = nth_cpu(i);

		if (other != (u32)cpu && cpu_at(other)->root->h_nr)
			return true;
	}
	return false;
}

/*
 * At a tick: asks idle CPUs to take waiting tasks. If none waits and the running task shares its
 * core with another, asks an idle core to take it.
 */
static __noinline int ask_idle_cpus(s32 cpu, struct task_struct *p)
{
	fair_cpu_t *c = cpu_at(cpu);
	const struct cpumask *idle;
	bool none;
	s32 core;

	if (!p || (c->root->h_nr < 2 && (!is_compared(&c->level[0]) || !shares_core(cpu))))
		return 0;
	idle = scx_bpf_get_idle_cpumask();
	none = bpf_cpumask_empty(idle);
	scx_bpf_put_idle_cpumask(idle);
	if (none)
		return 0;
	if (c->root->h_nr > 1)
		return ask_for_waiting(cpu);
	core = scx_bpf_pick_idle_cpu(p->cpus_ptr, SCX_PICK_IDLE_CORE);
	if (core >= 0)
		ask(core);
	return 0;
}

#endif
