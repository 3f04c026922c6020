/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The switch that makes a cgroup a gang: an extended attribute of the cgroup's directory, with the
 * value 1.
 *
 * The scheduler reads the attribute when a cgroup appears, when a task moves into the cgroup, and
 * when a task of it starts to run or has a tick, but at most once in GANG_READ_NS.
 */
#ifndef FAIR_GANG_SWITCH_BPF_H
#define FAIR_GANG_SWITCH_BPF_H

#include "group.bpf.h"

#define GANG_XATTR	"user.cpu.gang"
#define GANG_READ_NS	(10 * NSEC_PER_MSEC)

struct gang_value {
	char text[8];
};

/*
 * Buffers for the attribute's value. Buffer 1 is for programs that may sleep. Buffer 0 is for
 * programs that may not sleep, because these can interrupt a program that may sleep.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct gang_value);
} gang_values SEC(".maps");

extern int LINUX_KERNEL_VERSION __kconfig;
extern int bpf_cgroup_read_xattr(struct cgroup *cgroup, const char *name__str, struct bpf_dynptr *value_p) __weak __ksym;

/* Before 7.3 only programs that may sleep can read the attribute. */
#define may_read_anywhere() (LINUX_KERNEL_VERSION >= KERNEL_VERSION(7, 3, 0))

enum { GANG_VALUE_NO, GANG_VALUE_YES, GANG_VALUE_BAD };

static __always_inline int read_switch(struct cgroup *cgrp, u32 slot)
{
	struct gang_value *v = bpf_map_lookup_elem(&gang_values, &slot);
	struct bpf_dynptr to;
	int len;

	if (!v || bpf_dynptr_from_mem(v, sizeof(*v), 0, &to))
		return GANG_VALUE_NO;
	len = bpf_cgroup_read_xattr(cgrp, GANG_XATTR, &to);
	if (len == -ERANGE)
		return GANG_VALUE_BAD;
	if (len < 0)
		return GANG_VALUE_NO;
	if (len != 1)
		return GANG_VALUE_BAD;
	if (v->text[0] == '1')
		return GANG_VALUE_YES;
	return v->text[0] == '0' ? GANG_VALUE_NO : GANG_VALUE_BAD;
}

static __always_inline void read_gang(struct cgroup *cgrp, u32 group, u32 slot)
{
	fair_group_t *g = group_at(group);
	int value;

	if (gang == FAIR_GANG_OFF || group == ROOT_GROUP || !bpf_ksym_exists(bpf_cgroup_read_xattr))
		return;
	value = read_switch(cgrp, slot);
	g->gang_read_at = scx_bpf_now();
	if (value == GANG_VALUE_BAD && !g->gang_bad)
		count(gang_bad_values);
	g->gang_bad = value == GANG_VALUE_BAD;
	g->gang = value == GANG_VALUE_YES;
}

/* Reads the switch of a new cgroup. Called in a program that may sleep. */
static void gang_cgroup_appears(struct cgroup *cgrp, u32 group)
{
	read_gang(cgrp, group, 1);
}

/* Reads the switches of a cgroup and those above it, each at most once in GANG_READ_NS. */
static int gang_read_path(struct cgroup *cgrp, u64 now)
{
	u32 level;

	if (!may_read_anywhere() || !cgrp)
		return 0;
	bpf_for(level, 1, cgrp->level + 1) {
		struct cgroup *at = bpf_cgroup_ancestor(cgrp, level);
		struct group_stor *s;

		if (!at)
			break;
		s = bpf_cgrp_storage_get(&group_stors, at, 0, 0);
		if (s && s->owner && (s64)(now - group_at(s->group)->gang_read_at) >= (s64)GANG_READ_NS)
			read_gang(at, s->group, 0);
		bpf_cgroup_release(at);
	}
	return 0;
}

/* Whether it is time to read the switch of a cgroup, or of one above it. */
static __noinline bool gang_is_stale(u32 group, u64 now)
{
	while (group != ROOT_GROUP && can_loop) {
		if ((s64)(now - group_at(group)->gang_read_at) >= (s64)GANG_READ_NS)
			return true;
		group = group_at(group)->parent;
	}
	return false;
}

static __always_inline void read_task_gang(struct task_struct *p, u32 group, u64 now)
{
	struct cgroup *cgrp;

	if (!may_read_anywhere() || !gang_is_stale(group, now))
		return;
	cgrp = scx_bpf_task_cgroup(p);
	if (!cgrp)
		return;
	gang_read_path(cgrp, now);
	bpf_cgroup_release(cgrp);
}

/*
 * Reads the switches when a task starts to run, because a task that often sleeps may never see a
 * tick.
 */
static __always_inline void gang_reads(struct task_struct *p, u32 group, u64 now)
{
	if (gang != FAIR_GANG_OFF)
		read_task_gang(p, group, now);
}

/* Returns the nearest gang from a cgroup upwards; 0: there is none. */
static u32 gang_of(u32 group)
{
	while (group != ROOT_GROUP && !group_at(group)->gang && can_loop)
		group = group_at(group)->parent;
	return group;
}

#endif
