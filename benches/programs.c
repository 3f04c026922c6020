// SPDX-License-Identifier: GPL-2.0-only
/*
 * Programs of `jit.rs`: the same functions for BPF and, without BPF's sections, for this machine.
 *
 * Each takes a structure of two numbers, the repetitions and the result, as a syscall program does.
 */
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

struct args {
	u64 n;
	u64 result;
};

#ifdef __bpf__
#define PROGRAM __attribute__((section("syscall"), used))
#else
#define PROGRAM __attribute__((visibility("default")))
#endif
#define NOINLINE static __attribute__((noinline))

/* A linear congruential generator, shifted and mixed. */
PROGRAM int arithmetic(struct args *args)
{
	u64 n = args->n, x = 1;

	for (u64 i = 0; i < n; i++) {
		x = x * 1664525 + 1013904223;
		x ^= x >> 13;
		x += (u32)x << 3;
	}
	args->result = x;
	return 0;
}

/* Counts random numbers by their top bits, in buckets on the stack. */
PROGRAM int histogram(struct args *args)
{
	u64 n = args->n, x = 1, sum = 0;
	u32 buckets[64] = {};

	for (u64 i = 0; i < n; i++) {
		x = x * 6364136223846793005ULL + 1442695040888963407ULL;
		buckets[x >> 58] += 1 + (u32)(i & 3);
	}
	for (u32 i = 0; i < 64; i++)
		sum = sum * 31 + buckets[i];
	args->result = sum;
	return 0;
}

struct node {
	u32 next;
	u32 weight;
	u64 vtime;
	u64 runs;
	u64 last;
};

struct node nodes[512];

/* Follows a chain of records and updates each, as a scheduler does with its data of tasks. */
PROGRAM int records(struct args *args)
{
	u64 n = args->n, now = 0;
	u32 at = 0;

	for (u32 i = 0; i < 512; i++) {
		nodes[i].next = (i * 167 + 13) & 511;
		nodes[i].weight = 1 + (i & 7);
		nodes[i].vtime = 0;
		nodes[i].runs = 0;
		nodes[i].last = 0;
	}
	for (u64 i = 0; i < n; i++) {
		struct node *node = &nodes[at & 511];

		now += 1000;
		node->vtime += (now - node->last) * 100 / node->weight;
		node->last = now;
		node->runs++;
		at = node->next;
	}
	args->result = nodes[7].vtime + nodes[7].runs;
	return 0;
}

/* The sieve of Eratosthenes up to 256, on the stack. */
PROGRAM int branches(struct args *args)
{
	u64 n = args->n, primes = 0;

	for (u64 i = 0; i < n; i++) {
		u8 struck[256] = {};

		primes = 0;
		for (u32 at = 2; at < 256; at++) {
			if (struck[at & 255])
				continue;
			primes++;
			for (u32 k = 2 * at; k < 256; k += at)
				struck[k & 255] = 1;
		}
		__asm__ volatile("" ::: "memory");
	}
	args->result = primes;
	return 0;
}

NOINLINE u64 mixed(u64 a, u64 b)
{
	return (a ^ (b >> 7)) + b;
}

/* A loop that calls a function of two arguments. */
PROGRAM int calls(struct args *args)
{
	u64 n = args->n, a = 1, b = 2;

	for (u64 i = 0; i < n; i++) {
		u64 c = mixed(a, b);

		a = b;
		b = c;
	}
	args->result = a;
	return 0;
}

#ifdef __bpf__
char LICENSE[] __attribute__((section("license"), used)) = "GPL";
#endif
