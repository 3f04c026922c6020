// SPDX-License-Identifier: GPL-2.0-only
/*
 * fair: the Completely Fair Scheduler of Linux 3.x, with cgroups; before and after load tracking.
 *
 * Shows: CFS as it was before EEVDF: vruntime, group scheduling, wake-up preemption, balancing over
 * domains; and what per-entity load tracking (Paul Turner's series of 2012) changed. Gang and NUMA
 * scheduling extend this CFS.
 * Suits: mixed loads on up to 1024 CPUs; shares by nice and by cgroup weight on every level;
 * cpu.max.
 * Fails: hard latency: a task that wakes up preempts only if it is behind by a granularity, and
 * otherwise waits for a tick. It ignores big and little cores and frequencies. A cgroup's weight on
 * several CPUs follows its load with a delay.
 *
 * Terms:
 *   entity     has a weight and a vruntime: a task, or a cgroup on one CPU
 *   vruntime   CPU time of an entity times 1024 / weight, ns; the smallest of a queue runs next
 *   queue      one cgroup on one CPU: tasks in a DSQ ordered by vruntime, child cgroups in a list
 *   shares     weight of a cgroup, 1024 at cpu.weight 100; divided among CPUs by the cgroup's load
 *              there
 *   slice      the entity's part of the time in which each entity on its queue should run once
 *   load       quantity that balancing equalises: runnable weight now (window), or lately (pelt)
 *   buddy      entity that should run next (or last, or not) if that is fair within a granularity
 *
 * Mechanism. ops.enqueue() counts a task on the queue of its cgroup and CPU, and every cgroup above
 * that was empty on its parent's queue. It puts the task into the queue's DSQ, so that no task can
 * be lost. The task preempts if it is behind the running one by more than the granularity, where
 * their paths to the root meet. ops.dispatch() walks down from the root: on each level it takes the
 * smallest vruntime of the entity that ran, the first child cgroup and the first task. It moves the
 * resulting task to the CPU, or lets the one that ran go on. Run time is charged on all levels at
 * once. Each tick checks whether the slice is over. A CPU without work takes a waiting task from
 * the busiest CPU of the busiest group, of the nearest domain that is out of balance; busy CPUs do
 * the same from time to time, and wake idle ones if they have more than they can run.
 * Files: fair.bpf.h types, entity.bpf.h order and picking, load.bpf.h load, leaf.bpf.h decaying
 * load, task.bpf.h where a task is counted, wake.bpf.h placement, group.bpf.h cgroups and limits,
 * domain.bpf.h, busiest.bpf.h, balance.bpf.h and idle.bpf.h balancing, run.bpf.h the steps of
 * dispatch, gang*.bpf.h and spread.bpf.h gangs, numa.bpf.h, consolidate.bpf.h and
 * preferred.bpf.h nodes, report.bpf.h answers.
 *
 * Limits:
 *   - 1024 CPUs; more are refused. 511 cgroups besides the root, 15 levels; others count as their
 *     parent.
 *   - A slice ends at a tick, so the shortest turn is a tick.
 *   - Weights as far apart as 1 and 10000 make waits longer than the kernel's watchdog allows.
 *     Every task that waited for rescue_ns runs once, whatever its weight or its cgroup's limit
 *     (README.md).
 *   - A task that is moved to another CPU runs there next; a pass moves one task.
 */
#include "fair.bpf.h"
#include "group.bpf.h"
#include "task.bpf.h"
#include "balance.bpf.h"
#include "idle.bpf.h"
#include "run.bpf.h"
#include "report.bpf.h"

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

/* ---- operations ---- */

s32 BPF_STRUCT_OPS(fair_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	fair_task_t *t = task_of(p);
	s32 this_cpu = bpf_get_smp_processor_id(), cpu = prev_cpu, target, home;

	if (!t)
		return prev_cpu;
	if (wake_flags & SCX_WAKE_FORK) {
		cpu = gang_place(p, t, pick_idlest(p, prev_cpu));
		if (cpu != prev_cpu)
			count(migrate_fork);
		return cpu;
	}
	count(wakeups);
	/* If the task's affinity lost prev_cpu during its sleep, any allowed CPU will do. */
	if (!may_run_on(p, prev_cpu))
		return scx_bpf_pick_any_cpu(p->cpus_ptr, 0);
	t->sync_waker = wake_flags & SCX_WAKE_SYNC ? this_cpu : NO_CPU;
	home = numa_on() ? wake_at_home(p, t, prev_cpu) : NO_CPU;
	if (home != NO_CPU)
		return gang_place(p, t, home);
	if (this_cpu != prev_cpu && may_run_on(p, this_cpu) && (!numa_on() || numa_lets_wake(t, prev_cpu, this_cpu)) &&
	    wake_affine(t, this_cpu, prev_cpu, wake_flags & SCX_WAKE_SYNC)) {
		count(wake_affine);
		cpu = this_cpu;
	}
	target = cpu;
	cpu = pick_idle_sibling(p, prev_cpu, target);
	cpu = gang_place(p, t, cpu == NO_CPU ? target : cpu);
	if (cpu != target)
		count(wake_idle);
	if (cpu != prev_cpu)
		count(migrate_wake);
	return cpu;
}

/* Notes that a task becomes runnable here, and returns whether it woke up, is new or moved. */
static int arrives(struct task_struct *p, fair_task_t *t, u64 enq_flags, u64 now)
{
	int how = ENQ_MOVED;

	if (t->is_new)
		how = ENQ_NEW;
	else if (enq_flags & SCX_ENQ_WAKEUP)
		how = ENQ_WOKEN;
	t->is_new = 0;
	t->fresh = how != ENQ_MOVED;
	if (t->fresh)
		t->waits_since = now;
	gang_arrives(p, t, how, now);
	read_policy(p, t);
	return how;
}

void BPF_STRUCT_OPS(fair_enqueue, struct task_struct *p, u64 enq_flags)
{
	fair_task_t *t = task_of(p);
	s32 cpu = scx_bpf_task_cpu(p);
	u64 now = scx_bpf_now();
	fair_cpu_t *c = cpu_at(cpu);
	int how = ENQ_MOVED;
	bool wins;

	if (!t) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SCX_SLICE_DFL, enq_flags);
		return;
	}
	if (!t->se.on_rq)
		how = arrives(p, t, enq_flags, now);
	else
		follow_task(t, cpu, now);
	if (c->push_to != NO_CPU && push_task(c, p, t, enq_flags, now))
		return;
	wins = start_waiting(t, cpu, how, now);
	scx_bpf_dsq_insert_vtime(p, t->se.q->dsq, SLICE_NS, t->se.vruntime, enq_flags);
	if (wins) {
		count(preempt_wakeup);
		kick(cpu, SCX_KICK_PREEMPT);
	} else if (enq_flags & SCX_ENQ_LAST) {
		/*
		 * The task was to go to another CPU but stays, and no other task is here. The CPU
		 * is about to become idle; the kick makes it dispatch again.
		 */
		kick(cpu, 0);
	} else if (!c->curr) {
		kick(cpu, SCX_KICK_IDLE);
	}
}

void BPF_STRUCT_OPS(fair_dispatch, s32 cpu, struct task_struct *prev)
{
	fair_cpu_t *c = cpu_at(cpu);
	u64 now = scx_bpf_now();
	/* A pointer, because the verifier does not see that a flag implies a `prev`. */
	struct task_struct *runs = prev && prev->scx.flags & SCX_TASK_QUEUED ? prev : NULL;
	bool prev_runs = runs;
	u32 asked = c->asked;
	bool found;

	use_arena();
	count(picks);
	c->leave_prev = c->push_to != NO_CPU;
	c->asked = 0;
	if (runs)
		settle_prev(c, runs->se.sum_exec_runtime, false, now);
	if (rescue_is_due(c, now) && rescue(cpu, now))
		return;
	if (c->due && !gang_bound(cpu, now) && balance_due(cpu, now))
		return;
	if (c->spread_gang != ROOT_GROUP)
		spread(cpu, now);
	c->round++;
	gang_before_pick(cpu, prev_runs, now);
	if (!prev_runs && gang_waits(cpu, now))
		return;
	found = (prev_runs || c->root->h_nr) && run_own(cpu, prev, prev_runs);
	if (gang != FAIR_GANG_OFF)
		gang_after_pick(cpu);
	if (found)
		return;
	if (c->root->h_nr && run_stray(cpu))
		return;
	if ((asked || nr_over(c)) && balance_idle(cpu, now, asked))
		return;
	/* No other task was found: prev goes on if it may, for example after a yield. */
	if (prev_runs && !c->leave_prev && c->curr && !is_held(c->curr->se.q)) {
		keep_prev(c, prev);
		return;
	}
	if (numa_on() && consolidate(cpu, now))
		return;
	leaf_tick(c, cpu, now);
	c->idled = 1;
	if (!c->idle_at)
		c->idle_at = now;
}

void BPF_STRUCT_OPS(fair_running, struct task_struct *p)
{
	fair_task_t *t = task_of(p);
	s32 cpu = scx_bpf_task_cpu(p);
	fair_cpu_t *c = cpu_at(cpu);
	struct fair_lock *l = lock_of(cpu);
	u64 now = scx_bpf_now(), head = 0;
	fair_rq_t *q;
	bool has_head;

	if (!t || !l)
		return;
	if (t->se.on_rq) {
		follow_task(t, cpu, now);
	} else {
		/*
		 * Counts the task here, because the kernel put it on the CPU without ops.enqueue():
		 * an attribute was changed while the task ran, or the kernel bypassed the
		 * scheduler.
		 */
		arrives(p, t, 0, now);
		attach_task(t, cpu, ENQ_MOVED, now);
	}
	numa_note_running(c, t, p);
	t->queued = 0;
	if (c->idle_at) {
		/* Average of about eight idle times, each capped at twice migration_cost_ns. */
		s64 idle = min_u64(now - c->idle_at, 2 * migration_cost_ns);

		c->avg_idle += (idle - (s64)c->avg_idle) / 8;
		c->idle_at = 0;
		c->busy_since = now;
	}
	q = t->se.q;
	if (!q)
		return;
	has_head = q->nr > 1 && peek_head(q, &head);
	bpf_spin_lock(&l->lock);
	if (has_head || q->has_head)
		set_head(q, has_head, head);
	set_curr(c, t, p->se.sum_exec_runtime, now);
	bpf_spin_unlock(&l->lock);
	gang_reads(p, t->group, now);
	gang_starts(c, t);
}

void BPF_STRUCT_OPS(fair_stopping, struct task_struct *p, bool runnable)
{
	fair_cpu_t *c = cpu_at(scx_bpf_task_cpu(p));
	u64 now = scx_bpf_now();
	fair_task_t *t;

	/* A task that is no longer runnable is left to ops.quiescent(), which follows. */
	if (!runnable)
		return;
	t = task_of(p);
	if (!t || c->curr != t)
		return;
	settle_prev(c, p->se.sum_exec_runtime, true, now);
	t->stopped_at = now;
	t->waits_since = now;
	/*
	 * With a slice left, the kernel would put a task that lost its CPU in front of all others.
	 * Without one, the task waits among them in the order of vruntime.
	 */
	if (p->scx.slice)
		scx_bpf_task_set_slice(p, 0);
}

void BPF_STRUCT_OPS(fair_quiescent, struct task_struct *p, u64 deq_flags)
{
	fair_task_t *t = task_of(p);

	if (t)
		detach_task(t, deq_flags & SCX_DEQ_SLEEP, p->se.sum_exec_runtime, scx_bpf_now());
}

void BPF_STRUCT_OPS(fair_tick, struct task_struct *p)
{
	fair_task_t *t = task_of(p);
	s32 cpu = scx_bpf_task_cpu(p);
	fair_cpu_t *c = cpu_at(cpu);
	struct fair_lock *l = lock_of(cpu);
	u64 now = scx_bpf_now();
	bool over, out, due;

	if (!t || !l || c->curr != t)
		return;
	bpf_spin_lock(&l->lock);
	charge_exact(c, p->se.sum_exec_runtime, now);
	over = tick_curr(c, now);
	out = !path_has_runtime(t->se.q);
	tick_load(c, now);
	bpf_spin_unlock(&l->lock);
	leaf_tick(c, cpu, now);
	over = gang_tick(cpu, p, t->group, over, now);
	due = balance_is_due(c, now) && !gang_bound(cpu, now);
	due |= gang_spreads(cpu, t->group, now);
	if (over)
		count(preempt_tick);
	ask_idle_cpus(cpu, p);
	if (numa_on())
		consolidate_busy(cpu, p, now);
	else if (prefers_nodes())
		go_to_preferred(cpu, p, now);
	scx_bpf_task_set_slice(p, over || out || due ? 0 : SLICE_NS);
}

/*
 * Makes a waiting task the next buddy of its queue, and the queue that of its parent. If it waits on
 * another CPU than `own`, that CPU picks again.
 */
static bool favour(fair_task_t *t, s32 own)
{
	s32 cpu = t->cpu;
	struct fair_lock *l = lock_of(cpu);
	fair_entity_t *se;
	fair_rq_t *q;
	bool waits;

	if (!l)
		return false;
	bpf_spin_lock(&l->lock);
	waits = t->cpu == cpu && t->se.on_rq;
	se = &t->se;
	q = waits ? se->q : NULL;
	while (q && can_loop) {
		q->buddy_next = se;
		se = &q->se;
		q = q->depth ? se->q : NULL;
	}
	bpf_spin_unlock(&l->lock);
	if (waits && cpu != own)
		kick(cpu, SCX_KICK_PREEMPT);
	return waits;
}

/* A yield to a task favours it where it waits, as yield_to_task_fair() of Linux 3.2 does. */
bool BPF_STRUCT_OPS(fair_yield, struct task_struct *from, struct task_struct *to)
{
	fair_task_t *t = task_of(from), *other = to ? task_of(to) : NULL;
	struct fair_lock *l;
	fair_entity_t *se;
	fair_rq_t *q;

	count(yields);
	if (!t || !t->se.on_rq || !(l = lock_of(t->cpu)))
		return false;
	if (to && (!other || !favour(other, t->cpu)))
		return false;
	bpf_spin_lock(&l->lock);
	se = &t->se;
	q = se->q;
	while (q && can_loop) {
		q->buddy_skip = se;
		se = &q->se;
		q = q->depth ? se->q : NULL;
	}
	bpf_spin_unlock(&l->lock);
	scx_bpf_task_set_slice(from, 0);
	return to != NULL;
}

/* ---- tasks come and go ---- */

s32 BPF_STRUCT_OPS(fair_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_stor *s = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	fair_task_t *t;

	if (!s)
		return -ENOMEM;
	t = alloc_task();
	if (!t)
		return -ENOMEM;
	zero_words((u64 __arena *)t, sizeof(*t));
	t->group = group_of(args->cgroup);
	t->cpu = scx_bpf_task_cpu(p);
	t->pid = p->pid;
	t->sync_waker = NO_CPU;
	t->is_new = 1;
	t->nice = ~0;
	read_policy(p, t);
	init_load(&t->se);
	numa_note_task(t, p);
	s->t = t;
	return 0;
}

void BPF_STRUCT_OPS(fair_disable, struct task_struct *p)
{
	fair_task_t *t = task_of(p);

	if (!t)
		return;
	detach_task(t, false, p->se.sum_exec_runtime, scx_bpf_now());
	forget_sleeper(t);
}

void BPF_STRUCT_OPS(fair_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	struct task_stor *s = bpf_task_storage_get(&tasks, p, 0, 0);
	fair_task_t *t = s ? s->t : NULL;

	use_arena();
	if (!t)
		return;
	detach_task(t, false, p->se.sum_exec_runtime, scx_bpf_now());
	forget_sleeper(t);
	s->t = NULL;
	numa_forget_task(t, scx_bpf_now());
	free_task(t);
}

void BPF_STRUCT_OPS(fair_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	fair_task_t *t = task_of(p);
	bool on_rq;
	u64 now = scx_bpf_now();

	if (!t)
		return;
	on_rq = t->se.on_rq;
	detach_task(t, false, p->se.sum_exec_runtime, now);
	forget_sleeper(t);
	if (t->se.q)
		t->se.vruntime -= t->se.q->min_vruntime;
	t->se.q = NULL;
	t->group = group_of(to);
	gang_read_path(to, now);
	if (on_rq)
		attach_task(t, t->cpu, ENQ_MOVED, now);
}

/* ---- machine ---- */

void BPF_STRUCT_OPS(fair_cpu_online, s32 cpu)
{
	use_arena();
	cpu_at(cpu)->online = 1;
	numa_note_cpu(cpu, 1);
}

/*
 * The CPU's queues need no draining: the kernel moves the CPU's waiting tasks to its local queue,
 * and from there to other CPUs.
 */
void BPF_STRUCT_OPS(fair_cpu_offline, s32 cpu)
{
	use_arena();
	cpu_at(cpu)->online = 0;
	numa_note_cpu(cpu, -1);
}

static s32 init_cpus(void)
{
	u64 now = scx_bpf_now();
	u32 cpu;

	bpf_for(cpu, 0, nr_cpus) {
		fair_cpu_t *c = cpu_at(cpu);

		c->root = rq_at(ROOT_GROUP, cpu);
		c->push_to = NO_CPU;
		c->online = 1;
		numa_note_cpu(cpu, 1);
		c->avg_idle = 2 * migration_cost_ns;
		c->rescue_at = now + rescue_ns;
		c->avg.last = now;
	}
	return make_domains();
}

s32 BPF_STRUCT_OPS_SLEEPABLE(fair_init)
{
	fair_group_t *root;
	u32 n;
	s32 err;

	nr_cpus = scx_bpf_nr_cpu_ids();
	if (nr_cpus > MAX_CPUS) {
		scx_bpf_error("%u CPUs: fair is built for up to %u", nr_cpus, MAX_CPUS);
		return -E2BIG;
	}
	err = numa_start();
	if (err)
		return err;
	for (n = nr_cpus > 8 ? 8 : nr_cpus; n > 1 && can_loop; n /= 2)
		factor++;
	groups = alloc_bytes(MAX_GROUPS * sizeof(struct fair_group));
	cpus = alloc_bytes((u64)nr_cpus * sizeof(struct fair_cpu));
	if (!groups || !cpus)
		return -ENOMEM;
	root = group_at(ROOT_GROUP);
	err = make_queues(root, ROOT_GROUP);
	if (err)
		return err;
	root->shares = NICE_0_LOAD;
	root->used = 1;
	nr_groups = 1;
	reset_queues(root, ROOT_GROUP);
	err = init_gangs();
	return err ?: init_cpus();
}

void BPF_STRUCT_OPS(fair_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

SCX_OPS_DEFINE(fair_ops,
	       .select_cpu		= (void *)fair_select_cpu,
	       .enqueue			= (void *)fair_enqueue,
	       .dispatch		= (void *)fair_dispatch,
	       .tick			= (void *)fair_tick,
	       .running			= (void *)fair_running,
	       .stopping		= (void *)fair_stopping,
	       .quiescent		= (void *)fair_quiescent,
	       .yield			= (void *)fair_yield,
	       .init_task		= (void *)fair_init_task,
	       .exit_task		= (void *)fair_exit_task,
	       .disable			= (void *)fair_disable,
	       .cgroup_init		= (void *)fair_cgroup_init,
	       .cgroup_exit		= (void *)fair_cgroup_exit,
	       .cgroup_move		= (void *)fair_cgroup_move,
	       .cgroup_set_weight	= (void *)fair_cgroup_set_weight,
	       .cgroup_set_bandwidth	= (void *)fair_cgroup_set_bandwidth,
	       .cpu_online		= (void *)fair_cpu_online,
	       .cpu_offline		= (void *)fair_cpu_offline,
	       .init			= (void *)fair_init,
	       .exit			= (void *)fair_exit,
	       .flags			= SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_EXITING | SCX_OPS_ENQ_MIGRATION_DISABLED,
	       .timeout_ms		= 30000,
	       .name			= "fair");
