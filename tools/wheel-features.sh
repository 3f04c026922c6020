#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Fails, and prints the libraries, if the wheel of the tests asks other features of a library than
# the workspace's tests do: then that library and all that use it are compiled twice, which takes
# minutes. The feature `tests` of py/Cargo.toml makes them equal. Part of `make lint`.
set -euo pipefail

cd "$(dirname "$0")/.."

# libraries ARGUMENTS_OF_CARGO_TREE: each with its version and its features.
libraries() {
    ${CARGO:-cargo} tree --locked --prefix none --format '{p} [{f}]' "$@" | sed 's/ (\*)$//' | sort -u
}

folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
libraries --workspace --edges normal,dev >"$folder/tests"
libraries --package scxlab-py --features tests --edges normal >"$folder/wheel"
other=$(comm -13 "$folder/tests" "$folder/wheel" | sed '/^scxlab-py /d')
[ -n "$other" ] || exit 0
echo "py/Cargo.toml: the feature \`tests\` asks for other features than the workspace's tests:" >&2
echo "$other" >&2
exit 1
