// SPDX-License-Identifier: GPL-2.0-only
//! The knobs files of the shipped schedulers: each value is one that the scheduler takes. And the
//! knobs file of a user's object.

use scxlab_lab::advise::candidate::{Candidates, EEVDF_KNOBS, When, parse_knobs};
use scxlab_lab::advise::trials::Trials;
use scxlab_lab::advise::{Unhurried, value::Seen};

use super::question;

/// A workload with guests, in which every knob has an effect, on a machine with nodes and caches.
const GUESTS: &str = "hogs,tasks=4,duration=50ms,vms=2,vcpus=2";

#[test]
fn each_value_is_taken_by_its_scheduler() {
    let question = question(GUESTS, "2n2l2c1t").goal("min:context_switches");
    let candidates = Candidates::collect(&question.sources, question.origin()).unwrap();
    assert_eq!(candidates.left_out, []);
    let request = question.request();
    let trials = Trials::new(&request, &request.goals, &Unhurried).unwrap();
    for candidate in candidates.all() {
        let exit = |seen: Seen<'_>| seen.run.exit.clone();
        let exit = trials.pilot(candidate, exit).unwrap().expect("nothing interrupts");
        assert_eq!(exit.kind, "none", "{}: {}", candidate.text(), exit.message);
    }
    let declared = scxlab_sched::shipped().iter().map(|shipped| {
        let knobs = parse_knobs(shipped.name, shipped.knobs).unwrap();
        1 + knobs.values().map(|range| range.values.len()).sum::<usize>()
    });
    let tunables = parse_knobs("eevdf", EEVDF_KNOBS).unwrap();
    let tunables = tunables.values().map(|range| range.values.len()).sum::<usize>();
    assert_eq!(candidates.all().len(), 1 + tunables + declared.sum::<usize>());
}

#[test]
fn each_knob_has_a_sentence_and_no_default_among_its_values() {
    for shipped in scxlab_sched::shipped() {
        let knobs = parse_knobs(shipped.name, shipped.knobs).unwrap();
        assert!(!knobs.is_empty(), "{} has no knobs worth trying", shipped.name);
        let question = question(GUESTS, "2n2l2c1t").among(&[shipped.name]);
        let candidates = Candidates::collect(&question.sources, question.origin()).unwrap();
        let object = candidates.all()[1].prepared.object.as_ref().unwrap();
        for (knob, range) in knobs {
            assert!(range.doc.ends_with('.'), "{}, {knob}: {}", shipped.name, range.doc);
            let default = &object.knobs[&knob];
            let is_default = range.values.iter().any(|value| value.to_string() == *default);
            assert!(!is_default, "{}: {knob}={default} is the default", shipped.name);
        }
    }
}

#[test]
fn conditions_leave_out_what_has_no_effect() {
    let texts = |workload: &str, machine: &str| {
        let question = question(workload, machine);
        let candidates = Candidates::collect(&question.sources, question.origin()).unwrap();
        candidates.all().iter().map(|c| c.text().to_owned()).collect::<Vec<_>>()
    };
    let (all, few) = (texts(GUESTS, "2n2l2c1t"), texts("hogs", "4c"));
    for text in ["fair,gang=v2", "fair,numa=preferred", "vtime,pull_ns=0", "eevdf,llc_balancing=0"]
    {
        assert!(all.iter().any(|t| t == text) && !few.iter().any(|t| t == text), "{few:?}");
    }
}

#[test]
fn an_object_of_a_user_may_have_a_knobs_file() {
    let object = scxlab_sched::find("vtime").unwrap().object;
    let mut question = question("hogs", "4c");
    question.sources.objects = vec!["dir/mine.bpf.o".into(), "dir/other.o".into()];
    let knobs = "[slice_ns]\ndoc = \"Fewer switches.\"\ntry = [7000000]\nwhen = \"nodes\"\n\
                 [sleep_lag_ns]\ndoc = \"None.\"\ntry = [0]\n[nothing]\ndoc = \"-\"\ntry = [1]\n";
    for (path, bytes) in [
        ("dir/mine.bpf.o", object),
        ("dir/other.o", b"no object"),
        ("dir/mine.knobs.toml", knobs.as_bytes()),
    ] {
        question.files.0.insert(path.into(), bytes.to_vec());
    }
    let candidates = Candidates::collect(&question.sources, question.origin()).unwrap();
    let mine = candidates.all().iter().map(|c| c.text()).filter(|text| text.starts_with("dir/"));
    assert_eq!(mine.collect::<Vec<_>>(), ["dir/mine.bpf.o", "dir/mine.bpf.o,sleep_lag_ns=0"]);
    let left: Vec<&str> = candidates.left_out.iter().map(|l| l.scheduler.as_str()).collect();
    assert_eq!(left, ["dir/mine.bpf.o,nothing=1", "dir/other.o"]);
}

#[test]
fn a_faulty_knobs_file_is_refused_with_its_name_and_place() {
    for (text, what) in [
        ("[slice_ns]\ntry = [1]\n", "missing field `doc`"),
        ("[slice_ns]\ndoc = \"x\"\ntry = 1\n", "line 3"),
        ("[slice_ns]\ndoc = \"x\"\ntry = [1]\nwhen = \"rain\"\n", "rain"),
        ("[slice_ns]\ndoc = \"x\"\ntry = [1]\nwhen_ = \"nodes\"\n", "when_"),
    ] {
        let error = parse_knobs("mine.knobs.toml", text).unwrap_err().to_string();
        assert!(error.starts_with("mine.knobs.toml: ") && error.contains(what), "{error}");
    }
    let ok = parse_knobs("x", "[a]\ndoc = \"x\"\ntry = [1, \"y\", true]\nwhen = \"caches\"\n");
    assert_eq!(ok.unwrap()["a"].when, Some(When::Caches));
}
