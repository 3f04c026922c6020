#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Recompiles the test objects. They are checked in, so that the crate's tests need no compiler.
set -eu
cd "$(dirname "$0")"
for source in *.bpf.c kernel.c; do
    object="${source%.c}.o"
    "${BPF_CLANG:-clang}" -O2 -g -mcpu=v3 -target bpf -ffile-prefix-map="$PWD"=. -Wno-incompatible-function-pointer-types-strict -Wno-unused-label -c "$source" -o "$object"
    "${LLVM_STRIP:-llvm-strip}" -g "$object"
done
