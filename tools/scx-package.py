#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Helper of scx-objects.sh: packages that have nothing but their build script, and what those left.

strip SOURCE COPY              copies an unpacked crate without its program and what only that needs
collect MESSAGES FOLDER NAME.. copies the objects of the named packages out of what cargo says of its build
"""

import json
import shutil
import sys
import tomllib
from pathlib import Path


def strip(source: Path, copy: Path) -> None:
    manifest = tomllib.loads((source / "Cargo.toml").read_text())
    package = manifest["package"]
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("Cargo.*", ".cargo*", "tests", "benches"))
    for program in copy.glob("src/**/*.rs"):
        program.unlink()
    (copy / "src").mkdir(exist_ok=True)
    (copy / "src" / "lib.rs").write_text("")
    kept = {key: package[key] for key in ("name", "version", "edition", "links") if key in package}
    kept["build"] = package.get("build", "build.rs")
    lines = ["[package]"] + [f"{key} = {text(value)}" for key, value in kept.items()]
    lines += ["autobins = false", "[build-dependencies]"]
    lines += [f"{name} = {text(spec)}" for name, spec in manifest.get("build-dependencies", {}).items()]
    (copy / "Cargo.toml").write_text("\n".join(lines) + "\n")


def text(value) -> str:
    """A TOML value on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {text(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


def collect(messages: Path, folder: Path, names: list[str]) -> None:
    found = {}
    for line in messages.read_text().splitlines():
        message = json.loads(line)
        if message["reason"] == "build-script-executed":
            # path+file:///.../NAME#VERSION
            place, _, version = message["package_id"].rpartition("#")
            found[place.rpartition("/")[2]] = (Path(message["out_dir"]), version)
    for name in names:
        out, version = found.get(name, (None, None))
        # Several sources are linked into one object, bpf.bpf.o; one source is called as its skeleton.
        objects = sorted(out.glob("*.bpf.o"), key=lambda o: o.name != "bpf.bpf.o") if out else []
        if not objects:
            sys.exit(f"scx-objects: the build script of {name} left no object")
        short = name.removeprefix("scx_")
        shutil.copyfile(objects[0], folder / f"{short}.bpf.o")
        (folder / f"{short}.version").write_text(version + "\n")


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "strip":
        strip(Path(rest[0]), Path(rest[1]))
    else:
        collect(Path(rest[0]), Path(rest[1]), rest[2:])
