/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * kick: kicks that are not sent from a CPU on its way off line.
 *
 * A kick is an interrupt that a CPU sends to itself first. A CPU that is past its last interrupt never gets it; from then on the
 * kernel (7.3) takes that CPU's kicks for sent, and waits for this one when the scheduler is detached. So a CPU that has been told
 * to leave (ops.cpu_offline) kicks nobody.
 *
 * Owns: the rule. Which CPUs have been told, the scheduler knows.
 */
#ifndef LIB_KICK_BPF_H
#define LIB_KICK_BPF_H

static __always_inline void kick_from(bool stays, s32 cpu, u64 flags)
{
	if (stays)
		scx_bpf_kick_cpu(cpu, flags);
}

#endif
