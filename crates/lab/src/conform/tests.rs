// SPDX-License-Identifier: GPL-2.0-only
use super::log::{fold, without_turns};
use super::*;

fn ops(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn repeats_are_folded_whatever_their_number() {
    assert_eq!(fold(ops("a b c")), ops("a b c"));
    assert_eq!(fold(ops("a b a b a b c")), ops("a b + c"));
    assert_eq!(fold(ops("a b a b c")), fold(ops("a b a b a b a b c")));
    assert_eq!(fold(ops("a a a a")), ops("a +"));
    assert_ne!(fold(ops("a b c")), fold(ops("a b a b c")));
    assert_eq!(fold(ops("z a b c a b c a b")), ops("z a b c +"), "the case ends within a repeat");
}

#[test]
fn turns_are_left_out_where_asked() {
    let turn = "stopping(1) enqueue(0x0) dequeue(0x0) running";
    let with = format!("running {turn} tick {turn} stopping(0) quiescent(0x1) {turn}");
    assert_eq!(without_turns(ops(&with)), ops("running stopping(0) quiescent(0x1)"));
    // A turn (the task stops while runnable, is enqueued and runs again) must stay in the sequence
    // if another operation interrupts it. Here, the affinity of the enqueued task changes.
    let moved =
        "running stopping(1) enqueue(0x0) dequeue(0x200) set_cpumask(1) enqueue(0x200) running";
    assert_eq!(without_turns(ops(moved)), ops(moved));
    let ends = "running stopping(1) enqueue(0x0)";
    assert_eq!(without_turns(ops(ends)), ops("running"), "the case ends within a turn");
}

fn case(watch: &str) -> Case {
    let text = format!(
        "doc = 'd'\nduration = '1ms'\nwatch = [{watch}]\nworkload = '''\n[[thread]]\nname = 't'\nops = [{{ compute = '1ms' }}]\n'''"
    );
    Case::parse("c.toml", &text).unwrap()
}

#[test]
fn a_case_of_more_than_a_day_is_refused() {
    let text = |duration| format!("doc = 'd'\nduration = '{duration}'\nwatch = []\nworkload = ''");
    let error = Case::parse("c.toml", &text("86400001ms")).unwrap_err();
    let wanted = "c.toml: the duration is 86400001ms; the maximum for a case is a day";
    assert_eq!(error.to_string(), wanted);
}

fn observed(t: &str, exit: &str) -> Observed {
    let sequences = [("t".to_owned(), ops(t))].into();
    Observed { sequences, exit: exit.into(), lost: 0 }
}

#[test]
fn the_first_difference_is_named() {
    let case = case("'t'");
    let a = observed("init enable running", "none");
    assert_eq!(compare(&case, &a, &a), []);
    let found = compare(&case, &a, &observed("init running", "error"));
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].about.as_str(), found[0].same), ("t", 1));
    assert_eq!(
        (found[0].sim.as_deref(), found[0].real.as_deref()),
        (Some("enable"), Some("running"))
    );
    assert_eq!(found[1].about, "exit");
    let short = compare(&case, &a, &observed("init enable", "none"));
    assert_eq!((short[0].sim.as_deref(), short[0].real.as_deref()), (Some("running"), None));
}

#[test]
fn what_is_not_watched_is_not_compared() {
    let other =
        Observed { sequences: [("x".to_owned(), ops("a"))].into(), exit: "none".into(), lost: 0 };
    assert_eq!(compare(&case("'t'"), &observed("", "none"), &other), []);
}
