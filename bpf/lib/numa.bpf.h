/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * numa: on which nodes each process has its tasks, and whether a move brings a process together.
 *
 * Owns: per process and node the weight of its tasks, kept as they become runnable, sleep, move and end; per node the weight of
 * all, now and lately. Does not: know CPUs' queues, choose a task, move anything. What a process is, the caller says by a number;
 * what a weight is, too (nice, or a load average).
 * Models: "Improve numa scheduling by consolidating tasks" (2013). Differs: beside the queued weight the one at home is kept.
 *
 *	queued		of the tasks that are runnable, by node: what the series keeps
 *	home		of all tasks, by the node where they are or were last: a task that sleeps is still where its cache is
 *
 * Moves are judged by `home`. By `queued` the answer would change with every sleep. By `home`, each move that numa_gains()
 * allows raises the sum of the squares of a process's weights by node, which is bounded: moves of this kind come to an end.
 *
 * Locks. A member is guarded by whatever guards the CPU that it is counted on. Sums are added to atomically. Processes are found,
 * made and forgotten under one lock, at fork and exit only. A node's average is updated without one: an update lost makes a limit
 * be off by a millisecond.
 *
 * Needs before it: an arena map named `arena`; lib/pelt.bpf.h.
 */
#ifndef LIB_NUMA_BPF_H
#define LIB_NUMA_BPF_H

#define NUMA_MAX_NODES	64
#define NUMA_BUCKETS	512	/* of processes, by number */
#define NUMA_PAGE	4096
#define NUMA_NOWHERE	(-1)

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
	s64 power;			/* weight that its CPUs can run at once */
};
typedef struct numa_node __arena numa_node_t;

/* A task, embedded in the caller's. */
struct numa_member {
	numa_proc_t *proc;
	u64 weight;			/* as counted */
	u64 faults;
	u64 moved_at;			/* when it last came from another node */
	s32 node;			/* home; NUMA_NOWHERE: not counted yet */
	s32 memory;			/* the node of `faults` */
	u32 queued;
	u32 pad;
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

/*
 * Whether a node may have `weight` more: as long as its CPUs have not too much, or it has not more than its share of all, by
 * `pct`, or by this one task.
 */
static __noinline bool numa_has_room(u32 node, u64 weight, u32 pct, u64 now)
{
	numa_node_t *here = numa_nodes + node;
	u64 all = 0, power = 0, share, limit;
	u32 i;

	if (node >= numa_nr_nodes)
		return false;
	bpf_for(i, 0, numa_nr_nodes) {
		numa_node_t *n = numa_nodes + i;

		numa_settle_node(n, now);
		all += n->average;
		power += n->power;
	}
	share = power ? all * here->power / power : 0;
	limit = share * pct / 100;
	if (limit < share + weight)
		limit = share + weight;
	if (limit < here->power)
		limit = here->power;
	return here->average + weight <= limit;
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

/* It is runnable, on that node. */
static void numa_enqueue(numa_member_t *m, u32 node, u64 weight, u64 now)
{
	numa_proc_t *p = m->proc;
	numa_share_t *s;

	if (!p || m->queued || node >= numa_nr_nodes)
		return;
	if (m->node != (s32)node || m->weight != weight) {
		numa_leave_home(m);
		numa_enter_home(m, node, weight);
	}
	s = numa_share(p, node);
	numa_settle_node(numa_nodes + node, now);
	__sync_fetch_and_add(&s->queued, weight);
	__sync_fetch_and_add(&s->nr_queued, 1);
	__sync_fetch_and_add(&numa_nodes[node].queued, weight);
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
	m->queued = 0;
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
	numa_leave_home(m);
	numa_remember(m, NUMA_NOWHERE, 0);
	numa_release(m->proc);
	m->proc = NULL;
}

/* ---- judging ---- */

/* The node that most of a process's faults were about; NUMA_NOWHERE: none were seen. */
static __noinline s32 numa_memory_of(numa_proc_t *p)
{
	s32 best = NUMA_NOWHERE;
	u64 most = 0;
	u32 i;

	if (!p)
		return best;
	bpf_for(i, 0, numa_nr_nodes) {
		u64 faults = numa_share(p, i)->faults;

		if (faults > most) {
			most = faults;
			best = i;
		}
	}
	return best;
}

/*
 * Whether a process is more together when a task of that weight goes from one node to the other: it has more there than the
 * task leaves behind here. `memory`: the node where it belongs, if that is known.
 */
static bool numa_gains(numa_proc_t *p, u32 from, u32 to, u64 weight, s32 memory)
{
	if (!p || !p->id || from == to)
		return false;
	if (memory >= 0)
		return memory == (s32)to;
	return numa_share(p, to)->home + weight > numa_share(p, from)->home;
}

/* What a task of the process weighs on average there. */
static u64 numa_task_weight(numa_proc_t *p, u32 node)
{
	numa_share_t *s = numa_share(p, node);

	return s->nr ? s->home / s->nr : 0;
}

/* The node from which a runnable task should come to this one: where the process has the fewest. NUMA_NOWHERE: none. */
static __noinline s32 numa_source(numa_proc_t *p, u32 here, s32 memory)
{
	s32 best = NUMA_NOWHERE;
	u32 i, fewest = ~0U;

	if (!p || !p->id)
		return best;
	bpf_for(i, 0, numa_nr_nodes) {
		numa_share_t *s = numa_share(p, i);

		if (!s->nr_queued || s->nr >= fewest || !numa_gains(p, i, here, numa_task_weight(p, i), memory))
			continue;
		fewest = s->nr;
		best = i;
	}
	return best;
}

/* Whether a process has most of itself on that node. */
static __always_inline bool numa_is_local(numa_proc_t *p, u32 node)
{
	return p->id && numa_share(p, node)->home * 2 > p->home;
}

#endif
