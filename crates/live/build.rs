// SPDX-License-Identifier: GPL-2.0-only
//! Compiles `bpf/live/*.bpf.c` with the builder that also builds the schedulers (see crates/sched).

use std::env;
use std::path::PathBuf;

use scx_cargo::BpfBuilder;

fn main() {
    println!("cargo:rerun-if-changed=../../bpf/live");
    compile("probe");
    compile("witness");
}

fn compile(name: &str) {
    let source = format!("../../bpf/live/{name}.bpf.c");
    let source = std::fs::canonicalize(source).expect("the source of what watches");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let source = source.to_str().expect("a path in UTF-8");
    let built = BpfBuilder::new().and_then(|mut builder| {
        builder.add_include_path("../../bpf/live").enable_skel(source, name).build()
    });
    if let Err(reason) = built {
        eprintln!("scxlab-live: {source}: {reason:#}");
        std::process::exit(1);
    }
    let object = out.join(format!("{name}.bpf.o"));
    assert!(object.exists(), "the builder leaves the object beside the skeleton");
}
