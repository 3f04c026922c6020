#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Compiles the kernel's own example schedulers and selftests of sched_ext, and keeps the kernel
# itself.
#
# The kernel is the cloud kernel of Debian's trixie-backports that tools/pins.txt names; its
# packages must have the SHA-256 given there. Debian keeps one version at a time; once that version
# is gone, the newest is taken instead, with a warning. The packages are downloaded, never
# installed, through an apt state of our own; the machine's apt state is not changed.
#
#   kernel-objects.sh          does what `make kernel-objects` does
#   kernel-objects.sh --pins   only prints the lines of tools/pins.txt for the newest kernel
#
# Leaves in build/kernel:
#   objects/*.bpf.o   the examples (scx_*) and the selftests
#   vmlinux           the kernel as ELF, with BTF        bzImage   the kernel as it boots
#   release           its version                        config    what it was configured with
#   modules/*.ko.xz   its modules for KVM, for virtual machines in virtual machines
#   stamp             hash of all inputs
# Does nothing if the stamp shows that everything is up to date.
set -euo pipefail

clang=${BPF_CLANG:-clang-19}
suite=trixie-backports
meta=linux-image-cloud-amd64

root=$(cd "$(dirname "$0")/.." && pwd)
work=$root/build/kernel
pins=$root/tools/pins.txt
mkdir -p "$work"
cd "$work"

say() { echo "kernel-objects: $*"; }
die() { say "$*" >&2; exit 1; }

# Runs a noisy step; its output is shown only if it fails.
quietly() {
    what=$1; shift
    "$@" >"$work/log" 2>&1 || { tail -40 "$work/log" >&2; die "$what failed (all of it: build/kernel/log)"; }
}

stamp_now() {
    { cat "$root/tools/kernel-objects.sh"; grep '^deb ' "$pins"; "$clang" --version; } | sha256sum | cut -d' ' -f1
}

is_current() {
    [ -s stamp ] && [ -s vmlinux ] && [ -s bzImage ] && [ -s release ] && [ -s config ] && [ -s modules/kvm.ko.xz ] || return 1
    [ "$(sed -n 1p stamp)" = "$(stamp_now)" ] || return 1
    [ "$(sed -n 2p stamp)" = "$(ls objects | wc -l)" ]
}

# Prints the Debian mirror that this machine uses; trixie-backports is on the same server.
mirror() {
    apt-get indextargets --format '$(ORIGIN) $(RELEASE) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        awk '$1 == "Debian" && $2 !~ /security/ { print $3; exit }'
}

prepare_apt() {
    uri=$(mirror)
    if [ -z "$uri" ]; then
        # Before the first `apt-get update` apt knows no origins, so take the mirror from the
        # sources files.
        uri=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list \
            2>/dev/null | grep -v '^#' | grep -o '[a-z+]*://[^ ]*/debian/\?\( \|$\)' | head -1)
    fi
    [ -n "$uri" ] || die "this machine's apt sources name no Debian mirror"
    mkdir -p apt/lists/partial apt/cache/archives/partial debs
    cat >apt/debian.sources <<SOURCES
Types: deb
URIs: $uri
Suites: $suite
Components: main
Architectures: amd64
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
    cat >apt/apt.conf <<CONF
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Sandbox::User "$(id -un)";
Dir::State "$work/apt";
Dir::State::lists "$work/apt/lists";
Dir::State::status "/dev/null";
Dir::Cache "$work/apt/cache";
Dir::Etc::sourcelist "$work/apt/debian.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
CONF
    export APT_CONFIG="$work/apt/apt.conf"
    quietly "apt-get update of $suite" apt-get -q update
}

has_all() {
    for package in $packages; do
        apt-cache show "$package" >/dev/null 2>&1 || return 1
    done
}

# Sets the variables `release` and `packages` to those of the pinned kernel if the Debian suite
# still has it, otherwise (or with an argument) to those of the suite's newest kernel.
find_versions() {
    packages=$(awk '$1 == "deb" { print $2 "=" $3 }' "$pins")
    if [ -z "${1-}" ] && has_all; then
        release=$(echo "$packages" | sed -n 's/^linux-binary-\(.*\)=.*/\1/p')
        return
    fi
    release=$(apt-cache depends "$meta" | sed -n 's/.*Depends: linux-image-\([0-9].*\)/\1/p' | head -1)
    [ -n "$release" ] || die "$suite has no $meta"
    packages=
    for package in "linux-binary-$release" "linux-base-$release" "linux-modules-$release" \
        "linux-source-$(echo "$release" | cut -d. -f1,2)"; do
        packages="$packages $package=$(field "$package" Version)"
    done
}

# Prints a field of a package's newest version: PACKAGE FIELD.
field() {
    apt-cache show --no-all-versions "$1" 2>/dev/null | sed -n "s/^$2: //p" | grep . || die "$suite has no $1"
}

print_pins() {
    for package in $packages; do
        echo "deb ${package%=*} ${package#*=} $(field "${package%=*}" SHA256)"
    done
}

is_pinned() {
    grep -q "^deb ${1%=*} ${1#*=} " "$pins"
}

# Downloads the package whose name starts with $1, unless it is there, and sets `deb` to its file.
# Removes files of the package's other versions.
download() {
    local package name file
    package=$(printf '%s\n' $packages | grep "^$1")
    name=${package%=*}
    file=debs/${name}_${package#*=}
    ls "$file"_*.deb >/dev/null 2>&1 || (cd debs && quietly "download of $package" apt-get -q download "$package")
    deb=$(ls "$file"_*.deb)
    find debs -name "${name}_*.deb" ! -path "$deb" -delete
    if is_pinned "$package"; then
        grep "^deb $name " "$pins" | awk -v file="$deb" '{ print $4 "  " file }' | sha256sum --quiet --check >&2 ||
            { rm "$deb"; die "$package is not what tools/pins.txt says it is; it was deleted"; }
    fi
}

unpack_image() {
    say "unpacking the image"
    rm -rf image && mkdir image
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C image --wildcards '*/vmlinuz*'
    cp "$(find image -type f -name 'vmlinuz*' | head -1)" bzImage
    rm -rf image
}

unpack_config() {
    dpkg-deb --fsys-tarfile "$deb" | tar -xO --wildcards '*/config' >config
}

unpack_modules() {
    rm -rf modules unpacked && mkdir modules unpacked
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C unpacked --wildcards '*/kvm*.ko.xz' '*/irqbypass.ko.xz'
    find unpacked -name '*.ko.xz' -exec cp -t modules {} +
    rm -rf unpacked
}

unpack_source() {
    say "unpacking what is needed of the source"
    rm -rf src && mkdir src
    dpkg-deb --fsys-tarfile "$deb" | tar -xO --wildcards './usr/src/linux-source-*.tar.xz' | xz -dc -T0 |
        tar -x -C src --strip-components=1 $(printf "$(basename "${deb%%_*}")/%s " \
            scripts kernel/bpf include/uapi include/linux \
            tools/{arch,bpf/bpftool,build,include,lib,scripts,sched_ext,testing/selftests/sched_ext})
    sh src/scripts/extract-vmlinux bzImage >vmlinux 2>/dev/null || die "no vmlinux inside the image"
}

build_tools() {
    say "building bpftool and vmlinux.h"
    mkdir -p bpftool libbpf include
    quietly "bpftool" make -C src/tools/bpf/bpftool OUTPUT="$work/bpftool/" bootstrap
    quietly "libbpf's headers" make -C src/tools/lib/bpf OUTPUT="$work/libbpf/" prefix= DESTDIR="$work/libbpf" \
        install_headers
    bpftool/bootstrap/bpftool btf dump file vmlinux format c >include/vmlinux.h || die "vmlinux has no BTF"
}

# Compiles with the flags of the kernel's own makefiles; no path of this machine is in the result.
compile() {
    "$clang" -g -fdebug-compilation-dir=. -O2 -mcpu=v3 -target bpf -mlittle-endian -D__TARGET_ARCH_x86 -fms-extensions \
        -I"$tests/include" -I"$examples/include" -I"$examples/include/bpf-compat" \
        -Iinclude -Ilibbpf/include -Isrc/tools/include/uapi -Isrc/include -I"$examples" -I"$tests" \
        $system_includes \
        -Wno-compare-distinct-pointer-types -Wno-incompatible-function-pointer-types \
        -Wno-microsoft-anon-tag -c "$1" -o "$2"
}

compile_all() {
    examples=src/tools/sched_ext
    tests=src/tools/testing/selftests/sched_ext
    system_includes=$("$clang" -v -E - </dev/null 2>&1 |
        sed -n '/<...> search starts here:/,/End of search list./{ s| \(/.*\)|-idirafter \1|p }')
    rm -rf objects && mkdir objects
    for file in "$examples"/*.bpf.c "$tests"/*.bpf.c; do
        name=$(basename "$file" .bpf.c)
        quietly "$name.bpf.c" compile "$file" "objects/$name.bpf.o"
    done
    say "$(ls "$examples"/*.bpf.c | wc -l) examples and $(ls "$tests"/*.bpf.c | wc -l) selftests compiled"
}

if [ "${1-}" = --pins ]; then
    prepare_apt
    find_versions newest
    print_pins
    exit 0
fi
if is_current; then
    say "up to date ($(cat release), $(ls objects | wc -l) objects)"
    exit 0
fi
rm -f stamp
say "asking $suite for its kernel"
prepare_apt
find_versions
if ! is_pinned "$(printf '%s\n' $packages | grep '^linux-binary-')"; then
    say "WARNING: $suite no longer has the pinned kernel: using its newest, whose signatures apt checks." \
        "\`make pins\` pins it" >&2
fi
say "Linux $release: downloading" $packages
download linux-binary-
unpack_image
download linux-base-
unpack_config
download linux-modules-
unpack_modules
download linux-source-
unpack_source
build_tools
compile_all
echo "$release" >release
rm -rf src libbpf include bpftool/libbpf log
{ stamp_now; ls objects | wc -l; } >stamp
