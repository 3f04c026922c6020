// SPDX-License-Identifier: GPL-2.0-only
//! sysbench_cpu: threads that compute prime numbers by trial division (`sysbench --test=cpu`,
//! version 0.4).
//!
//! Models: the threads of one process take requests until none is left, so a fast thread serves
//! more of them. A request tries the divisors of every number below `max_prime`, as the original's
//! loop does. `division` is the work of one trial. A unit is a request, sysbench's event.
//! Leaves out: the mutex around the count of requests, which a thread takes once in about a
//! millisecond, and the clock readings before and after a request.

use super::{Generator, Params, param};
use crate::error::WorkloadError;
use crate::program::{Op, Program, SemaphoreDef, ThreadTemplate, TimeSpan};

pub(super) const GENERATOR: Generator = Generator {
    name: "sysbench_cpu",
    doc: "Threads that compute prime numbers.",
    unit: "event",
    params: &[
        param("threads", "12", "number of threads"),
        param("requests", "10000", "events of all threads together; 0: no limit"),
        param("max_prime", "10000", "an event computes the primes below this"),
        param("division", "10ns", "work of one trial division"),
        param("duration", "none", "length of the run; none: until all events are done"),
    ],
    build,
};

fn build(params: &Params) -> Result<Program, WorkloadError> {
    let divisions = trial_divisions(params.number("max_prime", 4, 200_000)?);
    let work = TimeSpan(params.time("division")?.0.saturating_mul(divisions));
    serve(params, "sysbench-cpu", [vec![Op::Compute(work.into()), Op::Count(1)]])
}

/// Returns the number of divisions by which the primes below `limit` are found: each number is
/// divided by 2, 3, 4 and so on up to its root, until a division has no remainder.
fn trial_divisions(limit: u32) -> u64 {
    let mut count = 0;
    for n in 3..limit {
        for divisor in (2..).take_while(|d| d * d <= n) {
            count += 1;
            if n.is_multiple_of(divisor) {
                break;
            }
        }
    }
    count
}

/// Returns a program whose threads serve requests until none is left. `bodies` are the ops of a
/// thread's requests, one after the other; after the last, the thread goes on with the first.
/// Reads the parameters `threads`, `requests` and `duration`.
pub(super) fn serve(
    params: &Params,
    name: &str,
    bodies: impl IntoIterator<Item = Vec<Op>>,
) -> Result<Program, WorkloadError> {
    let requests = params.number("requests", 0, u32::MAX)?;
    let take = (requests > 0).then(|| Op::TakeOrExit("requests".into()));
    let request =
        bodies.into_iter().flat_map(|body| take.clone().into_iter().chain(body)).collect();
    let declared = SemaphoreDef { name: "requests".into(), value: requests };
    let mut thread = ThreadTemplate::new(name, vec![Op::Loop { times: None, ops: request }]);
    thread.instances = params.number("threads", 1, 10_000)?;
    thread.process = Some(name.to_owned());
    Ok(Program {
        duration: params.maybe_time("duration")?,
        semaphores: take.map(|_| declared).into_iter().collect(),
        threads: vec![thread],
        ..Program::default()
    })
}

#[cfg(test)]
mod tests {
    use super::trial_divisions;

    #[test]
    fn divisions_are_those_of_the_loop() {
        // 3 has no divisor up to its root; 4, 6 and 8 are divided by 2; 5 and 7 are not. 9 is
        // divided by 2 and 3.
        assert_eq!([4, 5, 6, 9, 10].map(trial_divisions), [0, 1, 2, 5, 7]);
    }
}
