/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Accounting: a vCPU that runs burns credit, see burn(). Once per time slice a timer hands out new
 * credit, see account(). Only this timer touches the list of active domains, so the list needs no
 * lock.
 */
#ifndef SCXLAB_CREDIT_ACCT_BPF_H
#define SCXLAB_CREDIT_ACCT_BPF_H

#include "dom.bpf.h"
#include "queue.bpf.h"

/* Largest debt of a vCPU, in time slices. */
#define FLOOR_SLICES	3
/* Largest credit that a waiting vCPU keeps, in time slices. */
#define MOST_SLICES	10

#define NR_ACTIVE_WORDS	(MAX_VCPUS / 64)

/*
 * Active vCPUs: one bit per vCPU slot. A tick or a debt sets a vCPU's bit, and the accounting
 * clears it when the vCPU sleeps with more credit than a time slice.
 */
u64 active_vcpus[NR_ACTIVE_WORDS];
u32 nr_slots;			/* vCPU slots used so far: those below this number */

/*
 * First domain in the list of active domains (index + 1; 0 ends the list), the sum of all credit
 * after the last accounting, and the time of that accounting.
 */
u32 active_doms;
s64 credit_balance_us;
u64 accounted_to;

struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, MAX_VCPUS);
	__type(value, u32);
} free_slots SEC(".maps");

struct acct_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct acct_timer);
} acct_timers SEC(".maps");

static __always_inline bool is_active(u32 slot)
{
	return active_vcpus[slot / 64 & (NR_ACTIVE_WORDS - 1)] >> (slot & 63) & 1;
}

static __always_inline void set_active(u32 slot)
{
	__sync_fetch_and_or(&active_vcpus[slot / 64 & (NR_ACTIVE_WORDS - 1)], 1ULL << (slot & 63));
}

static __always_inline void clear_active(u32 slot)
{
	__sync_fetch_and_and(&active_vcpus[slot / 64 & (NR_ACTIVE_WORDS - 1)], ~(1ULL << (slot & 63)));
}

static void acct_start(struct vcpu *v)
{
	set_active(v->slot);
	STAT(acct_vcpu_active);
	TASK_STAT(v, state_active);
}

/* Charges a running vCPU up to now. The next call charges a rest below 1 us. */
static void burn(struct vcpu *v)
{
	u64 now = scx_bpf_now(), used_us;

	if (!time_before(v->charged_to, now))
		return;
	used_us = (now - v->charged_to) / NS_PER_US;
	__sync_fetch_and_add(&v->credit_us, -(s64)used_us);
	v->charged_to += used_us * NS_PER_US;
}

/* Calls BODY with `v` for each active vCPU. */
#define FOR_EACH_ACTIVE(v, BODY)							\
do {											\
	u32 __w, __b, __words = nr_slots / 64 + 1;					\
	if (__words > NR_ACTIVE_WORDS)							\
		__words = NR_ACTIVE_WORDS;						\
	bpf_for(__w, 0, __words) {							\
		u64 __bits = active_vcpus[__w & (NR_ACTIVE_WORDS - 1)];			\
		if (!__bits)								\
			continue;							\
		bpf_for(__b, 0, 64) {							\
			struct vcpu *v;							\
			if (!(__bits >> (__b & 63) & 1))				\
				continue;						\
			v = vcpu_at(__w * 64 + __b);					\
			if (v)								\
				BODY(v);						\
		}									\
	}										\
} while (0)

/*
 * Counts the active vCPUs of each domain, and returns the sum of the active domains' weights. Puts
 * a newly active domain at the head of the list of active domains.
 */
__noinline u64 count_active(void)
{
	u64 weight_total = 0;

#define COUNT(v)									\
	do {										\
		u32 num = v->dom < MAX_DOMS ? v->dom : ROOT_DOM;			\
		struct dom *d = dom_at(num);						\
		if (!d)									\
			break;								\
		if (!d->listed) {							\
			d->listed = true;						\
			d->next = active_doms;						\
			active_doms = num + 1;						\
		}									\
		if (!d->active)								\
			d->acct_weight = d->weight ?: DEFAULT_WEIGHT;			\
		if (!d->active || weight_of == CREDIT_WEIGHT_OF_VCPU)			\
			weight_total += d->acct_weight;					\
		d->active++;								\
	} while (0)
	FOR_EACH_ACTIVE(v, COUNT);
#undef COUNT
	return weight_total;
}

static u64 div_up(u64 a, u64 b)
{
	return b ? (a + b - 1) / b : 0;
}

/*
 * State of one handout of credit, which gives the domains their shares one after another. The
 * variable is global, because the verifier needs more time for values on the stack.
 */
struct handout {
	u64 span_us;		/* time since the last accounting */
	u64 total_us;		/* credit to be shared by weight */
	u64 weight_total;
	u64 weight_left;	/* weight of the domains that have not got their share yet */
	u64 owed_us;		/* debt of all vCPUs after the last accounting */
	bool xtra;		/* an earlier domain could have used more than its share */
} handout;

/*
 * Computes one domain's share. Returns true if the domain could not take all of its share, so that
 * the next domains get more.
 */
static bool share_out(struct dom *d)
{
	struct handout *h = &handout;
	u64 n = d->active, weight = d->acct_weight, peak_us, fair_us;
	bool full = false;

	if (weight_of == CREDIT_WEIGHT_OF_VCPU)
		weight *= n;
	h->weight_left -= weight < h->weight_left ? weight : h->weight_left;
	/*
	 * Since the last accounting the domain's n vCPUs cannot have run for more than n times
	 * span_us. The domain earns more than that only to pay debt.
	 */
	peak_us = n * h->span_us + div_up(h->owed_us * weight, h->weight_total);
	d->cap_us = div_up(effective_cap(d) * h->span_us, tslice_us());
	d->vcpu_cap_us = 0;
	if (d->cap_us) {
		if (d->cap_us < peak_us)
			peak_us = d->cap_us;
		d->vcpu_cap_us = div_up(d->cap_us, n);
	}
	fair_us = div_up(h->total_us * weight, h->weight_total);
	if (fair_us < peak_us) {
		h->xtra = true;
	} else {
		if (h->weight_left)
			h->total_us += div_up((fair_us - peak_us) * h->weight_total, h->weight_left);
		fair_us = peak_us;
		full = true;
	}
	d->fair_us = div_up(fair_us, n);
	return full;
}

/*
 * Computes the share of each active domain. Domains without active vCPUs leave the list of active
 * domains. A domain that cannot take all of its share moves to the head of the list if a domain
 * before it could have used more. In later periods the domains after it then get the part that it
 * leaves.
 */
__noinline int share_all(void)
{
	u32 at = active_doms, before = 0, i;

	bpf_for(i, 0, MAX_DOMS) {
		struct dom *d, *prev;
		bool unlink = false, full = false;
		u32 next;

		if (!at)
			break;
		d = dom_at(at - 1);
		if (!d)
			break;
		next = d->next;
		if (d->active)
			full = share_out(d);
		else
			unlink = true;
		if (unlink || (full && handout.xtra && before)) {
			prev = before ? dom_at(before - 1) : NULL;
			if (prev)
				prev->next = next;
			else
				active_doms = next;
			if (unlink) {
				d->listed = false;
				d->next = 0;
			} else {
				d->next = active_doms;
				active_doms = at;
				STAT(acct_reorder);
			}
		} else {
			before = at;
		}
		at = next;
	}
	return 0;
}

static void park(struct vcpu *v)
{
	v->parked = true;
	v->parked_at = scx_bpf_now();
	/*
	 * Sets the slot's bit in active_vcpus, because the accounting must look at a parked vCPU
	 * again. The bit may be clear, because the slot may have been given to another task in the
	 * meantime.
	 */
	set_active(v->slot);
	STAT(vcpu_park);
	TASK_STAT(v, parked);
	if (cpu_ctx(v->cpu)->cur == v->slot + 1)
		kick(v->cpu, SCX_KICK_PREEMPT);
}

static bool park_expired(const struct vcpu *v)
{
	return scx_bpf_now() - v->parked_at > park_max_ms * NS_PER_MS;
}

static void unpark(struct vcpu *v)
{
	v->parked = false;
	STAT(vcpu_unpark);
}

/*
 * Returns the lowest credit of a vCPU; debt beyond it is forgiven. Xen forgives debt beyond one
 * time slice. Slices end at a tick here, so a vCPU may run longer than a slice and owe more than
 * one. Xen's rule would forgive such a vCPU the excess, and so favour it, most of all if it runs
 * rarely.
 */
static s64 floor_us(void)
{
	return -(s64)(FLOOR_SLICES * tslice_us());
}

/*
 * Reduces a credit of more than a time slice, and returns what is left. A vCPU that sleeps stops
 * earning and keeps half of its credit, so it starts a little ahead next time. A vCPU that waits
 * keeps up to MOST_SLICES time slices. Xen treats waiting vCPUs like sleeping ones, and so takes
 * credit that it owes them.
 */
static s64 keep_less(struct vcpu *v, s64 credit)
{
	s64 most = MOST_SLICES * (s64)tslice_us(), less = credit;

	if (v->asleep) {
		clear_active(v->slot);
		STAT(acct_vcpu_idle);
		TASK_STAT(v, state_idle);
		less = credit / 2;
	} else if (credit > most) {
		less = most;
	}
	__sync_fetch_and_add(&v->credit_us, less - credit);
	return less;
}

/* Gives a vCPU its share, and the priority that follows from its credit. Returns its credit. */
static s64 pay(struct vcpu *v)
{
	struct dom *d = dom_at(v->dom < MAX_DOMS ? v->dom : ROOT_DOM);
	s64 credit;

	if (!d || !d->active)
		return 0;
	credit = __sync_fetch_and_add(&v->credit_us, (s64)d->fair_us) + (s64)d->fair_us;
	if (v->parked && credit < 0 && (!d->cap_us || park_expired(v))) {
		/*
		 * The parked vCPU's debt is forgiven, because its domain has no cap any more, or
		 * because the kernel's watchdog would soon see a stall.
		 */
		if (d->cap_us)
			STAT(park_forgiven);
		__sync_fetch_and_add(&v->credit_us, -credit);
		credit = 0;
	}
	if (credit < 0) {
		v->pri = PRI_OVER;
		if (d->cap_us && credit < -(s64)d->vcpu_cap_us && !v->parked && !v->exempt)
			park(v);
		if (credit < floor_us()) {
			STAT(acct_min_credit);
			__sync_fetch_and_add(&v->credit_us, floor_us() - credit);
			credit = floor_us();
		}
		return credit;
	}
	v->pri = PRI_UNDER;
	if (v->parked)
		unpark(v);
	return credit > (s64)tslice_us() ? keep_less(v, credit) : credit;
}

__noinline s64 pay_all(void)
{
	s64 balance = 0;

#define PAY(v) (balance += pay(v))
	FOR_EACH_ACTIVE(v, PAY);
#undef PAY
	return balance;
}

__noinline int forget_counts(void)
{
	u32 at = active_doms, i;

	bpf_for(i, 0, MAX_DOMS) {
		struct dom *d;

		if (!at)
			break;
		d = dom_at(at - 1);
		if (!d)
			break;
		d->active = 0;
		at = d->next;
	}
	return 0;
}

/* Hands out credit, as Xen's csched_acct() does. */
__noinline int account(void)
{
	const struct cpumask *online;
	u64 weight_total = count_active(), owed_us = 0, now = scx_bpf_now();

	/*
	 * Hands out the time that has really passed, so that a late timer does not reduce the
	 * credit.
	 */
	handout.span_us = (now - accounted_to) / NS_PER_US;
	if (handout.span_us > MOST_SLICES * tslice_us())
		handout.span_us = MOST_SLICES * tslice_us();
	accounted_to = now;
	if (!weight_total) {
		credit_balance_us = 0;
		STAT(acct_no_work);
		return 0;
	}
	STAT(acct_run);
	if (credit_balance_us < 0) {
		owed_us = -credit_balance_us;
		STAT(acct_balance);
	}
	online = scx_bpf_get_online_cpumask();
	handout.total_us = bpf_cpumask_weight(online) * handout.span_us + owed_us;
	scx_bpf_put_cpumask(online);
	handout.owed_us = owed_us;
	handout.weight_total = handout.weight_left = weight_total;
	handout.xtra = false;
	share_all();
	credit_balance_us = pay_all();
	forget_counts();
	__sync_fetch_and_add(&period, 1);
	return 0;
}

/* Puts tasks that are no longer parked back into the queue of their CPU, without a boost. */
__noinline int release_parked(void)
{
	struct task_struct *p;

	if (scx_bpf_dsq_nr_queued(PARKED_DSQ) <= 0)
		return 0;
	bpf_for_each(scx_dsq, p, PARKED_DSQ, 0) {
		struct vcpu *v = vcpu_of(p);
		u64 dsq = queue_id(scx_bpf_task_cpu(p), 1);
		s32 pri = PRI_UNDER, cpu = scx_bpf_task_cpu(p);

		if (v) {
			if (is_parked(v, p))
				continue;
			pri = v->pri;
			v->cpu = cpu;
			v->queued_at = scx_bpf_now();
			dsq = queue_id(cpu, class_of(pri));
		}
		if (scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, dsq, 0))
			tickle_for(p, pri, cpu);
	}
	return 0;
}

static bool anyone_waits(void)
{
	u32 cpu;

	bpf_for(cpu, 0, nr_cpus)
		if (nr_waiting(cpu))
			return true;
	return false;
}

/*
 * Makes up for missed wake-ups: if a task waits anywhere, all idle CPUs are kicked to look for it.
 * A CPU that is idle while tasks wait in its own queues missed a kick. If the next accounting finds
 * the CPU in that state again, the CPU is going off line: the kernel gives it no tasks any more,
 * but calls ops.cpu_offline() late, maybe only after a task of these very queues has run. The tasks
 * of such a CPU's queues, and of the queues of a CPU that is off line, are moved to other CPUs.
 */
__noinline int wake_forgotten(void)
{
	const struct cpumask *idlers = scx_bpf_get_idle_cpumask();
	bool work = anyone_waits();
	s32 cpu;

	bpf_for(cpu, 0, nr_cpus) {
		struct cpu_ctx *c = cpu_ctx(cpu);
		bool idle = bpf_cpumask_test_cpu(cpu, idlers), waits = idle && nr_waiting(cpu);

		if (waits && c->called)
			c->stands_still = true;
		c->called = waits;
		if (idle && work)
			kick(cpu, SCX_KICK_IDLE);
	}
	scx_bpf_put_idle_cpumask(idlers);
	bpf_for(cpu, 0, nr_cpus) {
		if (!cpu_ctx(cpu)->offline && !cpu_ctx(cpu)->stands_still)
			continue;
		forget_idle(cpu);
		drain_cpu(cpu);
	}
	return 0;
}

static int on_acct_timer(void *map, int *key, struct acct_timer *t)
{
	account();
	release_parked();
	wake_forgotten();
	bpf_timer_start(&t->timer, tslice_ms * NS_PER_MS, 0);
	return 0;
}

static int start_accounting(void)
{
	u32 key = 0;
	struct acct_timer *t = bpf_map_lookup_elem(&acct_timers, &key);
	int err;

	if (!t)
		return -ENOENT;
	accounted_to = scx_bpf_now();
	err = bpf_timer_init(&t->timer, &acct_timers, CLOCK_MONOTONIC);
	if (!err)
		err = bpf_timer_set_callback(&t->timer, on_acct_timer);
	if (!err)
		err = bpf_timer_start(&t->timer, tslice_ms * NS_PER_MS, 0);
	return err;
}

#endif /* SCXLAB_CREDIT_ACCT_BPF_H */
