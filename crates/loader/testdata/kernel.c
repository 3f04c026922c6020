// SPDX-License-Identifier: GPL-2.0-only
/* The kernel that the test objects are linked against: only its types matter. */
#include "mini.h"

struct list { struct list *next; };

struct rq_clock { u32 lo; u64 hi; };

struct task_struct {
	u64 moved_here;          /* absent from the objects' struct, whose offsets differ */
	struct {
		s32 pid;
		union { u32 tgid; s32 stgid; };
	};
	u64 wide;                /* u32 in the objects */
	s64 grown;               /* s32 in the objects: a signed load cannot change its size */
	char comm[16];
	u32 pad : 3;
	u32 flag_bits : 5;
	s32 signed_bits : 7;
	struct { u64 slice; u32 weight; } scx;
	struct list *children[4];
	u8 retyped[8];           /* a pointer in the objects */
	u64 flexible[];
};

/* Two kernel types whose names differ only in the flavour, with equal layout: not ambiguous. */
struct twin { u32 a, b; };
struct twin___v2 { u32 a, b; };

/* Two kernel types whose names differ only in the flavour, with different layouts: ambiguous. */
struct torn { u32 a, b; };
struct torn___v2 { u32 z, a, b; };

enum state { ST_IDLE = 7, ST_BUSY = 9, ST_NEW = 11 };
enum big { BIG_ONE = 0x100000001ULL, SCX_SLICE_DFL = 20000000 };
enum minus { BELOW = -5 };

typedef u64 (*cb_t)(u32 x);

struct ops {
	char name[16];
	s32 (*select)(struct task_struct *p, s32 prev);
	u64 flags;
	void (*enqueue)(struct task_struct *p, u64 flags);
	u32 timeout_ms;
	s32 (*init)(void);
};

struct matched { u32 a; u64 b; struct list *l; };

int per_cpu_counter;
struct rq_clock clock_var;

u64 kfunc_add(u64 a, u64 b) { return a + b; }
int kfunc_v2(u32 a, u32 b, u32 c) { return a + b + c; }
void kfunc_task(struct task_struct *p) { p->wide = 1; }
u32 kfunc_ptr(const u32 *x) { return *x; }

/* Variables of the types above, because clang emits only types that compiled code or data uses. */
struct task_struct t;
struct twin tw;
struct twin___v2 tw2;
struct torn to;
struct torn___v2 to2;
enum state st;
enum big bg;
enum minus mi;
cb_t cb;
struct ops o;
struct matched m;
