#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Checks that no compiler makes. Prints each fault, and fails if there is one.

The whole tree: licence lines, dead files, names and texts that are banned, long files, long comment
lines, opening words of comments, links between pages, commands that pages name, crates for system calls.
The simulated part: the six rules of ARCHITECTURE.md ("Deterministic"). `tools/tidy_test.py` shows that each check finds
a violation.
"""

import pathlib
import re
import sys
from collections import defaultdict

from comments import ROOT, comment_lines, prose, scanner, tracked, without

COLUMNS = 100
LINES_MAX = 1000
# Words with which few comment lines may begin, and the largest share of such lines.
OPENING_WORDS = re.compile(r"(What|Who)\b")
OPENING_SHARE = 0.005

# Crates of the simulated part. `native` and tests do not belong to it.
SIMULATED = re.compile(r"crates/(bpf|loader|machine|kernel|fair|trace|guest|workload|recording)/src/")
NOT_SIMULATED = re.compile(r"/(native|tests)(/|\.rs$)")

# Each rule: its name, the pattern that it forbids in code without comments and strings, and the
# advice in its message.
RULES = [
    (
        "clock",
        r"\b(Instant|SystemTime|UNIX_EPOCH)\b|\b_?rdtscp?\b|\bclock_gettime\b|\bthread::sleep\b",
        "time comes from the event queue",
    ),
    (
        "environment",
        r"\bstd::env\b|(?<![\w:.])env::\w|\buse std::\{[^;]*\benv\b|\b(option_)?env!|\bgetenv\b"
        r"|\bavailable_parallelism\b|\bprocess::id\b|\bthread::current\b",
        "the caller passes what a run depends on",
    ),
    (
        "file",
        r"\bstd::(fs|net|process)\b|(?<![\w:.])fs::\w|\buse std::\{[^;]*\b(fs|net|process)\b"
        r"|\bFile::(open|create|options)|\bOpenOptions\b|\bio::(self, )?stdin\b|\bCommand::new\b"
        r"|\b(Tcp|Udp|Unix)(Stream|Listener|Socket)\b|\b(libc|nix|rustix)::",
        "the caller opens files and passes their text",
    ),
    (
        "static",
        r"(?<!')\bstatic\s+(mut\s+)?\w+\s*:|\b(thread_local|lazy_static)!"
        r"|\b(Once|Lazy)(Lock|Cell)\b",
        "a run shares nothing with another: use a const, or a field",
    ),
    (
        "float",
        r"\bf(16|32|64|128)\b|(?<![\w.])\d[\d_]*(\.\d[\d_]*([eE][+-]?\d+)?|[eE][+-]?\d+|\.(?![\w.]))",
        "integers and `Ratio`",
    ),
    (
        "hash map",
        r"\b(?<!Fx)Hash(Map|Set)\b|\bRandomState\b|\bDefaultHasher\b|\b(hash_map|hash_set)::",
        "BTreeMap, IndexMap or a dense table; FxHashMap for lookups alone",
    ),
]
RULES = [(name, re.compile(pattern), instead) for name, pattern, instead in RULES]
# An exception: `// tidy: allow(float): reason` at the end of the line, or on a line of its own
# above.
ALLOW = re.compile(r"//\s*tidy: allow\(([a-z ]+)\)(: \S)?")
# `HASHED` finds names that a file declares as hash maps; `ITERATED` finds iteration over such a
# name.
HASHED = re.compile(r"\b(\w+)\s*:\s*&?(?:mut )?(?:\w+::)*FxHash(?:Map|Set)\b"
                    r"|\blet (?:mut )?(\w+)\s*=\s*(?:\w+::)*FxHash(?:Map|Set)\b")
ITERATED = (r"\b{0}\s*\.\s*(iter|iter_mut|keys|values|values_mut|drain|retain|into_iter|into_keys"
            r"|into_values|extract_if)\(|\bin\s+&?(mut )?([\w.]+\.)?{0}\s*\{{")

# C files and pages (under `bpf/`) whose lines may be longer than `COLUMNS`. (An additional line in
# a scheduler changes the line numbers in its object, and with them the text of faults.)
UNWRAPPED = re.compile(r"^bpf/")


class Tree:
    """The files of the project, and the faults found in them."""

    def __init__(self, root, names=None):
        self.root = root
        self.names = tracked(root) if names is None else names
        self.texts = {}
        self.faults = []

    def files(self, pattern):
        """Returns the files whose whole path matches."""
        return [name for name in self.names if re.fullmatch(pattern, name)]

    def text(self, name):
        """Returns a file's text; empty for one that is not text."""
        if name not in self.texts:
            data = (self.root / name).read_bytes()
            self.texts[name] = "" if b"\0" in data[:8192] else data.decode(errors="replace")
        return self.texts[name]

    def fault(self, place, what):
        self.faults.append(f"{place}: {what}")


def licence_lines(tree):
    for name in tree.files(r".*\.(rs|c|h|sh|py|toml)|(.*/)?Makefile|\.ci/run"):
        head = tree.text(name).split("\n", 2)[:2]
        if not any("SPDX-License-Identifier: GPL-2.0-only" in line for line in head):
            tree.fault(name, "no SPDX line at the top")


def dead_files(tree):
    """`x.rs` and `x/` need a `mod x` in the parent file. The roots of a crate and of its bins,
    tests, benches and examples belong to cargo."""
    for name in tree.files(r"crates/[^/]+/src/.*\.rs"):
        path = pathlib.PurePosixPath(name)
        if path.name in ("lib.rs", "main.rs") or path.parent.name == "bin":
            continue
        if path.stem == "mod":
            tree.fault(name, "a module is x.rs beside x/, not x/mod.rs")
            continue
        parents = [f"{path.parent}.rs"]
        if path.parent.name == "src":
            parents = [f"{path.parent}/lib.rs", f"{path.parent}/main.rs"]
        declared = re.compile(rf"^\s*(pub(\([a-z]+\))? )?mod {path.stem};", re.MULTILINE)
        if not any(p in tree.names and declared.search(tree.text(p)) for p in parents):
            tree.fault(name, "no module declares it")


def banned_names(tree):
    for name in tree.files(r"crates/[^/]+/src/.*\.rs|bpf/.*"):
        if pathlib.PurePosixPath(name).name.split(".")[0] in (
            "util", "utils", "misc", "common", "helpers"
        ):
            tree.fault(name, "a name that says nothing")


def banned_text(tree):
    """Notes to oneself, tests that nobody runs (`make thorough` runs those that are long), paths of a
    developer's machine, hosts of packages. The patterns are assembled, so that this file does not
    contain the text that it bans."""
    notes = "TO" "DO|FIX" "ME|XX" "X:|todo" r"!\(|unimplemented" r"!\(|#\[ig" 'nore(?! = "long"])'
    # The four folder names are banned at the start of a path only, because sysfs paths may contain
    # folders of these names further on.
    places = "(?<![a-z_])/(work|home|root|tmp)/[a-z]"
    hosts = r"(deb|security|snapshot)\.debian\." r"org|(index|static)\." r"crates\.io|pypi\." "org"
    banned = re.compile(f"{notes}|{places}|{hosts}")
    for name in tree.names:
        if re.match(r"(LICENSE|Cargo\.lock|cases/|fuzz/corpus/)", name):
            continue
        text = tree.text(name)
        for match in banned.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            tree.fault(f"{name}:{line}", f"banned text: {match.group(0)}")


def long_files(tree):
    for name in tree.files(r".*\.(rs|c|h|sh|py)"):
        if tree.text(name).count("\n") > LINES_MAX:
            tree.fault(name, f"more than {LINES_MAX} lines; which noun wants its own file?")


def comments(tree):
    """Length and opening words of comment lines."""
    total, opened = 0, []
    for name in tree.names:
        if scanner(name) is None or name.startswith("fuzz/corpus/"):
            continue
        text = tree.text(name)
        lines = text.split("\n")
        diagram = None
        for line in comment_lines(name, text):
            total += 1
            # The checks below skip code blocks and diagrams. A block ends with its comment at the
            # latest, even if it is not closed.
            if prose(line.text).startswith("```"):
                diagram = None if diagram else line.number
            elif diagram and line.number == diagram + 1:
                diagram = line.number
                continue
            else:
                diagram = None
            if OPENING_WORDS.match(prose(line.text)):
                opened.append(f"{name}:{line.number}")
            # A line with one word only, such as a link, may be too long: it cannot be wrapped.
            width = len(lines[line.number - 1])
            if width > COLUMNS and " " in prose(line.text) and not UNWRAPPED.match(name):
                tree.fault(f"{name}:{line.number}", f"a comment of {width} columns, over {COLUMNS}")
    if len(opened) > max(1, total * OPENING_SHARE):
        for place in opened:
            tree.fault(place, "a comment line begins with What or Who: name the subject")


def markdown_lines(text):
    """Yields number and text of lines outside code blocks and comments."""
    fence = None
    for number, line in enumerate(text.split("\n"), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (fence is None or mark[1].startswith(fence)):
            fence = None if fence else mark[1]
        elif fence is None and not line.startswith("    "):
            yield number, line


def anchors(text):
    """Returns the anchors of a page's headings, as GitHub makes them."""
    found = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    seen = defaultdict(int)
    for _, line in markdown_lines(text):
        heading = re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if heading:
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found


def links(tree):
    """Relative links of pages lead to files of the project, and to headings in them."""
    known = set(tree.names)
    known.update(str(p) for name in tree.names for p in pathlib.PurePosixPath(name).parents)
    for name in tree.files(r".*\.md"):
        for number, line in markdown_lines(tree.text(name)):
            line = re.sub(r"`[^`]*`", "", line)
            for target in re.findall(r"\]\(<?([^)\s>]+)>?\)|^\[[^\]]+\]:\s+(\S+)", line):
                target = target[0] or target[1]
                if re.match(r"[a-z][a-z0-9+.-]*:", target):
                    continue
                path, _, anchor = target.partition("#")
                parts = []
                for part in (*pathlib.PurePosixPath(name).parent.parts, *path.split("/")):
                    if part == ".." and parts:
                        parts.pop()
                    elif part not in ("", "."):
                        parts.append(part)
                page = "/".join(parts) or "."
                if not path:
                    page = name
                if page not in known:
                    tree.fault(f"{name}:{number}", f"link to {target}, which does not exist")
                elif anchor and page.endswith(".md") and anchor not in anchors(tree.text(page)):
                    tree.fault(f"{name}:{number}", f"link to {target}: no such heading")


def named_paths(tree):
    """Paths of source files in backticks, in pages and comments, end like a file of the project."""
    ends = {name[at:] for name in tree.names for at in range(len(name)) if at == 0 or name[at - 1] == "/"}
    pattern = re.compile(r"`([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*/[A-Za-z0-9_-]+\.(?:rs|py|sh|toml|md))`")
    # The changelog is left out, because it names files as they were called at the time.
    for name in tree.files(r"(?!fuzz/corpus/|CHANGELOG|tools/tidy).*\.(md|rs|c|h|toml|py|sh)"):
        for number, line in enumerate(tree.text(name).split("\n"), 1):
            for path in pattern.findall(line):
                if path not in ends:
                    tree.fault(f"{name}:{number}", f"{path} does not exist")


def wide_prose(tree):
    """Lines of pages, outside tables, code blocks, headings, and what is generated (claims too)."""
    for name in tree.files(r".*\.md"):
        text = tree.text(name)
        if UNWRAPPED.match(name) or "\n<!-- Generated" in text[:400]:
            continue
        in_claim = False
        for number, line in markdown_lines(text):
            if line.startswith(("<!-- claim", "<!-- end of claim")):
                in_claim = line.startswith("<!-- claim")
            if in_claim:
                continue
            if len(line) > COLUMNS and not re.match(r"\s*[|#]|<!--", line) and " " in line.strip():
                tree.fault(f"{name}:{number}", f"a line of {len(line)} columns, over {COLUMNS}")


def documented_targets(tree):
    """`make x` on a page names an existing target."""
    targets = set(re.findall(r"^([a-z0-9-]+):", tree.text("Makefile"), re.MULTILINE))
    for name in tree.files(r".*\.md"):
        for target in re.findall(r"`make ([a-z0-9-]+)", tree.text(name)):
            if target not in targets:
                tree.fault(name, f"make {target} does not exist")


def system_crates(tree):
    """One crate for system calls: libc. `nix` wraps those of a guest's init in fourteen safe
    functions, and a build script of libbpf compiles it in any case; so `vm` keeps it, and uses its
    `nix::libc`."""
    for name in tree.files(r"(.*/)?Cargo\.toml"):
        for found in re.findall(r"^(nix|rustix)\b.*=", tree.text(name), re.MULTILINE):
            if (name, found) != ("crates/vm/Cargo.toml", "nix"):
                tree.fault(name, f"depends on {found}: use libc")


def without_tests(code):
    """Returns code without the items that only tests compile."""
    for match in re.finditer(r"#\[cfg\(test\)\]", code):
        depth, at = 0, match.end()
        while at < len(code):
            depth += {"{": 1, "}": -1}.get(code[at], 0)
            at += 1
            if depth == 0 and code[at - 1] in "};":
                break
        inside = code[match.start() : at]
        code = code[: match.start()] + re.sub(r"[^\n]", " ", inside) + code[at:]
    return code


def simulated(tree):
    """The simulated part reads no clock, environment, file or static, and uses no floats and no
    order of hash maps."""
    for name in tree.files(r"crates/.*\.rs"):
        if not SIMULATED.match(name) or NOT_SIMULATED.search(name):
            continue
        text = tree.text(name)
        code = without_tests(without(name, text, ("comment", "string")))
        rules = RULES[:]
        hashed = {one or other for one, other in HASHED.findall(code)}
        for field in sorted(hashed):
            pattern = re.compile(ITERATED.format(re.escape(field)))
            rules.append(("hash map", pattern, "its order must not matter: use a BTreeMap"))
        lines = text.split("\n")
        for rule, pattern, instead in rules:
            for match in pattern.finditer(code):
                # `OUT_DIR` is allowed: the build's own folder is the same for each run.
                if text.startswith('env!("OUT_DIR")', match.start()):
                    continue
                number = code.count("\n", 0, match.start()) + 1
                if rule in allowed(lines, number):
                    continue
                found = " ".join(match.group(0).split())
                tree.fault(f"{name}:{number}", f"{rule} in simulated code: {found}; {instead}")
        for number, line in enumerate(lines, 1):
            allow = ALLOW.search(line)
            if allow and not allow[2]:
                tree.fault(f"{name}:{number}", f"allow({allow[1]}) without a reason")


def allowed(lines, number):
    """Returns the rules that the comments at a line allow: at its end, or above it."""
    rules = set()
    above = number - 1
    candidates = [lines[number - 1]]
    while above > 0 and lines[above - 1].lstrip().startswith(("//", "#[")):
        candidates.append(lines[above - 1])
        above -= 1
    for line in candidates:
        allow = ALLOW.search(line)
        if allow:
            rules.add(allow[1])
    return rules


CHECKS = [
    licence_lines, dead_files, banned_names, banned_text, long_files, comments, links, named_paths,
    wide_prose, documented_targets, system_crates, simulated,
]


def check(tree):
    for one in CHECKS:
        one(tree)
    return tree.faults


def main():
    faults = check(Tree(ROOT))
    for fault in faults:
        print(f"tidy: {fault}", file=sys.stderr)
    if faults:
        sys.exit(f"tidy: {len(faults)} faults")


if __name__ == "__main__":
    main()
