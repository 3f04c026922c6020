/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * System calls of the tasks of the workload, as far as crates/trace/src/call.rs describes them.
 *
 * Owns: which calls are recorded, and when. Calls through which bytes are read are recorded at their
 * ends, all others where they begin. A call whose arguments cannot be read is counted and left out.
 * Calls of 32-bit programs are left out.
 */
#ifndef SCXLAB_RECORD_CALLS_H
#define SCXLAB_RECORD_CALLS_H

#include "record_syscalls.h"

/* Linux's include/uapi/linux/futex.h */
#define FUTEX_PRIVATE_FLAG 128
#define FUTEX_CLOCK_REALTIME 256
#define FUTEX2_PRIVATE 128
#define FUTEX_CMD_MASK ~(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME)
enum futex_op {
	FUTEX_WAIT,
	FUTEX_WAKE,
	FUTEX_REQUEUE = 3,
	FUTEX_CMP_REQUEUE,
	FUTEX_WAKE_OP,
	FUTEX_LOCK_PI,
	FUTEX_UNLOCK_PI,
	FUTEX_WAIT_BITSET = 9,
	FUTEX_WAKE_BITSET,
	FUTEX_WAIT_REQUEUE_PI,
	FUTEX_CMP_REQUEUE_PI,
	FUTEX_LOCK_PI2,
};

#define CLOCK_REALTIME 0
#define CLOCK_MONOTONIC 1
#define CLOCK_BOOTTIME 7
#define TIMER_ABSTIME 1
#define WNOHANG 1
#define NSEC_PER_SEC 1000000000ULL
#define NSEC_PER_MSEC 1000000ULL
#define NSEC_PER_USEC 1000ULL

/* Maximum number of buffers of a call; a call with more is left out. */
#define BUFFERS_MAX 64
/* Maximum number of threads of a process that are compared with the one that a call waits for. */
#define THREADS_MAX 4096

static void record_call(u64 now, u32 task, enum record_call_kind call, enum channel_kind channel, u64 object,
			bool has_value, u64 value);

/* A call without an object. */
static void call_value(struct task_struct *p, enum record_call_kind call, bool has_value, u64 value)
{
	record_call(bpf_ktime_get_ns(), p->pid, call, CHANNEL_NONE, 0, has_value, value);
}

/* The function is inline, because a BPF function has at most five arguments. */
static __always_inline void record_call(u64 now, u32 task, enum record_call_kind call, enum channel_kind channel,
					u64 object, bool has_value, u64 value)
{
	struct record_call *r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);

	if (!r) {
		count_lost();
		return;
	}
	begin(&r->head, RECORD_CALL, now, task);
	r->call = call;
	r->channel = channel;
	r->has_value = has_value;
	r->object = object;
	r->value = value;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

/* Records that a task waits for a device, right before the switch to another task. */
static void note_io(struct task_struct *p, struct task_state *s, u64 now)
{
	if (is_member(p, s))
		record_call(now, p->pid, CALL_IO, CHANNEL_NONE, 0, true, s->bytes);
}

/* Reads a time of the caller in ns. Its second half counts units of `unit` ns. */
static bool read_time(u64 address, u64 unit, u64 *ns)
{
	s64 parts[2];

	if (bpf_probe_read_user(parts, sizeof(parts), (void *)address)) {
		count_unread();
		return false;
	}
	if (parts[0] < 0 || parts[1] < 0)
		return false;
	*ns = (u64)parts[0] >= ~0ULL / NSEC_PER_SEC ? ~0ULL : parts[0] * NSEC_PER_SEC + parts[1] * unit;
	return true;
}

/* Converts a time to CLOCK_MONOTONIC; returns false for other clocks, such as those of processes. */
static bool to_monotonic(u32 clock, u64 *ns)
{
	u64 offset = 0;

	if (clock == CLOCK_REALTIME)
		offset = settings.realtime_offset;
	else if (clock == CLOCK_BOOTTIME)
		offset = settings.boottime_offset;
	else if (clock != CLOCK_MONOTONIC)
		return false;
	*ns = *ns > offset ? *ns - offset : 0;
	return true;
}

/* Waits on a futex. `until` is the address of a timeout, or 0. */
static void futex_wait(struct task_struct *p, u64 object, u64 until, bool is_absolute, u32 clock)
{
	u64 now = bpf_ktime_get_ns(), ns = 0;

	if (until) {
		if (!read_time(until, 1, &ns))
			return;
		if (is_absolute) {
			if (!to_monotonic(clock, &ns))
				return;
			ns = ns > now ? ns - now : 0;
		}
	}
	record_call(now, p->pid, CALL_FUTEX_WAIT, CHANNEL_NONE, object, until != 0, ns);
}

static void futex_wake(struct task_struct *p, u64 object, u64 most)
{
	record_call(bpf_ktime_get_ns(), p->pid, CALL_FUTEX_WAKE, CHANNEL_NONE, object, true, most);
}

struct futex_place {
	u64 address;
	u64 object;
};

/* Numbers a futex in memory of a file that several processes may have mapped. */
static long find_shared(struct task_struct *p, struct vm_area_struct *area, struct futex_place *place)
{
	struct inode *inode;

	/* VM_SHARED */
	if (!(area->vm_flags & 8) || !area->vm_file)
		return 0;
	inode = area->vm_file->f_inode;
	place->object = mix(mix(inode->i_sb->s_dev, inode->i_ino),
			    place->address - area->vm_start + (area->vm_pgoff << settings.page_shift));
	return 0;
}

/* Numbers a futex; returns 0 if it is in shared memory and that could not be examined. */
static u64 futex_at(struct task_struct *p, u64 address, bool is_private)
{
	struct futex_place place = { .address = address };

	place.object = mix((u64)BPF_CORE_READ(p, mm), address);
	if (!is_private && bpf_find_vma(p, address, find_shared, &place, 0)) {
		count_unread();
		return 0;
	}
	return place.object;
}

/* A walk over the threads of a process, by addresses of their nodes. */
struct search {
	u64 address;
	u64 node;
	u64 head;
	bool found;
};

static long look_at_thread(u64 index, struct search *search)
{
	struct task_struct *thread;

	if (search->node == search->head)
		return 1;
	thread = bpf_core_cast((void *)search->node - bpf_core_field_offset(struct task_struct, thread_node),
			       struct task_struct);
	search->found = (u64)thread->clear_child_tid == search->address;
	search->node = (u64)thread->thread_node.next;
	return search->found;
}

/*
 * Recognises pthread_join: a wait, on a futex that is not private, until the kernel clears the id
 * of a thread, as it does when the thread ends.
 */
static bool is_join(struct task_struct *p, u64 address)
{
	struct list_head *threads = &p->signal->thread_head;
	struct search search = { .address = address, .node = (u64)threads->next, .head = (u64)threads };

	bpf_loop(THREADS_MAX, look_at_thread, &search, 0);
	return search.found;
}

static void on_futex(struct task_struct *p, struct pt_regs *regs)
{
	u64 address = PT_REGS_PARM1_SYSCALL(regs), timeout = PT_REGS_PARM4_SYSCALL(regs);
	u32 op = PT_REGS_PARM2_SYSCALL(regs), value = PT_REGS_PARM3_SYSCALL(regs);
	u32 clock = op & FUTEX_CLOCK_REALTIME ? CLOCK_REALTIME : CLOCK_MONOTONIC;
	bool is_private = op & FUTEX_PRIVATE_FLAG;
	u64 object = futex_at(p, address, is_private);

	if (!object)
		return;
	switch (op & FUTEX_CMD_MASK) {
	case FUTEX_WAIT:
	case FUTEX_WAIT_BITSET:
	case FUTEX_WAIT_REQUEUE_PI:
		if (!is_private && is_join(p, address))
			call_value(p, CALL_JOIN, false, 0);
		else
			futex_wait(p, object, timeout, (op & FUTEX_CMD_MASK) != FUTEX_WAIT, clock);
		break;
	case FUTEX_LOCK_PI:
		futex_wait(p, object, timeout, true, CLOCK_REALTIME);
		break;
	case FUTEX_LOCK_PI2:
		futex_wait(p, object, timeout, true, clock);
		break;
	case FUTEX_UNLOCK_PI:
		futex_wake(p, object, 1);
		break;
	case FUTEX_WAKE_OP:
		futex_wake(p, object, value);
		object = futex_at(p, PT_REGS_PARM5_SYSCALL(regs), is_private);
		/* The argument that is elsewhere a timeout is here a number of tasks. */
		if (object)
			futex_wake(p, object, (u32)timeout);
		break;
	case FUTEX_WAKE:
	case FUTEX_WAKE_BITSET:
	case FUTEX_REQUEUE:
	case FUTEX_CMP_REQUEUE:
	case FUTEX_CMP_REQUEUE_PI:
		futex_wake(p, object, value);
		break;
	}
}

static void on_futex2(struct task_struct *p, struct pt_regs *regs, bool waits)
{
	u64 address = PT_REGS_PARM1_SYSCALL(regs);
	u32 flags = PT_REGS_PARM4_SYSCALL(regs);
	u64 object = futex_at(p, address, flags & FUTEX2_PRIVATE);

	if (!object)
		return;
	if (waits)
		futex_wait(p, object, PT_REGS_PARM5_SYSCALL(regs), true, PT_REGS_PARM6_SYSCALL(regs));
	else
		futex_wake(p, object, (u32)PT_REGS_PARM3_SYSCALL(regs));
}

static void on_nanosleep(struct task_struct *p, u64 address)
{
	u64 ns;

	if (read_time(address, 1, &ns))
		call_value(p, CALL_SLEEP_FOR, true, ns);
}

static void on_clock_nanosleep(struct task_struct *p, u32 clock, u32 flags, u64 address)
{
	u64 ns;

	if (!read_time(address, 1, &ns))
		return;
	if (!(flags & TIMER_ABSTIME))
		call_value(p, CALL_SLEEP_FOR, true, ns);
	else if (to_monotonic(clock, &ns))
		call_value(p, CALL_SLEEP_UNTIL, true, ns);
}

static void on_poll_ms(struct task_struct *p, s32 ms)
{
	call_value(p, CALL_POLL, ms >= 0, ms >= 0 ? ms * NSEC_PER_MSEC : 0);
}

static void on_poll_time(struct task_struct *p, u64 address, u64 unit)
{
	u64 ns = 0;

	if (!address || read_time(address, unit, &ns))
		call_value(p, CALL_POLL, address != 0, ns);
}

/*
 * A read of a timerfd sleeps until the timer's time. A timer that is not set sleeps for ever, and
 * tells nothing.
 */
static void on_timer(struct task_struct *p, struct file *file)
{
	struct timerfd_ctx *timer = bpf_core_cast(BPF_CORE_READ(file, private_data), struct timerfd_ctx);
	u64 at = timer->t.tmr.node.expires, now = bpf_ktime_get_ns();

	if (!to_monotonic(timer->clockid, &at))
		return;
	if (timer->ticks || at > now)
		call_value(p, CALL_SLEEP_UNTIL, true, at);
}

/* Recognises "scxlab: count N" in a line for trace_marker. */
static void on_marker(struct task_struct *p, u64 address)
{
	char text[32] = {};
	u64 units = 0;

	if (bpf_probe_read_user_str(text, sizeof(text), (void *)address) < 0) {
		count_unread();
		return;
	}
	if (bpf_strncmp(text, 14, "scxlab: count "))
		return;
	for (int i = 14; i < sizeof(text) && text[i] >= '0' && text[i] <= '9'; i++)
		units = units * 10 + text[i] - '0';
	call_value(p, CALL_COUNT, true, units);
}

static void writes(struct task_struct *p, struct task_state *s, u32 fd, u64 buffer, u64 bytes)
{
	struct channel c;

	find_channel(&c, p, fd, WRITES);
	switch (c.kind) {
	case CHANNEL_NONE:
	case CHANNEL_TIMER:
		s->bytes = bytes;
		return;
	case CHANNEL_MARKER:
		if (buffer)
			on_marker(p, buffer);
		return;
	case CHANNEL_EVENTFD:
		if (!buffer || bpf_probe_read_user(&bytes, sizeof(bytes), (void *)buffer)) {
			count_unread();
			return;
		}
		break;
	default:
		break;
	}
	s->call = CALL_WRITE;
	s->channel = c.kind;
	s->object = c.object;
	record_call(bpf_ktime_get_ns(), p->pid, CALL_WRITE, c.kind, c.object, true, bytes);
}

static void reads(struct task_struct *p, struct task_state *s, u32 fd, u64 buffer, u64 bytes)
{
	struct channel c;

	find_channel(&c, p, fd, READS);
	switch (c.kind) {
	case CHANNEL_NONE:
	case CHANNEL_MARKER:
		s->bytes = bytes;
		return;
	case CHANNEL_TIMER:
		on_timer(p, c.file);
		return;
	default:
		s->call = CALL_READ;
		s->channel = c.kind;
		s->object = c.object;
		s->buffer = buffer;
		return;
	}
}

/* Records the read at its end, if it got bytes. */
static void end_of_read(struct task_struct *p, struct task_state *s, s64 result)
{
	u64 bytes = result;

	if (result <= 0)
		return;
	if (s->channel == CHANNEL_EVENTFD && bpf_probe_read_user(&bytes, sizeof(bytes), (void *)s->buffer)) {
		count_unread();
		return;
	}
	record_call(bpf_ktime_get_ns(), p->pid, CALL_READ, s->channel, s->object, true, bytes);
}

/* Adds up the lengths of the buffers of a call. */
static bool total(u64 vector, u64 count, u64 *bytes)
{
	struct iovec buffer;

	*bytes = 0;
	if (count > BUFFERS_MAX)
		goto unread;
	for (u32 i = 0; i < BUFFERS_MAX && i < count; i++) {
		if (bpf_probe_read_user(&buffer, sizeof(buffer), (void *)(vector + i * sizeof(buffer))))
			goto unread;
		*bytes += buffer.iov_len;
	}
	return true;
unread:
	count_unread();
	return false;
}

static void on_writev(struct task_struct *p, struct task_state *s, u32 fd, u64 vector, u64 count)
{
	u64 bytes;

	if (total(vector, count, &bytes))
		writes(p, s, fd, 0, bytes);
}

static void on_sendmsg(struct task_struct *p, struct task_state *s, u32 fd, u64 message)
{
	struct user_msghdr head;

	if (bpf_probe_read_user(&head, sizeof(head), (void *)message)) {
		count_unread();
		return;
	}
	on_writev(p, s, fd, (u64)head.msg_iov, head.msg_iovlen);
}

static __always_inline void on_call(struct task_struct *p, struct task_state *s, struct pt_regs *regs, u32 id)
{
	u64 one = PT_REGS_PARM1_SYSCALL(regs), two = PT_REGS_PARM2_SYSCALL(regs);
	u64 three = PT_REGS_PARM3_SYSCALL(regs);

	switch (id) {
	case SYS_READ:
	case SYS_RECVFROM:
		reads(p, s, one, two, three);
		break;
	case SYS_READV:
	case SYS_RECVMSG:
		reads(p, s, one, 0, 0);
		break;
	case SYS_WRITE:
	case SYS_SENDTO:
		writes(p, s, one, two, three);
		break;
	case SYS_WRITEV:
		on_writev(p, s, one, two, three);
		break;
	case SYS_SENDMSG:
		on_sendmsg(p, s, one, two);
		break;
	case SYS_SENDFILE:
		writes(p, s, one, 0, PT_REGS_PARM4_SYSCALL(regs));
		break;
	case SYS_SPLICE:
		writes(p, s, three, 0, PT_REGS_PARM5_SYSCALL(regs));
		reads(p, s, one, 0, 0);
		break;
	case SYS_SENDMMSG:
	case SYS_RECVMMSG:
		count_unread();
		break;
	case SYS_FUTEX:
		on_futex(p, regs);
		break;
	case SYS_FUTEX_WAIT:
	case SYS_FUTEX_WAKE:
		on_futex2(p, regs, id == SYS_FUTEX_WAIT);
		break;
#ifdef SYS_POLL
	case SYS_POLL:
		on_poll_ms(p, three);
		break;
	case SYS_SELECT:
		on_poll_time(p, PT_REGS_PARM5_SYSCALL(regs), NSEC_PER_USEC);
		break;
	case SYS_EPOLL_WAIT:
#endif
	case SYS_EPOLL_PWAIT:
		on_poll_ms(p, PT_REGS_PARM4_SYSCALL(regs));
		break;
	case SYS_EPOLL_PWAIT2:
		on_poll_time(p, PT_REGS_PARM4_SYSCALL(regs), 1);
		break;
	case SYS_PPOLL:
		on_poll_time(p, three, 1);
		break;
	case SYS_PSELECT6:
		on_poll_time(p, PT_REGS_PARM5_SYSCALL(regs), 1);
		break;
	case SYS_NANOSLEEP:
		on_nanosleep(p, one);
		break;
	case SYS_CLOCK_NANOSLEEP:
		on_clock_nanosleep(p, one, two, three);
		break;
	case SYS_SCHED_YIELD:
		call_value(p, CALL_YIELD, false, 0);
		break;
	case SYS_WAIT4:
		if (!(three & WNOHANG))
			call_value(p, CALL_JOIN, false, 0);
		break;
	case SYS_WAITID:
		if (!(PT_REGS_PARM4_SYSCALL(regs) & WNOHANG))
			call_value(p, CALL_JOIN, false, 0);
		break;
	}
}

/* Returns the number of the system call that the registers describe. */
static u32 number_of(struct pt_regs *regs)
{
#ifdef __TARGET_ARCH_x86
	return regs->orig_ax;
#else
	return regs->syscallno;
#endif
}

/*
 * Attached to the functions of the recorded calls, which take the caller's registers, and not to
 * the tracepoint sys_enter: Linux 7.3 can preempt a program there, and until it goes on, the calls
 * of all other tasks on this CPU pass the program by.
 */
SEC("kprobe.multi")
int on_enter(struct pt_regs *ctx)
{
	struct pt_regs *regs = bpf_core_cast((void *)PT_REGS_PARM1(ctx), struct pt_regs);
	struct task_struct *p = bpf_get_current_task_btf();
	struct task_state *s = state_of(p);

	if (!is_member(p, s))
		return 0;
	s->call = CALL_NONE;
	s->bytes = 0;
	on_call(p, s, regs, number_of(regs));
	return 0;
}

/* Attached to the ends of the calls that read or write. */
SEC("kretprobe.multi")
int on_exit(struct pt_regs *ctx)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task_state *s = state_of(p);

	if (!s)
		return 0;
	if (s->call == CALL_READ)
		end_of_read(p, s, PT_REGS_RC(ctx));
	s->call = CALL_NONE;
	s->bytes = 0;
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *p)
{
	if (is_member(p, state_of(p)))
		call_value(p, CALL_EXEC, false, 0);
	return 0;
}

#endif
