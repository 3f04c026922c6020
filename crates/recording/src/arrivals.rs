// SPDX-License-Identifier: GPL-2.0-only
//! Other arrivals like the recorded ones: as many, with gaps drawn from the recorded gaps.
//!
//! Owns: the draw. Gaps are drawn in runs of neighbours, so that bursts stay bursts.

use scxlab_machine::{Nanos, Stream};
use scxlab_workload::Program;
use scxlab_workload::program::{Op, TimeSpan};

/// Name of the timers that stand for arrivals from outside.
pub const ARRIVALS: &str = "arrivals";

/// Number of neighbouring gaps that are drawn together.
const RUN: u64 = 16;

/// Whether something outside the program sends to its threads.
pub fn has_arrivals(program: &Program) -> bool {
    program.threads.iter().any(|thread| any(&thread.ops))
}

/// Whether one of the ops waits for an arrival.
pub(crate) fn any(ops: &[Op]) -> bool {
    ops.iter().any(|op| match op {
        Op::Loop { ops, .. } => any(ops),
        op => is_arrival(op),
    })
}

fn is_arrival(op: &Op) -> bool {
    matches!(op, Op::Timer { name, .. } if name == ARRIVALS)
}

/// Gives the arrivals of each thread other times. The time from the first to the end of each list
/// of ops stays.
pub fn vary_arrivals(program: &mut Program, seed: u64) {
    for (number, thread) in program.threads.iter_mut().enumerate() {
        let mut stream = Stream::new(seed, "recording.arrivals", number as u64);
        vary(&mut thread.ops, &mut stream);
    }
}

/// Gives the arrivals of a list of ops other times.
pub(crate) fn vary(ops: &mut [Op], stream: &mut Stream) {
    let mut gaps = Vec::new();
    for op in ops.iter_mut() {
        match op {
            Op::Loop { ops, .. } => vary(ops, stream),
            Op::Timer { name, period, .. } if name == ARRIVALS => gaps.push(period.0),
            _ => {}
        }
    }
    // What comes after the last arrival is the rest of the pass, and no gap between arrivals.
    if ops.last().is_some_and(is_arrival) {
        gaps.pop();
    }
    let total: Nanos = gaps.iter().copied().fold(0, Nanos::saturating_add);
    let mut times = times(&gaps, gaps.len(), total, stream).into_iter();
    let mut last = 0;
    let arrivals = ops.iter_mut().filter_map(|op| match op {
        Op::Timer { name, period, .. } if name == ARRIVALS => Some(period),
        _ => None,
    });
    for period in arrivals.take(gaps.len()) {
        let at = times.next().unwrap_or(total);
        *period = TimeSpan(at - last);
        last = at;
    }
}

/// Draws `count` gaps, and returns the times after each, of which the last is `length`.
pub(crate) fn times(
    gaps: &[Nanos],
    count: usize,
    length: Nanos,
    stream: &mut Stream,
) -> Vec<Nanos> {
    if gaps.is_empty() {
        return vec![length; count];
    }
    let mut drawn: Vec<Nanos> = Vec::with_capacity(count);
    while drawn.len() < count {
        let begin = stream.below(gaps.len() as u64) as usize;
        let run = (1 + stream.below(RUN)) as usize;
        let run = run.min(count - drawn.len());
        drawn.extend(gaps.iter().cycle().skip(begin).take(run));
    }
    let total: u128 = drawn.iter().map(|gap| u128::from(*gap)).sum();
    // A product of two numbers below 2^64 fits.
    let shift = total.max(1).ilog2().saturating_sub(63);
    let mut passed: u128 = 0;
    let after = |gap: Nanos| {
        passed += u128::from(gap);
        let part = (passed >> shift) * u128::from(length) / (total >> shift).max(1);
        u64::try_from(part).unwrap_or(length).min(length)
    };
    drawn.into_iter().map(after).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Program {
        let timer = |us: u64| {
            format!(
                "{{ timer = {{ name = '{ARRIVALS}', period = '{us}us', mode = 'absolute', unique = true }} }}"
            )
        };
        let ops: Vec<String> =
            (1..=50).map(|us| format!("{}, {{ compute = '5us' }}", timer(us * us))).collect();
        let text = format!(
            "[[thread]]\nname = 't'\nops = [{{ loop = {{ ops = [{}] }} }}]",
            ops.join(", ")
        );
        scxlab_workload::load("t.toml", &text).unwrap()
    }

    fn periods(program: &Program) -> Vec<Nanos> {
        let Op::Loop { ops, .. } = &program.threads[0].ops[0] else { panic!("no loop") };
        ops.iter()
            .filter_map(|op| if let Op::Timer { period, .. } = op { Some(period.0) } else { None })
            .collect()
    }

    /// The time from the last arrival to the end of the pass is none between arrivals.
    #[test]
    fn the_rest_of_a_pass_stays_at_its_end() {
        let timer = |us: u64| {
            format!(
                "{{ timer = {{ name = '{ARRIVALS}', period = '{us}us', mode = 'absolute', unique = true }} }}"
            )
        };
        let ops = ["{ compute = '5us' }".to_owned(), timer(10), timer(20), timer(90_000)];
        let text = format!(
            "[[thread]]\nname = 't'\nops = [{{ loop = {{ ops = [{}] }} }}]",
            ops.join(", ")
        );
        let before = scxlab_workload::load("t.toml", &text).unwrap();
        for seed in 1..=20 {
            let mut program = before.clone();
            vary_arrivals(&mut program, seed);
            let after = periods(&program);
            assert!(after[0] + after[1] == 30_000 && after[2] == 90_000_000, "{after:?}");
        }
    }

    #[test]
    fn arrivals_differ_by_seed_and_keep_their_number_and_time() {
        let varied = |seed| {
            let mut program = program();
            vary_arrivals(&mut program, seed);
            periods(&program)
        };
        let before = periods(&program());
        assert!(has_arrivals(&program()));
        assert_eq!(varied(1), varied(1));
        for seed in 1..=20 {
            let after = varied(seed);
            assert_ne!(after, before);
            assert_ne!(after, varied(seed + 1));
            assert_eq!(after.len(), before.len());
            assert_eq!(after.iter().sum::<Nanos>(), before.iter().sum::<Nanos>());
        }
    }
}
