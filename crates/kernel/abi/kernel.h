/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The part of Linux 7.3's types that the simulated kernel models. For a field that is not here,
 * bpf_core_field_exists() is false, and an object that requires the field is refused with an error
 * that names it.
 *
 * Owns: names, types and layout. The layout may differ from the kernel's, because every access of
 * an object is relocated by field name. Structs that a program puts on its stack or in its maps
 * have the kernel's layout: iterators, locks, timers, lists, and the argument structs in ops.h.
 * Does not: declare functions (kfuncs.h) or the scheduler's side of sched_ext (ops.h).
 * Models: 7.3, include/linux/sched.h and related headers. tools/check-abi.py checks against a real
 * kernel's BTF that each field exists there with the same kind and size.
 */
#ifndef ABI_KERNEL_H
#define ABI_KERNEL_H

#include "types.h"
#include "enums.h"
#include "ops.h"

/* Debian's CONFIG_NR_CPUS and CONFIG_NODES_SHIFT. */
#define NR_CPUS 8192
#define MAX_NUMNODES 1024
/* Levels of cgroups, root included. The simulator refuses more; the kernel has no such bound. */
#define CGROUP_LEVELS 32

struct cpumask {
	unsigned long bits[NR_CPUS / 64];
};
typedef struct cpumask cpumask_t;

typedef struct {
	unsigned long bits[MAX_NUMNODES / 64];
} nodemask_t;

/* Object that bpf_cpumask_create() returns. */
struct bpf_cpumask {
	cpumask_t cpumask;
	refcount_t usage;
};

/* ---- tasks ---- */

struct thread_info {
	u32 cpu;
};

/* The times of sched_info are in ns, on the run queue's clock. */
struct sched_info {
	unsigned long pcount;		/* number of switches to the task */
	unsigned long long run_delay;	/* sum of the ended waits for a CPU */
	unsigned long long last_arrival;
	unsigned long long last_queued;	/* start of the present wait; 0 if the task does not wait */
};

struct sched_avg {
	unsigned long util_avg;	/* utilisation, in 1/1024 of a full-speed CPU */
};

struct sched_entity {
	u64 sum_exec_runtime;	/* ns */
	u64 nr_migrations;
	struct sched_avg avg;	/* utilisation, as last updated by the default class */
};

struct sched_ext_entity {
	/* Pending direct-dispatch verdict: DSQ, flags, slice and vtime of the insertion. */
	u64 ddsp_dsq_id;
	u64 ddsp_enq_flags;
	u64 ddsp_slice;
	u64 ddsp_vtime;
	u32 flags;		/* enum scx_ent_flags */
	u32 weight;		/* 1..10000, 100 at nice 0 */
	s32 selected_cpu;	/* CPU last chosen by ops.select_cpu() or the built-in picker */
	unsigned long runnable_at;	/* jiffies */
	u64 tid;
	u64 slice;		/* ns left */
	u64 dsq_vtime;
	bool disallow;
};

/*
 * The simulator reserves a slot of little more than 2 KiB of guest memory for each task. Half of
 * the slot is cpus_mask, which has the kernel's length on every machine. A test checks that
 * task_struct fits the slot. Another test (crates/testkit/tests/kernel_fields.rs) checks that each
 * field is filled, or is listed with the reason why it never changes.
 */
struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	unsigned int flags;	/* PF_* */
	u8 on_cpu;
	u8 on_rq;
	int prio;
	int static_prio;
	int normal_prio;
	unsigned int rt_priority;
	unsigned int policy;
	struct sched_entity se;
	struct sched_ext_entity scx;
	struct sched_info sched_info;
	u64 utime;		/* ns, whole ticks that found the task in user mode */
	u64 stime;		/* ns, whole ticks that found the task in the kernel */
	unsigned long nvcsw;
	unsigned long nivcsw;
	const ptr(struct sched_class) sched_class;
	ptr(struct task_group) sched_task_group;
	const ptr(cpumask_t) cpus_ptr;
	int nr_cpus_allowed;
	u16 migration_disabled;
	ptr(struct mm_struct) mm;
	pid_t pid;
	pid_t tgid;
	ptr(struct task_struct) real_parent;
	ptr(struct task_struct) parent;
	ptr(struct task_struct) group_leader;
	ptr(struct pid) thread_pid;
	struct list_head thread_node;	/* links in the list signal->thread_head */
	u64 start_time;		/* ns, monotonic */
	u64 start_boottime;	/* ns */
	const ptr(struct cred) real_cred;
	const ptr(struct cred) cred;
	char comm[16];
	ptr(struct signal_struct) signal;
	ptr(struct css_set) cgroups;
	ptr(struct mempolicy) mempolicy;
	int numa_preferred_nid;
	unsigned long total_numa_faults;
	unsigned long numa_pages_migrated;
	/* cpus_mask comes last, so that the fields that a task switch writes lie together. */
	cpumask_t cpus_mask;
};

/* An address space. Each thread group has one. */
struct mm_struct {
	ptr(struct task_struct) owner;
};

struct cred {
	kuid_t uid;
	kgid_t gid;
	kuid_t suid;
	kgid_t sgid;
	kuid_t euid;
	kgid_t egid;
};

struct ns_common {
	unsigned int inum;
};

/* Only the initial pid namespace exists. */
struct pid_namespace {
	unsigned int level;
	struct ns_common ns;
};

struct upid {
	int nr;
	ptr(struct pid_namespace) ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct signal_struct {
	int nr_threads;
	struct list_head thread_head;
	ptr(struct pid) pids[PIDTYPE_MAX];
};

struct mempolicy {
	unsigned short mode;
	unsigned short flags;
	nodemask_t nodes;
	int home_node;
};

/* ---- cgroups ---- */

struct kernfs_node {
	const ptr(char) name;
	u64 id;
};

/*
 * The simulator sets bit 1 (__PERCPU_REF_DEAD) of percpu_count_ptr when it removes the cgroup. In
 * the real kernel the other bits are a pointer to counters; here they are the cgroup's guest
 * address.
 */
struct percpu_ref {
	unsigned long percpu_count_ptr;
};

struct cgroup_subsys_state {
	ptr(struct cgroup) cgroup;
	struct percpu_ref refcnt;
	ptr(struct cgroup_subsys_state) parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	int level;
	ptr(struct kernfs_node) kn;
	ptr(struct cgroup_subsys_state) subsys[CGROUP_SUBSYS_COUNT];
	ptr(struct cgroup) dom_cgrp;
	ptr(struct cgroup) ancestors[CGROUP_LEVELS];
};

struct css_set {
	ptr(struct cgroup_subsys_state) subsys[CGROUP_SUBSYS_COUNT];
	ptr(struct cgroup) dfl_cgrp;
};

struct scx_task_group {
	u32 weight;
	u64 bw_period_us;
	u64 bw_quota_us;
	u64 bw_burst_us;
	bool idle;
};

/*
 * The cpu controller's state of a cgroup. css is the first member, because objects cast pointers
 * between the css and the task_group.
 */
struct task_group {
	struct cgroup_subsys_state css;
	int idle;
	struct scx_task_group scx;
	ptr(struct task_group) parent;
};

/* ---- CPUs ---- */

struct rq {
	unsigned int nr_running;
	unsigned long cpu_capacity;
	ptr(struct task_struct) curr;
	ptr(struct task_struct) idle;
	u64 nr_switches;
	u64 clock_task;
	u64 clock_pelt;
	u64 clock;
	unsigned long lost_idle_time;
	int cpu;
	int online;
};

struct cpufreq_cpuinfo {
	unsigned int max_freq;	/* kHz, as are all frequencies in these structs */
	unsigned int min_freq;
};

struct cpufreq_policy {
	unsigned int cpu;
	struct cpufreq_cpuinfo cpuinfo;
	unsigned int min;
	unsigned int max;
	unsigned int cur;
};

struct kernel_cpustat {
	u64 cpustat[NR_STATS];	/* ns */
};

/* ---- structs that BPF programs own: sizes are the kernel's ---- */

struct bpf_iter_num {
	u64 __opaque[1];
};

struct bpf_iter_scx_dsq {
	u64 __opaque[6];
};

struct bpf_iter_css {
	u64 __opaque[3];
};

struct bpf_iter_css_task {
	u64 __opaque[1];
};

struct bpf_iter_task {
	u64 __opaque[3];
};

struct bpf_iter_bits {
	u64 __opaque[2];
};

struct bpf_timer {
	u64 __opaque[2];
};

struct bpf_spin_lock {
	u32 val;
};

struct bpf_res_spin_lock {
	u32 val;
};

struct bpf_rb_root {
	u64 __opaque[2];
};

struct bpf_rb_node {
	u64 __opaque[4];
};

/* Kernel functions take bpf_prog_aux only by pointer, so it needs no members here. */
struct bpf_prog_aux;

struct bpf_list_head {
	u64 __opaque[2];
};

struct bpf_list_node {
	u64 __opaque[3];
};

struct bpf_refcount {
	u32 __opaque[1];
};

struct bpf_dynptr {
	u64 __opaque[2];
};

struct bpf_perf_event_value {
	u64 counter;
	u64 enabled;
	u64 running;
};

/* The context of an iter/task program. */
struct bpf_iter_meta {
	ptr(struct seq_file) seq;
	u64 session_id;
	u64 seq_num;
};

struct bpf_iter__task {
	ptr(struct bpf_iter_meta) meta;
	ptr(struct task_struct) task;
};

#endif
