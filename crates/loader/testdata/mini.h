/* SPDX-License-Identifier: GPL-2.0-only */
/* The declarations that test objects need, so that they include no other header. */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;
typedef _Bool bool;

#define SEC(name) __attribute__((section(name), used))
#define __weak __attribute__((weak))
#define __noinline __attribute__((noinline))
#define __ksym __attribute__((section(".ksyms")))
#define __kconfig __attribute__((section(".kconfig")))
#define __kptr __attribute__((btf_type_tag("kptr")))
#define __kptr_untrusted __attribute__((btf_type_tag("kptr_untrusted")))
#define __percpu_kptr __attribute__((btf_type_tag("percpu_kptr")))
#define __contains(name, node) __attribute__((btf_decl_tag("contains:" #name ":" #node)))
#define __core __attribute__((preserve_access_index))
#define __arena __attribute__((address_space(1)))

#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name
#define __array(name, val) typeof(val) *name[]
#define __ulong(name, val) enum { ___value_of_##name = val } name

struct bpf_spin_lock { u32 val; };
struct bpf_res_spin_lock { u32 val; };
struct bpf_timer { u64 opaque[2]; } __attribute__((aligned(8)));
struct bpf_rb_root { u64 opaque[2]; } __attribute__((aligned(8)));
struct bpf_rb_node { u64 opaque[4]; } __attribute__((aligned(8)));
struct bpf_list_head { u64 opaque[2]; } __attribute__((aligned(8)));
struct bpf_list_node { u64 opaque[3]; } __attribute__((aligned(8)));
struct bpf_refcount { u32 opaque; } __attribute__((aligned(4)));
struct bpf_wq { u64 opaque[2]; } __attribute__((aligned(8)));

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_loop)(u32 n, void *fn, void *ctx, u64 flags) = (void *)181;
