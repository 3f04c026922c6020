#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Builds scxlab with a profile of itself at work: code is laid out in the order of execution. The
# gain is in docs/internals/performance.md. Our crates are compiled twice, dependencies once.
#
#   tools/pgo.sh                    the program, in target/pgo/scxlab
#   tools/pgo.sh bench [ARGS]       benchmarks of the same code, all of them without arguments;
#                                   for example: --bench switches -- vtime-64
#
# Leaves in build/pgo: NAME.profdata, the profile. NAME is a hash of the sources, so that a change
# of them makes a new profile.
# Needs: llvm-profdata that reads the output of rustc 1.95, from rustup's llvm-tools or Debian's
# llvm-19.
set -euo pipefail
cd "$(dirname "$0")/.."

# Cargo also calls this script as rustc's wrapper for the crates of this workspace. The script then
# runs rustc with additional flags.
if [ -n "${SCXLAB_PGO_FLAGS:-}" ] && [ "${1##*/}" = rustc ]; then
    exec "$@" "$SCXLAB_PGO_FLAGS"
fi

cargo=${CARGO:-cargo}
out=$PWD/build/pgo
export CARGO_TARGET_DIR=$PWD/target/pgo
# Every build contains both the program and the benchmarks. With only one of these packages, cargo
# would select other features of dependencies, symbols would get other names, and the profile would
# not match them.
packages="--package scxlab-cli --package scxlab-benches"
mkdir -p "$out"

say() { echo "pgo: $*"; }
die() { say "$*" >&2; exit 1; }

# Prints a hash of the profile's inputs: the sources and the compiler.
name() {
    { rustc -vV; find Cargo.lock tools/pgo.sh crates bpf -type f -print0 | sort -z | xargs -0 sha256sum; } |
        sha256sum | cut -c1-16
}

profdata_tool() {
    host=$(rustc -vV | sed -n 's/^host: //p')
    for tool in "$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata" llvm-profdata-19 llvm-profdata; do
        command -v "$tool" && return
    done
    die "no llvm-profdata: apt-get install llvm-19, or rustup component add llvm-tools"
}

# Runs cargo with flags for the compiler: FLAGS COMMAND... Cargo does not see these flags, so the
# function first removes crates that were compiled with other flags.
with_flags() {
    flags=$1; shift
    if [ "$(cat "$out/flags" 2>/dev/null)" != "$flags" ]; then
        for crate in $(sed -n 's/^name = "\(scxlab-.*\)"/\1/p' crates/*/Cargo.toml benches/Cargo.toml); do
            "$cargo" clean --quiet --release --package "$crate"
        done
        echo "$flags" >"$out/flags"
    fi
    SCXLAB_PGO_FLAGS=$flags RUSTC_WORKSPACE_WRAPPER=$PWD/tools/pgo.sh "$cargo" "$1" --locked "${@:2}"
}

# Trains the profile with typical use, not with the benchmarks: several kinds of work, schedulers
# and sizes of machine.
train() {
    example=/usr/share/doc/rt-app/examples/browser-short.json
    schedulers="-s eevdf -s vtime -s fair -s credit -s o1"
    run() {
        # shellcheck disable=SC2086 # `schedulers` is a list of arguments
        "$CARGO_TARGET_DIR/release/scxlab" run $schedulers "$@" >/dev/null || die "training failed: scxlab run $schedulers $*"
    }
    if [ -f $example ]; then run -w $example -m 2n4c2t --duration 30s; fi
    run -w hackbench,groups=2,loops=200 -m desktop-8c16t
    run -w schbench,workers=8,duration=5s -m laptop-4c8t
    run -w pingpong,pairs=4,duration=100ms -m 2n4c1t
    run -w hogs,tasks=12,nice=0:5:10,duration=10s -m 1n4c2t
    run -w sleepers,tasks=60,run=700us,sleep=2ms,duration=20s -m 1n12c1t
    run -w sleepers,tasks=600,run=1500us,sleep=5ms,duration=2s -m 4n16c2t
}

profile=$out/$(name).profdata
if [ ! -s "$profile" ]; then
    merge=$(profdata_tool)
    rm -rf "$out"/*.profdata "$out/raw"
    say "building with counters"
    # shellcheck disable=SC2086 # `packages` is a list of arguments
    with_flags "-Cprofile-generate=$out/raw" build --quiet --release $packages --bin scxlab
    say "training"
    train
    "$merge" merge --output="$profile.new" "$out"/raw/*.profraw || die "$merge does not read what $(rustc -V) writes"
    mv "$profile.new" "$profile"
    rm -rf "$out/raw"
fi

if [ "${1:-}" = bench ]; then
    shift
    case ${1:-} in --bench | --no-run) ;; *) set -- --bench '*' "$@" ;; esac
    # shellcheck disable=SC2086 # `packages` is a list of arguments
    with_flags "-Cprofile-use=$profile" bench --quiet $packages "$@"
    exit
fi
say "building with the profile"
# shellcheck disable=SC2086 # `packages` is a list of arguments
with_flags "-Cprofile-use=$profile" build --quiet --release $packages --bin scxlab
ln -f "$CARGO_TARGET_DIR/release/scxlab" "$CARGO_TARGET_DIR/scxlab"
say "target/pgo/scxlab"
