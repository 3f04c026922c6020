// SPDX-License-Identifier: GPL-2.0-only
/*
 * relay: leaves every decision to a program in user space, which does not exist.
 *
 * Shows: the result of a scheduler whose frontend decides and is missing: each task that becomes
 * runnable is reported to user space, and waits until user space decides that it runs.
 * Suits: tests only.
 * Fails: always; the watchdog ejects it.
 *
 * Knobs:
 *   slice_ns   slice of every task
 */
#include <scx/common.bpf.h>

char _license[] SEC("license") = "GPL";

const volatile u64 slice_ns = 5000000;

/* Pids of tasks that became runnable. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} runnable SEC(".maps");

/* Pids of tasks that are to run, in this order. */
struct {
	__uint(type, BPF_MAP_TYPE_USER_RINGBUF);
	__uint(max_entries, 1 << 16);
} decided SEC(".maps");

/* Pids of tasks that user space wants at the head of the queue. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u32);
} urgent SEC(".maps");

u64 nr_exits;

UEI_DEFINE(uei);

void BPF_STRUCT_OPS(relay_enqueue, struct task_struct *p, u64 enq_flags)
{
	u32 pid = p->pid;

	bpf_ringbuf_output(&runnable, &pid, sizeof(pid), 0);
}

static long run_decided(struct bpf_dynptr *message, void *ctx)
{
	struct task_struct *p;
	u64 flags = 0;
	u32 pid;

	if (bpf_dynptr_read(&pid, sizeof(pid), message, 0, 0))
		return 0;
	p = bpf_task_from_pid(pid);
	if (!p)
		return 0;
	if (bpf_map_lookup_elem(&urgent, &pid))
		flags = SCX_ENQ_HEAD;
	scx_bpf_dsq_insert(p, SCX_DSQ_GLOBAL, slice_ns, flags);
	bpf_task_release(p);
	return 0;
}

void BPF_STRUCT_OPS(relay_dispatch, s32 cpu, struct task_struct *prev)
{
	bpf_user_ringbuf_drain(&decided, run_decided, NULL, BPF_RB_NO_WAKEUP);
}

struct question {
	s32 kick;	/* a CPU to kick, so that it looks for work; negative: none */
};

/* Kicks the CPU that user space names, if it is idle. Returns the CPU on which the caller runs. */
SEC("syscall")
int which_cpu(struct question *q)
{
	s32 cpu = q->kick;

	if (cpu >= 0)
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	return bpf_get_smp_processor_id();
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(count_exit, struct task_struct *p)
{
	__sync_fetch_and_add(&nr_exits, 1);
	return 0;
}

void BPF_STRUCT_OPS(relay_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

SCX_OPS_DEFINE(relay_ops,
	       .enqueue			= (void *)relay_enqueue,
	       .dispatch		= (void *)relay_dispatch,
	       .exit			= (void *)relay_exit,
	       .timeout_ms		= 5000,
	       .name			= "relay");
