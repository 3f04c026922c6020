// SPDX-License-Identifier: GPL-2.0-only
/*
 * glutton: one queue for all tasks, and memory that is never freed.
 *
 * Shows: that a run which exceeds its memory limit ends, and reports it.
 * Suits: tests only.
 * Fails: as its knobs say.
 *
 * Knobs:
 *   eats   what glutton allocates: 0 nothing; at each enqueue 1 hash elements, 2 queue values or
 *          5 objects; at each fork 3 arena pages or 4 DSQs
 *   bites  number of allocations at each enqueue or fork
 */
#include <scx/common.bpf.h>
#include <bpf_arena_common.bpf.h>

char _license[] SEC("license") = "GPL";

enum { EATS_NOTHING, EATS_ELEMENTS, EATS_VALUES, EATS_PAGES, EATS_DSQS, EATS_OBJECTS };

const volatile u32 eats = EATS_NOTHING;
const volatile u32 bites = 64;

#define SHARED 0

struct value {
	u64 words[128];
};

struct morsel {
	struct bpf_list_node link;
	u64 words[64];
};

struct list {
	struct bpf_spin_lock lock;
	struct bpf_list_head head __contains(morsel, link);
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1U << 31);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, struct value);
} elements SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1U << 31);
	__type(value, struct value);
} values SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARENA);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << 20);
} arena SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct list);
} lists SEC(".maps");

static const struct value nothing;
static u64 eaten;

UEI_DEFINE(uei);

static void keep_object(void)
{
	u32 zero = 0;
	struct list *l = bpf_map_lookup_elem(&lists, &zero);
	struct morsel *n;

	if (!l)
		return;
	n = bpf_obj_new(typeof(*n));
	if (!n)
		return;
	bpf_spin_lock(&l->lock);
	bpf_list_push_back(&l->head, &n->link);
	bpf_spin_unlock(&l->lock);
}

static void eat(void)
{
	u64 key = __sync_fetch_and_add(&eaten, 1);

	switch (eats) {
	case EATS_ELEMENTS:
		bpf_map_update_elem(&elements, &key, &nothing, BPF_ANY);
		break;
	case EATS_VALUES:
		bpf_map_push_elem(&values, &nothing, 0);
		break;
	case EATS_OBJECTS:
		keep_object();
		break;
	}
}

s32 BPF_STRUCT_OPS(glutton_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool is_idle = false;

	return scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);
}

void BPF_STRUCT_OPS(glutton_enqueue, struct task_struct *p, u64 enq_flags)
{
	u32 i;

	bpf_for(i, 0, bites)
		eat();
	scx_bpf_dsq_insert(p, SHARED, SCX_SLICE_DFL, enq_flags);
	scx_bpf_kick_cpu(scx_bpf_task_cpu(p), SCX_KICK_IDLE);
}

void BPF_STRUCT_OPS(glutton_dispatch, s32 cpu, struct task_struct *prev)
{
	scx_bpf_dsq_move_to_local(SHARED, 0);
}

/* Allocates DSQs and pages at each fork, because only a program that may sleep can do so. */
s32 BPF_STRUCT_OPS_SLEEPABLE(glutton_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	u32 i;

	bpf_for(i, 0, bites) {
		u64 key = __sync_fetch_and_add(&eaten, 1);

		if (eats == EATS_PAGES)
			bpf_arena_alloc_pages(&arena, NULL, 1, NUMA_NO_NODE, 0);
		else if (eats == EATS_DSQS)
			scx_bpf_create_dsq(key + 1, -1);
	}
	return 0;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(glutton_init)
{
	return scx_bpf_create_dsq(SHARED, -1);
}

void BPF_STRUCT_OPS(glutton_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

SCX_OPS_DEFINE(glutton_ops,
	       .select_cpu		= (void *)glutton_select_cpu,
	       .enqueue			= (void *)glutton_enqueue,
	       .dispatch		= (void *)glutton_dispatch,
	       .init_task		= (void *)glutton_init_task,
	       .init			= (void *)glutton_init,
	       .exit			= (void *)glutton_exit,
	       .timeout_ms		= 30000,
	       .name			= "glutton");
