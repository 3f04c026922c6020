// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the kfuncs of built-in idle tracking on a kernel with a loaded scheduler: their values,
//! their error texts, and the operations in which they may be called.

use super::*;
use crate::bpf::flags::ops;
use crate::ext::idle::fixture::{error, kernel, load};
use crate::ext::op::Op;
use crate::ext::{OpFrame, Outside};
use crate::task::{MAX_TASKS, SLOT_BYTES};

/// Returns a kernel that has run for 20 ms with tasks pinned to the CPUs `pins`, under a scheduler
/// without operations.
fn busy(spec: &str, flags: u64, pins: &[u32]) -> Kernel {
    let pins: Vec<_> = pins.iter().map(|&cpu| Some(cpu)).collect();
    let mut k = kernel(spec, &pins);
    load(&mut k, flags, &[], |_, _, _| 0);
    k.run(Some(20_000_000));
    k
}

fn idle_cpus(k: &Kernel, mask: u64) -> Vec<u32> {
    cpumask::iter(k.vm.mem.words(mask, k.ext.idle.nr_words())).map(|cpu| cpu.0).collect()
}

fn call(k: &mut Kernel, name: &str, args: &[u64]) -> i64 {
    let mut a = [0; 5];
    a[..args.len()].copy_from_slice(args);
    let handler = TABLE.iter().find(|(n, _)| *n == name).expect("a kfunc of this file").1;
    handler(k, &a).expect("no fault") as i64
}

#[test]
fn masks_are_live_pointers() {
    let mut k = busy("2n2c2t", 0, &[0, 5]);
    let mask = call(&mut k, "scx_bpf_get_idle_cpumask", &[]) as u64;
    let smt = call(&mut k, "scx_bpf_get_idle_smtmask", &[]) as u64;
    assert_eq!(idle_cpus(&k, mask), [1, 2, 3, 4, 6, 7]);
    assert_eq!(idle_cpus(&k, smt), [2, 3, 6, 7]);
    assert_eq!(call(&mut k, "scx_bpf_test_and_clear_cpu_idle", &[6]), 1);
    assert_eq!(call(&mut k, "scx_bpf_test_and_clear_cpu_idle", &[6]), 0);
    assert_eq!(idle_cpus(&k, mask), [1, 2, 3, 4, 7]);
    assert_eq!(idle_cpus(&k, smt), [2, 3], "a claim takes the core from the core mask");
    assert_eq!(error(&k), "");
}

#[test]
fn picks_stay_in_the_mask_and_end_busy() {
    let mut k = busy("4c1t", 0, &[3]);
    let allowed = k.ext.idle.possible_mask();
    let mut picks: Vec<_> =
        (0..4).map(|_| call(&mut k, "scx_bpf_pick_idle_cpu", &[allowed, 0])).collect();
    picks[..3].sort();
    assert_eq!(picks, [0, 1, 2, -EBUSY]);
    let any = call(&mut k, "scx_bpf_pick_any_cpu", &[allowed, 0]);
    assert!((0..4).contains(&any));
    let none = k.ext.idle.none_mask();
    assert_eq!(call(&mut k, "scx_bpf_pick_any_cpu", &[none, 0]), -EBUSY);
    assert_eq!(error(&k), "");
}

#[test]
fn per_node_mode_needs_the_kfuncs_that_name_a_node() {
    let per_node = || busy("2n2c1t", ops::BUILTIN_IDLE_PER_NODE, &[0]);
    let mut k = per_node();
    let all = k.ext.idle.possible_mask();
    let mask = call(&mut k, "scx_bpf_get_idle_cpumask_node", &[1]) as u64;
    assert_eq!(idle_cpus(&k, mask), [2, 3]);
    let in_node = pick_idle::IN_NODE;
    let pick = |k: &mut Kernel, flags| call(k, "scx_bpf_pick_idle_cpu_node", &[all, 0, flags]);
    assert_eq!(pick(&mut k, in_node), 1);
    assert_eq!(pick(&mut k, in_node), -EBUSY);
    assert!([2, 3].contains(&pick(&mut k, 0)), "goes on to the other node");
    assert!([0, 1].contains(&call(&mut k, "scx_bpf_pick_any_cpu_node", &[all, 0, in_node])));
    assert_eq!(call(&mut k, "scx_bpf_pick_idle_cpu_node", &[all, u64::MAX, 0]), -ENOENT);
    assert_eq!(error(&k), "", "no node is no error");
    assert_eq!(call(&mut k, "scx_bpf_pick_idle_cpu_node", &[all, 2, 0]), -EINVAL);
    assert_eq!(error(&k), "invalid node 2");
    let mut k = per_node();
    assert_eq!(call(&mut k, "scx_bpf_pick_idle_cpu", &[all, 0]), -EBUSY);
    assert_eq!(error(&k), "per-node idle tracking is enabled");
    let mut k = per_node();
    assert_eq!(call(&mut k, "scx_bpf_get_idle_smtmask", &[]) as u64, k.ext.idle.none_mask());
    assert_eq!(error(&k), "SCX_OPS_BUILTIN_IDLE_PER_NODE enabled");
}

#[test]
fn node_kfuncs_need_per_node_mode() {
    let mut k = busy("2n2c1t", 0, &[]);
    let all = k.ext.idle.possible_mask();
    assert_eq!(call(&mut k, "scx_bpf_pick_any_cpu_node", &[all, 0, 0]), -EOPNOTSUPP);
    assert_eq!(error(&k), "per-node idle tracking is disabled");
    assert_eq!(call(&mut k, "scx_bpf_cpu_node", &[3]), 1);
    assert_eq!(call(&mut k, "scx_bpf_cpu_node", &[4]), NO_NODE);
}

#[test]
fn update_idle_turns_tracking_off_unless_it_is_kept() {
    for (flags, off) in [(0, true), (ops::KEEP_BUILTIN_IDLE, false)] {
        let mut k = kernel("2c1t", &[]);
        load(&mut k, flags, &[Op::UpdateIdle], |_, _, _| 0);
        k.run(Some(1_000_000));
        let all = k.ext.idle.possible_mask();
        assert_eq!(call(&mut k, "scx_bpf_pick_idle_cpu", &[all, 0]) == -EBUSY, off);
        let text = if off { "built-in idle tracking is disabled" } else { "" };
        assert_eq!(error(&k), text);
    }
}

#[test]
fn nothing_works_without_a_scheduler() {
    let mut k = kernel("2c1t", &[]);
    let all = k.ext.idle.possible_mask();
    assert_eq!(call(&mut k, "scx_bpf_pick_idle_cpu", &[all, 0]), -ENODEV);
    assert_eq!(call(&mut k, "scx_bpf_get_idle_cpumask", &[]) as u64, k.ext.idle.none_mask());
    assert_eq!(call(&mut k, "scx_bpf_cpu_node", &[0]), NO_NODE);
}

fn hog(k: &Kernel, n: usize) -> TaskId {
    k.tasks.iter().find(|t| t.name == format!("hog{n}")).unwrap().id
}

fn frame(op: Op, locked: Option<u32>, subject: u64) -> OpFrame {
    let locked = locked.map(CpuId);
    OpFrame { op: Some(op), locked, args: [subject, 0], ..OpFrame::default() }
}

#[test]
fn default_picker_says_whether_the_cpu_is_idle() {
    let mut k = busy("4c1t", 0, &[0, 1]);
    let out = k.vm.mem.alloc(8, 8).unwrap();
    let init = k.tasks[k.tasks.init].addr;
    let (task, prev) = (init, 2);
    assert_eq!(call(&mut k, "scx_bpf_select_cpu_dfl", &[task, prev, 0, out]), 2);
    assert_eq!(k.vm.mem.read::<u8>(out), Ok(1));
    assert_eq!(call(&mut k, "scx_bpf_select_cpu_dfl", &[task, prev, 0, out]), 3);
    assert_eq!(
        call(&mut k, "scx_bpf_select_cpu_dfl", &[task, prev, 0, out]),
        2,
        "none is idle: prev"
    );
    assert_eq!(k.vm.mem.read::<u8>(out), Ok(0));
    let pinned = k.tasks[hog(&k, 1)].addr;
    let all = k.ext.idle.possible_mask();
    assert_eq!(
        call(&mut k, "scx_bpf_select_cpu_and", &[pinned, 1, 0, all, 0]),
        -EBUSY,
        "its CPU is busy"
    );
    assert_eq!(error(&k), "");
    assert_eq!(call(&mut k, "scx_bpf_select_cpu_and", &[pinned, 9, 0, all, 0]), -EINVAL);
    assert_eq!(error(&k), "invalid CPU 9");
}

#[test]
fn args_struct_is_read_from_the_program() {
    let mut k = busy("4c1t", 0, &[0, 1]);
    let args = k.vm.mem.alloc(24, 8).unwrap();
    k.vm.mem.words_mut(args, 3).copy_from_slice(&[3, 0, 0]);
    let only = k.vm.mem.alloc(1024, 8).unwrap();
    k.vm.mem.words_mut(only, 1)[0] = 0b0110;
    let task = k.tasks[k.tasks.init].addr;
    assert_eq!(call(&mut k, "__scx_bpf_select_cpu_and", &[task, only, args]), 2);
    assert_eq!(call(&mut k, "__scx_bpf_select_cpu_and", &[task, only, args]), -EBUSY);
}

#[test]
fn picker_is_for_tasks_that_the_caller_may_look_at() {
    let mut k = busy("4c1t", 0, &[0, 1]);
    let (own, other) = (k.tasks[hog(&k, 0)].addr, k.tasks[hog(&k, 1)].addr);
    let all = k.ext.idle.possible_mask();
    let ask = |k: &mut Kernel, task| call(k, "scx_bpf_select_cpu_and", &[task, 2, 0, all, 0]);
    k.ext.frame = Some(frame(Op::Enqueue, Some(0), own));
    assert_eq!(ask(&mut k, own), -EBUSY);
    assert_eq!(error(&k), "");
    assert_eq!(ask(&mut k, other), -EINVAL);
    assert!(error(&k).starts_with("select_cpu kfunc called cross-task on hog1["), "{}", error(&k));

    let mut k = busy("4c1t", 0, &[0, 1]);
    let here = k.exec.cpu;
    k.ext.cpus[here].in_select_cpu = true;
    k.ext.frame = Some(frame(Op::SelectCpu, None, own));
    assert_eq!(ask(&mut k, own), -EBUSY);
    assert_eq!(ask(&mut k, other), -EINVAL);
    assert_eq!(error(&k), "called on a task not being operated on");
}

/// Every group of kfuncs has operations that may call it and some that may not.
#[test]
fn kfuncs_have_their_operations() {
    use crate::ext::kfunc::{by_name, context};
    let k = busy("4c1t", 0, &[0]);
    let mut k = k;
    for (name, good, bad) in [
        ("scx_bpf_select_cpu_and", &[Op::SelectCpu, Op::Enqueue, Op::Init][..], Op::Dispatch),
        ("scx_bpf_dsq_insert", &[Op::SelectCpu, Op::Enqueue, Op::Dispatch], Op::Running),
        ("scx_bpf_dsq_insert_vtime", &[Op::Enqueue], Op::Tick),
        ("scx_bpf_dsq_move_to_local", &[Op::Dispatch], Op::Enqueue),
        ("scx_bpf_dsq_move", &[Op::Dispatch, Op::CpuOnline], Op::Stopping),
        ("scx_bpf_create_dsq", &[Op::Init, Op::InitTask, Op::Dump], Op::DumpTask),
        ("scx_bpf_reenqueue_local", &[Op::CpuRelease], Op::CpuAcquire),
    ] {
        let id = by_name(name).expect("a kfunc");
        let groups = context::groups(name);
        let mut ask = |op| {
            k.ext.frame = Some(frame(op, None, 0));
            k.check_context(id, groups)
        };
        good.iter().for_each(|op| assert!(ask(*op).is_ok(), "{name} {op:?}"));
        let fault = ask(bad).unwrap_err().to_string();
        let said = format!("may not be called from ops.{}()", bad.name());
        assert!(fault.contains(name) && fault.contains(&said), "{fault}");
    }
    for (outside, kfunc, good) in [
        (Outside::Tracing, "scx_bpf_create_dsq", false),
        (Outside::Syscall, "scx_bpf_create_dsq", true),
        (Outside::Syscall, "scx_bpf_dsq_insert", false),
        (Outside::Timer(context::of_op(Op::Init)), "scx_bpf_dsq_insert", false),
        (Outside::Timer(context::of_op(Op::Init)), "scx_bpf_dsq_move", true),
        (Outside::Timer(context::of_op(Op::Dispatch)), "scx_bpf_dsq_move_to_local", true),
        (Outside::Timer(context::of_op(Op::Running)), "scx_bpf_kick_cpu", true),
    ] {
        k.ext.frame = Some(OpFrame::outside(outside));
        let answer = k.check_context(by_name(kfunc).expect("a kfunc"), context::groups(kfunc));
        assert_eq!(answer.is_ok(), good, "{outside:?} {kfunc}");
    }
    for name in ["scx_bpf_kick_cpu", "scx_bpf_dsq_nr_queued", "scx_bpf_destroy_dsq", "scx_bpf_now"]
    {
        assert_eq!(context::groups(name), 0, "{name}");
    }
}

#[test]
fn a_task_is_known_by_the_beginning_of_its_slot() {
    let k = busy("4c1t", 0, &[0, 1]);
    for task in k.tasks.ids() {
        let addr = k.tasks[task].addr;
        assert_eq!(k.tasks.at(addr), Some(task));
        let beside = [1, 8, 32, 64, SLOT_BYTES / 2, SLOT_BYTES - 64, SLOT_BYTES - 1, 1 << 63];
        for off in beside.into_iter().flat_map(|off| [off, off.wrapping_neg()]) {
            assert_eq!(k.tasks.at(addr.wrapping_add(off)), None, "{off:#x} beside {task:?}");
        }
    }
    let first = k.tasks.slot_addr(TaskId(0));
    for slots in [k.tasks.len() as u64 + 100, u64::from(MAX_TASKS), 1 << 32, u64::MAX] {
        assert_eq!(k.tasks.at(first.wrapping_add(slots.wrapping_mul(SLOT_BYTES))), None);
    }
}

#[test]
fn bad_pointers_are_faults() {
    let mut k = busy("4c1t", 0, &[]);
    assert!(pick_idle_cpu(&mut k, &[0, 0, 0, 0, 0]).is_err());
    let odd = k.ext.idle.possible_mask() + 1;
    assert!(pick_idle_cpu(&mut k, &[odd, 0, 0, 0, 0]).is_err());
    assert!(select_cpu_and(&mut k, &[0x1234, 0, 0, 0, 0]).is_err());
}
