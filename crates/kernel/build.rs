// SPDX-License-Identifier: GPL-2.0-only
//! Builds two files from `abi/*.h`: BTF for objects (with clang), and Rust structs for the
//! simulator (with bindgen).
//!
//! Writes `kernel.btf` and `bindings.rs` to OUT_DIR. Needs clang 19 or later and its libclang;
//! `BPF_CLANG` names another compiler, `LIBCLANG_PATH` another library. `make setup` installs both.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use object::{Object, ObjectSection};

fn main() {
    println!("cargo:rerun-if-changed=abi");
    println!("cargo:rerun-if-env-changed=BPF_CLANG");
    println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let clang = env::var("BPF_CLANG").unwrap_or_else(|_| "clang-19".into());
    let made = write_btf(&clang, &out).and_then(|()| write_bindings(&clang, &out));
    if let Err(reason) = made {
        eprintln!("scxlab-kernel: the ABI headers could not be built: {reason}");
        std::process::exit(1);
    }
}

fn write_btf(clang: &str, out: &Path) -> Result<(), String> {
    let object = out.join("abi.o");
    run(Command::new(clang)
        .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror", "-c", "abi/abi.bpf.c", "-o"])
        .arg(&object))?;
    let bytes = fs::read(&object).map_err(|e| format!("{}: {e}", object.display()))?;
    let file = object::File::parse(&*bytes).map_err(|e| format!("{}: {e}", object.display()))?;
    let btf = file.section_by_name(".BTF").ok_or("clang wrote no .BTF section")?;
    let data = btf.data().map_err(|e| format!(".BTF: {e}"))?;
    fs::write(out.join("kernel.btf"), data).map_err(|e| format!("kernel.btf: {e}"))
}

fn write_bindings(clang: &str, out: &Path) -> Result<(), String> {
    if env::var_os("LIBCLANG_PATH").is_none() {
        let dir = libclang_dir(clang)?;
        // SAFETY: this is the build script's main thread, before bindgen starts, so no other thread
        // reads the environment now.
        unsafe { env::set_var("LIBCLANG_PATH", dir) };
    }
    bindgen::Builder::default()
        .header("abi/kernel.h")
        // bindgen's target is that of BPF objects, so that the Rust structs have the BTF's layout
        // on any host.
        .clang_args(["-target", "bpf", "-D__BINDGEN__"])
        .use_core()
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .explicit_padding(true)
        .derive_default(false)
        .derive_debug(false)
        .layout_tests(true)
        .parse_callbacks(Box::new(PlainData))
        .generate()
        .map_err(|e| e.to_string())?
        .write_to_file(out.join("bindings.rs"))
        .map_err(|e| format!("bindings.rs: {e}"))
}

/// Adds derives that check that every struct of the headers is plain data: no padding, no pointer,
/// no bool.
#[derive(Debug)]
struct PlainData;

impl bindgen::callbacks::ParseCallbacks for PlainData {
    fn add_derives(&self, _: &bindgen::callbacks::DeriveInfo<'_>) -> Vec<String> {
        vec!["bytemuck::Zeroable".into(), "bytemuck::Pod".into()]
    }
}

/// Returns the directory of the libclang that belongs to the clang that makes the BTF. The clang's
/// resource directory is `<dir>/clang/<version>`.
fn libclang_dir(clang: &str) -> Result<PathBuf, String> {
    let resources = run(Command::new(clang).arg("-print-resource-dir"))?;
    let dir = Path::new(resources.trim()).ancestors().nth(2).map(Path::to_path_buf);
    dir.ok_or(format!("`{clang} -print-resource-dir` printed an unexpected path: {resources:?}"))
}

fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| {
        format!(
            "{name} could not be started ({e}); `make setup` installs clang-19, or set BPF_CLANG"
        )
    })?;
    if !output.status.success() {
        return Err(format!("{name} failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
