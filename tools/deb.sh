#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Makes a Debian package of the result of `make build`: deb.sh FOLDER. It has what `make install`
# installs, below /usr, and depends on the libraries that the program is linked with.
set -eu

cd "$(dirname "$0")/.."
folder=$1
scxlab=target/release/scxlab
version=$("$scxlab" --version | cut -d' ' -f2)
architecture=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

tools/install.sh "$root/usr" >/dev/null
install -D -m 644 LICENSE "$root/usr/share/doc/scxlab/copyright"
gzip -9 -n "$root"/usr/share/man/man1/*.1
chmod 755 "$root"

# The package of each library, by the name of the file that is loaded. The program may need the libc
# of this host.
depends() {
    ldd "$scxlab" | while read -r library _; do
        case $library in
            libc.so.6) echo "libc6 (>= $(getconf GNU_LIBC_VERSION | cut -d' ' -f2))" ;;
            libgcc_s.so.1) echo libgcc-s1 ;;
            libelf.so.1) echo "libelf1 | libelf1t64" ;;
            libz.so.1) echo zlib1g ;;
            libm.so.6 | linux-vdso.so.1 | /*) ;;
            *) echo "deb: no package is known for $library" >&2; return 1 ;;
        esac
    done | sort | paste -sd, | sed 's/,/, /g'
}

needs=$(depends)
mkdir -p "$root/DEBIAN" "$folder"
cat >"$root/DEBIAN/control" <<END
Package: scxlab
Version: $version
Architecture: $architecture
Maintainer: the scxlab authors <scxlab@localhost>
Section: devel
Priority: optional
Depends: $needs
Recommends: qemu-system-x86
Suggests: clang-19
Description: Run and compare CPU schedulers for a workload and a machine
 scxlab runs compiled sched_ext BPF schedulers and the kernel's default class on
 a simulated machine, without root and reproducibly, and on a real kernel in a
 virtual machine or on this host.
END
package=$folder/scxlab_${version}_$architecture.deb
dpkg-deb --build --root-owner-group "$root" "$package" >/dev/null
echo "deb: $package"
