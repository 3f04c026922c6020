/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Deeds: the calls of kernel functions that a scheduler can make, with arguments from
 * choices.bpf.h.
 *
 * Owns: the deeds and their numbers, which are bits of `permitted`.
 */

struct note {
	u64 count;
	struct task_struct __kptr *friend;
	struct bpf_cpumask __kptr *mask;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct note);
} notes SEC(".maps");

struct whim_alarm {
	struct bpf_timer timer;
	struct bpf_spin_lock lock;
};

#define NR_ALARMS 4

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NR_ALARMS);
	__type(key, u32);
	__type(value, struct whim_alarm);
} alarms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16);
	__type(key, u64);
	__type(value, u64);
} seen SEC(".maps");

static void deed(struct task_struct *p, s32 cpu, u64 flags, enum place at);

static struct whim_alarm *some_alarm(void)
{
	u32 key = or_odd(draw() % NR_ALARMS);

	return bpf_map_lookup_elem(&alarms, &key);
}

static int alarm_fired(void *map, u32 *key, struct whim_alarm *a)
{
	if (chance(deeds_ppm))
		deed(NULL, 0, 0, IN_TIMER);
	bpf_timer_start(&a->timer, or_odd(1000000 + draw() % 10000000), 0);
	return or_odd(0);
}

static void init_timers(void)
{
	struct whim_alarm *a;
	u32 i;

	bpf_for(i, 0, NR_ALARMS) {
		a = bpf_map_lookup_elem(&alarms, &i);
		if (!a || chance(wrong_ppm))
			continue;
		bpf_timer_init(&a->timer, &alarms, or_odd(CLOCK_MONOTONIC));
		bpf_timer_set_callback(&a->timer, alarm_fired);
	}
}

static __noinline void do_insert(struct task_struct *p, u64 flags)
{
	scx_bpf_dsq_insert(or_wild(p), some_queue(), slice(), enq_flags_of(flags));
}

static __noinline void do_insert_ordered(struct task_struct *p, u64 flags)
{
	u64 queue = or_odd(queue_id(draw() % (NR_QUEUES / 2) * 2 + 1));

	scx_bpf_dsq_insert_vtime(or_wild(p), queue, slice(), or_odd(draw() % 1000), enq_flags_of(flags));
}

static __noinline void do_move_to_local(u64 flags)
{
	scx_bpf_dsq_move_to_local(or_odd(queue_id(draw() % NR_QUEUES)), or_odd(0));
}

/* Iterates a DSQ, and moves some of its tasks elsewhere. */
static __noinline void do_iterate(u64 flags)
{
	u64 rev = draw() % 2 ? SCX_DSQ_ITER_REV : 0;
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u32 i;

	bpf_iter_scx_dsq_new(&it, or_odd(queue_id(draw() % NR_QUEUES)), or_odd(rev));
	bpf_for(i, 0, 16) {
		p = bpf_iter_scx_dsq_next(&it);
		if (!p)
			break;
		switch (draw() % 8) {
		case 0:
			scx_bpf_dsq_move_set_slice___new(&it, slice());
			break;
		case 1:
			scx_bpf_dsq_move_set_vtime___new(&it, or_odd(draw() % 1000));
			break;
		case 2:
			scx_bpf_dsq_move___new(&it, or_wild(p), some_queue(), enq_flags_of(0));
			break;
		case 3:
			scx_bpf_dsq_move_vtime___new(&it, or_wild(p), or_odd(queue_id(1)), enq_flags_of(0));
			break;
		case 4:
			if (chance(wrong_ppm))
				((u64 *)&it)[draw() % 6] = boundary_value();
			break;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
}

static __noinline void do_kick(void)
{
	u64 how[] = { 0, SCX_KICK_IDLE, SCX_KICK_PREEMPT, SCX_KICK_WAIT, SCX_KICK_PREEMPT | SCX_KICK_WAIT };

	scx_bpf_kick_cpu(some_cpu(), or_odd(how[draw() % 5]));
}

static __noinline void do_create(void)
{
	u32 i = draw() % NR_TRANSIENT;

	if (!scx_bpf_create_dsq(transient_id(i), or_odd(draw() % 2 ? -1 : some_node())))
		transient |= 1 << i;
	if (chance(wrong_ppm))
		scx_bpf_create_dsq(boundary_value(), boundary_value());
}

static __noinline void do_destroy(void)
{
	u32 i = draw() % NR_TRANSIENT;

	if (transient & (1 << i) && (!scx_bpf_dsq_nr_queued(transient_id(i)) || chance(wrong_ppm))) {
		scx_bpf_destroy_dsq(transient_id(i));
		transient &= ~(1 << i);
	}
	if (chance(wrong_ppm))
		scx_bpf_destroy_dsq(some_queue());
}

static __noinline void do_ask(struct task_struct *p, s32 cpu)
{
	struct scx_bpf_select_cpu_and_args args = {
		.prev_cpu = or_odd(cpu),
		.wake_flags = or_odd(draw() % 2 ? SCX_WAKE_SYNC : 0),
		.flags = or_odd(draw() % 4),
	};
	bool is_idle;

	if (draw() % 2)
		__scx_bpf_select_cpu_and(or_wild(p), or_wild((void *)p->cpus_ptr), &args);
	else
		scx_bpf_select_cpu_dfl(or_wild(p), args.prev_cpu, args.wake_flags, or_wild(&is_idle));
}

static __noinline void do_set(struct task_struct *p)
{
	switch (draw() % 4) {
	case 0:
		scx_bpf_task_set_slice(or_wild(p), slice());
		break;
	case 1:
		scx_bpf_task_set_dsq_vtime(or_wild(p), or_odd(draw() % 1000));
		break;
	case 2:
		p->scx.slice = slice();
		break;
	case 3:
		p->scx.dsq_vtime = or_odd(draw() % 1000);
		break;
	}
	if (chance(wrong_ppm))
		((u64 *)p)[draw() % 512] = boundary_value();
}

static __noinline void do_look_idle(struct task_struct *p)
{
	const struct cpumask *mask = p ? p->cpus_ptr : scx_bpf_get_online_cpumask();
	u64 flags = or_odd(draw() % 2 ? SCX_PICK_IDLE_CORE : 0);

	switch (draw() % 8) {
	case 0:
		scx_bpf_pick_idle_cpu(or_wild((void *)mask), flags);
		break;
	case 1:
		scx_bpf_pick_any_cpu(or_wild((void *)mask), flags);
		break;
	case 2:
		scx_bpf_test_and_clear_cpu_idle(some_cpu());
		break;
	case 3:
		mask = scx_bpf_get_idle_cpumask();
		bpf_cpumask_test_cpu(some_cpu(), mask);
		scx_bpf_put_idle_cpumask(or_wild((void *)mask));
		break;
	case 4:
		mask = scx_bpf_get_idle_smtmask();
		bpf_cpumask_weight(mask);
		scx_bpf_put_idle_cpumask(mask);
		break;
	}
}

static __noinline void do_look_idle_node(struct task_struct *p)
{
	const struct cpumask *mask = p ? p->cpus_ptr : scx_bpf_get_online_cpumask();
	u64 flags = or_odd(draw() % 4);

	switch (draw() % 4) {
	case 0:
		scx_bpf_pick_idle_cpu_node(or_wild((void *)mask), some_node(), flags);
		break;
	case 1:
		scx_bpf_pick_any_cpu_node(or_wild((void *)mask), some_node(), flags);
		break;
	case 2:
		mask = scx_bpf_get_idle_cpumask_node(some_node());
		scx_bpf_put_idle_cpumask(mask);
		break;
	case 3:
		mask = scx_bpf_get_idle_smtmask_node(some_node());
		scx_bpf_put_idle_cpumask(mask);
		break;
	}
}

static __noinline void do_timer(void)
{
	struct whim_alarm *a = some_alarm();

	if (!a)
		return;
	switch (draw() % 4) {
	case 0:
		bpf_timer_cancel(or_wild(&a->timer));
		break;
	case 1:
		bpf_spin_lock(&a->lock);
		if (!chance(wrong_ppm))
			bpf_spin_unlock(&a->lock);
		break;
	default:
		bpf_timer_start(or_wild(&a->timer), or_odd(draw() % 10000000), or_odd(draw() % 4));
	}
	if (chance(wrong_ppm))
		bpf_timer_init(&a->timer, &alarms, boundary_value());
}

static __noinline void do_leave(void)
{
	u64 data[] = { draws, 0 };

	if (!chance(wrong_ppm * 8))
		return;
	switch (draw() % 4) {
	case 0:
		scx_bpf_error("had enough after %llu draws", draws);
		break;
	case 1:
		scx_bpf_exit(boundary_value(), "left after %llu draws", draws);
		break;
	case 2:
		scx_bpf_error_bstr("%d %s %p", data, or_odd(sizeof(data)));
		break;
	case 3:
		scx_bpf_dump("not asked: %llu", draws);
		break;
	}
}

static __noinline void do_reenqueue(void)
{
	if (draw() % 2)
		scx_bpf_reenqueue_local();
	else
		scx_bpf_dsq_reenq(some_queue(), or_odd(draw() % 2));
}

static __noinline void do_ask_cpu(void)
{
	struct scx_event_stats events;
	struct task_struct *p;

	switch (draw() % 8) {
	case 0:
		scx_bpf_cpuperf_set(or_odd(bpf_get_smp_processor_id()), or_odd(draw() % 1025));
		break;
	case 1:
		scx_bpf_cpuperf_cap(some_cpu());
		break;
	case 2:
		scx_bpf_cpuperf_cur(some_cpu());
		break;
	case 3:
		p = scx_bpf_cpu_curr(some_cpu());
		if (p)
			scx_bpf_task_running(or_wild(p));
		break;
	case 4:
		scx_bpf_events(or_wild(&events), or_odd(sizeof(events)));
		break;
	case 5:
		if (chance(wrong_ppm))
			scx_bpf_locked_rq();
		break;
	case 6:
		scx_bpf_cpu_node(some_cpu());
		break;
	case 7:
		scx_bpf_now();
		break;
	}
}

static __noinline void do_queue_state(void)
{
	struct task_struct *p;

	switch (draw() % 4) {
	case 0:
		scx_bpf_dsq_nr_queued(some_queue());
		break;
	case 1:
		p = scx_bpf_dsq_peek(or_odd(queue_id(draw() % NR_QUEUES)));
		if (p)
			scx_bpf_task_cpu(p);
		break;
	case 2:
		scx_bpf_dispatch_nr_slots();
		break;
	case 3:
		if (chance(wrong_ppm * 8))
			scx_bpf_dispatch_cancel();
		break;
	}
}

static __noinline void do_note(struct task_struct *p)
{
	struct task_struct *friend = NULL;
	struct bpf_cpumask *mask = NULL;
	struct note *n;

	n = bpf_task_storage_get(&notes, or_wild(p), 0, or_odd(draw() % 2));
	if (!n)
		return;
	n->count++;
	switch (draw() % 4) {
	case 0:
		friend = bpf_kptr_xchg(&n->friend, other_task());
		break;
	case 1:
		mask = bpf_cpumask_create();
		if (mask)
			bpf_cpumask_set_cpu(some_cpu(), mask);
		mask = bpf_kptr_xchg(&n->mask, mask);
		break;
	case 2:
		mask = bpf_kptr_xchg(&n->mask, NULL);
		break;
	case 3:
		bpf_task_storage_delete(&notes, or_wild(p));
		break;
	}
	if (friend)
		bpf_task_release(friend);
	if (mask)
		bpf_cpumask_release(mask);
}

static __noinline void do_other(u64 flags)
{
	struct task_struct *p = other_task();

	if (!p)
		return;
	if (chance(wrong_ppm * 8))
		scx_bpf_dsq_insert(p, some_queue(), slice(), 0);
	else
		do_set(p);
	if (chance(wrong_ppm))
		bpf_task_release(p);
	bpf_task_release(or_wild(p));
}

static __noinline void do_cgroup(struct task_struct *p)
{
	struct cgroup *group = scx_bpf_task_cgroup___new(p);
	struct cgroup_subsys_state *css;
	struct bpf_iter_css it;
	struct cgroup *up;
	u32 i;

	if (!group)
		return;
	up = bpf_cgroup_ancestor(or_wild(group), or_odd(draw() % 4));
	if (up) {
		bpf_iter_css_new(&it, or_wild(&up->self), or_odd(1 + draw() % 4));
		bpf_for(i, 0, 8) {
			css = bpf_iter_css_next(&it);
			if (!css)
				break;
			if (chance(wrong_ppm))
				((u64 *)&it)[draw() % 3] = boundary_value();
		}
		bpf_iter_css_destroy(&it);
		bpf_cgroup_release(or_wild(up));
	}
	up = bpf_cgroup_from_id(or_odd(draw() % 4));
	if (up)
		bpf_cgroup_release(up);
	bpf_cgroup_release(group);
}

static __noinline void do_mask(struct task_struct *p)
{
	struct bpf_cpumask *a = bpf_cpumask_create(), *b = bpf_cpumask_create();
	u64 words[4] = { draw(), draw(), draw(), draw() };

	if (a && b) {
		bpf_cpumask_setall(a);
		bpf_cpumask_clear_cpu(some_cpu(), a);
		bpf_cpumask_copy(b, or_wild((void *)p->cpus_ptr));
		bpf_cpumask_xor(b, (const struct cpumask *)a, (const struct cpumask *)b);
		bpf_cpumask_populate(or_wild(a), words, or_odd(sizeof(words)));
		bpf_cpumask_any_and_distribute((const struct cpumask *)a, or_wild(b));
		scx_bpf_pick_any_cpu((const struct cpumask *)a, or_odd(0));
	}
	if (a && !chance(wrong_ppm))
		bpf_cpumask_release(or_wild(a));
	if (b)
		bpf_cpumask_release(b);
}

static __noinline void do_hash(void)
{
	u64 key = draw() % 32, value = draw();

	switch (draw() % 4) {
	case 0:
		bpf_map_update_elem(&seen, &key, &value, or_odd(draw() % 3));
		break;
	case 1:
		bpf_map_delete_elem(&seen, or_wild(&key));
		break;
	case 2:
		bpf_map_lookup_elem(&seen, or_wild(&key));
		break;
	case 3:
		bpf_printk("%llu drawn", draws);
		break;
	}
}

#define NR_DEEDS 21

/* Returns whether the kernel allows a deed in that kind of operation and with this idle_mode. */
static bool fits(u32 which, enum place at)
{
	switch (which) {
	case 2:
		return idle_mode != IDLE_OFF && (at == IN_SELECT_CPU || at == IN_ENQUEUE);
	case 5:
		return at != IN_DISPATCH && at != ELSEWHERE;
	case 8:
		return at == IN_DISPATCH;
	case 13:
		return idle_mode == IDLE_GLOBAL;
	case 14:
		return idle_mode == IDLE_PER_NODE;
	}
	return true;
}

/*
 * Does one deed, chosen at random, if the knob `permitted` has its bit. Does nothing if the deed
 * needs a task (deeds 0 to 7) and `p` is NULL.
 */
static __noinline void deed(struct task_struct *p, s32 cpu, u64 flags, enum place at)
{
	u32 which = draw() % NR_DEEDS;
	bool careless = chance(wrong_ppm);

	if (!(permitted & (1ULL << which)))
		return;
	if (which < 8 && !p)
		return;
	if (!careless && !fits(which, at))
		return;
	switch (which) {
	case 0:
		if (chance(wrong_ppm * 8))
			do_insert(p, flags);
		break;
	case 1:
		if (chance(wrong_ppm * 8))
			do_insert_ordered(p, flags);
		break;
	case 2:
		do_ask(p, cpu);
		break;
	case 3:
		do_set(p);
		break;
	case 4:
		do_note(p);
		break;
	case 5:
		do_cgroup(p);
		break;
	case 6:
		do_mask(p);
		break;
	case 7:
		do_other(flags);
		break;
	case 8:
		do_move_to_local(flags);
		break;
	case 9:
		do_iterate(flags);
		break;
	case 10:
		do_kick();
		break;
	case 11:
		do_create();
		break;
	case 12:
		do_destroy();
		break;
	case 13:
		do_look_idle(p);
		break;
	case 14:
		do_look_idle_node(p);
		break;
	case 15:
		do_timer();
		break;
	case 16:
		do_leave();
		break;
	case 17:
		do_reenqueue();
		break;
	case 18:
		do_ask_cpu();
		break;
	case 19:
		do_queue_state();
		break;
	case 20:
		do_hash();
		break;
	}
}
