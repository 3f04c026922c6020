/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Base types of the ABI headers, and the macros that let clang and bindgen read the same text.
 *
 * clang makes BTF from the text: a pointer is a typed pointer, a callback has its prototype.
 * bindgen, run with __BINDGEN__ defined, makes the simulator's structs from the text: a pointer is
 * a guest address (u64), which no host code can dereference, so every struct is plain data.
 */
#ifndef ABI_TYPES_H
#define ABI_TYPES_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __BINDGEN__

#define s32 int
#define s64 long long
/* bool is u8, because a program may write any byte, but Rust's bool allows only 0 and 1. */
#define bool u8
#define char u8
#define ptr(type) u64
#define op(ret, name, ...) u64 name

#else

typedef int s32;
typedef long long s64;
typedef _Bool bool;
#define ptr(type) type *
#define op(ret, name, ...) ret (*name)(__VA_ARGS__)

#endif

typedef int pid_t;
typedef unsigned long size_t;

typedef struct {
	int counter;
} atomic_t;

typedef struct {
	atomic_t refs;
} refcount_t;

typedef struct {
	u32 val;
} kuid_t;

typedef struct {
	u32 val;
} kgid_t;

/* Guard object of guard(rcu)(). Programs put such an object on their stack. */
typedef struct {
	ptr(void) lock;
} class_rcu_t;

struct list_head {
	ptr(struct list_head) next;
	ptr(struct list_head) prev;
};

#endif
