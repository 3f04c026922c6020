// SPDX-License-Identifier: GPL-2.0-only
/*
 * recorder: writes the scheduling events of all tasks, and the system calls and attributes of the
 * tasks of the workload, into a ring buffer for crates/live/src/record.
 *
 * Records have pids. A task's name is recorded once, before the task's first event and when the name
 * or the priority changes; its attributes are recorded at the fork, and at the first switch to the
 * task after a change. The iterator `list_tasks` records both for the tasks that exist when the
 * recording begins. The state of each task is in task storage, which only the iterator and the fork
 * make, because the other programs run where memory must not be allocated.
 *
 * Calls are in record_calls.h, channels in record_channels.h.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf_experimental.h>
#include "record.h"

char _license[] SEC("license") = "GPL";

const volatile struct record_config settings = {};

#define TASK_UNINTERRUPTIBLE 2
#define TASK_DEAD 0x80
/* A task in this state waits for something, but does not count as load: TASK_IDLE has this bit. */
#define TASK_NOLOAD 0x400
#define PF_KTHREAD 0x00200000
#define DEFAULT_PRIO 120
/* Maximum depth in the tree of processes at which a descendant is found when a recording begins. */
#define DEPTH_MAX 64
/* Maximum depth of a cgroup that can be the scope of a recording. */
#define CGROUPS_MAX 32

/* Whether a task that is woken up was asleep. */
enum sleep { SLEEP_UNKNOWN, AWAKE, ASLEEP };

struct task_state {
	u64 signature;	/* of the attributes that were recorded last; 0: none were */
	u64 cgroup;	/* id of the cgroup for which `member` holds, with SCOPE_CGROUP */
	s32 prio;	/* as recorded with the name */
	u8 named;
	u8 member;	/* whether the task is of the workload; not used with SCOPE_ALL */
	u8 sleep;
	u8 woken;	/* whether a wake-up began while the task was on its way off the CPU */
	u32 waker;	/* by whom; 0: an interrupt */
	/* The system call in progress, if its end matters. */
	u16 call;
	u16 channel;
	u64 object;
	u64 buffer;	/* address of the caller's buffer for the value of an eventfd */
	u64 bytes;	/* number of bytes that the call asks for */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct record_counts);
} counts SEC(".maps");

/* Records of a size that does not fit on the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct record_attributes);
} scratch SEC(".maps");

/* The reader sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} ring SEC(".maps");

static struct task_state *state_of(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, 0, 0);
}

/* The additions are atomic, because an interrupt may also count. */
static void count_lost(void)
{
	u32 zero = 0;
	struct record_counts *c = bpf_map_lookup_elem(&counts, &zero);

	if (c)
		__sync_fetch_and_add(&c->lost, 1);
}

static void count_unread(void)
{
	u32 zero = 0;
	struct record_counts *c = bpf_map_lookup_elem(&counts, &zero);

	if (c)
		__sync_fetch_and_add(&c->unread, 1);
}

static void begin(struct record_head *head, enum record_kind kind, u64 now, u32 task)
{
	head->at = now;
	head->task = task;
	head->cpu = bpf_get_smp_processor_id();
	head->kind = kind;
}

static void record(enum record_kind kind, u64 now, u32 task, u32 arg0, u32 arg1)
{
	struct record_event *r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);

	if (!r) {
		count_lost();
		return;
	}
	begin(&r->head, kind, now, task);
	r->arg[0] = arg0;
	r->arg[1] = arg1;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

static void name(struct record_task *r, struct task_struct *p, u64 now)
{
	begin(&r->head, RECORD_TASK, now, p->pid);
	r->tgid = p->tgid;
	r->prio = p->prio;
	bpf_probe_read_kernel_str(r->comm, sizeof(r->comm), p->comm);
}

/* Records the name of a task if the reader does not have it. A lost name is recorded again. */
static void introduce(struct task_struct *p, struct task_state *s, u64 now)
{
	struct record_task *r;

	if (!p->pid || (s && s->named && s->prio == p->prio))
		return;
	r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	if (!r) {
		count_lost();
		return;
	}
	name(r, p, now);
	if (s) {
		s->named = 1;
		s->prio = r->prio;
	}
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

static u64 mix(u64 a, u64 b)
{
	a = (a ^ settings.salt) * 0x9e3779b97f4a7c15ULL;
	a = ((a ^ (a >> 32)) + b) * 0xd6e8feb86659fd93ULL;
	return a ^ (a >> 29);
}

static u64 cgroup_of(struct task_struct *p)
{
	return p->cgroups->dfl_cgrp->kn->id;
}

/* Tells whether the task is in the cgroup of SCOPE_CGROUP, or below it. */
static bool is_in_cgroup(struct task_struct *p, struct task_state *s)
{
	struct cgroup *cgroup = p->cgroups->dfl_cgrp, *above = NULL;
	u64 id = cgroup->kn->id;

	if (s->cgroup == id)
		return s->member;
	s->cgroup = id;
	s->member = 0;
	for (int level = 0; level < CGROUPS_MAX && level <= cgroup->level; level++) {
		bpf_probe_read_kernel(&above, sizeof(above), &cgroup->ancestors[level]);
		if (BPF_CORE_READ(above, kn, id) == settings.cgroup)
			s->member = 1;
	}
	return s->member;
}

static bool is_member(struct task_struct *p, struct task_state *s)
{
	if (!s || p->tgid == settings.recorder)
		return false;
	switch (settings.scope) {
	case SCOPE_ALL:
		return true;
	case SCOPE_CGROUP:
		return is_in_cgroup(p, s);
	default:
		return s->member;
	}
}

static u64 slice_of(struct task_struct *p)
{
	if (!bpf_core_field_exists(p->se.custom_slice) || !p->se.custom_slice)
		return 0;
	return p->se.slice;
}

/* Returns a number that changes, with all but certainty, when an attribute of the task does. */
static u64 signature_of(struct task_struct *p)
{
	u64 word = 0, sum;

	sum = mix(cgroup_of(p), (u64)p->policy << 32 | (u32)p->static_prio);
	sum = mix(sum, (u64)p->rt_priority << 32 | (u32)p->nr_cpus_allowed);
	for (u32 i = 0; i < 4 && i < settings.cpu_words; i++) {
		bpf_probe_read_kernel(&word, sizeof(word), &p->cpus_ptr->bits[i]);
		sum = mix(sum, word);
	}
	return mix(sum, slice_of(p)) | 1;
}

static void describe(struct record_attributes *r, struct task_struct *p, u64 now)
{
	u32 bytes = settings.cpu_words * sizeof(u64);

	begin(&r->head, RECORD_ATTRIBUTES, now, p->pid);
	r->cgroup = cgroup_of(p);
	r->slice = slice_of(p);
	r->runtime = p->dl.dl_runtime;
	r->deadline = p->dl.dl_deadline;
	r->period = p->dl.dl_period;
	r->policy = p->policy;
	r->nice = p->static_prio - DEFAULT_PRIO;
	r->rt_priority = p->rt_priority;
	r->is_kthread = !!(p->flags & PF_KTHREAD);
	__builtin_memset(r->cpus, 0, sizeof(r->cpus));
	if (bytes && bytes <= sizeof(r->cpus))
		bpf_probe_read_kernel(r->cpus, bytes, p->cpus_ptr->bits);
}

/* Records the attributes of a task of the workload, if they changed. */
static void note_attributes(struct task_struct *p, struct task_state *s, u64 now)
{
	struct record_attributes *r;
	u64 signature;

	if (!is_member(p, s))
		return;
	signature = signature_of(p);
	if (s->signature == signature)
		return;
	r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	if (!r) {
		count_lost();
		return;
	}
	describe(r, p, now);
	s->signature = signature;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

#include "record_channels.h"
#include "record_calls.h"

/* Tells whether a task descends from the process of SCOPE_PROCESS, or is of it. */
static bool descends(struct task_struct *p)
{
	for (int i = 0; i < DEPTH_MAX; i++) {
		if (!p || !p->pid)
			return false;
		if (p->tgid == settings.process)
			return true;
		p = p->real_parent;
	}
	return false;
}

/*
 * Writes the name of each task, and the attributes of the tasks of the workload, to the file of the
 * iterator. Events of the task may already have been recorded, so the state is changed only where
 * nothing is known.
 */
SEC("iter.s/task")
int list_tasks(struct bpf_iter__task *ctx)
{
	struct task_struct *p = ctx->task;
	struct record_attributes *r;
	struct record_task named = {};
	struct task_state *s;
	u32 zero = 0;
	u64 now = bpf_ktime_get_ns();

	if (!p)
		return 0;
	s = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!s) {
		count_lost();
		return 0;
	}
	if (s->sleep == SLEEP_UNKNOWN)
		s->sleep = p->__state ? ASLEEP : AWAKE;
	if (settings.scope == SCOPE_PROCESS && descends(p))
		s->member = 1;
	name(&named, p, now);
	s->prio = named.prio;
	s->named = 1;
	bpf_seq_write(ctx->meta->seq, &named, sizeof(named));
	r = bpf_map_lookup_elem(&scratch, &zero);
	if (!r || !is_member(p, s))
		return 0;
	s->signature = signature_of(p);
	describe(r, p, now);
	bpf_seq_write(ctx->meta->seq, r, sizeof(*r));
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	struct task_state *of_parent = state_of(parent), *s;
	u64 now = bpf_ktime_get_ns();

	s = bpf_task_storage_get(&tasks, child, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (s) {
		s->member = of_parent && of_parent->member;
		if (settings.scope == SCOPE_CHILDREN && parent->tgid == settings.recorder)
			s->member = child->tgid != settings.recorder;
		s->sleep = ASLEEP;
	}
	introduce(parent, of_parent, now);
	introduce(child, s, now);
	record(RECORD_FORK, now, child->pid, parent->pid, 0);
	if (s)
		note_attributes(child, s, now);
	return 0;
}

/* The tracepoint comes before the change of the name. */
SEC("tp_btf/task_rename")
int BPF_PROG(on_rename, struct task_struct *p, const char *comm)
{
	struct task_state *s = state_of(p);
	struct record_task *r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);

	if (!r) {
		count_lost();
		if (s)
			s->named = 0;
		return 0;
	}
	name(r, p, bpf_ktime_get_ns());
	bpf_probe_read_kernel_str(r->comm, sizeof(r->comm), comm);
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return 0;
}

SEC("tp_btf/cgroup_mkdir")
int BPF_PROG(on_cgroup, struct cgroup *cgroup, const char *path)
{
	struct record_cgroup *r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);

	if (!r) {
		count_lost();
		return 0;
	}
	begin(&r->head, RECORD_CGROUP, bpf_ktime_get_ns(), 0);
	r->id = cgroup->kn->id;
	bpf_probe_read_kernel_str(r->path, sizeof(r->path), path);
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return 0;
}

/*
 * Tells whether the running task writes to the socket from which a task reads, or the other way
 * round. Loopback TCP delivers in a softirq, which runs within the call of the sending task.
 */
static bool is_at_other_end(struct task_struct *by, struct task_state *s)
{
	struct task_state *at = state_of(by);

	if (!at || !s || s->channel != CHANNEL_SOCKET || at->object != s->object)
		return false;
	return (at->call == CALL_WRITE && s->call == CALL_READ) || (at->call == CALL_READ && s->call == CALL_WRITE);
}

/* Returns the pid of the task that is about to wake another one; 0: an interrupt is. */
static u32 waker(struct task_struct **by, struct task_state *s)
{
	struct task_struct *running = bpf_get_current_task_btf();

	/* See probe.bpf.c. */
	if ((get_preempt_count() & settings.interrupt_mask) && !is_at_other_end(running, s))
		return 0;
	*by = running;
	return running->pid;
}

static void wake(struct task_struct *p, struct task_state *s, u32 waker)
{
	u64 now = bpf_ktime_get_ns();

	if (s)
		s->sleep = AWAKE;
	introduce(p, s, now);
	record(RECORD_WAKEUP, now, p->pid, waker, p->thread_info.cpu);
}

/*
 * A task that has not left its CPU yet runs on, or is woken up after it left: then sched_wakeup
 * follows, perhaps in an interrupt of another CPU. The waker is noted for that case.
 */
SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *p)
{
	struct task_state *s = state_of(p);
	struct task_struct *by = NULL;
	u32 pid = waker(&by, s);

	if (by && pid)
		introduce(by, state_of(by), bpf_ktime_get_ns());
	if (s && s->sleep == AWAKE) {
		s->waker = pid;
		s->woken = 1;
		return 0;
	}
	wake(p, s, pid);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *p)
{
	struct task_state *s = state_of(p);

	if (s && s->sleep == ASLEEP && s->woken)
		wake(p, s, s->waker);
	if (s)
		s->woken = 0;
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_new, struct task_struct *p)
{
	struct task_struct *by = NULL;
	u32 pid = waker(&by, NULL);

	wake(p, state_of(p), pid);
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *p, int to)
{
	u64 now = bpf_ktime_get_ns();

	introduce(p, state_of(p), now);
	record(RECORD_MIGRATE, now, p->pid, p->thread_info.cpu, to);
	return 0;
}

static enum record_state state_after(bool preempted, u32 state)
{
	if (preempted || !state)
		return STATE_RUNNABLE;
	if (state & TASK_DEAD)
		return STATE_DEAD;
	if ((state & TASK_UNINTERRUPTIBLE) && !(state & TASK_NOLOAD))
		return STATE_UNINTERRUPTIBLE;
	return STATE_SLEEPING;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempted, struct task_struct *prev, struct task_struct *next, u32 prev_state)
{
	enum record_state state = state_after(preempted, prev_state);
	u64 now = bpf_ktime_get_ns();
	struct task_state *s;

	if (prev->pid) {
		s = state_of(prev);
		introduce(prev, s, now);
		if (s) {
			if (state == STATE_UNINTERRUPTIBLE && prev->in_iowait)
				note_io(prev, s, now);
			s->sleep = state == STATE_RUNNABLE ? AWAKE : ASLEEP;
		}
	}
	if (next->pid) {
		s = state_of(next);
		introduce(next, s, now);
		if (s) {
			s->sleep = AWAKE;
			note_attributes(next, s, now);
		}
	}
	record(RECORD_SWITCH, now, prev->pid, next->pid, state);
	return 0;
}
