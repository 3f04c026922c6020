// SPDX-License-Identifier: GPL-2.0-only
//! Tells the program which commit it is built from, for the manifests of results; not in a tree without git.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let git = |args: &[&str]| {
        let out =
            Command::new("git").args(args).output().ok().filter(|out| out.status.success())?;
        String::from_utf8(out.stdout).ok().map(|text| text.trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "HEAD"]) else { return };
    println!("cargo:rustc-env=SCXLAB_COMMIT={commit}");
    // What changes when HEAD does: HEAD itself, or the branch that it names.
    for file in ["HEAD", "packed-refs"].map(str::to_owned).into_iter().chain(git(&[
        "symbolic-ref",
        "--quiet",
        "HEAD",
    ])) {
        let path = git(&["rev-parse", "--git-path", &file]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
}
