// SPDX-License-Identifier: GPL-2.0-only
/*
 * witness: records every call of the kernel to an operation (struct sched_ext_ops) of a scheduler,
 * whichever the scheduler is.
 *
 * The witness consists of tracing programs, one for each operation, which run at the entries of the
 * scheduler's programs. crates/live/src/witness.rs sets the target of each tracing program, and
 * does not load those for operations that the scheduler lacks. crates/kernel/src/ext/op_record.rs
 * records the same data for the simulated kernel.
 */
#include <scx/common.bpf.h>
#include "witness.h"

char _license[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} ring SEC(".maps");

u64 nr_lost;

/*
 * Arguments of an operation. They are one array, whose address is the only argument of a tracing
 * program.
 */
struct args {
	u64 word[4];
};

static u64 first_byte(u64 at)
{
	u8 byte = 0;

	bpf_probe_read_kernel(&byte, sizeof(byte), (void *)at);
	return byte;
}

static u64 first_int(u64 at)
{
	u32 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), (void *)at);
	return word;
}

/* Returns the number of CPUs among a cpumask's first 64. */
static u64 first_cpus(u64 at)
{
	u64 bits = 0, nr = 0;
	int i;

	bpf_probe_read_kernel(&bits, sizeof(bits), (void *)at);
	bpf_for(i, 0, 64)
		nr += (bits >> i) & 1;
	return nr;
}

static void note(u32 op, const struct args *args, bool has_task, u64 told)
{
	struct task_struct *p = (void *)args->word[0];
	struct entry e = { .op = op, .pid = -1, .told = told, .at = bpf_ktime_get_ns() };

	if (has_task) {
		e.pid = BPF_CORE_READ(p, pid);
		bpf_probe_read_kernel_str(e.comm, sizeof(e.comm), &p->comm);
	}
	if (bpf_ringbuf_output(&ring, &e, sizeof(e), BPF_RB_NO_WAKEUP))
		__sync_fetch_and_add(&nr_lost, 1);
}

#define ARG(n) (args.word[n])

/* Defines the tracing program of an operation. Its name is `on_` and the operation's name. */
#define WITNESS(name, op, has_task, told)						\
SEC("fentry")										\
int on_##name(u64 *ctx)									\
{											\
	struct args args = {};								\
											\
	bpf_probe_read_kernel(&args, sizeof(args), (void *)ctx[0]);			\
	note(op, &args, has_task, told);						\
	return 0;									\
}

WITNESS(select_cpu, OP_SELECT_CPU, true, ARG(2))
WITNESS(enqueue, OP_ENQUEUE, true, ARG(1))
WITNESS(dequeue, OP_DEQUEUE, true, ARG(1))
WITNESS(tick, OP_TICK, true, 0)
WITNESS(runnable, OP_RUNNABLE, true, ARG(1))
WITNESS(running, OP_RUNNING, true, 0)
WITNESS(stopping, OP_STOPPING, true, (u8)ARG(1))
WITNESS(quiescent, OP_QUIESCENT, true, ARG(1))
WITNESS(yield, OP_YIELD, true, !!ARG(1))
WITNESS(set_weight, OP_SET_WEIGHT, true, (u32)ARG(1))
WITNESS(set_cpumask, OP_SET_CPUMASK, true, first_cpus(ARG(1)))
WITNESS(init_task, OP_INIT_TASK, true, first_byte(ARG(1)))
WITNESS(exit_task, OP_EXIT_TASK, true, first_byte(ARG(1)))
WITNESS(enable, OP_ENABLE, true, 0)
WITNESS(disable, OP_DISABLE, true, 0)
WITNESS(cgroup_init, OP_CGROUP_INIT, false, first_int(ARG(1)))
WITNESS(cgroup_exit, OP_CGROUP_EXIT, false, 0)
WITNESS(cgroup_prep_move, OP_CGROUP_PREP_MOVE, true, 0)
WITNESS(cgroup_move, OP_CGROUP_MOVE, true, 0)
WITNESS(cgroup_cancel_move, OP_CGROUP_CANCEL_MOVE, true, 0)
WITNESS(cgroup_set_weight, OP_CGROUP_SET_WEIGHT, false, (u32)ARG(1))
WITNESS(cpu_online, OP_CPU_ONLINE, false, (u32)ARG(0))
WITNESS(cpu_offline, OP_CPU_OFFLINE, false, (u32)ARG(0))
WITNESS(init, OP_INIT, false, 0)
WITNESS(exit, OP_EXIT, false, first_int(ARG(0)))
