// SPDX-License-Identifier: GPL-2.0-only
/*
 * Runs machine code for aarch64 and compares each run with the interpreter's. main.rs writes the
 * file of cases and documents the order of its words.
 *
 * Owns: a guest memory, and the functions that the code calls: for accesses that its own check
 * refused, for helpers, kfuncs, and functions of the program.
 * Does not: interpret operations, except refused accesses.
 * Models: the host of vm/bare.rs and jit/native.rs.
 *
 * Only the pages of a case are mapped, so that a wrong address crashes here, with the case's name.
 */
#include "machine.h"

#define GUEST_BASE 0xffff880000000000UL
#define FUNC_BASE 0xffffffffc0000000UL
#define ARENA_WINDOW (1UL << 32)
#define FRAME 512
/* `CALL_SLOT_OFFSET` of vm/stack.rs */
#define WAITS_FOR (2 * PAGE - 8)
#define FAILED ~0UL

enum { LOAD = 1, STORE = 2, ASK = 4 };
enum { MAX_FRAMES = 8, MAX_FUNCS = 64, MAX_LISTED = 64 };

/* How a run ends. */
enum { RETURNED, LIMIT, DEPTH, MEMORY, BAD_CALL };

struct pair {
	u64 value, executed;
};

struct ctx;

struct calls {
	struct pair (*helper)(struct ctx *, u64, u64, u64, u64, u64);
	struct pair (*kfunc)(struct ctx *, u64, u64, u64, u64, u64);
	struct pair (*kfunc4)(struct ctx *, u64, u64, u64, u64, u64);
	struct pair (*func)(struct ctx *, u64, u64, u64, u64, u64);
	struct pair (*func_reg)(struct ctx *, u64, u64, u64, u64, u64);
	void (*access)(struct ctx *);
};

/* `Ctx` of jit/ctx.rs, as far as machine code uses it. */
struct ctx {
	u8 *base, *mem;
	const u8 *perms;
	u64 deadline, fp_min, arena_base, may_goto;
	const struct calls *calls;
	const void *access;
	const u64 *entries;
	struct {
		u64 addr, slot, value, r0, executed, result, failed;
	} refused;
	struct {
		u64 fp, r5;
		u32 pc, number;
		u64 target;
	} out;
	u64 cpu, helper_calls;
	u64 *in_place, *rq_clock;
	u64 executed, why, nr_pcs;
	u32 pcs[MAX_FRAMES];
	u64 regs[10];
	/* Machine code uses no field from here on, so these need not match the fields of `Ctx`. */
	u64 fp, depth;
};

typedef struct pair (*entry_fn)(struct ctx *, u64, u64, u64, u64, u64, u64, u64);

/* Next word of the file of cases. */
static const u64 *next;

static u64 word(void)
{
	return *next++;
}

static const void *bytes(u64 len)
{
	const void *at = next;

	next += (len + 7) / 8;
	return at;
}

/* Ways out of the code, in the order of `struct calls`. `kfunc4` counts as KFUNC. */
enum { HELPER, KFUNC, FUNC, FUNC_REG, ACCESS, WAYS };

/* State for all cases. `taken` counts how often the code took each way out. */
static u64 taken[WAYS];
static u64 nr_pages, *entries;
static u8 *base, *perms, *code_end;
static const void *access_thunk;

/* State of the current case. */
static const char *name;
static u64 fp0, fp_min, arena_base, may_goto, cpu, insn_limit, kernel_stores, nr_values, nr_slots, nr_funcs, nr_listed;
static const u64 *values, *slots, *listed;
static u64 func_starts[MAX_FUNCS];
static entry_fn funcs[MAX_FUNCS];

/* State of the current run. */
static u64 run, executed, deadline, dropped, fault, fault_addr, fault_len, fault_store;
static u64 nr_pcs, pcs[MAX_FRAMES * MAX_FRAMES], regs[11];
static u64 calls_left;

static _Noreturn void differs(const char *what, u64 want, u64 got)
{
	print(name);
	print(", run ");
	print_hex(run);
	print(": ");
	print(what);
	print(": interpreter ");
	print_hex(want);
	print(", machine code ");
	print_hex(got);
	print("\n");
	stop(1);
}

static void same(const char *what, u64 want, u64 got)
{
	if (want != got)
		differs(what, want, got);
}

static void crashed(int signal)
{
	differs("it crashed, signal", 0, (u64)signal);
}

/* Overwrites registers that a called function may change, so that no code can rely on them. */
static void spoil(void)
{
	__asm__ volatile("mov x9, #-2; mov x10, x9; mov x11, x9; mov x12, x9; mov x13, x9; mov x14, x9; mov x15, x9;"
			 "mov x16, x9; mov x17, x9; mov x1, x9; mov x2, x9; mov x3, x9; mov x4, x9; mov x5, x9; mov x6, x9;"
			 "mov x7, x9; dup v0.2d, x9; dup v1.2d, x9; dup v7.2d, x9; dup v16.2d, x9; dup v31.2d, x9"
			 :
			 :
			 : "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16",
			   "x17", "v0", "v1", "v7", "v16", "v31", "memory");
}

static const struct pair stopped = { 0, FAILED };

static struct pair fail(struct ctx *ctx, u64 why)
{
	fault = why;
	ctx->executed = executed;
	return stopped;
}

/* Permissions of a byte's page; 0 outside the memory. */
static u8 perm(u64 addr)
{
	u64 page = (addr - GUEST_BASE) / PAGE;

	return page < nr_pages ? perms[page] : 0;
}

/* Offset of the first byte whose page has none of these permissions; `len` if there is none. */
static u64 first_without(u64 addr, u64 len, u8 any)
{
	u64 at = 0;

	while (at < len && perm(addr + at) & any)
		at++;
	return at;
}

static int in_arena(u64 addr)
{
	return arena_base && addr - arena_base < ARENA_WINDOW;
}

static u64 arena_low(u64 addr)
{
	return !(addr >> 32) && arena_base ? arena_base | addr : addr;
}

static int refuse(u64 addr, u64 len, int store)
{
	fault = MEMORY;
	fault_addr = addr;
	fault_len = len;
	fault_store = (u64)store;
	return 0;
}

static int load(u64 addr, u64 len, int probe, u64 *value)
{
	*value = 0;
	addr = probe ? addr : arena_low(addr);
	if (first_without(addr, len, LOAD) == len)
		memcpy(value, base + addr, len);
	else if (!probe && !in_arena(addr))
		return refuse(addr, len, 0);
	return 1;
}

static int store(u64 addr, u64 len, u64 value)
{
	u64 at;

	addr = arena_low(addr);
	at = first_without(addr, len, STORE);
	if (at < len && in_arena(addr)) {
		dropped++;
		return 1;
	}
	/* Programs may write a kernel structure only if the case allows it (`kernel_stores`). */
	if (at < len && !(kernel_stores && perm(addr + at) == (LOAD | ASK) && first_without(addr, len, STORE | ASK) == len))
		return refuse(addr, len, 1);
	memcpy(base + addr, &value, len);
	return 1;
}

static u64 changed(u32 kind, u64 old, u64 operand, u64 r0, u64 len)
{
	u64 mask = len == 8 ? ~0UL : 0xffffffffUL;

	switch (kind & ~1U) {
	case 0x00:
		return old + operand;
	case 0x40:
		return old | operand;
	case 0x50:
		return old & operand;
	case 0xa0:
		return old ^ operand;
	case 0xf0:
		return old == (r0 & mask) ? operand : old;
	default:
		return operand;
	}
}

static u64 extended(u64 value, u64 len)
{
	u64 above = 64 - 8 * len;

	return (u64)((s64)(value << above) >> above);
}

/* Carries out an access; `probe` if it loads through a kernel pointer. Returns 0 on a fault. */
static int access_of(struct ctx *ctx, u64 insn, int probe)
{
	static const u8 sizes[] = { 4, 2, 1, 8 };
	u64 len = sizes[(insn >> 3) & 3], addr = ctx->refused.addr, *result = &ctx->refused.result;
	u32 class = insn & 7, mode = insn & 0xe0, kind = (u32)(insn >> 32);
	u64 old, value = ctx->refused.value;

	if (class == 1 || (mode == 0xc0 && kind == 0x100)) {
		if (!load(addr, len, probe, &old))
			return 0;
		*result = mode == 0x80 ? extended(old, len) : old;
		return 1;
	}
	*result = 0;
	executed = ctx->refused.executed;
	if (mode != 0xc0 || kind == 0x110)
		return store(addr, len, value);
	if (!load(addr, len, 0, &old))
		return 0;
	*result = old;
	return store(addr, len, changed(kind, old, value, ctx->refused.r0, len));
}

static void access(struct ctx *ctx)
{
	u64 slot = ctx->refused.slot;

	taken[ACCESS]++;
	if (slot >= nr_slots)
		differs("an access goes out at slot", nr_slots, slot);
	ctx->refused.failed = !access_of(ctx, slots[2 * slot], (int)slots[2 * slot + 1]);
	spoil();
}

static struct pair called(struct ctx *ctx, u64 count, u64 value)
{
	executed = count;
	spoil();
	if (executed >= deadline)
		return fail(ctx, LIMIT);
	return (struct pair){ value, executed };
}

/* Helpers take no arguments here, and each returns one fixed value. */
static struct pair helper(struct ctx *ctx, u64 count, u64 a, u64 b, u64 c, u64 d)
{
	(void)a, (void)b, (void)c, (void)d;
	taken[HELPER]++;
	for (u64 i = 0; i < nr_values; i++)
		if (values[2 * i] == ctx->out.number)
			return called(ctx, count, values[2 * i + 1]);
	differs("an unknown helper is called", 0, ctx->out.number);
}

static struct pair kfunc_of(struct ctx *ctx, u64 count, const u64 *args)
{
	u64 number = ctx->out.number;

	taken[KFUNC]++;
	if (!calls_left--)
		differs("one more kfunc is called", 0, number);
	same("kfunc", word(), number);
	for (int arg = 0; arg < 5; arg++)
		same("argument of a kfunc", word(), args[arg]);
	return called(ctx, count, number << 30);
}

static struct pair kfunc(struct ctx *ctx, u64 count, u64 a, u64 b, u64 c, u64 d)
{
	return kfunc_of(ctx, count, (const u64[]){ a, b, c, d, ctx->out.r5 });
}

static struct pair kfunc4(struct ctx *ctx, u64 count, u64 a, u64 b, u64 c, u64 d)
{
	return kfunc_of(ctx, count, (const u64[]){ a, b, c, d, 0 });
}

static struct pair enter(u64 func, u64 fp, u64 depth, const u64 *args);

/* Enters a function that machine code calls through the host. Returns its result, or a failure. */
static struct pair inside(struct ctx *ctx, u64 func, u64 fp, u64 count, const u64 *args)
{
	struct pair pair;

	executed = count;
	pair = enter(func, fp, ctx->depth + (ctx->fp - fp) / FRAME, args);
	spoil();
	ctx->executed = executed;
	return pair;
}

/*
 * Runs a function whose word in `entries` is 0 (not compiled). The machine code that calls has
 * already checked the call depth and the instruction limit.
 */
static struct pair func(struct ctx *ctx, u64 count, u64 a, u64 b, u64 c, u64 d)
{
	const u64 args[] = { a, b, c, d, ctx->out.r5 };

	taken[FUNC]++;
	for (u64 i = 0; i < nr_funcs; i++)
		if (func_starts[i] == ctx->out.number)
			return inside(ctx, i, ctx->out.fp, count, args);
	differs("an unknown function is called", 0, ctx->out.number);
}

static struct pair func_reg(struct ctx *ctx, u64 count, u64 a, u64 b, u64 c, u64 d)
{
	const u64 args[] = { a, b, c, d, ctx->out.r5 }, fp = ctx->out.fp, target = ctx->out.target;
	u64 off = target - FUNC_BASE;

	taken[FUNC_REG]++;
	executed = count;
	if (target < FUNC_BASE || off & 15 || off >> 4 >= nr_funcs) {
		fault_addr = target;
		return fail(ctx, BAD_CALL);
	}
	if (fp - FRAME < fp_min)
		return fail(ctx, DEPTH);
	if (count >= deadline)
		return fail(ctx, LIMIT);
	*(u32 *)(base + fp + WAITS_FOR) = ctx->out.pc;
	return inside(ctx, off >> 4, fp - FRAME, count, args);
}

static const struct calls calls = { helper, kfunc, kfunc4, func, func_reg, access };

/* Adds to a fault the frames of one entry into the code. The innermost entry sets the registers. */
static void left(struct ctx *ctx)
{
	if (!fault)
		fault = ctx->why;
	if (!nr_pcs) {
		for (int reg = 0; reg < 10; reg++)
			regs[reg] = ctx->regs[reg];
		regs[10] = ctx->fp - (ctx->nr_pcs - 1) * FRAME;
	}
	for (u64 i = 0; i < ctx->nr_pcs; i++)
		pcs[nr_pcs++] = ctx->pcs[i];
	executed = ctx->executed;
}

static struct pair enter(u64 func, u64 fp, u64 depth, const u64 *args)
{
	struct ctx ctx = {
		.base = base,
		.mem = base + GUEST_BASE,
		.perms = perms,
		.deadline = deadline,
		.fp_min = fp_min,
		.arena_base = arena_base,
		.may_goto = may_goto,
		.calls = &calls,
		.access = access_thunk,
		.entries = entries,
		.cpu = cpu,
		.fp = fp,
		.depth = depth,
	};
	struct pair pair = funcs[func](&ctx, executed, fp, args[0], args[1], args[2], args[3], args[4]);

	if (pair.executed == FAILED)
		left(&ctx);
	else
		executed = pair.executed;
	return pair;
}

/* Compares a fault: address, frames, and the known registers of the innermost frame. */
static void compare_fault(void)
{
	u64 nr, known;

	if (fault == MEMORY || fault == BAD_CALL)
		same("address of the fault", word(), fault_addr);
	if (fault == MEMORY) {
		same("bytes of the access", word(), fault_len);
		same("a store", word(), fault_store);
	}
	nr = word();
	same("frames of the fault", nr, nr_pcs);
	for (u64 i = 0; i < nr; i++)
		same("slot of a frame", word(), pcs[i]);
	known = word();
	for (int reg = 0; reg < 11; reg++)
		if (known >> reg & 1)
			same("register at the fault", word(), regs[reg]);
}

static u64 *shadow_of(u64 at)
{
	/* The expected contents of the case's pages. */
	static u64 *shadow;

	if (!shadow)
		shadow = map(0, MAX_LISTED * PAGE, PROT_RW);
	return shadow + at * (PAGE / 8);
}

static void compare_memory(void)
{
	for (u64 nr = word(); nr; nr--) {
		u64 at = word();

		memcpy(shadow_of(at), bytes(PAGE), PAGE);
	}
	for (u64 at = 0; at < nr_listed; at++) {
		const u64 *want = shadow_of(at), *got = (const u64 *)(base + listed[at]);

		for (u64 i = 0; i < PAGE / 8; i++)
			if (want[i] != got[i]) {
				print_hex(listed[at] + 8 * i);
				differs(" (in memory)", want[i], got[i]);
			}
	}
}

static void one_run(void)
{
	u64 args[5], kind;
	struct pair pair;

	executed = word();
	deadline = executed + insn_limit;
	for (int arg = 0; arg < 5; arg++)
		args[arg] = word();
	fault = nr_pcs = 0;
	calls_left = word();
	pair = enter(0, fp0, 0, args);
	same("kfunc calls that are missing", 0, calls_left);
	kind = word();
	same("end (0 return, 1 limit, 2 depth, 3 memory, 4 call)", kind, pair.executed == FAILED ? fault : RETURNED);
	if (kind == RETURNED)
		same("r0", word(), pair.value);
	else
		compare_fault();
	same("instructions executed", word(), executed);
	same("stores dropped", word(), dropped);
	compare_memory();
}

static void read_memory(void)
{
	nr_listed = word();
	if (nr_listed > MAX_LISTED)
		broken("too many pages in a case");
	listed = next;
	next += nr_listed;
	for (u64 at = 0; at < nr_listed; at++) {
		u64 page = listed[at] - GUEST_BASE;

		perms[page / PAGE] = (u8)word();
		map((u64)base + listed[at], PAGE, PROT_RW);
		if (word())
			memcpy(base + listed[at], bytes(PAGE), PAGE);
		memcpy(shadow_of(at), base + listed[at], PAGE);
	}
}

static void read_funcs(void)
{
	nr_funcs = word();
	if (nr_funcs > MAX_FUNCS)
		broken("too many functions in a case");
	for (u64 i = 0; i < nr_funcs; i++) {
		u64 compiled, len;

		func_starts[i] = word();
		compiled = word();
		len = word();
		memcpy(code_end, bytes(len), len);
		flush(code_end, len);
		funcs[i] = (entry_fn)code_end;
		entries[i] = compiled ? (u64)code_end : 0;
		/* The next code starts on a new page, so that nothing writes to a page whose code has run. */
		code_end += (len + PAGE - 1) / PAGE * PAGE;
	}
}

static void one_case(void)
{
	u64 nr;

	name = bytes(word());
	fp0 = word();
	fp_min = word();
	arena_base = word();
	may_goto = word();
	cpu = word();
	insn_limit = word();
	kernel_stores = word();
	nr_values = word();
	values = next;
	next += 2 * nr_values;
	nr_slots = word();
	slots = next;
	next += 2 * nr_slots;
	read_memory();
	read_funcs();
	dropped = 0;
	nr = word();
	for (run = 0; run < nr; run++)
		one_run();
	for (u64 at = 0; at < nr_listed; at++) {
		perms[(listed[at] - GUEST_BASE) / PAGE] = 0;
		syscall6(SYS_munmap, (u64)base + listed[at], PAGE, 0, 0, 0, 0);
	}
}

#define AT(field) __builtin_offsetof(struct ctx, field)
#define CALL(field) __builtin_offsetof(struct calls, field)

static const u64 layout[] = {
	AT(base), AT(mem), AT(perms), AT(deadline), AT(fp_min), AT(arena_base), AT(may_goto), AT(calls), AT(access),
	AT(entries), AT(refused),
	0, 8, 16, 24, 32, 40, 48,
	AT(out), AT(cpu), AT(helper_calls), AT(in_place), AT(rq_clock), AT(executed), AT(why), AT(nr_pcs), AT(pcs), AT(regs), AT(fp),
	0, 8, 16, 20, 24,
	CALL(helper), CALL(kfunc), CALL(kfunc4), CALL(func), CALL(func_reg), CALL(access),
};

static void read_head(void)
{
	u64 len, code;

	name = "the layout of the context";
	same("fields", sizeof(layout) / 8, word());
	for (u64 i = 0; i < sizeof(layout) / 8; i++)
		same("an offset", layout[i], word());
	nr_pages = word();
	base = (u8 *)(word() - GUEST_BASE);
	/* The bytes before the table are 0: pages before the first have no permissions. */
	perms = (u8 *)map(0, PAGE + nr_pages, PROT_RW) + PAGE;
	entries = map(0, PAGE, PROT_RW);
	len = word();
	code = word();
	code_end = map(0, code, PROT_RWX);
	memcpy(code_end, bytes(len), len);
	flush(code_end, len);
	access_thunk = code_end;
	code_end += (len + PAGE - 1) / PAGE * PAGE;
}

static void catch(int signal)
{
	struct {
		void (*handler)(int);
		u64 flags, restorer, mask;
	} action = { crashed, 0, 0, 0 };

	syscall6(SYS_sigaction, (u64)signal, (u64)&action, 0, 8, 0, 0);
}

_Noreturn void begin(const u64 *stack)
{
	static const int crashes[] = { 4, 5, 7, 8, 11 };
	u64 nr;

	if (stack[0] != 2)
		broken("one argument: the file of cases");
	for (u64 i = 0; i < sizeof(crashes) / sizeof(*crashes); i++)
		catch(crashes[i]);
	next = map_file((const char *)stack[2]);
	read_head();
	nr = word();
	for (u64 i = 0; i < nr; i++)
		one_case();
	same("words left", word(), 0);
	for (int way = 0; way < WAYS; way++)
		if (!taken[way])
			broken("no case takes one of the ways out");
	stop(0);
}

__asm__(".globl _start\n_start: mov x0, sp\n\tmov x29, #0\n\tmov x30, #0\n\tb begin\n");
