// SPDX-License-Identifier: GPL-2.0-only
//! Compiles `programs.c` twice with the same compiler and optimisation: for BPF, and for this
//! machine. The unmodified source of the scheduler `vtime` is compiled for this machine as well,
//! with the headers of `native/` in place of scx's headers.

use std::path::PathBuf;
use std::process::Command;

const SCHEDULER: &str = "../bpf/sched/vtime/vtime.bpf.c";

fn main() {
    for input in ["programs.c", "native", "../bpf/lib/knob.h", SCHEDULER] {
        println!("cargo:rerun-if-changed={input}");
    }
    println!("cargo:rerun-if-env-changed=BPF_CLANG");
    let clang = std::env::var("BPF_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let object = out.join("programs.bpf.o");
    let status = Command::new(&clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-c", "programs.c", "-o"])
        .arg(&object)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{clang}: {status}"),
        Err(error) => panic!("{clang}: {error}"),
    }
    cc::Build::new().compiler(&clang).opt_level(2).file("programs.c").compile("bench_programs");
    cc::Build::new()
        .compiler(&clang)
        .opt_level(2)
        // Show no warnings here: the build of the scheduler's BPF object already shows them.
        .warnings(false)
        .includes(["native", "../bpf"])
        .files([SCHEDULER, "native/kfuncs.c"])
        .compile("bench_scheduler");
}
