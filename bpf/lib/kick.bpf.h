/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * kick: suppression of kicks from a CPU on its way off line.
 *
 * A kick is an interrupt that a CPU first sends to itself. A CPU that is past its last interrupt never
 * receives it; from then on the kernel (7.3) assumes that CPU's kicks to be sent, and waits for this one
 * when the scheduler is detached. A CPU that was told to leave (ops.cpu_offline) must therefore not kick.
 *
 * Owns: the rule. Does not: know which CPUs were told to leave; the scheduler does.
 */
#ifndef LIB_KICK_BPF_H
#define LIB_KICK_BPF_H

static __always_inline void kick_from(bool stays, s32 cpu, u64 flags)
{
	if (stays)
		scx_bpf_kick_cpu(cpu, flags);
}

#endif
