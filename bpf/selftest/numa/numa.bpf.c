// SPDX-License-Identifier: GPL-2.0-only
/*
 * numa: runs lib/numa.bpf.h alone, step by step, so that a test compares it with its own model.
 *
 * Shows: that the weights of processes by node are the sums over their tasks, after any steps;
 * which moves bring a process together; and that the memory of a finished process is used again.
 * Suits: tests only; it is no scheduler. crates/sched/tests/fair_numa/parts.rs runs it.
 *
 * Knobs: none.
 */
#include <scx/common.bpf.h>
#include <bpf_arena_common.bpf.h>
#include <lib/pelt.bpf.h>

char _license[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARENA);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << 10);
	__ulong(map_extra, 0x1ull << 44);
} arena SEC(".maps");

#include <lib/numa.bpf.h>

#define MEMBERS	64
#define use_arena() asm volatile("" :: "r"(&arena))

static numa_member_t *members;

struct numa_step {
	u64 what;		/* STEP_* */
	u64 member;
	u64 id;			/* STEP_JOIN: number of the process */
	u64 node;
	u64 weight;
	u64 now;
};

enum { STEP_JOIN, STEP_ENQUEUE, STEP_DEQUEUE, STEP_REWEIGH, STEP_REMEMBER, STEP_LEAVE };

struct numa_view {
	u64 member, node;	/* in: number of a task; results are of its process on `node` */
	u64 to;			/* in: node to which the task would move from `node` */
	u64 other;		/* in: number of the task with which `member` would be exchanged */
	u64 by_faults, now;
	u64 queued, home, nr, nr_queued;
	u64 all, node_queued, node_active;
	u64 gains, scatters, swap_gains, source, local;
};

struct numa_room {
	u64 node, weight, beyond, now;
	u64 places;		/* in: number of cores of each node, times NUMA_PLACE */
	u64 room, average;
};

SEC("syscall")
int start(u64 *nodes)
{
	use_arena();
	members = bpf_arena_alloc_pages(&arena, NULL, 2, NUMA_NO_NODE, 0);
	return members ? numa_init(*nodes) : -ENOMEM;
}

SEC("syscall")
int step(struct numa_step *s)
{
	numa_member_t *m = members + s->member % MEMBERS;

	use_arena();
	switch (s->what) {
	case STEP_JOIN:
		numa_join(m, s->id);
		break;
	case STEP_ENQUEUE:
		numa_enqueue(m, s->node, s->weight, s->now);
		break;
	case STEP_DEQUEUE:
		numa_dequeue(m, s->now);
		break;
	case STEP_REWEIGH:
		numa_reweigh(m, s->weight, s->now);
		break;
	case STEP_REMEMBER:
		numa_remember(m, s->node, s->weight);
		break;
	case STEP_LEAVE:
		numa_leave(m, s->now);
		break;
	}
	return 0;
}

SEC("syscall")
int view(struct numa_view *v)
{
	numa_member_t *m = members + v->member % MEMBERS;
	numa_member_t *o = members + v->other % MEMBERS;
	numa_proc_t *p = m->proc;
	numa_share_t *s;

	use_arena();
	v->node_queued = numa_nodes[v->node % NUMA_MAX_NODES].queued;
	v->node_active = numa_active(numa_nodes + v->node % NUMA_MAX_NODES, v->now);
	if (!p)
		return 0;
	s = numa_share(p, v->node % NUMA_MAX_NODES);
	v->queued = s->queued;
	v->home = s->home;
	v->nr = s->nr;
	v->nr_queued = s->nr_queued;
	v->all = p->home;
	v->gains = numa_gains(p, v->node, v->to, m->weight, v->by_faults);
	v->scatters = numa_scatters(p, v->node, v->to, m->weight, v->by_faults);
	v->swap_gains = numa_swap_gains(p, o->proc, v->node, v->to, m->weight, o->weight, v->by_faults);
	v->source = numa_source(p, v->node, v->by_faults);
	v->local = numa_is_local(p, v->node);
	return 0;
}

SEC("syscall")
int room(struct numa_room *r)
{
	u32 i;

	use_arena();
	for (i = 0; i < numa_nr_nodes && can_loop; i++)
		numa_nodes[i].places = r->places;
	r->room = numa_has_room(r->node, r->weight, r->beyond, r->now);
	r->average = numa_nodes[r->node % NUMA_MAX_NODES].average;
	return 0;
}
