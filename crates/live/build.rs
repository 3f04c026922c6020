// SPDX-License-Identifier: GPL-2.0-only
//! Compiles `bpf/live/probe.bpf.c` with the builder that the schedulers are built with (see crates/sched).

use std::env;
use std::path::PathBuf;

use scx_cargo::BpfBuilder;

fn main() {
    println!("cargo:rerun-if-changed=../../bpf/live");
    let source = std::fs::canonicalize("../../bpf/live/probe.bpf.c").expect("the probe's source");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let source = source.to_str().expect("a path in UTF-8");
    let built = BpfBuilder::new().and_then(|mut builder| {
        builder.add_include_path("../../bpf/live").enable_skel(source, "probe").build()
    });
    if let Err(reason) = built {
        eprintln!("scxlab-live: {source}: {reason:#}");
        std::process::exit(1);
    }
    assert!(out.join("probe.bpf.o").exists(), "the builder leaves the object beside the skeleton");
}
