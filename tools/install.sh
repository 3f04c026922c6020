#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Installs the result of `make build`: install.sh PREFIX.
set -eu

prefix=$1
scxlab=target/release/scxlab
share=$prefix/share

script() {
    mkdir -p "$(dirname "$2")"
    "$scxlab" completions "$1" >"$2"
}

install -D -m 755 "$scxlab" "$prefix/bin/scxlab"
"$scxlab" man -o "$share/man/man1"
script bash "$share/bash-completion/completions/scxlab"
script zsh "$share/zsh/site-functions/_scxlab"
script fish "$share/fish/vendor_completions.d/scxlab.fish"
echo "install: $prefix/bin/scxlab, its man pages, and completions for bash, zsh and fish"
