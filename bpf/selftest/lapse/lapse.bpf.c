// SPDX-License-Identifier: GPL-2.0-only
/*
 * lapse: one queue for all tasks, and lapses on request: it starves tasks, or leaves.
 *
 * Shows: what a result says of a scheduler that starves some tasks, or is ejected in some runs and not in others.
 * Suits: tests only.
 * Fails: on many CPUs, which share one queue; and as its knobs say.
 *
 * Knobs:
 *   slice_ns          what every task gets
 *   starve            a task whose name starts with this letter waits in a queue that no CPU takes from; 0: none does
 *   woken             1: only when it has been woken up, not when it is new or was preempted
 *   release_after_ns  the second queue is taken from, too, this long after the scheduler was attached; 0: never
 *   eject_after_ns    this long after it was attached the scheduler reports an error; 0: never
 *   eject_permille    chance, drawn at the attachment, that it does
 *   refuse_permille   chance that a fork is refused, as if memory were short
 *   lingers           1: ops.exit takes longer than a program may; 2: ops.dump does
 */
#include <scx/common.bpf.h>

char _license[] SEC("license") = "GPL";

const volatile u64 slice_ns = 5000000;
const volatile char starve = 0;
const volatile bool woken = false;
const volatile u64 release_after_ns = 0;
const volatile u64 eject_after_ns = 0;
const volatile u32 eject_permille = 1000;
const volatile u32 refuse_permille = 0;
const volatile u32 lingers = 0;

#define SHARED 0
#define STARVED 1

static u64 attached_at;
static bool leaves;

UEI_DEFINE(uei);

static bool is_past(u64 delay)
{
	return delay && bpf_ktime_get_ns() - attached_at >= delay;
}

/* An idle CPU is looked for, and no task is inserted here: each goes through enqueue. */
s32 BPF_STRUCT_OPS(lapse_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool is_idle = false;

	return scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);
}

static bool is_starved(const struct task_struct *p, u64 enq_flags)
{
	if (!starve || p->comm[0] != starve || (woken && !(enq_flags & SCX_ENQ_WAKEUP)))
		return false;
	return !is_past(release_after_ns);
}

void BPF_STRUCT_OPS(lapse_enqueue, struct task_struct *p, u64 enq_flags)
{
	bool starved = is_starved(p, enq_flags);

	scx_bpf_dsq_insert(p, starved ? STARVED : SHARED, slice_ns, enq_flags);
	if (!starved)
		scx_bpf_kick_cpu(scx_bpf_task_cpu(p), SCX_KICK_IDLE);
}

void BPF_STRUCT_OPS(lapse_dispatch, s32 cpu, struct task_struct *prev)
{
	if (leaves && is_past(eject_after_ns))
		scx_bpf_error("its time is over");
	if (is_past(release_after_ns) && scx_bpf_dsq_move_to_local(STARVED, 0))
		return;
	scx_bpf_dsq_move_to_local(SHARED, 0);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(lapse_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	return args->fork && bpf_get_prandom_u32() % 1000 < refuse_permille ? -ENOMEM : 0;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(lapse_init)
{
	s32 ret;

	attached_at = bpf_ktime_get_ns();
	leaves = bpf_get_prandom_u32() % 1000 < eject_permille;
	ret = scx_bpf_create_dsq(SHARED, -1);
	return ret ?: scx_bpf_create_dsq(STARVED, -1);
}

static int nothing(u64 i, void *ctx)
{
	return 0;
}

static void linger(void)
{
	int i;

	bpf_for(i, 0, 64)
		bpf_loop(1 << 23, nothing, NULL, 0);
}

void BPF_STRUCT_OPS(lapse_dump, struct scx_dump_ctx *dctx)
{
	if (lingers == 2)
		linger();
}

void BPF_STRUCT_OPS(lapse_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
	if (lingers == 1)
		linger();
}

SCX_OPS_DEFINE(lapse_ops,
	       .select_cpu		= (void *)lapse_select_cpu,
	       .enqueue			= (void *)lapse_enqueue,
	       .dispatch		= (void *)lapse_dispatch,
	       .init_task		= (void *)lapse_init_task,
	       .init			= (void *)lapse_init,
	       .dump			= (void *)lapse_dump,
	       .exit			= (void *)lapse_exit,
	       .timeout_ms		= 30000,
	       .name			= "lapse");
