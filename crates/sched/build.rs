// SPDX-License-Identifier: GPL-2.0-only
//! Compiles every `bpf/sched/<name>/<name>.bpf.c` and `bpf/selftest/<name>/<name>.bpf.c`, and lists
//! the objects for `lib.rs`. Packs the headers that they were compiled with, for users who write
//! schedulers.
//!
//! Uses `scx_cargo`, the same builder and headers as the schedulers of the scx project, so the
//! objects also load on a real kernel. Needs clang 19 or later (`BPF_CLANG` names it;
//! .cargo/config.toml sets clang-19), libelf and zlib with headers: `make setup`.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use scx_cargo::BpfBuilder;

fn main() {
    if let Err(reason) = build_all() {
        eprintln!("scxlab-sched: {reason}");
        std::process::exit(1);
    }
}

fn build_all() -> Result<(), String> {
    // Compile in the project's folder: file names in the objects are relative to it, and the
    // compiler must find the source lines that it stores beside the code.
    env::set_current_dir("../..").map_err(|e| format!("../..: {e}"))?;
    println!("cargo:rerun-if-changed=../../bpf/lib");
    build_folder("bpf/sched", "shipped.rs")?;
    build_folder("bpf/selftest", "selftests.rs")?;
    pack_headers().map_err(|e| format!("headers: {e}"))
}

/// Folder in which `scx_cargo` puts the headers.
const HEADERS: &str = "scx_utils-bpf_h";

/// Packs the headers that are included as `<scx/...>`, `<lib/...>` and `"lib/..."`, and the
/// kernel's types for this architecture.
fn pack_headers() -> io::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let all = out.join(HEADERS);
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "x86",
        Ok("aarch64") => "arm64",
        other => return Err(io::Error::other(format!("no headers for {other:?}"))),
    };
    let mut archive = tar::Builder::new(Vec::new());
    archive.mode(tar::HeaderMode::Deterministic);
    archive.append_dir_all("bpf/lib", "bpf/lib")?;
    let mut entries: Vec<_> = fs::read_dir(&all)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        match entry.file_type()? {
            kind if kind.is_dir() && name != "arch" => {
                archive.append_dir_all(Path::new("scx").join(&name), entry.path())?;
            }
            kind if kind.is_file() => {
                archive.append_path_with_name(entry.path(), Path::new("scx").join(&name))?;
            }
            _ => {}
        }
    }
    let types = fs::canonicalize(all.join("arch").join(arch).join("vmlinux.h"))?;
    archive.append_path_with_name(types, format!("scx/arch/{arch}/vmlinux.h"))?;
    let packed = ruzstd::encoding::compress_to_vec(
        &archive.into_inner()?[..],
        ruzstd::encoding::CompressionLevel::Fastest,
    );
    fs::write(out.join("headers.tar.zst"), packed)?;
    fs::write(out.join("headers_arch"), arch)
}

/// Compiles the sources in the subfolders, and writes the list of objects.
fn build_folder(dir: &str, list_name: &str) -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let dir = Path::new(dir);
    // cargo resolves this path from the package's folder, not from the current one.
    println!("cargo:rerun-if-changed=../../{}", dir.display());
    let mut list = String::from("&[\n");
    for name in names(dir)? {
        let source = dir.join(&name).join(format!("{name}.bpf.c"));
        let text = fs::read_to_string(&source).map_err(|e| format!("{}: {e}", source.display()))?;
        compile(&out, &source, &name)?;
        let doc = header_comment(&text).ok_or(format!("{name}: no header comment"))?;
        let object = out.join(format!("{name}.bpf.o"));
        let knobs = match fs::read_to_string(dir.join(&name).join("knobs.toml")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.map_err(|e| format!("{name}/knobs.toml: {e}"))?,
        };
        writeln!(
            list,
            "Shipped {{ name: {name:?}, object: include_bytes!({object:?}), doc: {doc:?}, knobs: {knobs:?} }},"
        )
        .expect("a String takes any text");
    }
    list.push(']');
    fs::write(out.join(list_name), list).map_err(|e| format!("{list_name}: {e}"))
}

/// Returns the names of the subfolders in order, which is the order of the list.
fn names(dir: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|e| e.path().is_dir())
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}

fn compile(out: &Path, source: &Path, name: &str) -> Result<(), String> {
    let root = env::current_dir().map_err(|e| format!("the current folder: {e}"))?;
    let source = fs::canonicalize(source).map_err(|e| format!("{}: {e}", source.display()))?;
    let source = source.to_str().ok_or("a source's path is not UTF-8")?;
    let built = BpfBuilder::new().and_then(|mut builder| {
        builder.add_include_path(&root.join("bpf").to_string_lossy());
        // The object must not contain the build folder, so that its hash is the same on every
        // machine.
        builder.add_cflag("-fdebug-compilation-dir=.");
        builder.add_cflag(&format!("-ffile-prefix-map={}/=", root.display()));
        builder.add_cflag(&format!("-ffile-prefix-map={}/{HEADERS}/=", out.display()));
        builder.enable_skel(source, name).build()
    });
    built.map_err(|e| format!("{source}: {e:#}"))
}

/// Returns the first block comment, without its stars.
fn header_comment(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("/*\n")?;
    let (comment, _) = rest.split_once("*/")?;
    let lines = comment.lines().map(|l| {
        let l = l.trim_start().trim_start_matches('*');
        l.strip_prefix(' ').unwrap_or(l)
    });
    Some(lines.collect::<Vec<_>>().join("\n").trim().to_string())
}
