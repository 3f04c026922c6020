// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the data that `ops.exit` gets.

use super::*;
use crate::bpf::abi;
use crate::ext::idle::fixture::{kernel, load};
use scxlab_bpf::mem::Memory;

fn text(mem: &Memory, addr: u64) -> String {
    let byte = |at| mem.read::<u8>(addr + at).expect("readable memory");
    let bytes = (0..).map(byte).take_while(|&byte| byte != 0);
    String::from_utf8(bytes.collect()).expect("the kernel's text is ASCII")
}

/// Loads a scheduler with the operations `has` and the dump length `exit_dump_len`, and ends it by
/// an error. Returns the lines that its `ops.exit` wrote to the kernel's log.
fn log_of_exit(
    has: &'static [Op],
    exit_dump_len: u32,
    call: fn(&mut Kernel, Op, &[u64]) -> u64,
) -> Vec<String> {
    let mut k = kernel("2c1t", &[None]);
    load(&mut k, 0, has, call);
    k.ext.root.as_mut().expect("loaded").data.exit_dump_len = exit_dump_len;
    k.scx_error("it went wrong");
    k.run(Some(30_000_000));
    assert!(k.ext.root.is_none(), "the scheduler is gone");
    k.ext.printk
}

fn exit_info(k: &Kernel, args: &[u64]) -> abi::scx_exit_info {
    *k.vm.mem.host_ref(args[0])
}

#[test]
fn exit_info_has_every_member() {
    fn log_it(k: &mut Kernel, op: Op, args: &[u64]) -> u64 {
        if op == Op::Exit {
            let ei = exit_info(k, args);
            let frames: Vec<u64> =
                (0..64).map(|at| k.vm.mem.read(ei.bt + 8 * at).expect("room for 64")).collect();
            k.ext.printk.push(format!(
                "kind {} cpu {} flags {} frames {} {:?}",
                ei.kind,
                ei.exit_cpu,
                ei.flags,
                ei.bt_len,
                frames.iter().max()
            ));
            k.ext.printk.push(text(&k.vm.mem, ei.reason));
            k.ext.printk.push(text(&k.vm.mem, ei.msg));
            k.ext.printk.push(text(&k.vm.mem, ei.dump).lines().next().unwrap_or("").to_owned());
        }
        0
    }
    let rest = ["runtime error", "it went wrong", "fixture: root"];
    for (has, flags) in [(&[Op::Init, Op::Exit][..], 1), (&[Op::Exit][..], 0)] {
        let log = log_of_exit(has, 0, log_it);
        assert_eq!(log[0], format!("kind 1024 cpu 0 flags {flags} frames 0 Some(0)"));
        assert_eq!(log[1..], rest);
    }
}

#[test]
fn ops_exit_gets_a_dump_as_long_as_the_scheduler_asked_for() {
    fn fill(k: &mut Kernel, op: Op, args: &[u64]) -> u64 {
        match op {
            Op::Dump => (0..200).for_each(|_| k.dump_append(&"x".repeat(1000))),
            Op::Exit => {
                let len = text(&k.vm.mem, exit_info(k, args).dump).len();
                k.ext.printk.push(len.to_string());
            }
            _ => {}
        }
        0
    }
    for (asked, got) in [(0, 32_767), (1000, 999), (100_000, 99_999)] {
        assert_eq!(log_of_exit(&[Op::Dump, Op::Exit], asked, fill), [got.to_string()]);
    }
}
