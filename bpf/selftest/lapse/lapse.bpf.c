// SPDX-License-Identifier: GPL-2.0-only
/*
 * lapse: one queue for all tasks, and faults on request: it starves tasks, breaks a rule, or exits.
 *
 * Shows: results of a scheduler that starves some tasks, or is ejected in some of its runs only.
 * Suits: tests only.
 * Fails: on many CPUs, which share one queue; and as its knobs say.
 *
 * Knobs:
 *   slice_ns          slice of every task
 *   starve            initial letter of the names of tasks that wait in a DSQ that no CPU takes from
 *   starve_in         where such a task waits: 0 in that DSQ, 1 in no DSQ, 2 in CPU 0's local DSQ
 *                     while all other tasks have infinite slices, 3 as 2, but each task at its head
 *   woken             1: a task waits there only after a wake-up, not when new or preempted
 *   release_after_ns  time from the attach until CPUs take from that DSQ, too; 0: never
 *   eject_after_ns    time from the attach until the scheduler reports an error; 0: never
 *   wrong             the violation at that time, see `enum wrong`; 0: lapse reports an error
 *   eject_permille    chance that lapse reports that error, drawn at the attach
 *   refuse_permille   chance that a fork is refused, as if memory were short
 *   lingers           1: ops.exit takes longer than a program may; 2: ops.dump does
 */
#include <scx/common.bpf.h>

char _license[] SEC("license") = "GPL";

const volatile u64 slice_ns = 5000000;
const volatile char starve = 0;
const volatile u32 starve_in = 0;
const volatile bool woken = false;
const volatile u64 release_after_ns = 0;
const volatile u64 eject_after_ns = 0;
const volatile u32 wrong = 0;
const volatile u32 eject_permille = 1000;
const volatile u32 refuse_permille = 0;
const volatile u32 lingers = 0;

#define SHARED 0
#define STARVED 1

enum starve_in { IN_QUEUE, IN_NONE, IN_LOCAL, IN_LOCAL_FIRST };

/* The line of each fault ends with its number, by which crates/lab/tests/origin.rs finds it. */
enum wrong {
	WRONG_NOTHING,
	WRONG_INSERT_DSQ,
	WRONG_INSERT_CPU,
	WRONG_KICK,
	WRONG_KICK_BELOW,
	WRONG_KICK_IN_LOOP,
	WRONG_DUMP,
	WRONG_LATE_INSERT,
	WRONG_MOVE,
	WRONG_TIMER_DSQ,
	WRONG_TIMER_CONTEXT,
	WRONG_SELECTION,
	WRONG_INIT,
	WRONG_LOOP, WRONG_TIMER_LOOP,
};

/* An id that no DSQ has, and a number that no CPU has. */
#define NOWHERE 0xbad
#define NO_CPU 9999

static u64 attached_at;
static bool leaves;
static s32 held;

struct lapse_alarm {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct lapse_alarm);
} alarms SEC(".maps");

UEI_DEFINE(uei);

static bool is_past(u64 delay)
{
	return delay && bpf_ktime_get_ns() - attached_at >= delay;
}

static bool is_wrong(enum wrong what)
{
	return wrong == what && is_past(eject_after_ns);
}

/* Looks for an idle CPU, but inserts no task: each task goes through enqueue. */
s32 BPF_STRUCT_OPS(lapse_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags) /* wrong 11 */
{
	bool is_idle = false;

	if (is_wrong(WRONG_SELECTION))
		return NO_CPU;
	return scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);
}

static bool is_starved(const struct task_struct *p, u64 enq_flags)
{
	if (!starve || p->comm[0] != starve || (woken && !(enq_flags & SCX_ENQ_WAKEUP)))
		return false;
	return !is_past(release_after_ns);
}

static __noinline int kick_below(s32 cpu)
{
	scx_bpf_kick_cpu(cpu, 0); /* wrong 4 */
	return 0;
}

static int kick_in_loop(u64 i, void *ctx)
{
	scx_bpf_kick_cpu(NO_CPU + i, 0); /* wrong 5 */
	return 0;
}

static int nothing(u64 i, void *ctx)
{
	return 0;
}

static void linger(void)
{
	int i;

	bpf_for(i, 0, 64)
		bpf_loop(1 << 23, nothing, NULL, 0); /* wrong 13 */
}

/* Commits the fault `wrong` in ops.enqueue. Returns true if the task must not be inserted then. */
static bool do_wrong(struct task_struct *p, u64 enq_flags)
{
	if (is_wrong(WRONG_INSERT_DSQ)) {
		scx_bpf_dsq_insert(p, NOWHERE, slice_ns, enq_flags); /* wrong 1 */
		return true;
	}
	if (is_wrong(WRONG_INSERT_CPU)) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | NO_CPU, slice_ns, enq_flags); /* wrong 2 */
		return true;
	}
	if (is_wrong(WRONG_LATE_INSERT)) {
		held = p->pid;
		return true;
	}
	if (is_wrong(WRONG_KICK))
		scx_bpf_kick_cpu(NO_CPU, 0); /* wrong 3 */
	if (is_wrong(WRONG_KICK_BELOW))
		kick_below(NO_CPU); /* calls 4 */
	if (is_wrong(WRONG_KICK_IN_LOOP))
		bpf_loop(2, kick_in_loop, NULL, 0); /* calls 5 */
	if (is_wrong(WRONG_DUMP))
		scx_bpf_dump("nobody asked"); /* wrong 6 */
	if (is_wrong(WRONG_LOOP))
		linger();
	return false;
}

/* Inserts a starved task into the DSQ where it is to wait, by `starve_in`; with 1 into none. */
static void put_away(struct task_struct *p, u64 enq_flags)
{
	if (starve_in == IN_QUEUE)
		scx_bpf_dsq_insert(p, STARVED, slice_ns, enq_flags); /* puts in 0 */
	else if (starve_in == IN_LOCAL)
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | 0, slice_ns, enq_flags); /* puts in 2 */
	else if (starve_in == IN_LOCAL_FIRST)
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | 0, slice_ns, enq_flags | SCX_ENQ_HEAD); /* puts in 3 */
}

void BPF_STRUCT_OPS(lapse_enqueue, struct task_struct *p, u64 enq_flags)
{
	bool starved = is_starved(p, enq_flags);

	if (wrong && do_wrong(p, enq_flags))
		return;
	if (starved)
		put_away(p, enq_flags);
	else
		scx_bpf_dsq_insert(p, SHARED, starve_in >= IN_LOCAL ? SCX_SLICE_INF : slice_ns, enq_flags);
	if (!starved)
		scx_bpf_kick_cpu(scx_bpf_task_cpu(p), SCX_KICK_IDLE);
}

static void insert_late(void)
{
	struct task_struct *p = held ? bpf_task_from_pid(held) : NULL;

	if (!p)
		return;
	scx_bpf_dsq_insert(p, NOWHERE, slice_ns, 0); /* wrong 7 */
	bpf_task_release(p);
}

void BPF_STRUCT_OPS(lapse_dispatch, s32 cpu, struct task_struct *prev)
{
	if (leaves && is_wrong(WRONG_NOTHING))
		scx_bpf_error("its time is over"); /* wrong 0 */
	if (is_wrong(WRONG_MOVE))
		scx_bpf_dsq_move_to_local(NOWHERE, 0); /* wrong 8 */
	if (is_wrong(WRONG_LATE_INSERT))
		insert_late();
	if (is_past(release_after_ns) && scx_bpf_dsq_move_to_local(STARVED, 0))
		return;
	scx_bpf_dsq_move_to_local(SHARED, 0);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(lapse_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	return args->fork && bpf_get_prandom_u32() % 1000 < refuse_permille ? -ENOMEM : 0;
}

static int ring(void *map, u32 *key, struct bpf_timer *timer)
{
	if (is_wrong(WRONG_TIMER_DSQ))
		scx_bpf_dsq_peek(NOWHERE); /* wrong 9 */
	if (is_wrong(WRONG_TIMER_CONTEXT))
		scx_bpf_locked_rq(); /* wrong 10 */
	if (is_wrong(WRONG_TIMER_LOOP))
		linger();
	return 0;
}

static s32 set_alarm(void)
{
	u32 key = 0;
	struct lapse_alarm *alarm = bpf_map_lookup_elem(&alarms, &key);

	if (!alarm)
		return -ENOENT;
	bpf_timer_init(&alarm->timer, &alarms, 1 /* CLOCK_MONOTONIC */);
	bpf_timer_set_callback(&alarm->timer, ring);
	return bpf_timer_start(&alarm->timer, eject_after_ns, 0);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(lapse_init) /* wrong 12 */
{
	s32 ret;

	if (wrong == WRONG_INIT)
		return -EIO;
	if (wrong == WRONG_TIMER_DSQ || wrong == WRONG_TIMER_CONTEXT || wrong == WRONG_TIMER_LOOP) {
		ret = set_alarm();
		if (ret)
			return ret;
	}

	attached_at = bpf_ktime_get_ns();
	leaves = bpf_get_prandom_u32() % 1000 < eject_permille;
	ret = scx_bpf_create_dsq(SHARED, -1);
	return ret ?: scx_bpf_create_dsq(STARVED, -1);
}

void BPF_STRUCT_OPS(lapse_dump, struct scx_dump_ctx *dctx)
{
	if (lingers == 2)
		linger();
}

void BPF_STRUCT_OPS(lapse_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
	if (lingers == 1)
		linger();
}

SCX_OPS_DEFINE(lapse_ops,
	       .select_cpu		= (void *)lapse_select_cpu,
	       .enqueue			= (void *)lapse_enqueue,
	       .dispatch		= (void *)lapse_dispatch,
	       .init_task		= (void *)lapse_init_task,
	       .init			= (void *)lapse_init,
	       .dump			= (void *)lapse_dump,
	       .exit			= (void *)lapse_exit,
	       .timeout_ms		= 30000,
	       .name			= "lapse");
