#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Rewrites tools/pins.txt: the newest kernel, and for each crate in it the newest versions, as many
# as are listed now.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/tools/pinned.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

die() { echo "pins: $*" >&2; exit 1; }

# Prints the newest COUNT versions of a crate that are neither yanked nor pre-releases: NAME COUNT.
newest_versions() {
    local index
    index=$(find "${CARGO_HOME:-$HOME/.cargo}/registry/index" -path "*/.cache/*/$1" | head -1)
    [ -n "$index" ] || die "cargo knows no crate $1"
    tr '\0' '\n' <"$index" | grep -a '^{' | python3 -c '
import json, sys
crates = [json.loads(line) for line in sys.stdin]
released = [c for c in crates if not c["yanked"] and "-" not in c["vers"]]
released.sort(key=lambda c: [int(part) for part in c["vers"].split("+")[0].split(".")], reverse=True)
for crate in released[:int(sys.argv[1])]:
    print(crate["vers"], crate["cksum"])' "$2"
}

grep '^#' "$pins" >"$work/pins.txt"
"$root/tools/kernel-objects.sh" --pins >>"$work/pins.txt"
cd "$work"
for name in $(awk '$1 == "crate" { print $2 }' "$pins" | uniq); do
    # Updates cargo's index of the crate.
    cargo info --color never "$name" >/dev/null 2>&1 || die "cargo finds no crate $name"
    newest_versions "$name" "$(pinned_versions "$name" | wc -l)" | while read -r version sum; do
        echo "crate $name $version $sum"
    done >>"$work/pins.txt"
done
# shellcheck disable=SC2046 # awk prints a list of arguments
"$root/tools/scx-objects.sh" --needs $(awk '$1 == "crate" && $2 ~ /^scx_/ { print $2 "@" $3 }' "$work/pins.txt") >>"$work/pins.txt"
diff "$pins" "$work/pins.txt" || true
cp "$work/pins.txt" "$pins"
