// SPDX-License-Identifier: GPL-2.0-only
//! Tests of compute, sleep, timers, pipes, counts, names and processes.

use scxlab_workload::native::{Calibration, NativeConfig, calibrate};

use crate::{Test, run_clean, run_with, task};

pub const TESTS: &[Test] = &[
    ("compute_takes_cpu_time", compute_takes_cpu_time),
    ("compute_wall_is_cpu_time", compute_wall_is_cpu_time),
    ("sleeps_and_delays_last", sleeps_and_delays_last),
    ("timers_keep_their_periods", timers_keep_their_periods),
    ("ping_pong_moves_every_byte", ping_pong_moves_every_byte),
    ("mixed_sizes_go_in_whole", mixed_sizes_go_in_whole),
    ("sockets_carry_bytes", sockets_carry_bytes),
    ("counts_are_throughput", counts_are_throughput),
    ("phases_are_rows", phases_are_rows),
    ("a_process_has_its_threads", a_process_has_its_threads),
    ("touching_and_io", touching_and_io),
    ("a_calibration_can_be_shared", a_calibration_can_be_shared),
    ("noise_comes_from_the_seed", noise_comes_from_the_seed),
];

fn compute_takes_cpu_time() {
    let report = run_clean("[[thread]]\nname = 'a'\nops = [{ compute = '50ms' }]");
    let a = task(&report, "a");
    let calibration = report.calibration;
    assert!(calibration.iterations > 0 && calibration.ns >= 1_000_000, "{calibration:?}");
    // The fastest sample sets the calibration, so a compute cannot be much faster. A change of
    // clock frequency may make it a little faster.
    assert!(a.run_ns >= 25_000_000, "{a:?}");
    assert!(report.length_ns() >= 25_000_000);
    assert_eq!((a.began_ns, a.ended_ns <= report.length_ns()), (0, true));
}

fn compute_wall_is_cpu_time() {
    let report =
        run_clean("[[thread]]\nname = 'a'\ninstances = 3\nops = [{ compute_wall = '20ms' }]");
    for name in ["a-0", "a-1", "a-2"] {
        assert!(task(&report, name).run_ns >= 20_000_000);
    }
}

fn sleeps_and_delays_last() {
    let report = run_clean(
        "[[thread]]\nname = 'a'\ndelay = '20ms'\nops = [{ sleep = '30ms' }, { sleep = '0ns' }]",
    );
    let a = task(&report, "a");
    assert!(a.ended_ns >= 50_000_000);
    assert!(a.switches_voluntary >= 2);
}

fn timers_keep_their_periods() {
    // Ten periods of 5 ms from time zero take at least 50 ms. If the thread misses a period, an
    // absolute timer catches up, so the number of passes is still ten.
    let report = run_clean(
        "[[thread]]\nname = 'a'\nops = [{ phase = { name = 'p', times = 10, ops = [\
         { timer = { name = 't', period = '5ms', mode = 'absolute', unique = true } }] } }]",
    );
    let a = task(&report, "a");
    assert!(a.ended_ns >= 50_000_000, "{a:?}");
    assert_eq!(a.phases.loops, 10);
    assert!(a.timers.slack_min.is_some_and(|s| s <= 5_000_000));
    let missed = run_clean(
        "[[thread]]\nname = 'a'\nops = [{ phase = { name = 'p', times = 3, ops = [\
         { compute_wall = '3ms' }, { timer = { name = 't', period = '1ms' } }] } }]",
    );
    let a = task(&missed, "a");
    assert!(a.timers.missed >= 3, "each is late, and passes over periods: {}", a.timers.missed);
    assert!(a.timers.slack_min.is_some_and(|s| s < 0));
    assert!(a.phases.run >= 9_000_000);
}

fn ping_pong_moves_every_byte() {
    let report = run_clean(
        "[[thread]]\nname = 'ping'\nops = [{ loop = { times = 500, ops = [\
         { write = { pipe = 'to', bytes = 100 } }, { read = { pipe = 'fro', bytes = 100 } }, { count = 1 }] } }]\n\
         [[thread]]\nname = 'pong'\nops = [{ loop = { times = 500, ops = [\
         { read = { pipe = 'to', bytes = 100 } }, { write = { pipe = 'fro', bytes = 100 } }] } }]",
    );
    assert_eq!(report.work_units(), 500);
    let (ping, pong) = (task(&report, "ping"), task(&report, "pong"));
    assert_ne!(ping.tgid, pong.tgid);
    // The threads wait for each other in every round, so at least one of these waits must be a
    // sleep. Not every wait is: on two CPUs an answer may arrive before the reader sleeps.
    assert!(ping.switches_voluntary + pong.switches_voluntary > 0);
}

fn mixed_sizes_go_in_whole() {
    // Three writers send 30,000 bytes each through a pipe of 4 KiB. Two readers, whose reads have
    // another size (1,000 bytes), must get all 90,000 bytes.
    let report = run_clean(
        "[[pipe]]\nname = 'p'\ncapacity = 4096\n\
         [[thread]]\nname = 'w'\ninstances = 3\nops = [{ write = { pipe = 'p', bytes = 30000 } }]\n\
         [[thread]]\nname = 'r'\ninstances = 2\nops = [{ loop = { times = 45, ops = [\
         { read = { pipe = 'p', bytes = 1000 } }, { count = 1 }] } }]",
    );
    assert_eq!(report.work_units(), 90);
}

fn sockets_carry_bytes() {
    let report = run_clean(
        "[[pipe]]\nname = 's{i}'\nkind = 'socket'\n\
         [[thread]]\nname = 'w'\ninstances = 4\nops = [{ loop = { times = 100, ops = [\
         { write = { pipe = 's{i/2}', bytes = 100 } }] } }]\n\
         [[thread]]\nname = 'r'\ninstances = 2\nops = [{ loop = { times = 200, ops = [\
         { read = { pipe = 's{i}', bytes = 100 } }, { count = 1 }] } }]",
    );
    assert_eq!(report.work_units(), 400);
}

fn counts_are_throughput() {
    let report = run_clean(
        "unit = 'job'\n[[thread]]\nname = 'a'\ninstances = 2\nops = [{ loop = { times = 7, ops = [\
         { count = 3 }, { loop = { times = 0, ops = [{ count = 100 }] } }] } }]",
    );
    assert_eq!((report.work_units(), report.unit.as_str()), (42, "job"));
}

fn phases_are_rows() {
    let report = run_clean(
        "[[thread]]\nname = 'a'\ninstances = 2\nops = [{ phase = { name = 'p', times = 4, ops = [\
         { compute = '1ms' }] } }]",
    );
    let totals = report.loop_totals();
    assert_eq!((totals[0].0, totals[0].1.loops), ("a", 8));
    assert!(totals[0].1.run > 0 && report.timer_totals().slack_min.is_none());
    assert_eq!(report.work_units(), 8);
}

fn a_process_has_its_threads() {
    let report = run_clean(
        "[[thread]]\nname = 'a'\ninstances = 4\nprocess = 'p{i/2}'\nops = [{ sleep = '1ms' }]\n\
         [[thread]]\nname = 'b'\nprocess = 'p1'\nops = [{ sleep = '1ms' }]\n\
         [[thread]]\nname = 'c'\nops = [{ sleep = '1ms' }]",
    );
    let tgid = |name| task(&report, name).tgid;
    assert_eq!(tgid("a-0"), tgid("a-1"));
    assert_eq!(tgid("a-2"), tgid("a-3"));
    assert_eq!(tgid("a-2"), tgid("b"));
    assert_ne!(tgid("a-0"), tgid("a-2"));
    assert_eq!(tgid("a-0"), task(&report, "a-0").tid, "the first thread leads");
    assert_eq!(tgid("c"), task(&report, "c").tid);
    let mut tids: Vec<_> = report.tasks.iter().map(|t| t.tid).collect();
    tids.sort_unstable();
    tids.dedup();
    assert_eq!(tids.len(), 6);
}

fn touching_and_io() {
    let report = run_clean(
        "[[thread]]\nname = 'a'\nops = [\
         { touch = { size = 1000000 } }, { touch = { size = 1000000, kind = 'read', pattern = 'random' } },\
         { touch = { size = 100000, kind = 'chase', stride = 4096, count = 5000 } },\
         { touch = { size = 100000, kind = 'chase', pattern = 'random', count = 5000 } },\
         { io = { bytes = 100000, null = true } }, { io = { bytes = 1 } }, 'unmap', { count = 1 }]",
    );
    assert_eq!(report.work_units(), 1);
    // The second `io` sleeps for the device's default latency, 100 us, so the thread must end at
    // least 100 us after the start of the run.
    assert!(task(&report, "a").ended_ns >= 100_000);
}

fn a_calibration_can_be_shared() {
    let text = "[[thread]]\nname = 'a'\nops = [{ compute = '10ms' }]";
    let measured = calibrate(None).unwrap();
    let shared =
        |calibration| NativeConfig { calibration: Some(calibration), ..NativeConfig::default() };
    let first = run_with(text, shared(measured));
    assert_eq!(first.calibration, measured);
    // This calibration gives four times as many iterations for the same work, so the thread must
    // use more CPU time.
    let more = Calibration { iterations: measured.iterations * 4, ..measured };
    let second = run_with(text, shared(more));
    assert!(task(&second, "a").run_ns > task(&first, "a").run_ns);
}

fn noise_comes_from_the_seed() {
    let text = "[[thread]]\nname = 'a'\ndelay = '1ms'\nops = [{ compute = '1ms' }]";
    let mut config = NativeConfig::default();
    config.perturb.start_offset_max = 40_000_000;
    config.perturb.compute_noise_permille = 100;
    let ended = |seed| task(&run_with(text, NativeConfig { seed, ..config.clone() }), "a").ended_ns;
    // The first draw of the stream sets the offset, which is a lower bound of the end. With at
    // least one of five seeds, the end must be after 8 ms.
    assert!((0..5).any(|seed| ended(seed) > 8_000_000));
}
