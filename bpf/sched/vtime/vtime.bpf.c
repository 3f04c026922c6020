// SPDX-License-Identifier: GPL-2.0-only
/*
 * vtime: CPU time in proportion to weight, from one queue per last-level cache (LLC).
 *
 * Shows: the smallest scheduler that is worth running. Wake-up on an idle CPU, a priority queue, a virtual
 * clock and stealing are all here, one short function each. The one to read first, and to copy.
 * Suits: throughput on machines of any size; shares by nice or weight under saturation.
 * Fails: latency under saturation, since nothing preempts: a task that wakes up when no CPU is idle waits
 * for a slice to end. Cgroups' weights count only through the tasks' own. It does not know SMT, nodes or
 * frequencies beyond what the kernel's idle picker knows.
 *
 * Terms:
 *   vtime      a task's CPU time divided by its weight (100 at nice 0): the smallest is the most deserving
 *   vtime_now  the largest vtime that any task had when it started to run: "the present"
 *   lag        vtime_now minus a waiting task's vtime
 *
 * Mechanism. A task that wakes up runs at once on an idle CPU if the kernel's picker finds one: such a run takes
 * nothing from anybody, so debt from before is dropped. Otherwise it joins the queue of its CPU's LLC, ordered
 * by vtime, and an idle CPU that may run it is called. A CPU takes from its own LLC's queue, and from the
 * others' when that is empty. All LLCs share one clock, so their queues can be compared: before each pick a CPU
 * looks at the head of one other LLC's queue, a different one each time, and takes it if it lags by more than
 * pull_ns. So an LLC that has too many tasks loses some even when no CPU is idle. When a task stops, the part of
 * the slice that it used is charged. A task that goes on because nothing waits is not charged for it.
 *
 * Limits:
 *   - Sleepers keep at most slice_ns of lag, or a long sleep would be a licence to starve the rest.
 *   - What a task runs beyond its slice, up to a tick, is free; a yield costs the whole slice.
 *   - vtime_now is one word for the machine, written without a lock. A lost update is repeated by the next.
 *   - Dispatch comes before the task that ran is queued again: on a CPU where others wait, no task gets two slices
 *     in a row, so none gets more than half of it, whatever its weight.
 *   - The map from CPU to LLC is made at load; after a hotplug the kernel asks for a restart.
 *
 * Knobs:
 *   slice_ns   time on a CPU before others get their turn
 *   pull_ns    lag, in vtime, that makes a CPU take from another LLC although its own has work; 0: never
 */
#include <scx/common.bpf.h>

char _license[] SEC("license") = "GPL";

const volatile u64 slice_ns = 5000000;
const volatile u64 pull_ns = 20000000;

/* Powers of two, so that an index can be masked: the verifier asks for a proof, not for a branch. */
#define MAX_CPUS 8192
#define MAX_LLCS 512

/* The kernel's own number of each CPU's LLC: any number before 7.x, then dense; negative when offline. */
extern int sd_llc_id __ksym __weak;

static u32 nr_llcs;
static u32 cpu_llc[MAX_CPUS];		/* CPU -> our number of its LLC, which is its queue's DSQ id */
static int kernel_llc[MAX_LLCS];	/* our number -> the kernel's */
static u32 last_peer[MAX_LLCS];		/* LLC -> the other LLC that it looked at last */

/* Written by every CPU: away from the tables above, which are only read. */
static u64 vtime_now SEC(".data.vtime_now") __attribute__((aligned(128)));

UEI_DEFINE(uei);

static u32 llc_of(s32 cpu)
{
	return cpu_llc[cpu & (MAX_CPUS - 1)];
}

/* The vtime of a task that wakes up: the lag it slept into is cut to one slice. */
static u64 waking_vtime(const struct task_struct *p)
{
	u64 oldest = vtime_now - slice_ns;

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
 * A CPU that has found nothing sleeps until it is called. Few tasks that join a queue leave one idle: those that may run on more
 * CPUs than before, all that were there before this scheduler, and one that no CPU was idle for a moment ago.
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

/* Takes from another LLC although this one may have work, if that one has fallen behind. */
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

/* This LLC's queue is empty: takes from the first other one that has something for this CPU. */
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
	/* Nothing waits: prev goes on. Without this it would, for the kernel's default slice. */
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

	/* More left than we ever give: the kernel gave it, while the scheduler was bypassed. */
	if (left < slice_ns)
		scx_bpf_task_set_dsq_vtime(p, p->scx.dsq_vtime +
					   (slice_ns - left) * 100 / p->scx.weight);
}

void BPF_STRUCT_OPS(vtime_enable, struct task_struct *p)
{
	scx_bpf_task_set_dsq_vtime(p, vtime_now);
}

/* Our number of the LLC that the kernel calls `id`; the first time, its queue is made. */
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
		/* A CPU that is off line has no LLC and needs none; CPU 0 makes sure that there is one. */
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
