/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Consolidation: an idle CPU brings a process together on the CPU's node, and busy CPUs of
 * different nodes exchange tasks.
 *
 * Owns: the choice of process, source node and source CPU. Does not: count (lib/numa.bpf.h), move
 * tasks (balance.bpf.h).
 * Models: the idle pull of "Improve numa scheduling by consolidating tasks" (2013). The exchange is
 * not in the series.
 */
#ifndef FAIR_CONSOLIDATE_BPF_H
#define FAIR_CONSOLIDATE_BPF_H

#include "balance.bpf.h"

/*
 * Returns an idle CPU of a node on which the task may run (NULL: any idle CPU), preferably on an
 * idle core.
 */
static __noinline s32 idle_cpu_of(u32 node, struct task_struct *task)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask(), *cores = scx_bpf_get_idle_smtmask();
	s32 found = NO_CPU;
	u32 i;

	bpf_for(i, 0, nr_cpus) {
		u32 at = nth_cpu(i);

		if (node_of(at) != node || !is_idle(idle, at) || (task && !may_run_on(task, at)))
			continue;
		if (found == NO_CPU)
			found = at;
		if (!is_idle(cores, at))
			continue;
		found = at;
		break;
	}
	scx_bpf_put_idle_cpumask(cores);
	scx_bpf_put_idle_cpumask(idle);
	return found;
}

static bool has_idle_core(s32 cpu)
{
	const struct cpumask *cores = scx_bpf_get_idle_smtmask();
	bool has = is_idle(cores, cpu);

	scx_bpf_put_idle_cpumask(cores);
	return has;
}

/* Asks an idle CPU to look for work. An idle CPU has no ticks, so it does not look by itself. */
static void ask_to_look(s32 cpu)
{
	cpu_at(cpu)->look = 1;
	kick(cpu, SCX_KICK_IDLE);
}

/*
 * Whether the process with share `a` of a node comes before the one with share `b` (NULL: none).
 * The larger share comes first; with faults, of equal shares the one with more faults.
 */
static __always_inline bool is_stronger(numa_share_t *a, numa_share_t *b)
{
	if (!b || a->home != b->home)
		return !b || a->home > b->home;
	return by_faults() && a->faults > b->faults;
}

/*
 * Whether a task of process `p` on node `from` could swap with a task of another process on `here`.
 * Considers the processes that run, or ran last, on the CPUs of `here`.
 */
static __noinline bool could_swap(numa_proc_t *p, u32 from, u32 here, u64 weight)
{
	bool could = false;
	u32 i;

	bpf_for(i, 0, nr_cpus) {
		numa_proc_t *q = cpu_at(nth_cpu(i))->proc;

		if (node_of(nth_cpu(i)) != here || !q || !numa_share(q, here)->nr)
			continue;
		could = numa_swap_gains(p, q, from, here, weight, numa_task_weight(q, here), by_faults());
		if (could)
			break;
	}
	return could;
}

/*
 * Whether the node `here` has room for a task of the process, or could give the node `from` one of
 * its own tasks in exchange.
 */
static __noinline bool may_come(numa_proc_t *p, u32 from, u32 here, u64 now)
{
	u64 weight = numa_task_weight(p, from);

	return numa_has_room(here, weight, 0, now) || (numa_has_room(here, weight, 1, now) && could_swap(p, from, here, weight));
}

/*
 * Whether a task should rather wait for another node, which has more of its process's memory and
 * can take it.
 */
static __noinline bool prefers_memory(numa_proc_t *p, u32 from, u32 to, u64 now)
{
	s32 better = by_faults() ? numa_nearer_memory(p, from, to) : NUMA_NOWHERE;

	return better != NUMA_NOWHERE && may_come(p, from, better, now);
}

/*
 * Chooses the process and the node to take a task from, and returns whether there is one. Stores
 * the choice in the CPU's `take` and `take_from`.
 */
__weak bool choose_process(s32 cpu, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	u32 here = node_of(cpu), i;
	numa_share_t *most = NULL;
	bool limited = false;

	c->take = NULL;
	bpf_for(i, 0, nr_cpus) {
		u32 at = nth_cpu(i);
		numa_proc_t *p = cpu_at(at)->proc;
		s32 from;

		if (!p || p == c->take || node_of(at) != here || !is_stronger(numa_share(p, here), most))
			continue;
		from = numa_source(p, here, by_faults());
		if (from == NUMA_NOWHERE || prefers_memory(p, from, here, now))
			continue;
		if (!may_come(p, from, here, now)) {
			limited = true;
			continue;
		}
		most = numa_share(p, here);
		c->take = p;
		c->take_from = from;
	}
	if (!c->take && limited)
		count(numa_limited);
	return c->take != NULL;
}

/*
 * Returns the CPU of the node `take_from` with the fewest tasks whose process belongs on that node;
 * NO_CPU: there is none. With `runs`, considers only CPUs that run a task of the process `take`;
 * otherwise only CPUs on which tasks wait.
 */
__weak s32 choose_queue(s32 cpu, bool runs)
{
	fair_cpu_t *c = cpu_at(cpu);
	u32 i, least = ~0U;
	s32 best = NO_CPU;

	bpf_for(i, 0, nr_cpus) {
		u32 at = nth_cpu(i);
		fair_cpu_t *other = cpu_at(at);

		if (node_of(at) != (u32)c->take_from || !other->online || other->nr_local >= least)
			continue;
		if (runs ? !other->curr || other->proc != c->take : other->root->h_nr < 2)
			continue;
		least = other->nr_local;
		best = at;
	}
	return best;
}

/* Takes a waiting task of the process `take`, which moves here at once. */
static bool pull_waiting(s32 cpu, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	pull_t *pull = &c->pull;
	s32 from = choose_queue(cpu, false);

	if (from == NO_CPU)
		return false;
	zero_words((u64 __arena *)pull, sizeof(*pull));
	pull->from = from;
	pull->to = cpu;
	pull->imbalance = ~0ULL >> 1;
	pull->now = now;
	pull->tries = nr_migrate;
	pull->level = NR_LEVELS - 1;
	pull->take_hot = 1;
	pull->helps = 1;
	apart();
	pull->only = c->take;
	pull->gang = ROOT_GROUP;
	return pull_task(cpu);
}

/* Asks for a running task of the process `take`, whose CPU preempts the task and sends it here. */
static void pull_running(s32 cpu, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);
	s32 from = choose_queue(cpu, true);
	fair_task_t *t;

	if (from == NO_CPU)
		return;
	t = cpu_at(from)->curr;
	if (!t)
		return;
	if (!may_move(t, now)) {
		count(numa_bounces_avoided);
		return;
	}
	push_from(from, cpu, c->take);
}

/* If another core of this node is idle, asks a CPU of it to look in place of this CPU. */
static bool pass_on(s32 cpu)
{
	s32 better;

	if (core_size[cpu & (MAX_CPUS - 1)] < 2)
		return false;
	better = idle_cpu_of(node_of(cpu), NULL);
	if (better == NO_CPU || core_of(better) == core_of(cpu) || !has_idle_core(better))
		return false;
	ask_to_look(better);
	return true;
}

/* Consolidates on an idle CPU that balancing left without work. Returns true if a task came. */
__weak bool consolidate(s32 cpu, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);

	if (!numa_on() || c->leave_prev)
		return false;
	if (!c->look && (s64)(now - c->looked_at) < (s64)look_ns())
		return false;
	c->look = 0;
	c->looked_at = now;
	if (!choose_process(cpu, now) || pass_on(cpu) || !numa_take_turn(c->take, now, look_ns()))
		return false;
	if (pull_waiting(cpu, now)) {
		count(numa_pulls);
		return true;
	}
	pull_running(cpu, now);
	return false;
}

/* ---- at a wake-up ---- */

/*
 * Whether another process has a larger share on the node. Considers the processes that run, or ran
 * last, on the node's CPUs.
 */
static __noinline bool is_weaker(numa_proc_t *p, u32 node)
{
	bool weaker = false;
	u32 i;

	bpf_for(i, 0, nr_cpus) {
		numa_proc_t *q = cpu_at(nth_cpu(i))->proc;

		if (node_of(nth_cpu(i)) != node || !q || !q->id)
			continue;
		weaker = is_stronger(numa_share(q, node), numa_share(p, node));
		if (weaker)
			break;
	}
	return weaker;
}

/*
 * Whether a task should leave a node that has more active tasks than its limit, and on which the
 * task's process cannot come together. A node that is one task above its limit may be half-way
 * through an exchange. Then only a process leaves that has most of itself on other nodes, or less
 * on this node than another process. With faults, a process stays on the node of its memory.
 */
static bool should_leave(numa_proc_t *p, u32 node, u64 now)
{
	s64 excess = numa_excess(node, now);
	bool stays = numa_is_local(p, node) || (by_faults() && numa_is_at_memory(p, node));

	return excess > 1 || (excess == 1 && (!stays || is_weaker(p, node)));
}

/*
 * Returns the node with room on which the task's process has the largest share; `from`: the task
 * should stay.
 */
static __noinline u32 choose_home(fair_task_t *t, u32 from, u64 now)
{
	numa_proc_t *p = t->numa.proc;
	bool leaves = should_leave(p, from, now);
	u32 home = from, i;

	bpf_for(i, 0, numa_nr_nodes) {
		if (i == from || (!leaves && (!numa_helps(t, from, i) || prefers_memory(p, from, i, now))))
			continue;
		if ((home == from || is_stronger(numa_share(p, i), numa_share(p, home))) && may_come(p, from, i, now))
			home = i;
	}
	return home;
}

/*
 * Returns an idle CPU on the node that choose_home() chooses for the task; NO_CPU: the task should
 * stay on its node or may not move now, or no CPU is idle there.
 */
static __noinline s32 wake_at_home(struct task_struct *task, fair_task_t *t, s32 prev_cpu)
{
	u32 from = node_of(prev_cpu), home;
	u64 now = scx_bpf_now();
	numa_proc_t *p;
	s32 cpu;

	if (!t || !t->numa.proc || !may_move(t, now))
		return NO_CPU;
	p = t->numa.proc;
	/* The task stays if its whole process is on this node already. */
	if (numa_share(p, from)->home == p->home || is_migration_disabled(task))
		return NO_CPU;
	home = choose_home(t, from, now);
	if (home == from || !numa_take_turn(p, now, look_ns()))
		return NO_CPU;
	cpu = idle_cpu_of(home, task);
	if (cpu == NO_CPU || !scx_bpf_test_and_clear_cpu_idle(cpu))
		return NO_CPU;
	count(numa_wakes);
	t->numa.moved_at = now;
	return cpu;
}

/* ---- exchanges by busy CPUs ---- */

/*
 * Plans that the task of `proc` that runs on `from` goes to `to`, and swaps places with a task of
 * `other`.
 */
static __always_inline void swap_from(s32 from, s32 to, u32 which, numa_proc_t *proc, numa_proc_t *other, u64 weight)
{
	fair_cpu_t *c = cpu_at(from);

	if (!c->curr || c->curr->numa.proc != proc || c->push_to != NO_CPU || !gang_lets(c->curr, from, to))
		return;
	c->push_proc = proc;
	c->swap_proc = other;
	c->swap_weight = weight;
	c->push_swap = which;
	apart();
	c->push_to = to;
	kick(from, SCX_KICK_PREEMPT);
}

/*
 * Counts the move of the task that was sent to CPU `to`. If that was the first half of an exchange,
 * makes `to` send the other task here.
 */
static void note_pushed(fair_cpu_t *c, s32 to)
{
	if (c->push_swap == SWAP_NONE)
		count(numa_pulls_running);
	else
		count(numa_swaps);
	if (c->push_swap == SWAP_FIRST)
		swap_from(to, c->root->cpu, SWAP_SECOND, c->swap_proc, c->push_proc, 0);
}

/* Whether two tasks' weights differ by so little that a swap leaves the nodes balanced. */
static __always_inline bool weighs_alike(u64 a, u64 b)
{
	return 100 * max_u64(a, b) <= imbalance_pct(NR_LEVELS - 1) * min_u64(a, b);
}

/*
 * Returns the CPU of another node whose running task should swap places with the one that runs on
 * `cpu`; NO_CPU: there is none. Chooses the swap that joins a task to the largest share of its
 * process; of equal swaps, the one that brings the two tasks to more of their memory.
 */
static __noinline s32 choose_partner(s32 cpu, struct task_struct *task, u64 now)
{
	fair_task_t *t = cpu_at(cpu)->curr;
	u32 here = node_of(cpu), i;
	s32 best = NO_CPU;
	u64 most = 0, most_faults = 0;

	if (!t)
		return NO_CPU;
	bpf_for(i, 0, nr_cpus) {
		u32 at = nth_cpu(i), there = node_of(at);
		fair_task_t *o = cpu_at(at)->curr;
		u64 then, faults;

		if (there == here || !o || !may_run_on(task, at) || !may_move(o, now) || !weighs_alike(t->numa.weight, o->numa.weight))
			continue;
		if (!numa_swap_gains(t->numa.proc, o->numa.proc, here, there, t->numa.weight, o->numa.weight, by_faults()))
			continue;
		then = max_u64(numa_share(t->numa.proc, there)->home, numa_share(o->numa.proc, here)->home);
		faults = by_faults() ? numa_share(t->numa.proc, there)->faults + numa_share(o->numa.proc, here)->faults : 0;
		if (best != NO_CPU && (then < most || (then == most && faults <= most_faults)))
			continue;
		if (prefers_memory(t->numa.proc, here, there, now) || prefers_memory(o->numa.proc, there, here, now))
			continue;
		most = then;
		most_faults = faults;
		best = at;
	}
	return best;
}

static void swap_running(s32 cpu, struct task_struct *task, u64 now)
{
	fair_task_t *t = cpu_at(cpu)->curr, *o;
	s32 at;

	if (!t || !may_move(t, now) || is_migration_disabled(task))
		return;
	at = choose_partner(cpu, task, now);
	if (at == NO_CPU)
		return;
	o = cpu_at(at)->curr;
	if (!o || !numa_take_turn(t->numa.proc, now, look_ns()) || !numa_take_turn(o->numa.proc, now, look_ns()))
		return;
	swap_from(at, cpu, SWAP_FIRST, o->numa.proc, t->numa.proc, t->numa.weight);
}

/* Asks an idle CPU of this node, which has no ticks, to look for the process that runs here. */
static bool ask_to_fetch(s32 cpu, numa_proc_t *p, u64 now)
{
	s32 idle, from = numa_source(p, node_of(cpu), by_faults());

	if (from == NUMA_NOWHERE || !may_come(p, from, node_of(cpu), now))
		return false;
	idle = idle_cpu_of(node_of(cpu), NULL);
	if (idle != NO_CPU)
		ask_to_look(idle);
	return idle != NO_CPU;
}

/* Consolidates at a tick of a busy CPU, once in numa_settle_ns at most. */
static __noinline void consolidate_busy(s32 cpu, struct task_struct *task, u64 now)
{
	fair_cpu_t *c = cpu_at(cpu);

	if ((s64)(now - c->asked_at) < (s64)numa_settle_ns)
		return;
	c->asked_at = now;
	if (!ask_to_fetch(cpu, c->proc, now))
		swap_running(cpu, task, now);
}

#endif
