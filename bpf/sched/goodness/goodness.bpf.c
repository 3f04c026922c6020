// SPDX-License-Identifier: GPL-2.0-only
/*
 * goodness: the schedulers of Linux 2.5.2-pre9 and 2.4: each pick looks at all runnable tasks.
 *
 * Shows: why these schedulers were replaced. The cost of a pick grows with the number of runnable
 * tasks, and all CPUs wait for the lock that a pick holds. Mode hamq is the "half" multi-queue that
 * was measured against vanilla and O(1): a queue and a lock per CPU, and no balancer.
 * Suits: few runnable tasks: it is fair by nice, favours sleepers, and leaves no CPU idle beside
 * work.
 * Fails: hundreds of runnable tasks, or many CPUs (vanilla, 2.4); shares, if queues differ in
 * length (hamq). Cgroup weights have no effect.
 *
 * Terms:
 *   tick              10 ms, as in 2002, whatever the tick of this kernel
 *   counter           ticks that a task may still run: its slice
 *   dynamic priority  levels, 0 to 40, gained by sleeping; each slice that is used up costs one
 *   goodness          0 if the counter is spent, else dynamic priority + 1 + 20 - nice (2.4:
 *                     counter + 20 - nice), + 1 for the address space that the CPU has loaded, + 15
 *                     on the CPU it ran on last
 *   recalculation     comes when the counters of all waiting tasks are spent: each runnable task
 *                     (hamq: of the queue) gets a new slice, and each sleeping one gains a level.
 *                     2.4: each task's counter, also of sleepers, is halved, and the ticks of the
 *                     task's nice value are added
 *
 * Mechanism. Waiting tasks are in a list per queue. A CPU that schedules scans the whole list under
 * the queue's lock, and takes the task of the highest goodness or goes on with its own. A task runs
 * until its counter is spent, it sleeps, or a better task wakes up. A task that wakes up goes to
 * its last CPU if that is idle, else to an idle CPU, else it preempts the task that deserves its
 * CPU least, if the difference is more than the 15 of the affinity bonus. vanilla and 2.4 have one
 * queue. In hamq, which is built on 2.5.2-pre9, each CPU has a queue: a task that wakes up joins
 * the queue of the chosen CPU, and a CPU without tasks takes the best task of all other queues,
 * unless an idle CPU is about to take that task.
 *
 * Limits:
 *   - A counter is charged with the real run time. A slice ends at a tick of the kernel, up to a
 *     tick late.
 *   - At most 512 CPUs, or init refuses. At most 32767 tasks have a slot; tasks beyond them, and
 *     tasks without a context, run before all others, in order of arrival.
 *   - While tasks with ticks left wait for another CPU, spent tasks run on this one without a
 *     recalculation.
 *   - A recalculation is applied to a task when a CPU next looks at it; the result is the same.
 *   - With one queue, a wake-up calls a CPU but reserves nothing for it: if the waker sleeps first,
 *     the waker's CPU takes the task, and the called CPU has come for nothing.
 */
#include <scx/common.bpf.h>
#include "goodness.bpf.h"
#include "list.bpf.h"
#include "slots.bpf.h"
#include "wake.bpf.h"

char _license[] SEC("license") = "GPL";

/*
 * Largest number of attempts of a pick. An attempt fails if the chosen task leaves its queue at
 * that very moment.
 */
#define MAX_TRIES 8
/* Less than any goodness. */
#define NOBODY (-1000)

UEI_DEFINE(uei);

s32 BPF_STRUCT_OPS(goodness_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	u32 idx = slot_of(p);
	struct slot *s = slot_at(idx);
	s32 target;

	if (!idx)
		return prev_cpu;
	catch_up(s);
	s->asleep = false;
	if (mode != GOODNESS_MODE_HAMQ)
		return prev_cpu;
	target = find_target(idx, prev_cpu);
	if (target < 0)
		return prev_cpu;
	if (target & TARGET_IDLE) {
		target &= ~TARGET_IDLE;
		cpu_at(target)->expected = true;
		s->claimed = true;
	}
	return target;
}

/*
 * Kicks an idle CPU for a task in the global queue. If there is none, a busy CPU takes the task
 * when it schedules.
 */
static void call_any(struct task_struct *p)
{
	s32 cpu = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);

	if (cpu >= 0)
		kick(cpu, SCX_KICK_IDLE);
}

/* Puts a task into the global queue, for any CPU. */
static void rescue(struct task_struct *p, u64 enq_flags)
{
	count(rescued, 1);
	scx_bpf_dsq_insert(p, SCX_DSQ_GLOBAL, SCX_SLICE_DFL, enq_flags);
	call_any(p);
}

/*
 * Kicks a CPU for a task that was just queued. A CPU that is going off line may not kick; then the
 * CPU that gets the task does so later.
 */
static void call_for(u32 idx, s32 cpu)
{
	if (cpu_at(bpf_get_smp_processor_id())->online)
		kick_target(find_target(idx, cpu));
	else
		cpu_at(cpu)->owes = true;
}

void BPF_STRUCT_OPS(goodness_enqueue, struct task_struct *p, u64 enq_flags)
{
	s32 cpu = scx_bpf_task_cpu(p);
	u32 idx = slot_of(p);
	struct slot *s = slot_at(idx);
	bool woken = enq_flags & SCX_ENQ_WAKEUP, claimed = s->claimed;

	if (!idx) {
		rescue(p, enq_flags);
		return;
	}
	catch_up(s);
	s->asleep = s->claimed = false;
	/*
	 * The CPU is going off line. It still picks the tasks of its local DSQ, and the kernel then
	 * moves each of them to another CPU.
	 */
	if (!cpu_at(cpu)->online) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, s->left_ns ?: 1, enq_flags);
		return;
	}
	s->may_migrate = !is_migration_disabled(p);
	list_add(s, idx, queue_of(cpu), woken, claimed);
	scx_bpf_dsq_insert(p, queue_of(cpu), s->left_ns ?: 1, enq_flags);
	/*
	 * Kicks a CPU for a task that is not reserved. If the CPU for which the task is reserved
	 * has looked for a task meanwhile, it did not see this one: the reservation ends, and a CPU
	 * is kicked, too.
	 */
	if (!claimed || !READ_ONCE(cpu_at(cpu)->expected)) {
		claim_ends(s);
		call_for(idx, cpu);
	}
}

void BPF_STRUCT_OPS(goodness_dequeue, struct task_struct *p, u64 deq_flags)
{
	u32 idx = slot_of(p);

	if (idx)
		list_del(slot_at(idx));
}

/*
 * Moves the task from its queue to this CPU. Returns false if the task has left the queue's DSQ, or
 * has not arrived there yet.
 */
static bool fetch(u32 idx, s32 cpu)
{
	struct slot *s = slot_at(idx);
	struct bpf_iter_scx_dsq it;
	struct task_struct *p = bpf_task_from_pid(s->pid);
	bool moved = false;

	if (!p)
		return false;
	if (!bpf_iter_scx_dsq_new(&it, s->queue, 0)) {
		scx_bpf_dsq_move_set_slice(&it, s->left_ns ?: 1);
		moved = scx_bpf_dsq_move(&it, p, SCX_DSQ_LOCAL_ON | cpu, 0);
	}
	bpf_iter_scx_dsq_destroy(&it);
	/*
	 * A CPU that is going off line may not run other CPUs' tasks, so the kernel has put the
	 * task into the global queue.
	 */
	if (moved && !scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL_ON | cpu)) {
		count(rescued, 1);
		call_any(p);
	}
	bpf_task_release(p);
	return moved;
}

/* hamq: returns the queue with the best task for a CPU without tasks; -1: there is none. */
__weak s32 best_queue(struct scan *scan)
{
	s32 cpu, found = -1;

	if (!scan)
		return -1;
	bpf_for(cpu, 0, scx_bpf_nr_cpu_ids()) {
		struct queue *q = queue_at(cpu);
		s32 best = scan->best;

		if (!q || !READ_ONCE(q->nr))
			continue;
		scan_queue(cpu, scan, false);
		if (scan->best > best)
			found = cpu;
	}
	return found;
}

/*
 * Begins a recalculation for the queue, unless another CPU has begun one since the caller read
 * `seen`, the number of recalculations: several CPUs may find at once that all tasks are spent.
 */
static void recalculate(u32 queue, u64 seen)
{
	if (__sync_val_compare_and_swap(epoch_of(queue), seen, seen + 1) == seen)
		count(recalculations, 1);
}

/* Scans for the best of the waiting tasks and prev. Returns the queue that was scanned. */
__weak u32 look(struct scan *scan, u32 prev)
{
	s32 queue, other;

	if (!scan)
		return 0;
	queue = queue_of(scan->cpu);
	scan->slot = NO_SLOT;
	scan->unspent = 0;
	scan->best = prev ? goodness(slot_at(prev), scan->cpu, scan->mm) : NOBODY;
	scan_queue(queue, scan, true);
	if (mode != GOODNESS_MODE_HAMQ || scan->slot || prev)
		return queue;
	other = best_queue(scan);
	if (other < 0)
		return queue;
	scan->slot = NO_SLOT;
	scan->unspent = 0;
	scan->best = NOBODY;
	scan_queue(other, scan, true);
	return other;
}

/* Moves the best waiting task to this CPU. Returns false if no waiting task is better than prev. */
static bool pick(s32 cpu, u32 prev, struct scan *scan)
{
	bool waits = false;
	u32 try;

	bpf_for(try, 0, MAX_TRIES) {
		u32 queue;

		if (prev)
			catch_up(slot_at(prev));
		queue = look(scan, prev);
		if (all_spent(scan)) {
			recalculate(queue, READ_ONCE(*epoch_of(queue)));
			continue;
		}
		if (!scan->slot)
			break;
		if (fetch(scan->slot, cpu)) {
			count(picks, 1);
			count(steals, queue != queue_of(cpu));
			return true;
		}
		waits = list_again(slot_at(scan->slot), scan->slot);
		count(retries, 1);
	}
	/*
	 * The kick makes this CPU look again, and a task on its way into the queue will be there by
	 * then.
	 */
	if (waits && !prev)
		kick(cpu, 0);
	return false;
}

/* Kicks idle CPUs, if there are any, for tasks that were queued here without a kick. */
static void pay(struct cpu_state *c)
{
	s32 left = READ_ONCE(nr_waiting), cpu;

	c->owes = false;
	bpf_for(cpu, 0, scx_bpf_nr_cpu_ids()) {
		if (left <= 0)
			break;
		if (!cpu_at(cpu)->online || !scx_bpf_test_and_clear_cpu_idle(cpu))
			continue;
		kick(cpu, SCX_KICK_IDLE);
		left--;
	}
}

void BPF_STRUCT_OPS(goodness_dispatch, s32 cpu, struct task_struct *prev)
{
	struct scan scan = { .cpu = cpu, .mm = cpu_at(cpu)->mm, .now = scx_bpf_now() };
	bool runnable = prev && (prev->scx.flags & SCX_TASK_QUEUED);
	u32 idx = runnable ? slot_of(prev) : NO_SLOT;
	struct slot *s = slot_at(idx);
	bool picked;

	WRITE_ONCE(cpu_at(cpu)->expected, false);
	if (idx)
		charge(prev, s);
	picked = pick(cpu, idx, &scan);
	count(scanned, scan.seen);
	if (cpu_at(cpu)->owes)
		pay(cpu_at(cpu));
	if (picked)
		return;
	if (idx) {
		s->yielded = false;
		count(kept, 1);
		scx_bpf_task_set_slice(prev, s->left_ns ?: 1);
	} else if (!runnable) {
		/* Tries the queue's DSQ, too: the queue's list may lack a waiting task for a moment. */
		scx_bpf_dsq_move_to_local(queue_of(cpu), 0);
	}
}

void BPF_STRUCT_OPS(goodness_running, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *c = cpu_at(cpu);
	u32 idx = slot_of(p);
	struct slot *s = slot_at(idx);

	c->last_ns = scx_bpf_now();
	if (!idx)
		return;
	list_del(s);
	belong_to(s, queue_of(cpu));
	s->asleep = false;
	s->charged_ns = p->se.sum_exec_runtime;
	s->cpu = cpu;
	s->mm = (u64)p->mm;
	if (s->mm)
		c->mm = s->mm;
	c->curr = idx;
}

void BPF_STRUCT_OPS(goodness_tick, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	u32 idx = slot_of(p);
	struct slot *s = slot_at(idx);

	if (!idx)
		return;
	charge(p, s);
	if (!s->counter)
		scx_bpf_task_set_slice(p, 0);
	if (cpu_at(cpu)->owes)
		pay(cpu_at(cpu));
}

void BPF_STRUCT_OPS(goodness_stopping, struct task_struct *p, bool runnable)
{
	struct cpu_state *c = cpu_at(scx_bpf_task_cpu(p));
	u32 idx = slot_of(p);
	struct slot *s = slot_at(idx);

	c->last_ns = scx_bpf_now();
	c->curr = NO_SLOT;
	if (!idx)
		return;
	charge(p, s);
	s->yielded = false;
}

void BPF_STRUCT_OPS(goodness_quiescent, struct task_struct *p, u64 deq_flags)
{
	u32 idx = slot_of(p);

	if (!idx)
		return;
	list_del(slot_at(idx));
	if (deq_flags & SCX_DEQ_SLEEP)
		slot_at(idx)->asleep = true;
}

/*
 * A yield has no effect if no task waits. In 2.5.2 a task that yields loses the rest of its slice,
 * and gains a level of dynamic priority in exchange.
 */
bool BPF_STRUCT_OPS(goodness_yield, struct task_struct *from, struct task_struct *to)
{
	struct queue *q = queue_at(queue_of(scx_bpf_task_cpu(from)));
	u32 idx = slot_of(from);
	struct slot *s = slot_at(idx);

	if (q && !READ_ONCE(q->nr))
		return false;
	scx_bpf_task_set_slice(from, 0);
	if (!idx)
		return false;
	s->yielded = true;
	if (mode == GOODNESS_MODE_2_4)
		return false;
	charge(from, s);
	set_counter(s, 0);
	add_dyn_prio(s, 1);
	return false;
}

/*
 * Kicks an idle CPU if a task waits: that task may have been queued after the CPU's scan and before
 * the CPU counted as idle.
 */
void BPF_STRUCT_OPS(goodness_update_idle, s32 cpu, bool idle)
{
	if (idle && READ_ONCE(nr_waiting) > 0)
		kick(cpu, SCX_KICK_IDLE);
}

void BPF_STRUCT_OPS(goodness_set_weight, struct task_struct *p, u32 weight)
{
	u32 idx = slot_of(p);

	if (idx)
		slot_at(idx)->nice = nice_of(p);
}

void BPF_STRUCT_OPS(goodness_set_cpumask, struct task_struct *p, const struct cpumask *mask)
{
	u32 idx = slot_of(p);

	if (idx)
		set_cpus(slot_at(idx), mask, p->nr_cpus_allowed);
}

s32 BPF_STRUCT_OPS(goodness_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_ctx *own = bpf_task_storage_get(&tasks, p, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct slot *s;
	u32 idx, parent = NO_SLOT;

	if (!own)
		return -ENOMEM;
	idx = slot_get();
	own->slot = idx;
	if (!idx)
		return 0;
	s = slot_at(idx);
	__builtin_memset(s, 0, sizeof(*s));
	s->pid = p->pid;
	s->cpu = scx_bpf_task_cpu(p);
	s->nice = nice_of(p);
	s->mm = (u64)p->mm;
	s->queue = queue_of(s->cpu);
	s->epoch = READ_ONCE(*epoch_of(s->queue));
	s->charged_ns = p->se.sum_exec_runtime;
	s->may_migrate = true;
	set_counter(s, ticks_of(s->nice));
	set_cpus(s, p->cpus_ptr, p->nr_cpus_allowed);
	if (args->fork)
		parent = slot_of(bpf_get_current_task_btf());
	if (parent)
		share_counter(parent, s);
	return 0;
}

void BPF_STRUCT_OPS(goodness_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	struct task_ctx *own = bpf_task_storage_get(&tasks, p, NULL, 0);
	u32 idx;

	if (!own)
		return;
	idx = own->slot & (MAX_TASKS - 1);
	own->slot = NO_SLOT;
	if (!idx)
		return;
	list_del(slot_at(idx));
	if (!args->cancelled)
		return_counter(slot_at(idx));
	slot_put(idx);
}

/*
 * Kicks the CPU if tasks wait. The CPU may have become idle before this call, when it was not
 * allowed to kick itself.
 */
void BPF_STRUCT_OPS(goodness_cpu_online, s32 cpu)
{
	cpu_at(cpu)->online = true;
	if (READ_ONCE(nr_waiting) > 0)
		kick(cpu, SCX_KICK_IDLE);
}

/*
 * hamq: moves the tasks of a leaving CPU's queue to the global queue, because no CPU schedules for
 * the leaving one, and busy CPUs do not look into its queue.
 */
void BPF_STRUCT_OPS(goodness_cpu_offline, s32 cpu)
{
	struct task_struct *p;
	s32 other;

	cpu_at(cpu)->online = false;
	if (mode != GOODNESS_MODE_HAMQ)
		return;
	bpf_for_each(scx_dsq, p, queue_of(cpu), 0) {
		if (scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_GLOBAL, 0))
			count(rescued, 1);
	}
	bpf_for(other, 0, scx_bpf_nr_cpu_ids())
		if (other != cpu)
			scx_bpf_kick_cpu(other, SCX_KICK_IDLE);
}

static s32 check_knobs(void)
{
	if (mode > GOODNESS_MODE_2_4) {
		scx_bpf_error("mode %d: 0 (vanilla), 1 (hamq) or 2 (2.4)", mode);
		return -EINVAL;
	}
	if (affinity_bonus > 100) {
		scx_bpf_error("affinity_bonus %u: up to 100", affinity_bonus);
		return -EINVAL;
	}
	if (scx_bpf_nr_cpu_ids() > MAX_CPUS) {
		scx_bpf_error("%u CPUs: goodness is built for %d", scx_bpf_nr_cpu_ids(), MAX_CPUS);
		return -E2BIG;
	}
	return 0;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(goodness_init)
{
	const struct cpumask *online;
	s32 cpu, err = check_knobs();

	if (err)
		return err;
	online = scx_bpf_get_online_cpumask();
	bpf_for(cpu, 0, scx_bpf_nr_cpu_ids()) {
		cpu_at(cpu)->online = bpf_cpumask_test_cpu(cpu, online);
		if (!cpu || mode == GOODNESS_MODE_HAMQ)
			err = scx_bpf_create_dsq(cpu, -1);
		if (err)
			break;
	}
	scx_bpf_put_cpumask(online);
	return err;
}

void BPF_STRUCT_OPS(goodness_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

SCX_OPS_DEFINE(goodness_ops,
	       .select_cpu	= (void *)goodness_select_cpu,
	       .enqueue		= (void *)goodness_enqueue,
	       .dequeue		= (void *)goodness_dequeue,
	       .dispatch	= (void *)goodness_dispatch,
	       .tick		= (void *)goodness_tick,
	       .running		= (void *)goodness_running,
	       .stopping	= (void *)goodness_stopping,
	       .quiescent	= (void *)goodness_quiescent,
	       .yield		= (void *)goodness_yield,
	       .update_idle	= (void *)goodness_update_idle,
	       .set_weight	= (void *)goodness_set_weight,
	       .set_cpumask	= (void *)goodness_set_cpumask,
	       .init_task	= (void *)goodness_init_task,
	       .exit_task	= (void *)goodness_exit_task,
	       .cpu_online	= (void *)goodness_cpu_online,
	       .cpu_offline	= (void *)goodness_cpu_offline,
	       .init		= (void *)goodness_init,
	       .exit		= (void *)goodness_exit,
	       .flags		= SCX_OPS_KEEP_BUILTIN_IDLE | SCX_OPS_ENQ_MIGRATION_DISABLED,
	       .name		= "goodness");
