// SPDX-License-Identifier: GPL-2.0-only
/*
 * gang: election and requests alone, one step at a time, on four domains and eight CPUs.
 *
 * Shows: that a domain never has two leaders, and that a request is told from one that is over.
 * Suits: tests only; it is no scheduler. `crates/testkit/tests/gang_parts.rs` runs it.
 *
 * Knobs: none.
 */
#include <scx/common.bpf.h>
#include <bpf_arena_common.bpf.h>
#include <lib/gang.bpf.h>

char _license[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARENA);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__ulong(map_extra, 0x1ull << 44);
} arena SEC(".maps");

enum gang_step_kind { STEP_ELECT, STEP_END, STEP_ASK, STEP_ANSWER, STEP_LOOK };

struct gang_step {
	u64 kind;
	u64 domain;
	u64 cpu;
	u64 now, until;
	u64 round;		/* in for all but an election; out: the round of the domain */
	u64 result;
	u64 asked;		/* out: what the CPU is asked */
};

static struct gang_cpu cpus[8];
static struct gang_lead __arena *leads;
static u64 serial;

static u64 take(struct gang_step *s, struct gang_lead __arena *l, struct gang_cpu *c)
{
	switch (s->kind) {
	case STEP_ELECT:
		return gang_elect(l, &serial, 5, s->cpu, s->until, s->now);
	case STEP_END:
		gang_end(l, s->round);
		return 0;
	case STEP_ASK:
		return gang_ask(c, s->round);
	case STEP_ANSWER:
		gang_answer(c, s->round);
		return 0;
	}
	return gang_goes_on(l, s->round, s->now);
}

SEC("syscall")
int take_step(struct gang_step *s)
{
	struct gang_lead __arena *l;
	struct gang_cpu *c = &cpus[s->cpu & 7];

	asm volatile("" :: "r"(&arena));
	if (!leads)
		leads = bpf_arena_alloc_pages(&arena, NULL, 1, NUMA_NO_NODE, 0);
	if (!leads)
		return -ENOMEM;
	l = leads + (s->domain & 3);
	s->result = take(s, l, c);
	s->round = l->round;
	s->asked = c->asked;
	return 0;
}
