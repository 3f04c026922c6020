// SPDX-License-Identifier: GPL-2.0-only
/*
 * tracer: implements every operation in the simplest way.
 *
 * Shows: the operations that a kernel calls, their flags and order. `scxlab conform` runs tracer on
 * the simulated and on a real kernel, and compares the records of their calls of operations
 * (crates/kernel/src/ext/op_record.rs, bpf/live/witness.bpf.c).
 * Suits: tests only. Empty operations exist so that the kernel calls them.
 * Fails: on many CPUs, which share one queue.
 *
 * Knobs:
 *   slice_ns      slice of every task
 *   idle_pick     1: select_cpu inserts the task on an idle CPU if the kernel's picker finds one
 *   direct        1: enqueue inserts into the local DSQ of the task's CPU; 0: into one shared DSQ
 *   preempt_by    a task with this initial letter preempts the running task of its CPU
 *   kick_by       a task with this initial letter joins the shared DSQ, and its CPU is preempted
 *   drop          a task with this initial letter and a nice value other than 0 is never queued, so
 *                 it stalls
 *   fail_on       a task with this initial letter and a nice value other than 0 makes enqueue
 *                 report an error
 */
#include <scx/common.bpf.h>

char _license[] SEC("license") = "GPL";

const volatile u64 slice_ns = 20000000;
const volatile u8 idle_pick = 1;
const volatile u8 direct = 0;
const volatile char preempt_by = 0;
const volatile char kick_by = 0;
const volatile char drop = 0;
const volatile char fail_on = 0;

#define SHARED 0

UEI_DEFINE(uei);

s32 BPF_STRUCT_OPS(tracer_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool is_idle = false;
	s32 cpu = prev_cpu;

	if (!idle_pick)
		return prev_cpu;
	cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);
	if (is_idle)
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, 0);
	return cpu;
}

/*
 * Whether the task is marked by the initial letter of its name and by a nice value other than 0,
 * which the task sets when it is ready.
 */
static bool is_marked(const struct task_struct *p, char letter)
{
	return p->comm[0] == letter && p->scx.weight != 100;
}

void BPF_STRUCT_OPS(tracer_enqueue, struct task_struct *p, u64 enq_flags)
{
	u64 flags = enq_flags;

	if (drop && is_marked(p, drop))
		return;
	if (fail_on && is_marked(p, fail_on)) {
		scx_bpf_error("asked to fail by %s", p->comm);
		return;
	}
	if (preempt_by && p->comm[0] == preempt_by)
		flags |= SCX_ENQ_PREEMPT;
	if (direct || flags & SCX_ENQ_PREEMPT)
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, flags);
	else
		scx_bpf_dsq_insert(p, SHARED, slice_ns, flags);
	if (kick_by && p->comm[0] == kick_by)
		scx_bpf_kick_cpu(scx_bpf_task_cpu(p), SCX_KICK_PREEMPT);
}

void BPF_STRUCT_OPS(tracer_dequeue, struct task_struct *p, u64 deq_flags)
{
}

void BPF_STRUCT_OPS(tracer_dispatch, s32 cpu, struct task_struct *prev)
{
	scx_bpf_dsq_move_to_local(SHARED, 0);
}

void BPF_STRUCT_OPS(tracer_runnable, struct task_struct *p, u64 enq_flags)
{
}

void BPF_STRUCT_OPS(tracer_running, struct task_struct *p)
{
}

void BPF_STRUCT_OPS(tracer_stopping, struct task_struct *p, bool runnable)
{
}

void BPF_STRUCT_OPS(tracer_quiescent, struct task_struct *p, u64 deq_flags)
{
}

bool BPF_STRUCT_OPS(tracer_yield, struct task_struct *from, struct task_struct *to)
{
	if (!to)
		from->scx.slice = 0;
	return false;
}

void BPF_STRUCT_OPS(tracer_set_weight, struct task_struct *p, u32 weight)
{
}

void BPF_STRUCT_OPS(tracer_set_cpumask, struct task_struct *p, const struct cpumask *mask)
{
}

s32 BPF_STRUCT_OPS_SLEEPABLE(tracer_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	return 0;
}

void BPF_STRUCT_OPS(tracer_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
}

void BPF_STRUCT_OPS(tracer_enable, struct task_struct *p)
{
}

void BPF_STRUCT_OPS(tracer_disable, struct task_struct *p)
{
}

s32 BPF_STRUCT_OPS_SLEEPABLE(tracer_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	return 0;
}

void BPF_STRUCT_OPS_SLEEPABLE(tracer_cgroup_exit, struct cgroup *cgrp)
{
}

s32 BPF_STRUCT_OPS_SLEEPABLE(tracer_cgroup_prep_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	return 0;
}

void BPF_STRUCT_OPS(tracer_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
}

void BPF_STRUCT_OPS(tracer_cgroup_cancel_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
}

void BPF_STRUCT_OPS(tracer_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
}

void BPF_STRUCT_OPS(tracer_cpu_online, s32 cpu)
{
}

void BPF_STRUCT_OPS(tracer_cpu_offline, s32 cpu)
{
}

s32 BPF_STRUCT_OPS_SLEEPABLE(tracer_init)
{
	return scx_bpf_create_dsq(SHARED, -1);
}

void BPF_STRUCT_OPS(tracer_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

SCX_OPS_DEFINE(tracer_ops,
	       .select_cpu		= (void *)tracer_select_cpu,
	       .enqueue			= (void *)tracer_enqueue,
	       .dequeue			= (void *)tracer_dequeue,
	       .dispatch		= (void *)tracer_dispatch,
	       .runnable		= (void *)tracer_runnable,
	       .running			= (void *)tracer_running,
	       .stopping		= (void *)tracer_stopping,
	       .quiescent		= (void *)tracer_quiescent,
	       .yield			= (void *)tracer_yield,
	       .set_weight		= (void *)tracer_set_weight,
	       .set_cpumask		= (void *)tracer_set_cpumask,
	       .init_task		= (void *)tracer_init_task,
	       .exit_task		= (void *)tracer_exit_task,
	       .enable			= (void *)tracer_enable,
	       .disable			= (void *)tracer_disable,
	       .cgroup_init		= (void *)tracer_cgroup_init,
	       .cgroup_exit		= (void *)tracer_cgroup_exit,
	       .cgroup_prep_move	= (void *)tracer_cgroup_prep_move,
	       .cgroup_move		= (void *)tracer_cgroup_move,
	       .cgroup_cancel_move	= (void *)tracer_cgroup_cancel_move,
	       .cgroup_set_weight	= (void *)tracer_cgroup_set_weight,
	       .cpu_online		= (void *)tracer_cpu_online,
	       .cpu_offline		= (void *)tracer_cpu_offline,
	       .init			= (void *)tracer_init,
	       .exit			= (void *)tracer_exit,
	       .flags			= SCX_OPS_ENQ_EXITING | SCX_OPS_ENQ_MIGRATION_DISABLED,
	       .timeout_ms		= 3000,
	       .name			= "tracer");
