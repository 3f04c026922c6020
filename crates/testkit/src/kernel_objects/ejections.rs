// SPDX-License-Identifier: GPL-2.0-only
//! Selftests in which the scheduler exits: after an error, at its own request, or because of CPU
//! hotplug.

use super::bench::{MS, SEC, TestMachine, set};
use super::load::{background, seconds};
use super::script::hog;
use scxlab_kernel::behavior::TaskSpec;

/// Values of the kernel's `enum scx_exit_kind`.
pub const NONE: u64 = 0;
pub const UNREG: u64 = 64;
const UNREG_BPF: u64 = 65;
const UNREG_KERN: u64 = 66;
const ERROR: u64 = 1024;
/// Values of the kernel's `enum scx_exit_code`.
const ACT_RESTART: u64 = 1 << 48;
const RSN_HOTPLUG: u64 = 1 << 32;

/// Attaches the object, runs for a second, and asserts that it was ejected with an error and that
/// the tasks continue without it.
fn ejected(b: &mut TestMachine, object: &str, says: &str) {
    let hogs: Vec<_> = (0..b.nr_cpus()).map(|_| b.spawn(TaskSpec::normal("hog"), hog())).collect();
    background(b);
    let loaded = b.open_and_load(object);
    b.attach(&loaded, &format!("{object}_ops"));
    b.sleep(SEC);
    b.expect_kind(&loaded, ERROR);
    let (_, _, message) = b.uei(&loaded);
    assert!(message.contains(says), "message \"{message}\" does not say \"{says}\"");
    b.detach();
    assert!(b.k.ext.root.is_none() && b.k.ext.exits.len() == 1, "left once");
    let before: Vec<_> = hogs.iter().map(|h| b.k.tasks[h.task].account.run_ns).collect();
    b.sleep(SEC);
    for (hog, before) in hogs.iter().zip(before) {
        assert!(b.k.tasks[hog.task].account.run_ns > before, "pid {} runs on", hog.pid);
    }
}

pub fn ddsp_bogus_dsq(b: &mut TestMachine) {
    ejected(b, "ddsp_bogus_dsq_fail", "0xcafef00d");
}

pub fn ddsp_vtimelocal(b: &mut TestMachine) {
    ejected(b, "ddsp_vtimelocal_fail", "vtime");
}

pub fn bad_dsq(b: &mut TestMachine) {
    ejected(b, "select_cpu_dispatch_bad_dsq", "0xcafef00d");
}

pub fn double_dispatch(b: &mut TestMachine) {
    ejected(b, "select_cpu_dispatch_dbl_dsp", "already direct-dispatched");
}

/// Asserts that attach succeeds with a link, and that `ops.exit` has run when attach returns.
pub fn enq_last_no_enq(b: &mut TestMachine) {
    let loaded = b.open_and_load("enq_last_no_enq_fails");
    b.attach(&loaded, "enq_last_no_enq_fails_ops");
    assert_eq!(b.get(&loaded, "exit_kind"), ERROR);
    b.detach();
}

/// The scheduler calls `scx_bpf_exit()` from each of six operations in turn. The exit record must
/// hold the operation's number (`exit_point`) as code and as message.
pub fn exit(b: &mut TestMachine) {
    background(b);
    for point in 0..6 {
        let mut open = b.open("exit");
        set(&mut open, "exit_point", point);
        let loaded = b.load(open);
        b.attach(&loaded, "exit_ops");
        b.wait(seconds(2), "the scheduler exits", |k| {
            super::bench::get(k, &loaded, "uei.kind") != NONE
        });
        assert_eq!(
            b.uei(&loaded),
            (UNREG_BPF, point as i64, point.to_string()),
            "exit point {point}"
        );
        b.detach();
    }
}

/// A syscall program makes the scheduler exit; the exit record must have the program's exit code.
pub fn prog_run(b: &mut TestMachine) {
    background(b);
    let loaded = b.open_and_load("prog_run");
    b.attach(&loaded, "prog_run_ops");
    assert_eq!(b.run_syscall(&loaded, "prog_run_syscall", &mut []), 0);
    b.wait(SEC, "the scheduler exits", |k| super::bench::get(k, &loaded, "uei.kind") != NONE);
    let (kind, code, _) = b.uei(&loaded);
    assert_eq!((kind, code), (UNREG_BPF, 0xdead_beef));
    b.detach();
}

/// Takes CPU 1 off line or on line while a scheduler with or without hotplug operations is loaded,
/// or between open and attach. The scheduler must exit each time, with a code that asks for a
/// restart.
pub fn hotplug(b: &mut TestMachine) {
    background(b);
    for (onlining, callbacks) in [(true, true), (false, true), (true, false), (false, false)] {
        hotplug_loaded(b, onlining, callbacks);
    }
    hotplug_before_attach(b);
}

fn hotplug_loaded(b: &mut TestMachine, onlining: bool, callbacks: bool) {
    let loaded = b.open_and_load("hotplug");
    if onlining {
        b.set_online(1, false);
    }
    b.attach(&loaded, if callbacks { "hotplug_cb_ops" } else { "hotplug_nocb_ops" });
    b.sleep(10 * MS);
    b.expect_kind(&loaded, NONE);
    b.set_online(1, onlining);
    b.wait(SEC, "the scheduler exits", |k| super::bench::get(k, &loaded, "uei.kind") != NONE);
    let (kind, code, _) = b.uei(&loaded);
    let expected = match callbacks {
        true => (UNREG_BPF, ACT_RESTART | 1 | if onlining { 2 } else { 0 }),
        false => (UNREG_KERN, ACT_RESTART | RSN_HOTPLUG),
    };
    assert_eq!((kind, code as u64), expected, "onlining {onlining}, callbacks {callbacks}");
    if !onlining {
        b.set_online(1, true);
    }
    b.detach();
}

fn hotplug_before_attach(b: &mut TestMachine) {
    let seq = b.k.hotplug_seq();
    assert!(seq > 0, "bringing CPUs up at boot counts");
    let mut open = b.open("hotplug");
    let btf_of = open.object().clone();
    let table = open.table_mut("hotplug_nocb_ops").expect("the table");
    table.set(&btf_of.btf, "hotplug_seq", &seq.to_string()).expect("hotplug_seq");
    let loaded = b.load(open);
    b.set_online(1, false);
    b.attach(&loaded, "hotplug_nocb_ops");
    b.set_online(1, true);
    b.wait(SEC, "the scheduler exits", |k| super::bench::get(k, &loaded, "uei.kind") != NONE);
    let (kind, code, _) = b.uei(&loaded);
    assert_eq!((kind, code as u64), (UNREG_KERN, ACT_RESTART | RSN_HOTPLUG));
    b.detach();
}
