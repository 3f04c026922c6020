// SPDX-License-Identifier: GPL-2.0-only
//! Every input of the corpus keeps its target's promises; an ordinary test, without libFuzzer.

use scxlab_fuzz::{engines, libbpf, object, program, rtapp, schedulers, texts, traces};
use std::fs;
use std::path::Path;

fn replay(target: &str, check: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut inputs: Vec<_> = fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{target} has no corpus");
    for path in inputs {
        println!("{}", path.display());
        check(&fs::read(path).unwrap());
    }
}

macro_rules! targets {
    ($($target:ident: $check:path,)+) => {
        $(#[test]
        fn $target() {
            replay(stringify!($target), $check);
        })+
    };
}

targets! {
    object_loader: object::check,
    libbpf: libbpf::check,
    interpreter: program::check,
    engines: engines::check,
    schedulers: schedulers::check,
    rtapp_parser: rtapp::check,
    workloads: texts::workload,
    machines: texts::machine,
    lstopo: texts::lstopo,
    recipes: texts::recipe,
    results: texts::results,
    traces: traces::check,
}

/// Both loaders must accept some objects of the corpus, because an object that is refused tests
/// little of what comes after parsing.
#[test]
fn loaders_accept_objects() {
    for name in ["core", "full", "torn"] {
        let path = format!("{}/corpus/libbpf/{name}.bpf.o", env!("CARGO_MANIFEST_DIR"));
        let data = fs::read(&path).unwrap();
        let ours = libbpf::ours(&data).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert_eq!(Some(ours), libbpf::theirs(&data), "{path}");
    }
}
