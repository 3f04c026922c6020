/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Placing a vCPU: choice of its CPU (Xen's csched_cpu_pick()), and counts of idle CPUs.
 */
#ifndef SCXLAB_CREDIT_PLACE_BPF_H
#define SCXLAB_CREDIT_PLACE_BPF_H

#include "credit.bpf.h"

static __always_inline u32 core_of(s32 cpu)
{
	return cpu_core[cpu & (MAX_CPUS - 1)] & (MAX_CPUS - 1);
}

static __always_inline u32 socket_of(s32 cpu)
{
	return cpu_socket[cpu & (MAX_CPUS - 1)] & (MAX_CPUS - 1);
}

/*
 * Updates the numbers of idle CPUs in the core, in the socket and in the machine. The kernel's idle
 * mask, not these numbers, says which CPUs are idle.
 */
static void note_idle(s32 cpu, bool idle)
{
	u32 was = __sync_lock_test_and_set(&cpu_ctx(cpu)->idle, idle);
	int change = (int)idle - (int)was;

	if (!change)
		return;
	__sync_fetch_and_add(&core_idle[core_of(cpu)], change);
	__sync_fetch_and_add(&socket_idle[socket_of(cpu)], change);
	__sync_fetch_and_add(&nr_idle, change);
}

/*
 * Whether the CPU `nxt` is a better place for a vCPU than `cpu`. Within a socket, the core of `nxt`
 * must have more idle CPUs than that of `cpu`; across sockets, the socket of `nxt` must have more
 * than twice as many. `extra` is 1 if `cpu` counts as idle although the idle mask lacks it.
 */
static bool nxt_is_better(s32 cpu, s32 nxt, u32 extra)
{
	if (socket_of(cpu) != socket_of(nxt))
		return (socket_idle[socket_of(cpu)] + extra) * 2 < socket_idle[socket_of(nxt)];
	if (core_of(cpu) == core_of(nxt))
		return false;
	return core_idle[core_of(cpu)] + extra < core_idle[core_of(nxt)];
}

/* Whether a mask has this CPU, and the CPU is not going off line. */
static __always_inline bool has_cpu(s32 cpu, const struct cpumask *mask)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	return !c->offline && !c->stands_still && bpf_cpumask_test_cpu(cpu, mask);
}

/* Returns the next CPU after `from`, cyclically, that is in both masks; -1: there is none. */
static s32 cycle(u32 from, const struct cpumask *a, const struct cpumask *b)
{
	return TICKLE_CYCLE(from, nr_cpus, has_cpu, a, b);
}

/*
 * Removes a CPU that goes off line from the counts of idle CPUs, and from the idle mask, in which
 * the kernel keeps such a CPU.
 */
static void forget_idle(s32 cpu)
{
	scx_bpf_test_and_clear_cpu_idle(cpu);
	note_idle(cpu, false);
}

/*
 * Returns the CPU on which p should run: its own CPU `from`, unless others are idle. The search
 * goes through the idle CPUs in order from `from` on. A CPU replaces the best one so far if its
 * core has more idle CPUs than the core of the best one (in the same socket), or if its socket has
 * more than twice as many (in another socket). `own_idle`: no other vCPU waits for `from` or runs
 * there, so `from` counts as idle.
 */
static __noinline s32 cpu_pick(struct task_struct *p, s32 from, bool own_idle)
{
	const struct cpumask *online = scx_bpf_get_online_cpumask();
	const struct cpumask *idlers = scx_bpf_get_idle_cpumask();
	s32 cpu = from, first, nxt;
	u32 i, extra;

	if (!has_cpu(from, p->cpus_ptr) || !bpf_cpumask_test_cpu(from, online)) {
		cpu = cycle(from, online, p->cpus_ptr);
		own_idle = false;
		if (cpu < 0) {
			cpu = from;
			goto out;
		}
	}
	if (!nr_idle || !bpf_cpumask_intersects(idlers, p->cpus_ptr))
		goto out;
	/*
	 * The search must start from an idle CPU, because nxt_is_better() compares cores: an idle
	 * thread is never better than the busy thread of its own core.
	 */
	extra = own_idle && !bpf_cpumask_test_cpu(cpu, idlers);
	if (!extra && !bpf_cpumask_test_cpu(cpu, idlers)) {
		first = cycle(cpu, idlers, p->cpus_ptr);
		if (first >= 0)
			cpu = first;
	}
	first = cpu;
	bpf_for(i, 1, nr_cpus) {
		nxt = ((u32)first + i) % nr_cpus;
		if (!has_cpu(nxt, idlers) || !bpf_cpumask_test_cpu(nxt, p->cpus_ptr))
			continue;
		if (nxt_is_better(cpu, nxt, extra)) {
			cpu = nxt;
			extra = 0;
		}
	}
out:
	scx_bpf_put_idle_cpumask(idlers);
	scx_bpf_put_cpumask(online);
	return cpu;
}

/*
 * Returns the next on-line CPU after `last` on which p may run; `fallback`: there is none. A new
 * vCPU starts on the next CPU after that of its domain's last new vCPU, as Xen's tools choose.
 */
static __noinline s32 first_cpu(struct task_struct *p, u32 last, s32 fallback)
{
	const struct cpumask *online = scx_bpf_get_online_cpumask();
	s32 cpu = cycle(last, online, p->cpus_ptr);

	scx_bpf_put_cpumask(online);
	return cpu < 0 ? fallback : cpu;
}

#endif /* SCXLAB_CREDIT_PLACE_BPF_H */
