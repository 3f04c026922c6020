// SPDX-License-Identifier: GPL-2.0-only
//! Tests which CPUs a waking vCPU interrupts (`bpf/lib/tickle.bpf.h`), by the table
//! `cases/sched/credit/tickle.case`. The cases follow from the diff of the Xen change that this
//! header names.

use scxlab_testkit::shipped::{run_program, selftest};
use scxlab_testkit::sim::kernel;
use std::fmt::Write;

const CASES: &str = include_str!("../../../../cases/sched/credit/tickle.case");

const COUNTERS: [(u32, &str); 7] = [
    (8, "tickle_local_idler"),
    (9, "tickle_local_over"),
    (10, "tickle_local_under"),
    (11, "tickle_local_other"),
    (12, "tickle_idlers_none"),
    (13, "tickle_idlers_some"),
    (2, "migrate_kicked_away"),
];

fn priority(name: &str) -> i32 {
    let known = [("idle", -64), ("over", -2), ("under", -1), ("boost", 0), ("other", 1)];
    known.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no priority {name}")).1
}

/// Builds the argument of the BPF program `tickle_run`, a `struct tickle_case`, from the words of a
/// case.
fn context(words: &[&str]) -> Vec<u8> {
    let bits = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal bits");
    let number = |text: &str| text.parse::<u32>().expect("a number");
    let mut ctx = Vec::new();
    for mask in [bits(words[5]), bits(words[6]), 0] {
        ctx.extend(mask.to_ne_bytes());
    }
    let mode = u32::from(words[0] == "new");
    for word in [mode, number(words[1]), number(words[2])] {
        ctx.extend(word.to_ne_bytes());
    }
    for pri in [priority(words[3]), priority(words[4])] {
        ctx.extend(pri.to_ne_bytes());
    }
    for word in [4, number(words[7]), 0] {
        ctx.extend(word.to_ne_bytes());
    }
    ctx
}

/// Formats the result that `tickle_run` left in its argument as the case file writes it: the CPUs
/// that were told to reschedule, as bits; the counters that went up; and `last_tickle_cpu`.
fn outcome(cpu: u32, ctx: &[u8]) -> String {
    let word = |at: usize| u32::from_ne_bytes(ctx[at..at + 4].try_into().expect("four bytes"));
    let woken = u64::from_ne_bytes(ctx[16..24].try_into().expect("eight bytes"));
    let (last, what) = (word(48), word(52));
    let told = woken | u64::from(what & 1) << cpu;
    let up: Vec<&str> =
        COUNTERS.iter().filter(|(bit, _)| what >> bit & 1 == 1).map(|(_, name)| *name).collect();
    let up = if up.is_empty() { "-".to_owned() } else { up.join(",") };
    let mut text = String::new();
    write!(text, "{told:x} {up}  {last}").expect("a String takes any text");
    text
}

#[test]
fn each_case_of_the_diff_is_decided_as_the_diff_says() {
    let mut k = kernel("1c", "hogs,tasks=1", 1);
    let loaded = selftest(&mut k, "tickle");
    let mut wrong = String::new();
    let mut cases = 0;
    for line in CASES.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
        let (given, wanted) = line.split_once("=>").expect("a case has =>");
        let words: Vec<&str> = given.split_whitespace().collect();
        let mut ctx = context(&words);
        let ret = run_program(&mut k, &loaded, "tickle_run", &mut ctx);
        let got = outcome(words[2].parse().expect("a CPU"), &ctx);
        if ret != 0 || got != wanted.trim() {
            writeln!(wrong, "{line}\n  returned {ret}: {got}").expect("a String takes any text");
        }
        cases += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert_eq!(cases, 43, "cases in the file");
}
