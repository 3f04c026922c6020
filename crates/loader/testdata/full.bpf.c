// SPDX-License-Identifier: GPL-2.0-only
/* All parts of an object besides CO-RE relocations. */
#include "mini.h"

struct task_struct { s32 pid; } __core;
struct rq_clock { u32 lo; u64 hi; };
struct node { struct bpf_rb_node rb; u64 key; struct bpf_refcount ref; struct bpf_list_node l; };
enum mode { MODE_SLOW, MODE_FAST = 5 };
enum wide_mode { WIDE = 0x1234567890ULL };

/* Knobs of every type. */
const volatile u64 slice_ns = 5000000;
const volatile bool smt = 1;
const volatile s8 nice = -3;
const volatile u16 port = 80;
const volatile s32 offset = -7;
const volatile enum mode mode = MODE_FAST;
const volatile enum wide_mode wide_mode = WIDE;
const volatile u32 table[4] = { 1, 2, 3 };
const volatile struct { u32 a; struct { s16 b[3]; } in; u32 low : 4; u32 high : 12; } cfg = { 9, { { 4, 5, 6 } }, 3, 1000 };
const volatile char tag[8] = "abc";
const volatile u64 __SCX_SLICE_DFL __weak;
const volatile u64 __SCX_NO_SUCH __weak;
const char fixed[] = "not a knob";
u32 counter = 11;
u64 zeroed;
static u32 hidden = 4;
u64 huge[1 << 20];

/* Variables in sections other than .data, .rodata and .bss. */
u32 resizable[1] SEC(".data.resizable");
const volatile u32 ro_resizable[1] SEC(".rodata.resizable");
struct bpf_spin_lock lock SEC(".data.lock");
struct bpf_rb_root root SEC(".data.lock") __contains(node, rb);
struct task_struct __kptr *global_task SEC(".bss.task");
u32 __arena arena_var SEC(".addr_space.1") = 1234;

struct value {
	struct bpf_timer timer;
	struct bpf_spin_lock lock;
	struct { struct task_struct __kptr *own; struct task_struct __kptr_untrusted *raw; } pair[2];
	struct node __kptr *mine;
	struct bpf_list_head head __contains(node, l);
	struct bpf_wq wq;
};

struct {
	__uint(type, 1);
	__uint(max_entries, 128);
	__type(key, u32);
	__type(value, struct value);
} hash SEC(".maps");

struct inner { __uint(type, 2); __uint(max_entries, 4); __type(key, u32); __type(value, u64); };
struct inner inner_a SEC(".maps");

struct {
	__uint(type, 12);
	__uint(max_entries, 8);
	__type(key, u32);
	__array(values, struct inner);
} outer SEC(".maps") = { .values = { [2] = &inner_a } };

struct {
	__uint(type, 27);
	__uint(max_entries, 5000);
} ring SEC(".maps");

struct {
	__uint(type, 33);
	__uint(map_flags, 1 << 10);
	__uint(max_entries, 100);
	__ulong(map_extra, 0x100000000000ull);
} arena SEC(".maps");

extern u64 kfunc_add(u64 a, u64 b) __ksym;
extern int kfunc_v2___compat(u32 a, u32 b, u32 c) __weak __ksym;
extern int kfunc_v2___old(u32 a, u32 b) __weak __ksym;
extern void kfunc_absent(void) __weak __ksym;
extern const int per_cpu_counter __ksym;
extern const struct rq_clock clock_var __weak __ksym;
extern const int no_such_var __weak __ksym;
extern int LINUX_KERNEL_VERSION __kconfig;
extern bool CONFIG_YES __kconfig;
extern bool CONFIG_ABSENT __weak __kconfig;
extern char CONFIG_TEXT[6] __kconfig;
extern u32 CONFIG_HZ __kconfig;

static __noinline u64 twice(u64 x)
{
	barrier:;
	asm volatile("" ::: "memory");
	return x * 2;
}

__noinline u64 thrice(u64 x)
{
	asm volatile("" ::: "memory");
	return x + twice(x);
}

static u64 callback(u32 i, u64 *sum)
{
	*sum += i;
	return 0;
}

SEC("syscall") u64 calls(void *ctx) { return twice(4) * 100 + thrice(5); }
SEC("syscall") u64 with_callback(void *ctx)
{
	u64 sum = 0;

	bpf_loop(5, callback, &sum, 0);
	return sum;
}
SEC("syscall") u64 kfuncs(void *ctx)
{
	u64 sum = kfunc_add(30, 4);

	if (kfunc_v2___compat)
		sum += kfunc_v2___compat(100, 200, 300);
	if (kfunc_v2___old)
		sum += kfunc_v2___old(1, 2) + 1000000;
	if (kfunc_absent)
		kfunc_absent();
	return sum;
}
SEC("syscall") u64 insists(void *ctx) { kfunc_absent(); return 0; }
SEC("syscall") u64 ksym_addr(void *ctx) { return (u64)&per_cpu_counter; }
SEC("syscall") u64 ksym_absent(void *ctx) { return (u64)&no_such_var; }
SEC("syscall") u64 ksym_read(void *ctx) { return (u64)&clock_var; }
SEC("syscall") u64 kconfigs(void *ctx)
{
	return (u64)LINUX_KERNEL_VERSION << 32 | CONFIG_YES << 16 | CONFIG_ABSENT << 8 | CONFIG_TEXT[1];
}
SEC("syscall") u64 hz(void *ctx) { return CONFIG_HZ; }
SEC("syscall") u64 knobs(void *ctx) { return slice_ns + smt + nice + port + offset + mode; }
SEC("syscall") u64 table_sum(void *ctx) { return table[0] + table[1] + table[2] + table[3]; }
SEC("syscall") u64 dfl(void *ctx) { return __SCX_SLICE_DFL + __SCX_NO_SUCH; }
SEC("syscall") u64 data(void *ctx) { counter += 5; hidden += counter; zeroed++; return hidden; }
SEC("syscall") u64 last_huge(void *ctx) { huge[(1 << 20) - 1] = 3; return huge[(1 << 20) - 1] + (u64)resizable[0]; }
SEC("syscall") u64 resized(void *ctx)
{
	volatile u32 *far = resizable;

	return far[99];
}
SEC("syscall") u64 arena_get(void *ctx) { return *(volatile u32 __arena *)&arena_var; }
SEC("syscall") u64 write_rodata(void *ctx) { *(volatile u64 *)&slice_ns = 1; return 0; }
SEC("syscall") u64 inner_found(void *ctx)
{
	u32 key = 2;

	return bpf_map_lookup_elem(&outer, &key) == (void *)&inner_a;
}
SEC("syscall") u64 map_addr(void *ctx) { return (u64)&hash; }

SEC("syscall") u64 node_id(void *ctx) { return __builtin_btf_type_id(*(struct node *)0, 0); }

SEC("struct_ops/select") s32 my_select(u64 *ctx) { return 5; }
SEC("struct_ops/enqueue") void my_enqueue(u64 *ctx) { }
SEC("struct_ops.s/init") s32 my_init(u64 *ctx) { return 0; }
SEC("struct_ops/never") s32 for_missing_member(u64 *ctx) { return 0; }
SEC("?struct_ops/optional") s32 optional_prog(u64 *ctx) { return 0; }
SEC("tp_btf/sched_switch") int on_switch(u64 *ctx) { return 0; }
SEC("?fentry.s/do_thing") int on_thing(u64 *ctx) { return 0; }

/* The members are in another order than the kernel's, which lacks `newer` and `newer_flag`. */
struct ops {
	s32 (*init)(void);
	void (*enqueue)(struct task_struct *p, u64 flags);
	s32 (*newer)(void);
	u64 newer_flag;
	s32 (*select)(struct task_struct *p, s32 prev);
	u32 timeout_ms;
	u64 flags;
	char name[16];
};

struct ops first SEC(".struct_ops.link") = {
	.select = (void *)my_select,
	.enqueue = (void *)my_enqueue,
	.init = (void *)my_init,
	.newer = (void *)for_missing_member,
	.flags = 6,
	.timeout_ms = 5000,
	.name = "first",
};
struct ops second SEC(".struct_ops.link") = {
	.select = (void *)my_select,
	.name = "second",
};
struct ops plain SEC(".struct_ops") = { .name = "plain" };

char _license[] SEC("license") = "GPL";
