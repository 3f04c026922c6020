/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * numa: the nodes on which each process's tasks are, and whether a move brings a process together.
 *
 * Owns: per process and node the weight of the process's tasks, updated when they become runnable,
 * sleep, move and exit; per node the present and recent weight of all tasks, and the number of
 * tasks that were runnable recently. Does not: know queues of CPUs, choose or move tasks. The
 * caller identifies processes by a number, and defines weights (nice, or a load average).
 * Models: "Improve numa scheduling by consolidating tasks" (2013). Differs: the weight at home is
 * kept beside the queued weight, and two tasks may be exchanged.
 *
 *	queued		weight of the runnable tasks of a node, as in the series
 *	home		weight of all tasks, each on the node where it is or last was, because the
 *			cache of a sleeping task is there
 *	active		tasks of a node that are runnable, or were within the last one or two
 *			windows of 67 ms
 *
 * This file judges moves by `home`, because the answer by `queued` would change with every sleep.
 * The home weight of one process on one node is called a share. A move that numa_gains() allows
 * changes two shares, and an exchange that numa_swap_gains() allows changes four. Either makes the
 * list of all shares, sorted with the largest first, grow in lexicographic order. The list is
 * bounded, so moves and exchanges come to an end while weights are constant.
 *
 * Locks: the lock of the CPU on which a member is counted guards the member. Sums change
 * atomically. One lock, taken at fork and exit only, guards finding, creating and releasing a
 * process. No lock guards a node's average load and its counts by window: a lost update leaves
 * about 1 ms out of the average, or makes the number of active tasks wrong by one task for two
 * windows.
 *
 * Requires an arena map named `arena` and lib/pelt.bpf.h, both before the include of this file.
 */
#ifndef LIB_NUMA_BPF_H
#define LIB_NUMA_BPF_H

#define NUMA_MAX_NODES	64
#define NUMA_BUCKETS	512	/* hash buckets of processes, by number */
#define NUMA_PAGE	4096
#define NUMA_NOWHERE	(-1)
#define NUMA_WINDOW	26	/* length of a window as a shift of ns: 67 ms */
#define NUMA_PLACE	1024	/* value of a whole core where cores are counted; a thread
				 * of a core counts as a fraction */

/* Weights and counts of the tasks of one process on one node. */
struct numa_share {
	u64 queued;
	u64 home;
	u64 faults;			/* NUMA faults of the process's tasks whose memory is
					 * mostly on this node */
	u32 nr_queued;
	u32 nr;				/* tasks whose home is this node */
};
typedef struct numa_share __arena numa_share_t;

/* State of a process. An unused entry has counts and weights of 0. */
struct numa_proc {
	struct numa_proc __arena *next;	/* next process in the bucket, or in the list of unused
					 * processes */
	u64 home;			/* sum of the process's home weights on all nodes */
	u64 turn_at;			/* time when a task of the process was last chosen to be
					 * moved, ns */
	u32 nr;
	u32 users;
	s32 id;				/* number of the process; 0: unused, or tasks that belong
					 * to no process */
	u32 pad;
	struct numa_share shares[];	/* the process's share of each node of the machine */
};
typedef struct numa_proc __arena numa_proc_t;

struct numa_bucket {
	numa_proc_t *first;
};
typedef struct numa_bucket __arena numa_bucket_t;

struct numa_node {
	u64 queued;
	u64 average;			/* average of `queued` over about the last 32 periods of
					 * pelt */
	u64 period;			/* period up to which `average` is updated */
	s64 places;			/* number of the node's cores, times NUMA_PLACE */
	u64 window;			/* number of the last window in which slept[] was updated */
	/*
	 * These counts have 64 bits, because sums of narrower numbers have bounds, and the verifier
	 * would follow each bound separately.
	 */
	s64 nr_queued;
	s64 slept[2];			/* sleeping tasks, by whether their sleep began in an
					 * even or odd window */
};
typedef struct numa_node __arena numa_node_t;

/* State of a task, embedded in the caller's state of the task. */
struct numa_member {
	numa_proc_t *proc;
	u64 weight;			/* weight with which the task is counted */
	u64 faults;
	u64 moved_at;			/* time of the task's last move from another node, ns */
	u64 slept_in;			/* window in which the task's sleep began, if the task is
					 * counted in slept[] */
	s32 node;			/* the task's home; NUMA_NOWHERE: the task is not counted
					 * yet */
	s32 memory;			/* node whose share contains `faults` */
	u32 queued;
	u32 sleeps;			/* the task is counted in slept[] */
};
typedef struct numa_member __arena numa_member_t;

struct numa_pool {
	struct bpf_spin_lock lock;
	u32 pad;
	numa_proc_t *free;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct numa_pool);
} numa_pools SEC(".maps");

static u32 numa_nr_nodes;
static numa_node_t *numa_nodes;
static numa_bucket_t *numa_buckets;
static numa_proc_t *numa_others;		/* stands for the process of all tasks that
						 * belong to none */

static __always_inline numa_share_t *numa_share(numa_proc_t *p, u32 node)
{
	return p->shares + node;
}

static __always_inline u32 numa_proc_bytes(void)
{
	return sizeof(struct numa_proc) + numa_nr_nodes * sizeof(struct numa_share);
}

/* ---- processes ---- */

static numa_proc_t *numa_new_page(void)
{
	return bpf_arena_alloc_pages(&arena, NULL, 1, NUMA_NO_NODE, 0);
}

/* Allocates the memory for nodes 0 to nr_nodes - 1. `nr_nodes` is at most NUMA_MAX_NODES. */
static s32 numa_init(u32 nr_nodes)
{
	numa_nr_nodes = nr_nodes;
	numa_nodes = (numa_node_t *)numa_new_page();
	numa_buckets = (numa_bucket_t *)numa_new_page();
	numa_others = numa_new_page();
	return numa_nodes && numa_buckets && numa_others ? 0 : -ENOMEM;
}

static numa_proc_t *numa_find(numa_bucket_t *b, s32 id)
{
	numa_proc_t *p = b->first;

	while (p && p->id != id && can_loop)
		p = p->next;
	return p;
}

static numa_proc_t *numa_take_free(struct numa_pool *pool, numa_bucket_t *b, s32 id)
{
	numa_proc_t *p = pool->free;

	if (!p)
		return NULL;
	pool->free = p->next;
	p->id = id;
	p->turn_at = 0;
	p->next = b->first;
	b->first = p;
	return p;
}

/* Adds a page of unused processes to the pool. The arena's new pages are zero. */
static bool numa_refill(struct numa_pool *pool)
{
	u32 bytes = numa_proc_bytes(), at;
	numa_proc_t *page = numa_new_page();

	if (!page)
		return false;
	bpf_spin_lock(&pool->lock);
	for (at = 0; at + bytes <= NUMA_PAGE && can_loop; at += bytes) {
		numa_proc_t *p = (numa_proc_t *)((char __arena *)page + at);

		p->next = pool->free;
		pool->free = p;
	}
	bpf_spin_unlock(&pool->lock);
	return true;
}

/*
 * Adds the task to the process `id`, or to no process if `id` is 0 or memory is short. May sleep.
 */
static __noinline int numa_join(numa_member_t *m, s32 id)
{
	u32 zero = 0, tries;
	struct numa_pool *pool = bpf_map_lookup_elem(&numa_pools, &zero);
	numa_bucket_t *b = numa_buckets + (u32)id % NUMA_BUCKETS;
	numa_proc_t *p = NULL;

	m->node = NUMA_NOWHERE;
	m->memory = NUMA_NOWHERE;
	m->proc = numa_others;
	m->weight = 0;
	/*
	 * The barriers keep the next stores apart. clang would merge adjacent stores of 0 into one
	 * store without a cast to the arena, which the verifier refuses.
	 */
	asm volatile("" ::: "memory");
	m->faults = 0;
	asm volatile("" ::: "memory");
	m->queued = 0;
	asm volatile("" ::: "memory");
	m->sleeps = 0;
	if (!pool || id <= 0)
		return 0;
	bpf_for(tries, 0, 4) {
		bpf_spin_lock(&pool->lock);
		p = numa_find(b, id);
		if (!p)
			p = numa_take_free(pool, b, id);
		if (p)
			p->users++;
		bpf_spin_unlock(&pool->lock);
		if (p || !numa_refill(pool))
			break;
	}
	if (p)
		m->proc = p;
	return 0;
}

static void numa_unlink(numa_bucket_t *b, numa_proc_t *p)
{
	numa_proc_t *at = b->first;

	if (at == p) {
		b->first = p->next;
		return;
	}
	while (at && at->next != p && can_loop)
		at = at->next;
	if (at)
		at->next = p->next;
}

static __noinline int numa_release(numa_proc_t *p)
{
	u32 zero = 0;
	struct numa_pool *pool = bpf_map_lookup_elem(&numa_pools, &zero);

	if (!pool || !p || !p->id)
		return 0;
	bpf_spin_lock(&pool->lock);
	if (!--p->users) {
		numa_unlink(numa_buckets + (u32)p->id % NUMA_BUCKETS, p);
		p->id = 0;
		p->next = pool->free;
		pool->free = p;
	}
	bpf_spin_unlock(&pool->lock);
	return 0;
}

/* ---- nodes ---- */

/*
 * Updates a node's average load up to `now`. Callers do so before they change `queued`, the weight
 * of the node's runnable tasks, so `queued` has been constant since the last update.
 */
static void numa_settle_node(numa_node_t *n, u64 now)
{
	u64 period = now >> PELT_PERIOD_SHIFT, passed = period - n->period, queued = n->queued;

	if ((s64)passed <= 0)
		return;
	n->period = period;
	n->average = pelt_decay(n->average, passed) + queued - pelt_decay(queued, passed);
}

/* Removes tasks whose sleep began before the previous window from slept[], a node's sleepers. */
static void numa_roll_node(numa_node_t *n, u64 now)
{
	u64 window = now >> NUMA_WINDOW, passed = window - n->window;

	if ((s64)passed <= 0)
		return;
	n->window = window;
	n->slept[window & 1] = 0;
	asm volatile("" ::: "memory");
	if (passed > 1)
		n->slept[~window & 1] = 0;
}

static u64 numa_active(numa_node_t *n, u64 now)
{
	s64 active;

	numa_roll_node(n, now);
	active = n->nr_queued + n->slept[0] + n->slept[1];
	return active > 0 ? active : 0;
}

/*
 * Returns a node's limit of active tasks, times NUMA_PLACE: one task per core or, if the machine
 * has more active tasks than cores, the node's part of these tasks in proportion to its cores.
 */
static __always_inline u64 numa_limit(u32 node, u64 now)
{
	u64 all = 0, places = 0;
	u32 i;

	bpf_for(i, 0, numa_nr_nodes) {
		all += numa_active(numa_nodes + i, now) * NUMA_PLACE;
		places += numa_nodes[i].places;
	}
	return all > places && places ? all * numa_nodes[node].places / places : numa_nodes[node].places;
}

/*
 * Returns whether a node has room for a task of that weight. It has room if it has fewer active
 * tasks than cores. It also has room if its average load leaves CPU time for the task and it has
 * fewer active tasks than its limit plus `beyond`.
 */
static __noinline bool numa_has_room(u32 node, u64 weight, u32 beyond, u64 now)
{
	numa_node_t *here = numa_nodes + node;
	u64 active;

	if (node >= numa_nr_nodes)
		return false;
	active = numa_active(here, now) * NUMA_PLACE;
	if ((s64)active < here->places)
		return true;
	numa_settle_node(here, now);
	if (here->average + weight > here->places)
		return false;
	return active < numa_limit(node, now) + beyond * NUMA_PLACE;
}

/* Returns the number of active tasks that a node has above its limit; negative: below it. */
static __noinline __attribute__((unused)) s64 numa_excess(u32 node, u64 now)
{
	return ((s64)(numa_active(numa_nodes + node, now) * NUMA_PLACE) - (s64)numa_limit(node, now)) / NUMA_PLACE;
}

/* Returns whether a node has more runnable tasks than cores. */
static __always_inline bool numa_is_crowded(u32 node)
{
	return (s64)numa_nodes[node].nr_queued * NUMA_PLACE > numa_nodes[node].places;
}

static __always_inline bool numa_is_full(u32 node)
{
	return ((s64)numa_nodes[node].nr_queued + 1) * NUMA_PLACE > numa_nodes[node].places;
}

/* ---- counting ---- */

static void numa_leave_home(numa_member_t *m)
{
	numa_proc_t *p = m->proc;
	numa_share_t *s = numa_share(p, m->node);

	if (m->node < 0)
		return;
	__sync_fetch_and_add(&s->home, -m->weight);
	__sync_fetch_and_add(&s->nr, -1);
	__sync_fetch_and_add(&p->home, -m->weight);
	__sync_fetch_and_add(&p->nr, -1);
	m->node = NUMA_NOWHERE;
}

static void numa_enter_home(numa_member_t *m, u32 node, u64 weight)
{
	numa_proc_t *p = m->proc;
	numa_share_t *s = numa_share(p, node);

	m->node = node;
	m->weight = weight;
	__sync_fetch_and_add(&s->home, weight);
	__sync_fetch_and_add(&s->nr, 1);
	__sync_fetch_and_add(&p->home, weight);
	__sync_fetch_and_add(&p->nr, 1);
}

/* Removes the member from the sleepers of its node, if it is counted there. */
static void numa_end_sleep(numa_member_t *m, u64 now)
{
	numa_node_t *n = numa_nodes + m->node;

	if (!m->sleeps)
		return;
	m->sleeps = 0;
	numa_roll_node(n, now);
	if (n->window - m->slept_in < 2)
		__sync_fetch_and_add(&n->slept[m->slept_in & 1], -1);
}

static void numa_begin_sleep(numa_member_t *m, u64 now)
{
	numa_node_t *n = numa_nodes + m->node;

	numa_roll_node(n, now);
	m->slept_in = n->window;
	m->sleeps = 1;
	__sync_fetch_and_add(&n->slept[m->slept_in & 1], 1);
}

/* Counts the task as runnable on that node. */
static void numa_enqueue(numa_member_t *m, u32 node, u64 weight, u64 now)
{
	numa_proc_t *p = m->proc;
	numa_share_t *s;

	if (!p || m->queued || node >= numa_nr_nodes)
		return;
	numa_end_sleep(m, now);
	if (m->node != (s32)node || m->weight != weight) {
		numa_leave_home(m);
		numa_enter_home(m, node, weight);
	}
	s = numa_share(p, node);
	numa_settle_node(numa_nodes + node, now);
	__sync_fetch_and_add(&s->queued, weight);
	__sync_fetch_and_add(&s->nr_queued, 1);
	__sync_fetch_and_add(&numa_nodes[node].queued, weight);
	__sync_fetch_and_add(&numa_nodes[node].nr_queued, 1);
	m->queued = 1;
}

/* Counts the task as not runnable, or as about to move to another node. */
static void numa_dequeue(numa_member_t *m, u64 now)
{
	numa_proc_t *p = m->proc;
	numa_share_t *s;

	if (!p || !m->queued)
		return;
	s = numa_share(p, m->node);
	numa_settle_node(numa_nodes + m->node, now);
	__sync_fetch_and_add(&s->queued, -m->weight);
	__sync_fetch_and_add(&s->nr_queued, -1);
	__sync_fetch_and_add(&numa_nodes[m->node].queued, -m->weight);
	__sync_fetch_and_add(&numa_nodes[m->node].nr_queued, -1);
	m->queued = 0;
	numa_begin_sleep(m, now);
}

/* Changes the task's weight, and all sums of weights that contain it. */
static void numa_reweigh(numa_member_t *m, u64 weight, u64 now)
{
	u64 delta = weight - m->weight;
	numa_proc_t *p = m->proc;
	numa_share_t *s;

	if (!p || m->node < 0 || !delta)
		return;
	s = numa_share(p, m->node);
	m->weight = weight;
	__sync_fetch_and_add(&s->home, delta);
	__sync_fetch_and_add(&p->home, delta);
	if (!m->queued)
		return;
	numa_settle_node(numa_nodes + m->node, now);
	__sync_fetch_and_add(&s->queued, delta);
	__sync_fetch_and_add(&numa_nodes[m->node].queued, delta);
}

/*
 * Sets the node that holds most of the task's memory, and the number of the task's NUMA faults.
 * `node` is NUMA_NOWHERE if that node is not known.
 */
static void numa_remember(numa_member_t *m, s32 node, u64 faults)
{
	numa_proc_t *p = m->proc;

	if (!p || (node == m->memory && faults == m->faults))
		return;
	if (m->memory >= 0)
		__sync_fetch_and_add(&numa_share(p, m->memory)->faults, -m->faults);
	m->memory = node >= 0 && node < (s32)numa_nr_nodes ? node : NUMA_NOWHERE;
	m->faults = faults;
	if (m->memory >= 0)
		__sync_fetch_and_add(&numa_share(p, m->memory)->faults, faults);
}

/* Removes an exiting task from its process and from all counts. */
static void numa_leave(numa_member_t *m, u64 now)
{
	if (!m->proc)
		return;
	numa_dequeue(m, now);
	numa_end_sleep(m, now);
	numa_leave_home(m);
	numa_remember(m, NUMA_NOWHERE, 0);
	numa_release(m->proc);
	m->proc = NULL;
}

/* ---- judging ---- */

/*
 * Returns whether share `there` is at most as large as `here`, and smaller by no more than
 * `weight`, the weight of the task that may move.
 */
static __always_inline bool numa_is_level(numa_share_t *here, numa_share_t *there, u64 weight)
{
	return there->home <= here->home && there->home + weight >= here->home;
}

/*
 * Returns how many more faults the process has on `to` than on `from`. Returns 0 if its shares of
 * the two nodes differ by so much that faults do not decide, see numa_is_level().
 */
static __always_inline s64 numa_memory_gain(numa_proc_t *p, u32 from, u32 to, u64 weight)
{
	numa_share_t *here = numa_share(p, from), *there = numa_share(p, to);

	return p->id && numa_is_level(here, there, weight) ? (s64)(there->faults - here->faults) : 0;
}

/*
 * Returns whether a move of a task of that weight brings process `p` together: with the task, its
 * share on `to` is larger than its present share on `from`. With `by_faults`, a difference in
 * faults decides between shares that differ by at most the task's weight.
 */
static bool numa_gains(numa_proc_t *p, u32 from, u32 to, u64 weight, bool by_faults)
{
	numa_share_t *here, *there;

	if (!p || !p->id || from == to)
		return false;
	here = numa_share(p, from);
	there = numa_share(p, to);
	if (by_faults && there->faults != here->faults && numa_is_level(here, there, weight))
		return there->faults > here->faults;
	return there->home + weight > here->home;
}

/*
 * Returns whether process `p` has other tasks, and the move of the task does not bring it together.
 */
static bool numa_scatters(numa_proc_t *p, u32 from, u32 to, u64 weight, bool by_faults)
{
	return p && p->id && p->home > weight && !numa_gains(p, from, to, weight, by_faults);
}

/*
 * Returns whether an exchange of a task of `p` on node `a` with a task of `q` on node `b` brings
 * the processes together. It does so if one process then has more on its new node than either
 * process has now on its old node, or if one process has as much as now and the other has more.
 * With `by_faults`, the two tasks together must not move away from their memory; this rule never
 * forbids both an exchange and its reverse.
 */
static __always_inline bool numa_swap_gains(numa_proc_t *p, numa_proc_t *q, u32 a, u32 b, u64 weight, u64 other, bool by_faults)
{
	u64 p_now, p_then, q_now, q_then;

	if (!p || !q || p == q || !p->id)
		return false;
	p_now = numa_share(p, a)->home;
	p_then = numa_share(p, b)->home + weight;
	if (by_faults && numa_memory_gain(p, a, b, weight) + numa_memory_gain(q, b, a, other) < 0)
		return false;
	if (!q->id)
		return p_then > p_now;
	q_now = numa_share(q, b)->home;
	q_then = numa_share(q, a)->home + other;
	if (p_then == p_now)
		return q_then > q_now;
	if (q_then == q_now)
		return p_then > p_now;
	return (p_then > q_then ? p_then : q_then) > (p_now > q_now ? p_now : q_now);
}

/*
 * Returns whether the process may move a task now, and if so notes the time. A process moves one
 * task per `gap` ns, so that each move is judged after the result of the last one is known.
 */
static __always_inline bool numa_take_turn(numa_proc_t *p, u64 now, u64 gap)
{
	u64 last = p->turn_at;

	return (s64)(now - last) >= (s64)gap && __sync_bool_compare_and_swap(&p->turn_at, last, now);
}

/* Returns the mean weight of the process's tasks on that node. */
static u64 numa_task_weight(numa_proc_t *p, u32 node)
{
	numa_share_t *s = numa_share(p, node);

	return s->nr ? s->home / s->nr : 0;
}

/*
 * Returns the node from which a task of the process should move to `here`; NUMA_NOWHERE: there is
 * none. The node has a runnable task of the process, and the move brings the process together. Of
 * several such nodes the one with the fewest tasks of the process is chosen.
 */
static __noinline s32 numa_source(numa_proc_t *p, u32 here, bool by_faults)
{
	s32 best = NUMA_NOWHERE;
	u32 i, fewest = ~0U;

	if (!p || !p->id)
		return best;
	bpf_for(i, 0, numa_nr_nodes) {
		numa_share_t *s = numa_share(p, i);

		if (!s->nr_queued || s->nr >= fewest || !numa_gains(p, i, here, numa_task_weight(p, i), by_faults))
			continue;
		fewest = s->nr;
		best = i;
	}
	return best;
}

/*
 * Returns a node, other than `from`, on which the process has at least as large a share as on `to`
 * and more faults than on `to`; NUMA_NOWHERE: there is none. Of several such nodes the one with the
 * most faults is chosen.
 */
static __noinline __attribute__((unused)) s32 numa_nearer_memory(numa_proc_t *p, u32 from, u32 to)
{
	s32 best = NUMA_NOWHERE;
	u64 most, home;
	u32 i;

	if (!p || !p->id)
		return best;
	most = numa_share(p, to)->faults;
	home = numa_share(p, to)->home;
	bpf_for(i, 0, numa_nr_nodes) {
		numa_share_t *s = numa_share(p, i);

		if (i == from || s->home < home || s->faults <= most)
			continue;
		most = s->faults;
		best = i;
	}
	return best;
}

/*
 * Returns whether the process has faults on the node, and no other node has a larger share of the
 * process or more of its faults.
 */
static __noinline __attribute__((unused)) bool numa_is_at_memory(numa_proc_t *p, u32 node)
{
	numa_share_t *here = numa_share(p, node);
	bool most = here->faults;
	u32 i;

	bpf_for(i, 0, numa_nr_nodes)
		most = most && numa_share(p, i)->home <= here->home && numa_share(p, i)->faults <= here->faults;
	return most;
}

/* Returns whether a process has most of its weight on that node. */
static __always_inline bool numa_is_local(numa_proc_t *p, u32 node)
{
	return p->id && numa_share(p, node)->home * 2 > p->home;
}

#endif
