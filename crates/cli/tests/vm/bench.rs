// SPDX-License-Identifier: GPL-2.0-only
//! Environment of tests with virtual machines: a kernel, QEMU, the command, a folder, and the
//! results.
//!
//! The kernel is the first of these that exists: the file that SCXLAB_KERNEL names, the result of
//! `make kernel-objects` in `build/kernel`, the kernel in the user's cache. If none exists, a
//! kernel is prepared as by `scxlab vm setup`.

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use scxlab_vm::setup;
use serde_json::Value;
use tempfile::TempDir;

use crate::schema::Schema;

pub struct Bench {
    pub kernel: &'static Path,
    pub folder: TempDir,
}

/// Output of a command, and console of its virtual machine.
pub struct Done {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub console: String,
}

impl Bench {
    /// Returns None, after a message with the reason, if QEMU or a kernel is missing.
    pub fn new() -> Option<Bench> {
        static KERNEL: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        match KERNEL.get_or_init(find_both) {
            Ok(kernel) => Some(Bench { kernel, folder: tempfile::tempdir().unwrap() }),
            Err(why) => {
                // Write to stderr directly, because eprintln! is not shown when a test passes.
                let _ = writeln!(std::io::stderr(), "vm: skipped: {why}");
                None
            }
        }
    }

    /// Returns a command with an emulated virtual machine, by default with the host's clock. The
    /// command writes the machine's console to a file in the test's folder.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = scxlab(args);
        command.arg("--kernel").arg(self.kernel);
        if !args.contains(&"--accel") {
            command.args(["--accel", "tcg"]);
        }
        // The deadline is long enough for the slowest hosts, and only ends commands that would
        // never end.
        if !args.contains(&"--deadline") {
            command.args(["--deadline", "45min"]);
        }
        command.arg("--console").arg(self.folder.path().join("console"));
        command
    }

    /// Runs a command, and returns its output whatever its exit code is.
    pub fn output(&self, command: &mut Command) -> Done {
        let console = self.folder.path().join("console");
        let _ = fs::remove_file(&console);
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Done {
            code: status.code(),
            stdout: text(stdout),
            stderr: text(stderr),
            console: fs::read_to_string(console).unwrap_or_default(),
        }
    }

    /// Runs `run --on vm`, asserts that it succeeds with results that fit the schema, and returns
    /// its output.
    pub fn run(&self, args: &[&str]) -> Done {
        self.checked(args, self.attempt(args))
    }

    /// As `run`, for a workload with guests. A machine whose KVM is emulated hangs for good once in
    /// hundreds of runs: QEMU 7.2 executes no further instruction of it. Then another one is tried.
    pub fn run_nested(&self, args: &[&str]) -> Done {
        let args = [args, &["--deadline", "10min"]].concat();
        let mut done = self.attempt(&args);
        if done.code != Some(0) && done.stderr.contains("after 600.0 s and was stopped") {
            let _ = writeln!(std::io::stderr(), "vm: {args:?}: the machine hung: {done}");
            done = self.attempt(&args);
        }
        self.checked(&args, done)
    }

    /// Asserts that a run succeeded.
    fn checked(&self, args: &[&str], done: Done) -> Done {
        assert_eq!(done.code, Some(0), "{args:?}: {done}");
        check_schema(&done.results());
        done
    }

    fn attempt(&self, args: &[&str]) -> Done {
        let mut all = vec!["run", "--on", "vm", "--format", "json"];
        all.extend(args);
        self.output(&mut self.command(&all))
    }

    /// Runs a shell script as the workload.
    pub fn script(&self, args: &[&str], script: &str, programs: &[&str]) -> Done {
        assert!(!script.contains('\''), "the script is put between these");
        let workload = format!("cmd:/bin/sh -c '{script}'");
        let mut all = args.to_vec();
        all.extend(["-w", &workload]);
        all.extend(programs.iter().flat_map(|program| ["--vm-program", *program]));
        self.run(&all)
    }

    /// Writes a file to the test's folder, and returns its path.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Done {
    pub fn results(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|why| panic!("{why}: {self}"))
    }

    pub fn runs(&self) -> Vec<Value> {
        self.results()["runs"].as_array().unwrap().clone()
    }

    /// Asserts that the console contains the text.
    pub fn says(&self, text: &str) {
        assert!(self.console.contains(text), "no \"{text}\": {self}");
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Done { code, stdout, stderr, console } = self;
        write!(f, "code {code:?}\n{stdout}\n{stderr}\nconsole:\n{console}")
    }
}

pub fn scxlab(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scxlab"));
    command.args(args).env_remove("RUST_BACKTRACE");
    command
}

pub fn metric(run: &Value, name: &str) -> f64 {
    let value = &run["metrics"][name]["value"];
    value.as_f64().unwrap_or_else(|| panic!("{name} is {value} in {}", run["metrics"]))
}

fn check_schema(results: &Value) {
    let text = fs::read_to_string(root().join("docs/reference/results.schema.json")).unwrap();
    let faults = Schema::parse(&text).faults(results);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the path of one of the kernel's own example schedulers or selftests.
pub fn object(name: &str) -> String {
    let path = root().join(format!("build/kernel/objects/{name}.bpf.o"));
    assert!(path.exists(), "no {}: `make kernel-objects` compiles it", path.display());
    path.canonicalize().unwrap().to_str().unwrap().to_owned()
}

fn find_both() -> Result<PathBuf, String> {
    scxlab_vm::find_qemu().map_err(|why| why.to_string())?;
    kernel().map_err(|why| format!("there is no kernel: {why}"))
}

fn kernel() -> Result<PathBuf, setup::SetupError> {
    if let Some(path) = std::env::var_os("SCXLAB_KERNEL") {
        return Ok(path.into());
    }
    let built = root().join("build/kernel");
    for name in ["vmlinux", "bzImage"] {
        // `make` writes the stamp last; without it the folder is incomplete.
        if built.join("stamp").exists() && built.join(name).exists() {
            return Ok(built.join(name));
        }
    }
    let cache = setup::cache_dir()?;
    match setup::find(&cache)? {
        Some(kernel) => Ok(kernel.image),
        None => Ok(setup::prepare(&cache, &mut |step| eprintln!("vm: {step}"))?.image),
    }
}
