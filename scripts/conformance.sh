#!/usr/bin/env bash
# POSIX over FUSE and under `freehold run`: mounts a volume in an image file, runs random data operations in several processes
# (freehold-fsx) and pjdfstest on it, through the kernel and then past it, compares random calls of several programs with those in an ordinary
# directory (freehold-programs), also while the manager is stopped and started again and again, has programs work on the same files at the same time (freehold-together), and checks the volume with fsck. Needs /dev/fuse; pjdfstest
# needs root and is skipped, aloud, without. crates/preload/tests/pjdfstest.expected names the tests that cannot pass under
# `freehold run`, and why.
#
#   scripts/conformance.sh            CONFORMANCE_FSX_OPS=N for each of two seeds (default 60000), CONFORMANCE_SEEDS=N of random calls (default 60), CONFORMANCE_RESTARTS=N of those with restarts (default 12), CONFORMANCE_TOGETHER=N seeds of 8 seconds (default 3), PROFILE=release
set -euo pipefail
cd "$(dirname "$0")/.."
ops=${CONFORMANCE_FSX_OPS:-60000}
pjdfstest_version=0.2.2
profile=${PROFILE:-dev}

if [ ! -r /dev/fuse ]; then
    echo "/dev/fuse is not there: nothing over FUSE can be tested" >&2
    exit 1
fi
cargo build --locked --profile "$profile" -p freehold -p freehold-preload -p freehold-sim
target=${CARGO_TARGET_DIR:-target}/${profile/dev/debug}
freehold=$(realpath "$target/freehold")
fsx=$(realpath "$target/freehold-fsx")
programs=$(realpath "$target/freehold-programs")
programs_together=$(realpath "$target/freehold-together")
seeds=${CONFORMANCE_SEEDS:-60}
restarts=${CONFORMANCE_RESTARTS:-12}
together=${CONFORMANCE_TOGETHER:-3}

work=$(mktemp -d "${TMPDIR:-/tmp}/freehold-conformance.XXXXXX")
helper=
server=
# The tests of ETXTBSY leave a program of the volume running for 10 s when they fail, as they must under freehold run.
unmount() {
    for _ in $(seq 12); do
        ! "$freehold" umount "$work/mnt" >/dev/null 2>&1 || return 0
        sleep 1
    done
    "$freehold" umount "$work/mnt"
}
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    ! grep -q " $work/mnt " /proc/mounts || unmount || "$freehold" umount --force "$work/mnt" || true
    [ -z "$helper" ] || rm -f "$helper"
    rm -rf "$work"
}
trap cleanup EXIT
chmod 755 "$work"
mkdir "$work/mnt"
"$freehold" mkfs "$work/disk.img" --size 4G >/dev/null
options=()
if [ "$(id -u)" = 0 ]; then
    options=(-o allow_other)
    # Remounting, which the tests of EROFS do, goes through mount(8) and its helper.
    if [ ! -e /sbin/mount.fuse.freehold ]; then
        helper=/sbin/mount.fuse.freehold
        ln -s "$freehold" "$helper"
    fi
fi
"$freehold" mount "$work/disk.img" "$work/mnt" "${options[@]}"
chmod 755 "$work/mnt"

# Two processes beside each other, each with a file of its own: $1 operations each, started under the command that follows.
data_operations() {
    local ops=$1
    shift
    "$@" "$fsx" "$work/mnt/a" --ops "$ops" --seed "${FREEHOLD_SEED:-1}" & first=$!
    "$@" "$fsx" "$work/mnt/b" --ops "$ops" --seed $((${FREEHOLD_SEED:-1} + 1)) & second=$!
    wait "$first"
    wait "$second"
    rm "$work/mnt/a" "$work/mnt/b"
}
echo "==> random data operations over FUSE: two processes, $ops operations each"
data_operations "$ops"
echo "==> random data operations under freehold run: the same, $((ops / 6)) operations each"
data_operations $((ops / 6)) timeout -k 10 60 "$freehold" run --

echo "==> four programs at the same time, three of them under freehold run: what each has been told holds for all"
mkdir "$work/mnt/together"
for seed in $(seq "$together"); do
    timeout -k 10 120 "$programs_together" "$work/mnt/together" --under "$freehold run --" --seed $((${FREEHOLD_SEED:-1} + seed)) --seconds 8
done
rmdir "$work/mnt/together"

# What ext4 does is what is followed; other file systems differ in small things (links of directories, attributes, ranges).
if [ "$(stat -f -c %T "$work")" = ext2/ext3 ]; then
    echo "==> random calls of four programs, three of them under freehold run, $seeds seeds"
    mkdir "$work/plain" "$work/mnt/programs"
    timeout -k 10 $((seeds + 60)) "$programs" "$work/plain" "$work/mnt/programs" --under "$freehold run --" --seed "${FREEHOLD_SEED:-1}" --seeds "$seeds" --calls 250
    rmdir "$work/plain" "$work/mnt/programs"

    echo "==> random calls of four programs under freehold run, by one user, $restarts seeds; the manager is stopped and started again every 20 calls"
    mkdir "$work/bin" "$work/plain" "$work/mnt/programs"
    cp "$freehold" "$programs" "${freehold%/*}/libfreehold_preload.so" "$work/bin"
    under=("$work/bin/freehold" run --)
    user=()
    if [ "$(id -u)" = 0 ]; then
        # To whom permissions apply.
        user=(setpriv --reuid 1000 --regid 1000 --clear-groups)
        chown 1000:1000 "$work/plain" "$work/mnt/programs"
    fi
    mkfifo -m 666 "$work/ask" "$work/done"
    while read -r asked <"$work/ask" && [ "$asked" = again ]; do
        "$freehold" umount -f "$work/mnt" >/dev/null
        "$freehold" mount "$work/disk.img" "$work/mnt" "${options[@]}" >/dev/null
        echo done >"$work/done"
    done & server=$!
    # From where nothing is mounted.
    (cd / && timeout -k 10 $((10 * restarts + 60)) "${user[@]}" "${under[@]}" "$work/bin/freehold-programs" "$work/plain" "$work/mnt/programs" \
        --under "${under[*]}" --all --interlude "echo again >'$work/ask'; read done <'$work/done'" \
        --seed "${FREEHOLD_SEED:-1}" --seeds "$restarts" --calls 250)
    echo end >"$work/ask"
    wait "$server"
    server=
    rm -r "$work/bin" "$work/ask" "$work/done"
    rmdir "$work/plain" "$work/mnt/programs"
else
    echo "==> random calls SKIPPED: $work is not on ext4"
fi

if [ "$(id -u)" = 0 ]; then
    if ! command -v pjdfstest >/dev/null 2>&1 && [ ! -x "${CARGO_HOME:-$HOME/.cargo}/bin/pjdfstest" ]; then
        echo "==> installing pjdfstest"
        cargo install --quiet --locked --version "$pjdfstest_version" pjdfstest
    fi
    echo "==> pjdfstest over FUSE"
    ./scripts/pjdfstest.sh "$work/mnt"
    echo "==> pjdfstest under freehold run"
    PJDFSTEST_UNDER="$freehold run --" PJDFSTEST_EXPECTED=crates/preload/tests/pjdfstest.expected timeout -k 10 120 \
        ./scripts/pjdfstest.sh "$work/mnt"
else
    echo "==> pjdfstest SKIPPED: it needs root"
fi

unmount
"$freehold" fsck "$work/disk.img"
