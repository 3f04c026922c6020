/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Random choices of whim: mostly valid arguments for calls of kernel functions, sometimes wrong
 * ones.
 *
 * Owns: the stream of decisions, the ids of whim's DSQs, the pids of the tasks that whim remembers.
 */

/* Values of the knob idle_mode: how the kernel's built-in idle tracking works. */
enum { IDLE_GLOBAL, IDLE_PER_NODE, IDLE_OFF };

/* Kind of operation that makes a call; some kernel functions may be called in some kinds only. */
enum place { IN_SELECT_CPU, IN_ENQUEUE, IN_DISPATCH, IN_TIMER, ON_TASK, ELSEWHERE };

static u64 draws;

/* Returns the next decision: a 64-bit hash of a word of the script and the decision's number. */
static u64 draw(void)
{
	u64 n = draws++;
	u64 x = script[n % SCRIPT_WORDS] + (n + 1) * 0x9e3779b97f4a7c15ULL;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

static bool chance(u32 ppm)
{
	return draw() % 1000000 < ppm;
}

/* Returns a boundary value, such as 0 or a power of two, or any number. */
static __noinline u64 boundary_value(void)
{
	u64 how = draw();
	u32 shift = how >> 32 & 63;

	switch (how % 8) {
	case 0:
		return 0;
	case 1:
		return ~0ULL;
	case 2:
		return 1ULL << shift;
	case 3:
		return (1ULL << shift) - 1;
	case 4:
		return -(1ULL << shift);
	case 5:
		return SCX_DSQ_LOCAL_ON | draw() >> shift;
	case 6:
		return draw() >> shift;
	}
	return draw();
}

static u64 or_odd(u64 right)
{
	return chance(wrong_ppm) ? boundary_value() : right;
}

/* Returns the given pointer or, as a wrong choice, one up to 4 KiB behind it or any number. */
static void *or_wild(void *right)
{
	if (!chance(wrong_ppm))
		return right;
	return draw() % 2 ? right + draw() % 4096 : (void *)boundary_value();
}

/*
 * Number of DSQs that init creates. A few have small ids, as in most schedulers, and some have
 * large ones.
 */
#define NR_QUEUES 6

static u64 queue_id(u32 i)
{
	return i < 3 ? i : 1ULL << (i * 11 + 3);
}

static bool is_ordered(u32 i)
{
	return i & 1;
}

/* DSQs that are created and destroyed during the run. */
#define NR_TRANSIENT 4

static u32 transient;

static u64 transient_id(u32 i)
{
	return 62 + i;
}

/* Returns the id of any existing FIFO DSQ, including the built-in ones. */
static __noinline u64 some_queue(void)
{
	u64 how = draw();
	u32 nr_cpus = scx_bpf_nr_cpu_ids();
	u32 i = how >> 32 & (NR_TRANSIENT - 1);

	switch (how % 8) {
	case 0:
		return or_odd(SCX_DSQ_LOCAL);
	case 1:
		return or_odd(SCX_DSQ_GLOBAL);
	case 2:
		return or_odd(SCX_DSQ_LOCAL_ON | (how >> 16) % nr_cpus);
	case 3:
		if (transient & (1 << i))
			return or_odd(transient_id(i));
	}
	return or_odd(queue_id(((how >> 16) % (NR_QUEUES / 2)) * 2));
}

static s32 some_cpu(void)
{
	return or_odd(draw() % scx_bpf_nr_cpu_ids());
}

static s32 some_node(void)
{
	return or_odd(draw() % scx_bpf_nr_node_ids());
}

static u64 slice(void)
{
	u64 right = draw() % 16 ? draw() % (slice_max_ns + 1) : SCX_SLICE_INF;

	return or_odd(right);
}

static __noinline u64 enq_flags_of(u64 given)
{
	switch (draw() % 8) {
	case 0:
		return or_odd(given | SCX_ENQ_HEAD);
	case 1:
		return or_odd(given | SCX_ENQ_PREEMPT);
	case 2:
		return or_odd(0);
	}
	return or_odd(given);
}

#define NR_PIDS 32

static u32 pids[NR_PIDS];
static u32 nr_pids;

static void remember_pid(struct task_struct *p)
{
	pids[nr_pids++ % NR_PIDS] = p->pid;
}

/* Returns one of the remembered tasks, with a reference; NULL if the task no longer exists. */
static struct task_struct *other_task(void)
{
	return bpf_task_from_pid(or_odd(pids[draw() % NR_PIDS]));
}
