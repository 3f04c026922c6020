#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Runs every benchmark and writes what they print, with the commit and the machine that it was
# measured on, to docs/internals/figures.md. docs/internals/performance.md explains the figures.
#
#     tools/bench.sh [BENCH...]       all, or those named: switches, big, instructions, interpreter,
#                                     jit, ops, trace, process
#
# Valgrind must be installed for `instructions` and `big`. An uncommitted change is refused, because
# the page names the commit.
set -euo pipefail
cd "$(dirname "$0")/.."

page=docs/internals/figures.md
benches=("$@")
[ $# -gt 0 ] || benches=(instructions switches big interpreter jit ops trace process)

die() { echo "bench: $*" >&2; exit 1; }

git diff --quiet HEAD -- . ":!$page" || die "the working tree differs from its commit; commit first, then measure"

model=$(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -1)
text=$(
    echo "<!-- SPDX-License-Identifier: GPL-2.0-only -->"
    echo "<!-- Generated: make figures -->"
    echo "# Figures of the benchmarks"
    echo
    echo "Measured at commit $(git rev-parse --short=12 HEAD) of $(git log -1 --format=%cs), with $(rustc --version | cut -d' ' -f1-2),"
    echo "on $(nproc) CPUs of the type \"${model:-unknown}\", with a load of $(cut -d' ' -f1 /proc/loadavg) at the start."
    echo "[Performance](performance.md) says what each benchmark measures. Compare ratios; absolute times belong to this machine."
)
for bench in "${benches[@]}"; do
    echo "== $bench" >&2
    # The heading is only the benchmark's name: the benchmark's doc comments say what it measures.
    text+=$'\n\n'"## \`$bench\`"$'\n\n```text\n'
    text+=$(cargo bench --locked --quiet --package scxlab-benches --bench "$bench")
    text+=$'\n```'
done
printf '%s\n' "$text" >"$page"
echo "bench: wrote $page" >&2
