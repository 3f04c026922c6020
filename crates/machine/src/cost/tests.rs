// SPDX-License-Identifier: GPL-2.0-only
//! Tests of cost tables: the embedded table is complete and plausible, and the parser refuses every
//! faulty table with key and line.

use super::*;
use crate::topology::Distance;

const MODERN: &str = include_str!("../../../../machines/costs/modern-x86.toml");

#[test]
fn every_base_table_loads() {
    for (name, text) in BASES {
        let table = CostTable::from_toml(name, text).unwrap();
        assert_eq!(table.constants.len(), NAMES.len());
    }
}

/// Checks relations that hold on any machine. A wrong digit in the table would break one of them.
#[test]
fn the_default_table_is_plausible() {
    let costs = CostTable::modern();
    for by in [costs.irq.ipi_latency_ns, costs.lock.hand_over_ns, costs.cache.refill_ns_per_kib] {
        assert!(by.smt <= by.core && by.core <= by.llc && by.llc <= by.node);
        assert_eq!(by[Distance::Same], 0);
    }
    assert!(costs.lock.uncontended_ns < costs.lock.hand_over_ns[Distance::Smt]);
    assert!(costs.syscall.entry_ns < costs.sched.context_switch_ns);
    assert!(costs.syscall.fork_ns < costs.syscall.exec_ns);
    assert_eq!(costs.tick_period_ns(), 4_000_000);
    assert!(costs.constants.iter().all(|constant| constant.source.len() > 10));
}

#[test]
fn arithmetic() {
    let costs = CostTable::modern();
    assert_eq!(costs.insns_ns(0), 0);
    assert_eq!(costs.insns_ns(1000), 350);
    assert_eq!(costs.insns_ns(3), 1);
    assert!(costs.insns_ns(u64::MAX) > 1 << 50);
    assert_eq!(costs.refill_ns(Distance::Llc, 10 << 10), 1000);
    assert_eq!(costs.refill_ns(Distance::Same, u64::MAX), 0);
    assert_eq!(costs.memory_slowdown(10), Ratio { num: 100, den: 100 });
    assert_eq!(costs.memory_slowdown(20), Ratio { num: 170, den: 100 });
    assert_eq!(costs.memory_slowdown(254).of(100), 1808);
    assert_eq!(costs.memory_slowdown(0), costs.memory_slowdown(10));
    assert_eq!(costs.memory_slowdown(u32::MAX), costs.memory_slowdown(255));
    assert_eq!(costs.idle_state(0).name, "POLL");
    assert_eq!(costs.idle_state(3_999).name, "C1");
    assert_eq!(costs.idle_state(u64::MAX).name, "C6");
}

#[test]
fn ratios() {
    let ratio = Ratio { num: 62, den: 100 };
    assert_eq!((ratio.of(1000), ratio.divide(620)), (620, 1000));
    assert_eq!(Ratio { num: 3, den: 1 }.of(u64::MAX), u64::MAX);
    assert_eq!(Ratio { num: 0, den: 1 }.divide(1), u64::MAX);
    assert_eq!(Ratio::ONE.of(u64::MAX), u64::MAX);
}

#[test]
fn bad_tables_are_refused_with_key_and_line() {
    let helper = "[bpf.helper_call]\nvalue = 2\n";
    let cases = [
        (helper, "[bpf.helper_call]\n", "missing key \"bpf.helper_call.value\"", Some(helper)),
        ("value = 350", "value = -350", "bpf.insn.value is -350", Some("value = 350")),
        (
            "value = 350",
            "value = 3.5",
            "bpf.insn.value must be an integer, not float",
            Some("value = 350"),
        ),
        (
            "value = 350",
            "value = 2_000_000_000",
            "bpf.insn.value is 2000000000",
            Some("value = 350"),
        ),
        (
            "value = 350",
            "value = { num = 1, den = 2 }",
            "missing key \"bpf.insn.value.smt\"",
            Some("value = 350"),
        ),
        (
            "unit = \"ps\"",
            "unit = \"ns\"",
            "bpf.insn is in ps, not in \"ns\"",
            Some("unit = \"ps\""),
        ),
        (helper, "[bpf.helper_cal]\nvalue = 2\n", "unknown key \"bpf.helper_cal\"", Some(helper)),
        (helper, "[bfp.helper_call]\nvalue = 2\n", "unknown key \"bfp\"", Some(helper)),
        (
            helper,
            "[bpf.helper_call]\nvalue = 2\ncolour = 1\n",
            "unknown key \"bpf.helper_call.colour\"",
            None,
        ),
        (
            "value = { num = 62, den = 100 }",
            "value = { num = 62, den = 0 }",
            "smt.busy_sibling_speed.value.den cannot be 0",
            None,
        ),
        (
            "value = { num = 62, den = 100 }",
            "value = { num = 101, den = 100 }",
            "smt.busy_sibling_speed.value must be above 0",
            None,
        ),
        (
            "value = { num = 62, den = 100 }",
            "value = 1",
            "smt.busy_sibling_speed.value must be { num = .., den = .. }",
            None,
        ),
        (
            "value = { num = 17, den = 10 }",
            "value = { num = 9, den = 10 }",
            "memory.remote_slowdown.value must be 1 or more",
            None,
        ),
        (
            "value = 1241",
            "value = 99",
            "guest.ple_window.value must be 100 or more",
            Some("[guest.ple_window]"),
        ),
        (
            "value = { num = 2, den = 1 }",
            "value = { num = 1, den = 2 }",
            "guest.ple_grow.value must be 1 or more",
            Some("[guest.ple_grow]"),
        ),
        (
            "value = 250\nunit = \"hz\"",
            "value = 0\nunit = \"hz\"",
            "clock.tick.value must be in 1..=10000",
            None,
        ),
        (
            "min_residency_ns = 4000",
            "min_residency_ns = 1000",
            "idle state C1E is not deeper",
            None,
        ),
        ("name = \"C6\"", "nom = \"C6\"", "missing key \"idle[3].name\"", None),
        (
            "source = \"cpuidle's poll state\"",
            "source = \"estimate: \"",
            "a source must say",
            Some("source = \"cpuidle"),
        ),
        ("[bpf.insn]", "[bpf.insn", "unclosed table", Some("[bpf.insn]")),
    ];
    for (from, to, reason, at) in cases {
        assert!(MODERN.contains(from), "{from}");
        let error =
            CostTable::from_toml("costs.toml", &MODERN.replacen(from, to, 1)).expect_err(reason);
        let error = error.to_string();
        assert!(error.contains(reason), "expected \"{reason}\", got \"{error}\"");
        if let Some(at) = at {
            let line = 1 + MODERN[..MODERN.find(at).unwrap()].matches('\n').count();
            assert!(error.starts_with(&format!("costs.toml:{line}: ")), "line {line}: {error}");
        }
    }
}

#[test]
fn a_missing_constant_is_named() {
    let start = MODERN.find("[lock.hand_over]").unwrap();
    let end = start + MODERN[start..].find("\n\n").unwrap();
    let without = format!("{}{}", &MODERN[..start], &MODERN[end..]);
    let error = CostTable::from_toml("costs.toml", &without).unwrap_err().to_string();
    assert_eq!(error, "costs.toml:1: missing constant \"lock.hand_over\"");
    let error = CostTable::from_toml("costs.toml", "").unwrap_err().to_string();
    assert!(error.contains("missing constant \"idle\""), "{error}");
}
