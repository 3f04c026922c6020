// SPDX-License-Identifier: GPL-2.0-only
//! Counts of the host's instructions by callgrind: how a benchmark runs itself under it, and how it
//! reads the profile.
//!
//! Owns: the command line of valgrind, the format of a profile. Does not: judge; valgrind is not a
//! part of this project, so a benchmark asks `available` first.

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::process::Command;

/// Argument by which callgrind counts only the simulation itself, and neither the construction of
/// the kernel nor the linking of the object.
const COUNTED: &str = "--toggle-collect=*Kernel*::advance*";

/// Simulated caches: bytes, ways, line size. I1 is a first-level instruction cache; D1 has the size
/// of a second-level cache.
const CACHES: [&str; 3] = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=2097152,16,64"];

/// Returns whether valgrind is installed, and can be told where to begin (see `start`).
pub fn available() -> bool {
    cfg!(target_arch = "x86_64") && Command::new("valgrind").arg("--version").output().is_ok()
}

/// Makes callgrind count from here on. Before, valgrind runs the process five times slower than the
/// host; a program that callgrind counts runs fifty times slower.
pub fn start() {
    request(START_INSTRUMENTATION);
}

/// Ends what `start` began.
pub fn stop() {
    request(STOP_INSTRUMENTATION);
}

/// Numbers of callgrind's client requests: the tool's two letters, and the request.
const START_INSTRUMENTATION: u64 = (b'C' as u64) << 24 | (b'T' as u64) << 16 | 4;
const STOP_INSTRUMENTATION: u64 = START_INSTRUMENTATION + 1;

/// Makes a request to valgrind, which recognises it by a sequence of rotations that together change
/// nothing. Outside valgrind the request has no effect.
#[cfg(target_arch = "x86_64")]
fn request(number: u64) {
    let args = [number, 0, 0, 0, 0, 0];
    // SAFETY: the instructions leave all registers as they are, except rdx, which valgrind sets to
    // the request's result. The 128 bits of the rotations are a multiple of the register's 64.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") args.as_ptr(),
            inout("rdx") 0u64 => _,
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn request(_: u64) {}

/// One run of this benchmark under callgrind.
pub struct Profile {
    /// Text that the run printed.
    pub printed: String,
    text: String,
}

/// Runs this benchmark with `args` under callgrind. The profile stays in the folder for temporary
/// files, for `callgrind_annotate`; `name` is a part of its file's name. `caches` also counts cache
/// misses, which takes twice the time. Nothing counts before the run calls `start`.
pub fn profile(name: &str, args: &[String], caches: bool) -> Result<Profile, Box<dyn Error>> {
    // The name contains this process's pid, because another process may count at the same time.
    let file = format!("scxlab-{name}.{}.callgrind", std::process::id());
    let path = std::env::temp_dir().join(file);
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--instr-atstart=no", COUNTED])
        .args(CACHES.iter().filter(|_| caches))
        .arg(format!("--callgrind-out-file={}", path.display()))
        .arg(std::env::current_exe()?)
        .args(args)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(Profile { printed: String::from_utf8(output.stdout)?, text: fs::read_to_string(path)? })
}

/// A function's instructions on the lines of one source file, without those of its callees.
pub struct Own<'a> {
    pub function: &'a str,
    /// Source file in which the function begins.
    pub home: &'a str,
    /// Source file of the instructions, which differs from `home` if the compiler inlined another
    /// function.
    pub file: &'a str,
    pub insns: f64,
}

/// Calls of one function by another, with all instructions executed inside.
pub struct Calls<'a> {
    pub caller: &'a str,
    pub callee: &'a str,
    pub callee_file: &'a str,
    pub count: f64,
    pub insns: f64,
}

impl Profile {
    /// Returns the total of the wanted events (columns of the profile, such as `Ir`) over the whole
    /// profile.
    pub fn sum(&self, wanted: &[&str]) -> Result<f64, Box<dyn Error>> {
        let line = |key| self.text.lines().find_map(|line| line.strip_prefix(key));
        let (Some(events), Some(totals)) = (line("events:"), line("totals:")) else {
            return Err("the profile names no events or has no sums".into());
        };
        let columns = events.split_whitespace().zip(totals.split_whitespace());
        let chosen = columns.filter(|(event, _)| wanted.contains(event));
        Ok(chosen.map(|(_, count)| count.parse::<f64>()).sum::<Result<f64, _>>()?)
    }

    /// Returns all costs of the profile, in its order: those of functions themselves, and those of
    /// calls.
    ///
    /// A function's own costs are lines of a position and a number, after the function's line
    /// `fn=(id) name`; the name is given the first time only. `fl=` names the file of the function,
    /// `fi=` and `fe=` change the file of the lines that follow. The line after each `calls=` holds
    /// the costs of the callee that `cfn=` and `cfi=` (or `cfl=`) named.
    pub fn costs(&self) -> Result<(Vec<Own<'_>>, Vec<Calls<'_>>), Box<dyn Error>> {
        let (mut functions, mut files) = (HashMap::new(), HashMap::new());
        let (mut function, mut home, mut file) = ("", "", "");
        let (mut callee, mut callee_file, mut calls) = ("", None, None);
        let (mut own, mut called) = (Vec::new(), Vec::new());
        for line in self.text.lines() {
            if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
                let Some(insns) = line.split_whitespace().nth(1) else { continue };
                let insns: f64 = insns.parse()?;
                if let Some(count) = calls.take() {
                    let callee_file = callee_file.take().unwrap_or(file);
                    called.push(Calls { caller: function, callee, callee_file, count, insns });
                } else {
                    own.push(Own { function, home, file, insns });
                }
                continue;
            }
            let Some((key, value)) = line.split_once('=') else { continue };
            match key {
                "fn" => function = named(&mut functions, value),
                "cfn" => callee = named(&mut functions, value),
                "fl" => {
                    home = named(&mut files, value);
                    file = home;
                }
                "fi" | "fe" => file = named(&mut files, value),
                "cfi" | "cfl" => callee_file = Some(named(&mut files, value)),
                "calls" => {
                    let count = value.split_whitespace().next().unwrap_or(value);
                    calls = Some(count.parse::<f64>()?);
                }
                _ => {}
            }
        }
        Ok((own, called))
    }
}

/// Returns the name that `(id) name` or `(id)` stands for.
fn named<'a>(names: &mut HashMap<&'a str, &'a str>, value: &'a str) -> &'a str {
    let (id, name) = value.split_once(' ').unwrap_or((value, ""));
    names.entry(id).or_insert(name)
}
