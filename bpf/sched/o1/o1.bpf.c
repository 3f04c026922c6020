// SPDX-License-Identifier: GPL-2.0-only
/*
 * o1: the O(1) scheduler of January 2002: two priority arrays per CPU, constant cost of a pick.
 *
 * Shows: constant-time picking, active and expired arrays, and two ways to favour tasks that sleep:
 * a history of sleep (mode d1, Ingo Molnar) and a count of the array swaps that a task slept
 * through (mode mqo1, Davide Libenzi).
 * Suits: many runnable tasks; interactive tasks beside hogs; no task starves in mqo1.
 * Fails: shares: a level decides the order and the length of a slice, not a proportion. Cgroup
 * weights have no effect. Two communicating tasks are spread over two CPUs. In d1 many tasks of
 * nice -14 and better that sleep half of the time can starve all other tasks.
 *
 * Terms:
 *   level      a task's priority: 0 best, 39 worst; nice -20..19 without bonus or penalty
 *   slice      how long a task may run before it goes to the expired array; longer at better levels
 *   array      a FIFO list per level. Each CPU has two arrays; tasks with slice left wait in the
 *              active one
 *   swap       the active array is empty, and the two arrays change places
 *   jiffy      10 ms, as in 2002, whatever the tick of this kernel
 *
 * Mechanism. A CPU runs the first task of the best level of its active array. A task that used up
 * its slice gets a new one and joins the expired array. A task that wakes up joins the active array
 * of its last CPU with the rest of its slice, and preempts the running task if its level is better.
 * A fork halves the slice between parent and child.
 * d1: a task that slept too little in the last four seconds gets up to 13 levels of penalty,
 * estimated at each wake-up and each jiffy that it runs. A task that used up its slice at level 6
 * or better rejoins the active array.
 * mqo1: a task that wakes up gains a level for each swap since its last wake-up, and loses a level
 * for each slice that it uses up.
 * Balancing: a CPU balances when a slice ends on it and when it becomes idle; an idle CPU balances
 * each jiffy.
 *
 * Limits:
 *   - In mqo1 a task waits at most twice the sum of the slices of all other tasks of its CPU
 *     (README.md).
 *   - A slice ends at a tick of the kernel, so a task may run up to a tick longer than its slice.
 *   - At most 1024 CPUs, or init refuses. One balancing moves up to 64 tasks and asks up to 4 CPUs.
 *   - Tasks without a context, and tasks of a CPU that goes off line, run from the global queue.
 */
#include <scx/common.bpf.h>
#include <lib/prio_array.bpf.h>
#include "o1.bpf.h"
#include "estimator.bpf.h"
#include "balance.bpf.h"
#include "idle_tick.bpf.h"

char _license[] SEC("license") = "GPL";

/* d1: worst level at which a task rejoins the active array when its slice ends. */
#define MAX_RETURN (MAX_PENALTY / 2)

UEI_DEFINE(uei);

static u64 jiffies_now(void)
{
	return scx_bpf_now() / JIFFY_NS;
}

/*
 * For a task that has come to `cpu`: changes the swap counts that the task noted on its former CPU
 * into counts of `cpu`. The numbers of swaps since the task's last wake-up and last sleep stay the
 * same.
 */
static void follow_swaps(struct o1_task *t, s32 cpu)
{
	u64 behind;

	if (t->swap_cpu == cpu)
		return;
	behind = rq_of(t->swap_cpu)->swaps - t->swap_last;
	t->swap_last = rq_of(cpu)->swaps - behind;
	behind = rq_of(t->swap_cpu)->swaps - t->swap_sleep;
	t->swap_sleep = rq_of(cpu)->swaps - behind;
	t->swap_cpu = cpu;
}

/*
 * mqo1: raises the task by a level for each swap since its last wake-up, or since it was created.
 */
static void gain_bonus(struct o1_task *t, s32 cpu)
{
	u64 swaps = rq_of(cpu)->swaps;
	u64 bonus;

	follow_swaps(t, cpu);
	bonus = swaps - t->swap_last;
	if (bonus > PRIO_LEVELS)
		bonus = PRIO_LEVELS;
	t->slept_swaps = swaps - t->swap_sleep;
	t->swap_last = swaps;
	t->bonus = bonus;
	t->prio = t->prio > bonus ? t->prio - bonus : 0;
	count(bonus_levels, bonus);
}

/* Updates the level of a task that joins a queue because it woke up or is new. */
static void activate(struct task_struct *p, struct o1_task *t, s32 cpu)
{
	u64 now;

	if (mode == O1_MODE_MQO1) {
		gain_bonus(t, cpu);
		return;
	}
	now = jiffies_now();
	if (t->run_at != now)
		estimate_prio(p, t, now);
}

/*
 * Gives a task that used up its slice a new one, and chooses the array in which the task waits
 * next.
 */
static void expire(struct o1_task *t, struct o1_rq *rq)
{
	u32 expired = !rq->active;

	t->left_ns = slice_of(t->prio);
	t->tail = true;
	t->expirations++;
	if (mode == O1_MODE_MQO1) {
		if (t->prio < PRIO_LEVELS - 1)
			t->prio++;
		t->array = expired;
	} else {
		t->array = t->prio <= MAX_RETURN ? rq->active : expired;
	}
	if (t->array == expired)
		count(expired, 1);
	else
		count(returned, 1);
}

/* A task wakes up on its last CPU; only balancing spreads tasks. */
s32 BPF_STRUCT_OPS(o1_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	return prev_cpu;
}

/* Puts a task without a context into the global queue, from which any CPU may take it. */
static void rescue(struct task_struct *p, u64 enq_flags)
{
	s32 cpu = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);

	count(rescued, 1);
	scx_bpf_dsq_insert(p, SCX_DSQ_GLOBAL, SCX_SLICE_DFL, enq_flags);
	if (cpu >= 0)
		kick(cpu, SCX_KICK_IDLE);
}

/*
 * Chooses the array that a task joins. Returns the enqueue flags, which say whether the task joins
 * the head of its list.
 */
static u64 place(struct task_struct *p, struct o1_task *t, struct o1_rq *rq, s32 cpu, u64 enq_flags)
{
	u64 flags = enq_flags;

	if (t->fresh || (enq_flags & SCX_ENQ_WAKEUP)) {
		activate(p, t, cpu);
		/*
		 * A task whose slice ran out when it went to sleep keeps the array that expire()
		 * chose.
		 */
		if (!t->spent)
			t->array = rq->active;
	} else if (!t->tail) {
		flags |= SCX_ENQ_HEAD;
	}
	t->fresh = t->spent = false;
	t->tail = true;
	return flags;
}

void BPF_STRUCT_OPS(o1_enqueue, struct task_struct *p, u64 enq_flags)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct o1_rq *rq = rq_of(cpu);
	struct o1_task *t = task_of(p);
	u64 flags;

	if (!t) {
		rescue(p, enq_flags);
		return;
	}
	/*
	 * The CPU is going off line. It still picks the tasks of its local DSQ, and the kernel then
	 * moves each of them to another CPU.
	 */
	if (!rq->online) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_left(t), enq_flags);
		return;
	}
	flags = place(p, t, rq, cpu, enq_flags);
	if (t->prio >= PRIO_LEVELS)
		t->prio = PRIO_LEVELS - 1;
	count_on(t, cpu + 1);
	prio_array_insert(array_of(rq, t->array), lists_of(cpu, t->array), t->prio, p, slice_left(t),
			  flags);
	if (rq->curr_prio == PRIO_NONE)
		kick(cpu, SCX_KICK_IDLE);
	else if (t->prio < rq->curr_prio && t->array == rq->active) {
		count(preempted, 1);
		kick(cpu, SCX_KICK_PREEMPT);
	}
}

/* Takes a task that left its queue, to run or for another reason, out of the queue's length. */
void BPF_STRUCT_OPS(o1_dequeue, struct task_struct *p, u64 deq_flags)
{
	struct o1_task *t = task_of(p);

	if (t)
		count_on(t, 0);
}

/*
 * Returns the levels of the active array that go before `t`, the task that ran until now. `t` is
 * NULL if that task cannot go on.
 */
static u64 ahead_of(const struct o1_task *t, const struct o1_rq *rq)
{
	if (!t)
		return PRIO_ALL;
	if (t->array != rq->active)
		return PRIO_ALL;
	return prio_better(t->prio, t->tail);
}

/* Takes a task from the active array that goes before `t`. Returns false if there is none. */
static bool take(s32 cpu, struct o1_rq *rq, const struct o1_task *t)
{
	u32 active = rq->active;

	if (!prio_array_pop(array_of(rq, active), lists_of(cpu, active), ahead_of(t, rq)))
		return false;
	count(picks, 1);
	return true;
}

static void swap_arrays(struct o1_rq *rq)
{
	rq->active = !rq->active;
	rq->swaps++;
	count(swaps, 1);
}

/* Charges prev, which is still runnable. Returns true if prev has used up its slice. */
static bool settle(struct task_struct *prev, struct o1_task *t, struct o1_rq *rq)
{
	charge(prev, t);
	if (t->left_ns > 0)
		return false;
	expire(t, rq);
	rq->curr_prio = t->prio;
	return true;
}

void BPF_STRUCT_OPS(o1_dispatch, s32 cpu, struct task_struct *prev)
{
	struct o1_rq *rq = rq_of(cpu);
	struct o1_task *t = NULL;

	if (prev && (prev->scx.flags & SCX_TASK_QUEUED))
		t = task_of(prev);
	if (t && settle(prev, t, rq)) {
		s32 pulled = balance(cpu, nr_running(rq), false);

		count(balanced_busy, pulled);
	}
	if (take(cpu, rq, t))
		return;
	/*
	 * No task of the active array goes before prev. If prev belongs to the active array, it
	 * goes on. Otherwise the arrays change places if the other array has a task.
	 */
	if (!(t && t->array == rq->active) && (t || array_of(rq, !rq->active)->bitmap)) {
		swap_arrays(rq);
		if (take(cpu, rq, t))
			return;
	}
	if (t) {
		count(kept, 1);
		scx_bpf_task_set_slice(prev, slice_left(t));
		return;
	}
	if (!prev || !(prev->scx.flags & SCX_TASK_QUEUED)) {
		s32 pulled = balance(cpu, nr_running(rq), true);

		count(balanced_idle, pulled);
	}
}

void BPF_STRUCT_OPS(o1_running, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct o1_task *t = task_of(p);

	if (!t)
		return;
	count_on(t, 0);
	t->charged_ns = p->se.sum_exec_runtime;
	t->tail = false;
	follow_swaps(t, cpu);
	t->array = rq_of(cpu)->active;
	rq_of(cpu)->curr_prio = t->prio;
	rq_of(cpu)->stuck = 0;
}

void BPF_STRUCT_OPS(o1_tick, struct task_struct *p)
{
	struct o1_rq *rq = rq_of(scx_bpf_task_cpu(p));
	struct o1_task *t = task_of(p);
	u64 now;

	if (!t)
		return;
	charge(p, t);
	/*
	 * A fork halves left_ns, the task's own count of its slice, but not the slice that the
	 * kernel counts. The tick therefore has to make the task stop.
	 */
	if (t->left_ns <= 0) {
		scx_bpf_task_set_slice(p, 0);
		return;
	}
	now = jiffies_now();
	if (mode != O1_MODE_D1 || t->run_at == now)
		return;
	/*
	 * Once per jiffy a running task is treated as if it had left the CPU and come back: it gets
	 * a new level, and next joins the end of that level's list.
	 */
	estimate_deactivate(t, now);
	estimate_prio(p, t, now);
	t->tail = true;
	rq->curr_prio = t->prio;
}

void BPF_STRUCT_OPS(o1_stopping, struct task_struct *p, bool runnable)
{
	struct o1_rq *rq = rq_of(scx_bpf_task_cpu(p));
	struct o1_task *t = task_of(p);

	rq->curr_prio = PRIO_NONE;
	if (!t)
		return;
	charge(p, t);
	if (t->left_ns > 0)
		return;
	expire(t, rq);
	t->spent = !runnable;
}

void BPF_STRUCT_OPS(o1_quiescent, struct task_struct *p, u64 deq_flags)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct o1_task *t = task_of(p);

	if (!t)
		return;
	count_on(t, 0);
	if (!(deq_flags & SCX_DEQ_SLEEP))
		return;
	follow_swaps(t, cpu);
	t->swap_sleep = rq_of(cpu)->swaps;
	if (mode == O1_MODE_D1)
		estimate_deactivate(t, jiffies_now());
}

/* A task that yields goes to the end of its level's list and keeps the rest of its slice. */
bool BPF_STRUCT_OPS(o1_yield, struct task_struct *from, struct task_struct *to)
{
	struct o1_task *t = task_of(from);

	if (t)
		t->tail = true;
	scx_bpf_task_set_slice(from, 0);
	return false;
}

/* Sets the level from the new nice value and, in d1, from the penalty. */
void BPF_STRUCT_OPS(o1_set_weight, struct task_struct *p, u32 weight)
{
	struct o1_task *t = task_of(p);

	if (!t)
		return;
	t->prio = nice_level(p);
	if (mode == O1_MODE_D1)
		t->prio += t->penalty;
	if (t->prio >= PRIO_LEVELS)
		t->prio = PRIO_LEVELS - 1;
}

/*
 * Divides the rest of the parent's slice between parent and child, so that forking gains nothing.
 */
static void share_slice(struct o1_task *parent, struct o1_task *t)
{
	s64 left = parent->left_ns;

	if (left <= (s64)JIFFY_NS) {
		parent->left_ns = 0;
		t->left_ns = left > 0 ? left : 1;
	} else {
		parent->left_ns = left / 2;
		t->left_ns = left - left / 2;
	}
	t->prio = parent->prio;
	t->swap_last = t->swap_sleep = parent->swap_last;
	t->swap_cpu = parent->swap_cpu;
}

s32 BPF_STRUCT_OPS(o1_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct o1_task *t = bpf_task_storage_get(&tasks, p, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct o1_task *parent = NULL;

	if (!t)
		return -ENOMEM;
	t->prio = nice_level(p);
	t->left_ns = slice_of(t->prio);
	t->fresh = true;
	t->charged_ns = p->se.sum_exec_runtime;
	t->sleep_at = t->run_at = jiffies_now();
	t->swap_cpu = scx_bpf_task_cpu(p) & (MAX_CPUS - 1);
	t->swap_last = t->swap_sleep = rq_of(t->swap_cpu)->swaps;
	if (args->fork)
		parent = task_of(bpf_get_current_task_btf());
	if (parent)
		share_slice(parent, t);
	return 0;
}

/* The rest of the slice of an exiting task goes to its parent. */
void BPF_STRUCT_OPS(o1_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	struct o1_task *t = task_of(p), *parent;
	struct task_struct *real_parent;

	if (!t)
		return;
	count_on(t, 0);
	if (args->cancelled)
		return;
	real_parent = p->real_parent;
	parent = real_parent ? task_of(real_parent) : NULL;
	if (!parent || t->left_ns <= 0)
		return;
	parent->left_ns += t->left_ns;
	if (parent->left_ns > (s64)max_slice_ns)
		parent->left_ns = max_slice_ns;
}

void BPF_STRUCT_OPS(o1_cpu_online, s32 cpu)
{
	rq_of(cpu)->online = true;
}

/* Drains the CPU's queue, because no CPU dispatches for one that is off line. */
void BPF_STRUCT_OPS(o1_cpu_offline, s32 cpu)
{
	rq_of(cpu)->online = false;
	drain(cpu);
}

static s32 check_knobs(void)
{
	if (mode != O1_MODE_D1 && mode != O1_MODE_MQO1) {
		scx_bpf_error("mode %d: 0 (d1) or 1 (mqo1)", mode);
		return -EINVAL;
	}
	if (min_slice_ns < 1000 || max_slice_ns < min_slice_ns || max_slice_ns > 1000000000) {
		scx_bpf_error("slices %llu to %llu ns: from 1000 up to 1 s, in this order",
			      min_slice_ns, max_slice_ns);
		return -EINVAL;
	}
	if (idle_tick_ns && idle_tick_ns < 1000000) {
		scx_bpf_error("idle_tick_ns %llu: at least 1000000, or 0", idle_tick_ns);
		return -EINVAL;
	}
	if (scx_bpf_nr_cpu_ids() > MAX_CPUS) {
		scx_bpf_error("%u CPUs: o1 is built for %d", scx_bpf_nr_cpu_ids(), MAX_CPUS);
		return -E2BIG;
	}
	return 0;
}

static s32 init_queues(s32 cpu, const struct cpumask *online)
{
	struct o1_rq *rq = rq_of(cpu);
	s32 err;

	rq->curr_prio = PRIO_NONE;
	rq->online = bpf_cpumask_test_cpu(cpu, online);
	err = prio_array_create(lists_of(cpu, 0));
	return err ?: prio_array_create(lists_of(cpu, 1));
}

s32 BPF_STRUCT_OPS_SLEEPABLE(o1_init)
{
	const struct cpumask *online;
	s32 cpu, err = check_knobs();

	if (err)
		return err;
	online = scx_bpf_get_online_cpumask();
	bpf_for(cpu, 0, scx_bpf_nr_cpu_ids()) {
		err = init_queues(cpu, online);
		if (err)
			break;
	}
	scx_bpf_put_cpumask(online);
	return err ?: start_idle_tick();
}

void BPF_STRUCT_OPS(o1_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

SCX_OPS_DEFINE(o1_ops,
	       .select_cpu	= (void *)o1_select_cpu,
	       .enqueue		= (void *)o1_enqueue,
	       .dequeue		= (void *)o1_dequeue,
	       .dispatch	= (void *)o1_dispatch,
	       .tick		= (void *)o1_tick,
	       .running		= (void *)o1_running,
	       .stopping	= (void *)o1_stopping,
	       .quiescent	= (void *)o1_quiescent,
	       .yield		= (void *)o1_yield,
	       .set_weight	= (void *)o1_set_weight,
	       .init_task	= (void *)o1_init_task,
	       .exit_task	= (void *)o1_exit_task,
	       .cpu_online	= (void *)o1_cpu_online,
	       .cpu_offline	= (void *)o1_cpu_offline,
	       .init		= (void *)o1_init,
	       .exit		= (void *)o1_exit,
	       .flags		= SCX_OPS_ENQ_EXITING | SCX_OPS_ENQ_MIGRATION_DISABLED,
	       .name		= "o1");
