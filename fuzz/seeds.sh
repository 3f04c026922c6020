#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Makes the seed corpus anew from what is in the project: our test objects, the inputs of
# the rt-app cases, and the programs of examples/seeds.rs. The result is checked in; run it when those change.
set -euo pipefail
cd "$(dirname "$0")"

objects() {
    local from=../crates/bpf/testdata to=corpus/object_loader
    for object in "$from"/*.bpf.o "$from"/kernel.o; do
        # What a linker wants and a loader does not read.
        llvm-objcopy-19 --remove-section=.llvm_addrsig --remove-section=.rel.BTF \
            --remove-section=.rel.BTF.ext "$object" "$to/$(basename "$object")"
    done
}

# A case is a comment, `--- input`, the input, `--- expected`, the rest.
rtapp() {
    for case in ../cases/rtapp/*.case; do
        sed -n '/^--- input$/,/^--- /{/^--- /d;p}' "$case" >"corpus/rtapp_parser/$(basename "$case" .case).json"
    done
}

objects
rtapp
cargo run --quiet --example seeds -- corpus/interpreter
