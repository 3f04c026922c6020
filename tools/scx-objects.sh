#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Takes the BPF object out of published scx schedulers: scx-objects.sh CRATE...
#
# cargo builds the crate as for a user who installs it, unoptimised, since only what its build script makes
# is wanted. Leaves build/scx/objects/<name>.bpf.o, where scx_bpfland gives bpfland.bpf.o. An object that is
# there is not built again.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
work=$root/build/scx
export BPF_CLANG="${BPF_CLANG:-clang-19}"
export CARGO_TARGET_DIR="$work/target"

say() { echo "scx-objects: $*"; }
die() { say "$*" >&2; exit 1; }

[ $# -gt 0 ] || die "usage: scx-objects.sh CRATE..."
mkdir -p "$work/objects"

build() {
    cargo install --quiet --locked --debug --no-track --force --root "$work/installed" "$1" \
        >"$work/log" 2>&1 || { tail -40 "$work/log" >&2; die "$1 did not build (all of it: build/scx/log)"; }
}

# A build script links what it compiles into one object; of several builds the newest is ours.
object_of() {
    ls -t "$work"/target/debug/build/"$1"-*/out/bpf.bpf.o 2>/dev/null ||
        ls -t "$work"/target/debug/build/"$1"-*/out/*.bpf.o 2>/dev/null || true
}

for crate in "$@"; do
    name=${crate#scx_}
    if [ -s "$work/objects/$name.bpf.o" ]; then
        say "$name.bpf.o is there"
        continue
    fi
    say "building $crate"
    build "$crate"
    object=$(object_of "$crate" | sed -n 1p)
    [ -n "$object" ] || die "$crate built, but left no object"
    cp "$object" "$work/objects/$name.bpf.o"
done
# Crates of one call share what they depend on; after it, that is 1.5 GB of no use.
rm -rf "$work/target" "$work/installed" "$work/log"
