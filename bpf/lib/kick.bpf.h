/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * kick: suppression of kicks from a CPU on its way off line.
 *
 * A CPU that kicks another one first sends an interrupt to itself. A CPU that goes off line and is
 * past its last interrupt never receives the interrupt that it sent to itself. From then on the
 * kernel (7.3) takes each further kick of that CPU as already sent, and waits for the lost
 * interrupt when the scheduler is detached. A CPU must therefore send no kicks once the kernel has
 * called ops.cpu_offline() for it.
 *
 * Owns: this rule. Does not: know which CPUs go off line; the scheduler does.
 */
#ifndef LIB_KICK_BPF_H
#define LIB_KICK_BPF_H

static __always_inline void kick_from(bool stays, s32 cpu, u64 flags)
{
	if (stays)
		scx_bpf_kick_cpu(cpu, flags);
}

#endif
