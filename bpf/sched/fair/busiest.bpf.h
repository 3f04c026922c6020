/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The comparison of groups of CPUs, such as the cores of an LLC: which CPU of a level's span has
 * too much load, and how much load should move to the CPU that balances.
 *
 * Owns: the load of CPUs and groups, and the comparison. Does not: move tasks (balance.bpf.h).
 * Models: update_cpu_load(), find_busiest_group(), calculate_imbalance(), fix_small_imbalance() and
 * find_busiest_queue() of Linux 3.2, with 3.3's test for a group that is uneven in itself. Differs:
 * a CPU that becomes idle compares no groups (idle.bpf.h).
 */
#ifndef FAIR_BUSIEST_BPF_H
#define FAIR_BUSIEST_BPF_H

#include "domain.bpf.h"
#include "wake.bpf.h"

static __always_inline u32 imbalance_pct(u32 level)
{
	return level ? 125 : 110;
}

/* ---- load by tick (window) ---- */

/*
 * Returns `from`, moved towards `to` by n / 2^i of their difference, but not beyond `to`. The move
 * is rounded up, so that repeated moves reach `to`.
 */
static __always_inline u64 lean(u64 from, u64 to, u64 n, u32 i)
{
	u64 way = to > from ? to - from : from - to;

	way = (way * min_u64(n, 1 << i) + (1 << i) - 1) >> i;
	return to > from ? from + way : from - way;
}

/*
 * load[i] is the CPU's average load over 2^i ticks. A missed tick counts with the present load if
 * the CPU was busy throughout (a virtual machine may lose ticks), and with no load if the CPU was
 * idle.
 */
static void tick_load(fair_cpu_t *c, u64 now)
{
	u64 tick, missed, present = c->root->weight;
	u32 i;

	if (is_pelt())
		return;
	tick = now / (NSEC_PER_SEC / (tick_hz ?: 250));
	missed = tick - c->load_at;
	if ((s64)missed <= 0)
		return;
	c->load_at = tick;
	for (i = 0; i < 5 && can_loop; i++) {
		u64 old = c->load[i];

		if (missed > 1)
			old = lean(old, c->idled ? 0 : present, missed - 1, i);
		c->load[i] = lean(old, present, 1, i);
	}
	c->idled = 0;
}

/* ---- groups ---- */

static __always_inline u64 capacity_of(u64 power)
{
	u64 capacity = (power + CPU_POWER / 2) / CPU_POWER;

	return capacity ?: 1;
}

/* Returns the load of a CPU: the present or the average one, whichever makes a move less likely. */
static __always_inline u64 balance_load(balance_t *b, fair_cpu_t *c, bool local)
{
	u64 present = cpu_load_now(c, b->now), average;

	if (is_pelt() || !b->level || !c->root->h_nr)
		return present;
	average = c->load[(b->level < NR_LEVELS - 1 ? 0 : 1) + (b->kind == BALANCE_BUSY)];
	return local ? max_u64(present, average) : min_u64(present, average);
}

/* Whether tasks should be spread over groups of several CPUs before a group gets a second task. */
static __always_inline bool prefers_sibling(balance_t *b)
{
	return b->level == 2 || (b->level == 3 && !numa_on());
}

/* Whether a group's tasks are spread so unevenly, as by affinity, that its average misleads. */
static __always_inline bool is_uneven(group_sum_t *s)
{
	return s->nr && s->max_nr > s->min_nr + 1 && s->max_load - s->min_load >= s->load / s->nr;
}

/*
 * Whether a group has more tasks than it can run, or should give one to the local group, which has
 * room.
 */
static __always_inline bool has_too_much(balance_t *b, group_sum_t *s)
{
	if (prefers_sibling(b) && b->local.has_capacity)
		return s->nr > 1;
	return s->nr > s->capacity || s->uneven;
}

static __always_inline void close_group(balance_t *b, bool is_local)
{
	group_sum_t *s = &b->sum;

	if (!s->cpus)
		return;
	s->avg = s->load * CPU_POWER / (s->power ?: 1);
	s->capacity = capacity_of(s->power);
	s->has_capacity = s->nr < s->capacity;
	s->uneven = is_uneven(s);
	b->total_load += s->load;
	b->total_power += s->power;
	if (is_local)
		copy_words((u64 __arena *)&b->local, (u64 __arena *)s, sizeof(*s));
	else if (has_too_much(b, s) && (s->avg > b->busiest.avg || !b->busiest.cpus))
		copy_words((u64 __arena *)&b->busiest, (u64 __arena *)s, sizeof(*s));
}

static __always_inline void add_cpu(balance_t *b, fair_cpu_t *c, u32 cpu, bool local)
{
	group_sum_t *s = &b->sum;
	u32 nr = c->root->h_nr;
	u64 load = balance_load(b, c, local);

	s->cpus++;
	s->load += load;
	s->power += power_of(cpu);
	s->nr += nr;
	s->idle += !nr;
	s->max_load = max_u64(s->max_load, load);
	s->min_load = s->cpus > 1 ? min_u64(s->min_load, load) : load;
	s->max_nr = max_u64(s->max_nr, nr);
	s->min_nr = s->cpus > 1 ? min_u64(s->min_nr, nr) : nr;
}

/* Sums up load, power and tasks of each group of the level's span, this CPU's group first. */
__weak int sum_groups(s32 of)
{
	fair_cpu_t *c = cpu_at(of);
	balance_t *b = &c->balance;
	u32 level = b->level, local = group_id(level, of), first, end, i, n;

	if (level >= NR_LEVELS)
		return 0;
	first = c->level[level].first;
	end = c->level[level].end;
	i = level ? c->level[level - 1].first : first;
	b->first = NO_CPU;
	b->first_idle = NO_CPU;
	bpf_for(n, first, end) {
		u32 cpu = nth_cpu(i), id = group_id(level, cpu);
		fair_cpu_t *at = cpu_at(cpu);

		if (++i == end)
			i = first;
		if (!at->online || at->skipped_by == b->pass)
			continue;
		if (id != b->sum.id || !b->sum.cpus) {
			close_group(b, b->sum.id == local);
			zero_words((u64 __arena *)&b->sum, sizeof(b->sum));
			b->sum.id = id;
		}
		add_cpu(b, at, cpu, id == local);
		if (id != local)
			continue;
		if (b->first == NO_CPU)
			b->first = cpu;
		if (b->first_idle == NO_CPU && !at->root->h_nr)
			b->first_idle = cpu;
	}
	close_group(b, b->sum.id == local);
	return 0;
}

/* ---- how much load should move ---- */

/*
 * Returns the work that a group does at the average load `load`: as much as its power allows if
 * `load` is at least the load of one task, and less in proportion below that.
 */
static __always_inline u64 done_with(group_sum_t *s, u64 per_task, u64 load)
{
	return s->power * min_u64(per_task, load) / CPU_POWER;
}

/*
 * Returns the load that should move if the imbalance is less than the load of one task. If moving
 * one task evens the groups or lets them do more work, this is the average load of the busiest
 * group's tasks, so that one task moves. Otherwise it is 0.
 */
static __noinline u64 small_imbalance(balance_t *b)
{
	group_sum_t *l, *r;
	u64 task, own, scaled, left, now, then;

	if (!b)
		return 0;
	l = &b->local;
	r = &b->busiest;
	task = r->load / (r->nr ?: 1);
	own = l->nr ? l->load / l->nr : task;
	scaled = task * CPU_POWER / (r->power ?: 1);
	if (r->avg + scaled >= l->avg + scaled * (l->nr && task > own ? 1 : 2))
		return task;
	left = r->avg > scaled ? r->avg - scaled : 0;
	now = done_with(r, task, r->avg) + done_with(l, own, l->avg);
	then = done_with(r, task, left) + done_with(l, own, l->avg + task * CPU_POWER / (l->power ?: 1));
	return then > now ? task : 0;
}

/* Returns the load that should move; 0: the groups are balanced. */
__weak u64 imbalance_of(s32 cpu)
{
	balance_t *b = &cpu_at(cpu)->balance;
	group_sum_t *l = &b->local, *r = &b->busiest;
	u64 average, above = ~0ULL, max_pull, pull;

	if (!r->cpus || !b->total_power)
		return 0;
	average = b->total_load * CPU_POWER / b->total_power;
	if (l->avg >= r->avg || l->avg >= average)
		return 0;
	if (b->kind == BALANCE_IDLE) {
		/*
		 * The groups are balanced if the busiest one has no more tasks than CPUs, and the
		 * local one at most one idle CPU more than it. At level 1, whose groups are cores,
		 * the busiest group's capacity replaces its number of CPUs, because an idle core is
		 * better than another core's second thread.
		 */
		if (l->idle <= r->idle + 1 && r->nr <= (b->level == 1 ? r->capacity : r->cpus))
			return 0;
	} else if (100 * r->avg <= imbalance_pct(b->level) * l->avg) {
		return 0;
	}
	if (r->avg < average)
		return small_imbalance(b);
	/* Limits the move, so that no CPU of the busiest group becomes idle. */
	if (!r->uneven && r->nr > r->capacity)
		above = (r->nr - r->capacity) * NICE_0_LOAD * CPU_POWER / (r->power ?: 1);
	max_pull = min_u64(r->avg - average, above);
	pull = min_u64(max_pull * r->power, (average - l->avg) * l->power) / CPU_POWER;
	return pull >= r->load / (r->nr ?: 1) ? pull : small_imbalance(b);
}

/* ---- which CPU gives a task ---- */

/*
 * Whether a CPU of the busiest group may give a task. If it has only one, the load of that one must
 * not exceed the imbalance.
 */
static __always_inline bool may_give(balance_t *b, fair_cpu_t *c, u64 load)
{
	u32 nr = c->root->h_nr;

	if (nr > 1)
		return true;
	return nr && load <= b->imbalance;
}

/* Returns the CPU with the most load of those in the busiest group that may give a task. */
__weak s32 busiest_cpu(s32 of)
{
	fair_cpu_t *c = cpu_at(of);
	balance_t *b = &c->balance;
	u32 level = b->level, i;
	s32 best = NO_CPU;
	u64 most = 0;

	if (level >= NR_LEVELS)
		return NO_CPU;
	bpf_for(i, c->level[level].first, c->level[level].end) {
		u32 cpu = nth_cpu(i);
		fair_cpu_t *at = cpu_at(cpu);
		u64 load;

		if (group_id(level, cpu) != b->busiest.id || cpu == (u32)of || !at->online || at->skipped_by == b->pass)
			continue;
		load = cpu_load_now(at, b->now);
		if (!may_give(b, at, load))
			continue;
		load = load * CPU_POWER / power_of(cpu);
		if (load > most || best == NO_CPU) {
			most = load;
			best = cpu;
		}
	}
	return best;
}

#endif
