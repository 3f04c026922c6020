// SPDX-License-Identifier: GPL-2.0-only
/*
 * Kernel functions for a scheduler that is compiled for this machine. Each records its call and
 * returns 0, as the host of the benchmark's virtual machine does. They are in a separate file, so
 * that they are not inlined.
 */
#include <scx/common.bpf.h>

#define KEPT 4096

struct call {
	u64 id;
	u64 args[5];
};

static struct call calls[KEPT];
u64 nr_kfunc_calls;

static u64 note(u64 id, u64 a, u64 b, u64 c, u64 d, u64 e)
{
	calls[nr_kfunc_calls++ % KEPT] = (struct call){ id, { a, b, c, d, e } };
	return 0;
}

s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags, bool *is_idle)
{
	return note(1, (u64)p, prev_cpu, wake_flags, (u64)is_idle, 0);
}

bool scx_bpf_dsq_insert(struct task_struct *p, u64 dsq, u64 slice, u64 enq_flags)
{
	return note(2, (u64)p, dsq, slice, enq_flags, 0);
}

bool scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq, u64 slice, u64 vtime, u64 enq_flags)
{
	return note(3, (u64)p, dsq, slice, vtime, enq_flags);
}

bool scx_bpf_dsq_move_to_local(u64 dsq, u64 enq_flags)
{
	return note(4, dsq, enq_flags, 0, 0, 0);
}

struct task_struct *scx_bpf_dsq_peek(u64 dsq)
{
	return (struct task_struct *)note(5, dsq, 0, 0, 0, 0);
}

bool scx_bpf_task_set_slice(struct task_struct *p, u64 slice)
{
	return note(6, (u64)p, slice, 0, 0, 0);
}

bool scx_bpf_task_set_dsq_vtime(struct task_struct *p, u64 vtime)
{
	return note(7, (u64)p, vtime, 0, 0, 0);
}

s32 scx_bpf_task_cpu(const struct task_struct *p)
{
	return note(8, (u64)p, 0, 0, 0, 0);
}

s32 scx_bpf_create_dsq(u64 dsq, s32 node)
{
	return note(9, dsq, node, 0, 0, 0);
}

u32 scx_bpf_nr_cpu_ids(void)
{
	return note(10, 0, 0, 0, 0, 0);
}

s32 scx_bpf_pick_idle_cpu(const struct cpumask *allowed, u64 flags)
{
	return note(11, (u64)allowed, flags, 0, 0, 0);
}

void scx_bpf_kick_cpu(s32 cpu, u64 flags)
{
	note(12, cpu, flags, 0, 0, 0);
}
