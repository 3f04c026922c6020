// SPDX-License-Identifier: GPL-2.0-only
/*
 * probe: measures a workload on a real kernel, with the definitions of the simulator's metrics.
 *
 * The workload is every task that descends from `root_tgid`, but its own threads and the director
 * (`directed`). A task of the workload has an entry in task storage, made when the task is forked.
 * Times are bpf_ktime_get_ns().
 *
 * Time before `from` and after `until` does not count, because the workload is then being started
 * or collected. A wait begins when the task is about to be woken (sched_waking), is new
 * (sched_wakeup_new), or is switched out while runnable, and ends when a CPU switches to the task.
 * Only the part of a wait within the measurement counts. Tasks are killed after the measurement, so
 * that a CPU switches also to those that still wait at its end.
 *
 * A traced run also writes the events of every task into a ring buffer, until the buffer is full.
 * The reader (crates/live/src/probe.rs) reads the ring buffer after the run, because during the run
 * the measured scheduler would schedule the reader.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf_experimental.h>
#include "probe.h"

char _license[] SEC("license") = "GPL";

/*
 * Process whose descendants are the workload. The loader sets it before it attaches the programs.
 */
const volatile u32 root_tgid = 0;
/* Number of CPUs. */
const volatile u32 nr_cpus = 1;
/* Non-zero if the programs write events into the ring buffer. */
const volatile u32 tracing = 0;
/* Bits of the preempt count by which an interrupt is recognised. */
const volatile u32 interrupt_mask = 0;
/* Non-zero if a process between `root_tgid` and the workload starts it, and is no part of it. */
const volatile u32 directed = 0;

/*
 * The measurement begins at `from` and ends at `until`. The loader sets both times while the
 * programs are attached.
 */
u64 from = ~0ULL;
u64 until = ~0ULL;

#define TASK_DEAD 0x80
#define DEFAULT_PRIO 120

enum presence { ABSENT, WAITS, RUNS };

struct task_state {
	enum presence presence;	/* whether the task counts as waiting or running in its cgroup */
	u64 cgroup;
	u64 waiting_since;	/* when the task's present wait began; 0: it does not wait */
	u64 woken_at;		/* when the task was woken up, if that began the wait; else 0 */
	u64 on_cpu_since;	/* when the task started to run; 0: it does not run */
	bool hidden;		/* the task runs the workload, and is no part of it */
	struct task_account sum;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NR_TIMES);
	__type(key, u32);
	__type(value, struct distribution);
} times SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_account);
} cpus SEC(".maps");

/*
 * Numbers of migrations. The key has the source CPU in its upper half and the destination in its
 * lower half.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, u32);
	__type(value, u64);
} moves SEC(".maps");

/* Tasks that ended. The key is the number of tasks that ended before. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_DONE);
	__type(key, u64);
	__type(value, struct task_account);
} done SEC(".maps");

u64 nr_done;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 12);
	__type(key, u64);
	__type(value, struct cgroup_state);
} cgroups SEC(".maps");

/* Ring buffer with the events of a traced run. For such a run the loader makes it larger. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 12);
} ring SEC(".maps");

static u32 bucket_of(u64 ns)
{
	u32 top, shift;

	if (ns < SUB)
		return ns;
	/* Finds the position of the highest set bit of `ns` by binary search. */
	top = 0;
	for (int step = 32; step; step >>= 1) {
		if (ns >> (top + step))
			top += step;
	}
	shift = top - SUB_BITS;
	return ((shift + 1) << SUB_BITS) + ((ns >> shift) & (SUB - 1));
}

/* Returns the part of a time span within the measurement, in ns. */
static u64 measured(u64 start, u64 end)
{
	if (start < from)
		start = from;
	if (end > until)
		end = until;
	return start < end ? end - start : 0;
}

static bool is_measured(u64 now)
{
	return from <= now && now <= until;
}

static void record(u32 which, u64 ns)
{
	struct distribution *d = bpf_map_lookup_elem(&times, &which);
	u32 bucket = bucket_of(ns);

	if (!d || bucket >= BUCKETS)
		return;
	d->count[bucket]++;
	if (ns > d->max)
		d->max = ns;
}

static struct task_state *state_of(struct task_struct *p)
{
	struct task_state *s = bpf_task_storage_get(&tasks, p, 0, 0);

	return s && !s->hidden ? s : NULL;
}

static struct cpu_account *this_cpu(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&cpus, &zero);
}

static struct cgroup_state *cgroup_state(u64 id)
{
	struct cgroup_state *c = bpf_map_lookup_elem(&cgroups, &id), fresh = {};

	if (c)
		return c;
	bpf_map_update_elem(&cgroups, &id, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&cgroups, &id);
}

static void account(u64 id, enum presence before, enum presence after, u64 now)
{
	struct cgroup_state *c = cgroup_state(id);
	u64 time, runnable;

	if (!c)
		return;
	bpf_spin_lock(&c->lock);
	runnable = c->sum.waits + c->sum.runs;
	time = measured(c->sum.since, now);
	if (now > c->sum.since)
		c->sum.since = now;
	if (runnable >= 2 && c->sum.runs) {
		c->sum.some += time;
		if (c->sum.runs >= (runnable < nr_cpus ? runnable : nr_cpus))
			c->sum.all += time;
	}
	c->sum.waits += (after == WAITS) - (before == WAITS);
	c->sum.runs += (after == RUNS) - (before == RUNS);
	bpf_spin_unlock(&c->lock);
}

static void note(struct task_struct *p, struct task_state *s, enum presence presence, u64 now)
{
	u64 id = p->cgroups->dfl_cgrp->kn->id;

	if (s->cgroup != id) {
		if (s->presence != ABSENT)
			account(s->cgroup, s->presence, ABSENT, now);
		s->presence = ABSENT;
		s->cgroup = id;
	}
	if (s->presence != presence)
		account(id, s->presence, presence, now);
	s->presence = presence;
}

static void describe(struct trace_task *to, struct task_struct *p)
{
	if (!p) {
		to->pid = to->tgid = to->prio = 0;
		to->comm[0] = 0;
		return;
	}
	to->pid = p->pid;
	to->tgid = p->tgid;
	to->prio = p->prio;
	bpf_probe_read_kernel_str(to->comm, sizeof(to->comm), p->comm);
}

/* The function is inline, because a BPF function has at most five arguments. */
static __always_inline void trace(enum trace_kind kind, u64 now, struct task_struct *task, struct task_struct *other,
				  u32 arg0, u32 arg1)
{
	struct trace_record *r;
	struct cpu_account *cpu;

	if (!tracing || now > until)
		return;
	r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	if (!r) {
		cpu = this_cpu();
		/* The addition is atomic, because an interrupt may also count an event. */
		if (cpu)
			__sync_fetch_and_add(&cpu->untraced, 1);
		return;
	}
	r->at = now;
	r->cpu = bpf_get_smp_processor_id();
	r->kind = kind;
	describe(&r->task, task);
	describe(&r->other, other);
	r->arg[0] = arg0;
	r->arg[1] = arg1;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

static void trace_wakeup(struct task_struct *p, u64 now)
{
	struct task_struct *waker = NULL;

	if (!tracing)
		return;
	/*
	 * bpf_in_interrupt() is not used here, because it knows only one layout of the count, and
	 * reads the kernel's configuration, which not every host provides.
	 */
	if (!(get_preempt_count() & interrupt_mask))
		waker = bpf_get_current_task_btf();
	trace(TRACE_WAKEUP, now, p, waker, p->thread_info.cpu, 0);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	bool of_root = parent->tgid == root_tgid;
	struct task_state *s;

	if (tracing)
		trace(TRACE_FORK, bpf_ktime_get_ns(), child, parent, 0, 0);
	if (!of_root && !bpf_task_storage_get(&tasks, parent, 0, 0))
		return 0;
	s = bpf_task_storage_get(&tasks, child, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (s)
		s->hidden = of_root && (directed || child->tgid == root_tgid);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *p)
{
	struct task_state *s = state_of(p);
	struct cpu_account *cpu;

	if (!s) {
		if (tracing)
			trace_wakeup(p, bpf_ktime_get_ns());
		return 0;
	}
	/*
	 * The wake-up begins no wait if the task has not left its CPU yet, because the task then
	 * runs on. A task that was preempted on its way to sleep waits already.
	 */
	if (s->on_cpu_since || s->waiting_since)
		return 0;
	s->woken_at = s->waiting_since = bpf_ktime_get_ns();
	trace_wakeup(p, s->woken_at);
	note(p, s, WAITS, s->woken_at);
	cpu = this_cpu();
	if (cpu && is_measured(s->woken_at))
		cpu->wakeups++;
	return 0;
}

/*
 * Begins the wait of a task that was still on its way off the CPU at sched_waking. Such a task
 * waits from the moment at which it is queued.
 */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *p)
{
	struct task_state *s = state_of(p);

	if (s && !s->on_cpu_since && !s->waiting_since) {
		s->woken_at = s->waiting_since = bpf_ktime_get_ns();
		trace_wakeup(p, s->woken_at);
		note(p, s, WAITS, s->woken_at);
	}
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_new, struct task_struct *p)
{
	struct task_state *s = state_of(p);
	u64 now;

	if (!s && !tracing)
		return 0;
	now = bpf_ktime_get_ns();
	trace_wakeup(p, now);
	if (s) {
		s->waiting_since = now;
		note(p, s, WAITS, now);
	}
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *p, int to)
{
	struct task_state *s = state_of(p);
	u32 key = ((u32)p->thread_info.cpu << 16) | (u32)(to & 0xffff);
	u64 one = 1, *count, now;

	if (!s && !tracing)
		return 0;
	now = bpf_ktime_get_ns();
	trace(TRACE_MIGRATE, now, p, NULL, p->thread_info.cpu, to);
	if (!s || !is_measured(now))
		return 0;
	s->sum.migrations++;
	count = bpf_map_lookup_elem(&moves, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	else if (bpf_map_update_elem(&moves, &key, &one, BPF_NOEXIST)) {
		count = bpf_map_lookup_elem(&moves, &key);
		if (count)
			__sync_fetch_and_add(count, 1);
	}
	return 0;
}

SEC("tp_btf/sched_move_numa")
int BPF_PROG(on_numa_move, struct task_struct *p)
{
	struct cpu_account *cpu = this_cpu();

	if (cpu && state_of(p) && is_measured(bpf_ktime_get_ns()))
		cpu->numa_moves++;
	return 0;
}

SEC("tp_btf/sched_swap_numa")
int BPF_PROG(on_numa_swap, struct task_struct *p, int from_cpu, struct task_struct *other)
{
	struct cpu_account *cpu = this_cpu();

	if (cpu && (state_of(p) || state_of(other)) && is_measured(bpf_ktime_get_ns()))
		cpu->numa_swaps++;
	return 0;
}

static void finish(struct task_struct *p, struct task_state *s, struct cpu_account *cpu)
{
	u64 key = __sync_fetch_and_add(&nr_done, 1);

	s->sum.cgroup = s->cgroup;
	s->sum.pid = p->pid;
	s->sum.tgid = p->tgid;
	s->sum.nice = p->static_prio - DEFAULT_PRIO;
	bpf_probe_read_kernel_str(s->sum.comm, sizeof(s->sum.comm), p->comm);
	if (bpf_map_update_elem(&done, &key, &s->sum, BPF_NOEXIST))
		cpu->lost++;
}

static void leave(struct task_struct *p, struct task_state *s, bool preempted, u32 state, u64 now,
		  struct cpu_account *cpu)
{
	if (s->on_cpu_since)
		s->sum.run += measured(s->on_cpu_since, now);
	s->on_cpu_since = 0;
	s->woken_at = 0;
	s->waiting_since = 0;
	if (preempted || !state) {
		note(p, s, WAITS, now);
		s->waiting_since = now;
		s->sum.involuntary += is_measured(now);
		return;
	}
	note(p, s, ABSENT, now);
	s->sum.voluntary += is_measured(now);
	if (state & TASK_DEAD)
		finish(p, s, cpu);
}

static void enter(struct task_struct *p, struct task_state *s, u64 now)
{
	u64 wait;

	note(p, s, RUNS, now);
	s->on_cpu_since = now;
	if (!s->waiting_since)
		return;
	/* A wait that is unfinished at the end of the measurement counts up to that end. */
	wait = measured(s->waiting_since, now);
	if (wait) {
		s->sum.wait += wait;
		record(RUN_QUEUE_WAIT, wait);
		if (s->woken_at)
			record(WAKEUP_LATENCY, measured(s->woken_at, now));
	}
	s->waiting_since = 0;
	s->woken_at = 0;
}

static enum trace_state state_after(bool preempted, u32 state)
{
	if (preempted || !state)
		return TRACE_RUNNABLE;
	return state & TASK_DEAD ? TRACE_DEAD : TRACE_SLEEPING;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempted, struct task_struct *prev, struct task_struct *next, u32 prev_state)
{
	struct cpu_account *cpu = this_cpu();
	struct task_state *s;
	u64 now = bpf_ktime_get_ns();
	bool ours = false;

	if (!cpu)
		return 0;
	trace(TRACE_SWITCH, now, prev, next, state_after(preempted, prev_state), 0);
	/*
	 * `since` is the time of the CPU's last switch. At the first switch that the probe sees it
	 * is 0, so `prev` is charged from the beginning of the measurement, because the CPU has run
	 * `prev` since before then.
	 */
	if (prev->pid)
		cpu->busy += measured(cpu->since, now);
	else
		cpu->idle += measured(cpu->since, now);
	cpu->since = now;
	cpu->is_busy = next->pid != 0;
	s = prev->pid ? state_of(prev) : NULL;
	if (s) {
		ours = true;
		leave(prev, s, preempted, prev_state, now, cpu);
	}
	s = next->pid ? state_of(next) : NULL;
	if (s) {
		ours = true;
		enter(next, s, now);
	}
	if (ours && is_measured(now))
		cpu->switches++;
	return 0;
}
