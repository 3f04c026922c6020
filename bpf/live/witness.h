/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Interface between the witness and its reader, crates/lab/src/conform/log.rs.
 */
#ifndef __SCXLAB_WITNESS_H
#define __SCXLAB_WITNESS_H

/* A scheduler's operations, in the order of the array OPS in crates/lab/src/conform/log.rs. */
enum witnessed_op {
	OP_SELECT_CPU, OP_ENQUEUE, OP_DEQUEUE, OP_TICK, OP_RUNNABLE, OP_RUNNING, OP_STOPPING, OP_QUIESCENT,
	OP_YIELD, OP_SET_WEIGHT, OP_SET_CPUMASK, OP_INIT_TASK, OP_EXIT_TASK, OP_ENABLE, OP_DISABLE, OP_CGROUP_INIT,
	OP_CGROUP_EXIT, OP_CGROUP_PREP_MOVE, OP_CGROUP_MOVE, OP_CGROUP_CANCEL_MOVE, OP_CGROUP_SET_WEIGHT,
	OP_CPU_ONLINE, OP_CPU_OFFLINE, OP_INIT, OP_EXIT,
};

struct entry {
	u32 op;		/* enum witnessed_op */
	s32 pid;	/* pid of the operation's task; -1: the operation has no task */
	u64 told;	/* argument of the operation: flags, weight or CPU */
	u64 at;		/* bpf_ktime_get_ns() */
	char comm[16];
};

#endif
