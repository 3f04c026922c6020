#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Checks that no compiler makes: files without a licence line, dead files, banned names, notes to
# oneself, paths of a developer's machine, commands in documents that do not exist. Prints each
# fault, and fails if there is one.
set -euo pipefail
cd "$(dirname "$0")/.."

faults=0
fault() { echo "tidy: $*" >&2; faults=$((faults + 1)); }

# Prints tracked files and untracked ones that are not ignored.
files() {
    git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do
        [ -f "$file" ] && echo "$file"
    done
}

licence_lines() {
    for file in $(files '*.rs' '*.c' '*.h' '*.sh' '*.py' '*.toml' Makefile .ci/run); do
        head -2 "$file" | grep -q 'SPDX-License-Identifier: GPL-2.0-only' || fault "$file: no SPDX line at the top"
    done
}

# `x.rs` and `x/` need a `mod x` in the parent file. The roots of a crate and its bin, test, bench
# and example files belong to cargo.
dead_files() {
    for file in $(files 'crates/*/src/*.rs'); do
        name=$(basename "$file" .rs) dir=$(dirname "$file")
        case $file in */src/lib.rs | */src/main.rs | */src/bin/*) continue ;; esac
        if [ "$(basename "$dir")" = src ]; then parents="$dir/lib.rs $dir/main.rs"; else parents="$dir.rs"; fi
        [ "$name" = mod ] && { fault "$file: a module is x.rs beside x/, not x/mod.rs"; continue; }
        # shellcheck disable=SC2086 # a list
        grep -qsE "^\s*(pub(\([a-z]+\))? )?mod $name;" $parents || fault "$file: no module declares it"
    done
}

banned_names() {
    for file in $(files 'crates/*/src/*.rs' 'bpf/*'); do
        case $(basename "$file" | cut -d. -f1) in
            util | utils | misc | common | helpers) fault "$file: a name that says nothing" ;;
        esac
    done
}

# Patterns are assembled here, so that this file does not contain the text that it bans.
banned_text() {
    local notes="TO""DO|FIX""ME|XX""X:|todo""!\(|unimplemented""!\(|#\[ig""nore"
    # At the start of a path only: sysfs paths contain such names further on.
    local places="(^|[^a-z_])/(work|home|root|tmp)/[a-z]"
    local hosts="(deb|security|snapshot)\.debian\.""org|(index|static)\.""crates\.io|pypi\.""org"
    local found
    found=$(files | grep -vE '^(LICENSE|Cargo\.lock|cases/|fuzz/corpus/)' |
        xargs -d '\n' grep -nIE "$notes|$places|$hosts" || true)
    [ -z "$found" ] || while read -r line; do fault "$line"; done <<<"$found"
}

long_files() {
    for file in $(files '*.rs' '*.c' '*.h' '*.sh' '*.py'); do
        [ "$(wc -l <"$file")" -le 1000 ] || fault "$file: more than 1000 lines; which noun wants its own file?"
    done
}

# `make x` in a document must name an existing target.
documented_targets() {
    for target in $(files '*.md' | xargs -d '\n' grep -ohE '`make [a-z0-9-]+' | cut -d' ' -f2 | sort -u); do
        grep -q "^$target:" Makefile || fault "documents say make $target, which does not exist"
    done
}

licence_lines
dead_files
banned_names
banned_text
long_files
documented_targets
[ "$faults" = 0 ] || { echo "tidy: $faults faults" >&2; exit 1; }
