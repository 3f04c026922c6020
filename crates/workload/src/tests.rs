// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the choice between file forms, and of the errors of scxlab's own form.

use super::*;
use crate::program::TimeSpan;
use crate::program::dump::dump;

fn error(name: &str, text: &str) -> String {
    load(name, text).unwrap_err().to_string()
}

#[test]
fn the_form_of_a_file_is_seen_from_its_text() {
    let ours = r#"{ "thread": [{ "name": "a", "ops": [{ "compute": "1ms" }, "yield"] }] }"#;
    assert!(!load("x.json", ours).unwrap().from_rtapp);
    let rtapp = "/* c */ { \"tasks\": { \"thread\": { \"run\": 1, } } }";
    assert!(load("x.json", rtapp).unwrap().from_rtapp);
    let toml = "[[thread]]\nname = 'a'\nops = ['yield']";
    assert_eq!(load("dir/some.thing.toml", toml).unwrap().name, "some.thing");
}

#[test]
fn a_program_survives_its_own_text_forms() {
    for name in ["hackbench", "schbench", "hogs,weights=100:200", "spin_barrier", "pingpong"] {
        let Ok(WorkloadArg::Program(program)) = parse_workload_arg(name) else { panic!("{name}") };
        let toml = toml::to_string(&program).unwrap();
        assert_eq!(load("x.toml", &toml).unwrap(), *program, "{toml}");
        let json = serde_json::to_string(&program).unwrap();
        assert_eq!(dump(&load("x.json", &json).unwrap()), dump(&program));
    }
}

#[test]
fn errors_in_our_form_have_a_place() {
    let thread = |ops: &str| format!("[[thread]]\nname = 'a'\nops = [{ops}]");
    assert!(error("x.toml", &thread("{ computr = '1ms' }")).starts_with("x.toml:3:"));
    assert!(error("x.toml", &thread("{ compute = 5 }")).starts_with("x.toml:3:"));
    assert!(error("x.toml", &thread("{ compute = '5' }")).contains("write a number and ns, us"));
    assert!(error("x.toml", "[[thread]]\nname = 'a'\nop = []").contains("unknown field `op`"));
    assert!(error("x.json", r#"{ "thread": [{ "nam": "a" }] }"#).starts_with("x.json:1:"));
    assert!(error("x.toml", "[[thread]").starts_with("x.toml:1:"));
}

#[test]
fn durations_are_exact_and_need_a_unit() {
    let span = |text: &str| text.parse::<TimeSpan>();
    assert_eq!(span("2s"), Ok(TimeSpan(2_000_000_000)));
    assert_eq!(span("0.25us"), Ok(TimeSpan(250)));
    assert_eq!(span("1 min"), Ok(TimeSpan(60_000_000_000)));
    for bad in ["", "ms", "1", "-1ms", "1.ms", "0.0001us", "1h", "1.5.5s", "99999999999999999999s"]
    {
        assert!(span(bad).is_err(), "{bad}");
    }
    assert!(span("1000000001s").unwrap_err().contains("limit"));
    for nanos in [0, 1, 999, 1_000, 1_500_000, 2_000_000_000, u64::from(u32::MAX)] {
        assert_eq!(span(&TimeSpan(nanos).to_string()), Ok(TimeSpan(nanos)));
    }
}

#[test]
fn shipped_workloads_are_correct() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let program = load(&path.display().to_string(), &text).unwrap_or_else(|e| panic!("{e}"));
        assert!(!program.doc.is_empty(), "{}", path.display());
        count += 1;
    }
    assert!(count >= 4);
}
