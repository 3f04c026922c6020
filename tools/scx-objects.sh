#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Takes the BPF object out of published scx schedulers: scx-objects.sh CRATE[@VERSION]...
#
# A scheduler's object is what its crate's build script leaves. Only that is run: each crate is copied without its
# program, its dependencies and its lock file, and all copies are one workspace with the versions that this project
# locks. So what build scripts need is compiled once, and shared with this project's own build.
# Leaves build/scx/objects/<name>.bpf.o, where scx_bpfland gives bpfland.bpf.o, and its version in
# build/scx/objects/<name>.version. An object that is there is not built again, unless another version is asked for.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
work=$root/build/scx
export BPF_CLANG="${BPF_CLANG:-clang-19}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}"

say() { echo "scx-objects: $*"; }
die() { say "$*" >&2; exit 1; }
fail() { tail -40 "$work/log" >&2; die "$1 (all of it: build/scx/log)"; }

[ $# -gt 0 ] || die "usage: scx-objects.sh CRATE[@VERSION]..."
mkdir -p "$work/objects"
rm -rf "$work/workspace"
mkdir -p "$work/workspace"

# Where cargo has unpacked a crate, which `cargo info` makes it do without anything that the crate depends on.
unpacked() {
    local version
    version=$(cd "$work/workspace" && cargo info --color never "$1" 2>"$work/log" |
        sed -n 's/^version: \([^ ]*\).*/\1/p')
    [ -n "$version" ] || fail "no version of $1 was found"
    for source in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"${1%@*}-$version"; do
        [ -d "$source" ] && { echo "$source"; return; }
    done
    die "cargo has unpacked $1 $version nowhere"
}

# Whether the object of a crate, in the version that is asked for if one is, is there.
is_there() {
    local name=${1%@*}
    local object=$work/objects/${name#scx_}
    [ -s "$object.bpf.o" ] && [ -s "$object.version" ] || return 1
    [ "$name" = "$1" ] || [ "${1#*@}" = "$(cat "$object.version")" ]
}

wanted=()
for crate in "$@"; do
    is_there "$crate" && continue
    name=${crate%@*}
    source=$(unpacked "$crate")
    python3 "$root/tools/scx-package.py" strip "$source" "$work/workspace/$name"
    wanted+=("$name")
done
if [ ${#wanted[@]} -eq 0 ]; then
    say "all are there"
else
    say "building ${wanted[*]}"
    printf '[workspace]\nresolver = "3"\nmembers = ["*"]\n' >"$work/workspace/Cargo.toml"
    cp "$root/Cargo.lock" "$work/workspace/Cargo.lock"
    (cd "$work/workspace" && cargo check --quiet --message-format json) >"$work/messages" 2>"$work/log" ||
        fail "a build script failed"
    python3 "$root/tools/scx-package.py" collect "$work/messages" "$work/objects" "${wanted[@]}" || exit 1
    # A build script of each, 47 MB, of which nobody has any more use.
    (cd "$work/workspace" && cargo clean --quiet "${wanted[@]/#/--package=}")
fi
rm -rf "$work/workspace" "$work/messages" "$work/log"
