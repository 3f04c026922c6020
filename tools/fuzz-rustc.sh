#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# The compiler for tools/fuzz.sh: RUSTC ARGUMENT... as cargo says, but instruments our own crates only.
#
# The code of a code generator that others wrote is larger than ours. With counters in it, it would take most of the time, and
# inputs that are new to it alone would fill the corpus. Generic code of others is compiled as part of ours, and sanitized.
set -euo pipefail

# Cargo caps the lints of crates that are not ours.
case " $* " in
    *" --cap-lints "*) ;;
    *) exec "$@" ;;
esac
kept=()
for argument in "$@"; do
    case $argument in
        -Cpasses=sancov-module | -Cllvm-args=* | -Zsanitizer=*) ;;
        *) kept+=("$argument") ;;
    esac
done
exec "${kept[@]}"
