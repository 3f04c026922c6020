// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the grammar of goals: meanings, and the position and advice of each mistake.

use super::*;

fn parse(text: &str) -> Result<Goals, GoalError> {
    Goals::parse(&[text.to_owned()])
}

fn texts(goals: &Goals) -> Vec<&str> {
    goals.objectives.iter().map(|term| term.text.as_str()).collect()
}

#[test]
fn objectives_keep_their_order_and_limits_stand_apart() {
    let goals = parse("max:throughput, p99:wakeup_latency@render*<2ms ,min:migrations").unwrap();
    assert_eq!(texts(&goals), ["max:throughput", "min:migrations"]);
    let directions: Vec<Direction> = goals.objectives.iter().map(|term| term.better).collect();
    assert_eq!(directions, [Direction::More, Direction::Less]);
    let limit = &goals.limits[0];
    assert_eq!((limit.text.as_str(), limit.bound), ("p99:wakeup_latency@render*<2ms", 2e6));
    assert_eq!(goals.patterns(), ["render*"]);
    assert!(!goals.are_default);
}

#[test]
fn several_goals_are_one_list() {
    let goals = Goals::parse(&["p99.9:run_queue_wait".into(), "min:finish".into()]).unwrap();
    assert_eq!(texts(&goals), ["p99.9:run_queue_wait", "min:finish"]);
    assert_eq!(goals.objectives[1].measure, Measure::Finish);
}

#[test]
fn limits_alone_leave_the_default_objectives() {
    let goals = parse("p99:wakeup_latency<=2ms").unwrap();
    assert_eq!(texts(&goals), ["max:throughput", "p99:wakeup_latency"]);
    assert!(goals.are_default);
    let bounds: Vec<f64> = goals.limits.iter().map(|limit| limit.bound).collect();
    assert_eq!(bounds, [2e6]);
}

#[test]
fn bounds_have_the_unit_of_their_quantity() {
    for (text, bound) in [
        ("fair:weight<5%", 0.05),
        ("max:throughput>100", 100.0),
        ("min:migrations<1000", 1000.0),
        ("min:finish<2s", 2e9),
        ("max:timer_slack_min>1ms", 1e6),
    ] {
        assert_eq!(parse(text).unwrap().limits[0].bound, bound, "{text}");
    }
}

/// `at` counts characters from 1; `what` is a part of the message.
fn check_mistake(text: &str, at: usize, what: &str) {
    let error = parse(text).unwrap_err();
    assert!(error.at == at && error.what.contains(what), "{error}");
}

#[test]
fn a_mistake_has_its_place_and_what_would_be_right() {
    check_mistake("throughput", 1, "WHAT:QUANTITY");
    check_mistake("", 1, "WHAT:QUANTITY");
    check_mistake("max:throughput,", 16, "WHAT:QUANTITY");
    check_mistake("p98:wakeup_latency", 1, "p50, p90, p99, p99.9, p99.99, max");
    check_mistake("min:wakeup_latency", 1, "wakeup_latency is a distribution");
    check_mistake("p99:throughput", 5, "only a distribution has a p99");
    check_mistake("best:throughput", 1, "\"best\" is not one of");
    check_mistake("max:througput", 5, "unknown quantity \"througput\"");
    check_mistake("min:throughput", 1, "write max:throughput");
    check_mistake("max:timers_missed", 1, "write min:timers_missed");
    check_mistake("max:finish", 1, "min:finish");
    check_mistake("fair:nice", 6, "fair:weight");
    check_mistake("max:throughput@render", 15, "wakeup_latency and run_queue_wait");
    check_mistake("p99:lock_wait@render", 14, "wakeup_latency and run_queue_wait");
    check_mistake("p99:wakeup_latency@", 19, "@render*");
    check_mistake("p99:wakeup_latency<2", 20, "is not a time");
    check_mistake("p99:wakeup_latency>2ms", 19, "an upper bound: write <");
    check_mistake("max:throughput<2", 15, "a lower bound: write >");
    check_mistake("fair:weight<5", 13, "not a percentage");
    check_mistake("min:migrations<many", 16, "not a number");
    check_mistake("max:throughput,max:throughput", 16, "given twice");
    check_mistake("p99:wakeup_latency@ä*,  min:wakeups,min:x", 41, "unknown quantity");
}
