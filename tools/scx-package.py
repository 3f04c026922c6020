#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Helper of scx-objects.sh: packages that have nothing but their build script, and what those left.

strip SOURCE FOLDER NAME       makes a package called NAME of an unpacked crate, without its program and what only that needs.
                               It lies in a folder of FOLDER that is called as the version of scx_cargo, for which it is
lock OURS PINS COPY            copies our lock file with the packages that pins call needed, so that cargo chooses those
needs LOCK OURS                prints what a lock file names and ours does not, with its SHA-256
collect MESSAGES FOLDER NAME.. copies the objects of the named packages out of what cargo says of its build
"""

import json
import shutil
import sys
import tomllib
from pathlib import Path


def strip(source: Path, folder: Path, name: str) -> None:
    manifest = tomllib.loads((source / "Cargo.toml").read_text())
    package = manifest["package"]
    # The scx project releases its crates together, and C sources include headers from the scx_cargo
    # of the same release. Dependencies on scx crates are therefore pinned to that release.
    needs = manifest.get("build-dependencies", {})
    needs = {key: pinned(spec) if key.startswith("scx_") else spec for key, spec in needs.items()}
    copy = folder / needs["scx_cargo"]["version"].lstrip("=") / name
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("Cargo.*", ".cargo*", "tests", "benches"))
    for program in copy.glob("src/**/*.rs"):
        program.unlink()
    (copy / "src").mkdir(exist_ok=True)
    (copy / "src" / "lib.rs").write_text("")
    kept = {key: package[key] for key in ("version", "edition", "links") if key in package}
    kept["name"] = name
    kept["build"] = package.get("build", "build.rs")
    lines = ["[package]"] + [f"{key} = {text(value)}" for key, value in kept.items()]
    lines += ["autobins = false", "[build-dependencies]"]
    lines += [f"{key} = {text(spec)}" for key, spec in needs.items()]
    (copy / "Cargo.toml").write_text("\n".join(lines) + "\n")


def pinned(spec) -> dict:
    """A dependency on no later version than it names."""
    spec = spec if isinstance(spec, dict) else {"version": spec}
    return spec | {"version": "=" + spec["version"].lstrip("=^")}


def text(value) -> str:
    """A TOML value on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {text(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


def lock(ours: Path, pins: Path, copy: Path) -> None:
    source = next(p["source"] for p in tomllib.loads(ours.read_text())["package"] if "source" in p)
    text = ours.read_text()
    for line in pins.read_text().splitlines():
        match line.split():
            case ["needed", name, version, checksum]:
                entry = {"name": name, "version": version, "source": source, "checksum": checksum}
                text += "\n[[package]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
    copy.write_text(text)


def needs(lock: Path, ours: Path) -> None:
    packages = [tomllib.loads(file.read_text())["package"] for file in (lock, ours)]
    known = {(package["name"], package["version"]) for package in packages[1]}
    for package in packages[0]:
        name, version = package["name"], package["version"]
        if "checksum" in package and (name, version) not in known:
            print("needed", name, version, package["checksum"])


def collect(messages: Path, folder: Path, names: list[str]) -> None:
    found = {}
    for line in messages.read_text().splitlines():
        message = json.loads(line)
        if message["reason"] == "build-script-executed":
            # A package id has the form path+file:///.../NAME#VERSION.
            place, _, version = message["package_id"].rpartition("#")
            found[place.rpartition("/")[2]] = (Path(message["out_dir"]), version)
    for name in names:
        out, version = found.get(name, (None, None))
        # Several sources are linked into one object, bpf.bpf.o, which is then taken; a single
        # source gives an object named as its skeleton.
        objects = sorted(out.glob("*.bpf.o"), key=lambda o: o.name != "bpf.bpf.o") if out else []
        if not objects:
            sys.exit(f"scx-objects: the build script of {name} left no object")
        # The crate's name has no hyphen; the version follows the first hyphen of the package's
        # name.
        short = name.removeprefix("scx_").partition("-")[0]
        shutil.copyfile(objects[0], folder / f"{short}-{version}.bpf.o")


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "strip":
        strip(Path(rest[0]), Path(rest[1]), rest[2])
    elif command == "lock":
        lock(Path(rest[0]), Path(rest[1]), Path(rest[2]))
    elif command == "needs":
        needs(Path(rest[0]), Path(rest[1]))
    else:
        collect(Path(rest[0]), Path(rest[1]), rest[2:])
