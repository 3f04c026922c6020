// SPDX-License-Identifier: GPL-2.0-only
/*
 * tickle: runs bpf/lib/tickle.bpf.h on a test's input, and returns the decision.
 *
 * Shows: nothing; it is one syscall program, not a scheduler.
 * Suits: tests only.
 *
 * Knobs: none
 */
#include <scx/common.bpf.h>
#include <lib/tickle.bpf.h>

char _license[] SEC("license") = "GPL";

/*
 * A test's input and output. Bit N of a mask stands for CPU N.
 * crates/sched/tests/credit/tickle.rs has the same struct.
 */
struct tickle_case {
	u64 idlers;
	u64 affinity;
	u64 woken;		/* out: idlers that are tickled */
	u32 mode;
	u32 one_idle;
	u32 cpu;
	s32 cur_pri;
	s32 new_pri;
	u32 nr_cpus;
	u32 last;		/* in and out: the CPU that was tickled last */
	u32 what;		/* out: enum tickle_action */
};

#define HAS_BIT(cpu, mask) ((mask) >> ((cpu) & 63) & 1)

SEC("syscall")
int tickle_run(struct tickle_case *t)
{
	u64 idlers = t->idlers, affinity = t->affinity;
	u32 nr_cpus = t->nr_cpus;
	struct tickle_in in = {
		.new_pri = t->new_pri,
		.cur_pri = t->cur_pri,
		.has_idlers = idlers != 0,
		.has_suitable = (idlers & affinity) != 0,
		.cpu_suits = HAS_BIT(t->cpu, affinity),
	};
	s32 next;

	if (!nr_cpus || nr_cpus > 64)
		return -EINVAL;
	t->woken = 0;
	t->what = tickle_decide(t->mode, &in);
	if (!(t->what & TICKLE_IDLERS))
		return 0;
	if (!t->one_idle) {
		t->woken = idlers & affinity;
		return 0;
	}
	next = TICKLE_CYCLE(t->last, nr_cpus, HAS_BIT, idlers, affinity);
	if (next < 0)
		return -ENOENT;
	t->woken = 1ULL << (next & 63);
	t->last = next;
	return 0;
}
