// SPDX-License-Identifier: GPL-2.0-only
//! A recording for longer.
//!
//! Owns: the passes after the recorded one. Arrivals from outside come at other times in each of
//! them, drawn from the recorded gaps, so that a long run meets more than one order of arrivals.
//! All other work is that of the recording: its waits are paired with those of other tasks.

use scxlab_machine::Stream;
use scxlab_workload::program::{Op, Program, TimeSpan};

use crate::arrivals;

/// Largest number of ops of a thread's passes with draws of their own. Later passes repeat them.
const DRAWN_OPS_MAX: usize = 1 << 20;

/// Makes the workload last for this many recordings. Without a duration, each thread of the start
/// does its work so many times. The draws depend on the recording alone.
pub fn repeat(program: &mut Program, times: u64) {
    if times <= 1 {
        return;
    }
    let finite = match &mut program.duration {
        Some(TimeSpan(length)) => {
            *length = length.saturating_mul(times);
            false
        }
        None => true,
    };
    for (number, thread) in program.threads.iter_mut().enumerate() {
        let mut stream = Stream::new(0, "recording.repeat", number as u64);
        if !finite {
            match thread.ops.pop() {
                Some(Op::Loop { times: None, ops: again }) if arrivals::any(&again) => {
                    if thread.ops.is_empty() {
                        thread.ops.clone_from(&again);
                    }
                    let later = drawn(&again, times - 1, &mut stream).concat();
                    thread.ops.push(Op::Loop { times: None, ops: later });
                }
                last => thread.ops.extend(last),
            }
        } else if thread.instances > 0 && !thread.ops.is_empty() {
            let mut ops = std::mem::take(&mut thread.ops);
            if arrivals::any(&ops) {
                let later = drawn(&ops, times - 1, &mut stream);
                let passes = later.len() as u64;
                let (rounds, rest) = ((times - 1) / passes, (times - 1) % passes);
                ops.push(Op::Loop { times: Some(rounds), ops: later.concat() });
                ops.extend(later[..rest as usize].concat());
                thread.ops = ops;
            } else {
                thread.ops = vec![Op::Loop { times: Some(times), ops }];
            }
        }
    }
}

/// Returns so many passes like `ops`, or as many as fit, with arrivals at other times in each.
fn drawn(ops: &[Op], passes: u64, stream: &mut Stream) -> Vec<Vec<Op>> {
    let most = (DRAWN_OPS_MAX / ops.len()).max(1) as u64;
    let one = |_| {
        let mut ops = ops.to_vec();
        arrivals::vary(&mut ops, stream);
        ops
    };
    (0..passes.min(most)).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::ARRIVALS;

    fn program(duration: &str, is_loop: bool) -> Program {
        let timer = |us: u64| {
            format!(
                "{{ timer = {{ name = '{ARRIVALS}', period = '{us}us', mode = 'absolute', unique = true }} }}"
            )
        };
        let ops: Vec<String> = (1..=50).map(|us| timer(us * us)).collect();
        let of =
            |ops: String| if is_loop { format!("{{ loop = {{ ops = [{ops}] }} }}") } else { ops };
        let text = format!(
            "{duration}
            [[thread]]
            name = 'outside'
            ops = [{}]
            [[thread]]
            name = 'inside'
            ops = [{}]",
            of(ops.join(", ")),
            of("{ compute = '1ms' }".to_owned())
        );
        scxlab_workload::load("t.toml", &text).unwrap()
    }

    /// Returns the periods of the first so many arrivals.
    fn arrivals(ops: &[Op], count: usize) -> Vec<u64> {
        let mut all = Vec::new();
        for op in ops {
            match op {
                Op::Timer { period, .. } => all.push(period.0),
                Op::Loop { times, ops } => {
                    for _ in 0..times.unwrap_or(u64::MAX) {
                        if all.len() >= count {
                            break;
                        }
                        all.extend(arrivals(ops, count - all.len()));
                    }
                }
                _ => {}
            }
        }
        all.truncate(count);
        all
    }

    /// The first pass is the recorded one; each later one lasts as long and is another.
    #[test]
    fn each_pass_has_other_arrivals() {
        for (duration, is_loop) in [("duration = '1s'", true), ("", false)] {
            let mut long = program(duration, is_loop);
            let recorded = arrivals(&long.threads[0].ops, 50);
            repeat(&mut long, 5);
            let all = arrivals(&long.threads[0].ops, 250);
            assert_eq!(all.len(), 250);
            let passes: Vec<&[u64]> = all.chunks(50).collect();
            assert_eq!(passes[0], recorded);
            for (i, pass) in passes.iter().enumerate() {
                assert_eq!(pass.iter().sum::<u64>(), recorded.iter().sum::<u64>());
                assert!(!passes[..i].contains(pass), "pass {i} of {duration:?}");
            }
            let mut again = program(duration, is_loop);
            repeat(&mut again, 5);
            assert_eq!(long, again);
            let inside = format!("{:?}", long.threads[1].ops);
            assert_eq!(inside.matches("Compute(").count(), 1, "{inside}");
        }
    }

    #[test]
    fn many_passes_share_their_draws() {
        for times in [20_000, 20_001, 50_000] {
            let mut long = program("", false);
            repeat(&mut long, times);
            assert_eq!(arrivals(&long.threads[0].ops, usize::MAX).len() as u64, 50 * times);
            let Op::Loop { ops, .. } = &long.threads[0].ops[50] else { panic!() };
            assert!(ops.len() <= DRAWN_OPS_MAX);
        }
    }
}
