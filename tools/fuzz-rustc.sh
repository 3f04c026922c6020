#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Compiler wrapper for tools/fuzz.sh, which cargo calls with RUSTC ARGUMENT... The wrapper makes the
# compiler instrument our own crates only.
#
# The code generator among the dependencies is larger than our code. With coverage counters, the
# generator would take most of the time, and inputs that reach new code only in the generator would
# fill the corpus. Generic code of dependencies is compiled as part of our crates, and sanitized.
set -euo pipefail

# Cargo passes --cap-lints only for crates that are not ours. Our crates keep all arguments; the
# others lose those that instrument code.
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
