/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Runtime of a program without a C library on aarch64 Linux: system calls, printing, exit, and the
 * memcpy() and memset() that the compiler calls.
 */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef signed long s64;

enum { SYS_lseek = 62, SYS_write = 64, SYS_exit = 93, SYS_openat = 56, SYS_sigaction = 134, SYS_munmap = 215, SYS_mmap = 222 };

static u64 syscall6(u64 nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	register u64 x8 __asm__("x8") = nr;
	register u64 x0 __asm__("x0") = a;
	register u64 x1 __asm__("x1") = b;
	register u64 x2 __asm__("x2") = c;
	register u64 x3 __asm__("x3") = d;
	register u64 x4 __asm__("x4") = e;
	register u64 x5 __asm__("x5") = f;

	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return x0;
}

void *memcpy(void *to, const void *from, u64 len)
{
	for (u64 i = 0; i < len; i++)
		((volatile u8 *)to)[i] = ((const u8 *)from)[i];
	return to;
}

void *memset(void *to, int byte, u64 len)
{
	for (u64 i = 0; i < len; i++)
		((volatile u8 *)to)[i] = (u8)byte;
	return to;
}

static void print(const char *text)
{
	u64 len = 0;

	while (text[len])
		len++;
	syscall6(SYS_write, 1, (u64)text, len, 0, 0, 0);
}

static void print_hex(u64 value)
{
	char text[] = "0x0000000000000000";

	for (int at = 17; at > 1; at--, value >>= 4)
		text[at] = "0123456789abcdef"[value & 15];
	print(text);
}

static _Noreturn void stop(int code)
{
	for (;;)
		syscall6(SYS_exit, (u64)code, 0, 0, 0, 0, 0);
}

static _Noreturn void broken(const char *why)
{
	print(why);
	print("\n");
	stop(2);
}

enum { PAGE = 4096 };
enum { PROT_RW = 3, PROT_RWX = 7, MAP_PRIVATE = 2, MAP_FIXED = 16, MAP_ANON = 32 };

/* Maps zeroed memory, at address `at` if that is not 0. */
static void *map(u64 at, u64 len, u64 prot)
{
	u64 flags = MAP_PRIVATE | MAP_ANON | (at ? MAP_FIXED : 0);
	u64 found = syscall6(SYS_mmap, at, len, prot, flags, (u64)-1, 0);

	if (found > -4096UL)
		broken("no memory");
	return (void *)found;
}

static const void *map_file(const char *name)
{
	u64 fd = syscall6(SYS_openat, (u64)-100, (u64)name, 0, 0, 0, 0);
	u64 len = syscall6(SYS_lseek, fd, 0, 2, 0, 0, 0);
	u64 found = syscall6(SYS_mmap, 0, len, 1, MAP_PRIVATE, fd, 0);

	if (found > -4096UL)
		broken("the file of cases cannot be read");
	return (const void *)found;
}

/* Makes code that was written visible to instruction fetch. */
static void flush(const u8 *code, u64 len)
{
	for (u64 at = (u64)code & ~15UL; at < (u64)code + len; at += 16)
		__asm__ volatile("dc cvau, %0" : : "r"(at) : "memory");
	__asm__ volatile("dsb ish" : : : "memory");
	for (u64 at = (u64)code & ~15UL; at < (u64)code + len; at += 16)
		__asm__ volatile("ic ivau, %0" : : "r"(at) : "memory");
	__asm__ volatile("dsb ish; isb" : : : "memory");
}
