// SPDX-License-Identifier: GPL-2.0-only
//! Tests that `scxlab build` compiles a scheduler's source to an object that runs.

use std::fs;

use scxlab_loader::object::Object;

use super::{root, scxlab, text};

/// `scxlab build` makes the same object of a shipped scheduler's source as scxlab's own build. The
/// test compares the parsed contents of the two objects instead of their bytes, because the
/// compiler orders some types by their addresses in its memory.
#[test]
fn a_source_becomes_the_object_that_is_shipped() {
    let folder = tempfile::tempdir().unwrap();
    for shipped in scxlab_sched::shipped() {
        let name = shipped.name;
        let file = folder.path().join("it.o");
        let mut command = scxlab(&["build", &format!("bpf/sched/{name}/{name}.bpf.c"), "-o"]);
        let out = command.arg(&file).current_dir(root()).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let built = Object::parse(&fs::read(&file).unwrap(), name).unwrap();
        let object = Object::parse(shipped.object, name).unwrap();
        assert_eq!(format!("{:?}", built.maps), format!("{:?}", object.maps), "{name}");
        assert_eq!(built.functions.len(), object.functions.len(), "{name}");
        for (built, object) in built.functions.iter().zip(&object.functions) {
            assert_eq!((&built.name, &built.insns), (&object.name, &object.insns), "{name}");
        }
        let data = |object: &Object| format!("{:?}", object.sections);
        assert_eq!(data(&built), data(&object), "{name}");
    }
}

#[test]
fn a_new_scheduler_is_written_built_and_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| scxlab(args).current_dir(&folder).output().unwrap();
    assert!(run(&["build", "--new", "mine.bpf.c"]).status.success());
    let again = run(&["build", "--new", "mine.bpf.c"]);
    assert_eq!(again.status.code(), Some(3));
    let built = run(&["build", "mine.bpf.c"]);
    let said = String::from_utf8_lossy(&built.stdout);
    assert!(said.contains("Nothing that it needs is missing."), "{said}");
    let ran =
        run(&["run", "-s", "./mine.bpf.o", "-w", "hackbench,groups=1,loops=2", "-m", "2n2c1t"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    // The object must not contain the path of the folder in which it was built.
    let object = fs::read(folder.path().join("mine.bpf.o")).unwrap();
    let place = folder.path().to_str().unwrap().as_bytes();
    assert!(!object.windows(place.len()).any(|w| w == place));
}

#[test]
fn a_source_with_a_mistake_is_shown_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("bad.bpf.c"), "#include <scx/common.bpf.h>\nint x = y;\n")
        .unwrap();
    let run = || {
        let mut command = scxlab(&["build", "bad.bpf.c"]);
        command.current_dir(&folder);
        command
    };
    let out = run().output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert!(said.contains("bad.bpf.c:2:9: error"), "{said}");
    assert!(!folder.path().join("bad.bpf.o").exists());
    let out = run().env("BPF_CLANG", "no-such-clang").output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(7), "{said}");
    assert!(said.contains("BPF_CLANG names no-such-clang"), "{said}");
}

/// What the simulator or a kernel would refuse is told by `build` and `inspect`, and is a clear end
/// of `run` and `shrink`: the exit code says whose fault it is.
#[test]
fn objects_that_do_not_load_are_told_before_they_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let out = scxlab(args).current_dir(&folder).output().unwrap();
        let said = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        (out.status.code(), said.concat())
    };
    assert_eq!(run(&["build", "--new", "good.bpf.c"]).0, Some(0));
    let good = fs::read_to_string(folder.path().join("good.bpf.c")).unwrap();
    let licence =
        good.lines().find(|line| line.contains("_license")).expect("a licence").to_owned();
    let bloom = "struct {\n\t__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);\n\t__uint(max_entries, 8);\n\
                 \t__type(value, u32);\n} bloom SEC(\".maps\");\n";
    for (name, source, said, code) in [
        ("closed", good.replace("\"GPL\"", "\"Proprietary\""), "it has \"Proprietary\"", 3),
        ("none", good.replace(&licence, ""), "it has \"\"", 3),
        ("map", good.replace(&licence, &format!("{licence}\n{bloom}")), "bloom", 4),
    ] {
        let (source_file, object) = (format!("{name}.bpf.c"), format!("./{name}.bpf.o"));
        fs::write(folder.path().join(&source_file), source).unwrap();
        let (built, text) = run(&["build", &source_file]);
        assert!(built == Some(code) && text.contains(said), "{name}: {text}");
        let (inspected, text) = run(&["inspect", &object]);
        assert_eq!(inspected, Some(code), "{name}: {text}");
        assert!(text.contains("does not load") && text.contains(said), "{name}: {text}");
        for command in ["run", "shrink"] {
            let (ended, text) = run(&[command, "-s", &object, "-w", "hogs,tasks=2", "-m", "2c"]);
            assert_eq!(ended, Some(code), "{name}, {command}: {text}");
            let is_named = text.contains("maps of the type bloom_filter are not modelled");
            assert!(name != "map" || is_named, "{text}");
        }
    }
    // A knob that does not exist, and a CPU that the machine lacks.
    let (ended, text) = run(&["shrink", "-s", "vtime,foo=1", "-w", "hogs", "-m", "2c"]);
    assert_eq!(ended, Some(2), "{text}");
}

#[test]
fn headers_are_written_for_others() {
    let folder = tempfile::tempdir().unwrap();
    text(&["build", "--headers", folder.path().to_str().unwrap()]);
    for file in ["scx/scx/common.bpf.h", "scx/bpf/bpf_helpers.h", "bpf/lib/kick.bpf.h"] {
        assert!(folder.path().join(file).is_file(), "{file}");
    }
}
