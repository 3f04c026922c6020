/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Types that all parts of credit share: vCPUs, CPUs, knobs, statistics. Terms are in credit.bpf.c.
 */
#ifndef SCXLAB_CREDIT_BPF_H
#define SCXLAB_CREDIT_BPF_H

#include <scx/common.bpf.h>
#include <lib/knob.h>
#include <lib/kick.bpf.h>
#include <lib/tickle.bpf.h>

#define PRI_IDLE	TICKLE_PRI_IDLE
#define PRI_OVER	TICKLE_PRI_OVER
#define PRI_UNDER	TICKLE_PRI_UNDER
#define PRI_BOOST	TICKLE_PRI_BOOST

/* The kernel's limit of CPUs. It is a power of two, so that indexes can be masked. */
#define MAX_CPUS	8192
#define MAX_VCPUS	65536
#define MAX_DOMS	4096
#define ROOT_DOM	0

#define NS_PER_US	1000ULL
#define NS_PER_MS	1000000ULL

/* Whether a domain's weight is shared by its vCPUs, or each vCPU has the whole weight. */
enum credit_weight_of {
	CREDIT_WEIGHT_OF_DOMAIN,
	CREDIT_WEIGHT_OF_VCPU,
};

KNOB(enum tickle_mode, tickle, TICKLE_NEW,
	     "old: a woken vCPU of higher priority preempts the running one, and idle CPUs are "
	     "kicked as well. new: if the vCPU may run on an idle CPU, only such a CPU is kicked; "
	     "if it may run on none of them, the running vCPU moves to one");
KNOB(bool, tickle_one_idle, true,
	     "1: a wake-up kicks one idle CPU, in rotation; 0: it kicks all on which the vCPU may run");
KNOB(enum credit_weight_of, weight_of, CREDIT_WEIGHT_OF_DOMAIN,
	     "domain: a domain's vCPUs share its weight, as a cgroup's tasks do. vcpu: each vCPU "
	     "has the whole weight, as in Xen of 2012");
KNOB(u32, tslice_ms, 30,
	     "time slice and accounting period, 1 to 1000; a tick is a third of it (Xen's "
	     "sched_credit_tslice_ms)");
KNOB(u32, ratelimit_us, 1000,
	     "shortest run before a preemption; 0: no limit; at most tslice_ms (Xen's "
	     "sched_ratelimit_us)");
KNOB(u32, vcpu_migration_delay_us, 0,
	     "a vCPU that ran less than this ago is cache-hot and not stolen (Xen's boot parameter "
	     "with the same default)");
KNOB(u32, rescue_ms, 8000,
	     "a vCPU that has waited longer than this behind vCPUs of higher priority runs next; "
	     "0: never, as in Xen");
KNOB(u32, park_max_ms, 8000,
	     "longest time for which a vCPU is parked, 1 to 8000");

/*
 * Topology of the machine, which recipes/credit.toml fills in before the load. Without the recipe
 * each CPU is a core, and all CPUs are in one socket.
 */
const volatile bool topology_known = false;
u16 cpu_core[MAX_CPUS];
u16 cpu_socket[MAX_CPUS];

/* State of a task, in a slot that the task has from its creation to its exit. Slots are reused. */
struct vcpu {
	s64 credit_us;		/* credit left; changed atomically by the vCPU's CPU and by the
				 * accounting */
	u64 charged_to;		/* time up to which this run has been charged */
	u64 run_since;
	u64 last_run;		/* when the vCPU last left a CPU */
	u64 queued_at;
	u64 parked_at;
	s32 pri;
	s32 cpu;		/* CPU on which the vCPU is queued or runs, or last was */
	u32 dom;
	u32 slot;
	u32 pid;
	bool parked;		/* the domain is over its cap, so the vCPU waits in the parked
				 * queue */
	bool migrating;		/* a CPU is to be chosen anew as soon as the vCPU is off its CPU */
	bool yielded;
	bool requeue;		/* the vCPU left a CPU but is runnable: its next enqueue is no
				 * wake-up */
	bool asleep;
	bool fresh;		/* the vCPU was never enqueued */
	bool exempt;		/* a kernel thread: never parked */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VCPUS);
	__type(key, u32);
	__type(value, struct vcpu);
} vcpus SEC(".maps");

struct vcpu_ref {
	u32 slot;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct vcpu_ref);
} vcpu_refs SEC(".maps");

struct cpu_ctx {
	u32 cur;		/* slot + 1 of the running vCPU; 0: no vCPU runs */
	u32 sorted;		/* accounting period of the last sort of the CPU's queues */
	u32 last_tickle;	/* idler that this CPU's last wake-up tickled */
	u32 idle;		/* the CPU is counted in core_idle and socket_idle */
	u32 offline;		/* the CPU leaves or is off line; the kernel's idle mask may
				 * still have it */
	u32 called;		/* the accounting kicked the CPU, which was idle while tasks
				 * waited in its own queues */
	u32 stands_still;	/* the CPU stayed idle after the accounting's kick */
	u64 next_tick;
} __attribute__((aligned(64)));

struct cpu_ctx cpu_ctxs[MAX_CPUS];
u32 core_idle[MAX_CPUS];
u32 socket_idle[MAX_CPUS];
u32 nr_idle;
u32 nr_cpus;

/* Number of accountings. A CPU sorts its queues if it last sorted them in an earlier period. */
u32 period;

/* Statistics of the scheduler, with Xen's names where Xen has the counter. */
struct credit_stats {
	u64 schedule;
	u64 tickle_local_idler;
	u64 tickle_local_over;
	u64 tickle_local_under;
	u64 tickle_local_other;
	u64 tickle_idlers_none;
	u64 tickle_idlers_some;
	u64 tickle_preempt;		/* busy CPUs that a wake-up told to reschedule */
	u64 migrate_kicked_away;
	u64 migrate_running;
	u64 migrate_queued;
	u64 load_balance_idle;
	u64 load_balance_over;
	u64 steal_peer_idle;
	u64 vcpu_hot;
	u64 vcpu_wake_runnable;
	u64 vcpu_park;
	u64 vcpu_unpark;
	u64 park_forgiven;		/* vCPUs unparked with debt after park_max_ms */
	u64 acct_run;
	u64 acct_no_work;
	u64 acct_balance;
	u64 acct_reorder;
	u64 acct_min_credit;
	u64 acct_vcpu_active;
	u64 acct_vcpu_idle;
	u64 delay_ms;			/* preemptions that ratelimit_us prevented */
	u64 rescued;			/* vCPUs run out of turn after rescue_ms */
	u64 vcpu_init;
	u64 vcpu_destroy;
	u64 vcpu_unaccounted;		/* tasks beyond MAX_VCPUS */
	u64 dom_init;
	u64 dom_destroy;
	u64 dom_shared;			/* cgroups beyond MAX_DOMS, which share their parent's domain */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct credit_stats);
} stats SEC(".maps");

#define STAT(field) STAT_ADD(field, 1)
#define STAT_ADD(field, n)							\
do {										\
	u32 __key = 0;								\
	struct credit_stats *__s = bpf_map_lookup_elem(&stats, &__key);		\
	if (__s)								\
		__s->field += (n);						\
} while (0)

/* Counters of one vCPU, created with the first event and dropped when the task exits. */
struct credit_task_stats {
	u64 kicked_away;
	u64 migrate_r;
	u64 migrate_q;
	u64 state_active;
	u64 state_idle;
	u64 parked;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_VCPUS);
	__type(key, u32);
	__type(value, struct credit_task_stats);
} task_stats SEC(".maps");

static __noinline struct credit_task_stats *task_stat(u32 pid)
{
	struct credit_task_stats *s = bpf_map_lookup_elem(&task_stats, &pid), none = {};

	if (s)
		return s;
	bpf_map_update_elem(&task_stats, &pid, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&task_stats, &pid);
}

#define TASK_STAT(v, field)							\
do {										\
	struct credit_task_stats *__t = task_stat((v)->pid);			\
	if (__t)								\
		__sync_fetch_and_add(&__t->field, 1);				\
} while (0)

static __always_inline struct cpu_ctx *cpu_ctx(s32 cpu)
{
	return &cpu_ctxs[cpu & (MAX_CPUS - 1)];
}

static __always_inline void kick(s32 cpu, u64 flags)
{
	kick_from(!cpu_ctx(bpf_get_smp_processor_id())->offline, cpu, flags);
}

static __always_inline struct vcpu *vcpu_at(u32 slot)
{
	return bpf_map_lookup_elem(&vcpus, &slot);
}

/* Returns NULL for a task beyond MAX_VCPUS. */
static __always_inline struct vcpu *vcpu_of(struct task_struct *p)
{
	struct vcpu_ref *ref = bpf_task_storage_get(&vcpu_refs, p, 0, 0);

	return ref ? vcpu_at(ref->slot) : NULL;
}

/* The vCPU that runs on a CPU, or NULL. */
static __always_inline struct vcpu *current_vcpu(s32 cpu)
{
	u32 cur = cpu_ctx(cpu)->cur;

	return cur ? vcpu_at(cur - 1) : NULL;
}

static __always_inline u64 tslice_us(void)
{
	return tslice_ms * 1000ULL;
}

/* Returns the length of a tick: a third of a time slice. */
static __always_inline u64 tick_ns(void)
{
	return tslice_ms * NS_PER_MS / 3;
}

/*
 * Returns whether the vCPU must not run because it is parked. Parking can stop a task at any point
 * of its code, so a task that holds kernel resources for others must not be parked. A user task
 * that was preempted inside a system call may be parked all the same, and park_max_ms bounds for
 * how long.
 */
static __always_inline bool is_parked(const struct vcpu *v, struct task_struct *p)
{
	return v->parked && !v->exempt && !is_migration_disabled(p) && !(p->flags & PF_EXITING);
}

#endif /* SCXLAB_CREDIT_BPF_H */
