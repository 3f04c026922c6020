/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Base types of the ABI headers, and what lets one text serve two readers.
 *
 * clang makes BTF of it: a pointer is a typed pointer, a callback has its prototype. bindgen makes the
 * simulator's structs of it: a pointer is a guest address (u64), which no host code can dereference, so
 * every struct is plain data. bindgen is run with __BINDGEN__ defined.
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
/* A Rust bool may not hold any byte that a program wrote; text is bytes. */
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

/* The guard of guard(rcu)(): programs put one on their stack. */
typedef struct {
	ptr(void) lock;
} class_rcu_t;

struct list_head {
	ptr(struct list_head) next;
	ptr(struct list_head) prev;
};

#endif
