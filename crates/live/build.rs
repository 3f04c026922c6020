// SPDX-License-Identifier: GPL-2.0-only
//! Compiles `bpf/live/*.bpf.c` with the builder that also builds the schedulers (see crates/sched),
//! and makes Rust types of the headers of probe and recorder with bindgen.

use std::env;
use std::path::PathBuf;

use scx_cargo::BpfBuilder;

fn main() {
    println!("cargo:rerun-if-changed=../../bpf/live");
    compile("probe");
    compile("record");
    compile("witness");
    bind("probe");
    bind("record");
}

/// Writes the types and constants of a header as `<name>_abi.rs`.
fn bind(name: &str) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let made = bindgen::Builder::default()
        .header(format!("../../bpf/live/{name}.h"))
        .clang_args(["-target", "bpf", "-D__BINDGEN__"])
        .use_core()
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .explicit_padding(true)
        .derive_debug(false)
        .parse_callbacks(Box::new(PlainData))
        .generate()
        .map_err(|e| e.to_string())
        .and_then(|types| {
            types.write_to_file(out.join(format!("{name}_abi.rs"))).map_err(|e| e.to_string())
        });
    if let Err(reason) = made {
        eprintln!("scxlab-live: bpf/live/{name}.h: {reason}");
        std::process::exit(1);
    }
}

/// Adds derives that check that every struct is plain data: no padding, no pointer, no bool.
#[derive(Debug)]
struct PlainData;

impl bindgen::callbacks::ParseCallbacks for PlainData {
    fn add_derives(&self, _: &bindgen::callbacks::DeriveInfo<'_>) -> Vec<String> {
        vec!["bytemuck::Zeroable".into(), "bytemuck::Pod".into()]
    }
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
