// SPDX-License-Identifier: GPL-2.0-only
//! Tests of thread attributes passed to the kernel (names, affinity, nice, policies) and of calls
//! that the kernel refuses.

use std::fmt::Debug;
use std::fs;

use scxlab_workload::native::{
    self, NativeConfig, NativeError, NativeStop, RefusedCallKind, SetupError, StartSignal,
};
use scxlab_workload::program::CpuList;

use crate::{
    PATIENCE, Test, is_root, kill, parent_of, program, run, run_clean, run_with, task, workers,
};

pub const TESTS: &[Test] = &[
    ("names_are_comms", names_are_comms),
    ("affinity_holds", affinity_holds),
    ("nice_is_set", nice_is_set),
    ("policies_are_set", policies_are_set),
    ("the_ext_policy_is_set", the_ext_policy_is_set),
    ("a_refused_op_is_named", a_refused_op_is_named),
    ("a_refused_attribute_stops_the_start", a_refused_attribute_stops_the_start),
    ("unknown_cpus_are_refused", unknown_cpus_are_refused),
    ("too_much_memory_is_refused", too_much_memory_is_refused),
];

/// Runs a program until `read` finds the wanted values in a file of `/proc/PID/task/TID`, named
/// `file`, of each thread, and then ends the run. Fails if the values never appear.
fn observe<T: PartialEq + Debug>(
    text: &str,
    file: &str,
    read: impl Fn(&str) -> T,
    wanted: &[(&str, T)],
) {
    let program = program(text);
    let start = StartSignal::new().unwrap();
    let config = NativeConfig {
        duration: Some(PATIENCE),
        on_start: Some(start.clone()),
        ..NativeConfig::default()
    };
    let runner = std::thread::spawn(move || native::run(&program, &config));
    start.wait().unwrap();
    let mut seen = Vec::new();
    while !runner.is_finished() {
        let found = look(file);
        if found.is_empty() {
            continue;
        }
        seen = found.iter().map(|(comm, text, _)| (comm.clone(), read(text))).collect();
        if seen.iter().map(|(comm, is)| (comm.as_str(), is)).eq(wanted.iter().map(|(c, w)| (*c, w)))
        {
            kill(parent_of(found[0].2), libc::SIGTERM);
            break;
        }
    }
    let report = runner.join().unwrap().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(report.errors, []);
    assert_eq!(report.stop, NativeStop::Interrupted(libc::SIGTERM), "{seen:?}, not {wanted:?}");
}

/// Returns the name, the contents of `file` and the process of each thread of this test's runs
/// whose name begins with `obs`.
fn look(file: &str) -> Vec<(String, String, i32)> {
    let mut found = Vec::new();
    for process in workers() {
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for thread in threads.flatten() {
            let read = |name| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            let comm = read("comm");
            if comm.starts_with("obs") {
                found.push((comm.trim_end().to_owned(), read(file), process));
            }
        }
    }
    found.sort();
    found
}

fn names_are_comms() {
    let text = "[[thread]]\nname = 'obs-{i}'\ninstances = 2\nprocess = 'p'\nops = [{ sleep = '900s' }]\n\
                [[thread]]\nname = 'obs-a-very-long-name'\nops = [{ sleep = '900s' }]";
    let wanted = ["obs-0", "obs-1", "obs-a-very-long"].map(|name| (name, name.to_owned()));
    observe(text, "comm", |comm| comm.trim_end().to_owned(), &wanted);
}

fn allowed(status: &str) -> String {
    let line = status.lines().find(|l| l.starts_with("Cpus_allowed_list:")).unwrap_or_default();
    line.rsplit('\t').next().unwrap_or_default().to_owned()
}

fn affinity_holds() {
    let text = "[[thread]]\nname = 'obs-a'\ncpus = '0'\nops = [{ sleep = '900s' }]\n\
                [[thread]]\nname = 'obs-b'\ncpus = '0'\nops = ['clear_affinity', { sleep = '900s' }]\n\
                [[thread]]\nname = 'obs-c'\nops = [{ set_affinity = '0' }, { sleep = '900s' }]\n\
                [[thread]]\nname = 'obs-d'\nops = [{ sleep = '900s' }]\n\
                [[thread]]\nname = 'p'\ncpus = '0'\nops = [{ fork = 'obs-e' }, { sleep = '900s' }]\n\
                [[thread]]\nname = 'obs-e'\ninstances = 0\nops = [{ sleep = '900s' }]";
    let all = allowed(&fs::read_to_string("/proc/self/status").unwrap());
    let zero = || "0".to_owned();
    let wanted = [
        ("obs-a", zero()),
        ("obs-b", all.clone()),
        ("obs-c", zero()),
        ("obs-d", all),
        ("obs-e-0", zero()),
    ];
    observe(text, "status", allowed, &wanted);
}

/// Returns field `n` of `stat`, numbered as in proc(5).
fn stat(text: &str, n: usize) -> i64 {
    let after = text.rsplit(')').next().unwrap_or_default();
    after.split_whitespace().nth(n - 3).and_then(|f| f.parse().ok()).unwrap_or(i64::MAX)
}

const NICE: usize = 19;
const RT_PRIORITY: usize = 40;
const POLICY: usize = 41;

fn nice_is_set() {
    let text = "[[thread]]\nname = 'obs-a'\nnice = 7\nops = [{ sleep = '900s' }]\n\
                [[thread]]\nname = 'obs-b'\nops = [{ set_nice = 5 }, { sleep = '900s' }]\n\
                [[thread]]\nname = 'obs-c'\nops = [{ fork = 'obs-d' }, { sleep = '900s' }]\n\
                [[thread]]\nname = 'obs-d'\ninstances = 0\nnice = 3\nops = [{ sleep = '900s' }]";
    let wanted = [("obs-a", 7), ("obs-b", 5), ("obs-c", 0), ("obs-d-0", 3)];
    observe(text, "stat", |s| stat(s, NICE), &wanted);
    let report = run_clean("[[thread]]\nname = 'a'\nops = [{ set_nice = 4 }]");
    assert_eq!(task(&report, "a").nice, 4);
}

fn policies_are_set() {
    if !is_root("real-time policies") {
        return;
    }
    let text = "[[thread]]\nname = 'obs-a'\npolicy = { fifo = 10 }\nops = [{ sleep = '900s' }]\n\
                [[thread]]\nname = 'obs-b'\npolicy = 'batch'\nops = [{ sleep = '900s' }]\n\
                [[thread]]\nname = 'obs-c'\nops = [{ set_policy = { rr = 3 } }, { sleep = '900s' }]\n\
                [[thread]]\nname = 'obs-d'\npolicy = 'idle'\nops = [{ set_policy = 'normal' }, { sleep = '900s' }]\n\
                [[thread]]\nname = 'obs-e'\nnice = -5\nslice = '5ms'\nops = [{ sleep = '900s' }]\n\
                [[thread]]\nname = 'obs-f'\npolicy = { deadline = { runtime = '1ms', deadline = '10ms', period = '10ms' } }\n\
                ops = [{ sleep = '900s' }]";
    let (normal, fifo, rr, batch, deadline) = (0, 1, 2, 3, 6);
    // Each row holds policy, real-time priority and nice.
    let wanted = [
        ("obs-a", [fifo, 10, 0]),
        ("obs-b", [batch, 0, 0]),
        ("obs-c", [rr, 3, 0]),
        ("obs-d", [normal, 0, 0]),
        ("obs-e", [normal, 0, -5]),
        ("obs-f", [deadline, 0, 0]),
    ];
    observe(text, "stat", |s| [POLICY, RT_PRIORITY, NICE].map(|n| stat(s, n)), &wanted);
}

fn has_ext() -> bool {
    fs::exists("/sys/kernel/sched_ext").unwrap_or(false)
}

fn the_ext_policy_is_set() {
    if !has_ext() {
        println!("    skipped: this kernel has no sched_ext");
        return;
    }
    let text = "[[thread]]\nname = 'obs-a'\npolicy = 'ext'\nnice = 2\nops = [{ sleep = '900s' }]\n\
                [[thread]]\nname = 'obs-b'\nops = [{ set_policy = 'ext' }, { sleep = '900s' }]";
    let wanted = [("obs-a", [7, 2]), ("obs-b", [7, 0])];
    observe(text, "stat", |s| [POLICY, NICE].map(|n| stat(s, n)), &wanted);
}

fn a_refused_op_is_named() {
    if has_ext() {
        println!("    skipped: this kernel has sched_ext, so it does not refuse the policy");
        return;
    }
    let report = run("[[thread]]\nname = 'a'\nops = [{ set_policy = 'ext' }, { count = 1 }]");
    assert_eq!(report.work_units(), 1, "the thread goes on");
    assert_eq!(report.nr_errors, 1);
    let error = &report.errors[0];
    assert_eq!(
        (error.what, error.errno, error.thread.as_str()),
        (RefusedCallKind::Policy, libc::EINVAL, "a")
    );
    let text = error.to_string();
    assert!(
        text.contains("thread \"a\": set_policy Ext:") && text.contains("CONFIG_SCHED_CLASS_EXT"),
        "{text}"
    );
}

fn a_refused_attribute_stops_the_start() {
    if has_ext() {
        println!("    skipped: this kernel has sched_ext, so it does not refuse the policy");
        return;
    }
    let text = "[[thread]]\nname = 'a'\ninstances = 5\nops = [{ sleep = '900s' }]\n\
                [[thread]]\nname = 'b'\npolicy = 'ext'\nops = [{ sleep = '900s' }]";
    let error = native::run(&program(text), &NativeConfig::default()).unwrap_err();
    let NativeError::Setup(SetupError::Op(op)) = &error else { panic!("{error}") };
    assert_eq!(
        (op.what, op.thread.as_str(), op.op.as_str()),
        (RefusedCallKind::Policy, "b", "policy Ext")
    );
}

fn unknown_cpus_are_refused() {
    let text = "[[thread]]\nname = 'a'\ncpus = '9999'\nops = ['yield']";
    let error = native::run(&program(text), &NativeConfig::default()).unwrap_err();
    assert!(error.to_string().contains("names CPU 9999"), "{error}");
    let text = "[[thread]]\nname = 'a'\nops = [{ set_affinity = '1' }]";
    let cpus: CpuList = "0".parse().unwrap();
    let config = NativeConfig { cpus: Some(cpus), ..NativeConfig::default() };
    let error = native::run(&program(text), &config).unwrap_err();
    assert!(error.to_string().contains("names CPU 1"), "{error}");
    let text = "[[thread]]\nname = 'a'\nops = [{ compute = '1ms' }]";
    assert_eq!(run_with(text, config).errors, []);
}

fn too_much_memory_is_refused() {
    let text =
        "[[thread]]\nname = 'a'\ninstances = 8\nops = [{ touch = { size = 1000000000000 } }]";
    let error = native::run(&program(text), &NativeConfig::default()).unwrap_err();
    assert!(matches!(error, NativeError::Setup(SetupError::Memory { .. })), "{error}");
}
