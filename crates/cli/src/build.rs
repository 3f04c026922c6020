// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab build`: compiles a scheduler's source into an object.
//!
//! Owns: the choice of the compiler, its flags, and the unpacking of the bundled headers. The flags
//! are the same as those of `scx_cargo`, which builds the shipped schedulers; a test compares the
//! contents of the objects.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{env, fs};

use anyhow::Result;
use libbpf_rs::Linker;
use libbpf_rs::libbpf_sys::API_HEADERS;
use scxlab_lab::input::InputError;
use tempfile::TempDir;

use crate::args::BuildArgs;
use crate::exit::CliError;
use crate::{inspect, output};

/// Environment variable that names the compiler.
const CLANG_VARIABLE: &str = "BPF_CLANG";
/// Compilers to try, in this order, if `BPF_CLANG` is not set.
const CLANGS: [&str; 5] = ["clang-19", "clang-20", "clang-21", "clang-22", "clang"];
/// Oldest usable major version; the headers use features that older compilers lack.
const CLANG_OLDEST: u32 = 19;
const SOURCE_END: &str = ".bpf.c";

pub fn build(args: &BuildArgs) -> Result<()> {
    if let Some(folder) = &args.headers {
        return unpack_headers(folder);
    }
    let source = args.source.as_deref().expect("clap requires it without --headers");
    if args.new {
        return begin(source);
    }
    let object = args.output.clone().unwrap_or_else(|| object_of(source));
    let bytes = compile(source, &args.include)?;
    output::write_file(&object, &bytes)?;
    output::print(&format!("{}\n", object.display()))?;
    inspect::needs(&bytes, &object.display().to_string())
}

/// Writes an example scheduler to a new file.
fn begin(source: &Path) -> Result<()> {
    if source.exists() {
        let why = "the file exists already; --new writes only a new file";
        return Err(failed(source, why.to_owned()));
    }
    output::write_file(source, scxlab_sched::EXAMPLE.as_bytes())
}

/// Returns the path of the object beside the source: `my.bpf.o` for `my.bpf.c` or `my.c`.
fn object_of(source: &Path) -> PathBuf {
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(SOURCE_END).or_else(|| name.strip_suffix(".c"));
    source.with_file_name(format!("{}.bpf.o", stem.unwrap_or(&name)))
}

fn failed(source: &Path, why: String) -> anyhow::Error {
    CliError::Source { path: source.to_owned(), why }.into()
}

fn compile(source: &Path, include: &[PathBuf]) -> Result<Vec<u8>> {
    let absolute = fs::canonicalize(source)
        .map_err(|error| InputError::Read { path: source.to_owned(), error })?;
    if source.extension().is_none_or(|extension| extension != "c") {
        return Err(failed(source, "it is no C source (NAME.bpf.c)".to_owned()));
    }
    let clang = clang()?;
    let work = TempDir::new().map_err(|error| temporary(&env::temp_dir(), error))?;
    unpack_headers(work.path())?;
    let (compiled, linked) = (work.path().join("compiled.o"), work.path().join("linked.o"));
    let mut command = Command::new(&clang);
    command.args(flags(&clang, work.path(), &absolute)?);
    for folder in include {
        command.arg("-I").arg(folder);
    }
    command.arg("-o").arg(&compiled).arg("-c").arg(&absolute);
    let Output { status, stderr, .. } = run(&mut command)?;
    let said = String::from_utf8_lossy(&stderr);
    if !status.success() {
        return Err(failed(source, format!("{clang} refuses it:\n{}", said.trim_end())));
    }
    if !said.is_empty() {
        output::say(said.trim_end());
    }
    // Linking keeps types and line numbers, and removes sections that only a debugger would read.
    let link = || {
        let mut linker = Linker::new(&linked)?;
        linker.add_file(&compiled)?;
        linker.link()
    };
    link().map_err(|error| {
        failed(source, format!("the output of {clang} cannot be linked: {error:#}"))
    })?;
    Ok(fs::read(&linked).map_err(|error| temporary(&linked, error))?)
}

fn temporary(path: &Path, error: std::io::Error) -> CliError {
    CliError::Write { what: path.display().to_string(), error }
}

/// Writes three sets of headers: scxlab's own headers, the headers of the scx project with the
/// kernel's types, and libbpf's headers.
fn unpack_headers(folder: &Path) -> Result<()> {
    let unpacked = || {
        let tar = ruzstd::decoding::StreamingDecoder::new(scxlab_sched::HEADERS);
        let tar = tar.expect("our own archive, packed by our build");
        tar::Archive::new(tar).unpack(folder)?;
        let bpf = folder.join("scx/bpf");
        fs::create_dir_all(&bpf)?;
        API_HEADERS.iter().try_for_each(|(name, text)| fs::write(bpf.join(name), text))
    };
    unpacked().map_err(|error| temporary(folder, error).into())
}

fn flags(clang: &str, headers: &Path, source: &Path) -> Result<Vec<String>> {
    let arch = scxlab_sched::HEADERS_ARCH;
    let folder = |name: &str| headers.join(name).display().to_string();
    let (ours, scx) = (folder("bpf"), folder("scx"));
    let mut flags: Vec<String> = ["-g", "-O2", "-Wall", "-Wno-compare-distinct-pointer-types"]
        .into_iter()
        .chain(["-target", "bpf", "-mcpu=v4", "-mlittle-endian", "-fno-stack-protector"])
        // The compiler must not use sign-extending loads, which need Linux 6.18 in an arena.
        .chain(["-mllvm", "-disable-ldsx"])
        .map(str::to_owned)
        .collect();
    // The compiler must not use jump tables, which need Linux 6.19.
    if version(clang)? >= 22 {
        flags.extend(["-mllvm", "-disable-gotox"].map(str::to_owned));
    }
    flags.push(format!("-D__TARGET_ARCH_{arch}"));
    flags.push(format!("-D__SCX_TARGET_ARCH_{arch}"));
    flags.extend(
        [ours, format!("{scx}/arch/{arch}"), scx.clone(), format!("{scx}/bpf-compat")]
            .map(|folder| format!("-I{folder}")),
    );
    for folder in system_headers(clang)? {
        flags.extend(["-idirafter".to_owned(), folder]);
    }
    // The object must not depend on the folder in which it was built. File names are relative to
    // the current folder, or to the source's folder if the source is elsewhere.
    let folder = source.parent().unwrap_or(Path::new("/"));
    let here = env::current_dir().ok().filter(|here| folder.starts_with(here));
    flags.push("-fdebug-compilation-dir=.".to_owned());
    for folder in [here.as_deref().unwrap_or(folder), headers, &headers.join("scx")] {
        flags.push(format!("-ffile-prefix-map={}/=", folder.display()));
    }
    Ok(flags)
}

/// Returns the name of the compiler: the one that `BPF_CLANG` names, or else the first of `CLANGS`
/// that is installed and new enough.
fn clang() -> Result<String> {
    if let Ok(named) = env::var(CLANG_VARIABLE) {
        return match version(&named) {
            Ok(major) if major >= CLANG_OLDEST => Ok(named),
            Ok(major) => {
                Err(no_clang(format!("{CLANG_VARIABLE} names {named}, which is clang {major}")))
            }
            Err(_) => Err(no_clang(format!(
                "{CLANG_VARIABLE} names {named}, which cannot be run or is not clang"
            ))),
        };
    }
    let is_new = |name: &&str| version(name).is_ok_and(|major| major >= CLANG_OLDEST);
    let found = CLANGS.into_iter().find(is_new);
    found.map(str::to_owned).ok_or_else(|| no_clang("none is installed".to_owned()))
}

fn no_clang(why: String) -> anyhow::Error {
    CliError::NoCompiler { why, oldest: CLANG_OLDEST, variable: CLANG_VARIABLE }.into()
}

/// Returns the compiler's major version.
fn version(clang: &str) -> Result<u32> {
    let said = run(Command::new(clang).arg("--version"))?.stdout;
    let said = String::from_utf8_lossy(&said);
    let number = said.split_once("clang version ").and_then(|(_, rest)| rest.split('.').next());
    let major = number.and_then(|number| number.parse().ok());
    major.ok_or_else(|| no_clang(format!("{clang} does not say its version")))
}

/// Returns the folders in which the compiler looks for the C library's headers, which some sources
/// include.
fn system_headers(clang: &str) -> Result<Vec<String>> {
    let said = run(Command::new(clang).args(["-v", "-E", "-"]))?.stderr;
    let said = String::from_utf8_lossy(&said);
    let lines = said.lines().skip_while(|line| *line != "#include <...> search starts here:");
    let folders = lines.skip(1).take_while(|line| *line != "End of search list.");
    Ok(folders.map(|line| line.trim().to_owned()).collect())
}

fn run(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).env("LC_ALL", "C");
    command.output().map_err(|error| no_clang(format!("{name} does not run: {error}")))
}
