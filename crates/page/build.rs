// SPDX-License-Identifier: GPL-2.0-only
//! Bundles the page's program: `npm ci`, a check of its types, and esbuild, in the output folder.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is copied to the output folder; `npm` and the compilers write nothing into the sources.
const FILES: &[&str] = &["package.json", "package-lock.json", ".npmrc", "tsconfig.json"];

fn main() {
    let web = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("web");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap()).join("web");
    println!("cargo::rerun-if-changed={}", web.join("src").display());
    fs::create_dir_all(&out).unwrap();
    for file in FILES {
        println!("cargo::rerun-if-changed={}", web.join(file).display());
        fs::copy(web.join(file), out.join(file)).unwrap();
    }
    let _ = fs::remove_dir_all(out.join("src"));
    fs::create_dir(out.join("src")).unwrap();
    for entry in fs::read_dir(web.join("src")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, out.join("src").join(path.file_name().unwrap())).unwrap();
    }
    npm(&out, &["ci", "--no-audit", "--no-fund", "--prefer-offline"]);
    npm(&out, &["run", "check"]);
    npm(&out, &["run", "build", "--", "--log-level=warning", "--outfile=page.js"]);
}

fn npm(folder: &Path, args: &[&str]) {
    let done = Command::new("npm").args(args).current_dir(folder).output();
    let done = done.unwrap_or_else(|why| {
        panic!("npm could not be started ({why}); `make setup` installs it, or install Node.js 18 or later")
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        done.status.success(),
        "npm {} failed:\n{}{}",
        args.join(" "),
        text(&done.stdout),
        text(&done.stderr)
    );
}
