// SPDX-License-Identifier: GPL-2.0-only
//! Questions whose answer is known from how the candidates work.

use std::time::Duration;

use scxlab_lab::advise::{Observer, Place, Rounds, State};

use super::{chosen, question};

/// Six hogs on two CPUs, and a task that wakes up often.
const CROWD: &str = r#"
unit = "loop"
duration = "500ms"
[[thread]]
name = "hog-{i}"
instances = 6
ops = [{ loop = { ops = [{ compute = "1ms" }, { count = 1 }] } }]
[[thread]]
name = "editor"
ops = [{ loop = { ops = [{ compute = "200us" }, { sleep = "2ms" }] } }]
"#;

/// `vtime` never preempts, so a hog keeps its CPU for a slice: the longer, the fewer switches.
const SLICES: [&str; 3] = ["vtime,slice_ns=1000000", "vtime,slice_ns=20000000", "vtime"];

#[test]
fn the_longest_slices_switch_least() {
    let question = question(CROWD, "2c").goal("min:context_switches").among(&SLICES);
    let advice = question.ask().unwrap();
    assert_eq!(chosen(&advice), "vtime,slice_ns=20000000");
    let text = question.text(&advice);
    assert!(text.contains("sudo scxlab attach vtime,slice_ns=20000000"), "{text}");
    assert!(text.contains("This holds in 12 of 12 worlds."), "{text}");
    // What else differs follows from it: hogs lose their CPU less often.
    let found = |metric| advice.differences.iter().find(|d| d.metric() == metric);
    let lost = found("switches_involuntary").unwrap_or_else(|| panic!("{text}"));
    assert!(lost.change.high < Some(-0.5), "{lost:?}");
    assert!(found("context_switches").is_none() && text.contains("what else differs"), "{text}");
}

/// With a limit on what the editor waits, the long slices are out.
#[test]
fn a_limit_rules_out_what_would_be_best() {
    let goal = "min:context_switches,p90:wakeup_latency@edit*<12ms";
    let question = question(CROWD, "2c").goal(goal).among(&SLICES);
    let advice = question.ask().unwrap();
    let best = &advice.candidates[advice.chosen.expect("some slice keeps the limit")];
    assert_ne!(best.scheduler, "vtime,slice_ns=20000000");
    assert!(best.terms[0].broken.0 * 10 <= best.worlds, "{best:?}");
    let long = advice.candidates.iter().find(|c| c.scheduler == "vtime,slice_ns=20000000");
    let long = long.unwrap();
    assert!(long.terms[0].broken.0 * 10 > long.worlds, "{long:?}");
}

/// `credit` knows no nice values, and the default class does.
#[test]
fn weights_are_kept_by_those_that_know_them() {
    let workload = r#"
duration = "500ms"
[[thread]]
name = "urgent"
nice = -5
ops = [{ loop = { ops = [{ compute = "1ms" }] } }]
[[thread]]
name = "lazy"
nice = 5
ops = [{ loop = { ops = [{ compute = "1ms" }] } }]
"#;
    let advice = question(workload, "1c").goal("fair:weight").among(&["credit"]).ask().unwrap();
    assert_eq!(chosen(&advice), "eevdf");
    let (credit, base) = (&advice.candidates[0].terms[0].paired, &advice.baseline[0].1);
    assert!(credit.candidate.mean > Some(0.3), "{credit:?}");
    assert!(base.mean < Some(0.05), "{base:?}");
}

/// `goodness` does not know `cpu.max`: the work that it does beyond the limit is no gain.
#[test]
fn who_ignores_cpu_max_is_never_recommended() {
    let workload = |quota: &str| {
        format!(
            "duration = '500ms'\nunit = 'loop'\n[[cgroup]]\npath = '/capped'\n{quota}\
             [[thread]]\nname = 'hog'\ninstances = 2\ncgroup = '/capped'\n\
             ops = [{{ loop = {{ ops = [{{ compute = '1ms' }}, {{ count = 1 }}] }} }}]\n"
        )
    };
    let ask = |quota: &str| {
        let question =
            question(&workload(quota), "2c").goal("max:throughput").among(&["goodness", "fair"]);
        let advice = question.ask().unwrap();
        (question.text(&advice), advice)
    };
    let (text, capped) = ask("quota = '50ms'\nperiod = '100ms'\n");
    assert_eq!(chosen(&capped), "eevdf");
    let place = |name: &str| &capped.candidates.iter().find(|c| c.scheduler == name).unwrap().place;
    assert!(
        matches!(place("goodness"), Place::Failed { why } if why.contains("cpu.max")),
        "{text}"
    );
    assert!(!matches!(place("fair"), Place::Failed { .. }), "{text}");
    assert!(text.contains("goodness: it does not keep cpu.max"), "{text}");
    let (text, free) = ask("");
    assert!(!free.candidates.iter().any(|c| matches!(c.place, Place::Failed { .. })), "{text}");
}

/// A workload with weights has their fairness as its last goal, and the price of a scheduler that
/// ignores them is told with a limit that rules it out.
#[test]
fn the_price_of_ignoring_weights_is_told() {
    let workload = "duration = '500ms'\nunit = 'loop'\n\
        [[cgroup]]\npath = '/much'\nweight = 800\n[[cgroup]]\npath = '/little'\n\
        [[thread]]\nname = 'a'\ninstances = 2\ncgroup = '/much'\n\
        ops = [{ loop = { ops = [{ compute = '1ms' }] } }]\n\
        [[thread]]\nname = 'b'\ninstances = 2\ncgroup = '/little'\n\
        ops = [{ loop = { ops = [{ compute = '1ms' }, { count = 1 }] } }]\n";
    let question = question(workload, "1c").goal("max:throughput").among(&["goodness"]);
    let advice = question.ask().unwrap();
    let text = question.text(&advice);
    assert_eq!(chosen(&advice), "goodness", "{text}");
    assert!(text.contains("It is worse by fair:weight"), "{text}");
    assert!(text.contains("-g 'max:throughput,fair:weight<"), "{text}");
}

/// `lapse` with long slices switches least, but it is ejected in a fifth of its runs.
#[test]
fn an_ejected_candidate_is_never_recommended() {
    let lapse = "lapse,slice_ns=20000000,eject_after_ns=400000000,eject_permille=200";
    let steady = "lapse,slice_ns=20000000";
    let ask = |candidate: &str| {
        let question = question(CROWD, "2c").goal("min:context_switches").among(&[candidate]);
        let advice = question.ask().unwrap();
        let text = question.text(&advice);
        (advice, text)
    };
    assert_eq!(chosen(&ask(steady).0), steady);
    let (advice, text) = ask(lapse);
    assert_eq!(chosen(&advice), "eevdf");
    assert!(matches!(advice.candidates[0].place, Place::Failed { .. }), "{text}");
    assert!(text.contains("Stay with eevdf: every candidate failed."), "{text}");
    assert!(text.contains("ejected: error"), "{text}");
}

/// `lapse` that keeps the editor waiting from its first sleep on has more time for the hogs.
#[test]
fn who_starves_a_task_is_never_recommended() {
    let ask = |candidate: &str| {
        let question = question(CROWD, "2c").goal("max:throughput").among(&[candidate]);
        let advice = question.ask().unwrap();
        let text = question.text(&advice);
        (advice, text)
    };
    let (advice, text) = ask("lapse,starve=101,woken=1");
    assert_eq!(chosen(&advice), "eevdf", "{text}");
    assert!(
        matches!(&advice.candidates[0].place, Place::Failed { why } if why.contains("task editor ran for")),
        "{text}"
    );
    let (advice, text) = ask("lapse");
    assert!(!matches!(advice.candidates[0].place, Place::Failed { .. }), "{text}");
}

/// The answer depends on the number of rounds, and not on the number of threads.
#[test]
fn equal_rounds_give_equal_advice() {
    let ask = |threads: usize, rounds: Rounds| {
        let mut question = question("sleepers,tasks=9,duration=60ms", "2c");
        question.goals = vec!["p90:run_queue_wait".into()];
        (question.threads, question.rounds) = (threads, Some(rounds));
        let advice = question.ask().unwrap();
        (question.json(&advice), advice.rounds)
    };
    for rounds in [Rounds { search: 5, decide: 7 }, Rounds { search: 1000, decide: 1000 }] {
        let (one, made) = ask(1, rounds);
        assert_eq!(ask(3, rounds), (one.clone(), made));
        // The numbers that the report names give the same advice.
        assert_eq!(ask(2, made), (one, made));
    }
}

/// An observer whose time is over after some rounds.
struct Hurried(u32, std::sync::atomic::AtomicU32);

impl Observer for Hurried {
    fn interrupt(&self) -> Option<String> {
        None
    }

    fn time_left(&self) -> Option<Duration> {
        let is_over = self.1.load(std::sync::atomic::Ordering::Relaxed) >= self.0;
        Some(if is_over { Duration::ZERO } else { Duration::from_secs(3600) })
    }

    fn tell(&self, state: &State) {
        self.1.store(state.rounds, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn an_early_end_is_said_and_recommends_nothing() {
    let mut question = question(CROWD, "2c").goal("min:context_switches").among(&SLICES);
    question.rounds = None;
    let advice = question.ask_with(&Hurried(2, 0.into())).unwrap();
    assert_eq!((chosen(&advice), advice.rounds.decide), ("eevdf", 0));
    let why = advice.unfinished.as_deref().unwrap();
    assert!(
        why.contains("the budget is used") && why.contains("the decision takes about "),
        "{why}"
    );
    let text = question.text(&advice);
    assert!(text.starts_with("UNFINISHED: the budget is used"), "{text}");
    assert!(text.contains("nothing is decided"), "{text}");
}

/// An observer that interrupts the work before the first look at the candidates ends.
#[derive(Default)]
struct Impatient(std::sync::atomic::AtomicBool);

impl Observer for Impatient {
    fn interrupt(&self) -> Option<String> {
        self.0.load(std::sync::atomic::Ordering::Relaxed).then(|| "cancelled".to_owned())
    }

    fn time_left(&self) -> Option<Duration> {
        None
    }

    fn tell(&self, _: &State) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn without_a_first_look_there_is_no_advice() {
    let question = question(CROWD, "2c").goal("min:context_switches").among(&SLICES);
    let error = question.ask_with(&Impatient::default()).unwrap_err();
    assert_eq!(error.to_string(), "interrupted: cancelled");
    assert!("0+8".parse::<Rounds>().is_err());
}

#[test]
fn a_limit_that_nobody_keeps_is_named() {
    for (bound, said) in [("1", "neither eevdf nor a candidate keeps"), ("1000000", "")] {
        let goal = format!("min:context_switches<{bound},max:work_units");
        let mut question = question(CROWD, "2c").goal(&goal).among(&SLICES);
        question.rounds = Some(Rounds { search: 2, decide: 12 });
        let advice = question.ask().unwrap();
        let text = question.text(&advice);
        assert_eq!(text.contains("neither eevdf"), !said.is_empty(), "{text}");
        assert!(text.contains(said), "{text}");
        let json: serde_json::Value = serde_json::from_str(&question.json(&advice)).unwrap();
        let why = json["recommendation"]["why"].as_str().unwrap_or_default();
        assert!(why.contains(said), "{json}");
    }
}
