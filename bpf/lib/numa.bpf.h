/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * numa: on which nodes each process has its tasks, and whether a move brings a process together.
 *
 * Owns: per process and node the weight of its tasks, kept as they become runnable, sleep, move and end; per node the weight of
 * all, now and lately, and how many tasks were runnable lately. Does not: know CPUs' queues, choose a task, move anything. What a
 * process is, the caller says by a number; what a weight is, too (nice, or a load average).
 * Models: "Improve numa scheduling by consolidating tasks" (2013). Differs: beside the queued weight the one at home is kept, and
 * two tasks may change places.
 *
 *	queued		of the tasks that are runnable, by node: what the series keeps
 *	home		of all tasks, by the node where they are or were last: a task that sleeps is still where its cache is
 *	active		tasks of a node that are runnable, or were within the last window or two
 *
 * Moves are judged by `home`. By `queued` the answer would change with every sleep. Call the home weight of one process on one
 * node a share. A move that numa_gains() allows changes two shares, an exchange that numa_swap_gains() allows four; afterwards the
 * largest of them is larger than the largest was. So the list of all shares, largest first, grows in lexicographic order. It
 * cannot grow for ever: moves and exchanges come to an end while weights stay as they are.
 *
 * Locks. A member is guarded by whatever guards the CPU that it is counted on. Sums are added to atomically. Processes are found,
 * made and forgotten under one lock, at fork and exit only. A node's average and its windows are updated without one: an update
 * that is lost makes a limit be off by a millisecond, or by a task until two windows have passed.
 *
 * Needs before it: an arena map named `arena`; lib/pelt.bpf.h.
 */
#ifndef LIB_NUMA_BPF_H
#define LIB_NUMA_BPF_H

#define NUMA_MAX_NODES	64
#define NUMA_BUCKETS	512	/* of processes, by number */
#define NUMA_PAGE	4096
#define NUMA_NOWHERE	(-1)
#define NUMA_WINDOW	26	/* 67 ms, as a shift */
#define NUMA_PLACE	1024	/* a core, to which a task can be given without making another wait */

/* A process on a node. */
struct numa_share {
	u64 queued;
	u64 home;
	u64 faults;			/* how often its tasks there used memory of this node, as far as the kernel has seen */
	u32 nr_queued;
	u32 nr;				/* tasks at home */
};
typedef struct numa_share __arena numa_share_t;

/* When nobody uses it all is 0. */
struct numa_proc {
	struct numa_proc __arena *next;	/* of its bucket, or of those not in use */
	u64 home;			/* on all nodes */
	u64 turn_at;			/* when a task of it was last chosen to be moved */
	u32 nr;
	u32 users;
	s32 id;				/* 0: tasks that belong to no process that could be brought together */
	u32 pad;
	struct numa_share shares[];	/* by node, as many as the machine has */
};
typedef struct numa_proc __arena numa_proc_t;

struct numa_bucket {
	numa_proc_t *first;
};
typedef struct numa_bucket __arena numa_bucket_t;

struct numa_node {
	u64 queued;
	u64 average;			/* of queued, over the last 32 periods of pelt and some */
	u64 period;			/* up to which average is */
	s64 places;			/* its cores, in NUMA_PLACE */
	u64 window;			/* the one that was last looked at */
	/* 64 bits wide: sums over nodes of narrower numbers have bounds, and the verifier follows each of them apart. */
	s64 nr_queued;
	s64 slept[2];			/* tasks that went to sleep in even and odd windows, and still do */
};
typedef struct numa_node __arena numa_node_t;

/* A task, embedded in the caller's. */
struct numa_member {
	numa_proc_t *proc;
	u64 weight;			/* as counted */
	u64 faults;
	u64 moved_at;			/* when it last came from another node */
	u64 slept_in;			/* the window in which it went to sleep, if it is counted in slept[] */
	s32 node;			/* home; NUMA_NOWHERE: not counted yet */
	s32 memory;			/* the node of `faults` */
	u32 queued;
	u32 sleeps;			/* it is counted in slept[] */
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
static numa_proc_t *numa_others;		/* the process of those that have none */

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

/* For nodes 0 to nr_nodes - 1, at most NUMA_MAX_NODES. */
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
	p->next = b->first;
	b->first = p;
	return p;
}

/* A page's worth of processes for the pool. It is of zeros. */
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

/* The task becomes one of the process `id`, or of none (0; also when memory is short). May sleep. */
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
	/* Two stores of 0 side by side become one that clang does not cast to the arena. */
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

/* Up to now it had what is queued at present. To be called before that changes. */
static void numa_settle_node(numa_node_t *n, u64 now)
{
	u64 period = now >> PELT_PERIOD_SHIFT, passed = period - n->period, queued = n->queued;

	if ((s64)passed <= 0)
		return;
	n->period = period;
	n->average = pelt_decay(n->average, passed) + queued - pelt_decay(queued, passed);
}

/* Forgets who went to sleep before the last window. */
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

/* Active tasks that belong on a node: one per core, or its share of all if that is more. In NUMA_PLACE. */
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
 * Whether a node may have one task more, of that weight: as long as it has a core for each that is active. If the task finds CPU
 * time there, also as long as it has less than its share of all that are active; and `beyond` that, when others are to go.
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

/* By how many tasks it has more than that. */
static __noinline __attribute__((unused)) s64 numa_excess(u32 node, u64 now)
{
	return ((s64)(numa_active(numa_nodes + node, now) * NUMA_PLACE) - (s64)numa_limit(node, now)) / NUMA_PLACE;
}

/* A node has more to run at present than cores, or as much. */
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

/* It sleeps no more, or not as one of its node. */
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

/* It is runnable, on that node. */
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

/* It is not any more, or is about to be on another node. */
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

/* Its weight is another, where it is counted. */
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

/* Most of its memory is there, by so many faults; NUMA_NOWHERE: not known. */
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

/* The task is gone. */
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

/* Neither of two nodes has more of the process than the other by more than the task that may go from one to the other. */
static __always_inline bool numa_is_level(numa_share_t *here, numa_share_t *there, u64 weight)
{
	return there->home <= here->home && there->home + weight >= here->home;
}

/* How many more faults of the process are at `to` than at `from`, where faults decide; 0 where they do not. */
static __always_inline s64 numa_memory_gain(numa_proc_t *p, u32 from, u32 to, u64 weight)
{
	numa_share_t *here = numa_share(p, from), *there = numa_share(p, to);

	return p->id && numa_is_level(here, there, weight) ? (s64)(there->faults - here->faults) : 0;
}

/*
 * Whether a process is more together when a task of that weight goes from one node to the other: it has more there than the
 * task leaves behind here. If neither node is ahead of the other by more than the task, the faults decide, where they are asked
 * and differ.
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

/* Whether its process has others, and gains nothing by the move. */
static bool numa_scatters(numa_proc_t *p, u32 from, u32 to, u64 weight, bool by_faults)
{
	return p && p->id && p->home > weight && !numa_gains(p, from, to, weight, by_faults);
}

/*
 * Whether two processes are more together when a task of `p` goes from `a` to `b`, and one of `q` the other way: one of them will
 * have more on its new node than either has now on the node that it leaves; or one has as much, and the other more. Where faults
 * are asked and decide, the two together may not end further from their memory: one direction of an exchange is always open.
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

/* A process moves one task at a time, so that each move is judged by what the last one made of it. */
static __always_inline bool numa_take_turn(numa_proc_t *p, u64 now, u64 gap)
{
	u64 last = p->turn_at;

	return (s64)(now - last) >= (s64)gap && __sync_bool_compare_and_swap(&p->turn_at, last, now);
}

/* What a task of the process weighs on average there. */
static u64 numa_task_weight(numa_proc_t *p, u32 node)
{
	numa_share_t *s = numa_share(p, node);

	return s->nr ? s->home / s->nr : 0;
}

/* The node from which a runnable task should come to this one: where the process has the fewest. NUMA_NOWHERE: none. */
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

/* A node that has as much of the process as `to`, and more of its memory: that with most. NUMA_NOWHERE: none. Not `from`. */
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

/* Whether no other node has more of the process, nor of its memory. */
static __noinline __attribute__((unused)) bool numa_is_at_memory(numa_proc_t *p, u32 node)
{
	numa_share_t *here = numa_share(p, node);
	bool most = here->faults;
	u32 i;

	bpf_for(i, 0, numa_nr_nodes)
		most = most && numa_share(p, i)->home <= here->home && numa_share(p, i)->faults <= here->faults;
	return most;
}

/* Whether a process has most of itself on that node. */
static __always_inline bool numa_is_local(numa_proc_t *p, u32 node)
{
	return p->id && numa_share(p, node)->home * 2 > p->home;
}

#endif
