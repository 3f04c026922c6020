/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Replacement of scx's header `scx/common.bpf.h`, with which the source of the scheduler `vtime` is
 * compiled for this machine.
 *
 * The replacement declares only what bpf/sched/vtime uses. Kernel functions are real calls
 * (kfuncs.c), as they are for BPF; operations are functions that take their arguments in registers.
 */
#include <stdbool.h>
#include <stddef.h>

typedef unsigned char u8;
typedef int s32;
typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;

#define SEC(name)
#define __ksym
#define __weak __attribute__((weak))
#define E2BIG 7

#define BPF_STRUCT_OPS(name, args...) name(args)
#define BPF_STRUCT_OPS_SLEEPABLE(name, args...) name(void)
#define SCX_OPS_DEFINE(name, ...)
#define UEI_DEFINE(name)
#define UEI_RECORD(name, ei) ((void)(ei))

#define bpf_for(i, start, end) for ((i) = (start); (i) < (end); (i)++)
#define bpf_ksym_exists(symbol) (true)
#define bpf_per_cpu_ptr(ptr, cpu) (ptr)
#define time_before(a, b) ((s64)((a) - (b)) < 0)
#define scx_bpf_error(...) ((void)0)

enum {
	SCX_ENQ_WAKEUP = 1,
	SCX_TASK_QUEUED = 1,
	SCX_KICK_IDLE = 1,
};
#define SCX_DSQ_LOCAL (0x8000000000000002ULL)

struct scx_exit_info;
struct cpumask;

/* Same layout as `struct Task` in ops.rs. */
struct task_struct {
	struct {
		u64 dsq_vtime;
		u64 slice;
		u32 weight;
		u32 flags;
	} scx;
	const struct cpumask *cpus_ptr;
};

s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags, bool *is_idle);
bool scx_bpf_dsq_insert(struct task_struct *p, u64 dsq, u64 slice, u64 enq_flags);
bool scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq, u64 slice, u64 vtime, u64 enq_flags);
bool scx_bpf_dsq_move_to_local(u64 dsq, u64 enq_flags);
struct task_struct *scx_bpf_dsq_peek(u64 dsq);
bool scx_bpf_task_set_slice(struct task_struct *p, u64 slice);
bool scx_bpf_task_set_dsq_vtime(struct task_struct *p, u64 vtime);
s32 scx_bpf_task_cpu(const struct task_struct *p);
s32 scx_bpf_create_dsq(u64 dsq, s32 node);
u32 scx_bpf_nr_cpu_ids(void);
s32 scx_bpf_pick_idle_cpu(const struct cpumask *allowed, u64 flags);
void scx_bpf_kick_cpu(s32 cpu, u64 flags);
