/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Types, limits, knobs and shared state of `fair`. fair.bpf.c explains the scheduler.
 *
 * Entities and queues live in an arena and refer to each other by pointers: an entity to its queue,
 * a queue to the entity that stands for it one level up. A CPU's lock, see lock_of(), guards all
 * queues of the CPU, including the entities on them.
 *
 * A __weak function is global: the verifier walks through it once, for any arguments, and not on
 * each path that leads to it. Such a function takes only numbers, and finds everything else in
 * `cpu_at(cpu)`.
 */
#ifndef FAIR_BPF_H
#define FAIR_BPF_H

#include <scx/common.bpf.h>
#include <lib/knob.h>
#include <lib/kick.bpf.h>
#include <bpf_arena_common.bpf.h>
#include <lib/gang.bpf.h>
#include <lib/pelt.bpf.h>

/*
 * Limits. init refuses a machine with more CPUs. A cgroup beyond the limits of number and depth has
 * no queues of its own, see make_group().
 */
#define MAX_CPUS	1024
#define MAX_GROUPS	512
#define MAX_DEPTH	16	/* levels of queues, the root's included */
#define NR_LEVELS	4	/* levels of balancing: core, LLC, node, machine */

#define NICE_0_LOAD	1024
#define IDLE_LOAD	3	/* weight of a SCHED_IDLE task */
#define MIN_SHARES	2
#define ROOT_GROUP	0
#define NO_CPU		(-1)

#define NSEC_PER_MSEC	1000000ULL
#define NSEC_PER_SEC	1000000000ULL

#define POLICY_BATCH	3
#define POLICY_IDLE	5

enum fair_load { FAIR_LOAD_WINDOW, FAIR_LOAD_PELT };
enum fair_numa {
	FAIR_NUMA_OFF,
	FAIR_NUMA_CONSOLIDATE,
	FAIR_NUMA_CONSOLIDATE__LOAD,
	FAIR_NUMA_CONSOLIDATE__FAULTS,
	FAIR_NUMA_PREFERRED,
};

/* ---- memory ---- */

struct {
	__uint(type, BPF_MAP_TYPE_ARENA);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << 17);	/* pages: 512 MiB; only allocated pages take memory */
	__ulong(map_extra, 0x1ull << 44);
} arena SEC(".maps");

/* lib/numa.bpf.h keeps its counters in the arena, too. */
#include <lib/numa.bpf.h>
enum fair_numa_room { FAIR_NUMA_ROOM_CORES, FAIR_NUMA_ROOM_CPUS };
enum fair_gang { FAIR_GANG_OFF, FAIR_GANG_V1, FAIR_GANG_V2 };
enum fair_gang_rules { FAIR_GANG_RULES_BOUNDED, FAIR_GANG_RULES_POSTED };
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
	u64 vruntime;			/* in ns of a nice 0 task; comparable within `q` only */
	u64 weight;
	u64 ran;			/* CPU time of the entity in its whole life, ns */
	u64 ran_at_pick;		/* `ran` when the entity was last picked */
	fair_rq_t *q;			/* queue that vruntime refers to; NULL: vruntime is
					 * relative to a min_vruntime */
	fair_rq_t *mine;		/* a cgroup's own queue; NULL for a task */
	struct fair_entity __arena *prev;	/* neighbours among q's waiting cgroups, by
						 * vruntime */
	struct fair_entity __arena *next;
	u32 on_rq;			/* runnable and counted in q */
	u32 listed;			/* in q's list of waiting cgroups */
	u64 skip_round;			/* pick() leaves the cgroup out while this equals the
					 * CPU's `round` */
	/* load=pelt */
	struct pelt_avg avg;
	u64 contrib;			/* the entity's part of q's load */
	s64 decays_at;			/* while blocked: value of q->decays up to which contrib
					 * is decayed; < 0: minus the number of periods that the
					 * entity slept on a queue that it has left */
};
typedef struct fair_entity __arena fair_entity_t;

/* The queue of one cgroup on one CPU. Its tasks wait in the DSQ, its child cgroups in the list. */
struct fair_rq {
	struct fair_entity se;		/* as an entity of the parent's queue; first member */
	u64 dsq;
	fair_cpu_t *on;			/* the queue's CPU and cgroup; their numbers follow */
	fair_group_t *of;
	u32 cpu;
	u32 group;
	u32 depth;			/* level of the queue; the root's is 0 */
	u32 nr;				/* runnable entities, including the running one */
	u32 h_nr;			/* runnable tasks of this queue and of those below that are
					 * not throttled */
	u32 has_head;			/* a task waits in the DSQ; `head` is the vruntime of the
					 * first one, as last seen */
	u64 head;
	struct fair_rq __arena *wait_prev;	/* while has_head: neighbours in the CPU's list
						 * of queues in whose DSQ a task waits */
	struct fair_rq __arena *wait_next;
	u64 weight;			/* sum of the runnable entities' weights */
	u64 min_vruntime;		/* smallest vruntime in the queue; never goes back */
	fair_entity_t *first;		/* first and last waiting cgroup */
	fair_entity_t *last;
	fair_entity_t *curr;		/* entity that runs now */
	fair_entity_t *buddy_next;	/* entity that should run next, if not too unfair */
	fair_entity_t *buddy_last;	/* entity that was preempted; its cache is warm */
	fair_entity_t *buddy_skip;	/* entity that yielded */
	fair_entity_t *buddy_gang;	/* cgroup of a gang that comes first in this pick */
	u64 gang_nr;			/* on a domain's first CPU: number of a gang's runnable
					 * tasks << 32 | number of CPUs with such a task */
	u64 gang_unfit_until;		/* on a domain's first CPU: time before which the gang
					 * leads no round, ns */
	u64 gang_window;		/* number of the window that gang_active and gang_pinned
					 * count */
	u32 gang_active;		/* on a domain's first CPU: the gang's tasks that ran in
					 * the window */
	u32 gang_pinned;		/* on each CPU: tasks bound to it that ran in the window */
	u32 gang_size;			/* on a domain's first CPU: gang_active of the window
					 * before */
	u32 gang_pad;
	/* load=window */
	u64 load_avg;			/* weight * ns in the window, plus older windows, each
					 * halved at the end of a window */
	u64 load_period;		/* ns covered by load_avg */
	u64 load_stamp;
	u64 load_last;
	u64 load_contrib;		/* this queue's part of the group's load_weight */
	/* load=pelt */
	u64 runnable_load;		/* sum of the runnable entities' loads */
	u64 blocked_load;		/* sum of the sleeping entities' loads */
	u64 removed_load;		/* load of sleepers that left the queue; any CPU may add
					 * to it */
	u64 decays;			/* number of decays of blocked_load, starting at 1 */
	u64 last_decay;			/* number of the period of the last decay */
	u64 tg_load_contrib;		/* this queue's parts of the group's load_avg,
					 * runnable_avg and usage_avg */
	u64 tg_runnable_contrib;
	u64 tg_usage_contrib;
	/* neighbours in the CPU's list of queues with load left */
	struct fair_rq __arena *leaf_prev;
	struct fair_rq __arena *leaf_next;
	u32 leaf;			/* the queue is in the CPU's list of queues with load left */
	u32 leaf_below;			/* number of child cgroups whose queue is in the list of leaf_prev */
	/* cpu.max */
	s64 runtime;			/* ns left of the time taken from the group */
	u32 throttled;
	u32 pad;
	u64 throttled_at;		/* while throttled: time by the load-tracking clock at which
					 * the throttling began */
	u64 throttled_ns;		/* lag of the queue's load-tracking clock behind its
					 * parent's */
};

/* A cgroup. */
struct fair_group {
	fair_rq_t *rqs;			/* queues, indexed by CPU */
	u64 cgid;
	u32 used;
	u32 parent;
	u32 depth;
	u32 pad;
	u64 shares;
	s64 load_weight;		/* window: load, summed over all CPUs */
	s64 load_avg;			/* pelt: load, summed over all CPUs */
	s64 runnable_avg;
	s64 usage_avg;
	u64 quota;			/* ns per period; 0: unlimited */
	u64 period;
	s64 pool;			/* ns left in this period's pool */
	u32 timer_on;
	u32 gang;			/* the cgroup's gang switch is on */
	u32 gang_bad;			/* the cgroup's gang switch is set to neither 0 nor 1 */
	u32 pad2;
	u64 gang_read_at;
};

struct fair_task {
	struct fair_entity se;		/* first member, because a pointer to it is cast to one to
					 * the task */
	u32 group;
	s32 cpu;			/* CPU on which the task is counted, or was last */
	u32 pid;
	u32 is_new;			/* the task never ran under this scheduler */
	u32 fresh;			/* the task became runnable and is not queued yet */
	u32 queued;			/* the task is in a DSQ, as far as fair knows */
	u32 nice;			/* nice value and policy that the weight is from */
	u32 policy;
	u32 policy_idle;
	u32 policy_batch;
	u64 stopped_at;			/* when the task last left a CPU */
	u64 waits_since;		/* when the task began to wait */
	u64 ran_at_wake;		/* se.ran at the task's last wake-up */
	/* gangs */
	u64 gang_window;		/* number of the window that ran_at_window and gang_noted
					 * are about */
	u64 ran_at_window;		/* se.ran when the task was first noticed in the window */
	u64 gang_noted;			/* the task is counted as active in the window */
	struct numa_member numa;
	u64 pinned_until;		/* time before which no CPU asks for the task again,
					 * because it could not come */
	u32 numa_local;			/* the task is on the node with most of its process, and is
					 * counted in nr_local of its CPU */
	s32 sync_waker;			/* CPU of a waker that is about to sleep; NO_CPU: none */
	struct fair_task __arena *free_next;
};
typedef struct fair_task __arena fair_task_t;

/* ---- CPUs ---- */

/*
 * Whether a running task is sent to another CPU alone, or as the first or second half of an
 * exchange.
 */
enum numa_swap { SWAP_NONE, SWAP_FIRST, SWAP_SECOND };

enum balance_kind { BALANCE_IDLE, BALANCE_BUSY };

/* Sums over a group of CPUs, for balancing. */
struct group_sum {
	u64 load;
	u64 power;
	u64 avg;			/* load / power */
	u64 max_load;			/* largest load of one of its CPUs */
	u64 min_load;
	u32 max_nr;
	u32 min_nr;
	u32 nr;
	u32 idle;
	u32 cpus;
	u32 id;
	u32 capacity;			/* tasks that the group can run at once */
	u32 has_capacity;		/* the group can run one more task */
	u32 uneven;			/* the group's tasks are unevenly spread */
	u32 pad;
};
typedef struct group_sum __arena group_sum_t;

/*
 * State of one balancing pass over a level. It is in the arena, so that the verifier does not track
 * the value of each field.
 */
struct balance {
	struct group_sum local;
	struct group_sum busiest;
	struct group_sum sum;		/* group that sum_groups() is summing up */
	u64 total_load;
	u64 total_power;
	u64 imbalance;			/* load that should move */
	u64 now;
	s32 cpu;			/* CPU that balances */
	u32 level;
	u32 kind;
	s32 first;			/* the local group's first CPU and first idle CPU */
	s32 first_idle;
	u32 pad;
	u64 pass;			/* number of the pass; CPUs left out are marked with it */
};
typedef struct balance __arena balance_t;

struct pull {
	s32 from;
	s32 to;
	u64 imbalance;
	u64 now;
	u64 load;			/* load of the task looked at last */
	u32 tries;			/* tasks that may still be looked at */
	u32 asks;			/* idle CPUs that may still be asked */
	u32 level;
	u32 take_hot;
	u32 pinned;			/* no task looked at so far may run here */
	/* numa */
	u32 helps;			/* take no task whose process the move would scatter */
	u32 full;			/* while `helps`: take no task whose process the move brings
					 * together, because the new node has no room */
	u32 gang;			/* take only tasks of that gang; ROOT_GROUP: of any */
	u32 pad;
	numa_proc_t *only;		/* take only tasks of that process; NULL: of any */
};
typedef struct pull __arena pull_t;

/* A level of balancing, as seen by one CPU. */
struct fair_level {
	fair_cpu_t *from;	/* first CPU of the span, and the number of its CPUs */
	u32 cpus;
	u32 pad;
	u64 last;			/* time of the last balancing, ns */
	u64 cost;			/* average duration of an idle CPU's search of the level, ns */
	u32 interval;			/* interval to the next balancing, ms */
	u32 failed;
	u32 first;			/* the span is cpu_order[first] to cpu_order[end - 1] */
	u32 end;
	u32 groups;			/* groups in the span */
	u32 nr_over;			/* at the span's first CPU: number of the span's CPUs with
					 * more than one task */
};
typedef struct fair_level __arena fair_level_t;

struct fair_cpu {
	fair_rq_t *root;
	fair_cpu_t *next;		/* next CPU in cpu_order, cyclic */
	fair_task_t *curr;
	u64 curr_base;			/* p->se.sum_exec_runtime when curr started */
	u64 curr_charged;		/* ns charged since curr started */
	u64 curr_at;			/* time of the last charge */
	u64 round;			/* mark of cgroups that pick() now leaves out; incremented
					 * to remove the mark from all */
	fair_rq_t *level_of;		/* input of choose(), whose results are `chosen` and `want` */
	fair_entity_t *chosen;
	fair_task_t *want;		/* task that pick() chose, if not the first of its DSQ */
	u32 leave_prev;			/* the task that ran goes to another CPU: do not pick it */
	/* balancing */
	u32 due;			/* levels that are due for balancing, one bit each */
	s32 push_to;			/* CPU that the running task shall go to; NO_CPU: none */
	u32 online;
	u32 power;			/* CPU_POWER for a core without threads */
	u32 asked;			/* a busy CPU asked this CPU to balance */
	u32 repeats;			/* more load should move than the task just moved has */
	u64 passes;			/* number of balancing passes by this CPU */
	u64 skipped_by;			/* number of the pass that leaves this CPU out */
	u32 idled;			/* the CPU was idle since the last update of load[] */
	u32 spread_gang;		/* a task of this gang goes to spread_to; ROOT_GROUP: none */
	u64 spread_at;			/* time of the last search for a CPU to store in spread_to */
	s32 spread_to;
	u32 pad;
	fair_rq_t *waiting;		/* queues with a task in their DSQ */
	u64 idle_at;			/* since when the CPU is idle; 0: it is busy */
	u64 avg_idle;
	u64 busy_since;			/* end of the CPU's last idle time */
	u64 load_at;			/* tick of the last update of load[] */
	u64 load[5];			/* load=window: averages over 1, 2, 4, 8, 16 ticks */
	u64 rescue_at;
	struct pelt_avg avg;		/* load=pelt: part of the time in which the CPU had work */
	struct pelt_avg report;		/* scratch copy for fair_report() */
	fair_rq_t *leafs;		/* queues with load left, children before parents */
	fair_rq_t *leaf_at;		/* next queue of a walk over `leafs`; NULL: the first one */
	u64 leafs_at;			/* time at which the last walk over `leafs` began */
	u32 nr_throttled;		/* number of the CPU's throttled queues */
	u32 pad2;
	/* numa */
	numa_proc_t *proc;		/* process of the running or last task; it may be gone */
	numa_proc_t *push_proc;		/* process whose task goes to push_to; NULL: any */
	numa_proc_t *swap_proc;		/* process with which push_proc exchanges tasks */
	u64 swap_weight;
	u32 push_swap;			/* enum numa_swap */
	numa_proc_t *take;		/* for consolidate(): process to take a task of, and node
					 * to take it from */
	s32 take_from;
	u32 nr_local;			/* tasks here whose process belongs on this node */
	u32 look;			/* another CPU asked this CPU to consolidate */
	u32 push_pid;			/* numa=preferred: only this task goes to push_to; 0: any */
	u32 swap_pid;			/* numa=preferred: task of push_to that then comes here; 0: none */
	u32 pad3;
	u64 looked_at;
	u64 asked_at;			/* when this CPU last asked another CPU to consolidate */
	u64 preferred_at;		/* when a task was last asked to come here, because it
					 * prefers this node */
	struct fair_level level[NR_LEVELS];
	struct balance balance;
	struct pull pull;
};

struct fair_lock {
	struct bpf_spin_lock lock;
	u32 pad[15];	/* each lock on a cache line of its own */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct fair_lock);
} locks SEC(".maps");

/* ---- statistics ---- */

struct fair_stats {
	u64 picks;			/* calls of ops.dispatch */
	u64 picks_prev;			/* calls of ops.dispatch that let the same task go on */
	u64 picks_buddy;
	u64 picks_stray;		/* tasks found only by a look into every queue */
	u64 preempt_wakeup;
	u64 preempt_tick;
	u64 yields;
	u64 wakeups;
	u64 wake_affine;		/* tasks placed near the waker */
	u64 wake_idle;			/* tasks placed on an idle CPU other than the target */
	u64 migrate_wake;
	u64 migrate_fork;
	u64 migrate_newidle;
	u64 migrate_periodic;
	u64 migrate_active;
	u64 balance_newidle;		/* searches of idle CPUs for a task to take */
	u64 balance_periodic;
	u64 balance_failed;
	u64 throttles;
	u64 unthrottles;
	u64 rescues;			/* tasks run because they had waited for rescue_ns */
	u64 groups_clamped;		/* cgroups without a queue of their own */
	u64 numa_pulls;			/* waiting tasks fetched to bring a process together */
	u64 numa_pulls_running;		/* running tasks fetched to bring a process together */
	u64 numa_first_pass;		/* tasks that balancing moved to another node without
					 * scattering their process */
	u64 numa_second_pass;		/* tasks that balancing moved to another node after it found
					 * none to move without scattering a process */
	u64 numa_bounces_avoided;	/* times a task was not moved, because a short time ago it had
					 * come from another node, or a move of it had failed */
	u64 numa_waits;			/* tasks not taken, because they waited too short a time
					 * to leave their process or preferred node */
	u64 numa_wakes;			/* tasks woken up on their process's node, not where they
					 * slept */
	u64 numa_swaps;			/* tasks that swapped places with one of another node */
	u64 numa_limited;		/* searches that found a process but no room for it,
					 * running tasks that could not be moved, and tasks whose
					 * preferred node has no CPU with less load */
	u64 numa_preferred;		/* running tasks asked to go to their preferred node */
	u64 gang_rounds;		/* rounds of gangs begun; gang_rules=posted: picks of gangs
					 * by leaders */
	u64 gang_requests;		/* CPUs with a task of the gang when a round began */
	u64 gang_favoured;		/* requests to join a round that a CPU followed */
	u64 gang_declined;		/* requests to join a round not followed: unfair, too late,
					 * or superseded */
	u64 gang_released_early;	/* rounds of gangs ended early because the gang slept */
	u64 gang_spread;		/* tasks put or sent to a CPU with fewer tasks of their
					 * gang */
	u64 gang_bad_values;		/* gang switches with a value other than 0 and 1 */
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

/* ---- knobs ---- */

KNOB(enum fair_load, load, FAIR_LOAD_WINDOW,
	     "measure of load for balancing: shares by windows, or per-entity load tracking");
KNOB(enum fair_numa, numa, FAIR_NUMA_OFF,
	     "consolidation on nodes, or each task on the node of its memory (NUMA.md); "
	     "consolidate+load needs load=pelt");
KNOB(enum fair_numa_room, numa_room, FAIR_NUMA_ROOM_CORES,
	     "what a node has room for: a task per core, or per CPU, as in the series");
KNOB(u64, numa_settle_ns, 32000000,
	     "time for which a task that came from another node stays there; balancing leaves it "
	     "alone. A task waits an eighth of this before balancing separates it from its process, or "
	     "from its preferred node");
KNOB(enum fair_gang, gang, FAIR_GANG_OFF,
	     "tasks of a cgroup run at the same time (GANG.md)");
KNOB(enum fair_gang_rules, gang_rules, FAIR_GANG_RULES_BOUNDED,
	     "bounded: rounds with bounds on what they cost others; posted: the rules of the patches, "
	     "with one leader for good");
KNOB(enum fair_gang_domain, gang_domain, FAIR_GANG_DOMAIN_ALL,
	     "the CPUs that agree on a gang's turn");
KNOB(u64, sched_latency_ns, 6000000,
	     "period in which each runnable task of a CPU should run once. Larger: fewer switches. "
	     "Smaller: shorter waits. The scheduler multiplies it and the next two by 1 + "
	     "log2(number of CPUs, at most 8)");
KNOB(u64, min_granularity_ns, 750000,
	     "shortest slice. With more tasks than sched_latency_ns has such slices, the period "
	     "grows");
KNOB(u64, wakeup_granularity_ns, 1000000,
	     "how far behind the running task's vruntime a waking task must be to preempt it. "
	     "Smaller: shorter wake-up latency, more switches");
KNOB(u64, migration_cost_ns, 500000,
	     "a task that ran less than this ago is cache-hot, and a busy CPU does not take it");
KNOB(u64, shares_window_ns, 10000000,
	     "load=window: length of a window");
KNOB(u64, bandwidth_slice_ns, 5000000,
	     "CPU time that a CPU takes at once from a cgroup's quota");
KNOB(u64, rescue_ns, 10000000000ULL,
	     "a task that has waited longer than this runs next, whatever its weight; 0: never");
KNOB(u32, nr_migrate, 32,
	     "how many tasks of a busy CPU balancing examines to find some that may move");
const volatile u32 tick_hz;

/* ---- the machine, from the recipe ---- */

const volatile u32 topo_cpus;			/* CPUs in the tables below; 0: there is no
						 * recipe, and all CPUs are alike */
const volatile u32 cpu_core[MAX_CPUS];
const volatile u32 cpu_llc[MAX_CPUS];
const volatile u32 cpu_node[MAX_CPUS];
const volatile u32 cpu_order[MAX_CPUS];		/* order in which the CPUs of a core, of an LLC
						 * and of a node are adjacent */
const volatile u32 core_size[MAX_CPUS];		/* CPUs in the core of each CPU */

/* ---- state ---- */

static u32 nr_cpus;
static u32 factor = 1;				/* factor of latency and granularities: 1 +
						 * log2(CPUs, at most 8) */
static fair_cpu_t *cpus;
static fair_group_t *groups;
static u32 nr_groups;				/* slots of cgroups used so far */
static u64 leaf_round_at;			/* time of the next walk over the leaf queues of idle CPUs */
static volatile u64 nought;		/* always 0, but unknown to the verifier: it would follow
					 * each new bound of a sum that grows in a loop from a
					 * constant 0; a sum that grows from this has no bounds */
static u32 leaf_round_cpu;			/* CPU after which the walk at leaf_round_at begins */

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

/* Makes a program name the arena's map, which the verifier demands for arena accesses. */
#define use_arena() asm volatile("" :: "r"(&arena))

/* Returns NULL for a task that init_task() did not see. */
static __always_inline fair_task_t *task_of(struct task_struct *p)
{
	struct task_stor *s = bpf_task_storage_get(&tasks, p, 0, 0);

	use_arena();
	return s ? s->t : NULL;
}

/* Any CPU number is safe: memory outside of the arena reads as 0 and is never written. */
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

/*
 * The mask proves to the verifier that the index is in bounds. Without a recipe, each CPU is a
 * core of its own, and all CPUs share one LLC and one node.
 */
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

/* Whether the queue, or one above it, is throttled. */
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
 * clang merges adjacent stores of 0 into one memset, and then loses the cast of the arena pointer,
 * so that the verifier refuses it. This barrier keeps the stores apart.
 */
#define apart() asm volatile("" ::: "memory")

/* Zeroes an object in the arena. */
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
