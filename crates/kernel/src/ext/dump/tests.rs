// SPDX-License-Identifier: GPL-2.0-only
//! Tests of a dump's format, and of the place of the scheduler's text in it.

use super::*;
use crate::ext::idle::fixture::{error, kernel, load};

const DUMPS: &[Op] = &[Op::Dump, Op::DumpCpu, Op::DumpTask];

/// Returns a kernel with three tasks, two of them on CPU 1, and an error that was reported.
fn stuck(has: &'static [Op], call: fn(&mut Kernel, Op, &[u64]) -> u64) -> Kernel {
    let mut k = kernel("3c1t", &[Some(1), Some(1), Some(2)]);
    load(&mut k, 0, has, call);
    k.run(Some(30_000_000));
    k.scx_error("it went wrong");
    k
}

#[test]
fn header_cpus_tasks_and_counters() {
    let mut k = stuck(&[], |_, _, _| 0);
    let dump = k.ext_dump();
    assert!(dump.starts_with("fixture: root\n"), "{dump}");
    assert!(dump.contains(" triggered exit kind 1024 on CPU "), "{dump}");
    assert!(
        dump.contains(
            "\n  runtime error (it went wrong)\n\nBacktrace:\n  in the kernel, outside of the scheduler's programs\n\nCPU states\n----------\n"
        ),
        "{dump}"
    );
    assert!(!dump.contains("CPU 0 "), "an idle CPU has nothing to tell: {dump}");
    let cpu1 = dump.find("\nCPU 1   : nr_run=2 flags=0x1 cpu_rel=0 ksync=").expect("CPU 1");
    let cpu2 = dump.find("\nCPU 2   : nr_run=1 ").expect("CPU 2");
    assert!(cpu2 < cpu1, "the CPU that the error came from first: {dump}");
    let on_cpu1 = &dump[cpu1..];
    assert_eq!(on_cpu1.matches("class=ext_sched_class").count(), 1, "{on_cpu1}");
    let (running, waiting) = (on_cpu1.find("\n *R hog"), on_cpu1.find("\n  R hog"));
    assert!(running.is_some() && running < waiting, "the running task first: {on_cpu1}");
    assert!(on_cpu1.contains("\n      cpus=2 no_mig=0\n"), "{on_cpu1}");
    assert!(on_cpu1.contains("sticky/holding_cpu=-1/-1 dsq_id=(n/a)"), "{on_cpu1}");
    assert!(on_cpu1.contains(" weight=100\n"), "{on_cpu1}");
    let line = "             SCX_EV_SELECT_CPU_FALLBACK:                0\n";
    assert!(dump.contains("\nEvent counters\n--------------\n"), "{dump}");
    assert_eq!(dump.lines().filter(|l| l.contains("SCX_EV_")).count(), 21);
    assert!(dump.contains(line), "{dump}");
}

#[test]
fn scheduler_text_goes_where_it_belongs() {
    let mut k = stuck(DUMPS, |k, op, args| {
        let kind = k.vm.mem.host_ref::<abi::scx_dump_ctx>(args[0]).kind;
        match op {
            Op::Dump => k.dump_append(&format!("kind {kind}, a line\nin two")),
            Op::DumpCpu if args[1] == 0 && args[2] == 1 => {
                k.dump_append("CPU 0 ");
                k.dump_append("idles\n");
            }
            Op::DumpTask => k.dump_append("a task"),
            _ => {}
        }
        0
    });
    let dump = k.ext_dump();
    assert!(dump.contains("programs\n\nkind 1024, a line\nin two\n\nCPU states\n"), "{dump}");
    assert!(dump.contains("class=idle_sched_class\n\n  CPU 0 idles\n"), "{dump}");
    assert_eq!(dump.matches("\n\n    a task\n").count(), 3, "{dump}");
    assert!(k.ext.dump.is_none());
}

#[test]
fn text_outside_a_dump_operation_is_an_error() {
    let mut k = kernel("1c1t", &[]);
    load(&mut k, 0, &[], |_, _, _| 0);
    k.dump_append("hello");
    assert_eq!(error(&k), "scx_bpf_dump() must only be called from ops.dump() and friends");
}

#[test]
fn long_dumps_end_with_a_marker() {
    let mut k = stuck(&[], |_, _, _| 0);
    let whole = k.ext_dump();
    let full = whole.len() as u32;
    for len in [64, 200, full - 1] {
        k.ext.root.as_mut().unwrap().data.exit_dump_len = len;
        let dump = k.ext_dump();
        assert_eq!(dump.len() as u32, len - 1, "all but the NUL is used");
        let kept = dump.strip_suffix("\n\n~~~~ TRUNCATED ~~~~\n").expect("the marker");
        assert!(whole.starts_with(kept));
    }
    k.ext.root.as_mut().unwrap().data.exit_dump_len = full + 1;
    assert_eq!(k.ext_dump(), whole);
}

#[test]
fn op_text_lines_are_cut_at_the_kernels_buffer() {
    let mut buf = DumpBuf::new(1 << 20);
    assert!(!buf.append("nobody asked"));
    buf.open("> ");
    assert!(buf.append(&"x".repeat(3000)));
    assert!(buf.append("tail"));
    buf.close();
    assert_eq!(buf.finish(), format!("\n> {}\n> tail\n", "x".repeat(1023)));
}

#[test]
fn bitmaps_print_in_groups_of_32() {
    assert_eq!(hex_bitmap(&[0x5], 3), "5");
    assert_eq!(hex_bitmap(&[0xff], 8), "ff");
    assert_eq!(hex_bitmap(&[0x1_0000_0001], 40), "01,00000001");
    assert_eq!(hex_bitmap(&[u64::MAX, 0x3], 66), "3,ffffffff,ffffffff");
    assert_eq!(hex_bitmap(&[1], 32), "00000001");
}
