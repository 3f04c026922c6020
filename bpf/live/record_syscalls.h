/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Numbers of the system calls that are recorded: Linux's arch/x86/entry/syscalls/syscall_64.tbl,
 * and scripts/syscall.tbl for arm64, which lacks some old calls.
 */
#ifndef SCXLAB_RECORD_SYSCALLS_H
#define SCXLAB_RECORD_SYSCALLS_H

#ifdef __TARGET_ARCH_x86
#define SYS_READ 0
#define SYS_WRITE 1
#define SYS_POLL 7
#define SYS_READV 19
#define SYS_WRITEV 20
#define SYS_SELECT 23
#define SYS_SCHED_YIELD 24
#define SYS_NANOSLEEP 35
#define SYS_SENDFILE 40
#define SYS_SENDTO 44
#define SYS_RECVFROM 45
#define SYS_SENDMSG 46
#define SYS_RECVMSG 47
#define SYS_WAIT4 61
#define SYS_FUTEX 202
#define SYS_CLOCK_NANOSLEEP 230
#define SYS_EPOLL_WAIT 232
#define SYS_WAITID 247
#define SYS_PSELECT6 270
#define SYS_PPOLL 271
#define SYS_SPLICE 275
#define SYS_EPOLL_PWAIT 281
#define SYS_RECVMMSG 299
#define SYS_SENDMMSG 307
#else
#define SYS_EPOLL_PWAIT 22
#define SYS_READ 63
#define SYS_WRITE 64
#define SYS_READV 65
#define SYS_WRITEV 66
#define SYS_SENDFILE 71
#define SYS_PSELECT6 72
#define SYS_PPOLL 73
#define SYS_SPLICE 76
#define SYS_WAITID 95
#define SYS_FUTEX 98
#define SYS_NANOSLEEP 101
#define SYS_CLOCK_NANOSLEEP 115
#define SYS_SCHED_YIELD 124
#define SYS_SENDTO 206
#define SYS_RECVFROM 207
#define SYS_SENDMSG 211
#define SYS_RECVMSG 212
#define SYS_RECVMMSG 243
#define SYS_WAIT4 260
#define SYS_SENDMMSG 269
#endif
#define SYS_EPOLL_PWAIT2 441
#define SYS_FUTEX_WAKE 454
#define SYS_FUTEX_WAIT 455

#endif
