// SPDX-License-Identifier: GPL-2.0-only
//! A recording for longer.

use scxlab_workload::program::{Op, Program, TimeSpan};

/// Makes the workload last for this many recordings. Without a duration, each thread of the start
/// does its work so many times.
pub fn repeat(program: &mut Program, times: u64) {
    match &mut program.duration {
        Some(TimeSpan(length)) => *length = length.saturating_mul(times),
        None if times > 1 => {
            for thread in program.threads.iter_mut().filter(|t| t.instances > 0) {
                let ops = std::mem::take(&mut thread.ops);
                if !ops.is_empty() {
                    thread.ops = vec![Op::Loop { times: Some(times), ops }];
                }
            }
        }
        None => {}
    }
}
