/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * pelt: per-entity load tracking, a decaying average of an entity's recent activity. Integers only.
 *
 * Owns: arithmetic of sums over periods. Does not: know tasks, groups or clocks; the caller passes
 * the time.
 *
 * Time passes in units of 1024 ns; 1024 units (about 1 ms) are a period. A period in which an
 * entity was runnable throughout adds 1024 to the entity's sum. With each later period this
 * contribution shrinks by the factor y, where y^32 = 1/2:
 *
 *	sum = u0 + u1 y + u2 y^2 + ...
 *
 * u_i is the number of units in which the entity was runnable, i periods ago.
 *
 * `period` is such a sum over all time, whether the entity was runnable or not. The quotient
 * runnable / period is therefore the entity's recent share of the time. No sum exceeds PELT_MAX.
 * Only pelt_share() divides, and a call is worthwhile only after a period has ended.
 *
 * Error: units are counted exactly until a period ends. A decay then rounds down by less than 1 +
 * 2^-16, and a run of full periods is off by less than that in either direction. An error decays as
 * the sum does, so the errors of a sum together stay below 1.09 / (1 - y), which is less than 51 of
 * 47788. crates/sched/tests/pelt.rs derives and tests this bound.
 *
 * Models: the series "sched: entity load-tracking re-work" (2012), in Linux from 3.8 on. Differs:
 *   - An update keeps the time below a unit, and the elapsed part of the open period, for the next
 *     update. The series dropped the time below a unit and derived the elapsed part from the
 *     decayed period sum, so its periods drift slowly.
 *   - The sum of n full periods is computed as the maximum less the maximum decayed by n periods.
 *     The series added it up from a table in a loop, and the verifier follows each path of such a
 *     loop. After 345 periods the series added 47742, which is one period too many.
 */
#ifndef LIB_PELT_BPF_H
#define LIB_PELT_BPF_H

#define PELT_UNIT_SHIFT		10	/* shift from ns to units */
#define PELT_PERIOD		1024	/* units in a period */
#define PELT_PERIOD_SHIFT	20	/* shift from ns to periods */
#define PELT_HALF		32	/* periods after which a contribution is worth half */
#define PELT_MAX		47788	/* floor(1024 (1 + y + y^2 + ...)): the bound of all sums. The
					 * series' 47742 results from rounding each period */
#define PELT_MAX_FULL		(PELT_MAX - PELT_PERIOD)

/* Element n is floor(2^32 y^n). */
static const u64 pelt_decay_factor[PELT_HALF] = {
	0x100000000, 0xfa83b2db, 0xf5257d15, 0xefe4b99b, 0xeac0c6e7, 0xe5b906e7, 0xe0ccdeec, 0xdbfbb797,
	0xd744fcca, 0xd2a81d91, 0xce248c15, 0xc9b9bd86, 0xc5672a11, 0xc12c4cca, 0xbd08a39f, 0xb8fbaf47,
	0xb504f333, 0xb123f581, 0xad583eea, 0xa9a15ab4, 0xa5fed6a9, 0xa2704303, 0x9ef53260, 0x9b8d39b9,
	0x9837f051, 0x94f4efa8, 0x91c3d373, 0x8ea4398b, 0x8b95c1e3, 0x88980e80, 0x85aac367, 0x82cd8698,
};

struct pelt_avg {
	u64 last;	/* time up to which the sums are counted, ns */
	u32 runnable;	/* `runnable`, `running` and `period` are sums of at most PELT_MAX */
	u32 running;
	u32 period;
	u32 open;	/* elapsed units of the open period */
};

/*
 * Returns y^(n mod 32) in units of 2^-32; 0 if y^n leaves nothing of any sum. pelt_part() applies
 * the remaining n / 32 halvings.
 */
static __always_inline u64 pelt_left(u64 n)
{
	return n < PELT_HALF * 32 ? pelt_decay_factor[n & (PELT_HALF - 1)] : 0;
}

/* Returns val y^n. `val` must be below 2^32, and `left` must be pelt_left(n). */
static __always_inline u64 pelt_part(u64 val, u64 left, u64 n)
{
	return (val * left) >> (32 + (n / PELT_HALF & 31));
}

/* Returns val y^n. `val` must be below 2^32. */
static __always_inline u64 pelt_decay(u64 val, u64 n)
{
	return pelt_part(val, pelt_left(n), n);
}

/*
 * Returns the sum of n full periods that ended 1 to n periods ago: the maximum less the part of
 * periods that are older.
 */
static __always_inline u64 pelt_full_periods(u64 n)
{
	return PELT_MAX_FULL - pelt_decay(PELT_MAX_FULL, n);
}

/*
 * Counts the time from the last update to `now`. `runnable` and `running` say whether the entity
 * was so during all of that time. Returns whether a period ended: only then does the caller have to
 * compute a share again.
 */
static __noinline __attribute__((unused)) bool pelt_update(struct pelt_avg __arena *a, u64 now, bool runnable, bool running)
{
	u64 units, ended, part, full, left;

	if ((s64)(now - a->last) < 0) {
		a->last = now;	/* `last` goes back: another CPU's clock was ahead at the last update */
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
	/*
	 * Counts the rest of the open period, the full periods after it, and the elapsed part of
	 * the new open period.
	 */
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

/*
 * Returns `weight` times sum / period, the part of the time in which the entity was runnable (or
 * ran).
 */
static __always_inline u64 pelt_share(u64 weight, u32 sum, u32 period)
{
	return weight * sum / (period + 1);
}

#endif
