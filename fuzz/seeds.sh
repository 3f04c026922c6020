#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Regenerates the seed corpus from the project: our test objects, the inputs of the rt-app cases,
# machines, workloads, recipes, traces, and the programs of examples/seeds.rs. The result is checked
# in; run this when those change.
set -euo pipefail
cd "$(dirname "$0")"

objects() {
    local from=../crates/loader/testdata to=corpus/object_loader
    for object in "$from"/*.bpf.o "$from"/kernel.o; do
        # Remove the sections that a linker reads and the loader does not. Keep .rel.BTF, which the
        # loader reads: without it variables have no offset.
        llvm-objcopy-19 --remove-section=.llvm_addrsig --remove-section=.rel.BTF.ext "$object" "$to/$(basename "$object")"
    done
}

# A case file is a comment, `--- input`, the input, `--- expected`, the expected output.
rtapp() {
    for case in ../cases/rtapp/*.case; do
        sed -n '/^--- input$/,/^--- /{/^--- /d;p}' "$case" >"corpus/rtapp_parser/$(basename "$case" .case).json"
    done
}

texts() {
    mkdir -p corpus/{machines,lstopo,workloads,recipes,results}
    cp ../machines/*.toml corpus/machines/
    cp ../workloads/*.toml corpus/workloads/
    find ../crates/machine ../cases -name '*.xml' -size -64k -exec cp {} corpus/lstopo/ \;
    for recipe in ../recipes/*.toml; do
        { echo "vtime,slice_ns=3000000"; cat "$recipe"; } >"corpus/recipes/$(basename "$recipe")"
    done
    ../target/debug/scxlab run -s vtime -w hogs,tasks=2 -m 2c --duration 20ms -n 2 --format json |
        python3 -c 'import json, sys; json.dump(json.load(sys.stdin)["runs"], sys.stdout)' >corpus/results/runs.json
}

# The target `schedulers` takes any bytes as a random scheduler. A few inputs of the property test
# (crates/testkit/tests/whim.rs) give libFuzzer inputs of full length.
schedulers() {
    mkdir -p corpus/schedulers
    cargo run --quiet --example whims -- corpus/schedulers
}

# A file of scxlab's own, and the texts of other recorders that the importers are tested with.
traces() {
    mkdir -p corpus/traces
    cp ../crates/trace/testdata/*.txt corpus/traces/
    cargo run --quiet --example traces -- corpus/traces
}

objects
rtapp
texts
traces
schedulers
# The BPF objects among the seeds of `object_loader` are also the seeds of the target `libbpf`.
mkdir -p corpus/libbpf
cp corpus/object_loader/*.bpf.o corpus/libbpf/
cargo run --quiet --example seeds -- corpus/interpreter
