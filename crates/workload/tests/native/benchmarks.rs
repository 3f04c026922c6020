// SPDX-License-Identifier: GPL-2.0-only
//! Tests that the generators of benchmarks run with real threads, and count their units.

use scxlab_workload::native::{self as executor, NativeConfig, NativeReport, NativeStop};
use scxlab_workload::{WorkloadArg, parse_workload_arg};

use crate::{PATIENCE, Test, run_until};

pub const TESTS: &[Test] = &[
    ("builds_make_every_file", builds_make_every_file),
    ("endless_benchmarks_count_units", endless_benchmarks_count_units),
    ("a_java_heap_has_pages", a_java_heap_has_pages),
];

fn program(arg: &str) -> scxlab_workload::Program {
    let Ok(WorkloadArg::Program(program)) = parse_workload_arg(arg) else { panic!("{arg}") };
    *program
}

fn work(report: &NativeReport) -> u64 {
    report.tasks.iter().map(|task| task.work_units).sum()
}

fn builds_make_every_file() {
    for (arg, files) in
        [("kernbench,jobs=3,files=5,work=1ms", 5), ("mkbench,makes=2,jobs=2,files=3,work=1ms", 6)]
    {
        let config = NativeConfig { duration: Some(PATIENCE), ..NativeConfig::default() };
        let report = executor::run(&program(arg), &config).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(report.errors, [], "{arg}");
        assert_eq!((work(&report), report.stop), (files, NativeStop::AllExited), "{arg}");
    }
}

/// Each thread finishes units of work.
fn endless_benchmarks_count_units() {
    for (arg, worker) in [
        ("ebizzy,threads=3", "ebizzy"),
        ("ebizzy,threads=3,mmap=yes", "ebizzy"),
        ("dbench,clients=3", "client"),
        ("specjbb,memory=0,warehouses=3,collectors=2,heap=64,collect=1ms", "warehouse"),
    ] {
        let done = |report: &NativeReport| {
            let mut workers = report.tasks.iter().filter(|task| task.name.starts_with(worker));
            workers.all(|task| task.work_units > 0)
        };
        let report = run_until(&program(arg), done);
        assert_eq!(report.errors, [], "{arg}");
        assert!(done(&report), "{arg}: {:?}", report.tasks);
    }
}

fn a_java_heap_has_pages() {
    if !std::path::Path::new("/sys/devices/system/node/node0").exists() {
        println!("    skipped: the kernel has no nodes (CONFIG_NUMA)");
        return;
    }
    let program = program("specjbb,warehouses=2,collectors=2,heap=32,huge=no");
    let report = run_until(&program, |report| work(report) > 0);
    assert_eq!(report.errors, []);
    let [heap] = &report.regions[..] else { panic!("{:?}", report.regions) };
    assert_eq!((heap.owner.as_str(), heap.region.as_str()), ("java", "heap"));
    assert!(heap.pages.iter().sum::<u64>() > 0);
}
