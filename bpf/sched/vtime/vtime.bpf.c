// SPDX-License-Identifier: GPL-2.0-only
/*
 * vtime: CPU time in proportion to weight, from one queue per last-level cache (LLC).
 *
 * Shows: the smallest scheduler that is worth running. Wake-up on an idle CPU, a priority queue, a
 * virtual clock and stealing are all here, with one short function each. Read this scheduler first,
 * and copy it.
 * Suits: throughput on machines of any size; shares by nice or weight under saturation.
 * Fails: latency under saturation, because nothing preempts: a task that wakes up when no CPU is
 * idle waits for a slice to end. Weights of cgroups have no effect. It ignores SMT, nodes and
 * frequencies beyond what the kernel's idle picker does.
 *
 * Terms:
 *   vtime      CPU time of a task divided by its weight (100 at nice 0); the smallest vtime goes
 *              first
 *   vtime_now  the largest vtime that any task had when it started to run: "the present"
 *   lag        vtime_now minus a waiting task's vtime
 *
 * Mechanism. A task that wakes up runs at once on an idle CPU if the kernel's picker finds one.
 * Such a run takes time from no other task, so the task's earlier debt is dropped. Otherwise the
 * task joins the queue of its CPU's LLC, ordered by vtime, and the scheduler kicks an idle CPU that
 * may run it. A CPU takes tasks from its own LLC's queue, and from other LLCs' queues when its own
 * is empty. All LLCs share one clock, so their queues can be compared: before each pick a CPU looks
 * at the head of one other LLC's queue, a different one each time, and takes that task if it lags
 * by more than pull_ns. An LLC with too many tasks therefore loses some even when no CPU is idle.
 * When a task stops, the used part of its slice is charged. A task that goes on because no task
 * waits is not charged.
 *
 * Limits:
 *   - Sleepers keep at most sleep_lag_ns of lag; otherwise a task could starve the other tasks
 *     after a long sleep.
 *   - A task is not charged for the time, up to a tick, that it runs beyond its slice. A task that
 *     yields is charged for its whole slice.
 *   - All CPUs write vtime_now, one word for the machine, without a lock. If an update is lost, the
 *     next one makes up for it.
 *   - ops.dispatch() runs before the task that ran is queued again. On a CPU where other tasks
 *     wait, no task therefore gets two slices in a row, and none gets more than half of the CPU,
 *     whatever its weight.
 *   - The map from CPU to LLC is made at load; after a hotplug the kernel asks for a restart.
 */
#include <scx/common.bpf.h>
#include <lib/knob.h>

char _license[] SEC("license") = "GPL";

KNOB(u64, slice_ns, 5000000,
	     "time on a CPU before others get their turn. Larger: fewer switches. Smaller: shorter "
	     "waits under load; below a tick it has no effect");
KNOB(u64, pull_ns, 20000000,
	     "how far (in vtime) another LLC's first waiting task must lag for a CPU to take it "
	     "although its own LLC has work. Smaller: fairer between LLCs, more migrations; 0: "
	     "LLCs share only when one is empty");
KNOB(u64, sleep_lag_ns, 5000000,
	     "lag, in vtime, that a task keeps from its sleep at most. Larger: tasks that sleep run "
	     "sooner after they wake up, and the others wait longer for them; 0: they keep none");

/* Powers of two, because a mask proves to the verifier that an index is in bounds. */
#define MAX_CPUS 8192
#define MAX_LLCS 512

/*
 * The kernel's LLC number of each CPU: any number before 7.x, and from 7.x on dense. The number of
 * an off-line CPU is negative.
 */
extern int sd_llc_id __ksym __weak;

static u32 nr_llcs;
static u32 cpu_llc[MAX_CPUS];		/* CPU -> our LLC number, which is the queue's DSQ id */
static int kernel_llc[MAX_LLCS];	/* our LLC number -> the kernel's */
static u32 last_peer[MAX_LLCS];		/* LLC -> the other LLC whose queue its CPUs looked at
					 * last */

/* All CPUs write vtime_now, so it lies on other cache lines than cpu_llc, which they only read. */
static u64 vtime_now SEC(".data.vtime_now") __attribute__((aligned(128)));

UEI_DEFINE(uei);

static u32 llc_of(s32 cpu)
{
	return cpu_llc[cpu & (MAX_CPUS - 1)];
}

/* Returns the vtime of a task that wakes up. The lag from its sleep is cut to sleep_lag_ns. */
static u64 waking_vtime(const struct task_struct *p)
{
	u64 oldest = vtime_now - sleep_lag_ns;

	return time_before(p->scx.dsq_vtime, oldest) ? oldest : p->scx.dsq_vtime;
}

s32 BPF_STRUCT_OPS(vtime_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool is_idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);

	if (is_idle) {
		u64 vtime = waking_vtime(p);

		if (time_before(vtime_now, vtime))
			vtime = vtime_now;
		scx_bpf_task_set_dsq_vtime(p, vtime);
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, 0);
	}
	return cpu;
}

/*
 * Kicks an idle CPU that may run the task, because a CPU without work sleeps until it is kicked.
 * There can be such a CPU although the task is queued: the task's affinity grew, the task is older
 * than this scheduler, or the task came when no CPU was idle.
 */
static void call_idle_cpu(const struct task_struct *p)
{
	s32 cpu = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);

	if (cpu >= 0)
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

void BPF_STRUCT_OPS(vtime_enqueue, struct task_struct *p, u64 enq_flags)
{
	u64 vtime = p->scx.dsq_vtime;

	if (enq_flags & SCX_ENQ_WAKEUP)
		vtime = waking_vtime(p);
	scx_bpf_dsq_insert_vtime(p, llc_of(scx_bpf_task_cpu(p)), slice_ns, vtime, enq_flags);
	call_idle_cpu(p);
}

static u32 next_peer(u32 own)
{
	u32 peer = last_peer[own & (MAX_LLCS - 1)] + 1;

	if (peer == own)
		peer++;
	if (peer >= nr_llcs)
		peer = own ? 0 : 1;
	last_peer[own & (MAX_LLCS - 1)] = peer;
	return peer;
}

/* Takes the head of another LLC's queue if it lags by more than pull_ns. */
static bool pull_lagging(u32 own)
{
	u32 peer = next_peer(own);
	struct task_struct *head;

	if (!pull_ns || !bpf_ksym_exists(scx_bpf_dsq_peek))
		return false;
	head = scx_bpf_dsq_peek(peer);
	return head && time_before(head->scx.dsq_vtime + pull_ns, vtime_now) &&
	       scx_bpf_dsq_move_to_local(peer, 0);
}

/*
 * Takes a task from the first other LLC that has one for this CPU. Called when the queue of the
 * CPU's own LLC is empty.
 */
static bool steal(u32 own)
{
	u32 llc;

	bpf_for(llc, 0, nr_llcs)
		if (llc != own && scx_bpf_dsq_move_to_local(llc, 0))
			return true;
	return false;
}

void BPF_STRUCT_OPS(vtime_dispatch, s32 cpu, struct task_struct *prev)
{
	u32 own = llc_of(cpu);

	if (nr_llcs > 1 && pull_lagging(own))
		return;
	if (scx_bpf_dsq_move_to_local(own, 0))
		return;
	if (nr_llcs > 1 && steal(own))
		return;
	/* No task waits: prev goes on, with our slice instead of the kernel's default slice. */
	if (prev && (prev->scx.flags & SCX_TASK_QUEUED))
		scx_bpf_task_set_slice(prev, slice_ns);
}

void BPF_STRUCT_OPS(vtime_running, struct task_struct *p)
{
	if (time_before(vtime_now, p->scx.dsq_vtime))
		vtime_now = p->scx.dsq_vtime;
}

void BPF_STRUCT_OPS(vtime_stopping, struct task_struct *p, bool runnable)
{
	u64 left = p->scx.slice;

	/*
	 * If more than slice_ns is left, the kernel gave the slice while it bypassed this
	 * scheduler. Such a slice is not charged.
	 */
	if (left < slice_ns)
		scx_bpf_task_set_dsq_vtime(p, p->scx.dsq_vtime +
					   (slice_ns - left) * 100 / p->scx.weight);
}

void BPF_STRUCT_OPS(vtime_enable, struct task_struct *p)
{
	scx_bpf_task_set_dsq_vtime(p, vtime_now);
}

/* Our number of the LLC that the kernel calls `id`. The first call for an LLC creates its queue. */
static s32 llc_number(int id)
{
	u32 llc;
	s32 err;

	bpf_for(llc, 0, nr_llcs)
		if (kernel_llc[llc & (MAX_LLCS - 1)] == id)
			return llc;
	if (nr_llcs >= MAX_LLCS)
		return -E2BIG;
	llc = nr_llcs;
	err = scx_bpf_create_dsq(llc, -1);
	if (err)
		return err;
	kernel_llc[llc & (MAX_LLCS - 1)] = id;
	nr_llcs = llc + 1;
	return llc;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(vtime_init)
{
	u32 cpu;

	bpf_for(cpu, 0, scx_bpf_nr_cpu_ids()) {
		const int *id = NULL;
		s32 llc;

		if (bpf_ksym_exists(&sd_llc_id))
			id = bpf_per_cpu_ptr(&sd_llc_id, cpu);
		/* A CPU that is off line has no LLC and needs none. CPU 0 always gets one. */
		if (cpu && id && *id < 0)
			continue;
		llc = llc_number(id ? *id : 0);
		if (llc < 0) {
			scx_bpf_error("no queue for the LLC of CPU %d: error %d", cpu, llc);
			return llc;
		}
		cpu_llc[cpu & (MAX_CPUS - 1)] = llc;
	}
	return 0;
}

void BPF_STRUCT_OPS(vtime_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

SCX_OPS_DEFINE(vtime_ops,
	       .select_cpu	= (void *)vtime_select_cpu,
	       .enqueue		= (void *)vtime_enqueue,
	       .dispatch	= (void *)vtime_dispatch,
	       .running		= (void *)vtime_running,
	       .stopping	= (void *)vtime_stopping,
	       .enable		= (void *)vtime_enable,
	       .init		= (void *)vtime_init,
	       .exit		= (void *)vtime_exit,
	       .name		= "vtime");
