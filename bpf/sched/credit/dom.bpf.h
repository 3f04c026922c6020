/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Domains: one per cgroup, with weight and cap. The accounting (acct.bpf.h) lists active ones.
 */
#ifndef SCXLAB_CREDIT_DOM_BPF_H
#define SCXLAB_CREDIT_DOM_BPF_H

#include "credit.bpf.h"

/* Largest number of caps that limit a domain: its own cap and those of its nearest ancestors. */
#define MAX_DEPTH	16
#define DEFAULT_WEIGHT	100

struct dom {
	u32 used;
	u32 parent;
	u32 weight;		/* cpu.weight */
	s32 last_cpu;		/* CPU of the last new vCPU */
	u64 own_cap_us;		/* CPU time per time slice by this cgroup's cpu.max; 0: no cap */
	/* The accounting alone uses the fields below. */
	u32 listed;
	u32 next;		/* next active domain: index + 1 */
	u32 active;		/* active vCPUs in this period */
	u32 acct_weight;	/* weight at the start of the period */
	u64 cap_us;		/* own cap and ancestors' caps combined */
	u64 fair_us;		/* share of each active vCPU */
	u64 vcpu_cap_us;	/* a vCPU that owes more than this is parked */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_DOMS);
	__type(key, u32);
	__type(value, struct dom);
} doms SEC(".maps");

struct dom_ref {
	u32 dom;
	bool owner;
};

struct {
	__uint(type, BPF_MAP_TYPE_CGRP_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct dom_ref);
} dom_refs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, MAX_DOMS);
	__type(value, u32);
} free_doms SEC(".maps");

u32 nr_doms = 1;	/* domain numbers used so far: those below this one; the root's is 0 */

static __always_inline struct dom *dom_at(u32 dom)
{
	return bpf_map_lookup_elem(&doms, &dom);
}

/* Returns the domain of a cgroup; the root's if the kernel did not announce the cgroup. */
static __always_inline u32 dom_of(struct cgroup *cgrp)
{
	struct dom_ref *ref = bpf_cgrp_storage_get(&dom_refs, cgrp, 0, 0);

	return ref ? ref->dom : ROOT_DOM;
}

/*
 * Returns the domain of a new task's cgroup. The verifier does not trust the pointer to the cgroup
 * in `args`, so dom_of() cannot take it.
 */
static u32 dom_of_new_task(struct scx_init_task_args *args)
{
	struct cgroup *cgrp = bpf_cgroup_from_id(args->cgroup->kn->id);
	u32 dom;

	if (!cgrp)
		return ROOT_DOM;
	dom = dom_of(cgrp);
	bpf_cgroup_release(cgrp);
	return dom;
}

/* Returns a free domain number; MAX_DOMS: all numbers are in use. */
static u32 dom_alloc(void)
{
	u32 dom;

	if (!bpf_map_pop_elem(&free_doms, &dom))
		return dom;
	dom = __sync_fetch_and_add(&nr_doms, 1);
	if (dom < MAX_DOMS)
		return dom;
	__sync_fetch_and_add(&nr_doms, -1);
	return MAX_DOMS;
}

/*
 * Returns the domain of the parent cgroup. A cgroup holds references to its ancestors, so the
 * parent still has a domain.
 */
static u32 parent_dom(struct cgroup *cgrp)
{
	struct cgroup *parent;
	u32 dom = ROOT_DOM;

	if (cgrp->level < 1)
		return ROOT_DOM;
	parent = bpf_cgroup_ancestor(cgrp, cgrp->level - 1);
	if (!parent)
		return ROOT_DOM;
	dom = dom_of(parent);
	bpf_cgroup_release(parent);
	return dom;
}

static u32 clamp_weight(u32 weight)
{
	if (weight < 1)
		return 1;
	return weight > 10000 ? 10000 : weight;
}

/*
 * Returns a cap as CPU time per time slice; 0: no cap. A quota of MAX_CPUS periods or more stands
 * for cpu.max "max". The smallest cap is one in a hundred; a smaller one would park a vCPU for
 * longer than the watchdog allows.
 */
static u64 cap_of_bandwidth(u64 period_us, u64 quota_us)
{
	u64 cap_us, least_us = tslice_us() / 100;

	if (!period_us || quota_us / period_us >= MAX_CPUS)
		return 0;
	cap_us = (quota_us * tslice_us() + period_us - 1) / period_us;
	return cap_us < least_us ? least_us : cap_us;
}

/* Returns the smallest cap of the domain and its ancestors; 0: no cap. */
static u64 effective_cap(struct dom *d)
{
	u64 cap_us = 0;
	u32 i;

	bpf_for(i, 0, MAX_DEPTH) {
		u32 parent = d->parent;

		if (d->own_cap_us && (!cap_us || d->own_cap_us < cap_us))
			cap_us = d->own_cap_us;
		if (d == dom_at(ROOT_DOM))
			break;
		d = dom_at(parent);
		if (!d)
			break;
	}
	return cap_us;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(credit_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	struct dom_ref *ref = bpf_cgrp_storage_get(&dom_refs, cgrp, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	u32 parent = parent_dom(cgrp), num;
	struct dom *d;

	if (!ref)
		return -ENOMEM;
	num = cgrp->level < 1 ? ROOT_DOM : dom_alloc();
	d = dom_at(num);
	if (!d) {
		ref->dom = parent;
		ref->owner = false;
		STAT(dom_shared);
		return 0;
	}
	ref->dom = num;
	ref->owner = true;
	d->parent = parent;
	d->weight = clamp_weight(args->weight);
	d->own_cap_us = cap_of_bandwidth(args->bw_period_us, args->bw_quota_us);
	d->last_cpu = 0;
	d->used = 1;
	STAT(dom_init);
	return 0;
}

/*
 * Frees the domain's number. An exiting task may still have that number, and is then charged to the
 * dead domain or to the next domain with the number.
 */
void BPF_STRUCT_OPS_SLEEPABLE(credit_cgroup_exit, struct cgroup *cgrp)
{
	struct dom_ref *ref = bpf_cgrp_storage_get(&dom_refs, cgrp, 0, 0);
	struct dom *d;
	u32 num;

	if (!ref || !ref->owner || ref->dom == ROOT_DOM)
		return;
	num = ref->dom;
	ref->dom = ROOT_DOM;
	ref->owner = false;
	d = dom_at(num);
	if (!d)
		return;
	d->used = 0;
	d->own_cap_us = 0;
	d->parent = ROOT_DOM;
	d->weight = DEFAULT_WEIGHT;
	bpf_map_push_elem(&free_doms, &num, 0);
	STAT(dom_destroy);
}

void BPF_STRUCT_OPS(credit_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	struct vcpu *v = vcpu_of(p);

	if (v)
		v->dom = dom_of(to);
}

void BPF_STRUCT_OPS(credit_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	struct dom_ref *ref = bpf_cgrp_storage_get(&dom_refs, cgrp, 0, 0);
	struct dom *d = ref && ref->owner ? dom_at(ref->dom) : NULL;

	if (d)
		d->weight = clamp_weight(weight);
}

void BPF_STRUCT_OPS_SLEEPABLE(credit_cgroup_set_bandwidth, struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us)
{
	struct dom_ref *ref = bpf_cgrp_storage_get(&dom_refs, cgrp, 0, 0);
	struct dom *d = ref && ref->owner ? dom_at(ref->dom) : NULL;

	if (d)
		d->own_cap_us = cap_of_bandwidth(period_us, quota_us);
}

#endif /* SCXLAB_CREDIT_DOM_BPF_H */
