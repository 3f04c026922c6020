#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Takes the BPF objects from published scx schedulers.
#
#   scx-objects.sh CRATE[@VERSION]...           does what `make scx-objects` does
#   scx-objects.sh --needs CRATE[@VERSION]...   prints the lines of tools/pins.txt for dependencies
#                                               of build scripts that Cargo.lock does not name, and
#                                               builds nothing
#
# A scheduler's object is the output of its crate's build script, and only that script is run: each
# crate is copied without its program, its dependencies and its lock file, and all copies form one
# workspace with the versions that this project locks. Dependencies of build scripts are therefore
# compiled once, and shared with this project's own build.
# Leaves build/scx/objects/<name>-<version>.bpf.o (scx_bpfland 1.1.4 gives bpfland-1.1.4.bpf.o), and
# build/scx/objects/<name>.bpf.o, a link to the version that is named first. Existing objects are
# not built again. A version that tools/pins.txt names must have the SHA-256 given there, and so
# must all of its dependencies.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
work=$root/build/scx
export BPF_CLANG="${BPF_CLANG:-clang-19}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}"

say() { echo "scx-objects: $*"; }
die() { say "$*" >&2; exit 1; }
fail() { tail -40 "$work/log" >&2; die "$1 (all of it: build/scx/log)"; }

. "$root/tools/pinned.sh"
only_needs=
if [ "${1-}" = --needs ]; then
    only_needs=1
    shift
fi
[ $# -gt 0 ] || die "usage: scx-objects.sh CRATE[@VERSION]..."
mkdir -p "$work/objects"
rm -rf "$work/workspace"
mkdir -p "$work/workspace"

# Prints the newest version of a crate.
newest() {
    local version
    version=$(cd "$work/workspace" && cargo info --color never "$1" 2>"$work/log" |
        sed -n 's/^version: \([^ ]*\).*/\1/p')
    [ -n "$version" ] || fail "no version of $1 was found"
    echo "$version"
}

# Prints the folder of a crate's sources, which `cargo info` unpacks without the crate's
# dependencies.
unpacked() {
    local source
    (cd "$work/workspace" && cargo info --color never "$1@$2") >/dev/null 2>"$work/log" ||
        fail "there is no $1 $2"
    if [ -n "$only_needs" ]; then
        :
    elif pinned_versions "$1" | grep -qxF "$2"; then
        check_crate "$1" "$2" || exit 1
    else
        say "WARNING: tools/pins.txt does not name $1 $2" >&2
    fi
    for source in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$1-$2"; do
        [ -d "$source" ] && { echo "$source"; return; }
    done
    die "cargo has unpacked $1 $2 nowhere"
}

packages=()
declare -A first
for crate in "$@"; do
    name=${crate%@*}
    version=${crate#"$name"}
    version=${version#@}
    version=${version:-$(newest "$name")}
    object=${name#scx_}-$version.bpf.o
    first[$name]=${first[$name]:-$object}
    [ -z "$only_needs" ] && [ -s "$work/objects/$object" ] && continue
    source=$(unpacked "$name" "$version")
    # Packages of one workspace must have different names, so the version is a part of the name.
    package=$name-${version//./_}
    python3 "$root/tools/scx-package.py" strip "$source" "$work/workspace" "$package"
    packages+=("$package")
done

# Chooses the versions of one workspace's dependencies, and prints those that Cargo.lock does not
# name.
resolve() {
    printf '[workspace]\nresolver = "3"\nmembers = ["*"]\n' >"$1/Cargo.toml"
    python3 "$root/tools/scx-package.py" lock "$root/Cargo.lock" "$2" "$1/Cargo.lock"
    (cd "$1" && cargo metadata --format-version 1) >/dev/null 2>"$work/log" || fail "cargo finds no versions that fit"
    python3 "$root/tools/scx-package.py" needs "$1/Cargo.lock" "$root/Cargo.lock"
}

# Builds the packages of one workspace.
build() {
    local members needs
    members=$(cd "$1" && ls)
    say "building" $members
    needs=$(resolve "$1" "$pins")
    echo "$needs" | while read -r line; do
        [ -z "$line" ] || grep -qxF "$line" "$pins" || say "WARNING: tools/pins.txt does not name this: $line" >&2
    done
    (cd "$1" && cargo check --locked --quiet --message-format json) >"$work/messages" 2>"$work/log" ||
        fail "a build script failed"
    # shellcheck disable=SC2086 # `members` is a list of packages
    python3 "$root/tools/scx-package.py" collect "$work/messages" "$work/objects" $members || exit 1
    # Removes the build scripts, 47 MB each, which are not needed any more.
    # shellcheck disable=SC2086 # `members` is a list of packages
    (cd "$1" && cargo clean --quiet $(printf -- '--package=%s ' $members))
}

if [ -n "$only_needs" ]; then
    for workspace in "$work"/workspace/*/; do
        resolve "$workspace" /dev/null
    done | sort -u
    rm -rf "$work/workspace" "$work/log"
    exit 0
fi
if [ ${#packages[@]} -eq 0 ]; then
    say "all objects exist"
else
    # Packages that need the same version of scx_cargo share a workspace.
    for workspace in "$work"/workspace/*/; do
        build "$workspace"
    done
fi
for name in "${!first[@]}"; do
    ln -sfn "${first[$name]}" "$work/objects/${name#scx_}.bpf.o"
done
rm -rf "$work/workspace" "$work/messages" "$work/log"
