// SPDX-License-Identifier: GPL-2.0-only
/*
 * whim: makes random valid calls in every operation, and sometimes invalid ones.
 *
 * Shows: that no scheduler can break the simulated kernel. Every decision of whim is a function of
 * a table that the tester fills, so that a run can be repeated, and a fuzzer changes few decisions
 * by changing one word (crates/testkit/src/whim.rs).
 * Suits: tests only, and simulated kernels only: the verifier would refuse the wrong pointers.
 * Fails: at random.
 *
 * Knobs:
 *   script        the n-th decision is computed from word n % 64 of it, and from n
 *   permitted     bit mask of the deeds (deeds.bpf.h) that may be done
 *   deeds_ppm     chance that an operation does a deed, and after it another one
 *   wrong_ppm     chance that a choice is wrong: a number, a pointer, an omission
 *   slice_max_ns  largest slice of a task
 *   idle_mode     built-in idle tracking is 0: for the machine, 1: per node, 2: off
 */
#include <scx/common.bpf.h>

char _license[] SEC("license") = "GPL";

#define SCRIPT_WORDS 64

const volatile u64 script[SCRIPT_WORDS];
const volatile u64 permitted = ~0ULL;
const volatile u32 deeds_ppm = 200000;
const volatile u32 wrong_ppm = 1000;
const volatile u64 slice_max_ns = 20000000;
const volatile u32 idle_mode = 0;

UEI_DEFINE(uei);

#include "choices.bpf.h"
#include "deeds.bpf.h"

static void more_deeds(struct task_struct *p, s32 cpu, u64 flags, enum place at)
{
	u32 i;

	bpf_for(i, 0, 8) {
		if (!chance(deeds_ppm))
			return;
		deed(p, cpu, flags, at);
	}
}

/*
 * Inserts the task into some DSQ, so that it runs again. Rarely, as a wrong choice, inserts
 * nothing.
 */
static void insert_somewhere(struct task_struct *p, u64 enq_flags)
{
	u32 queue = draw() % NR_QUEUES;

	if (chance(wrong_ppm))
		return;
	switch (draw() % 8) {
	case 0:
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice(), enq_flags);
		return;
	case 1:
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | scx_bpf_task_cpu(p), slice(), enq_flags);
		return;
	case 2:
		scx_bpf_dsq_insert(p, SCX_DSQ_GLOBAL, slice(), enq_flags);
		return;
	}
	if (is_ordered(queue))
		scx_bpf_dsq_insert_vtime(p, queue_id(queue), slice(), p->scx.dsq_vtime, enq_flags);
	else
		scx_bpf_dsq_insert(p, queue_id(queue), slice(), enq_flags);
	if (draw() % 2)
		scx_bpf_kick_cpu(scx_bpf_task_cpu(p), SCX_KICK_IDLE);
}

s32 BPF_STRUCT_OPS(whim_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool is_idle = false;
	s32 cpu;

	more_deeds(p, prev_cpu, 0, IN_SELECT_CPU);
	if (idle_mode == IDLE_OFF && !chance(wrong_ppm))
		return or_odd(prev_cpu);
	cpu = scx_bpf_select_cpu_dfl(p, or_odd(prev_cpu), wake_flags, &is_idle);
	if (is_idle && draw() % 2)
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice(), 0);
	return or_odd(cpu);
}

void BPF_STRUCT_OPS(whim_enqueue, struct task_struct *p, u64 enq_flags)
{
	bool done = draw() % 8 == 0;

	if (done)
		insert_somewhere(p, enq_flags);
	more_deeds(p, scx_bpf_task_cpu(p), enq_flags, IN_ENQUEUE);
	if (!done || chance(wrong_ppm))
		insert_somewhere(p, enq_flags);
}

void BPF_STRUCT_OPS(whim_dispatch, s32 cpu, struct task_struct *prev)
{
	u32 first = draw() % NR_QUEUES;
	u32 i;

	more_deeds(prev, cpu, 0, IN_DISPATCH);
	if (chance(wrong_ppm))
		return;
	bpf_for(i, 0, NR_QUEUES)
		if (scx_bpf_dsq_move_to_local(queue_id((first + i) % NR_QUEUES), 0))
			return;
	bpf_for(i, 0, NR_TRANSIENT)
		if (transient & (1 << i) && scx_bpf_dsq_move_to_local(transient_id(i), 0))
			return;
}

/* Defines an operation whose first argument is a task, and that returns nothing. */
#define TASK_OP(name, args...)							\
void BPF_STRUCT_OPS(whim_##name, struct task_struct *p, ##args)			\
{										\
	more_deeds(p, scx_bpf_task_cpu(p), 0, ON_TASK);					\
}

TASK_OP(dequeue, u64 deq_flags)
TASK_OP(tick)
TASK_OP(runnable, u64 enq_flags)
TASK_OP(running)
TASK_OP(stopping, bool runnable)
TASK_OP(quiescent, u64 deq_flags)
TASK_OP(set_weight, u32 weight)
TASK_OP(set_cpumask, const struct cpumask *mask)
TASK_OP(exit_task, struct scx_exit_task_args *args)
TASK_OP(enable)
TASK_OP(disable)
TASK_OP(cgroup_move, struct cgroup *from, struct cgroup *to)
TASK_OP(cgroup_cancel_move, struct cgroup *from, struct cgroup *to)

/* Defines an operation that returns nothing and gets no task for its deeds. */
#define PLAIN_OP(name, args...)							\
void BPF_STRUCT_OPS(whim_##name, args)						\
{										\
	more_deeds(NULL, 0, 0, ELSEWHERE);							\
}

PLAIN_OP(update_idle, s32 cpu, bool idle)
PLAIN_OP(cpu_acquire, s32 cpu, struct scx_cpu_acquire_args *args)
PLAIN_OP(cpu_release, s32 cpu, struct scx_cpu_release_args *args)
PLAIN_OP(cpu_online, s32 cpu)
PLAIN_OP(cpu_offline, s32 cpu)
PLAIN_OP(cgroup_exit, struct cgroup *cgrp)
PLAIN_OP(cgroup_set_weight, struct cgroup *cgrp, u32 weight)
PLAIN_OP(cgroup_set_idle, struct cgroup *cgrp, bool idle)
PLAIN_OP(dump_cpu, struct scx_dump_ctx *dctx, s32 cpu, bool idle)
PLAIN_OP(dump_task, struct scx_dump_ctx *dctx, struct task_struct *p)

void BPF_STRUCT_OPS(whim_dump, struct scx_dump_ctx *dctx)
{
	scx_bpf_dump("drawn: %llu", draws);
	more_deeds(NULL, 0, 0, ELSEWHERE);
}

void BPF_STRUCT_OPS_SLEEPABLE(whim_cgroup_set_bandwidth, struct cgroup *cgrp, u64 period, u64 quota, u64 burst)
{
	more_deeds(NULL, 0, 0, ELSEWHERE);
}

bool BPF_STRUCT_OPS(whim_yield, struct task_struct *from, struct task_struct *to)
{
	more_deeds(draw() % 2 ? from : to, 0, 0, ELSEWHERE);
	return draw() % 2;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(whim_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	remember_pid(p);
	more_deeds(p, scx_bpf_task_cpu(p), 0, ON_TASK);
	if (chance(wrong_ppm))
		p->scx.disallow = true;
	return chance(wrong_ppm) ? (s32)boundary_value() : 0;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(whim_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	more_deeds(NULL, 0, 0, ELSEWHERE);
	return chance(wrong_ppm) ? (s32)boundary_value() : 0;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(whim_cgroup_prep_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	more_deeds(p, 0, 0, ON_TASK);
	return chance(wrong_ppm) ? (s32)boundary_value() : 0;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(whim_init)
{
	u32 i;
	s32 ret;

	transient = 0;
	bpf_for(i, 0, NR_QUEUES) {
		ret = scx_bpf_create_dsq(queue_id(i), or_odd(-1));
		if (ret && !chance(wrong_ppm))
			return ret;
	}
	init_timers();
	more_deeds(NULL, 0, 0, ELSEWHERE);
	return chance(wrong_ppm) ? (s32)boundary_value() : 0;
}

void BPF_STRUCT_OPS(whim_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
	more_deeds(NULL, 0, 0, ELSEWHERE);
}

SCX_OPS_DEFINE(whim_ops,
	       .select_cpu		= (void *)whim_select_cpu,
	       .enqueue			= (void *)whim_enqueue,
	       .dequeue			= (void *)whim_dequeue,
	       .dispatch		= (void *)whim_dispatch,
	       .tick			= (void *)whim_tick,
	       .runnable		= (void *)whim_runnable,
	       .running			= (void *)whim_running,
	       .stopping		= (void *)whim_stopping,
	       .quiescent		= (void *)whim_quiescent,
	       .yield			= (void *)whim_yield,
	       .set_weight		= (void *)whim_set_weight,
	       .set_cpumask		= (void *)whim_set_cpumask,
	       .update_idle		= (void *)whim_update_idle,
	       .cpu_acquire		= (void *)whim_cpu_acquire,
	       .cpu_release		= (void *)whim_cpu_release,
	       .cpu_online		= (void *)whim_cpu_online,
	       .cpu_offline		= (void *)whim_cpu_offline,
	       .init_task		= (void *)whim_init_task,
	       .exit_task		= (void *)whim_exit_task,
	       .enable			= (void *)whim_enable,
	       .disable			= (void *)whim_disable,
	       .dump			= (void *)whim_dump,
	       .dump_cpu		= (void *)whim_dump_cpu,
	       .dump_task		= (void *)whim_dump_task,
	       .cgroup_init		= (void *)whim_cgroup_init,
	       .cgroup_exit		= (void *)whim_cgroup_exit,
	       .cgroup_prep_move	= (void *)whim_cgroup_prep_move,
	       .cgroup_move		= (void *)whim_cgroup_move,
	       .cgroup_cancel_move	= (void *)whim_cgroup_cancel_move,
	       .cgroup_set_weight	= (void *)whim_cgroup_set_weight,
	       .cgroup_set_bandwidth	= (void *)whim_cgroup_set_bandwidth,
	       .cgroup_set_idle		= (void *)whim_cgroup_set_idle,
	       .init			= (void *)whim_init,
	       .exit			= (void *)whim_exit,
	       .timeout_ms		= 1000,
	       .name			= "whim");
