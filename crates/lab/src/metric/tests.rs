// SPDX-License-Identifier: GPL-2.0-only
//! Tests that each metric is declared once, that names of a family are recognised, and that
//! quantiles need enough samples.

use std::collections::BTreeSet;

use super::*;

#[test]
fn every_name_is_declared_once() {
    let mut seen = BTreeSet::new();
    for metric in all() {
        assert!(seen.insert(metric.name), "{} is declared twice", metric.name);
        assert_eq!(metric.split().is_some(), metric.name.contains('<'), "{}", metric.name);
        let rows = metric.rows.iter().map(|row| row.name);
        for name in rows.chain(metric.agrees.iter().copied()) {
            let declarations: Vec<_> = all().filter(|m| m.declares(name)).collect();
            assert_eq!(declarations, [metric], "{name}");
        }
    }
}

#[test]
fn a_name_of_a_family_has_one_of_its_parts() {
    assert_eq!(WAKEUP_LATENCY.part_of("wakeup_latency_p99.9"), Some("p99.9"));
    assert_eq!(find("wakeup_latency_p98"), None);
    assert_eq!(find("migrations_node"), Some(&MIGRATIONS_BY_DISTANCE));
    assert_eq!(find("migrations"), Some(&MIGRATIONS));
    assert_eq!(find("cpu12_busy"), Some(&ONE_CPU_BUSY));
    assert_eq!(find("cpu_busy"), Some(&CPU_BUSY));
    assert_eq!(find("cpux_busy"), None);
    assert_eq!(find("sched.moved"), Some(&COUNTER));
    assert_eq!(find("sched."), None);
}

/// Quantiles that a distribution has too few samples for are absent.
#[test]
fn quantiles_are_present_when_samples_support_them() {
    let names = |count| {
        let mut table = MetricTable::new("loop");
        table.times(&LOCK_WAIT, count, 9, u64::from);
        table.into_values().into_iter().map(|(name, m)| (name, m.value)).collect::<Vec<_>>()
    };
    assert_eq!(names(0), []);
    let wanted = [("p50", 5_000.0), ("p90", 9_000.0), ("p99", 9_900.0), ("p99.9", 9_990.0)];
    let wanted = wanted.into_iter().chain([("max", 9.0)]);
    assert_eq!(names(1), wanted.map(|(q, v)| (format!("lock_wait_{q}"), v)).collect::<Vec<_>>());
}

/// With fewer than 10,000 samples, p99.99 is absent, because it would be the largest sample.
#[test]
fn p99_99_needs_ten_thousand_samples() {
    let value = |count| {
        let mut table = MetricTable::new("loop");
        table.times(&WAKEUP_LATENCY, count, 9, u64::from);
        table.into_values().get("wakeup_latency_p99.99").map(|m| m.value)
    };
    assert_eq!((value(9_999), value(10_000)), (None, Some(9_999.0)));
}

#[test]
#[should_panic(expected = "no metric of migrations_<distance>")]
fn an_undeclared_part_is_our_mistake() {
    MetricTable::new("loop").count_part(&MIGRATIONS_BY_DISTANCE, "socket", 1);
}
