#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Runs fuzz targets with the address sanitizer, as docs/internals/fuzzing.md describes.
#
#     tools/fuzz.sh run TARGET...     each for FUZZ_SECONDS, FUZZ_JOBS of them at a time
#     tools/fuzz.sh short TARGET...   each on inputs that the corpus decides, half a minute's
#     tools/fuzz.sh grow TARGET...    adds inputs of build/fuzz that reach more code to fuzz/corpus
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
. tools/pinned.sh
fuzz=build/tools/bin/cargo-fuzz
found=build/fuzz

# Allows the sanitizer on a stable compiler.
export RUSTC_BOOTSTRAP=1
# Disables incremental builds: sanitized code is large, and seldom built twice.
export CARGO_INCREMENTAL=0
export RUSTC_WRAPPER=$root/tools/fuzz-rustc.sh
# The symbolizer puts function names into reports.
ASAN_SYMBOLIZER_PATH=$(command -v llvm-symbolizer-19 || command -v llvm-symbolizer || true)
export ASAN_SYMBOLIZER_PATH

# The targets are built with the development profile, because a fully optimised build takes longer
# than a short run, and beside the project's own builds, which have no sanitizer.
build=(--dev --fuzz-dir fuzz --features libfuzzer --target-dir target/fuzz)

# Runs libFuzzer with limits that a slow host does not reach. Arguments: TARGET FOLDER... --
# OPTION...
fuzzer() {
    local target=$1
    shift
    "${repeatable[@]}" "$fuzz" fuzz run "${build[@]}" "$target" "$@" -timeout=600 -rss_limit_mb=4096
}

repeatable=()

# Prints the number of inputs of a target's short run, which takes about half a minute.
short_runs() {
    case $1 in
        object_loader) echo 180000 ;;
        interpreter) echo 60000 ;;
        libbpf) echo 250000 ;;
        engines) echo 3000 ;;
        schedulers) echo 100 ;;
        rtapp_parser | lstopo) echo 130000 ;;
        workloads) echo 200000 ;;
        machines) echo 25000 ;;
        recipes) echo 15000 ;;
        results) echo 600000 ;;
        traces) echo 50000 ;;
        *) echo "fuzz: no short run of $1" >&2; return 1 ;;
    esac
}

run_one() {
    options=(-max_total_time="$FUZZ_SECONDS")
    fuzz_target "$1" "$found/$1"
}

# Runs a target on the same inputs each time: nothing depends on addresses, keys of hash maps, the
# clock, or what earlier runs found.
short_one() {
    local runs
    runs=$(short_runs "$1")
    ! setarch -R true 2>/dev/null || repeatable=(setarch -R)
    repeatable+=(env "LD_PRELOAD=$root/build/tools/fuzz-getrandom.so")
    options=(-seed=1 -reload=0 -runs="$runs")
    rm -rf "$found/short/$1"
    fuzz_target "$1" "$found/short/$1"
}

# Runs a target with `options`. Arguments: target, folder for the inputs that it finds.
fuzz_target() {
    local target=$1 folder=$2 log=$found/$1.log artifact
    mkdir -p "$folder"
    rm -f "$found/$target.failed"
    if fuzzer "$target" "$folder" "fuzz/corpus/$target" -- \
        -print_final_stats=1 "${options[@]}" >"$log" 2>&1; then
        echo "$target: $(awk '/^stat::number_of_executed_units/ { print $2 }' "$log") executions," \
            "$(sed -n 's/^#[0-9]*\s*DONE\s*cov: \([0-9]*\).*/\1/p' "$log") edges"
        return
    fi
    artifact=$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)
    [ -z "$artifact" ] || { echo "fuzz: the input, gzip and base64:"; gzip -9c "$artifact" | base64; }
    tail -n 100 "$log"
    echo "fuzz: $target has found something; all of its output is in $log"
    touch "$found/$target.failed"
    return 1
}

# Says at the end of all output which targets failed and why, and fails.
summary() {
    local target
    for target in "$@"; do
        [ ! -e "$found/$target.failed" ] || {
            echo "fuzz: $target failed:"
            grep -A 3 -e 'panicked at' -e '^SUMMARY:' -e 'ERROR: ' "$found/$target.log" | head -n 12 || true
        }
    done
    return 1
}

# Rewrites a target's corpus. Inputs with a name of their own stay. An input named by its hash
# stays, or comes from build/fuzz, only if no smaller input reaches the same edges, and if it has at
# most 8 KiB, because mutated objects would take 6 MB.
grow_one() {
    local target=$1 corpus=fuzz/corpus/$1 small
    mkdir -p "$found/$target"
    small=$(mktemp -d -p "$found")
    find "$corpus" -regextype posix-extended -regex '.*/[0-9a-f]{40}' -exec mv -t "$found/$target" {} +
    find "$found/$target" -type f -size -17 -exec ln -t "$small" {} +
    fuzzer "$target" "$corpus" "$small" -- -merge=1 -use_counters=0 >"$found/$target.log" 2>&1
    rm -r "$small"
    echo "$target: $(find "$corpus" -type f | wc -l) inputs, $(du -sb "$corpus" | cut -f1) bytes"
}

command=$1
shift
case $command in
    run | short)
        install_pinned cargo-fuzz
        "$fuzz" fuzz build "${build[@]}"
        gcc -shared -fPIC -o build/tools/fuzz-getrandom.so tools/fuzz-getrandom.c
        printf '%s\n' "$@" | xargs -P "${FUZZ_JOBS:-1}" -n 1 "$0" "$command-one" || summary "$@"
        ;;
    grow)
        install_pinned cargo-fuzz
        for target in "$@"; do grow_one "$target"; done
        ;;
    run-one) run_one "$1" ;;
    short-one) short_one "$1" ;;
    *) echo "fuzz: no such command: $command" >&2; exit 2 ;;
esac
