/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Balancing: which CPU has too much, and which of its waiting tasks comes here.
 *
 * Four levels, each a span of CPUs made of groups: a core of CPUs, an LLC of cores, a node of LLCs, the machine of nodes. At each
 * the busiest group is compared with this CPU's; the task comes from the CPU with the most load in it.
 *
 * Models: load_balance(), find_busiest_group(), idle_balance() of Linux 3.x. Differs: one task is moved per pass, and it runs
 * next, because a task gets to another CPU through that CPU's local queue; a pass that leaves work is repeated at the next
 * dispatch. What a tick finds due is done by the CPU's next dispatch, which the tick asks for.
 */
#ifndef FAIR_BALANCE_BPF_H
#define FAIR_BALANCE_BPF_H

#include "entity.bpf.h"
#include "wake.bpf.h"
#include "spread.bpf.h"

#define CPU_POWER	1024
#define SMT_POWER	1178	/* of a core with several threads */
#define NICE_TRIES	3	/* failures after which a task that runs is moved */

/* ---- topology ---- */

/* The group that a CPU belongs to at a level: what it shares with its like one level below. */
static __always_inline u32 group_id(u32 level, u32 cpu)
{
	switch (level) {
	case 0: return cpu;
	case 1: return core_of(cpu);
	case 2: return llc_of(cpu);
	case 3: return node_of(cpu);
	}
	return 0;
}

static __always_inline bool same_span(u32 level, u32 a, u32 b)
{
	return group_id(level + 1, a) == group_id(level + 1, b);
}

static __always_inline u32 imbalance_pct(u32 level)
{
	return level ? 125 : 110;
}

static __always_inline u64 power_of(u32 cpu)
{
	u32 threads = core_size[cpu & (MAX_CPUS - 1)];

	return threads > 1 ? SMT_POWER / threads : CPU_POWER;
}

/* ---- load by tick (window) ---- */

/* `n` steps of 2^i from a value towards another. */
static __always_inline u64 lean(u64 from, u64 to, u64 n, u32 i)
{
	n = min_u64(n, 1 << i);
	return to > from ? from + ((to - from) * n >> i) : from - ((from - to) * n >> i);
}

/*
 * load[i] is the average over 2^i ticks of what a CPU has. Ticks that did not come had the same as this one, if the CPU was busy
 * all the time (a virtual machine may lose some), and nothing, if it was idle.
 */
static void tick_load(fair_cpu_t *c, u64 now)
{
	u64 tick = now / (NSEC_PER_SEC / (tick_hz ?: 250)), missed = tick - c->load_at, present = c->root->weight;
	u32 i;

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

/* ---- the busiest group ---- */

/* More than it can run at once: by tasks, or with pelt by their load. */
static __always_inline bool over_capacity(group_sum_t *s)
{
	u64 capacity = (s->power + CPU_POWER / 2) / CPU_POWER;

	if (is_pelt())
		return s->load > s->power;
	return s->nr > (capacity ?: 1);
}

/* What counts as a CPU's load; of its present and its average the one that makes a move less likely. */
static u64 balance_load(balance_t *b, u32 cpu, bool local)
{
	fair_cpu_t *c = cpu_at(cpu);
	u64 present = cpu_load_now(c, b->now), average;
	u32 index = b->level < 2 ? 1 : 2;

	if (is_pelt() || b->kind == BALANCE_NEWIDLE)
		return present;
	if (b->kind == BALANCE_BUSY)
		index++;
	average = c->load[index];
	return local ? max_u64(present, average) : min_u64(present, average);
}

static __always_inline void close_group(balance_t *b, bool is_local)
{
	group_sum_t *s = &b->sum;

	if (!s->cpus)
		return;
	s->avg = s->load * CPU_POWER / (s->power ?: 1);
	b->total_load += s->load;
	b->total_power += s->power;
	if (is_local)
		copy_words((u64 __arena *)&b->local, (u64 __arena *)s, sizeof(*s));
	else if (s->avg > b->busiest.avg && (over_capacity(s) || (is_pelt() && s->nr > 1)))
		copy_words((u64 __arena *)&b->busiest, (u64 __arena *)s, sizeof(*s));
}

__weak int sum_groups(s32 of)
{
	balance_t *b = &cpu_at(of)->balance;
	u32 i, level = b->level, cpu = b->cpu, local = group_id(level, cpu);

	b->first = NO_CPU;
	b->first_idle = NO_CPU;
	bpf_for(i, 0, nr_cpus) {
		u32 at = nth_cpu(i), id;
		fair_cpu_t *c = cpu_at(at);

		if (!same_span(level, at, cpu) || !c->online)
			continue;
		id = group_id(level, at);
		if (id != b->sum.id || !b->sum.cpus) {
			close_group(b, b->sum.id == local);
			zero_words((u64 __arena *)&b->sum, sizeof(b->sum));
			b->sum.id = id;
		}
		b->sum.cpus++;
		b->sum.load += balance_load(b, at, id == local);
		b->sum.power += power_of(at);
		b->sum.nr += c->root->h_nr;
		if (!c->root->h_nr)
			b->sum.idle++;
		if (id == local && b->first == NO_CPU)
			b->first = at;
		if (id == local && b->first_idle == NO_CPU && !c->root->h_nr)
			b->first_idle = at;
	}
	close_group(b, b->sum.id == local);
	return 0;
}

/* How much load should move; 0: all is well. */
__weak u64 imbalance_of(s32 cpu)
{
	balance_t *b = &cpu_at(cpu)->balance;
	int kind = b->kind;
	group_sum_t *l = &b->local, *r = &b->busiest;
	u64 average, max_pull, per_task, pull;
	bool force;

	if (!r->cpus || !b->total_power)
		return 0;
	average = b->total_load * CPU_POWER / b->total_power;
	per_task = r->load / (r->nr ?: 1);
	force = kind == BALANCE_NEWIDLE && !over_capacity(l) && over_capacity(r) && !is_pelt();
	if (!force) {
		if (l->avg >= r->avg || l->avg >= average)
			return 0;
		if (kind == BALANCE_IDLE && !is_pelt()) {
			if (l->idle <= r->idle + 1 && r->nr <= r->cpus)
				return 0;
		} else if (100 * r->avg <= imbalance_pct(b->level) * l->avg) {
			return 0;
		}
	}
	max_pull = r->avg > average ? r->avg - average : 0;
	pull = min_u64(max_pull * r->power, (average > l->avg ? average - l->avg : 0) * l->power) / CPU_POWER;
	/* Less than a task: worth it if both would be nearer to each other after it. */
	if (pull < per_task && (force || r->avg - l->avg >= per_task * CPU_POWER / (r->power ?: 1)))
		pull = per_task;
	return pull;
}

/* The CPU of the busiest group with the most load that has something to give. */
__weak s32 busiest_cpu(s32 cpu)
{
	balance_t *b = &cpu_at(cpu)->balance;
	u32 level = b->level;
	s32 best = NO_CPU;
	u64 most = 0;
	u32 i;

	bpf_for(i, 0, nr_cpus) {
		u32 at = nth_cpu(i);
		fair_cpu_t *c = cpu_at(at);
		u64 load;

		if (at == (u32)cpu || !c->online || !same_span(level, at, cpu) || group_id(level, at) != b->busiest.id || !c->root->h_nr)
			continue;
		load = balance_load(b, at, false);
		if (c->root->h_nr == 1 && load > b->imbalance)
			continue;
		load = load * CPU_POWER / power_of(at);
		if (load > most) {
			most = load;
			best = at;
		}
	}
	return best;
}

/* ---- moving ---- */

/* It ran a moment ago: its cache is worth more than the balance. */
static __always_inline bool is_hot(fair_task_t *t, u64 now)
{
	return (s64)(now - t->stopped_at) < (s64)migration_cost_ns;
}

static __always_inline bool may_pull(struct task_struct *p, fair_task_t *t, pull_t *pull)
{
	if (!t || !may_run_on(p, pull->to) || is_migration_disabled(p)) {
		pull->pinned = true;
		return false;
	}
	if (pull->gang && gang_of(t->group) != pull->gang)
		return false;
	if (!gang_lets(t, pull->from, pull->to))
		return false;
	if (!pull->take_hot && is_hot(t, pull->now))
		return false;
	if (numa_on() && !numa_lets(t, pull))
		return false;
	return task_load(t) / 2 <= pull->imbalance;
}

/* The first task of a DSQ that may come, in the order of vruntime. */
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

/* What the CPU's `pull` says. */
__weak bool pull_task(s32 cpu)
{
	pull_t *pull = &cpu_at(cpu)->pull;
	u32 i;

	bpf_for(i, 0, nr_groups) {
		fair_rq_t *q = rq_at(i, pull->from);

		if (!pull->tries)
			break;
		if (!group_at(i)->used || !q->has_head || q->throttle_depth)
			continue;
		if (pull_from_queue(q->dsq, cpu))
			return true;
	}
	return false;
}

/* Between nodes first one whose process is then more together, then any. */
static bool pull_best(s32 cpu)
{
	pull_t *pull = &cpu_at(cpu)->pull;

	if (!numa_on() || node_of(pull->from) == node_of(pull->to))
		return pull_task(cpu);
	pull->helps = 1;
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

/* The task that runs on `from` shall go to `to`, if it is of that process or that is NULL: it is preempted, and fair_enqueue() sends it. */
static void push_from(s32 from, s32 to, numa_proc_t *only)
{
	fair_cpu_t *c = cpu_at(from);

	if (!c->curr || c->push_to != NO_CPU || !gang_lets(c->curr, from, to))
		return;
	c->push_proc = only;
	apart();
	c->push_to = to;
	kick(from, SCX_KICK_PREEMPT);
}

static void note_balanced(struct fair_level __arena *at)
{
	at->failed = 0;
	if (at->interval < 1024)
		at->interval *= 2;
}

/* Found from where: looks for a task there. If there is none for several times, the one that runs has to come. */
static bool pull_from(fair_cpu_t *c, s32 from)
{
	balance_t *b = &c->balance;
	pull_t *pull = &c->pull;
	struct fair_level __arena *at = &c->level[b->level];

	pull->from = from;
	pull->to = b->cpu;
	pull->imbalance = b->imbalance;
	pull->now = b->now;
	pull->level = b->level;
	pull->tries = nr_migrate;
	pull->only = NULL;
	pull->gang = ROOT_GROUP;
	pull->take_hot = at->failed >= NICE_TRIES || b->kind == BALANCE_IDLE;
	if (cpu_at(from)->root->h_nr > 1 && pull_best(b->cpu)) {
		at->failed = 0;
		apart();
		at->interval = 0;
		return true;
	}
	count(balance_failed);
	if (b->kind != BALANCE_NEWIDLE)
		at->failed++;
	if (at->failed > NICE_TRIES + 2) {
		push_from(from, b->cpu, NULL);
		at->failed = NICE_TRIES + 1;
	}
	return false;
}

/* One level, one task. */
__weak bool balance_level(s32 cpu, u32 level, int kind, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	balance_t *b = &c->balance;
	s32 from = NO_CPU;

	if (level >= NR_LEVELS)
		return false;
	zero_words((u64 __arena *)b, sizeof(*b));
	b->cpu = cpu;
	b->level = level;
	b->kind = kind;
	b->now = now;
	sum_groups(cpu);
	/* For a group one CPU does it: the first that is idle, else the first. */
	if (kind == BALANCE_BUSY && cpu != (b->first_idle != NO_CPU ? b->first_idle : b->first))
		return false;
	b->imbalance = imbalance_of(cpu);
	if (b->imbalance)
		from = busiest_cpu(cpu);
	if (from != NO_CPU)
		return pull_from(c, from);
	note_balanced(&c->level[level]);
	return false;
}

/* This CPU has nothing. From near to far. */
__weak bool balance_newidle(s32 cpu, u64 now, bool asked)
{
	fair_cpu_t *c = cpu_at(cpu);
	u32 level;

	/* It will have something before a task is here. */
	if (!asked && c->avg_idle < migration_cost_ns)
		return false;
	count(balance_newidle);
	tick_load(c, now);
	bpf_for(level, 0, NR_LEVELS) {
		if (!balance_level(cpu, level, asked ? BALANCE_IDLE : BALANCE_NEWIDLE, now))
			continue;
		count(migrate_newidle);
		return true;
	}
	return false;
}

/* ---- by time ---- */

/* CPUs in a level's span, as ms between two passes while idle. */
static u32 base_interval(u32 level)
{
	if (level == 0)
		return 2;
	return level == 1 ? 8 : level == 2 ? 16 : 32;
}

#define BUSY_FACTOR	32

/* At a tick: which levels are due. */
static __always_inline bool balance_is_due(fair_cpu_t *c, u64 now)
{
	u32 level;

	bpf_for(level, 0, NR_LEVELS) {
		struct fair_level __arena *at = &c->level[level];
		u32 base = base_interval(level), ms = max_u64(at->interval, base);

		/* Level 0 is for cores of several threads. */
		if (!level && power_of(c->root->cpu) == CPU_POWER)
			continue;
		ms = min_u64(ms, base * 2) * BUSY_FACTOR;
		if (now - at->last < ms * NSEC_PER_MSEC)
			continue;
		at->last = now;
		at->interval = ms / BUSY_FACTOR;
		c->due |= 1 << level;
	}
	return c->due;
}

/* In a dispatch: does what is due. True if a task came. */
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
		/* There may be more to move. */
		c->due = due & ~((1 << level) - 1);
		return true;
	}
	return false;
}

#endif
