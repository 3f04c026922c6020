#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Comments of the project's sources: a random sample for a reader, and the scanner behind it.

    tools/comments.py --seed 7 -n 30

prints 30 comments, each with its file and first line. Equal seeds and equal trees give equal
samples. A comment is understood if its reader can say what it claims without seeing the code.
"""

import argparse
import bisect
import pathlib
import random
import re
import subprocess
from collections import namedtuple

ROOT = pathlib.Path(__file__).resolve().parent.parent

# One comment line: line number, column of its first character, its text with the comment marker,
# and whether only blanks precede it.
Line = namedtuple("Line", "number column text alone")

RUST = re.compile(
    r"""(?P<comment>//[^\n]*|/\*[\s\S]*?\*/)
      | (?P<string>\bb?r(?P<hashes>\#+)"[\s\S]*?"(?P=hashes)|\bb?r"[^"]*"|"(?:\\[\s\S]|[^"\\])*")
      | '(?:\\[^\n']*'|[^\\'\n]')""",
    re.VERBOSE,
)
C = re.compile(
    r"""(?P<comment>//[^\n]*|/\*[\s\S]*?\*/)
      | (?P<string>"(?:\\[\s\S]|[^"\\\n])*")
      | '(?:\\.|[^\\'\n])*'""",
    re.VERBOSE,
)
# Finds only comments on lines of their own: a `#` further on in a line may be part of a string.
HASH = re.compile(r"^[ \t]*(?P<comment>\#(?!!)[^\n]*)", re.MULTILINE)
SCANNERS = {".rs": RUST, ".c": C, ".h": C, ".sh": HASH, ".py": HASH, ".toml": HASH, "Makefile": HASH}


def scanner(path):
    """Returns the scanner for a file, by its name; None if it is no source file."""
    path = pathlib.PurePath(path)
    return SCANNERS.get(path.suffix or path.name)


def comment_lines(path, text):
    """Returns the lines of all comments of a file, in order, without the licence line."""
    lines = []
    starts = [0] + [match.end() for match in re.finditer("\n", text)]
    for match in scanner(path).finditer(text):
        if match.lastgroup is None or match.group("comment") is None:
            continue
        at = match.start("comment")
        number = bisect.bisect_right(starts, at)
        column = at - starts[number - 1]
        alone = not text[starts[number - 1] : at].strip()
        for more, part in enumerate(match.group("comment").split("\n")):
            if "SPDX-License-Identifier" not in part:
                lines.append(Line(number + more, 0 if more else column, part, alone or more > 0))
    return lines


def without(path, text, groups):
    """Returns a file's text with comments or strings replaced by blanks; lines keep their length."""

    def blank(match):
        if any(name in match.groupdict() and match.group(name) is not None for name in groups):
            return re.sub(r"[^\n]", " ", match.group(0))
        return match.group(0)

    return scanner(path).sub(blank, text)


def prose(text):
    """Returns a comment line without its marker."""
    return re.sub(r"^\s*(///?!?|//!|/\*+|\*+(?!/)|#+)?\s?|\s*\*/$", "", text).strip()


def whole_comments(path, text):
    """Yields each comment as (first line, text): lines that follow each other belong together."""
    together = []
    for line in comment_lines(path, text):
        follows = together and line.number == together[-1].number + 1
        marker = re.match(r"\s*(//[/!]?|#|/?\*?)", line.text)[0].strip()
        if together and not (follows and line.alone and marker in continuing):
            yield together[0].number, "\n".join(part.text.strip() for part in together)
            together = []
        together.append(line)
        # Further lines of a block comment begin with `*`, or have no marker.
        continuing = ("*", "") if marker in ("/*", "*", "") else (marker,)
    if together:
        yield together[0].number, "\n".join(part.text.strip() for part in together)


def tracked(root):
    """Returns tracked files, and untracked ones that are not ignored, relative to the root."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted({name for name in names if name and (root / name).is_file()})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-n", type=int, default=30, help="number of comments")
    args = parser.parse_args()
    found = []
    for path in tracked(ROOT):
        if scanner(path) and not path.startswith("fuzz/corpus/"):
            text = (ROOT / path).read_text()
            found += [(path, line, comment) for line, comment in whole_comments(path, text)]
    found = [one for one in found if re.search(r"\w{3}", one[2])]
    for path, line, comment in random.Random(args.seed).sample(found, min(args.n, len(found))):
        print(f"{path}:{line}\n{comment}\n")


if __name__ == "__main__":
    main()
