// SPDX-License-Identifier: GPL-2.0-only
/*
 * gang: runs the election of lib/gang.bpf.h alone, step by step, on four domains and eight CPUs.
 *
 * Shows: that a domain never has two leaders, and that a new round's word differs from those of
 * finished rounds.
 * Suits: tests only; it is no scheduler. `crates/sched/tests/gang_parts.rs` runs it.
 *
 * Knobs: none.
 */
#include <scx/common.bpf.h>
#include <lib/gang.bpf.h>

char _license[] SEC("license") = "GPL";

enum gang_step_kind { STEP_ELECT, STEP_END, STEP_LOOK };

struct gang_step {
	u64 kind;
	u64 domain;
	u64 cpu;
	u64 gang;
	u64 now, until;
	u64 round;		/* in: round to end (STEP_END); out: the domain's round */
	u64 result;
};

static struct gang_lead leads[4];
static u64 serial;

static u64 take(struct gang_step *s, struct gang_lead *l)
{
	switch (s->kind) {
	case STEP_ELECT:
		return gang_elect(l, &serial, s->gang, s->cpu, s->until, s->now);
	case STEP_END:
		gang_end(l, s->round);
		return 0;
	}
	return gang_round(l, s->now);
}

SEC("syscall")
int take_step(struct gang_step *s)
{
	struct gang_lead *l = &leads[s->domain & 3];

	s->result = take(s, l);
	s->round = l->round;
	return 0;
}
