// SPDX-License-Identifier: GPL-2.0-only
//! Tests of sysbench's tests: all requests are served once, by whichever thread is free.

use super::{error, program, run};
use crate::exec::mock::{Mock, MockEnd};
use crate::exec::{ExecConfig, Executor};
use crate::program::{Op, TimeSpan};

#[test]
fn every_event_is_served_once() {
    for arg in [
        "sysbench_cpu,threads=3,requests=100,max_prime=1000",
        "sysbench_cpu,threads=200,requests=100,max_prime=1000",
        "sysbench_threads,threads=5,thread_locks=2,yields=10,requests=100",
        "sysbench_memory,threads=3,block=4KiB,total=400KiB",
        "sysbench_memory,threads=3,block=4KiB,total=397KiB",
    ] {
        let (mock, end) = run(arg, 2);
        assert_eq!((end, mock.total_work()), (MockEnd::Finished, 100), "{arg}");
    }
}

/// A thread that sleeps after each event leaves the events to the other two threads.
#[test]
fn fast_threads_serve_more() {
    let mut program = program("sysbench_cpu,threads=2,requests=400,max_prime=1000");
    let mut slow = program.threads[0].clone();
    slow.name = "slow".to_owned();
    slow.instances = 1;
    let Op::Loop { ops, .. } = &mut slow.ops[0] else { panic!() };
    ops.push(Op::Sleep(TimeSpan(10_000_000)));
    program.threads.push(slow);
    let config = ExecConfig { nr_cpus: 3, ..ExecConfig::default() };
    let mut executor = Executor::new(&program, config).unwrap();
    let mut mock = Mock::new(3, 1);
    assert_eq!(mock.run(&mut executor, 1_000_000), MockEnd::Finished);
    let served: Vec<_> = mock.tasks.iter().map(|t| t.work).collect();
    assert_eq!(served.iter().sum::<u64>(), 400);
    assert!(served[0] > 10 * served[2] && served[1] > 10 * served[2], "{served:?}");
}

/// An event's work grows with the numbers that it tests, faster than their count.
#[test]
fn larger_primes_take_longer() {
    let time = |max_prime: u32| {
        let (mock, _) = run(&format!("sysbench_cpu,threads=1,requests=5,max_prime={max_prime}"), 1);
        mock.time()
    };
    assert!(time(2000) > 2 * time(1000));
}

/// With fewer mutexes, more threads wait: at any time at most one thread per mutex works.
#[test]
fn mutexes_exclude() {
    let time = |locks: u32| {
        let arg = format!(
            "sysbench_threads,threads=4,thread_locks={locks},yields=20,work=100us,requests=40"
        );
        run(&arg, 4).0.time()
    };
    assert_eq!(time(1), 40 * 20 * 100_000, "one mutex serialises everything");
    assert!(time(4) < time(2) && time(2) < time(1), "{} {} {}", time(4), time(2), time(1));
}

/// Requests use the mutexes in turn: with 12 threads and 9 mutexes, thread 0 uses the mutexes of
/// requests 0, 12 and 24, which are 0, 3 and 6.
#[test]
fn requests_use_the_mutexes_in_turn() {
    let program = program("sysbench_threads,threads=12,thread_locks=9");
    let Op::Loop { times: None, ops } = &program.threads[0].ops[0] else { panic!() };
    let mutexes: Vec<_> = ops
        .iter()
        .filter_map(|op| match op {
            Op::Loop { times: Some(1000), ops } => Some(ops[0].clone()),
            _ => None,
        })
        .collect();
    let expected = [0, 3, 6].map(|k| Op::Lock(format!("mutex{{i+{k}%9}}")));
    assert_eq!(mutexes, expected);
}

/// While a thread is under the mutex of the count, the others wait.
#[test]
fn the_count_of_blocks_is_under_a_mutex() {
    let time = |hold: &str| {
        let arg =
            format!("sysbench_memory,threads=4,total=1MiB,hold={hold},overhead=1us,duration=none");
        run(&arg, 4).0.time()
    };
    // 1,024 blocks, and each of four threads finds once that none is left.
    assert_eq!(time("10us"), 1028 * 10_000);
    assert!(time("0ns") < 1024 * 1000 / 3);
}

#[test]
fn sizes_have_a_range() {
    assert!(error("sysbench_memory,block=3").contains("a size from 64 to 1GiB, such as 64MiB"));
    assert!(error("sysbench_memory,block=64MiB,total=1KB").contains("total is \"1KB\""));
    assert!(error("sysbench_memory,block=1KiB,total=1048576GiB").contains("at most 4294967295"));
}
