// SPDX-License-Identifier: GPL-2.0-only
//! Tests of a program's cgroups: they are created, entered, limited, and removed at every kind of
//! end.

use std::fs;
use std::path::PathBuf;

use scxlab_workload::native::{self, NativeConfig, NativeError, NativeStop, SetupError};

use crate::{Test, is_root, program, run_clean, task};

pub const TESTS: &[Test] = &[
    ("cgroups_are_entered_and_removed", cgroups_are_entered_and_removed),
    ("cgroups_are_limited", cgroups_are_limited),
    ("cgroups_are_removed_after_an_error", cgroups_are_removed_after_an_error),
    ("a_missing_controller_is_named", a_missing_controller_is_named),
];

/// Returns the cgroup2 mount if it has the controllers that programs need.
fn mount() -> Result<PathBuf, String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let places = mounts.lines().filter(|l| l.split(' ').nth(2) == Some("cgroup2"));
    let places: Vec<PathBuf> =
        places.filter_map(|l| l.split(' ').nth(1)).map(PathBuf::from).collect();
    let has = |m: &&PathBuf| {
        let have = fs::read_to_string(m.join("cgroup.controllers")).unwrap_or_default();
        ["cpu", "cpuset"].iter().all(|c| have.split_whitespace().any(|h| h == *c))
    };
    places
        .iter()
        .find(has)
        .cloned()
        .ok_or_else(|| format!("no cpu and cpuset controllers in {places:?}"))
}

fn usable() -> Option<PathBuf> {
    if !is_root("cgroups") {
        return None;
    }
    mount().inspect_err(|why| println!("    skipped: {why}")).ok()
}

/// Returns the directories that runs have left in the hierarchy.
fn left(mount: &PathBuf) -> Vec<PathBuf> {
    let all = fs::read_dir(mount).unwrap().flatten().map(|e| e.path());
    all.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("scxlab-")))
        .collect()
}

const NESTED: &str = "[[cgroup]]\npath = '/a'\nweight = 300\ncpus = '0'\n\
    [[cgroup]]\npath = '/a/b'\nquota = '50ms'\nperiod = '100ms'\nburst = '10ms'\n\
    [[cgroup]]\npath = '/c'\nidle = true\n";

fn cgroups_are_entered_and_removed() {
    let Some(mount) = usable() else { return };
    let before = fs::read_to_string(mount.join("cgroup.subtree_control")).unwrap();
    // The program has threads of one process in different cgroups, a thread that moves, and a fork
    // that inherits the cgroup. Each thread must end in its own cgroup, and the run must remove all
    // of them.
    let report = run_clean(&format!(
        "{NESTED}[[thread]]\nname = 't'\ncgroup = '/a/b'\nprocess = 'p'\nops = [{{ compute = '1ms' }}]\n\
         [[thread]]\nname = 'u'\nprocess = 'p'\nops = [{{ move_cgroup = '/c' }}, {{ compute = '1ms' }}, \
         {{ fork = 'v' }}, 'join']\n\
         [[thread]]\nname = 'v'\ninstances = 0\nops = [{{ compute = '1ms' }}]\n\
         [[thread]]\nname = 'w'\nops = [{{ compute = '1ms' }}]"
    ));
    let cgroup = |name| task(&report, name).cgroup.as_str();
    assert_eq!([cgroup("t"), cgroup("u"), cgroup("v-0"), cgroup("w")], ["/a/b", "/c", "/c", "/"]);
    assert_eq!(left(&mount), [] as [PathBuf; 0]);
    assert_eq!(fs::read_to_string(mount.join("cgroup.subtree_control")).unwrap(), before);
}

fn cgroups_are_limited() {
    let Some(mount) = usable() else { return };
    let text =
        format!("{NESTED}[[thread]]\nname = 'obs-cg'\ncgroup = '/a/b'\nops = [{{ sleep = '9s' }}]");
    let config = NativeConfig {
        duration: Some(2_000_000_000),
        cgroup_root: Some(mount.join("scxlab-test")),
        ..NativeConfig::default()
    };
    let program = program(&text);
    let runner = std::thread::spawn(move || native::run(&program, &config));
    let base = mount.join("scxlab-test");
    let read = |file: &str| fs::read_to_string(base.join(file)).unwrap_or_default();
    while read("a/b/cgroup.threads").is_empty() {
        assert!(!runner.is_finished(), "nobody has entered it");
    }
    let seen = [
        "a/cpu.weight",
        "a/cpuset.cpus",
        "a/b/cpu.max",
        "a/b/cpu.max.burst",
        "c/cpu.idle",
        "a/b/cgroup.type",
    ]
    .map(|file| read(file).trim().to_owned());
    assert_eq!(seen, ["300", "0", "50000 100000", "10000", "1", "threaded"]);
    assert_eq!(runner.join().unwrap().unwrap().stop, NativeStop::Duration);
    assert!(!base.exists());
}

fn cgroups_are_removed_after_an_error() {
    let Some(mount) = usable() else { return };
    let text = "[[cgroup]]\npath = '/a'\nquota = '500s'\nperiod = '1s'\n\
                [[cgroup]]\npath = '/a/b'\ncpus = '60000'\n[[thread]]\nname = 'x'\ncgroup = '/a/b'\nops = ['yield']";
    let error = native::run(&program(text), &NativeConfig::default()).unwrap_err();
    assert!(matches!(error, NativeError::Setup(SetupError::Cgroup { .. })), "{error}");
    assert_eq!(left(&mount), [] as [PathBuf; 0]);
}

fn a_missing_controller_is_named() {
    if mount().is_ok() {
        println!("    skipped: this machine has the controllers");
        return;
    }
    let text = "[[thread]]\nname = 'x'\ncgroup = '/a'\nops = ['yield']";
    let error = native::run(&program(text), &NativeConfig::default()).unwrap_err().to_string();
    assert!(error.contains("controller \"cpu\"") || error.contains("mount cgroup2"), "{error}");
}
