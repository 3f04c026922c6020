/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Run queues: a FIFO DSQ per CPU and priority, and one for parked vCPUs; tickling and stealing.
 */
#ifndef SCXLAB_CREDIT_QUEUE_BPF_H
#define SCXLAB_CREDIT_QUEUE_BPF_H

#include "place.bpf.h"

#define NR_CLASSES	3
#define PARKED_DSQ	(1ULL << 32)
/*
 * Time in which each vCPU that waits for a CPU shall get a slice, below the watchdog's limit. If so
 * many vCPUs wait that full slices would take longer, slices shrink.
 */
#define ROUND_NS	(8000 * NS_PER_MS)
#define MIN_SLICE_NS	NS_PER_MS

/* Index of a priority's DSQ; 0 is the best. */
static __always_inline u32 class_of(s32 pri)
{
	return pri >= PRI_BOOST ? 0 : pri == PRI_UNDER ? 1 : 2;
}

static __always_inline s32 pri_of_class(u32 class)
{
	return class == 0 ? PRI_BOOST : class == 1 ? PRI_UNDER : PRI_OVER;
}

static __always_inline u64 queue_id(s32 cpu, u32 class)
{
	return (u64)(u32)cpu * 4 + class;
}

static __noinline u32 nr_waiting(s32 cpu)
{
	s32 boost = scx_bpf_dsq_nr_queued(queue_id(cpu, 0));
	s32 under = scx_bpf_dsq_nr_queued(queue_id(cpu, 1));
	s32 over = scx_bpf_dsq_nr_queued(queue_id(cpu, 2));

	return (boost > 0 ? boost : 0) + (under > 0 ? under : 0) + (over > 0 ? over : 0);
}

/*
 * Returns the time slice, shortened if so many vCPUs wait that a slice for each of them would take
 * longer than ROUND_NS.
 */
static u64 slice_ns(s32 cpu)
{
	u64 tslice = tslice_ms * NS_PER_MS, fair = ROUND_NS / (nr_waiting(cpu) + 1);

	if (fair < MIN_SLICE_NS)
		fair = MIN_SLICE_NS;
	return fair < tslice ? fair : tslice;
}

static void queue_insert(struct task_struct *p, struct vcpu *v, s32 cpu, u32 class, u64 enq_flags)
{
	v->cpu = cpu;
	v->queued_at = scx_bpf_now();
	scx_bpf_dsq_insert(p, queue_id(cpu, class), slice_ns(cpu), enq_flags);
}

static void park_insert(struct task_struct *p, struct vcpu *v, u64 enq_flags)
{
	scx_bpf_dsq_insert(p, PARKED_DSQ, tslice_ms * NS_PER_MS, enq_flags);
}

/*
 * Returns the priority of the vCPU that a CPU runs; TICKLE_PRI_OTHER: it runs no vCPU and is not
 * idle.
 */
static s32 current_pri(s32 cpu, bool idle)
{
	struct vcpu *cur;

	if (idle)
		return PRI_IDLE;
	cur = current_vcpu(cpu);
	return cur ? cur->pri : TICKLE_PRI_OTHER;
}

static void count_tickle(u32 what)
{
	if (what & TICKLE_COUNT_LOCAL_IDLER)
		STAT(tickle_local_idler);
	if (what & TICKLE_COUNT_LOCAL_OVER)
		STAT(tickle_local_over);
	if (what & TICKLE_COUNT_LOCAL_UNDER)
		STAT(tickle_local_under);
	if (what & TICKLE_COUNT_LOCAL_OTHER)
		STAT(tickle_local_other);
	if (what & TICKLE_COUNT_IDLERS_NONE)
		STAT(tickle_idlers_none);
	if (what & TICKLE_COUNT_IDLERS_SOME)
		STAT(tickle_idlers_some);
}

static void kick_away(s32 cpu)
{
	struct vcpu *cur = current_vcpu(cpu);

	if (!cur)
		return;
	cur->migrating = true;
	STAT(migrate_kicked_away);
	TASK_STAT(cur, kicked_away);
	TASK_STAT(cur, migrate_r);
}

static void wake_idlers(struct task_struct *p, const struct cpumask *idlers)
{
	struct cpu_ctx *here = cpu_ctx(bpf_get_smp_processor_id());
	s32 cpu;

	if (tickle_one_idle) {
		cpu = cycle(here->last_tickle, idlers, p->cpus_ptr);
		if (cpu < 0)
			return;
		here->last_tickle = cpu;
		kick(cpu, SCX_KICK_IDLE);
		return;
	}
	bpf_for(cpu, 0, nr_cpus)
		if (has_cpu(cpu, idlers) && bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			kick(cpu, SCX_KICK_IDLE);
}

/* Tickles CPUs for p, which has been queued on `cpu` and was not running before. */
static __noinline void tickle_for(struct task_struct *p, s32 new_pri, s32 cpu)
{
	const struct cpumask *idlers = scx_bpf_get_idle_cpumask();
	bool idle = bpf_cpumask_test_cpu(cpu, idlers);
	struct tickle_in in = {
		.new_pri = new_pri,
		.cur_pri = current_pri(cpu, idle),
		.has_idlers = !bpf_cpumask_empty(idlers),
		.has_suitable = bpf_cpumask_intersects(idlers, p->cpus_ptr),
		.cpu_suits = bpf_cpumask_test_cpu(cpu, p->cpus_ptr),
	};
	u32 what = tickle_decide(tickle, &in);

	count_tickle(what);
	if (what & TICKLE_MIGRATE_CUR)
		kick_away(cpu);
	if (what & TICKLE_LOCAL) {
		if (!idle)
			STAT(tickle_preempt);
		kick(cpu, idle ? SCX_KICK_IDLE : SCX_KICK_PREEMPT);
	} else if (in.cur_pri == TICKLE_PRI_OTHER) {
		/*
		 * The CPU may be between two tasks and about to become idle. The kick makes it look
		 * for a task again.
		 */
		kick(cpu, 0);
	}
	if (what & TICKLE_IDLERS)
		wake_idlers(p, idlers);
	scx_bpf_put_idle_cpumask(idlers);
}

/*
 * After an accounting: moves vCPUs whose priority changed out of the DSQ with the index `class`. A
 * vCPU whose priority fell goes to the head of its new DSQ, and the walk begins at the old DSQ's
 * tail, so that the vCPUs keep their order, as in Xen's sort. A vCPU whose priority rose goes to
 * the tail of its new DSQ.
 */
static void sort_class(s32 cpu, u32 class)
{
	struct task_struct *p;

	if (scx_bpf_dsq_nr_queued(queue_id(cpu, class)) <= 0)
		return;
	bpf_for_each(scx_dsq, p, queue_id(cpu, class), class < 2 ? SCX_DSQ_ITER_REV : 0) {
		struct vcpu *v = vcpu_of(p);
		u32 now;

		if (!v)
			continue;
		now = class_of(v->pri);
		if (is_parked(v, p))
			scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, PARKED_DSQ, 0);
		else if (now > class)
			scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, queue_id(cpu, now), SCX_ENQ_HEAD);
		else if (now < class)
			scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, queue_id(cpu, now), 0);
	}
}

static __noinline int sort_queues(s32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	u32 now = period;

	if (c->sorted == now)
		return 0;
	c->sorted = now;
	/*
	 * The DSQ of priority OVER comes first, so that vCPUs that rise to UNDER queue behind those
	 * that are already UNDER. vCPUs that fall are moved after that.
	 */
	sort_class(cpu, 2);
	sort_class(cpu, 1);
	sort_class(cpu, 0);
	return 0;
}

static bool is_hot(const struct vcpu *v)
{
	return scx_bpf_now() - v->last_run < vcpu_migration_delay_us * NS_PER_US;
}

/* Takes the first vCPU in a DSQ of another CPU that may run here and is not cache-hot. */
static __noinline bool take_cold(s32 cpu, u64 dsq)
{
	struct task_struct *p;
	bool taken = false;

	bpf_for_each(scx_dsq, p, dsq, 0) {
		struct vcpu *v = vcpu_of(p);

		if (v && is_hot(v)) {
			STAT(vcpu_hot);
			continue;
		}
		if (!bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		if (scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0)) {
			taken = true;
			break;
		}
	}
	return taken;
}

static bool steal_from(s32 cpu, s32 peer, s32 pri)
{
	u32 class;

	if (!nr_waiting(peer))
		return false;
	sort_queues(peer);
	bpf_for(class, 0, NR_CLASSES) {
		u64 dsq = queue_id(peer, class);

		if (pri_of_class(class) <= pri)
			break;
		if (scx_bpf_dsq_nr_queued(dsq) <= 0)
			continue;
		if (vcpu_migration_delay_us ? take_cold(cpu, dsq) : scx_bpf_dsq_move_to_local(dsq, 0))
			return true;
	}
	return false;
}

/*
 * Steals a vCPU of higher priority than `pri` from a busy CPU. The search begins with the next CPU.
 */
static __noinline bool steal(s32 cpu, s32 pri)
{
	const struct cpumask *idlers;
	bool found = false;
	u32 i;

	if (pri == PRI_IDLE)
		STAT(load_balance_idle);
	else
		STAT(load_balance_over);
	idlers = scx_bpf_get_idle_cpumask();
	bpf_for(i, 1, nr_cpus) {
		s32 peer = ((u32)cpu + i) % nr_cpus;

		/* Skips an idle peer, which is about to take its own vCPU. */
		if (has_cpu(peer, idlers))
			continue;
		if (steal_from(cpu, peer, pri)) {
			found = true;
			break;
		}
		STAT(steal_peer_idle);
	}
	scx_bpf_put_idle_cpumask(idlers);
	return found;
}

/*
 * Runs the first vCPU in the DSQ of a priority out of turn, if it has waited behind vCPUs of higher
 * priority for rescue_ms.
 */
static __noinline bool rescue(s32 cpu)
{
	u64 limit_ns = rescue_ms * NS_PER_MS, now = scx_bpf_now();
	u32 class;

	if (!limit_ns)
		return false;
	bpf_for(class, 1, NR_CLASSES) {
		struct task_struct *p = __COMPAT_scx_bpf_dsq_peek(queue_id(cpu, class));
		struct vcpu *v = p ? vcpu_of(p) : NULL;

		if (v && now - v->queued_at > limit_ns && scx_bpf_dsq_move_to_local(queue_id(cpu, class), 0)) {
			STAT(rescued);
			return true;
		}
	}
	return false;
}

/* Moves all tasks in one DSQ of a CPU that goes away to CPUs where they can run. */
__noinline int drain_queue(s32 cpu, u64 dsq)
{
	struct task_struct *p;

	bpf_for_each(scx_dsq, p, dsq, 0) {
		struct vcpu *v = vcpu_of(p);
		s32 to;

		if (dsq == PARKED_DSQ && scx_bpf_task_cpu(p) != cpu)
			continue;
		to = first_cpu(p, cpu, -1);
		/*
		 * No other CPU may run the task. It goes to the local queue, from which the kernel
		 * takes it to change its affinity.
		 */
		if (to < 0 || to == cpu || is_migration_disabled(p)) {
			scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
			continue;
		}
		if (v)
			v->cpu = to;
		scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, queue_id(to, v ? class_of(v->pri) : 1), 0);
		kick(to, SCX_KICK_IDLE);
	}
	return 0;
}

/* Drains all queues of a CPU that goes away or has gone. */
static void drain_cpu(s32 cpu)
{
	u32 class;

	bpf_for(class, 0, NR_CLASSES)
		if (scx_bpf_dsq_nr_queued(queue_id(cpu, class)) > 0)
			drain_queue(cpu, queue_id(cpu, class));
}

#endif /* SCXLAB_CREDIT_QUEUE_BPF_H */
