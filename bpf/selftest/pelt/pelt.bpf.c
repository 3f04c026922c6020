// SPDX-License-Identifier: GPL-2.0-only
/*
 * pelt: runs the arithmetic of lib/pelt.bpf.h on a pattern from user space.
 *
 * Shows: sums after any sequence of runnable, running and idle stretches, and single decays.
 * Suits: tests only. It is no scheduler: it has no operations.
 * Fails: it cannot be attached.
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
	__uint(max_entries, 1);
	__ulong(map_extra, 0x1ull << 44);
} arena SEC(".maps");

struct pelt_args {
	u64 now;	/* update up to this time; 0: restart all sums at the time `value` */
	u64 value;
	u64 n;		/* number of periods, for decay_one() and full_periods() */
	u32 state;	/* bit 0: the entity was runnable until `now`; bit 1: it ran */
	/* out */
	u32 ended;	/* a period ended */
	u32 runnable;
	u32 running;
	u32 period;
	u32 pad;
	u64 last;
};

static struct pelt_avg __arena *avg;

SEC("syscall")
int update(struct pelt_args *a)
{
	if (!avg)
		avg = bpf_arena_alloc_pages(&arena, NULL, 1, NUMA_NO_NODE, 0);
	if (!avg)
		return -ENOMEM;
	if (!a->now) {
		avg->last = a->value;
		avg->runnable = 0;
		asm volatile("" ::: "memory");
		avg->running = 0;
		asm volatile("" ::: "memory");
		avg->period = 0;
		asm volatile("" ::: "memory");
		avg->open = 0;
	} else {
		a->ended = pelt_update(avg, a->now, a->state & 1, a->state & 2);
	}
	a->runnable = avg->runnable;
	a->running = avg->running;
	a->period = avg->period;
	a->last = avg->last;
	return 0;
}

SEC("syscall")
int decay_one(struct pelt_args *a)
{
	a->value = pelt_decay(a->value, a->n);
	return 0;
}

SEC("syscall")
int full_periods(struct pelt_args *a)
{
	a->value = pelt_full_periods(a->n);
	return 0;
}
