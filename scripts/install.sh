#!/usr/bin/env bash
# Installs into a directory of its own and uses what is there: a C program is compiled against the installed header with
# pkg-config, linked with the shared and with the static library, and both are run on a volume that the installed command serves
# (where there is FUSE; without, they are only linked). Then everything is uninstalled, and no file may be left.
#   scripts/install.sh                PROFILE=release: what is built and installed (default dev)
set -euo pipefail
cd "$(dirname "$0")/.."
./scripts/setup.sh cc:gcc pkg-config make

work=$(mktemp -d "${TMPDIR:-/tmp}/freehold-install.XXXXXX")
root=$work/root
freehold=$root/usr/bin/freehold
cleanup() {
    ! grep -q " $work/mnt " /proc/mounts || "$freehold" umount "$work/mnt" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
into=(DESTDIR="$root" PREFIX=/usr PROFILE="${PROFILE:-dev}")
make -s install "${into[@]}"

export PKG_CONFIG_PATH=$root/usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
# pkg-config leaves directories out that the compiler knows anyway; these are in another root.
export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[ "$(pkg-config --modversion freehold)" = "$version" ] || { echo "freehold.pc says another version" >&2; exit 1; }
read -ra cflags <<<"$(pkg-config --cflags freehold) -std=c99 -Wall -Wextra -pedantic -Werror"
read -ra libs <<<"$(pkg-config --libs freehold)"
read -ra static <<<"$(pkg-config --static --libs freehold)"
cc "${cflags[@]}" scripts/install/greet.c -o "$work/greet" "${libs[@]}"
# The archive by its name, and of the words of pkg-config those that other libraries need.
archived=()
for word in "${static[@]}"; do [ "$word" = -lfreehold ] && archived+=("$root/usr/lib/libfreehold.a") || archived+=("$word"); done
cc "${cflags[@]}" scripts/install/greet.c -o "$work/greet.static" "${archived[@]}"
if readelf -d "$work/greet.static" 2>/dev/null | grep -q 'NEEDED.*libfreehold'; then
    echo "the static library was not linked" >&2
    exit 1
fi
echo "a C program is compiled and linked with libfreehold.so and with libfreehold.a"

if [ -r /dev/fuse ]; then
    mkdir "$work/mnt"
    "$freehold" mkfs "$work/disk.img" --size 64M >/dev/null
    "$freehold" mount "$work/disk.img" "$work/mnt" -o "share=$work/socket"
    LD_LIBRARY_PATH=$root/usr/lib "$work/greet" "$work/socket"
    [ "$(cat "$work/mnt/greeting")" = "hello from C" ]
    rm "$work/mnt/greeting"
    "$work/greet.static" "$work/socket"
    # The installed command finds the installed library for other programs.
    [ "$("$freehold" run cat "$work/mnt/greeting")" = "hello from C" ]
    "$freehold" umount "$work/mnt" >/dev/null
    echo "both wrote to a volume, and others read it: through the mount, and under freehold run"
else
    echo "no /dev/fuse: the programs are linked, and not run"
fi

make -s uninstall "${into[@]}"
left=$(find "$root" ! -type d)
[ -z "$left" ] || { echo "left by make uninstall: $left" >&2; exit 1; }
echo "and uninstalled without a trace"
