/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * pelt: per-entity load tracking, a decaying average of what an entity did lately. Integers only.
 *
 * Owns: the arithmetic of sums over periods. Does not: know tasks, queues, weights of groups or clocks; time is an argument.
 *
 * Time passes in units of 1024 ns; 1024 units (about a millisecond) are a period. A period in which an entity was runnable
 * throughout adds 1024 to its sum, and each period later that is worth y times as much, y^32 = 1/2. So:
 *
 *	sum = u0 + u1 y + u2 y^2 + ...		u_i: units in which it was runnable, i periods ago
 *
 * The same over the whole time, runnable or not, is the `period` sum: runnable / period is the share of lately. Neither can
 * exceed PELT_MAX. Nothing here divides but pelt_share(), which is worth calling only when a period ended.
 *
 * Error. Units are counted exactly until a period ends. Then a decay rounds down, by less than 1 + 2^-16, and a run of full
 * periods is off by less than that in either direction. What an update is off by decays as the sum does, so no sum is off by
 * more than 1.09 / (1 - y), which is less than 51 of 47788. crates/testkit/tests/pelt.rs derives it and holds the code to it.
 *
 * Models: the series "sched: entity load-tracking re-work" (2012), in Linux from 3.8 on. Differs:
 *   - Time shorter than a unit is kept for the next update, and so is how much of the period now open has passed. The series
 *     dropped the one, and read the other off the decayed period sum, so that its periods slowly drift.
 *   - A run of n full periods is all there can be less its decay by n. The series added it from a table in a loop; the kernel's
 *     verifier follows every path of a loop, and this has none. After 345 periods the series added 47742, one period too many.
 */
#ifndef LIB_PELT_BPF_H
#define LIB_PELT_BPF_H

#define PELT_UNIT_SHIFT		10	/* ns to units */
#define PELT_PERIOD		1024	/* units */
#define PELT_PERIOD_SHIFT	20	/* ns to periods */
#define PELT_HALF		32	/* periods after which a contribution is worth half */
#define PELT_MAX		47788	/* floor(1024 (1 + y + y^2 + ...)): no sum is larger. The series' 47742 is what is left of
					 * it if every period is added by itself and rounded */
#define PELT_MAX_FULL		(PELT_MAX - PELT_PERIOD)

/* floor(2^32 y^n) */
static const u64 pelt_decay_factor[PELT_HALF] = {
	0x100000000, 0xfa83b2db, 0xf5257d15, 0xefe4b99b, 0xeac0c6e7, 0xe5b906e7, 0xe0ccdeec, 0xdbfbb797,
	0xd744fcca, 0xd2a81d91, 0xce248c15, 0xc9b9bd86, 0xc5672a11, 0xc12c4cca, 0xbd08a39f, 0xb8fbaf47,
	0xb504f333, 0xb123f581, 0xad583eea, 0xa9a15ab4, 0xa5fed6a9, 0xa2704303, 0x9ef53260, 0x9b8d39b9,
	0x9837f051, 0x94f4efa8, 0x91c3d373, 0x8ea4398b, 0x8b95c1e3, 0x88980e80, 0x85aac367, 0x82cd8698,
};

struct pelt_avg {
	u64 last;	/* time up to which all is counted, ns */
	u32 runnable;	/* sums, up to PELT_MAX */
	u32 running;
	u32 period;
	u32 open;	/* units of the period now open */
};

/* What n periods leave of 2^32, but for the halvings; pelt_part() takes it. */
static __always_inline u64 pelt_left(u64 n)
{
	return n < PELT_HALF * 32 ? pelt_decay_factor[n & (PELT_HALF - 1)] : 0;
}

/* val y^n. `val` must be below 2^32, and `left` be pelt_left(n). */
static __always_inline u64 pelt_part(u64 val, u64 left, u64 n)
{
	return (val * left) >> (32 + (n / PELT_HALF & 31));
}

/* val y^n. `val` must be below 2^32. */
static __always_inline u64 pelt_decay(u64 val, u64 n)
{
	return pelt_part(val, pelt_left(n), n);
}

/* What n full periods add that ended one, two, ... n periods ago: all there can be, less what lies before them. */
static __always_inline u64 pelt_full_periods(u64 n)
{
	return PELT_MAX_FULL - pelt_decay(PELT_MAX_FULL, n);
}

/*
 * Counts the time from the last update to `now`, in all of which the entity was runnable (running) or not. True if a period
 * ended: only then is it worth to compute a share again.
 */
static __noinline __attribute__((unused)) bool pelt_update(struct pelt_avg __arena *a, u64 now, bool runnable, bool running)
{
	u64 units, ended, part, full, left;

	if ((s64)(now - a->last) < 0) {
		a->last = now;	/* another CPU's clock was ahead */
		return false;
	}
	units = (now - a->last) >> PELT_UNIT_SHIFT;
	if (!units)
		return false;
	a->last += units << PELT_UNIT_SHIFT;

	part = a->open;
	if (units + part < PELT_PERIOD) {
		a->open = part + units;
		a->period += units;
		if (runnable)
			a->runnable += units;
		if (running)
			a->running += units;
		return false;
	}
	/* The rest of the period that was open, the full ones after it, and the part of the one now open. */
	part = PELT_PERIOD - part;
	units -= part;
	ended = units / PELT_PERIOD;
	a->open = full = units % PELT_PERIOD;
	if (ended)
		full += pelt_full_periods(ended);
	left = pelt_left(ended + 1);
	a->period = pelt_part(a->period + part, left, ended + 1) + full;
	a->runnable = pelt_part(a->runnable + (runnable ? part : 0), left, ended + 1) + (runnable ? full : 0);
	a->running = pelt_part(a->running + (running ? part : 0), left, ended + 1) + (running ? full : 0);
	return true;
}

/* `weight` in proportion to how much of the time was runnable. */
static __always_inline u64 pelt_share(u64 weight, u32 sum, u32 period)
{
	return weight * sum / (period + 1);
}

#endif
