// SPDX-License-Identifier: GPL-2.0-only
//! Stores in the program the commit from which it is built, for the manifests of results. A program
//! that is built outside a git repository has no commit.

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
    // A change of HEAD changes one of these files, and Cargo then runs this script again: HEAD
    // itself, packed-refs, and the branch that HEAD names.
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
