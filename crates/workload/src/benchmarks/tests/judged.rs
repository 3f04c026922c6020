// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the benchmarks that the threads of the mailing lists used: every unit is counted, and
//! each parameter moves the result in the direction that its meaning demands.

use super::*;
use crate::exec::SyscallCosts;

const MS: u64 = 1_000_000;

/// Runs on 8 CPUs with an I/O that takes 1 ms and 1 us per KiB, and no other costs.
fn run_with_disk(arg: &str) -> (Mock, MockEnd) {
    let costs = SyscallCosts {
        io_latency: MS,
        io_kib: 1000,
        mem_read_kib: 100,
        mem_write_kib: 150,
        empty_loop: 10,
        ..SyscallCosts::default()
    };
    let config = ExecConfig { nr_cpus: 8, costs, ..ExecConfig::default() };
    let mut executor = Executor::new(&program(arg), config).unwrap();
    let mut mock = Mock::new(8, 7);
    let end = mock.run(&mut executor, 5_000_000);
    (mock, end)
}

/// Returns the work of a run that ends regularly.
fn work(arg: &str) -> u64 {
    let (mock, end) = run_with_disk(arg);
    assert_eq!(end, MockEnd::Finished, "{arg}");
    mock.total_work()
}

fn run_ns(mock: &Mock, name: &str) -> u64 {
    let tasks = mock.tasks.iter().filter(|task| task.spec.name.starts_with(name));
    tasks.map(|task| task.run_ns).sum()
}

/// Number of ops, those in loops each once, for which the test holds.
fn ops(program: &Program, test: &dyn Fn(&Op) -> bool) -> usize {
    fn count(ops: &[Op], test: &dyn Fn(&Op) -> bool) -> usize {
        let inner = |op: &Op| match op {
            Op::Loop { ops, .. } => count(ops, test),
            op => usize::from(test(op)),
        };
        ops.iter().map(inner).sum()
    }
    program.threads.iter().map(|thread| count(&thread.ops, test)).sum()
}

#[test]
fn builds_make_every_file() {
    for (jobs, files) in [(1, 1), (3, 16), (16, 37), (100, 5)] {
        let arg = format!("kernbench,jobs={jobs},files={files},work=1ms");
        let (mock, end) = run_with_disk(&arg);
        assert_eq!((end, mock.total_work()), (MockEnd::Finished, files), "{arg}");
        // make, ld, and for each file gcc, cc1 and as.
        assert_eq!(mock.tasks.len() as u64, 2 + 3 * files, "{arg}");
    }
    let (mock, end) = run_with_disk("mkbench,makes=3,jobs=2,files=20,work=1ms");
    assert_eq!((end, mock.total_work()), (MockEnd::Finished, 60));
    assert_eq!(mock.tasks.len(), 3 * (2 + 3 * 20));
}

#[test]
fn a_build_has_the_work_that_it_is_given() {
    let arg = "kernbench,files=32,work=10ms,parse=7ms,link=5ms,hold=0us";
    let (mock, _) = run_with_disk(arg);
    let files = run_ns(&mock, "cc1") + run_ns(&mock, "as");
    assert!((319 * MS..=320 * MS).contains(&files), "{files}");
    assert_eq!((run_ns(&mock, "make0"), run_ns(&mock, "ld")), (7 * MS, 5 * MS));
    // The files differ, but the same file of two builds does not.
    let makes = program("mkbench,makes=2,files=33");
    let forks = |make: usize| -> Vec<String> {
        let name = |op: &Op| match op {
            Op::Fork(name) => Some(name.trim_start_matches(&format!("gcc{make}.")).to_owned()),
            _ => None,
        };
        makes.threads[make].ops.iter().filter_map(name).collect()
    };
    assert_eq!(forks(0), forks(1));
    let (first, second) = (&forks(0)[..16], &forks(0)[16..32]);
    let sorted = |part: &[String]| {
        let mut part = part.to_vec();
        part.sort();
        part
    };
    assert_eq!(sorted(first), sorted(second));
    assert_ne!(first, second);
}

#[test]
fn jobs_shorten_a_build() {
    let length = |jobs: u32, serial: u32| {
        let arg = format!("kernbench,files=64,work=10ms,jobs={jobs},link={serial}ms");
        let (mock, _) = run_with_disk(&format!("{arg},parse={serial}ms"));
        mock.time()
    };
    let (one, two, eight, many) = (length(1, 0), length(2, 0), length(8, 0), length(64, 0));
    assert!(one > 640 * MS && many > 80 * MS, "{one} {many}");
    assert!(two < one * 2 / 3 && eight < two / 2 && many < eight * 11 / 10, "{two} {eight} {many}");
    // The parts before the first and after the last file stay serial.
    let serial = length(64, 100) - many;
    assert!((199 * MS..=201 * MS).contains(&serial), "{serial}");
}

#[test]
fn locks_are_those_of_a_guest() {
    let takes = |op: &Op| matches!(op, Op::SpinLock(_));
    for name in ["dbench", "ebizzy", "kernbench"] {
        let bare = program(name);
        assert_eq!(ops(&bare, &takes), 0, "{name}");
        let guests = program(&format!("{name},vms=1,vcpus=2"));
        let inside = guests.guests[0].program.as_deref().unwrap();
        assert!(ops(inside, &takes) > 0, "{name}");
        // The work under the lock is done in both.
        let computes = |op: &Op| matches!(op, Op::Compute(_));
        assert_eq!(ops(&bare, &computes), ops(inside, &computes), "{name}");
        let without = program(&format!("{name},hold=0us,vcpus=2"));
        assert_eq!(ops(without.guests[0].program.as_deref().unwrap(), &takes), 0, "{name}");
    }
}

/// A file's guest has the same program as a guest of one line.
#[test]
fn locks_are_those_of_a_guest_in_a_file() {
    let text = "[[guest]]\nname = 'a'\nworkload = 'ebizzy'";
    let file = crate::load("guests.toml", text).unwrap();
    let line = program("ebizzy,vms=1,vcpus=1");
    assert_eq!(file.guests[0].program, line.guests[0].program);
}

#[test]
fn ebizzy_frees_what_it_allocates() {
    let unmaps = |arg: &str| ops(&program(arg), &|op| matches!(op, Op::Unmap));
    // The heap's top keeps 128 KiB.
    assert_eq!((unmaps("ebizzy,chunk=128"), unmaps("ebizzy,chunk=132")), (0, 1));
    assert_eq!(unmaps("ebizzy,chunk=64,mmap=yes"), 1);
    let copied = |arg: &str| -> u64 {
        let program = program(arg);
        let Op::Loop { ops, .. } = &program.threads[0].ops[0] else { panic!("a loop") };
        let bytes = |op: &Op| match op {
            Op::Touch(arg) => arg.size.unwrap().0,
            _ => 0,
        };
        ops.iter().map(bytes).sum()
    };
    for kib in [4, 128, 130, 256, 1000] {
        for mmap in ["no", "yes"] {
            assert_eq!(copied(&format!("ebizzy,chunk={kib},mmap={mmap}")), kib * 1024);
        }
    }
    let short = "duration=100ms";
    let base = work(&format!("ebizzy,{short}"));
    assert!(work(&format!("ebizzy,chunk=512,{short}")) < base);
    assert!(work(&format!("ebizzy,fault=2us,{short}")) < base);
    assert!(work(&format!("ebizzy,search=50us,{short}")) < base);
    // Mapping takes the address space's lock alone, so that it is a bottleneck.
    let mapped = |us: u32| work(&format!("ebizzy,mmap=yes,map={us}us,{short}"));
    assert!(mapped(50) * 2 < mapped(2), "{} {}", mapped(50), mapped(2));
}

#[test]
fn dbench_keeps_the_proportions_of_its_load() {
    let program = program("dbench");
    let count = |test: &dyn Fn(&Op) -> bool| ops(&program, test);
    assert_eq!(count(&|op| matches!(op, Op::Count(1))), 81);
    assert_eq!(count(&|op| matches!(op, Op::Touch(_))), 22 + 7);
    assert_eq!(count(&|op| matches!(op, Op::Signal(_))), 1);
    // A flush of each client is a commit at most, and one commit serves all that wait.
    let (mock, _) = run_with_disk("dbench,clients=16,duration=200ms");
    let clients = mock.tasks.iter().filter(|task| task.spec.name.starts_with("client"));
    let done: Vec<u64> = clients.map(|task| task.work).collect();
    assert_eq!(done.len(), 16);
    assert!(done.iter().all(|&n| n > 81), "{done:?}");
    let base = work("dbench,duration=200ms");
    assert!(work("dbench,work=30us,duration=200ms") < base);
    assert!(work("dbench,commit=4096,duration=200ms") < base);
    assert!(work("dbench,clients=2,duration=200ms") < base);
    // More clients than CPUs use the waits of the others.
    assert!(work("dbench,clients=16,duration=200ms") > base);
}

#[test]
fn specjbb_stops_all_warehouses_to_collect() {
    let (mock, end) = run_with_disk("specjbb,memory=0,duration=1s");
    assert_eq!(end, MockEnd::Finished);
    // A collection has 40 ms of work for 8 threads in each 16,384 transactions.
    let collections = run_ns(&mock, "collector") / (40 * MS);
    let handed_out = mock.total_work() / 16_384;
    assert!(collections.abs_diff(handed_out) <= 1, "{collections} of {handed_out}");
    assert!(collections >= 10, "{collections}");
    assert_eq!(mock.total_work() % 16, 0);
    let base = mock.total_work();
    let with = |more: &str| work(&format!("specjbb,memory=0,duration=1s,{more}"));
    assert!(with("work=60us") < base);
    assert!(with("collect=160ms") < base);
    assert!(with("collectors=1") < base);
    assert!(with("heap=128") < base);
    assert!(with("allocation=32") < base);
    assert!(with("warehouses=4") < base * 6 / 10);
    // More warehouses than CPUs do not do more.
    let many = with("warehouses=24");
    assert!(many * 10 > base * 9 && many * 10 < base * 11, "{many} {base}");
}

/// The collector's threads share all work of a collection, in pieces. Its threads that find none
/// sleep, so that one thread alone does all of the work if the others are late.
#[test]
fn specjbbs_collector_may_sleep() {
    let (mock, end) = run_with_disk("specjbb,memory=0,idle=sleep,duration=1s");
    assert_eq!(end, MockEnd::Finished);
    let collections = run_ns(&mock, "collector") / (40 * MS);
    let handed_out = mock.total_work() / 16_384;
    assert!(collections.abs_diff(handed_out) <= 1, "{collections} of {handed_out}");
    let sleeps = program("specjbb,memory=0,idle=sleep");
    assert_eq!(ops(&sleeps, &|op| matches!(op, Op::SpinBarrier(_))), 0);
    assert_eq!(ops(&program("specjbb,memory=0"), &|op| matches!(op, Op::SpinBarrier(_))), 1);
}

#[test]
fn specjbb_has_a_heap_if_it_accesses_one() {
    let with = program("specjbb,heap=2048,huge=no,merge=30");
    let [heap] = &with.regions[..] else { panic!("{:?}", with.regions) };
    assert_eq!((heap.size.0, heap.is_huge(), heap.merge), (2 << 30, false, 30));
    assert!(program("specjbb,memory=0").regions.is_empty());
    assert!(error("specjbb,merge=30").contains("beside huge=no"));
    let guest = error("specjbb,vms=2,vcpus=8");
    assert!(guest.contains("no memory for region \"heap\""), "{guest}");
    program("specjbb,vms=2,vcpus=8,vm.memory=1GiB");
    program("specjbb,memory=0,vms=2,vcpus=8");
}
