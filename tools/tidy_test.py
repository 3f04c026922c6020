#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Each check of `tidy.py` finds a violation in a small tree, and nothing in a proper one."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import tidy
from comments import ROOT

RUST = "// SPDX-License-Identifier: GPL-2.0-only\n"
LIB = "crates/kernel/src/lib.rs"

# Code that the rules of the simulated part forbid, by rule.
VIOLATIONS = {
    "clock": [
        "fn f() { std::time::Instant::now(); }",
        "use std::time::{Duration, SystemTime};",
        "fn f() { unsafe { core::arch::x86_64::_rdtsc() }; }",
    ],
    "environment": [
        'fn f() { std::env::var("HOME"); }',
        "use std::{env, fmt};",
        'const HOME: Option<&str> = option_env!("HOME");',
        "fn f() { std::thread::available_parallelism(); }",
    ],
    "file": [
        'fn f() { std::fs::read("x"); }',
        "use std::{fmt, fs};",
        'fn f() { File::open("x"); }',
        "fn f() { unsafe { libc::getpid() }; }",
    ],
    "static": [
        "static COUNT: AtomicU64 = AtomicU64::new(0);",
        "pub static mut LAST: u32 = 0;",
        "thread_local! { static X: u8 = 0; }",
        "struct S { x: OnceLock<u8> }",
    ],
    "float": [
        "fn f(x: f64) {}",
        "fn f() { let x = 1.5; }",
        "fn f() { let x = 2e9; }",
        "fn f() { let x = 1.; }",
    ],
    "hash map": [
        "use std::collections::HashMap;",
        "fn f() { let x = std::collections::HashSet::new(); }",
        "struct S { x: FxHashMap<u64, u64> }\nfn f(s: &S) { s.x.values().sum() }",
        "struct S { x: rustc_hash::FxHashSet<u64> }\nfn f(s: &S) { for y in &s.x {} }",
        "fn f() { let x = FxHashMap::default(); for (k, v) in x {} }",
    ],
}

# Code that resembles a violation, and that the rules allow.
PROPER = [
    "fn f<'a>(env: &'a dyn Env, x: &'static str) { env.now(); }",
    "fn f() { for i in 0..5 { x.0.1 = 0x1e9 + 1.max(2); } }",
    "// A clock such as Instant, a File, f64 and HashMap in a comment.",
    'fn f() { g("std::env::var, static X: u8, 1.5"); }',
    "struct S { x: FxHashMap<u64, u64> }\nfn f(s: &S) { s.x.get(&1); s.x.insert(1, 2); }",
    'include!(concat!(env!("OUT_DIR"), "/bindings.rs"));',
    "enum E { File { line: u32 }, Mutex }",
    "#[cfg(test)]\nmod tests {\n    fn f() { std::fs::read(x); }\n}",
    "// tidy: allow(float): a file's figure.\nfn f(x: f64) {}",
    "fn f(x: f64) {} // tidy: allow(float): a file's figure.",
]


def faults(files):
    """Returns the faults of a tree of these files (path: text)."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tidy.check(tidy.Tree(root, sorted({"Makefile", *files})))


def tree(**more):
    return {"Makefile": "# SPDX-License-Identifier: GPL-2.0-only\ntest:\n\ttrue\n", **more}


class TidyTest(unittest.TestCase):
    def one(self, files, expected):
        """The tree has faults, and each contains the text."""
        found = faults(tree(**files))
        self.assertTrue(found, f"nothing found: {expected}")
        for fault in found:
            self.assertIn(expected, fault)

    def test_a_proper_tree_has_no_faults(self):
        self.assertEqual(faults(tree(**{LIB: RUST + "//! A room.\n"})), [])

    def test_each_rule_of_the_simulated_part_finds_its_violations(self):
        self.assertEqual([name for name, _, _ in tidy.RULES], list(VIOLATIONS))
        for rule, cases in VIOLATIONS.items():
            for code in cases:
                with self.subTest(rule=rule, code=code):
                    self.one({LIB: RUST + code + "\n"}, f"{rule} in simulated code")

    def test_all_simulated_crates_are_checked(self):
        code = RUST + "use std::time::Instant;\n"
        for crate in ["bpf", "loader", "machine", "kernel", "fair", "trace", "workload"]:
            self.assertTrue((ROOT / "crates" / crate / "src/lib.rs").exists(), crate)
            self.one({f"crates/{crate}/src/lib.rs": code}, "clock in simulated code")
        self.assertEqual(faults(tree(**{"crates/live/src/lib.rs": code})), [])
        native = {"crates/workload/src/lib.rs": RUST + "mod native;\n",
                  "crates/workload/src/native.rs": code}
        self.assertEqual(faults(tree(**native)), [])

    def test_code_that_resembles_a_violation_passes(self):
        for code in PROPER:
            with self.subTest(code=code):
                self.assertEqual(faults(tree(**{LIB: RUST + code + "\n"})), [])

    def test_an_exception_is_of_one_rule_and_has_a_reason(self):
        other = "// tidy: allow(clock): wrong rule.\nfn f(x: f64) {}\n"
        self.one({LIB: RUST + other}, "float in simulated code")
        self.one({LIB: RUST + "// tidy: allow(float)\nfn f(x: f64) {}\n"}, "without a reason")
        far = "// tidy: allow(float): a figure.\nfn f() {}\nfn g(x: f64) {}\n"
        self.one({LIB: RUST + far}, "float in simulated code")

    def test_licence_lines(self):
        for name in ["x.rs", "x.c", "x.h", "x.sh", "x.py", "x.toml", ".ci/run"]:
            self.one({name: "\n"}, "no SPDX line")

    def test_dead_files(self):
        self.one({LIB: RUST, "crates/kernel/src/a.rs": RUST}, "a.rs: no module declares it")
        self.one({LIB: RUST, "crates/kernel/src/a/mod.rs": RUST}, "not x/mod.rs")
        alive = {LIB: RUST + "pub(crate) mod a;\n", "crates/kernel/src/a.rs": RUST + "mod b;\n",
                 "crates/kernel/src/a/b.rs": RUST}
        self.assertEqual(faults(tree(**alive)), [])

    def test_banned_names(self):
        self.one({"bpf/lib/util.bpf.h": RUST}, "a name that says nothing")

    def test_banned_text(self):
        for text in ["FIX" + "ME", "todo" + "!()", "see " + "/ho" + "me/me", "#[ig" + "nore]"]:
            self.one({"x.rs": RUST + f"fn f() {{}} // {text}\n"}, "x.rs:2: banned text")
        self.one({"x.rs": RUST + '#[ig' + 'nore = "slow"]\n'}, "x.rs:2: banned text")
        for text in ["// /sys/kernel/work/x", '#[ignore = "long"]']:
            self.assertEqual(faults(tree(**{"x.rs": RUST + text + "\n"})), [])

    def test_long_files(self):
        self.one({"x.rs": RUST + "\n" * 1000}, "more than 1000 lines")

    def test_long_comment_lines(self):
        words = "word " * 20
        self.one({"x.rs": RUST + f"// {words}\n"}, "x.rs:2: a comment of")
        self.one({"x.rs": RUST + f"fn f() {{}} // {words}\n"}, "x.rs:2: a comment of")
        self.one({"x.c": RUST + f"/*\n * {words}\n */\n"}, "x.c:3: a comment of")
        for name in ["x.sh", "x.py", "x.toml"]:
            self.one({name: f"# SPDX-License-Identifier: GPL-2.0-only\n# {words}\n"}, f"{name}:2")
        code = f'fn f() {{ g("// {words}") }}\n//! ```text\n//! {words}\n//! ```\n'
        self.assertEqual(faults(tree(**{"x.rs": RUST + code})), [])

    def test_opening_words(self):
        plain = "// A sentence.\nfn f() {}\n" * 400
        self.assertEqual(faults(tree(**{"x.rs": RUST + plain + "// What ran.\n"})), [])
        several = "// Who ran.\nfn f() {}\n" * 5
        self.one({"x.rs": RUST + plain + several}, "begins with What or Who")

    def test_links(self):
        page = "# A page\n\nSee [it](b.md#two-words), [here](#a-page), [dir](..).\n"
        good = {"docs/a.md": page, "docs/b.md": "# B\n\n## `Two` words\n"}
        self.assertEqual(faults(tree(**good)), [])
        self.one({"docs/a.md": "[it](c.md)\n"}, "docs/a.md:1: link to c.md, which does not exist")
        self.one({**good, "docs/c.md": "[it](b.md#three)\n"}, "no such heading")
        self.one({"docs/a.md": "# A\n[it](#b)\n"}, "no such heading")

    def test_named_paths(self):
        good = {"docs/a.md": "Start at `x/src/lib.rs`, or at `lib.rs` and `../y`.\n", "crates/x/src/lib.rs": RUST}
        self.assertEqual(faults(tree(**good)), [])
        self.one({"docs/a.md": "# A\nSee `x/src/gone.rs`.\n"}, "docs/a.md:2: x/src/gone.rs does not exist")
        self.one({"x.rs": RUST + "// Models `x/gone.toml`.\n"}, "x.rs:2: x/gone.toml does not exist")

    def test_wide_prose(self):
        words = "word " * 21
        self.one({"crates/x/README.md": f"{words}\n"}, "README.md:1: a line of")
        fine = f"| {words} |\n\n```\n{words}\n```\n"
        self.assertEqual(faults(tree(**{"crates/x/README.md": fine})), [])

    def test_documented_targets(self):
        self.one({"x.md": "Run `make fast`.\n"}, "make fast does not exist")
        self.assertEqual(faults(tree(**{"x.md": "Run `make test`.\n"})), [])

    def test_one_crate_for_system_calls(self):
        head = "# SPDX-License-Identifier: GPL-2.0-only\n[dependencies]\n"
        self.one({"crates/live/Cargo.toml": head + 'nix = "0.31"\n'}, "depends on nix")
        self.one({"Cargo.toml": head + "rustix.workspace = true\n"}, "depends on rustix")
        good = {"crates/vm/Cargo.toml": head + 'nix = { version = "0.31" }\n'}
        self.assertEqual(faults(tree(**good)), [])

    def test_samples_of_comments_depend_on_the_seed_alone(self):
        def sample(seed):
            command = [sys.executable, ROOT / "tools/comments.py", "--seed", seed, "-n", "5"]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout

        self.assertEqual(sample("7"), sample("7"))
        self.assertNotEqual(sample("7"), sample("8"))
        self.assertEqual(sample("7").count("\n\n"), 5)


if __name__ == "__main__":
    unittest.main()
