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

/// Messages of the parser that name its own types say what a user may write.
#[test]
fn wrong_types_say_what_is_allowed() {
    let thread = |key: &str| format!("[[thread]]\nname = 'a'\n{key}\nops = ['yield']");
    let whole = "must be a whole number from 0 to 4294967295";
    for (key, said) in [
        ("instances = -1", whole),
        ("instances = 'many'", whole),
        ("instances = 1.5", whole),
        ("footprint = -5", "must be a whole number, 0 or more"),
        ("nice = 200", "must be a whole number from -20 to 19"),
        ("policy = { fifo = 300 }", "must be a whole number from 0 to 255"),
    ] {
        let message = error("x.toml", &thread(key));
        assert!(message.starts_with("x.toml:3:") && message.contains(said), "{message}");
        assert!(!message.contains("expected"), "{message}");
    }
    let json = r#"{ "thread": [{ "name": "a", "instances": -1, "ops": ["yield"] }] }"#;
    assert!(error("x.json", json).contains(whole));
    let table = error("x.toml", "[thread]\nname = 'a'");
    assert!(table.starts_with("x.toml:1:") && table.contains("must be a list"), "{table}");
}

/// An error about a whole entry has the place of its table.
#[test]
fn an_entry_has_the_place_of_its_table() {
    let good = "[[thread]]\nname = 'a'\nops = ['yield']\n\n";
    for (bad, said) in [
        ("[[thread]]\nname = 'b'", "missing field `ops`"),
        ("[[thread]]\nops = ['yield']", "missing field `name`"),
        ("[[thread]]\nname = 'a'\nops = ['yield']", "two threads are named"),
        (
            "[[thread]]\nname = 'b'\nnice = 19\ncpus = '9'\nops = ['yield']\ninstances = 0",
            "nothing forks it",
        ),
        ("[[region]]\nname = 'r'", "missing field `size`"),
        ("[[barrier]]\nname = 'b'", "missing field `parties`"),
        ("[[cgroup]]\nweight = 5", "missing field `path`"),
    ] {
        let message = error("x.toml", &format!("{good}{bad}"));
        assert!(message.starts_with("x.toml:5:1: ") && message.contains(said), "{bad}: {message}");
    }
    let message = error("x.toml", &format!("{good}thread = 5"));
    assert!(message.starts_with("x.toml:"), "{message}");
}

/// A workload without a thread is refused with its file, and a CPU that the machine lacks with the
/// thread or op that names it.
#[test]
fn what_the_machine_shows_has_a_place() {
    let config = || exec::ExecConfig { nr_cpus: 2, ..exec::ExecConfig::default() };
    let refused = |name: &str, text: &str| {
        let program = load(name, text).unwrap();
        Executor::new(&program, config()).err().expect(text).to_string()
    };
    let none = refused("dir/none.toml", "name = 'n'");
    assert!(none.starts_with("dir/none.toml: the workload has no thread to run"), "{none}");
    let op = "[[thread]]\nname = 'a'\nops = [\n  'yield',\n  { set_affinity = '0,7' },\n]";
    let message = refused("x.toml", op);
    assert!(message.starts_with("x.toml:5:3: thread \"a\" names CPU 7"), "{message}");
    let rtapp =
        "{ \"tasks\": {\n \"t\": { \"run\": 1000 },\n \"u\": { \"run\": 1000, \"cpus\": [4] } } }";
    let message = refused("dir/x.json", rtapp);
    assert!(message.starts_with("dir/x.json:3:2: thread \"u\" names CPU 4"), "{message}");
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
