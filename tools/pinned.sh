# SPDX-License-Identifier: GPL-2.0-only
# Sourced by scripts that take crates which Cargo.lock does not name; tools/pins.txt has their
# checksums.

pins=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/pins.txt

# Prints the pinned versions of a crate, newest first.
pinned_versions() {
    awk -v name="$1" '$1 == "crate" && $2 == name { print $3 }' "$pins"
}

# Prints the path of a crate's file that cargo has downloaded: NAME VERSION.
crate_file() {
    find "${CARGO_HOME:-$HOME/.cargo}/registry/cache" -name "$1-$2.crate" | head -1
}

# Fails unless cargo's copy of a crate has the pinned checksum: NAME VERSION.
check_crate() {
    local file sum
    file=$(crate_file "$1" "$2")
    [ -n "$file" ] || { echo "$1 $2: cargo has not downloaded it" >&2; return 1; }
    sum=$(awk -v name="$1" -v version="$2" '$1 == "crate" && $2 == name && $3 == version { print $4 }' "$pins")
    [ -n "$sum" ] || { echo "$1 $2: tools/pins.txt does not name it" >&2; return 1; }
    echo "$sum  $file" | sha256sum --quiet --check >&2 || { echo "$1 $2 is not what tools/pins.txt says it is" >&2; return 1; }
}

# Installs a program from its crate into build/tools, unless it is there: NAME.
install_pinned() {
    local version root
    version=$(pinned_versions "$1" | head -1)
    root=$(dirname "$pins")/../build/tools
    [ "$(cat "$root/$1.version" 2>/dev/null)" = "$version" ] && return
    echo "installing $1 $version into build/tools"
    mkdir -p "$root"
    # Downloads and unpacks the crate, without compiling anything.
    (cd "$root" && cargo info --color never "$1@$version" >/dev/null 2>&1) || { echo "$1 $version: cargo finds none" >&2; return 1; }
    check_crate "$1" "$version" || return 1
    cargo install --quiet --locked --debug --root "$root" --target-dir "$root/target" "$1@=$version" || return 1
    rm -rf "$root/target"
    echo "$version" >"$root/$1.version"
}
