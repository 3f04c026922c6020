#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Installs the missing Debian packages among those that scxlab needs for its build, tests and demo.
#
# Supports: Debian 12 and later, as root or through sudo. Elsewhere install the equivalents by hand.
# Does not: install Rust. Debian's is too old, and the choice of a toolchain manager is the user's.
set -eu

# Compilers; libraries that libbpf, bpftool and the build script of scx_rustland link to; tools
# that unpack and describe a kernel, and test the Python module; workloads of the demo and of
# guests; QEMU for guests, and the systemd that a test runs in one; linker and emulator for aarch64
# code; the browser that tests of pages use.
packages="
    clang-19 llvm-19 libclang-19-dev gcc g++ libc6-dev make pkg-config
    libelf-dev zlib1g-dev libseccomp-dev protobuf-compiler
    apt ca-certificates binutils file python3 python3-venv tar xz-utils zstd
    rt-app rt-tests stress-ng sysbench dbench
    qemu-system-x86 systemd
    lld-19 qemu-user
    chromium"
# Debian's, unless another Node.js is there, whose package conflicts with Debian's npm.
command -v npm >/dev/null || packages="$packages nodejs npm"
rust_wanted=1.95

say() { echo "setup: $*"; }
die() { say "$*" >&2; exit 1; }

is_installed() {
    dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null | grep -q '^.i'
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

install_missing() {
    missing=""
    for package in $packages; do
        is_installed "$package" || missing="$missing $package"
    done
    if [ -z "$missing" ]; then
        say "all packages are installed"
        return
    fi
    say "installing:$missing"
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null || die "not root and no sudo: install them yourself"
    as_root apt-get -qq update || die "apt-get update failed"
    # shellcheck disable=SC2086 # `missing` is a list of packages
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends -y $missing \
        >/dev/null || die "apt-get could not install:$missing"
}

check_rust() {
    command -v cargo >/dev/null || die "no cargo: install Rust $rust_wanted or later (rustup, stable)"
    found=$(rustc --version | cut -d' ' -f2)
    oldest=$(printf '%s\n%s\n' "$rust_wanted" "$found" | sort -V | head -1)
    [ "$oldest" = "$rust_wanted" ] || die "rustc is $found: $rust_wanted or later is needed"
    cargo fmt --version >/dev/null 2>&1 || die "no rustfmt: add Rust's component rustfmt"
    cargo clippy --version >/dev/null 2>&1 || die "no clippy: add Rust's component clippy"
}

command -v dpkg-query >/dev/null || die "not Debian: install the equivalents of$(echo $packages | sed 's/^/ /')"
install_missing
check_rust
