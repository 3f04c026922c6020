// SPDX-License-Identifier: GPL-2.0-only
/*
 * credit: Xen's credit scheduler of 2012, with tasks as vCPUs and cgroups as domains.
 *
 * Shows: shares by accounting instead of by a clock: every 30 ms credit is handed out by weight,
 * and running burns it. Caps. A boost for a vCPU that wakes up with credit left. Two rules for
 * which CPU a wake-up interrupts (tickle=old, tickle=new).
 * Suits: few long-running tasks in domains of different weight, with caps; tasks that sleep a lot
 * beside them.
 * Fails: latency among equals, who wait for 30 ms slices; hundreds of runnable tasks per CPU; nice
 * values, which have no effect; nested weights, because each cgroup competes with every other one.
 *
 * Terms:
 *   domain     a cgroup that has tasks; cpu.weight is its weight, cpu.max its cap
 *   vCPU       a task
 *   credit     the right to run, in microseconds (Xen: in hundreds of them); negative: a debt
 *   priority   BOOST (woke up with credit) > UNDER (has credit) > OVER (has none) > idle
 *   active     a vCPU that runs enough to be seen by a tick; only active vCPUs earn credit
 *   parked     kept from running, because the domain is over its cap
 *   tickle     to make a CPU reschedule
 *   idlers     the idle CPUs
 *
 * Mechanism. Each CPU has a FIFO per priority and runs the first vCPU of the best priority. The
 * running vCPU goes on only if it is better than all that wait, or alone. A tick (10 ms) charges
 * the running vCPU, ends its boost, makes it active, and moves it if another core or socket has
 * more idle CPUs. The accounting (30 ms) gives each active domain its share of all CPU time by
 * weight, but no more than the domain's vCPUs or its cap can use; other domains get the rest. Each
 * active vCPU of a domain gets an equal part of the share. A vCPU with credit below 0 is OVER, else
 * UNDER. A vCPU that sleeps with more than a time slice of credit stops earning. A vCPU of a capped
 * domain that owes more than the cap per period is parked until it has paid. A CPU whose best vCPU
 * is OVER, or that has no vCPU, first looks at the other busy CPUs in turn for a better one.
 * A wake-up stays on the CPU where the vCPU last ran; bpf/lib/tickle.bpf.h decides which CPU it
 * interrupts.
 *
 * Limits:
 *   - A vCPU with credit waits for the vCPUs of its priority on its CPU, one time slice for each. A
 *     vCPU that is OVER waits as long as others have credit. rescue_ms ends that wait: the README
 *     derives the bounds.
 *   - Caps hold on average: a domain may run for 30 ms at once, then it is parked until it has
 *     paid. Caps below 1 % are 1 %. park_max_ms bounds parking, so a domain with very many vCPUs
 *     may exceed a small cap.
 *   - Kernel threads and tasks with migration disabled are never parked.
 *   - 4096 domains; further cgroups belong to the domain of their parent. 65536 vCPUs; further
 *     tasks are UNDER and not charged. A parent's cap limits each domain below it, not their sum.
 *   - A slice ends at a tick of the kernel, so a vCPU may run up to a tick longer than its slice.
 */
#include "acct.bpf.h"

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

s32 BPF_STRUCT_OPS(credit_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct vcpu *v = vcpu_of(p);
	struct dom *d;
	s32 cpu;

	if (v && (wake_flags & SCX_WAKE_FORK)) {
		d = dom_at(v->dom < MAX_DOMS ? v->dom : ROOT_DOM);
		if (!d)
			return prev_cpu;
		cpu = first_cpu(p, d->last_cpu, prev_cpu);
		d->last_cpu = cpu;
		return cpu;
	}
	/* A vCPU wakes up on its last CPU, and is placed anew only if it may not run there now. */
	if (bpf_cpumask_test_cpu(prev_cpu, p->cpus_ptr))
		return prev_cpu;
	return cpu_pick(p, prev_cpu, false);
}

/* Queues a vCPU that ran until now and is still runnable. */
static void enqueue_again(struct task_struct *p, struct vcpu *v, u64 enq_flags)
{
	s32 cpu = scx_bpf_task_cpu(p), to = cpu;
	u32 class = class_of(v->pri);

	if (v->migrating) {
		v->migrating = false;
		to = cpu_pick(p, cpu, false);
		/*
		 * A vCPU that goes to another CPU counts as woken up, and gets the boost of a
		 * wake-up.
		 */
		if (to != cpu && v->pri == PRI_UNDER)
			v->pri = PRI_BOOST;
		class = class_of(v->pri);
	} else if (v->yielded && class + 1 < NR_CLASSES && scx_bpf_dsq_nr_queued(queue_id(cpu, class + 1)) > 0) {
		/*
		 * A vCPU that yielded goes behind the vCPUs of the next lower priority. It stays
		 * there until the next sort of the CPU's queues, which follows each accounting.
		 */
		class++;
	}
	v->yielded = false;
	queue_insert(p, v, to, class, enq_flags);
	if (to != cpu)
		tickle_for(p, v->pri, to);
	else if (enq_flags & SCX_ENQ_LAST)
		kick(cpu, 0);
}

void BPF_STRUCT_OPS(credit_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct vcpu *v = vcpu_of(p);
	s32 cpu = scx_bpf_task_cpu(p);
	bool again;

	if (!v) {
		scx_bpf_dsq_insert(p, queue_id(cpu, class_of(PRI_UNDER)), slice_ns(cpu), enq_flags);
		tickle_for(p, PRI_UNDER, cpu);
		return;
	}
	again = v->requeue && v->cpu == cpu;
	v->requeue = false;
	v->asleep = false;
	if (is_parked(v, p)) {
		v->migrating = false;
		park_insert(p, v, enq_flags);
		return;
	}
	if (again) {
		enqueue_again(p, v, enq_flags);
		return;
	}
	STAT(vcpu_wake_runnable);
	if ((v->fresh || (enq_flags & SCX_ENQ_WAKEUP)) && v->pri == PRI_UNDER && !v->parked)
		v->pri = PRI_BOOST;
	v->fresh = false;
	queue_insert(p, v, cpu, class_of(v->pri), enq_flags);
	tickle_for(p, v->pri, cpu);
}

/*
 * Returns the priority with which prev competes with the waiting vCPUs; PRI_IDLE: prev must not go
 * on.
 */
static s32 prev_pri(struct task_struct *prev, struct vcpu *v)
{
	if (!prev || !(prev->scx.flags & SCX_TASK_QUEUED))
		return PRI_IDLE;
	if (!v)
		return PRI_UNDER;
	if (v->migrating || is_parked(v, prev))
		return PRI_IDLE;
	return v->yielded && v->pri > PRI_OVER ? v->pri - 1 : v->pri;
}

static void go_on(struct task_struct *prev, struct vcpu *v, s32 cpu)
{
	if (v)
		v->yielded = false;
	scx_bpf_task_set_slice(prev, slice_ns(cpu));
}

/*
 * Whether the vCPU began to run less than ratelimit_us ago, so that it must not be preempted yet.
 */
static bool is_ratelimited(const struct vcpu *v, s32 pri)
{
	return ratelimit_us && v && pri != PRI_IDLE && !v->yielded &&
	       scx_bpf_now() - v->run_since < ratelimit_us * NS_PER_US;
}

/*
 * Cancels the move of a vCPU to another CPU if no idle CPU may run it. Xen of 2012 moves a vCPU
 * that a wake-up drives from its CPU in any case; later versions move it only to an idle CPU, as
 * here.
 */
static void settle_migration(struct task_struct *prev, struct vcpu *v)
{
	const struct cpumask *idlers = scx_bpf_get_idle_cpumask();

	if (!bpf_cpumask_intersects(idlers, prev->cpus_ptr))
		v->migrating = false;
	scx_bpf_put_idle_cpumask(idlers);
}

void BPF_STRUCT_OPS(credit_dispatch, s32 cpu, struct task_struct *prev)
{
	struct vcpu *v = prev ? vcpu_of(prev) : NULL;
	bool over;
	s32 pri;

	STAT(schedule);
	if (prev && v && v->migrating)
		settle_migration(prev, v);
	pri = prev_pri(prev, v);
	if (is_ratelimited(v, pri)) {
		STAT(delay_ms);
		scx_bpf_task_set_slice(prev, ratelimit_us * NS_PER_US);
		return;
	}
	sort_queues(cpu);
	if (rescue(cpu))
		return;
	if (pri <= PRI_BOOST && scx_bpf_dsq_move_to_local(queue_id(cpu, 0), 0))
		return;
	if (pri <= PRI_UNDER && scx_bpf_dsq_move_to_local(queue_id(cpu, 1), 0))
		return;
	if (pri > PRI_OVER) {
		go_on(prev, v, cpu);
		return;
	}
	over = pri == PRI_OVER || scx_bpf_dsq_nr_queued(queue_id(cpu, 2)) > 0;
	if (nr_cpus > 1 && steal(cpu, over ? PRI_OVER : PRI_IDLE))
		return;
	if (scx_bpf_dsq_move_to_local(queue_id(cpu, 2), 0))
		return;
	if (pri == PRI_OVER)
		go_on(prev, v, cpu);
}

void BPF_STRUCT_OPS(credit_running, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct vcpu *v = vcpu_of(p);

	cpu_ctx(cpu)->stands_still = false;
	if (!v)
		return;
	cpu_ctx(cpu)->cur = v->slot + 1;
	v->charged_to = v->run_since = scx_bpf_now();
	v->requeue = false;
	if (v->cpu != cpu) {
		v->cpu = cpu;
		STAT(migrate_queued);
		TASK_STAT(v, migrate_q);
	}
}

void BPF_STRUCT_OPS(credit_stopping, struct task_struct *p, bool runnable)
{
	struct vcpu *v = vcpu_of(p);

	cpu_ctx(scx_bpf_task_cpu(p))->cur = 0;
	if (!v)
		return;
	burn(v);
	/*
	 * Makes a vCPU in debt active, because the accounting must see it in any case. Xen makes a
	 * vCPU active only if a tick sees it.
	 */
	if (v->credit_us < 0 && !is_active(v->slot))
		acct_start(v);
	v->last_run = scx_bpf_now();
	v->requeue = runnable;
	v->asleep = !runnable;
	if (!runnable)
		v->migrating = false;
}

/*
 * Xen's csched_tick(), which runs every third of a time slice; here at the kernel's next tick after
 * that time.
 */
void BPF_STRUCT_OPS(credit_tick, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct vcpu *v = vcpu_of(p);
	u64 now = scx_bpf_now();

	if (!v)
		return;
	if (is_parked(v, p)) {
		scx_bpf_task_set_slice(p, 0);
		return;
	}
	if (time_before(now, c->next_tick))
		return;
	c->next_tick = now - now % tick_ns() + tick_ns();
	if (v->pri == PRI_BOOST)
		v->pri = PRI_UNDER;
	burn(v);
	if (!is_active(v->slot)) {
		acct_start(v);
	} else if (nr_idle && cpu_pick(p, cpu, !nr_waiting(cpu)) != cpu) {
		v->migrating = true;
		STAT(migrate_running);
		TASK_STAT(v, migrate_r);
		scx_bpf_task_set_slice(p, 0);
	}
}

bool BPF_STRUCT_OPS(credit_yield, struct task_struct *from, struct task_struct *to)
{
	struct vcpu *v = vcpu_of(from);

	if (v && !to)
		v->yielded = true;
	scx_bpf_task_set_slice(from, 0);
	return false;
}

void BPF_STRUCT_OPS(credit_update_idle, s32 cpu, bool idle)
{
	note_idle(cpu, idle);
}

/* Returns a free vCPU slot; MAX_VCPUS: all slots are in use. */
static u32 slot_alloc(void)
{
	u32 slot;

	if (!bpf_map_pop_elem(&free_slots, &slot))
		return slot;
	slot = __sync_fetch_and_add(&nr_slots, 1);
	if (slot < MAX_VCPUS)
		return slot;
	__sync_fetch_and_add(&nr_slots, -1);
	return MAX_VCPUS;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(credit_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct vcpu_ref *ref;
	u32 slot = slot_alloc();
	struct vcpu *v = vcpu_at(slot);

	if (!v) {
		STAT(vcpu_unaccounted);
		return 0;
	}
	ref = bpf_task_storage_get(&vcpu_refs, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!ref) {
		bpf_map_push_elem(&free_slots, &slot, 0);
		return -ENOMEM;
	}
	ref->slot = slot;
	/*
	 * Clears the slot's bit in active_vcpus before the slot's state. The accounting may still
	 * park the vCPU of the slot's last task between the two steps. In the reverse order the new
	 * vCPU could be left parked without its bit, and the accounting would never unpark it.
	 */
	clear_active(slot);
	__builtin_memset(v, 0, sizeof(*v));
	v->slot = slot;
	v->pid = p->pid;
	v->pri = PRI_UNDER;
	v->cpu = scx_bpf_task_cpu(p);
	v->dom = dom_of_new_task(args);
	v->fresh = args->fork;
	v->exempt = p->flags & PF_KTHREAD;
	STAT(vcpu_init);
	return 0;
}

void BPF_STRUCT_OPS(credit_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	struct vcpu_ref *ref = bpf_task_storage_get(&vcpu_refs, p, 0, 0);
	u32 slot, pid = p->pid;

	if (!ref)
		return;
	slot = ref->slot;
	clear_active(slot);
	bpf_task_storage_delete(&vcpu_refs, p);
	bpf_map_push_elem(&free_slots, &slot, 0);
	bpf_map_delete_elem(&task_stats, &pid);
	STAT(vcpu_destroy);
}

void BPF_STRUCT_OPS_SLEEPABLE(credit_cpu_online, s32 cpu)
{
	cpu_ctx(cpu)->offline = false;
}

void BPF_STRUCT_OPS_SLEEPABLE(credit_cpu_offline, s32 cpu)
{
	cpu_ctx(cpu)->offline = true;
	forget_idle(cpu);
	bpf_rcu_read_lock();
	drain_cpu(cpu);
	drain_queue(cpu, PARKED_DSQ);
	bpf_rcu_read_unlock();
}

static s32 check_knobs(void)
{
	if (tslice_ms < 1 || tslice_ms > 1000) {
		scx_bpf_error("tslice_ms is %u; it must be 1 to 1000", tslice_ms);
		return -EINVAL;
	}
	if (ratelimit_us > tslice_ms * 1000) {
		scx_bpf_error("ratelimit_us is %u; it must be at most tslice_ms, %u us", ratelimit_us, tslice_ms * 1000);
		return -EINVAL;
	}
	if (park_max_ms < 1 || park_max_ms > 8000) {
		scx_bpf_error("park_max_ms is %u; it must be 1 to 8000", park_max_ms);
		return -EINVAL;
	}
	return 0;
}

static s32 make_queues(void)
{
	u32 cpu, class;
	s32 err;

	bpf_for(cpu, 0, nr_cpus) {
		bpf_for(class, 0, NR_CLASSES) {
			err = scx_bpf_create_dsq(queue_id(cpu, class), -1);
			if (err)
				return err;
		}
		if (!topology_known)
			cpu_core[cpu & (MAX_CPUS - 1)] = cpu;
	}
	return scx_bpf_create_dsq(PARKED_DSQ, -1);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(credit_init)
{
	struct dom *root = dom_at(ROOT_DOM);
	s32 err = check_knobs();

	if (err)
		return err;
	nr_cpus = scx_bpf_nr_cpu_ids();
	if (nr_cpus > MAX_CPUS) {
		scx_bpf_error("%u CPUs; this scheduler was built for at most %u", nr_cpus, MAX_CPUS);
		return -E2BIG;
	}
	if (root) {
		root->used = 1;
		root->weight = DEFAULT_WEIGHT;
	}
	err = make_queues();
	if (!err)
		err = start_accounting();
	if (err)
		scx_bpf_error("no queues or no timer: error %d", err);
	return err;
}

void BPF_STRUCT_OPS(credit_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

SCX_OPS_DEFINE(credit_ops,
	       .select_cpu		= (void *)credit_select_cpu,
	       .enqueue			= (void *)credit_enqueue,
	       .dispatch		= (void *)credit_dispatch,
	       .tick			= (void *)credit_tick,
	       .running			= (void *)credit_running,
	       .stopping		= (void *)credit_stopping,
	       .yield			= (void *)credit_yield,
	       .update_idle		= (void *)credit_update_idle,
	       .init_task		= (void *)credit_init_task,
	       .exit_task		= (void *)credit_exit_task,
	       .cgroup_init		= (void *)credit_cgroup_init,
	       .cgroup_exit		= (void *)credit_cgroup_exit,
	       .cgroup_move		= (void *)credit_cgroup_move,
	       .cgroup_set_weight	= (void *)credit_cgroup_set_weight,
	       .cgroup_set_bandwidth	= (void *)credit_cgroup_set_bandwidth,
	       .cpu_online		= (void *)credit_cpu_online,
	       .cpu_offline		= (void *)credit_cpu_offline,
	       .init			= (void *)credit_init,
	       .exit			= (void *)credit_exit,
	       .flags			= SCX_OPS_KEEP_BUILTIN_IDLE | SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_EXITING |
					  SCX_OPS_ENQ_MIGRATION_DISABLED,
	       .timeout_ms		= 30000,
	       .name			= "credit");
