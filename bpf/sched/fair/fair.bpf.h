/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Types, limits, knobs and shared state of `fair`. The scheduler's idea is told in fair.bpf.c.
 *
 * Everything that is scheduled lives in an arena, so that it is reached by pointers: an entity leads to its queue, the queue to
 * the entity that stands for it one level up. `lock_cpu()` guards all queues of a CPU, including the entities on them.
 *
 * What is __weak is a global function: the kernel's verifier goes through it once, for any arguments, and not along each path
 * that leads there. Such a function takes numbers, and finds in `cpu_at(cpu)` what else it is about.
 */
#ifndef FAIR_BPF_H
#define FAIR_BPF_H

#include <scx/common.bpf.h>
#include <lib/kick.bpf.h>
#include <bpf_arena_common.bpf.h>
#include <lib/gang.bpf.h>
#include <lib/pelt.bpf.h>

/* Limits. More CPUs: refused when loaded. More or deeper cgroups: see group_of(). */
#define MAX_CPUS	1024
#define MAX_GROUPS	512
#define MAX_DEPTH	16	/* levels of queues, the root's included */
#define NR_LEVELS	4	/* of balancing: core, LLC, node, machine */

#define NICE_0_LOAD	1024
#define IDLE_LOAD	3	/* SCHED_IDLE */
#define MIN_SHARES	2
#define ROOT_GROUP	0
#define NO_CPU		(-1)

#define NSEC_PER_MSEC	1000000ULL
#define NSEC_PER_SEC	1000000000ULL

#define POLICY_BATCH	3
#define POLICY_IDLE	5

enum fair_load { FAIR_LOAD_WINDOW, FAIR_LOAD_PELT };
enum fair_numa { FAIR_NUMA_OFF, FAIR_NUMA_CONSOLIDATE, FAIR_NUMA_CONSOLIDATE__LOAD, FAIR_NUMA_CONSOLIDATE__FAULTS };

/* ---- memory ---- */

struct {
	__uint(type, BPF_MAP_TYPE_ARENA);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << 17);	/* pages: 512 MiB; only what is allocated exists */
	__ulong(map_extra, 0x1ull << 44);
} arena SEC(".maps");

/* It keeps what it counts in the arena too. */
#include <lib/numa.bpf.h>
enum fair_gang { FAIR_GANG_OFF, FAIR_GANG_V1, FAIR_GANG_V2 };
enum fair_gang_domain { FAIR_GANG_DOMAIN_CORE, FAIR_GANG_DOMAIN_LLC, FAIR_GANG_DOMAIN_NODE, FAIR_GANG_DOMAIN_ALL };

/* ---- what is scheduled ---- */

struct fair_rq;
struct fair_cpu;
struct fair_group;
typedef struct fair_rq __arena fair_rq_t;
typedef struct fair_cpu __arena fair_cpu_t;
typedef struct fair_group __arena fair_group_t;

/* A task, or a cgroup on one CPU. */
struct fair_entity {
	u64 vruntime;			/* ns of a nice 0 task, on the scale of `q` */
	u64 weight;
	u64 ran;			/* ns on a CPU, ever */
	u64 ran_at_pick;		/* `ran` when it was last picked */
	fair_rq_t *q;			/* queue whose scale vruntime is on; NULL: relative to any queue's min_vruntime */
	fair_rq_t *mine;		/* a cgroup's own queue; NULL: a task */
	struct fair_entity __arena *prev;	/* cgroups that wait, ordered by vruntime */
	struct fair_entity __arena *next;
	u32 on_rq;			/* runnable and counted in q */
	u32 listed;			/* in q's list */
	u64 skip_round;			/* a cgroup that gave nothing in this round of picking */
	/* load=pelt */
	struct pelt_avg avg;
	u64 contrib;			/* what it adds to its queue's load */
	s64 decays_at;			/* while blocked: q's decay counter; < 0: periods slept before it left its CPU */
};
typedef struct fair_entity __arena fair_entity_t;

/* The queue of one cgroup on one CPU. Its tasks wait in the DSQ, its child cgroups in the list. */
struct fair_rq {
	struct fair_entity se;		/* it, as an entity of its parent's queue; first, and unused for the root */
	u64 dsq;
	fair_cpu_t *on;			/* its CPU and its cgroup, and their numbers */
	fair_group_t *of;
	u32 cpu;
	u32 group;
	u32 depth;			/* root 0 */
	u32 nr;				/* runnable entities, the running one included */
	u32 h_nr;			/* runnable tasks here and below, not those of throttled cgroups */
	u32 has_head;			/* whether a task waits, and the vruntime of the first, as last seen */
	u64 head;
	struct fair_rq __arena *wait_prev;	/* while has_head: the CPU's list of such queues */
	struct fair_rq __arena *wait_next;
	u64 weight;			/* of the runnable entities */
	u64 min_vruntime;		/* never goes back */
	fair_entity_t *first;		/* waiting cgroups */
	fair_entity_t *last;
	fair_entity_t *curr;		/* runs now */
	fair_entity_t *buddy_next;	/* should run next, if that is not too unfair */
	fair_entity_t *buddy_last;	/* was preempted, has the cache */
	fair_entity_t *buddy_skip;	/* yielded */
	fair_entity_t *buddy_gang;	/* comes first in this pick */
	u64 gang_nr;			/* at a domain's first CPU: runnable tasks << 32 | CPUs that have one, in the domain */
	u64 gang_unfit_until;		/* there too: it leads no round before, as it does not fit, ns */
	u64 gang_window;		/* of the next two */
	u32 gang_active;		/* there too: tasks that ran in the window */
	u32 gang_pinned;		/* such tasks that are bound to this CPU */
	u32 gang_size;			/* there too: tasks that ran in the last window before it */
	u32 gang_pad;
	/* load=window */
	u64 load_avg;			/* weight * ns in the window, older windows folded in by halves */
	u64 load_period;		/* ns that load_avg is about */
	u64 load_stamp;
	u64 load_last;
	u64 load_contrib;		/* what the group's total knows of it */
	/* load=pelt */
	u64 runnable_load;		/* of its runnable entities */
	u64 blocked_load;		/* of those that sleep */
	u64 removed_load;		/* of sleepers that woke up elsewhere; added to by anybody */
	u64 decays;			/* periods by which blocked_load was decayed, from 1 */
	u64 last_decay;			/* the period of the last one */
	u64 tg_load_contrib;		/* what the group's totals know of it */
	u64 tg_runnable_contrib;
	u64 tg_usage_contrib;
	/* the CPU's list of queues with load left */
	struct fair_rq __arena *leaf_prev;
	struct fair_rq __arena *leaf_next;
	u32 leaf;			/* in the list */
	u32 leaf_below;			/* child cgroups that are */
	/* cpu.max */
	s64 runtime;			/* ns left of what it took from the group */
	u32 throttled;
	u32 pad;
	u64 throttled_at;		/* where its clock of load tracking stands: time of its parent's */
	u64 throttled_ns;		/* by which that clock is behind its parent's */
};

/* A cgroup. */
struct fair_group {
	fair_rq_t *rqs;			/* one per CPU */
	u64 cgid;
	u32 used;
	u32 parent;
	u32 depth;
	u32 pad;
	u64 shares;
	s64 load_weight;		/* window: of all CPUs */
	s64 load_avg;			/* pelt: of all CPUs */
	s64 runnable_avg;
	s64 usage_avg;
	u64 quota;			/* ns per period; 0: unlimited */
	u64 period;
	s64 pool;			/* ns of this period that no CPU took yet */
	u32 timer_on;
	u32 gang;			/* its switch is on */
	u32 gang_bad;			/* its switch is neither on nor off */
	u32 pad2;
	u64 gang_read_at;
};

struct fair_task {
	struct fair_entity se;		/* first */
	u32 group;
	s32 cpu;			/* where it is counted, or was last */
	u32 pid;
	u32 is_new;			/* never ran under us */
	u32 fresh;			/* became runnable, not yet queued */
	u32 queued;			/* in a DSQ, as far as we know */
	u32 nice;			/* and policy: what the weight was read from */
	u32 policy;
	u32 policy_idle;
	u32 policy_batch;
	u64 stopped_at;			/* when it last left a CPU */
	u64 waits_since;		/* when it began to wait */
	u64 ran_at_wake;		/* se.ran when it last woke up */
	/* gangs */
	u64 gang_window;		/* of the next two */
	u64 ran_at_window;		/* se.ran at the window's first look at it */
	u64 gang_noted;			/* counts as active in it */
	struct numa_member numa;
	u64 pinned_until;		/* it could not go to another node, and is not asked to before that */
	u32 numa_local;			/* its process belongs on this node: counted in nr_local */
	s32 sync_waker;			/* CPU of the task that woke it, and said that it is about to sleep; NO_CPU: none */
	struct fair_task __arena *free_next;
};
typedef struct fair_task __arena fair_task_t;

/* ---- CPUs ---- */

/* A task is pushed for its own sake, or two change places. */
enum numa_swap { SWAP_NONE, SWAP_FIRST, SWAP_SECOND };

enum balance_kind { BALANCE_IDLE, BALANCE_BUSY };

/* What balancing finds out about a group of CPUs. */
struct group_sum {
	u64 load;
	u64 power;
	u64 avg;			/* load by power */
	u64 max_load;			/* of its CPUs */
	u64 min_load;
	u32 max_nr;
	u32 min_nr;
	u32 nr;
	u32 idle;
	u32 cpus;
	u32 id;
	u32 capacity;			/* tasks that it can run at once */
	u32 has_capacity;		/* for one more */
	u32 uneven;			/* in itself */
	u32 pad;
};
typedef struct group_sum __arena group_sum_t;

/* One pass over a level. In the arena, so that the verifier does not follow every value of it. */
struct balance {
	struct group_sum local;
	struct group_sum busiest;
	struct group_sum sum;		/* the group that is being added up */
	u64 total_load;
	u64 total_power;
	u64 imbalance;			/* load that should move */
	u64 now;
	s32 cpu;			/* for which */
	u32 level;
	u32 kind;
	s32 first;			/* CPU of the local group, and first that is idle */
	s32 first_idle;
	u32 pad;
	u64 pass;			/* which it is: CPUs that it leaves out are marked with that */
};
typedef struct balance __arena balance_t;

struct pull {
	s32 from;
	s32 to;
	u64 imbalance;
	u64 now;
	u64 load;			/* of the task that was looked at last */
	u32 tries;			/* tasks that may still be looked at */
	u32 asks;			/* idle CPUs that may still be asked */
	u32 level;
	u32 take_hot;
	u32 pinned;			/* none of the tasks that were looked at may run here */
	/* numa */
	u32 helps;			/* only tasks whose process is not scattered by it */
	u32 full;			/* the node has no room for those whose process would be more together there */
	u32 gang;			/* only of that gang; ROOT_GROUP: of any cgroup */
	u32 pad;
	numa_proc_t *only;		/* only of that process */
};
typedef struct pull __arena pull_t;

/* A CPU's view of a level of balancing. */
struct fair_level {
	fair_cpu_t *from;	/* its span: so many CPUs, from this one on */
	u32 cpus;
	u32 pad;
	u64 last;			/* when it was last balanced, ns */
	u64 cost;			/* ns of a look when idle, on average */
	u32 interval;			/* ms */
	u32 failed;
	u32 first;			/* the span as a range of cpu_order */
	u32 end;
	u32 groups;			/* in the span */
	u32 nr_over;			/* at the span's first CPU: CPUs with more than one task */
};
typedef struct fair_level __arena fair_level_t;

struct fair_cpu {
	fair_rq_t *root;
	fair_cpu_t *next;		/* in cpu_order; of the last the first */
	fair_task_t *curr;
	u64 curr_base;			/* p->se.sum_exec_runtime that curr started from */
	u64 curr_charged;		/* ns charged since */
	u64 curr_at;			/* when last charged */
	u64 round;			/* of picking */
	fair_rq_t *level_of;		/* what choose() is about, and what it says */
	fair_entity_t *chosen;
	fair_task_t *want;		/* what pick() chose, if it is not the first of its DSQ */
	u32 leave_prev;			/* the task that ran is not to be picked: it goes elsewhere */
	/* balancing */
	u32 due;			/* levels whose time has come, as bits */
	s32 push_to;			/* the task that runs shall go there; NO_CPU: stays */
	u32 online;
	u32 power;			/* of a core without threads: CPU_POWER */
	u32 asked;			/* a busy CPU woke it up to balance */
	u32 repeats;			/* more should move than the task that just did */
	u64 passes;			/* of balancing, by this CPU */
	u64 skipped_by;			/* a pass that leaves this CPU out */
	u32 idled;			/* since load[] was updated */
	u32 spread_gang;		/* a task of that gang goes to spread_to; ROOT_GROUP: none */
	u64 spread_at;			/* when that was last looked at */
	s32 spread_to;
	u32 pad;
	fair_rq_t *waiting;		/* queues in whose DSQ a task waits */
	u64 idle_at;			/* since when nothing ran; 0: something does */
	u64 avg_idle;
	u64 busy_since;			/* when it was last idle */
	u64 load_at;			/* tick of the last update of load[] */
	u64 load[5];			/* load=window: averages over 1, 2, 4, 8, 16 ticks */
	u64 rescue_at;
	struct pelt_avg avg;		/* load=pelt: how much of the time it had work */
	struct pelt_avg report;		/* scratch of fair_report() */
	fair_rq_t *leafs;		/* queues with load left, children before their parents */
	fair_rq_t *leaf_at;		/* where the walk goes on; NULL: it begins anew */
	u64 leafs_at;			/* when a walk last began */
	u32 nr_throttled;		/* queues */
	u32 pad2;
	/* numa */
	numa_proc_t *proc;		/* of the task that runs here, or ran last; it may be gone by now */
	numa_proc_t *push_proc;		/* of the task that push_to is about; NULL: of any */
	numa_proc_t *swap_proc;		/* the process with which that one changes places */
	u64 swap_weight;
	u32 push_swap;			/* whether, and which of the two goes now */
	numa_proc_t *take;		/* what consolidate() is about: a process, and from which node */
	s32 take_from;
	u32 nr_local;			/* tasks here whose process belongs on this node */
	u32 look;			/* it was asked to consolidate */
	u32 pad3;
	u64 looked_at;
	u64 asked_at;			/* when it last asked another */
	struct fair_level level[NR_LEVELS];
	struct balance balance;
	struct pull pull;
};

struct fair_lock {
	struct bpf_spin_lock lock;
	u32 pad[15];	/* a cache line each */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct fair_lock);
} locks SEC(".maps");

/* ---- statistics ---- */

struct fair_stats {
	u64 picks;			/* decisions by ops.dispatch */
	u64 picks_prev;			/* that let the same task go on */
	u64 picks_buddy;
	u64 picks_stray;		/* found only by looking into every queue */
	u64 preempt_wakeup;
	u64 preempt_tick;
	u64 yields;
	u64 wakeups;
	u64 wake_affine;		/* placed near the waker */
	u64 wake_idle;			/* placed on an idle CPU other than the target */
	u64 migrate_wake;
	u64 migrate_fork;
	u64 migrate_newidle;
	u64 migrate_periodic;
	u64 migrate_active;
	u64 balance_newidle;		/* attempts */
	u64 balance_periodic;
	u64 balance_failed;
	u64 throttles;
	u64 unthrottles;
	u64 rescues;			/* tasks run because they had waited for rescue_ns */
	u64 groups_clamped;		/* cgroups without a queue of their own */
	u64 numa_pulls;			/* waiting tasks fetched to bring a process together */
	u64 numa_pulls_running;		/* running ones */
	u64 numa_first_pass;		/* balanced between nodes, to where their process is */
	u64 numa_second_pass;		/* for want of such */
	u64 numa_bounces_avoided;	/* not taken: came from another node a moment ago */
	u64 numa_waits;			/* not taken: it has not waited for long, and its process would be scattered */
	u64 numa_wakes;			/* tasks that woke up where their process is, and not where they slept */
	u64 numa_swaps;			/* tasks that changed places with one of another node */
	u64 numa_limited;		/* looks that found a process, but no room for it */
	u64 gang_rounds;		/* a CPU became leader */
	u64 gang_requests;		/* to CPUs with a task of the gang */
	u64 gang_favoured;		/* requests that were followed */
	u64 gang_declined;		/* requests that were not: unfair, too late, or a newer one came */
	u64 gang_released_early;	/* rounds that ended before their time */
	u64 gang_spread;		/* tasks put or sent where there were fewer of their gang */
	u64 gang_bad_values;		/* switches set to something that is neither 0 nor 1 */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct fair_stats);
} stats SEC(".maps");

#define count(field) ({							\
	u32 __zero = 0;							\
	struct fair_stats *__s = bpf_map_lookup_elem(&stats, &__zero);	\
	if (__s)							\
		__s->field++;						\
})

/* ---- knobs; meaning and bounds in fair.bpf.c ---- */

const volatile enum fair_load load = FAIR_LOAD_WINDOW;
const volatile enum fair_numa numa = FAIR_NUMA_OFF;
const volatile u64 numa_settle_ns = 32000000;
const volatile enum fair_gang gang = FAIR_GANG_OFF;
const volatile enum fair_gang_domain gang_domain = FAIR_GANG_DOMAIN_ALL;
const volatile u64 sched_latency_ns = 6000000;
const volatile u64 min_granularity_ns = 750000;
const volatile u64 wakeup_granularity_ns = 1000000;
const volatile u64 migration_cost_ns = 500000;
const volatile u64 shares_window_ns = 10000000;
const volatile u64 bandwidth_slice_ns = 5000000;
const volatile u64 rescue_ns = 10000000000ULL;
const volatile u32 nr_migrate = 32;
const volatile u32 tick_hz;

/* ---- the machine, from the recipe ---- */

const volatile u32 topo_cpus;			/* CPUs that the tables below are about; 0: no recipe, all alike */
const volatile u32 cpu_core[MAX_CPUS];
const volatile u32 cpu_llc[MAX_CPUS];
const volatile u32 cpu_node[MAX_CPUS];
const volatile u32 cpu_order[MAX_CPUS];		/* all CPUs: those of a core, an LLC, a node follow each other */
const volatile u32 core_size[MAX_CPUS];		/* CPUs in the core of that CPU */

/* ---- state ---- */

static u32 nr_cpus;
static u32 factor = 1;				/* of the granularities: 1 + log2(CPUs), CPUs up to 8 */
static fair_cpu_t *cpus;
static fair_group_t *groups;
static u32 nr_groups;				/* slots in use or used before */
static u64 leaf_round_at;			/* when idle CPUs' queues are to be looked at */
static volatile u64 nought;			/* 0, and the verifier does not know: sums that start there have no bounds, which would
						 * grow with each turn of a loop */
static u32 leaf_round_cpu;			/* from which CPU on */

static const u32 nice_weight[40] = {
	88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916,
	9548, 7620, 6100, 4904, 3906, 3121, 2501, 1991, 1586, 1277,
	1024, 820, 655, 526, 423, 335, 272, 215, 172, 137,
	110, 87, 70, 56, 45, 36, 29, 23, 18, 15,
};

struct task_stor {
	fair_task_t *t;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_stor);
} tasks SEC(".maps");

/* The verifier wants a program that uses the arena to name its map; most have no other reason to. */
#define use_arena() asm volatile("" :: "r"(&arena))

/* NULL for a task that init_task() did not see. */
static __always_inline fair_task_t *task_of(struct task_struct *p)
{
	struct task_stor *s = bpf_task_storage_get(&tasks, p, 0, 0);

	use_arena();
	return s ? s->t : NULL;
}

/* Any number is safe: what lies outside of the arena reads as 0 and is not written. */
static __always_inline fair_cpu_t *cpu_at(u32 cpu)
{
	return cpus + cpu;
}

static __always_inline void kick(s32 cpu, u64 flags)
{
	kick_from(cpu_at(bpf_get_smp_processor_id())->online, cpu, flags);
}

static __always_inline fair_group_t *group_at(u32 group)
{
	return groups + group;
}

static __always_inline fair_rq_t *rq_at(u32 group, u32 cpu)
{
	return group_at(group)->rqs + cpu;
}

/* Masked, not tested: the verifier wants a proof. Without a recipe every CPU is a core, and all share a cache and a node. */
static __always_inline u32 core_of(u32 cpu)
{
	return topo_cpus ? cpu_core[cpu & (MAX_CPUS - 1)] : cpu;
}

static __always_inline u32 llc_of(u32 cpu)
{
	return cpu_llc[cpu & (MAX_CPUS - 1)];
}

static __always_inline u32 node_of(u32 cpu)
{
	return cpu_node[cpu & (MAX_CPUS - 1)];
}

static __always_inline u32 nth_cpu(u32 i)
{
	return topo_cpus ? cpu_order[i & (MAX_CPUS - 1)] : i;
}

/* Whether the queue or one above is throttled. */
static __always_inline bool is_held(fair_rq_t *q)
{
	if (!q->on->nr_throttled)
		return false;
	while (q->depth && can_loop) {
		if (q->throttled)
			return true;
		q = q->se.q;
	}
	return false;
}

static __always_inline struct fair_lock *lock_of(u32 cpu)
{
	return bpf_map_lookup_elem(&locks, &cpu);
}

/*
 * clang makes one memset of stores of 0 side by side, and forgets that it is to the arena: the pointer is not cast, and the
 * verifier refuses it. This keeps them apart.
 */
#define apart() asm volatile("" ::: "memory")

/* All words of something in the arena. */
static __noinline void zero_words(u64 __arena *words, u32 bytes)
{
	u32 i;

	for (i = 0; i < bytes / 8 && can_loop; i++)
		words[i] = 0;
}

static __noinline void copy_words(u64 __arena *to, u64 __arena *from, u32 bytes)
{
	u32 i;

	for (i = 0; i < bytes / 8 && can_loop; i++)
		to[i] = from[i];
}

static __always_inline u64 max_u64(u64 a, u64 b)
{
	return a > b ? a : b;
}

static __always_inline u64 min_u64(u64 a, u64 b)
{
	return a < b ? a : b;
}

#endif
