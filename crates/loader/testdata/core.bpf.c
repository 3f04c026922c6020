// SPDX-License-Identifier: GPL-2.0-only
/*
 * CO-RE relocations of every kind. Each program returns the value of its relocation. The values
 * for the types of kernel.c are in core_relo/tests.rs and link/tests.rs.
 */
#include "mini.h"

struct list { struct list *next; } __core;

struct task_struct {
	s32 stgid;
	s32 pid;
	u32 tgid;
	u32 wide;
	s32 grown;
	u64 gone;
	u32 flag_bits : 5;
	s32 signed_bits : 7;
	struct { u32 weight; u64 slice; } scx;
	char comm[16];
	struct list *children[4];
	struct list *retyped;
	u64 flexible[];
} __core;

struct task_struct___flavoured { u64 moved_here; } __core;
struct twin { u32 b; } __core;
struct torn { u32 b; } __core;
struct absent { u32 x; } __core;
struct matched { u64 b; u32 a; struct list *l; } __core;
struct matched___wrong { u32 b; } __core;
enum state { ST_IDLE = 1, ST_BUSY = 2, ST_GONE = 3 };
enum big { BIG_ONE = 0x200000001ULL };
enum minus { BELOW = -1 };
struct mine { u64 a, b, c; };

#define INFO(field, kind) __builtin_preserve_field_info(field, kind)
#define PROG(name) SEC("syscall") u64 name(struct task_struct *p)

PROG(byte_offset) { return INFO(p->scx.slice, 0); }
PROG(byte_size) { return INFO(p->wide, 1); }
PROG(exists_yes) { return INFO(p->pid, 2); }
PROG(exists_no) { return INFO(p->gone, 2); }
PROG(signed_yes) { return INFO(p->signed_bits, 3); }
PROG(signed_no) { return INFO(p->flag_bits, 3); }
PROG(lshift) { return INFO(p->flag_bits, 4); }
PROG(rshift) { return INFO(p->flag_bits, 5); }
PROG(id_local) { return __builtin_btf_type_id(*(struct mine *)0, 0); }
PROG(id_target) { return __builtin_btf_type_id(*(struct list *)0, 1); }
PROG(type_exists_yes) { return __builtin_preserve_type_info(*(struct list *)0, 0); }
PROG(type_exists_no) { return __builtin_preserve_type_info(*(struct absent *)0, 0); }
PROG(type_size) { return __builtin_preserve_type_info(*(struct task_struct *)0, 1); }
PROG(matches_yes) { return __builtin_preserve_type_info(*(struct matched *)0, 2); }
PROG(matches_no) { return __builtin_preserve_type_info(*(struct matched___wrong *)0, 2); }
PROG(enum_exists_yes) { return __builtin_preserve_enum_value(*(typeof(enum state) *)ST_BUSY, 0); }
PROG(enum_exists_no) { return __builtin_preserve_enum_value(*(typeof(enum state) *)ST_GONE, 0); }
PROG(enum_value) { return __builtin_preserve_enum_value(*(typeof(enum state) *)ST_BUSY, 1); }
PROG(enum_value_64) { return __builtin_preserve_enum_value(*(typeof(enum big) *)BIG_ONE, 1); }
PROG(enum_value_negative) { return __builtin_preserve_enum_value(*(typeof(enum minus) *)BELOW, 1); }
PROG(enum_value_gone) { return __builtin_preserve_enum_value(*(typeof(enum state) *)ST_GONE, 1); }
PROG(load_moved) { return p->pid; }
PROG(load_anonymous) { return p->tgid; }
PROG(load_nested) { return p->scx.slice; }
PROG(load_element) { return p->comm[5]; }
PROG(load_pointer_element) { return (u64)p->children[2]; }
PROG(load_flexible) { return p->flexible[3]; }
PROG(load_wider) { return p->wide; }
PROG(load_wider_signed) { return p->grown; }
PROG(load_gone) { return p->gone; }
PROG(load_retyped) { return (u64)p->retyped; }
PROG(load_flavoured) { return ((struct task_struct___flavoured *)p)->moved_here; }
PROG(load_twin) { return ((struct twin *)p)->b; }
PROG(store_moved) { p->pid = 77; return 0; }
PROG(guarded) { return INFO(p->gone, 2) ? p->gone : 42; }

char _license[] SEC("license") = "GPL";
