// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the executor against a mock kernel that implements only the contract of `Sys`.

use std::sync::{Arc, Mutex};

use super::mock::{Mock, MockEnd};
use super::*;
use crate::program::from_toml;

const MS: Nanos = 1_000_000;

/// Runs a program in scxlab's TOML form on `cpus` CPUs, without costs or perturbation.
fn run(text: &str, cpus: u32) -> (Mock, Executor, MockEnd) {
    run_with(text, ExecConfig { nr_cpus: cpus, ..ExecConfig::default() }, 1)
}

fn run_with(text: &str, config: ExecConfig, seed: u64) -> (Mock, Executor, MockEnd) {
    let program = from_toml("test.toml", text).unwrap();
    let mut mock = Mock::new(config.nr_cpus as usize, seed);
    let mut executor = Executor::new(&program, config).unwrap();
    let end = mock.run(&mut executor, 200_000);
    (mock, executor, end)
}

#[test]
fn compute_and_sleep_take_their_time() {
    let (mock, _, end) = run(
        "[[thread]]\nname = 'a'\nops = [{ loop = { times = 3, ops = [{ compute = '2ms' }, \
         { sleep = '3ms' }, { count = 2 }] } }]",
        1,
    );
    assert_eq!(end, MockEnd::Finished);
    assert_eq!((mock.time(), mock.task("a").run_ns, mock.total_work()), (15 * MS, 6 * MS, 6));
}

#[test]
fn a_mutex_excludes_and_is_handed_over_in_order() {
    let text = "[[thread]]\nname = 'a'\ninstances = 3\nops = [{ lock = 'm' }, { compute = '1ms' }, \
                { sleep = '4ms' }, { unlock = 'm' }]";
    let (mock, _, end) = run(text, 4);
    assert_eq!(end, MockEnd::Finished);
    let ends: Vec<_> = mock.tasks.iter().map(|t| t.exited_at.unwrap()).collect();
    assert_eq!(ends, [5 * MS, 10 * MS, 15 * MS]);
}

#[test]
fn a_poll_reads_from_the_first_pipe_that_has_bytes() {
    let writer = |pipe: &str, at: u32| {
        format!(
            "[[thread]]\nname = 'w{pipe}'\nops = [{{ sleep = '{at}ms' }}, \
             {{ write = {{ pipe = '{pipe}', bytes = 10 }} }}]\n"
        )
    };
    let poll = |n: u32, rest: &str| {
        format!(
            "[[thread]]\nname = 'r'\nops = [{{ loop = {{ times = {n}, ops = [\
             {{ poll = {{ pipes = ['p', 'q']{rest} }} }}, {{ count = 1 }}] }} }}]\n"
        )
    };
    // Bytes in either pipe end the wait of a poll, and each message is read once: two messages end
    // two polls, but not three.
    let both = writer("q", 3) + &writer("p", 5);
    let (mock, _, end) = run(&(both.clone() + &poll(2, ", bytes = 10")), 4);
    assert_eq!((end, mock.time(), mock.total_work()), (MockEnd::Finished, 5 * MS, 2));
    let (mock, executor, end) = run(&(both.clone() + &poll(3, ", bytes = 10")), 4);
    assert_eq!((end, mock.total_work()), (MockEnd::Stuck, 2));
    let waits = executor.waits_for(TaskId(2)).unwrap();
    assert_eq!(waits, "bytes in pipe \"p\" or another that it polls");
    // A poll that reads nothing returns, too.
    let (mock, _, end) = run(&(both.clone() + &poll(1, "")), 4);
    assert_eq!((end, mock.total_work()), (MockEnd::Finished, 1));
    assert_eq!(mock.task("r").exited_at, Some(3 * MS));
    // A timeout ends the wait at its time; bytes end it earlier.
    let (mock, _, end) = run(&(both + &poll(4, ", bytes = 10, timeout = '4ms'")), 4);
    assert_eq!((end, mock.total_work()), (MockEnd::Finished, 4));
    assert_eq!(mock.task("r").exited_at, Some(13 * MS));
}

#[test]
fn of_two_pollers_one_gets_the_bytes_and_the_other_waits_on() {
    let text = "[[thread]]\nname = 'r'\ninstances = 2\nops = [\
                { poll = { pipes = ['p', 'q'], bytes = 10 } }, { count = 1 }]\n\
                [[thread]]\nname = 'w'\nops = [{ sleep = '1ms' }, \
                { write = { pipe = 'q', bytes = 10 } }, { sleep = '1ms' }, \
                { write = { pipe = 'p', bytes = 10 } }]";
    let (mock, _, end) = run(text, 4);
    assert_eq!((end, mock.total_work()), (MockEnd::Finished, 2));
    let mut ends: Vec<_> = mock.tasks[..2].iter().map(|t| t.exited_at.unwrap()).collect();
    ends.sort_unstable();
    assert_eq!(ends, [MS, 2 * MS]);
}

const BARGING: &str = "[[mutex]]\nname = 'm'\nbarging = true\n";

/// The thread that unlocks a barging mutex takes it again before the waiter that it woke can.
#[test]
fn a_barging_mutex_goes_to_the_thread_that_runs() {
    let text = "[[thread]]\nname = 'a'\nops = [{ loop = { times = 3, ops = [{ lock = 'm' }, \
                { compute = '1ms' }, { unlock = 'm' }] } }]\n\
                [[thread]]\nname = 'b'\nops = [{ sleep = '500us' }, { lock = 'm' }, \
                { compute = '1ms' }, { unlock = 'm' }]";
    let ends = |declared: &str| {
        let (mock, _, end) = run(&format!("{declared}{text}"), 2);
        assert_eq!(end, MockEnd::Finished);
        ["a", "b"].map(|name| mock.task(name).exited_at.unwrap() / MS)
    };
    assert_eq!(ends(""), [4, 2]);
    assert_eq!(ends(BARGING), [3, 4]);
}

/// Each thread that waits for a barging mutex gets it in the end, also the last one, for whom an
/// unlock of a thread that overtook the others made no call.
#[test]
fn no_waiter_of_a_barging_mutex_is_forgotten() {
    for (threads, cpus) in [(2, 1), (3, 2), (7, 3), (20, 4)] {
        let text = format!(
            "{BARGING}[[thread]]\nname = 'a'\ninstances = {threads}\nops = [{{ loop = {{ times = 40, \
             ops = [{{ lock = 'm' }}, {{ compute = '3us' }}, 'yield', {{ unlock = 'm' }}, \
             {{ compute = '2us' }}, {{ count = 1 }}] }} }}]"
        );
        let (mock, _, end) = run(&text, cpus);
        assert_eq!((end, mock.total_work()), (MockEnd::Finished, threads * 40));
    }
}

#[test]
fn a_signal_wakes_one_waiter_and_a_broadcast_all() {
    conditions_wake("");
    conditions_wake(BARGING);
}

fn conditions_wake(declared: &str) {
    let text = |wake: &str| {
        format!(
            "{declared}[[thread]]\nname = 'w'\ninstances = 3\nops = [{{ lock = 'm' }}, \
             {{ wait = {{ cond = 'c', mutex = 'm' }} }}, {{ compute = '1ms' }}, \
             {{ unlock = 'm' }}, {{ count = 1 }}]\n[[thread]]\nname = 's'\n\
             ops = [{{ sleep = '5ms' }}, {{ lock = 'm' }}, {{ {wake} = 'c' }}, {{ unlock = 'm' }}]"
        )
    };
    let (mock, executor, end) = run(&text("signal"), 2);
    assert_eq!((end, mock.total_work()), (MockEnd::Stuck, 1));
    let stuck = executor.waits_for(TaskId(1)).unwrap();
    assert_eq!(stuck, "a signal of condition \"c\"");
    let (mock, _, end) = run(&text("broadcast"), 2);
    // After the broadcast at 5 ms, the three waiters compute for 1 ms each under the mutex, one
    // after the other, so the run must end at 8 ms.
    assert_eq!((end, mock.total_work(), mock.time()), (MockEnd::Finished, 3, 8 * MS));
}

#[test]
fn a_deadlock_names_the_lock_and_its_holder() {
    let text = "[[thread]]\nname = 'a'\nops = [{ lock = 'x' }, { sleep = '1ms' }, { lock = 'y' }]\n\
                [[thread]]\nname = 'b'\nops = [{ lock = 'y' }, { sleep = '1ms' }, { lock = 'x' }]";
    let (_, executor, end) = run(text, 2);
    assert_eq!(end, MockEnd::Stuck);
    assert_eq!(executor.waits_for(TaskId(0)).unwrap(), "mutex \"y\", held by b");
    assert_eq!(executor.waits_for(TaskId(1)).unwrap(), "mutex \"x\", held by a");
    assert_eq!(executor.waits_for(TaskId(9)), None);
}

#[test]
fn barriers_hold_everyone_back_every_round() {
    let text = |op: &str| {
        format!(
            "[[thread]]\nname = 'fast'\ninstances = 2\nops = [{{ loop = {{ times = 4, \
             ops = [{{ compute = '1ms' }}, {{ {op} = 'b' }}, {{ count = 1 }}] }} }}]\n[[thread]]\n\
             name = 'slow'\nops = [{{ loop = {{ times = 4, ops = [{{ compute = '5ms' }}, \
             {{ {op} = 'b' }}] }} }}]"
        )
    };
    let (mock, _, end) = run(&text("barrier"), 3);
    assert_eq!((end, mock.time(), mock.total_work()), (MockEnd::Finished, 20 * MS, 8));
    assert_eq!(mock.task("fast-0").run_ns, 4 * MS);
    let (mock, _, end) = run(&text("spin_barrier"), 3);
    assert_eq!((end, mock.time()), (MockEnd::Finished, 20 * MS));
    assert_eq!(mock.task("fast-0").run_ns, 20 * MS, "a spinner burns its CPU");
}

#[test]
fn a_spinner_wastes_the_cpu_that_its_lock_holder_needs() {
    let text = "[[thread]]\nname = 'a'\ninstances = 2\nops = [{ spin_lock = 's' }, \
                { compute = '3ms' }, { spin_unlock = 's' }]";
    let (mock, _, end) = run(text, 1);
    assert_eq!(end, MockEnd::Finished);
    // The two threads do 6 ms of work on one CPU. Between the slices of the lock's holder, the
    // other thread wastes slices of 1 ms by spinning, so the run must take longer than 7 ms.
    assert!(mock.time() > 7 * MS, "{}", mock.time());
}

/// The kernel decides which spinner gets a released lock. If it chooses none, the first spinner
/// that executes takes the lock, and the others spin on.
#[test]
fn the_kernel_orders_the_waiters_for_a_spin_lock() {
    let text = "[[thread]]\nname = 'a'\ninstances = 3\nops = [{ spin_lock = 's' }, \
                { compute = '1ms' }, { spin_unlock = 's' }, 'unmap']";
    let ends = |next_spinner: Option<usize>| {
        let program = from_toml("test.toml", text).unwrap();
        let mut executor = Executor::new(&program, ExecConfig { nr_cpus: 3, ..Default::default() });
        let mut mock = Mock::new(3, 1);
        mock.next_spinner = next_spinner;
        assert_eq!(mock.run(executor.as_mut().unwrap(), 1000), MockEnd::Finished);
        for task in 0..3 {
            let own = |call: &&String| call.starts_with(&format!("hold {task} "));
            let held: Vec<_> = mock.calls.iter().filter(own).collect();
            assert_eq!(held, [&format!("hold {task} true"), &format!("hold {task} false")]);
        }
        ["a-0", "a-1", "a-2"].map(|name| mock.task(name).exited_at.unwrap() / MS)
    };
    assert_eq!(ends(Some(0)), [1, 2, 3]);
    assert_eq!(ends(Some(1)), [1, 3, 2]);
    let mut free = ends(None);
    free.sort_unstable();
    assert_eq!(free, [1, 2, 3], "one at a time");
}

#[test]
fn a_pipe_blocks_when_full_and_when_empty() {
    let text = "[[pipe]]\nname = 'p'\ncapacity = 100\n[[thread]]\nname = 'w'\n\
                ops = [{ loop = { times = 4, ops = [{ write = { pipe = 'p', bytes = 60 } }, \
                { count = 1 }] } }]\n[[thread]]\nname = 'r'\nops = [{ loop = { times = 4, \
                ops = [{ sleep = '1ms' }, { read = { pipe = 'p', bytes = 60 } }] } }]";
    let (mock, _, end) = run(text, 2);
    assert_eq!((end, mock.time()), (MockEnd::Finished, 4 * MS));
    // One message fits into the pipe. The writer's other three messages wait for the reads at 1, 2
    // and 3 ms, so the writer must exit at 3 ms.
    assert_eq!(mock.task("w").exited_at, Some(3 * MS));
    assert!(mock.calls.contains(&"wake 0 sync=true".to_owned()));
}

#[test]
fn a_large_write_goes_through_a_small_pipe_in_parts() {
    let text = "[[pipe]]\nname = 'p'\ncapacity = 1000\n[[thread]]\nname = 'w'\n\
                ops = [{ write = { pipe = 'p', bytes = 1000000 } }]\n[[thread]]\nname = 'r'\n\
                ops = [{ loop = { times = 10, ops = [{ read = { pipe = 'p', bytes = 100000 } }, \
                { count = 1 }] } }]";
    let (mock, _, end) = run(text, 1);
    assert_eq!((end, mock.total_work()), (MockEnd::Finished, 10));
}

#[test]
fn a_socket_counts_the_overhead_of_each_message() {
    let text = "[[pipe]]\nname = 's'\nkind = 'socket'\ncapacity = 1536\n[[thread]]\nname = 'w'\n\
                ops = [{ loop = { times = 3, ops = [{ write = { pipe = 's', bytes = 100 } }, \
                { count = 1 }] } }]";
    let (mock, executor, end) = run(text, 1);
    assert_eq!((end, mock.total_work()), (MockEnd::Stuck, 2), "768 bytes a message");
    assert_eq!(executor.waits_for(TaskId(0)).unwrap(), "room in pipe \"s\"");
}

#[test]
fn semaphores_count_and_hand_over() {
    let text = "[[semaphore]]\nname = 's'\nvalue = 2\n[[thread]]\nname = 'a'\ninstances = 4\n\
                ops = [{ sem_wait = 's' }, { sleep = '1ms' }, { sem_post = 's' }]";
    let (mock, _, end) = run(text, 4);
    assert_eq!((end, mock.time()), (MockEnd::Finished, 2 * MS));
}

/// Of the passes that a semaphore deals out, the thread without sleeps does most, and none is lost.
#[test]
fn threads_share_passes_until_none_is_left() {
    let text = "[[semaphore]]\nname = 's'\nvalue = 12\n\
                [[thread]]\nname = 'fast'\nops = [{ loop = { ops = [{ take_or_exit = 's' }, \
                { compute = '1ms' }, { count = 1 }] } }]\n\
                [[thread]]\nname = 'slow'\nops = [{ loop = { ops = [{ take_or_exit = 's' }, \
                { compute = '1ms' }, { sleep = '2ms' }, { count = 1 }] } }]\n\
                [[thread]]\nname = 'none'\nops = [{ take_or_exit = 'empty' }, { count = 100 }]";
    let (mock, _, end) = run(text, 3);
    let work: Vec<_> = mock.tasks.iter().map(|t| t.work).collect();
    assert_eq!((end, work), (MockEnd::Finished, vec![9, 3, 0]));
}

#[derive(Default, Clone)]
struct Rows(Arc<Mutex<Vec<LoopRecord>>>);

impl LoopObserver for Rows {
    fn on_loop(&mut self, _task: TaskId, _thread: &str, record: &LoopRecord) {
        self.0.lock().unwrap().push(record.clone());
    }
}

/// Runs passes that compute for 10, 10, 30, 10 and 10 ms and then wait for a timer of 20 ms, the
/// example of rt-app's tutorial.
fn overrun(mode: &str) -> Vec<LoopRecord> {
    let pass = |work: u32| {
        format!(
            "{{ phase = {{ name = 'p', times = 1, ops = [{{ compute = '{work}ms' }}, \
             {{ timer = {{ name = 't', period = '20ms', mode = '{mode}', unique = true }} }}] }} }}"
        )
    };
    let passes = [10, 10, 30, 10, 10].map(pass).join(", ");
    let program = from_toml("t", &format!("[[thread]]\nname = 'a'\nops = [{passes}]")).unwrap();
    let config = ExecConfig { nr_cpus: 1, ..ExecConfig::default() };
    let mut executor = Executor::new(&program, config).unwrap();
    let rows = Rows::default();
    executor.observe(Box::new(rows.clone()));
    assert_eq!(Mock::new(1, 1).run(&mut executor, 1000), MockEnd::Finished);
    assert_eq!(executor.loop_totals().next().unwrap().1.loops, 5);
    let rows = rows.0.lock().unwrap();
    rows.clone()
}

#[test]
fn a_relative_timer_forgets_a_miss() {
    let rows = overrun("relative");
    let ends: Vec<_> = rows.iter().map(|r| r.end / MS).collect();
    assert_eq!(ends, [20, 40, 70, 90, 110]);
    let slack: Vec<_> = rows.iter().map(|r| r.slack / 1_000_000).collect();
    assert_eq!(slack, [10, 10, -10, 10, 10]);
    assert_eq!(rows[2].missed, 1);
    assert_eq!((rows[2].run, rows[2].c_period, rows[2].c_duration), (30 * MS, 20 * MS, 30 * MS));
}

#[test]
fn an_absolute_timer_catches_up() {
    let rows = overrun("absolute");
    let ends: Vec<_> = rows.iter().map(|r| r.end / MS).collect();
    // The timer expires at 20, 40, 60, 80, 100 ms. The thread misses the third expiry. It reaches
    // the timer exactly at the fourth expiry, which counts as missed, too.
    assert_eq!(ends, [20, 40, 70, 80, 100]);
    assert_eq!(rows.iter().map(|r| r.missed).sum::<u32>(), 2);
}

#[test]
fn wake_up_latency_is_measured_from_the_expiry() {
    let text = "[[thread]]\nname = 'hog'\nops = [{ compute = '10ms' }]\n[[thread]]\nname = 'a'\n\
                ops = [{ phase = { name = 'p', times = 1, ops = [{ timer = { name = 't', \
                period = '500us' } }] } }]";
    let (mock, executor, _) = run(text, 1);
    let totals = executor.timer_totals(mock.time());
    // The slices of `hog` end at 1 ms and 2 ms. Thread `a` first runs at 1 ms, so it misses the
    // timer's expiry at 500 us by a whole period. With an expiry at 1.5 ms, `a` must have a latency
    // of 500 us, too.
    assert_eq!((totals.missed, totals.latency_max, totals.latencies), (2, 500_000, 1));
    assert_eq!((totals.slacks, totals.slack_min), (1, Some(-500_000)));
    let late = text.replace("500us", "1500us");
    let (mock, executor, _) = run(&late, 1);
    let totals = executor.timer_totals(mock.time());
    assert_eq!((totals.missed, totals.latency_max, totals.latencies), (0, 500_000, 1));
    assert_eq!((totals.slacks, totals.slack_min), (1, Some(500_000)));
}

#[test]
fn forks_are_numbered_waited_for_and_reuse_their_slots() {
    let text = "[[thread]]\nname = 'parent'\nprocess = 'p'\nops = [{ loop = { times = 50, \
                ops = [{ fork = 'child' }, { fork = 'child' }, 'join', { count = 1 }] } }]\n\
                [[thread]]\nname = 'child'\ninstances = 0\nprocess = 'p'\n\
                ops = ['exec', { compute = '1ms' }, { sem_post = 's{i}' }]";
    let (mock, executor, end) = run(text, 2);
    assert_eq!((end, mock.tasks.len(), mock.time()), (MockEnd::Finished, 101, 50 * MS));
    assert_eq!(executor.threads.len(), 3);
    assert_eq!(mock.tasks[100].spec.name, "child-99");
    assert_eq!(mock.tasks[100].spec.thread_group_of, Some(TaskId(0)));
}

#[test]
fn the_clock_of_a_forked_thread_begins_at_its_fork() {
    let text = "[[thread]]\nname = 'p'\nops = [{ sleep = '20ms' }, { fork = 'c' }]\n\
                [[thread]]\nname = 'c'\ninstances = 0\ndelay = '3ms'\n\
                ops = [{ timer = { name = 't', period = '4ms' } }]";
    let (mock, _, end) = run(text, 2);
    assert_eq!((end, mock.time()), (MockEnd::Finished, 27 * MS));
}

#[test]
fn a_forked_thread_has_the_cgroup_of_its_template_or_else_its_parents() {
    let group = |child: &str| {
        let text = format!(
            "[[thread]]\nname = 'p'\ncgroup = '/a'\nops = [{{ fork = 'c' }}]\n\
             [[thread]]\nname = 'c'\ninstances = 0\n{child}\nops = ['yield']"
        );
        let (mock, _, _) = run(&text, 2);
        let of = |name: &str| mock.task(name).spec.cgroup;
        (of("p"), of("c-0"))
    };
    let (parent, child) = group("");
    assert!(parent != CgroupId(0) && child == parent);
    assert_eq!(group("cgroup = '/'"), (parent, CgroupId(0)));
    let (_, other) = group("cgroup = '/b'");
    assert!(other != parent && other != CgroupId(0));
}

#[test]
fn a_loop_that_does_nothing_cannot_hang_the_run() {
    for op in ["{ sem_post = 's' }", "{ sleep = '0ns' }", "{ compute = '0ns' }", "{ count = 1 }"] {
        let text = format!(
            "duration = '10us'\n[[thread]]\nname = 'a'\nops = [{{ loop = {{ ops = [{op}] }} }}]"
        );
        let (mock, _, end) = run(&text, 1);
        assert_eq!((end, mock.time()), (MockEnd::Finished, 10_000), "{op}");
        assert!(mock.events < 11_000, "{op}: {}", mock.events);
    }
}

#[test]
fn charges_alone_do_not_keep_a_loop_within_one_step() {
    let text = "duration = '1ms'\n[[thread]]\nname = 'a'\nops = [{ loop = { ops = \
                [{ lock = 'm' }, { signal = 'c' }, { unlock = 'm' }, { io = { bytes = 9, \
                null = true } }] } }]";
    let costs = SyscallCosts { io_submit: 100, ..SyscallCosts::default() };
    let (mock, _, end) = run_with(text, ExecConfig { nr_cpus: 1, costs, ..Default::default() }, 1);
    assert_eq!((end, mock.time()), (MockEnd::Finished, MS));
}

#[test]
fn costs_delay_the_caller() {
    let text = "[[thread]]\nname = 'a'\nops = [{ fork = 'b' }, { touch = { size = 2048 } }, \
                { io = { bytes = 2048 } }]\n[[thread]]\nname = 'b'\ninstances = 0\n\
                ops = [{ compute = '1us' }]";
    let costs = SyscallCosts {
        fork: 50_000,
        mem_write_kib: 100,
        io_submit: 1_000,
        io_latency: 10_000,
        io_kib: 500,
        ..SyscallCosts::default()
    };
    let (mock, _, _) = run_with(text, ExecConfig { nr_cpus: 1, costs, ..Default::default() }, 1);
    assert_eq!(mock.task("a").exited_at, Some(50_000 + 200 + 1_000 + 11_000));
    assert_eq!(mock.task("a").run_ns, 51_200);
}

#[test]
fn settings_reach_the_kernel() {
    let text = "[[cgroup]]\npath = '/a/b'\nweight = 300\nxattr = { 'user.x' = '1' }\n[[thread]]\nname = 'a'\ncgroup = '/a/b'\n\
                policy = { fifo = 5 }\ncpus = '1'\nfootprint = 4096\nslice = '3ms'\n\
                ops = [{ set_affinity = '0-1' }, { set_nice = -5 }, { set_policy = 'batch' }, \
                { move_cgroup = '/a' }, 'clear_affinity', 'yield', \
                { set_xattr = { cgroup = '/a', name = 'user.y', value = 'on' } }]";
    let (mock, executor, end) = run(text, 2);
    assert_eq!(end, MockEnd::Finished);
    let expected = [
        "mkdir 0 a weight=100",
        "mkdir 1 b weight=300",
        "xattr 2 user.x=1",
        "fork a by None",
        "affinity 0 [0, 1]",
        "nice 0 -5",
        "policy 0 Batch",
        "move 0 1",
        "affinity 0 [0, 1]",
        "xattr 1 user.y=on",
    ];
    assert_eq!(mock.calls, expected);
    let spec = &mock.tasks[0].spec;
    assert_eq!((spec.cgroup, spec.policy), (CgroupId(2), Policy::Fifo { prio: 5 }));
    assert_eq!((spec.footprint_bytes, spec.slice_request), (4096, 3 * MS));
    assert_eq!(executor.faults().1, 0);
}

#[test]
fn a_refused_fork_is_recorded_and_a_missing_cpu_is_an_error() {
    let text = "[[thread]]\nname = 'a'\ncpus = '7'\nops = [{ compute = '1ms' }]";
    let program = from_toml("t", text).unwrap();
    let config = ExecConfig { nr_cpus: 4, ..ExecConfig::default() };
    let error = Executor::new(&program, config).err().unwrap();
    assert_eq!(
        error.to_string(),
        "t:1:1: thread \"a\" names CPU 7, but the machine has 4 CPUs (0 to 3)"
    );
    let config = ExecConfig { nr_cpus: 8, ..ExecConfig::default() };
    let mut executor = Executor::new(&program, config).unwrap();
    let mut mock = Mock::new(8, 1);
    mock.refuse_forks = true;
    assert_eq!(mock.run(&mut executor, 10), MockEnd::Finished);
    assert_eq!(executor.faults().0[0].to_string(), "0 ns, a: fork: out of memory (ENOMEM)");
}

#[test]
fn a_seed_perturbs_only_when_asked() {
    let text = "[[thread]]\nname = 'a'\ninstances = 8\nops = [{ loop = { times = 20, ops = \
                [{ compute = '1ms' }] } }]";
    let with = |start, noise, seed| {
        let perturb = Perturb { start_offset_max: start, compute_noise_permille: noise };
        let config = ExecConfig { nr_cpus: 8, perturb, ..ExecConfig::default() };
        let (mock, _, _) = run_with(text, config, seed);
        mock.tasks.iter().map(|t| (t.exited_at.unwrap(), t.run_ns)).collect::<Vec<_>>()
    };
    assert_eq!(with(0, 0, 1), with(0, 0, 2));
    assert!(with(0, 0, 1).iter().all(|&(end, ran)| end == 20 * MS && ran == 20 * MS));
    assert_eq!(with(MS, 50, 1), with(MS, 50, 1));
    assert_ne!(with(MS, 50, 1), with(MS, 50, 2));
    assert!(with(MS, 0, 1).iter().all(|&(end, ran)| end <= 21 * MS && ran == 20 * MS));
    assert!(with(0, 50, 1).iter().all(|&(_, ran)| ran.abs_diff(20 * MS) <= MS && ran != 20 * MS));
}

#[test]
fn an_executor_can_move_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Executor>();
}

#[test]
fn a_stray_wake_up_does_not_end_a_wait() {
    // The kernel remembers a wake-up for each thread from before its first step. The remembered
    // wake-up must not end the thread's first wait.
    let text = "[[thread]]\nname = 'a'\nops = [{ lock = 'm' }, { sleep = '1ms' }, { unlock = 'm' }]\n\
                [[thread]]\nname = 'b'\nops = [{ lock = 'm' }, { unlock = 'm' }, { sleep = '5ms' }]";
    let program = from_toml("t", text).unwrap();
    let config = ExecConfig { nr_cpus: 2, ..ExecConfig::default() };
    let mut executor = Executor::new(&program, config).unwrap();
    let mut mock = Mock::new(2, 1);
    executor.start(&mut mock);
    mock.wake(TaskId(0), false);
    mock.wake(TaskId(1), false);
    struct NoStart(Executor);
    impl Behavior for NoStart {
        fn start(&mut self, _: &mut dyn Sys) {}
        fn step(&mut self, sys: &mut dyn Sys, task: TaskId) -> TaskStep {
            self.0.step(sys, task)
        }
        fn on_timer(&mut self, sys: &mut dyn Sys, token: u64) {
            self.0.on_timer(sys, token);
        }
        fn unit(&self) -> &str {
            self.0.unit()
        }
        fn waits_for(&self, task: TaskId) -> Option<String> {
            self.0.waits_for(task)
        }
    }
    assert_eq!(mock.run(&mut NoStart(executor), 1000), MockEnd::Finished);
    assert_eq!(mock.time(), 6 * MS);
}
