/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Identity of the file behind a descriptor, as a channel between tasks.
 *
 * Owns: which files are channels, and the number that stands for a channel in the recording. Both
 * ends of a channel have the same number. A number is made of the kernel's inode numbers, addresses
 * of sockets, or addresses of a TCP connection, mixed with a random number.
 * Does not: read data of a channel.
 */
#ifndef SCXLAB_RECORD_CHANNELS_H
#define SCXLAB_RECORD_CHANNELS_H

#define S_IFMT 0170000
#define S_IFIFO 0010000
#define S_IFCHR 0020000
#define S_IFSOCK 0140000

#define ANON_INODE_FS_MAGIC 0x09041934
#define TRACEFS_MAGIC 0x74726163
/* Major number of /dev/null, /dev/zero and others that never block. */
#define MEM_MAJOR 1
#define MINORBITS 20

#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10

struct channel {
	enum channel_kind kind;
	u64 object;
	struct file *file;
};

/* Direction in which the calling task uses a channel. */
enum direction { WRITES, READS };

static struct file *file_of(struct task_struct *p, u32 fd)
{
	struct file *file = NULL;
	struct fdtable *table;

	if (!p->files)
		return NULL;
	table = p->files->fdt;
	if (!table || fd >= table->max_fds)
		return NULL;
	bpf_probe_read_kernel(&file, sizeof(file), table->fd + fd);
	return file ? bpf_core_cast(file, struct file) : NULL;
}

/* Tells whether the name of a file without a directory entry is `name`, which has 9 characters. */
static bool is_named(struct file *file, const char *name)
{
	char buffer[16] = {};

	bpf_probe_read_kernel_str(buffer, sizeof(buffer), file->f_path.dentry->d_name.name);
	return !bpf_strncmp(buffer, 10, name);
}

static bool is_marker(struct file *file)
{
	char buffer[16] = {};

	bpf_probe_read_kernel_str(buffer, sizeof(buffer), file->f_path.dentry->d_name.name);
	return !bpf_strncmp(buffer, 13, "trace_marker");
}

/* A connection between two sockets of this machine has one address at both ends, or loopback's. */
static bool is_local4(struct sock_common *sk)
{
	return sk->skc_daddr && (sk->skc_daddr == sk->skc_rcv_saddr || (sk->skc_daddr & 0xff) == 127);
}

static u64 address6(const struct in6_addr *address, bool low)
{
	const __be32 *part = address->in6_u.u6_addr32;

	return low ? (u64)part[0] << 32 | part[1] : (u64)part[2] << 32 | part[3];
}

/* `::ffff:127.x.y.z` is what an IPv4 connection looks like from an IPv6 socket. */
static bool is_local6(struct sock_common *sk)
{
	const struct in6_addr *to = &sk->skc_v6_daddr, *from = &sk->skc_v6_rcv_saddr;
	u64 high = address6(to, true), low = address6(to, false);

	return (high || low) && high == address6(from, true) && low == address6(from, false);
}

/* Numbers one direction of a connection, from the socket at `from` to the one at `to`. */
static u64 connection(u64 from_address, u16 from_port, u64 to_address, u16 to_port)
{
	return mix(mix(from_address, to_address), (u64)from_port << 16 | to_port);
}

static void find_inet(struct channel *c, struct sock_common *sk, bool six, enum direction direction)
{
	u64 here = six ? address6(&sk->skc_v6_rcv_saddr, true) ^ address6(&sk->skc_v6_rcv_saddr, false)
		       : sk->skc_rcv_saddr;
	u64 there = six ? address6(&sk->skc_v6_daddr, true) ^ address6(&sk->skc_v6_daddr, false)
			: sk->skc_daddr;
	u16 port = sk->skc_num, other = bpf_ntohs(sk->skc_dport);

	if (!other || !(six ? is_local6(sk) : is_local4(sk)))
		return;
	c->kind = CHANNEL_SOCKET;
	c->object = direction == WRITES ? connection(here, port, there, other)
					: connection(there, other, here, port);
}

/*
 * The channel of a socket is identified by the socket that receives. BPF_CORE_READ makes numbers of
 * pointers, with which the verifier allows arithmetic.
 */
static void find_socket(struct channel *c, struct inode *inode, enum direction direction)
{
	struct socket_alloc *alloc;
	u64 number, receiver;
	struct sock *sk;

	alloc = (void *)inode - bpf_core_field_offset(struct socket_alloc, vfs_inode);
	number = (u64)BPF_CORE_READ(alloc, socket.sk);
	c->kind = CHANNEL_OUTSIDE;
	c->object = mix(number, 0);
	if (!number)
		return;
	sk = bpf_core_cast((void *)number, struct sock);
	switch (sk->__sk_common.skc_family) {
	case AF_UNIX:
		receiver = number;
		if (direction == WRITES)
			receiver = (u64)BPF_CORE_READ((struct unix_sock *)number, peer);
		if (!receiver)
			return;
		c->kind = CHANNEL_SOCKET;
		c->object = mix(receiver, 0);
		return;
	case AF_INET:
		find_inet(c, &sk->__sk_common, false, direction);
		return;
	case AF_INET6:
		find_inet(c, &sk->__sk_common, true, direction);
		return;
	}
}

static void find_anonymous(struct channel *c, struct file *file)
{
	c->object = mix((u64)BPF_CORE_READ(file, private_data), 1);
	if (is_named(file, "[eventfd]"))
		c->kind = CHANNEL_EVENTFD;
	else if (is_named(file, "[timerfd]"))
		c->kind = CHANNEL_TIMER;
	else
		c->kind = CHANNEL_OUTSIDE;
}

/* Finds the channel behind a descriptor of the running task. */
static void find_channel(struct channel *c, struct task_struct *p, u32 fd, enum direction direction)
{
	struct file *file = file_of(p, fd);
	struct inode *inode;
	u64 magic;

	c->kind = CHANNEL_NONE;
	c->object = 0;
	c->file = file;
	if (!file)
		return;
	inode = file->f_inode;
	magic = inode->i_sb->s_magic;
	if (magic == ANON_INODE_FS_MAGIC) {
		find_anonymous(c, file);
		return;
	}
	if (magic == TRACEFS_MAGIC) {
		if (is_marker(file))
			c->kind = CHANNEL_MARKER;
		return;
	}
	c->object = mix(inode->i_sb->s_dev, inode->i_ino);
	switch (inode->i_mode & S_IFMT) {
	case S_IFIFO:
		c->kind = CHANNEL_PIPE;
		break;
	case S_IFSOCK:
		find_socket(c, inode, direction);
		break;
	case S_IFCHR:
		if (inode->i_rdev >> MINORBITS != MEM_MAJOR)
			c->kind = CHANNEL_OUTSIDE;
		break;
	}
}

#endif
