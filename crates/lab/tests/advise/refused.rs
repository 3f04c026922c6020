// SPDX-License-Identifier: GPL-2.0-only
//! Goals that a workload cannot answer are refused before the search, with the reason.

use scxlab_lab::advise::AdviseError;

use super::{Question, question};

const NO_UNITS: &str = r#"
duration = "100ms"
[[thread]]
name = "render-1"
ops = [{ loop = { ops = [{ compute = "1ms" }, { sleep = "20ms" }] } }]
"#;

fn check(question: Question, why: &str) {
    let error = question.among(&["vtime"]).ask().unwrap_err();
    assert!(matches!(error, AdviseError::Goal { .. } | AdviseError::NoGoal { .. }), "{error}");
    assert!(error.to_string().contains(why), "{error}");
}

#[test]
fn a_goal_without_an_answer_is_refused() {
    let ask = |goal: &str| question(NO_UNITS, "2c").goal(goal);
    check(ask("max:throughput"), "goal max:throughput: the workload finishes no unit of work");
    check(ask("p99:wakeup_latency@sound*"), "no task is called \"sound*\"; tasks are render-1");
    check(ask("p99:wakeup_latency@render*"), "render* woke up 4 times; p99 needs 100");
    check(ask("p99:wakeup_latency"), "times; p99 needs 100");
    check(ask("min:finish"), "the workload ends after its duration of 100ms");
    check(ask("max:timer_slack_min"), "has no metric timer_slack_min");
    check(ask("p50:lock_wait"), "has no metric lock_wait_p50");
    check(ask("p50:wakeup_latency,p99:run_queue_wait@x<1ms"), "no task is called \"x\"");
}

#[test]
fn a_workload_that_does_not_end_has_no_time_to_finish() {
    let endless = NO_UNITS.replace("duration = \"100ms\"", "");
    check(question(&endless, "2c").goal("min:finish"), "the workload did not finish");
}

#[test]
fn claims_beside_weights_have_no_fairness() {
    let capped = format!("{NO_UNITS}[[cgroup]]\npath = \"/a\"\nquota = \"1ms\"\n");
    check(question(&capped, "2c").goal("fair:weight"), "cgroup /a has cpu.max or cpu.idle");
    let fifo = NO_UNITS.replacen("ops =", "policy = { fifo = 3 }\nops =", 1);
    check(question(&fifo, "2c").goal("fair:weight"), "the policy of thread render-1 has no weight");
}

#[test]
fn without_a_goal_the_workload_must_have_one() {
    check(question(NO_UNITS, "2c"), "neither units of work nor enough wake-ups");
    let counting = NO_UNITS.replace("{ sleep = \"20ms\" }", "{ sleep = \"20ms\" }, { count = 1 }");
    let question = question(&counting, "2c").among(&["vtime"]);
    let advice = question.ask().unwrap();
    assert_eq!(advice.goals.objectives.len(), 1);
    assert!(question.text(&advice).contains("p99:wakeup_latency is no goal here"));
}

#[test]
fn a_workload_that_fails_by_itself_is_refused() {
    let stuck = "unit = \"loop\"\n[[barrier]]\nname = \"b\"\nparties = 2\n[[thread]]\nname = \"a\"\nops = [{ count = 1 }, { barrier = \"b\" }]\n";
    let error = question(stuck, "2c").goal("max:work_units").among(&["vtime"]).ask().unwrap_err();
    assert!(matches!(error, AdviseError::Baseline { .. }), "{error}");
    assert!(error.to_string().contains("deadlock"), "{error}");
}
